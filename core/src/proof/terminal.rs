//! Terminals: where the walk to a key ends, in a leaf or in an empty subtrie.
//!
//! ```text
//! offset  size
//! 0       2      depth in bits 0-8, bit 15 set: leaf; bits 9-14 are zero
//! leaf:
//! 2       32     key
//! 34      32     value hash
//! terminator (depth at most 255):
//! 2       ceil(depth / 8)   prefix; bits from the depth on are zero
//! ```
//!
//! ```
//! use pleach_core::Prefix;
//! use pleach_core::proof::Terminal;
//! use pleach_core::proof::wire::terminal_encode;
//!
//! let terminal = Terminal::Terminator { prefix: Prefix::new(&[0xab; 32], 12) };
//! let mut bytes = Vec::new();
//! terminal_encode(&mut bytes, &terminal);
//! assert_eq!(bytes, [12, 0, 0xab, 0xa0]);
//! ```

use alloc::vec::Vec;

use super::{error::DecodeError, reader::ByteReader};
use crate::{
    hasher::Hasher,
    node::{self, Key, Node, TERMINATOR, ValueHash},
    prefix::Prefix,
};

const LEAF: u16 = 1 << 15;
const DEPTH: u16 = 0x1ff;

/// Bytes of the shortest terminal.
pub(super) const MIN_LEN: usize = 2;
/// Bytes of a leaf terminal.
const LEAF_LEN: usize = 66;

/// Deepest node of a trie.
pub(super) const MAX_DEPTH: u16 = 256;

/// Where the walk to one or more keys ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// A leaf node.
    Leaf {
        /// Depth of the node: the shallowest at which the key is alone.
        depth: u16,
        /// The leaf's key.
        key: Key,
        /// The hash of the leaf's value.
        value_hash: ValueHash,
    },
    /// An empty subtrie beside one with two keys or more (or an empty trie, at depth 0).
    Terminator {
        /// The prefix of the empty subtrie, at most 255 bits.
        prefix: Prefix,
    },
}

impl Terminal {
    /// Depth of the node.
    pub fn depth(&self) -> u16 {
        match self {
            Self::Leaf { depth, .. } => *depth,
            Self::Terminator { prefix } => prefix.len(),
        }
    }

    /// A key whose first [`depth`](Self::depth) bits are the prefix.
    pub fn bits(&self) -> &Key {
        match self {
            Self::Leaf { key, .. } => key,
            Self::Terminator { prefix } => prefix.first_key(),
        }
    }

    /// Prefix of the node; a depth of more than 256 counts as 256.
    pub fn prefix(&self) -> Prefix {
        Prefix::new(self.bits(), self.depth().min(MAX_DEPTH))
    }

    /// True when the walk to `key` ends here.
    pub fn covers(&self, key: &Key) -> bool {
        crate::prefix::common_len(self.bits(), key) >= self.depth()
    }

    /// The value hash of `key`, for a key that is covered.
    pub fn value_of(&self, key: &Key) -> Option<&ValueHash> {
        match self {
            Self::Leaf { key: own, value_hash, .. } if own == key => Some(value_hash),
            _ => None,
        }
    }

    /// The node itself.
    pub fn node(&self, hasher: Hasher) -> Node {
        match self {
            Self::Leaf { key, value_hash, .. } => node::leaf(hasher, key, value_hash),
            Self::Terminator { .. } => TERMINATOR,
        }
    }

    pub(super) fn read(reader: &mut ByteReader<'_>) -> Result<Self, DecodeError> {
        let word = reader.u16()?;
        let depth = word & DEPTH;
        if word & !(LEAF | DEPTH) != 0 {
            return Err(DecodeError::UnknownFlags);
        }
        if depth > MAX_DEPTH {
            return Err(DecodeError::TooDeep { depth });
        }
        if word & LEAF != 0 {
            return Ok(Self::Leaf {
                depth,
                key: reader.array()?,
                value_hash: reader.array()?.into(),
            });
        }
        if depth == MAX_DEPTH {
            return Err(DecodeError::TooDeep { depth });
        }
        let mut bits = [0; 32];
        let stored = reader.bytes(usize::from(depth.div_ceil(8)))?;
        for (to, from) in bits.iter_mut().zip(stored) {
            *to = *from;
        }
        let prefix = Prefix::from_raw(bits, depth).ok_or(DecodeError::BitsBehindDepth)?;
        Ok(Self::Terminator { prefix })
    }
}

/// Appends the bytes of a terminal. A depth that no trie has is cut to 9 bits, and refused by every reader.
pub fn terminal_encode(to: &mut Vec<u8>, terminal: &Terminal) {
    let depth = terminal.depth() & DEPTH;
    match terminal {
        Terminal::Leaf { key, value_hash, .. } => {
            to.extend_from_slice(&(depth | LEAF).to_le_bytes());
            to.extend_from_slice(key);
            to.extend_from_slice(value_hash.as_bytes());
        }
        Terminal::Terminator { prefix } => {
            to.extend_from_slice(&depth.to_le_bytes());
            to.extend(prefix.first_key().iter().take(usize::from(depth.div_ceil(8))));
        }
    }
}

/// The terminals that [`terminal_encode`] has written to these bytes; ends at the first invalid one.
pub fn terminals(bytes: &[u8]) -> impl Iterator<Item = Terminal> + '_ {
    Terminals(ByteReader::new(bytes))
}

/// Terminals that [`terminal_encode`] has written; ends at the first invalid one.
#[derive(Clone, Debug)]
pub(super) struct Terminals<'a>(pub(super) ByteReader<'a>);

impl<'a> Terminals<'a> {
    /// True when no terminal is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each terminal, and the depth at which the path to the next one leaves its own.
    pub(super) fn with_forks(self) -> impl Iterator<Item = (Terminal, Option<u16>)> + use<'a> {
        let mut following = self.clone();
        following.next();
        self.map(move |terminal| {
            let fork = following.next().and_then(|next| fork(&terminal, &next));
            (terminal, fork)
        })
    }
}

impl Iterator for Terminals<'_> {
    type Item = Terminal;

    fn next(&mut self) -> Option<Terminal> {
        if self.0.is_empty() { None } else { Terminal::read(&mut self.0).ok() }
    }
}

/// Bytes that [`terminal_encode`] appends.
pub(super) fn terminal_len(terminal: &Terminal) -> usize {
    match terminal {
        Terminal::Leaf { .. } => LEAF_LEN,
        Terminal::Terminator { prefix } => {
            MIN_LEN.saturating_add(usize::from(prefix.len().div_ceil(8)))
        }
    }
}

/// Depth at which the paths to two terminals separate; `None` unless `left` is wholly to the left.
pub(super) fn fork(left: &Terminal, right: &Terminal) -> Option<u16> {
    let fork = crate::prefix::common_len(left.bits(), right.bits());
    let apart = fork < left.depth() && fork < right.depth();
    (apart && left.bits() < right.bits()).then_some(fork)
}
