//! The errors of a tree: of its files, its pages, the image of its index, and the runs of what it replaced.

use pleach_core::Prefix;
use pleach_core::page::{OverflowError, PageError};
use pleach_io::IoError;

use crate::space::SpaceError;

/// An error of a tree.
///
/// A caller of the engine sees the first six as variants of `pleach::Error` for all files, and the others as
/// `Contradiction`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The device has no room for something that nothing names yet.
    #[error("no room: {0}")]
    Full(IoError),
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
    /// A page is damaged, or is not the page of this number.
    #[error("page {page} of {file}: {error}")]
    Page {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// What is wrong with the page.
        error: PageError,
    },
    /// A page is intact, but not the one that its parent expects: a lost or misdirected write.
    #[error(
        "page {page} of {file} is stale: its parent expects tag {expected:#010x}, found {found:#010x}"
    )]
    StalePage {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// Tag in the parent.
        expected: u32,
        /// Tag of the page.
        found: u32,
    },
    /// A page is intact and of another image.
    #[error("page {page} of {file} belongs to image {found:#x}, not to {expected:#x}")]
    ForeignPage {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// Number of the image that the superblock names.
        expected: u64,
        /// Number in the page.
        found: u64,
    },
    /// A page is intact, and not the one that is named, or has invalid contents.
    #[error("page {page} of {file}: {what}")]
    Contents {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// What is wrong with the page.
        what: &'static str,
    },
    /// Pages and the changes buffered for them do not fold to the node in the index.
    #[error("the pairs below {prefix:?} do not fold to the node in the index")]
    Fold {
        /// The prefix of the node.
        prefix: Prefix,
    },
    /// A page is allocated twice, or free twice, or outside its file.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A long value is longer than this machine can hold.
    #[error("a value of {bytes} bytes")]
    ValueLength {
        /// The length in the cell.
        bytes: u64,
    },
    /// The runs of a long value do not fit into a cell.
    #[error("a long value's extents cannot be named: {0}")]
    ValueExtents(OverflowError),
    /// The cell of a long value in a run of the history is invalid.
    #[error("a commit before {commit} replaced a value whose name is none: {error}")]
    ValueName {
        /// The last commit of the run.
        commit: u64,
        /// What is wrong with the cell.
        error: OverflowError,
    },
    /// The file is shorter than the image in it.
    #[error("{file} is shorter than the {pages} pages that it should have")]
    Short {
        /// File name.
        file: &'static str,
        /// Number of pages in the superblock.
        pages: u64,
    },
    /// A region has more children than fit into a branch page.
    #[error("{prefix:?} has more children than a page")]
    TooManyChildren {
        /// The region.
        prefix: Prefix,
    },
    /// An image has more pages than a superblock can name.
    #[error("an image of {pages} pages is longer than a superblock can name")]
    TooLong {
        /// Number of its pages.
        pages: u64,
    },
    /// The table is not the one that the superblock names.
    #[error("the image's table is not the one that the superblock names")]
    OtherTable,
    /// The table has the right checksum, but invalid fields.
    #[error("the table of the image makes no sense")]
    Table,
    /// The stream of buffered changes has the right checksum, but invalid fields.
    #[error("the buffered changes of the image make no sense")]
    Buffered,
}

impl Error {
    /// The error of a write that nothing names yet: a full device is no failure then.
    pub fn of_unnamed(error: IoError) -> Self {
        if error.is_full() { Self::Full(error) } else { Self::Io(error) }
    }

    /// True when the device has no room; nothing took place.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Reserve { .. })
    }

    /// The page that is damaged or wrong.
    pub fn page(&self) -> Option<u64> {
        match self {
            Self::Page { page, .. } | Self::Contents { page, .. } => Some(*page),
            _ => None,
        }
    }
}

/// Result of operations on a tree.
pub type Result<T, E = Error> = std::result::Result<T, E>;
