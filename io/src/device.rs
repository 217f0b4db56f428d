//! The device under the engine: one folder of files, blocking calls for single transfers on the calling thread, and
//! queues for many at once.
//!
//! Promises of an implementation:
//! * transfers are whole pages at page-aligned offsets, except for writes of bytes through the page cache;
//!   they are repeated until complete: a short transfer continues from where it stopped; after EINTR or EAGAIN it
//!   is tried again, at most 16 times;
//! * a transfer that moves nothing is [`IoError::Short`]; any other failure names file, offset and operation;
//! * a failed sync is never repeated by the device;
//! * a successful sync covers exactly the writes to that file that had completed before it was submitted.

use core::any::Any;
use core::fmt::Debug;
use std::sync::Arc;

use crate::buffer::PageBuf;
use crate::error::{IoError, Result};
use crate::page::PAGE;
use crate::pool::PagePool;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing file, reading only.
    Read,
    /// Existing file, reading and writing.
    Write,
    /// The same through the page cache: a write is complete when the kernel has a copy, which outlives the process and,
    /// as any write, is lost by a power cut before a sync. For files that are not synced soon. Writes may begin and end
    /// at any byte.
    WriteCached,
    /// New file, reading and writing; an error when the name exists.
    CreateNew,
}

/// How a folder is locked against other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// One writer, nobody else.
    Exclusive,
    /// Any number of readers, no writer.
    Shared,
}

/// The kind of device that serves the folder, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The folder, as it was given; empty for a simulated one.
    pub folder: String,
    /// "uring", "blocking" or "simulated".
    pub engine: &'static str,
    /// True when transfers bypass the page cache (O_DIRECT). False in memory (tmpfs, ramfs), which has nothing but the
    /// page cache.
    pub direct: bool,
    /// Why a fallback was taken; empty when none was.
    pub note: String,
}

/// The device's part of an open file.
pub trait OpenFile: Any + Debug + Send + Sync {
    /// The file's name within the folder.
    fn name(&self) -> &str;
}

/// Handle of an open file. Cloning is cheap; the file closes with its last handle.
#[derive(Clone, Debug)]
pub struct File(Arc<dyn OpenFile>);

impl File {
    /// A handle of `file`.
    pub fn new(file: impl OpenFile) -> Self {
        Self(Arc::new(file))
    }

    /// The file's name within the folder.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The device's part of the file.
    ///
    /// # Panics
    /// When another kind of device has opened it.
    pub fn downcast<F: OpenFile>(&self) -> &F {
        let file: &dyn Any = &*self.0;
        file.downcast_ref().expect("a device is given only files that it has opened")
    }
}

/// A folder that the database and its tasks share.
pub type Disk = Arc<dyn Device>;

/// A folder on a device. Names are plain file names inside the folder.
pub trait Device: Debug + Send + Sync + 'static {
    /// The kind of device that serves this folder.
    fn info(&self) -> DeviceInfo;

    /// Names of the files in the folder, in no particular order.
    fn list(&self) -> Result<Vec<String>>;
    /// Opens or creates a file.
    fn open(&self, name: &str, mode: OpenMode) -> Result<File>;
    /// Removes a file's name; durable after [`Device::sync_folder`].
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file over another; durable after [`Device::sync_folder`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Exchanges the names of two files in one step; durable after [`Device::sync_folder`]. False
    /// where the file system cannot do that: then nothing has changed.
    fn exchange(&self, a: &str, b: &str) -> Result<bool>;
    /// Makes creations, removals, renames and exchanges durable.
    fn sync_folder(&self) -> Result<()>;
    /// Locks the folder against other processes, until the value is dropped. When another process has the lock,
    /// [`IoError::Locked`] names the owner.
    fn lock(&self, mode: LockMode) -> Result<Box<dyn Send + Sync>>;
    /// The free bytes and the size in bytes of the file system that holds the folder.
    fn free_space(&self) -> Result<(u64, u64)>;
    /// Bytes that overwrites of the files whose names begin like this would take anew from the file system: blocks that
    /// a copy or a snapshot shares, and files that are copied on write; and what the file system may take at once for
    /// itself (btrfs). 0 where it does not say.
    fn shared_bytes(&self, _prefixes: &[&str]) -> Result<u64> {
        Ok(0)
    }

    /// Refuses a file that has other names (hard links), since a write would change it under these, too:
    /// [`IoError::Linked`]. A device without links has none.
    fn check_unlinked(&self, _file: &File) -> Result<()> {
        Ok(())
    }

    /// Length of a file in bytes.
    fn len(&self, file: &File) -> Result<u64>;
    /// Sets the length of a file in bytes: cuts it, or extends it with zeros for which no space is reserved.
    fn set_len(&self, file: &File, len: u64) -> Result<()>;
    /// Reserves space for the bytes `[offset, offset + len)`, extending the file. After a failure
    /// the file's length is what it was before.
    fn allocate(&self, file: &File, offset: u64, len: u64) -> Result<()>;

    /// Fills the whole buffer on the calling thread. `offset` is a byte offset and a multiple of the page size.
    fn read_at(&self, file: &File, buf: &mut PageBuf, offset: u64) -> Result<()>;
    /// Writes the first `pages` pages of the buffer on the calling thread, at byte `offset`.
    fn write_at(&self, file: &File, buf: &PageBuf, pages: usize, offset: u64) -> Result<()> {
        self.write_bytes(file, buf, pages.saturating_mul(PAGE), offset)
    }
    /// Writes the first `len` bytes of the buffer on the calling thread, at byte `offset`: any, within the length of a
    /// file that was opened with [`OpenMode::WriteCached`], and multiples of the page size otherwise. The device stores
    /// whole pages all the same, so a power cut may tear all other bytes of them, too.
    fn write_bytes(&self, file: &File, buf: &PageBuf, len: usize, offset: u64) -> Result<()>;
    /// fdatasync on the calling thread.
    fn sync(&self, file: &File) -> Result<()>;

    /// A queue for up to `depth` outstanding requests. Call it on the thread that will use the
    /// queue: a ring has a single issuer.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>>;
    /// A queue that may move between threads, also with requests in flight.
    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.queue(depth)
    }
}

