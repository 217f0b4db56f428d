//! At which blocks has a key changed? A sharded index in a namespace of a Pleach database.
//!
//! A node that keeps the values before each block (its change sets) finds what a key had at block *b* through
//! the first change after *b*: [`ChangeIndex::first_after`]. This index answers that, the last change at or before a
//! block ([`ChangeIndex::last_at`]) and all changes of a range ([`ChangeIndex::changes`]), for as many blocks as there are.
//!
//! ```
//! use pleach::{Access, Db, Options, SessionOptions, Value};
//! use pleach_change_index::ChangeIndex;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let db = Db::open(Options::new(folder.path()).create(true).small())?;
//! const INDEX: u8 = 7;
//! db.add_namespace(INDEX)?;
//! let index = ChangeIndex::new(INDEX, ChangeIndex::SHARD)?;
//! let alice = [1; 32];
//! for block in [3, 8, 9] {
//!     let session = db.session(SessionOptions::new())?;
//!     let mut stage = index.stage(session.namespace(INDEX)?);
//!     stage.append(block, &[alice])?;
//!     // One commit for the state and its index.
//!     let mut accesses = stage.into_accesses();
//!     accesses.push(Access::write(alice, Some(Value::from(&[block as u8]))));
//!     session.finish(accesses)?.commit()?;
//! }
//! let session = db.session(SessionOptions::new())?;
//! let namespace = session.namespace(INDEX)?;
//! assert_eq!(index.last_at(namespace, &alice, 8)?, Some(8));
//! assert_eq!(index.first_after(namespace, &alice, 3)?, Some(8));
//! let all: Result<Vec<u64>, _> = index.changes(namespace, &alice, ..)?.collect();
//! assert_eq!(all?, [3, 8, 9]);
//! # Ok(())
//! # }
//! ```
//!
//! # Cost
//! The list of a key is a tree that grows at its right edge alone: *shards* of [`ChangeIndex::shard`] numbers, and
//! above them nodes of 256. What is not full is one value, the *head*, under the key itself. An append reads and
//! writes the head, whose size is about that of a shard, and with each full shard one value more; a point query
//! reads the head, and at most a value a level below it: one with up to 256 shards, two with up to 65,536. Neighbouring blocks
//! take a byte a number. `docs/change-index.md` in the repository has the bytes.
//!
//! # Going back
//! [`Stage::unwind`] forgets changes after a block, and reads and deletes what has only such. A database with a
//! history needs it less: [`Db::rollback`](pleach::Db::rollback) takes the index back with the state.

mod changes;
mod error;
mod head;
mod list;
mod source;
mod stage;
mod tree;

use std::ops::{Bound, RangeBounds};

use pleach::Key;

pub use changes::Changes;
pub use error::Error;
pub use source::Source;
pub use stage::Stage;

use tree::{Tree, parse};

/// Lists of numbers as bytes, for measurements beside this index; no part of the interface.
#[doc(hidden)]
pub mod internals {
    pub use super::list::{Numbers, first, last_at_most, push};
}

/// The index in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeIndex {
    namespace: u8,
    shard: u32,
}

impl ChangeIndex {
    /// A length of shards that suits most: their values stay below a page.
    pub const SHARD: u32 = 500;

    /// The index in a namespace that has nothing else, with shards of so many numbers, 2 at least; `u32::MAX`
    /// puts nearly any list in one value. It stays what it is for as long as the namespace has lists: another one
    /// is refused with [`Error::OtherShards`].
    ///
    /// # Errors
    /// [`Error::ShardTooSmall`].
    pub fn new(namespace: u8, shard: u32) -> Result<Self, Error> {
        if shard < 2 { Err(Error::ShardTooSmall { shard }) } else { Ok(Self { namespace, shard }) }
    }

    /// Number of its namespace.
    pub fn namespace(&self) -> u8 {
        self.namespace
    }

    /// Numbers of a shard.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Begins what a batch does to the index, over a state of its namespace. Keys are to be hashes, as an account's
    /// are: whoever can choose all 32 bytes of one can make it that of another list's node.
    pub fn stage<'a, S: Source + ?Sized>(&self, source: &'a S) -> Stage<'a, S> {
        Stage::new(source, self.namespace, self.shard)
    }

    /// The last change of a key at or before a block.
    ///
    /// # Errors
    /// [`Error::OtherShards`], [`Error::Damaged`] and those of reading.
    pub fn last_at(
        &self,
        source: &(impl Source + ?Sized),
        key: &Key,
        block: u64,
    ) -> Result<Option<u64>, Error> {
        let Some(value) = source.read(key)? else { return Ok(None) };
        let head = parse(key, self.shard, &value)?;
        if head.last <= block {
            return Ok(Some(head.last));
        }
        let found = Tree { source, key, head: &head }.last_at_most(block)?;
        Ok(found.map(|(_, number)| number))
    }

    /// The first change of a key after a block.
    ///
    /// # Errors
    /// As [`Self::last_at`].
    pub fn first_after(
        &self,
        source: &(impl Source + ?Sized),
        key: &Key,
        block: u64,
    ) -> Result<Option<u64>, Error> {
        let Some(value) = source.read(key)? else { return Ok(None) };
        let head = parse(key, self.shard, &value)?;
        let tree = Tree { source, key, head: &head };
        let before = tree.rank(block)?;
        if before == head.count {
            return Ok(None);
        }
        let (shard, within) = tree.shard_of(before)?;
        let next = list::nth(&shard, within).ok().filter(|next| *next > block);
        next.map(Some).ok_or(Error::damaged(key))
    }

    /// How often a key has changed up to a block, that block included.
    ///
    /// # Errors
    /// As [`Self::last_at`].
    pub fn count_at(
        &self,
        source: &(impl Source + ?Sized),
        key: &Key,
        block: u64,
    ) -> Result<u64, Error> {
        let Some(value) = source.read(key)? else { return Ok(0) };
        let head = parse(key, self.shard, &value)?;
        Tree { source, key, head: &head }.rank(block)
    }

    /// The changes of a key in a range of blocks, ascending. Shards are read ahead, up to 16 at once.
    ///
    /// # Errors
    /// As [`Self::last_at`]; the iterator gives those of its shards.
    pub fn changes<'a, S: Source + ?Sized>(
        &self,
        source: &'a S,
        key: &Key,
        range: impl RangeBounds<u64>,
    ) -> Result<Changes<'a, S>, Error> {
        let from = match range.start_bound() {
            Bound::Included(from) => Some(*from),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let to = match range.end_bound() {
            Bound::Included(to) => Some(*to),
            Bound::Excluded(behind) => behind.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        let none = Changes::new(source, (*key, None), 0, (0, 0));
        let (Some(from), Some(to)) = (from, to) else { return Ok(none) };
        let Some(value) = source.read(key)? else { return Ok(none) };
        let head = parse(key, self.shard, &value)?;
        if from > to {
            return Ok(none);
        }
        let before = match from.checked_sub(1) {
            None => 0,
            Some(below) => Tree { source, key, head: &head }.rank(below)?,
        };
        let next = before / u64::from(self.shard);
        Ok(Changes::new(source, (*key, Some(head.into_owned())), next, (from, to)))
    }
}

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
