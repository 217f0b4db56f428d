//! The slow, obvious trie: the definitions of `docs/trie.md` and `docs/proofs.md` as plain
//! recursion over a sorted list of pairs.
//!
//! It is the oracle for everything in this project that is fast, so nothing here is fast: every call starts from the
//! pairs, nothing is cached, and bits are looked at one by one through `bitvec`.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::node::value_hash;
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! let mut trie = NaiveTrie::new();
//! assert_eq!(trie.root(Hasher::BLAKE3), TERMINATOR);
//! trie.set([7; 32], Some(value_hash(Hasher::BLAKE3, b"seven")));
//! assert_ne!(trie.root(Hasher::BLAKE3), TERMINATOR);
//! trie.set([7; 32], None);
//! assert_eq!(trie.root(Hasher::BLAKE3), TERMINATOR);
//! ```

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::RangeInclusive;

use bitvec::{order::Msb0, slice::BitSlice, view::BitView as _};

use crate::{
    hasher::Hasher,
    node::{self, Key, Node, TERMINATOR, ValueHash},
    prefix::Prefix,
    proof::{
        Access, Op, ProofKind, Terminal,
        multi::MultiProof,
        path::PathProof,
        terminal::terminal_encode,
        wire::{SectionSizes, header},
        witness::DecodedWitness,
    },
};

/// A set of pairs of key and value hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NaiveTrie {
    pairs: BTreeMap<Key, ValueHash>,
}

type Pair = (Key, ValueHash);

impl NaiveTrie {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value hash of `key`.
    pub fn get(&self, key: &Key) -> Option<&ValueHash> {
        self.pairs.get(key)
    }

    /// Puts a pair, or deletes a key.
    pub fn set(&mut self, key: Key, value_hash: Option<ValueHash>) {
        match value_hash {
            Some(value_hash) => self.pairs.insert(key, value_hash),
            None => self.pairs.remove(&key),
        };
    }

    /// Applies the writes of these operations.
    pub fn apply(&mut self, ops: &[Op]) {
        for op in ops {
            if let Some(written) = op.access.written() {
                self.set(op.key, written.copied());
            }
        }
    }

    /// The pairs in key order.
    pub fn pairs(&self) -> &BTreeMap<Key, ValueHash> {
        &self.pairs
    }

    /// The root of the set.
    pub fn root(&self, hasher: Hasher) -> Node {
        self.node(hasher, &Prefix::ROOT)
    }

    /// The node of the subtrie at `prefix`, with the keys below it as the whole set.
    pub fn node(&self, hasher: Hasher, prefix: &Prefix) -> Node {
        subtrie(hasher, &self.below(prefix), usize::from(prefix.len()))
    }

    /// The path proof of a key, present or absent.
    pub fn path(&self, hasher: Hasher, key: &Key) -> PathProof {
        let MultiProof { terminals, mut siblings } = self.multi(hasher, &[*key]);
        siblings.reverse();
        PathProof { terminal: terminals[0], siblings }
    }

    /// The multiproof of keys in any order.
    pub fn multi(&self, hasher: Hasher, keys: &[Key]) -> MultiProof {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let mut proof = MultiProof::default();
        if !keys.is_empty() {
            open(hasher, &self.below(&Prefix::ROOT), &keys, 0, &mut proof);
        }
        proof
    }

    /// The witness of a batch on this set; the operations in any order, each key once.
    pub fn witness(&self, hasher: Hasher, ops: &[Op]) -> DecodedWitness {
        let mut ops = ops.to_vec();
        ops.sort_unstable_by_key(|op| op.key);
        let keys: Vec<Key> = ops.iter().map(|op| op.key).collect();
        DecodedWitness { proof: self.multi(hasher, &keys), ops }
    }

    /// The encoded proof of all pairs from `first` to `last`.
    ///
    /// # Panics
    /// When it is too large for the format.
    pub fn range(&self, hasher: Hasher, first: &Key, last: &Key) -> Vec<u8> {
        let mut proof = MultiProof::default();
        tile(hasher, &self.below(&Prefix::ROOT), &Prefix::ROOT, &(*first..=*last), &mut proof);
        let mut bytes = proof.encode(hasher).expect("fits the format");
        bytes[5] = ProofKind::Range as u8;
        bytes
    }

