//! The blocks of export streams and change streams: header, checksums, limits, and what can be wrong with one.

use core::hash::Hasher as _;

use twox_hash::XxHash3_64;

/// First bytes of a block.
pub(crate) const MAGIC: [u8; 4] = *b"PLXB";
/// The version of export streams that is written. Version 1, which does not name the database, is read, too.
pub const VERSION: u16 = 2;
/// The version of change streams that is written. Version 1, which does not name the database, is read, too.
pub const CHANGES_VERSION: u16 = 2;
/// In place of a value's length: the key has no value any more.
pub(crate) const DELETED: u32 = u32::MAX;
/// Bytes of a block's header.
pub(crate) const HEADER: usize = 24;
/// Bytes of the header that the checksum covers.
pub(crate) const SUMMED: usize = 16;
/// A block of several pairs has at most so many bytes.
pub(crate) const FULL: usize = 256 << 10;
/// Longest value.
pub(crate) const MAX_VALUE: usize = 64 << 20;
/// Longest payload: a block with one pair of the longest value, or a head with the longest blob.
pub(crate) const MAX_PAYLOAD: usize = MAX_VALUE + 1024;
/// Bytes of a payload of pairs or changes before the first one.
pub(crate) const PAIRS_HEAD: usize = 8;
/// Bytes of a payload that ends a namespace.
pub(crate) const END_OF_NAMESPACE: usize = 16;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Head = 1,
    Pairs = 2,
    EndOfNamespace = 3,
    End = 4,
    ChangesHead = 5,
    Changes = 6,
}

impl Kind {
    pub(crate) fn of_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Head,
            2 => Self::Pairs,
            3 => Self::EndOfNamespace,
            4 => Self::End,
            5 => Self::ChangesHead,
            6 => Self::Changes,
            _ => return None,
        })
    }
}

/// The checksum of a block after the one with the checksum `before`.
pub(crate) fn checksum(before: u64, header: &[u8; SUMMED], payload: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(before);
    hasher.write(header);
    hasher.write(payload);
    hasher.finish()
}

/// What is wrong with an export stream or a change stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It could not be read.
    #[error("the stream cannot be read: {0}")]
    Read(String),
    /// It could not be written.
    #[error("the stream cannot be written: {0}")]
    Write(String),
    /// The first block is not that of an export stream.
    #[error(
        "this is no export stream: give a file that `pleach export` has written (`export::export`)"
    )]
    NoStream,
    /// The first block is not that of a change stream.
    #[error(
        "this is no change stream: give what `pleach backup` has written (`export::export_changes`)"
    )]
    NoChanges,
    /// A later version has written it.
    #[error(
        "the stream has version {found}, this software knows {known}: read it with a later version"
    )]
    Version {
        /// Its version.
        found: u16,
        /// The version that can be read.
        known: u16,
    },
    /// It ends within a block, or after one that is not the last.
    #[error("the stream is cut off after {blocks} blocks: write it again, or copy it again")]
    Cut {
        /// Whole blocks.
        blocks: u64,
    },
    /// A block does not have its checksum, or does not follow the one before.
    #[error(
        "block {block} of the stream is damaged, or does not follow the one before: copy the stream again"
    )]
    Damaged {
        /// Number of the block, from 0.
        block: u64,
    },
    /// A block with a right checksum says what no writer says.
    #[error("block {block} of the stream has a right checksum and wrong contents: {what}")]
    Contents {
        /// Number of the block, from 0.
        block: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes after the last block.
    #[error("bytes follow the end of the stream: give one stream")]
    Trailing,
    /// The stream is of a database with another hasher.
    #[error(
        "the stream is of a database with hasher number {found}, this one has {expected}: open one with its own"
    )]
    Hasher {
        /// Number of the hasher of the database.
        expected: u8,
        /// Number in the stream.
        found: u8,
    },
    /// The database has other pairs already.
    #[error("namespace {0} has other pairs than the export stream: import into a new database")]
    OtherPairs(u8),
    /// The database has a namespace that the stream does not have, or one of another kind.
    #[error(
        "namespace {0} is not in the export stream, or is of another kind there: import into a new database"
    )]
    OtherNamespace(u8),
    /// The database is neither in the state before the changes nor in the one after them.
    #[error(
        "namespace {namespace} is not as in commit {from}, from which the changes go to {to}: \
         apply change streams in their order, or import an export stream into a new database"
    )]
    OtherState {
        /// The first namespace that differs.
        namespace: u8,
        /// The commit before the changes.
        from: u64,
        /// The commit after them.
        to: u64,
    },
    /// Changes go from an older commit to a newer one.
    #[error("there are no changes from commit {from} to {to}: give the older commit first")]
    Order {
        /// The commit that should be the older one.
        from: u64,
        /// The commit that should be the newer one.
        to: u64,
    },
    /// The changes would not fit one commit of the database that they are applied to.
    #[error(
        "the changes from commit {from} to {to} take more than {limit} bytes, the limit of one stream: \
         write a stream to a commit between them, and one from there"
    )]
    TooLarge {
        /// The commit before the changes.
        from: u64,
        /// The commit after them.
        to: u64,
        /// Bytes that one stream may have.
        limit: u64,
    },
}
