//! Errors of runs on the device.

use pleach_core::page::{OverflowError, PageError};
use pleach_io::IoError;

pub(super) type Result<T> = std::result::Result<T, Error>;

/// The reason why a run on the device cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device has failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A page is damaged.
    #[error("page {page}: {error}")]
    Page {
        /// Page number.
        page: u64,
        /// What is wrong with the page.
        error: PageError,
    },
    /// A page is another run's by now, or has invalid contents.
    #[error("page {page}: {what}")]
    Contents {
        /// Page number.
        page: u64,
        /// What is wrong with the page.
        what: &'static str,
    },
    /// The cell of a long value is invalid.
    #[error("a commit before {commit} replaced a value whose name is none: {error}")]
    Name {
        /// The last commit of the run.
        commit: u64,
        /// What is wrong with the cell.
        error: OverflowError,
    },
}

impl Error {
    /// The page of the error.
    pub fn page(&self) -> Option<u64> {
        match self {
            Self::Page { page, .. } | Self::Contents { page, .. } => Some(*page),
            Self::Io(_) | Self::Name { .. } => None,
        }
    }
}
