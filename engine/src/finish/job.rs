//! One finish, shared by its workers: which chunks are claimed, and their outcomes.
//!
//! Invariant: a chunk is claimed once, and chunks never share a region.

use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::RegionIndex;

use super::chunk::Batch;
use super::outcome::ChunkOutcome;
use crate::error::{Error, Result};
use crate::phase::Phase;
use crate::timings::PhaseTimer;

/// One finish: its chunks, which workers claim, and their outcomes.
pub(super) struct FinishJob<'a> {
    pub(super) batch: &'a Batch<'a>,
    regions: Arc<RegionIndex>,
    /// Accesses of a chunk, before it is extended to the end of its last region.
    chunk_accesses: usize,
    /// One for each chunk.
    tasks: PhaseTimer<'a>,
    outcomes: Vec<Mutex<Option<ChunkOutcome>>>,
    failed: Mutex<Option<Error>>,
}

impl<'a> FinishJob<'a> {
    /// A finish of this batch, in chunks of about `chunk` accesses; begins its phase.
    pub(super) fn new(batch: &'a Batch<'a>, chunk: usize) -> Self {
        let count = batch.accesses.len().div_ceil(chunk);
        let phase = (!batch.output.is_proof()).then_some(Phase::Fold);
        let tasks = batch.db.timings.begin_tasks(phase, count);
        Self {
            batch,
            regions: batch.db.tree.load_full(),
            chunk_accesses: chunk,
            tasks,
            outcomes: (0..count).map(|_| Mutex::new(None)).collect(),
            failed: Mutex::new(None),
        }
    }

    /// Number of chunks.
    pub(super) fn chunks(&self) -> usize {
        self.outcomes.len()
    }

    /// Stores the outcome of a chunk.
    pub(super) fn complete(&self, index: usize, outcome: ChunkOutcome) {
        *self.outcomes[index].lock() = Some(outcome);
    }

    /// Ends the job after a worker's failure: no more chunks are claimed.
    pub(super) fn fail(&self, error: Error) {
        self.failed.lock().get_or_insert(error);
    }

    /// The outcomes of all chunks, once every worker has returned.
    pub(super) fn into_outcomes(self) -> Result<Vec<ChunkOutcome>> {
        if let Some(error) = self.failed.into_inner() {
            return Err(error);
        }
        let outcomes = self.outcomes.into_iter();
        let chunks = outcomes.map(|slot| slot.into_inner().expect("every chunk was folded"));
        Ok(chunks.collect())
    }

    /// Claims the next chunk; `None` when all are claimed.
    pub(super) fn claim(&self) -> Option<usize> {
        if self.failed.lock().is_some() {
            return None;
        }
        self.tasks.claim()
    }

    /// The accesses of a chunk: those of whole regions, by the index when the finish began, so that chunks never
    /// overlap, whatever is split meanwhile.
    pub(super) fn chunk_range(&self, index: usize) -> std::ops::Range<usize> {
        self.region_start(index * self.chunk_accesses)
            ..self.region_start((index + 1) * self.chunk_accesses)
    }

    /// The first access at or after `at` that is the first of its region.
    fn region_start(&self, at: usize) -> usize {
        let accesses = self.batch.accesses;
        if at == 0 || at >= accesses.len() {
            return at.min(accesses.len());
        }
        let prefix = self.regions.region(&accesses[at - 1].key).prefix();
        at + accesses[at..].partition_point(|access| prefix.covers(&access.key))
    }
}
