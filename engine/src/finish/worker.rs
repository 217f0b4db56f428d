//! Workers of a finish, each with its own ring and memory, kept from batch to batch.
//!
//! Invariants: a ring is made and used on its worker's thread; when a worker returns, after an error too, nothing of
//! its batch is in flight and no chunk is left (after a panic the next batch cleans up). Called by
//! [`finish`](super::finish) alone.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};
use pleach_beatree::cache::{LookupStep, NO_BATCH};
use pleach_beatree::pages::{LoadedPage, PageReader, ReadMode, Submission};
use pleach_beatree::recycle::RecyclePool;
use pleach_beatree::tree::PAGES_AHEAD;
use pleach_core::Hasher;

use super::chunk::{Batch, Chunk, FoldError};
use super::job::FinishJob;
use super::outcome::ChunkOutcome;
use super::scratch::FoldScratch;
use crate::error::Result;
use crate::state::NamespaceDb;

/// Batches of up to this many accesses are folded on the calling thread, which costs less than waking workers.
pub(super) const INLINE: usize = 128;

/// Fewest and most accesses of a chunk.
const MIN_CHUNK: usize = 16;
const MAX_CHUNK: usize = 64;

/// Accesses of a chunk, before it is extended to the end of its last region: few enough that the data of a fold stays
/// in a core's own cache, and fewer where some workers would have no chunk.
pub(super) fn chunk_accesses(accesses: usize, workers: usize) -> usize {
    accesses.div_ceil(workers).clamp(MIN_CHUNK, MAX_CHUNK)
}

/// Number of inline folds whose memory is kept.
const INLINE_KEPT: usize = 4;

/// Why a page is read: for the chunk with this index, and the page of this index in it.
type ChunkPage = (usize, usize);

pub(super) struct FoldWorker {
    /// Made on the worker's own thread: a ring has one issuer.
    reader: Option<PageReader<ChunkPage>>,
    pub(super) scratch: FoldScratch,
    ahead: VecDeque<Chunk>,
    spare: Vec<Chunk>,
}

/// The memory of a fold on the calling thread.
pub(super) struct InlineScratch {
    pub(super) scratch: FoldScratch,
    chunk: Chunk,
}

/// The workers' memory and rings; the threads are the runtime's.
pub(super) struct Workers {
    hasher: Hasher,
    each: Vec<Mutex<FoldWorker>>,
    /// Memory of callers that fold on their own threads, any number at the same time.
    inline: Mutex<Vec<InlineScratch>>,
    /// Used outcomes: fresh memory costs as much as folding into it.
    pub(super) outcomes: RecyclePool<ChunkOutcome>,
}

impl Workers {
    /// `count` workers, which keep up to `bytes` bytes of earlier outcomes.
    pub(super) fn new(hasher: Hasher, count: usize, bytes: usize) -> Self {
        let each = (0..count).map(|_| Mutex::new(FoldWorker::new(hasher))).collect();
        Self { hasher, each, inline: Mutex::default(), outcomes: RecyclePool::new(bytes) }
    }

    /// Runs a job's chunks on worker `index`.
    pub(super) fn run(&self, index: usize, job: &FinishJob<'_>) {
        let mut worker = WorkerGuard(self.each[index].lock());
        if let Err(error) = worker.0.run(self, job) {
            job.fail(error);
        }
        // After an error nothing stays in flight, so that the next batch starts clean.
        worker.0.release_chunks();
    }

    /// Memory for a fold on the calling thread. A fold that panics does not return it.
    pub(super) fn take_inline(&self) -> InlineScratch {
        let fresh =
            || InlineScratch { scratch: FoldScratch::new(self.hasher), chunk: Chunk::default() };
        self.inline.lock().pop().unwrap_or_else(fresh)
    }

    /// Takes memory back after a small fold. That of a large one is freed: later folds here are small.
    pub(super) fn recycle_inline(&self, inline: InlineScratch, is_small: bool) {
        let mut kept = self.inline.lock();
        if is_small && kept.len() < INLINE_KEPT {
            kept.push(inline);
        }
    }

