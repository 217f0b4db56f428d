//! What an open has found.

use pleach_journal::log::CutReport;

use crate::error::Error;

/// How an open found the database, and what it did to be able to go on.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Opening {
    /// The folder was empty, or held a creation that had come to no end: the database is new.
    pub created: bool,
    /// It had been closed. If not, its process was killed, or dropped it without closing.
    pub closed: bool,
    /// The newest commit that was found.
    pub commit: u64,
    /// The oldest commit that can be read.
    pub oldest: u64,
    /// Bytes of the log that were replayed.
    pub replayed: u64,
    /// What was given up at the log's end: a commit that was never acknowledged as durable, torn. After
    /// a kill, rot in the very last durable record looks the same. `None` when nothing was.
    pub cut: Option<CutReport>,
    /// The newest checkpoint could not be used, and why; the older one and its log were.
    pub fell_back: Option<Error>,
    /// Commits of the history that are lost to damage, as far as the open has met it.
    pub lost: Option<LostHistory>,
    /// What was found that an open survives: copies that are dead, spares that are missing, a budget that the process
    /// cannot have.
    pub notes: Vec<Note>,
}

/// Commits of the history that cannot be read, though they should: a run or the log is damaged where they are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LostHistory {
    /// The oldest commit of the history, as the newest record of the log says; 0 where none does.
    pub from: u64,
    /// The oldest commit that can be read: those before it are lost.
    pub before: u64,
    /// The damage nearest to it, with its place.
    pub error: Error,
}

/// Something about a file or an option that an open survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name of the file or option.
    pub file: String,
    /// What is the matter with it.
    pub what: String,
}

impl core::fmt::Display for Note {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}
