//! The second half of a chunk: its regions, from the nodes of their pages to their own.
//!
//! A region has about a hundred pages, of which a batch may access two: what lies beside their paths comes from the lines of
//! the region's tiling.

use std::sync::Arc;

use pleach_beatree::RegionState;
use pleach_beatree::region::Nodes;
use pleach_core::fold::{Occupancy, ProofFolder};
use pleach_core::proof::op::op_not_first;
use pleach_core::tree::{HiddenLeaf, Merkleizer, Subtrie};
use pleach_core::{Node, TERMINATOR};

use super::chunk::{Again, Batch, Chunk, RegionTask};
use super::emit::Fragment;
use super::outcome::{ChunkOutcome, PageNode, RegionOutcome};
use super::scratch::FoldSpace;

/// Regions ahead of the one that is folded, whose memory is asked for.
const REGIONS_AHEAD: usize = 2;

/// A region that was put in: its number among the tilings, and its end if it has a page that takes part.
struct Folding {
    tiling: u32,
    end: Option<usize>,
}

impl Chunk {
    /// Folds the regions, whose pages are folded, and completes the outcome.
    pub(super) fn fold_regions(
        &self,
        batch: &Batch<'_>,
        space: &mut FoldSpace,
        outcome: &mut ChunkOutcome,
    ) -> Result<(), Again> {
        // Apart from the space, which it reads.
        let mut regions = std::mem::replace(&mut space.regions, Merkleizer::new(batch.hasher));
        let done = self.fold_regions_by(&mut regions, batch, space, outcome);
        space.regions = regions;
        done
    }

    fn fold_regions_by(
        &self,
        regions: &mut Merkleizer,
        batch: &Batch<'_>,
        space: &mut FoldSpace,
        outcome: &mut ChunkOutcome,
    ) -> Result<(), Again> {
        regions.clear();
        space.node_pages.clear();
        let mut folding = Vec::with_capacity(self.regions.len());
        for (index, task) in self.regions.iter().enumerate() {
            self.prefetch_regions(index);
            let from = outcome.nodes.len();
            let folded = self.fold_region(batch, task, space, regions, &mut outcome.nodes);
            folding.push(folded?);
            let first_change = outcome.regions.last().map_or(0, |region| region.changes.end);
            let accesses = &batch.accesses[task.accesses.clone()];
            let writes = accesses.iter().filter(|access| access.writes.is_some()).count();
            outcome.regions.push(RegionOutcome {
                region: Arc::clone(&task.region),
                layout_version: task.layout_version,
                accessed: !task.accesses.is_empty(),
                node: Node::default(),
                old: Occupancy::Empty,
                before: None,
                fragment: Fragment::default(),
                first_op: 0,
                nodes: from..outcome.nodes.len(),
                changes: first_change..first_change + writes,
                lines: 0..0,
            });
        }
        regions.run();
        regions.group(&mut space.lines);
        for (region, Folding { tiling, end }) in outcome.regions.iter_mut().zip(&folding) {
            let own = || *region.region.read().own();
            (region.node, region.old) = match end {
                None => (own(), Occupancy::Many),
                Some(end) => {
                    let node = *regions.end_node(*end);
                    (node, occupancy(regions, *end, &node))
                }
            };
            let lines = space.lines.of(*tiling);
            let from = outcome.lines.len();
            outcome.lines.extend_from_slice(lines);
            region.lines = from..outcome.lines.len();
        }
        self.emit_regions(batch, (space, regions), &folding, outcome);
        fold_proofs(&mut space.proofs, outcome);
        Ok(())
    }

