//! Files of a folder: opening, lengths, reserving space, and transfers on the calling thread.
//!
//! Invariants:
//! * a name is one plain component and never a symbolic link; what is opened is a regular file;
//! * O_DIRECT is set after opening, by fcntl, so that a file system that refuses it cannot leave a half-created file;
//! * errors come from the calls' return values; errno is never read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, FallocateFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::buffer::PageBuf;
use crate::device::{OpenFile, OpenMode, RequestKind};
use crate::error::{IoError, Operation, Result};
use crate::page::PAGE;

use super::descriptor::open_at;
use super::error::{failed, os_error};
use super::lock::LOCK_NAME;
use super::progress::{RETRIES, TransferFailure, TransferOutcome, TransferProgress, check_range};
use super::shared;

/// Numbers the files of a process, so that a ring's table never mistakes one for another.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Number of files of this process that were closed: rings look for closed files when it has changed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Bytes of zeros written at once where the file system cannot reserve.
const ZEROS: usize = 64;

/// Sector assumed where the kernel does not say what O_DIRECT needs.
const SECTOR: u32 = 512;

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct OsFile(Arc<FileInner>);

#[derive(Debug)]
pub(super) struct FileInner {
    fd: OwnedFd,
    name: Box<str>,
    id: u64,
    /// Granularity of offsets: 1 through the page cache.
    align: u32,
    /// Granularity of the writes that are asked for: 1 where they may begin and end at any byte.
    unit: usize,
}

impl Drop for FileInner {
    fn drop(&mut self) {
        // Release pairs with the acquire in `closed_files`; the count of handles is 0 by now.
        CLOSED.fetch_add(1, Ordering::Release);
    }
}

/// Files closed so far in this process.
pub(super) fn closed_files() -> u64 {
    CLOSED.load(Ordering::Acquire)
}

/// Whether O_DIRECT was requested, and whether the file system accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// Transfers bypass the page cache.
    Yes,
    /// Through the page cache, as requested.
    No,
    /// Through the page cache, because the file system refused.
    Refused,
}

impl OpenFile for OsFile {
    fn name(&self) -> &str {
        &self.0.name
    }
}

impl OsFile {
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn align(&self) -> u32 {
        self.0.align
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }

    pub(super) fn inner(&self) -> &Arc<FileInner> {
        &self.0
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Refuses names that are not one plain component, and the lock file's name.
pub(super) fn check_name(name: &str, operation: Operation) -> Result<()> {
    let plain = !matches!(name, "" | "." | ".." | LOCK_NAME) && !name.contains(['/', '\0']);
    if plain { Ok(()) } else { Err(os_error(name, 0, operation, libc::EINVAL)) }
}

/// Opens or creates `name` in `folder`.
pub(super) fn open(
    folder: BorrowedFd<'_>,
    name: &str,
    mode: OpenMode,
    direct: bool,
) -> Result<(OsFile, Direct)> {
    let operation = match mode {
        OpenMode::CreateNew => Operation::Create,
        OpenMode::Read | OpenMode::Write | OpenMode::WriteCached => Operation::Open,
    };
    check_name(name, operation)?;
    if mode != OpenMode::CreateNew {
        // Before opening: opening a pipe would wait for its other end.
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed(name, operation))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_regular(name, operation));
        }
    }
    let flags = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::Write | OpenMode::WriteCached => OFlags::RDWR,
        OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
    } | OFlags::NOFOLLOW;
    let permissions = Mode::from_raw_mode(0o644);
    let fd = open_at(folder, name, flags, permissions).map_err(failed(name, operation))?;
    if mode == OpenMode::CreateNew {
        shared::write_in_place(&fd);
    }
    let direct = direct && mode != OpenMode::WriteCached;
    let state = if direct { set_direct(&fd).map_err(failed(name, operation))? } else { Direct::No };
    if (mode, state) == (OpenMode::Write, Direct::Yes) {
        // Where a copy of the folder has left pages in the page cache, the first direct write of each takes a thread of the
        // kernel. As it is advice, a refusal changes nothing.
        let _ = rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed);
    }
    let align = if state == Direct::Yes { direct_align(&fd) } else { 1 };
    let unit = if mode == OpenMode::WriteCached { 1 } else { PAGE };
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    Ok((OsFile(Arc::new(FileInner { fd, name: name.into(), id, align, unit })), state))
}

