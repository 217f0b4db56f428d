//! From results of the system to [`IoError`].

use rustix::io::Errno;

use crate::error::{IoError, Operation};

/// An [`IoError`] from an errno that a call returned.
pub(super) fn os_error(file: &str, offset: u64, operation: Operation, code: i32) -> IoError {
    let source = std::io::Error::from_raw_os_error(code);
    IoError::Os {
        file: file.to_owned(),
        offset,
        operation,
        code,
        kind: source.kind(),
        message: source.to_string(),
    }
}

/// A mapping for `map_err`, for calls without an offset.
pub(super) fn failed(file: &str, operation: Operation) -> impl FnOnce(Errno) -> IoError + '_ {
    move |errno| os_error(file, 0, operation, errno.raw_os_error())
}

/// The same for results of the standard library and the ring.
pub(super) fn failed_std(
    file: &str,
    operation: Operation,
) -> impl FnOnce(std::io::Error) -> IoError + '_ {
    move |source| IoError::Os {
        file: file.to_owned(),
        offset: 0,
        operation,
        code: source.raw_os_error().unwrap_or(0),
        kind: source.kind(),
        message: source.to_string(),
    }
}
