//! The mask kernel: folding below a prefix whose inner nodes are known.
//!
//! Where the few levels of nodes below a prefix (its *treelet*) are known, what lies between the prefix and its
//! *buckets* is a binary tree of fixed form. Which positions of it are on the way to an accessed key is one mask of
//! 64 bits. Each internal node on the way has a *block*: the two nodes of its children side by side, which is what its
//! hash is made of, and one line of the treelet. A block is copied as it lies there; a child that is on the way is
//! written over it when it is known. Blocks of one level, of all treelets, are hashed where they lie, as one batch, and
//! each hash goes into its half of the block above.
//!
//! A bucket is what is below the end of the known internal nodes: five levels down, or higher where there is a leaf, a
//! terminator or something unknown. Its keys are given one by one. They merge into blocks, too, whose *round* is one
//! more than that of what they are made of, so that all blocks of one round are one batch.
//!
//! A merge has a block, unless one side is empty and the other a leaf or nothing; what comes of it is decided when
//! its halves are known: two terminators, a leaf beside a terminator, or a hash. So keys may come, go, be read or be
//! absent. A lone subtrie climbs to where it merges in the place of one block, however far that is.
//!
//! The prefix and all positions above a bucket have internal nodes in the old trie. So a bucket of fewer than two old
//! keys has its terminal exactly at its position. The multiproof is written while the keys are near: terminals and
//! siblings in order, with holes for what has to be hashed first.
//!
//! Where the keys of a page differ in few of the five bits behind its prefix, the levels of its treelet part at other
//! bits ([`Columns`]). In the bits between all keys are the same: a block's node climbs through them as a lone subtrie
//! does, beside terminators, before it goes into the block above.
//!
//! # Use
//!
//! 1. [`TreeletFolder::clear`]; then for each treelet [`TreeletFolder::begin`], what is known or unknown beside the way
//!    ([`TreeletFolder::beside`], [`TreeletFolder::known`]), the accessed buckets in key order, each by its keys and
//!    [`TreeletFolder::bucket`]; [`TreeletFolder::end`];
//! 2. [`TreeletFolder::run`], once;
//! 3. nodes and the multiproof can be asked for.
//!
//! ```
//! use pleach_core::fold::{Change, FoldValue, Keys, TreeletFolder, way};
//! use pleach_core::{Hasher, TERMINATOR, node};
//!
//! // The node on the right is known; the key on the left gets another value.
//! let right = node::tag_internal([9; 32]);
//! let mut folder = TreeletFolder::new(Hasher::BLAKE3);
//! folder.clear();
//! // The prefix is the only internal node on the way to bucket 0.
//! folder.begin((0, None), way(0), 1, |_| [TERMINATOR, right]);
//! let at = folder.bucket_of(0);
//! folder.accessed(&[0; 32], Some(FoldValue::Bytes(b"1")), Change::Put(FoldValue::Bytes(b"2")));
//! folder.bucket(at, true);
//! let treelet = folder.end();
//! folder.run();
//! let left = node::leaf(Hasher::BLAKE3, &[0; 32], &node::value_hash(Hasher::BLAKE3, b"2"));
//! assert_eq!(*folder.node(treelet), node::combine(Hasher::BLAKE3, &left, &right));
//! assert_eq!(folder.proof().siblings, [right]);
//! ```

use alloc::vec::Vec;
use core::ops::Range;

use zerocopy::IntoBytes;

use super::blocks::{
    Climb, Group, HASH_LEN, Half, Item, LEVELS, Leaves, Merged, ROUNDS, Stage, node_mut, node_of,
};
use super::hash_batch::Values;
use super::item::index32;
use super::place::Neighbours;
use super::positions::{children, index_below};
use super::{Change, Columns, FoldValue, HashId, Keys, above, heap_index, heap_position, way};
use crate::hasher::Hasher;
use crate::node::{
    Combined, Key, Node, NodeKind, TERMINATOR, ValueHash, combine_kind, kind, tag_internal,
    tag_leaf,
};
use crate::prefix::bit;

