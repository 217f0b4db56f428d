//! The blocks of an export stream: header, checksums, limits, and what can be wrong with one.

use core::hash::Hasher as _;

use twox_hash::XxHash3_64;

/// First bytes of a block.
pub(crate) const MAGIC: [u8; 4] = *b"PLXB";
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
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
/// Bytes of a payload of pairs before the first one.
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
}

impl Kind {
    pub(crate) fn of_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Head,
            2 => Self::Pairs,
            3 => Self::EndOfNamespace,
            4 => Self::End,
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

/// What is wrong with an export stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It could not be read.
    #[error("the export stream cannot be read: {0}")]
    Read(String),
    /// It could not be written.
    #[error("the export stream cannot be written: {0}")]
    Write(String),
    /// The first block is none.
    #[error("this is no export stream: give what `export::export` or `pleach export` has written")]
    NoStream,
    /// A later version has written it.
    #[error(
        "the export stream has version {found}, this software knows {VERSION}: import it with a later version"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// It ends within a block, or after one that is not the last.
    #[error("the export stream is cut off after {blocks} blocks: export again, or copy it again")]
    Cut {
        /// Whole blocks.
        blocks: u64,
    },
    /// A block does not have its checksum, or does not follow the one before.
    #[error(
        "block {block} of the export stream is damaged, or does not follow the one before: copy the stream again"
    )]
    Damaged {
        /// Number of the block, from 0.
        block: u64,
    },
    /// A block with a right checksum says what no writer says.
    #[error("block {block} of the export stream has a right checksum and wrong contents: {what}")]
    Contents {
        /// Number of the block, from 0.
        block: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes after the last block.
    #[error("bytes follow the end of the export stream: give one stream")]
    Trailing,
    /// The stream is of a database with another hasher.
    #[error(
        "the export stream is of a database with hasher number {found}, this one has {expected}: import it into one with its own"
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
}
