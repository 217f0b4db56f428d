//! Prefetching: pages start to arrive, and values are looked up, while the caller goes on.
//!
//! The caller hands the keys over and is done. A task with a queue of its own looks them up in
//! groups: values at hand become answers ([`crate::answers`]), and pages that are not cached are
//! asked for, as far as the queue has room; what they bring becomes answers too. A reader that finds
//! no answer takes a group upon itself before it looks for its own key, so that it need not wait
//! for a task that has no processor. Keys beyond [`WAITING`] are dropped, and read when they are
//! needed.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use pleach_beatree::PageNo;
use pleach_beatree::Region;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::region::NodePage;
use pleach_core::{Hasher, Key};
use pleach_io::{Completion, Device, Event, Queue, Request, Runtime, Step, Transfer};

use crate::ahead::Arrived;
use crate::announced::Announced;
use crate::error::Result;
use crate::metrics::Counters;
use crate::quarantine::backoff;
use crate::shared::{Located, Shared};
use crate::warm::GROUP;
use crate::watchdog::{IDLE, Task};

/// Keys that may wait to be looked up.
pub(crate) const WAITING: usize = 1 << 18;

/// How long a reader waits for a page that is being read.
const PATIENCE: Duration = Duration::from_millis(100);

/// Readers are told of so many pages at once: a wake-up costs more than a page, and who was told
/// of one would wait for the next.
const ANNOUNCED: usize = 32;

/// The ring is asked for so many pages at once when it has many: each call costs as much as a page.
const TAKEN: usize = 8;

/// What is brought in.
pub(crate) enum Wanted {
    /// A page that is not here.
    Leaf(Wish),
    /// The nodes of a region that are not in memory.
    Nodes(Arc<Region>, NodePage),
}

/// A page that is wanted for a key.
pub(crate) struct Wish {
    pub(crate) at: Located,
    pub(crate) key: Key,
    /// It has the key's answer as of this commit.
    pub(crate) answers: Option<u64>,
    /// Is it to be folded ahead?
    pub(crate) folds: bool,
}

/// The hand-over between sessions and the task.
pub(crate) struct Prefetches<E> {
    sender: Sender<Arc<Announced>>,
    receiver: Receiver<Arc<Announced>>,
    waiting: AtomicUsize,
    /// What readers found missing in the groups that they took upon themselves.
    pub(crate) missing: (Sender<Wanted>, Receiver<Wanted>),
    /// Places of leaf pages that are being read: who needs one waits for it.
    flying: Mutex<HashSet<PageNo>>,
    /// Tells those who wait.
    landed: E,
    pub(crate) event: E,
    /// Is the task asleep?
    idle: AtomicBool,
}

impl<E> Prefetches<E> {
    pub(crate) fn new(event: E, landed: E) -> Self {
        // Bounded by `waiting`, in keys.
        let (sender, receiver) = crossbeam_channel::unbounded();
        let missing = crossbeam_channel::unbounded();
        let (waiting, idle) = (AtomicUsize::new(0), AtomicBool::new(true));
        let flying = Mutex::default();
        Self { sender, receiver, waiting, missing, flying, landed, event, idle }
    }