fn not_regular(name: &str, operation: Operation) -> IoError {
    IoError::Os {
        file: name.to_owned(),
        offset: 0,
        operation,
        code: 0,
        kind: std::io::ErrorKind::InvalidInput,
        message: "not a regular file".to_owned(),
    }
}

/// True when the folder is on tmpfs or ramfs: in memory. tmpfs takes O_DIRECT (since Linux 6.6), but has only the page
/// cache.
pub(super) fn is_in_memory(folder: BorrowedFd<'_>) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    shared::file_system(folder).is_some_and(|number| [TMPFS, RAMFS].contains(&number))
}

/// Bytes of a file that overwrites would take anew from the file system.
pub(super) fn shared_bytes(file: &OsFile) -> Result<u64> {
    Ok(shared::shared_bytes(file.fd(), len(file)?))
}

/// Turns O_DIRECT on, unless the file wants it in units above a page; a file system without it returns EINVAL.
fn set_direct(fd: &OwnedFd) -> rustix::io::Result<Direct> {
    if direct_align(fd) as usize > PAGE {
        return Ok(Direct::Refused);
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    match rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT) {
        Ok(()) => Ok(Direct::Yes),
        Err(Errno::INVAL) => Ok(Direct::Refused),
        Err(errno) => Err(errno),
    }
}

/// Whether files in `folder` can bypass the page cache, by an unnamed file; `None` where that is not possible (no
/// unnamed files, read-only).
pub(super) fn probe_direct(folder: BorrowedFd<'_>) -> Option<Direct> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let fd = open_at(folder, ".", flags, Mode::from_raw_mode(0o600)).ok()?;
    set_direct(&fd).ok()
}

/// Granularity of offsets under O_DIRECT, as the kernel says (since Linux 6.1).
fn direct_align(fd: &OwnedFd) -> u32 {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .map(|stat| stat.stx_dio_offset_align)
        .filter(|align| align.is_power_of_two())
        .unwrap_or(SECTOR)
}

/// One transfer, repeated until it is complete or has failed. The kernel uses `buf` only for the duration of each call.
pub(super) fn write(file: &OsFile, buf: &[u8], offset: u64) -> Result<()> {
    check_range(file.name(), RequestKind::Write, offset, buf.len(), file.0.unit)?;
    let progress = TransferProgress::new(RequestKind::Write, buf.len(), file.align());
    run(file, progress, offset, |start, count| {
        rustix::io::pwrite(file.fd(), &buf[start..start + count], offset + start as u64)
    })
}

/// Fills `buf` from the file.
pub(super) fn read(file: &OsFile, buf: &mut [u8], offset: u64) -> Result<()> {
    check_range(file.name(), RequestKind::Read, offset, buf.len(), PAGE)?;
    let progress = TransferProgress::new(RequestKind::Read, buf.len(), file.align());
    run(file, progress, offset, |start, count| {
        rustix::io::pread(file.fd(), &mut buf[start..start + count], offset + start as u64)
    })
}

/// fdatasync, once.
pub(super) fn sync(file: &OsFile) -> Result<()> {
    run(file, TransferProgress::new(RequestKind::Sync, 0, 1), 0, |_, _| {
        rustix::fs::fdatasync(file.fd()).map(|()| 0)
    })
}

fn run(
    file: &OsFile,
    mut progress: TransferProgress,
    offset: u64,
    mut attempt: impl FnMut(usize, usize) -> rustix::io::Result<usize>,
) -> Result<()> {
    if progress.is_empty() {
        return Ok(());
    }
    loop {
        let (start, count) = progress.span();
        let result = match attempt(start, count as usize) {
            // A count is at most what was requested, which fits.
            Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
            Err(errno) => -errno.raw_os_error(),
        };
        match advance(&mut progress, file, offset, result) {
            TransferOutcome::Done => return Ok(()),
            TransferOutcome::Resubmit => {}
            TransferOutcome::Failed(failure) => {
                return Err(progress.error(failure, file.name(), offset));
            }
        }
    }
}

