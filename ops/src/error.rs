//! Errors of streams, and of databases.

use pleach::{Advice, Outcome};

use crate::losses::RepairLoss;

pleach_core::debug_is_text!(Error, StreamError);

/// The result of an operation on a stream.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an export, an import, a salvage or a repair has failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database refused the operation, or its device failed.
    #[error(transparent)]
    Db(pleach::Error),
    /// A repair in place would lose commits, and was not allowed to
    /// ([`RepairOptions::cut`](crate::repair::RepairOptions::cut)): nothing was changed.
    #[error("{0}: roll a backup forward, which may keep them, or allow the cut")]
    WouldLose(Box<RepairLoss>),
    /// The stream is not what it should be, or does not fit the database.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// What becomes an error of the database is one of these, too.
impl<E> From<E> for Error
where
    pleach::Error: From<E>,
{
    fn from(error: E) -> Self {
        Self::Db(error.into())
    }
}

impl From<RepairLoss> for Error {
    fn from(loss: RepairLoss) -> Self {
        Self::WouldLose(Box::new(loss))
    }
}

impl Error {
    /// The number of this kind of error ([`pleach::Error::code`]): 415 for streams, 417 for a refused repair.
    pub fn code(&self) -> u16 {
        match self {
            Self::Db(error) => error.code(),
            Self::Stream(_) => 415,
            Self::WouldLose(_) => 417,
        }
    }

    /// What has become of the operation ([`pleach::Error::outcome`]).
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Db(error) => error.outcome(),
            Self::Stream(_) | Self::WouldLose(_) => Outcome::DidNotHappen,
        }
    }

    /// What helps ([`pleach::Error::advice`]).
    pub fn advice(&self) -> Advice {
        match self {
            Self::Db(error) => error.advice(),
            Self::Stream(StreamError::Version { .. }) => Advice::OtherVersion,
            Self::Stream(_) | Self::WouldLose(_) => Advice::FixCall,
        }
    }
}

/// What is wrong with an export stream or a change stream.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream could not be read.
    #[error("the stream cannot be read: {0}")]
    Read(String),
    /// The stream could not be written.
    #[error("the stream cannot be written: {0}")]
    Write(String),
    /// The first block is not that of an export stream.
    #[error("this is no export stream: give a file that `pleach export` has written")]
    NoStream,
    /// The first block is not that of a change stream.
    #[error("this is no change stream: give what `pleach backup` has written")]
    NoChanges,
    /// Another version has written it.
    #[error(
        "another version has written this stream: its version is {found}, this one reads {known}; read it with that version"
    )]
    Version {
        /// The stream's version.
        found: u16,
        /// The version that can be read.
        known: u16,
    },
    /// The stream ends within a block, or after one that is not the last.
    #[error("the stream is cut off after {blocks} blocks: write it again, or copy it again")]
    Cut {
        /// Whole blocks.
        blocks: u64,
    },
    /// A block does not have its checksum, or does not follow the one before.
    #[error(
        "block {block} of the stream is damaged, or does not follow the one before: copy the stream again"
    )]
    Damaged {
        /// Number of the block, from 0.
        block: u64,
    },
    /// A block with a right checksum says what no writer says.
    #[error("block {block} of the stream has a right checksum and wrong contents: {what}")]
    Contents {
        /// Number of the block, from 0.
        block: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes after the last block.
    #[error("bytes follow the end of the stream: give one stream")]
    Trailing,
    /// The stream is of a database with another hasher.
    #[error(
        "the stream is of a database with hasher number {found}, this one has {expected}: open one with its own"
    )]
    Hasher {
        /// Number of the hasher of the database.
        expected: u8,
        /// Number in the stream.
        found: u8,
    },
    /// The database has other pairs already.
    #[error("namespace {0} has other pairs than the export stream: import into a new database")]
    OtherPairs(u8),
    /// The database has a namespace that the stream does not have, or one of another kind.
    #[error(
        "namespace {0} is not in the export stream, or is of another kind there: import into a new database"
    )]
    OtherNamespace(u8),
    /// The database is neither in the state before the changes nor in the one after them.
    #[error(
        "namespace {namespace} is not as in commit {from}, from which the changes go to {to}: \
         apply change streams in their order, or import an export stream into a new database"
    )]
    OtherState {
        /// The first namespace that differs.
        namespace: u8,
        /// The commit before the changes.
        from: u64,
        /// The commit after them.
        to: u64,
    },
    /// Changes go from an older commit to a newer one.
    #[error("there are no changes from commit {from} to {to}: give the older commit first")]
    Order {
        /// The commit that should be the older one.
        from: u64,
        /// The commit that should be the newer one.
        to: u64,
    },
    /// The stream has what the trusted root does not prove.
    #[error(
        "the stream has {what}, which no root proves: apply it as one of a sender that is trusted, or restore an archive"
    )]
    Unproven {
        /// What it has.
        what: String,
    },
    /// The changes would not fit one commit of the database that they are applied to.
    #[error(
        "the changes from commit {from} to {to} take more than {limit} bytes, the limit of one stream: \
         write a stream to a commit between them, and one from there"
    )]
    TooLarge {
        /// The commit before the changes.
        from: u64,
        /// The commit after them.
        to: u64,
        /// Bytes that one stream may have.
        limit: u64,
    },
}
