//! The memory in which a worker folds, kept from chunk to chunk. One worker owns it.

use std::ops::Range;

use pleach_beatree::leaf_fold::{AccessResult, PartNode};
use pleach_core::fold::{Columns, Folder};
use pleach_core::{Hasher, Node, Prefix};

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

/// What the outcome still needs once everything is hashed.
#[derive(Default)]
pub(super) struct UnhashedNodes {
    pub(super) regions: Vec<RegionFold>,
    /// The pages with a new node.
    pub(super) pages: Vec<PageFold>,
    /// The parts of some pages, by the page's number in `pages`.
    pub(super) parts: Vec<(usize, Vec<(Prefix, PartNode)>)>,
}

/// A region in a fold. The ranges are those of its outcome.
pub(super) struct RegionFold {
    /// The fold, if the region has a page in it.
    pub(super) end: Option<usize>,
    pub(super) own_node: Node,
    pub(super) nodes: Range<usize>,
    pub(super) changes: Range<usize>,
    pub(super) lines: Range<usize>,
}

/// A page with a new node in a fold.
pub(super) struct PageFold {
    /// Its number in the chunk.
    pub(super) page: usize,
    /// The node's number in the folder.
    pub(super) node: u32,
    pub(super) treelet: Range<usize>,
    pub(super) columns: Option<Columns>,
}

impl UnhashedNodes {
    pub(super) fn clear(&mut self) {
        self.regions.clear();
        self.pages.clear();
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