/// Buckets at that depth.
const BUCKETS: usize = 1 << LEVELS;
/// Positions above them.
const ABOVE: u64 = (1 << (BUCKETS - 1)) - 1;
/// The treelet that is being put in.
#[derive(Default)]
pub(super) struct Open {
    pub(super) floor: u16,
    /// The bits at which its levels part, and a key below it, where these are not those behind the prefix.
    pub(super) columns: Option<(Columns, Key)>,
    /// Internal positions with a block.
    inner: u64,
    /// Positions on the way to accessed keys.
    touched: u64,
    /// Positions beside the way that were not known and are computed, or were given.
    late: u64,
    /// Number of each internal position's block.
    block_of: [u32; BUCKETS - 1],
    /// The last bucket with an access.
    before: Option<u8>,
}

impl Open {
    /// The depth at which the positions of a level end.
    #[inline]
    fn end_of(&self, level: u8) -> u16 {
        match &self.columns {
            Some((columns, _)) if level > 0 => columns.end_of(level),
            _ => self.floor + u16::from(level),
        }
    }

    /// The [`heap_index`] of the position on the way to a key whose keys part at `depth`, if there is one.
    #[inline]
    pub(super) fn parting_at(&self, key: &Key, depth: u16) -> Option<u8> {
        match &self.columns {
            Some((columns, _)) => columns.parting_at(key, depth),
            None => (depth < self.floor + u16::from(LEVELS))
                .then(|| index_below(key, self.floor, depth)),
        }
    }

    /// How far a node at `depth`, in a bucket, climbs before somebody asks for it.
    #[inline]
    pub(super) fn end_above(&self, depth: u16) -> u16 {
        match &self.columns {
            Some((columns, _)) => columns.end_above(depth),
            None => depth.min(self.floor + u16::from(LEVELS)),
        }
    }
}

/// A treelet, and where its parts of the lists end; they begin where those of the treelet before end.
struct Treelet {
    node: Node,
    columns: Option<Columns>,
    inner: u64,
    learned: u64,
    /// First block of each level.
    blocks: [u32; LEVELS as usize],
    deep: u32,
    firsts: u32,
    terminals: u32,
    terminal_count: u32,
    siblings: u32,
}

/// The multiproof's parts, treelet by treelet; complete after [`TreeletFolder::run`].
#[derive(Debug, Default)]
pub struct Proof {
    /// Terminals, encoded.
    pub terminals: Vec<u8>,
    /// Siblings.
    pub siblings: Vec<Node>,
}

/// Where a treelet's parts of the [`Proof`] are.
#[derive(Clone, Debug)]
pub struct ProofPart {
    /// Bytes of the terminals.
    pub terminals: Range<usize>,
    /// Number of terminals.
    pub count: u32,
    /// Siblings.
    pub siblings: Range<usize>,
}

/// Folds treelets; the [module](self) says how. Buffers are reused.
pub struct TreeletFolder {
    pub(super) values: Values,
    pub(super) leaves: Leaves,
    /// One for each level, then one for each round.
    pub(super) stages: Vec<Stage>,
    pub(super) open: Open,
    /// Keys of the open bucket.
    pub(super) items: Vec<Item>,
    pub(super) groups: Vec<Group>,
    pub(super) merged: Vec<Merged>,
    pub(super) boundaries: Vec<u32>,
    pub(super) neighbours: Neighbours,
    done: Vec<Treelet>,
    pub(super) proof: Proof,
    /// For each accessed key: is it the first below its terminal?
    pub(super) firsts: Vec<bool>,
    pub(super) terminal_count: u32,
    /// Where a value's hash is missing in the terminals.
    pub(super) hash_holes: Vec<(u32, HashId)>,
    /// Siblings that are missing, and where they will be.
    pub(super) sibling_holes: Vec<(u32, Half)>,
    /// Siblings that are leaves of no block, and their numbers.
    pub(super) leaf_holes: Vec<(u32, u32)>,
    /// Nodes inside of buckets that are positions of the treelet.
    pub(super) deep: Vec<(u8, Half)>,
    out: Vec<[u8; 32]>,
    /// Blocks of a step of what climbs.
    pairs: Vec<[Node; 2]>,
    hashed: u64,
}

