//! Multiproofs: what one root says about many keys, with each sibling once.
//!
//! The siblings are in the post-order in which `walk` takes them. A multiproof answers for every key that one of its
//! terminals covers ([`VerifiedMulti::get`]); the [module above](super) has an example.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::multi;
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! // One terminal says everything about the empty trie.
//! let bytes = NaiveTrie::new().multi(Hasher::BLAKE3, &[[1; 32], [2; 32]]).encode(Hasher::BLAKE3)?;
//! let verified = multi::verify(Hasher::BLAKE3, &bytes, &TERMINATOR)?;
//! assert_eq!(verified.terminal_count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError, VerifyError},
    limits::Limits,
    lookup::{Lookup, lookup},
    slots::slots,
    terminal::{Terminal, fork, terminal_encode, terminal_len},
    unverified::Unverified,
    wire::{self, ParsedProof, ProofKind},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node},
    prefix::Prefix,
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
    pub fn encode(&self, hasher: Hasher) -> Result<Vec<u8>, EncodeError> {
        let mut terminals = Vec::with_capacity(self.terminals.iter().map(terminal_len).sum());
        for terminal in &self.terminals {
            terminal_encode(&mut terminals, terminal);
        }
        let count = self.terminals.len();
        wire::assemble_terminals(hasher, ProofKind::Multi, count, &terminals, &self.siblings)
    }

    /// What an encoding *claims*, checked against no root: the inverse of [`encode`](Self::encode).
    pub fn decode(hasher: Hasher, bytes: &[u8]) -> Result<Self, DecodeError> {
        let unverified = decode(hasher, bytes)?;
        let terminals = unverified.terminals().collect();
        Ok(Self { terminals, siblings: unverified.siblings().to_vec() })
    }
}

/// A multiproof that leads to the root it was checked against. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct VerifiedMulti<'a> {
    parts: ParsedProof<'a>,
    root: Node,
}

impl VerifiedMulti<'_> {
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

    /// Whether the root says that `key` has this value, or, for `None`, that it is absent. `None` when the proof says
    /// nothing about the key.
    pub fn proves(&self, key: &Key, value: Option<&[u8]>) -> Option<bool> {
        self.get(key).proves(self.parts.hasher, value)
    }
}

/// The prefix of each sibling of a multiproof with these terminals, in order; `None` where they repeat, are unsorted or
/// one lies below another.
pub fn sibling_places(terminals: &[Terminal]) -> Option<Vec<Prefix>> {
    let next = terminals.iter().skip(1).map(Some).chain([None]);
    let with_fork = |(terminal, next): (&Terminal, Option<&Terminal>)| {
        Some((*terminal, next.map(|next| fork(terminal, next).ok_or(())).transpose().ok()?))
    };
    let forks: Vec<_> = terminals.iter().zip(next).map(with_fork).collect::<Option<_>>()?;
    Some(slots(forks.into_iter()).map(|slot| slot.place()).collect())
}

/// Checks a multiproof against a root, within the default [`Limits`]. A proof without terminals
/// says nothing, about any root.
pub fn verify<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    root: &Node,
) -> Result<VerifiedMulti<'a>, VerifyError> {
    verify_with(hasher, bytes, root, &Limits::DEFAULT)
}

/// The same within these limits.
pub fn verify_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    root: &Node,
    limits: &Limits,
) -> Result<VerifiedMulti<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let parts = ParsedProof::parse(hasher, ProofKind::Multi, bytes)?;
    limits.check_hashes(parts.terminals().hashes())?;
    let terminals = parts.terminals();
    terminals.check_root(hasher, parts.siblings(), &terminals.leaf_nodes(hasher), root)?;
    Ok(VerifiedMulti { parts, root: *root })
}

/// What an encoding *claims*: well-formed, and checked against no root.
pub fn decode(hasher: Hasher, bytes: &[u8]) -> Result<Unverified<'_>, DecodeError> {
    Ok(Unverified::new(ParsedProof::parse(hasher, ProofKind::Multi, bytes)?))
}
