//! Requests of sessions on their way to the prefetch task and to readers.
//!
//! Owned by [`PrefetchState`], which sessions and the prefetch task share. Invariants: no more than [`WAITING`] keys
//! wait to be looked up; each key batch of a request is claimed once; whatever comes while the task sleeps wakes it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use futures_channel::oneshot;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::tree::KEY_BATCH;
use pleach_beatree::{PageRef, Region};
use pleach_core::Key;
use pleach_io::{Event, Executor, PageBuf};

use super::value_cache::ValueCache;
use crate::state::NamespaceDb;

/// Where all pages are in memory, fewer keys are not looked up ahead: a read finds one as soon by itself.
const FEW: usize = 8;

/// Keys that may wait to be looked up.
pub(crate) const WAITING: usize = 1 << 18;

/// An item that is not in memory.
pub(crate) enum MissingItem {
    /// A page, and why it is read.
    Page(PageRef, PageRequestPurpose),
    /// A piece of a long value: the first page in the overflow file, and how many.
    Piece(u64, usize, Reply<pleach_beatree::Result<PageBuf>>),
    /// A region that an open has left in the image.
    Region(Arc<Region>, Reply<()>),
}

/// Why a page is read.
#[derive(Debug)]
pub(crate) enum PageRequestPurpose {
    /// For a key.
    Key {
        namespace: u8,
        key: Key,
        /// Set when the page has the key's value as of this commit.
        value_as_of: Option<u64>,
    },
    /// For a reader that does not block ([`crate::Session::read_async`]).
    Reader(Reply<Arc<CachedPage>>),
}

/// Sends a result to a reader that does not block, or, when dropped, tells it to read by itself. Both wake it, which
/// runs code of the application, which may panic; nobody else may suffer from that.
#[derive(Debug)]
pub(crate) struct Reply<T>(Option<oneshot::Sender<T>>);

impl<T> Reply<T> {
    /// True when nobody waits for the reply any more.
    pub(super) fn is_canceled(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_canceled)
    }

    pub(super) fn send(mut self, answer: T) {
        if let Some(sender) = self.0.take() {
            let _panicked = catch_unwind(AssertUnwindSafe(|| drop(sender.send(answer))));
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let sender = self.0.take();
        let _panicked = catch_unwind(AssertUnwindSafe(|| drop(sender)));
    }
}

/// The hand-over between sessions and the tasks.
pub(crate) struct PrefetchState {
    /// Values that were looked up for prefetch requests.
    pub(crate) values: ValueCache,
    requests: (Sender<Arc<PrefetchRequest>>, Receiver<Arc<PrefetchRequest>>),
    /// Number of keys that wait in the channel.
    waiting: AtomicUsize,
    /// Items that readers found missing: in key batches that they looked up, and for reads that do not block.
    missing: (Sender<MissingItem>, Receiver<MissingItem>),
    /// The event on which the prefetch task is stepped.
    pub(crate) event: Event,
    /// True while the prefetch task sleeps. Before it sleeps it checks its queues once more.
    asleep: AtomicBool,
    /// True when the prefetch task has ended.
    ended: AtomicBool,
    /// The last batch in which all pages were found in memory.
    in_memory: AtomicU64,
    /// The batch of the last request that has found no room; [`u64::MAX`] once one has found some.
    full: AtomicU64,
}

impl PrefetchState {
    /// An empty hand-over, with a value cache of `values` bytes.
    pub(crate) fn new(runtime: &Executor, values: usize) -> Self {
        Self {
            values: ValueCache::new(values),
            // Bounded by `waiting`, in keys.
            requests: crossbeam_channel::unbounded(),
            waiting: AtomicUsize::new(0),
            missing: crossbeam_channel::unbounded(),
            event: runtime.event(),
            asleep: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            in_memory: AtomicU64::new(u64::MAX),
            full: AtomicU64::new(u64::MAX),
        }
    }

    /// Hands over keys of the trie `db` whose values, pages, and nodes above these a session on commit `base` should
    /// find in memory. Returns the request, for the session's readers to help with; `None` when too many keys wait
    /// already, or nothing is to be done.
    pub(crate) fn request(
        &self,
        db: &NamespaceDb,
        base: u64,
        keys: &[Key],
    ) -> Option<Arc<PrefetchRequest>> {
        let (in_memory, batch) = (self.is_all_in_memory(db), db.store.cache.batch());
        // Pages of the next batch would leave no room for those that the present one still needs.
        if in_memory && keys.len() < FEW || self.full.load(Ordering::Relaxed) == batch {
            return None;
        }
        let taken = self.reserve(keys.len());
        if taken == 0 {
            return None;
        }
        let request = Arc::new(PrefetchRequest {
            namespace: db.namespace,
            base,
            batch,
            keys: keys[..taken].to_vec(),
            next: AtomicUsize::new(0),
        });
        if in_memory || self.requests.0.send(Arc::clone(&request)).is_err() {
            self.release_request(&request);
        } else {
            self.wake();
        }
        Some(request)
    }

