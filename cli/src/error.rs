//! Errors, and the exit code of each kind.

use std::path::Path;

use pleach::Advice;
use pleach::errors::{IoError, LockHolder};
use pleach::internals::error::{Contradiction, TreeError};
use pleach_archive::ArchiveError;
use pleach_journal::format::creation::CreationError;
use pleach_ops::export::StreamError;

/// The result of anything that can fail here.
pub(crate) type Result<T> = core::result::Result<T, CliError>;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct CliError {
    pub(crate) kind: ErrorKind,
    pub(crate) text: String,
    /// The engine's number for it ([`pleach::Error::code`]).
    pub(crate) code: Option<u16>,
    /// True when a document was written to standard output already.
    pub(crate) is_after_document: bool,
}

/// The kinds of errors, each with an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ErrorKind {
    /// Findings; the database opens.
    Findings = 1,
    /// The arguments, or what they name, are invalid.
    Usage = 2,
    /// Another process has the database open.
    InUse = 3,
    /// The database does not open.
    DoesNotOpen = 4,
    /// Damaged data was met.
    Damaged = 5,
    /// The system refused.
    System = 6,
    /// Another version has made the database, the stream or the proof.
    OtherVersion = 7,
}

impl ErrorKind {
    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The kind's name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Findings => "findings",
            Self::Usage => "usage",
            Self::InUse => "in use",
            Self::DoesNotOpen => "does not open",
            Self::Damaged => "damaged",
            Self::System => "system",
            Self::OtherVersion => "other version",
        }
    }
}

impl CliError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), code: None, is_after_document: false }
    }

    /// Marks that a document was printed before.
    pub(crate) fn after_document(self) -> Self {
        Self { is_after_document: true, ..self }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, text)
    }

    /// As an object for programs.
    pub(crate) fn document(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": self.kind.name(), "exit_code": self.kind.code(), "code": self.code,
            "text": self.text
        })
    }

    /// Wraps an error about a file that is not the database's.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::Usage,
                _ => ErrorKind::System,
            };
            Self::new(kind, format!("{}: {error}", path.display()))
        }
    }

    /// Wraps an error of the system about signals.
    #[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
    pub(crate) fn signals(error: std::io::Error) -> Self {
        Self::new(ErrorKind::System, format!("signals: {error}"))
    }

    /// Wraps an error of a fetch, a load or a catch-up of a folder's database.
    pub(crate) fn sync(folder: &Path) -> impl Fn(pleach_sync::Error) -> Self + '_ {
        use pleach_sync::Error as E;
        move |error| {
            let kind = match error {
                E::Db(error) => return Self::engine(folder)(error),
                E::Stream(error) => return Self::engine(folder)(error),
                E::InUse(_) => ErrorKind::InUse,
                E::OtherTarget(_) => ErrorKind::Usage,
                E::Damaged { .. } | E::Incomplete { .. } => ErrorKind::Damaged,
                E::Lie(_) => ErrorKind::Findings,
                _ => ErrorKind::System,
            };
            Self::new(kind, error.to_string())
        }
    }

    /// Wraps an error of the engine about a folder, and adds which of these commands may help.
    pub(crate) fn engine<E: Into<pleach_ops::Error>>(folder: &Path) -> impl Fn(E) -> Self + '_ {
        move |error| {
            let error = match error.into() {
                pleach_ops::Error::Db(error) => error,
                error => {
                    return Self {
                        code: Some(error.code()),
                        ..Self::new(kind_of(&error), error.to_string())
                    };
                }
            };
            let at = folder.display();
            let kind = kind_of_db(&error);
            let text = match &error {
                pleach::Error::Missing { .. } => {
                    format!(
                        "there is no database in {at}: give the folder that has the file `super`"
                    )
                }
                pleach::Error::Namespace(number) => {
                    format!("there is no namespace {number}: `pleach namespaces {at}` lists them")
                }
                pleach::Error::SnapshotTooOld { commit, oldest } => format!(
                    "commit {commit} cannot be read any more, the oldest that can is {oldest}: `pleach history {at}` lists them"
                ),
                pleach::Error::WrongHasher { found, .. } => format!(
                    "the database in {at} has the hasher {found}, which an application has made: a program of that application opens it"
                ),
                // It says itself what helps.
                pleach::Error::Io(IoError::Locked { holder: LockHolder::Unshared(_), .. }) => {
                    error.to_string()
                }
                _ if kind == ErrorKind::InUse => format!("{error}: stop that process"),
                _ if kind == ErrorKind::Damaged => {
                    format!("{error}; `pleach check {at}` lists all that is damaged")
                }
                _ if kind == ErrorKind::DoesNotOpen => {
                    format!("{error}; `pleach repair {at}` says what can be done")
                }
                _ => error.to_string(),
            };
            Self { code: Some(error.code()), ..Self::new(kind, text) }
        }
    }
}

