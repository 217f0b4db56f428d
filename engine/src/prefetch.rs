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
use pleach_beatree::cache::{CachedPage, Step as Lookup};
use pleach_beatree::region::{NodePlace, Nodes};
use pleach_beatree::{Region, Stored};
use pleach_core::page::leaf::Cell;
use pleach_core::{Hasher, Key};
use pleach_io::{Completion, Device, Event, Queue, Request, Runtime, Step, Transfer};

use crate::answers::Place;
use crate::error::Result;
use crate::metrics::Counters;
use crate::shared::{Located, Shared};
use crate::warm::GROUP;

/// Keys that may wait to be looked up.
const WAITING: usize = 1 << 18;

/// How long a reader waits for a page that is being read.
const PATIENCE: Duration = Duration::from_millis(100);

/// Readers are told of so many pages at once: a wake-up costs more than a page, and who was told
/// of one would wait for the next.
const ANNOUNCED: usize = 32;

/// The ring is asked for so many pages at once when it has many: each call costs as much as a page.
const TAKEN: usize = 8;

/// Keys that a session has announced, looked up group by group by whoever has time.
pub(crate) struct Announced {
    /// The commit that the session reads.
    base: u64,
    keys: Vec<Key>,
    next: AtomicUsize,
}

impl Announced {
    /// The next group, for the caller alone.
    fn claim(&self) -> Option<&[Key]> {
        if self.next.load(Ordering::Relaxed) >= self.keys.len() {
            return None;
        }
        let from = self.next.fetch_add(GROUP, Ordering::Relaxed);
        let end = self.keys.len().min(from.saturating_add(GROUP));
        self.keys.get(from..end).filter(|group| !group.is_empty())
    }
}

/// How far the lookup of a key has come.
#[derive(Default)]
struct Found {
    /// Where its answer goes.
    place: Place,
    /// Where its page is.
    at: Option<Located>,
    /// Does the page have the answer?
    answers: bool,
    page: Option<Arc<CachedPage>>,
    /// The cell that is probably its.
    cell: Option<usize>,
}

/// What is brought in.
enum Wanted {
    /// A page, and the key that has an answer in it as of this commit.
    Leaf(Located, Option<(u64, Key)>),
    /// The nodes of a region that are not in memory.
    Nodes(Arc<Region>, NodePlace),
}

/// The hand-over between sessions and the task.
pub(crate) struct Prefetches<E> {
    sender: Sender<Arc<Announced>>,
    receiver: Receiver<Arc<Announced>>,
    waiting: AtomicUsize,
    /// What readers found missing in the groups that they took upon themselves.
    missing: (Sender<Wanted>, Receiver<Wanted>),
    /// Places of leaf pages that are being read: who needs one waits for it.
    flying: Mutex<HashSet<u32>>,
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

