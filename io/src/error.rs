//! Errors of the device: each names the file, the offset and the operation.

use std::io::ErrorKind;

/// The attempted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operation {
    OpenFolder,
    CreateFolder,
    List,
    Create,
    Open,
    Remove,
    Rename,
    Exchange,
    SyncFolder,
    Length,
    Resize,
    Allocate,
    Read,
    Write,
    Sync,
    Lock,
    SetUpRing,
    Submit,
    StartThread,
    FreeSpace,
}

/// A failed device operation. Its `Debug` is its text.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The operating system or the device refused.
    #[error("{operation:?} of {}{}: {message}", named(file), at(*operation, *offset))]
    Os {
        /// File name within the folder, or the folder itself.
        file: String,
        /// Byte offset; 0 where it has no meaning.
        offset: u64,
        /// The attempted operation.
        operation: Operation,
        /// errno, or 0 when there is none.
        code: i32,
        /// Kind, for matching.
        kind: ErrorKind,
        /// The system's text.
        message: String,
    },
    /// A transfer ended before its length: the file is shorter than expected.
    #[error("{operation:?} of {file} at byte {offset}: ended after {done} of {expected} bytes")]
    Short {
        /// File name within the folder.
        file: String,
        /// Byte offset of the transfer.
        offset: u64,
        /// Read or write.
        operation: Operation,
        /// Bytes transferred.
        done: u64,
        /// Bytes requested.
        expected: u64,
    },
    /// Another process, or this one, holds the folder.
    #[error(
        "cannot lock the database{} (Resource temporarily unavailable): it is in use by {holder}",
        in_folder(folder)
    )]
    Locked {
        /// The folder; empty for a simulated one.
        folder: String,
        /// The holder.
        holder: LockHolder,
    },
    /// A file that was to be written has other names: hard links.
    #[error(
        "{file} of {folder} has other names: a hard link is no copy, and a write would change the other database, too; \
         make a real copy (`cp -a` without `-l`, or a backup), and remove the other links: see `ls -l`"
    )]
    Linked {
        /// The folder.
        folder: String,
        /// File name within the folder.
        file: String,
    },
    /// The folder was removed while it was open. Its files live on until they are closed, without names.
    #[error(
        "the folder {folder} was removed while it was open: restore a backup, or make a new database"
    )]
    FolderRemoved {
        /// The folder.
        folder: String,
    },
    /// A fork has made this process of the one that opened the database.
    #[error(
        "this process was forked from the one that opened the database, and has neither its threads nor its \
         ring: open the database here, after the fork and when that one has closed it"
    )]
    Forked,
}

impl core::fmt::Debug for IoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl IoError {
    /// True for "no space left", "quota exceeded" and "file too large", the limit of the process or of the file system.
    pub fn is_full(&self) -> bool {
        use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Self::Os { kind: StorageFull | QuotaExceeded | FileTooLarge, .. })
    }

    /// True when the system gives no further thread or descriptor.
    pub fn is_limit(&self) -> bool {
        // EMFILE and ENFILE have no kind of their own.
        matches!(self, Self::Os { code: 23 | 24, .. })
            || matches!(self, Self::Os { operation: Operation::StartThread, .. })
    }

    /// Name of the file, if the error is about one.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Os { file, .. } | Self::Short { file, .. } | Self::Linked { file, .. } => {
                Some(file)
            }
            Self::FolderRemoved { folder } | Self::Locked { folder, .. } => Some(folder),
            Self::Forked => None,
        }
    }

    /// Byte offset in the file, if the error is about one; 0 where it has no meaning.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::Os { offset, .. } | Self::Short { offset, .. } => Some(*offset),
            Self::Locked { .. }
            | Self::Linked { .. }
            | Self::FolderRemoved { .. }
            | Self::Forked => None,
        }
    }

    /// The attempted operation.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Os { operation, .. } | Self::Short { operation, .. } => *operation,
            Self::Locked { .. } => Operation::Lock,
            Self::Linked { .. } | Self::FolderRemoved { .. } => Operation::Open,
            Self::Forked => Operation::Submit,
        }
    }

    /// The operating system's error number (errno), if it gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Os { code, .. } => Some(*code).filter(|code| *code != 0),
            Self::Short { .. }
            | Self::Locked { .. }
            | Self::Linked { .. }
            | Self::FolderRemoved { .. }
            | Self::Forked => None,
        }
    }

    /// True for "no such file".
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Os { kind: ErrorKind::NotFound, .. })
    }
}

/// A file's name; an empty one is seen, too.
fn named(file: &str) -> &str {
    if file.is_empty() { "\"\"" } else { file }
}

/// The place of a transfer; other operations have none.
fn at(operation: Operation, offset: u64) -> String {
    match operation {
        Operation::Read | Operation::Write | Operation::Allocate => format!(" at byte {offset}"),
        _ => String::new(),
    }
}

fn in_folder(folder: &str) -> String {
    if folder.is_empty() { String::new() } else { format!(" in {folder}") }
}

/// The holder of a folder, as far as its lock file and the system say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// This process.
    ThisProcess,
    /// The process with this id.
    Process(u32),
    /// The process with this id, though the lock was free: the file system does not share locks with the path by which
    /// that process has the folder open (FUSE, or the upper folder of an overlayfs).
    Unshared(u32),
    /// A process of another pid namespace, such as another container; it has this id there.
    Elsewhere(u32),
    /// The process with this id has ended, and a ring or child of it still holds the folder.
    Ended(u32),
    /// Readers, or a process that has not written its id.
    Unknown,
}

impl core::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::ThisProcess => f.write_str(
                "this process: an open database, or a session, block or overlay of an earlier open; close that \
                 first",
            ),
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Unshared(pid) => write!(
                f,
                "process {pid}, and this path does not share its locks (FUSE, or the upper folder of an overlayfs): \
                 stop that process, or open the folder by the path by which it has it open; if it does not have it \
                 open any more (it has executed another program), remove LOCK"
            ),
            Self::Elsewhere(pid) => {
                write!(f, "process {pid} of what seems to be another container (pid namespace)")
            }
            Self::Ended(pid) => write!(
                f,
                "what process {pid} has left, which has ended: a process that was forked from it, or writes that \
                 its disk has not finished"
            ),
            Self::Unknown => f.write_str("readers, or a process that has not written its id"),
        }
    }
}

/// Result of a device operation.
pub type Result<T> = core::result::Result<T, IoError>;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(operation: Operation, file: &str, offset: u64) -> String {
        let (file, kind, message) = (file.to_owned(), ErrorKind::NotFound, "no".to_owned());
        IoError::Os { file, offset, operation, code: 2, kind, message }.to_string()
    }

    /// An empty path was reported as `CreateFolder of  at byte 0`: there is neither a name nor a byte in it.
    #[test]
    fn only_transfers_name_a_byte_and_an_empty_name_is_seen() {
        let text = refused(Operation::Write, "leaf", 8192);
        assert!(text.starts_with("Write of leaf at byte 8192: "), "{text}");
        let text = refused(Operation::CreateFolder, "", 0);
        assert!(text.starts_with("CreateFolder of \"\": "), "{text}");
    }
}
