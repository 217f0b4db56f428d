//! Path blocks: folding below a prefix whose inner nodes are known.
//!
//! Where the few levels of nodes below a prefix (its *treelet*) are known, only the *buckets* at
//! their lower end need a fold. What is between the prefix and its buckets is a binary tree of fixed
//! form: no keys to compare, no boundaries to sort. Each internal node on the way to an opened
//! bucket has a *block*, the two nodes of its children side by side, which is what its hash is made
//! of. Children that were not opened are written into it at once, the others when they are known;
//! all blocks of one level, of all treelets, are one batch of hashes and are hashed where they lie.
//!
//! The prefix of a treelet, and of each block, has an internal node in the old trie. So the terminal
//! of a bucket with fewer than two old keys is exactly at the bucket's prefix.
//!
//! # Use
//!
//! 1. [`PathBlocks::begin`]; then in key order, from above to below, [`PathBlocks::known`],
//!    [`PathBlocks::inner`] with [`PathBlocks::leave`], [`PathBlocks::bucket`]; [`PathBlocks::end`];
//! 2. [`BatchFolder::run`] on the buckets' folder, then [`PathBlocks::run`], once;
//! 3. nodes and multiproofs can be asked for;
//! 4. [`PathBlocks::clear`], which keeps the memory.
//!
//! ```
//! use pleach_core::fold::path_blocks::{PathBlocks, Side};
//! use pleach_core::fold::{BatchFolder, Change, FoldValue};
//! use pleach_core::{Blake3, node};
//!
//! let mut folder = BatchFolder::<Blake3>::new();
//! folder.begin(1);
//! folder.accessed(&[0; 32], Some(FoldValue::Bytes(b"1")), Change::Put(FoldValue::Bytes(b"2")));
//! let fold = folder.end().expect("all keys are known");
//! folder.run();
//!
//! let right = node::tag_internal([9; 32]);
//! let mut blocks = PathBlocks::<Blake3>::default();
//! let top = blocks.begin();
//! blocks.bucket(top, Side::Left, fold, true);
//! blocks.known(top, Side::Right, &right);
//! blocks.leave(top);
//! let treelet = blocks.end();
//! blocks.run(&folder);
//! assert_eq!(*blocks.node(treelet), node::combine::<Blake3>(&folder.node(fold), &right));
//! ```

use alloc::vec::Vec;
use core::marker::PhantomData;

use zerocopy::IntoBytes;

use super::batch_folder::BatchFolder;
use super::item::index32;
use super::{MAX_CAPTURE, Occupancy, Sink, heap_index};
use crate::hasher::Hasher;
use crate::node::{Combined, Node, TERMINATOR, combine_kind, tag_internal};

/// Levels that have blocks; buckets lie at most this deep.
const LEVELS: usize = MAX_CAPTURE as usize;

/// An internal node with a block.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    level: u8,
    block: u32,
}

/// One of the two children of an [`Inner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The next bit is 0.
    Left,
    /// The next bit is 1.
    Right,
}

/// What is known of a block apart from its nodes; in the pairs the left child comes first.
#[derive(Clone, Copy)]
struct Block {
    /// The half, in the level above, that gets its node.
    into: u32,
    /// Its [`heap_index`] in its treelet.
    index: u8,
    opened: [bool; 2],
    /// Computed here rather than given?
    computed: [bool; 2],
}

/// The blocks of one level.
#[derive(Default)]
struct Level {
    /// The two nodes of each block, side by side as they are hashed.
    pairs: Vec<[Node; 2]>,
    blocks: Vec<Block>,
}

struct Bucket {
    fold: u32,
    /// Level of the block above, and the half of it that gets the node.
    level: u8,
    into: u32,
    /// Its [`heap_index`] in its treelet.
    index: u8,
}

/// A part of an emission.
#[derive(Clone, Copy)]
enum Part {
    /// What this bucket emits.
    Bucket(u32),
    /// A half of a block of this level.
    Sibling { level: u8, half: u32 },
}

struct Treelet {
    /// Where its parts end; they start where the previous treelet's end.
    parts: u32,
    buckets: u32,
    blocks: [u32; LEVELS],
    node: Node,
}

