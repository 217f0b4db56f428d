//! The folder's lock against other processes, and against being opened twice by this one.
//!
//! Rules:
//! 1. The lock is `flock` on the file `LOCK`: it belongs to the open file description, so two
//!    openings in one process conflict, and the kernel drops it with the description's last
//!    reference when its holder dies, however it dies.
//! 2. An exclusive owner also locks the folder itself, and writes its process id into `LOCK`;
//!    it blanks the text on leaving. The text only serves the error message: a stale id blocks
//!    nobody, and neither does a full disk that does not take it. The file keeps its length, so that
//!    the next owner's id needs no room.
//! 3. A shared holder locks `LOCK`, created if need be; where the file is missing and cannot be
//!    created (read-only folder or file system), it locks the folder itself, which a later
//!    exclusive owner collides with.
//! 4. Requests in a ring outlive a killed process: the kernel closes its files at once and its
//!    rings later. So that a dead owner's last write cannot land under the next owner, each ring
//!    holds a reference to the exclusive owner's `LOCK` ([`HeldLock`]), which the kernel returns
//!    only when the ring's last request has ended. Whoever finds the lock taken by a dead
//!    process therefore waits for it (milliseconds) instead of failing.
//! 5. `LOCK` is never removed. If somebody else removes it while we open it, we see after locking
//!    that name and file do not match, and start again.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::device::LockMode;
use crate::error::{IoError, Operation, Result};

use super::error::failed;
use super::files::open_at;

/// Name of the lock file; `list` hides it and `open` refuses it.
pub(super) const LOCK_NAME: &str = "LOCK";

/// How long to retry when the lock has no owner's id: the owner may be between locking and
/// writing.
const UNNAMED: Duration = Duration::from_millis(20);

/// How long to wait for the lock of a dead owner (`last-writes` in docs/io.md).
const DYING: Duration = Duration::from_secs(5);

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// The exclusive lock that a device's rings keep alive; empty while none is held.
pub(super) type HeldLock = Arc<Mutex<Weak<OwnedFd>>>;

/// A held lock; dropping it unlocks.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: Option<Arc<OwnedFd>>,
    folder: Option<OwnedFd>,
    exclusive: bool,
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if let (Some(file), true) = (&self.file, self.exclusive) {
            // A failure leaves a stale id, which blocks nobody.
            let _ = write_text(file, "");
        }
        // Unlocked by name, not by closing: a child that was forked meanwhile shares the descriptor.
        // And a reference held by a ring must not keep it locked either.
        if let Some(fd) = &self.file {
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
        if let Some(fd) = &self.folder {
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
    }
}

/// Locks `folder`, which errors call `path`. A reader of a folder it may not write passes `read_only`.
pub(super) fn lock(
    (folder, path): (BorrowedFd<'_>, &str),
    mode: LockMode,
    read_only: bool,
    held: &HeldLock,
) -> Result<FolderLock> {
    match mode {
        LockMode::Exclusive if read_only => Err(failed(LOCK_NAME, Operation::Lock)(Errno::ROFS)),
        LockMode::Exclusive => {
            check_writable(folder).map_err(failed(path, Operation::Lock))?;
            exclusive(folder, held)
        }
        LockMode::Shared => shared(folder),
    }
}

/// An owner makes, renames and removes files: one without the right to would find that out half-way.
fn check_writable(folder: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(folder, ".", access, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::ROFS)) => Err(errno),
        // Some kernels and containers do not answer.
        _ => Ok(()),
    }
}

fn exclusive(folder: BorrowedFd<'_>, held: &HeldLock) -> Result<FolderLock> {
    let file = lock_file(folder, FlockOperation::NonBlockingLockExclusive, OFlags::RDWR)?;
    let folder = lock_folder(folder, FlockOperation::NonBlockingLockExclusive)?;
    // Without it the next process cannot say who uses the folder: no reason to refuse this one.
    let _ = write_text(&file, &std::process::id().to_string());
    let file = Arc::new(file);
    *held.lock() = Arc::downgrade(&file);
    Ok(FolderLock { file: Some(file), folder, exclusive: true })
}

fn shared(folder: BorrowedFd<'_>) -> Result<FolderLock> {
    let operation = FlockOperation::NonBlockingLockShared;
    match lock_file(folder, operation, OFlags::RDWR) {
        Ok(file) => {
            // No exclusive owner exists now: an id in the file is that of a killed one.
            if Owner::of(&file) != Owner::Unnamed {
                let _ = write_text(&file, "");
            }
            return Ok(FolderLock { file: Some(Arc::new(file)), folder: None, exclusive: false });
        }
        Err(error) if is_unwritable(&error) => {}
        Err(error) => return Err(error),
    }
    match lock_file(folder, operation, OFlags::RDONLY) {
        Ok(file) => Ok(FolderLock { file: Some(Arc::new(file)), folder: None, exclusive: false }),
        Err(error) if error.is_not_found() => {
            let folder = lock_folder(folder, operation)?;
            Ok(FolderLock { file: None, folder, exclusive: false })
        }
        Err(error) => Err(error),
    }
}

