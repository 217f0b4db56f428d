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

/// The error of a folder, with what helps.
pub(super) fn refused(folder: &str, operation: Operation, errno: Errno) -> IoError {
    let mut error = failed(folder, operation)(errno);
    let cure = match errno {
        Errno::NOTDIR => "it is a file, or lies below one: give a folder",
        Errno::ACCESS => {
            "this user needs the right to read the folder and its files, and to write them unless it opens them for \
             reading alone (option `read_only`)"
        }
        Errno::ROFS => "an open for reading alone works there (option `read_only`)",
        _ => return error,
    };
    if let IoError::Os { message, .. } = &mut error {
        *message = format!("{message}; {cure}");
    }
    error
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
