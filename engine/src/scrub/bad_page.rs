//! A page that cannot be used, as scrubs and salvages list it.

use std::fmt;

use pleach_beatree::Error as TreeError;
use pleach_beatree::pages::overflow::read_piece;
use pleach_beatree::stored::overflow_cell;
use pleach_core::Prefix;
use pleach_io::{Disk, File};

use crate::error::{Contradiction, Error};

/// A page that cannot be used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BadPage {
    /// Name of its file: `leaf`, `overflow`, or a segment of the log.
    pub file: String,
    /// Page number: the byte offset in the file, divided by 4096.
    pub page: u64,
    /// Namespace and prefix of the keys whose pairs are in the page; for a page of the overflow file one key, as a
    /// prefix of 256 bits. `None` for the log.
    pub keys: Option<(u8, Prefix)>,
    /// What is wrong with the page.
    pub error: Error,
}

impl BadPage {
    #[doc(hidden)]
    pub fn new(file: &str, page: u64, keys: Option<(u8, Prefix)>, error: Error) -> Self {
        Self { file: file.to_owned(), page, keys, error }
    }
}

impl fmt::Display for BadPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, page, keys, error } = self;
        write!(f, "page {page} of {file}")?;
        if let Some((namespace, prefix)) = keys {
            write!(f, " (namespace {namespace}, keys below {prefix:?})")?;
        }
        write!(f, ": {error}")
    }
}

/// The first bad page of a long value; its first page where there is no file.
pub fn page_of_value(device: &Disk, file: Option<&File>, raw: &[u8], error: &Error) -> u64 {
    match error {
        Error::Page { page, .. }
        | Error::Corrupt(Contradiction::Tree(TreeError::Contents { page, .. })) => return *page,
        _ => {}
    }
    // Many pages were read at once: this finds the first that cannot be read alone.
    let mut pages = overflow_cell(raw)
        .extents()
        .flat_map(|extent| extent.start..extent.start + u64::from(extent.pages));
    let first = overflow_cell(raw).extents().next().map_or(0, |extent| extent.start);
    let is_bad = |page| file.is_none_or(|file| read_piece(device, file, page, 1).is_err());
    pages.find(|page| is_bad(*page)).unwrap_or(first)
}