    /// Emits the regions' parts of the witness or proof.
    fn emit_regions(
        &self,
        batch: &Batch<'_>,
        (space, folded): (&FoldSpace, &Merkleizer),
        folding: &[Folding],
        outcome: &mut ChunkOutcome,
    ) {
        let ChunkOutcome { regions, terminals, siblings, ops, .. } = outcome;
        let proof = space.treelets.proof();
        terminals.reserve(proof.terminals.len() + self.regions.len() * 64);
        siblings.reserve(proof.siblings.len() + self.regions.len() * 32);
        for ((region, task), Folding { end, .. }) in
            regions.iter_mut().zip(&self.regions).zip(folding)
        {
            region.first_op = task.pages.clone().next().map_or(0, |page| space.op_starts[page]);
            let Some(end) = end.filter(|_| region.accessed) else { continue };
            let accessed = task.pages.clone().filter(|page| !self.pages[*page].accesses.is_empty());
            for (page, first) in accessed.zip(folded.firsts(end)) {
                if !first && batch.gives.has_ops() {
                    op_not_first(&mut ops[space.op_starts[page]]);
                }
            }
            if region.old != Occupancy::Many {
                continue;
            }
            let (from, siblings_from) = (terminals.len(), siblings.len());
            let mut below = 0;
            let own = folded.terminals(end, terminals, |number, out| {
                let fragment = &space.fragments[number as usize];
                below += fragment.count();
                out.extend_from_slice(fragment.terminals(&proof.terminals));
            });
            folded.siblings(end, siblings, |number, out| {
                out.extend_from_slice(space.fragments[number as usize].siblings(&proof.siblings));
            });
            let (terminals, siblings) = (from..terminals.len(), siblings_from..siblings.len());
            region.fragment = Fragment::new(terminals, own + below, siblings);
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
                state.cpu_prefetch_nodes(page.child as usize);
            }
        }
    }

    /// Puts the pages of a region in. The region must be as it was gathered.
    fn fold_region(
        &self,
        batch: &Batch<'_>,
        task: &RegionTask,
        space: &mut FoldSpace,
        regions: &mut Merkleizer,
        nodes: &mut Vec<PageNode>,
    ) -> Result<Folding, Again> {
        let state = task.region.read();
        let Nodes::Resident(tiling) = state.nodes() else { return Err(Again::Changed) };
        if state.is_retired()
            || state.layout_version() != task.layout_version
            || state.last_commit() != task.last_commit
        {
            return Err(Again::Changed);
        }
        let number = regions.begin_tiling();
        let mut top = None;
        for at in task.pages.clone() {
            let subtrie = self.put_page(batch, at, space, regions, nodes);
            let child = self.pages[at].child as usize;
            let next = (at + 1 < task.pages.end).then(|| self.pages[at + 1].child as usize);
            let put = regions.child((tiling, number), child, subtrie, next);
            top = put.map_err(|hidden| needs_leaf(&state, hidden))?;
        }
        let end = top.map(|top| regions.end(top, false));
        Ok(Folding { tiling: number, end })
    }

    /// A page as its region takes it: folded, or known.
    fn put_page(
        &self,
        batch: &Batch<'_>,
        at: usize,
        space: &mut FoldSpace,
        regions: &mut Merkleizer,
        nodes: &mut Vec<PageNode>,
    ) -> Subtrie {
        let page = &self.pages[at];
        if let Some(known) = &page.known {
            return regions.unaccessed(known);
        }
        let fold = space.folds[at];
        let (node, old) = (space.node(fold), space.occupancy(fold));
        if page.accesses.is_empty() {
            return match &old {
                Occupancy::Leaf { key, value_hash } => {
                    regions.unaccessed_leaf(&node, key, value_hash)
                }
                _ => regions.unaccessed(&node),
            };
        }
        let accesses = &batch.accesses[page.accesses.clone()];
        if accesses.iter().any(|access| access.writes.is_some()) {
            let new = self.page_node(batch, space, (at, node));
            nodes.push(new);
            space.node_pages.push(at);
        }
        let number = u32::try_from(at).expect("a chunk has fewer than 2^32 pages");
        regions.fragment(&node, (&old, &accesses[0].key), number)
    }

    /// What the outcome says of an accessed page.
    fn page_node(
        &self,
        batch: &Batch<'_>,
        space: &FoldSpace,
        (at, node): (usize, Node),
    ) -> PageNode {
        let page = &self.pages[at];
        let ends = &space.captured_ends;
        let treelet = at.checked_sub(1).map_or(0, |before| ends[before])..ends[at];
        PageNode {
            child: page.child,
            prefix: page.prefix,
            node,
            as_of: page.as_of.unwrap_or_default(),
            treelet,
            columns: space.columns(space.folds[at]),
            flush_due: page.flush_due(batch),
            page: None,
        }
    }
}

/// What was below a region before the batch, or is in the view where nothing of it is accessed.
fn occupancy(regions: &Merkleizer, end: usize, node: &Node) -> Occupancy {
    match (regions.occupancy(end), regions.lone(end)) {
        (Some(old), _) => old,
        (None, Some((key, value_hash))) => Occupancy::Leaf { key, value_hash },
        (None, None) if *node == TERMINATOR => Occupancy::Empty,
        (None, None) => Occupancy::Many,
    }
}

/// The leaf of a child that is known by its node alone decides where a terminal lies.
fn needs_leaf(state: &RegionState, hidden: HiddenLeaf) -> Again {
    Again::NeedsLeaf(*state.children().prefix(hidden.child).first_key())
}

/// Computes the nodes before the batch to which the regions' parts of the multiproof lead.
fn fold_proofs(folder: &mut ProofFolder, outcome: &mut ChunkOutcome) {
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
