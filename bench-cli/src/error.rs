//! What can go wrong in a benchmark, and the exit code of each.

use std::path::Path;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::text::one_line;

/// The result of anything that can fail here.
pub(crate) type Result<T> = core::result::Result<T, BenchError>;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The arguments, or the surroundings that they need, do not fit; the text says what to change.
    #[error("{0}")]
    Usage(String),
    /// A balance, count, root or witness is wrong.
    #[error("wrong result: {0}")]
    Wrong(String),
    /// The engine under test refused or failed.
    #[error("{backend}: {message}")]
    Backend {
        /// Name of the backend.
        backend: &'static str,
        /// The engine's own message.
        message: String,
    },
    /// A file of the harness itself.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A child process ended without a result.
    #[error("{0}")]
    Child(String),
    /// Ended by Ctrl-C or another signal.
    #[error("ended by {}: {}", name_of(*.signal), kept(*.partial))]
    Interrupted {
        /// The signal.
        signal: i32,
        /// Is there a result of what was done until then?
        partial: bool,
    },
}

const fn kept(partial: bool) -> &'static str {
    if partial { "the result is that of what was done until then" } else { "nothing was measured" }
}

impl BenchError {
    /// Wraps a failure of the harness's own files.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self::File { path: path.display().to_string(), source }
    }

    /// Wraps an engine's error, whatever its type.
    pub(crate) fn backend<E: std::fmt::Display>(name: &'static str) -> impl Fn(E) -> Self {
        // The alternate form prints the whole chain of causes where there is one.
        move |error| Self::Backend { backend: name, message: one_line(&format!("{error:#}")) }
    }

    /// The exit code: 2 for what the caller can change, 128 plus the number of a signal, and 1 for
    /// everything else.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted { signal, .. } => code_after(*signal),
            _ => 1,
        }
    }
}

/// Exit code after a signal.
pub(crate) fn code_after(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

/// Name of a signal.
const fn name_of(signal: i32) -> &'static str {
    match signal {
        SIGINT => "Ctrl-C",
        SIGTERM => "SIGTERM",
        _ => "SIGHUP",
    }
}
