//! What can go wrong in a benchmark, and the exit code of each.

use std::path::Path;
use std::process::ExitCode;

/// Result of anything here.
pub(crate) type Result<T> = core::result::Result<T, BenchError>;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// Arguments, or surroundings that they need, do not fit; the text says what to change.
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
        /// Its own words.
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

    /// 2 for what the caller can change, 1 for everything else.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }

    /// Prints one line and gives the exit code.
    pub(crate) fn report(&self, program: &str) -> ExitCode {
        eprintln!("{program}: {}", one_line(&self.to_string()));
        ExitCode::from(self.code())
    }
}

/// A text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
