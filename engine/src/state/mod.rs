//! The state of an open database, in parts. A part has private fields and does not know the parts that use it.
//!
//! | part | owns |
//! |---|---|
//! | [`pace`] | who waits for whom; the stages of tasks ([`pace::beats`], [`pace::foreground`]); shares of memory, when flushes and checkpoints are due ([`pace::budget`]) |
//! | [`tries`] | the tree of each namespace ([`pleach_beatree::Tree`]); [`away`] reads its regions from the image |
//! | [`commits`] | order ([`order::sequencer`]), tip, [`undo`] with pins and the window of the [`history`], [`overlays`]; a [`view`] is what a session reads |
//! | [`order::images`] | superblocks, numbers of flushes and images |
//! | [`replica`] | of a read-only open: following the writer's log |
//!
//! The pages of all trees are [`pleach_beatree::pages`]: store, space and long values, which [`values`] gives.
//!
//! # Order of locks
//!
//! Whoever holds a lock waits only for those below it. Ranks 1 to 7 are asserted in debug builds
//! ([`lock_ranks`], [`pleach_beatree::lock_order`]).
//!
//! | rank | lock | held over I/O |
//! |---|---|---|
//! | 0 | images: maker, by a load and a close; no task takes it | yes |
//! | 0 | replica: source, then its gate, by a thread that applies the log of another process; an operation of a replica reads the gate | yes (the log, pages) |
//! | 0 | an overlay: its chunks, by who commits it | yes |
//! | 1 | [`BATCH_GATE`](lock_ranks::BATCH_GATE): a batch reads it in its finish and in its commit, which may be nested; the flush tries to write it, to join regions, and does not wait | yes |
//! | 2 | [`STRUCTURE`](pleach_beatree::lock_order::STRUCTURE): a flush while it publishes, a load; a commit that was overtaken too often, in all tries in the order of their namespaces | yes, a commit that refolds |
//! | 3 | [`SYNC`](lock_ranks::SYNC): a sync of the log | yes (the log) |
//! | 4 | [`WRITER`](lock_ranks::WRITER): the log's writer | yes (the log) |
//! | 5 | [`SEQUENCER`](lock_ranks::SEQUENCER): the sequencer's state | no |
//! | 6 | [`TIP`](lock_ranks::TIP): the newest commit | no |
//! | 7 | [`REGION`](pleach_beatree::lock_order::REGION): a region; several by whoever holds the structure | reads of runs of the history alone |
//! | 8 | tries: changing; tree: due; a cache shard; the cache's full blocks; an overlay's links, then undo: merges, then window and pins; long values; budget: the leaf cache's, then a cache shard; space: leaf map, overflow map, then tentative; in flight; pace; quarantine | no, except that page files grow and are cut under the locks of their space |
//! | 8 | images: superblocks; log segments: changing, then their state | yes |
//!
//! Whoever holds a region waits for no other region and not for the sequencer. The one exception holds the structure, so
//! only one thread can be in it: a flush keeps the regions that it splits or joins until their replacements are in the
//! index. With a lock of rank 8 a thread waits for another one only in the table's order.

pub(crate) mod away;
pub(crate) mod commits;
pub(crate) mod history;
mod lock_ranks;
pub(crate) mod order;
pub(crate) mod overlays;
pub(crate) mod pace;
pub(crate) mod replica;
pub(crate) mod tries;
pub(crate) mod undo;
pub(crate) mod values;
pub(crate) mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pleach_beatree::Tree;
use pleach_beatree::pages::{LongValues, PageSpace, SpaceDemand, Store};
use pleach_core::Hasher;
use pleach_io::{Executor, IoError, OpenMode, ProcessTag};
use pleach_journal::format::names::IMAGES;
use pleach_journal::format::position::{BLOCK, LogPos};
use pleach_journal::format::trie_kind::TrieKind;

