//! The state of a read-only open: a replica of what another process writes, kept up by that one's log.
//!
//! An operation on it reads under the gate, and nothing in memory changes meanwhile. What the writer does to the files does:
//! a page or a run that the replica names may have been given up and written again. Each page has its number, tag and checksum, and each
//! long value its hash, so whoever reads such a page gets an error; the log says where the page is by then, since a page is
//! written again only when its location record is durable. So the operation lets go of the gate, the replica catches
//! up, and the operation is tried once more. An error that comes again at the same place is damage when the log has brought
//! nothing in between, or when it comes there again and again.
//!
//! Locks: the gate, before all others but that of an overlay's chunks; whoever catches up takes the source, then the gate for writing.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::Database;
use crate::error::{Error, Result};

impl Database {
    /// Does something with the state of commit `base`; in a replica once more where what it reads has moved.
    ///
    /// # Errors
    /// Those of `what`; [`IoError::Forked`](pleach_io::IoError::Forked) in a process that was forked since the database was
    /// opened.
    #[inline]
    pub(crate) fn run_read<T>(
        &self,
        base: u64,
        mut operation: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.home.check_current()?;
        match &self.replica {
            None => operation(),
            Some(replica) => replica.run_read(self, base, operation),
        }
    }
}

thread_local! {
    /// Is an operation of this thread under way, which tries again by itself?
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Where the records come from, and what applies them.
pub(crate) trait ReplicaSource: Send {
    /// Applies the records that have come to the state, which nobody reads meanwhile, and what the newest superblock says of the
    /// history. Says whether any came.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] where the log does not reach back any more; those of reading, and damage.
    fn catch_up(&mut self, db: &Database) -> Result<bool>;
}

/// What keeps a state a replica.
pub(crate) struct Replica {
    source: Mutex<Box<dyn ReplicaSource>>,
    gate: RwLock<()>,
    /// Grows with each catching up that has found something.
    version: AtomicU64,
    /// The state has ended; the oldest commit that another open could read.
    ended: OnceLock<u64>,
}

/// An operation of a replica is under way on this thread.
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

    /// While this is held the state stays as it is.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read_recursive()
    }

    /// Brings the state to the end of the log. Says whether anything came.
    ///
    /// # Errors
    /// Those of the source. [`Error::SnapshotTooOld`] is the end of this state: nothing of it can be read any more.
    pub(crate) fn catch_up(&self, db: &Database) -> Result<bool> {
        let mut source = self.source.lock();
        let _alone = self.gate.write();
        let came = source.catch_up(db);
        if let Err(Error::SnapshotTooOld { oldest, .. }) = &came {
            self.ended.get_or_init(|| *oldest);
        }
        // An error may come behind records that were applied.
        if !matches!(came, Ok(false)) {
            self.version.fetch_add(1, Ordering::Release);
        }
        came
    }

    /// Does something with the state of commit `base`, again while what it reads has moved. What fails at the same place in two
    /// tries, though no record has come, is damage; so is what goes on failing there.
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
            // Only bytes of a file may have moved.
            let Some(place) = error.place() else { return Err(error) };
            let came = self.catch_up(db).map_err(|error| match error {
                // The log is gone, and with it the state.
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

/// Tries of an operation. A page must be given up and written again between the reading of the log and that of
/// the page, each time.
const TRIES: u32 = 64;
/// Tries after the first that fail at the same place, though records come, before that is damage.
const MAX_SAME_PLACE: u32 = 3;
