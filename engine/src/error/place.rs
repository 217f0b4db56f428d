//! Where the bytes lie that an error is about, so that errors can be compared.

use std::mem::{Discriminant, discriminant};

use pleach_beatree::Error as TreeError;
use pleach_journal::format::position::LogPos;
use pleach_journal::log::{LogError, ScanError};

use super::{Contradiction, Error};

/// A place in the files of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// A page of a file.
    Page(&'a str, u64),
    /// A page of a file, and the tag that its parent expects there.
    Tagged(&'a str, u64, u32),
    /// A byte of a file, or the file as a whole.
    File(&'a str, u64),
    /// A position of the log.
    Log(LogPos),
    /// A segment of the log.
    Segment(u64),
    /// A contradiction that is in no single page.
    Kind(Discriminant<Contradiction>),
}

impl Error {
    /// The place that this error is about; `None` where it does not come from the bytes of a file.
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        Some(match self {
            Self::Io(error) | Self::Log(LogError::Io(error)) | Self::Scan(ScanError::Io(error)) => {
                Place::File(error.file()?, error.offset()?)
            }
            Self::Log(LogError::Segment(bad)) | Self::Scan(ScanError::Segment(bad)) => {
                Place::Segment(bad.index)
            }
            Self::Scan(
                ScanError::Damaged { position, .. }
                | ScanError::Past { position, .. }
                | ScanError::Future { position, .. }
                | ScanError::Geometry { position, .. },
            )
            | Self::Corrupt(Contradiction::Record { position, .. }) => Place::Log(*position),
            Self::StalePage { file, page, expected, .. } => Place::Tagged(file, *page, *expected),
            Self::Page { file, page, .. }
            | Self::ForeignImagePage { file, page, .. }
            | Self::Corrupt(Contradiction::Tree(TreeError::Contents { file, page, .. })) => {
                Place::Page(file, *page)
            }
            Self::ShortFile { file, .. } => Place::File(file, 0),
            Self::MissingFile { file } => Place::File(file, 0),
            Self::Corrupt(what) => Place::Kind(discriminant(what)),
            _ => return None,
        })
    }
}
