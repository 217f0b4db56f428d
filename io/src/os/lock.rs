//! The folder's lock against other processes, and against being opened twice by this one.
//!
//! Rules:
//! 1. The lock is `flock` on the file `LOCK`: it belongs to the open file description, so two openings in one process
//!    conflict, and the kernel drops it with the description's last reference when its holder dies, however it dies.
//! 2. An exclusive owner also locks the folder itself, and writes into `LOCK` which process it is;
//!    it blanks the text on leaving. The text serves the error message, the wait of rule 4 and rule 6: that of a process
//!    that has ended blocks nobody, and neither does a full disk that does not take it. The file keeps its length, so that
//!    the next owner's text needs no room. A process id alone says little: in each container the first process is 1.
//! 3. A shared holder locks `LOCK`, created if need be; where the file is missing and cannot be created (read-only
//!    folder or file system), it locks the folder itself, which a later exclusive owner collides with.
//! 4. Requests in a ring outlive a killed process: the kernel closes its files at once and its rings later. So that a
//!    dead owner's last write cannot land under the next owner, each ring holds a reference to the exclusive owner's
//!    `LOCK` ([`HeldLock`]), which the kernel returns only when the ring's last request has ended. Whoever finds the
//!    lock taken by a process that has ended, or of which it cannot tell, therefore waits for it (milliseconds) instead
//!    of failing.
//! 5. `LOCK` is never removed. If somebody else removes it while we open it, we see after locking
//!    that name and file do not match, and start again.
//! 6. A folder and a FUSE view of it do not share `flock`, nor do an overlayfs and its upper folder. So a lock that was
//!    free is given back where the text names another process that is seen to live.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::device::LockMode;
use crate::error::{IoError, LockHolder, Operation, Result};

use super::descriptor::open_at;
use super::error::{failed, refused};

/// Name of the lock file; `list` hides it and `open` refuses it.
pub(super) const LOCK_NAME: &str = "LOCK";

/// How long to retry when the lock names no owner, or is free and names one: the owner may be between locking and
/// writing, or, killed, between closing its files and its end.
const UNNAMED: Duration = Duration::from_millis(20);

/// How long to wait for the lock of an owner that has ended, or may have (`last-writes` in docs/io.md).
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

/// A folder, and its name in errors.
type NamedFolder<'a> = (BorrowedFd<'a>, &'a str);

/// Locks a folder. A reader of a folder it may not write passes `read_only`.
pub(super) fn lock(
    folder: NamedFolder<'_>,
    mode: LockMode,
    read_only: bool,
    held: &HeldLock,
) -> Result<FolderLock> {
    match mode {
        LockMode::Exclusive if read_only => Err(refused(folder.1, Operation::Lock, Errno::ROFS)),
        LockMode::Exclusive => {
            check_writable(folder.0).map_err(|errno| refused(folder.1, Operation::Lock, errno))?;
            exclusive(folder, held)
        }
        LockMode::Shared => shared(folder),
    }
}

/// Checks that an owner can make, rename and remove files, before it finds out half-way.
fn check_writable(folder: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(folder, ".", access, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::ROFS)) => Err(errno),
        // Some kernels and containers do not answer.
        _ => Ok(()),
    }
}

fn exclusive(folder: NamedFolder<'_>, held: &HeldLock) -> Result<FolderLock> {
    let file = lock_file(folder, FlockOperation::NonBlockingLockExclusive, OFlags::RDWR)?;
    let folder = lock_folder(folder, FlockOperation::NonBlockingLockExclusive)?;
    // Without the text the next process cannot name the holder: no reason to refuse this one.
    let _ = write_text(&file, &Process::this().to_string());
    let file = Arc::new(file);
    *held.lock() = Arc::downgrade(&file);
    Ok(FolderLock { file: Some(file), folder, exclusive: true })
}