/// What a request does with its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Fills the whole buffer from the file.
    Read,
    /// Writes the whole buffer to the file.
    Write,
    /// fdatasync; the buffer is ignored (an empty one will do).
    Sync,
}

/// One transfer. It owns its buffer and file until its completion comes back.
#[derive(Debug)]
pub struct Request {
    /// The file.
    pub file: File,
    /// The operation.
    pub kind: RequestKind,
    /// Byte offset, a multiple of the page size.
    pub offset: u64,
    /// The buffer; its whole length is transferred.
    pub buf: PageBuf,
    /// The caller's number, returned in the completion.
    pub token: u64,
}

/// The end of a request.
#[derive(Debug)]
#[must_use]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// The request's buffer.
    pub buf: PageBuf,
    /// Success means that the whole buffer was transferred.
    pub result: core::result::Result<(), IoError>,
}

/// A submission queue with one owner. Dropping it waits for the requests in flight.
pub trait Queue: Send + 'static {
    /// Largest number of outstanding requests.
    fn depth(&self) -> usize;
    /// Requests pushed and not yet returned by [`Queue::poll`] or [`Queue::wait`].
    fn in_flight(&self) -> usize;
    /// Adds a request. Nothing reaches the kernel before [`Queue::submit`] or [`Queue::wait`].
    ///
    /// # Panics
    /// When [`Queue::in_flight`] equals [`Queue::depth`].
    fn push(&mut self, request: Request);
    /// Hands pushed requests to the kernel, without waiting.
    fn submit(&mut self) -> Result<()>;
    /// The next completion that has arrived, without waiting and without submitting.
    fn poll(&mut self) -> Option<Completion>;
    /// Submits pushed requests and sleeps until a completion has arrived; `Ok(None)` when nothing is in flight.
    ///
    /// Requests are submitted even when a completion has arrived already. So a queue is kept full by a [`Queue::wait`]
    /// for one completion, then [`Queue::poll`] until there is none, pushing a new request for each, and
    /// [`Queue::wait`] again: one system call for all.
    fn wait(&mut self) -> Result<Option<Completion>>;
    /// The same, but may sleep until `count` completions have arrived, or all that are in flight.
    /// Returns one of them; the others are polled. A system call costs about as much as a request,
    /// so a caller with many requests in flight and no hurry waits for several at once.
    fn wait_for(&mut self, count: usize) -> Result<Option<Completion>> {
        let _ = count;
        self.wait()
    }
    /// Tells the device that buffers of `pool` will be used, so that it can prepare their memory once instead of for
    /// each request; true when it did. Requests may use any buffer, whatever the answer. Preparing takes all of the
    /// pool's memory at once. Call it on the thread that uses the queue, with at most one pool.
    fn register(&mut self, pool: &PagePool) -> bool {
        let _ = pool;
        false
    }
}
