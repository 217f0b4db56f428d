//! Progress bars on standard error; nothing when it is no terminal or `--quiet` was said.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::child::Event;

/// A bar for one job.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar named after backend and job.
    pub(crate) fn new(quiet: bool, name: &str, unit: &str) -> Self {
        let bar = ProgressBar::no_length();
        // indicatif draws nothing when standard error is no terminal.
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(10)
        };
        bar.set_draw_target(target);
        let template =
            format!("{name:<14} {{wide_bar}} {{human_pos}}/{{human_len}} {unit} {{elapsed}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Follows a child.
    pub(crate) fn hear(&self, event: &Event) {
        if let Event::Progress { done, of } = event {
            self.at(*done, *of);
        }
    }

    /// So much is done; 0 of 0 when the end is not known.
    pub(crate) fn at(&self, done: u64, of: u64) {
        if of > 0 {
            self.0.set_length(of);
        }
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