    /// Folds all accesses of a batch as one chunk, on the calling thread.
    pub(super) fn fold_whole(&self, batch: &Batch<'_>) -> Result<ChunkOutcome> {
        let all = 0..batch.accesses.len();
        self.fold_inline(batch, &mut |chunk| chunk.gather(batch, all.clone()))
    }

    /// Folds the chunk that `gather` gathers, on the calling thread, with plain reads.
    pub(super) fn fold_inline(
        &self,
        batch: &Batch<'_>,
        gather: &mut dyn FnMut(&mut Chunk) -> Result<()>,
    ) -> Result<ChunkOutcome> {
        let db = batch.db;
        let mut inline = self.take_inline();
        let InlineScratch { scratch: space, chunk } = &mut inline;
        let _guard = db.store.grace.enter();
        let before = space.work_counts();
        let folded = loop {
            if let Err(error) = gather(chunk).and_then(|()| read_missing(db, chunk)) {
                break Err(error);
            }
            let outcome = self.outcomes.take().unwrap_or_default();
            match chunk.fold(batch, space, outcome) {
                Ok(outcome) => break Ok(outcome),
                Err(FoldError::Changed) => {}
                Err(FoldError::Failed(error)) => break Err(error),
            }
        };
        space.work_counts().count_since(before, &db.counters);
        chunk.clear();
        self.recycle_inline(inline, true);
        folded
    }
}

/// A worker at its job. After a panic in a user's hasher it releases its pages in flight: the worker may not run again
/// for long, and others would wait for these pages.
struct WorkerGuard<'a>(MutexGuard<'a, FoldWorker>);

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.release_chunks();
            self.0.reader = None;
        }
    }
}

/// Reads a chunk's missing pages with plain reads.
fn read_missing(db: &NamespaceDb, chunk: &mut Chunk) -> Result<()> {
    for page in &mut chunk.pages {
        if let Some(at) = page.at {
            page.page = Some(db.store.page(at)?);
        }
    }
    chunk.missing = 0;
    Ok(())
}

impl FoldWorker {
    fn new(hasher: Hasher) -> Self {
        let (ahead, spare) = (VecDeque::new(), Vec::new());
        Self { reader: None, scratch: FoldScratch::new(hasher), ahead, spare }
    }

    fn run(&mut self, workers: &Workers, job: &FinishJob<'_>) -> Result<()> {
        let db = job.batch.db;
        // A panic in a user's hasher may have left chunks and reads of an earlier batch.
        self.release_chunks();
        // Keeps pages that this worker has looked up in place until it is done.
        let _guard = db.store.grace.enter();
        if self.reader.is_none() {
            let share = db.options.in_flight.div_ceil(db.runtime.workers()).max(4);
            self.reader = Some(PageReader::new(&db.store, share, ReadMode::Keys)?);
        }
        let before = self.scratch.work_counts();
        let result = self.fold_all(workers, job);
        self.scratch.work_counts().count_since(before, &db.counters);
        result
    }

