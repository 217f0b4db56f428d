//! What the nodes inside of a page were in an older state.
//!
//! A commit that changes a page says which of its buckets it changed, the subtries five levels below the
//! prefix, and what nodes these had, and those of the *groups* that they are in, three levels below the
//! prefix. So a proof of an older state folds the buckets that its keys are in from what these keys had,
//! and has the nodes of the others.
//!
//! ```
//! use pleach_beatree::older::{OlderNodes, Said, bucket_of};
//! use pleach_core::{Node, Prefix};
//!
//! let (left, right) = (bucket_of(&Prefix::ROOT, &[0; 32]), bucket_of(&Prefix::ROOT, &[255; 32]));
//! assert_eq!((left, right), (0, 31));
//! // A key of the first bucket is asked for. A later commit has changed that bucket and the last one.
//! let mut then = OlderNodes::new(1 << left);
//! let said = Said { changed: 1 << left | 1 << right, groups: 1 << 7, buckets: 1 << right };
//! then.say(&said, &[Node::new([7; 32]), Node::new([9; 32])]);
//! // The last group has a node, so nobody asks what is below it; the first has none.
//! assert_eq!(then.asked(), 1 << left);
//! ```

use pleach_core::node::{NodeKind, kind};
use pleach_core::{Key, Node, Prefix, TERMINATOR};

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

/// The groups that these buckets are in, as a mask.
#[inline]
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

/// A node that was found, by its number among all that a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u8);

/// What is known of the nodes inside of a page in an older state, as far as a fold that accesses some of
/// its buckets asks for it.
#[derive(Clone, Debug)]
pub struct OlderNodes {
    /// Buckets with a key that is accessed.
    accessed: u32,
    /// Buckets that have changed since, or may have.
    changed: u32,
    /// Groups of which some commit has said something.
    said_groups: u8,
    /// Buckets of which nothing more is to be known.
    done: u32,
    /// Places whose node is known.
    known: u64,
    nodes: [Node; PLACES],
}

impl OlderNodes {
    /// Nothing has been said yet; keys in these buckets are accessed.
    pub fn new(accessed: u32) -> Self {
        let nodes = [TERMINATOR; PLACES];
        Self { accessed, changed: 0, said_groups: 0, done: 0, known: 0, nodes }
    }

