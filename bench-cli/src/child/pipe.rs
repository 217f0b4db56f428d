//! The child's ends of the pipes: it reads its job and its orders, and reports what happens.

use std::io::Write as _;

use crate::child::message::{Event, Order, Spec};
use crate::error::{BenchError, Result};

/// Writes one event. A parent that is gone ends the child: nobody waits for the result.
pub(super) fn say(event: &Event) -> Result<()> {
    let gone = |error: std::io::Error| BenchError::Child(format!("the parent is gone: {error}"));
    let mut line = serde_json::to_string(event)
        .map_err(|error| BenchError::Child(format!("an event does not serialize: {error}")))?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).map_err(gone)?;
    out.flush().map_err(gone)
}

/// Reads the job.
pub(super) fn read_spec() -> Result<Spec> {
    let text = read_line()?.unwrap_or_default();
    serde_json::from_str(&text)
        .map_err(|error| BenchError::Usage(format!("this subcommand is internal ({error})")))
}

/// Reads the parent's next order. A parent that is gone ends the child: nobody waits for the result.
pub(super) fn next_order() -> Result<Order> {
    let gone = || BenchError::Child("the parent is gone".to_owned());
    let text = read_line()?.ok_or_else(gone)?;
    serde_json::from_str(&text)
        .map_err(|error| BenchError::Child(format!("no order: {error}: {text}")))
}

/// A line of standard input; `None` at its end.
fn read_line() -> Result<Option<String>> {
    let line = std::io::stdin().lines().next().transpose();
    line.map_err(|error| BenchError::Child(format!("no job: {error}")))
}
