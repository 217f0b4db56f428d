//! Workers of a finish: each has a queue and memory of its own, kept from batch to batch.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::cache::LookupStep;
use pleach_core::{Hasher, Key};
use pleach_io::{Completion, Device, Queue, Request, Runtime, Transfer};

use super::Job;
use super::chunk::{Again, Batch, Chunk, ChunkOutcome, PAGES_AHEAD};
use super::space::FoldSpace;
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::shared::Shared;

/// Bit of a token that says: a branch page for its nodes, not a leaf page.
const NODES: u64 = 1 << 31;

/// Chunks that a worker has gathered ahead of the one it folds.
const AHEAD: usize = 8;

struct Worker<H: Hasher, D: Device> {
    /// Made on the worker's own thread: a ring has one issuer.
    queue: Option<D::Queue>,
    space: FoldSpace<H>,
    ahead: VecDeque<Chunk>,
    spare: Vec<Chunk>,
}

impl<H: Hasher, D: Device> Default for Worker<H, D> {
    fn default() -> Self {
        Self { queue: None, space: FoldSpace::default(), ahead: VecDeque::new(), spare: Vec::new() }
    }
}

/// The workers' memory and queues; the threads are the runtime's.
pub(crate) struct Workers<H: Hasher, D: Device> {
    each: Vec<Mutex<Worker<H, D>>>,
    inline: Mutex<Worker<H, D>>,
    /// Outcomes that have been used, and their bytes: fresh memory costs as much as folding into it.
    outcomes: Mutex<(Vec<ChunkOutcome>, usize)>,
    /// Most bytes of these.
    keeps: usize,
}

impl<H: Hasher, D: Device> Workers<H, D> {
    /// So many workers, which keep so many bytes of what they gave.
    pub(crate) fn new(count: usize, keeps: usize) -> Self {
        let each = (0..count).map(|_| Mutex::default()).collect();
        Self { each, inline: Mutex::default(), outcomes: Mutex::default(), keeps }
    }

    /// An empty outcome.
    fn outcome(&self) -> ChunkOutcome {
        let (kept, bytes) = &mut *self.outcomes.lock();
        let Some(outcome) = kept.pop() else { return ChunkOutcome::default() };
        *bytes -= outcome.bytes();
        outcome
    }

    /// Keeps the memory of outcomes that are not needed any more.
    pub(crate) fn keep(&self, outcomes: impl Iterator<Item = ChunkOutcome>) {
        let (kept, bytes) = &mut *self.outcomes.lock();
        for outcome in outcomes {
            let more = outcome.bytes();
            if *bytes + more <= self.keeps {
                *bytes += more;
                kept.push(outcome);
            }
        }
    }

    /// Runs a job's chunks on worker `index`.
    pub(super) fn run<R: Runtime>(
        &self,
        index: usize,
        shared: &Arc<Shared<H, D, R>>,
        job: &Job<'_>,
    ) {
        let mut worker = self.each[index].lock();
        let result = worker.run(shared, job, true);
        worker.close(result, job);
    }

    /// Runs a small job on the calling thread, with plain reads.
    pub(super) fn inline<R: Runtime>(&self, shared: &Arc<Shared<H, D, R>>, job: &Job<'_>) {
        let mut worker = self.inline.lock();
        let result = worker.run(shared, job, false);
        worker.close(result, job);
    }

    /// Folds one region without accesses on the calling thread.
    pub(super) fn region<R: Runtime>(
        &self,
        shared: &Arc<Shared<H, D, R>>,
        batch: &Batch<'_>,
        key: &Key,
    ) -> Result<std::result::Result<ChunkOutcome, Key>> {
        self.plain(shared, batch, &mut |chunk| chunk.gather_region(shared, batch, key))
    }

    /// Folds all accesses of a batch as one chunk on the calling thread.
    pub(super) fn once<R: Runtime>(
        &self,
        shared: &Arc<Shared<H, D, R>>,
        batch: &Batch<'_>,
    ) -> Result<std::result::Result<ChunkOutcome, Key>> {
        self.plain(shared, batch, &mut |chunk| chunk.gather(shared, batch, 0..batch.touches.len()))
    }

