//! The second half of a chunk: its regions, from the nodes of their pages to their own.
//!
//! A region has about a hundred pages, of which a batch may access two. Nodes between the region and
//! its pages that are known (the region's treelet), and below which nothing is accessed, go into the
//! fold as they are; elsewhere each page's node does.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::RegionState;
use pleach_beatree::region::Nodes;
use pleach_beatree::treelet::Treelet;
use pleach_beatree::treelet::capture_levels;
use pleach_core::fold::{BatchFolder, FoldValue, Occupancy, ProofFolder, heap_index};
use pleach_core::proof::op::op_not_first;
use pleach_core::{Hasher, Node, Prefix};

use super::captured::sort_captured;
use super::chunk::{Again, Batch, Chunk, PageTask, RegionTask};
use super::emit::{Emit, Fragment};
use super::outcome::{ChunkOutcome, PageNode, RegionOutcome};
use super::scratch::FoldSpace;

/// Regions ahead of the one that is folded, whose memory is asked for.
const REGIONS_AHEAD: usize = 2;

impl Chunk {
    /// Folds the regions, whose pages are folded, and completes the outcome.
    pub(super) fn fold_regions<H: Hasher>(
        &self,
        batch: &Batch<'_>,
        space: &mut FoldSpace<H>,
        outcome: &mut ChunkOutcome,
    ) -> Result<(), Again> {
        space.regions.clear();
        space.node_pages.clear();
        for (index, task) in self.regions.iter().enumerate() {
            self.prefetch_regions(index);
            let from = outcome.nodes.len();
            let fold = self.fold_region(batch, task, space, &mut outcome.nodes)?;
            debug_assert_eq!(fold, index, "one fold for each region, in order");
            let nodes = from..outcome.nodes.len();
            let first_change = outcome.regions.last().map_or(0, |region| region.changes.end);
            outcome.regions.push(unfinished(batch, task, nodes, first_change));
        }
        space.regions.run();
        let ends = &mut space.inner_ends;
        sort_captured(&space.regions, self.regions.len(), ends, &mut outcome.inner);
        for (fold, region) in outcome.regions.iter_mut().enumerate() {
            let from = fold.checked_sub(1).map_or(0, |before| space.inner_ends[before]);
            region.treelet = from..space.inner_ends[fold];
            region.node = space.regions.node(fold);
            region.old = space.regions.occupancy(fold);
        }
        self.emit_regions(batch, space, outcome);
        fold_proofs(&mut space.proofs, outcome);
        Ok(())
    }

    /// Emits the regions' parts of the witness or proof.
    fn emit_regions<H: Hasher>(
        &self,
        batch: &Batch<'_>,
        space: &mut FoldSpace<H>,
        outcome: &mut ChunkOutcome,
    ) {
        let ChunkOutcome { regions, terminals, siblings, ops, .. } = outcome;
        let proof = space.treelets.proof();
        terminals.reserve(proof.terminals.len() + self.regions.len() * 64);
        siblings.reserve(proof.siblings.len() + self.regions.len() * 32);
        for (fold, (region, task)) in regions.iter_mut().zip(&self.regions).enumerate() {
            let accessed = task.pages.clone().filter(|page| !self.pages[*page].accesses.is_empty());
            for (page, first) in accessed.zip(space.regions.first_of_terminal(fold)) {
                if !first && batch.gives.has_ops() {
                    op_not_first(&mut ops[space.op_starts[page]]);
                }
            }
            region.first_op = task.pages.clone().next().map_or(0, |page| space.op_starts[page]);
            if region.accessed && region.old == Occupancy::Many {
                let mut emit = Emit::new(
                    terminals,
                    siblings,
                    &space.fragments,
                    &proof.terminals,
                    &proof.siblings,
                );
                space.regions.emit(fold, &mut emit);
                region.fragment = emit.done();
            }
        }
    }

    /// Asks for the memory of the regions that are folded next.
    fn prefetch_regions(&self, index: usize) {
        if let Some(task) = self.regions.get(index + 2 * REGIONS_AHEAD) {
            task.region.cpu_prefetch();
        }
        if let Some(task) = self.regions.get(index + REGIONS_AHEAD)
            && let Some(state) = task.region.try_read()
        {
            for page in &self.pages[task.pages.clone()] {
                state.cpu_prefetch_nodes(page.child as usize, page.prefix.first_key());
            }
        }
    }

    /// Begins the fold of a region; gives its index. The region must be as it was gathered.
    fn fold_region<H: Hasher>(
        &self,
        batch: &Batch<'_>,
        task: &RegionTask,
        space: &mut FoldSpace<H>,
        nodes: &mut Vec<PageNode>,
    ) -> Result<usize, Again> {
        let state = task.region.read();
        let away = matches!(state.nodes(), Nodes::Paged(_));
        if state.is_retired()
            || state.layout_version() != task.layout_version
            || state.last_commit() != task.last_commit
            || away
        {
            return Err(Again::Changed);
        }
        let prefix = task.region.prefix();
        let levels = if task.newest { capture_levels(prefix) } else { 0 };
        let (mut regions, mut node_pages) =
            (std::mem::take(&mut space.regions), std::mem::take(&mut space.node_pages));
        regions.begin_capturing(prefix.len(), levels);
        let mut walk = Walk {
            chunk: self,
            batch,
            state: &state,
            prefix,
            levels,
            treelet: state.treelet().filter(|_| task.newest),
            coming: task.pages.clone().peekable(),
            folded: space,
            regions: &mut regions,
            nodes,
            node_pages: &mut node_pages,
        };
        walk.visit(0, 0, 0..state.children().len());
        let fold = regions.end().map_err(Again::NeedsLeaf);
        (space.regions, space.node_pages) = (regions, node_pages);
        fold
    }
}

