//! [`SimDisk`]: the folder of simulated files as a [`Device`].

use core::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::clock::SimClock;
use super::content::pages_of;
use super::faults::{FaultRule, code};
use super::file::{SimFile, refused};
use super::image::Image;
use super::inner::{Recording, SimDiskInner};
use super::ledger::LedgerEntry;
use super::options::{Quota, SimOptions};
use super::outcome::{CrashMode, CrashOutcome};
use super::queue::SimQueue;
use super::state::{DiskEvent, FileId, FolderOp};
use super::trace::Trace;
use crate::buffer::PageBuf;
use crate::device::{
    Device, DeviceInfo, Disk, File, LockMode, OpenFile, OpenMode, Queue, RequestKind,
};
use crate::error::{IoError, LockHolder, Operation, Result};
use crate::page::PAGE;

const PAGE_U64: u64 = PAGE as u64;

/// A simulated folder. Clones are the same folder.
///
/// `docs/testing.md` says what is modelled.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<SimDiskInner>>);

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock_inner();
        let names: Vec<_> = inner.state.names.keys().collect();
        f.debug_struct("SimDisk")
            .field("files", &names)
            .field("operations", &inner.operations)
            .finish_non_exhaustive()
    }
}

struct LockGuard {
    disk: SimDisk,
    mode: LockMode,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut inner = self.disk.lock_inner();
        match self.mode {
            LockMode::Exclusive => inner.writer = false,
            LockMode::Shared => inner.readers -= 1,
        }
    }
}

impl SimDisk {
    /// An empty disk whose choices come from `seed`.
    pub fn new(seed: u64, options: SimOptions) -> Self {
        Self::from_image_with(&Image::default(), seed, options)
    }

    /// A disk that holds `image`, all of it durable, without faults.
    pub fn from_image(image: &Image, seed: u64) -> Self {
        Self::from_image_with(image, seed, SimOptions::default())
    }

    /// A disk that holds `image`, all of it durable.
    pub fn from_image_with(image: &Image, seed: u64, options: SimOptions) -> Self {
        Self(Arc::new(Mutex::new(SimDiskInner::new(image.state(), seed, options))))
    }

    pub(super) fn lock_inner(&self) -> MutexGuard<'_, SimDiskInner> {
        self.0.lock()
    }

    /// Forgets the trace so far and records from here on; what is pending stays pending.
    pub fn record(&self) {
        let mut inner = self.lock_inner();
        let initial = inner.state.clone();
        inner.recording = Some(Recording { initial, events: Vec::new() });
    }

    /// The trace since creation or the last [`SimDisk::record`]; empty when recording is off.
    pub fn trace(&self) -> Trace {
        let inner = self.lock_inner();
        match &inner.recording {
            Some(recording) => Trace::new(recording.initial.clone(), recording.events.clone()),
            None => Trace::new(inner.state.clone(), Vec::new()),
        }
    }

    /// Puts a mark of the application into the trace, for example "commit 7 acknowledged".
    pub fn mark(&self, mark: u64) {
        self.lock_inner().emit(DiskEvent::Mark(mark));
    }

    /// What an orderly shutdown would leave: everything that reads see.
    pub fn image(&self) -> Image {
        let inner = self.lock_inner();
        Image::visible(&inner.state)
    }

    /// Operations started so far. A rule [`FaultRule::at`] this number + 1 strikes the next one.
    pub fn operations(&self) -> u64 {
        self.lock_inner().operations
    }

    /// Everything that was injected so far.
    pub fn ledger(&self) -> Vec<LedgerEntry> {
        self.lock_inner().ledger.clone()
    }

    /// Adds a rule.
    pub fn inject(&self, rule: FaultRule) {
        self.lock_inner().faults.arm(rule);
    }

    /// Ends all rules and random faults; what they did stays done.
    pub fn heal(&self) {
        self.lock_inner().faults.disarm();
    }

    /// Changes the space limit. What is over it stays.
    pub fn set_quota(&self, quota: Option<Quota>) {
        self.lock_inner().options.quota = quota;
    }

    /// Bytes that files occupy.
    pub fn used(&self) -> u64 {
        self.lock_inner().used()
    }

    /// The disk's virtual clock, to be shared with a [`SimRuntime`](super::SimRuntime::with_clock).
    pub fn clock(&self) -> SimClock {
        self.lock_inner().clock.clone()
    }
}

