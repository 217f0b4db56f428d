//! The keys that a chain of overlays changes: a trie over four bits of the key at a time, in parts by layer.
//!
//! A layer's trie is that of the layer below it, with copies of the branches above its own keys; all else is named by
//! reference to a layer and a place in it. So a lookup through any number of layers takes as many steps as through one,
//! a layer takes memory for its own changes only, and no lock is needed: a built trie is never written again.
//!
//! Invariants:
//! * a reference names the newest layer that changed anything below it, so the references in a branch show, without
//!   reading on, which layer changed what below a prefix last;
//! * a reference to a committed layer, which is not in the chain any more, counts as absent: all below it is in the
//!   commit;
//! * a branch has at least two children, any number of which may be absent by now;
//! * each branch of a layer has a change of that layer below it.
//!
//! ```text
//! branch, in words:   which children (16 bits), depth (16), number of a change below it (32)
//!                     | a reference for each child
//! reference:          layer (24 bits) | hint (8) | leaf? (1) | number of the change, or word of the branch (31)
//! ```
//!
//! *Hints* spare a lookup reads of memory without its key, and most lookups find nothing. The hint of a leaf is a
//! fingerprint of its key. The hint of a branch is a bit for each two children, set if it has one of them; where keys
//! share bits that the branch skips, all are set: a lookup cannot know then which bits the branch divides by.

use std::ops::Range;

use pleach_core::prefix::common_len;
use pleach_core::{Key, Prefix};

/// Bits that a branch divides by.
const STEP: u16 = 4;
/// Children that a branch can have.
const WIDTH: usize = 1 << STEP;
/// Steps of a key.
const LEAF_DEPTH: u16 = 256 / STEP;

/// Number of a layer in its chain: one more than that of the layer below, and 0 after the last. No chain has as many
/// layers as there are numbers: each has a list of all below it, and the lists would take petabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerNo(u32);

impl LayerNo {
    const MASK: u32 = (1 << 24) - 1;

    /// A number, without the bits beyond its 24.
    pub(super) const fn new(number: u32) -> Self {
        Self(number & Self::MASK)
    }

    pub(super) const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// How many layers `self` is above `older`; a large number when it is below.
    #[inline]
    pub(super) const fn layers_above(self, older: Self) -> u32 {
        self.0.wrapping_sub(older.0) & Self::MASK
    }
}

/// A byte that depends on all of a key, so that most leaves of other keys are passed over without reading them.
#[inline]
fn fingerprint(key: &Key) -> u8 {
    let words = key.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let sum = words.fold(0, |sum: u64, word| sum.rotate_left(23) ^ word);
    let [.., top] = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    top
}

/// A branch or a change of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyTrieRef(u64);

impl KeyTrieRef {
    const LEAF: u64 = 1 << 31;
    const HINT: u32 = 32;
    const ANY: u8 = u8::MAX;

    fn new(layer: LayerNo, hint: u8, at: usize) -> Self {
        assert!((at as u64) < Self::LEAF, "an overlay's index is smaller than 16 GiB");
        Self(u64::from(layer.0) << 40 | u64::from(hint) << Self::HINT | at as u64)
    }

    fn leaf(layer: LayerNo, change: usize, key: &Key) -> Self {
        Self(Self::new(layer, fingerprint(key), change).0 | Self::LEAF)
    }

    /// A branch with these children.
    fn branch(layer: LayerNo, at: usize, bitmap: u16) -> Self {
        let pairs = (0..8).filter(|pair| bitmap >> (2 * pair) & 0b11 != 0);
        Self::new(layer, pairs.map(|pair| 1 << pair).sum(), at)
    }

    /// The same reference with a branch's hint all set, where it is unknown which bits of a key the branch divides by.
    fn with_any_hint(self) -> Self {
        if self.is_leaf() { self } else { Self(self.0 | u64::from(Self::ANY) << Self::HINT) }
    }

    #[inline]
    pub(super) fn layer(self) -> LayerNo {
        LayerNo((self.0 >> 40) as u32)
    }

    /// False when the target cannot be below the reference. Of a leaf, `sought` is the key's fingerprint; of a branch,
    /// the bits by which it divides if it skips none.
    #[inline]
    fn can_match(self, sought: usize) -> bool {
        let hint = (self.0 >> Self::HINT & 0xff) as usize;
        if self.is_leaf() { hint == sought } else { hint >> (sought / 2) & 1 == 1 }
    }

    #[inline]
    fn is_leaf(self) -> bool {
        self.0 & Self::LEAF != 0
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 & (Self::LEAF - 1)) as usize
    }
}

/// The layers that references name.
pub(super) trait LayerLookup {
    /// The trie of a layer; `None` when it is not of this chain.
    fn trie(&self, layer: LayerNo) -> Option<&KeyTrie>;

