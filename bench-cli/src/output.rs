//! What is printed: lines for whoever watches, on standard error, and results, on standard output. Knows no other module
//! but that of errors.

use std::io::Write as _;

use crate::error::{Error, Result};

/// Prints a line on standard error. If that fails, there is nobody to tell.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints a text. A reader that stops reading (`head`) is no failure; a full device is one.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::Failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
