//! Numbers of errors, for logs, alerts and bindings to other languages. `docs/errors.md` lists them.

use pleach_io::IoError;

use super::Error;

impl Error {
    /// The number of this kind of error. A number keeps its meaning from version to version and is never used again.
    /// Hundreds are groups: 1 the device, 2 the folder and the open, 3 damage, 4 a call that cannot work, 5 conflicts
    /// with other handles or commits, 6 the state of the open database.
    pub fn code(&self) -> u16 {
        match self {
            Self::Io(IoError::Locked { .. }) => 102,
            Self::Io(IoError::FolderRemoved { .. }) => 103,
            Self::Io(IoError::Forked) => 104,
            Self::Io(IoError::Linked { .. }) => 107,
            Self::Io(_) => 101,
            Self::Full(_) => 105,
            Self::Log(_) => 106,
            Self::Missing { .. } => 201,
            Self::NotADatabase { .. } => 202,
            Self::Creation(_) => 203,
            Self::Superblock(_) => 204,
            Self::Incarnation(_) => 205,
            Self::Options(_) => 206,
            Self::WrongHasher { .. } => 207,
            Self::Scan(_) => 301,
            Self::Page { .. } => 302,
            Self::StalePage { .. } => 303,
            Self::ForeignImagePage { .. } => 304,
            Self::MissingFile { .. } => 305,
            Self::ShortFile { .. } => 306,
            Self::Corrupt(_) => 307,
            Self::Quarantined { .. } => 308,
            Self::HistoryLost { .. } => 309,
            Self::HistoryShort { .. } => 310,
            Self::NoSuchCommit { .. } => 401,
            Self::TooFarBack { .. } => 402,
            Self::ForeignOverlay => 403,
            Self::ForeignSession => 404,
            Self::EmptyRange { .. } => 405,
            Self::RepeatedKey(_) => 406,
            Self::BatchTooLarge { .. } => 407,
            Self::ValueTooLarge { .. } => 408,
            Self::BlobTooLarge { .. } => 409,
            Self::Namespace(_) => 410,
            Self::Plain(_) => 411,
            Self::NamespaceExists(_) => 412,
            Self::NotEmpty(_) => 413,
            Self::OtherRoot { .. } => 414,
            Self::ReadOnly => 416,
            Self::StaleParent { .. } => 501,
            Self::SnapshotTooOld { .. } => 502,
            Self::NamespaceInUse { .. } => 503,
            Self::InUse(_) => 504,
            Self::Overtaken { .. } => 505,
            Self::WouldWait => 506,
            Self::ParentNotCommitted => 507,
            Self::Poisoned(_) => 601,
            Self::InDoubt(_) => 602,
            Self::Closed => 603,
            Self::FlushNumbers => 604,
        }
    }
}
