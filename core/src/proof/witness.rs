//! Witnesses: a multiproof against the root before a batch, and what the batch did.
//!
//! [`verify`] computes both roots in one walk: the one before must be the caller's, the one after
//! is the result. Below each terminal the new subtrie follows from the old leaf (if there was one
//! and it stays) and the keys put there; above, from the same siblings.
//!
//! An empty batch has neither terminals nor operations; its witness is valid for every root and changes nothing.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Access, Op, witness};
//! use pleach_core::Hasher;
//!
//! let mut trie = NaiveTrie::from_iter([([1; 32], [10; 32].into()), ([2; 32], [20; 32].into())]);
//! let before = trie.root(Hasher::BLAKE3);
//! let ops = [
//!     Op { key: [1; 32], access: Access::ReadWrite(Some([11; 32].into())) },
//!     Op { key: [2; 32], access: Access::Write(None) },
//! ];
//! let bytes = trie.witness(Hasher::BLAKE3, &ops).encode(Hasher::BLAKE3)?;
//!
//! // Whoever knows the root before learns the root after, and what was read and written.
//! let verified = witness::verify(Hasher::BLAKE3, &bytes, &before)?;
//! trie.apply(&ops);
//! assert_eq!(*verified.new_root(), trie.root(Hasher::BLAKE3));
//! assert_eq!(verified.op_count(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError, VerifyError},
    limits::Limits,
    list::ProofStep,
    lookup::{Lookup, lookup},
    multi::MultiProof,
    op::{Access, Op, op_encode},
    terminal::{MAX_DEPTH, Terminal, terminal_encode},
    unverified::Unverified,
    walk::{LeafBatch, NodePair, ProofWalk, ProvenNode, fold_leaves},
    wire::{self, ParsedProof, ProofKind, SectionSizes, Sections},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node, ValueHash},
    prefix,
};

/// What a witness says: a multiproof and the operations of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedWitness {
    /// The terminals of all keys accessed, and no others.
    pub proof: MultiProof,
    /// In key order, each key once.
    pub ops: Vec<Op>,
}

impl DecodedWitness {
    /// The wire encoding.
    pub fn encode(&self, hasher: Hasher) -> Result<Vec<u8>, EncodeError> {
        let (mut terminals, mut op_bytes) = (Vec::new(), Vec::new());
        let mut ops = self.ops.iter().enumerate().peekable();
        for terminal in &self.proof.terminals {
            terminal_encode(&mut terminals, terminal);
            let mut is_first = true;
            while let Some((_, op)) = ops.next_if(|(_, op)| terminal.covers(&op.key)) {
                op_encode(&mut op_bytes, op, terminal, is_first);
                is_first = false;
            }
        }
        if let Some((index, _)) = ops.next() {
            return Err(EncodeError::OpOutOfScope { index });
        }
        let sizes = SectionSizes {
            terminals: wire::count(self.proof.terminals.len())?,
            ops: wire::count(self.ops.len())?,
            siblings: wire::count(self.proof.siblings.len())?,
            terminal_bytes: wire::count(terminals.len())?,
            op_bytes: wire::count(op_bytes.len())?,
        };
        let siblings = Node::bytes_of(&self.proof.siblings);
        let sections = Sections { terminals: &terminals[..], ops: &op_bytes, siblings };
        wire::assemble(hasher, ProofKind::Witness, &sizes, sections)
    }

    /// What an encoding *claims*, checked against no root: the inverse of [`encode`](Self::encode).
    pub fn decode(hasher: Hasher, bytes: &[u8]) -> Result<Self, DecodeError> {
        let unverified = decode(hasher, bytes)?;
        let terminals = unverified.terminals().collect();
        let proof = MultiProof { terminals, siblings: unverified.siblings().to_vec() };
        Ok(Self { proof, ops: unverified.ops().map(|(op, _)| op).collect() })
    }
}

/// An operation of a verified witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedOp {
    /// The key.
    pub key: Key,
    /// What was done with it.
    pub access: Access,
    /// The hash of the value before the batch; `None`: the key was absent.
    pub before: Option<ValueHash>,
}

/// A witness that leads from the root it was checked against to a new one. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct VerifiedWitness<'a> {
    parts: ParsedProof<'a>,
    prev_root: Node,
    new_root: Node,
}

impl VerifiedWitness<'_> {
    /// The root before the batch.
    pub fn prev_root(&self) -> &Node {
        &self.prev_root
    }

    /// The root after the batch.
    pub fn new_root(&self) -> &Node {
        &self.new_root
    }

    /// What the root before the batch says about `key`.
    pub fn get(&self, key: &Key) -> Lookup {
        lookup(self.parts.terminals().find(key), key)
    }

    /// Whether the root before the batch says that `key` has this value, or, for `None`, that it is absent. `None` when
    /// the witness says nothing about the key.
    pub fn proves(&self, key: &Key, value: Option<&[u8]>) -> Option<bool> {
        self.get(key).proves(self.parts.hasher, value)
    }

    /// Number of operations.
    pub fn op_count(&self) -> usize {
        self.parts.op_count()
    }

    /// The operations, in key order.
    pub fn ops(&self) -> impl Iterator<Item = VerifiedOp> + '_ {
        self.parts.ops().map(|(op, terminal)| VerifiedOp {
            key: op.key,
            access: op.access,
            before: terminal.value_of(&op.key).copied(),
        })
    }

    /// The terminals, in key order.
    pub fn terminals(&self) -> impl Iterator<Item = Terminal> + '_ {
        self.parts.terminals().iter()
    }
}

