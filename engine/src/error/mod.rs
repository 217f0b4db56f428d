//! The errors of the engine, in one enum that a caller can match on.

mod code;
mod contradiction;
mod hexadecimal;
mod no_room;
mod outcome;
mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pleach_beatree::Error as TreeError;
use pleach_beatree::space::SpaceError;
use pleach_core::hexadecimal::hex;
use pleach_core::page::PageError;
use pleach_core::{Hasher, debug_is_text};
use pleach_io::IoError;
use pleach_journal::format::creation::CreationError;
use pleach_journal::format::incarnation::IncarnationError;
use pleach_journal::format::recorded_hasher::RecordedHasher;
use pleach_journal::format::superblock::SuperblockError;
use pleach_journal::log::{LogError, ScanError};

use crate::handles::Holder;
use crate::options::InvalidOption;

pub use contradiction::Contradiction;
pub(crate) use hexadecimal::Hex;
pub use no_room::NoRoom;
pub use outcome::{Advice, Outcome};
pub(crate) use place::Place;

/// An error of the engine.
///
/// [`Error::outcome`] says what became of the operation that gave it, [`Error::advice`] what to do, [`Error::device`]
/// what the device said. Its text includes the texts of its causes, so [`source`](std::error::Error::source) gives
/// none: printing the chain of causes would repeat them. Its `Debug` is the text, too, which a program prints whose `main`
/// returns it.
// Its tag takes a word: with a tag of one byte a `Result` is moved with the seven bytes behind that, in pieces that
// reach over what was stored in one, and each pair of an iterator waits for the memory (6 of 36 ns).
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
#[repr(u64)]
pub enum Error {
    /// The device refused or failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log cannot be read or written.
    #[error(transparent)]
    Log(LogError),
    /// A superblock, the incarnation file or the folder is invalid.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The folder holds other files.
    #[error("the folder {folder} is not a database: it holds {found}; give another folder")]
    NotADatabase {
        /// The folder.
        folder: String,
        /// A file in it.
        found: String,
    },
    /// The folder is missing, or has no database.
    #[error("there is no database in {folder}: create one (option `create`) or give another")]
    Missing {
        /// The folder.
        folder: String,
    },
    /// The database cannot be created here.
    #[error(transparent)]
    Creation(#[from] CreationError),
    /// The incarnation file is invalid.
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    /// The log is damaged.
    #[error(transparent)]
    Scan(#[from] ScanError),
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
    /// A page is intact, but not the one that its parent expects: a lost or misdirected write.
    #[error(
        "page {page} of {file} is stale: its parent expects tag {expected:#010x}, found {found:#010x}"
    )]
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
    /// A page is intact, but of another image than the one that is read: a lost or misdirected write.
    #[error(
        "page {page} of {file} belongs to image {found:#x}, not to {expected:#x}: it was written for another checkpoint"
    )]
    ForeignImagePage {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// Number of the image that the superblock names.
        expected: u64,
        /// Number in the page.
        found: u64,
    },
    /// A file of the database is missing.
    #[error(
        "the file `{file}` is missing beside the other files of a database: put it back, or restore the whole folder from a copy"
    )]
    MissingFile {
        /// File name.
        file: String,
    },
    /// A file of the database is shorter than its contents.
    #[error(
        "the file {file} has {found} bytes, what the database has in it ends at {expected}: it was cut"
    )]
    ShortFile {
        /// File name.
        file: &'static str,
        /// The file's length in bytes.
        found: u64,
        /// Bytes that the file must have at least.
        expected: u64,
    },
    /// Intact parts contradict each other.
    #[error("the database is damaged: {0}")]
    Corrupt(Contradiction),
    /// An option makes no sense.
    #[error(transparent)]
    Options(#[from] InvalidOption),
    /// The database was created with another hasher.
    #[error(
        "the database was created with the hasher {found}, and {}: open it with its own",
        expected.map_or("Pleach has none of that name".to_owned(), |name| format!("opened with {name}"))
    )]
    WrongHasher {
        /// Name of the hasher in the options, if they gave one.
        expected: Option<&'static str>,
        /// Name of the database's hasher.
        found: String,
    },
    /// The state that a block was made on is no longer the newest.
    #[error(
        "the block was made on commit {base}, the newest is {tip}: make it again on the newest"
    )]
    StaleParent {
        /// Commit that the block was made on.
        base: u64,
        /// Newest commit.
        tip: u64,
    },
    /// A commit that may not wait ([`CommitOptions::wait`](crate::CommitOptions::wait)) would have to wait, for another
    /// commit or for room.
    #[error("the commit would have to wait: try it again, or let it wait")]
    WouldWait,
    /// An exact commit ([`CommitOptions::exact`](crate::CommitOptions::exact)) of a block or overlay whose parent is an
    /// uncommitted overlay.
    #[error("the overlay below is not committed: commit it first, or begin again if it is gone")]
    ParentNotCommitted,
    /// The commit is not readable any more: it is older than the history, and later commits replaced more than fits
    /// into the memory for undo; or the history took more disk than it may.
    #[error(
        "commit {commit} cannot be read any more, the oldest that can is {oldest}: for more give the \
         options `history`, `undo_memory_mib` or `history_disk_mib` more"
    )]
    SnapshotTooOld {
        /// The commit.
        commit: u64,
        /// The oldest commit that can be read by its number.
        oldest: u64,
    },
    /// The commit was in the history, but a run or the log is damaged there or behind it.
    #[error(
        "commit {commit} is lost, commits {oldest} to {newest} can be read: {cause}; only a copy of the folder \
         from before the damage has it"
    )]
    HistoryLost {
        /// The commit.
        commit: u64,
        /// The oldest commit that can be read.
        oldest: u64,
        /// The newest commit.
        newest: u64,
        /// The damage, and where it is.
        cause: Box<Error>,
    },
    /// [`Options::require_history`](crate::Options::require_history) has refused to open the database; nothing was
    /// changed.
    #[error(
        "the history should begin at commit {wanted}, and commits {oldest} to {newest} can be read: {}; or open \
         without the option `require_history`", short(cause.as_deref())
    )]
    HistoryShort {
        /// The oldest commit that there should be; 0 where no record has it.
        wanted: u64,
        /// The oldest commit that can be read.
        oldest: u64,
        /// The newest commit.
        newest: u64,
        /// The damage; `None` where the history takes more than it may.
        cause: Option<Box<Error>>,
    },
    /// There is no such commit yet.
    #[error("there is no commit {commit} yet: the newest is {tip}, ask for that or an older one")]
    NoSuchCommit {
        /// The commit.
        commit: u64,
        /// The newest commit.
        tip: u64,
    },
    /// A rollback by more commits than the history has.
    #[error("cannot go back so far: {commits} commits were wanted, the history goes back {most}")]
    TooFarBack {
        /// Commits to go back by.
        commits: u64,
        /// Commits that it can go back by at most.
        most: u64,
    },
    /// The overlay is of another database, or of an earlier open of this one.
    #[error(
        "the overlay is of another open database: use overlays of this one, or make its block again here"
    )]
    ForeignOverlay,
    /// The session is of another open of a database, or the namespace is another one: only states of the same can be
    /// compared.
    #[error("not of the same open database and namespace: compare two states of one")]
    ForeignSession,
    /// A range whose first key comes after its last one.
    #[error("a range from {} to {} has no key: give the smaller key first", hex(first), hex(last))]
    EmptyRange {
        /// Its first key.
        first: pleach_core::Key,
        /// Its last key.
        last: pleach_core::Key,
    },
    /// A batch has the same key twice.
    #[error("key {} is in the batch twice: merge its accesses into one", hex(.0))]
    RepeatedKey(pleach_core::Key),
    /// The batch does not fit into a log record.
    #[error(
        "the batch takes {bytes} bytes in the log, the limit is {limit}: commit it in parts, a rollback in steps"
    )]
    BatchTooLarge {
        /// Bytes of the record.
        bytes: u64,
        /// Largest record.
        limit: u64,
    },
    /// A value is longer than the limit.
    #[error("a value of {bytes} bytes is over the limit of {limit}: store it in parts")]
    ValueTooLarge {
        /// Bytes of the value.
        bytes: u64,
        /// Largest value.
        limit: u64,
    },
    /// The blob is longer than the limit.
    #[error("a blob of {bytes} bytes is over the limit of {limit}: give a shorter one")]
    BlobTooLarge {
        /// Bytes of the blob.
        bytes: usize,
        /// Largest blob.
        limit: usize,
    },
    /// The state has no namespace of this number.
    #[error("there is no namespace {0} in this state: add it first, or use another one")]
    Namespace(u8),
    /// The namespace is plain: it has no trie, so that nothing in it can be proven.
    #[error("namespace {0} is plain: it has no trie to prove anything of, read it without proofs")]
    Plain(u8),
    /// There is a namespace of this number already. Namespace 0 is always there, and cannot be dropped.
    #[error("there is a namespace {0} already, and namespace 0 always is: give another number")]
    NamespaceExists(u8),
    /// A namespace of this number was dropped, and a session, an overlay or the history may still read it. It can be
    /// added again once no readable commit that any of them holds has it
    /// ([`Pin::readable`](crate::status::Pin::readable)).
    #[error(
        "namespace {namespace} was dropped by commit {dropped} and is still there: its number is free once no \
         session, overlay or history reaches back before that, and its pages are free; then add it again"
    )]
    NamespaceInUse {
        /// Its number.
        namespace: u8,
        /// The commit that dropped it.
        dropped: u64,
    },
    /// A load needs a namespace without pairs, and no other load at the same time.
    #[error("a bulk load wants an empty namespace; this one has pairs at commit {0}")]
    NotEmpty(u64),
    /// The pairs of a load lead to another root than they should; nothing was loaded.
    #[error(
        "the pairs lead to the root {found}, and not to {expected}: nothing was loaded; give the pairs of that root"
    )]
    OtherRoot {
        /// The root that they should lead to.
        expected: pleach_core::Node,
        /// The root of the pairs.
        found: pleach_core::Node,
    },
    /// A load needs the database to itself, and something else is open or in progress; or a load is running.
    #[error("{}", in_use(*.0))]
    InUse(Holder),
    /// The device is full; nothing of the operation took place.
    #[error("the device is full: {0}; free some space and try again")]
    Full(NoRoom),
    /// The remaining work needs pages that cannot be read. They are tried again from time to time; nothing is lost, and
    /// everything else goes on.
    #[error(
        "{pages} pages cannot be read, and what waits belongs to them: {first}; `pleach check` lists them"
    )]
    Quarantined {
        /// The number of such pages.
        pages: u64,
        /// The error of the first of them.
        first: Box<Error>,
    },
    /// An open has used up its 2^32 numbers for flushes and images.
    #[error("this open of the database has used up its flush numbers: close it and open it again")]
    FlushNumbers,
    /// A write or a sync failed: no commit is accepted until the database is reopened. The operation that gives this
    /// error did not take place.
    #[error("the database refuses writes because one has failed ({0}); close it and open it again")]
    Poisoned(PoisonCause),
    /// A write or a sync failed when the operation could no longer be taken back: it may have taken place or not. No
    /// commit is accepted until the database is reopened, which shows the outcome.
    #[error(
        "it may have taken place or not: the database refuses writes because one has failed ({0}); \
         close it, open it again and look"
    )]
    InDoubt(PoisonCause),
    /// The database was opened with [`Options::read_only`](crate::Options::read_only).
    #[error("the database is open for reading alone: open it without the option `read_only`")]
    ReadOnly,
    /// An operation of a read-only open, or the open itself, has read what the writing process has overwritten by then,
    /// at each attempt.
    #[error("the process that writes has overtaken this {tries} times: try again, or later")]
    Overtaken {
        /// The number of attempts.
        tries: u32,
    },
    /// The database was closed or dropped; handles that outlive it read and do not write.
    #[error("the database was closed: what outlived it commits nothing; open it again")]
    Closed,
}

