//! The memory that a worker folds in, which is kept from chunk to chunk. One worker owns it.

use pleach_beatree::leaf_fold::AccessResult;
use pleach_core::fold::path_blocks::PathBlocks;
use pleach_core::fold::{BatchFolder, Occupancy, heap_below};
use pleach_core::{Hasher, Node};

use super::emit::Fragment;

/// How a page was folded.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageFold {
    /// Not at all: its node is known.
    Known,
    /// As one fold.
    Whole(usize),
    /// As a path block, over the folds of its buckets.
    PathBlock {
        /// Its index.
        block: usize,
        /// Is the page's treelet brought to the state after the batch?
        learns: bool,
    },
}

/// Reused memory of a worker.
#[derive(Default)]
pub(super) struct FoldSpace<H: Hasher> {
    pub(super) pages: BatchFolder<H>,
    pub(super) path_blocks: PathBlocks<H>,
    pub(super) regions: BatchFolder<H>,
    pub(super) results: Vec<AccessResult>,
    /// How each page was folded.
    pub(super) folds: Vec<PageFold>,
    /// What the folds of pages have captured, fold by fold, and where that of each fold ends.
    captured: Vec<(u8, Node)>,
    fold_ends: Vec<usize>,
    /// For each page, where the nodes that its treelet learns end in the outcome.
    pub(super) captured_ends: Vec<usize>,
    /// The same for the regions' folds.
    pub(super) inner_ends: Vec<usize>,
    pub(super) terminals: Vec<u8>,
    pub(super) siblings: Vec<Node>,
    pub(super) fragments: Vec<Fragment>,
    /// The page of each node in the outcome.
    pub(super) node_pages: Vec<usize>,
    /// Where each page's operations start.
    pub(super) op_starts: Vec<usize>,
}

impl<H: Hasher> FoldSpace<H> {
    pub(super) fn hashed(&self) -> u64 {
        self.pages.hashed() + self.path_blocks.hashed() + self.regions.hashed()
    }

    /// A page's new node.
    pub(super) fn node(&self, fold: PageFold) -> Node {
        match fold {
            PageFold::Known => unreachable!("a page that was not folded"),
            PageFold::Whole(fold) => self.pages.node(fold),
            PageFold::PathBlock { block, .. } => *self.path_blocks.node(block),
        }
    }

    /// How many keys a page had before the batch.
    pub(super) fn occupancy(&self, fold: PageFold) -> Occupancy {
        match fold {
            PageFold::Known => unreachable!("a page that was not folded"),
            PageFold::Whole(fold) => self.pages.occupancy(fold),
            PageFold::PathBlock { .. } => Occupancy::Many,
        }
    }

    /// For each access of a page, in order: is it the first below its terminal?
    pub(super) fn firsts(&self, fold: PageFold, mut each: impl FnMut(bool)) {
        match fold {
            PageFold::Known => {}
            PageFold::Whole(fold) => self.pages.first_of_terminal(fold).for_each(each),
            PageFold::PathBlock { block, .. } => {
                for (_, fold) in self.path_blocks.buckets(block) {
                    self.pages.first_of_terminal(fold).for_each(&mut each);
                }
            }
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
        out.reserve(captured.len() + self.path_blocks.len());
        for fold in &self.folds {
            match *fold {
                PageFold::Known | PageFold::PathBlock { learns: false, .. } => {}
                PageFold::Whole(fold) => out.extend_from_slice(of(fold)),
                PageFold::PathBlock { block, .. } => {
                    self.path_blocks.computed(block, |index, node| out.push((index, *node)));
                    for (bucket, fold) in self.path_blocks.buckets(block) {
                        let nodes = of(fold).iter();
                        out.extend(nodes.map(|(index, node)| (heap_below(bucket, *index), *node)));
                    }
                }
            }
            self.captured_ends.push(out.len());
        }
    }
}

/// Sorts what a folder's folds have captured fold by fold; `ends` takes where that of each fold ends.
pub(super) fn sort_captured<H: Hasher>(
    folder: &BatchFolder<H>,
    folds: usize,
    ends: &mut Vec<usize>,
    out: &mut Vec<(u8, Node)>,
) {
    let captured = folder.captured();
    ends.clear();
    ends.resize(folds, 0);
    for one in captured {
        ends[one.fold as usize] += 1;
    }
    let mut sum = 0;
    for end in ends.iter_mut() {
        // The start now; every entry moves it on.
        (sum, *end) = (sum + *end, sum);
    }
    out.resize(captured.len(), (0, Node::default()));
    for one in captured {
        let at = &mut ends[one.fold as usize];
        out[*at] = (one.index, one.node);
        *at += 1;
    }
}
