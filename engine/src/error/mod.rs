//! What can go wrong, in one enum that a caller can match on.

mod code;
mod contradiction;
mod hexadecimal;
mod no_room;
mod outcome;
mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pleach_beatree::space::SpaceError;
use pleach_core::Hasher;
use pleach_core::page::PageError;
use pleach_io::IoError;
use pleach_journal::format::creation::CreationError;
use pleach_journal::format::image_error::ImageError;
use pleach_journal::format::incarnation::IncarnationError;
use pleach_journal::format::names::OVERFLOW_FILE;
use pleach_journal::format::recorded_hasher::RecordedHasher;
use pleach_journal::format::superblock::SuperblockError;
use pleach_journal::log::{LogError, ScanError};

use crate::handles::Holder;
use crate::options::InvalidOption;

pub use contradiction::Contradiction;
pub(crate) use hexadecimal::Hex;
pub use hexadecimal::hex;
pub use no_room::NoRoom;
pub use outcome::{Advice, Outcome};

/// An error of the engine.
///
/// [`Error::outcome`] says what became of the operation that gave it, [`Error::advice`] what to do,
/// [`Error::device`] what the device said. Its text has that of its causes, so
/// [`source`](std::error::Error::source) gives none: who prints a chain of causes would print them twice.
// Its tag takes a word: with a tag of one byte a `Result` is moved with the seven bytes behind that, in pieces that
// reach over what was stored in one, and each pair of an iterator waits for the memory (6 of 36 ns).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[repr(u64)]
pub enum Error {
    /// The device refused or failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log cannot be read or written.
    #[error(transparent)]
    Log(LogError),
    /// A superblock, the incarnation or the folder is not what it should be.
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
    /// There is no database in the folder, or no folder.
    #[error("there is no database in {folder}: create one (option `create`) or give another")]
    Missing {
        /// The folder.
        folder: String,
    },
    /// The database cannot be created here.
    #[error(transparent)]
    Creation(#[from] CreationError),
    /// The incarnation file is not what it should be.
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    /// The log cannot be believed.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A page is not what its page number says.
    #[error("page {page} of {file}: {error}")]
    Page {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// What is wrong with it.
        error: PageError,
    },
    /// A page is intact but not the one its parent expects: a lost or misdirected write.
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
    /// A page is intact and of another image than the one that is read: a lost or misdirected write.
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
    /// A file of the database is shorter than what lies in it.
    #[error(
        "the file {file} has {found} bytes, what the database has in it ends at {expected}: it was cut"
    )]
    ShortFile {
        /// File name.
        file: &'static str,
        /// Its length.
        found: u64,
        /// Bytes that it must have at least.
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
        /// Name of the hasher that the options gave, if they gave one.
        expected: Option<&'static str>,
        /// Name of the database's own.
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
    /// A commit that may not wait ([`CommitOptions::wait`](crate::CommitOptions::wait)) would have to, for another commit or for
    /// room.
    #[error("the commit would have to wait: try it again, or let it wait")]
    WouldWait,
    /// An exact commit ([`CommitOptions::exact`](crate::CommitOptions::exact)) of what was made on an overlay that is not
    /// committed.
    #[error("the overlay below is not committed: commit it first, or begin again if it is gone")]
    ParentNotCommitted,
    /// The commit is not readable any more: it is beyond the history, and what later commits replaced took more memory
    /// than undo may take; or the history took more disk than it may.
    #[error(
        "commit {commit} cannot be read any more, the oldest that can is {oldest}: for more give the \
         options `history`, `history_bytes` or `history_mib` more"
    )]
    SnapshotTooOld {
        /// The commit.
        commit: u64,
        /// The oldest commit that can be read by its number.
        oldest: u64,
    },
    /// The commit was in the history, and a run of it, or the log, is damaged there or behind it.
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
        /// The oldest commit that there should be; 0 where nothing says which that is.
        wanted: u64,
        /// The oldest commit that can be read.
        oldest: u64,
        /// The newest commit.
        newest: u64,
        /// The damage; none where the history takes more log than it may.
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
    /// A rollback by more commits than there are.
    #[error("cannot go back so far: {commits} commits were wanted, the history goes back {most}")]
    TooFarBack {
        /// By how many commits.
        commits: u64,
        /// By how many it can go back.
        most: u64,
    },
    /// The overlay is of another database, or of an earlier open of this one.
    #[error(
        "the overlay is of another open database: use overlays of this one, or make its block again here"
    )]
    ForeignOverlay,
    /// The session is of another open of a database, or the namespace is another one: two states are
    /// compared within one.
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
    /// The same key twice in one batch.
    #[error("key {} is in the batch twice: merge its accesses into one", hex(.0))]
    RepeatedKey(pleach_core::Key),
    /// The batch does not fit a log record.
    #[error("the batch takes {bytes} bytes in the log, the limit is {limit}: commit it in parts")]
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
    /// The namespace is plain: it has no trie, so that nothing of it can be proven.
    #[error("namespace {0} is plain: it has no trie to prove anything of, read it without proofs")]
    Plain(u8),
    /// There is a namespace of this number already. Namespace 0 is always there, and cannot be dropped.
    #[error("there is a namespace {0} already, and namespace 0 always is: give another number")]
    NamespaceExists(u8),
    /// A namespace of this number was dropped, and somebody may still read it: a session, an overlay, the
    /// history. It can be added again once none of them reaches back to a commit that had it and can be read
    /// ([`Pin::readable`](crate::status::Pin::readable)).
    #[error(
        "namespace {namespace} was dropped by commit {dropped} and is still there: its number is free once no \
         session, overlay or history reaches back before that, and its pages are free; then add it again"
    )]
    NamespaceInUse {
        /// Its number.
        namespace: u8,
        /// The commit that has dropped it.
        dropped: u64,
    },
    /// A load wants a namespace without pairs, and no other load beside it.
    #[error("a bulk load wants an empty namespace; this one has pairs at commit {0}")]
    NotEmpty(u64),
    /// The pairs of a load lead to another root than they should; nothing was loaded.
    #[error(
        "the pairs lead to the root {found}, and not to {expected}: nothing was loaded; give the pairs of that root"
    )]
    OtherRoot {
        /// The root that they should lead to.
        expected: pleach_core::Node,
        /// Theirs.
        found: pleach_core::Node,
    },
    /// A load wants the database to itself, and something else is open or under way; or a load has it to itself.
    #[error("{}", in_use(*.0))]
    InUse(Holder),
    /// The device is full; nothing of the operation took place.
    #[error("the device is full: {0}; free some space and try again")]
    Full(NoRoom),
    /// What is left to be done needs pages that cannot be read. They are tried again from time to time;
    /// nothing is lost, and everything else goes on.
    #[error(
        "{pages} pages cannot be read, and what waits belongs to them: {first}; `pleach check` lists them"
    )]
    Quarantined {
        /// How many pages.
        pages: u64,
        /// What is wrong with the first of them.
        first: Box<Error>,
    },
    /// An open has numbers for 2^32 flushes and images.
    #[error("this open of the database has used up its flush numbers: close it and open it again")]
    FlushNumbers,
    /// A write or a sync failed: no commit is accepted until the database is reopened. Nothing of the
    /// operation that gives this took place.
    #[error("the database refuses writes because one has failed ({0}); close it and open it again")]
    Poisoned(PoisonCause),
    /// A write or a sync failed when the operation could no longer be taken back: it may have taken place
    /// or not. No commit is accepted until the database is reopened, which tells.
    #[error(
        "it may have taken place or not: the database refuses writes because one has failed ({0}); \
         close it, open it again and look"
    )]
    InDoubt(PoisonCause),
    /// The database was opened with [`Options::read_only`](crate::Options::read_only).
    #[error("the database is open for reading alone: open it without the option `read_only`")]
    ReadOnly,
    /// An operation of a read-only open, or the open itself, has read what the process that writes has written over by then, each
    /// time that it was tried.
    #[error("the process that writes has overtaken this {tries} times: try again, or later")]
    Overtaken {
        /// How often it was tried.
        tries: u32,
    },
    /// The database was closed or dropped; what outlives it reads and does not write.
    #[error("the database was closed: what outlived it commits nothing; open it again")]
    Closed,
}

