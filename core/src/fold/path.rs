//! The way up from a key: what lies beside it, and which structure keeps the nodes there.

use super::positions::index_below;
use super::{Columns, TREELET_LEVELS};
use crate::node::{Key, Node, TERMINATOR};
use crate::prefix::bit;
use crate::tree::{Tiling, index32};

/// Nothing on either side.
const NOTHING: [Node; 2] = [TERMINATOR; 2];

/// The structure that a pair of sibling nodes belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeOwner {
    /// None: the nodes are not kept.
    Nobody,
    /// This boundary of a [`Tiling`](crate::tree::Tiling).
    Line(u32),
    /// A treelet.
    Treelet {
        /// The [`heap_index`](super::heap_index) of the position whose children these are.
        parent: u8,
        /// Which of them the treelet did not know: bit 0 the left one, bit 1 the right one.
        fresh: u8,
    },
}

/// What lies beside the way up from the keys of a fold.
pub trait Path {
    /// At this depth and below nothing is beside the way, and no node is kept.
    fn bottom(&self) -> u16;
    /// Goes up to `depth` where the other side has no item: the two nodes right below, of which that on the way does not
    /// count, and their home.
    fn pass_sibling(&mut self, key: &Key, depth: u16) -> (&[Node; 2], NodeOwner);
    /// Goes up to `depth` where both sides have items: the pair's home.
    fn pass_fork(&mut self, key: &Key, depth: u16) -> NodeOwner;
}

/// Nothing is beside the keys, and no node is kept.
#[derive(Clone, Copy, Debug)]
pub struct EmptyPath;

impl Path for EmptyPath {
    fn bottom(&self) -> u16 {
        0
    }

    fn pass_sibling(&mut self, _: &Key, _: u16) -> (&[Node; 2], NodeOwner) {
        (&NOTHING, NodeOwner::Nobody)
    }

    fn pass_fork(&mut self, _: &Key, _: u16) -> NodeOwner {
        NodeOwner::Nobody
    }
}

/// The levels of a treelet below its prefix, with the nodes that are known.
#[derive(Clone, Copy, Debug)]
pub struct TreeletPath<'a> {
    floor: u16,
    columns: Option<Columns>,
    keeps_nodes: bool,
    entered: u64,
    positions: u64,
    nodes: &'a [Node],
}

impl<'a> TreeletPath<'a> {
    /// Below a prefix of `floor` bits. The levels part at these columns, or at the bits behind the prefix. Are the nodes
    /// that are computed kept? Of the `nodes`, by [`heap_index`](super::heap_index), these `positions` are known.
    pub fn new(
        floor: u16,
        columns: Option<Columns>,
        keeps_nodes: bool,
        (positions, nodes): (u64, &'a [Node]),
    ) -> Self {
        Self { floor, columns, keeps_nodes, entered: 0, positions, nodes }
    }

    /// The keys below this position go in one by one or by its children: it has an internal node, and so has every
    /// position above it. Its children are items only where they are not known or have an access.
    #[inline]
    pub fn enter(&mut self, position: u8) {
        self.entered |= 1 << position;
    }

    /// Was this position entered?
    #[inline]
    pub fn is_entered(&self, position: u8) -> bool {
        self.entered >> position & 1 == 1
    }

    /// The position on the way to a key whose children lie right below `depth`.
    #[inline]
    fn position_at(&self, key: &Key, depth: u16) -> Option<u8> {
        match &self.columns {
            Some(columns) => columns.position_at(key, depth),
            None => (self.floor..self.floor + u16::from(TREELET_LEVELS))
                .contains(&depth)
                .then(|| index_below(key, self.floor, depth)),
        }
    }

    fn owner(&self, parent: u8, fresh: u8) -> NodeOwner {
        if self.keeps_nodes { NodeOwner::Treelet { parent, fresh } } else { NodeOwner::Nobody }
    }
}

impl Path for TreeletPath<'_> {
    #[inline]
    fn bottom(&self) -> u16 {
        match &self.columns {
            Some(columns) => columns.level_end(TREELET_LEVELS),
            None if self.keeps_nodes || self.entered != 0 => self.floor + u16::from(TREELET_LEVELS),
            None => self.floor,
        }
    }