    fn plain<R: Runtime>(
        &self,
        shared: &Arc<Shared<H, D, R>>,
        batch: &Batch<'_>,
        gather: &mut dyn FnMut(&mut Chunk),
    ) -> Result<std::result::Result<ChunkOutcome, Key>> {
        let mut worker = self.inline.lock();
        let _guard = shared.grace.enter();
        let mut chunk = Chunk::default();
        loop {
            gather(&mut chunk);
            shared.read_missing(&mut chunk)?;
            match chunk.fold(batch, &mut worker.space, ChunkOutcome::default()) {
                Ok(outcome) => return Ok(Ok(outcome)),
                Err(Again::Changed) => {}
                Err(Again::Expose(key)) => return Ok(Err(key)),
            }
        }
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Brings a chunk's pages in with plain reads.
    fn read_missing(&self, chunk: &mut Chunk) -> Result<()> {
        for (_, key, _) in chunk.away.drain(..) {
            self.make_resident(&key)?;
        }
        for page in &mut chunk.pages {
            if let Some(at) = &page.at {
                page.page = Some(self.leaf(at)?);
            }
        }
        chunk.missing = 0;
        Ok(())
    }
}

impl<H: Hasher, D: Device> Worker<H, D> {
    fn run<R: Runtime>(
        &mut self,
        shared: &Arc<Shared<H, D, R>>,
        job: &Job<'_>,
        queued: bool,
    ) -> Result<()> {
        // A panic in a user's hasher may have left an earlier batch's chunks and reads behind.
        self.give_up_ahead();
        if self.queue.as_ref().is_some_and(|queue| queue.in_flight() > 0) {
            self.queue = None;
        }
        // Places that this worker has looked up stay as they are until it is done.
        let _guard = shared.grace.enter();
        if queued && self.queue.is_none() {
            let share = shared.options.in_flight.div_ceil(shared.runtime.workers()).max(4);
            self.queue = Some(shared.device.queue(share)?);
        }
        let hashed = self.space.hashed();
        let result = self.fold_all(shared, job, queued);
        Counters::add(&shared.counters.hashes, self.space.hashed() - hashed);
        result
    }

    fn fold_all<R: Runtime>(
        &mut self,
        shared: &Arc<Shared<H, D, R>>,
        job: &Job<'_>,
        queued: bool,
    ) -> Result<()> {
        loop {
            self.look_ahead(shared, job, queued)?;
            let Some(front) = self.ahead.front() else { return Ok(()) };
            if front.missing > 0 {
                let queue = self.queue.as_mut().expect("only a queue leaves pages missing");
                // Nothing in flight: all that was asked for is here, the rest is asked for next.
                let Some(completion) = queue.wait()? else { continue };
                arrived(&mut self.ahead, shared, completion)?;
                continue;
            }
            let mut chunk = self.ahead.pop_front().expect("just seen");
            match chunk.fold(job.batch, &mut self.space, shared.workers.outcome()) {
                Ok(outcome) => *job.outcomes[chunk.index].lock() = Some(outcome),
                Err(Again::Expose(key)) => *job.expose.lock() = Some(key),
                Err(Again::Changed) => {
                    Self::start(shared, job, &mut chunk, false)?;
                    self.ahead.push_front(chunk);
                    continue;
                }
            }
            chunk.reset();
            self.spare.push(chunk);
        }
    }

    /// Gathers chunks ahead and keeps the queue full.
    fn look_ahead<R: Runtime>(
        &mut self,
        shared: &Arc<Shared<H, D, R>>,
        job: &Job<'_>,
        queued: bool,
    ) -> Result<()> {
        while self.ahead.len() < AHEAD
            && self.queue.as_ref().is_none_or(|queue| queue.in_flight() < queue.depth())
        {
            let Some(index) = job.claim() else { break };
            let mut chunk = self.spare.pop().unwrap_or_default();
            chunk.index = index;
            Self::start(shared, job, &mut chunk, queued)?;
            self.ahead.push_back(chunk);
        }
        self.ask(shared);
        if let Some(queue) = &mut self.queue {
            queue.submit()?;
            while let Some(completion) = queue.poll() {
                arrived(&mut self.ahead, shared, completion)?;
            }
        }
        Ok(())
    }

