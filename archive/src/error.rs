//! What can go wrong with an archive.

use std::fmt;

use crate::names::Piece;

/// A result of this crate.
pub type Result<T, E = ArchiveError> = std::result::Result<T, E>;

impl From<pleach::Error> for ArchiveError {
    fn from(error: pleach::Error) -> Self {
        Self::Database(error.into())
    }
}

/// A program whose `main` returns it prints this.
impl std::fmt::Debug for ArchiveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// An error of an archive, a backup or a restore.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The database refused or failed.
    #[error(transparent)]
    Database(#[from] pleach_ops::Error),
    /// The object store refused or failed. What was done before stays; try again.
    #[error("{object}: {}", store_failed(cause))]
    Store {
        /// Name of the object, or the place of the archive.
        object: String,
        /// What the store said.
        cause: object_store::Error,
    },
    /// The object `database-<id>` that was in the archive is not there any more. When it is back, the next call goes on.
    #[error(
        "{place} has no database-{database:016x} any more{}: look whether its disk is mounted and its bucket the same",
        found.map_or_else(String::new, |found| format!(", but database-{found:016x}"))
    )]
    Lost {
        /// The place of the archive.
        place: String,
        /// Number of the database ([`Db::id`](pleach::Db::id)).
        database: u64,
        /// Number of the database that is archived there now.
        found: Option<u64>,
    },
    /// The archive ends before a commit that it had: an older copy of it is in its place.
    #[error(
        "{place} ends at commit {}, and had {commit}: look whether it is an older copy; if commits were removed on purpose, open \
         the archive again, and restore what has followed it into a new folder",
        newest.map_or("none".to_owned(), |newest| newest.to_string())
    )]
    Older {
        /// The place of the archive.
        place: String,
        /// The newest commit that an object leads to.
        newest: Option<u64>,
        /// A commit that was there.
        commit: u64,
    },
    /// A file beside the database could not be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The place is neither a folder nor a URL that can be used.
    #[error("{place} is no place for an archive: {why}")]
    Place {
        /// The place.
        place: String,
        /// Why, and what to do.
        why: String,
    },
    /// There is no folder.
    #[error("there is no folder {0}: give that of an archive, which `pleach backup` has written")]
    NoFolder(String),
    /// The folder is that of a database.
    #[error("{0} is a database and no archive: give the folder that `pleach backup` has written")]
    IsADatabase(String),
    /// The client of the object store has panicked.
    #[error("the client of the object store has panicked: try again")]
    Panicked,
    /// The archive belongs to another database.
    #[error(
        "the archive is of database {archived:016x}, and not of {database:016x}: use another archive"
    )]
    OtherDatabase {
        /// Number of the archive's database ([`Db::id`](pleach::Db::id)).
        archived: u64,
        /// Number of the given database.
        database: u64,
    },
    /// The hasher of the archived database is not known here.
    #[error(
        "the archive is of a database with hasher number {archived}, {}",
        given.map_or(
            "which an application has made: restore it by a program of that application".to_owned(),
            |name| format!("and not {name}: give its own"),
        )
    )]
    Hasher {
        /// Number of the hasher ([`Hasher::id`](pleach::Hasher::id)).
        archived: u8,
        /// Name of the given hasher, if the options gave one.
        given: Option<&'static str>,
    },
    /// Two objects name different databases of the archive.
    #[error(
        "the archive has both database-{one:016x} and database-{other:016x}: move the one that does not belong there \
         away; `pleach restore ARCHIVE` then lists the objects of that database"
    )]
    TwoDatabases {
        /// Number of a database ([`Db::id`](pleach::Db::id)).
        one: u64,
        /// Number of another.
        other: u64,
    },
    /// An object is of another database than the archive.
    #[error(
        "{} is of database {found:016x}, the archive of {database:016x}: move it out of the archive",
        told(object)
    )]
    Foreign {
        /// Name of the object.
        object: String,
        /// Number of its database.
        found: u64,
        /// Number of the archive's database.
        database: u64,
    },
    /// An object does not name its database.
    #[error(
        "{} does not say of which database it is, since a salvage has written it: move it out of the archive; `pleach import` \
         takes it, if it is a full", told(.0)
    )]
    Unnamed(String),
    /// A commit has other roots in the archive than in the database.
    #[error(
        "commit {commit} has other roots in {object} than in the database: use another archive for it, or remove {object} if \
         the database has lost that commit in a power failure"
    )]
    OtherCommit {
        /// The commit.
        commit: u64,
        /// The object.
        object: String,
    },
    /// The archive is ahead of the database.
    #[error(
        "the archive has commit {archived}, the newest of the database is {newest}: use another archive for an older copy, or \
         remove the objects of later commits if the database has lost them in a power failure"
    )]
    Ahead {
        /// The newest commit of the archive.
        archived: u64,
        /// The newest commit of the database.
        newest: u64,
    },
    /// There is no full in the archive that is needed for any restore.
    #[error("{0} has no commit that can be restored: make a backup first")]
    Empty(String),
    /// The commit is none that was archived, or a piece on the way to it is missing.
    #[error("commit {commit} cannot be restored: {}; {}", why_not(missing.as_ref()), near(*before, *after))]
    NotArchived {
        /// The commit.
        commit: u64,
        /// Where pieces are missing, if it is behind a gap.
        missing: Option<Gap>,
        /// The newest commit before it that can be restored.
        before: Option<u64>,
        /// The oldest one after it.
        after: Option<u64>,
    },
    /// An object is damaged, or is not what its name says.
    #[error("{} is damaged: {why}; {}", told(object), instead(object, *before, *without))]
    Damaged {
        /// Name of the object.
        object: String,
        /// What is wrong with it.
        why: String,
        /// The newest commit before the damage that can be restored.
        before: Option<u64>,
        /// The wanted commit, if other objects lead to it.
        without: Option<u64>,
    },
    /// A newer version has written an object.
    #[error("{}: {why}", told(object))]
    OtherVersion {
        /// Name of the object.
        object: String,
        /// The stream's version and those that can be read.
        why: String,
    },
    /// An object did not read back as it was written, and was removed.
    #[error("{object} does not read back as it was written: {why}; it was removed, back up again")]
    NotVerified {
        /// Name of the object.
        object: String,
        /// What is wrong with it.
        why: String,
    },
    /// An object that was being imported or applied has been removed from the archive.
    #[error(
        "{0} is not in the archive any more, and this folder is on its way through it: put it back, or restore into a \
         new folder"
    )]
    Gone(String),
    /// Two objects contradict each other.
    #[error(
        "{one} and {other} have different roots for commit {commit}: one of them is of another database; remove it \
         from the archive"
    )]
    Contradiction {
        /// Name of an object.
        one: String,
        /// Name of another.
        other: String,
        /// The commit that both name.
        commit: u64,
    },
    /// The folder has a database that was not restored from an archive.
    #[error(
        "{0} has a database that is not a restore: give a new folder, or one in which a restore was cut off"
    )]
    NotARestore(String),
    /// The database of the folder was written to since it was restored.
    #[error(
        "the database in {folder} was written to since it was restored (commit {found}, restored was {restored}): it cannot \
         follow the archive any more; restore into a new folder"
    )]
    WrittenTo {
        /// The folder.
        folder: String,
        /// Number of the commit that the restore made, in this database.
        restored: u64,
        /// The newest commit of the database.
        found: u64,
    },
    /// The folder is behind the commit that is wanted.
    #[error("{folder} is at archived commit {at}, later than {commit}: restore into a new folder")]
    Beyond {
        /// The folder.
        folder: String,
        /// The archived commit that its database is at.
        at: u64,
        /// The commit that is wanted.
        commit: u64,
    },
    /// The archive does not lead on from the commit that the folder is at.
    #[error(
        "no changes lead from archived commit {at}, which {folder} is at, to {goal}: restore {goal} into a new folder"
    )]
    NoWayOn {
        /// The folder.
        folder: String,
        /// The archived commit that its database is at.
        at: u64,
        /// A commit that can be restored.
        goal: u64,
    },
    /// The cursor of the folder is not what this crate writes.
    #[error("{0} is no cursor of a restore: restore into a new folder")]
    Cursor(String),
}

