//! What the nodes inside of a page were in an older state.
//!
//! A commit that changes a page says which of its *buckets* it changed, the subtries five levels below the
//! prefix, and what nodes all positions on the way to these had. So a proof of an older state folds the buckets
//! that its keys are in from what these keys had, and has the node of each position beside the way from the
//! first later commit that changed something below it ([`crate::older_fold`]).
//!
//! ```
//! use pleach_beatree::older::{OlderSearch, bucket_of};
//! use pleach_core::fold::heap_index;
//! use pleach_core::{Node, Prefix};
//!
//! let (left, right) = (bucket_of(&Prefix::ROOT, &[0; 32]), bucket_of(&Prefix::ROOT, &[255; 32]));
//! assert_eq!((left, right), (0, 31));
//! // A key of the first bucket is asked for. A later commit has changed the last one: the nodes on the way to it.
//! let commit: Vec<Node> = (0..6).map(|level| Node::new([level + 1; 32])).collect();
//! let mut search = OlderSearch::new(1 << left);
//! search.say(1 << right, |at| commit.get(at));
//! let mut nodes = Vec::new();
//! let found = search.found(&mut nodes);
//! let then = found.with(&nodes);
//! // The right half is beside the way, and nothing else has changed.
//! assert_eq!(then.node(heap_index(1, 1)), Some(&commit[1]));
//! assert_eq!((then.touched(), then.asked()), (0xffff_0000, 0));
//! ```

use pleach_core::fold::{children, each_position, heap_index, heap_position, way};
use pleach_core::node::{NodeKind, kind};
use pleach_core::{Key, Node, Prefix, cpu_prefetch};

use crate::treelet;
use crate::treelet::capture_levels;
use pleach_core::prefix::bits_after;

/// Levels between a page's prefix and its buckets.
pub const BUCKET_LEVELS: u8 = treelet::LEVELS;
/// Buckets of a page: one bit each in 32.
pub const BUCKETS: u8 = 1 << BUCKET_LEVELS;
/// Positions above the buckets, as a mask.
pub(crate) const INNER: u64 = (1 << heap_index(BUCKET_LEVELS, 0)) - 1;
/// Levels between a page's prefix and the nodes that it stores, in most pages.
const STORED_LEVELS: u8 = 3;
/// In the place of a node that a commit replaced and that nobody knew. A node with these bytes would be folded
/// from its keys, as unknown ones are.
pub const UNKNOWN: Node = Node::new([0xff; 32]);

const _: () = assert!(BUCKETS == 32, "masks of 32 bits");

/// Has a page with this prefix buckets?
pub fn has_buckets(at: &Prefix) -> bool {
    capture_levels(at) > 0
}

/// The bucket of a key below a page's prefix.
#[inline]
pub fn bucket_of(at: &Prefix, key: &Key) -> u8 {
    (bits_after(key, at.len()) >> (32 - BUCKET_LEVELS)) as u8
}

/// The first bucket below a position, and how many there are.
#[inline]
fn span(at: u8) -> (u8, u8) {
    let (level, bits) = heap_position(at);
    let below = BUCKET_LEVELS - level;
    (bits << below, 1 << below)
}

/// The buckets below a position, as a mask.
#[inline]
pub fn buckets_below(at: u8) -> u32 {
    let (first, count) = span(at);
    u32::MAX >> (BUCKETS - count) << first
}

/// The positions on the way to some buckets, the prefix and theirs included, as a mask by [`heap_index`].
#[inline]
pub fn ways_to(buckets: u32) -> u64 {
    let (mut left, mut ways) = (buckets, 0);
    while left != 0 {
        ways |= way(lowest(left));
        left &= left - 1;
    }
    ways
}

#[inline]
fn lowest(buckets: u32) -> u8 {
    buckets.trailing_zeros().to_le_bytes()[0]
}

/// The last of some positions.
#[inline]
pub(crate) fn last(positions: u64) -> u8 {
    positions.ilog2().to_le_bytes()[0]
}

/// How many keys are below a node; two for more.
pub(crate) fn keys_of(node: &Node) -> u8 {
    match kind(node) {
        NodeKind::Internal => 2,
        NodeKind::Leaf => 1,
        NodeKind::Terminator => 0,
    }
}