    /// The key of a layer's change. The layer is of this chain.
    fn key(&self, layer: LayerNo, change: usize) -> &Key;

    /// How many layers are above this one; more than the chain has when the layer is not in it.
    fn age(&self, layer: LayerNo) -> u32;
}

/// A layer's part of the trie.
#[derive(Debug, Default)]
pub(super) struct KeyTrie {
    words: Vec<u64>,
    root: Option<KeyTrieRef>,
}

/// A branch, as stored in its layer's words.
#[derive(Clone, Copy)]
struct Branch<'a>(&'a [u64]);

impl<'a> Branch<'a> {
    #[inline]
    fn bitmap(self) -> u64 {
        self.0[0] & 0xffff
    }

    /// Number of a change of the branch's layer, below the branch.
    fn change(self) -> usize {
        (self.0[0] >> 32) as usize
    }

    /// Steps of a key above the branch.
    #[inline]
    fn depth(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "it was a depth, of 6 bits")]
        let depth = (self.0[0] >> 16) as u16;
        depth
    }

    /// The child for these bits.
    #[inline]
    fn child(self, bits: usize) -> Option<KeyTrieRef> {
        let bitmap = self.bitmap();
        let before = bitmap & ((1 << bits) - 1);
        (bitmap >> bits & 1 == 1).then(|| KeyTrieRef(self.0[1 + before.count_ones() as usize]))
    }

    fn children(self) -> impl Iterator<Item = (usize, KeyTrieRef)> + 'a {
        (0..WIDTH).filter_map(move |bits| Some((bits, self.child(bits)?)))
    }
}

/// The bits of a key by which a branch of this depth divides.
#[inline]
fn bits_at(key: &Key, depth: u16) -> usize {
    let byte = key[usize::from(depth / 2)];
    usize::from(if depth.is_multiple_of(2) { byte >> STEP } else { byte & 0xf })
}

impl KeyTrie {
    /// The trie of layer `number`, with the sorted keys of its changes, over the layers below, whose newest trie is
    /// `below`.
    pub(super) fn build(
        below: Option<&Self>,
        layers: &impl LayerLookup,
        number: LayerNo,
        keys: &[&Key],
    ) -> Self {
        let below = below.and_then(|below| below.root);
        if keys.is_empty() {
            return Self { words: Vec::new(), root: below };
        }
        // About as many words as evenly spread keys take.
        let words = Vec::with_capacity(keys.len() * 4);
        let mut builder = KeyTrieBuilder { layers, number, keys, words };
        let root = builder.merge(below, 0..keys.len(), 0);
        let mut words = builder.words;
        words.shrink_to_fit();
        Self { words, root: Some(root) }
    }

    /// Bytes of the trie.
    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    #[inline]
    fn branch(&self, at: usize) -> Branch<'_> {
        Branch(&self.words[at..])
    }

    /// The newest change of a key: layer, and number of the change there.
    #[inline]
    pub(super) fn find(&self, layers: &impl LayerLookup, key: &Key) -> Option<(LayerNo, usize)> {
        let mut at = self.root?;
        let mut depth = 0;
        loop {
            let sought = if at.is_leaf() { fingerprint(key).into() } else { bits_at(key, depth) };
            if !at.can_match(sought) {
                return None;
            }
            let trie = layers.trie(at.layer())?;
            if at.is_leaf() {
                return (layers.key(at.layer(), at.index()) == key)
                    .then(|| (at.layer(), at.index()));
            }
            let branch = trie.branch(at.index());
            at = branch.child(bits_at(key, branch.depth()))?;
            depth = branch.depth() + 1;
        }
    }

    /// The newest layer that changed anything below a prefix.
    pub(super) fn newest_below(
        &self,
        layers: &impl LayerLookup,
        prefix: &Prefix,
    ) -> Option<LayerNo> {
        let mut newest: Option<LayerNo> = None;
        self.visit_covering(layers, prefix, |at| {
            if newest.is_none_or(|known| layers.age(at.layer()) < layers.age(known)) {
                newest = Some(at.layer());
            }
        });
        newest
    }

    /// Calls `visit` with the newest change of each key below a prefix, in order of the keys.
    pub(super) fn visit_below(
        &self,
        layers: &impl LayerLookup,
        prefix: &Prefix,
        mut visit: impl FnMut(LayerNo, usize),
    ) {
        self.visit_covering(layers, prefix, |at| visit_all(layers, at, &mut visit));
    }

    /// Calls `visit` with references that cover all changes below a prefix, in order, and no others.
    fn visit_covering(
        &self,
        layers: &impl LayerLookup,
        prefix: &Prefix,
        mut visit: impl FnMut(KeyTrieRef),
    ) {
        let Some(mut at) = self.root else { return };
        let first = prefix.first_key();
        loop {
            let Some(trie) = layers.trie(at.layer()) else { return };
            if at.is_leaf() {
                if prefix.covers(layers.key(at.layer(), at.index())) {
                    visit(at);
                }
                return;
            }
            let branch = trie.branch(at.index());
            let depth = branch.depth() * STEP;
            // The bits that a branch skips are compared at the end: all keys below it share them.
            let path = || layers.key(at.layer(), branch.change());
            if depth >= prefix.len() {
                if prefix.covers(path()) {
                    visit(at);
                }
                return;
            }
            let bits = bits_at(first, branch.depth());
            if depth + STEP > prefix.len() {
                if common_len(path(), first) < depth {
                    return;
                }
                // The prefix ends among the bits of this branch.
                let width = 1 << (depth + STEP - prefix.len());
                let children = (bits..bits + width).filter_map(|bits| branch.child(bits));
                children.filter(|child| layers.trie(child.layer()).is_some()).for_each(visit);
                return;
            }
            let Some(child) = branch.child(bits) else { return };
            at = child;
        }
    }
}

