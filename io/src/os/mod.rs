//! A directory of the operating system as a [`Device`].
//!
//! ```
//! use pleach_io::{Device, OpenMode, OsDevice, OsOptions, PageBuf, Queue, Request, RequestKind};
//!
//! let directory = tempfile::tempdir()?;
//! let device = OsDevice::open(directory.path(), OsOptions::default())?;
//! let file = device.open("data", OpenMode::CreateNew)?;
//!
//! // Many transfers at once: push, then wait; each completion brings its buffer back.
//! let mut queue = device.queue(8)?;
//! for page in 0..8u64 {
//!     let mut buf = PageBuf::zeroed(1);
//!     buf[0] = page as u8;
//!     let (kind, offset) = (RequestKind::Write, page * 4096);
//!     queue.push(Request { file: file.clone(), kind, offset, buf, token: page });
//! }
//! while let Some(completion) = queue.wait()? {
//!     completion.result?;
//! }
//! device.sync(&file)?;
//! assert_eq!(device.len(&file)?, 8 * 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Fallbacks
//!
//! They are taken at run time, reported once through `tracing::warn!` and listed in
//! [`DeviceInfo::note`]: without io_uring, a pool of threads; without O_DIRECT, the page cache. The
//! promises stay the same. `docs/io.md` is the design page.
//!
//! # Files
//!
//! ```text
//! mod       device and queue, choice of engine, notes about fallbacks
//! setup     what kind of ring the kernel gives        uring     queue over a ring
//! blocking  queue over threads                        table     a ring's registered files
//! files     opening, lengths, single transfers        progress  completion step, pure
//! lock      the directory's lock                      error     results to `IoError`
//! fixed     a ring's registered memory               descriptor  their numbers
//! ```

mod blocking;
mod descriptor;
mod error;
mod files;
mod fixed;
mod lock;
mod progress;
mod setup;
mod shared;
mod table;
mod uring;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::buffer::PageBuf;
use crate::device::{
    Completion, Device, DeviceInfo, Disk, File, LockMode, OpenMode, Queue, Request,
};
use crate::error::{IoError, Operation, Result};
use crate::pool::PagePool;
use crate::process::{ProcessBound, ProcessTag, count_forks};

use blocking::{Pool, PoolQueue};
use descriptor::open_at;
use error::{failed, failed_std, os_error, refused};
use files::Direct;
use lock::{HeldLock, LOCK_NAME};
use setup::RingSetup;
use uring::RingQueue;

/// Largest depth of a queue: the kernel's limit for a ring.
pub const MAX_DEPTH: usize = 32768;

/// How requests are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring where it works, the blocking pool elsewhere.
    #[default]
    Auto,
    /// io_uring, or an error that says what to do.
    Uring,
    /// A pool of threads with blocking calls.
    Blocking,
}

/// How a folder is opened.
#[derive(Clone, Debug)]
pub struct OsOptions {
    /// Engine of the queues.
    pub io: IoMode,
    /// Bypass the page cache where the file system can. Default true.
    pub direct: bool,
    /// Create the folder, and folders above it, when missing. Default false.
    pub create_folder: bool,
    /// Refuse all writes. Default false.
    pub read_only: bool,
    /// Threads of the blocking pool. Default 16.
    pub threads: usize,
}

impl Default for OsOptions {
    fn default() -> Self {
        Self { io: IoMode::Auto, direct: true, create_folder: false, read_only: false, threads: 16 }
    }
}

/// A folder. Cloning gives another handle.
#[derive(Clone)]
pub struct OsDevice(Arc<OsDeviceInner>);

impl core::fmt::Debug for OsDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OsDevice")
            .field("folder", &self.0.path)
            .field("uring", &self.0.ring.is_some())
            .field("read_only", &self.0.options.read_only)
            .finish_non_exhaustive()
    }
}

