//! What the nodes inside of a page were in an older state.
//!
//! A commit that changes a page says which of its buckets it changed, the subtries five levels below the
//! prefix, and what nodes these had, and those of the *groups* that they are in, three levels below the
//! prefix. So a proof of an older state folds the buckets that its keys are in from what these keys had,
//! and has the nodes of the others ([`crate::older_fold`]).
//!
//! ```
//! use pleach_beatree::older::{OlderSearch, Said, bucket_of};
//! use pleach_core::{Node, Prefix};
//!
//! let (left, right) = (bucket_of(&Prefix::ROOT, &[0; 32]), bucket_of(&Prefix::ROOT, &[255; 32]));
//! assert_eq!((left, right), (0, 31));
//! // A key of the first bucket is asked for. A later commit has changed that bucket and the last one.
//! let mut search = OlderSearch::new(1 << left);
//! let said = Said { changed: 1 << left | 1 << right, groups: 1 | 1 << 7, buckets: 1 << right };
//! search.say(said.changed, 0);
//! let commits = [[Node::new([5; 32]), Node::new([7; 32]), Node::new([9; 32])]];
//! let mut nodes = Vec::new();
//! let found = search.found(|by| (said, &commits[usize::from(by)]), &mut nodes);
//! let then = found.with(&nodes);
//! // Nobody asks what is below the last group, which has a node.
//! assert_eq!(then.group(7), Some(&Node::new([7; 32])));
//! assert_eq!(then.asked(), 1 << left);
//! ```

use pleach_core::node::{NodeKind, kind};
use pleach_core::{Key, Node, Prefix};

use crate::children::bits_after;
use crate::treelet;
use crate::treelet::capture_levels;

/// Levels between a page's prefix and its groups.
pub const GROUP_LEVELS: u8 = 3;
/// Groups of a page.
pub const GROUPS: u8 = 1 << GROUP_LEVELS;
/// Levels between a page's prefix and its buckets.
pub const BUCKET_LEVELS: u8 = treelet::LEVELS;
/// Buckets of a page: one bit each in 32.
pub const BUCKETS: u8 = 1 << BUCKET_LEVELS;
/// Buckets of a group.
pub const OF_GROUP: u8 = BUCKETS / GROUPS;
/// Nodes that are told of a page: those of its groups, then those of its buckets.
const PLACES: usize = (GROUPS + BUCKETS) as usize;

const _: () = assert!(BUCKETS == 32 && GROUPS == 8, "masks of 32 and 8 bits");

/// Has a page with this prefix buckets?
pub fn has_buckets(at: &Prefix) -> bool {
    capture_levels(at) > 0
}

/// The bucket of a key below a page's prefix.
#[inline]
pub fn bucket_of(at: &Prefix, key: &Key) -> u8 {
    (bits_after(key, at.len()) >> (32 - BUCKET_LEVELS)) as u8
}

/// The buckets of a group, as a mask.
#[inline]
pub fn buckets_of(group: u8) -> u32 {
    ((1 << OF_GROUP) - 1) << (group * OF_GROUP)
}

/// The buckets of a mask.
fn buckets_in(mask: u32) -> impl Iterator<Item = u8> {
    (0..BUCKETS).filter(move |bucket| mask >> bucket & 1 == 1)
}

/// How many keys are below a node; two for more.
pub(crate) fn keys_of(node: &Node) -> u8 {
    match kind(node) {
        NodeKind::Internal => 2,
        NodeKind::Leaf => 1,
        NodeKind::Terminator => 0,
    }
}

/// The groups that these buckets are in, as a mask.
pub fn groups_of(buckets: u32) -> u8 {
    (0..GROUPS)
        .filter(|group| buckets & buckets_of(*group) != 0)
        .fold(0, |groups, group| groups | 1 << group)
}

/// What one commit replaced inside of a page, as masks. Its nodes are in the order of groups, then of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Buckets that it changed.
    pub changed: u32,
    /// Groups, of those that it changed, whose nodes are known.
    pub groups: u8,
    /// Buckets, of those that it changed, whose nodes are known.
    pub buckets: u32,
}

impl Said {
    /// All nodes of what was changed are known.
    #[inline]
    pub fn whole(changed: u32) -> Self {
        // A bit for each group that has one of four, at the group's lowest bucket; then the lowest byte gathers them.
        let any = changed | changed >> 1;
        let any = (any | any >> 2) & 0x1111_1111;
        let pairs = (any | any >> 3) & 0x0303_0303;
        let fours = (pairs | pairs >> 6) & 0x000f_000f;
        let groups = (fours | fours >> 12).to_le_bytes()[0];
        Self { changed, groups, buckets: changed }
    }

