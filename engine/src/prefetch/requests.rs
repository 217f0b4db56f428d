//! What sessions ask to have prefetched, on its way to the tasks that do it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use pleach_beatree::cache::CachedPage;
use pleach_core::Key;
use pleach_io::{Device, Event, Runtime};

use super::values::ValueCache;
use crate::read::group::GROUP;
use crate::state::State;
use crate::state::foreground::Foreground;
use crate::state::index::Located;
use crate::state::reader::PageRequest;

/// Keys that may wait to be looked up.
pub(crate) const WAITING: usize = 1 << 18;

/// A page that is missing, and what it is wanted for.
pub(crate) struct Request {
    pub(crate) wanted: PageRequest,
    pub(crate) purpose: Purpose,
}

/// What a page is wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The nodes in it.
    Nodes,
    /// A key.
    Key {
        key: Key,
        /// It has the key's value as of this commit.
        value_as_of: Option<u64>,
        /// Is it to be folded ahead?
        folds: bool,
    },
}

/// The hand-over between sessions and the tasks.
pub(crate) struct Prefetching<R: Runtime> {
    values: ValueCache,
    sender: Sender<Arc<Announced>>,
    receiver: Receiver<Arc<Announced>>,
    /// Keys in the channel.
    waiting: AtomicUsize,
    /// What readers found missing in the key batches that they took upon themselves.
    missing: (Sender<Request>, Receiver<Request>),
    event: R::Event,
    /// Is the prefetch task asleep?
    idle: AtomicBool,
    arrivals: Arrivals<R::Event>,
}

impl<R: Runtime> Prefetching<R> {
    /// With a cache of so many bytes of values.
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
            arrivals: Arrivals::new(runtime.event()),
        }
    }

    /// Values that were looked up ahead.
    pub(crate) fn values(&self) -> &ValueCache {
        &self.values
    }

    /// Pages on their way to the task that folds ahead.
    pub(super) fn arrivals(&self) -> &Arrivals<R::Event> {
        &self.arrivals
    }

    /// The events on which the prefetch task and the one that folds ahead are stepped.
    pub(crate) fn events(&self) -> [&R::Event; 2] {
        [&self.event, &self.arrivals.event]
    }

    /// Hands over keys whose values, pages, and nodes above them are to be brought in for a session
    /// that reads this commit, and nothing over it when it `folds`; gives what its readers can help
    /// with.
    pub(crate) fn announce<D: Device>(
        &self,
        db: &State<D, R>,
        base: u64,
        folds: bool,
        keys: &[Key],
    ) -> Option<Arc<Announced>> {
        let waiting = self.waiting.fetch_add(keys.len(), Ordering::Relaxed);
        let taken = keys.len().min(WAITING.saturating_sub(waiting));
        self.waiting.fetch_sub(keys.len() - taken, Ordering::Relaxed);
        if taken == 0 {
            return None;
        }
        let keys = keys[..taken].to_vec();
        let announced = Arc::new(Announced::new(base, folds, keys));
        if db.all_is_here() {
            self.waiting.fetch_sub(taken, Ordering::Relaxed);
            return Some(announced);
        }
        self.sender.send(Arc::clone(&announced)).ok()?;
        self.wake();
        Some(announced)
    }

    /// The next announcement, if there is one.
    pub(super) fn next(&self) -> Option<Arc<Announced>> {
        self.receiver.try_recv().ok()
    }

    /// All key batches of this announcement are claimed: others may be announced.
    pub(super) fn is_done(&self, announced: &Announced) {
        self.waiting.fetch_sub(announced.len(), Ordering::Relaxed);
    }

    /// A reader has found this missing.
    pub(super) fn miss(&self, request: Request) {
        // The receiver lives as long as the sender.
        let _ = self.missing.0.send(request);
    }

    /// What a reader has found missing.
    pub(super) fn next_missing(&self) -> Option<Request> {
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

/// Pages that may wait to be folded ahead: each is held in memory for it.
const ARRIVED: usize = 1024;

/// A page that is here for an announced key.
pub(super) struct Arrived {
    pub(super) page: Arc<CachedPage>,
    pub(super) at: Located,
    pub(super) key: Key,
}

/// The way of pages to the task.
pub(super) struct Arrivals<E> {
    sender: Sender<Arrived>,
    receiver: Receiver<Arrived>,
    event: E,
    /// Is the task asleep?
    idle: AtomicBool,
}

impl<E: Event> Arrivals<E> {
    fn new(event: E) -> Self {
        let (sender, receiver) = bounded(ARRIVED);
        Self { sender, receiver, event, idle: AtomicBool::new(true) }
    }

    /// Hands a page over, unless there is no room or a finish runs. The task is woken for a batch of
    /// them: see [`Self::wake`].
    pub(super) fn push(&self, foreground: &Foreground, arrived: Arrived) {
        if foreground.is_finishing() {
            return;
        }
        if self.sender.try_send(arrived).is_ok() && self.sender.len() >= GROUP {
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
    pub(super) fn take(&self, into: &mut Vec<Arrived>) {
        into.extend(self.receiver.try_iter().take(GROUP));
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

/// Keys that a session has announced, looked up group by group by whoever has time.
pub(crate) struct Announced {
    base: u64,
    /// Are its pages folded ahead?
    folds: bool,
    keys: Vec<Key>,
    next: AtomicUsize,
}

impl Announced {
    pub(crate) fn new(base: u64, folds: bool, keys: Vec<Key>) -> Self {
        Self { base, folds, keys, next: AtomicUsize::new(0) }
    }

    /// Are all groups claimed?
    pub(crate) fn is_done(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.keys.len()
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The next group, for the caller alone.
    pub(crate) fn claim(&self) -> Option<&[Key]> {
        if self.is_done() {
            return None;
        }
        let from = self.next.fetch_add(GROUP, Ordering::Relaxed);
        let end = self.keys.len().min(from.saturating_add(GROUP));
        self.keys.get(from..end).filter(|group| !group.is_empty())
    }
}

/// What a session has announced, oldest first.
#[derive(Default)]
pub(crate) struct Announcements {
    waiting: VecDeque<Arc<Announced>>,
    /// Keys of these.
    keys: usize,
}

impl Announcements {
    /// Keeps the newest, up to as many keys as may wait.
    pub(crate) fn push(&mut self, announced: Arc<Announced>) {
        self.keys += announced.len();
        self.waiting.push_back(announced);
        let keep = |one: &Announced, keys: usize| !one.is_done() && keys <= WAITING;
        while let Some(one) = self.waiting.front()
            && !keep(one, self.keys)
        {
            self.keys -= one.len();
            self.waiting.pop_front();
        }
    }

    /// The first that has keys left to look up.
    pub(crate) fn first(&mut self) -> Option<Arc<Announced>> {
        while let Some(one) = self.waiting.front()
            && one.is_done()
        {
            self.keys -= one.len();
            self.waiting.pop_front();
        }
        self.waiting.front().cloned()
    }
}

impl Announced {
    /// The commit that its session reads.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Are its pages folded ahead?
    pub(super) fn folds(&self) -> bool {
        self.folds
    }
}