    fn is_flying(&self, place: u32) -> bool {
        self.flying.lock().contains(&place)
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Hands over keys whose values, pages, and nodes above them are to be brought in for a session
    /// that reads this commit; gives what its readers can help with.
    pub(crate) fn prefetch(&self, base: u64, keys: &[Key]) -> Option<Arc<Announced>> {
        let waiting = self.prefetches.waiting.fetch_add(keys.len(), Ordering::Relaxed);
        let taken = keys.len().min(WAITING.saturating_sub(waiting));
        self.prefetches.waiting.fetch_sub(keys.len() - taken, Ordering::Relaxed);
        if taken == 0 {
            return None;
        }
        let keys = keys[..taken].to_vec();
        let announced = Arc::new(Announced { base, keys, next: AtomicUsize::new(0) });
        if self.all_is_here() {
            self.prefetches.waiting.fetch_sub(taken, Ordering::Relaxed);
            return Some(announced);
        }
        self.prefetches.sender.send(Arc::clone(&announced)).ok()?;
        self.wake_prefetcher();
        Some(announced)
    }

    fn wake_prefetcher(&self) {
        if self.prefetches.idle.swap(false, Ordering::SeqCst) {
            self.prefetches.event.notify();
        }
    }

    /// Looks up the next group of announced keys, on a reader's thread. False when there is none
    /// left. The caller holds a grace guard.
    pub(crate) fn help(&self, announced: &Announced) -> bool {
        let Some(group) = announced.claim() else { return false };
        let mut missing = false;
        self.look_up(announced.base, group, &mut None, &mut |wanted| {
            missing |= self.prefetches.missing.0.send(wanted).is_ok();
        });
        if missing {
            self.wake_prefetcher();
        }
        true
    }

    /// Looks up a group of keys: values at hand become answers, what is not here is given to
    /// `wanted`. `last` are the nodes that were wanted last.
    ///
    /// Each step is taken for the whole group, and asks for the memory that the next one reads.
    fn look_up(
        &self,
        base: u64,
        group: &[Key],
        last: &mut Option<NodePlace>,
        wanted: &mut impl FnMut(Wanted),
    ) {
        let mut found: [Found; GROUP] = std::array::from_fn(|_| Found::default());
        {
            let top = self.top.load();
            for (key, found) in group.iter().zip(&mut found) {
                found.place = self.answers.place(key);
                self.answers.ask_ahead(found.place);
                top.region(key).prefetch();
            }
            for key in group {
                top.region(key).read().prefetch(key);
            }
        }
        for (key, found) in group.iter().zip(&mut found) {
            self.find(base, key, found, last, wanted);
            if let Some(at) = &found.at {
                self.cache.ask_ahead(at.place, Lookup::Table);
            }
        }
        for step in [Lookup::Entry, Lookup::Front] {
            let places = found.iter().filter_map(|found| found.at.as_ref());
            places.for_each(|at| self.cache.ask_ahead(at.place, step));
        }
        let batch = self.batch.load(Ordering::Relaxed);
        for (key, found) in group.iter().zip(&mut found) {
            let Some(at) = found.at.take() else { continue };
            found.page = self.cache.get_in(at.place, at.tag, batch);
            match &found.page {
                None => wanted(Wanted::Leaf(at, found.answers.then_some((base, *key)))),
                Some(page) if found.answers => found.cell = page.prefetch_found(key),
                Some(_) => {}
            }
        }
        for (key, found) in group.iter().zip(&found) {
            if let Some(page) = found.page.as_ref().filter(|_| found.answers) {
                self.answer_from(found.place, base, key, page.get_near(key, found.cell));
            }
        }
    }

    /// The first half of a lookup: in the index and among the pending changes.
    fn find(
        &self,
        base: u64,
        key: &Key,
        found: &mut Found,
        last: &mut Option<NodePlace>,
        wanted: &mut impl FnMut(Wanted),
    ) {
        let mut nodes = None;
        self.in_region(key, |region, state| {
            if let Nodes::Paged(place) = &state.nodes
                && *last != Some(*place)
            {
                nodes = Some((Arc::clone(region), *place));
            }
            let child = state.cuts.find(key);
            let tag = state.cuts.tag(child);
            found.at = state.cuts.place(child).map(|place| Located { place, tag });
            // Only what the session's commit left is an answer.
            let stands = state.changed <= base;
            match (state.pending_of(key), &found.at) {
                (Some(pending), _) if stands => {
                    self.answer(found.place, base, key, &pending.stored);
                }
                (None, None) if stands => self.answers.put(found.place, base, key, None),
                (pending, _) => found.answers = stands && pending.is_none(),
            }
        });
        if let Some((region, place)) = nodes {
            *last = Some(place);
            wanted(Wanted::Nodes(region, place));
        }
    }

    /// What a page says of a key that has no newer change.
    fn answer_from(&self, place: Place, base: u64, key: &Key, cell: Option<Cell<'_>>) {
        match cell {
            None => self.answers.put(place, base, key, None),
            Some(Cell::Inline(value)) => self.answers.put(place, base, key, Some(value)),
            Some(Cell::Overflow(_)) => {}
        }
    }

    fn answer(&self, place: Place, base: u64, key: &Key, stored: &Stored) {
        match stored {
            Stored::Absent => self.answers.put(place, base, key, None),
            Stored::Inline(value) => self.answers.put(place, base, key, Some(value)),
            Stored::Large(_) | Stored::Overflow(_) => {}
        }
    }

    /// Waits for a page that is being read already, but no longer than a device takes: whoever
    /// waits in vain reads for itself. False when nobody reads it.
    pub(crate) fn wait_for_flying(&self, place: u32) -> bool {
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
    nodes: Option<NodePlace>,
    /// Pages that have landed since those who wait were told.
    unannounced: usize,
    /// What each slot of the queue has asked for.
    asked: Vec<Option<Wanted>>,
    free: Vec<usize>,
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
        }
    }