    /// How many nodes are known.
    #[inline]
    pub fn count(&self) -> usize {
        (self.groups.count_ones() + self.buckets.count_ones()) as usize
    }

    /// Where the node of a group is among them.
    #[inline]
    fn group_at(&self, group: u8) -> Option<usize> {
        let before = self.groups & ((1 << group) - 1);
        (self.groups >> group & 1 == 1).then_some(before.count_ones() as usize)
    }

    /// Where the node of a bucket is among them.
    #[inline]
    fn bucket_at(&self, bucket: u8) -> Option<usize> {
        let before = self.buckets & ((1 << bucket) - 1);
        let at = self.groups.count_ones() + before.count_ones();
        (self.buckets >> bucket & 1 == 1).then_some(at as usize)
    }
}

/// A search for the nodes inside of a page in an older state, as far as a fold that accesses some of its
/// buckets asks for them: all groups, and the buckets of the groups that are accessed.
///
/// It says whom to ask for each node, and takes the nodes afterwards: they lie in cold memory, and whoever
/// searches for many pages asks for all of it before waiting for any.
#[derive(Clone, Debug)]
pub struct OlderSearch {
    accessed: u32,
    /// Buckets of groups of which the nodes of buckets are asked for.
    open: u32,
    changed: u32,
    touched: u8,
    /// Buckets of which nothing more is to be known.
    done: u32,
    /// Places that a commit said something of.
    said: u64,
    /// Which one.
    by: [u16; PLACES],
}

impl OlderSearch {
    /// Nothing has been said yet; keys in these buckets are accessed.
    pub fn new(accessed: u32) -> Self {
        let groups = (0..GROUPS).map(buckets_of).filter(|all| accessed & all != 0);
        let open = groups.fold(0, |open, all| open | all);
        Self { accessed, open, changed: 0, touched: 0, done: 0, said: 0, by: [0; PLACES] }
    }

    /// The search after one that has found this: the nodes of groups that nobody knew are made of those of their
    /// buckets. `None` when there is no such group.
    pub fn again(found: &FoundNodes) -> Option<Self> {
        let unknown = found.touched & !found.known.to_le_bytes()[0];
        let groups = (0..GROUPS).filter(|group| unknown >> group & 1 == 1).map(buckets_of);
        let open = groups.fold(found.open, |open, all| open | all);
        (open != found.open).then(|| Self { open, ..Self::new(found.accessed) })
    }

    /// Is all said that a fold asks for?
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done == u32::MAX
    }

    /// Has a commit that changed these buckets anything to say that nobody has said? That is so of 32 commits
    /// at most.
    #[inline]
    pub fn is_news(&self, changed: u32) -> bool {
        changed & !self.done != 0
    }

    /// The next commit, in their order, changed these buckets; the caller knows it as `by`.
    #[inline]
    pub fn say(&mut self, changed: u32, by: u16) {
        let mut left = changed & !self.done;
        while left != 0 {
            let group = left.trailing_zeros().to_le_bytes()[0] / OF_GROUP;
            let all = buckets_of(group);
            let news = left & all;
            left &= !all;
            if self.touched >> group & 1 == 0 {
                self.touched |= 1 << group;
                self.set(group, by);
            }
            if self.open & all == 0 {
                // Whatever has changed below it: its node is known, or the search is done again.
                self.changed |= all;
                self.done |= all;
                continue;
            }
            self.changed |= news;
            self.done |= news;
            for bucket in group * OF_GROUP..(group + 1) * OF_GROUP {
                if news >> bucket & 1 == 1 {
                    self.set(GROUPS + bucket, by);
                }
            }
        }
    }

    #[inline]
    fn set(&mut self, place: u8, by: u16) {
        self.said |= 1 << place;
        self.by[usize::from(place)] = by;
    }

    /// What was found: `said` gives what a commit said, with its nodes; those that are asked for are added to
    /// `nodes`.
    pub fn found<'a>(
        &self,
        said: impl Fn(u16) -> (Said, &'a [Node]),
        nodes: &mut Vec<Node>,
    ) -> FoundNodes {
        let (mut left, mut known, start) = (self.said, 0, nodes.len());
        while left != 0 {
            let place = left.trailing_zeros().to_le_bytes()[0];
            left &= left - 1;
            let (said, list) = said(self.by[usize::from(place)]);
            let at = match place.checked_sub(GROUPS) {
                None => said.group_at(place),
                Some(bucket) => said.bucket_at(bucket),
            };
            if let Some(at) = at {
                known |= 1 << place;
                nodes.push(list[at]);
            }
        }
        let Self { accessed, open, changed, touched, .. } = *self;
        FoundNodes { accessed, open, changed, touched, known, start }
    }
}

