//! Descriptors: nothing of a folder has the number of a standard stream, also where those are closed. What a program
//! prints would land in the file.

use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};

/// The least descriptor: those below are the standard streams.
pub(super) const LEAST: RawFd = 3;

/// Opens what `name` is in `folder`, as a descriptor of at least [`LEAST`].
pub(super) fn open_at(
    folder: BorrowedFd<'_>,
    name: impl rustix::path::Arg,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, mode)?;
    if fd.as_raw_fd() >= LEAST { Ok(fd) } else { rustix::io::fcntl_dupfd_cloexec(&fd, LEAST) }
}