/// Visits all changes below a reference, in order. The recursion is no deeper than a key has steps.
fn visit_all(layers: &impl LayerLookup, at: KeyTrieRef, visit: &mut impl FnMut(LayerNo, usize)) {
    let Some(trie) = layers.trie(at.layer()) else { return };
    if at.is_leaf() {
        return visit(at.layer(), at.index());
    }
    for (_, child) in trie.branch(at.index()).children() {
        visit_all(layers, child, visit);
    }
}

/// Builds a layer's part of the trie.
struct KeyTrieBuilder<'a, L> {
    layers: &'a L,
    number: LayerNo,
    keys: &'a [&'a Key],
    words: Vec<u64>,
}

impl<L: LayerLookup> KeyTrieBuilder<'_, L> {
    /// Merges the layer's own keys of this non-empty range with what is below; all share the first `shared` steps.
    fn merge(&mut self, below: Option<KeyTrieRef>, own: Range<usize>, shared: u16) -> KeyTrieRef {
        let (first, last) = (self.keys[own.start], self.keys[own.end - 1]);
        let mut depth = common_len(first, last) / STEP;
        let mut children = [None; WIDTH];
        if let Some(below) = below
            && let Some(trie) = self.layers.trie(below.layer())
        {
            let branch = (!below.is_leaf()).then(|| trie.branch(below.index()));
            let ends = branch.map_or(LEAF_DEPTH, Branch::depth);
            let change = branch.map_or(below.index(), Branch::change);
            // A branch that skips nothing shares the path to it.
            let path = (ends > shared).then(|| self.layers.key(below.layer(), change));
            depth = depth.min(path.map_or(ends, |path| common_len(first, path) / STEP));
            match (branch.filter(|_| depth >= ends), path) {
                (Some(branch), _) => {
                    depth = ends;
                    let live = |child: &KeyTrieRef| self.layers.trie(child.layer()).is_some();
                    for (bits, child) in branch.children().filter(|(_, child)| live(child)) {
                        children[bits] = Some(child);
                    }
                }
                (None, Some(path)) if depth < LEAF_DEPTH => {
                    children[bits_at(path, depth)] = Some(below.with_any_hint());
                }
                // The same key, changed again.
                (None, _) => {}
            }
        }
        if depth == LEAF_DEPTH {
            return KeyTrieRef::leaf(self.number, own.start, first);
        }
        let mut at = own.start;
        while at < own.end {
            let bits = bits_at(self.keys[at], depth);
            let same = |key: &&Key| bits_at(key, depth) == bits;
            let end = at + self.keys[at..own.end].partition_point(same);
            children[bits] = Some(self.merge(children[bits], at..end, depth + 1));
            at = end;
        }
        let made = self.push(depth, own.start, &children);
        if depth == shared { made } else { made.with_any_hint() }
    }

    /// Adds a branch, with the number of a change below it. Returns the child itself where there is only one.
    fn push(
        &mut self,
        depth: u16,
        change: usize,
        children: &[Option<KeyTrieRef>; WIDTH],
    ) -> KeyTrieRef {
        let mut present = children.iter().flatten();
        if let (Some(only), None) = (present.next(), present.next()) {
            return only.with_any_hint();
        }
        let at = self.words.len();
        let bits = |(bits, child): (usize, &Option<KeyTrieRef>)| u16::from(child.is_some()) << bits;
        let bitmap: u16 = children.iter().enumerate().map(bits).sum();
        let change = u64::try_from(change).expect("smaller than a reference's");
        self.words.push(u64::from(bitmap) | u64::from(depth) << 16 | change << 32);
        self.words.extend(children.iter().flatten().map(|child| child.0));
        KeyTrieRef::branch(self.number, at, bitmap)
    }
}
