//! Standard output and standard error. A full device is an error; a reader that stops reading (`head`) is not.

use std::io::{BufWriter, ErrorKind as Io, IsTerminal as _, StdoutLock, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pleach::Roots;
use serde_json::{Value, json};

use crate::error::{CliError, ErrorKind, Result};

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

/// Prints a JSON document.
pub(crate) fn json(document: &Value) -> Result<()> {
    print(&format!("{document:#}\n"))
}

/// The error of a write to standard output, if it counts as one.
pub(crate) fn judge(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != Io::BrokenPipe => {
            Err(CliError::new(ErrorKind::System, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints in one line why the program ends, and returns its exit code.
pub(crate) fn report(error: &CliError) -> ExitCode {
    let line = error.text.split_whitespace().collect::<Vec<_>>().join(" ");
    // If that fails there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "pleach: {line}");
    ExitCode::from(error.kind.code())
}

/// 32 bytes and others in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The roots of namespaces as JSON.
pub(crate) fn roots(roots: &Roots) -> Value {
    let one =
        |(number, root): (u8, pleach::Node)| json!({"namespace": number, "root": root.to_string()});
    roots.iter().map(one).collect()
}

/// A progress bar with the time that is left, on standard error where that is a terminal. It appears after a second. It is at its
/// end with the last key ([`part_of`]), unless it is given another length.
pub(crate) fn bar(what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1 << 16).with_message(what);
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} %, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// How far a key is in the order of all keys, of 65,536 parts.
pub(crate) fn part_of(key: &pleach::Key) -> u64 {
    u64::from(u16::from_be_bytes([key[0], key[1]]))
}