/// What has made a database refuse further writes.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoisonCause {
    /// A write or a sync failed, or something contradicted what was about to be written.
    #[error("{0}")]
    Failed(Arc<Error>),
    /// A panic left work half done.
    #[error("a panic")]
    Panic,
}

impl PoisonCause {
    /// An error that poisons, or one that tells of an earlier one.
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

impl From<pleach_history::Error> for Error {
    fn from(error: pleach_history::Error) -> Self {
        use pleach_history::Error as History;
        let file = OVERFLOW_FILE;
        match error {
            History::Io(error) if error.is_full() => NoRoom::OverflowPages(error).into(),
            History::Io(error) => error.into(),
            History::Page { page, error } => Self::Page { file, page, error },
            History::Contents { page, what } => {
                Contradiction::HistoryRun { file, page, what }.into()
            }
            History::Name { commit, error } => Contradiction::OverflowCell { commit, error }.into(),
        }
    }
}

impl From<NoRoom> for Error {
    fn from(error: NoRoom) -> Self {
        Self::Full(error)
    }
}

impl From<SpaceError> for Error {
    fn from(error: SpaceError) -> Self {
        Self::Corrupt(error.into())
    }
}

/// A bad page is a bad page, whichever file it is in.
impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Io(error) => Self::Io(error),
            ImageError::Full(error) => Self::Full(NoRoom::Image(error)),
            ImageError::Page { file, page, error } => Self::Page { file, page, error },
            ImageError::StalePage { file, page, expected, found } => {
                Self::StalePage { file, page, expected, found }
            }
            ImageError::ForeignPage { file, page, expected, found } => {
                Self::ForeignImagePage { file, page, expected, found }
            }
            error => Self::Corrupt(error.into()),
        }
    }
}