fn shared(folder: NamedFolder<'_>) -> Result<FolderLock> {
    let operation = FlockOperation::NonBlockingLockShared;
    match lock_file(folder, operation, OFlags::RDWR) {
        Ok(file) => {
            // An id in the file is that of a killed owner, if it is of this boot and namespace. This process's own
            // stays: it may have the database open by a path that does not share its locks.
            if !matches!(holder(&file), LockHolder::Unknown | LockHolder::ThisProcess) {
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
fn lock_file(
    (folder, path): NamedFolder<'_>,
    operation: FlockOperation,
    access: OFlags,
) -> Result<OwnedFd> {
    let create = if access.contains(OFlags::RDWR) { OFlags::CREATE } else { OFlags::empty() };
    let flags = access | create | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut waited = Duration::ZERO;
    loop {
        let file = open_at(folder, LOCK_NAME, flags, Mode::from_raw_mode(0o644))
            .map_err(failed(LOCK_NAME, Operation::Lock))?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) if still_named(folder, &file)? => {
                let Some(pid) = living_owner(&file) else { return Ok(file) };
                // By name: see `FolderLock`.
                let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
                if waited >= UNNAMED {
                    let holder = LockHolder::Unshared(pid);
                    return Err(IoError::Locked { folder: path.to_owned(), holder });
                }
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = holder(&file);
                if waited >= lock_timeout(holder, operation) {
                    return Err(IoError::Locked { folder: path.to_owned(), holder });
                }
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            Err(errno) => return Err(failed(LOCK_NAME, Operation::Lock)(errno)),
        }
    }
}

/// True when the name `LOCK` still means this file.
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
fn lock_folder(
    (folder, path): NamedFolder<'_>,
    operation: FlockOperation,
) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let own =
        open_at(folder, ".", flags, Mode::empty()).map_err(failed(LOCK_NAME, Operation::Lock))?;
    match rustix::fs::flock(&own, operation) {
        Ok(()) => Ok(Some(own)),
        Err(Errno::WOULDBLOCK) => {
            Err(IoError::Locked { folder: path.to_owned(), holder: LockHolder::Unknown })
        }
        Err(Errno::BADF | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL) => Ok(None),
        Err(errno) => Err(failed(LOCK_NAME, Operation::Lock)(errno)),
    }
}

/// Bytes of the text, padded with blanks.
const TEXT: usize = 96;

fn write_text(file: &OwnedFd, owner: &str) -> rustix::io::Result<()> {
    let text = format!("{owner:<width$}\n", width = TEXT - 1);
    rustix::io::pwrite(file, text.as_bytes(), 0).map(|_| ())
}

fn lock_timeout(holder: LockHolder, operation: FlockOperation) -> Duration {
    match holder {
        // A reader need not wait for the owner's last writes: its error names the writer, and it reads beside it.
        LockHolder::Elsewhere(_) if operation == FlockOperation::NonBlockingLockShared => UNNAMED,
        LockHolder::ThisProcess | LockHolder::Process(_) | LockHolder::Unshared(_) => {
            Duration::ZERO
        }
        LockHolder::Elsewhere(_) | LockHolder::Ended(_) => DYING,
        LockHolder::Unknown => UNNAMED,
    }
}

/// The process that the text names.
fn named(file: &OwnedFd) -> Option<Process> {
    let mut text = [0; TEXT];
    let count = rustix::io::pread(file, &mut text, 0).unwrap_or(0);
    Process::parse(&text[..count])
}

/// The holder of a lock that we did not get.
fn holder(file: &OwnedFd) -> LockHolder {
    named(file).map_or(LockHolder::Unknown, |owner| owner.seen_by(&Process::this()))
}

/// The owner that a free lock names, if it is seen to live: the file system does not share its lock. This process's own
/// id says nothing: a program that has executed itself anew without a close finds it there.
fn living_owner(file: &OwnedFd) -> Option<u32> {
    let (owner, this) = (named(file)?, Process::this());
    let lives = matches!(owner.seen_by(&this), LockHolder::Process(_));
    // Without its entry in /proc it may be another process with the same id.
    (lives && owner.stat(&this).is_some()).then_some(owner.pid)
}

/// A process, distinguished from all that have had its id or will have it. Unknown fields of `/proc` are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Number of the machine's start.
    boot: Option<String>,
    /// The pid namespace that the id is of.
    namespace: Option<String>,
    /// When it began, in ticks since the machine's start.
    start: Option<String>,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pid, boot, namespace, start } = self;
        let [boot, namespace, start] =
            [boot, namespace, start].map(|known| known.as_deref().unwrap_or("-"));
        write!(f, "{pid} {boot} {namespace} {start}")
    }
}

