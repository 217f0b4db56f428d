//! Hashing a multiproof's parts: from terminals and siblings to the node that they lead to.
//!
//! A finish computes the new root from nodes that it keeps in memory, and the witness's siblings are those nodes. Before
//! either is handed out, the root before the batch is computed from the witness alone and compared with the state's own.
//! The verifier does the same one hash at a time; here all hashes of one depth, of many parts, are one batch.
//!
//! ```
//! use pleach_core::fold::ProofFolder;
//! use pleach_core::naive::Naive;
//! use pleach_core::proof::terminal::terminal_encode;
//! use pleach_core::Hasher;
//!
//! let trie = Naive::from_iter([([1; 32], [10; 32].into()), ([0x81; 32], [20; 32].into())]);
//! let proof = trie.multi(Hasher::BLAKE3, &[[1; 32]]);
//! let mut terminals = Vec::new();
//! terminal_encode(&mut terminals, &proof.terminals[0]);
//!
//! let mut folder = ProofFolder::new(Hasher::BLAKE3);
//! folder.terminals(&terminals);
//! let fold = folder.end(0, &proof.siblings);
//! assert!(folder.run());
//! assert_eq!(*folder.node(fold), trie.root(Hasher::BLAKE3));
//! ```

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use super::item::index32;
use crate::hasher::Hasher;
use crate::node::{
    Combined, Key, Node, TERMINATOR, combine_kind, leaf_preimage, tag_internal, tag_leaf,
};
use crate::prefix::{Prefix, bit, common_len};
use crate::proof::Terminal;
use crate::proof::terminal::terminals;

/// Where a node comes from.
#[derive(Clone, Copy)]
enum Source {
    /// It is known.
    Known(Node),
    /// The leaf with this number.
    Leaf(u32),
    /// The pair with this number at this depth.
    Pair(u16, u32),
}

/// Where a node goes: a depth, and a pair's number there and its half. At depth 0 are the folds' nodes.
#[derive(Clone, Copy, Default)]
struct Half {
    depth: u16,
    at: u32,
}

/// A terminal, or a subtrie whose node is known.
#[derive(Clone, Copy)]
struct Item {
    bits: Key,
    depth: u16,
    source: Source,
}

/// Pairs of siblings at one depth, which are what their hashes are made of, and where these go.
#[derive(Default)]
struct Level {
    pairs: Vec<[Node; 2]>,
    into: Vec<Half>,
}

/// Computes nodes from parts of multiproofs, as the header of this file says. Buffers are reused.
pub struct ProofFolder {
    /// Items of the open fold.
    items: Vec<Item>,
    /// Leaves to hash, and where their nodes go.
    leaves: (Vec<[u8; 64]>, Vec<Half>),
    /// By depth, as deep as pairs have been; at depth 0 the first halves are the folds' nodes.
    levels: Vec<Level>,
    /// Subtries that wait for the right side of the fork at this depth.
    waiting: Vec<(Source, u16)>,
    out: Vec<[u8; 32]>,
    /// Has a fold failed to lead to a node?
    failed: bool,
    hashed: u64,
    hasher: Hasher,
}

impl core::fmt::Debug for ProofFolder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ProofFolder").field("hashed", &self.hashed).finish_non_exhaustive()
    }
}

