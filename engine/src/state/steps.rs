//! What commits have replaced of one prefix, in their order.
//!
//! A list of steps, one for each commit that changed something below the prefix; the nodes are with those of
//! the commit ([`super::slabs`]). So one search gives the prefix's node as of a commit, and the steps from
//! there on, mostly some forty of them, the nodes inside. Used by [`super::node_versions`] alone.

use std::ops::Range;

use pleach_beatree::older::{OlderSearch, UNKNOWN, ways_to};
use pleach_core::search::lower_bound_near;
use pleach_core::{Node, cpu_prefetch};

use super::replaced::Head;
use super::slabs::Slabs;

/// Where a commit's nodes of a prefix are: there are millions of them.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The number of its list of nodes.
    list: u32,
    /// Where the nodes begin in it.
    start: u32,
    /// Buckets that the commit changed.
    changed: u32,
}

impl Step {
    fn node<'a>(&self, slabs: &'a Slabs, at: usize) -> Option<&'a Node> {
        slabs.node(self.list, self.start as usize + at)
    }
}

/// The steps of a prefix.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The list of the newest one: who asks for a later commit need not look at the steps.
    newest: u32,
    /// That of the oldest one.
    oldest: u32,
    all: Vec<Step>,
}

/// Steps that are asked for at once: eight lines of memory.
const AHEAD: usize = 40;

/// Questions are as of a commit, given by how many lists come before its next one ([`Slabs::through`]).
impl Steps {
    /// Is there a step after these lists?
    pub(super) fn is_after(&self, before: u32, slabs: &Slabs) -> bool {
        !self.all.is_empty() && slabs.before(self.newest) >= before
    }

    /// Where the first step after these lists is expected: commits change a prefix about as often as each other.
    #[inline]
    fn guess(&self, before: u32, slabs: &Slabs) -> usize {
        if !self.is_after(before, slabs) {
            return self.all.len();
        }
        let since = u64::from(before.saturating_sub(slabs.before(self.oldest)));
        let all = u64::from(self.newest.wrapping_sub(self.oldest)).max(1);
        usize::try_from(since * self.all.len() as u64 / all).map_or(0, |at| at.min(self.all.len()))
    }

    /// Prefetches the memory where a search for the first step after these lists begins.
    pub(super) fn cpu_prefetch(&self, before: u32, slabs: &Slabs) {
        let guess = self.guess(before, slabs);
        cpu_prefetch(&self.all[guess.saturating_sub(1)..(guess + 1).min(self.all.len())]);
    }

    /// The same with the steps that follow.
    pub(super) fn cpu_prefetch_after(&self, before: u32, slabs: &Slabs) {
        let guess = self.guess(before, slabs);
        cpu_prefetch(&self.all[guess.saturating_sub(2)..(guess + AHEAD).min(self.all.len())]);
    }

    /// Where the steps after these lists begin.
    fn after(&self, before: u32, slabs: &Slabs) -> usize {
        let less = |at: usize| slabs.before(self.all[at].list) < before;
        lower_bound_near(self.guess(before, slabs), self.all.len(), less)
    }

