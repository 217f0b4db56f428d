//! Finish: from accesses to a root and a witness, without writing anything. The namespaces of a batch are finished one
//! after the other, by the same workers.
//!
//! The accesses, sorted, are divided into chunks of neighbouring regions. Workers claim chunks, read pages that are not
//! cached, and fold a chunk when its pages are in memory, while further pages are read. The regions' nodes are folded
//! into the root at the end.
//!
//! Invariants: a finish changes only caches and counters; regions that change meanwhile are gathered again, so that all
//! of an outcome is as of the view. Called by sessions, and by a commit below whose changes a flush has changed the
//! layout ([`refold`]).
//!
//! A proof ([`prove`]) is a finish of reads whose witness has no operations.
//!
//! | file | step |
//! |---|---|
//! | [`sort`] | accesses in order of their keys |
//! | [`job`], [`worker`] | chunks are claimed, their pages read |
//! | [`chunk`] | a chunk is gathered |
//! | [`regions`], [`scratch`], [`emit`] | it is folded; parts of the witness |
//! | [`assemble`], [`witness`] | the root, and the whole witness |
//! | [`plain`] | all of it, for a plain namespace |
//! | [`outcome`] | the result |

mod assemble;
mod chunk;
mod emit;
mod job;
pub(crate) mod outcome;
mod plain;
mod regions;
mod scratch;
pub(crate) mod sort;
#[cfg(test)]
mod tests;
pub(crate) mod witness;
mod worker;

use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::pages::PageReaderPool;
use pleach_beatree::recycle::RecyclePool;
use pleach_core::{Hasher, Key, Node};
use pleach_journal::format::trie_kind::TrieKind;

use crate::access::Access;
use crate::error::{Contradiction, Result};
use crate::metrics::Counters;
use crate::phase::Phase;
use crate::read::many::{self, FetchPurpose};
use crate::state::pace::budget::Budget;
use crate::state::pace::trim_schedule::TrimSchedule;
use crate::state::view::{RootedView, View};
use crate::state::{Database, NamespaceDb};
use assemble::{assemble, fold_root};
use chunk::Batch;
use emit::FinishOutput;
use job::FinishJob;
use outcome::{ChunkOutcome, FinishedTrie};
use sort::{SortedAccesses, Sorter};
use witness::WitnessPool;
use worker::{INLINE, Workers, chunk_accesses};

/// Finishes batches; keeps workers, and memory from batch to batch.
pub(crate) struct Finisher {
    workers: Workers,
    /// Memory for the next sort.
    pub(crate) sorters: RecyclePool<Sorter>,
    /// Memory for the next witness.
    witnesses: Arc<WitnessPool>,
    /// The same for proofs, which keeps no memory: proofs are the caller's.
    proofs: Arc<WitnessPool>,
    /// Readers for the prior values of plain namespaces.
    readers: PageReaderPool,
    /// Trims memory that large batches leave free.
    trims: Mutex<TrimSchedule>,
}

impl Finisher {
    /// A finisher with `workers` workers, whose kept memory has its shares of the budget.
    pub(crate) fn new(
        hasher: Hasher,
        workers: usize,
        budget: &Budget,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            workers: Workers::new(hasher, workers, budget.outcome_bytes()),
            sorters: RecyclePool::new(budget.sorter_bytes()),
            witnesses: Arc::new(WitnessPool::new(budget.witness_bytes(), counters)),
            proofs: Arc::new(WitnessPool::new(0, counters)),
            readers: PageReaderPool::default(),
            trims: Mutex::default(),
        }
    }

    /// Bytes of memory kept from batch to batch.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.workers.outcomes.bytes() + self.sorters.bytes() + self.witnesses.bytes()
    }

    /// Takes back the memory of outcomes that are not needed any more.
    pub(crate) fn recycle_outcomes(&self, outcomes: impl IntoIterator<Item = ChunkOutcome>) {
        outcomes.into_iter().for_each(|outcome| self.workers.outcomes.put_back(outcome));
    }
}

/// Fewer accesses are sorted by the caller, which takes as long as waking workers.
const PARALLEL_SORT: usize = 8192;