    fn is_flying(&self, place: PageNo) -> bool {
        self.flying.lock().contains(&place)
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Hands over keys whose values, pages, and nodes above them are to be brought in for a session
    /// that reads this commit, and nothing over it when it `folds`; gives what its readers can help
    /// with.
    pub(crate) fn prefetch(&self, base: u64, folds: bool, keys: &[Key]) -> Option<Arc<Announced>> {
        let waiting = self.prefetches.waiting.fetch_add(keys.len(), Ordering::Relaxed);
        let taken = keys.len().min(WAITING.saturating_sub(waiting));
        self.prefetches.waiting.fetch_sub(keys.len() - taken, Ordering::Relaxed);
        if taken == 0 {
            return None;
        }
        let keys = keys[..taken].to_vec();
        let announced = Arc::new(Announced::new(base, folds, keys));
        if self.all_is_here() {
            self.prefetches.waiting.fetch_sub(taken, Ordering::Relaxed);
            return Some(announced);
        }
        self.prefetches.sender.send(Arc::clone(&announced)).ok()?;
        self.wake_prefetcher();
        Some(announced)
    }

    /// A page that was wanted is here.
    fn fulfil(&self, wish: &Wish, page: &CachedPage) {
        let key = &wish.key;
        if let Some(base) = wish.answers {
            self.answer_from(self.answers.place(key), base, key, page.get(key));
        }
    }

    pub(crate) fn wake_prefetcher(&self) {
        if self.prefetches.idle.swap(false, Ordering::SeqCst) {
            self.prefetches.event.notify();
        }
    }

    /// Waits for a page that is being read already, but no longer than a device takes: whoever
    /// waits in vain reads for itself. False when nobody reads it.
    pub(crate) fn wait_for_flying(&self, place: PageNo) -> bool {
        if !self.prefetches.is_flying(place) {
            return false;
        }
        let landed = || !self.prefetches.is_flying(place);
        self.runtime.wait(&self.prefetches.landed, Some(PATIENCE), &mut { landed });
        true
    }

    /// Are all leaf pages cached and all nodes in memory?
    pub(crate) fn all_is_here(&self) -> bool {
        let pages = self.counters.leaf_pages.load(Ordering::Relaxed);
        !self.may_evict() && self.cache.pages() as u64 >= pages
    }
}

/// The prefetch task.
pub(crate) struct Prefetcher<H: Hasher, D: Device, R: Runtime> {
    shared: Arc<Shared<H, D, R>>,
    queue: Option<D::Queue>,
    /// Keys at hand.
    keys: Option<Arc<Announced>>,
    /// Found and not asked for yet.
    found: VecDeque<Wanted>,
    /// Is what was found from a reader, and so looked up some time ago?
    came_late: bool,
    /// Nodes that were asked for last: neighbouring keys share them.
    nodes: Option<NodePage>,
    /// Pages that have landed since those who wait were told.
    unannounced: usize,
    /// What each slot of the queue has asked for.
    asked: Vec<Option<Wanted>>,
    free: Vec<usize>,
    /// Queues in a row that failed, and when the next is made.
    failures: u32,
    not_before: Duration,
}

/// However the task ends, nobody waits for what it has asked for.
impl<H: Hasher, D: Device, R: Runtime> Drop for Prefetcher<H, D, R> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<H: Hasher, D: Device, R: Runtime> Prefetcher<H, D, R> {
    pub(crate) fn new(shared: Arc<Shared<H, D, R>>) -> Self {
        Self {
            shared,
            queue: None,
            keys: None,
            found: VecDeque::with_capacity(2 * GROUP),
            came_late: false,
            nodes: None,
            unannounced: 0,
            asked: Vec::new(),
            free: Vec::new(),
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// One step: fills the queue and takes in what has arrived. A page that cannot be read is left
    /// to whoever needs it, and so is everything while there is no queue.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(error) => {
                // What was asked for is given up; dropping the queue waits for it.
                self.queue = None;
                self.end();
                self.failures += 1;
                let wait = backoff(self.failures);
                tracing::warn!(%error, ?wait, "prefetching pauses");
                self.not_before = self.shared.runtime.now().saturating_add(wait);
                self.shared.enters(Task::Prefetch, IDLE);
                Step::IdleFor(wait)
            }
        }
    }

    /// Nothing will land any more: sessions may outlive the task and must not wait for it.
    fn end(&self) {
        self.shared.prefetches.flying.lock().clear();
        self.shared.prefetches.landed.notify();
    }

    fn advance(&mut self) -> Result<Step> {
        if self.shared.closing.load(Ordering::Acquire) {
            self.end();
            return Ok(Step::Done);
        }
        let wait = self.not_before.saturating_sub(self.shared.runtime.now());
        if !wait.is_zero() {
            return Ok(Step::IdleFor(wait));
        }
        self.shared.enters(Task::Prefetch, "reading pages");
        if self.queue.is_none() {
            let depth = self.shared.options.in_flight;
            self.queue = Some(self.shared.device.queue(depth)?);
            self.asked = (0..depth).map(|_| None).collect();
            self.free = (0..depth).collect();
        }
        let shared = Arc::clone(&self.shared);
        // Places that are in flight were looked up before: a page that has moved since fails its
        // check of place and tag and is dropped.
        let more = self.ask(&shared);
        let queue = self.queue.as_mut().expect("made above");
        if queue.in_flight() > 0 {
            if more {
                // Readers may wait already for what was asked for.
                queue.submit()?;
            } else {
                // Submits, too.
                let completion = queue.wait_for((queue.in_flight() / 4).clamp(1, TAKEN))?;
                self.take(&shared, completion);
            }
            while let Some(completion) = self.queue.as_mut().expect("made above").poll() {
                self.take(&shared, Some(completion));
            }
            self.failures = 0;
            if !more {
                // It has waited for a page, and got it.
                shared.beats.comes_further(Task::Prefetch, shared.runtime.now());
            }
            let flying = self.queue.as_ref().expect("made above").in_flight();
            if self.unannounced >= ANNOUNCED || flying < ANNOUNCED {
                self.unannounced = 0;
                shared.prefetches.landed.notify();
            }
            return Ok(Step::Again);
        }
        if more {
            return Ok(Step::Again);
        }
        shared.arrivals.wake();
        shared.prefetches.idle.swap(true, Ordering::SeqCst);
        let prefetches = &shared.prefetches;
        let (announced, missing) = (&prefetches.receiver, &prefetches.missing.1);
        if announced.is_empty() && missing.is_empty() && self.found.is_empty() {
            return Ok(Step::Idle);
        }
        shared.prefetches.idle.store(false, Ordering::Release);
        Ok(Step::Again)
    }