impl CrashOutcome {
    /// A disk without faults to recover on; it records, so its own crash points can be walked.
    pub fn disk(&self) -> SimDisk {
        self.disk_with(SimOptions::default())
    }

    /// A disk to recover on. Its seed comes from the outcome.
    pub fn disk_with(&self, options: SimOptions) -> SimDisk {
        let seed = match self.mode() {
            CrashMode::Random(seed) => seed,
            _ => self.boundary() as u64,
        };
        SimDisk::from_image_with(self.image(), seed, options)
    }
}

impl From<SimDisk> for Disk {
    fn from(value: SimDisk) -> Self {
        Arc::new(value)
    }
}

impl From<&SimDisk> for Disk {
    fn from(value: &SimDisk) -> Self {
        Arc::new(value.clone())
    }
}

impl Device for SimDisk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { folder: String::new(), engine: "simulated", direct: true, note: String::new() }
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut inner = self.lock_inner();
        inner.begin(Operation::List, "", 0)?;
        Ok(inner.state.names.keys().map(ToString::to_string).collect())
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<File> {
        let mut inner = self.lock_inner();
        let creates = mode == OpenMode::CreateNew;
        let operation = if creates { Operation::Create } else { Operation::Open };
        inner.begin(operation, name, 0)?;
        if name.is_empty() || name.contains('/') {
            return Err(inner.fail(operation, name, 0, libc::EINVAL));
        }
        let name: Arc<str> = name.into();
        let id = match (inner.state.names.get(&name).copied(), creates) {
            (Some(_), true) => return Err(inner.fail(operation, &name, 0, libc::EEXIST)),
            (None, false) => return Err(inner.fail(operation, &name, 0, libc::ENOENT)),
            (Some(id), false) => id,
            (None, true) => {
                let id = FileId(inner.state.files.len());
                inner.tokens.push(Arc::new(()));
                inner.emit(DiskEvent::Folder(FolderOp::Link { name: Arc::clone(&name), id }));
                id
            }
        };
        let token = Arc::clone(&inner.tokens[id.0]);
        Ok(File::new(SimFile::new(name, id, mode, token)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut inner = self.lock_inner();
        inner.begin(Operation::Remove, name, 0)?;
        let Some(id) = inner.state.names.get(name).copied() else {
            return Err(inner.fail(Operation::Remove, name, 0, libc::ENOENT));
        };
        inner.emit(DiskEvent::Folder(FolderOp::Unlink { name: name.into(), id }));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut inner = self.lock_inner();
        inner.begin(Operation::Rename, from, 0)?;
        let Some(id) = inner.state.names.get(from).copied() else {
            return Err(inner.fail(Operation::Rename, from, 0, libc::ENOENT));
        };
        if to.is_empty() || to.contains('/') {
            return Err(inner.fail(Operation::Rename, from, 0, libc::EINVAL));
        }
        inner.emit(DiskEvent::Folder(FolderOp::Rename { from: from.into(), to: to.into(), id }));
        Ok(())
    }

    fn exchange(&self, a: &str, b: &str) -> Result<bool> {
        let mut inner = self.lock_inner();
        inner.begin(Operation::Exchange, a, 0)?;
        if !inner.options.exchanges {
            return Ok(false);
        }
        let ids = (inner.state.names.get(a).copied(), inner.state.names.get(b).copied());
        let (Some(id_a), Some(id_b)) = ids else {
            return Err(inner.fail(Operation::Exchange, a, 0, libc::ENOENT));
        };
        inner.emit(DiskEvent::Folder(FolderOp::Exchange { a: a.into(), b: b.into(), id_a, id_b }));
        Ok(true)
    }

    fn sync_folder(&self) -> Result<()> {
        self.lock_inner().sync_folder()
    }

    fn lock(&self, mode: LockMode) -> Result<Box<dyn Send + Sync>> {
        let mut inner = self.lock_inner();
        inner.begin(Operation::Lock, "", 0)?;
        if inner.writer || (mode == LockMode::Exclusive && inner.readers > 0) {
            return Err(IoError::Locked { folder: String::new(), holder: LockHolder::Unknown });
        }
        match mode {
            LockMode::Exclusive => inner.writer = true,
            LockMode::Shared => inner.readers += 1,
        }
        drop(inner);
        Ok(Box::new(LockGuard { disk: self.clone(), mode }))
    }

    fn free_space(&self) -> Result<(u64, u64)> {
        let mut inner = self.lock_inner();
        inner.begin(Operation::OpenFolder, "", 0)?;
        let size = inner.limit().bytes;
        Ok((size.saturating_sub(inner.used()), size))
    }

    fn len(&self, file: &File) -> Result<u64> {
        let file: &SimFile = file.downcast();
        let mut inner = self.lock_inner();
        let id = inner.check(file);
        inner.begin(Operation::Length, file.name(), 0)?;
        Ok(inner.state.files[id.0].visible.len())
    }

    fn set_len(&self, file: &File, len: u64) -> Result<()> {
        let file: &SimFile = file.downcast();
        let mut inner = self.lock_inner();
        let id = inner.check(file);
        inner.begin(Operation::Resize, file.name(), len)?;
        if !file.writable() || i64::try_from(len).is_err() {
            return Err(inner.fail(Operation::Resize, file.name(), len, libc::EINVAL));
        }
        inner.emit(DiskEvent::Resize { id, len });
        Ok(())
    }

    fn allocate(&self, file: &File, offset: u64, len: u64) -> Result<()> {
        let file: &SimFile = file.downcast();
        let mut inner = self.lock_inner();
        let id = inner.check(file);
        inner.begin(Operation::Allocate, file.name(), offset)?;
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
        let failure = match end {
            _ if !file.writable() => Some(libc::EBADF),
            None => Some(code::EFBIG),
            Some(_) if len == 0 => Some(libc::EINVAL),
            Some(end) => {
                let (first, room) = (offset / PAGE_U64, inner.room());
                let count = pages_of(end) - first;
                let content = &inner.state.files[id.0].visible;
                // The first condition bounds the work of the second.
                if count > room + content.occupied() || content.holes(first, count) > room {
                    Some(inner.limit().code)
                } else {
                    inner.emit(DiskEvent::Reserve { id, first, count, len: end });
                    None
                }
            }
        };
        match failure {
            Some(code) => Err(inner.fail(Operation::Allocate, file.name(), offset, code)),
            None => Ok(()),
        }
    }

    fn read_at(&self, file: &File, buf: &mut PageBuf, offset: u64) -> Result<()> {
        let file: &SimFile = file.downcast();
        let mut inner = self.lock_inner();
        inner.check(file);
        file.admit(RequestKind::Read, offset, buf.len())?;
        let plan = inner.start_read(file, offset, buf.len());
        inner.clock.advance(plan.delay);
        inner.finish_read(file, &plan, offset, buf)
    }

    fn write_bytes(&self, file: &File, buf: &PageBuf, len: usize, offset: u64) -> Result<()> {
        let file: &SimFile = file.downcast();
        let mut inner = self.lock_inner();
        inner.check(file);
        let Some(bytes) = buf.get(..len) else {
            return Err(refused(file.name(), offset, Operation::Write, libc::EINVAL));
        };
        file.admit(RequestKind::Write, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let ticket = inner.start_write(file, offset, bytes);
        inner.clock.advance(ticket.delay);
        inner.finish_write(file, ticket)
    }

    fn sync(&self, file: &File) -> Result<()> {
        let file: &SimFile = file.downcast();
        let mut inner = self.lock_inner();
        let ticket = inner.start_sync(file);
        inner.clock.advance(ticket.delay);
        inner.finish_sync(file, &ticket)
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.lock_inner().begin(Operation::SetUpRing, "", 0)?;
        Ok(Box::new(SimQueue::new(Arc::clone(&self.0), depth)))
    }
}
