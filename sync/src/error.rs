//! Why a fetch, a load or a catch-up fails, and why a server refuses.

use std::path::PathBuf;
use std::time::Duration;

pleach_core::debug_is_text!(Error);

/// The result of an operation of a fetch.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation has failed. What other servers say is no error, but a [`Judgement`](crate::Judgement).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder of the fetch cannot be read or written. What was kept stays; after a full device the fetch goes on.
    #[error("{}: {error}: free space or mend the device, and go on", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Another process has the folder of the fetch.
    #[error("{}: another process fetches into this folder: wait for it, or end it", .0.display())]
    InUse(PathBuf),
    /// The folder is that of a fetch of another target, or no folder of a fetch.
    #[error("{}: the folder is of another target: give its target, or remove the folder", .0.display())]
    OtherTarget(PathBuf),
    /// Parts are missing.
    #[error("namespace {namespace} is not fetched yet: ask on, and load then")]
    Incomplete {
        /// The first namespace with a gap.
        namespace: u8,
    },
    /// A part in the folder is damaged, and was set aside.
    #[error(
        "{parts} parts in the folder were damaged, and are set aside: open the fetch again, which asks for them anew"
    )]
    Damaged {
        /// Parts that were set aside.
        parts: u64,
    },
    /// A change stream says what is wrong or not proven. Nothing was changed.
    #[error("the change stream is a lie: {0}: ask another server")]
    Lie(pleach_ops::Error),
    /// A change stream has more than one commit takes. That is no lie, and nothing was changed.
    #[error(
        "the changes are more than one commit takes: go on by roots between, or fetch the newer root into a new folder"
    )]
    TooManyChanges,
    /// The database refused, or its device failed.
    #[error(transparent)]
    Db(pleach::Error),
    /// The system refuses a listener, a thread or a signal.
    #[error("the system refuses: {0}")]
    System(std::io::Error),
    /// The change stream could not be read or does not fit the database.
    #[error(transparent)]
    Stream(pleach_ops::Error),
}

impl<E> From<E> for Error
where
    pleach::Error: From<E>,
{
    fn from(error: E) -> Self {
        Self::Db(error.into())
    }
}

/// Why a server gives no answer. None of it is a lie.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server has too much to do.
    #[error("the server is busy: ask again in {0:?}")]
    Busy(Duration),
    /// The state is older than the history.
    #[error("the state is older than the oldest one, of commit {oldest}: fetch a newer root")]
    Gone {
        /// The oldest commit that the server has.
        oldest: u64,
    },
    /// The server does not know the root, the state has no such namespace, or the changes are more than one stream takes.
    #[error("the server does not have this: ask another one")]
    Unknown,
    /// The question cannot be understood.
    #[error("this is no question: ask as docs/sync.md says")]
    Malformed,
    /// The server, or the way to it, has failed.
    #[error("no answer: {0}")]
    Failed(String),
}