debug_is_text!(Error);

/// The reason why a database refuses further writes.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoisonCause {
    /// A write or a sync failed, or data that was about to be written contradicted itself.
    #[error("{0}")]
    Failed(Arc<Error>),
    /// A panic left work half done.
    #[error("a panic")]
    Panic,
}

impl PoisonCause {
    /// The cause of an error that poisons, or the first cause of a later one.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Poisoned(cause) | Error::InDoubt(cause) => cause.clone(),
            error => Self::Failed(Arc::new(error.clone())),
        }
    }
}

impl From<Contradiction> for Error {
    fn from(error: Contradiction) -> Self {
        Self::Corrupt(error)
    }
}

impl From<NoRoom> for Error {
    fn from(error: NoRoom) -> Self {
        Self::Full(error)
    }
}

impl From<SpaceError> for Error {
    fn from(error: SpaceError) -> Self {
        TreeError::from(error).into()
    }
}

/// A bad page is the same error in every file.
impl From<TreeError> for Error {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Io(error) => Self::Io(error),
            TreeError::Full(error) => NoRoom::of(error).into(),
            TreeError::Reserve { free, reserve, wanted } => {
                NoRoom::Reserve { free, reserve, wanted }.into()
            }
            TreeError::Page { file, page, error } => Self::Page { file, page, error },
            TreeError::StalePage { file, page, expected, found } => {
                Self::StalePage { file, page, expected, found }
            }
            TreeError::ForeignPage { file, page, expected, found } => {
                Self::ForeignImagePage { file, page, expected, found }
            }
            error => Self::Corrupt(error.into()),
        }
    }
}