struct OsDeviceInner {
    folder: OwnedFd,
    /// The folder in errors.
    path: String,
    options: OsOptions,
    /// `None`: the blocking pool.
    ring: Option<RingSetup>,
    pool: OnceLock<ProcessBound<Arc<Pool>>>,
    home: ProcessTag,
    /// Serialises the start of the pool.
    starting: Mutex<()>,
    state: Mutex<OsDeviceState>,
    lock: HeldLock,
}

/// What may change while a device is in use.
struct OsDeviceState {
    direct: bool,
    notes: Vec<String>,
}

/// Asks the kernel for a ring; a parameter, so that a test can play a kernel without.
type RingProbe = fn() -> std::io::Result<RingSetup>;

/// Free bytes below which a file system is asked twice whether they are still free, or a quarter of a small one.
const LOW: u64 = 4 << 30;
const REFUSED: &str = "the file system refuses O_DIRECT, or wants it in units above 4 KiB: files go through the page cache";

impl OsDevice {
    /// Opens a folder.
    pub fn open(folder: &Path, options: OsOptions) -> Result<Self> {
        Self::open_with(folder, options, setup::probe)
    }

    fn open_with(folder: &Path, options: OsOptions, probe: RingProbe) -> Result<Self> {
        let path = folder.display().to_string();
        count_forks().map_err(failed_std(&path, Operation::OpenFolder))?;
        let create = options.create_folder && !options.read_only;
        let fd = open_folder(folder, create)?;
        let mut notes = Vec::new();
        let ring = choose_engine(&options, &path, probe, &mut notes)?;
        let inner = OsDeviceInner {
            folder: fd,
            path,
            ring,
            pool: OnceLock::new(),
            home: ProcessTag::current(),
            starting: Mutex::new(()),
            state: Mutex::new(OsDeviceState { direct: options.direct, notes }),
            lock: Arc::new(Mutex::new(Weak::new())),
            options,
        };
        let device = Self(Arc::new(inner));
        if files::is_in_memory(device.folder()) {
            device.note_buffered(
                "the folder is in memory, without a device: O_DIRECT and syncs do nothing there",
            );
        }
        if let Some(kind) = shared::without_shared_locks(device.folder()) {
            let note = format!(
                "the folder is on {kind}: processes that reach it by another path or machine do not see its lock"
            );
            tracing::warn!(folder = %device.0.path, "{note}");
            device.0.state.lock().notes.push(note);
        }
        if device.0.options.direct
            && !device.0.options.read_only
            && files::probe_direct(device.folder()) == Some(Direct::Refused)
        {
            device.note_buffered(REFUSED);
        }
        Ok(device)
    }

    fn folder(&self) -> BorrowedFd<'_> {
        self.0.folder.as_fd()
    }

    /// Refuses to write to a folder opened for reading, and in a process that was forked since.
    fn check_writable(&self, name: &str, operation: Operation) -> Result<()> {
        self.0.home.check_current()?;
        if self.0.options.read_only {
            return Err(failed(name, operation)(Errno::ROFS));
        }
        Ok(())
    }

    /// Notes, once, that files of this folder go through the page cache.
    fn note_buffered(&self, note: &str) {
        let mut state = self.0.state.lock();
        if state.direct {
            state.direct = false;
            tracing::warn!(folder = %self.0.path, "{note}");
            state.notes.push(note.to_owned());
        }
    }

    /// Turns "not found" into "removed" when the folder itself no longer exists.
    fn or_removed(&self, error: IoError) -> IoError {
        let removed = |stat: rustix::fs::Stat| stat.st_nlink == 0;
        if error.is_not_found() && rustix::fs::fstat(self.folder()).is_ok_and(removed) {
            return IoError::FolderRemoved { folder: self.0.path.clone() };
        }
        error
    }

    fn pool(&self) -> Result<Arc<Pool>> {
        let _starting = self.0.starting.lock();
        if let Some(pool) = self.0.pool.get() {
            return Ok(Arc::clone(pool));
        }
        let pool = Arc::new(Pool::start(self.0.options.threads)?);
        Ok(Arc::clone(self.0.pool.get_or_init(|| ProcessBound::new(pool))))
    }

    /// A queue over a ring of this kind, or on the blocking pool.
    fn queue_of(&self, depth: usize, ring: Option<RingSetup>) -> Result<Box<dyn Queue>> {
        if depth > MAX_DEPTH {
            return Err(os_error(&self.0.path, 0, Operation::SetUpRing, libc::EINVAL));
        }
        self.0.home.check_current()?;
        let depth = depth.max(1);
        let Some(setup) = ring else {
            return Ok(OsQueue::boxed(PoolQueue::new(self.pool()?, depth)));
        };
        match RingQueue::new(setup, depth, self.0.lock.clone()) {
            Ok(queue) => Ok(OsQueue::boxed(queue)),
            Err(refusal) if self.0.options.io == IoMode::Auto => {
                let pool = self.pool()?;
                let mut state = self.0.state.lock();
                if state.notes.is_empty() {
                    state.notes.push(no_ring_note(&self.0.path, &refusal));
                }
                Ok(OsQueue::boxed(PoolQueue::new(pool, depth)))
            }
            Err(refusal) => Err(failed_std(&self.0.path, Operation::SetUpRing)(refusal)),
        }
    }

    /// True when the folder's entry `name` exists and is no folder.
    fn is_listed(&self, name: &[u8], kind: FileType) -> bool {
        let kind = match kind {
            FileType::Unknown => rustix::fs::statat(self.folder(), name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            known => known,
        };
        kind != FileType::Directory && name != LOCK_NAME.as_bytes()
    }
}