/// Sorts a batch's accesses, each key of a namespace once.
pub(crate) fn sort<'a>(
    db: &Database,
    sorter: &'a mut Sorter,
    accesses: &[Access],
) -> Result<SortedAccesses<'a>> {
    // The workers would do another session's fold or publication first.
    let alone = accesses.len() < PARALLEL_SORT || db.pace.foreground.is_busy();
    let most = if alone { 1 } else { db.runtime.workers() };
    let _own_processors = (most > 1).then(|| db.pace.foreground.begin_finish());
    let _timed = db.timings.begin_phase(Phase::Sort);
    sorter.sort(db.hasher, accesses, &|count, task| {
        let tasks = db.timings.begin_tasks(None, count);
        db.runtime.inline_or_fork_join(most.min(count), &|_| tasks.run_tasks(task));
    })
}

/// Folds sorted accesses over a view whose root, or digest, is `prev_root`: those of the batch under way in one
/// namespace. A plain namespace has no witness.
pub(crate) fn finish(
    db: &NamespaceDb,
    finisher: &Finisher,
    reservation: &BatchReservation<'_>,
    (view, prev_root): (&View, &Node),
    accesses: &[KeyAccess],
    witness: bool,
) -> Result<FinishedTrie> {
    let state = RootedView { view, root: prev_root };
    if db.kind == TrieKind::Plain {
        let _own_processors = (accesses.len() > INLINE).then(|| db.pace.foreground.begin_finish());
        return plain::finish(db, &finisher.readers, state, accesses);
    }
    let output = if witness { FinishOutput::Witness } else { FinishOutput::RootOnly };
    let mut written = Vec::new();
    let accesses = if witness || accesses.iter().all(|access| access.writes.is_some()) {
        accesses
    } else {
        // Reads matter only for a witness.
        written.extend(accesses.iter().filter(|access| access.writes.is_some()).cloned());
        &written
    };
    let mut finished = fold_view(db, finisher, state, accesses, output, reservation.learns)?;
    finished.shrink(reservation.share(db.budget.kept_block_bytes(), accesses.len()));
    Ok(finished)
}

/// The keys of a proof, and its form.
#[derive(Clone, Copy)]
pub(crate) enum ProofRequest<'a> {
    /// One key, by a path proof.
    Key(&'a Key),
    /// Any number of keys, sorted and each once, by a multiproof.
    Keys(&'a [Key]),
}

/// A proof of keys on a state. It changes nothing but cached pages.
pub(crate) fn prove(
    db: &NamespaceDb,
    finisher: &Finisher,
    readers: &PageReaderPool,
    state: RootedView<'_>,
    request: ProofRequest,
) -> Result<Vec<u8>> {
    let (keys, output) = match request {
        ProofRequest::Key(key) => (std::slice::from_ref(key), FinishOutput::Path),
        ProofRequest::Keys(keys) => (keys, FinishOutput::Multiproof),
    };
    // A fold on this thread reads its pages one by one, unless they are cached before.
    if (2..=INLINE).contains(&keys.len()) {
        many::fetch_pages(db, readers, FetchPurpose::Proof, keys)?;
    }
    let reads = keys.iter().map(|key| KeyAccess { key: *key, reads: true, writes: None });
    let accesses: Vec<KeyAccess> = reads.collect();
    let _reservation = BatchReservation::new(db, accesses.len());
    let FinishedTrie { chunks, witness, .. } =
        fold_view(db, finisher, state, &accesses, output, false)?;
    finisher.recycle_outcomes(chunks);
    Ok(witness.expect("a proof was asked for").into_vec())
}

fn fold_view(
    db: &NamespaceDb,
    finisher: &Finisher,
    RootedView { view, root }: RootedView<'_>,
    accesses: &[KeyAccess],
    output: FinishOutput,
    learns: bool,
) -> Result<FinishedTrie> {
    let _regions = db.tries.hold_regions();
    let _own_processors = (accesses.len() > INLINE).then(|| db.pace.foreground.begin_finish());
    let batch = Batch::new(db, view, accesses, output, learns);
    checked_in_view(view, fold_batch(finisher, &batch, root))
}

/// A batch under way, in all of its namespaces: an estimate of its bytes is counted until a block counts the real ones.
/// Small batches are not counted, to save the locks.
pub(crate) struct BatchReservation<'a> {
    db: &'a Database,
    accesses: usize,
    bytes: usize,
    /// True when the batch is so small that pages and regions learn from it.
    learns: bool,
}

