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
    error::{EncodeError, VerifyError},
    limits::Limits,
    lookup::{Lookup, lookup},
    terminal::{Terminal, terminal_encode, terminal_len},
    walk::{Known, Leaves, Walk},
    wire::{self, Kind, Parts, Sizes, Terminals},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node, TERMINATOR},
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
}

/// A multiproof that leads to the root it was checked against. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct Verified<'a> {
    parts: Parts<'a>,
    root: Node,
}

impl Verified<'_> {
    /// The root that was proven against.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Number of terminals.
    pub fn terminal_count(&self) -> usize {
        self.parts.terminal_count()
    }

    /// The terminals, in key order.
    pub fn terminals(&self) -> impl Iterator<Item = Terminal> + '_ {
        self.parts.terminals()
    }

    /// What the root says about `key`.
    pub fn get(&self, key: &Key) -> Lookup {
        lookup(self.parts.find(key), key)
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
    limits.check_hashes(parts.hashes())?;
    let leaves = leaf_nodes::<H>(&parts);
    let mut walk = Walk::new(parts.siblings());
    let mut found = None;
    for (terminal, node, fork) in steps(parts.terminals(), &leaves) {
        found = walk.push::<H>(Known(node), terminal.bits(), terminal.depth(), fork)?;
    }
    let proven = found.map_or(parts.terminal_count() == 0, |found| found.0 == *root);
    if proven { Ok(Verified { parts, root: *root }) } else { Err(VerifyError::RootMismatch) }
}

/// The nodes of all leaf terminals, in order.
pub(super) fn leaf_nodes<H: Hasher>(parts: &Parts<'_>) -> Vec<(Key, Node)> {
    let leaf = |terminal| match terminal {
        Terminal::Leaf { key, value_hash, .. } => Some((key, value_hash)),
        Terminal::Terminator { .. } => None,
    };
    let mut leaves = Leaves::with_room(parts.leaf_count());
    for (key, value_hash) in parts.terminals().filter_map(leaf) {
        leaves.push(key, value_hash);
    }
    leaves.hash::<H>()
}

/// Each terminal with its node and the fork with the next one.
pub(super) fn steps<'a>(
    terminals: Terminals<'a>,
    leaves: &'a [(Key, Node)],
) -> impl Iterator<Item = (Terminal, Node, Option<u16>)> + 'a {
    let mut leaves = leaves.iter();
    let mut following = terminals.clone();
    following.next();
    terminals.map(move |terminal| {
        let fork = following.next().and_then(|next| wire::fork(&terminal, &next));
        let node = match terminal {
            Terminal::Leaf { .. } => leaves.next().map_or(TERMINATOR, |(_, node)| *node),
            Terminal::Terminator { .. } => TERMINATOR,
        };
        (terminal, node, fork)
    })
}
