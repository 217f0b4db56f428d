//! What can go wrong.

use pleach::Key;

/// A stored value is not what this index writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Why the index could not be read or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database could not be read.
    #[error(transparent)]
    Database(#[from] pleach::Error),
    /// A value of the namespace is missing, or is none that this index wrote.
    #[error("the change index has no sound value at {}", Hex(key))]
    Damaged {
        /// Where in the namespace.
        key: Key,
    },
    /// The key's list was written with shards of another length.
    #[error("shards of this key have {stored} numbers, not {asked}")]
    OtherShards {
        /// Numbers of a shard, as stored.
        stored: u32,
        /// As asked for.
        asked: u32,
    },
    /// Shards of so few numbers are none.
    #[error("shards have 2 numbers at least, not {shard}")]
    ShardTooSmall {
        /// As asked for.
        shard: u32,
    },
    /// Blocks are appended in ascending order.
    #[error("block {block} does not come after block {last}, at which the key has changed")]
    NotAscending {
        /// The block.
        block: u64,
        /// The last one at which the key has changed.
        last: u64,
    },
}

impl Error {
    /// The value of a key is [`Damaged`].
    pub(crate) fn damaged(key: &Key) -> Self {
        Self::Damaged { key: *key }
    }
}

struct Hex<'a>(&'a Key);

impl core::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