/// Ring or pool; a refusal is an error under [`IoMode::Uring`] and a note otherwise.
fn choose_engine(
    options: &OsOptions,
    path: &str,
    probe: RingProbe,
    notes: &mut Vec<String>,
) -> Result<Option<RingSetup>> {
    if options.io == IoMode::Blocking {
        return Ok(None);
    }
    match probe() {
        Ok(setup) => Ok(Some(setup)),
        Err(refusal) if options.io == IoMode::Uring => Err(ring_refused(path, &refusal)),
        Err(refusal) => {
            notes.push(no_ring_note(path, &refusal));
            Ok(None)
        }
    }
}

fn ring_refused(path: &str, refusal: &std::io::Error) -> IoError {
    let advice = match refusal.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => "Linux 5.10 or newer has it",
        Some(libc::EPERM | libc::EACCES) => {
            "allow it (sysctl kernel.io_uring_disabled, the container's seccomp profile)"
        }
        Some(libc::ENOMEM) => "raise the locked-memory limit (ulimit -l)",
        _ => "see the system's log",
    };
    IoError::Os {
        file: path.to_owned(),
        offset: 0,
        operation: Operation::SetUpRing,
        code: refusal.raw_os_error().unwrap_or(0),
        kind: refusal.kind(),
        message: format!("no io_uring here: {refusal}; {advice}, or choose another I/O mode"),
    }
}

fn no_ring_note(path: &str, refusal: &std::io::Error) -> String {
    let note = format!("no io_uring here ({refusal}): threads with blocking calls instead");
    tracing::warn!(folder = %path, "{note}");
    note
}

/// Opens a folder, creating what is missing and making that durable. An error names the folder that cannot be made,
/// which may be one above.
fn open_folder(folder: &Path, create: bool) -> Result<OwnedFd> {
    let name = folder.display().to_string();
    let open = || open_at(rustix::fs::CWD, folder, OFlags::DIRECTORY, Mode::empty());
    match open() {
        Err(Errno::NOENT | Errno::NOTDIR) if create => {}
        opened => {
            return opened.map_err(|errno| refused(&name, Operation::OpenFolder, errno));
        }
    }
    let above = match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = open_folder(above, true)?;
    match rustix::fs::mkdir(folder, Mode::from_raw_mode(0o755)) {
        // EEXIST: another process was faster, or it is a link to nowhere.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(&name, Operation::CreateFolder)(errno)),
    }
    rustix::fs::fsync(&parent).map_err(failed(&name, Operation::CreateFolder))?;
    open().map_err(|errno| match errno {
        Errno::NOENT => IoError::Os {
            file: name,
            offset: 0,
            operation: Operation::CreateFolder,
            code: 0,
            kind: std::io::ErrorKind::AlreadyExists,
            message: "it is a symbolic link to a folder that is not there: make that one, or remove the link"
                .to_owned(),
        },
        errno => refused(&name, Operation::OpenFolder, errno),
    })
}

