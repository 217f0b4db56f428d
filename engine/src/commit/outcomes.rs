//! The outcomes of a finish, for its commit.

use std::sync::Arc;

use pleach_beatree::recycle::Recycle;

use super::apply::advance_all;
use crate::engine::Engine;
use crate::finish::outcome::{ChunkOutcome, TrieOutcome};
use crate::metrics::Counters;

/// The outcomes of a finish until a commit uses them up; their memory returns to the finisher.
pub(super) struct Outcomes {
    engine: Arc<Engine>,
    /// By namespace, ascending.
    pub(super) list: Vec<TrieOutcome>,
    /// Bytes of memory that are counted for them.
    pub(super) bytes: usize,
}

impl Outcomes {
    pub(super) fn new(engine: &Arc<Engine>, list: Vec<TrieOutcome>) -> Self {
        let bytes = list.iter().flat_map(|one| &one.chunks).map(Recycle::bytes).sum();
        let mut outcomes = Self { engine: Arc::clone(engine), list, bytes: 0 };
        outcomes.count(bytes);
        outcomes
    }

    fn count(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let more = bytes.cast_signed() - before.cast_signed();
        let db = &self.engine.db;
        Counters::change(&db.counters.batch_bytes, more);
        if db.budget.is_worth_refitting(db.commits.overlays.bytes()) {
            db.fit_cache();
        }
    }

    /// Shrinks them to the needs of an overlay, which counts the changes itself.
    pub(super) fn shrink_for_overlay(&mut self) {
        self.list
            .iter_mut()
            .flat_map(|one| &mut one.chunks)
            .for_each(ChunkOutcome::shrink_for_overlay);
        self.count_own();
    }

    fn count_own(&mut self) {
        let chunks = self.list.iter().flat_map(|one| &one.chunks);
        let own = |chunk: &ChunkOutcome| chunk.bytes() - size_of_val(&*chunk.changes);
        self.count(chunks.map(own).sum());
    }

    /// Advances the treelets of the pages that they change, and keeps what a commit needs.
    pub(super) fn advance_treelets(&mut self, version: u64) {
        let learned = |chunk: &ChunkOutcome| !chunk.treelets.is_empty();
        if !self.list.iter().flat_map(|one| &one.chunks).any(learned) {
            return;
        }
        for TrieOutcome { namespace, chunks } in &mut self.list {
            // A dropped namespace has no treelets that anybody will need.
            if let Ok(db) = self.engine.trie(*namespace) {
                advance_all(&db, version, chunks);
            }
            chunks.iter_mut().for_each(ChunkOutcome::discard_treelets);
        }
        self.count_own();
    }

    /// Returns the memory of outcomes that are not committed.
    pub(super) fn recycle(&mut self) {
        recycle_outcomes(&self.engine, std::mem::take(&mut self.list));
        self.count(0);
    }
}

pub(super) fn recycle_outcomes(engine: &Engine, outcomes: Vec<TrieOutcome>) {
    let chunks = outcomes.into_iter().flat_map(|outcome| outcome.chunks);
    engine.finisher.recycle_outcomes(chunks);
}

impl Drop for Outcomes {
    fn drop(&mut self) {
        if self.engine.db.home.is_current() {
            self.recycle();
        }
    }
}