impl Error {
    /// The database's hasher is another one than the given one, or none was given and it is not one of Pleach's own.
    #[doc(hidden)]
    pub fn wrong_hasher(wanted: Option<Hasher>, found: &RecordedHasher) -> Self {
        Self::WrongHasher { expected: wanted.map(Hasher::name), found: found.to_string() }
    }

    /// What became of the operation that gave this error.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::InDoubt(_) => Outcome::Unknown,
            _ => Outcome::DidNotHappen,
        }
    }

    /// What to do about the error. The advice is for the operation that gave the error: a page that cannot be read
    /// makes a read worth another try, and an open, too.
    pub fn advice(&self) -> Advice {
        match self {
            // Also where it has poisoned the database first.
            _ if matches!(self.device(), Some(IoError::FolderRemoved { .. })) => Advice::Restore,
            Self::Quarantined { first, .. } => first.advice(),
            // Limits caused by others, which change with time.
            Self::Overtaken { .. } | Self::WouldWait => Advice::Retry,
            Self::Log(LogError::Poisoned)
            | Self::Superblock(SuperblockError::Poisoned)
            | Self::Corrupt(Contradiction::NodesInMemory { .. }) => Advice::Reopen,
            Self::Superblock(
                SuperblockError::NewerVersion { .. }
                | SuperblockError::OlderVersion { .. }
                | SuperblockError::Features { .. },
            ) => Advice::OtherVersion,
            Self::Missing { .. }
            | Self::NotADatabase { .. }
            | Self::Options(_)
            | Self::WrongHasher { .. }
            | Self::Creation(
                CreationError::NotADatabase { .. }
                | CreationError::Exists
                | CreationError::HalfFilled
                | CreationError::Unfinished { .. },
            )
            | Self::HistoryShort { cause: None, .. }
            | Self::ParentNotCommitted => Advice::FixCall,
            Self::StaleParent { .. } | Self::SnapshotTooOld { .. } => Advice::MakeAgain,
            Self::InUse(_) | Self::NamespaceInUse { .. } => Advice::CloseOthers,
            Self::Full(_) => Advice::FreeSpace,
            Self::HistoryLost { .. } | Self::HistoryShort { .. } => Advice::Restore,
            _ => match self.code() / 100 {
                4 => Advice::FixCall,
                6 => Advice::Reopen,
                _ => self.device().map_or(Advice::Restore, advice_on),
            },
        }
    }

    /// The device's error when it is the cause: file, offset, operation and the system's code. Found through all
    /// wrapping errors.
    pub fn device(&self) -> Option<&IoError> {
        match self {
            Self::Io(error)
            | Self::Log(LogError::Io(error))
            | Self::Superblock(SuperblockError::Io(error))
            | Self::Creation(CreationError::Io(error))
            | Self::Incarnation(IncarnationError::Io(error))
            | Self::Scan(ScanError::Io(error)) => Some(error),
            Self::Full(what) => what.device(),
            Self::Quarantined { first: cause, .. }
            | Self::HistoryLost { cause, .. }
            | Self::HistoryShort { cause: Some(cause), .. } => cause.device(),
            Self::Poisoned(PoisonCause::Failed(cause))
            | Self::InDoubt(PoisonCause::Failed(cause)) => cause.device(),
            _ => None,
        }
    }

    /// True when a full device is the cause. After [`Error::Full`] nothing took place and the operation can be tried
    /// again with room. A device that refuses reserved space fails with other variants, which poison.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_)) || self.device().is_some_and(IoError::is_full)
    }

    /// True when the database refuses writes because one has failed, as [`Db::is_poisoned`](crate::Db::is_poisoned)
    /// shows.
    pub fn is_poisoned(&self) -> bool {
        matches!(
            self,
            Self::Poisoned(_)
                | Self::InDoubt(_)
                | Self::Log(LogError::Poisoned)
                | Self::Superblock(SuperblockError::Poisoned)
        )
    }

    /// The error of operations that did not take place because this error has poisoned the database.
    pub(crate) fn to_poisoned(&self) -> Self {
        Self::Poisoned(PoisonCause::of(self))
    }

    /// The error of an operation that may have taken place when this error poisoned the database.
    pub(crate) fn to_in_doubt(&self) -> Self {
        Self::InDoubt(PoisonCause::of(self))
    }
}

