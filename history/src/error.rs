//! What can be wrong with runs on the device.

use pleach_core::page::{OverflowError, PageError};
use pleach_io::IoError;

/// Why a run on the device cannot be read or written.
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
        /// What is wrong with it.
        error: PageError,
    },
    /// A page is another run's by now, or has what no writer makes.
    #[error("page {page}: {what}")]
    Contents {
        /// Page number.
        page: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The name of a long value is none.
    #[error("a commit before {commit} replaced a value whose name is none: {error}")]
    Name {
        /// The last commit of the run.
        commit: u64,
        /// What is wrong with the name.
        error: OverflowError,
    },
}

impl Error {
    /// The page that it is about.
    pub fn page(&self) -> Option<u64> {
        match self {
            Self::Page { page, .. } | Self::Contents { page, .. } => Some(*page),
            Self::Io(_) | Self::Name { .. } => None,
        }
    }
}