    /// Whether all pages are in memory, or were in this batch: counting them locks each shard of the cache. Pages that were
    /// evicted since are read when they are needed.
    fn is_all_in_memory(&self, db: &NamespaceDb) -> bool {
        let batch = db.store.cache.batch();
        let is_known = self.in_memory.load(Ordering::Relaxed) == batch;
        if !is_known && db.is_all_cached() {
            self.in_memory.store(batch, Ordering::Relaxed);
            return true;
        }
        is_known
    }

    /// Notes whether the cache has room for more pages of a request; the same is returned.
    pub(super) fn note_room(&self, request: &PrefetchRequest, has_room: bool) -> bool {
        self.full.store(if has_room { u64::MAX } else { request.batch }, Ordering::Relaxed);
        has_room
    }

    /// Reserves room for up to `keys` waiting keys; returns their number.
    fn reserve(&self, keys: usize) -> usize {
        let waiting = self.waiting.fetch_add(keys, Ordering::Relaxed);
        let taken = keys.min(WAITING.saturating_sub(waiting));
        self.waiting.fetch_sub(keys - taken, Ordering::Relaxed);
        taken
    }

    /// The next request, if there is one.
    pub(super) fn next_request(&self) -> Option<Arc<PrefetchRequest>> {
        self.requests.1.try_recv().ok()
    }

    /// Releases the room of a request whose key batches are all claimed.
    pub(super) fn release_request(&self, request: &PrefetchRequest) {
        self.waiting.fetch_sub(request.keys.len(), Ordering::Relaxed);
    }

    /// Hands over an item that a reader found missing, and wakes the prefetch task.
    pub(super) fn push_missing(&self, missing: MissingItem) {
        // The receiver lives as long as the sender.
        let _ = self.missing.0.send(missing);
        self.wake();
        // Checked after the send, as `end` sets this flag before it empties the channel: one of the two sees the other.
        if self.ended.load(Ordering::SeqCst) {
            self.discard_missing();
        }
    }

    /// Requests a missing item. The receiver learns that it is not read when the sender is dropped.
    pub(crate) fn request_missing<T>(
        &self,
        missing: impl FnOnce(Reply<T>) -> MissingItem,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        self.push_missing(missing(Reply(Some(sender))));
        receiver
    }

    /// The next item that a reader found missing.
    pub(super) fn next_missing(&self) -> Option<MissingItem> {
        self.missing.1.try_recv().ok()
    }

    /// Discards missing items: their waiters read them themselves.
    pub(super) fn discard_missing(&self) {
        while self.next_missing().is_some() {}
    }

    /// Ends the hand-over: the prefetch task has ended.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.discard_missing();
    }

    /// Wakes the prefetch task.
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.event.notify();
        }
    }

    /// Marks the prefetch task as awake; returns false, for [`Self::try_pause`].
    pub(super) fn stay_awake(&self) -> bool {
        self.asleep.store(false, Ordering::SeqCst);
        false
    }

    /// Marks the prefetch task as asleep; false when something has come meanwhile.
    pub(super) fn try_sleep(&self) -> bool {
        self.try_pause() && (self.requests.1.is_empty() || self.stay_awake())
    }

    /// The same where the task can take no more requests.
    pub(super) fn try_pause(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.missing.1.is_empty() || self.stay_awake()
    }
}

/// Keys that a session wants prefetched, looked up in key batches by the task and by the session's readers.
pub(crate) struct PrefetchRequest {
    pub(super) namespace: u8,
    /// The commit that its session reads.
    pub(super) base: u64,
    /// The batch under way when the request was made: its keys are for that batch or the next.
    pub(super) batch: u64,
    keys: Vec<Key>,
    next: AtomicUsize,
}

impl PrefetchRequest {
    /// True when all key batches are claimed.
    pub(crate) fn is_done(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.keys.len()
    }

    /// Claims the next key batch.
    pub(crate) fn claim(&self) -> Option<&[Key]> {
        if self.is_done() {
            return None;
        }
        let from = self.next.fetch_add(KEY_BATCH, Ordering::Relaxed);
        let end = self.keys.len().min(from.saturating_add(KEY_BATCH));
        self.keys.get(from..end).filter(|batch| !batch.is_empty())
    }
}

/// The requests of one session that its readers can help with, oldest first.
#[derive(Default)]
pub(crate) struct PrefetchRequests {
    waiting: VecDeque<Arc<PrefetchRequest>>,
    /// Number of keys of these requests.
    keys: usize,
}

impl PrefetchRequests {
    /// Adds a request. Keeps older ones with unclaimed keys, up to [`WAITING`] keys in all.
    pub(crate) fn push(&mut self, request: Arc<PrefetchRequest>) {
        self.keys += request.keys.len();
        self.waiting.push_back(request);
        let keep = |one: &PrefetchRequest, keys: usize| !one.is_done() && keys <= WAITING;
        while let Some(one) = self.waiting.front()
            && !keep(one, self.keys)
        {
            self.keys -= one.keys.len();
            self.waiting.pop_front();
        }
    }

    /// The oldest request with unclaimed keys.
    pub(crate) fn first(&mut self) -> Option<Arc<PrefetchRequest>> {
        while let Some(one) = self.waiting.front()
            && one.is_done()
        {
            self.keys -= one.keys.len();
            self.waiting.pop_front();
        }
        self.waiting.front().cloned()
    }
}
