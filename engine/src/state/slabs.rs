//! The nodes that commits replaced, commit by commit, as they were recorded.
//!
//! A commit's nodes stay together: to put it in is one copy, and to drop it frees one allocation. Who looks for nodes of one older state looks
//! into the few lists behind it. Used by [`super::node_versions`] alone, whose [`super::steps`] say where a prefix has its nodes.
//! Lists are numbered as they come, whatever their commits' numbers are: 32 bits tell those apart that are there at the same time.

use std::collections::VecDeque;

use pleach_core::Node;

/// Two nodes in a line of memory: one that is looked for alone is in one line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([Node; 2]);

/// The nodes of a commit.
struct Slab {
    commit: u64,
    lines: Box<[Line]>,
}

/// Lists of nodes by commit, ascending.
#[derive(Default)]
pub(super) struct Slabs {
    /// The number of the first list.
    first: u32,
    lists: VecDeque<Slab>,
}

impl Slab {
    fn new(commit: u64, nodes: &[Node]) -> Self {
        let line = |two: &[Node]| Line([two[0], two.get(1).copied().unwrap_or_default()]);
        Self { commit, lines: nodes.chunks(2).map(line).collect() }
    }

    /// Bytes with what the allocator adds.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.lines) + 16
    }
}

impl Slabs {
    /// Adds a commit's nodes, and gives the list's number and its bytes; `None` when the commit is there.
    pub(super) fn push(&mut self, commit: u64, nodes: &[Node]) -> Option<(u32, usize)> {
        let is_next = self.lists.back().is_none_or(|last| last.commit < commit);
        debug_assert!(is_next, "commits are put in in their order, each once");
        if !is_next {
            return None;
        }
        let count =
            u32::try_from(self.lists.len()).expect("fewer than 2^32 lists, of 64 bytes or more");
        let slab = Slab::new(commit, nodes);
        let bytes = slab.bytes();
        self.lists.push_back(slab);
        Some((self.first.wrapping_add(count), bytes))
    }

    /// How many lists are before one with this number.
    #[inline]
    pub(super) fn before(&self, list: u32) -> u32 {
        list.wrapping_sub(self.first)
    }

    /// How many lists are of commits through this one.
    pub(super) fn through(&self, commit: u64) -> u32 {
        let count = self.lists.partition_point(|one| one.commit <= commit);
        u32::try_from(count).expect("fewer than 2^32 lists, of 64 bytes or more")
    }

    /// The commit of a list.
    pub(super) fn commit(&self, list: u32) -> Option<u64> {
        Some(self.lists.get(self.before(list) as usize)?.commit)
    }

    /// A node of a list.
    #[inline]
    pub(super) fn node(&self, list: u32, at: usize) -> Option<&Node> {
        let slab = self.lists.get(self.before(list) as usize)?;
        slab.lines.get(at / 2).map(|line| &line.0[at % 2])
    }

    /// The same, to be written.
    pub(super) fn node_mut(&mut self, list: u32, at: usize) -> Option<&mut Node> {
        let list = self.before(list) as usize;
        let line = self.lists.get_mut(list)?.lines.get_mut(at / 2)?;
        Some(&mut line.0[at % 2])
    }

    /// Drops those of the commits through `floor`.
    pub(super) fn drop_through(&mut self, floor: u64) {
        let gone = self.through(floor);
        self.lists.drain(..gone as usize);
        self.first = self.first.wrapping_add(gone);
    }

    /// Bytes that all of them take.
    pub(super) fn bytes(&self) -> usize {
        self.lists.iter().map(Slab::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_their_list_whatever_was_dropped() {
        let numbered = |number: u64| Node::new([number.to_le_bytes()[0]; 32]);
        let mut slabs = Slabs { first: u32::MAX - 2, ..Slabs::default() };
        let commits = [3_u64, 4, 5, 9, 10, 40];
        let mut lists = Vec::new();
        for commit in commits {
            let nodes = [commit, commit + 100, commit + 200].map(numbered);
            lists.extend(slabs.push(commit, &nodes));
        }
        let bytes = slabs.bytes();
        assert_eq!(lists.iter().map(|one| one.1).sum::<usize>(), bytes);
        for floor in [0, 4, 9, 11] {
            slabs.drop_through(floor);
            for (commit, (list, _)) in commits.into_iter().zip(&lists) {
                let is_there = commit > floor;
                for (at, number) in [commit, commit + 100, commit + 200].into_iter().enumerate() {
                    let expected = is_there.then(|| numbered(number));
                    let node = slabs.node(*list, at);
                    assert_eq!(node.copied(), expected, "{commit} over {floor}");
                    let in_line = node.map_or(0, |node| std::ptr::from_ref(node).addr() % 64);
                    assert!(matches!(in_line, 0 | 32), "each in one line of memory");
                }
                assert_eq!(slabs.commit(*list), is_there.then_some(commit));
                assert!(!is_there || slabs.before(*list) == slabs.through(commit - 1));
            }
        }
        assert_eq!(slabs.bytes(), bytes / 6);
    }
}
