//! Workers of a finish: each has a queue and memory of its own, kept from batch to batch.

use std::collections::VecDeque;

use parking_lot::Mutex;
use pleach_beatree::cache::LookupStep;
use pleach_core::{Hasher, Key};
use pleach_io::{Device, Runtime};

use super::chunk::{Again, Batch, Chunk, Missing};
use super::job::Job;
use super::outcome::{ChunkOutcome, Folded};
use super::scratch::FoldSpace;
use crate::error::Result;
use crate::metrics::Counters;
use crate::read::group::PAGES_AHEAD;
use crate::state::State;
use crate::state::in_flight::Reading;
use crate::state::reader::{Asked, Done, PageReader, PageRequest};

/// Chunks that a worker has gathered ahead of the one it folds.
const AHEAD: usize = 8;

/// What a page is read for: the chunk with this index, and its place in it.
type Purpose = (usize, Missing);

struct Worker<H: Hasher, D: Device, R: Runtime> {
    /// Made on the worker's own thread: a ring has one issuer.
    reader: Option<PageReader<D, R, Purpose>>,
    space: FoldSpace<H>,
    ahead: VecDeque<Chunk>,
    spare: Vec<Chunk>,
}

impl<H: Hasher, D: Device, R: Runtime> Default for Worker<H, D, R> {
    fn default() -> Self {
        let (ahead, spare) = (VecDeque::new(), Vec::new());
        Self { reader: None, space: FoldSpace::default(), ahead, spare }
    }
}

/// The workers' memory and rings; the threads are the runtime's.
pub(super) struct Workers<H: Hasher, D: Device, R: Runtime> {
    each: Vec<Mutex<Worker<H, D, R>>>,
    inline: Mutex<Worker<H, D, R>>,
    /// Outcomes that have been used, and their bytes: fresh memory costs as much as folding into it.
    outcomes: Mutex<(Vec<ChunkOutcome>, usize)>,
    /// Most bytes of these.
    keeps: usize,
}

impl<H: Hasher, D: Device, R: Runtime> Workers<H, D, R> {
    /// So many workers, which keep so many bytes of what they gave.
    pub(super) fn new(count: usize, keeps: usize) -> Self {
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
    pub(super) fn keep(&self, outcomes: impl IntoIterator<Item = ChunkOutcome>) {
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
    pub(super) fn run(&self, index: usize, db: &State<D, R>, job: &Job<'_>) {
        let mut worker = self.each[index].lock();
        let result = worker.run(self, db, job, true);
        worker.close(result, job);
    }

    /// Runs a small job on the calling thread, with plain reads.
    pub(super) fn inline(&self, db: &State<D, R>, job: &Job<'_>) {
        let mut worker = self.inline.lock();
        let result = worker.run(self, db, job, false);
        worker.close(result, job);
    }

    /// Folds one region without accesses on the calling thread.
    pub(super) fn region(
        &self,
        db: &State<D, R>,
        batch: &Batch<'_>,
        key: &Key,
    ) -> Result<Folded<ChunkOutcome>> {
        self.plain(db, batch, &mut |chunk| chunk.gather_region(db, batch, key))
    }

    /// Folds all accesses of a batch as one chunk on the calling thread.
    pub(super) fn once(&self, db: &State<D, R>, batch: &Batch<'_>) -> Result<Folded<ChunkOutcome>> {
        self.plain(db, batch, &mut |chunk| chunk.gather(db, batch, 0..batch.touches.len()))
    }

    fn plain(
        &self,
        db: &State<D, R>,
        batch: &Batch<'_>,
        gather: &mut dyn FnMut(&mut Chunk),
    ) -> Result<Folded<ChunkOutcome>> {
        let mut worker = self.inline.lock();
        let _guard = db.store.enter();
        let mut chunk = Chunk::default();
        loop {
            gather(&mut chunk);
            read_missing::<H, D, R>(db, &mut chunk)?;
            match chunk.fold(batch, &mut worker.space, ChunkOutcome::default()) {
                Ok(outcome) => return Ok(Folded::Done(outcome)),
                Err(Again::Changed) => {}
                Err(Again::NeedsLeaf(key)) => return Ok(Folded::NeedsLeaf(key)),
            }
        }
    }
}

/// Brings a chunk's pages in with plain reads.
fn read_missing<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    chunk: &mut Chunk,
) -> Result<()> {
    for (_, key, _) in chunk.away.drain(..) {
        db.nodes.make_resident::<H>(&key)?;
    }
    for page in &mut chunk.pages {
        if let Some(at) = &page.at {
            page.page = Some(db.store.leaf(at)?);
        }
    }
    chunk.missing = 0;
    Ok(())
}

impl<H: Hasher, D: Device, R: Runtime> Worker<H, D, R> {
    fn run(
        &mut self,
        workers: &Workers<H, D, R>,
        db: &State<D, R>,
        job: &Job<'_>,
        queued: bool,
    ) -> Result<()> {
        // A panic in a user's hasher may have left an earlier batch's chunks and reads behind.
        self.give_up_ahead();
        if self.reader.as_ref().is_some_and(|reader| reader.in_flight() > 0) {
            self.reader = None;
        }
        // Pages that this worker has looked up stay where they are until it is done.
        let _guard = db.store.enter();
        if queued && self.reader.is_none() {
            let share = db.options.in_flight.div_ceil(db.runtime.workers()).max(4);
            self.reader = Some(PageReader::new(&db.store, share, Reading::Keys)?);
        }
        let hashed = self.space.hashed();
        let result = self.fold_all(workers, db, job, queued);
        Counters::add(&db.counters.hashes, self.space.hashed() - hashed);
        result
    }

