//! The nodes of a region's children, and the lines above them.
//!
//! The nodes of the children are state: each commit changes them, and a checkpoint image has them. The *lines* above them
//! follow: for each boundary between neighbours the message that is hashed. A region keeps its lines while there is room
//! ([`LineBudget`]), since they save a fold some 60 hashes; otherwise a fold computes them.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pleach_core::tree::{Tiling, boundary_above};
use pleach_core::{Hasher, Node, TERMINATOR, cpu_prefetch};

use super::RegionState;
use crate::children::ChildTable;

/// Lines that a region keeps.
#[derive(Debug)]
pub(super) struct KeptLines {
    lines: Tiling,
    room: LineRoom,
}

/// Bytes that the lines of all regions of a database may take.
#[derive(Debug, Default)]
pub struct LineBudget {
    limit: AtomicU64,
    used: AtomicU64,
}

/// A region's part of a [`LineBudget`], given back when it is dropped.
#[derive(Debug)]
pub struct LineRoom {
    bytes: u64,
    budget: Arc<LineBudget>,
}

impl LineBudget {
    /// Sets the bytes that lines may take. Where they take more, a region drops its own with its next commit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of the lines that are kept.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes room for the lines of a region, if there is as much.
    pub fn take(self: &Arc<Self>, children: usize) -> Option<LineRoom> {
        let bytes = Tiling::bytes_of(children) as u64;
        let limit = self.limit.load(Ordering::Relaxed);
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(LineRoom { bytes, budget: Arc::clone(self) })
    }
}

impl LineRoom {
    /// True when lines take more than they may.
    fn is_wanted_back(&self) -> bool {
        self.budget.used() > self.budget.limit.load(Ordering::Relaxed)
    }
}

impl Drop for LineRoom {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The node over children with these nodes; a terminator without nodes.
pub(crate) fn own_node(hasher: Hasher, children: &ChildTable, nodes: &[Node]) -> Node {
    if nodes.is_empty() { TERMINATOR } else { *lines_over(hasher, children, nodes).own_node() }
}

/// The lines over children with these nodes.
fn lines_over(hasher: Hasher, children: &ChildTable, nodes: &[Node]) -> Tiling {
    let mut lines = Tiling::default();
    lines.rebuild(hasher, children.shared_bits(), nodes);
    lines
}

impl RegionState {
    /// True for a plain trie's region, which has no nodes.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node of a child; a terminator in a plain trie.
    #[inline]
    pub fn node(&self, child: usize) -> &Node {
        if self.is_plain() { &TERMINATOR } else { &self.nodes[child] }
    }

    /// The lines, if they are kept.
    #[inline]
    pub fn lines(&self) -> Option<&Tiling> {
        self.lines.as_ref().map(|kept| &kept.lines)
    }

    /// The lines, computed where they are not kept.
    ///
    /// # Panics
    /// When it is a plain trie's.
    pub fn computed_lines(&self, hasher: Hasher) -> Cow<'_, Tiling> {
        match &self.lines {
            Some(kept) => Cow::Borrowed(&kept.lines),
            None => Cow::Owned(lines_over(hasher, &self.children, &self.nodes)),
        }
    }

    /// Keeps the lines, which were computed from the nodes as they are.
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn keep_lines(&mut self, lines: Tiling, room: LineRoom) {
        assert_eq!(self.nodes.len(), lines.len(), "one node a child");
        self.lines = Some(KeptLines { lines, room });
    }

    /// Computes the region's own node, from those of the children.
    pub fn recompute_own_node(&mut self, hasher: Hasher) {
        self.lines = None;
        self.own_node = own_node(hasher, &self.children, &self.nodes);
    }

    /// Replaces the nodes of the children. The region's own node stays as it was until
    /// [`RegionState::recompute_own_node`].
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn replace_nodes(&mut self, nodes: Vec<Node>) {
        assert_eq!(self.children.len(), nodes.len(), "one node a child");
        (self.nodes, self.lines) = (nodes.into(), None);
    }

    /// Sets the node of a child. The region's own node stays as it was until [`RegionState::recompute_own_node`].
    pub(super) fn set_node(&mut self, child: usize, node: &Node) {
        if !self.is_plain() && self.nodes[child] != *node {
            self.nodes[child] = *node;
            self.lines = None;
        }
    }

    /// Sets lines, which have the nodes of the changed children, and the region's own node.
    ///
    /// # Panics
    /// When it is a plain trie's.
    pub(super) fn set_lines(&mut self, changed: &[(u32, [Node; 2])], own: &Node) {
        assert!(!self.is_plain(), "a plain trie's region has no nodes");
        let (boundaries, shared) = (self.nodes.len() - 1, |at| self.children.shared_bits_at(at));
        for (boundary, line) in changed {
            let boundary = *boundary as usize;
            // The halves that are children themselves.
            for (child, node) in (boundary..).zip(line) {
                if boundary_above(child, boundaries, shared) == Some(boundary) {
                    self.nodes[child] = *node;
                }
            }
        }
        if let [only] = &mut *self.nodes {
            *only = *own;
        }
        self.lines.take_if(|kept| kept.room.is_wanted_back());
        if let Some(KeptLines { lines, .. }) = &mut self.lines {
            for (boundary, line) in changed {
                lines.set_line(*boundary as usize, line);
            }
            lines.set_own_node(own);
        }
        self.own_node = *own;
    }