/// A search for the nodes inside of a page in an older state, as far as a fold that accesses some of its
/// buckets asks for them: of all positions beside the way to these.
///
/// It asks for the memory of what it finds, and reads it at the end: whoever searches for many pages asks
/// for all of it before waiting for any.
#[derive(Clone, Debug)]
pub struct OlderSearch<'a> {
    accessed: u32,
    /// Positions whose nodes follow from those of their children: the ways, and what nobody knew.
    inner: u64,
    /// Positions whose nodes are asked for: no two have a bucket in common, and none an accessed one.
    wanted: u64,
    /// Buckets of which nobody has said anything.
    left: u32,
    /// Buckets of which something was said, or that are below a wanted position of which something was.
    touched: u32,
    /// Wanted positions of which something was said.
    said: u64,
    /// What was said of a wanted position, by the first bucket below it.
    nodes: [Option<&'a Node>; BUCKETS as usize],
}

impl<'a> OlderSearch<'a> {
    /// Nothing has been said yet; keys in these buckets, of which there is one at least, are accessed.
    pub fn new(accessed: u32) -> Self {
        debug_assert!(accessed != 0, "a fold accesses something");
        Self::below(accessed, ways_to(accessed) & INNER)
    }

    fn below(accessed: u32, inner: u64) -> Self {
        let wanted = children(inner) & !inner & !ways_to(accessed);
        let nodes = [None; BUCKETS as usize];
        Self { accessed, inner, wanted, left: u32::MAX, touched: 0, said: 0, nodes }
    }

    /// Is all said that a fold asks for?
    #[inline]
    pub fn is_done(&self) -> bool {
        self.left & !self.accessed == 0
    }

    /// Has a commit that changed these buckets anything to say that nobody has said? That is so of 32 commits
    /// at most.
    #[inline]
    pub fn is_news(&self, changed: u32) -> bool {
        changed & self.left != 0
    }

    /// The next commit, in their order, changed these buckets. `node` gives what it replaced on the way to them, by
    /// its number among these positions: the prefix is 0. `None` is as [`UNKNOWN`].
    #[inline]
    pub fn say(&mut self, changed: u32, node: impl Fn(usize) -> Option<&'a Node>) {
        let mut news = changed & self.left;
        self.left &= !(news & self.accessed);
        self.touched |= news;
        news &= !self.accessed;
        while news != 0 {
            let at = (self.wanted & way(lowest(news))).trailing_zeros().to_le_bytes()[0];
            let below = buckets_below(at);
            news &= !below;
            self.left &= !below;
            self.touched |= below;
            self.said |= 1 << at;
            let before = ways_to(changed) & ((1 << at) - 1);
            let node = node(before.count_ones() as usize);
            cpu_prefetch(node.map_or(&[], std::slice::from_ref));
            self.nodes[usize::from(span(at).0)] = node;
        }
    }

    /// What was found; the nodes are added to `nodes`.
    pub fn found(&self, nodes: &mut Vec<Node>) -> FoundNodes {
        let (mut known, mut of_keys, start) = (0, [0; 3], nodes.len());
        each_position(self.said, |at| {
            if let Some(node) = self.nodes[usize::from(span(at).0)].filter(|one| **one != UNKNOWN) {
                known |= 1 << at;
                of_keys[usize::from(keys_of(node))] |= 1 << at;
                nodes.push(*node);
            }
        });
        let [_, leaves, internal] = of_keys;
        let Self { accessed, inner, mut touched, said, .. } = *self;
        if self.is_done() {
            // It may have ended before the first change of an accessed one.
            touched |= accessed;
        }
        FoundNodes { accessed, inner, touched, said, known, leaves, internal, start }
    }
}

/// What a search has found, beside the list that has the nodes.
#[derive(Clone, Copy, Debug)]
pub struct FoundNodes {
    accessed: u32,
    inner: u64,
    touched: u32,
    said: u64,
    known: u64,
    /// Those of the known ones with one key, and with more.
    leaves: u64,
    internal: u64,
    /// Where its nodes begin in the list.
    start: usize,
}

impl FoundNodes {
    /// The same with its nodes, which are in this list.
    #[inline]
    pub fn with<'a>(&self, nodes: &'a [Node]) -> OlderNodes<'a> {
        OlderNodes { found: *self, nodes: &nodes[self.start..] }
    }

    /// The search after this one: what nobody knew is made of what is below it. `None` where there is no such
    /// position, or as little known of those that pages store. Each goes further down, so that there
    /// are three at most.
    pub fn again<'a>(&self) -> Option<OlderSearch<'a>> {
        let unknown = self.said & !self.known & INNER;
        let above_stored = (1 << heap_index(STORED_LEVELS, 0)) - 1;
        if unknown == 0 || self.known == 0 && unknown & above_stored == 0 {
            return None;
        }
        // A page stores the nodes three levels below its prefix: mostly these are known.
        let mut inner = unknown;
        while children(inner) & above_stored & !inner != 0 {
            inner |= children(inner) & above_stored;
        }
        Some(OlderSearch::below(self.accessed, self.inner | inner))
    }
}