impl From<OsDevice> for Disk {
    fn from(value: OsDevice) -> Self {
        Arc::new(value)
    }
}

impl Device for OsDevice {
    fn info(&self) -> DeviceInfo {
        let state = self.0.state.lock();
        DeviceInfo {
            folder: self.0.path.clone(),
            engine: if self.0.ring.is_some() { "uring" } else { "blocking" },
            direct: state.direct,
            note: state.notes.join("; "),
        }
    }

    /// All entries but folders and the lock file.
    fn list(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let entries = rustix::fs::Dir::read_from(self.folder())
            .map_err(failed(&self.0.path, Operation::List))?;
        for entry in entries {
            let entry = entry.map_err(failed(&self.0.path, Operation::List))?;
            if self.is_listed(entry.file_name().to_bytes(), entry.file_type()) {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<File> {
        match mode {
            OpenMode::Read => {}
            OpenMode::Write | OpenMode::WriteCached => {
                self.check_writable(name, Operation::Open)?;
            }
            OpenMode::CreateNew => self.check_writable(name, Operation::Create)?,
        }
        let direct = self.0.state.lock().direct;
        let (file, state) = files::open(self.folder(), name, mode, direct)
            .map_err(|error| self.or_removed(error))?;
        if state == Direct::Refused {
            self.note_buffered(REFUSED);
        }
        Ok(File::new(file))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.check_writable(name, Operation::Remove)?;
        files::check_name(name, Operation::Remove)?;
        rustix::fs::unlinkat(self.folder(), name, AtFlags::empty())
            .map_err(failed(name, Operation::Remove))
            .map_err(|error| self.or_removed(error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_writable(from, Operation::Rename)?;
        files::check_name(from, Operation::Rename)?;
        files::check_name(to, Operation::Rename)?;
        rustix::fs::renameat(self.folder(), from, self.folder(), to)
            .map_err(failed(from, Operation::Rename))
            .map_err(|error| self.or_removed(error))
    }

    fn exchange(&self, a: &str, b: &str) -> Result<bool> {
        self.check_writable(a, Operation::Exchange)?;
        files::check_name(a, Operation::Exchange)?;
        files::check_name(b, Operation::Exchange)?;
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        match rustix::fs::renameat_with(self.folder(), a, self.folder(), b, flags) {
            Ok(()) => Ok(true),
            // File systems and kernels that know no exchange say one of these.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(self.or_removed(failed(a, Operation::Exchange)(errno))),
        }
    }

    fn sync_folder(&self) -> Result<()> {
        self.check_writable(&self.0.path, Operation::SyncFolder)?;
        rustix::fs::fsync(self.folder()).map_err(failed(&self.0.path, Operation::SyncFolder))
    }

    fn lock(&self, mode: LockMode) -> Result<Box<dyn Send + Sync>> {
        let lock = lock::lock(
            (self.folder(), &self.0.path),
            mode,
            self.0.options.read_only,
            &self.0.lock,
        )?;
        Ok(Box::new(ProcessBound::new(lock)))
    }

    fn free_space(&self) -> Result<(u64, u64)> {
        let look = || {
            let stat = rustix::fs::fstatvfs(self.folder())
                .map_err(failed(&self.0.path, Operation::FreeSpace))?;
            let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
            Ok((bytes(stat.f_bavail), bytes(stat.f_blocks)))
        };
        let (free, size) = look()?;
        let is_low = free < LOW.min(size / 4);
        if is_low && shared::settle_free_space(self.folder()) { look() } else { Ok((free, size)) }
    }

    fn shared_bytes(&self, prefixes: &[&str]) -> Result<u64> {
        if !shared::can_share(self.folder()) {
            return Ok(0);
        }
        let mut bytes = shared::metadata_chunks(self.folder(), self.free_space()?.1);
        for name in self.list()? {
            if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                match files::open(self.folder(), &name, OpenMode::Read, false) {
                    Ok((file, _)) => bytes += files::shared_bytes(&file)?,
                    // A segment that was recycled meanwhile.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(bytes)
    }

    fn check_unlinked(&self, file: &File) -> Result<()> {
        if files::is_linked(file.downcast())? {
            let (folder, file) = (self.0.path.clone(), file.name().to_owned());
            return Err(IoError::Linked { folder, file });
        }
        Ok(())
    }

    fn len(&self, file: &File) -> Result<u64> {
        files::len(file.downcast())
    }

    fn set_len(&self, file: &File, len: u64) -> Result<()> {
        self.check_writable(file.name(), Operation::Resize)?;
        files::set_len(file.downcast(), len)
    }

    fn allocate(&self, file: &File, offset: u64, len: u64) -> Result<()> {
        self.check_writable(file.name(), Operation::Allocate)?;
        files::allocate(file.downcast(), offset, len)
    }

    fn read_at(&self, file: &File, buf: &mut PageBuf, offset: u64) -> Result<()> {
        files::read(file.downcast(), buf, offset)
    }

    fn write_bytes(&self, file: &File, buf: &PageBuf, len: usize, offset: u64) -> Result<()> {
        self.0.home.check_current()?;
        let Some(bytes) = buf.get(..len) else {
            return Err(os_error(file.name(), offset, Operation::Write, libc::EINVAL));
        };
        files::write(file.downcast(), bytes, offset)
    }

    fn sync(&self, file: &File) -> Result<()> {
        files::sync(file.downcast())
    }

    /// At most [`MAX_DEPTH`] deep; a depth of 0 becomes 1. Where the kernel refuses this ring
    /// (memory), [`IoMode::Auto`] gives a queue on the blocking pool and notes it.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.queue_of(depth, self.0.ring)
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        // The other kinds process completions on the thread that has submitted.
        self.queue_of(depth, self.0.ring.map(|_| RingSetup::Plain))
    }
}

/// A queue of the process that made it: in a child forked since, the ring is the parent's, and the threads of the pool
/// are missing.
struct OsQueue<Q>(ProcessBound<Q>);

impl<Q: Queue> OsQueue<Q> {
    fn boxed(queue: Q) -> Box<dyn Queue> {
        Box::new(Self(ProcessBound::new(queue)))
    }
}

impl<Q: Queue> Queue for OsQueue<Q> {
    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn push(&mut self, request: Request) {
        self.0.push(request);
    }

    fn submit(&mut self) -> Result<()> {
        self.0.process().check_current()?;
        self.0.submit()
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.process().check_current().ok()?;
        self.0.poll()
    }

    fn wait_for(&mut self, count: usize) -> Result<Option<Completion>> {
        self.0.process().check_current()?;
        self.0.wait_for(count)
    }

    fn wait(&mut self) -> Result<Option<Completion>> {
        self.wait_for(1)
    }

    fn register(&mut self, pool: &PagePool) -> bool {
        self.0.process().is_current() && self.0.register(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> std::io::Result<RingSetup> {
        Err(std::io::Error::from_raw_os_error(libc::EPERM))
    }

    #[test]
    fn a_refused_ring_is_a_note_or_an_error_that_says_what_to_do() {
        let dir = tempfile::tempdir().expect("tempdir");
        let open =
            |io| OsDevice::open_with(dir.path(), OsOptions { io, ..OsOptions::default() }, refused);
        let info = open(IoMode::Auto).expect("fallback").info();
        assert!(info.engine == "blocking" && info.note.contains("io_uring"), "{info:?}");
        let info = open(IoMode::Blocking).expect("never asks").info();
        assert_eq!((info.engine, info.note.as_str()), ("blocking", ""));
        let error = open(IoMode::Uring).map(drop).expect_err("asked for").to_string();
        assert!(error.contains("kernel.io_uring_disabled"), "{error}");
    }
}
