//! Flush `free` (rules `free-after-durable`, `free-after-readers`): the pages that a round has replaced, and those of a
//! dropped namespace, are free when their record is durable and no reader can be at them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pleach_beatree::pages::RetiredExtents;
use pleach_journal::format::position::LogPos;

use super::publish::RetiredBatch;
use crate::error::Result;
use crate::state::NamespaceDb;
use crate::state::pace::beats::Task;

/// A location record waits this long for a commit that syncs it.
pub(super) const SYNC_AFTER: Duration = Duration::from_millis(100);

/// Pages and runs that are retired and not free yet.
pub(super) struct RetiredQueue {
    /// In the order of their location records.
    batches: VecDeque<RetiredBatch>,
    /// Overflow runs that only older views still name: the stamps under which they are retired, each with the commit
    /// from which on no view names them.
    runs: RetiredExtents,
}

impl RetiredQueue {
    /// A queue with the runs that an open has found to be named by the history alone.
    pub(super) fn new(values: RetiredExtents) -> Self {
        Self { batches: VecDeque::new(), runs: values }
    }

    pub(super) fn push(&mut self, batch: RetiredBatch) {
        assert!(self.batches.back().is_none_or(|last| last.end < batch.end), "in log order");
        self.batches.push_back(batch);
    }

    /// True when nothing waits for its record or for readers.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Frees pages and runs that nothing holds any more, and syncs the log for records that have waited long enough.
    pub(super) fn free_matured(&mut self, db: &NamespaceDb) -> Result<()> {
        let now = db.pace.now();
        // Each turn removes a batch, or ends; nobody else adds any.
        while let Some(first) = self.batches.front() {
            if db.commits.sequencer.durable() < first.end {
                if now.saturating_sub(first.since) < SYNC_AFTER && !db.pace.is_closing() {
                    break;
                }
                // No commit has synced the record meanwhile.
                sync_log(db, first.end)?;
            }
            if !first.period.poll() {
                break;
            }
            let batch = self.batches.pop_front().expect("just seen");
            assert!(db.commits.sequencer.durable() >= batch.end, "only a durable record frees");
            assert!(self.runs.back().is_none_or(|last| last.0 < batch.end.get()), "in log order");
            self.runs.push_back((batch.end.get(), batch.commit));
            // First, so that a put that waits for room sees leaves or extents that will be free.
            db.space.oldest_retired.fetch_min(batch.commit, Ordering::AcqRel);
            db.space.release_leaves(batch.end.get());
            db.pace.notify();
        }
        // Long values are named by the undo of older readable views, and of the history.
        while let Some((stamp, commit)) = self.runs.front() {
            db.space.oldest_retired.store(*commit, Ordering::Release);
            if !db.can_release_extents() {
                return Ok(());
            }
            db.space.release_extents(*stamp);
            self.runs.pop_front();
            db.pace.notify();
        }
        db.space.oldest_retired.store(u64::MAX, Ordering::Release);
        Ok(())
    }
}

/// Syncs the log through `end`, as a stage of the flush.
pub(super) fn sync_log(db: &NamespaceDb, end: LogPos) -> Result<()> {
    let sync = || db.commits.sequencer.write_through(end, true);
    db.pace.run_as_stage(Task::Flush, "syncing the log", sync)
}
