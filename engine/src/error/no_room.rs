//! What the device has no room for.

use pleach_beatree::files::{LEAF_FILE, OVERFLOW_FILE};
use pleach_io::IoError;

/// What had no room. The operation did not take place.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoom {
    /// The leaf file cannot grow.
    #[error("leaf pages, {0}")]
    LeafPages(IoError),
    /// The overflow file cannot grow, or a long value cannot be written.
    #[error("long values, {0}")]
    OverflowPages(IoError),
    /// No further segment of the log can be made.
    #[error("a log segment, {0}")]
    LogSegment(IoError),
    /// The image of a checkpoint cannot be written, or its space cannot be reserved.
    #[error("an image, {0}")]
    Image(IoError),
    /// The sorted pairs of a bulk load do not fit beside the database.
    #[error("the pairs of a bulk load, {0}")]
    Load(IoError),
    /// The target of a backup has no room for the copy.
    #[error("the copy of a backup, {0}")]
    Backup(IoError),
    /// An open cannot write what it has to write first.
    #[error("an open, {0}")]
    Open(IoError),
    /// Buffered changes cannot be written to pages.
    #[error("buffered changes cannot be written to pages")]
    PendingChanges,
    /// The log cannot be shortened, because a checkpoint cannot be written.
    #[error("a checkpoint cannot be written")]
    Checkpoint,
    /// Growth would take space that is reserved for deletes, flushes and checkpoints.
    #[error("{free} bytes are free, {reserve} of them are kept in reserve, {wanted} were wanted")]
    Reserve {
        /// Bytes that the device has free, with those of free pages where a commit may use them.
        free: u64,
        /// Bytes of them that ordinary growth leaves free.
        reserve: u64,
        /// Bytes of the growth.
        wanted: u64,
    },
}

impl NoRoom {
    /// What had no room, by the file of the device's error.
    pub(crate) fn of(error: IoError) -> Self {
        match error.file() {
            Some(LEAF_FILE) => Self::LeafPages(error),
            Some(OVERFLOW_FILE) => Self::OverflowPages(error),
            _ => Self::Image(error),
        }
    }

    /// The device's error, if it gave one.
    pub(crate) fn device(&self) -> Option<&IoError> {
        match self {
            Self::LeafPages(error)
            | Self::OverflowPages(error)
            | Self::LogSegment(error)
            | Self::Image(error)
            | Self::Load(error)
            | Self::Backup(error)
            | Self::Open(error) => Some(error),
            Self::PendingChanges | Self::Checkpoint | Self::Reserve { .. } => None,
        }
    }
}
