//! Flush `free` (rules `free-after-durable`, `free-after-readers`): what a round has written anew, and what is
//! left of a dropped namespace, is free when its record is durable and nobody can be at it.

use std::collections::VecDeque;
use std::time::Duration;

use pleach_journal::format::position::LogPos;

use super::publish::Freed;
use crate::error::Result;
use crate::state::State;
use crate::state::pace::beats::Task;

/// A location record waits this long for a commit that syncs it.
pub(super) const SYNC_AFTER: Duration = Duration::from_millis(100);

/// What is given up and not free yet.
pub(super) struct Leaving {
    /// In the order of their records.
    freed: VecDeque<Freed>,
    /// Overflow runs that only older views still name: what they were retired under, and the commit from
    /// which on no view names them.
    values: VecDeque<(LogPos, u64)>,
}

impl Leaving {
    /// With runs that an open has found to be named by the history alone.
    pub(super) fn new(values: VecDeque<(LogPos, u64)>) -> Self {
        Self { freed: VecDeque::new(), values }
    }

    pub(super) fn push(&mut self, freed: Freed) {
        self.freed.push_back(freed);
    }

    /// Is there nothing that waits for its record or for readers?
    pub(super) fn is_empty(&self) -> bool {
        self.freed.is_empty()
    }

    /// Frees what can be freed, and syncs the log for records that have waited long enough.
    pub(super) fn free_matured(&mut self, db: &State) -> Result<()> {
        let now = db.pace.now();
        // Each turn takes one off, or ends; nobody else adds any.
        while let Some(first) = self.freed.front() {
            if db.commits.sequencer.durable() < first.end {
                if now.saturating_sub(first.since) < SYNC_AFTER && !db.pace.is_closing() {
                    break;
                }
                // No commit came by to sync the record.
                sync_log(db, first.end)?;
            }
            if !first.period.poll() {
                break;
            }
            let freed = self.freed.pop_front().expect("just seen");
            db.space.release_leaves(freed.end);
            self.values.push_back((freed.end, freed.commit));
            db.pace.notify();
        }
        // Long values are named by the undo of older views that can be read, and of the history.
        if self.values.is_empty() {
            return Ok(());
        }
        let durable = db.commits.sequencer.durable();
        let unnamed = db.commits.undo.unnamed_through(durable);
        while self.values.front().is_some_and(|(_, commit)| unnamed >= *commit) {
            let (stamp, _) = self.values.pop_front().expect("just seen");
            db.space.release_runs(stamp);
            db.pace.notify();
        }
        Ok(())
    }
}

/// Syncs the log through `end`, as a stage of the flush.
pub(super) fn sync_log(db: &State, end: LogPos) -> Result<()> {
    let sync = || db.commits.sequencer.write_through(end, true);
    db.pace.within(Task::Flush, "syncing the log", sync)
}