/// Blocks of many treelets, over the folds of a [`BatchFolder`]. Buffers are reused.
pub struct PathBlocks<H> {
    levels: [Level; LEVELS],
    buckets: Vec<Bucket>,
    parts: Vec<Part>,
    done: Vec<Treelet>,
    out: Vec<[u8; 32]>,
    hashed: u64,
    hasher: PhantomData<H>,
}

impl<H> core::fmt::Debug for PathBlocks<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PathBlocks")
            .field("treelets", &self.done.len())
            .field("buckets", &self.buckets.len())
            .field("hashed", &self.hashed)
            .finish_non_exhaustive()
    }
}

impl<H> Default for PathBlocks<H> {
    fn default() -> Self {
        Self {
            levels: core::array::from_fn(|_| Level::default()),
            buckets: Vec::new(),
            parts: Vec::new(),
            done: Vec::new(),
            out: Vec::new(),
            hashed: 0,
            hasher: PhantomData,
        }
    }
}

/// Number of a block's half.
#[inline]
fn half(block: u32, side: Side) -> u32 {
    block << 1 | u32::from(side == Side::Right)
}

/// A half's node.
#[inline]
fn node_of(pairs: &[[Node; 2]], half: u32) -> &Node {
    &pairs[(half >> 1) as usize][(half & 1) as usize]
}

/// A half's node, to be written.
#[inline]
fn node_mut(pairs: &mut [[Node; 2]], half: u32) -> &mut Node {
    &mut pairs[(half >> 1) as usize][(half & 1) as usize]
}

/// [`heap_index`] of a half's child in its treelet.
#[inline]
fn child_index(parent: u8, side: Side) -> u8 {
    2 * parent + 1 + u8::from(side == Side::Right)
}

impl<H: Hasher> PathBlocks<H> {
    /// Removes all treelets; the memory stays for the next use.
    pub fn clear(&mut self) {
        for level in &mut self.levels {
            level.pairs.clear();
            level.blocks.clear();
        }
        self.buckets.clear();
        self.parts.clear();
        self.done.clear();
    }

    /// An upper bound of the nodes that were computed inside the treelets.
    pub fn len(&self) -> usize {
        self.buckets.len() + self.levels.iter().map(|level| level.blocks.len()).sum::<usize>()
    }

    /// Is there no treelet?
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Hash calls made since creation.
    pub fn hashed(&self) -> u64 {
        self.hashed
    }

    /// Begins a treelet with the block of its own prefix, which counts as opened.
    pub fn begin(&mut self) -> Inner {
        self.push(0, u32::MAX, heap_index(0, 0))
    }

    /// Ends the treelet, all of whose blocks have been left, and gives its number.
    pub fn end(&mut self) -> usize {
        let blocks = core::array::from_fn(|level| index32(self.levels[level].blocks.len()));
        let (parts, buckets) = (index32(self.parts.len()), index32(self.buckets.len()));
        self.done.push(Treelet { parts, buckets, blocks, node: TERMINATOR });
        self.done.len() - 1
    }

    /// A child that was not opened, by its node.
    #[inline]
    pub fn known(&mut self, of: Inner, side: Side, node: &Node) {
        *node_mut(&mut self.levels[usize::from(of.level)].pairs, half(of.block, side)) = *node;
    }

    /// An opened child that is itself an internal node of the old trie.
    #[inline]
    pub fn inner(&mut self, of: Inner, side: Side) -> Inner {
        let block = self.child(of, side, true);
        self.push(of.level + 1, half(of.block, side), block)
    }

    /// A child that is the result of a fold: something in it was opened, or its node is not known.
    #[inline]
    pub fn bucket(&mut self, of: Inner, side: Side, fold: usize, opened: bool) {
        let index = self.child(of, side, opened);
        if opened {
            self.parts.push(Part::Bucket(index32(self.buckets.len())));
        }
        let into = half(of.block, side);
        self.buckets.push(Bucket { fold: index32(fold), level: of.level, into, index });
    }

    /// Both children of a block have been given.
    #[inline]
    pub fn leave(&mut self, inner: Inner) {
        let block = &self.levels[usize::from(inner.level)].blocks[inner.block as usize];
        let side = match block.opened {
            [true, false] => Side::Right,
            [false, true] => Side::Left,
            _ => return,
        };
        self.parts.push(Part::Sibling { level: inner.level, half: half(inner.block, side) });
    }

