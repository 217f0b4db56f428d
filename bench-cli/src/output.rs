//! Standard output and standard error. The macros of the standard library panic when a write
//! fails; a full device is an error here, and a reader that has enough (`head`) is none.

use std::io::{BufWriter, ErrorKind, StdoutLock, Write as _};
use std::path::Path;

use crate::error::{BenchError, Result};

/// Writes to standard output.
pub(crate) fn write(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> std::io::Result<()>,
) -> Result<()> {
    let mut to = BufWriter::new(std::io::stdout().lock());
    let written = write(&mut to).and_then(|()| to.flush());
    // What could not be written must not be tried again, and fail, when the buffer is dropped.
    let _ = to.into_parts();
    judge(written)
}

/// Prints a text as it is.
pub(crate) fn print(text: &str) -> Result<()> {
    write(|to| to.write_all(text.as_bytes()))
}

/// The error of a write to standard output, where it is one.
pub(crate) fn judge(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(BenchError::file(Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}

/// Says a line on standard error. Where that fails, nobody can be told.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
