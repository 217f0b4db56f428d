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
#[derive(Clone, Debug, Default)]
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
        let mut last = None;
        let shared = prefixes.filter_map(|prefix| {
            let before: Prefix = last.replace(prefix)?;
            Some(common_len(before.first_key(), prefix.first_key()))
        });
        let mut this = Self::default();
        this.rebuild(hasher, shared, nodes);
        this
    }

    /// Replaces the tiling, whose memory is reused: `shared` has the number of bits that the children on the two sides
    /// of each boundary share, `nodes` the children's nodes.
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn rebuild(&mut self, hasher: Hasher, shared: impl Iterator<Item = u16>, nodes: &[Node]) {
        self.boundaries.clear();
        self.boundaries.extend(shared.map(|shared| Boundary {
            shared: u8::try_from(shared).unwrap_or(u8::MAX),
            parent: NONE,
        }));
        assert_eq!(nodes.len(), self.len(), "one node a child");
        link(&mut self.boundaries);
        self.lines.clear();
        self.lines.resize(self.boundaries.len(), Line::default());
        for (child, node) in nodes.iter().enumerate() {
            self.set_node(child, node);
        }
        self.recompute(hasher);
    }

    /// Sets the node of a child. The lines above it, and the node of the whole prefix, stay as they were until
    /// [`Self::recompute`].
    pub fn set_node(&mut self, child: usize, node: &Node) {
        self.put(self.boundary_above(child), child, node);
    }

    /// Computes all lines from the nodes of the children.
    pub fn recompute(&mut self, hasher: Hasher) {
        // In order of depth: how many boundaries are deeper, then the place of each.
        let mut place = [0u32; 257];
        for boundary in &self.boundaries {
            place[usize::from(boundary.shared)] += 1;
        }
        let mut deeper = 0;
        for count in place.iter_mut().rev() {
            deeper += core::mem::replace(count, deeper);
        }
        let mut order = alloc::vec![0; self.boundaries.len()];
        for (at, boundary) in self.boundaries.iter().enumerate() {
            let place = &mut place[usize::from(boundary.shared)];
            order[*place as usize] = at;
            *place += 1;
        }
        self.recompute_lines(hasher, &order);
    }

    /// Sets the nodes of these children, in order, and computes the lines on their paths.
    pub fn update(&mut self, hasher: Hasher, changed: impl Iterator<Item = (usize, Node)>) {
        let mut lines = Vec::new();
        for (child, node) in changed {
            self.set_node(child, &node);
            lines.extend(self.path(child));
        }
        // The deepest first.
        lines.sort_unstable_by_key(|at| (core::cmp::Reverse(self.boundaries[*at].shared), *at));
        lines.dedup();
        self.recompute_lines(hasher, &lines);
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

    /// Computes the lines of these boundaries, the deepest first, to which all above them belong.
    fn recompute_lines(&mut self, hasher: Hasher, mut rest: &[usize]) {
        // Both halves of each are known when it comes. Those of one depth are hashed together.
        let (mut hashed, mut blocks, mut out) = (Vec::new(), Vec::new(), Vec::new());
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

    /// The node of a child.
    #[inline]
    pub fn node(&self, child: usize) -> &Node {
        match self.boundary_above(child) {
            Some(above) => &self.lines[above].0[usize::from(above < child)],
            None => &self.own,
        }
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

    /// Bytes of the lines over this many children.
    pub const fn bytes_of(children: usize) -> usize {
        children * (size_of::<Boundary>() + size_of::<Line>())
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

    /// The boundary directly above a child.
    #[inline]
    pub(crate) fn boundary_above(&self, child: usize) -> Option<usize> {
        boundary_above(child, self.boundaries.len(), |at| self.shared_bits(at))
    }

    /// The boundaries above a child, upwards.
    #[inline]
    fn path(&self, child: usize) -> impl Iterator<Item = usize> {
        core::iter::successors(self.boundary_above(child), |at| self.parent(*at))
    }
}

/// The boundary directly above a child, of those on its two sides: the one with more shared bits. `shared` gives those
/// of each of the `boundaries` boundaries.
#[inline]
pub fn boundary_above(
    child: usize,
    boundaries: usize,
    shared: impl Fn(usize) -> u16,
) -> Option<usize> {
    match child {
        0 => (boundaries > 0).then_some(0),
        _ if child < boundaries && shared(child) > shared(child - 1) => Some(child),
        _ => Some(child - 1),
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
