//! The roots of all namespaces, and the one root over them.
//!
//! A database has a trie for each of its namespaces. The root *over all* is the root, by the same rules, of a small
//! trie: its key is the namespace's byte and 31 zero bytes, its value hash is the namespace's root as it is. A
//! namespace that exists and is empty has the [terminator](crate::TERMINATOR) as its root, so 32 zero bytes as its
//! value hash; one that does not exist has no leaf. Two keys differ in their first byte, so nothing is deeper than 8.
//!
//! ```
//! use pleach_core::proof::{Lookup, path};
//! use pleach_core::proof::roots::{self, NamespaceRoots};
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! let roots = NamespaceRoots::from_iter([(0, [7; 32].into()), (9, TERMINATOR)]);
//! let over_all = roots.over_all(Hasher::BLAKE3);
//!
//! let verified = path::verify(Hasher::BLAKE3, &roots.prove(Hasher::BLAKE3, 9)?, &over_all)?;
//! assert_eq!(verified.get(&roots::namespace_key(9)), Lookup::Present([0; 32].into()));
//! assert_eq!(roots::namespace_of(&roots::namespace_key(9)), Some(9));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::{collections::BTreeMap, vec::Vec};

use super::{
    change,
    error::{BuildError, EncodeError},
    multi::MultiProof,
    op::{Access, Op},
    path::PathProof,
    terminal::Terminal,
    walk::{LeafBatch, fold_leaves},
    witness::DecodedWitness,
};
use crate::{
    hasher::Hasher,
    node::{Key, Node},
    prefix::{self, Prefix},
};

/// Deepest node of the trie of roots.
pub(super) const MAX_DEPTH: u16 = 8;

/// The key of a namespace in the trie of roots.
pub const fn namespace_key(ns: u8) -> Key {
    let mut key = [0; 32];
    let [first, ..] = &mut key;
    *first = ns;
    key
}

/// The namespace whose key this is; `None` for a key of no namespace.
pub fn namespace_of(key: &Key) -> Option<u8> {
    let [ns, rest @ ..] = key;
    (*rest == [0; 31]).then_some(*ns)
}

/// The root over all of these namespaces, each with its root, in any order.
pub fn over_all<'a>(hasher: Hasher, roots: impl IntoIterator<Item = (u8, &'a Node)>) -> Node {
    roots.into_iter().map(|(ns, root)| (ns, *root)).collect::<NamespaceRoots>().over_all(hasher)
}

/// The namespaces that exist, each with its root. At most 256 entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NamespaceRoots(BTreeMap<u8, Node>);

impl NamespaceRoots {
    /// No namespace.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The root of a namespace; `None`: it does not exist.
    pub fn get(&self, ns: u8) -> Option<&Node> {
        self.0.get(&ns)
    }

    /// Sets or removes the root of a namespace.
    pub fn set(&mut self, ns: u8, root: Option<Node>) {
        match root {
            Some(root) => self.0.insert(ns, root),
            None => self.0.remove(&ns),
        };
    }

    /// The namespaces that exist, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Node)> {
        self.0.iter().map(|(ns, root)| (*ns, root))
    }

    /// The root over all. [`TERMINATOR`](crate::TERMINATOR) when there is no namespace.
    pub fn over_all(&self, hasher: Hasher) -> Node {
        fold_leaves(hasher, &self.leaves(hasher), 0, &mut Vec::new())
    }

    /// The encoded [path proof](super::path) of [`namespace_key(ns)`](namespace_key): which root the namespace has, or
    /// that it does not exist. At most 32 + 66 + 8 * 32 bytes.
    pub fn prove(&self, hasher: Hasher, ns: u8) -> Result<Vec<u8>, EncodeError> {
        let MultiProof { terminals, mut siblings } = self.multi(hasher, &[ns]);
        siblings.reverse();
        let terminal = terminals.first().copied();
        let terminal = terminal.unwrap_or(Terminal::Terminator { prefix: Prefix::ROOT });
        PathProof { terminal, siblings }.encode(hasher)
    }

    /// The encoded [change proof](super::change) of one namespace: its root in these roots and in `to`.
    pub fn prove_change(&self, hasher: Hasher, to: &Self, ns: u8) -> Result<Vec<u8>, BuildError> {
        let [from, to] = [self, to].map(|roots| roots.multi(hasher, &[ns]).encode(hasher));
        change::build(hasher, &from?, &to?, &namespace_key(ns), &namespace_key(ns))
    }

    /// The encoded [witness](super::witness) of a block's operations on these namespaces, ascending, each once.
    pub fn witness(
        &self,
        hasher: Hasher,
        accesses: &[(u8, Access)],
    ) -> Result<Vec<u8>, EncodeError> {
        let namespaces: Vec<u8> = accesses.iter().map(|(ns, _)| *ns).collect();
        let ops =
            accesses.iter().map(|(ns, access)| Op { key: namespace_key(*ns), access: *access });
        DecodedWitness { proof: self.multi(hasher, &namespaces), ops: ops.collect() }.encode(hasher)
    }

    /// The leaf nodes, in key order.
    fn leaves(&self, hasher: Hasher) -> Vec<(Key, Node)> {
        let mut leaves = LeafBatch::with_room(self.0.len());
        for (ns, root) in &self.0 {
            leaves.push(namespace_key(*ns), root.to_bytes().into());
        }
        leaves.hash(hasher)
    }

    /// The multiproof of these namespaces, ascending.
    fn multi(&self, hasher: Hasher, namespaces: &[u8]) -> MultiProof {
        let keys: Vec<Key> = namespaces.iter().map(|ns| namespace_key(*ns)).collect();
        let mut proof = MultiProof::default();
        if !keys.is_empty() {
            self.open(hasher, &self.leaves(hasher), &keys, 0, &mut proof);
        }
        proof
    }

    /// Opens the paths to `keys`, at least one, which share their first `depth` bits with all
    /// leaves. As deep as the trie: 8.
    fn open(
        &self,
        hasher: Hasher,
        leaves: &[(Key, Node)],
        keys: &[Key],
        depth: u16,
        proof: &mut MultiProof,
    ) {
        let Some(first) = keys.first() else { return };
        if let [] | [_] = leaves {
            proof.terminals.push(match leaves.first() {
                Some((key, _)) => self.leaf(key, depth),
                None => Terminal::Terminator { prefix: Prefix::new(first, depth) },
            });
            return;
        }
        let left_of = |key: &Key| !prefix::bit(key, depth);
        let (left, right) = leaves.split_at(leaves.partition_point(|(key, _)| left_of(key)));
        let (left_keys, right_keys) = keys.split_at(keys.partition_point(left_of));
        let below = depth.saturating_add(1);
        self.open(hasher, left, left_keys, below, proof);
        self.open(hasher, right, right_keys, below, proof);
        // The side without keys is the sibling of the other, and comes after it.
        for (leaves, keys) in [(left, left_keys), (right, right_keys)] {
            if keys.is_empty() {
                proof.siblings.push(fold_leaves(hasher, leaves, below, &mut Vec::new()));
            }
        }
    }

    fn leaf(&self, key: &Key, depth: u16) -> Terminal {
        let [ns, ..] = key;
        let root = self.get(*ns).copied().unwrap_or_default();
        Terminal::Leaf { depth, key: *key, value_hash: root.to_bytes().into() }
    }
}

/// Of two roots of one namespace the later one stands.
impl FromIterator<(u8, Node)> for NamespaceRoots {
    fn from_iter<I: IntoIterator<Item = (u8, Node)>>(roots: I) -> Self {
        Self(roots.into_iter().collect())
    }
}