use crate::error::{Error, PoisonCause, Result};
use crate::metrics::{Counters, Metrics};
use crate::options::{KEPT_LOG_MIB, Options};
use crate::timings::Timings;
use commits::Commits;
use order::images::{Images, image_file_bytes};
use pace::Pace;
use pace::budget::Budget;
use replica::Replica;
use tries::{Trie, Tries};

/// An open database: what all its tries share.
pub(crate) struct Database {
    pub(crate) hasher: Hasher,
    pub(crate) options: Options,
    /// The process that opened the database. A process forked from it is refused.
    pub(crate) home: ProcessTag,
    pub(crate) runtime: Executor,
    pub(crate) counters: Arc<Counters>,
    pub(crate) timings: Timings,
    pub(crate) budget: Budget,
    pub(crate) pace: Arc<Pace>,
    pub(crate) store: Arc<Store>,
    pub(crate) space: PageSpace,
    /// Bytes that commits may still write before the engine asks the device again for its free room.
    pub(crate) credit: AtomicU64,
    pub(crate) long_values: LongValues,
    pub(crate) commits: Commits,
    pub(crate) images: Images,
    /// The tries of all namespaces.
    pub(crate) tries: Tries,
    /// Follows the log of the writing process; in a read-only open only.
    pub(crate) replica: Option<Replica>,
    /// Keeps other processes out while any handle lives.
    pub(crate) _lock: Box<dyn Send + Sync>,
}

/// An open database as one of its tries has it: what is the trie's own, and by `Deref` what all tries share.
pub(crate) struct NamespaceDb {
    shared: Arc<Database>,
    pub(crate) namespace: u8,
    pub(crate) kind: TrieKind,
    pub(crate) tree: Arc<Tree>,
}

impl NamespaceDb {
    /// Trie `trie` of the database `shared`.
    pub(crate) fn new(shared: Arc<Database>, trie: Trie) -> Self {
        let Trie { namespace, kind, tree, .. } = trie;
        Self { shared, namespace, kind, tree }
    }

    /// Another trie of the same database, if the namespace has one.
    pub(crate) fn other_trie(&self, namespace: u8) -> Option<Self> {
        Some(Self::new(Arc::clone(&self.shared), self.tries.get(namespace)?))
    }

    /// The trie of a namespace of the same database, dropped or not, if there is one.
    pub(crate) fn trie(self: &Arc<Self>, namespace: u8) -> Option<Arc<Self>> {
        if namespace == self.namespace {
            return Some(Arc::clone(self));
        }
        self.other_trie(namespace).map(Arc::new)
    }
}

impl std::ops::Deref for NamespaceDb {
    type Target = Database;
    fn deref(&self) -> &Database {
        &self.shared
    }
}

impl Database {
    /// Adds `by` to the number of leaf pages of tries of this kind; `by` may be negative.
    pub(crate) fn count_leaf_pages(&self, kind: TrieKind, by: isize) {
        Counters::change(&self.counters.leaf_pages, by);
        if kind == TrieKind::Merkle {
            Counters::change(&self.counters.leaf_pages_with_nodes, by);
        }
    }

    /// True when all leaf pages are cached.
    pub(crate) fn is_all_cached(&self) -> bool {
        self.store.cache.pages() as u64 >= self.counters.leaf_pages.load(Ordering::Relaxed)
    }

    /// Bytes of log that a replay would read.
    pub(crate) fn log_length(&self) -> u64 {
        let end = self.commits.sequencer.lock().log_end();
        end.saturating_since(self.images.replay_start())
    }

    /// Bytes of log that are kept for processes that read beside this one; 0 while the device is short of room.
    pub(crate) fn kept_log_bytes(&self) -> u64 {
        let default = if self.commits.undo.has_history() { KEPT_LOG_MIB } else { 0 };
        let mib = self.options.kept_log_mib.unwrap_or(default);
        let most = 16 * self.options.geometry.default_log_limit();
        let is_short = self.pace.is_room_short.get();
        if is_short { 0 } else { mib.saturating_mul(1 << 20).min(most) }
    }

