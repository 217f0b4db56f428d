//! Progress bars on standard error. There are none if it is not a terminal, or with `--quiet`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::child::Event;

/// A bar for one job.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar with a name, such as backend and job, and a unit.
    pub(crate) fn new(quiet: bool, name: &str, unit: &str) -> Self {
        let bar = ProgressBar::no_length();
        // indicatif draws nothing if standard error is not a terminal.
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(10)
        };
        bar.set_draw_target(target);
        let template = format!(
            "{name:<14} {{prefix}} {{wide_bar}} {{human_pos}}/{{human_len}} {unit} {{elapsed}}"
        );
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Shows the progress that a child reports.
    pub(crate) fn hear(&self, event: &Event) {
        if let Event::Progress { done, of } = event {
            self.at(*done, *of);
        }
    }

    /// Says what is being done.
    pub(crate) fn name(&self, name: &str) {
        self.0.set_prefix(name.to_owned());
    }

    /// Shows progress; `of` is 0 if the end is not known.
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
