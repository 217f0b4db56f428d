//! Reading undo back from the log, for states whose undo has left memory.

use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;

use super::Undo;
use crate::error::Result;
use crate::history::Runs;
use crate::state::logged::{LoggedUndo, Stretch};

/// Reading back: one at a time.
pub(crate) struct ReadingBack<'a> {
    undo: &'a Undo,
    last: MutexGuard<'a, Weak<LoggedUndo>>,
}

impl Undo {
    /// Begins to read undo back, when nobody else does.
    pub(crate) fn reading_back(&self) -> ReadingBack<'_> {
        ReadingBack { undo: self, last: self.logged.lock() }
    }
}

impl ReadingBack<'_> {
    /// What was read last, if it has the undo after commit `after`, and ends where memory begins, or later.
    pub(in crate::state) fn last(&self, after: u64) -> Option<Arc<LoggedUndo>> {
        let last = self.last.upgrade()?;
        let Stretch { after: first, through, .. } = last.stretch;
        let fits = (first..=through).contains(&after);
        (fits && self.undo.past.load().begins <= through).then_some(last)
    }

    /// The commits after `after` that are to be read, so that a view of the commit `base` has all undo: some more than has
    /// to be, so that commits which come meanwhile do not drop from memory what follows.
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub(in crate::state) fn stretch(&self, base: u64, after: u64) -> Result<Stretch> {
        let guarded = self.undo.guarded.lock();
        let (from, dropped) = (guarded.window.from(), guarded.window.dropped());
        let through = dropped + (self.undo.newest() - dropped) / 2;
        let start = guarded.window.start(after + 1);
        drop(guarded);
        match start {
            Some(start) if from <= base && after < through => Ok(Stretch { after, through, start }),
            _ => Err(self.undo.too_old(base)),
        }
    }

    /// Keeps what was read of a stretch for others.
    pub(in crate::state) fn keep(&mut self, stretch: Stretch, runs: Runs) -> Arc<LoggedUndo> {
        let read = LoggedUndo::new(stretch, runs, &self.undo.logged_bytes);
        *self.last = Arc::downgrade(&read);
        read
    }
}