impl From<ArchiveError> for CliError {
    fn from(error: ArchiveError) -> Self {
        let code = match &error {
            ArchiveError::Database(error) => Some(error.code()),
            _ => None,
        };
        Self { code, ..Self::new(kind_of_archive(&error), error.to_string()) }
    }
}

/// The kind of an error of an archive.
fn kind_of_archive(error: &ArchiveError) -> ErrorKind {
    use ArchiveError as E;
    match error {
        E::Database(error) => kind_of(error),
        E::OtherVersion { .. } => ErrorKind::OtherVersion,
        E::Store { .. } | E::File { .. } | E::Lost { .. } | E::Older { .. } | E::Panicked => {
            ErrorKind::System
        }
        E::Damaged { .. }
        | E::NotVerified { .. }
        | E::Contradiction { .. }
        | E::TwoDatabases { .. }
        | E::Foreign { .. }
        | E::Unnamed(_)
        | E::Cursor(_) => ErrorKind::Damaged,
        _ => ErrorKind::Usage,
    }
}

pub(crate) fn kind_of(error: &pleach_ops::Error) -> ErrorKind {
    use pleach_ops::Error as E;
    match error {
        E::Stream(StreamError::Version { .. }) => ErrorKind::OtherVersion,
        E::WouldLose(_) => ErrorKind::Findings,
        E::Db(error) => kind_of_db(error),
        E::Stream(
            StreamError::Cut { .. } | StreamError::Damaged { .. } | StreamError::Contents { .. },
        ) => ErrorKind::Damaged,
        E::Stream(StreamError::Read(_) | StreamError::Write(_)) => ErrorKind::System,
        _ => ErrorKind::Usage,
    }
}

fn kind_of_db(error: &pleach::Error) -> ErrorKind {
    use pleach::Error as E;
    match error {
        _ if error.advice() == Advice::OtherVersion => ErrorKind::OtherVersion,
        E::Io(IoError::Locked { .. }) => ErrorKind::InUse,
        E::Io(IoError::Linked { .. }) => ErrorKind::Usage,
        E::Page { file: "leaf" | "overflow", .. }
        | E::StalePage { .. }
        | E::Quarantined { .. }
        | E::HistoryLost { .. }
        | E::Corrupt(
            Contradiction::Backup { .. }
            | Contradiction::Tree(TreeError::Contents { file: "overflow", .. })
            | Contradiction::Pairs { .. },
        )
        | E::OtherRoot { .. } => ErrorKind::Damaged,
        E::Io(_) | E::Full(_) | E::Overtaken { .. } | E::Poisoned(_) | E::InDoubt(_) => {
            ErrorKind::System
        }
        // The argument to compare with: an archive, or its commit.
        E::Corrupt(Contradiction::OtherState { .. } | Contradiction::Restored { .. }) => {
            ErrorKind::Usage
        }
        E::Page { .. }
        | E::ForeignImagePage { .. }
        | E::Superblock(_)
        | E::Incarnation(_)
        | E::Scan(_)
        | E::Log(_)
        | E::Creation(CreationError::Io(_) | CreationError::Marker { .. })
        | E::MissingFile { .. }
        | E::ShortFile { .. }
        | E::HistoryShort { .. }
        | E::Corrupt(_) => match error.device() {
            Some(_) => ErrorKind::System,
            None => ErrorKind::DoesNotOpen,
        },
        _ => ErrorKind::Usage,
    }
}