/// Takes the result of an attempt as [`TransferProgress::advance`] does. A read that found the end of the file is tried
/// again where the file is longer: FUSE lets no read pass a length that it keeps, until it is asked for the length.
pub(super) fn advance(
    progress: &mut TransferProgress,
    file: &OsFile,
    offset: u64,
    result: i32,
) -> TransferOutcome {
    match progress.advance(result) {
        TransferOutcome::Failed(TransferFailure::Short) => {
            progress.ended_short(len(file).unwrap_or(0).saturating_sub(offset))
        }
        outcome => outcome,
    }
}

/// Length in bytes, as it is now: FUSE and network file systems would give one that they have kept.
pub(super) fn len(file: &OsFile) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    if let Ok(stat) = rustix::fs::statx(file.fd(), "", flags, StatxFlags::SIZE) {
        return Ok(stat.stx_size);
    }
    // A sandbox may not allow that call.
    let stat = rustix::fs::fstat(file.fd()).map_err(failed(file.name(), Operation::Length))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// True when the file has more than one name.
pub(super) fn is_linked(file: &OsFile) -> Result<bool> {
    let stat = rustix::fs::fstat(file.fd()).map_err(failed(file.name(), Operation::Open))?;
    Ok(stat.st_nlink > 1)
}

/// Sets the length in bytes.
pub(super) fn set_len(file: &OsFile, len: u64) -> Result<()> {
    repeated(|| rustix::fs::ftruncate(file.fd(), len))
        .map_err(|errno| os_error(file.name(), len, Operation::Resize, errno.raw_os_error()))
}

/// Repeats an interrupted call that has no partial effect.
fn repeated(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for _ in 0..RETRIES {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
    call()
}

/// Reserves `[offset, offset + len)`. Callers never resize one file from two threads at once, so
/// the length found first is the one to restore after a failure.
pub(super) fn allocate(file: &OsFile, offset: u64, count: u64) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let before = len(file)?;
    let reserved =
        repeated(|| rustix::fs::fallocate(file.fd(), FallocateFlags::empty(), offset, count));
    let error = match reserved {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            match write_zeros(file, before, offset.saturating_add(count)) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            }
        }
        Err(errno) => os_error(file.name(), offset, Operation::Allocate, errno.raw_os_error()),
    };
    // fallocate may stop half way and leave the file grown.
    if len(file)? > before {
        set_len(file, before)?;
    }
    Err(error)
}

/// The substitute for fallocate: zeros from the old end to `end`. Holes inside the old length stay holes, since bytes
/// there must not be overwritten.
fn write_zeros(file: &OsFile, before: u64, end: u64) -> Result<()> {
    let page = PAGE as u64;
    if end <= before {
        return Ok(());
    }
    let zeros = PageBuf::zeroed(ZEROS);
    // Extending makes the rest of the last page zeros; whole pages are written.
    let mut at = before.next_multiple_of(page);
    set_len(file, at.min(end))?;
    while at < end {
        let pages = (end - at).div_ceil(page).min(ZEROS as u64);
        let bytes = usize::try_from(pages * page).unwrap_or(zeros.len());
        write(file, &zeros[..bytes], at).map_err(|error| as_allocation(error, file, at))?;
        at += pages * page;
    }
    if at > end { set_len(file, end) } else { Ok(()) }
}