    fn fold_all(
        &mut self,
        workers: &Workers<H, D, R>,
        db: &State<D, R>,
        job: &Job<'_>,
        queued: bool,
    ) -> Result<()> {
        loop {
            self.look_ahead(db, job, queued)?;
            let Some(front) = self.ahead.front_mut() else { return Ok(()) };
            if front.missing > 0 && front.missing == front.elsewhere.len() {
                take_elsewhere::<H, D, R>(db, front)?;
                continue;
            }
            if front.missing > 0 {
                let reader = self.reader.as_mut().expect("only a reader leaves pages missing");
                // Nothing in flight: all that was asked for is here, the rest is asked for next.
                let Some((purpose, landed)) = reader.wait(&db.store, &db.nodes, 1)? else {
                    continue;
                };
                take::<H, D, R>(&mut self.ahead, db, purpose, landed)?;
                continue;
            }
            let mut chunk = self.ahead.pop_front().expect("just seen");
            match chunk.fold(job.batch, &mut self.space, workers.outcome()) {
                Ok(outcome) => job.done(chunk.index, outcome),
                Err(Again::NeedsLeaf(key)) => job.needs_leaf(key),
                Err(Again::Changed) => {
                    start::<H, D, R>(db, job, &mut chunk, false)?;
                    self.ahead.push_front(chunk);
                    continue;
                }
            }
            chunk.reset();
            self.spare.push(chunk);
        }
    }

    /// Gathers chunks ahead and keeps the ring full.
    fn look_ahead(&mut self, db: &State<D, R>, job: &Job<'_>, queued: bool) -> Result<()> {
        while self.ahead.len() < AHEAD && self.reader.as_ref().is_none_or(PageReader::has_room) {
            let Some(index) = job.claim() else { break };
            let mut chunk = self.spare.pop().unwrap_or_default();
            chunk.index = index;
            start::<H, D, R>(db, job, &mut chunk, queued)?;
            self.ahead.push_back(chunk);
        }
        let Some(reader) = &mut self.reader else { return Ok(()) };
        for chunk in &mut self.ahead {
            ask(db, reader, chunk);
        }
        reader.submit()?;
        while let Some((purpose, landed)) = reader.poll(&db.store, &db.nodes) {
            take::<H, D, R>(&mut self.ahead, db, purpose, landed)?;
        }
        Ok(())
    }

    /// Chunks that will not be folded lend their memory to others, and let go of their pages.
    fn give_up_ahead(&mut self) {
        self.ahead.iter_mut().for_each(Chunk::reset);
        self.spare.extend(self.ahead.drain(..));
    }