impl core::fmt::Debug for TreeletFolder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TreeletFolder")
            .field("treelets", &self.done.len())
            .field("hashed", &self.hashed)
            .finish_non_exhaustive()
    }
}

impl TreeletFolder {
    /// A folder that has no treelet.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            values: Values::new(hasher),
            leaves: Leaves::default(),
            stages: (0..ROUNDS).map(|_| Stage::default()).collect(),
            open: Open::default(),
            items: Vec::new(),
            groups: Vec::new(),
            merged: Vec::new(),
            boundaries: Vec::new(),
            neighbours: Neighbours::default(),
            done: Vec::new(),
            proof: Proof::default(),
            firsts: Vec::new(),
            terminal_count: 0,
            hash_holes: Vec::new(),
            sibling_holes: Vec::new(),
            leaf_holes: Vec::new(),
            deep: Vec::new(),
            out: Vec::new(),
            pairs: Vec::new(),
            hashed: 0,
        }
    }

    /// Its hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.values.hasher
    }

    /// Removes all treelets; the memory stays for the next use.
    pub fn clear(&mut self) {
        self.values.clear();
        self.leaves.blocks.clear();
        self.leaves.ends.clear();
        for stage in &mut self.stages {
            stage.pairs.clear();
            stage.into.clear();
            stage.climbs.clear();
        }
        self.items.clear();
        self.done.clear();
        self.proof.terminals.clear();
        self.proof.siblings.clear();
        self.firsts.clear();
        self.terminal_count = 0;
        self.hash_holes.clear();
        self.sibling_holes.clear();
        self.leaf_holes.clear();
        self.deep.clear();
    }

    /// Hash calls made since creation.
    #[inline]
    pub fn hashed(&self) -> u64 {
        self.hashed
    }

    /// Is there no treelet?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Begins a treelet whose prefix has `floor` bits and is an internal node. Where its levels do not part at the bits
    /// behind that, its columns come with it, and a key below it: all its keys, accessed ones included, agree with that
    /// in the bits between ([`Columns::agree`]). `ways` are those of the accessed
    /// buckets, `internal` the positions that are known as internal nodes: what is said of one below another node does
    /// not count. `pair` gives the two children's nodes of such a position, by the [`heap_index`] of the left one; what
    /// it gives for one that is not known does not matter.
    #[inline]
    pub fn begin(
        &mut self,
        (floor, columns): (u16, Option<(Columns, Key)>),
        ways: u64,
        internal: u64,
        pair: impl Fn(u8) -> [Node; 2],
    ) {
        debug_assert!(internal & 1 == 1, "a treelet of two keys or more");
        let mut left = ways & internal & ABOVE & !1;
        self.open = Open {
            floor,
            columns,
            inner: 1,
            touched: ways,
            block_of: [index32(self.done.len()); BUCKETS - 1],
            ..Open::default()
        };
        self.push_block(0, Half::default(), pair(1));
        self.climb_between(0, index32(self.done.len()));
        while left != 0 {
            let at = lowest(left);
            left &= left - 1;
            if self.open.inner >> ((at - 1) / 2) & 1 == 1 {
                self.open.inner |= 1 << at;
                let (level, _) = heap_position(at);
                let into = self.half_of(at);
                let block = self.push_block(usize::from(level), into, pair(2 * at + 1));
                self.open.block_of[usize::from(at)] = block;
                self.climb_between(level, block);
            }
        }
    }

    /// The node of a level's block goes up to where its position ends.
    #[inline]
    fn climb_between(&mut self, level: u8, at: u32) {
        let Some((columns, key)) = self.open.columns else { return };
        let (from, to) = (columns.parts(level), self.open.end_of(level));
        if from > to {
            self.stages[usize::from(level)].climbs.push(Climb { at, from, to, key });
        }
    }

    /// Positions beside the way: their nodes were given by pairs. Those that are not known must be given: a node
    /// by [`Self::known`], or all keys, followed by [`Self::bucket`], in any order.
    #[inline]
    pub fn beside(&self) -> u64 {
        children(self.open.inner) & !self.open.touched
    }

    /// Gives the node of a position beside the way.
    #[inline]
    pub fn known(&mut self, at: u8, node: &Node) {
        self.open.late |= 1 << at;
        let half = self.half_of(at);
        *node_mut(&mut self.stages, half) = *node;
    }

    /// The position that has the keys of a bucket: it, or one above where the known internal nodes end.
    #[inline]
    pub fn bucket_of(&self, bucket: u8) -> u8 {
        let inner = (way(bucket) & self.open.inner).count_ones();
        // As many levels as there are internal nodes above.
        #[expect(clippy::cast_possible_truncation, reason = "at most 5")]
        let level = inner as u8;
        heap_index(level, bucket >> (LEVELS - level))
    }

    /// The keys given since the last bucket are all that is below this position; is one of them accessed?
    pub fn bucket(&mut self, at: u8, accessed: bool) {
        if !accessed {
            self.open.late |= 1 << at;
        }
        let mut items = core::mem::take(&mut self.items);
        let into = self.half_of(at);
        let floor = self.open.end_of(heap_position(at).0);
        self.merge(&mut items, floor, into);
        if accessed {
            self.climb(Some(at));
            self.open.before = Some(at);
            self.emit(&items, floor);
        }
        items.clear();
        self.items = items;
    }

    /// Ends the treelet, whose accessed buckets have all been given, and gives its number.
    pub fn end(&mut self) -> usize {
        self.climb(None);
        let open = &self.open;
        let learned = children(open.inner) & (open.touched | open.late);
        let blocks = core::array::from_fn(|level| index32(self.stages[level].pairs.len()));
        self.done.push(Treelet {
            node: TERMINATOR,
            columns: open.columns.map(|(columns, _)| columns),
            inner: open.inner,
            learned,
            blocks,
            deep: index32(self.deep.len()),
            firsts: index32(self.firsts.len()),
            terminals: index32(self.proof.terminals.len()),
            terminal_count: core::mem::take(&mut self.terminal_count),
            siblings: index32(self.proof.siblings.len()),
        });
        self.done.len() - 1
    }

    /// Emits the siblings above the last bucket, up to what is also above the next.
    fn climb(&mut self, next: Option<u8>) {
        let Some(mut at) = self.open.before else { return };
        let shared = next.map_or(0, above);
        while at > 0 && shared >> ((at - 1) / 2) & 1 == 0 {
            let sibling = ((at - 1) ^ 1) + 1;
            if self.open.touched >> sibling & 1 == 0 {
                let half = self.half_of(sibling);
                if self.open.late >> sibling & 1 == 1 {
                    self.sibling_holes.push((index32(self.proof.siblings.len()), half));
                }
                self.proof.siblings.push(*node_of(&self.stages, half));
            }
            at = (at - 1) / 2;
            if let Some((columns, _)) = &self.open.columns {
                let level = heap_position(at).0;
                let between = self.open.end_of(level)..columns.parts(level);
                self.proof.siblings.extend(between.map(|_| TERMINATOR));
            }
        }
    }

    /// Where the node of a position goes, other than the prefix itself.
    #[inline]
    fn half_of(&self, at: u8) -> Half {
        let parent = (at - 1) / 2;
        let block = self.open.block_of[usize::from(parent)];
        Half { stage: u32::from(heap_position(parent).0), at: block << 1 | u32::from(at & 1 == 0) }
    }

    #[inline]
    pub(super) fn push_block(&mut self, stage: usize, into: Half, pair: [Node; 2]) -> u32 {
        let stage = &mut self.stages[stage];
        stage.pairs.push(pair);
        stage.into.push(into);
        index32(stage.pairs.len() - 1)
    }

    /// Hashes everything, from the values up, and fills the holes.
    #[inline]
    pub fn run(&mut self) {
        self.hashed += self.values.run();
        self.hash_leaves();
        for stage in (ROUNDS..self.stages.len()).chain((0..ROUNDS).rev()) {
            self.hash_stage(stage);
        }
        for (at, value) in &self.hash_holes {
            let hole = &mut self.proof.terminals[*at as usize..][..HASH_LEN];
            hole.copy_from_slice(self.values.hash(*value).as_bytes());
        }
        for (at, half) in &self.sibling_holes {
            self.proof.siblings[*at as usize] = *node_of(&self.stages, *half);
        }
    }

    fn hash_leaves(&mut self) {
        let Leaves { blocks, ends } = &mut self.leaves;
        for (block, (value, _)) in blocks.iter_mut().zip(&*ends) {
            block[32..].copy_from_slice(self.values.hash(*value).as_bytes());
        }
        let count = blocks.len();
        if count == 0 {
            return;
        }
        self.out.resize(count.max(self.out.len()), [0; 32]);
        self.values.hasher.hash64_many(blocks, &mut self.out[..count]);
        for ((_, into), hash) in ends.iter().zip(&self.out) {
            *node_mut(&mut self.stages, *into) = tag_leaf(*hash);
        }
        for (at, leaf) in &self.leaf_holes {
            self.proof.siblings[*at as usize] = tag_leaf(self.out[*leaf as usize]);
        }
        self.hashed += count as u64;
    }

    fn hash_stage(&mut self, number: usize) {
        let count = self.stages[number].pairs.len();
        if count == 0 {
            return;
        }
        let mut stage = core::mem::take(&mut self.stages[number]);
        self.out.resize(count.max(self.out.len()), [0; 32]);
        self.values
            .hasher
            .hash64_many(stage.pairs.as_bytes().as_chunks().0, &mut self.out[..count]);
        for (at, (pair, hash)) in stage.pairs.iter().zip(&self.out).enumerate() {
            let node = match combine_kind(&pair[0], &pair[1]) {
                Combined::Known(node) => node,
                Combined::Hash => tag_internal(*hash),
            };
            if number == 0 {
                self.done[at].node = node;
            } else {
                *node_mut(&mut self.stages, stage.into[at]) = node;
            }
        }
        self.hashed += count as u64;
        let Stage { into, climbs, .. } = &mut stage;
        if number == 0 {
            self.climb_on(climbs, |folder, at| &mut folder.done[at].node);
        } else {
            self.climb_on(climbs, |folder, at| node_mut(&mut folder.stages, into[at]));
        }
        self.stages[number] = stage;
    }

    /// Takes nodes of a stage up beside terminators, all of them a step at a time, each in the place that its block's
    /// node has.
    fn climb_on(&mut self, climbs: &mut Vec<Climb>, node: impl Fn(&mut Self, usize) -> &mut Node) {
        let mut pairs = core::mem::take(&mut self.pairs);
        loop {
            // A leaf or a terminator is the node of all positions above it.
            climbs.retain(|climb| {
                climb.from > climb.to && kind(node(self, climb.at as usize)) == NodeKind::Internal
            });
            if climbs.is_empty() {
                break;
            }
            pairs.clear();
            pairs.extend(climbs.iter_mut().map(|climb| {
                climb.from -= 1;
                let node = *node(self, climb.at as usize);
                if bit(&climb.key, climb.from) { [TERMINATOR, node] } else { [node, TERMINATOR] }
            }));
            self.out.resize(pairs.len().max(self.out.len()), [0; 32]);
            self.values
                .hasher
                .hash64_many(pairs.as_bytes().as_chunks().0, &mut self.out[..pairs.len()]);
            let out = core::mem::take(&mut self.out);
            for (climb, hash) in climbs.iter().zip(&out) {
                *node(self, climb.at as usize) = tag_internal(*hash);
            }
            self.out = out;
            self.hashed += pairs.len() as u64;
        }
        self.pairs = pairs;
    }

    /// The bits at which a treelet's levels part, where these are not those behind its prefix.
    #[inline]
    pub fn columns(&self, treelet: usize) -> Option<Columns> {
        self.done[treelet].columns
    }

    /// The new node of a treelet.
    #[inline]
    pub fn node(&self, treelet: usize) -> &Node {
        &self.done[treelet].node
    }

    /// The hash with a number that [`Keys::accessed`] gave; valid after [`Self::run`].
    #[inline]
    pub fn value_hash(&self, id: HashId) -> &ValueHash {
        self.values.hash(id)
    }

    /// For each accessed key of a treelet, in order: is it the first below its terminal?
    #[inline]
    pub fn first_of_terminal(&self, treelet: usize) -> &[bool] {
        let [from, to] = self.ends(treelet, |treelet| treelet.firsts);
        &self.firsts[from..to]
    }

    /// The multiproof.
    #[inline]
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// The multiproof, for a caller who appends to it.
    #[inline]
    pub fn proof_mut(&mut self) -> &mut Proof {
        &mut self.proof
    }

    /// A treelet's part of the multiproof.
    #[inline]
    pub fn proof_part(&self, treelet: usize) -> ProofPart {
        let [from, to] = self.ends(treelet, |treelet| treelet.terminals);
        let [first, last] = self.ends(treelet, |treelet| treelet.siblings);
        let count = self.done[treelet].terminal_count;
        ProofPart { terminals: from..to, count, siblings: first..last }
    }

    /// Gives the nodes inside a treelet that were computed or given, with the [`heap_index`] of each.
    pub fn learned(&self, treelet: usize, mut each: impl FnMut(u8, &Node)) {
        let Treelet { inner, learned, .. } = self.done[treelet];
        let before = treelet.checked_sub(1).map(|before| self.done[before].blocks);
        let mut blocks = before.unwrap_or_default();
        let mut left = inner;
        while left != 0 {
            let at = lowest(left);
            left &= left - 1;
            let level = usize::from(heap_position(at).0);
            let pair = &self.stages[level].pairs[blocks[level] as usize];
            blocks[level] += 1;
            for (child, node) in (2 * at + 1..).zip(pair) {
                if learned >> child & 1 == 1 {
                    each(child, node);
                }
            }
        }
        let [from, to] = self.ends(treelet, |treelet| treelet.deep);
        for (at, half) in &self.deep[from..to] {
            each(*at, node_of(&self.stages, *half));
        }
    }

    /// Where a treelet's part of a list begins and ends.
    fn ends(&self, treelet: usize, end: impl Fn(&Treelet) -> u32) -> [usize; 2] {
        let from = treelet.checked_sub(1).map_or(0, |before| end(&self.done[before]));
        [from as usize, end(&self.done[treelet]) as usize]
    }
}

impl Keys for TreeletFolder {
    #[inline]
    fn unaccessed(&mut self, key: &Key, value: FoldValue<'_>) {
        let hash = self.values.add(value, &mut self.hashed);
        self.push_item(key, (hash, hash), false);
    }

    #[inline]
    fn accessed(&mut self, key: &Key, old: Option<FoldValue<'_>>, change: Change<'_>) -> HashId {
        let hashes = self.values.change(old, change, &mut self.hashed);
        self.push_item(key, (hashes.old, hashes.new), true);
        hashes.put
    }
}

/// The lowest position of a mask that has one.
#[inline]
fn lowest(positions: u64) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
    let at = positions.trailing_zeros() as u8;
    at
}

#[cfg(test)]
mod tests;