    #[inline]
    fn pass_sibling(&mut self, key: &Key, depth: u16) -> (&[Node; 2], NodeOwner) {
        let Some(parent) = self.position_at(key, depth) else {
            return (&NOTHING, NodeOwner::Nobody);
        };
        let (left, right) = (2 * parent + 1, u8::from(bit(key, depth)));
        if self.is_entered(parent)
            && self.positions >> (left + 1 - right) & 1 == 1
            && let Some(pair) = self.nodes[usize::from(left)..].first_chunk()
        {
            return (pair, self.owner(parent, 1 << right));
        }
        (&NOTHING, self.owner(parent, 0b11))
    }

    #[inline]
    fn pass_fork(&mut self, key: &Key, depth: u16) -> NodeOwner {
        self.position_at(key, depth).map_or(NodeOwner::Nobody, |parent| self.owner(parent, 0b11))
    }
}

/// The lines of a tiling, above its children.
#[derive(Clone, Copy, Debug)]
pub struct TilingPath<'a> {
    tiling: &'a Tiling,
    /// The boundary above.
    above: Option<usize>,
}

impl<'a> TilingPath<'a> {
    /// The way up from the children of a tiling.
    pub fn new(tiling: &'a Tiling) -> Self {
        Self { tiling, above: None }
    }

    /// The way begins at this child; gives the fork with the one that comes next.
    pub(super) fn start_at(&mut self, child: usize, next: Option<usize>) -> Option<u16> {
        self.above = self.tiling.boundary_above(child);
        next.and_then(|next| (child..next).map(|at| self.tiling.shared_bits(at)).min())
    }

    /// Goes up to the boundary above.
    #[inline]
    fn step(&mut self, depth: u16) -> usize {
        let at = self.above.expect("the floor is above the last boundary");
        debug_assert_eq!(self.tiling.shared_bits(at), depth, "the prefixes tile");
        self.above = self.tiling.parent(at);
        at
    }
}

impl Path for TilingPath<'_> {
    #[inline]
    fn bottom(&self) -> u16 {
        256
    }

    #[inline]
    fn pass_sibling(&mut self, _: &Key, depth: u16) -> (&[Node; 2], NodeOwner) {
        let at = self.step(depth);
        (self.tiling.line(at), NodeOwner::Line(index32(at)))
    }

    #[inline]
    fn pass_fork(&mut self, _: &Key, depth: u16) -> NodeOwner {
        NodeOwner::Line(index32(self.step(depth)))
    }
}

/// The siblings of a multiproof, in post-order, beside the way up from its terminals: so a [`Folder`](super::Folder)
/// computes the node that a proof leads to, all hashes of one height of many proofs as one batch.
#[derive(Clone, Copy, Debug)]
pub struct SiblingPath<'a> {
    pub(super) rest: &'a [Node],
    pub(super) is_short: bool,
    /// The last one, on both sides.
    pair: [Node; 2],
}

impl<'a> SiblingPath<'a> {
    /// These siblings.
    pub fn new(siblings: &'a [Node]) -> Self {
        Self { rest: siblings, is_short: false, pair: NOTHING }
    }
}

impl Path for SiblingPath<'_> {
    fn bottom(&self) -> u16 {
        256
    }

    #[inline]
    fn pass_sibling(&mut self, _: &Key, _: u16) -> (&[Node; 2], NodeOwner) {
        let Some((next, rest)) = self.rest.split_first() else {
            self.is_short = true;
            return (&NOTHING, NodeOwner::Nobody);
        };
        self.rest = rest;
        self.pair = [*next; 2];
        (&self.pair, NodeOwner::Nobody)
    }

    fn pass_fork(&mut self, _: &Key, _: u16) -> NodeOwner {
        NodeOwner::Nobody
    }
}
