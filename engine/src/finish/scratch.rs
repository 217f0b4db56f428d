//! The memory that a worker folds in, which is kept from chunk to chunk. One worker owns it.

use pleach_beatree::leaf_fold::AccessResult;
use pleach_core::fold::{BatchFolder, Columns, HashId, Occupancy, ProofFolder, TreeletFolder};
use pleach_core::tree::{GroupedLines, Merkleizer};
use pleach_core::{Hasher, Node, ValueHash};

use super::captured::sort_captured;
use super::cut::Cut;
use super::emit::Fragment;
use crate::metrics::Counters;

/// How a page was folded.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageFold {
    /// Not at all: its node is known.
    Known,
    /// As one fold.
    Whole(usize),
    /// As a treelet whose nodes are known.
    Treelet {
        /// Its number.
        number: usize,
        /// Is the page's treelet brought to the state after the batch?
        learns: bool,
    },
    /// In parts.
    Cut {
        /// The number of the cut.
        number: usize,
        /// Does its region keep the nodes of the parts?
        learns: bool,
    },
}

/// Reused memory of a worker.
pub(super) struct FoldSpace {
    pub(super) pages: BatchFolder,
    /// The pages whose nodes are known; and the multiproof of all.
    pub(super) treelets: TreeletFolder,
    /// Those that are cut, up to `cut` of them, and the folds that join their parts.
    pub(super) cuts: Vec<Cut>,
    pub(super) cut: usize,
    pub(super) joins: BatchFolder,
    pub(super) regions: Merkleizer,
    /// New lines of the regions' tilings.
    pub(super) lines: GroupedLines,
    /// The regions' nodes before the batch, from their parts of the multiproof.
    pub(super) proofs: ProofFolder,
    pub(super) results: Vec<AccessResult>,
    /// How each page was folded.
    pub(super) folds: Vec<PageFold>,
    /// What the folds of pages have captured, fold by fold, and where that of each fold ends.
    captured: Vec<(u8, Node)>,
    fold_ends: Vec<usize>,
    /// For each page, where the nodes that its treelet learns end in the outcome.
    pub(super) captured_ends: Vec<usize>,
    pub(super) fragments: Vec<Fragment>,
    /// The page of each node in the outcome.
    pub(super) node_pages: Vec<usize>,
    /// Where each page's operations start.
    pub(super) op_starts: Vec<usize>,
    /// Pages that were folded since creation.
    pub(super) folded: u64,
    /// Folds again what was folded as treelets.
    #[cfg(debug_assertions)]
    pub(super) oracle: OracleSpace,
}

/// Memory of what is folded again.
#[cfg(debug_assertions)]
pub(super) struct OracleSpace {
    pub(super) folder: BatchFolder,
    pub(super) results: Vec<AccessResult>,
    pub(super) terminals: Vec<u8>,
    pub(super) siblings: Vec<Node>,
}

/// What a worker has done since its creation.
#[derive(Clone, Copy)]
pub(super) struct Work {
    hashed: u64,
    folded: u64,
}

impl Work {
    /// Counts what was done since `before`.
    pub(super) fn count_since(self, before: Self, counters: &Counters) {
        Counters::add(&counters.hashes, self.hashed - before.hashed);
        Counters::add(&counters.pages_folded, self.folded - before.folded);
    }
}

impl FoldSpace {
    pub(super) fn new(hasher: Hasher) -> Self {
        Self {
            pages: BatchFolder::new(hasher),
            treelets: TreeletFolder::new(hasher),
            cuts: Vec::new(),
            cut: 0,
            joins: BatchFolder::new(hasher),
            regions: Merkleizer::new(hasher),
            lines: GroupedLines::default(),
            proofs: ProofFolder::new(hasher),
            results: Vec::new(),
            folds: Vec::new(),
            captured: Vec::new(),
            fold_ends: Vec::new(),
            captured_ends: Vec::new(),
            fragments: Vec::new(),
            node_pages: Vec::new(),
            op_starts: Vec::new(),
            folded: 0,
            #[cfg(debug_assertions)]
            oracle: OracleSpace {
                folder: BatchFolder::new(hasher),
                results: Vec::new(),
                terminals: Vec::new(),
                siblings: Vec::new(),
            },
        }
    }

    pub(super) fn work(&self) -> Work {
        let cuts: u64 = self.cuts.iter().map(Cut::hashed).sum();
        let folds = self.pages.hashed() + self.joins.hashed() + self.regions.hashed();
        let hashed = cuts + folds + self.treelets.hashed() + self.proofs.hashed();
        Work { hashed, folded: self.folded }
    }

    /// A page's new node.
    pub(super) fn node(&self, fold: PageFold) -> Node {
        match fold {
            PageFold::Known => unreachable!("a page that was not folded"),
            PageFold::Whole(fold) => self.pages.node(fold),
            PageFold::Treelet { number, .. } => *self.treelets.node(number),
            PageFold::Cut { number, .. } => self.joins.node(self.cuts[number].joined()),
        }
    }

    /// The columns of what a page's treelet learns.
    pub(super) fn columns(&self, fold: PageFold) -> Option<Columns> {
        match fold {
            PageFold::Known | PageFold::Cut { .. } => None,
            PageFold::Whole(fold) => self.pages.columns(fold),
            PageFold::Treelet { number, .. } => self.treelets.columns(number),
        }
    }

    /// How many keys a page had before the batch.
    pub(super) fn occupancy(&self, fold: PageFold) -> Occupancy {
        match fold {
            PageFold::Known => unreachable!("a page that was not folded"),
            PageFold::Whole(fold) => self.pages.occupancy(fold),
            PageFold::Treelet { .. } => Occupancy::Many,
            PageFold::Cut { number, .. } => self.joins.occupancy(self.cuts[number].joined()),
        }
    }

    /// For each access of a page, in order: is it the first below its terminal?
    pub(super) fn firsts(&self, fold: PageFold, mut each: impl FnMut(bool)) {
        match fold {
            PageFold::Known | PageFold::Cut { .. } => {}
            PageFold::Whole(fold) => self.pages.first_of_terminal(fold).for_each(each),
            PageFold::Treelet { number, .. } => {
                self.treelets.first_of_terminal(number).iter().for_each(|first| each(*first));
            }
        }
    }

    /// The hash of a value that an access of a page has put.
    pub(super) fn value_hash(&self, fold: PageFold, id: HashId) -> &ValueHash {
        match fold {
            PageFold::Treelet { .. } => self.treelets.value_hash(id),
            _ => self.pages.value_hash(id),
        }
    }

    /// Appends the nodes that each page's treelet learns.
    pub(super) fn gather_captured(&mut self, out: &mut Vec<(u8, Node)>) {
        let (ends, captured) = (&mut self.fold_ends, &mut self.captured);
        sort_captured(&self.pages, self.pages.folds(), ends, captured);
        let of = |fold: usize| {
            let from = fold.checked_sub(1).map_or(0, |before| ends[before]);
            &captured[from..ends[fold]]
        };
        self.captured_ends.clear();
        for fold in &self.folds {
            match *fold {
                PageFold::Known
                | PageFold::Cut { .. }
                | PageFold::Treelet { learns: false, .. } => {}
                PageFold::Whole(fold) => out.extend_from_slice(of(fold)),
                PageFold::Treelet { number, .. } => {
                    self.treelets.learned(number, |index, node| out.push((index, *node)));
                }
            }
            self.captured_ends.push(out.len());
        }
    }
}