    /// Keeps a replica's state unchanged while the guard lives. `None` in a database that is no replica.
    pub(crate) fn hold_replica(&self) -> Option<impl Drop> {
        self.replica.as_ref().map(Replica::hold)
    }

    /// Number of regions of all tries.
    pub(crate) fn region_count(&self) -> u64 {
        let tries = self.tries.list();
        tries.iter().map(|trie| trie.tree.load().regions().len() as u64).sum()
    }

    /// About how many pages an image takes: a page for each region, and the buffered changes with `more` bytes.
    pub(crate) fn image_pages(&self, more: u64) -> u64 {
        let buffered = self.counters.pending_bytes.load(Ordering::Relaxed) + more;
        // Each trie's buffered changes begin on a page of their own.
        self.region_count() + buffered / 4096 + self.tries.list().len() as u64
    }

    /// Measures the index; the leaf cache gets the rest of their common share.
    pub(crate) fn measure_index(&self) {
        let bytes = |trie: &Trie| trie.tree.load().bytes();
        self.budget.set_index(self.tries.list().iter().map(bytes).sum());
        self.fit_cache();
    }

    /// Gives the leaf cache what undo, long values and overlays leave of its share.
    pub(crate) fn fit_cache(&self) {
        let undo = usize::try_from(self.commits.undo.bytes()).unwrap_or(usize::MAX / 8);
        let (kept, overlays) = (undo + self.long_values.bytes(), self.commits.overlays.bytes());
        let cache = &self.store.cache;
        self.budget.fit_leaf_cache(kept, overlays, |bytes| cache.set_budget(bytes));
    }

    /// Refuses all further writes, after a failed write or sync.
    pub(crate) fn poison(&self, error: &Error) {
        self.commits.sequencer.poison(error);
        self.pace.notify();
    }

    /// Refuses a commit that the device has no room for. A commit that only deletes may use the reserve.
    pub(crate) fn admit(&self, demand: SpaceDemand) -> Result<()> {
        let (sequencer, order) = (&self.commits.sequencer, Ordering::Relaxed);
        let spend = |credit: u64| credit.checked_sub(demand.log + demand.overflow);
        if self.credit.fetch_update(order, order, spend).is_ok() {
            return Ok(());
        }
        let (segments, end) = (&sequencer.segments, sequencer.lock().log_end());
        let puts = demand.leaf + demand.overflow > 0;
        // The device is not asked again until this many more bytes are written: asking is a system call.
        let credit = if puts { segments.size() / 32 } else { 0 };
        let images = self.images.missing_image_bytes(self.image_pages(demand.log + credit));
        let leaf = self.counters.pending_bytes.load(order) + demand.leaf + credit;
        let ready = segments.prepared_through().saturating_since(end) + segments.spare_bytes();
        let log = (demand.log + credit).saturating_sub(ready).next_multiple_of(segments.size());
        let found = if puts {
            self.space.check_room_for_commit(log, images, &SpaceDemand { leaf, ..demand })
        } else {
            self.space.check_room_for_log(log)
        };
        if puts || found.is_err() {
            self.pace.is_room_short.set(found.is_err());
            self.credit.store(if found.is_ok() { credit } else { 0 }, order);
        }
        Ok(found?)
    }

    /// True while somebody waits until all buffered changes are flushed, and the flush makes progress.
    pub(crate) fn is_being_drained(&self) -> bool {
        self.pace.is_draining()
            && self.counters.pending_entries.load(Ordering::Relaxed) > 0
            && !self.pace.is_flush_full.get()
            && self.pace.flush_error(self.commits.published()).is_none()
    }

    /// True when no view and no record names the oldest retired overflow runs any more.
    pub(crate) fn can_release_extents(&self) -> bool {
        let oldest = self.space.oldest_retired.load(Ordering::Acquire);
        let durable = self.commits.sequencer.durable();
        oldest != u64::MAX && self.commits.undo.unnamed_through(durable) >= oldest
    }

