//! What all handles of an open database share: its state, its finisher and its prefetcher.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_beatree::pages::{PageReaderPool, ReaderPool, RunReader};
use pleach_io::TaskHandle;

use crate::error::{Error, NoRoom, Result};
use crate::finish::Finisher;
use crate::handles::{CountedHandle, HandleKind, Handles};
use crate::metrics::Metrics;
use crate::prefetch::requests::PrefetchState;
use crate::state::NamespaceDb;

/// An open database.
pub(crate) struct Engine {
    pub(crate) finisher: Finisher,
    pub(crate) prefetch: Arc<PrefetchState>,
    /// Readers for sessions that read many keys.
    pub(crate) readers: PageReaderPool,
    /// Readers for iterators.
    pub(crate) scanners: ReaderPool<RunReader>,
    /// Counts of live sessions, blocks and overlays, and of running loads.
    pub(crate) handles: Arc<Handles>,
    /// The database, with namespace 0's trie. The last field: the folder stays locked until no other field reads from
    /// it.
    pub(crate) db: Arc<NamespaceDb>,
}

impl Engine {
    pub(crate) fn new(state: Arc<NamespaceDb>, prefetch: Arc<PrefetchState>) -> Self {
        let finisher =
            Finisher::new(state.hasher, state.runtime.workers(), &state.budget, &state.counters);
        let (readers, scanners) = (PageReaderPool::default(), ReaderPool::default());
        Self { db: state, finisher, prefetch, readers, scanners, handles: Arc::default() }
    }

    /// The trie of a namespace, dropped or not.
    pub(crate) fn trie(&self, namespace: u8) -> Result<Arc<NamespaceDb>> {
        self.db.trie(namespace).ok_or(Error::Namespace(namespace))
    }

    /// Counters and levels.
    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = self.db.metrics();
        metrics.kept_bytes = self.finisher.kept_bytes() as u64;
        metrics.value_cache_bytes = self.prefetch.values.bytes() as u64;
        metrics
    }

    /// Counts a handle until the result is dropped.
    pub(crate) fn count_handle(&self, kind: HandleKind) -> CountedHandle {
        CountedHandle::new(&self.handles, kind)
    }

    /// Makes all published commits durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let sequencer = &self.db.commits.sequencer;
        let end = sequencer.lock().log_end();
        sequencer.write_through(end, true).map_err(|error| {
            self.db.poison(&error);
            error.to_in_doubt()
        })
    }

    /// Waits until the background has written so many changes into pages that at most `max_buffered_entries` are left.
    pub(crate) fn drain(&self, max_buffered_entries: u64) -> Result<()> {
        let db = &self.db;
        let level = || db.counters.pending_entries.load(Ordering::Relaxed);
        let (mut failed, mut stuck) = (None, None);
        let draining = db.pace.begin_drain();
        db.pace.wait(None, &mut || {
            failed = db.commits.sequencer.lock().check_open().err();
            stuck = db.pace.flush_error(db.commits.published());
            failed.is_some()
                || db.pace.is_flush_full.get()
                || level() <= max_buffered_entries
                || stuck.is_some()
        });
        drop(draining);
        match failed {
            Some(error) => Err(error),
            None if level() > max_buffered_entries => {
                Err(stuck.unwrap_or_else(|| NoRoom::PendingChanges.into()))
            }
            None => Ok(()),
        }
    }

    /// Refuses tickets from here on; commits that wait for room fail.
    pub(crate) fn refuse_commits(&self) {
        self.db.commits.sequencer.close();
        self.db.pace.notify();
    }

    /// Tells the background tasks to end, and waits for them.
    pub(crate) fn end_tasks(&self, tasks: Option<Vec<TaskHandle>>) {
        self.db.pace.close();
        self.prefetch.event.notify();
        drop(tasks);
    }
}

#[cfg(feature = "metrics")]
impl Drop for Engine {
    /// Records the rest, unless the database belongs to the process that this one was forked from.
    fn drop(&mut self) {
        if self.db.home.is_current() {
            crate::observe::record(&self.metrics());
        }
    }
}
