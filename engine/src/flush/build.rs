//! From old pages and their buffered changes to new pages, in memory.
//!
//! 1. [`MergedPages::merge`]: which cells each new page has, and how many pages there will be;
//! 2. [`MergedPages::fold`]: the nodes of all pages whose nodes are not known yet, in one batch;
//! 3. [`FoldedPages::contradicting`]: flush `agree`;
//! 4. [`fill`]: the bytes, under reserved page numbers.
//!
//! Only the folder and the buffers that are passed in change: a round may start again after any of these steps. The
//! caller is [`round`](super::round).

use std::ops::Range;

use pleach_beatree::PageNo;
use pleach_beatree::page_plan::{
    CellRef, PageCells, PageNodes, PagePlan, PageStamp, fold_pages, plan_pages, write_page,
};
use pleach_core::fold::Folder;
use pleach_core::page::overflow::OverflowExtent;
use pleach_io::PageBuf;

use super::cells::{CellEdit, PageEdits};
use super::rewrite::{NewLeaf, Rewrite, WrittenPage};

/// Rewrites ahead of the one that is merged whose memory is prefetched.
const AHEAD: usize = 4;

/// The content of a rewrite's new pages.
enum NewContent {
    /// The old page's cells with a few changes between.
    Edited(PageEdits),
    /// The plans of the pages, and where the rewrite's cells start.
    Planned(Vec<PagePlan>, usize),
}

impl NewContent {
    fn pages(&self) -> usize {
        match self {
            Self::Edited(_) => 1,
            Self::Planned(plans, _) => plans.len(),
        }
    }
}

/// The contents of all new pages of a round.
#[derive(Default)]
pub(super) struct MergedPages<'a> {
    edits: Vec<CellEdit>,
    cells: Vec<CellRef<'a>>,
    /// One for each rewrite.
    contents: Vec<NewContent>,
    /// Overflow runs that each rewrite replaces.
    pub(super) replaced_extents: Vec<Vec<OverflowExtent>>,
}

impl<'a> MergedPages<'a> {
    /// Merges the old pages' cells with the buffered changes.
    pub(super) fn merge(rewrites: &'a [Rewrite]) -> Self {
        let mut merged = Self {
            contents: Vec::with_capacity(rewrites.len()),
            replaced_extents: Vec::with_capacity(rewrites.len()),
            ..Self::default()
        };
        for (index, rewrite) in rewrites.iter().enumerate() {
            prefetch_ahead(&rewrites[index..]);
            merged.add(rewrite);
        }
        merged
    }

    fn add(&mut self, rewrite: &'a Rewrite) {
        let mut runs = Vec::new();
        let edited = match &rewrite.old[..] {
            [only] => only.plan_edits(&mut self.edits, &mut runs),
            _ => None,
        };
        let content = edited.map_or_else(
            || {
                let from = self.cells.len();
                for old in &rewrite.old {
                    old.push_merged_cells(&mut self.cells, &mut runs);
                }
                NewContent::Planned(plan_pages(&rewrite.range, &self.cells[from..]), from)
            },
            NewContent::Edited,
        );
        self.contents.push(content);
        self.replaced_extents.push(runs);
    }

    /// Number of new pages.
    pub(super) fn pages(&self) -> usize {
        self.contents.iter().map(NewContent::pages).sum()
    }

    /// Folds the pages whose nodes are not all known.
    pub(super) fn fold(&'a self, rewrites: &'a [Rewrite], folder: &mut Folder) -> FoldedPages<'a> {
        let mut unfolded = Vec::new();
        let (mut edited, mut planned) = (Vec::new(), Vec::new());
        for (index, (rewrite, content)) in rewrites.iter().zip(&self.contents).enumerate() {
            let NewContent::Planned(plans, from) = content else {
                edited.push(index);
                continue;
            };
            planned.push((index, unfolded.len()..unfolded.len() + plans.len()));
            let same = plans.len() == 1 && rewrite.old.len() == 1;
            for page in plans {
                let cells = &self.cells[from + page.cells.start..from + page.cells.end];
                let known = same.then(|| &rewrite.old[0].nodes);
                unfolded.push(PageCells { prefix: page.prefix, cells, known });
            }
        }
        let is_plain = rewrites.iter().flat_map(|rewrite| &rewrite.old).any(|old| old.is_plain);
        let nodes = if is_plain {
            // A round is of one namespace.
            vec![PageNodes::PLAIN; unfolded.len()]
        } else {
            fold_pages(folder, &unfolded)
        };
        assert_eq!(nodes.len(), unfolded.len(), "nodes for each page");
        FoldedPages { pages: unfolded.into_iter().zip(nodes).collect(), edited, planned }
    }
}