    /// Asks for pages as far as the queue has room and groups of keys miss some. True when it has
    /// room and there may be more keys: who waits for what was asked for comes first.
    fn ask(&mut self, shared: &Arc<Shared<H, D, R>>) -> bool {
        self.came_late |= !self.found.is_empty();
        while let Some(slot) = self.free.last().copied() {
            if self.found.is_empty() && !self.look_up(shared) {
                return false;
            }
            let Some(wanted) = self.found.pop_front() else { return true };
            let (file, page) = match &wanted {
                Wanted::Leaf(wish) => {
                    let at = &wish.at;
                    // Looked up by a reader: the page may have come since.
                    let late = self.came_late.then(|| shared.cache.get(at.place, at.tag)).flatten();
                    if let Some(page) = late {
                        shared.fulfil(wish, &page);
                        continue;
                    }
                    if !shared.prefetches.flying.lock().insert(at.place) {
                        // Asked for by another key. This one has no answer and finds the page.
                        continue;
                    }
                    (shared.files.leaf.clone(), u64::from(at.place))
                }
                Wanted::Nodes(region, place) => {
                    let same =
                        |other: &Wanted| matches!(other, Wanted::Nodes(_, at) if at == place);
                    let away = region.read().nodes_are_in(place);
                    if !away || self.asked.iter().flatten().any(same) {
                        continue;
                    }
                    (shared.node_cache.file(place).clone(), place.page)
                }
            };
            self.free.pop();
            let (offset, buf) = (page * 4096, shared.buffers.take());
            let queue = self.queue.as_mut().expect("made before");
            queue.push(Request { file, transfer: Transfer::Read, offset, buf, token: slot as u64 });
            self.asked[slot] = Some(wanted);
        }
        false
    }

    /// Takes what readers found missing, or looks up the next group of keys. False when there is
    /// none.
    fn look_up(&mut self, shared: &Shared<H, D, R>) -> bool {
        let prefetches = &shared.prefetches;
        if let Ok(wanted) = prefetches.missing.1.try_recv() {
            self.came_late = true;
            self.found.push_back(wanted);
            return true;
        }
        self.came_late = false;
        // Each turn claims a group or is done with one announcement; callers can add no more than
        // [`WAITING`] keys before it comes to an end.
        loop {
            let Some(announced) = &self.keys else {
                let Ok(announced) = prefetches.receiver.try_recv() else { return false };
                self.keys = Some(announced);
                continue;
            };
            let Some(group) = announced.claim() else {
                prefetches.waiting.fetch_sub(announced.len(), Ordering::Relaxed);
                (self.keys, self.nodes) = (None, None);
                continue;
            };
            let _guard = shared.grace.enter();
            let (found, last) = (&mut self.found, &mut self.nodes);
            shared.look_up(announced, group, true, last, &mut |wanted| found.push_back(wanted));
            return true;
        }
    }

    fn take(&mut self, shared: &Arc<Shared<H, D, R>>, completion: Option<Completion>) {
        let Some(completion) = completion else { return };
        self.unannounced += 1;
        let slot = usize::try_from(completion.token).expect("a slot");
        self.free.push(slot);
        let wanted = self.asked[slot].take().expect("asked for before");
        let place = if let Wanted::Leaf(wish) = &wanted { Some(wish.at.place) } else { None };
        let brought = match (completion.result, wanted) {
            (Err(error), _) => Err(error.into()),
            (Ok(()), Wanted::Leaf(wish)) => {
                Counters::add(&shared.counters.cache_misses, 1);
                shared.admit(&wish.at, completion.buf).map(|page| {
                    shared.fulfil(&wish, &page);
                    if wish.folds {
                        shared.arrived(Arrived { page, at: wish.at, key: wish.key });
                    }
                })
            }
            (Ok(()), Wanted::Nodes(region, place)) => {
                shared.install_nodes(&region, &place, &completion.buf)
            }
        };
        if let Some(place) = place {
            shared.prefetches.flying.lock().remove(&place);
        }
        if let Err(error) = brought {
            tracing::debug!(%error, "a prefetched page was dropped");
        }
    }
}