impl Process {
    fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok();
        Self {
            pid: std::process::id(),
            boot: boot.map(|id| id.trim().to_owned()),
            namespace: namespace.and_then(|name| Some(name.to_str()?.to_owned())),
            start: ProcStat::of("self").map(|stat| stat.start),
        }
    }

    /// A whole line, padded with blanks; half a line names nobody. A line of earlier versions has the id alone.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text.strip_suffix(b"\n")?).ok()?;
        let mut words = text.split(' ').filter(|word| !word.is_empty());
        let pid = words.next()?.parse().ok()?;
        let mut known = || words.next().filter(|word| *word != "-").map(str::to_owned);
        Some(Self { pid, boot: known(), namespace: known(), start: known() })
    }

    /// The state of this process, the named owner, as far as process `this` can see it.
    fn seen_by(&self, this: &Self) -> LockHolder {
        let pid = self.pid;
        if self.boot.is_some() && this.boot.is_some() && self.boot != this.boot {
            return LockHolder::Ended(pid);
        }
        if self.namespace.is_none() || self.namespace != this.namespace {
            return LockHolder::Elsewhere(pid);
        }
        if pid == this.pid {
            let same = self.start == this.start;
            return if same { LockHolder::ThisProcess } else { LockHolder::Ended(pid) };
        }
        if self.is_alive(this) { LockHolder::Process(pid) } else { LockHolder::Ended(pid) }
    }

    /// True when a process of this namespace is alive.
    fn is_alive(&self, this: &Self) -> bool {
        let id = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(id) = id else { return false };
        // EPERM: it exists and is somebody else's.
        if matches!(rustix::process::test_kill_process(id), Err(Errno::SRCH)) {
            return false;
        }
        match self.stat(this) {
            // A killed process whose parent has not waited for it still has its id, and no files.
            Some(stat) => {
                !stat.is_zombie && self.start.as_ref().is_none_or(|start| *start == stat.start)
            }
            None => true,
        }
    }

    /// What `/proc` says of the process with this id, if that is readable.
    fn stat(&self, this: &Self) -> Option<ProcStat> {
        // A namespace may see the processes of the one around it: these have other numbers.
        let is_own = std::fs::read_link("/proc/self")
            .is_ok_and(|own| own == Path::new(&this.pid.to_string()));
        ProcStat::of(&self.pid.to_string()).filter(|_| is_own)
    }
}

/// The used fields of `/proc/PID/stat`.
struct ProcStat {
    is_zombie: bool,
    start: String,
}

