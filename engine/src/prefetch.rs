//! Prefetching: pages start to arrive while the caller goes on.
//!
//! The caller looks places up and hands those that are not cached to a task with a queue of its
//! own, through a bounded channel; what does not fit is dropped, and read when it is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender};
use pleach_beatree::Region;
use pleach_beatree::region::{NodePlace, Nodes};
use pleach_core::{Hasher, Key};
use pleach_io::{Completion, Device, Event, Queue, Request, Runtime, Step, Transfer};

use crate::error::Result;
use crate::metrics::Counters;
use crate::shared::{Located, Shared};

/// Pages that may wait to be asked for.
const WAITING: usize = 1 << 17;

/// What may be brought in.
enum Wanted {
    Leaf(Located),
    /// The nodes of a region that are not in memory.
    Nodes(Arc<Region>, NodePlace),
}

/// The hand-over between sessions and the task.
pub(crate) struct Prefetches<E> {
    sender: Sender<Wanted>,
    receiver: Receiver<Wanted>,
    pub(crate) event: E,
    /// Is the task asleep?
    idle: AtomicBool,
}

impl<E> Prefetches<E> {
    pub(crate) fn new(event: E) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { sender, receiver, event, idle: AtomicBool::new(true) }
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Hands over the pages of these keys that are not cached, and the nodes above them that are
    /// not in memory.
    pub(crate) fn prefetch(&self, keys: &[Key]) {
        let mut last_nodes = None;
        for key in keys {
            let (leaf, nodes) = self.in_region(key, |region, state| {
                let child = state.cuts.find(key);
                let leaf = state
                    .cuts
                    .place(child)
                    .map(|place| Located { place, tag: state.cuts.tag(child) });
                let nodes = match &state.nodes {
                    Nodes::Paged(place) if last_nodes != Some(*place) => {
                        Some((Arc::clone(region), *place))
                    }
                    _ => None,
                };
                (leaf, nodes)
            });
            if let Some((region, place)) = nodes {
                last_nodes = Some(place);
                if !self.hand_over(Wanted::Nodes(region, place)) {
                    return;
                }
            }
            if let Some(at) = leaf.filter(|at| self.cache.get(at.place, at.tag).is_none())
                && !self.hand_over(Wanted::Leaf(at))
            {
                return;
            }
        }
    }

    /// False when there is no room: the rest is read when it is needed.
    fn hand_over(&self, wanted: Wanted) -> bool {
        // Bounded here and not by the channel, which would take the room for all of them at once.
        let sent =
            self.prefetches.sender.len() < WAITING && self.prefetches.sender.send(wanted).is_ok();
        if sent {
            self.wake_prefetcher();
        }
        sent
    }

    fn wake_prefetcher(&self) {
        if self.prefetches.idle.swap(false, Ordering::SeqCst) {
            self.prefetches.event.notify();
        }
    }
}

/// The prefetch task.
pub(crate) struct Prefetcher<H: Hasher, D: Device, R: Runtime> {
    shared: Arc<Shared<H, D, R>>,
    queue: Option<D::Queue>,
    /// What each slot of the queue has asked for.
    asked: Vec<Option<Wanted>>,
    free: Vec<usize>,
}

impl<H: Hasher, D: Device, R: Runtime> Prefetcher<H, D, R> {
    pub(crate) fn new(shared: Arc<Shared<H, D, R>>) -> Self {
        Self { shared, queue: None, asked: Vec::new(), free: Vec::new() }
    }

    /// One step: fills the queue and takes in what has arrived. A page that cannot be read is left
    /// to whoever needs it.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(error) => {
                tracing::warn!(%error, "prefetching has ended");
                Step::Done
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        if self.shared.closing.load(Ordering::Acquire) {
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
        self.ask(&shared)?;
        let queue = self.queue.as_mut().expect("made above");
        if queue.in_flight() > 0 {
            let completion = queue.wait()?;
            self.take(&shared, completion);
            while let Some(completion) = self.queue.as_mut().expect("made above").poll() {
                self.take(&shared, Some(completion));
            }
            return Ok(Step::Again);
        }
        shared.prefetches.idle.swap(true, Ordering::SeqCst);
        if shared.prefetches.receiver.is_empty() {
            return Ok(Step::Idle);
        }
        shared.prefetches.idle.store(false, Ordering::Release);
        Ok(Step::Again)
    }

    fn ask(&mut self, shared: &Arc<Shared<H, D, R>>) -> Result<()> {
        let queue = self.queue.as_mut().expect("made before");
        while let Some(slot) = self.free.last().copied() {
            let Ok(wanted) = shared.prefetches.receiver.try_recv() else { break };
            let (file, page) = match &wanted {
                Wanted::Leaf(at) if shared.cache.get(at.place, at.tag).is_some() => continue,
                Wanted::Leaf(at) => (shared.files.leaf.clone(), u64::from(at.place)),
                Wanted::Nodes(region, place) if region.read().nodes != Nodes::Paged(*place) => {
                    continue;
                }
                Wanted::Nodes(_, place) => (shared.node_cache.file(place).clone(), place.page),
            };
            self.free.pop();
            let (offset, buf) = (page * 4096, shared.buffers.take());
            queue.push(Request { file, transfer: Transfer::Read, offset, buf, token: slot as u64 });
            self.asked[slot] = Some(wanted);
        }
        queue.submit()?;
        Ok(())
    }

    fn take(&mut self, shared: &Arc<Shared<H, D, R>>, completion: Option<Completion>) {
        let Some(completion) = completion else { return };
        let slot = usize::try_from(completion.token).expect("a slot");
        self.free.push(slot);
        let wanted = self.asked[slot].take().expect("asked for before");
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
        if let Err(error) = brought {
            tracing::debug!(%error, "a prefetched page was dropped");
        }
    }
}
