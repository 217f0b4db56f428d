//! Errors of the allocators.

/// A page cannot be in the state that was claimed: the index, a location record or an image does not belong to this
/// state of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// Two owners of one page.
    #[error("page {page} is used twice")]
    AlreadyUsed {
        /// The page.
        page: u64,
    },
    /// A page was retired that nobody owns.
    #[error("page {page} is retired but was not in use")]
    NotUsed {
        /// The page.
        page: u64,
    },
    /// A page was retired twice.
    #[error("page {page} is retired twice")]
    AlreadyRetired {
        /// The page.
        page: u64,
    },
    /// A page after the end of the file.
    #[error("page {page} lies after the end of the file, {pages} pages")]
    OutsideFile {
        /// The page.
        page: u64,
        /// Pages of the file.
        pages: u64,
    },
    /// A file of more pages than page numbers can name.
    #[error("a file of {pages} pages is longer than page numbers reach")]
    TooLong {
        /// Pages of the file.
        pages: u64,
    },
    /// An invalid free map.
    #[error("free map: {what} at byte {offset}")]
    FreeMap {
        /// What is wrong.
        what: &'static str,
        /// The offset of the error, in bytes.
        offset: usize,
    },
}

/// The file must grow before this can be allocated. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file needs {segments} more segments")]
pub struct NeedGrowth {
    /// Whole segments to reserve at the end of the file.
    pub segments: u32,
}
