//! Prefetching: pages start to arrive while the caller goes on.
//!
//! The caller hands the keys over and is done. A task with a queue of its own looks their places
//! up and asks for the pages that are not cached, as far as its queue has room; keys beyond
//! [`WAITING`] are dropped, and read when they are needed.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use pleach_beatree::Region;
use pleach_beatree::region::{NodePlace, Nodes};
use pleach_core::{Hasher, Key};
use pleach_io::{Completion, Device, Event, Queue, Request, Runtime, Step, Transfer};

use crate::error::Result;
use crate::metrics::Counters;
use crate::shared::{Located, Shared};
use crate::warm::{GROUP, Reach};

/// Keys that may wait to be looked up.
const WAITING: usize = 1 << 18;

/// How long a reader waits for a page that is being read.
const PATIENCE: Duration = Duration::from_millis(100);

/// Readers are told of so many pages at once: a wake-up costs more than a page, and who was told
/// of one would wait for the next.
const ANNOUNCED: usize = 32;

/// The ring is asked for so many pages at once when it has many: each call costs as much as a page.
const TAKEN: usize = 8;

/// What is brought in.
enum Wanted {
    Leaf(Located),
    /// The nodes of a region that are not in memory.
    Nodes(Arc<Region>, NodePlace),
}

/// The hand-over between sessions and the task.
pub(crate) struct Prefetches<E> {
    sender: Sender<Vec<Key>>,
    receiver: Receiver<Vec<Key>>,
    waiting: AtomicUsize,
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
        let (waiting, idle) = (AtomicUsize::new(0), AtomicBool::new(true));
        let flying = Mutex::default();
        Self { sender, receiver, waiting, flying, landed, event, idle }
    }

    fn is_flying(&self, place: u32) -> bool {
        self.flying.lock().contains(&place)
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Hands over keys whose pages, and the nodes above them, are to be brought in.
    pub(crate) fn prefetch(&self, keys: &[Key]) {
        if self.all_is_here() {
            return;
        }
        let waiting = self.prefetches.waiting.fetch_add(keys.len(), Ordering::Relaxed);
        let taken = keys.len().min(WAITING.saturating_sub(waiting));
        self.prefetches.waiting.fetch_sub(keys.len() - taken, Ordering::Relaxed);
        if taken == 0 || self.prefetches.sender.send(keys[..taken].to_vec()).is_err() {
            return;
        }
        if self.prefetches.idle.swap(false, Ordering::SeqCst) {
            self.prefetches.event.notify();
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
    /// Keys at hand, and the next of them to be looked up.
    keys: Vec<Key>,
    next: usize,
    /// Found and not asked for yet.
    found: VecDeque<Wanted>,
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
            keys: Vec::new(),
            next: 0,
            found: VecDeque::with_capacity(2 * GROUP),
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
        if shared.prefetches.receiver.is_empty() && self.found.is_empty() {
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
                Wanted::Leaf(at) => {
                    shared.prefetches.flying.lock().insert(at.place);
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
        while self.found.is_empty() {
            if self.next == self.keys.len() {
                let prefetches = &shared.prefetches;
                prefetches.waiting.fetch_sub(self.keys.len(), Ordering::Relaxed);
                (self.keys, self.next) = (Vec::new(), 0);
                let Ok(keys) = prefetches.receiver.try_recv() else { return };
                self.keys = keys;
            }
            let end = self.keys.len().min(self.next + GROUP);
            let group = &self.keys[self.next..end];
            self.next = end;
            find(shared, group, &mut self.nodes, &mut self.found);
        }
    }

    fn take(&mut self, shared: &Arc<Shared<H, D, R>>, completion: Option<Completion>) {
        let Some(completion) = completion else { return };
        self.unannounced += 1;
        let slot = usize::try_from(completion.token).expect("a slot");
        self.free.push(slot);
        let wanted = self.asked[slot].take().expect("asked for before");
        let place = if let Wanted::Leaf(at) = &wanted { Some(at.place) } else { None };
        let brought = match (completion.result, wanted) {
            (Err(error), _) => Err(error.into()),
            (Ok(()), Wanted::Leaf(at)) => {
                Counters::add(&shared.counters.cache_misses, 1);
                shared.admit(&at, completion.buf).map(|_| ())
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

/// The pages, and the nodes, that these keys want and that are not here. `last` are the nodes that
/// were asked for last.
fn find<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    group: &[Key],
    last: &mut Option<NodePlace>,
    found: &mut VecDeque<Wanted>,
) {
    shared.warm(group.iter(), Reach::Place);
    let mut leaves = [const { None }; GROUP];
    for (key, leaf) in group.iter().zip(&mut leaves) {
        let nodes = shared.in_region(key, |region, state| {
            let child = state.cuts.find(key);
            let tag = state.cuts.tag(child);
            *leaf = state.cuts.place(child).map(|place| Located { place, tag });
            match &state.nodes {
                Nodes::Paged(place) if *last != Some(*place) => Some((Arc::clone(region), *place)),
                _ => None,
            }
        });
        if let Some((region, place)) = nodes {
            *last = Some(place);
            found.push_back(Wanted::Nodes(region, place));
        }
    }
    let batch = shared.batch.load(Ordering::Relaxed);
    let missing = leaves.into_iter().flatten();
    let missing = missing.filter(|at| !shared.cache.hold(at.place, at.tag, batch));
    found.extend(missing.map(Wanted::Leaf));
}
