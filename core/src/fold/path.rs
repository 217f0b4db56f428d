//! The path up from a key: the nodes beside it, and the structure that keeps the new ones.

use super::positions::index_below;
use super::{Columns, TREELET_LEVELS};
use crate::node::{Key, Node, TERMINATOR};
use crate::prefix::bit;
use crate::tree::{Tiling, index32};

/// A terminator on either side.
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
        /// The [`heap_index`](super::heap_index) of the position whose children the nodes are.
        parent: u8,
        /// Children that the treelet did not know: bit 0 the left one, bit 1 the right one.
        fresh: u8,
    },
}

/// The nodes beside the path up from the keys of a fold.
pub trait Path {
    /// The depth from which on downwards nothing is beside the path, and no node is kept.
    fn bottom(&self) -> u16;
    /// Climbs to `depth` where the other side has no item: returns the two nodes right below, of which the one on the
    /// path does not count, and their owner.
    fn pass_sibling(&mut self, key: &Key, depth: u16) -> (&[Node; 2], NodeOwner);
    /// Climbs to `depth` where both sides have items: returns the owner of the pair.
    fn pass_fork(&mut self, key: &Key, depth: u16) -> NodeOwner;
}

/// A path with nothing beside the keys, which keeps no node.
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

/// The levels of a treelet below its prefix, with its known nodes.
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
    /// A path below a prefix of `floor` bits. The levels divide at these columns, or at the bits behind the prefix.
    /// `keeps_nodes` is true when computed nodes are kept. `positions` is the mask of the known `nodes`, both by
    /// [`heap_index`](super::heap_index).
    pub fn new(
        floor: u16,
        columns: Option<Columns>,
        keeps_nodes: bool,
        positions: u64,
        nodes: &'a [Node],
    ) -> Self {
        Self { floor, columns, keeps_nodes, entered: 0, positions, nodes }
    }

    /// Enters a position: the keys below it are added one by one or by its children. It and every position above have
    /// internal nodes. Its children are items only where they are unknown or have an access.
    #[inline]
    pub fn enter(&mut self, position: u8) {
        self.entered |= 1 << position;
    }

    /// True when this position was entered.
    #[inline]
    pub fn is_entered(&self, position: u8) -> bool {
        self.entered >> position & 1 == 1
    }

    /// The position on the path of a key whose children are right below `depth`.
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
    /// The path up from the children of a tiling.
    pub fn new(tiling: &'a Tiling) -> Self {
        Self { tiling, above: None }
    }

    /// Starts at this child; returns the fork with the next one.
    pub(super) fn start_at(&mut self, child: usize, next: Option<usize>) -> Option<u16> {
        self.above = self.tiling.boundary_above(child);
        next.and_then(|next| (child..next).map(|at| self.tiling.shared_bits(at)).min())
    }

    /// Climbs to the boundary above.
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

/// The siblings of a multiproof, in post-order, beside the path up from its terminals: a [`Folder`](super::Folder)
/// computes the node that a proof leads to, all hashes of one height of many proofs as one batch.
#[derive(Clone, Copy, Debug)]
pub struct SiblingPath<'a> {
    pub(super) rest: &'a [Node],
    pub(super) is_short: bool,
    /// The last sibling, on both sides.
    pair: [Node; 2],
}

impl<'a> SiblingPath<'a> {
    /// A path along these siblings.
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