/// Computes the nodes before the batch to which the regions' parts of the multiproof lead.
fn fold_proofs<H: Hasher>(folder: &mut ProofFolder<H>, outcome: &mut ChunkOutcome) {
    let ChunkOutcome { regions, terminals, siblings, .. } = outcome;
    folder.clear();
    let mut folds = Vec::with_capacity(regions.len());
    for region in regions.iter().filter(|region| region.fragment.count() > 0) {
        folder.terminals(region.fragment.terminals(terminals));
        folds.push(folder.end(region.region.prefix().len(), region.fragment.siblings(siblings)));
    }
    if folder.run() {
        let proven = regions.iter_mut().filter(|region| region.fragment.count() > 0);
        for (region, fold) in proven.zip(folds) {
            region.before = Some(*folder.node(fold));
        }
    }
}

/// The outcome of a region that is not folded yet: its accesses' changes begin at `first_change`.
fn unfinished(
    batch: &Batch<'_>,
    task: &RegionTask,
    nodes: Range<usize>,
    first_change: usize,
) -> RegionOutcome {
    let accesses = &batch.accesses[task.accesses.clone()];
    let writes = accesses.iter().filter(|access| access.writes.is_some()).count();
    RegionOutcome {
        region: Arc::clone(&task.region),
        layout_version: task.layout_version,
        accessed: !task.accesses.is_empty(),
        node: Node::default(),
        old: Occupancy::Empty,
        before: None,
        fragment: Fragment::default(),
        first_op: 0,
        nodes,
        changes: first_change..first_change + writes,
        treelet: 0..0,
        as_of: task.newest.then_some(task.last_commit),
    }
}

/// A walk through a region's children, which puts their nodes into the region's fold.
struct Walk<'a, H: Hasher> {
    chunk: &'a Chunk,
    batch: &'a Batch<'a>,
    state: &'a RegionState,
    prefix: &'a Prefix,
    /// Levels below the region that its treelet can know; 0 when it is not to be used.
    levels: u8,
    treelet: Option<&'a Treelet>,
    /// Pages that take part and have not been met yet.
    coming: Peekable<Range<usize>>,
    folded: &'a FoldSpace<H>,
    regions: &'a mut BatchFolder<H>,
    nodes: &'a mut Vec<PageNode>,
    node_pages: &'a mut Vec<usize>,
}

impl<'a, H: Hasher> Walk<'a, H> {
    /// Puts these children into the fold: all whose prefixes continue the region's with `bits`, which are
    /// `level` bits.
    fn visit(&mut self, level: u8, bits: u8, children: Range<usize>) {
        if children.len() == 1 || level == self.levels {
            children.for_each(|child| self.child(child));
            return;
        }
        let pages = &self.chunk.pages;
        let later = |at: &usize| pages[*at].child as usize >= children.end;
        if self.coming.peek().is_none_or(later)
            && let Some(node) = self.known(level, bits)
        {
            self.regions.subtrie(&self.prefix.descendant(level, bits), node);
            return;
        }
        let middle = self.state.children().split(level, children.clone());
        self.visit(level + 1, bits << 1, children.start..middle);
        self.visit(level + 1, bits << 1 | 1, middle..children.end);
    }

    /// The node at `bits`, `level` below the region, when it is known. It has more than one key below it: a
    /// single leaf might have to become a terminal.
    fn known(&self, level: u8, bits: u8) -> Option<&'a Node> {
        self.treelet?.node(heap_index(level, bits))
    }

    /// Puts a child into the fold: folded, known, or as the region has it.
    fn child(&mut self, child: usize) {
        let pages = &self.chunk.pages;
        let Some(at) = self.coming.next_if(|at| pages[*at].child as usize == child) else {
            let node = self.state.node(child).expect("nodes were brought into memory before");
            self.regions.subtrie(&self.state.children().prefix(child), node);
            return;
        };
        let page = &pages[at];
        if let Some(known) = &page.known {
            self.regions.subtrie(&page.prefix, known);
            return;
        }
        let fold = self.folded.folds[at];
        let (node, occupancy) = (self.folded.node(fold), self.folded.occupancy(fold));
        if page.accesses.is_empty() {
            match &occupancy {
                Occupancy::Leaf { key, value_hash } => {
                    self.regions.unaccessed(key, FoldValue::Hash(*value_hash));
                }
                _ => self.regions.subtrie(&page.prefix, &node),
            }
            return;
        }
        let fragment = u32::try_from(at).expect("a chunk has fewer than 2^32 pages");
        self.regions.child(&page.prefix, &node, &occupancy, fragment);
        let accesses = &self.batch.accesses[page.accesses.clone()];
        if accesses.iter().any(|access| access.writes.is_some()) {
            let new = self.page_node(page, at, node);
            self.nodes.push(new);
            self.node_pages.push(at);
        }
    }

    /// What the outcome says of an accessed page.
    fn page_node(&self, page: &PageTask, at: usize, node: Node) -> PageNode {
        let ends = &self.folded.captured_ends;
        let treelet = at.checked_sub(1).map_or(0, |before| ends[before])..ends[at];
        PageNode {
            child: page.child,
            prefix: page.prefix,
            node,
            as_of: page.as_of.unwrap_or_default(),
            treelet,
            columns: self.folded.columns(self.folded.folds[at]),
            flush_due: page.flush_due(self.batch),
            page: None,
        }
    }
}
