//! Errors of the log: of its writer and of its scan.

use pleach_io::IoError;

use crate::format::names::segment_name;
use crate::format::position::LogPos;

/// A segment file of the log that is missing or does not have the length of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log is damaged: its file {} {}; put the file back, or a copy of the whole folder",
    segment_name(*.index), length(*.found, *.expected)
)]
pub struct BadSegment {
    /// Number of the segment.
    pub index: u64,
    /// Its length in bytes, `None` when it is missing.
    pub found: Option<u64>,
    /// The length in the superblock's geometry.
    pub expected: u64,
}

fn length(found: Option<u64>, expected: u64) -> String {
    match found {
        None => "is missing".to_owned(),
        Some(found) => format!("has {found} bytes instead of {expected}"),
    }
}

/// An error of the log's writer and of its segments.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The device failed. Failed writes, syncs and folder syncs poison. Without room for another segment
    /// ([`IoError::is_full`]) nothing was written, and the call may be repeated.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A write or sync failed earlier; nothing more is acknowledged until the log is reopened.
    #[error("an earlier write or sync of the log failed")]
    Poisoned,
    /// A segment that the live part of the log needs is missing or has the wrong length.
    #[error(transparent)]
    Segment(#[from] BadSegment),
}

/// The reason why the bytes at a position are not the log's next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidReason {
    /// Zeros: never written.
    #[error("nothing was written there")]
    Blank,
    /// The segment's file ends here or is missing.
    #[error("its file is missing or ends there")]
    NoSegment,
    /// Not a header: torn, or left over from a recycled segment.
    #[error("no record begins there")]
    NoHeader,
    /// A header of another position, database or incarnation, or of another predecessor: stale.
    #[error("an older record is there")]
    Stale,
    /// A good header whose body reaches past the last segment.
    #[error("its record is cut off")]
    CutBody,
    /// A good header with a bad body.
    #[error("its record is torn or damaged")]
    TornBody,
}

/// An error of the scan: the log is damaged or unreadable, and nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The device failed to read; this is never taken for the log's end.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A bad record that was known to be durable: damage, not a torn end.
    #[error(
        "the log is damaged at {position:#x} ({invalid}): it was durable up to \
         {durable_through:#x}, as {evidence}"
    )]
    Damaged {
        /// Where the bad record starts.
        position: LogPos,
        /// What is wrong with the record.
        invalid: InvalidReason,
        /// The log is known to have been synced below this.
        durable_through: LogPos,
        /// The evidence for that.
        evidence: DurableEvidence,
    },
    /// A record of a future incarnation: the incarnation file is an old one.
    #[error("record at {position:#x} is of incarnation {found}, the last one known is {known}")]
    Future {
        /// The record's position.
        position: LogPos,
        /// Its incarnation.
        found: u32,
        /// The incarnation in its file.
        known: u32,
    },
    /// A segment file of the log is missing or does not have the length of a segment. It may hold commits, so the log
    /// is not cut there.
    #[error(transparent)]
    Segment(#[from] BadSegment),
    /// The records of past commits are damaged, below the replay start: later records do not depend on them.
    #[error("the log of past commits is damaged at {position:#x} ({invalid})")]
    Past {
        /// Where the bad record starts.
        position: LogPos,
        /// What is wrong with the record.
        invalid: InvalidReason,
    },
    /// The geometry or the replay start cannot be used.
    #[error("log segments of {segment_size} bytes, replay from {position:#x}: not usable")]
    Geometry {
        /// Bytes of a segment.
        segment_size: u64,
        /// The replay start.
        position: LogPos,
    },
}

/// Durable evidence: the source of a position up to which the log was once synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurableEvidence {
    /// The superblock.
    Superblock,
    /// The header of the record at this position.
    Record(LogPos),
}

impl core::fmt::Display for DurableEvidence {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Superblock => f.write_str("the superblock says"),
            Self::Record(position) => write!(f, "the record at {position:#x} says"),
        }
    }
}