    /// True when checkpoints would free room: log that the two newest keep, or most of an image's file.
    pub(crate) fn can_checkpoint_free_room(&self) -> bool {
        let (sequencer, device) = (&self.commits.sequencer, &self.store.device);
        let (size, end) = (sequencer.segments.size(), sequencer.lock().log_end());
        let newest = self.images.newest().image.pages;
        // A file stays as long as a larger batch makes it.
        let most = 2 * image_file_bytes(self.image_pages(0).max(newest.into())) + size / 16;
        let is_long = |name: &&str| -> Result<bool, IoError> {
            Ok(device.len(&device.open(name, OpenMode::Read)?)? > most)
        };
        let unwritten = self.commits.undo.log_from().filter(|_| self.pace.is_history_full.get());
        let needed = unwritten.map_or(end, |from| from.min(end));
        // No record starts between the end of the last one and the next block.
        let from = self.images.log_from();
        from.segment(size) < needed.segment(size) && from.align_up(BLOCK) < needed
            || IMAGES.iter().any(|name| is_long(name).unwrap_or(false))
            || self.space.can_shorten_overflow()
    }

    /// Reserves room in the log for a record of `bytes` bytes. On a full disk it fails, and nothing has changed.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        self.notify_if_poisoned(self.commits.sequencer.make_room(bytes))
    }

    /// Prepares the log up to a position, before it is needed.
    pub(crate) fn prepare_log(&self, upto: LogPos) -> Result<()> {
        self.notify_if_poisoned(self.commits.sequencer.prepare(upto))
    }

    /// Wakes all waiters after a failed write: what they wait for will not come.
    fn notify_if_poisoned<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if error.is_poisoned() {
                self.pace.notify();
            }
        })
    }

    /// Counters and gauges.
    pub(crate) fn metrics(&self) -> Metrics {
        let (sequencer, mut metrics) = (&self.commits.sequencer, self.counters.snapshot());
        metrics.log_bytes = sequencer.log_bytes();
        metrics.regions = self.region_count();
        metrics.overlay_bytes = self.commits.overlays.bytes() as u64;
        metrics.commits_in_flight = sequencer.lock().in_flight.into();
        let undo = &self.commits.undo;
        metrics.undo_bytes = undo.bytes();
        (metrics.history_kept, metrics.history_wanted) = undo.kept_and_wanted();
        metrics.history_bytes = undo.disk_bytes();
        (metrics.history_runs, metrics.history_bad_runs) = undo.disk_runs();
        metrics.history_written_bytes = undo.file.as_ref().map_or(0, |file| file.written());
        metrics.long_value_bytes = self.long_values.bytes() as u64;
        metrics.leaf_cache_bytes = self.store.cache.bytes() as u64;
        metrics.leaf_cache_budget = self.budget.leaf_cache_bytes() as u64;
        for trie in self.tries.list().iter() {
            let index = trie.tree.load().bytes() + trie.tree.due_bytes();
            metrics.index_bytes += index as u64;
        }
        metrics.node_bytes = self.budget.lines.used();
        let (store, order) = (&self.store, Ordering::Relaxed);
        metrics.cache_hits = store.counters.hits.load(order);
        metrics.cache_misses = store.counters.misses.load(order);
        metrics.page_rereads = store.counters.rereads.load(order);
        metrics.pages_scanned = store.counters.scanned.load(order);
        metrics.pages_read_over = store.counters.read_over.load(order);
        metrics.buffer_bytes = store.in_flight.ring_bytes.load(order);
        metrics.buffer_bytes += (store.buffers.bytes() + sequencer.buffer_bytes()) as u64;
        metrics.quarantined_pages = self.store.quarantine.list().len() as u64;
        metrics.stalled_tasks = self.pace.beats.stalled_count(self.pace.now());
        metrics
    }
}

/// Held over work that must not stop half done: a panic in it (in a user's hasher, in an assertion) poisons the
/// database, so that nobody waits for ever.
pub(crate) struct PanicGuard<'a>(pub(crate) &'a Database);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison(&Error::Poisoned(PoisonCause::Panic));
        }
    }
}
