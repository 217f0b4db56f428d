//! Multiproofs: what one root says about many keys, with each sibling once.
//!
//! The siblings are in the post-order in which `walk` takes them. A multiproof answers for every
//! key that one of its terminals covers ([`Verified::get`]); the [module above](super) has an
//! example.
//!
//! ```
//! use pleach_core::naive::Naive;
//! use pleach_core::proof::multi;
//! use pleach_core::{Blake3, TERMINATOR};
//!
//! // One terminal says everything about the empty trie.
//! let bytes = Naive::new().multi::<Blake3>(&[[1; 32], [2; 32]]).encode::<Blake3>()?;
//! let verified = multi::verify::<Blake3>(&bytes, &TERMINATOR)?;
//! assert_eq!(verified.terminal_count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError, VerifyError},
    limits::Limits,
    lookup::{HashValue, Lookup, lookup},
    terminal::{Terminal, terminal_encode, terminal_len},
    unverified::Unverified,
    wire::{self, Kind, Parts, Sizes},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node},
};

/// Terminals and the siblings between them, to be encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultiProof {
    /// In key order, none below another.
    pub terminals: Vec<Terminal>,
    /// In post-order.
    pub siblings: Vec<Node>,
}

impl MultiProof {
    /// The wire encoding.
    pub fn encode<H: Hasher>(&self) -> Result<Vec<u8>, EncodeError> {
        let mut terminals = Vec::with_capacity(self.terminals.iter().map(terminal_len).sum());
        for terminal in &self.terminals {
            terminal_encode(&mut terminals, terminal);
        }
        let sizes = Sizes {
            terminals: wire::count(self.terminals.len())?,
            terminal_bytes: wire::count(terminals.len())?,
            siblings: wire::count(self.siblings.len())?,
            ..Sizes::default()
        };
        let sections = [terminals.as_slice(), &[], Node::bytes_of(&self.siblings)];
        wire::assemble::<H>(Kind::Multi, &sizes, sections)
    }

    /// What an encoding *claims*, checked against no root: the inverse of
    /// [`encode`](Self::encode).
    pub fn decode<H: Hasher>(bytes: &[u8]) -> Result<Self, DecodeError> {
        let unverified = decode::<H>(bytes)?;
        let terminals = unverified.terminals().collect();
        Ok(Self { terminals, siblings: unverified.siblings().to_vec() })
    }
}

/// A multiproof that leads to the root it was checked against. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct Verified<'a> {
    parts: Parts<'a>,
    root: Node,
    hash: HashValue,
}

impl Verified<'_> {
    /// The root that was proven against.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Number of terminals.
    pub fn terminal_count(&self) -> usize {
        self.parts.terminals().len()
    }

    /// The terminals, in key order.
    pub fn terminals(&self) -> impl Iterator<Item = Terminal> + '_ {
        self.parts.terminals().iter()
    }

    /// What the root says about `key`.
    pub fn get(&self, key: &Key) -> Lookup {
        lookup(self.parts.terminals().find(key), key)
    }

    /// Does the root say that `key` has this value, or, for `None`, that it is absent? `None` when
    /// the proof says nothing about the key.
    pub fn proves(&self, key: &Key, value: Option<&[u8]>) -> Option<bool> {
        self.get(key).proves(self.hash, value)
    }
}

/// Checks a multiproof against a root, within the default [`Limits`]. A proof without terminals
/// says nothing, about any root.
pub fn verify<'a, H: Hasher>(bytes: &'a [u8], root: &Node) -> Result<Verified<'a>, VerifyError> {
    verify_with::<H>(bytes, root, &Limits::DEFAULT)
}

/// The same within these limits.
pub fn verify_with<'a, H: Hasher>(
    bytes: &'a [u8],
    root: &Node,
    limits: &Limits,
) -> Result<Verified<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let parts = Parts::parse::<H>(Kind::Multi, bytes)?;
    limits.check_hashes(parts.terminals().hashes())?;
    let terminals = parts.terminals();
    terminals.leads_to::<H>(parts.siblings(), &terminals.leaf_nodes::<H>(), root)?;
    Ok(Verified { parts, root: *root, hash: H::hash })
}

/// What an encoding *claims*: well-formed, and checked against no root.
pub fn decode<H: Hasher>(bytes: &[u8]) -> Result<Unverified<'_>, DecodeError> {
    Ok(Unverified::new(Parts::parse::<H>(Kind::Multi, bytes)?))
}
