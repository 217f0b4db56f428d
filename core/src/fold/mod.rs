//! Folding: from sorted keys to nodes, with what a multiproof of the accessed keys needs.
//!
//! A *fold* is a run of items in key order below one prefix, whose length is the fold's *floor*; its result is the node
//! at the floor. An item is a key, a subtrie given by its node, or the result of another fold. A [`Folder`] works on
//! many folds at once: all hashes of one height, of all folds at hand, are one batch. The new nodes and the multiproof
//! of the old trie come from the same items, since a subtrie without an accessed key has the same node before and
//! after. Terminals come in key order and siblings in post-order, as `docs/proofs.md` defines.
//!
//! What is beside the path up from the keys is a [`Path`]: nothing ([`EmptyPath`]), known nodes below a page's prefix
//! ([`TreeletPath`]), the lines of a region's children ([`TilingPath`]), or the siblings of a proof that is checked
//! ([`SiblingPath`]).
//!
//! A fold with fewer than two old keys does not know where its terminal is: in the whole trie it may be above the
//! floor. Its [`Occupancy`] is then `Empty` or `Leaf`, and the fold above places the terminal.
//!
//! The terminal of an access may be a leaf that was given by its node alone. The form of the trie does not depend on
//! its pair, but the multiproof names the pair: [`Folder::name_leaves`] resolves it.
//!
//! # Use
//!
//! 1. [`Folder::span`] or [`Folder::span_along`], items in key order, [`FoldSpan::end_fold`], for any number of folds;
//! 2. [`Folder::name_leaves`], where keys are accessed beside nodes that may be leaves;
//! 3. [`Folder::run`], once;
//! 4. nodes, occupancy, kept nodes and multiproofs can be read;
//! 5. [`Folder::clear`], which keeps the memory.
//!
//! ```
//! use pleach_core::fold::{ValueChange, FoldValue, Folder};
//! use pleach_core::{Hasher, Prefix, TERMINATOR, node};
//!
//! // The left half of the trie is known by its node; one key on the right is deleted.
//! let left = node::tag_internal([1; 32]);
//! let mut folder = Folder::new(Hasher::BLAKE3);
//! let mut span = folder.span(0);
//! span.push_known(&Prefix::ROOT.child(false), &left);
//! span.push_accessed(&[0x80; 32], Some(FoldValue::Bytes(b"old")), ValueChange::Delete);
//! let fold = span.end_fold();
//! folder.run();
//! assert_eq!(*folder.node(fold), node::combine(Hasher::BLAKE3, &left, &TERMINATOR));
//! assert_eq!(folder.siblings(), [left]);
//! ```
//!
//! A [`RootFolder`] folds any number of pairs to their root alone.

mod climb;
mod columns;
mod folder;
mod path;
mod positions;
mod records;
mod root_folder;
mod span;
mod stages;
mod subtrie;
mod values;

use crate::hasher::Hasher;
use crate::node::{Key, ValueHash, value_hash};

pub use self::columns::{Columns, DifferingBits};
pub use self::folder::Folder;
pub use self::path::{EmptyPath, NodeOwner, Path, SiblingPath, TilingPath, TreeletPath};
pub use self::positions::{TREELET_LEVELS, above, heap_index};
pub use self::root_folder::{NotAscending, RootFolder};
pub use self::span::FoldSpan;
pub use self::subtrie::Subtrie;
pub use self::values::combine_chunks;

/// A value as the fold takes it: its bytes, or its hash when that is known.
#[derive(Clone, Copy, Debug)]
pub enum FoldValue<'a> {
    /// The value itself.
    Bytes(&'a [u8]),
    /// The hash of the value.
    Hash(ValueHash),
}

impl FoldValue<'_> {
    /// The hash of the value.
    #[inline]
    pub fn hash(self, hasher: Hasher) -> ValueHash {
        match self {
            Self::Bytes(bytes) => value_hash(hasher, bytes),
            Self::Hash(hash) => hash,
        }
    }
}

/// What an access does to a key.
#[derive(Clone, Copy, Debug)]
pub enum ValueChange<'a> {
    /// The key was only read.
    Keep,
    /// The key has this value afterwards.
    Put(FoldValue<'a>),
    /// The key is absent afterwards.
    Delete,
}

/// The keys of the old trie below a prefix, as far as placing terminals needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// No key.
    Empty,
    /// One key: a leaf, which may be above the prefix.
    Leaf {
        /// The key.
        key: Key,
        /// The hash of its value.
        value_hash: ValueHash,
    },
    /// Two keys or more: all terminals are below the prefix.
    Many,
}

/// Number of a value hash within a [`Folder`]; [`NO_HASH`] stands for none.
pub type HashId = u32;
/// No value hash: absent or deleted.
pub const NO_HASH: HashId = u32::MAX;
