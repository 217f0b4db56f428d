//! Standard output, standard error and result files. The print macros of the standard library panic
//! if a write fails. Here, a full device is an error, and a reader that stops reading (`head`) is not.

use std::io::{BufWriter, ErrorKind, StdoutLock, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crate::error::{BenchError, Result};
use crate::text::one_line;

/// Writes to standard output.
pub(crate) fn write(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> std::io::Result<()>,
) -> Result<()> {
    let mut to = BufWriter::new(std::io::stdout().lock());
    let written = write(&mut to).and_then(|()| to.flush());
    // Otherwise the buffer would try again, and fail, when it is dropped.
    let _ = to.into_parts();
    judge(written)
}

/// Prints a text as it is.
pub(crate) fn print(text: &str) -> Result<()> {
    write(|to| to.write_all(text.as_bytes()))
}

/// The error of a write to standard output, if it counts as one.
pub(crate) fn judge(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(BenchError::file(Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}

/// Refuses a result file that could not be made, before hours are spent on its contents.
pub(crate) fn check_file(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        let text = format!("{} cannot be written: name a file in a folder", path.display());
        return Err(BenchError::Usage(text));
    }
    Ok(())
}

/// Prints a line on standard error. If that fails, there is nobody to tell.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints in one line why a program ends, and returns its exit code.
pub(crate) fn report(program: &str, error: &BenchError) -> ExitCode {
    say(&format!("{program}: {}", one_line(&error.to_string())));
    ExitCode::from(error.code())
}