/// What is known of the nodes inside of a page in an older state.
#[derive(Clone, Copy, Debug)]
pub struct OlderNodes<'a> {
    found: FoundNodes,
    /// The nodes of known positions, in order, and others behind them.
    nodes: &'a [Node],
}

impl<'a> OlderNodes<'a> {
    /// Buckets whose keys a fold asks for, of those that may have changed: those that are accessed, those whose node
    /// nobody knows, and those below a position on the way that is not shown to have had two keys.
    pub fn asked(&self) -> u32 {
        let FoundNodes { accessed, touched, said, known, mut leaves, mut internal, .. } =
            self.found;
        let mut asked = accessed;
        each_position(said & !known, |at| asked |= buckets_below(at));
        let (ways, mut left) = (ways_to(accessed), self.found.inner & INNER);
        // Lowest levels first.
        while left != 0 {
            let at = last(left);
            left &= !(1 << at);
            let children = 2 * at + 1;
            let (one, more) = (leaves >> children & 0b11, internal >> children & 0b11);
            if more != 0 || one == 0b11 {
                internal |= 1 << at;
            } else {
                leaves |= u64::from(one != 0) << at;
                if ways >> at & 1 == 1 {
                    asked |= buckets_below(at);
                }
            }
        }
        asked & touched
    }

    /// Buckets that may have changed since, and all beside them where only a node above them is known.
    pub fn touched(&self) -> u32 {
        self.found.touched
    }

    /// Positions beside the way that have changed since and whose nodes nobody knew, as a mask.
    pub fn unknown(&self) -> u64 {
        let FoundNodes { accessed, inner, said, known, .. } = self.found;
        let ways = ways_to(accessed);
        (inner & !ways | said & !known) & children(ways & INNER)
    }