    #[inline]
    fn push(&mut self, level: u8, into: u32, index: u8) -> Inner {
        let level_mut = &mut self.levels[usize::from(level)];
        let block = index32(level_mut.blocks.len());
        level_mut.pairs.push([TERMINATOR; 2]);
        level_mut.blocks.push(Block { into, index, opened: [false; 2], computed: [false; 2] });
        Inner { level, block }
    }

    /// Marks a child as computed; gives its [`heap_index`].
    #[inline]
    fn child(&mut self, of: Inner, side: Side, opened: bool) -> u8 {
        let block = &mut self.levels[usize::from(of.level)].blocks[of.block as usize];
        let at = usize::from(side == Side::Right);
        (block.opened[at], block.computed[at]) = (opened, true);
        child_index(block.index, side)
    }

    /// Hashes everything, from the buckets up.
    pub fn run(&mut self, folder: &BatchFolder<H>) {
        for bucket in &self.buckets {
            let pairs = &mut self.levels[usize::from(bucket.level)].pairs;
            *node_mut(pairs, bucket.into) = folder.node(bucket.fold as usize);
        }
        for level in (0..LEVELS).rev() {
            let (above, own) = self.levels.split_at_mut(level);
            let Level { pairs, blocks } = &own[0];
            self.out.resize(pairs.len().max(self.out.len()), [0; 32]);
            let out = &mut self.out[..pairs.len()];
            H::hash64_many(pairs.as_bytes().as_chunks().0, out);
            self.hashed += pairs.len() as u64;
            for (at, (block, hash)) in blocks.iter().zip(out).enumerate() {
                let (left, right) = (half(index32(at), Side::Left), half(index32(at), Side::Right));
                // Known only after deletions, which is rare.
                let node = match combine_kind(node_of(pairs, left), node_of(pairs, right)) {
                    Combined::Known(node) => node,
                    Combined::Hash => tag_internal(*hash),
                };
                match above.last_mut() {
                    Some(above) => *node_mut(&mut above.pairs, block.into) = node,
                    None => self.done[at].node = node,
                }
            }
        }
    }

    /// The new node of a treelet.
    pub fn node(&self, treelet: usize) -> &Node {
        &self.done[treelet].node
    }

    /// Gives a treelet's terminals and siblings to `sink`; `floor` is the length of its prefix.
    pub fn emit(
        &self,
        treelet: usize,
        floor: u16,
        folder: &mut BatchFolder<H>,
        sink: &mut impl Sink,
    ) {
        let from = treelet.checked_sub(1).map_or(0, |before| self.done[before].parts);
        for part in &self.parts[from as usize..self.done[treelet].parts as usize] {
            match *part {
                Part::Sibling { level, half } => {
                    sink.sibling(node_of(&self.levels[usize::from(level)].pairs, half));
                }
                Part::Bucket(bucket) => {
                    let bucket = &self.buckets[bucket as usize];
                    let fold = bucket.fold as usize;
                    if folder.occupancy(fold) == Occupancy::Many {
                        folder.emit(fold, sink);
                    } else {
                        folder.emit_only(fold, floor + u16::from(bucket.level) + 1, sink);
                    }
                }
            }
        }
    }

    /// The folds of a treelet's buckets, in key order, with the [`heap_index`] of each.
    pub fn buckets(&self, treelet: usize) -> impl Iterator<Item = (u8, usize)> + '_ {
        let from = treelet.checked_sub(1).map_or(0, |before| self.done[before].buckets);
        let buckets = &self.buckets[from as usize..self.done[treelet].buckets as usize];
        buckets.iter().map(|bucket| (bucket.index, bucket.fold as usize))
    }

    /// Gives the nodes inside a treelet that were computed, with the [`heap_index`] of each.
    pub fn computed(&self, treelet: usize, mut each: impl FnMut(u8, &Node)) {
        for (number, level) in self.levels.iter().enumerate() {
            let from = treelet.checked_sub(1).map_or(0, |before| self.done[before].blocks[number]);
            for at in from..self.done[treelet].blocks[number] {
                let block = &level.blocks[at as usize];
                for side in [Side::Left, Side::Right] {
                    if block.computed[usize::from(side == Side::Right)] {
                        each(child_index(block.index, side), node_of(&level.pairs, half(at, side)));
                    }
                }
            }
        }
    }
}
