//! The body of a commit record: everything that replay needs, so that it reads no leaf page.
//!
//! ```text
//! head        namespaces u16 | flags u16 | blob length u32 | 0 u64; with flag 1: kept from u64
//! table       one entry for each namespace that the commit says something of, ascending:
//!             ns u8 | kind u8 | trie u8: 0 Merkle, 1 plain | 0 u8 | changes u32 | nodes u32 | 0 u32
//!             | bytes of changes u64 | bytes of nodes u64 | bytes of undo u64
//!             | previous root 32 | new root 32
//! blob        the application's bytes
//! before      with flag 1: length u32 | the blob before; with flag 2, too: the commit that a rollback goes back to u64;
//!             with flag 4, too: the time of the commit, in seconds since 1970, u64
//! sections    for each namespace:
//!   changes   key 32 | value, ascending by key
//!   nodes     prefix | node 32, ascending by prefix
//!   undo      with flag 1: the value before each change, in the order of the changes, then the node 32
//!             before of each prefix, in the order of the nodes, then for each region with a
//!             change: its prefix | its node before 32
//! value       0 = absent | 1, length u32, bytes | 2, length u32, cell of an overflow value
//! prefix      length in bits u16, then the bytes that hold a bit of it
//! ```
//!
//! Kinds of entries ([`EntryKind`]): what a commit does to the namespace as a whole:
//!
//! | kind | | previous root | new root | changes and nodes |
//! |---|---|---|---|---|
//! | 0 | changed: it exists before and after | its root | its root | any |
//! | 1 | added: it did not exist | terminator | its root | any |
//! | 2 | dropped: it does not exist afterwards | its root | terminator | none |
//! | 3 | restored: it was dropped and exists again | terminator | its root | over those that it had when it was dropped |
//! | 4 | set: it is plain, exists before and after, and its digest is not made of these changes | its digest | its digest | changes |
//!
//! A plain namespace has its digest in place of its root (`digest.rs`): the one after is computed from the one before
//! and the changes, except for *restored* and *set*, where it is an earlier one: of the state that a rollback goes back
//! to, or of the last of several blocks that are one commit. It has no nodes. Namespace 0 is only ever changed, and not
//! plain. A record that says otherwise is refused.
//!
//! *Kept from* is the oldest commit that can still be read when this one is the newest: runs that the undo of it and of
//! older ones names may be overwritten once this record is durable.
//!
//! Sections are byte strings that concatenate: workers encode slices of a sorted batch with [`Section`], and the slices
//! become parts of one record without a copy.

mod encode;
mod view;

use pleach_core::{Node, TERMINATOR};

use super::bytes::BodyError;
use super::trie_kind::TrieKind;
pub use encode::{
    NamespacePart, Section, commit_record, encode_change, encode_node, encode_prefix, encode_value,
};
pub(super) use view::take_prefix;
pub use view::{CommitView, NamespaceView, Namespaces, ReplacedItem, UndoView};

/// Largest application blob.
pub const MAX_BLOB: u32 = 64 << 10;
/// Largest overflow cell: it must fit into a leaf page.
pub const MAX_OVERFLOW_CELL: u32 = 4000;

const HEAD_LEN: usize = 16;
const ENTRY_LEN: usize = 16 + 3 * 8 + 2 * 32;
const FLAG_UNDO: u16 = 1;
/// Only together with [`FLAG_UNDO`], as is the next one.
const FLAG_ROLLBACK: u16 = 2;
const FLAG_TIME: u16 = 4;

const ABSENT: u8 = 0;
const INLINE: u8 = 1;
const OVERFLOW: u8 = 2;

/// A value in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedValue<'a> {
    /// The key has no value (deleted, or absent before).
    Absent,
    /// The value's bytes.
    Inline(&'a [u8]),
    /// The value is in overflow runs; these are the bytes of its cell.
    Overflow(&'a [u8]),
}

/// What a commit does to a namespace as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// The namespace exists before and after.
    Changed = 0,
    /// The namespace did not exist before, and no earlier one of its number is left.
    Added = 1,
    /// The namespace does not exist afterwards.
    Dropped = 2,
    /// The namespace was dropped before, and exists again with its pairs.
    Restored = 3,
    /// A plain namespace exists before and after, and its digest is not computed from the changes.
    Set = 4,
}

impl EntryKind {
    fn of_byte(byte: u8) -> Result<Self, BodyError> {
        let all = [Self::Changed, Self::Added, Self::Dropped, Self::Restored, Self::Set];
        all.into_iter().find(|kind| *kind as u8 == byte).ok_or(BodyError::EntryKind(byte))
    }

    /// True when a record may have such an entry. Each state has one form.
    fn is_canonical(self, ns: u8, trie: TrieKind, [old, new]: [&Node; 2], is_bare: bool) -> bool {
        let from_none = *old == TERMINATOR;
        let is_plain = trie == TrieKind::Plain;
        if is_plain && ns == 0 {
            return false;
        }
        match self {
            Self::Changed => true,
            Self::Set => is_plain,
            Self::Added | Self::Restored => ns != 0 && from_none,
            Self::Dropped => ns != 0 && is_bare && *new == TERMINATOR,
        }
    }
}

/// Facts about the commits before, in a record with undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndoHeader<'a> {
    /// The oldest commit that can still be read when this one is the newest.
    pub kept_from: u64,
    /// The blob before.
    pub blob: &'a [u8],
    /// The commit that this one goes back to, if it is a rollback.
    pub back_to: Option<u64>,
    /// When the commit was made, in seconds since 1970, if the clock said so.
    pub time: Option<u64>,
}