/// What a search has found, beside the list that has the nodes.
#[derive(Clone, Copy, Debug)]
pub struct FoundNodes {
    accessed: u32,
    open: u32,
    changed: u32,
    touched: u8,
    known: u64,
    /// Where its nodes begin in the list.
    start: usize,
}

impl FoundNodes {
    /// The same with its nodes, which are in this list.
    #[inline]
    pub fn with<'a>(&self, nodes: &'a [Node]) -> OlderNodes<'a> {
        let Self { accessed, open, changed, touched, known, start } = *self;
        OlderNodes { accessed, open, changed, touched, known, nodes: &nodes[start..] }
    }
}

/// What is known of the nodes inside of a page in an older state.
#[derive(Clone, Copy, Debug)]
pub struct OlderNodes<'a> {
    /// Buckets with a key that is accessed.
    accessed: u32,
    /// Buckets of groups whose changed buckets are told.
    open: u32,
    /// Buckets that have changed since; all of a group that is touched and not open.
    changed: u32,
    /// Groups of which something has changed since.
    touched: u8,
    /// Places whose node is known: groups, then buckets.
    known: u64,
    /// Their nodes, in order, and others behind them.
    nodes: &'a [Node],
}

impl<'a> OlderNodes<'a> {
    /// Buckets whose keys a fold asks for, of those that have changed: those that are accessed, or that
    /// belong to what must be folded as a whole, and those whose node nobody knows.
    pub fn asked(&self) -> u32 {
        let mut asked = 0;
        for group in (0..GROUPS).filter(|group| self.touched >> group & 1 == 1) {
            let all = buckets_of(group);
            match self.group(group).map(kind) {
                None if self.accessed & all == 0 => {
                    let unknown = buckets_in(all).filter(|one| self.bucket(*one).is_none());
                    asked |= self.changed & unknown.fold(0, |mask, bucket| mask | 1 << bucket);
                }
                None if !self.proves_two(all) => asked |= self.changed & all,
                Some(_) if self.accessed & all == 0 => {}
                None | Some(NodeKind::Internal) => {
                    let half = all & (all >> (OF_GROUP / 2));
                    asked |= self.asked_of(half) | self.asked_of(all & !half);
                }
                Some(_) => asked |= self.changed & all,
            }
        }
        asked
    }

    /// The same of half a group, which is accessed.
    fn asked_of(&self, half: u32) -> u32 {
        if self.accessed & half != 0 && !self.proves_two(half) {
            return self.changed & half;
        }
        let known = buckets_in(half).filter(|bucket| self.bucket(*bucket).is_some());
        let known = known.fold(0, |known, bucket| known | 1 << bucket);
        self.changed & half & (self.accessed | !known)
    }

    /// Do the nodes that are known of these buckets show that there were two keys or more?
    fn proves_two(&self, buckets: u32) -> bool {
        let known = buckets_in(buckets).filter_map(|bucket| self.bucket(bucket));
        known.map(keys_of).sum::<u8>() > 1
    }

    /// Are the changed buckets of a group told, so that its node can be made of theirs?
    pub(crate) fn is_open(&self, group: u8) -> bool {
        self.open & buckets_of(group) != 0
    }

    /// Has something changed in each group since, so that the treelet of the present has little to say?
    pub fn is_all_touched(&self) -> bool {
        self.touched == u8::MAX
    }

    /// Has each group changed, and is no node known, so that all keys are asked for?
    pub fn is_useless(&self) -> bool {
        self.touched == u8::MAX && self.known == 0
    }

