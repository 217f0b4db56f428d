//! Finish: from accesses to a root and a witness, without writing anything.
//!
//! The accesses, sorted, are cut into chunks of neighbouring regions. Workers claim chunks, ask
//! the device for pages that are not cached, and fold a chunk when its pages are there, while
//! further pages arrive. The regions' nodes are folded into the root at the end.

mod assemble;
mod chunk;
mod emit;
mod regions;
mod space;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pleach_beatree::RegionIndex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::{Hasher, Key, Node};
use pleach_io::{Device, Runtime};

pub(crate) use chunk::{ChunkOutcome, PAGES_AHEAD, PageNode};
pub(crate) use worker::Workers;

use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::view::View;
use crate::witness::Witness;
use chunk::Batch;

/// Accesses a chunk starts with; it takes the whole of its last region.
const CHUNK: usize = 512;
/// Accesses a region below which they are sparse.
const DENSE: usize = 32;
/// Batches of up to this many accesses are folded on the calling thread: waking workers costs
/// more.
const INLINE: usize = 128;

/// What a finish gives.
pub(crate) struct Finished {
    pub(crate) root: Node,
    pub(crate) chunks: Vec<ChunkOutcome>,
    pub(crate) witness: Option<Witness>,
}

/// Folds sorted accesses over a view whose root is `prev_root`.
pub(crate) fn finish<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    view: &View,
    prev_root: &Node,
    touches: &[KeyAccess],
    witness: bool,
) -> Result<Finished> {
    let _nodes = shared.keep_nodes();
    let _own_processors = (touches.len() > INLINE).then(|| shared.foreground.finishing());
    let mut expose = Vec::new();
    loop {
        let batch = Batch { view, touches, witness, ripeness: shared.ripeness(), expose: &expose };
        match attempt(shared, &batch, prev_root)? {
            Attempt::Done(finished) => return Ok(finished),
            Attempt::Expose(key) => {
                assert!(!expose.contains(&key), "an exposed leaf is known by its key");
                expose.push(key);
            }
        }
    }
}

/// Folds a few changes anew, on the calling thread: the cuts below them have changed.
pub(crate) fn refold<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    view: &View,
    touches: &[KeyAccess],
) -> Result<ChunkOutcome> {
    let mut expose = Vec::new();
    loop {
        let batch =
            Batch { view, touches, witness: false, ripeness: shared.ripeness(), expose: &expose };
        match shared.workers.once(shared, &batch)? {
            Ok(outcome) => return Ok(outcome),
            Err(key) => expose.push(key),
        }
    }
}

enum Attempt {
    Done(Finished),
    Expose(Key),
}

fn attempt<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    batch: &Batch<'_>,
    prev_root: &Node,
) -> Result<Attempt> {
    let count = batch.touches.len().div_ceil(CHUNK);
    let job = Job {
        batch,
        top: shared.top.load_full(),
        count,
        claimed: AtomicUsize::new(0),
        outcomes: (0..count).map(|_| Mutex::new(None)).collect(),
        failed: Mutex::new(None),
        expose: Mutex::new(None),
    };
    if batch.touches.len() <= INLINE {
        shared.workers.inline(shared, &job);
    } else {
        let workers = shared.runtime.workers().min(count);
        shared.runtime.fork_join(workers, &|index| shared.workers.run(index, shared, &job));
    }
    if let Some(error) = job.failed.into_inner() {
        return Err(error);
    }
    if let Some(key) = job.expose.into_inner() {
        return Ok(Attempt::Expose(key));
    }
    let chunks: Vec<ChunkOutcome> = job
        .outcomes
        .into_iter()
        .map(|slot| slot.into_inner().expect("every chunk was folded"))
        .collect();
    assemble::assemble(shared, batch, prev_root, chunks)
}

impl Batch<'_> {
    /// Do few accesses meet in a region?
    fn is_sparse(&self, top: &RegionIndex) -> bool {
        top.regions().len() * DENSE > self.touches.len()
    }
}

/// One finish, as the workers share it.
pub(crate) struct Job<'a> {
    batch: &'a Batch<'a>,
    top: Arc<RegionIndex>,
    count: usize,
    claimed: AtomicUsize,
    outcomes: Vec<Mutex<Option<ChunkOutcome>>>,
    failed: Mutex<Option<Error>>,
    expose: Mutex<Option<Key>>,
}

impl Job<'_> {
    /// The next chunk that nobody has claimed.
    fn claim(&self) -> Option<usize> {
        if self.failed.lock().is_some() || self.expose.lock().is_some() {
            return None;
        }
        let index = self.claimed.fetch_add(1, Ordering::Relaxed);
        (index < self.count).then_some(index)
    }

    /// The accesses of a chunk: whole regions, as the index had them when the finish began, so
    /// that chunks never overlap whatever is split meanwhile.
    fn range(&self, index: usize) -> std::ops::Range<usize> {
        self.whole(index * CHUNK)..self.whole((index + 1) * CHUNK)
    }

    /// The first access at or behind `at` that starts a region.
    fn whole(&self, at: usize) -> usize {
        let touches = self.batch.touches;
        if at == 0 || at >= touches.len() {
            return at.min(touches.len());
        }
        let prefix = self.top.region(&touches[at - 1].key).prefix();
        at + touches[at..].partition_point(|touch| prefix.covers(&touch.key))
    }
}
