//! Standard output, standard error and result files. The macros of the standard library panic when a write
//! fails; a full device is an error here, and a reader that has enough (`head`) is none.

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

/// Refuses a file that could not be made, before the hours that it would hold.
pub(crate) fn check_file(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        let text = format!("{} cannot be written: name a file in a folder", path.display());
        return Err(BenchError::Usage(text));
    }
    Ok(())
}

/// Says a line on standard error. Where that fails, nobody can be told.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Says why a program ends, in one line, and gives its exit code.
pub(crate) fn report(program: &str, error: &BenchError) -> ExitCode {
    say(&format!("{program}: {}", one_line(&error.to_string())));
    ExitCode::from(error.code())
}
