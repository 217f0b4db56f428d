//! Descriptors: no file of a folder has the number of a standard stream, even where those are closed. A program's
//! output would be written to the file.

use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};

/// The least descriptor: those below are the standard streams.
pub(super) const LEAST: RawFd = 3;

/// Opens `name` in `folder`, as a descriptor of at least [`LEAST`].
pub(super) fn open_at(
    folder: BorrowedFd<'_>,
    name: impl rustix::path::Arg,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    take_closed_streams();
    let fd = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, mode)?;
    if fd.as_raw_fd() >= LEAST { Ok(fd) } else { rustix::io::fcntl_dupfd_cloexec(&fd, LEAST) }
}

/// Occupies the numbers of closed standard streams, for good, with a null device that is not writable: a file that had
/// such a number for a moment, before it gets another, would receive what another thread prints just then.
fn take_closed_streams() {
    for _ in 0..LEAST {
        match rustix::fs::open("/dev/null", OFlags::CLOEXEC, Mode::empty()) {
            Ok(null) if null.as_raw_fd() < LEAST => std::mem::forget(null),
            _ => break,
        }
    }
}
