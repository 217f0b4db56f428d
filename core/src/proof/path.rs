//! Path proofs: what one root says about one key, and about all keys that end at its terminal.
//!
//! The siblings are written from depth 1 downwards, one for each level above the terminal.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Lookup, path};
//! use pleach_core::Hasher;
//!
//! let trie = NaiveTrie::from_iter([([1; 32], [10; 32].into()), ([2; 32], [20; 32].into())]);
//! let bytes = trie.path(Hasher::BLAKE3, &[2; 32]).encode(Hasher::BLAKE3)?;
//! let verified = path::verify(Hasher::BLAKE3, &bytes, &trie.root(Hasher::BLAKE3))?;
//! assert_eq!(verified.get(&[2; 32]), Lookup::Present([20; 32].into()));
//! assert_eq!(verified.get(&[1; 32]), Lookup::OutOfScope);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError, VerifyError},
    limits::Limits,
    lookup::{Lookup, lookup},
    terminal::{Terminal, terminal_encode, terminal_len},
    unverified::Unverified,
    walk::{ProvenNode, WalkSubtrie},
    wire::{self, ParsedProof, ProofKind},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node},
    prefix,
};

/// One terminal with its siblings, to be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathProof {
    /// Where the walk to the key ends.
    pub terminal: Terminal,
    /// The other child at each level, from depth 1 downwards.
    pub siblings: Vec<Node>,
}

impl PathProof {
    /// The wire encoding.
    pub fn encode(&self, hasher: Hasher) -> Result<Vec<u8>, EncodeError> {
        let mut terminal = Vec::with_capacity(terminal_len(&self.terminal));
        terminal_encode(&mut terminal, &self.terminal);
        wire::assemble_terminals(hasher, ProofKind::Path, 1, &terminal, &self.siblings)
    }

    /// What an encoding *claims*, checked against no root: the inverse of [`encode`](Self::encode).
    pub fn decode(hasher: Hasher, bytes: &[u8]) -> Result<Self, DecodeError> {
        let unverified = decode(hasher, bytes)?;
        let terminal = unverified.terminals().next().ok_or(DecodeError::Count)?;
        Ok(Self { terminal, siblings: unverified.siblings().to_vec() })
    }
}

/// A path that leads to the root it was checked against.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedPath {
    terminal: Terminal,
    root: Node,
    hasher: Hasher,
}

impl VerifiedPath {
    /// The root that was proven against.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Where the path ends.
    pub fn terminal(&self) -> &Terminal {
        &self.terminal
    }

    /// What the root says about `key`.
    pub fn get(&self, key: &Key) -> Lookup {
        lookup(Some(self.terminal).filter(|terminal| terminal.covers(key)), key)
    }

    /// Whether the root says that `key` has this value, or, for `None`, that it is absent. `None` when the proof says
    /// nothing about the key.
    pub fn proves(&self, key: &Key, value: Option<&[u8]>) -> Option<bool> {
        self.get(key).proves(self.hasher, value)
    }
}

/// Checks a path proof against a root, within the default [`Limits`].
pub fn verify(hasher: Hasher, bytes: &[u8], root: &Node) -> Result<VerifiedPath, VerifyError> {
    verify_with(hasher, bytes, root, &Limits::DEFAULT)
}

/// Checks a path proof against a root, within these limits.
pub fn verify_with(
    hasher: Hasher,
    bytes: &[u8],
    root: &Node,
    limits: &Limits,
) -> Result<VerifiedPath, VerifyError> {
    limits.check_bytes(bytes)?;
    let parts = ParsedProof::parse(hasher, ProofKind::Path, bytes)?;
    limits.check_hashes(parts.terminals().hashes())?;
    let terminal = parts.terminals().first().ok_or(DecodeError::Count)?;
    let mut node = ProvenNode(terminal.node(hasher));
    for (above, sibling) in (0..terminal.depth()).zip(parts.siblings()).rev() {
        let sibling = ProvenNode::sibling(*sibling);
        let (left, right) =
            if prefix::bit(terminal.bits(), above) { (&sibling, &node) } else { (&node, &sibling) };
        node = ProvenNode::join(hasher, left, right, above.saturating_add(1))?;
    }
    if node.0 == *root {
        Ok(VerifiedPath { terminal, root: *root, hasher })
    } else {
        Err(VerifyError::RootMismatch)
    }
}

/// What an encoding *claims*: well-formed, and checked against no root.
pub fn decode(hasher: Hasher, bytes: &[u8]) -> Result<Unverified<'_>, DecodeError> {
    Ok(Unverified::new(ParsedProof::parse(hasher, ProofKind::Path, bytes)?))
}