/// What prevents a load, or a commit during a load, and what helps.
fn in_use(holder: Holder) -> String {
    let (what, cure) = match holder {
        Holder::Session => ("a session is open", "close it and all others"),
        Holder::Snapshot => ("a session on a past commit is open", "close it and all others"),
        Holder::Block => ("a block is not committed", "commit or close it"),
        Holder::Overlay => ("an overlay is alive", "close it and all others"),
        Holder::Backup => ("a backup is under way", "try again when it has ended"),
        Holder::Operation => ("an operation is under way", "try again when it has ended"),
        Holder::Load => ("one is under way", "try again when it has ended"),
    };
    format!("a bulk load wants the database to itself, and {what}: {cure}")
}

/// Why a history is short, and what helps.
fn short(cause: Option<&Error>) -> String {
    match cause {
        Some(error) => format!("{error}; restore a copy of the folder from before the damage"),
        None => "give the option `history_disk_mib` more".to_owned(),
    }
}

/// What to do about an error of the device.
fn advice_on(error: &IoError) -> Advice {
    match error {
        IoError::Locked { .. } => Advice::CloseOthers,
        IoError::FolderRemoved { .. } => Advice::Restore,
        IoError::Forked => Advice::OpenHere,
        IoError::Linked { .. } => Advice::FixCall,
        error if error.is_full() => Advice::FreeSpace,
        error if error.is_limit() => Advice::RaiseLimit,
        _ => Advice::Retry,
    }
}

/// A full device is no failure of the log: nothing was written.
impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Io(error) if error.is_full() => Self::Full(NoRoom::LogSegment(error)),
            error => Self::Log(error),
        }
    }
}

/// Converts an error of the device where a full device is no failure: nothing names yet what was to be written.
pub fn full_or(what: fn(IoError) -> NoRoom) -> impl Fn(IoError) -> Error {
    move |error| if error.is_full() { Error::Full(what(error)) } else { error.into() }
}

/// Result of the engine's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
