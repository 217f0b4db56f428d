//! What sessions ask to have prefetched, on its way to the tasks that do it.
//!
//! Owned by [`Prefetching`], which sessions, the prefetch task and the prefold task share. Invariants: no
//! more than [`WAITING`] keys wait to be looked up, no more than [`PREFOLDS`] pages to be folded; each key
//! batch of a request is claimed once; a task that says it sleeps is woken by whatever comes after.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use pleach_beatree::cache::CachedPage;
use pleach_core::Key;
use pleach_io::{Device, Event, Runtime};

use super::values::ValueCache;
use crate::read::key_batch::KEY_BATCH;
use crate::state::State;
use crate::state::foreground::Foreground;
use crate::state::index::Located;
use crate::state::reader::PageRequest;

/// Keys that may wait to be looked up.
pub(crate) const WAITING: usize = 1 << 18;

/// A page that is missing, and what it is read for.
pub(crate) struct MissingPage {
    pub(crate) request: PageRequest,
    pub(crate) purpose: Purpose,
}

/// What a page is read for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The nodes in it.
    Nodes,
    /// A key.
    Key {
        key: Key,
        /// It has the key's value as of this commit.
        value_as_of: Option<u64>,
        /// Is the page to be folded before the batch needs it?
        prefolds: bool,
    },
}

/// The hand-over between sessions and the tasks.
pub(crate) struct Prefetching<R: Runtime> {
    values: ValueCache,
    sender: Sender<Arc<PrefetchRequest>>,
    receiver: Receiver<Arc<PrefetchRequest>>,
    /// Keys in the channel.
    waiting: AtomicUsize,
    /// What readers found missing in the key batches that they looked up themselves.
    missing: (Sender<MissingPage>, Receiver<MissingPage>),
    event: R::Event,
    /// Is the prefetch task asleep?
    idle: AtomicBool,
    prefolds: PrefoldQueue<R::Event>,
}

impl<R: Runtime> Prefetching<R> {
    /// With a value cache of `values` bytes.
    pub(crate) fn new(runtime: &R, values: usize) -> Self {
        // Bounded by `waiting`, in keys.
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            values: ValueCache::new(values),
            sender,
            receiver,
            waiting: AtomicUsize::new(0),
            missing: crossbeam_channel::unbounded(),
            event: runtime.event(),
            idle: AtomicBool::new(true),
            prefolds: PrefoldQueue::new(runtime.event()),
        }
    }

    /// Values that were looked up for prefetch requests.
    pub(crate) fn values(&self) -> &ValueCache {
        &self.values
    }

    /// Pages on their way to the prefold task.
    pub(super) fn prefolds(&self) -> &PrefoldQueue<R::Event> {
        &self.prefolds
    }

    /// The events on which the prefetch task and the prefold task are stepped.
    pub(crate) fn events(&self) -> [&R::Event; 2] {
        [&self.event, &self.prefolds.event]
    }

    /// Hands over keys whose values, pages, and nodes above these are to be brought in for a session that
    /// reads commit `base`. `prefolds` says that it reads nothing over that commit, so that its pages can
    /// be folded before it needs them. Gives what its readers can help with; `None` when too many keys
    /// wait already.
    pub(crate) fn request<D: Device>(
        &self,
        db: &State<D, R>,
        base: u64,
        prefolds: bool,
        keys: &[Key],
    ) -> Option<Arc<PrefetchRequest>> {
        let waiting = self.waiting.fetch_add(keys.len(), Ordering::Relaxed);
        let taken = keys.len().min(WAITING.saturating_sub(waiting));
        self.waiting.fetch_sub(keys.len() - taken, Ordering::Relaxed);
        if taken == 0 {
            return None;
        }
        let keys = keys[..taken].to_vec();
        let request = Arc::new(PrefetchRequest::new(base, prefolds, keys));
        if db.all_is_here() {
            self.waiting.fetch_sub(taken, Ordering::Relaxed);
            return Some(request);
        }
        self.sender.send(Arc::clone(&request)).ok()?;
        self.wake();
        Some(request)
    }

    /// The next request, if there is one.
    pub(super) fn next(&self) -> Option<Arc<PrefetchRequest>> {
        self.receiver.try_recv().ok()
    }

    /// All key batches of this request are claimed: there is room for others.
    pub(super) fn is_done(&self, request: &PrefetchRequest) {
        self.waiting.fetch_sub(request.len(), Ordering::Relaxed);
    }

    /// A reader has found this missing.
    pub(super) fn miss(&self, page: MissingPage) {
        // The receiver lives as long as the sender.
        let _ = self.missing.0.send(page);
    }

    /// What a reader has found missing.
    pub(super) fn next_missing(&self) -> Option<MissingPage> {
        self.missing.1.try_recv().ok()
    }

    /// Wakes the prefetch task.
    pub(super) fn wake(&self) {
        if self.idle.swap(false, Ordering::SeqCst) {
            self.event.notify();
        }
    }

    /// The prefetch task goes to sleep; false when something has come meanwhile.
    pub(super) fn sleeps(&self) -> bool {
        self.idle.swap(true, Ordering::SeqCst);
        if self.receiver.is_empty() && self.missing.1.is_empty() {
            return true;
        }
        self.idle.store(false, Ordering::Release);
        false
    }
}

