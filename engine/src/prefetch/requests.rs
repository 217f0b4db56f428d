//! What sessions ask to have prefetched, on its way to the tasks that do it.
//!
//! Owned by [`Prefetching`], which sessions and the prefetch task share. Invariants: no
//! more than [`WAITING`] keys wait to be looked up; each key
//! batch of a request is claimed once; a task that says it sleeps is woken by whatever comes after.
//!
//! Keys that come one by one are *gathered*: the first makes a request that the task knows of at once, the
//! others are added to it. It ends when it has [`GATHERED`] keys, when a reader of the session looks for
//! what it can help with, or when the task has waited for [`GATHERS_FOR`] (decision 0027). So no key is
//! left behind, whoever stops coming, and a key costs an addition, not a hand-over.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use pleach_core::Key;
use pleach_io::{Device, Event, Runtime};

use super::values::ValueCache;
use crate::read::key_batch::KEY_BATCH;
use crate::state::State;
use crate::state::reader::PageRequest;

/// Keys that may wait to be looked up.
pub(crate) const WAITING: usize = 1 << 18;
/// Keys that are gathered in one request when they come one by one.
pub(crate) const GATHERED: usize = 8 * KEY_BATCH;
/// How long the task waits for further keys of such a request, when it has nothing else to do.
pub(crate) const GATHERS_FOR: Duration = Duration::from_micros(50);

/// The prefetch task works, and looks again before it stops.
const AWAKE: u8 = 0;
/// It waits for keys to gather, for [`GATHERS_FOR`] at most.
const WAITS: u8 = 1;
/// It sleeps until it is woken.
const ASLEEP: u8 = 2;

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
        namespace: u8,
        key: Key,
        /// It has the key's value as of this commit.
        value_as_of: Option<u64>,
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
    /// What the prefetch task is at.
    task: AtomicU8,
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
            task: AtomicU8::new(ASLEEP),
        }
    }

    /// Values that were looked up for prefetch requests.
    pub(crate) fn values(&self) -> &ValueCache {
        &self.values
    }

    /// The event on which the prefetch task is stepped.
    pub(crate) fn event(&self) -> &R::Event {
        &self.event
    }

    /// Hands over keys of the trie `db` whose values, pages, and nodes above these are to be brought in for a
    /// session that reads commit `base`. Gives what its readers can help with; `None` when too many keys
    /// wait already.
    pub(crate) fn request<D: Device>(
        &self,
        db: &State<D, R>,
        base: u64,
        keys: &[Key],
    ) -> Option<Arc<PrefetchRequest>> {
        let taken = self.reserve(keys.len());
        if taken == 0 {
            return None;
        }
        let request = Arc::new(PrefetchRequest::new((db.namespace, base), keys[..taken].to_vec()));
        if self.hand_over(db, &request) {
            self.wake();
        }
        Some(request)
    }

    /// The same for the first keys of a request to which others are added ([`PrefetchRequest::add`]).
    fn gather<D: Device>(
        &self,
        db: &State<D, R>,
        base: u64,
        keys: &[Key],
    ) -> Option<Arc<PrefetchRequest>> {
        let reserved = self.reserve(GATHERED);
        if reserved < GATHERED {
            self.waiting.fetch_sub(reserved, Ordering::Relaxed);
            return None;
        }
        let request = Arc::new(PrefetchRequest::gathering((db.namespace, base), keys));
        if self.hand_over(db, &request)
            && self
                .task
                .compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            self.event.notify();
        }
        Some(request)
    }

    /// Room for up to `keys` keys that wait.
    fn reserve(&self, keys: usize) -> usize {
        let waiting = self.waiting.fetch_add(keys, Ordering::Relaxed);
        let taken = keys.min(WAITING.saturating_sub(waiting));
        self.waiting.fetch_sub(keys - taken, Ordering::Relaxed);
        taken
    }

    /// Puts a request where the task finds it, unless there is nothing to be read.
    fn hand_over<D: Device>(&self, db: &State<D, R>, request: &Arc<PrefetchRequest>) -> bool {
        if db.all_is_here() || self.sender.send(Arc::clone(request)).is_err() {
            self.is_done(request);
            return false;
        }
        true
    }

    /// The next request, if there is one.
    pub(super) fn next(&self) -> Option<Arc<PrefetchRequest>> {
        self.receiver.try_recv().ok()
    }

    /// All key batches of this request are claimed: there is room for others.
    pub(super) fn is_done(&self, request: &PrefetchRequest) {
        self.waiting.fetch_sub(request.reserved, Ordering::Relaxed);
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

    /// Wakes the prefetch task: a reader has found something missing.
    pub(super) fn wake(&self) {
        if self.task.swap(AWAKE, Ordering::SeqCst) != AWAKE {
            self.event.notify();
        }
    }

    /// The prefetch task works.
    pub(super) fn works(&self) {
        self.task.store(AWAKE, Ordering::SeqCst);
    }

    /// The prefetch task goes to sleep; false when something has come meanwhile.
    pub(super) fn sleeps(&self) -> bool {
        self.stops(ASLEEP)
    }

    /// The prefetch task waits for further keys of requests that it knows; false when something else has
    /// come meanwhile.
    pub(super) fn waits(&self) -> bool {
        self.stops(WAITS)
    }

    fn stops(&self, how: u8) -> bool {
        self.task.store(how, Ordering::SeqCst);
        if self.receiver.is_empty() && self.missing.1.is_empty() {
            return true;
        }
        self.works();
        false
    }
}

