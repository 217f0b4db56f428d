//! The results of a fold, by chunk and as a whole.
//!
//! Made by a finish, used by a commit and by overlays. A chunk's regions and pages have ranges of its lists; a commit
//! returns their memory for the next finish.

use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::recycle::Recycle;
use pleach_beatree::region::PartNodes;
use pleach_beatree::{PageRef, Region};
use pleach_core::fold::{Columns, Occupancy};
use pleach_core::{Node, Prefix};

pub(crate) use super::emit::Fragment;
use super::witness::Witness;
use crate::roots::Roots;
use crate::state::undo::changes::{ChangeList, KeyUpdate};

/// The result of a finish in one namespace.
pub(crate) struct FinishedTrie {
    /// The root after the batch, or the digest.
    pub(crate) root: Node,
    pub(crate) chunks: Vec<ChunkOutcome>,
    pub(crate) witness: Option<Witness>,
}

impl FinishedTrie {
    /// Discards the parts of the multiproof above `kept` bytes in all: no next finish would get that memory.
    pub(super) fn shrink(&mut self, kept: usize) {
        if self.chunks.iter().map(Recycle::bytes).sum::<usize>() > kept {
            self.chunks.iter_mut().for_each(ChunkOutcome::discard_proof);
        }
    }
}

/// The result of finishing a batch.
pub(crate) struct FinishedBatch {
    /// The roots of the state after the batch.
    pub(crate) roots: Roots,
    /// The count of layout changes before the first access was folded.
    pub(crate) layouts: u64,
    /// Of each accessed namespace, ascending.
    pub(crate) outcomes: Vec<TrieOutcome>,
    /// Likewise, where witnesses were requested.
    pub(crate) witnesses: Vec<(u8, Witness)>,
}

/// A batch's result in one namespace.
pub(crate) struct TrieOutcome {
    pub(crate) namespace: u8,
    pub(crate) chunks: Vec<ChunkOutcome>,
}

/// A region's result.
pub(crate) struct RegionOutcome {
    pub(crate) region: Arc<Region>,
    /// The layout version that the child indexes refer to.
    pub(crate) layout_version: u64,
    pub(crate) node: Node,
    /// Occupancy before the batch.
    pub(crate) old: Occupancy,
    /// The node before the batch, to which the region's part of the multiproof leads; `None` where it has no such part,
    /// or the part leads to none.
    pub(crate) before: Option<Node>,
    pub(crate) fragment: Fragment,
    /// Index of the region's first operation in the chunk's list.
    pub(crate) first_op: usize,
    /// Nodes of the region's accessed pages, in the chunk's list.
    pub(crate) nodes: Range<usize>,
    /// The region's changes, in the chunk's list.
    pub(crate) changes: Range<usize>,
    /// New lines of the region's tiling, in the chunk's list.
    pub(crate) lines: Range<usize>,
}

/// A page's new node.
#[derive(Clone)]
pub(crate) struct PageNode {
    pub(crate) child: u32,
    pub(crate) prefix: Prefix,
    pub(crate) node: Node,
    /// The version of the page before the batch.
    pub(crate) as_of: u64,
    /// The nodes that the page's treelet learns, in the chunk's list.
    pub(crate) treelet: Range<usize>,
    /// The columns of that treelet.
    pub(crate) columns: Option<Columns>,
    /// True when the commit makes the page due for a flush.
    pub(crate) is_flush_due: bool,
    /// The page, if its treelet learns something.
    pub(crate) page: Option<(PageRef, Arc<CachedPage>)>,
}

impl PageNode {
    /// Discards the nodes that the treelet would learn.
    pub(crate) fn discard_treelet(&mut self) {
        (self.treelet, self.page) = (0..0, None);
    }
}

/// The result of one chunk.
#[derive(Default)]
pub(crate) struct ChunkOutcome {
    pub(crate) regions: Vec<RegionOutcome>,
    /// New nodes of the pages that the batch writes to.
    pub(crate) nodes: Vec<PageNode>,
    /// The nodes of parts, for the few pages that were folded in parts.
    pub(crate) parts: Vec<(usize, Arc<PartNodes>)>,
    /// Nodes inside of pages, with their index in the treelet.
    pub(crate) treelets: Vec<(u8, Node)>,
    /// New lines of the regions' tilings: boundary and line.
    pub(crate) lines: Vec<(u32, [Node; 2])>,
    pub(crate) changes: ChangeList,
    pub(super) terminals: Vec<u8>,
    pub(super) siblings: Vec<Node>,
    pub(super) ops: Vec<u8>,
}

impl ChunkOutcome {
    /// Discards the parts of the multiproof.
    fn discard_proof(&mut self) {
        self.terminals = Vec::new();
        self.siblings = Vec::new();
        self.ops = Vec::new();
    }

    /// Discards the parts of the multiproof and spare capacity, since an overlay keeps the rest for long.
    pub(crate) fn shrink_for_overlay(&mut self) {
        self.discard_proof();
        self.regions.shrink_to_fit();
        self.nodes.shrink_to_fit();
        self.treelets.shrink_to_fit();
        self.lines.shrink_to_fit();
    }

    /// Discards the nodes that treelets would learn: a commit needs only the rest.
    pub(crate) fn discard_treelets(&mut self) {
        self.treelets = Vec::new();
        self.parts = Vec::new();
        self.nodes.iter_mut().for_each(PageNode::discard_treelet);
    }

    /// Appends the next chunk without its treelets and parts of the multiproof. One region lies below both chunks, so
    /// both are stale.
    pub(crate) fn absorb(&mut self, next: &mut Self) {
        let moved = |range: &Range<usize>, by: usize| range.start + by..range.end + by;
        let [nodes, changes, lines] = [self.nodes.len(), self.changes.len(), self.lines.len()];
        self.regions.extend(next.regions.drain(..).map(|region| RegionOutcome {
            nodes: moved(&region.nodes, nodes),
            changes: moved(&region.changes, changes),
            lines: moved(&region.lines, lines),
            fragment: Fragment::default(),
            ..region
        }));
        next.discard_treelets();
        self.nodes.append(&mut next.nodes);
        self.lines.append(&mut next.lines);
        self.changes = [&*self.changes, &*next.changes].concat().into();
    }
}

impl Recycle for ChunkOutcome {
    fn bytes(&self) -> usize {
        self.regions.capacity() * size_of::<RegionOutcome>()
            + self.nodes.capacity() * size_of::<PageNode>()
            + self.treelets.capacity() * size_of::<(u8, Node)>()
            + self.lines.capacity() * size_of::<(u32, [Node; 2])>()
            + self.changes.len() * size_of::<KeyUpdate>()
            + self.siblings.capacity() * size_of::<Node>()
            + self.terminals.capacity()
            + self.ops.capacity()
    }

    fn clear(&mut self) {
        self.regions.clear();
        self.nodes.clear();
        self.parts.clear();
        self.treelets.clear();
        self.lines.clear();
        if !self.changes.is_empty() {
            // A new list needs an allocation.
            self.changes = ChangeList::default();
        }
        self.terminals.clear();
        self.siblings.clear();
        self.ops.clear();
    }
}
