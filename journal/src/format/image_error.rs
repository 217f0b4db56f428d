//! Errors of images: while they are written, while they are read, and in their contents.

use pleach_core::Prefix;
use pleach_core::page::PageError;
use pleach_core::page::stream::StreamId;
use pleach_io::IoError;

/// An error of an image.
///
/// A caller of the engine sees the first five as variants of `pleach::Error` for all files, and the others as
/// `Contradiction::Image`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The device has no room for the image, which nothing names yet.
    #[error("no room for an image: {0}")]
    Full(IoError),
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
    /// A page is intact and has another tag than its parent expects.
    #[error("page {page} of {file} has tag {found:#010x}, its parent expects {expected:#010x}")]
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
    /// The file is shorter than the image in it.
    #[error("{file} is shorter than the {pages} pages that it should have")]
    Short {
        /// File name.
        file: &'static str,
        /// Number of pages in the superblock.
        pages: u64,
    },
    /// A page after the image's last one is named.
    #[error("{file} has no page {page}")]
    NoPage {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
    },
    /// A branch page has another prefix or level than its parent says.
    #[error("page {page} of {file} is another branch than its parent says")]
    OtherBranch {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
    },
    /// A page is not the first one of the stream that should start there.
    #[error("page {page} of {file} starts another stream")]
    OtherStream {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
    },
    /// A stream has another length or checksum than in the table.
    #[error("the {stream:?} stream of {file} is not the one that its table names")]
    StreamChecksum {
        /// File name.
        file: &'static str,
        /// The stream.
        stream: StreamId,
    },
    /// A stream is longer than the image.
    #[error("a stream of {bytes} bytes does not fit {file}")]
    StreamLength {
        /// File name.
        file: &'static str,
        /// The stream's length, in the table or in its first bytes.
        bytes: u64,
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

/// Result of reading and writing images.
pub(crate) type Result<T, E = ImageError> = std::result::Result<T, E>;