/// Keys that a session wants prefetched, looked up in key batches by whoever has time.
pub(crate) struct PrefetchRequest {
    namespace: u8,
    base: u64,
    /// Keys that have come, while others may come.
    gathered: Mutex<Option<Vec<Key>>>,
    /// All keys, once no others come.
    keys: OnceLock<Vec<Key>>,
    next: AtomicUsize,
    /// What it takes of [`WAITING`].
    reserved: usize,
}

/// What became of keys that were to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    /// They were, and there is room for more.
    Room,
    /// They were the last ones.
    Full,
    /// Too many for the room that is left, or the request has ended.
    No,
}

impl PrefetchRequest {
    fn new((namespace, base): (u8, u64), keys: Vec<Key>) -> Self {
        let (reserved, gathered) = (keys.len(), Mutex::new(None));
        let keys = OnceLock::from(keys);
        let next = AtomicUsize::new(0);
        Self { namespace, base, gathered, keys, next, reserved }
    }

    /// A request with fewer than [`GATHERED`] keys so far.
    fn gathering((namespace, base): (u8, u64), keys: &[Key]) -> Self {
        let mut gathered = Vec::with_capacity(GATHERED);
        gathered.extend_from_slice(keys);
        let (gathered, keys) = (Mutex::new(Some(gathered)), OnceLock::new());
        let next = AtomicUsize::new(0);
        Self { namespace, base, gathered, keys, next, reserved: GATHERED }
    }

    fn add(&self, keys: &[Key]) -> Added {
        let mut gathered = self.gathered.lock();
        let Some(all) = gathered.as_mut().filter(|all| all.len() + keys.len() <= GATHERED) else {
            return Added::No;
        };
        all.extend_from_slice(keys);
        if all.len() < GATHERED { Added::Room } else { Added::Full }
    }

    /// May keys still be added?
    pub(super) fn is_gathering(&self) -> bool {
        self.keys.get().is_none()
    }

    /// All keys; none can be added from here on.
    fn all(&self) -> &[Key] {
        self.keys.get_or_init(|| self.gathered.lock().take().unwrap_or_default())
    }

    /// Are all key batches claimed?
    pub(crate) fn is_done(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        self.keys.get().is_some_and(|keys| next >= keys.len())
    }

    /// The next key batch, for the caller alone.
    pub(crate) fn claim(&self) -> Option<&[Key]> {
        let keys = self.all();
        if self.is_done() {
            return None;
        }
        let from = self.next.fetch_add(KEY_BATCH, Ordering::Relaxed);
        let end = keys.len().min(from.saturating_add(KEY_BATCH));
        keys.get(from..end).filter(|batch| !batch.is_empty())
    }

    /// The namespace that its keys are in.
    pub(super) fn namespace(&self) -> u8 {
        self.namespace
    }

    /// The commit that its session reads.
    pub(super) fn base(&self) -> u64 {
        self.base
    }
}

/// The requests of one session that its readers can help with, oldest first.
#[derive(Default)]
pub(crate) struct PrefetchRequests {
    waiting: VecDeque<Arc<PrefetchRequest>>,
    /// Keys of these, or the room that they have for keys.
    keys: usize,
    /// The one that keys are added to.
    gathering: Option<Arc<PrefetchRequest>>,
}

impl PrefetchRequests {
    /// Hands keys over for a session that reads commit `base`, see [`Prefetching::request`]: at once where
    /// they are a key batch, else with those that came before and come next. False when none could be.
    pub(crate) fn announce<D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        prefetching: &Prefetching<R>,
        base: u64,
        keys: &[Key],
    ) -> bool {
        if keys.is_empty() {
            return false;
        }
        let request = if keys.len() >= KEY_BATCH {
            prefetching.request(db, base, keys)
        } else {
            let added = self.gathering.as_ref().map_or(Added::No, |request| request.add(keys));
            if added == Added::Room {
                return true;
            }
            if let Some(whole) = self.gathering.take() {
                // Whoever comes first looks it up; the task is told unless it knows by itself.
                whole.all();
                if !whole.is_done() {
                    prefetching.wake();
                }
            }
            if added == Added::Full {
                return true;
            }
            self.gathering = prefetching.gather(db, base, keys);
            self.gathering.clone()
        };
        request.is_some_and(|request| {
            self.push(request);
            true
        })
    }

    /// Adds a request. Of older ones those stay that are not done, up to [`WAITING`] keys in all.
    fn push(&mut self, request: Arc<PrefetchRequest>) {
        self.keys += request.reserved;
        self.waiting.push_back(request);
        let keep = |one: &PrefetchRequest, keys: usize| !one.is_done() && keys <= WAITING;
        while let Some(one) = self.waiting.front()
            && !keep(one, self.keys)
        {
            self.keys -= one.reserved;
            self.waiting.pop_front();
        }
    }

    /// The first that has keys left to look up.
    pub(crate) fn first(&mut self) -> Option<Arc<PrefetchRequest>> {
        while let Some(one) = self.waiting.front()
            && one.is_done()
        {
            self.keys -= one.reserved;
            self.waiting.pop_front();
        }
        self.waiting.front().cloned()
    }
}