/// Turns a failure to write zeros into a failed reservation.
fn as_allocation(error: IoError, file: &OsFile, at: u64) -> IoError {
    match error {
        IoError::Os { code, .. } if code != 0 => {
            os_error(file.name(), at, Operation::Allocate, code)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::io::ReadWriteFlags;

    fn file(direct: bool) -> (tempfile::TempDir, OsFile) {
        let dir = tempfile::tempdir().expect("tempdir");
        let folder = std::fs::File::open(dir.path()).expect("folder");
        let opened = open(folder.as_fd(), "f", OpenMode::CreateNew, direct).expect("create");
        (dir, opened.0)
    }

    #[test]
    fn zeros_extend_to_the_exact_end_and_keep_what_was_there() {
        for direct in [false, true] {
            for (before, end) in [(0, 4096), (5000, 5100), (5000, 300_000), (8192, 8193), (9, 9)] {
                let (dir, file) = file(direct);
                let path = dir.path().join("f");
                let size = usize::try_from(before).expect("small");
                std::fs::write(&path, vec![7; size]).expect("write");
                write_zeros(&file, before, end).expect("zeros");
                let mut expected = vec![7; size];
                expected.resize(usize::try_from(end).expect("small"), 0);
                assert!(std::fs::read(&path).expect("read") == expected, "{before}..{end}");
            }
        }
    }

    #[test]
    fn a_cached_file_and_a_direct_one_are_the_same_bytes() {
        let (dir, direct) = file(true);
        let folder = std::fs::File::open(dir.path()).expect("folder");
        let (cached, state) =
            open(folder.as_fd(), "f", OpenMode::WriteCached, true).expect("opened");
        assert_eq!((state, cached.align()), (Direct::No, 1));
        let flags = |file: &OsFile| rustix::fs::fcntl_getfl(file.fd()).expect("flags");
        assert!(!flags(&cached).contains(OFlags::DIRECT));
        let mut back = PageBuf::zeroed(2);
        let pages = |byte| {
            let mut pages = PageBuf::zeroed(2);
            pages.fill(byte);
            pages
        };
        // Each way sees what the other one wrote last, synced or not.
        write(&direct, &pages(1), 0).expect("written");
        read(&cached, &mut back, 0).expect("read");
        assert!(back[..] == pages(1)[..]);
        write(&cached, &pages(2), 0).expect("written");
        read(&direct, &mut back, 0).expect("read");
        assert!(back[..] == pages(2)[..]);
        write(&cached, &pages(3), 0).expect("written");
        write(&direct, &pages(4)[..PAGE], 0).expect("written");
        sync(&cached).expect("synced");
        read(&cached, &mut back, 0).expect("read");
        assert!(back[..PAGE] == pages(4)[..PAGE] && back[PAGE..] == pages(3)[PAGE..]);
        // Bytes go through the page cache alone.
        write(&cached, &pages(5)[..100], PAGE as u64 - 30).expect("written");
        write(&direct, &pages(6)[..100], PAGE as u64 - 30).expect_err("refused");
        write(&direct, &pages(6)[..100], 0).expect_err("refused");
        read(&direct, &mut back, 0).expect("read");
        let edge = PAGE - 30..PAGE + 70;
        assert!(back[..edge.start].iter().all(|byte| *byte == 4));
        assert!(back[edge.clone()].iter().all(|byte| *byte == 5));
        assert!(back[edge.end..].iter().all(|byte| *byte == 3));
    }

    #[test]
    fn an_open_for_direct_writes_leaves_no_page_in_the_page_cache() {
        let (dir, created) = file(true);
        let folder = std::fs::File::open(dir.path()).expect("folder");
        let reopened = |mode| open(folder.as_fd(), "f", mode, true).expect("opened");
        if reopened(OpenMode::Write).1 != Direct::Yes {
            return;
        }
        let copied = std::fs::File::options().read(true).write(true).open(dir.path().join("f"));
        let copied = copied.expect("opened");
        copied.write_all_at(&vec![3; 16 * PAGE], 0).expect("written");
        sync(&created).expect("synced");
        // Without a wait: from the page cache alone.
        let is_cached = || {
            let mut page = [0; PAGE];
            let found = &mut [std::io::IoSliceMut::new(&mut page)];
            rustix::io::preadv2(&copied, found, 8 * PAGE as u64, ReadWriteFlags::NOWAIT).is_ok()
        };
        assert!(is_cached());
        // The writer's own pages may be there for the log.
        reopened(OpenMode::Read);
        reopened(OpenMode::WriteCached);
        assert!(is_cached());
        reopened(OpenMode::Write);
        assert!(!is_cached());
    }

    #[test]
    fn names_are_plain() {
        for name in ["", ".", "..", "a/b", "/a", "a\0", LOCK_NAME] {
            assert!(check_name(name, Operation::Open).is_err(), "{name:?}");
        }
        for name in ["a", "a.b", "...", "log-000001", "LOCK2"] {
            assert!(check_name(name, Operation::Open).is_ok(), "{name:?}");
        }
    }
}