fn is_unwritable(error: &IoError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error, IoError::Os { kind: PermissionDenied | ReadOnlyFilesystem, .. })
}

/// Opens `LOCK` (creating it when `access` allows writing) and locks it.
fn lock_file(folder: BorrowedFd<'_>, operation: FlockOperation, access: OFlags) -> Result<OwnedFd> {
    let create = if access.contains(OFlags::RDWR) { OFlags::CREATE } else { OFlags::empty() };
    let flags = access | create | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut waited = Duration::ZERO;
    loop {
        let file = open_at(folder, LOCK_NAME, flags, Mode::from_raw_mode(0o644))
            .map_err(failed(LOCK_NAME, Operation::Lock))?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) if still_named(folder, &file)? => return Ok(file),
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let owner = Owner::of(&file);
                if waited >= owner.patience() {
                    return Err(IoError::Locked { owner: owner.pid() });
                }
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            Err(errno) => return Err(failed(LOCK_NAME, Operation::Lock)(errno)),
        }
    }
}

/// Does the name `LOCK` still mean this file?
fn still_named(folder: BorrowedFd<'_>, file: &OwnedFd) -> Result<bool> {
    let held = rustix::fs::fstat(file).map_err(failed(LOCK_NAME, Operation::Lock))?;
    match rustix::fs::statat(folder, LOCK_NAME, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(failed(LOCK_NAME, Operation::Lock)(errno)),
    }
}

/// Locks the folder itself, through a description of its own. `None` where the file system does
/// not lock folders (NFS): there `readers-share` rests on `LOCK` alone.
fn lock_folder(folder: BorrowedFd<'_>, operation: FlockOperation) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let own =
        open_at(folder, ".", flags, Mode::empty()).map_err(failed(LOCK_NAME, Operation::Lock))?;
    match rustix::fs::flock(&own, operation) {
        Ok(()) => Ok(Some(own)),
        Err(Errno::WOULDBLOCK) => Err(IoError::Locked { owner: 0 }),
        Err(Errno::BADF | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL) => Ok(None),
        Err(errno) => Err(failed(LOCK_NAME, Operation::Lock)(errno)),
    }
}

/// Bytes of the text, padded with blanks.
const TEXT: usize = 16;

fn write_text(file: &OwnedFd, owner: &str) -> rustix::io::Result<()> {
    let text = format!("{owner:<width$}\n", width = TEXT - 1);
    rustix::io::pwrite(file, text.as_bytes(), 0).map(|_| ())
}

/// Who holds a lock that we did not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Alive(u32),
    /// The named process is gone, or in another namespace.
    Dead,
    /// Readers, or an owner that has not written yet.
    Unnamed,
}

impl Owner {
    fn of(file: &OwnedFd) -> Self {
        let mut text = [0; 16];
        let count = rustix::io::pread(file, &mut text, 0).unwrap_or(0);
        match parse_owner(&text[..count]) {
            Some(pid) if is_alive(pid) => Self::Alive(pid),
            Some(_) => Self::Dead,
            None => Self::Unnamed,
        }
    }

    fn patience(self) -> Duration {
        match self {
            Self::Alive(_) => Duration::ZERO,
            Self::Dead => DYING,
            Self::Unnamed => UNNAMED,
        }
    }

    fn pid(self) -> u32 {
        if let Self::Alive(pid) = self { pid } else { 0 }
    }
}

/// A whole line, padded with blanks; half a line is no id.
fn parse_owner(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text.strip_suffix(b"\n")?).ok()?.trim_end_matches(' ').parse().ok()
}

fn is_alive(pid: u32) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // EPERM: it exists and is somebody else's.
    let exists = !matches!(rustix::process::test_kill_process(id), Err(Errno::SRCH));
    exists && !is_zombie(pid)
}

/// A killed process whose parent has not waited for it still has its id, and no files. The state
/// comes after the name, which is in parentheses and may contain parentheses.
fn is_zombie(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_a_whole_line() {
        assert_eq!(parse_owner(b"123\n"), Some(123));
        assert_eq!(parse_owner(b"123            \n"), Some(123));
        for text in [&b""[..], b"\n", b"123", b"-1\n", b"12 3\n", b"99999999999\n", b"\xff\n"] {
            assert_eq!(parse_owner(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_process_is_alive_and_pid_0_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(0));
        assert!(!is_alive(u32::MAX));
    }
}
