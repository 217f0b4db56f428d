//! What commits have replaced of one prefix, in their order.
//!
//! A list of steps, one for each commit that changed something below the prefix; the nodes are with those of
//! the commit ([`super::slabs`]). So one search gives the prefix's node as of a commit, and the steps from
//! there on, mostly some sixty of them, the nodes inside. Used by [`super::node_versions`] alone.

use pleach_beatree::older::OlderSearch;
use pleach_core::search::lower_bound_near;
use pleach_core::{Node, cpu_prefetch};

use super::replaced::{Head, Inside};
use super::slabs::Slabs;

/// Where a commit's nodes of a prefix are. Without padding: there are millions of them.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Step {
    number: u64,
    /// Where the nodes begin among the commit's, and in the lowest bit: are some inside unknown?
    start: u32,
}

impl Step {
    fn nodes<'a>(&self, slabs: &'a Slabs) -> Option<&'a [Node]> {
        slabs.from(self.number, self.start >> 1)
    }
}

/// The steps of a prefix.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The newest commit: who asks for a later one need not look at the list.
    newest: u64,
    /// The oldest one.
    oldest: u64,
    list: Vec<Step>,
    /// Buckets that each of them changed: a search inside of a page looks at many of these, and at few steps.
    changed: Vec<u32>,
}

/// Steps of which it is asked at once what they changed: eight lines of memory.
const AHEAD: usize = 128;

impl Steps {
    /// The newest commit.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Where the first step after `base` is expected: commits change a prefix about as often as each other.
    #[inline]
    fn guess(&self, base: u64) -> usize {
        if self.newest <= base {
            return self.list.len();
        }
        let since = u128::from((base + 1).saturating_sub(self.oldest));
        let all = u128::from(self.newest - self.oldest).max(1);
        usize::try_from(since * self.list.len() as u128 / all)
            .map_or(0, |at| at.min(self.list.len()))
    }

    /// Prefetches the memory where a search for the first step after `base` begins.
    pub(super) fn cpu_prefetch(&self, base: u64) {
        let guess = self.guess(base);
        cpu_prefetch(&self.list[guess.saturating_sub(1)..(guess + 1).min(self.list.len())]);
    }

    /// The same with the steps that follow.
    pub(super) fn cpu_prefetch_after(&self, base: u64) {
        let guess = self.guess(base);
        self.cpu_prefetch(base);
        cpu_prefetch(&self.changed[guess.saturating_sub(2)..(guess + AHEAD).min(self.list.len())]);
    }

    /// Where the steps after `base` begin.
    fn after(&self, base: u64) -> usize {
        let less = |at: usize| self.list[at].number <= base;
        lower_bound_near(self.guess(base), self.list.len(), less)
    }

