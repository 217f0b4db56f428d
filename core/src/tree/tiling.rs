//! Prefixes that tile a prefix, such as the children of a region: a line for each boundary between neighbours.
//!
//! Since they tile, the halves of each boundary lie exactly one level below it, and are leaf nodes or terminators where
//! a child or several have one key or none.
//!
//! Invariant: each half of a line is the node of the prefix there.

use alloc::vec::Vec;

use super::Line;
use crate::cpu_prefetch::cpu_prefetch;
use crate::hasher::Hasher;
use crate::node::{Combination, Node, combine_kind, node_preimage, tag_internal};
use crate::prefix::{Prefix, common_len};

/// No boundary.
const NONE: u32 = u32::MAX;

/// A boundary between two children.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    shared: u8,
    parent: u32,
}

/// The nodes of neighbouring prefixes and above; see the module.
#[derive(Clone, Debug)]
pub struct Tiling {
    boundaries: Vec<Boundary>,
    lines: Vec<Line>,
    /// The node of the whole prefix.
    own: Node,
}

impl Tiling {
    /// The tiling of these prefixes, in order, with these nodes; all lines are computed.
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn new(hasher: Hasher, prefixes: impl Iterator<Item = Prefix>, nodes: &[Node]) -> Self {
        let (mut boundaries, mut last) = (Vec::new(), None);
        for prefix in prefixes {
            if let Some(last) = last.replace(prefix) {
                let shared = common_len(last.first_key(), prefix.first_key());
                let shared = u8::try_from(shared).unwrap_or(u8::MAX);
                boundaries.push(Boundary { shared, parent: NONE });
            }
        }
        link(&mut boundaries);
        let lines = alloc::vec![Line::default(); boundaries.len()];
        let mut this = Self { boundaries, lines, own: Node::default() };
        assert_eq!(nodes.len(), this.len(), "one node a child");
        for (child, node) in nodes.iter().enumerate() {
            this.set_node(child, node);
        }
        this.recompute(hasher);
        this
    }

    /// The tiling of a single child with this node.
    pub fn single(node: &Node) -> Self {
        Self { boundaries: Vec::new(), lines: Vec::new(), own: *node }
    }

    /// Sets the node of a child. The lines above it, and the node of the whole prefix, stay as they were until
    /// [`Self::recompute`].
    pub fn set_node(&mut self, child: usize, node: &Node) {
        self.put(self.boundary_above(child), child, node);
    }

    /// Computes all lines from the nodes of the children.
    pub fn recompute(&mut self, hasher: Hasher) {
        self.recompute_lines(hasher, (0..self.boundaries.len()).collect());
    }

    /// Sets the nodes of these children, in order, and computes the lines on their paths.
    pub fn update(&mut self, hasher: Hasher, changed: impl Iterator<Item = (usize, Node)>) {
        let mut lines = Vec::new();
        for (child, node) in changed {
            self.set_node(child, &node);
            lines.extend(self.path(child));
        }
        lines.sort_unstable();
        lines.dedup();
        self.recompute_lines(hasher, lines);
    }

    /// The result of [`Self::update`] without the update: the lines on the paths of these children, by boundary, and
    /// the node of the whole prefix.
    pub fn preview_update(
        &self,
        hasher: Hasher,
        changed: impl Iterator<Item = (usize, Node)> + Clone,
    ) -> (Vec<(u32, [Node; 2])>, Node) {
        let mut after = self.clone();
        after.update(hasher, changed.clone());
        let mut lines: Vec<usize> = changed.flat_map(|(child, _)| self.path(child)).collect();
        lines.sort_unstable();
        lines.dedup();
        (lines.into_iter().map(|at| (index32(at), *after.line(at))).collect(), after.own)
    }