    /// The keys from `first` to `last` that have another value in `to`, or are in one set only.
    pub fn changed(&self, to: &Self, first: &Key, last: &Key) -> Vec<Key> {
        let keys: BTreeSet<&Key> = self.pairs.keys().chain(to.pairs.keys()).collect();
        let changed = |key: &&Key| self.get(key) != to.get(key) && (first..=last).contains(key);
        keys.into_iter().filter(changed).copied().collect()
    }

    /// The encoded proof of what changed from `first` to `last` between this set and `to`.
    pub fn change(&self, hasher: Hasher, to: &Self, first: &Key, last: &Key) -> Vec<u8> {
        let mut keys = self.changed(to, first, last);
        keys.extend([first, last]);
        self.change_of(hasher, to, &keys, first, last)
    }

    /// The same with these keys opened, whichever changed: a false proof, if they are not the changed ones.
    ///
    /// # Panics
    /// When it is too large for the format, or there are no keys.
    pub fn change_of(
        &self,
        hasher: Hasher,
        to: &Self,
        keys: &[Key],
        first: &Key,
        last: &Key,
    ) -> Vec<u8> {
        let mut both = BothSides::default();
        let sides = [self, to].map(|set| Some(set.below(&Prefix::ROOT)));
        open_both(hasher, &sides, keys, &Prefix::ROOT, &(*first..=*last), &mut both);
        let [before, after] = both.terminals;
        let records = |terminals: &[Terminal]| {
            let mut bytes = Vec::new();
            for terminal in terminals {
                terminal_encode(&mut bytes, terminal);
            }
            bytes
        };
        let (mut second, count) = (records(&after), |len: usize| u32::try_from(len).expect("fits"));
        for bits in both.flags.chunks(8) {
            second.push(bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)));
        }
        let sizes = SectionSizes {
            terminals: count(before.len()),
            ops: count(after.len()),
            siblings: count(both.siblings.len()),
            terminal_bytes: count(records(&before).len()),
            op_bytes: count(second.len()),
        };
        let header = header(hasher, ProofKind::Change, &sizes);
        [&header, &records(&before)[..], &second, Node::bytes_of(&both.siblings)].concat()
    }

    fn below(&self, prefix: &Prefix) -> Vec<Pair> {
        self.pairs
            .iter()
            .filter(|(key, _)| bits(key)[..usize::from(prefix.len())] == *prefix_bits(prefix))
            .map(|(key, value_hash)| (*key, *value_hash))
            .collect()
    }
}

impl FromIterator<Pair> for NaiveTrie {
    fn from_iter<I: IntoIterator<Item = Pair>>(pairs: I) -> Self {
        Self { pairs: pairs.into_iter().collect() }
    }
}

/// A read of each key, for a witness that only proves.
pub fn reads(keys: &[Key]) -> Vec<Op> {
    keys.iter().map(|key| Op { key: *key, access: Access::Read }).collect()
}

fn bits(key: &Key) -> &BitSlice<u8, Msb0> {
    key.view_bits()
}

fn prefix_bits(prefix: &Prefix) -> &BitSlice<u8, Msb0> {
    &bits(prefix.first_key())[..usize::from(prefix.len())]
}

/// The node over `pairs`, all of which share their first `depth` bits.
fn subtrie(hasher: Hasher, pairs: &[Pair], depth: usize) -> Node {
    match pairs {
        [] => TERMINATOR,
        [(key, value_hash)] => node::tag_leaf(hasher.hash(&[*key, value_hash.to_bytes()].concat())),
        _ => {
            let (left, right) = pairs.split_at(pairs.partition_point(|(k, _)| !bits(k)[depth]));
            let left = subtrie(hasher, left, depth + 1);
            let right = subtrie(hasher, right, depth + 1);
            node::tag_internal(hasher.hash(&[left.to_bytes(), right.to_bytes()].concat()))
        }
    }
}