    /// The node as of `base` that a later commit has replaced, and that commit.
    pub(super) fn own<'a>(&self, base: u64, slabs: &'a Slabs) -> Option<(u64, &'a Node)> {
        let step = self.list.get(self.after(base))?;
        Some((step.number, step.nodes(slabs)?.first()?))
    }

    /// What commits after `base` say of the nodes inside as of `base`.
    pub(super) fn inside<'a>(
        &self,
        base: u64,
        slabs: &'a Slabs,
        search: &mut OlderSearch,
        said: &mut Vec<Inside<'a>>,
    ) {
        let from = self.after(base);
        for (changed, step) in self.changed[from..].iter().zip(&self.list[from..]) {
            let changed = *changed;
            if !search.is_news(changed) {
                continue;
            }
            // A reader whose undo is dropped meanwhile is told so.
            let Some(nodes) = step.nodes(slabs) else { return };
            Inside { changed, is_partial: step.start & 1 == 1, nodes }.tell(search, said);
            if search.is_done() {
                return;
            }
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Step>() + self.changed.capacity() * size_of::<u32>()
    }

    /// Adds what a commit said.
    pub(super) fn push(&mut self, number: u64, head: &Head) {
        debug_assert!(self.newest < number, "commits are put in in their order");
        if self.list.is_empty() {
            self.oldest = number;
        }
        let len = self.list.len();
        if len == self.list.capacity() {
            // Doubling would leave a quarter of all memory unused.
            self.list.reserve_exact(len / 4 + 1);
            self.changed.reserve_exact(len / 4 + 1);
        }
        self.newest = number;
        let start = head.start << 1 | u32::from(head.is_partial);
        self.list.push(Step { number, start });
        self.changed.push(head.changed);
    }

    /// Prefetches the memory that the next step is written to.
    pub(super) fn cpu_prefetch_end(&self) {
        let last = self.list.len().saturating_sub(1);
        cpu_prefetch(&self.list[last..]);
        cpu_prefetch(&self.changed[last..]);
    }

    /// Drops the steps of commits through `floor`; false when none is left.
    pub(super) fn drop_through(&mut self, floor: u64) -> bool {
        let gone = self.list.partition_point(|step| step.number <= floor);
        let Some(first) = self.list.get(gone) else { return false };
        if gone > 0 {
            self.oldest = first.number;
            self.list.drain(..gone);
            self.changed.drain(..gone);
            let room = self.list.len() + self.list.len() / 4;
            self.list.shrink_to(room);
            self.changed.shrink_to(room);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use pleach_beatree::older::{GROUP_LEVELS, Said, groups_of};
    use pleach_core::{Key, Prefix};

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
        let mut commits: Vec<(u64, Said, Vec<Node>)> = Vec::new();
        let mut floor = 0;
        let mut found = 0;
        for number in 1..=120_u64 {
            // Some commits do not change the page, and some nodes nobody knows.
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let changed = low(hash >> 32) & low(hash >> 13) & low(hash >> 7);
            if changed != 0 {
                let groups = groups_of(changed) & low(hash >> 51).to_le_bytes()[0];
                let said = Said { changed, groups, buckets: changed & low(hash >> 29) };
                let nodes = 0..=said.count() as u64;
                let nodes: Vec<Node> = nodes.map(|at| node(number << 8 | at)).collect();
                let mut list = ReplacedList::default();
                // That of another prefix is in front of them.
                list.push(Prefix::ROOT.child(false), node(0));
                let (at, mut left) = (Prefix::ROOT.child(true), nodes[1..].to_vec());
                let keys = (0..32_u8).filter(|bucket| changed >> bucket & 1 == 1);
                let keys: Vec<Key> = keys.map(|bucket| [0x80 | bucket << 2; 32]).collect();
                left.reverse();
                let left = std::cell::RefCell::new(left);
                list.push_page(at, nodes[0], keys.iter(), |level, bits| {
                    let of = if level == GROUP_LEVELS { said.groups.into() } else { said.buckets };
                    (of >> bits & 1 == 1).then(|| left.borrow_mut().pop().expect("one for each"))
                });
                assert!(slabs.push(number, list.nodes().into()));
                steps.push(number, &list.heads()[1]);
                commits.push((number, said, nodes));
            }
            if number % 16 == 0 {
                floor = number - 9;
                assert!(steps.drop_through(floor));
                slabs.drop_through(floor);
                commits.retain(|one| one.0 > floor);
                assert!(steps.bytes() >= commits.len() * size_of::<Step>());
            }
            for base in floor..=number {
                let later = || commits.iter().filter(|one| one.0 > base);
                let own = later().next().map(|(number, _, nodes)| (*number, &nodes[0]));
                assert_eq!(steps.own(base, &slabs), own, "as of {base} of {number}");
                let accessed = 1 << (hash >> 59) | 1 << (base % 32);
                let mut search = OlderSearch::new(accessed);
                let mut slow = OlderSearch::new(accessed);
                let mut said = Vec::new();
                steps.inside(base, &slabs, &mut search, &mut said);
                for (by, (_, said, _)) in (0..).zip(later()) {
                    slow.say(said.changed, by);
                }
                let (mut nodes, mut slow_nodes) = (Vec::new(), Vec::new());
                let then = search.found(|by| said[usize::from(by)].said(), &mut nodes);
                let later: Vec<_> = later().collect();
                let slow_said = |by| {
                    let (_, said, nodes) = later[usize::from(by)];
                    (*said, &nodes[1..])
                };
                let slow = slow.found(slow_said, &mut slow_nodes);
                assert_eq!(nodes, slow_nodes, "as of {base} of {number}");
                assert_eq!(format!("{then:?}"), format!("{slow:?}"), "as of {base} of {number}");
                found += then.with(&nodes).asked().count_zeros();
            }
        }
        assert!(found > 10_000, "{found}");
        assert!(!steps.drop_through(120));
    }
}