impl ArchiveError {
    /// True when an object is not there: another process may have removed it since it was listed.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Store { cause: object_store::Error::NotFound { .. }, .. })
    }
}

/// Pieces that are missing in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The newest commit before it that can be restored.
    pub after: Option<u64>,
    /// The commit from which changes exist again.
    pub before: u64,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.after {
            Some(after) => write!(f, "changes from commit {after} to {} are missing", self.before),
            None => write!(f, "a full of commit {} or before is missing", self.before),
        }
    }
}

/// What a store has said, and what to look at. Of a folder it is what the system has said.
fn store_failed(cause: &object_store::Error) -> String {
    let is_folder = matches!(cause, object_store::Error::Generic { store: "LocalFileSystem", .. });
    let mut causes = std::iter::successors(Some(cause as &dyn std::error::Error), |it| it.source());
    match causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()).filter(|_| is_folder) {
        Some(system) => format!("{system}; look at the folder of the archive and try again"),
        None => format!("the object store failed: {cause}; look at the store and try again"),
    }
}

/// An object with its commits in decimal.
fn told(object: &str) -> String {
    Piece::parse(object).map_or_else(|| object.to_owned(), |piece| piece.to_string())
}

fn why_not(gap: Option<&Gap>) -> String {
    gap.map_or_else(|| "it was not archived".to_owned(), Gap::to_string)
}

fn near(before: Option<u64>, after: Option<u64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!("restore commit {before} or {after}"),
        (Some(one), None) | (None, Some(one)) => format!("restore commit {one}"),
        (None, None) => "no other can be restored, either: make a backup".to_owned(),
    }
}

fn instead(object: &str, before: Option<u64>, without: Option<u64>) -> String {
    match (without, before) {
        (Some(commit), _) => {
            format!(
                "other objects lead to commit {commit}: move {object} out of the archive and restore into a new folder"
            )
        }
        (None, Some(before)) => format!("put a good copy of it there, or restore commit {before}"),
        (None, None) => "put a good copy of it there; nothing before it can be restored".to_owned(),
    }
}