    /// Is all said that a fold asks for?
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done == u32::MAX
    }

    /// The next commit, in their order, says what it replaced; `find` is given what is news and asked for: the
    /// place, for [`Self::set`], and where the node is among the commit's.
    #[inline]
    pub fn find(&mut self, said: &Said, mut find: impl FnMut(Place, usize)) {
        // Most commits have nothing new to say, and others of one group.
        let mut left = said.changed & !self.done;
        while left != 0 {
            let group = left.trailing_zeros().to_le_bytes()[0] / OF_GROUP;
            let all = buckets_of(group);
            let news = left & all;
            left &= !all;
            let first = self.said_groups >> group & 1 == 0;
            self.said_groups |= 1 << group;
            let is_accessed = self.accessed & all != 0;
            if let Some(at) = said.group_at(group).filter(|_| first && !is_accessed) {
                find(Place(group), at);
                // Whatever has changed below it, its node is known.
                self.changed |= all;
                self.done |= all;
                continue;
            }
            self.changed |= news;
            self.done |= news;
            for bucket in group * OF_GROUP..(group + 1) * OF_GROUP {
                if news & !self.accessed & 1 << bucket != 0
                    && let Some(at) = said.bucket_at(bucket)
                {
                    find(Place(GROUPS + bucket), at);
                }
            }
        }
    }

    /// A node that was found.
    #[inline]
    pub fn set(&mut self, place: Place, node: &Node) {
        self.known |= 1 << place.0;
        self.nodes[usize::from(place.0)] = *node;
    }

    /// Both at once.
    pub fn say(&mut self, said: &Said, nodes: &[Node]) {
        let (mut found, mut count) = ([(Place(0), 0); PLACES], 0);
        self.find(said, |place, at| {
            found[count] = (place, at);
            count += 1;
        });
        found[..count].iter().for_each(|(place, at)| self.set(*place, &nodes[*at]));
    }

    /// Nobody knows what else has changed.
    pub fn all_may_have_changed(&mut self) {
        self.changed = u32::MAX;
        self.done = u32::MAX;
    }

    /// Buckets that have changed, or may have, and go into a fold key by key: those that are accessed, those whose
    /// node nobody knows, and those of one key, whose node may become a terminal.
    pub fn asked(&self) -> u32 {
        let mut asked = 0;
        for group in 0..GROUPS {
            let changed = self.changed & buckets_of(group);
            if changed == 0 {
                continue;
            }
            match self.place(group).map(kind) {
                Some(NodeKind::Leaf) => asked |= changed,
                Some(_) => {}
                None => {
                    let bucket = |bucket: &u8| {
                        self.place(GROUPS + bucket).is_none_or(|node| kind(node) == NodeKind::Leaf)
                    };
                    let below = group * OF_GROUP..(group + 1) * OF_GROUP;
                    asked |=
                        below.filter(bucket).fold(0, |mask, bucket| mask | 1 << bucket) & changed;
                }
            }
        }
        asked
    }

    #[inline]
    fn place(&self, place: u8) -> Option<&Node> {
        (self.known >> place & 1 == 1).then(|| &self.nodes[usize::from(place)])
    }

    /// The node then of a position that has changed since.
    #[inline]
    pub(crate) fn node(&self, level: u8, bits: u8) -> Option<&Node> {
        match level {
            GROUP_LEVELS => self.place(bits),
            BUCKET_LEVELS => self.place(GROUPS + bits),
            _ => None,
        }
    }

    /// Has a bucket changed that is below the position with these bits after the prefix, or above it?
    #[inline]
    pub(crate) fn touches(&self, level: u8, bits: u8) -> bool {
        let Some(above) = BUCKET_LEVELS.checked_sub(level) else {
            return self.changed >> (bits >> (level - BUCKET_LEVELS)) & 1 == 1;
        };
        let count = 1_u32 << above;
        u64::from(self.changed) >> (u32::from(bits) * count) & ((1 << count) - 1) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> Node {
        // An internal one.
        let mut bytes = [number; 32];
        bytes[0] &= 0x7f;
        Node::new(bytes)
    }

    #[test]
    fn a_position_is_touched_by_the_buckets_below_and_above_it() {
        for changed in (0..BUCKETS).map(|bucket| 1_u32 << bucket).chain([0, 0x8000_0400, u32::MAX])
        {
            let mut then = OlderNodes::new(u32::MAX);
            then.say(&Said { changed, ..Said::default() }, &[]);
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
    fn what_was_said_first_stays() {
        let mut then = OlderNodes::new(1);
        let first = Said { changed: 0b11 | 1 << 31, groups: 1 << 7, buckets: 0b10 };
        then.say(&first, &[node(1), node(2)]);
        let second = Said { changed: 0b110 | 1 << 30, groups: 1 | 1 << 7, buckets: 0b110 };
        then.say(&second, &[node(3), node(4), node(5), node(6)]);
        // The group that is accessed has no node, the last one that of the first commit.
        assert_eq!(then.node(GROUP_LEVELS, 0), None);
        assert_eq!(then.node(GROUP_LEVELS, 7), Some(&node(1)));
        assert_eq!(then.node(BUCKET_LEVELS, 1), Some(&node(2)));
        assert_eq!(then.node(BUCKET_LEVELS, 2), Some(&node(6)));
        assert_eq!(then.asked(), 1, "the one that is accessed");
        assert!(then.touches(BUCKET_LEVELS, 30) && !then.touches(BUCKET_LEVELS, 3));
        then.all_may_have_changed();
        assert!(then.is_done() && then.touches(BUCKET_LEVELS, 3));
        assert_eq!(then.asked().count_ones(), 32 - 2 - 4, "all whose nodes are not known");
    }
}