/// The nodes of the new pages.
pub(super) struct FoldedPages<'a> {
    pub(super) pages: Vec<(PageCells<'a>, PageNodes)>,
    /// Rewrites that keep their nodes.
    pub(super) edited: Vec<usize>,
    /// Rewrites that were folded, and their pages.
    pub(super) planned: Vec<(usize, Range<usize>)>,
}

/// Fills the buffers of the runs that these page numbers make, in order; returns each rewrite's new pages. `stamp`
/// makes a page's header from its number and the last commit that it contains.
pub(super) fn fill(
    merged: &MergedPages<'_>,
    folded: &FoldedPages<'_>,
    rewrites: &[Rewrite],
    numbers: &[PageNo],
    buffers: &mut [PageBuf],
    stamp: impl Fn(PageNo, u64) -> PageStamp,
) -> Vec<Vec<NewLeaf>> {
    let mut slots = slots(numbers);
    let mut folded = folded.pages.iter();
    let mut all = Vec::with_capacity(rewrites.len());
    for (rewrite, content) in rewrites.iter().zip(&merged.contents) {
        let stamp = |number| stamp(number, rewrite.applied_through);
        let mut new = Vec::with_capacity(content.pages());
        match content {
            NewContent::Edited(edited) => {
                let (number, run, at) = slots.next().expect("as many page numbers as pages");
                let old = &rewrite.old[0];
                let header = stamp(number).header(&old.prefix);
                let bytes = buffers[run].page_mut(at);
                let tag = old.write_edited(bytes, header, edited, &merged.edits);
                let page = WrittenPage { number, tag, run, at };
                new.push(NewLeaf { prefix: old.prefix, page, node: old.own });
            }
            NewContent::Planned(plans, _) => {
                for (unfolded, nodes) in folded.by_ref().take(plans.len()) {
                    let (number, run, at) = slots.next().expect("as many page numbers as pages");
                    let (bytes, prefix) = (buffers[run].page_mut(at), unfolded.prefix);
                    let stamp = stamp(number);
                    let tag = write_page(bytes, &stamp, &prefix, unfolded.cells, &nodes.stored);
                    let page = WrittenPage { number, tag, run, at };
                    new.push(NewLeaf { prefix, page, node: nodes.own });
                }
            }
        }
        assert_eq!(new.len(), content.pages(), "each page is made");
        all.push(new);
    }
    assert!(slots.next().is_none(), "no page number is left over");
    all
}

/// For each page number, in order: the number, its run and the page in it.
fn slots(numbers: &[PageNo]) -> impl Iterator<Item = (PageNo, usize, usize)> + '_ {
    numbers.chunk_by(|a, b| a.is_before(*b)).enumerate().flat_map(|(index, run)| {
        run.iter().enumerate().map(move |(at, number)| (*number, index, at))
    })
}

/// Prefetches the memory of the rewrites that are merged next.
fn prefetch_ahead(rewrites: &[Rewrite]) {
    let page = |ahead: usize| {
        let old = rewrites.get(ahead)?.old.first()?;
        Some((old, old.page.as_ref()?))
    };
    if let Some((_, page)) = page(2 * AHEAD) {
        page.cpu_prefetch_head();
    }
    if let Some((old, page)) = page(AHEAD) {
        old.buffered.iter().for_each(|buffered| page.cpu_prefetch_key(&buffered.key));
    }
}