    fn fold_all(&mut self, workers: &Workers, job: &FinishJob<'_>) -> Result<()> {
        let db = job.batch.db;
        loop {
            self.fill_ahead(job)?;
            let Some(front) = self.ahead.front_mut() else { return Ok(()) };
            if front.missing > 0 && front.missing == front.elsewhere.len() {
                self.complete_elsewhere(db)?;
                continue;
            }
            if front.missing > 0 {
                let reader = self.reader.as_mut().expect("made before");
                // Nothing is in flight: all enqueued pages are done, the rest is enqueued next.
                let Some((purpose, done)) = reader.wait(&db.store, 1)? else {
                    continue;
                };
                complete_page(&mut self.ahead, purpose, done)?;
                continue;
            }
            let mut chunk = self.ahead.pop_front().expect("just seen");
            let outcome = workers.outcomes.take().unwrap_or_default();
            match chunk.fold(job.batch, &mut self.scratch, outcome) {
                Ok(outcome) => job.complete(chunk.index, outcome),
                Err(FoldError::Failed(error)) => return Err(error),
                Err(FoldError::Changed) => {
                    chunk.gather(job.batch, job.chunk_range(chunk.index))?;
                    read_missing(db, &mut chunk)?;
                    self.ahead.push_front(chunk);
                    continue;
                }
            }
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Gathers chunks ahead and keeps the ring full.
    fn fill_ahead(&mut self, job: &FinishJob<'_>) -> Result<()> {
        let db = job.batch.db;
        let reader = self.reader.as_mut().expect("made before");
        let most = db.budget.chunks_ahead();
        while self.ahead.len() < most && reader.has_room() {
            let Some(index) = job.claim() else { break };
            let mut chunk = self.spare.pop().unwrap_or_default();
            chunk.index = index;
            start_chunk(job, &mut chunk)?;
            self.ahead.push_back(chunk);
        }
        for chunk in &mut self.ahead {
            enqueue_missing(db, reader, chunk);
        }
        reader.submit()?;
        while let Some((purpose, done)) = reader.poll(&db.store) {
            complete_page(&mut self.ahead, purpose, done)?;
        }
        Ok(())
    }

    /// Takes pages that other readers have read for the first chunk, or waits for them; it lacks no other pages.
    fn complete_elsewhere(&mut self, db: &NamespaceDb) -> Result<()> {
        // Pages in flight for the chunks behind come first: another reader may wait for one of them, and two that wait
        // for each other would do so until their patience ends.
        let reader = self.reader.as_mut().expect("made before");
        while let Some((purpose, done)) = reader.wait(&db.store, 1)? {
            complete_page(&mut self.ahead, purpose, done)?;
        }
        let chunk = self.ahead.front_mut().expect("the caller has seen it");
        for index in std::mem::take(&mut chunk.elsewhere) {
            let at = chunk.pages[index].at.expect("a page that is missing has a number");
            chunk.complete(index, db.store.page(at)?);
        }
        Ok(())
    }

    /// Releases chunks that will not be folded, with their pages; keeps their memory. Nothing stays in flight.
    fn release_chunks(&mut self) {
        self.ahead.iter_mut().for_each(Chunk::clear);
        self.spare.extend(self.ahead.drain(..));
        if self.reader.as_ref().is_some_and(|reader| reader.in_flight() > 0) {
            self.reader = None;
        }
    }
}

/// Gathers a chunk and takes the pages that are cached.
fn start_chunk(job: &FinishJob<'_>, chunk: &mut Chunk) -> Result<()> {
    let db = job.batch.db;
    chunk.gather(job.batch, job.chunk_range(chunk.index))?;
    let cache = &db.store.cache;
    let next = db.store.cache.batch() + 1;
    let mut hits = 0;
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
            page.page = if job.batch.output.is_proof() {
                cache.get(at.page, at.tag)
            } else {
                // Pages that become due are held for the flush, all others are released.
                let until = if page.is_flush_due(job.batch) { next } else { NO_BATCH };
                cache.get_for_last_use(at.page, at.tag, until)
            };
            if page.page.is_some() {
                hits += 1;
            } else {
                chunk.missing += 1;
            }
        }
    }
    db.store.count_hits(hits);
    Ok(())
}

/// Enqueues missing pages, in order, as far as the ring has room.
fn enqueue_missing(db: &NamespaceDb, reader: &mut PageReader<ChunkPage>, chunk: &mut Chunk) {
    while reader.has_room() {
        let missing = chunk.asked;
        let Some(page) = chunk.pages.get(missing) else { return };
        chunk.asked += 1;
        let (Some(at), None) = (page.at, &page.page) else { continue };
        match reader.enqueue(&db.store, at, (chunk.index, missing)) {
            Submission::InFlight => {}
            Submission::Loaded((_, missing), done) => chunk.complete(missing, done.page),
            Submission::ReadElsewhere((_, missing)) => chunk.elsewhere.push(missing),
        }
    }
}

/// Takes a page that is done.
fn complete_page(
    ahead: &mut VecDeque<Chunk>,
    (index, missing): ChunkPage,
    done: pleach_beatree::Result<LoadedPage>,
) -> Result<()> {
    let chunk = ahead.iter_mut().find(|chunk| chunk.index == index);
    let chunk = chunk.expect("its chunk waits for it");
    chunk.complete(missing, done?.page);
    Ok(())
}