    /// After an error nothing stays in flight, so that the next batch starts clean.
    fn close(&mut self, result: Result<()>, job: &Job<'_>) {
        if let Err(error) = result {
            job.fails(error);
        }
        self.give_up_ahead();
        if self.reader.as_ref().is_some_and(|reader| reader.in_flight() > 0) {
            self.reader = None;
        }
    }
}

/// Gathers a chunk and takes the pages that are cached.
fn start<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    job: &Job<'_>,
    chunk: &mut Chunk,
    queued: bool,
) -> Result<()> {
    chunk.gather(db, job.batch, job.range(chunk.index));
    if !queued {
        return read_missing::<H, D, R>(db, chunk);
    }
    let cache = db.store.cache();
    for index in 0..chunk.pages.len() {
        let steps = [LookupStep::Table, LookupStep::Entry, LookupStep::Front];
        for (ahead, step) in (1..=3).rev().zip(steps) {
            let ahead = ahead * PAGES_AHEAD;
            if let Some(at) = chunk.pages.get(index + ahead).and_then(|page| page.at.as_ref()) {
                cache.cpu_prefetch(at.page, step);
            }
        }
        let page = &mut chunk.pages[index];
        if let Some(at) = &page.at {
            page.page = cache.get(at.page, at.tag);
            if page.page.is_none() {
                chunk.missing += 1;
            }
        }
    }
    Counters::add(&db.counters.cache_hits, (chunk.pages.len() - chunk.missing) as u64);
    chunk.missing += chunk.away.len();
    Ok(())
}

/// Asks for missing pages, in order, as far as the ring has room.
fn ask<D: Device, R: Runtime>(
    db: &State<D, R>,
    reader: &mut PageReader<D, R, Purpose>,
    chunk: &mut Chunk,
) {
    while reader.has_room() {
        let (wanted, missing) = if let Some((region, _, place)) = chunk.away.get(chunk.nodes_asked)
        {
            chunk.nodes_asked += 1;
            let wanted = PageRequest::Nodes(region.clone(), *place);
            (wanted, Missing::Nodes(chunk.nodes_asked - 1))
        } else if let Some(page) = chunk.pages.get(chunk.asked) {
            chunk.asked += 1;
            let (Some(at), None) = (page.at, &page.page) else { continue };
            (PageRequest::Leaf(at), Missing::Leaf(chunk.asked - 1))
        } else {
            return;
        };
        match reader.ask(&db.store, &db.nodes, wanted, (chunk.index, missing)) {
            Asked::InFlight => {}
            Asked::Done((_, missing), landed) => chunk.land(missing, landed),
            Asked::Elsewhere((_, missing)) => chunk.elsewhere.push(missing),
        }
    }
}

/// Takes what others have been reading for themselves; nothing else of the chunk is missing.
fn take_elsewhere<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    chunk: &mut Chunk,
) -> Result<()> {
    for missing in std::mem::take(&mut chunk.elsewhere) {
        let landed = match missing {
            Missing::Leaf(index) => {
                let at = chunk.pages[index].at.expect("a page that is missing lies somewhere");
                Done::Leaf(at, db.store.leaf(&at)?)
            }
            Missing::Nodes(index) => {
                db.nodes.make_resident::<H>(&chunk.away[index].1)?;
                Done::Nodes
            }
        };
        chunk.land(missing, landed);
    }
    Ok(())
}

/// Takes in a page that has landed.
fn take<H: Hasher, D: Device, R: Runtime>(
    ahead: &mut VecDeque<Chunk>,
    db: &State<D, R>,
    (index, missing): Purpose,
    landed: Result<Done>,
) -> Result<()> {
    let chunk = ahead.iter_mut().find(|chunk| chunk.index == index);
    let chunk = chunk.expect("its chunk waits for it");
    let landed = match (landed, missing) {
        (Err(_), Missing::Nodes(index)) => {
            // Read once more, or folded from the leaf pages.
            db.nodes.make_resident::<H>(&chunk.away[index].1)?;
            Done::Nodes
        }
        (landed, _) => landed?,
    };
    chunk.land(missing, landed);
    Ok(())
}