/// Checks a witness against the root before the batch and computes the root after it, within the default [`Limits`].
pub fn verify<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    prev_root: &Node,
) -> Result<VerifiedWitness<'a>, VerifyError> {
    verify_with(hasher, bytes, prev_root, &Limits::DEFAULT)
}

/// The same within these limits.
pub fn verify_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    prev_root: &Node,
    limits: &Limits,
) -> Result<VerifiedWitness<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let parts = ParsedProof::parse(hasher, ProofKind::Witness, bytes)?;
    if max_hashes(&parts) > limits.hashes {
        limits.check_hashes(hashes(&parts))?;
    }
    walk(parts, prev_root)
}

/// Walks from the terminals to both roots; limits have been checked.
pub(super) fn walk<'a>(
    parts: ParsedProof<'a>,
    prev_root: &Node,
) -> Result<VerifiedWitness<'a>, VerifyError> {
    let verified = |parts, new_root| Ok(VerifiedWitness { parts, prev_root: *prev_root, new_root });
    if parts.terminals().len() == 0 {
        return verified(parts, *prev_root);
    }
    let hasher = parts.hasher;
    let before = parts.terminals().leaf_nodes(hasher);
    let after = leaves_after(&parts);
    let mut after = after.as_slice();
    let mut stack = Vec::new();
    let mut walk = ProofWalk::new(hasher, parts.siblings());
    let mut found = None;
    for ProofStep { terminal, node, fork } in parts.terminals().steps(&before) {
        let here = after.iter().take_while(|(key, _)| terminal.covers(key)).count();
        let (own, rest) = after.split_at_checked(here).ok_or(DecodeError::OpOutOfScope)?;
        after = rest;
        let new = fold_leaves(hasher, own, terminal.depth(), &mut stack);
        let subtrie = NodePair { before: ProvenNode(node), after: new };
        found = walk.push(subtrie, terminal.bits(), terminal.depth(), fork)?;
    }
    match found {
        Some(found) if found.before.0 == *prev_root => verified(parts, found.after),
        _ => Err(VerifyError::RootMismatch),
    }
}

/// What an encoding *claims*: well-formed, and checked against no root.
pub fn decode(hasher: Hasher, bytes: &[u8]) -> Result<Unverified<'_>, DecodeError> {
    Ok(Unverified::new(ParsedProof::parse(hasher, ProofKind::Witness, bytes)?))
}

/// An upper bound of [`hashes`], as if each leaf afterwards had a chain of its own down to the last
/// bit. Most witnesses are within the limits by it, and the exact count is not needed.
pub(super) fn max_hashes(parts: &ParsedProof<'_>) -> u64 {
    let leaves = u64::try_from(parts.puts().saturating_add(parts.terminals().leaf_count()))
        .unwrap_or(u64::MAX);
    hashes_around(parts)
        .saturating_add(leaves.saturating_mul(u64::from(MAX_DEPTH).saturating_add(1)))
}

/// The hashes that a witness takes at most.
pub(super) fn hashes(parts: &ParsedProof<'_>) -> u64 {
    hashes_around(parts).saturating_add(hashes_below(parts))
}

/// Hashes of the terminals before the batch, and above them before and after it.
fn hashes_around(parts: &ParsedProof<'_>) -> u64 {
    parts.terminals().hashes().saturating_add(parts.terminals().joins())
}

/// Hashes below the terminals after the batch: leaves, and the internal nodes above them.
fn hashes_below(parts: &ParsedProof<'_>) -> u64 {
    let mut hashes = 0u64;
    // The leaf to the left, and the depth below the last internal node on its path.
    let mut left: Option<(Key, u16)> = None;
    each_leaf_after(parts, |terminal, key, _| {
        let mut below = terminal.depth();
        if let Some((before, counted)) = left.filter(|(before, _)| terminal.covers(before)) {
            // Both lie below each prefix that they share; those above the last fork are counted.
            below = prefix::common_len(&before, &key).saturating_add(1);
            hashes = hashes.saturating_add(below.saturating_sub(counted).into());
        }
        hashes = hashes.saturating_add(1);
        left = Some((key, below));
    });
    hashes
}

/// The leaf nodes below all terminals after the batch, in key order.
fn leaves_after(parts: &ParsedProof<'_>) -> Vec<(Key, Node)> {
    let mut leaves =
        LeafBatch::with_room(parts.puts().saturating_add(parts.terminals().leaf_count()));
    each_leaf_after(parts, |_, key, value_hash| leaves.push(key, value_hash));
    leaves.hash(parts.hasher)
}

/// Keys and value hashes below all terminals after the batch, in key order.
fn each_leaf_after(parts: &ParsedProof<'_>, mut leaf: impl FnMut(&Terminal, Key, ValueHash)) {
    let mut ops = parts.ops().map(|(op, _)| op).peekable();
    for terminal in parts.terminals().iter() {
        // The old leaf, until an operation overwrites it or a later key has been reached.
        let mut old = match terminal {
            Terminal::Leaf { key, value_hash, .. } => Some((key, value_hash)),
            Terminal::Terminator { .. } => None,
        };
        while let Some(op) = ops.next_if(|op| terminal.covers(&op.key)) {
            let Some(written) = op.access.written() else { continue };
            if let Some((key, value_hash)) = old.take_if(|(key, _)| *key < op.key) {
                leaf(&terminal, key, value_hash);
            }
            old.take_if(|(key, _)| *key == op.key);
            if let Some(value_hash) = written {
                leaf(&terminal, op.key, *value_hash);
            }
        }
        if let Some((key, value_hash)) = old {
            leaf(&terminal, key, value_hash);
        }
    }
}
