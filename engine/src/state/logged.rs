//! Undo that is not in memory any more, read back from the log.
//!
//! Undo of the commits of a stretch, in runs of its own, which never change. A view that has some of these, one after the
//! other, looks there first, since their commits are older than those in memory, and in memory for what came after them.
//! When memory has moved on another stretch is read, for a new view of the same state. Views of commits of one stretch share
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::position::LogPos;
use crate::history::Runs;

/// The undo of some commits, read from their records.
pub(crate) struct LoggedUndo {
    /// Its commits.
    pub(super) stretch: Stretch,
    pub(super) runs: Runs,
    /// Its bytes, counted among those of all.
    bytes: u64,
    all_bytes: Arc<AtomicU64>,
}

impl Drop for LoggedUndo {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Commits whose undo is to be read back: those after one through another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) after: u64,
    pub(crate) through: u64,
    /// Where the first record begins.
    pub(crate) start: LogPos,
}

impl LoggedUndo {
    /// The undo of a stretch, counted in `all_bytes` as long as it is in use.
    pub(super) fn new(stretch: Stretch, runs: Runs, all_bytes: &Arc<AtomicU64>) -> Arc<Self> {
        let bytes = runs.sizes().map(|(_, bytes)| bytes).sum();
        let all_bytes = Arc::clone(all_bytes);
        all_bytes.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Self { stretch, runs, bytes, all_bytes })
    }
}
