//! The progress of a command, on standard error: a line that changes, on a terminal, else a line each ten seconds.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Where nobody watches: how often a line is worth reading.
const EVERY: Duration = Duration::from_secs(10);

/// What is shown, and was.
pub struct ProgressReporter {
    quiet: bool,
    terminal: bool,
    /// The last line of its own, or the start.
    last: Instant,
    /// A line is on the terminal.
    shown: bool,
}

impl ProgressReporter {
    pub fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { quiet, terminal, last: Instant::now(), shown: false }
    }

    /// Shows a text, if it is time. A failure is ignored.
    pub fn show(&mut self, text: &str) {
        if self.quiet {
        } else if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
            self.shown = true;
        } else if self.is_due(Instant::now()) {
            crate::output::say(&format!("nomt-bench: {text}"));
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = now.duration_since(self.last) >= EVERY;
        if due {
            self.last = now;
        }
        due
    }

    /// Removes the line from the terminal.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where standard error was no terminal, a load of an hour said nothing.
    #[test]
    fn without_a_terminal_a_line_comes_each_ten_seconds() {
        let mut progress = ProgressReporter::new(false);
        let start = progress.last;
        let due =
            (0..=350).filter(|tenth| progress.is_due(start + Duration::from_millis(100) * *tenth));
        assert_eq!(due.collect::<Vec<_>>(), [100, 200, 300]);
    }
}