    /// Prefetches the memory that the fold of this region reads on the path of a child, which may no longer exist.
    pub fn cpu_prefetch_nodes(&self, child: usize) {
        match &self.lines {
            Some(kept) => kept.lines.cpu_prefetch(child),
            None => cpu_prefetch(&self.nodes),
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::Prefix;

    use super::*;
    use crate::children::ChildRef;
    use crate::region::{NewNodes, Region, RegionCommit};
    use crate::stored::Stored;

    /// A region over prefixes of mixed depth, with a node for each.
    fn region(depths: usize) -> Region {
        let mut prefixes = vec![Prefix::ROOT];
        for step in 0..depths {
            let at = (step * 7 + 3) % prefixes.len();
            let halves = [false, true].map(|right| prefixes[at].child(right));
            prefixes.splice(at..=at, halves);
        }
        let children: Vec<ChildRef> = prefixes
            .iter()
            .map(|prefix| ChildRef { prefix: *prefix, page: None, tag: 0 })
            .collect();
        let nodes = (0..children.len()).map(node).collect();
        Region::new(Hasher::BLAKE3, 0, ChildTable::new(Prefix::ROOT, &children), nodes, 0)
    }

    fn node(number: usize) -> Node {
        let mut bytes = [0x80; 32];
        bytes[1..9].copy_from_slice(&number.to_le_bytes());
        Node::new(bytes)
    }

    #[test]
    fn a_commit_changes_the_same_nodes_whether_lines_are_kept_or_not() {
        for depths in [0, 1, 2, 40, 92] {
            let budget = Arc::new(LineBudget::default());
            budget.set_limit(1 << 20);
            let regions = [region(depths), region(depths)];
            {
                let mut kept = regions[0].write();
                let lines = kept.computed_lines(Hasher::BLAKE3).into_owned();
                kept.keep_lines(lines, budget.take(depths + 1).expect("room"));
            }
            let children = depths + 1;
            for commit in 1..20 {
                let changed: Vec<(usize, Node)> = (0..children)
                    .filter(|child| (child * 31 + commit) % 5 == 0 || children == 1)
                    .map(|child| (child, node(1000 * commit + child)))
                    .collect();
                let (lines, own) = {
                    let state = regions[0].read();
                    let lines = state.lines().expect("kept");
                    lines.preview_update(Hasher::BLAKE3, changed.iter().copied())
                };
                for region in &regions {
                    let mut state = region.write();
                    let put = ([7; 32], Stored::Absent);
                    let mut applied = RegionCommit {
                        commit: commit as u64,
                        version: 1,
                        log_position: commit as u64,
                        changes: &mut std::iter::once(put),
                        nodes: NewNodes::Lines { lines: &lines, own },
                    };
                    state.apply(&mut applied, &mut Vec::new(), |_, _| {});
                    assert_eq!(state.own_node(), &own);
                    assert!(changed.iter().all(|(child, node)| state.node(*child) == node));
                }
                let [kept, alone] = [0, 1].map(|at: usize| regions[at].read());
                assert_eq!(kept.nodes, alone.nodes);
                let lines = |state: &RegionState| {
                    let lines = state.computed_lines(Hasher::BLAKE3);
                    let all: Vec<_> = (0..depths).map(|at| *lines.line(at)).collect();
                    (all, *lines.own_node())
                };
                assert_eq!(lines(&kept), lines(&alone));
            }
        }
    }

    #[test]
    fn room_for_lines_is_given_back_with_them() {
        let budget = Arc::new(LineBudget::default());
        budget.set_limit(Tiling::bytes_of(100) as u64);
        let region = region(59);
        let room = budget.take(60).expect("room");
        assert!(budget.take(60).is_none(), "there is room for one");
        let lines = lines_of(&region);
        region.write().keep_lines(lines, room);
        assert_eq!(budget.used(), Tiling::bytes_of(60) as u64);
        let nodes = region.read().nodes.to_vec();
        region.write().replace_nodes(nodes);
        assert_eq!(budget.used(), 0);
        // Where the room is wanted back, the next commit gives it.
        let (room, lines) = (budget.take(60).expect("room"), lines_of(&region));
        region.write().keep_lines(lines, room);
        budget.set_limit(0);
        let own = *region.read().own_node();
        region.write().set_lines(&[], &own);
        assert_eq!((budget.used(), region.read().lines().is_none()), (0, true));
    }

    fn lines_of(region: &Region) -> Tiling {
        region.read().computed_lines(Hasher::BLAKE3).into_owned()
    }
}