    /// One step: fills the queue and takes in what has arrived. A page that cannot be read is left
    /// to whoever needs it.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(error) => {
                self.end();
                tracing::warn!(%error, "prefetching has ended");
                Step::Done
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
        if self.queue.is_none() {
            let depth = self.shared.options.in_flight;
            self.queue = Some(self.shared.device.queue(depth)?);
            self.asked = (0..depth).map(|_| None).collect();
            self.free = (0..depth).collect();
        }
        let shared = Arc::clone(&self.shared);
        // Places that are in flight were looked up before: a page that has moved since fails its
        // check of place and tag and is dropped.
        self.ask(&shared);
        let queue = self.queue.as_mut().expect("made above");
        if queue.in_flight() > 0 {
            // Submits what was asked for, too.
            let completion = queue.wait_for((queue.in_flight() / 4).clamp(1, TAKEN))?;
            self.take(&shared, completion);
            while let Some(completion) = self.queue.as_mut().expect("made above").poll() {
                self.take(&shared, Some(completion));
            }
            let flying = self.queue.as_ref().expect("made above").in_flight();
            if self.unannounced >= ANNOUNCED || flying < ANNOUNCED {
                self.unannounced = 0;
                shared.prefetches.landed.notify();
            }
            return Ok(Step::Again);
        }
        shared.prefetches.idle.swap(true, Ordering::SeqCst);
        let prefetches = &shared.prefetches;
        let (announced, missing) = (&prefetches.receiver, &prefetches.missing.1);
        if announced.is_empty() && missing.is_empty() && self.found.is_empty() {
            return Ok(Step::Idle);
        }
        shared.prefetches.idle.store(false, Ordering::Release);
        Ok(Step::Again)
    }

    fn ask(&mut self, shared: &Arc<Shared<H, D, R>>) {
        while let Some(slot) = self.free.last().copied() {
            if self.found.is_empty() {
                self.look_up(shared);
            }
            let Some(wanted) = self.found.pop_front() else { break };
            let (file, page) = match &wanted {
                Wanted::Leaf(at, asks) => {
                    // Looked up by a reader: the page may have come since.
                    let late = self.came_late.then(|| shared.cache.get(at.place, at.tag)).flatten();
                    if let Some(page) = late {
                        if let Some((base, key)) = asks {
                            shared.answer_from(
                                shared.answers.place(key),
                                *base,
                                key,
                                page.get(key),
                            );
                        }
                        continue;
                    }
                    if !shared.prefetches.flying.lock().insert(at.place) {
                        // Asked for by another key. This one has no answer and finds the page.
                        continue;
                    }
                    (shared.files.leaf.clone(), u64::from(at.place))
                }
                Wanted::Nodes(_, place) => (shared.node_cache.file(place).clone(), place.page),
            };
            self.free.pop();
            let (offset, buf) = (page * 4096, shared.buffers.take());
            let queue = self.queue.as_mut().expect("made before");
            queue.push(Request { file, transfer: Transfer::Read, offset, buf, token: slot as u64 });
            self.asked[slot] = Some(wanted);
        }
    }

    /// Looks up the next keys until a page is wanted that is not here.
    fn look_up(&mut self, shared: &Shared<H, D, R>) {
        let prefetches = &shared.prefetches;
        while self.found.is_empty() {
            self.came_late = false;
            if let Ok(wanted) = prefetches.missing.1.try_recv() {
                self.came_late = true;
                self.found.push_back(wanted);
                return;
            }
            let Some(announced) = &self.keys else {
                let Ok(announced) = prefetches.receiver.try_recv() else { return };
                self.keys = Some(announced);
                continue;
            };
            let Some(group) = announced.claim() else {
                prefetches.waiting.fetch_sub(announced.keys.len(), Ordering::Relaxed);
                self.keys = None;
                continue;
            };
            let _guard = shared.grace.enter();
            let (found, last) = (&mut self.found, &mut self.nodes);
            shared.look_up(announced.base, group, last, &mut |wanted| found.push_back(wanted));
        }
    }

    fn take(&mut self, shared: &Arc<Shared<H, D, R>>, completion: Option<Completion>) {
        let Some(completion) = completion else { return };
        self.unannounced += 1;
        let slot = usize::try_from(completion.token).expect("a slot");
        self.free.push(slot);
        let wanted = self.asked[slot].take().expect("asked for before");
        let place = if let Wanted::Leaf(at, _) = &wanted { Some(at.place) } else { None };
        let brought = match (completion.result, wanted) {
            (Err(error), _) => Err(error.into()),
            (Ok(()), Wanted::Leaf(at, asks)) => {
                Counters::add(&shared.counters.cache_misses, 1);
                shared.admit(&at, completion.buf).map(|page| {
                    if let Some((base, key)) = asks {
                        shared.answer_from(shared.answers.place(&key), base, &key, page.get(&key));
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
