//! The outcome of a failed operation, and advice. `docs/errors.md` has the table.

use std::fmt;

/// The outcome of the operation that gave an error, as a session of the reopened database would find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It did not take place, and never will: nobody finds anything of it, now or after a crash.
    DidNotHappen,
    /// It may have taken place as a whole, or not at all: only opening the database again shows which.
    Unknown,
}

/// What to do about an error. `Display` gives a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Repeat it as it is: at once, or after the device or the rights of the file were repaired.
    Retry,
    /// Free space on the device, then repeat it as it is, without reopening.
    FreeSpace,
    /// The process is at its limit of threads or of descriptors: raise the limit, then repeat it.
    RaiseLimit,
    /// Begin again on a newer state: a block on the newest one, a read on one in the history.
    MakeAgain,
    /// Release what holds the database: sessions, blocks and overlays, or another process.
    CloseOthers,
    /// The call cannot work as it is: the text of the error says what to change.
    FixCall,
    /// Close the database and open it again.
    Reopen,
    /// This process was forked from the one that opened the database: open it here, after the fork.
    OpenHere,
    /// Open it with the version of this software that wrote it.
    OtherVersion,
    /// Something is damaged or missing: `pleach check` says what. `pleach repair` (`pleach_ops::repair`) rolls a backup
    /// forward, cuts a damaged log, or salvages what is whole (`docs/operating.md`); else make a new database.
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
                "`pleach repair` says what can be done: it brings a backup up to date, cuts a damaged log, or writes what is whole"
            },
        })
    }
}
