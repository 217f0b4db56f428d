//! Prefixes that tile a prefix, such as the children of a region: a line for each boundary between neighbours.
//!
//! Since they tile, the halves of each boundary lie exactly one level below it, and are leaf nodes or terminators where a
//! child or several have one key or none.
//!
//! Invariant: each half of a line is the node of the prefix there.

use alloc::vec::Vec;

use super::Line;
use super::union::{index32, link};
use crate::hasher::Hasher;
use crate::node::{Node, combine};
use crate::prefix::{Prefix, common_len};

/// No boundary.
const NONE: u32 = u32::MAX;

/// A boundary between two children.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    shared: u8,
    parent: u32,
}

/// The nodes of neighbouring prefixes and above (the header of this file).
#[derive(Clone, Debug, Default)]
pub struct Tiling {
    boundaries: Vec<Boundary>,
    lines: Vec<Line>,
    /// The node over all.
    own: Node,
}

impl Tiling {
    /// The tiling of these prefixes, in order, with these nodes; all lines are computed.
    pub fn new<H: Hasher>(prefixes: impl Iterator<Item = Prefix>, nodes: &[Node]) -> Self {
        let (mut boundaries, mut last) = (Vec::new(), None);
        for prefix in prefixes {
            if let Some(last) = last.replace(prefix) {
                let shared = common_len(last.first_key(), prefix.first_key());
                let shared = u8::try_from(shared).unwrap_or(u8::MAX);
                boundaries.push(Boundary { shared, parent: NONE });
            }
        }
        let cells = core::cell::Cell::from_mut(boundaries.as_mut_slice()).as_slice_of_cells();
        link(
            cells.len(),
            |at| cells[at].get().shared.into(),
            |at, parent| cells[at].set(Boundary { parent: index32(parent), ..cells[at].get() }),
        );
        let lines = alloc::vec![Line::default(); boundaries.len()];
        let mut this = Self { boundaries, lines, own: Node::default() };
        this.set_nodes::<H>(nodes);
        this
    }

    /// Computes all lines from the nodes of the children, in order.
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn set_nodes<H: Hasher>(&mut self, nodes: &[Node]) {
        assert_eq!(nodes.len(), self.len(), "one node a child");
        for (child, node) in nodes.iter().enumerate() {
            self.put(self.above(child), child, node);
        }
        // The deepest first: then both halves of each are there.
        let mut order: Vec<usize> = (0..self.boundaries.len()).collect();
        order.sort_unstable_by_key(|at| core::cmp::Reverse(self.boundaries[*at].shared));
        for at in order {
            let [left, right] = self.lines[at].0;
            self.put(self.parent(at), at, &combine::<H>(&left, &right));
        }
    }

    /// A child or boundary has this node, below boundary `above`.
    fn put(&mut self, above: Option<usize>, at: usize, node: &Node) {
        match above {
            Some(above) => self.lines[above].0[usize::from(above < at)] = *node,
            None => self.own = *node,
        }
    }

    /// Number of children.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.boundaries.len() + 1
    }

    /// The node over all.
    #[inline]
    pub fn own(&self) -> &Node {
        &self.own
    }

    /// The node over all is this.
    pub fn set_own(&mut self, node: &Node) {
        self.own = *node;
    }

    /// The node of a child.
    #[inline]
    pub fn node(&self, child: usize) -> &Node {
        match self.above(child) {
            Some(above) => &self.lines[above].0[usize::from(above < child)],
            None => &self.own,
        }
    }

    /// The line of a boundary.
    #[inline]
    pub fn line(&self, boundary: usize) -> &[Node; 2] {
        &self.lines[boundary].0
    }

    /// A boundary has this line.
    #[inline]
    pub fn set_line(&mut self, boundary: usize, pair: &[Node; 2]) {
        self.lines[boundary].0 = *pair;
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.boundaries.capacity() * size_of::<Boundary>()
            + self.lines.capacity() * size_of::<Line>()
    }

    #[inline]
    pub(super) fn shared(&self, boundary: usize) -> u16 {
        self.boundaries[boundary].shared.into()
    }

    #[inline]
    pub(super) fn parent(&self, boundary: usize) -> Option<usize> {
        let parent = self.boundaries[boundary].parent;
        (parent != NONE).then_some(parent as usize)
    }

    #[inline]
    pub(super) fn above(&self, child: usize) -> Option<usize> {
        let count = self.boundaries.len();
        match child {
            0 => (count > 0).then_some(0),
            _ if child < count && self.shared(child) > self.shared(child - 1) => Some(child),
            _ => Some(child - 1),
        }
    }
}
