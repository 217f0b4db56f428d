//! The memory in which a worker folds, kept from chunk to chunk. One worker owns it.

use pleach_beatree::leaf_fold::{AccessResult, PartNode};
use pleach_core::fold::Folder;
use pleach_core::{Hasher, Prefix};

use crate::metrics::Counters;

/// Reused memory of a worker.
pub(super) struct FoldScratch {
    /// The pages and regions of a chunk; or all regions, up to the root.
    pub(super) folder: Folder,
    /// Nodes of pages and regions before the batch, from their parts of the multiproof.
    pub(super) proofs: Folder,
    pub(super) results: Vec<AccessResult>,
    pub(super) unhashed: UnhashedNodes,
    /// Pages folded since creation.
    pub(super) folded: u64,
}

/// A worker's counts since its creation.
#[derive(Clone, Copy)]
pub(super) struct WorkCounts {
    hashed: u64,
    folded: u64,
}

impl WorkCounts {
    /// Adds the work done since `before` to the counters.
    pub(super) fn count_since(self, before: Self, counters: &Counters) {
        Counters::add(&counters.hashes, self.hashed - before.hashed);
        Counters::add(&counters.pages_folded, self.folded - before.folded);
    }
}

/// The nodes that the outcome still needs once everything is hashed.
#[derive(Default)]
pub(super) struct UnhashedNodes {
    /// The fold of each region that has a page in it.
    pub(super) ends: Vec<Option<usize>>,
    /// Of each page with a new node: its number in the chunk, and the node's in the folder.
    pub(super) nodes: Vec<(usize, u32)>,
    /// The parts of some pages, by the page's number in the outcome.
    pub(super) parts: Vec<(usize, Vec<(Prefix, PartNode)>)>,
}

impl UnhashedNodes {
    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.nodes.clear();
        self.parts.clear();
    }
}

impl FoldScratch {
    pub(super) fn new(hasher: Hasher) -> Self {
        let [folder, proofs] = [Folder::new(hasher), Folder::new(hasher)];
        Self { folder, proofs, results: Vec::new(), unhashed: UnhashedNodes::default(), folded: 0 }
    }

    pub(super) fn work_counts(&self) -> WorkCounts {
        WorkCounts {
            hashed: self.folder.hash_count() + self.proofs.hash_count(),
            folded: self.folded,
        }
    }
}
