//! What commits have replaced of one prefix, in their order.
//!
//! A list of steps, one for each commit that changed something below the prefix, and a list of nodes beside it.
//! So one search by halving gives the prefix's node as of a commit, and the steps from there on, mostly some
//! sixty of them, the nodes inside. Used by [`super::node_versions`] alone.

use pleach_beatree::older::{OlderNodes, Place, Said};
use pleach_core::{Node, cpu_prefetch};

use super::replaced::Before;

/// What a commit replaced of a prefix.
#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    /// Where its nodes begin.
    start: u32,
    said: Said,
}

/// The steps of a prefix.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The newest commit: who asks for a later one need not look at the list.
    newest: u64,
    list: Vec<Step>,
    nodes: Vec<Node>,
}

impl Steps {
    /// The newest commit.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Prefetches the memory that a search begins with.
    pub(super) fn cpu_prefetch(&self) {
        cpu_prefetch(&self.list[..self.list.len().min(1)]);
    }

    /// The steps after `base`.
    fn after(&self, base: u64) -> &[Step] {
        if self.newest <= base {
            return &[];
        }
        let from = match self.list.first() {
            Some(first) if first.number > base => 0,
            _ => self.list.partition_point(|step| step.number <= base),
        };
        &self.list[from..]
    }

    /// The node as of `base` that a later commit has replaced, and that commit.
    pub(super) fn own(&self, base: u64) -> Option<(u64, &Node)> {
        let step = self.after(base).first()?;
        Some((step.number, &self.nodes[step.start as usize]))
    }

    /// What commits after `base` and before `end` say of the nodes inside as of `base`.
    pub(super) fn inside(&self, base: u64, end: u64, then: &mut OlderNodes) {
        // What is found is asked for first, so that the waits for memory overlap.
        let mut found: [Option<(Place, &Node)>; 64] = [None; 64];
        let mut count = 0;
        for step in self.after(base).iter().take_while(|step| step.number < end) {
            if then.is_done() {
                break;
            }
            then.find(&step.said, |place, at| {
                let node = &self.nodes[step.start as usize + 1 + at];
                cpu_prefetch(std::slice::from_ref(node));
                found[count] = Some((place, node));
                count += 1;
            });
        }
        for (place, node) in found[..count].iter().flatten() {
            then.set(*place, node);
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Step>() + self.nodes.capacity() * size_of::<Node>()
    }

    /// Adds a step, unless it is there already.
    pub(super) fn push(&mut self, number: u64, before: &Before<'_>) {
        if self.newest >= number {
            debug_assert_eq!(self.newest, number, "commits are put in in their order");
            return;
        }
        let start = u32::try_from(self.nodes.len()).expect("a window has fewer than 2^32 nodes");
        reserve(&mut self.list, 1);
        reserve(&mut self.nodes, before.nodes.len());
        self.newest = number;
        self.list.push(Step { number, start, said: before.said });
        self.nodes.extend_from_slice(before.nodes);
    }

    /// Drops the steps of commits through `floor`; false when none is left.
    pub(super) fn drop_through(&mut self, floor: u64) -> bool {
        let gone = self.list.partition_point(|step| step.number <= floor);
        let Some(start) = self.list.get(gone).map(|step| step.start) else { return false };
        if gone > 0 {
            self.list.drain(..gone);
            self.list.iter_mut().for_each(|step| step.start -= start);
            self.nodes.drain(..start as usize);
            self.list.shrink_to(self.list.len() + self.list.len() / 4);
            self.nodes.shrink_to(self.nodes.len() + self.nodes.len() / 4);
        }
        true
    }
}

/// Makes room for `more`, and as much ahead as a sweep leaves: doubling would leave a quarter of all memory unused.
fn reserve<T>(list: &mut Vec<T>, more: usize) {
    let len = list.len();
    if len + more > list.capacity() {
        let ahead = if len == 0 { 0 } else { len / 4 + 1 };
        list.reserve_exact(more + ahead);
    }
}

#[cfg(test)]
mod tests {
    use pleach_beatree::older::groups_of;

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
        let mut steps = Steps::default();
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
                steps.push(number, &Before { said, nodes: &nodes });
                commits.push((number, said, nodes));
            }
            if number % 16 == 0 {
                floor = number - 9;
                assert!(steps.drop_through(floor));
                commits.retain(|one| one.0 > floor);
                assert!(steps.bytes() >= commits.len() * (size_of::<Step>() + size_of::<Node>()));
            }
            for (base, end) in
                (floor..=number).flat_map(|base| [(base, u64::MAX), (base, base + 6)])
            {
                let later = || commits.iter().filter(|one| one.0 > base);
                let own = later().next().map(|(number, _, nodes)| (*number, &nodes[0]));
                assert_eq!(steps.own(base), own, "as of {base} of {number}");
                let accessed = 1 << (hash >> 59) | 1 << (base % 32);
                let (mut then, mut slow) = (OlderNodes::new(accessed), OlderNodes::new(accessed));
                steps.inside(base, end, &mut then);
                for (_, said, nodes) in later().take_while(|one| one.0 < end) {
                    slow.say(said, &nodes[1..]);
                }
                assert_eq!(format!("{then:?}"), format!("{slow:?}"), "as of {base} of {number}");
                found += then.asked().count_zeros();
            }
        }
        assert!(found > 10_000, "{found}");
        assert!(!steps.drop_through(120));
    }
}
