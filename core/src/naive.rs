//! The slow, obvious trie: the definitions of `docs/trie.md` and `docs/proofs.md` as plain
//! recursion over a sorted list of pairs.
//!
//! It is the oracle for everything in this project that is fast, so nothing here is fast: every
//! call starts from the pairs, nothing is cached, and bits are looked at one by one through
//! `bitvec`.
//!
//! ```
//! use pleach_core::naive::Naive;
//! use pleach_core::node::value_hash;
//! use pleach_core::{Blake3, TERMINATOR};
//!
//! let mut trie = Naive::new();
//! assert_eq!(trie.root::<Blake3>(), TERMINATOR);
//! trie.set([7; 32], Some(value_hash::<Blake3>(b"seven")));
//! assert_ne!(trie.root::<Blake3>(), TERMINATOR);
//! trie.set([7; 32], None);
//! assert_eq!(trie.root::<Blake3>(), TERMINATOR);
//! ```

use alloc::{collections::BTreeMap, vec::Vec};

use bitvec::{order::Msb0, slice::BitSlice, view::BitView as _};

use crate::{
    hasher::Hasher,
    node::{self, Key, Node, TERMINATOR, ValueHash},
    prefix::Prefix,
    proof::{Access, MultiProof, Op, PathProof, Terminal, Witness},
};

/// A set of pairs of key and value hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naive {
    pairs: BTreeMap<Key, ValueHash>,
}

type Pair = (Key, ValueHash);

impl Naive {
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
    pub fn root<H: Hasher>(&self) -> Node {
        self.node::<H>(&Prefix::ROOT)
    }

    /// The node of the subtrie at `prefix`, with the keys below it as the whole set.
    pub fn node<H: Hasher>(&self, prefix: &Prefix) -> Node {
        subtrie::<H>(&self.below(prefix), usize::from(prefix.len()))
    }

    /// The path proof of a key, present or absent.
    pub fn path<H: Hasher>(&self, key: &Key) -> PathProof {
        let MultiProof { terminals, mut siblings } = self.multi::<H>(&[*key]);
        siblings.reverse();
        PathProof { terminal: terminals[0], siblings }
    }

    /// The multiproof of keys in any order.
    pub fn multi<H: Hasher>(&self, keys: &[Key]) -> MultiProof {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let mut proof = MultiProof::default();
        if !keys.is_empty() {
            open::<H>(&self.below(&Prefix::ROOT), &keys, 0, &mut proof);
        }
        proof
    }

    /// The witness of a batch on this set; the operations in any order, each key once.
    pub fn witness<H: Hasher>(&self, ops: &[Op]) -> Witness {
        let mut ops = ops.to_vec();
        ops.sort_unstable_by_key(|op| op.key);
        let keys: Vec<Key> = ops.iter().map(|op| op.key).collect();
        Witness { proof: self.multi::<H>(&keys), ops }
    }

    fn below(&self, prefix: &Prefix) -> Vec<Pair> {
        self.pairs
            .iter()
            .filter(|(key, _)| bits(key)[..usize::from(prefix.len())] == *prefix_bits(prefix))
            .map(|(key, value_hash)| (*key, *value_hash))
            .collect()
    }
}

impl FromIterator<Pair> for Naive {
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
fn subtrie<H: Hasher>(pairs: &[Pair], depth: usize) -> Node {
    match pairs {
        [] => TERMINATOR,
        [(key, value_hash)] => node::tag_leaf(H::hash(&[*key, value_hash.to_bytes()].concat())),
        _ => {
            let (left, right) = pairs.split_at(pairs.partition_point(|(k, _)| !bits(k)[depth]));
            let left = subtrie::<H>(left, depth + 1);
            let right = subtrie::<H>(right, depth + 1);
            node::tag_internal(H::hash(&[left.to_bytes(), right.to_bytes()].concat()))
        }
    }
}

/// Opens the paths to `keys` (at least one), all of which share their first `depth` bits with all
/// of `pairs`.
fn open<H: Hasher>(pairs: &[Pair], keys: &[Key], depth: usize, proof: &mut MultiProof) {
    let depth_bits = u16::try_from(depth).expect("a key has 256 bits");
    match pairs {
        [] => {
            let prefix = Prefix::new(&keys[0], depth_bits);
            proof.terminals.push(Terminal::Terminator { prefix });
        }
        [(key, value_hash)] => {
            let (key, value_hash) = (*key, *value_hash);
            proof.terminals.push(Terminal::Leaf { depth: depth_bits, key, value_hash });
        }
        _ => {
            let (left, right) = pairs.split_at(pairs.partition_point(|(k, _)| !bits(k)[depth]));
            let (left_keys, right_keys) = keys.split_at(keys.partition_point(|k| !bits(k)[depth]));
            match (left_keys, right_keys) {
                (left_keys, []) => {
                    open::<H>(left, left_keys, depth + 1, proof);
                    proof.siblings.push(subtrie::<H>(right, depth + 1));
                }
                ([], right_keys) => {
                    open::<H>(right, right_keys, depth + 1, proof);
                    proof.siblings.push(subtrie::<H>(left, depth + 1));
                }
                (left_keys, right_keys) => {
                    open::<H>(left, left_keys, depth + 1, proof);
                    open::<H>(right, right_keys, depth + 1, proof);
                }
            }
        }
    }
}