    /// Gathers a chunk and takes the pages that are cached.
    fn start<R: Runtime>(
        shared: &Arc<Shared<H, D, R>>,
        job: &Job<'_>,
        chunk: &mut Chunk,
        queued: bool,
    ) -> Result<()> {
        chunk.gather(shared, job.batch, job.range(chunk.index));
        if !queued {
            return shared.read_missing(chunk);
        }
        for index in 0..chunk.pages.len() {
            let steps = [LookupStep::Table, LookupStep::Entry, LookupStep::Front];
            for (ahead, step) in (1..=3).rev().zip(steps) {
                let ahead = ahead * PAGES_AHEAD;
                if let Some(at) = chunk.pages.get(index + ahead).and_then(|page| page.at.as_ref()) {
                    shared.cache.cpu_prefetch(at.place, step);
                }
            }
            let page = &mut chunk.pages[index];
            if let Some(at) = &page.at {
                page.page = shared.cache.get(at.place, at.tag);
                if page.page.is_none() {
                    chunk.missing += 1;
                }
            }
        }
        Counters::add(&shared.counters.cache_hits, (chunk.pages.len() - chunk.missing) as u64);
        chunk.missing += chunk.away.len();
        Ok(())
    }

    /// Asks for missing pages, in order, as far as the queue has room.
    fn ask<R: Runtime>(&mut self, shared: &Arc<Shared<H, D, R>>) {
        let Some(queue) = &mut self.queue else { return };
        for chunk in &mut self.ahead {
            while chunk.nodes_asked < chunk.away.len() {
                if queue.in_flight() == queue.depth() {
                    return;
                }
                let place = &chunk.away[chunk.nodes_asked].2;
                queue.push(Request {
                    file: shared.node_cache.file(place).clone(),
                    transfer: Transfer::Read,
                    offset: place.offset(),
                    buf: shared.buffers.take(),
                    token: (chunk.index as u64) << 32 | NODES | chunk.nodes_asked as u64,
                });
                chunk.nodes_asked += 1;
            }
            while chunk.asked < chunk.pages.len() {
                let page = &chunk.pages[chunk.asked];
                if let (Some(at), None) = (&page.at, &page.page) {
                    if queue.in_flight() == queue.depth() {
                        return;
                    }
                    queue.push(Request {
                        file: shared.files.leaf.clone(),
                        transfer: Transfer::Read,
                        offset: at.place.offset(),
                        buf: shared.buffers.take(),
                        token: (chunk.index as u64) << 32 | chunk.asked as u64,
                    });
                }
                chunk.asked += 1;
            }
        }
    }

    /// Chunks that will not be folded lend their memory to others, and let go of their pages.
    fn give_up_ahead(&mut self) {
        self.ahead.iter_mut().for_each(Chunk::reset);
        self.spare.extend(self.ahead.drain(..));
    }

    /// After an error nothing stays in flight, so that the next batch starts clean.
    fn close(&mut self, result: Result<()>, job: &Job<'_>) {
        if let Err(error) = result {
            job.failed.lock().get_or_insert(error);
        }
        self.give_up_ahead();
        if self.queue.as_ref().is_some_and(|queue| queue.in_flight() > 0) {
            self.queue = None;
        }
    }
}

fn arrived<H: Hasher, D: Device, R: Runtime>(
    ahead: &mut VecDeque<Chunk>,
    shared: &Arc<Shared<H, D, R>>,
    completion: Completion,
) -> Result<()> {
    let (index, at) = (completion.token >> 32, completion.token & 0xffff_ffff);
    let chunk =
        ahead.iter_mut().find(|chunk| chunk.index as u64 == index).expect("its chunk waits for it");
    if at & NODES != 0 {
        let (region, key, place) = &chunk.away[usize::try_from(at ^ NODES).expect("31 bits")];
        let read = completion.result.map_err(Error::from);
        let installed = read.and_then(|()| shared.install_nodes(region, place, &completion.buf));
        if installed.is_err() {
            // Read once more, or folded from the leaf pages.
            shared.make_resident(key)?;
        }
        shared.buffers.give(completion.buf);
        chunk.missing -= 1;
        return Ok(());
    }
    completion.result?;
    let page = &mut chunk.pages[usize::try_from(at).expect("32 bits")];
    let at = page.at.as_ref().expect("a page that was asked for has a place");
    Counters::add(&shared.counters.cache_misses, 1);
    page.page = Some(shared.admit(at, completion.buf)?);
    chunk.missing -= 1;
    Ok(())
}
