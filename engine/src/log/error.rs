//! Errors of the log: of its writer, of its scan, and of a record's body.

use pleach_io::IoError;

/// A body whose checksum is right and whose content is not: written by a broken or hostile hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// A length or count reaches past the end.
    #[error("a length reaches past the end of the record")]
    Truncated,
    /// Bytes are left behind the last field.
    #[error("bytes are left behind the last field")]
    Trailing,
    /// Keys, positions or namespaces are not strictly ascending.
    #[error("keys, positions or namespaces are not strictly ascending")]
    Unsorted,
    /// A trie position of more than 256 bits, or with bits behind its length.
    #[error("not a trie position")]
    Position,
    /// An unknown kind of value.
    #[error("unknown kind of value {0}")]
    Kind(u8),
    /// An unknown flag.
    #[error("unknown flags {0:#x}")]
    Flags(u16),
    /// A reserved byte is set.
    #[error("a reserved byte is not zero")]
    Reserved,
    /// The application's blob is longer than allowed.
    #[error("a blob of {0} bytes")]
    Blob(u32),
    /// The new pages of a range do not tile it.
    #[error("the pages of a range do not tile it")]
    Tiling,
}

/// An error of the log's writer and of its segments.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The device failed. Failed writes, syncs and folder syncs poison.
    #[error(transparent)]
    Io(#[from] IoError),
    /// No room for another segment; nothing was written, and it may be tried again.
    #[error("no room for another log segment: {0}")]
    Full(IoError),
    /// A write or sync failed earlier; nothing more is acknowledged until the log is reopened.
    #[error("an earlier write or sync of the log failed")]
    Poisoned,
    /// A segment that the live part of the log needs is missing or has the wrong length.
    #[error("log segment {index:#x} {}, {expected} bytes expected", has(*found))]
    Segment {
        /// Number of the segment.
        index: u64,
        /// Its length, `None` when it is missing.
        found: Option<u64>,
        /// The length in the superblock's geometry.
        expected: u64,
    },
}

fn has(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "is missing".to_owned(), |bytes| format!("has {bytes} bytes"))
}

/// Why the bytes at a position are not the log's next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalid {
    /// Zeros: never written.
    Blank,
    /// The segment's file ends here or is missing.
    NoSegment,
    /// Not a header: torn, or left over from a recycled segment.
    NoHeader,
    /// A header of another place, database or incarnation, or of another predecessor: stale.
    Stale,
    /// A good header whose body reaches past the last segment.
    CutBody,
    /// A good header with a bad body.
    TornBody,
}

/// An error of the scan: the log cannot be believed, and nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The device failed to read; this is never taken for the log's end.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A record is bad that was known to be durable: damage, not a torn end.
    #[error(
        "the log is damaged at {position:#x} ({invalid:?}): it was durable up to \
         {durable_through:#x}, as {witness}"
    )]
    Damaged {
        /// Where the bad record starts.
        position: u64,
        /// What is wrong with it.
        invalid: Invalid,
        /// How far the log is known to have been synced.
        durable_through: u64,
        /// Who knows it.
        witness: Witness,
    },
    /// A record of an incarnation that is yet to come: the incarnation file is an old one.
    #[error("record at {position:#x} is of incarnation {found}, the last one known is {known}")]
    Future {
        /// The record's position.
        position: u64,
        /// Its incarnation.
        found: u32,
        /// The incarnation read from its file.
        known: u32,
    },
    /// A segment file is longer than its geometry says.
    #[error("log segment {index:#x} has {found} bytes, {expected} expected")]
    Oversized {
        /// Number of the segment.
        index: u64,
        /// Its length.
        found: u64,
        /// The length in the superblock's geometry.
        expected: u64,
    },
    /// The geometry or the replay start cannot be used.
    #[error("log segments of {segment_size} bytes, replay from {position:#x}: not usable")]
    Geometry {
        /// Bytes of a segment.
        segment_size: u64,
        /// The replay start.
        position: u64,
    },
}

/// Who knows how far the log was durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The superblock.
    Superblock,
    /// The header of the record at this position.
    Record(u64),
}

impl core::fmt::Display for Witness {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Superblock => f.write_str("the superblock says"),
            Self::Record(position) => write!(f, "the record at {position:#x} says"),
        }
    }
}
