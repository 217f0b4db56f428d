//! What an open has found.

use pleach_journal::log::CutReport;

use crate::error::{Error, Place};

/// The state in which an open found the database, and what it did about damage.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Opening {
    /// The folder was empty, or held an unfinished creation: the database is new.
    pub created: bool,
    /// True when the database had been closed. If not, its process was killed, or dropped it without closing.
    pub closed: bool,
    /// The newest commit that was found.
    pub commit: u64,
    /// The oldest commit that can be read.
    pub oldest: u64,
    /// Bytes of the log that were replayed.
    pub replayed: u64,
    /// What was cut off at the log's end: a torn commit that was never acknowledged as durable. After a kill, rot in
    /// the very last durable record looks the same. `None` when nothing was cut.
    pub cut: Option<CutReport>,
    /// Why the newest checkpoint could not be used, when the older one and its log were used.
    pub fell_back: Option<Error>,
    /// Commits of the history that are lost to damage, as far as the open has read it.
    pub lost: Option<LostHistory>,
    /// Defects that an open survives: dead copies, missing spares, a budget that the process cannot have.
    pub notes: Vec<Note>,
}

/// Commits of the history that cannot be read, though they should: a run or the log is damaged there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LostHistory {
    /// The oldest commit of the history according to the newest record of the log; 0 where no record has it.
    pub from: u64,
    /// The oldest commit that can be read: all before it are lost.
    pub before: u64,
    /// The damage nearest to that commit, with its place.
    pub error: Error,
}

impl LostHistory {
    /// Its note among those of the open ([`Opening::notes`]), with the file that is damaged.
    pub fn note(&self) -> Note {
        let Self { before, error, .. } = self;
        let file = match error.place() {
            Some(Place::Page(file, _) | Place::Tagged(file, ..) | Place::File(file, _)) => file,
            _ => "log",
        };
        let what = format!("commits before {before} are lost to the history: {error}");
        Note { file: file.to_owned(), what }
    }
}

/// A defect of a file or an option that an open survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name of the file or option.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
}

impl core::fmt::Display for Note {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}
