//! Operations of a witness: what a batch did with one key.
//!
//! ```text
//! offset  size
//! 0       1      bits 0-1: access (1 read, 2 write, 3 read and write)
//!                bit 2: a value hash follows (a put; without it a write deletes)
//!                bit 3: the key is that of the leaf terminal, and is left out
//!                bit 4: first operation under the next terminal
//!                bits 5-7 are zero
//! 1       32     key, unless bit 3
//! ..      32     new value hash, if bit 2
//! ```
//!
//! Bits 3 and 4 follow from the terminals, so only one setting of them is accepted.
//!
//! ```
//! use pleach_core::proof::wire::op_encode;
//! use pleach_core::proof::{Access, Op, Terminal};
//!
//! let terminal = Terminal::Leaf { depth: 3, key: [1; 32], value_hash: [9; 32].into() };
//! let op = Op { key: [1; 32], access: Access::Read };
//! let mut bytes = Vec::new();
//! op_encode(&mut bytes, &op, &terminal, true);
//! // The key is the terminal's, so one byte says it all.
//! assert_eq!(bytes, [1 | 1 << 3 | 1 << 4]);
//! ```

use alloc::vec::Vec;

use super::{error::DecodeError, reader::ByteReader, terminal::Terminal};
use crate::node::{Key, ValueHash};

const READ: u8 = 1;
const WRITE: u8 = 2;
const ACCESS: u8 = READ | WRITE;
const PUT: u8 = 1 << 2;
const LEAF_KEY: u8 = 1 << 3;
const FIRST: u8 = 1 << 4;

/// Bytes of the shortest operation.
pub(super) const MIN_LEN: usize = 1;

/// What was done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its value was read; the terminal says which value hash was seen.
    Read,
    /// A value was put (the hash of the value) or the key was deleted (`None`), without being read.
    Write(Option<ValueHash>),
    /// Read first, then written.
    ReadWrite(Option<ValueHash>),
}

impl Access {
    /// True when the value before the batch was read.
    pub fn reads(&self) -> bool {
        !matches!(self, Self::Write(_))
    }

    /// The new value hash (or `None` for a delete), if the key was written.
    pub fn written(&self) -> Option<Option<&ValueHash>> {
        match self {
            Self::Read => None,
            Self::Write(value) | Self::ReadWrite(value) => Some(value.as_ref()),
        }
    }
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The key.
    pub key: Key,
    /// What was done with it.
    pub access: Access,
}

/// Appends the bytes of an operation. `terminal` is the one that covers its key; `first` says
/// that no earlier operation lies under that terminal.
pub fn op_encode(to: &mut Vec<u8>, op: &Op, terminal: &Terminal, first: bool) {
    op_encode_placed(to, op, terminal.value_of(&op.key).is_some(), first);
}

/// The same for a writer that knows whether the operation's key is that of the leaf terminal
/// (`present`: the key had a value before the batch).
pub fn op_encode_placed(to: &mut Vec<u8>, op: &Op, present: bool, first: bool) {
    let (mut flags, value) = match &op.access {
        Access::Read => (READ, None),
        Access::Write(value) => (WRITE, value.as_ref()),
        Access::ReadWrite(value) => (READ | WRITE, value.as_ref()),
    };
    if value.is_some() {
        flags |= PUT;
    }
    if present {
        flags |= LEAF_KEY;
    }
    if first {
        flags |= FIRST;
    }
    to.push(flags);
    if !present {
        to.extend_from_slice(&op.key);
    }
    if let Some(value) = value {
        to.extend_from_slice(value.as_bytes());
    }
}

/// Clears the mark that an encoded operation is the first under its terminal: a writer that joins
/// parts may find that one terminal covers operations of several.
pub fn op_not_first(op: &mut u8) {
    *op &= !FIRST;
}

/// An operation as read, before its key is known.
pub(super) struct RawOp {
    pub(super) first: bool,
    /// `None`: the key of the leaf terminal.
    pub(super) key: Option<Key>,
    pub(super) access: Access,
}

impl RawOp {
    pub(super) fn read(reader: &mut ByteReader<'_>) -> Result<Self, DecodeError> {
        let flags = reader.u8()?;
        if flags & !(ACCESS | PUT | LEAF_KEY | FIRST) != 0 {
            return Err(DecodeError::UnknownFlags);
        }
        let key = if flags & LEAF_KEY == 0 { Some(reader.array()?) } else { None };
        let value = if flags & PUT == 0 { None } else { Some(reader.array()?.into()) };
        let access = match (flags & ACCESS, value) {
            (READ, None) => Access::Read,
            (WRITE, value) => Access::Write(value),
            (ACCESS, value) => Access::ReadWrite(value),
            _ => return Err(DecodeError::UnknownFlags),
        };
        Ok(Self { first: flags & FIRST != 0, key, access })
    }
}