impl Error {
    /// The database has another hasher than the one that was given, or one that is not Pleach's own and was not given.
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

    /// What to do about it. It is said of the operation that gave the error: a page that cannot be read
    /// makes a read worth another try, and an open, too.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Quarantined { first, .. } => first.advice(),
            // Bounds of what others may do in between: they come and go.
            Self::Overtaken { .. }
            | Self::WouldWait
            | Self::Corrupt(
                Contradiction::NodesEvicted { .. }
                | Contradiction::RegionKeepsChanging { .. }
                | Contradiction::RegionsMerged,
            ) => Advice::Retry,
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
                | CreationError::Unfinished { .. },
            )
            | Self::HistoryShort { cause: None, .. }
            | Self::ParentNotCommitted => Advice::FixCall,
            Self::StaleParent { .. } | Self::SnapshotTooOld { .. } => Advice::MakeAgain,
            Self::InUse(_) | Self::NamespaceInUse { .. } => Advice::CloseOthers,
            Self::Full(_) => Advice::FreeSpace,
            Self::HistoryLost { .. } | Self::HistoryShort { .. } => Advice::Restore,
            _ => match (self.code() / 100, self.device()) {
                (4, _) => Advice::FixCall,
                (6, _) => Advice::Reopen,
                (_, Some(error)) => advice_on(error),
                (_, None) => Advice::Restore,
            },
        }
    }

    /// What the device said, when it is the cause: file, offset, operation and the system's code. It is
    /// found through all that was put around it.
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

    /// Is a full device the cause? After [`Error::Full`] nothing took place and it can be tried again
    /// with room. A device that refuses what it had reserved fails in other variants, which poison.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_)) || self.device().is_some_and(IoError::is_full)
    }

    /// Does the database refuse writes because one has failed? Then
    /// [`Db::is_poisoned`](crate::Db::is_poisoned) says so, too.
    pub fn is_poisoned(&self) -> bool {
        matches!(
            self,
            Self::Poisoned(_)
                | Self::InDoubt(_)
                | Self::Log(LogError::Poisoned)
                | Self::Superblock(SuperblockError::Poisoned)
        )
    }

    /// This has poisoned the database, and nothing of the operation took place. Whoever comes later is
    /// told the same.
    pub(crate) fn to_poisoned(&self) -> Self {
        Self::Poisoned(PoisonCause::of(self))
    }

    /// This has poisoned the database, and the operation may have taken place.
    pub(crate) fn to_in_doubt(&self) -> Self {
        Self::InDoubt(PoisonCause::of(self))
    }
}

/// Who keeps a load, or a commit beside one, from going on, and what helps.
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
        None => "give the option `history_mib` more".to_owned(),
    }
}

/// What to do about an error of the device.
fn advice_on(error: &IoError) -> Advice {
    match error {
        IoError::Locked { .. } => Advice::CloseOthers,
        IoError::FolderRemoved { .. } => Advice::Restore,
        IoError::Forked => Advice::OpenHere,
        error if error.is_full() => Advice::FreeSpace,
        error if error.is_limit() => Advice::RaiseLimit,
        _ => Advice::Retry,
    }
}

/// Having no room is no failure of the device: nothing was written, whoever says so.
impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Io(error) if error.is_full() => Self::Full(NoRoom::LogSegment(error)),
            error => Self::Log(error),
        }
    }
}

/// An error of the device where having no room is no failure: nothing names yet what was to be written.
pub fn full_or(what: fn(IoError) -> NoRoom) -> impl Fn(IoError) -> Error {
    move |error| if error.is_full() { Error::Full(what(error)) } else { error.into() }
}

/// Result of the engine's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
