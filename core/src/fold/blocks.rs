//! What a treelet's fold is made of: blocks in stages, leaves, and the keys of a bucket with what becomes of them.
//! All lie in flat lists and name each other by number.

use alloc::vec::Vec;

use super::item::index32;
use super::{HashId, MAX_CAPTURE};
use crate::node::{Key, Node, ValueHash};

/// Levels that have blocks; buckets lie at most this deep.
pub(super) const LEVELS: u8 = MAX_CAPTURE;
/// The first stage of what is inside of buckets; before it, one for each level of treelets.
pub(super) const ROUNDS: usize = LEVELS as usize;
/// Bytes of a value's hash at the end of an encoded leaf terminal.
pub(super) const HASH_LEN: usize = size_of::<ValueHash>();

/// A half of a block: twice the block's number in its stage, and one more for the right half.
#[derive(Clone, Copy, Default)]
pub(super) struct Half {
    pub(super) stage: u32,
    pub(super) at: u32,
}

/// Blocks that are hashed together.
#[derive(Default)]
pub(super) struct Stage {
    /// The two nodes of each block, side by side as they are hashed.
    pub(super) pairs: Vec<[Node; 2]>,
    /// Where the node of each goes.
    pub(super) into: Vec<Half>,
    /// Blocks whose nodes climb on, beside terminators, before anybody needs them.
    pub(super) climbs: Vec<Climb>,
}

/// The way up of a lone subtrie: its node takes one block's place after the other.
#[derive(Clone, Copy)]
pub(super) struct Climb {
    /// The block, in its stage, from whose node on.
    pub(super) at: u32,
    /// Depth of the node, and the one that it climbs to.
    pub(super) from: u16,
    pub(super) to: u16,
    /// A key below it.
    pub(super) key: Key,
}

/// Leaf nodes to make: their halves are the key and the value's hash.
#[derive(Default)]
pub(super) struct Leaves {
    pub(super) blocks: Vec<[u8; 64]>,
    /// The value's hash of each, and where its node goes.
    pub(super) ends: Vec<(HashId, Half)>,
}

/// A key of a bucket.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) key: Key,
    /// Hash of the value before and after, [`NO_HASH`] for none.
    pub(super) old: HashId,
    pub(super) new: HashId,
    pub(super) accessed: bool,
    /// Does the proof show it? A terminal's leaf is shown even when it was not accessed.
    pub(super) opened: bool,
    /// Bits that it shares with the next one.
    pub(super) cpl: u16,
    /// Depth of its terminal.
    pub(super) anchor: u16,
    /// First of the keys that end in the same terminal.
    pub(super) group: u32,
}

/// Where the node of a group of keys comes from.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// Nothing is there.
    Empty,
    /// A leaf node, by its number.
    Leaf(u32),
    /// A block of a round.
    Block { round: u32, at: u32 },
}

/// Neighbouring keys that have merged.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) source: Source,
    pub(super) depth: u16,
    pub(super) opened: bool,
    /// Its first key.
    pub(super) first: u32,
}

/// What the emission needs to know of a merge.
#[derive(Clone, Copy)]
pub(super) struct Merged {
    /// The left half of its block, if it has one.
    pub(super) left: Half,
    /// The leaf that was merged with nothing, which takes no block.
    pub(super) leaf: Option<u32>,
    pub(super) left_opened: bool,
    pub(super) right_opened: bool,
}

impl Source {
    /// The first round in which its node is known.
    #[inline]
    pub(super) fn rounds(&self) -> u32 {
        match self {
            Self::Block { round, .. } => round + 1,
            Self::Empty | Self::Leaf(_) => 0,
        }
    }
}

#[inline]
pub(super) fn half(round: u32, block: u32, right: bool) -> Half {
    Half { stage: index32(ROUNDS) + round, at: block << 1 | u32::from(right) }
}

#[inline]
pub(super) fn node_of(stages: &[Stage], half: Half) -> &Node {
    &stages[half.stage as usize].pairs[(half.at >> 1) as usize][(half.at & 1) as usize]
}

#[inline]
pub(super) fn node_mut(stages: &mut [Stage], half: Half) -> &mut Node {
    &mut stages[half.stage as usize].pairs[(half.at >> 1) as usize][(half.at & 1) as usize]
}