    /// The node of a position that has changed since, where it is asked for and known.
    #[inline]
    pub fn node(&self, at: u8) -> Option<&'a Node> {
        let FoundNodes { known, .. } = self.found;
        let before = known & ((1 << at) - 1);
        (known >> at & 1 == 1).then(|| &self.nodes[before.count_ones() as usize])
    }

    /// Has something changed below a position?
    #[inline]
    pub(crate) fn touches(&self, at: u8) -> bool {
        self.found.touched & buckets_below(at) != 0
    }

    /// Is a bucket below a position accessed?
    #[inline]
    pub(crate) fn is_on_way(&self, at: u8) -> bool {
        self.found.accessed & buckets_below(at) != 0
    }

    /// Positions that have changed since and had two keys or more, as far as their nodes are known.
    #[inline]
    pub(crate) fn internal(&self) -> u64 {
        self.found.internal
    }

    /// Is the node of a position made of those of its children?
    #[inline]
    pub(crate) fn is_inner(&self, at: u8) -> bool {
        self.found.inner >> at & 1 == 1
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

    /// What a commit records that changes these buckets: each position's number, but for some.
    fn commit(changed: u32, unknown: u64) -> Vec<Node> {
        let mut nodes = Vec::new();
        each_position(ways_to(changed), |at| {
            nodes.push(if unknown >> at & 1 == 1 { UNKNOWN } else { node(at + 1) });
        });
        nodes
    }

    fn search(accessed: u32, commits: &[(u32, Vec<Node>)]) -> OlderSearch<'_> {
        let mut search = OlderSearch::new(accessed);
        for (changed, nodes) in commits {
            search.say(*changed, |at| nodes.get(at));
        }
        search
    }

    #[test]
    fn positions_are_above_their_buckets() {
        for at in 0..2 * BUCKETS - 1 {
            let (level, bits) = heap_position(at);
            let is_below = |bucket: &u8| bucket >> (BUCKET_LEVELS - level) == bits;
            let slow = (0..BUCKETS).filter(is_below).fold(0, |mask, bucket| mask | 1 << bucket);
            assert_eq!(buckets_below(at), slow, "{at}");
            for bucket in 0..BUCKETS {
                assert_eq!(way(bucket) >> at & 1 == 1, is_below(&bucket), "{at} {bucket}");
            }
        }
    }

    #[test]
    fn each_position_beside_the_way_is_as_the_first_commit_found_it() {
        let accessed = 1 << 3 | 1 << 17;
        let commits: Vec<(u32, Vec<Node>)> =
            [1_u32 << 2, 1 << 2 | 1 << 30, 1 << 3, 1 << 8, 1 << 29 | 1 << 17, 1 << 11]
                .map(|changed| (changed, commit(changed, 0)))
                .into();
        let search = search(accessed, &commits);
        let mut nodes = vec![node(99)];
        let found = search.found(&mut nodes);
        let then = found.with(&nodes);
        let beside = [heap_index(5, 2), heap_index(2, 1), heap_index(2, 3)];
        for at in 0..63 {
            let known = beside.contains(&at).then(|| node(at + 1));
            assert_eq!(then.node(at), known.as_ref(), "{at}");
        }
        // The bucket beside bucket 3 had two keys or more, so nothing but the accessed ones is asked for.
        assert_eq!(then.asked(), accessed);
        assert_eq!(then.touched(), accessed | 1 << 2 | 0xff00 | 0xff00_0000);
        assert!(!search.is_done() && found.again().is_none());
        assert!(!search.is_news(1 << 10 | 1 << 17 | 1 << 24) && search.is_news(1 << 4));
    }

    #[test]
    fn a_way_takes_five_nodes_and_some_forty_commits() {
        let commits: Vec<(u32, Vec<Node>)> =
            (0..32).map(|at| (1 << at, commit(1 << at, 0))).collect();
        let (mut looked_at, mut state) = (0, 1_u32);
        for bucket in (0..32).cycle().take(320) {
            let (mut search, mut nodes) = (OlderSearch::new(1 << bucket), Vec::new());
            while !search.is_done() {
                state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                let (changed, replaced) = &commits[(state >> 27) as usize];
                search.say(*changed, |at| replaced.get(at));
                looked_at += 1;
            }
            let found = search.found(&mut nodes);
            assert_eq!(nodes.len(), 5);
            assert_eq!(found.with(&nodes).asked(), 1 << bucket);
        }
        // The bucket beside it is changed by one commit of 32, and the last one of five counts.
        assert!((30 * 320..50 * 320).contains(&looked_at), "{looked_at}");
    }

    #[test]
    fn what_nobody_knew_is_asked_of_what_is_below_it() {
        // The right half, where only the nodes of its groups were known, and of the last group what is below it.
        let groups: u64 = 0xf0 << heap_index(3, 0);
        let known = groups ^ 1 << heap_index(3, 7);
        let changed = 1 << 16 | 1 << 24 | 1 << 31;
        let commits = [(changed, commit(changed, !known & INNER))];
        let mut nodes = Vec::new();
        let mut found = search(1, &commits).found(&mut nodes);
        assert_eq!(found.with(&nodes).asked(), 0xffff_0000);
        let mut searches = 0;
        while let Some(mut search) = found.again() {
            search.say(commits[0].0, |at| commits[0].1.get(at));
            found = search.found(&mut nodes);
            searches += 1;
        }
        let then = found.with(&nodes);
        assert_eq!(searches, 3);
        for at in [heap_index(3, 4), heap_index(3, 6), heap_index(5, 31)] {
            assert_eq!(then.node(at), Some(&node(at + 1)), "{at}");
        }
        assert_eq!(then.asked(), 0);
        for at in [0, 2, heap_index(2, 2), heap_index(2, 3), heap_index(3, 7), heap_index(4, 15)] {
            assert!(then.node(at).is_none() && then.is_inner(at), "{at}");
        }
        assert!(!then.touches(heap_index(3, 5)) && !then.is_inner(heap_index(3, 4)));
        // A commit that recorded nothing is not asked twice about what no page stores.
        let mut search = OlderSearch::new(u32::MAX >> 1);
        search.say(1 << 31, |_| None);
        assert!(search.is_done() && search.found(&mut nodes).again().is_none());
    }

    #[test]
    fn below_a_position_that_may_be_no_internal_node_all_is_asked_for() {
        let leaf = Node::new([0x80; 32]);
        assert_eq!(kind(&leaf), NodeKind::Leaf);
        let asked = |own: &[(u8, Node)]| {
            let mut nodes = commit(u32::MAX, 0);
            for (at, node) in own {
                nodes[usize::from(*at)] = *node;
            }
            let mut found = Vec::new();
            search(1, &[(u32::MAX, nodes)]).found(&mut found).with(&found).asked()
        };
        let beside = [heap_index(5, 1), heap_index(4, 1), heap_index(3, 1)];
        assert_eq!(asked(&[]), 0b1);
        assert_eq!(asked(&[(beside[0], leaf)]), 0b11);
        assert_eq!(asked(&[(beside[0], leaf), (beside[1], leaf)]), 0b11);
        assert_eq!(asked(&[(beside[0], leaf), (beside[1], TERMINATOR)]), 0b1111);
        assert_eq!(asked(&beside.map(|at| (at, TERMINATOR))), 0xff);
        assert_eq!(asked(&[(beside[0], UNKNOWN)]), 0b11);
    }
}
