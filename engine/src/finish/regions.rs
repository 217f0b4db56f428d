//! The second half of a chunk: its regions, from the nodes of their pages to their own.
//!
//! A region has about a hundred pages, of which a batch may touch two. Nodes between the region and
//! its pages that are known (the region's treelet) and below which nothing is touched go into the
//! fold as they are; the others page by page.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::RegionState;
use pleach_beatree::leaf_fold::capture_levels;
use pleach_beatree::region::Nodes;
use pleach_beatree::treelet::Treelet;
use pleach_core::fold::{BatchFolder, FoldValue, Occupancy, heap_index};
use pleach_core::proof::op::op_not_first;
use pleach_core::{Hasher, Node, Prefix};

use super::chunk::{Again, Batch, Chunk, PageTask, RegionTask};
use super::emit::{Emit, Fragment};
use super::outcome::{ChunkOutcome, PageNode, RegionOutcome};
use super::scratch::{FoldSpace, sort_captured};

/// Regions ahead of the one that is folded, whose memory is asked for.
const REGIONS_AHEAD: usize = 2;

impl Chunk {
    pub(super) fn fold_regions<H: Hasher>(
        &self,
        batch: &Batch<'_>,
        space: &mut FoldSpace<H>,
        outcome: &mut ChunkOutcome,
    ) -> Result<(), Again> {
        space.regions.clear();
        space.node_pages.clear();
        let mut folds = Vec::with_capacity(self.regions.len());
        for (index, task) in self.regions.iter().enumerate() {
            self.prefetch_regions(index);
            let (from, changes_from) = (
                outcome.nodes.len(),
                outcome.regions.last().map_or(0, |region| region.changes.end),
            );
            folds.push(self.fold_region(batch, task, space, &mut outcome.nodes)?);
            let changes = changes_from
                ..changes_from
                    + batch.touches[task.touches.clone()]
                        .iter()
                        .filter(|touch| touch.writes.is_some())
                        .count();
            outcome.regions.push(RegionOutcome {
                region: Arc::clone(&task.region),
                shape: task.shape,
                touched: !task.touches.is_empty(),
                node: Node::default(),
                old: Occupancy::Empty,
                fragment: Fragment::default(),
                first_op: 0,
                nodes: from..outcome.nodes.len(),
                changes,
                treelet: 0..0,
                before: task.newest.then_some(task.changed),
            });
        }
        space.regions.run();
        let ends = &mut space.inner_ends;
        sort_captured(&space.regions, folds.len(), ends, &mut outcome.inner);
        if batch.witness {
            outcome.terminals.reserve(space.terminals.len() + self.regions.len() * 64);
            outcome.siblings.reserve(space.siblings.len() + self.regions.len() * 32);
        }
        for ((region, task), fold) in outcome.regions.iter_mut().zip(&self.regions).zip(folds) {
            if batch.witness {
                let touched =
                    task.pages.clone().filter(|page| !self.pages[*page].touches.is_empty());
                for (page, first) in touched.zip(space.regions.first_of_terminal(fold)) {
                    if !first {
                        op_not_first(&mut outcome.ops[space.op_starts[page]]);
                    }
                }
                region.first_op = task.pages.clone().next().map_or(0, |page| space.op_starts[page]);
            }
            let from = fold.checked_sub(1).map_or(0, |before| space.inner_ends[before]);
            region.treelet = from..space.inner_ends[fold];
            region.node = space.regions.node(fold);
            region.old = space.regions.occupancy(fold);
            if batch.witness && region.touched && region.old == Occupancy::Many {
                let (terminals, siblings) = (&mut outcome.terminals, &mut outcome.siblings);
                let mut emit = Emit::new(
                    terminals,
                    siblings,
                    &space.fragments,
                    &space.terminals,
                    &space.siblings,
                );
                space.regions.emit(fold, &mut emit);
                region.fragment = emit.done();
            }
        }
        Ok(())
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
            || state.layout_version() != task.shape
            || state.last_commit() != task.changed
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

/// On the way through a region's children.
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
    /// Puts the children below a position into the fold: `bits`, `level` below the region.
    fn visit(&mut self, level: u8, bits: u8, children: Range<usize>) {
        if children.len() == 1 || level == self.levels {
            children.for_each(|child| self.child(child));
            return;
        }
        let pages = &self.chunk.pages;
        let behind = |at: &usize| pages[*at].child as usize >= children.end;
        if self.coming.peek().is_none_or(behind)
            && let Some(node) = self.known(level, bits)
        {
            self.regions.subtrie(&self.prefix.descendant(level, bits), node);
            return;
        }
        let middle = self.state.children().split(level, children.clone());
        self.visit(level + 1, bits << 1, children.start..middle);
        self.visit(level + 1, bits << 1 | 1, middle..children.end);
    }

    /// The node of a position, when it is known. It stands for more than one key: a leaf might have
    /// to become a terminal.
    fn known(&self, level: u8, bits: u8) -> Option<&'a Node> {
        self.treelet?.node(heap_index(level, bits))
    }

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
        let (node, shape) = (self.folded.node(fold), self.folded.occupancy(fold));
        if page.touches.is_empty() {
            match &shape {
                Occupancy::Leaf { key, value_hash } => {
                    self.regions.unaccessed(key, FoldValue::Hash(*value_hash));
                }
                _ => self.regions.subtrie(&page.prefix, &node),
            }
            return;
        }
        let fragment = u32::try_from(at).expect("a chunk has fewer than 2^32 pages");
        self.regions.child(&page.prefix, &node, &shape, fragment);
        let touches = &self.batch.touches[page.touches.clone()];
        if touches.iter().any(|touch| touch.writes.is_some()) {
            let new = self.page_node(page, at, node);
            self.nodes.push(new);
            self.node_pages.push(at);
        }
    }

    fn page_node(&self, page: &PageTask, at: usize, node: Node) -> PageNode {
        let ends = &self.folded.captured_ends;
        let treelet = at.checked_sub(1).map_or(0, |before| ends[before])..ends[at];
        PageNode {
            child: page.child,
            prefix: page.prefix,
            node,
            before: page.stands_at.unwrap_or_default(),
            treelet,
            ripens: page.ripens(self.batch),
            page: None,
        }
    }
}
