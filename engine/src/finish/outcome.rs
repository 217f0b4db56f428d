//! What a fold gives: chunk by chunk, and in the end.
//!
//! Made by a finish, read by a commit and by overlays. The lists of a chunk are shared by its regions and
//! pages, which have ranges of them; a commit gives their memory back for the next finish.

use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::Region;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::recycle::Recycle;
use pleach_beatree::region::PartNodes;
use pleach_core::fold::{Columns, Occupancy};
use pleach_core::{Node, Prefix};

pub(crate) use super::emit::Fragment;
use super::witness::Witness;
use crate::roots::Roots;
use crate::state::history::undo::{ChangeList, KeyUpdate};
use crate::state::pages::index::PageRef;

/// What a finish gives, of one namespace.
pub(crate) struct FinishedTrie {
    /// The root after it, or the digest.
    pub(crate) root: Node,
    pub(crate) chunks: Vec<ChunkOutcome>,
    pub(crate) witness: Option<Witness>,
}

impl FinishedTrie {
    /// What the witness was made of goes, where all takes more than `kept` bytes: no next finish would get
    /// that memory.
    pub(super) fn shrink(&mut self, kept: usize) {
        if self.chunks.iter().map(Recycle::bytes).sum::<usize>() > kept {
            self.chunks.iter_mut().for_each(ChunkOutcome::discard_proof);
        }
    }
}

/// What a batch gives.
pub(crate) struct FinishedBatch {
    /// The roots of the state that it makes.
    pub(crate) roots: Roots,
    /// How often layouts had changed before the first access was folded.
    pub(crate) layouts: u64,
    /// Of each namespace with an access, ascending.
    pub(crate) outcomes: Vec<TrieOutcome>,
    /// Likewise, where they were asked for.
    pub(crate) witnesses: Vec<(u8, Witness)>,
}

/// What a batch does in one namespace.
pub(crate) struct TrieOutcome {
    pub(crate) namespace: u8,
    pub(crate) chunks: Vec<ChunkOutcome>,
}

/// A region's result.
pub(crate) struct RegionOutcome {
    pub(crate) region: Arc<Region>,
    /// The layout version that the child indexes refer to.
    pub(crate) layout_version: u64,
    pub(crate) accessed: bool,
    pub(crate) node: Node,
    /// What was there before the batch.
    pub(crate) old: Occupancy,
    /// The node before the batch, to which its part of the multiproof leads; `None` where it has none, or that leads to none.
    pub(crate) before: Option<Node>,
    pub(crate) fragment: Fragment,
    /// Where its operations start in the chunk's list.
    pub(crate) first_op: usize,
    /// Nodes of its accessed pages, in the chunk's list.
    pub(crate) nodes: Range<usize>,
    /// Its changes, in the chunk's list.
    pub(crate) changes: Range<usize>,
    /// New lines of its tiling, in the chunk's list.
    pub(crate) lines: Range<usize>,
}

/// A page's new node.
#[derive(Clone)]
pub(crate) struct PageNode {
    pub(crate) child: u32,
    pub(crate) prefix: Prefix,
    pub(crate) node: Node,
    /// The version of the page before.
    pub(crate) as_of: u64,
    /// What the page's treelet learns, in the chunk's list.
    pub(crate) treelet: Range<usize>,
    /// The columns of the treelet that learns it.
    pub(crate) columns: Option<Columns>,
    /// Does the commit make the page due for a flush?
    pub(crate) is_flush_due: bool,
    /// The page, when its treelet learns something.
    pub(crate) page: Option<(PageRef, Arc<CachedPage>)>,
}

impl PageNode {
    /// Nothing is learned from it.
    pub(crate) fn discard_treelet(&mut self) {
        (self.treelet, self.page) = (0..0, None);
    }
}

/// What a chunk gives.
#[derive(Default)]
pub(crate) struct ChunkOutcome {
    pub(crate) regions: Vec<RegionOutcome>,
    /// Pages that the batch writes to.
    pub(crate) nodes: Vec<PageNode>,
    /// The nodes of the parts of those that were folded in parts: few are.
    pub(crate) parts: Vec<(usize, Arc<PartNodes>)>,
    /// Nodes inside of pages, by their index in the treelet.
    pub(crate) treelets: Vec<(u8, Node)>,
    /// New lines of the regions' tilings: boundary and line.
    pub(crate) lines: Vec<(u32, [Node; 2])>,
    pub(crate) changes: ChangeList,
    pub(super) terminals: Vec<u8>,
    pub(super) siblings: Vec<Node>,
    pub(super) ops: Vec<u8>,
}

impl ChunkOutcome {
    /// Forgets what the witness was made of.
    fn discard_proof(&mut self) {
        self.terminals = Vec::new();
        self.siblings = Vec::new();
        self.ops = Vec::new();
    }

    /// It is kept for long: forgets what the witness was made of, and takes no more memory than the rest needs.
    pub(crate) fn shrink_for_overlay(&mut self) {
        self.discard_proof();
        self.regions.shrink_to_fit();
        self.nodes.shrink_to_fit();
        self.treelets.shrink_to_fit();
        self.lines.shrink_to_fit();
    }

    /// Forgets what treelets would learn from it: the rest is what a commit needs.
    pub(crate) fn discard_treelets(&mut self) {
        self.treelets = Vec::new();
        self.parts = Vec::new();
        self.nodes.iter_mut().for_each(PageNode::discard_treelet);
    }

    /// Bytes that it takes without its changes.
    pub(crate) fn own_bytes(&self) -> usize {
        self.bytes() - self.changes.len() * size_of::<KeyUpdate>()
    }

    /// Takes in what the chunk after it has. A region is below both, so that both are stale: the ranges of
    /// the regions that come in are not right until it is folded again.
    pub(crate) fn absorb(&mut self, next: &mut Self) {
        self.regions.append(&mut next.regions);
        next.discard_treelets();
        self.nodes.append(&mut next.nodes);
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
            // A new list is an allocation.
            self.changes = ChangeList::default();
        }
        self.terminals.clear();
        self.siblings.clear();
        self.ops.clear();
    }
}