impl<'a> BatchReservation<'a> {
    pub(crate) fn new(db: &'a Database, accesses: usize) -> Self {
        let learns = db.budget.can_learn(accesses);
        let bytes = if accesses > INLINE { db.budget.finish_bytes(accesses) } else { 0 };
        let this = Self { db, accesses, bytes, learns };
        this.count(bytes.cast_signed());
        this
    }

    fn count(&self, more: isize) {
        if more != 0 {
            Counters::change(&self.db.counters.batch_bytes, more);
            self.db.fit_cache();
        }
    }

    /// The share of `bytes` for this many of the batch's accesses.
    fn share(&self, bytes: usize, accesses: usize) -> usize {
        bytes / self.accesses.max(1) * accesses
    }
}

impl Drop for BatchReservation<'_> {
    fn drop(&mut self) {
        self.count(-self.bytes.cast_signed());
    }
}

/// Folds a few changes again, on the calling thread, after a flush has changed the layout below them.
pub(crate) fn refold(
    db: &NamespaceDb,
    finisher: &Finisher,
    view: &View,
    accesses: &[KeyAccess],
) -> Result<ChunkOutcome> {
    let batch = Batch::new(db, view, accesses, FinishOutput::RootOnly, true);
    checked_in_view(view, finisher.workers.fold_whole(&batch))
}

/// Compares the roots before and after a batch, of which chunks were folded again, with those of its finish.
pub(crate) fn check_refolded(
    db: &NamespaceDb,
    finisher: &Finisher,
    view: &View,
    (prev_root, root): (&Node, &Node),
    chunks: &[ChunkOutcome],
) -> Result<()> {
    if chunks.iter().all(|chunk| chunk.regions.is_empty()) {
        return Ok(());
    }
    let batch = Batch::new(db, view, &[], FinishOutput::RootOnly, false);
    let scratch = &mut finisher.workers.take_inline().scratch;
    let folded = fold_root(&finisher.workers, &batch, prev_root, chunks, scratch);
    let folded = checked_in_view(view, folded)?;
    if folded.root != *root {
        let (expected, found) = (*root, Some(folded.root));
        return Err(Contradiction::NodesInMemory { expected, found }.into());
    }
    Ok(())
}

/// The result of a fold, if the view can still be read. Otherwise its trie may have been reclaimed meanwhile, and any
/// result, an error too, may be wrong.
fn checked_in_view<T>(view: &View, folded: Result<T>) -> Result<T> {
    view.check_readable()?;
    folded
}

fn fold_batch(finisher: &Finisher, batch: &Batch<'_>, prev_root: &Node) -> Result<FinishedTrie> {
    let (db, workers) = (batch.db, &finisher.workers);
    let chunks = if batch.accesses.len() <= INLINE {
        let _timed = (!batch.output.is_proof()).then(|| db.timings.begin_phase(Phase::Fold));
        vec![workers.fold_whole(batch)?]
    } else {
        let most = db.runtime.workers().min(db.budget.workers());
        let chunk = chunk_accesses(batch.accesses.len(), most);
        let job = FinishJob::new(batch, chunk);
        let count = most.min(job.chunks());
        db.runtime.fork_join(count, &|index| workers.run(index, &job));
        job.into_outcomes()?
    };
    if !batch.learns && !batch.output.is_proof() {
        // A batch that is large for the budget: memory that its pages have freed is trimmed before more is taken.
        finisher.trims.lock().trim_if_due(&db.runtime, &db.budget, &db.counters);
    }
    let pool = if batch.output.is_proof() { &finisher.proofs } else { &finisher.witnesses };
    assemble(workers, pool, batch, prev_root, chunks)
}
