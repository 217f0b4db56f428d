//! Folding: from sorted keys to nodes, with what a multiproof of the accessed keys needs.
//!
//! A *fold* is a run of items in key order below one prefix, whose length is the fold's *floor*; its
//! result is the node at the floor. A [`BatchFolder`] works on many folds at once. Nothing recurses:
//! the common prefix lengths of neighbouring keys are sorted by depth, and from the deepest up the
//! subtries on both sides of each such boundary merge in place. All merges of one depth, of all
//! folds at hand, are one batch of hashes.
//!
//! An item is *opened* when a key in it was accessed: then a proof has to show it. The multiproof is
//! that of the old trie. The new nodes come from the same items, since a subtrie without an accessed
//! key has the same node before and after. [`BatchFolder::emit`] gives terminals and siblings in the
//! order that `docs/proofs.md` defines: terminals in key order, siblings in post-order.
//!
//! A fold with fewer than two old keys cannot say where its terminal is: in the whole trie it may
//! be above the floor. Its [`Occupancy`] is then `Empty` or `Leaf`, and the fold above places the
//! terminal.
//!
//! A fold may *capture* the nodes that it computes a few levels below its floor. The caller stores
//! them and gives those that were not opened as subtries next time ([`Captured`]).
//!
//! # Use
//!
//! 1. [`BatchFolder::begin`], items in key order, [`BatchFolder::end`], for any number of folds;
//! 2. [`BatchFolder::run`], once;
//! 3. nodes, occupancy, captured nodes and multiproofs can be asked for;
//! 4. [`BatchFolder::clear`], which keeps the memory.
//!
//! ```
//! use pleach_core::fold::{BatchFolder, Change, FoldValue};
//! use pleach_core::{Hasher, Prefix, TERMINATOR, node};
//!
//! // The left half of the trie is known by its node; one key on the right is deleted.
//! let left = node::tag_internal([1; 32]);
//! let mut folder = BatchFolder::new(Hasher::BLAKE3);
//! folder.begin(0);
//! folder.subtrie(&Prefix::ROOT.child(false), &left);
//! folder.accessed(&[0x80; 32], Some(FoldValue::Bytes(b"old")), Change::Delete);
//! let fold = folder.end().expect("the left half has two keys or more");
//! folder.run();
//! assert_eq!(folder.node(fold), node::combine(Hasher::BLAKE3, &left, &TERMINATOR));
//! ```
//!
//! `place` finds the terminals, `merge` hashes, `emit` gives the multiproof; [`treelets`] is the
//! faster way where the nodes between a prefix and its keys are known. A [`ProofFolder`] goes the other way: from a
//! multiproof to the node that it leads to. A [`RootFolder`] takes any number of pairs and gives their root alone.

mod batch_folder;
mod blocks;
mod buckets;
mod columns;
mod emit;
pub(crate) mod hash_batch;
mod item;
mod merge;
mod place;
mod positions;
mod proof_folder;
mod root_folder;
pub mod treelets;

use crate::node::{Key, Node, ValueHash};

pub use self::batch_folder::BatchFolder;
pub use self::columns::{Columns, Differing};
pub use self::hash_batch::combine_chunks;
pub use self::positions::{MAX_CAPTURE, above, each_position, heap_index, heap_position, way};
pub use self::proof_folder::ProofFolder;
pub use self::root_folder::{NotAscending, RootFolder};
pub use self::treelets::TreeletFolder;

/// A value as the fold takes it: its bytes, or its hash when that is known.
#[derive(Clone, Copy, Debug)]
pub enum FoldValue<'a> {
    /// The value itself.
    Bytes(&'a [u8]),
    /// The hash of the value.
    Hash(ValueHash),
}

/// What an access does to a key.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The key was only read.
    Keep,
    /// The key has this value afterwards.
    Put(FoldValue<'a>),
    /// The key is absent afterwards.
    Delete,
}

/// What the old trie holds below a prefix, as far as placing terminals needs it.
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

/// A node that a capturing fold computed.
///
/// When the fold computed an internal node within the captured levels, both its children are
/// captured too, unless they were given with [`BatchFolder::subtrie`]. Prefixes below a leaf node or
/// a terminator are not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Number of the fold.
    pub fold: u32,
    /// The prefix: [`heap_index`] of its bits after the floor.
    pub index: u8,
    /// Its new node.
    pub node: Node,
}

/// Takes keys in, in order: a fold of a [`BatchFolder`], or a bucket of a [`TreeletFolder`].
pub trait Keys {
    /// Adds a key that is not accessed.
    fn unaccessed(&mut self, key: &Key, value: FoldValue<'_>);

    /// Adds an accessed key with its old value (`None`: absent) and what becomes of it. Gives the
    /// number of the new value's hash, [`NO_HASH`] when nothing was put.
    fn accessed(&mut self, key: &Key, old: Option<FoldValue<'_>>, change: Change<'_>) -> HashId;
}

/// Receives a fold's part of the multiproof, in order.
pub trait Sink {
    /// A leaf terminal at `depth`.
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16);
    /// A terminator terminal: the first `depth` bits of `key`.
    fn terminator(&mut self, key: &Key, depth: u16);
    /// The next sibling.
    fn sibling(&mut self, node: &Node);
    /// Here belongs all that the child fold with this number emits.
    fn fragment(&mut self, number: u32);
}

/// Number of a value hash within a [`BatchFolder`]; [`NO_HASH`] stands for none.
pub type HashId = u32;
/// No value hash: absent or deleted.
pub const NO_HASH: HashId = u32::MAX;