impl ProcStat {
    fn of(pid: &str) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The third field and those after it: the second is a name in parentheses, and may contain parentheses.
        let (_, fields) = text.rsplit_once(") ")?;
        let start = fields.split(' ').nth(19)?.to_owned();
        Some(Self { is_zombie: fields.starts_with(['Z', 'X']), start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn parse(text: &str) -> Option<Process> {
        Process::parse(text.as_bytes())
    }

    #[test]
    fn an_owner_is_a_whole_line() {
        let this = Process::this();
        assert_eq!(parse(&format!("{this}   \n")), Some(this.clone()));
        assert!(this.to_string().len() < TEXT, "{this}");
        assert_eq!(parse("123            \n").map(|owner| owner.pid), Some(123));
        for text in ["", "\n", "123", "-1\n", "x 3\n", "99999999999\n", &this.to_string()] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(Process::parse(b"\xff\n"), None);
    }

    /// The text was "Read-only file system" alone, where a reader is served.
    #[test]
    fn a_folder_that_cannot_be_written_is_told_with_what_works_there() {
        for (errno, system) in [(Errno::ROFS, "Read-only file system"), (Errno::ACCESS, "denied")] {
            let error = super::refused("state", Operation::Lock, errno);
            let text = error.to_string();
            assert!(text.starts_with("Lock of state: ") && text.contains(system), "{text}");
            assert!(text.contains("option `read_only`"), "{text}");
            assert_eq!(error.code(), Some(errno.raw_os_error()));
        }
    }

    /// The first process of a restarted container found its own id in `LOCK`.
    #[test]
    fn an_owner_is_known_by_more_than_its_id() {
        let this = Process::this();
        let Process { pid, .. } = this;
        assert_eq!(this.seen_by(&this), LockHolder::ThisProcess);
        let earlier = Process { start: Some("1".to_owned()), ..this.clone() };
        assert_eq!(earlier.seen_by(&this), LockHolder::Ended(pid));
        let before = Process { boot: Some("another".to_owned()), ..this.clone() };
        assert_eq!(before.seen_by(&this), LockHolder::Ended(pid));
        let elsewhere = Process { namespace: Some("pid:[1]".to_owned()), ..this.clone() };
        assert_eq!(elsewhere.seen_by(&this), LockHolder::Elsewhere(pid));
        let gone = Process { pid: u32::MAX, ..this.clone() };
        assert_eq!(gone.seen_by(&this), LockHolder::Ended(u32::MAX));
        let parent = std::os::unix::process::parent_id();
        let start = ProcStat::of(&parent.to_string()).map(|stat| stat.start);
        let alive = Process { pid: parent, start, ..this.clone() };
        assert_eq!(alive.seen_by(&this), LockHolder::Process(parent));
        let same_id = Process { start: Some("1".to_owned()), ..alive };
        assert_eq!(same_id.seen_by(&this), LockHolder::Ended(parent));
        // Versions before wrote the id alone.
        let old = parse(&format!("{pid}\n")).expect("a line");
        assert_eq!(old.seen_by(&this), LockHolder::Elsewhere(pid));
    }

    /// What another process has the lock of, by a path that does not share it, as the text says.
    fn refused(folder: &Path, mode: LockMode, read_only: bool) -> Option<LockHolder> {
        let opened = std::fs::File::open(folder).expect("a folder");
        let name = folder.to_str().expect("text");
        match lock((opened.as_fd(), name), mode, read_only, &HeldLock::default()) {
            Ok(_) => None,
            Err(IoError::Locked { folder, holder }) => {
                assert_eq!(folder, name);
                Some(holder)
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The lock was free by another path, such as a FUSE mount, and two processes wrote one database.
    #[test]
    fn a_free_lock_that_names_a_living_process_is_not_taken() {
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(LOCK_NAME);
        let write = |owner: &Process| {
            std::fs::write(&path, format!("{owner:<width$}\n", width = TEXT - 1)).expect("written");
        };
        let modes =
            [(LockMode::Exclusive, false), (LockMode::Shared, false), (LockMode::Shared, true)];
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let (this, pid) = (Process::this(), child.id());
        let start = ProcStat::of(&pid.to_string()).map(|stat| stat.start);
        assert!(start.is_some(), "/proc is there");
        let owner = Process { pid, start, ..this.clone() };
        write(&owner);
        for (mode, read_only) in modes {
            let held = refused(dir.path(), mode, read_only);
            assert_eq!(held, Some(LockHolder::Unshared(pid)), "{mode:?}");
        }
        let text = std::fs::read_to_string(&path).expect("read");
        assert!(text.starts_with(&owner.to_string()), "it stays: {text}");
        // None of these is a living other process, or none of which it can be told.
        let other = |text: &str| Some(text.to_owned());
        let owners = [
            Process { start: other("1"), ..owner.clone() },
            Process { boot: other("another"), ..owner.clone() },
            Process { namespace: other("pid:[1]"), ..owner.clone() },
            Process { namespace: None, ..owner.clone() },
            this.clone(),
        ];
        for (owner, (mode, read_only)) in
            owners.iter().flat_map(|owner| modes.map(|it| (owner, it)))
        {
            write(owner);
            assert_eq!(refused(dir.path(), mode, read_only), None, "{owner} {mode:?}");
            let text = std::fs::read_to_string(&path).expect("read");
            let is_kept = mode == LockMode::Shared && *owner == this;
            assert_eq!(text.trim().is_empty(), !is_kept, "{owner} {mode:?}");
        }
        write(&owner);
        child.kill().expect("killed");
        // Not waited for: a zombie has its id, too.
        let is_zombie = || ProcStat::of(&pid.to_string()).is_none_or(|stat| stat.is_zombie);
        while !is_zombie() {
            std::thread::sleep(PAUSE);
        }
        assert_eq!(refused(dir.path(), LockMode::Exclusive, false), None);
        child.wait().expect("ended");
    }
}