    #[inline]
    fn place(&self, place: u8) -> Option<&'a Node> {
        let before = self.known & ((1 << place) - 1);
        (self.known >> place & 1 == 1).then(|| &self.nodes[before.count_ones() as usize])
    }

    /// The node of a group that was touched.
    #[inline]
    pub fn group(&self, group: u8) -> Option<&'a Node> {
        self.place(group)
    }

    /// The node of a bucket that was changed, in a group that is open.
    #[inline]
    pub fn bucket(&self, bucket: u8) -> Option<&'a Node> {
        self.place(GROUPS + bucket)
    }

    /// Has something changed below the position with these bits after the prefix?
    #[inline]
    pub(crate) fn touches(&self, level: u8, bits: u8) -> bool {
        let count = 1_u32 << (BUCKET_LEVELS - level);
        u64::from(self.changed) >> (u32::from(bits) * count) & ((1 << count) - 1) != 0
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::TERMINATOR;

    use super::*;

    fn node(number: u8) -> Node {
        // An internal one.
        let mut bytes = [number; 32];
        bytes[0] &= 0x7f;
        Node::new(bytes)
    }

    #[test]
    fn a_position_is_touched_by_the_buckets_below_it() {
        for changed in (0..BUCKETS).map(|bucket| 1_u32 << bucket).chain([0, 0x8000_0400, u32::MAX])
        {
            let mut search = OlderSearch::new(u32::MAX);
            search.say(changed, 0);
            let said = Said { changed, ..Said::default() };
            let then = search.found(|_| (said, &[]), &mut Vec::new()).with(&[]);
            for level in 0..=BUCKET_LEVELS {
                for bits in 0..1_u8 << level {
                    let below = |bucket: u8| bucket >> (BUCKET_LEVELS - level) == bits;
                    let slow = (0..BUCKETS).any(|one| changed >> one & 1 == 1 && below(one));
                    assert_eq!(then.touches(level, bits), slow, "{changed:b} {level} {bits:b}");
                }
            }
        }
    }

    #[test]
    fn a_commit_that_knows_all_says_so_of_each_group() {
        for at in 0..1_u32 << 16 {
            let changed = at.wrapping_mul(0x9e37_79b9) & at.wrapping_mul(0x85eb_ca6b);
            let groups = groups_of(changed);
            assert_eq!(Said::whole(changed), Said { changed, groups, buckets: changed });
        }
    }

    #[test]
    fn what_was_said_first_stays() {
        let mut search = OlderSearch::new(1);
        let first = Said { changed: 0b11 | 1 << 31, groups: 1 << 7, buckets: 0b10 };
        let nodes = [node(1), node(2)];
        search.say(first.changed, 0);
        assert!(search.is_news(0b100) && !search.is_news(0b11 | 0xf << 28));
        let second = Said { changed: 0b110 | 1 << 30, groups: 1 | 1 << 7, buckets: 0b110 };
        let later = [node(3), node(4), node(5), node(6)];
        search.say(second.changed, 1);
        let mut found = vec![node(9)];
        let commits = [(first, &nodes[..]), (second, &later[..])];
        let then = search.found(|by| commits[usize::from(by)], &mut found);
        let then = then.with(&found);
        // The first commit did not know the node of the group that is accessed.
        assert_eq!((then.group(0), then.group(7)), (None, Some(&node(1))));
        assert_eq!((then.bucket(0), then.bucket(1)), (None, Some(&node(2))));
        assert_eq!((then.bucket(2), then.bucket(3)), (Some(&node(6)), None));
        assert_eq!(then.asked(), 0b1, "its buckets show that the group had two keys");
        assert!(then.touches(BUCKET_LEVELS, 30) && !then.touches(BUCKET_LEVELS, 3));
        assert!(!search.is_done() && !then.is_useless());
    }

    #[test]
    fn a_half_that_may_be_no_internal_node_is_asked_for_as_a_whole() {
        let leaf = Node::new([0x80; 32]);
        assert_eq!(kind(&leaf), NodeKind::Leaf);
        let asked = |buckets: [Node; 4], known: u32| {
            let mut search = OlderSearch::new(1);
            let mut nodes = vec![node(1)];
            nodes.extend((0..4).filter(|at| known >> at & 1 == 1).map(|at| buckets[at]));
            search.say(0xf, 0);
            let (said, mut found) = (Said { changed: 0xf, groups: 1, buckets: known }, Vec::new());
            search.found(|_| (said, &nodes), &mut found).with(&found).asked()
        };
        let internal = node(7);
        assert_eq!(asked([internal; 4], 0xf), 0b1);
        assert_eq!(asked([leaf, TERMINATOR, leaf, leaf], 0xf), 0b11);
        assert_eq!(asked([leaf, leaf, TERMINATOR, TERMINATOR], 0xf), 0b1);
        assert_eq!(asked([TERMINATOR, internal, leaf, leaf], 0b0110), 0b1001);
    }
}
