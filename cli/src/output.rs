//! Standard output and standard error. A full device is an error; a reader that stops reading (`head`) is not.

use std::io::{BufWriter, ErrorKind as Io, IsTerminal as _, StdoutLock, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pleach::{Progress, Roots};
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

/// The roots of namespaces as JSON.
pub(crate) fn roots(roots: &Roots) -> Value {
    let one =
        |(number, root): (u8, pleach::Node)| json!({"namespace": number, "root": root.to_string()});
    roots.iter().map(one).collect()
}

/// Progress on standard error: on a terminal a bar with the remaining time, after a second; else a line each ten
/// seconds. It ends with the last key ([`part_of`]), unless it is given another length.
pub(crate) fn bar(what: &'static str) -> ProgressBar {
    show(what, Some(1 << 16), "{msg} {wide_bar} {percent} %, {eta} left")
}

/// The same where the message says how long it takes.
pub(crate) fn share(what: &'static str) -> ProgressBar {
    show(what, Some(1_000), "{msg}, {percent} %")
}

/// The same where the total is unknown.
pub(crate) fn waiting(what: &'static str) -> ProgressBar {
    show(what, None, "{msg}, {elapsed}")
}

fn show(what: &'static str, length: Option<u64>, style: &str) -> ProgressBar {
    let bar =
        ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden()).with_message(what);
    if std::io::stderr().is_terminal() {
        let style = ProgressStyle::with_template(style);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.enable_steady_tick(Duration::from_secs(1));
    } else {
        // If that fails there is nobody to tell.
        tell(&bar, Duration::from_secs(10), |line| {
            let _ = writeln!(std::io::stderr().lock(), "pleach: {line}");
        });
    }
    bar
}

/// Reports the progress of a bar at each interval `each`, unless there was none.
fn tell(bar: &ProgressBar, each: Duration, to: impl Fn(String) + Send + 'static) {
    let (bar, mut before) = (bar.downgrade(), String::new());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(each);
            let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) else { return };
            let far = match bar.length() {
                Some(all) => format!("{} %", bar.position() * 100 / all.max(1)),
                None => format!("{} s", bar.elapsed().as_secs()),
            };
            let line = format!("{}, {far}", bar.message());
            if line != before {
                to(line.clone());
                before = line;
            }
        }
    });
}

/// Reports to a bar how much is done, and how much there is.
pub(crate) fn counting(bar: &ProgressBar) -> Progress {
    let bar = bar.clone();
    Arc::new(move |done, all| {
        bar.set_length(all.unwrap_or(done));
        bar.set_position(done);
    })
}

/// The position of a key in the order of all keys, of 65,536 parts.
pub(crate) fn part_of(key: &pleach::Key) -> u64 {
    u64::from(u16::from_be_bytes([key[0], key[1]]))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A check of two minutes once looked like a hang, and in a pipe every long command did.
    #[test]
    fn lines_say_how_far_a_command_has_come() {
        let (to, said) = channel();
        let bar = ProgressBar::hidden().with_message("check");
        bar.set_length(8);
        tell(&bar, Duration::from_millis(1), move |line| to.send(line).expect("heard"));
        assert_eq!(said.recv().as_deref(), Ok("check, 0 %"));
        bar.set_position(6);
        assert_eq!(said.recv().as_deref(), Ok("check, 75 %"));
        bar.finish_and_clear();
        assert!(said.recv().is_err());
    }
}
