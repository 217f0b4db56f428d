//! What an error says of its operation, and of what to do. `docs/errors.md` has the table.

use std::fmt;

/// What became of the operation that gave an error: what a session of the reopened database would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It did not take place, and never will by itself: nobody finds anything of it, now or after a crash.
    DidNotHappen,
    /// It may have taken place, as a whole, or not at all: only opening the database again tells.
    Unknown,
}

/// What to do about an error. `Display` gives a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Do it again as it is: at once, or after the device or the rights of the file were seen to.
    Retry,
    /// Free space on the device, then do it again as it is, without reopening.
    FreeSpace,
    /// The process has come to its limit of threads or of descriptors: raise that, then do it again.
    RaiseLimit,
    /// Begin again on a newer state: a block on the newest one, a read on one that the history has.
    MakeAgain,
    /// Let go of whoever holds the database: sessions, blocks and overlays, or another process.
    CloseOthers,
    /// The call cannot work as it is: the text of the error says what to change.
    FixCall,
    /// Close the database and open it again.
    Reopen,
    /// A fork has made this process of the one that opened the database: open it here, after the fork.
    OpenHere,
    /// Open it with the version of this software that it belongs to.
    OtherVersion,
    /// Something is damaged or missing: `pleach check` says what. `pleach repair` (`pleach_ops::repair`) cuts a damaged log, rolls
    /// a backup forward, or salvages what is whole (`docs/operating.md`); else make a new database.
    Restore,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "try it again; if it stays, see to the device, the rights of its files, and calls that a sandbox refuses",
            Self::FreeSpace => {
                "free some space on the device, or raise the limit on a file's size, and try it again"
            }
            Self::RaiseLimit => {
                "raise the process's limit of threads or descriptors (ulimit -u, ulimit -n) and try it again"
            }
            Self::MakeAgain => {
                "begin again: a block on the newest state, a read on a commit that the history still has"
            }
            Self::CloseOthers => {
                "close what holds the database: its sessions, blocks and overlays, or another process"
            }
            Self::FixCall => "change what the error names: the same call would fail again",
            Self::Reopen => "close the database and open it again",
            Self::OpenHere => {
                "open the database in this process, after the fork: what was open before is the other process's"
            }
            Self::OtherVersion => "open it with the version that it belongs to, or make a new database",
            Self::Restore => {
                "`pleach repair` says what can be done: it cuts a damaged log, brings a backup up to date, or writes what is whole"
            },
        })
    }
}
