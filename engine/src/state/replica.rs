//! The state of a read-only open: a replica of another process's database, kept up by that process's log.
//!
//! An operation on the replica reads under the gate, and nothing in memory changes meanwhile. The files may change: the
//! writer may have freed a page or a run that the replica names, and written it again. Each page has its number, tag
//! and checksum, and each long value its hash, so a reader of such a page gets an error; by then the log says where the
//! page is, since a page is written again only when its location record is durable. So the operation releases the gate,
//! the replica catches up, and the operation is repeated. An error at the same place is damage when no record came in
//! between, or when it keeps coming there.
//!
//! Locks: the gate, before all but that of an overlay's chunks. Catching up takes the source, then writes the gate.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::Database;
use crate::error::{Error, Result};

impl Database {
    /// Runs an operation on the state of commit `base`; in a replica again when a page that it reads has moved.
    ///
    /// # Errors
    /// Those of `read`; [`IoError::Forked`](pleach_io::IoError::Forked) in a process that was forked since the
    /// database was opened.
    #[inline]
    pub(crate) fn run_read<T>(&self, base: u64, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        self.home.check_current()?;
        match &self.replica {
            None => read(),
            Some(replica) => replica.run_read(self, base, read),
        }
    }
}

thread_local! {
    /// True while an operation of this thread is under way, which is repeated by itself.
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Reads the writer's records and applies them.
pub(crate) trait ReplicaSource: Send {
    /// Applies new records to the state, which nobody reads meanwhile, and what the newest superblock says of the
    /// history. True when any came.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] where the log does not reach back far enough any more; errors of reading, and damage.
    fn catch_up(&mut self, db: &Database) -> Result<bool>;
}

/// Keeps the state of a read-only open up with the writer's log.
pub(crate) struct Replica {
    source: Mutex<Box<dyn ReplicaSource>>,
    gate: RwLock<()>,
    /// Grows each time that catching up applies records.
    version: AtomicU64,
    /// Set when the state has ended: the oldest commit that another open could read.
    ended: OnceLock<u64>,
}

/// Held while an operation of a replica is under way on this thread.
struct OperationGuard<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

impl<'a> OperationGuard<'a> {
    fn new(gate: &'a RwLock<()>) -> Self {
        let held = gate.read();
        READING.set(true);
        Self(held)
    }
}

impl Drop for OperationGuard<'_> {
    fn drop(&mut self) {
        READING.set(false);
    }
}

impl Replica {
    pub(crate) fn new(source: Box<dyn ReplicaSource>) -> Self {
        let (gate, version, ended) = (RwLock::new(()), AtomicU64::new(0), OnceLock::new());
        Self { source: Mutex::new(source), gate, version, ended }
    }

    /// Keeps the state unchanged while the guard lives.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read_recursive()
    }

    /// Applies the log to its end. True when any record came.
    ///
    /// # Errors
    /// Those of the source. After [`Error::SnapshotTooOld`] nothing of this state can be read any more.
    pub(crate) fn catch_up(&self, db: &Database) -> Result<bool> {
        let mut source = self.source.lock();
        let _alone = self.gate.write();
        let came = source.catch_up(db);
        if let Err(Error::SnapshotTooOld { oldest, .. }) = &came {
            self.ended.get_or_init(|| *oldest);
        }
        // Records may have been applied before an error.
        if !matches!(came, Ok(false)) {
            self.version.fetch_add(1, Ordering::Release);
        }
        came
    }

    /// Runs an operation on the state of commit `base`, and repeats it while its pages move. An error at the same place
    /// twice without a record in between is damage, and so is one that comes there [`MAX_SAME_PLACE`] times more.
    pub(crate) fn run_read<T>(
        &self,
        db: &Database,
        base: u64,
        mut operation: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        if READING.get() {
            return operation();
        }
        let too_old = |oldest: u64| Error::SnapshotTooOld { commit: base, oldest };
        let (mut before, mut same) = (None::<Error>, 0);
        for _ in 0..TRIES {
            let reading = OperationGuard::new(&self.gate);
            if let Some(oldest) = self.ended.get() {
                return Err(too_old(*oldest));
            }
            let version = self.version.load(Ordering::Acquire);
            let done = db.commits.undo.check_in_window(base).and_then(|()| operation());
            drop(reading);
            let Err(error) = done else { return done };
            // Only an error with a place in a file can come from a page that moved.
            let Some(place) = error.place() else { return Err(error) };
            let came = self.catch_up(db).map_err(|error| match error {
                // The log does not reach back any more, so the state has ended.
                Error::SnapshotTooOld { oldest, .. } => too_old(oldest),
                error => error,
            })?;
            let came = came || self.version.load(Ordering::Acquire) != version;
            let again = before.as_ref().and_then(Error::place) == Some(place);
            same = if again { same + 1 } else { 0 };
            if same >= if came { MAX_SAME_PLACE } else { 1 } {
                return Err(error);
            }
            before = Some(error);
        }
        Err(Error::Overtaken { tries: TRIES })
    }
}

/// Attempts of an operation. Each fails only if a page was freed and written again since the log was read.
const TRIES: u32 = 64;
/// Attempts after the first that fail at the same place, though records come, before that is damage.
const MAX_SAME_PLACE: u32 = 3;