impl ProofFolder {
    /// A folder that has no fold.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            items: Vec::new(),
            leaves: (Vec::new(), Vec::new()),
            levels: Vec::new(),
            waiting: Vec::new(),
            out: Vec::new(),
            failed: false,
            hashed: 0,
            hasher,
        }
    }

    /// Its hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Removes all folds; the memory stays for the next use.
    pub fn clear(&mut self) {
        self.items.clear();
        self.leaves.0.clear();
        self.leaves.1.clear();
        for level in &mut self.levels {
            level.pairs.clear();
            level.into.clear();
        }
        self.failed = false;
    }

    /// Hash calls made since creation.
    #[inline]
    pub fn hashed(&self) -> u64 {
        self.hashed
    }

    /// Adds encoded terminals, which follow in key order.
    #[inline]
    pub fn terminals(&mut self, bytes: &[u8]) {
        for terminal in terminals(bytes) {
            let source = match &terminal {
                Terminal::Leaf { key, value_hash, .. } => {
                    self.leaves.0.push(leaf_preimage(key, value_hash));
                    self.leaves.1.push(Half::default());
                    Source::Leaf(index32(self.leaves.0.len() - 1))
                }
                Terminal::Terminator { .. } => Source::Known(TERMINATOR),
            };
            self.items.push(Item { bits: *terminal.bits(), depth: terminal.depth(), source });
        }
    }

    /// Adds a subtrie by its node, in key order.
    #[inline]
    pub fn subtrie(&mut self, at: &Prefix, node: &Node) {
        let source = Source::Known(*node);
        self.items.push(Item { bits: *at.first_key(), depth: at.len(), source });
    }

    /// Ends a fold of at least one item, whose result is the node at depth `floor`: all items share so many bits.
    /// `siblings` are in post-order. Gives the number of the fold.
    ///
    /// When siblings are missing or left over, or an item lies below another, nothing leads to a node, and
    /// [`Self::run`] says so.
    pub fn end(&mut self, floor: u16, siblings: &[Node]) -> usize {
        let mut siblings = siblings.iter();
        let items = core::mem::take(&mut self.items);
        self.waiting.clear();
        let fold = self.push(0, [TERMINATOR; 2]);
        for (at, item) in items.iter().enumerate() {
            let fork = items.get(at + 1).map(|next| common_len(&item.bits, &next.bits));
            if let Some(node) = self.climb(item, fork, floor, &mut siblings) {
                self.place(node, Half { depth: 0, at: fold << 1 });
            }
        }
        self.failed |= items.is_empty() || siblings.next().is_some();
        self.items = items;
        self.items.clear();
        fold as usize
    }

    /// Takes an item up to where it waits for the next one, or to the floor: then it is given.
    #[inline]
    fn climb(
        &mut self,
        item: &Item,
        fork: Option<u16>,
        floor: u16,
        siblings: &mut core::slice::Iter<'_, Node>,
    ) -> Option<Source> {
        let Item { bits, mut depth, mut source } = *item;
        loop {
            let left = self.waiting.last().map(|(_, fork)| *fork);
            let deepest = left.max(fork);
            let stop = deepest.map_or(floor, |fork| fork + 1);
            if depth < stop || siblings.len() < usize::from(depth - stop) {
                self.failed = true;
                return None;
            }
            for sibling in siblings.take(usize::from(depth - stop)) {
                let right = bit(&bits, depth - 1);
                let pair = if right { [*sibling, TERMINATOR] } else { [TERMINATOR, *sibling] };
                let at = self.push(depth, pair);
                self.place(source, Half { depth, at: at << 1 | u32::from(right) });
                source = Source::Pair(depth, at);
                depth -= 1;
            }
            match (left, fork) {
                (Some(above), _) if deepest == left => {
                    let (left, _) = self.waiting.pop()?;
                    let at = self.push(depth, [TERMINATOR; 2]);
                    self.place(left, Half { depth, at: at << 1 });
                    self.place(source, Half { depth, at: at << 1 | 1 });
                    source = Source::Pair(depth, at);
                    depth = above;
                }
                (_, Some(fork)) => {
                    self.waiting.push((source, fork));
                    return None;
                }
                _ => return Some(source),
            }
        }
    }

    #[inline]
    fn push(&mut self, depth: u16, pair: [Node; 2]) -> u32 {
        let levels = self.levels.len().max(usize::from(depth) + 1);
        self.levels.resize_with(levels, Level::default);
        let level = &mut self.levels[usize::from(depth)];
        level.pairs.push(pair);
        level.into.push(Half::default());
        index32(level.pairs.len() - 1)
    }

    /// The node of this source goes to this half.
    #[inline]
    fn place(&mut self, source: Source, half: Half) {
        match source {
            Source::Known(node) => put(&mut self.levels, half, node),
            Source::Leaf(leaf) => self.leaves.1[leaf as usize] = half,
            Source::Pair(depth, at) => {
                self.levels[usize::from(depth)].into[at as usize] = half;
            }
        }
    }

    /// Hashes everything. `false` when a fold leads to no node, or two nodes are no siblings in any trie: a leaf or
    /// nothing beside nothing.
    pub fn run(&mut self) -> bool {
        if self.failed {
            return false;
        }
        let (leaves, into) = &self.leaves;
        self.out.resize(leaves.len().max(self.out.len()), [0; 32]);
        self.hasher.hash64_many(leaves, &mut self.out[..leaves.len()]);
        self.hashed += leaves.len() as u64;
        for (half, hash) in into.iter().zip(&self.out) {
            put(&mut self.levels, *half, tag_leaf(*hash));
        }
        for depth in (1..self.levels.len()).rev() {
            let (above, level) = self.levels.split_at_mut(depth);
            let Level { pairs, into } = &level[0];
            if pairs.is_empty() {
                continue;
            }
            let known =
                |pair: &[Node; 2]| matches!(combine_kind(&pair[0], &pair[1]), Combined::Known(_));
            if pairs.iter().any(known) {
                return false;
            }
            self.out.resize(pairs.len().max(self.out.len()), [0; 32]);
            self.hasher.hash64_many(pairs.as_bytes().as_chunks().0, &mut self.out[..pairs.len()]);
            self.hashed += pairs.len() as u64;
            for (half, hash) in into.iter().zip(&self.out) {
                put(above, *half, tag_internal(*hash));
            }
        }
        true
    }

    /// The node of a fold, by the number that [`Self::end`] gave; valid after [`Self::run`].
    #[inline]
    pub fn node(&self, fold: usize) -> &Node {
        &self.levels[0].pairs[fold][0]
    }
}

#[inline]
fn put(levels: &mut [Level], half: Half, node: Node) {
    let pair = &mut levels[usize::from(half.depth)].pairs[(half.at >> 1) as usize];
    pair[(half.at & 1) as usize] = node;
}