    /// The node that the first commit after these lists has replaced, and that commit.
    pub(super) fn own<'a>(&self, before: u32, slabs: &'a Slabs) -> Option<(u64, &'a Node)> {
        let step = self.all.get(self.after(before, slabs))?;
        Some((slabs.commit(step.list)?, step.node(slabs, 0)?))
    }

    /// What commits after these lists say of the nodes inside.
    pub(super) fn inside<'a>(&self, before: u32, slabs: &'a Slabs, search: &mut OlderSearch<'a>) {
        for step in &self.all[self.after(before, slabs)..] {
            if search.is_done() {
                return;
            }
            if search.is_news(step.changed) {
                // A reader whose undo is dropped meanwhile is told so.
                search.say(step.changed, |at| step.node(slabs, at));
            }
        }
    }

    /// Keeps nodes that nobody knew, by position, as the commits of these lists found them.
    pub(super) fn learn(&self, lists: Range<u32>, slabs: &mut Slabs, nodes: &[(u8, Node)]) {
        let mut left = nodes.iter().fold(0, |left, (at, _)| left | 1_u64 << at);
        for step in &self.all[self.after(lists.start, slabs)..] {
            if left == 0 || slabs.before(step.list) >= lists.end {
                return;
            }
            let ways = ways_to(step.changed);
            for (at, node) in nodes.iter().filter(|(at, _)| (left & ways) >> at & 1 == 1) {
                let before = (ways & ((1 << at) - 1)).count_ones();
                let place = (step.start + before) as usize;
                if let Some(own) = slabs.node_mut(step.list, place).filter(|own| **own == UNKNOWN) {
                    *own = *node;
                }
            }
            left &= !ways;
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Step>()
    }

    /// Adds what a commit said, whose nodes are in this list.
    pub(super) fn push(&mut self, list: u32, head: &Head) {
        let len = self.all.len();
        if len == 0 {
            self.oldest = list;
        }
        if len == self.all.capacity() {
            // Doubling would leave a quarter of all memory unused.
            self.all.reserve_exact(len / 4 + 1);
        }
        self.newest = list;
        self.all.push(Step { list, start: head.start, changed: head.changed });
    }

    /// Prefetches the memory that the next step is written to.
    pub(super) fn cpu_prefetch_end(&self) {
        cpu_prefetch(&self.all[self.all.len().saturating_sub(1)..]);
    }

    /// Drops the steps of these lists; false when none is left.
    pub(super) fn drop_before(&mut self, before: u32, slabs: &Slabs) -> bool {
        let gone = self.all.partition_point(|step| slabs.before(step.list) < before);
        let Some(first) = self.all.get(gone) else { return false };
        if gone > 0 {
            self.oldest = first.list;
            self.all.drain(..gone);
            self.all.shrink_to(self.all.len() + self.all.len() / 4);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use pleach_beatree::older::buckets_below;
    use pleach_core::Prefix;
    use pleach_core::fold::heap_index;

    use super::super::replaced::ReplacedList;
    use super::*;

    fn low(bits: u64) -> u32 {
        let [a, b, c, d, ..] = bits.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    fn node(number: u64) -> Node {
        let mut bytes = [0x11; 32];
        bytes[1..9].copy_from_slice(&number.to_be_bytes());
        Node::new(bytes)
    }

    /// The slow twin: all commits in a list, told one after the other.
    #[test]
    fn nodes_are_as_the_oldest_later_commit_found_them() {
        let (mut steps, mut slabs) = (Steps::default(), Slabs::default());
        let mut commits: Vec<(u64, u32, Vec<Node>)> = Vec::new();
        let mut floor = 0;
        let mut found = 0;
        for number in 1..=120_u64 {
            // Some commits do not change the page, and some nodes nobody knows.
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let changed = low(hash >> 32) & low(hash >> 13) & low(hash >> 7);
            if changed != 0 {
                let unknown = if number % 9 == 4 { u64::MAX } else { hash & hash >> 19 };
                let known =
                    |at: u8| (unknown >> at & 1 == 0).then(|| node(number << 8 | u64::from(at)));
                let mut list = ReplacedList::default();
                // That of another prefix is in front of them.
                list.push(Prefix::ROOT.child(false), node(0));
                let own = node(number << 8);
                let positions = (1..63).filter(|at| ways_to(changed) >> at & 1 == 1);
                let inside: Vec<Node> = positions.map(|at| known(at).unwrap_or(UNKNOWN)).collect();
                list.push_page(Prefix::ROOT.child(true), own, changed, &inside);
                let (at, _) = slabs.push(number, list.nodes()).expect("the next one");
                steps.push(at, &list.heads()[1]);
                commits.push((number, changed, std::iter::once(own).chain(inside).collect()));
            }
            if number % 16 == 0 {
                floor = number - 9;
                assert!(steps.drop_before(slabs.through(floor), &slabs));
                slabs.drop_through(floor);
                commits.retain(|one| one.0 > floor);
                assert!(steps.bytes() >= commits.len() * size_of::<Step>());
            }
            for base in floor..=number {
                let later = || commits.iter().filter(|one| one.0 > base);
                let before = slabs.through(base);
                let own = later().next().map(|(number, _, nodes)| (*number, &nodes[0]));
                assert_eq!(steps.own(before, &slabs), own, "as of {base} of {number}");
                assert_eq!(steps.is_after(before, &slabs), own.is_some());
                let accessed = 1 << (hash >> 59) | 1 << (base % 32);
                let mut search = OlderSearch::new(accessed);
                let mut slow = OlderSearch::new(accessed);
                steps.inside(before, &slabs, &mut search);
                for (_, changed, nodes) in later() {
                    slow.say(*changed, |at| nodes.get(at));
                }
                let (mut nodes, mut slow_nodes) = (Vec::new(), Vec::new());
                let then = search.found(&mut nodes);
                let slow = slow.found(&mut slow_nodes);
                assert_eq!(nodes, slow_nodes, "as of {base} of {number}");
                let (then, slow) = (then.with(&nodes), slow.with(&slow_nodes));
                for at in 0..heap_index(5, 31) {
                    assert_eq!(then.node(at), slow.node(at), "{at} as of {base} of {number}");
                    found += usize::from(then.node(at).is_some());
                }
                // A search that is done may not have seen all changes of what is accessed.
                assert_eq!(then.asked() | accessed, slow.asked() | accessed);
                assert_eq!(then.asked() & slow.asked(), slow.asked());
            }
        }
        assert!(found > 5_000, "{found}");
        assert!(!steps.drop_before(slabs.through(120), &slabs));
    }

    #[test]
    fn what_is_learnt_is_what_the_first_commit_of_the_range_replaced() {
        let (base_of_all, last) = (7, 30);
        let (mut steps, mut slabs) = (Steps::default(), Slabs::default());
        let bucket = |commit: u64| u8::try_from(commit * 11 % 32).expect("less than 32");
        for commit in 1..=40 {
            let mut list = ReplacedList::default();
            list.push_page(Prefix::ROOT, node(commit), 1 << bucket(commit), &[UNKNOWN; 5]);
            let (at, _) = slabs.push(commit, list.nodes()).expect("the next one");
            steps.push(at, &list.heads()[0]);
        }
        let bytes = steps.bytes() + slabs.bytes();
        let learned: Vec<(u8, Node)> = (1..63).map(|at| (at, node(1000 + u64::from(at)))).collect();
        let lists = slabs.through(base_of_all)..slabs.through(last);
        steps.learn(lists.clone(), &mut slabs, &learned);
        // What is known stays.
        let others: Vec<(u8, Node)> = (1..63).map(|at| (at, node(9))).collect();
        steps.learn(lists, &mut slabs, &others);
        assert_eq!(steps.bytes() + slabs.bytes(), bytes);
        let mut known = 0;
        for (at, learned) in learned {
            let changes = |commit: &u64| ways_to(1 << bucket(*commit)) >> at & 1 == 1;
            let first = (base_of_all + 1..=last).find(changes);
            for base in 0..40 {
                let next = (base + 1..=40).find(changes);
                let mut search = OlderSearch::new(!buckets_below(at));
                steps.inside(slabs.through(base), &slabs, &mut search);
                let mut nodes = Vec::new();
                let found = search.found(&mut nodes);
                let expected = (next.is_some() && next == first).then_some(&learned);
                assert_eq!(found.with(&nodes).node(at), expected, "{at} as of {base}");
                known += usize::from(expected.is_some());
            }
        }
        assert!(known > 200, "{known}");
    }
}