    /// Computes the lines of these boundaries, to which all above them belong.
    fn recompute_lines(&mut self, hasher: Hasher, mut order: Vec<usize>) {
        // The deepest first: then both halves of each are known. Those of one depth are hashed together.
        order.sort_unstable_by_key(|at| core::cmp::Reverse(self.boundaries[*at].shared));
        let (mut hashed, mut blocks, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = order.as_slice();
        while let Some(first) = rest.first() {
            let shared = self.shared_bits(*first);
            let (level, above) =
                rest.split_at(rest.partition_point(|at| self.shared_bits(*at) == shared));
            rest = above;
            hashed.clear();
            blocks.clear();
            for at in level {
                let [left, right] = self.lines[*at].0;
                match combine_kind(&left, &right) {
                    Combination::Known(node) => self.put(self.parent(*at), *at, &node),
                    Combination::Hash => {
                        blocks.push(node_preimage(&left, &right));
                        hashed.push(*at);
                    }
                }
            }
            out.resize(blocks.len(), [0; 32]);
            hasher.hash64_many(&blocks, &mut out);
            for (at, hash) in hashed.iter().zip(&out) {
                self.put(self.parent(*at), *at, &tag_internal(*hash));
            }
        }
    }

    /// Sets the node of a child or boundary in the line of boundary `above`.
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

    /// The node of the whole prefix.
    #[inline]
    pub fn own_node(&self) -> &Node {
        &self.own
    }

    /// Sets the node of the whole prefix.
    pub fn set_own_node(&mut self, node: &Node) {
        self.own = *node;
    }

    /// Bytes that each child takes.
    pub const CHILD_BYTES: usize = size_of::<Boundary>() + size_of::<Line>();

    /// The node of a child.
    #[inline]
    pub fn node(&self, child: usize) -> &Node {
        match self.boundary_above(child) {
            Some(above) => &self.lines[above].0[usize::from(above < child)],
            None => &self.own,
        }
    }

    /// The nodes of all children, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        (0..self.len()).map(|child| self.node(child))
    }

    /// Prefetches the lines on the path of a child.
    pub fn cpu_prefetch(&self, child: usize) {
        if child < self.len() {
            for at in self.path(child) {
                cpu_prefetch(core::slice::from_ref(&self.lines[at]));
            }
        }
    }

    /// The line of a boundary.
    #[inline]
    pub fn line(&self, boundary: usize) -> &[Node; 2] {
        &self.lines[boundary].0
    }

    /// Sets the line of a boundary.
    #[inline]
    pub fn set_line(&mut self, boundary: usize, pair: &[Node; 2]) {
        self.lines[boundary].0 = *pair;
    }

    /// Heap bytes.
    pub fn heap_bytes(&self) -> usize {
        self.boundaries.capacity() * size_of::<Boundary>()
            + self.lines.capacity() * size_of::<Line>()
    }

    #[inline]
    pub(crate) fn shared_bits(&self, boundary: usize) -> u16 {
        self.boundaries[boundary].shared.into()
    }

    #[inline]
    pub(crate) fn parent(&self, boundary: usize) -> Option<usize> {
        let parent = self.boundaries[boundary].parent;
        (parent != NONE).then_some(parent as usize)
    }

    /// The boundary directly above a child, of those on its two sides: the one with more shared bits.
    #[inline]
    pub(crate) fn boundary_above(&self, child: usize) -> Option<usize> {
        let boundaries = self.boundaries.len();
        match child {
            0 => (boundaries > 0).then_some(0),
            _ if child < boundaries && self.shared_bits(child) > self.shared_bits(child - 1) => {
                Some(child)
            }
            _ => Some(child - 1),
        }
    }

    /// The boundaries above a child, upwards.
    #[inline]
    fn path(&self, child: usize) -> impl Iterator<Item = usize> {
        core::iter::successors(self.boundary_above(child), |at| self.parent(*at))
    }
}

/// Sets each boundary's parent, by a stack.
fn link(boundaries: &mut [Boundary]) {
    // At most 256 bits can be shared, each by one boundary of the stack.
    let (mut stack, mut len) = ([0usize; 257], 0);
    for at in 0..boundaries.len() {
        let mut last: Option<usize> = None;
        while len > 0 && boundaries[stack[len - 1]].shared > boundaries[at].shared {
            len -= 1;
            let top = stack[len];
            if let Some(last) = last {
                boundaries[last].parent = index32(top);
            }
            last = Some(top);
        }
        if let Some(last) = last {
            boundaries[last].parent = index32(at);
        }
        stack[len] = at;
        len += 1;
    }
    for at in (1..len).rev() {
        boundaries[stack[at]].parent = index32(stack[at - 1]);
    }
}

/// Entries are numbered in 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "2^32 entries would need 400 GB")]
#[inline]
pub(crate) fn index32(index: usize) -> u32 {
    index as u32
}