/// Opens the paths to `keys` (at least one), all of which share their first `depth` bits with all of `pairs`.
fn open(hasher: Hasher, pairs: &[Pair], keys: &[Key], depth: usize, proof: &mut MultiProof) {
    match pairs {
        [] | [_] => {
            let depth = u16::try_from(depth).expect("a key has 256 bits");
            proof.terminals.push(terminal(pairs, &Prefix::new(&keys[0], depth)));
        }
        _ => {
            let (left, right) = pairs.split_at(pairs.partition_point(|(k, _)| !bits(k)[depth]));
            let (left_keys, right_keys) = keys.split_at(keys.partition_point(|k| !bits(k)[depth]));
            match (left_keys, right_keys) {
                (left_keys, []) => {
                    open(hasher, left, left_keys, depth + 1, proof);
                    proof.siblings.push(subtrie(hasher, right, depth + 1));
                }
                ([], right_keys) => {
                    open(hasher, right, right_keys, depth + 1, proof);
                    proof.siblings.push(subtrie(hasher, left, depth + 1));
                }
                (left_keys, right_keys) => {
                    open(hasher, left, left_keys, depth + 1, proof);
                    open(hasher, right, right_keys, depth + 1, proof);
                }
            }
        }
    }
}

/// Opens all of the range below `prefix`, where `pairs` are.
fn tile(
    hasher: Hasher,
    pairs: &[Pair],
    prefix: &Prefix,
    range: &RangeInclusive<Key>,
    proof: &mut MultiProof,
) {
    if is_outside(prefix, range) {
        proof.siblings.push(subtrie(hasher, pairs, usize::from(prefix.len())));
    } else if pairs.len() < 2 {
        proof.terminals.push(terminal(pairs, prefix));
    } else {
        let right = pairs.partition_point(|(key, _)| prefix.child(false).covers(key));
        let mut children =
            [(&pairs[..right], prefix.child(false)), (&pairs[right..], prefix.child(true))];
        if children[0].1.last_key() < *range.start() {
            // A sibling comes after what climbs past it.
            children.reverse();
        }
        for (pairs, child) in &children {
            tile(hasher, pairs, child, range, proof);
        }
    }
}

fn is_outside(prefix: &Prefix, range: &RangeInclusive<Key>) -> bool {
    prefix.last_key() < *range.start() || range.end() < prefix.first_key()
}

/// Where the walk to the keys below `prefix` ends, if there is at most one pair.
fn terminal(pairs: &[Pair], prefix: &Prefix) -> Terminal {
    match pairs.first() {
        None => Terminal::Terminator { prefix: *prefix },
        Some((key, value_hash)) => {
            Terminal::Leaf { depth: prefix.len(), key: *key, value_hash: *value_hash }
        }
    }
}

/// The two sides of a change proof.
#[derive(Default)]
struct BothSides {
    terminals: [Vec<Terminal>; 2],
    siblings: Vec<Node>,
    /// For each pair of siblings outside of the range: true when they differ.
    flags: Vec<bool>,
}

/// Opens the paths to `keys` (at least one) below `prefix` in two sets; `None` for a set whose terminal is above.
fn open_both(
    hasher: Hasher,
    sides: &[Option<Vec<Pair>>; 2],
    keys: &[Key],
    prefix: &Prefix,
    range: &RangeInclusive<Key>,
    both: &mut BothSides,
) {
    let mut sides = sides.clone();
    for (side, terminals) in sides.iter_mut().zip(&mut both.terminals) {
        if let Some(pairs) = side.take_if(|pairs| pairs.len() < 2) {
            terminals.push(terminal(&pairs, prefix));
        }
    }
    if sides.iter().all(Option::is_none) {
        return;
    }
    let part = |child: Prefix| {
        let pairs = |side: &Option<Vec<Pair>>| {
            side.as_ref().map(|pairs| {
                pairs.iter().filter(|(key, _)| child.covers(key)).copied().collect::<Vec<Pair>>()
            })
        };
        let keys: Vec<Key> = keys.iter().filter(|key| child.covers(key)).copied().collect();
        (child, [pairs(&sides[0]), pairs(&sides[1])], keys)
    };
    let mut children = [part(prefix.child(false)), part(prefix.child(true))];
    if children[0].2.is_empty() {
        children.reverse();
    }
    for (child, sides, keys) in children {
        if !keys.is_empty() {
            open_both(hasher, &sides, &keys, &child, range, both);
            continue;
        }
        let node = |pairs: &Vec<Pair>| subtrie(hasher, pairs, usize::from(child.len()));
        match sides.map(|side| side.as_ref().map(node)) {
            [Some(before), Some(after)] => {
                both.siblings.push(before);
                if before != after {
                    both.siblings.push(after);
                }
                if is_outside(&child, range) {
                    both.flags.push(before != after);
                }
            }
            one => both.siblings.extend(one.into_iter().flatten()),
        }
    }
}