/// Pages that may wait for the prefold task: each is held in memory for it.
const PREFOLDS: usize = 1024;

/// A page that is in memory and that a requested key is in.
pub(super) struct PrefoldRequest {
    pub(super) page: Arc<CachedPage>,
    pub(super) at: Located,
    pub(super) key: Key,
}

/// Pages on their way to the prefold task.
pub(super) struct PrefoldQueue<E> {
    sender: Sender<PrefoldRequest>,
    receiver: Receiver<PrefoldRequest>,
    event: E,
    /// Is the task asleep?
    idle: AtomicBool,
}

impl<E: Event> PrefoldQueue<E> {
    fn new(event: E) -> Self {
        let (sender, receiver) = bounded(PREFOLDS);
        Self { sender, receiver, event, idle: AtomicBool::new(true) }
    }

    /// Hands a page over, unless there is no room or a finish is running. The task is woken once a batch
    /// of them waits: see [`Self::wake`].
    pub(super) fn push(&self, foreground: &Foreground, request: PrefoldRequest) {
        if foreground.is_finishing() {
            return;
        }
        if self.sender.try_send(request).is_ok() && self.sender.len() >= KEY_BATCH {
            self.wake();
        }
    }

    /// Wakes the task, if anything waits for it.
    pub(super) fn wake(&self) {
        if !self.receiver.is_empty() && self.idle.swap(false, Ordering::SeqCst) {
            self.event.notify();
        }
    }

    /// Up to a batch of pages.
    pub(super) fn take(&self, into: &mut Vec<PrefoldRequest>) {
        into.extend(self.receiver.try_iter().take(KEY_BATCH));
    }

    /// The task goes to sleep; false when something has come meanwhile.
    pub(super) fn sleeps(&self) -> bool {
        self.idle.store(true, Ordering::SeqCst);
        if self.receiver.is_empty() {
            return true;
        }
        self.idle.store(false, Ordering::Release);
        false
    }
}

/// Keys that a session wants prefetched, looked up in key batches by whoever has time.
pub(crate) struct PrefetchRequest {
    base: u64,
    prefolds: bool,
    keys: Vec<Key>,
    next: AtomicUsize,
}

impl PrefetchRequest {
    fn new(base: u64, prefolds: bool, keys: Vec<Key>) -> Self {
        Self { base, prefolds, keys, next: AtomicUsize::new(0) }
    }

    /// Are all key batches claimed?
    pub(crate) fn is_done(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.keys.len()
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The next key batch, for the caller alone.
    pub(crate) fn claim(&self) -> Option<&[Key]> {
        if self.is_done() {
            return None;
        }
        let from = self.next.fetch_add(KEY_BATCH, Ordering::Relaxed);
        let end = self.keys.len().min(from.saturating_add(KEY_BATCH));
        self.keys.get(from..end).filter(|batch| !batch.is_empty())
    }

    /// The commit that its session reads.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Are its pages folded before the batch needs them?
    pub(super) fn prefolds(&self) -> bool {
        self.prefolds
    }
}

/// The requests of one session that its readers can help with, oldest first.
#[derive(Default)]
pub(crate) struct PrefetchRequests {
    waiting: VecDeque<Arc<PrefetchRequest>>,
    /// Keys of these.
    keys: usize,
}

impl PrefetchRequests {
    /// Adds a request. Of older ones those stay that are not done, up to [`WAITING`] keys in all.
    pub(crate) fn push(&mut self, request: Arc<PrefetchRequest>) {
        self.keys += request.len();
        self.waiting.push_back(request);
        let keep = |one: &PrefetchRequest, keys: usize| !one.is_done() && keys <= WAITING;
        while let Some(one) = self.waiting.front()
            && !keep(one, self.keys)
        {
            self.keys -= one.len();
            self.waiting.pop_front();
        }
    }

    /// The first that has keys left to look up.
    pub(crate) fn first(&mut self) -> Option<Arc<PrefetchRequest>> {
        while let Some(one) = self.waiting.front()
            && one.is_done()
        {
            self.keys -= one.len();
            self.waiting.pop_front();
        }
        self.waiting.front().cloned()
    }
}
