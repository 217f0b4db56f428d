//! The nodes that commits replaced, commit by commit, as they were recorded.
//!
//! A commit's nodes stay together: to put it in is one copy, and to drop it frees one allocation. Who looks for nodes of one older state looks into the few lists behind it.
//! Used by [`super::node_versions`] alone, whose [`super::steps`] say where a prefix has its nodes.

use std::collections::VecDeque;
use std::sync::Arc;

use pleach_core::Node;

/// Lists of nodes by commit, ascending.
#[derive(Default)]
pub(super) struct Slabs(VecDeque<(u64, Arc<[Node]>)>);

/// Bytes of a list beside its nodes: its place, two counts, and what the allocator adds.
const LIST: usize = size_of::<(u64, Arc<[Node]>)>() + 16 + 16;

impl Slabs {
    /// Adds a commit's nodes; false when the commit is there.
    pub(super) fn push(&mut self, number: u64, nodes: Arc<[Node]>) -> bool {
        let is_next = self.0.back().is_none_or(|(last, _)| *last < number);
        debug_assert!(is_next, "commits are put in in their order, each once");
        if is_next {
            self.0.push_back((number, nodes));
        }
        is_next
    }

    /// The nodes of a commit from `start` on.
    #[inline]
    pub(super) fn from(&self, number: u64, start: u32) -> Option<&[Node]> {
        let first = self.0.front()?.0;
        // Mostly each commit has some.
        let guess = usize::try_from(number.checked_sub(first)?).ok();
        let at = guess.filter(|at| self.0.get(*at).is_some_and(|one| one.0 == number));
        let at = at.or_else(|| self.0.binary_search_by_key(&number, |one| one.0).ok())?;
        self.0[at].1.get(start as usize..)
    }

    /// Drops those of the commits through `floor`.
    pub(super) fn drop_through(&mut self, floor: u64) {
        let gone = self.0.partition_point(|one| one.0 <= floor);
        self.0.drain(..gone);
    }

    /// Bytes of a commit's nodes.
    pub(super) fn bytes_of(nodes: &[Node]) -> usize {
        LIST + size_of_val(nodes)
    }

    /// Bytes that all of them take.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(_, nodes)| Self::bytes_of(nodes)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_their_commit_whichever_have_none() {
        let node = |number: u64| Node::new([number.to_le_bytes()[0]; 32]);
        let mut slabs = Slabs::default();
        let numbers = [3_u64, 4, 5, 9, 10, 40];
        for number in numbers {
            let nodes: Arc<[Node]> = Arc::new([node(number), node(number + 100)]);
            assert!(slabs.push(number, nodes));
        }
        let bytes = slabs.bytes();
        for floor in [0, 4, 9, 11] {
            slabs.drop_through(floor);
            for number in 0..50 {
                let is_there = numbers.contains(&number) && number > floor;
                let found = slabs.from(number, 1).map(|nodes| nodes[0]);
                assert_eq!(found, is_there.then(|| node(number + 100)), "{number} over {floor}");
            }
        }
        assert_eq!(slabs.bytes(), bytes / 6);
    }
}
