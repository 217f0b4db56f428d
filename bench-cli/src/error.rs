//! Errors of a benchmark, and the exit code of each.

use std::path::Path;

/// The result of anything that can fail here.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments, or the machine, do not fit; the text says what to change.
    #[error("{0}")]
    Usage(String),
    /// A value, count, root or witness is wrong.
    #[error("wrong result: {0}")]
    Wrong(String),
    /// An engine, a file or a child process failed.
    #[error("{0}")]
    Failed(String),
    /// Ended by a signal.
    #[error("ended by signal {0}: nothing was measured")]
    Interrupted(i32),
    /// The same, with results that are printed.
    #[error("ended by signal {0}: these are the figures until then")]
    CutShort(i32),
}

impl Error {
    /// The exit code: 2 for what the caller can change, 128 plus the number of a signal, 1 for all else.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted(signal) | Self::CutShort(signal) => {
                u8::try_from(128 + signal).unwrap_or(1)
            }
            Self::Wrong(_) | Self::Failed(_) => 1,
        }
    }

    /// An error of a file.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |error| Self::Failed(format!("{}: {error}", path.display()))
    }
}

/// An error of the engine `name`, on one line with its causes.
pub fn of_engine<E: std::fmt::Display>(name: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Failed(format!("{name}: {}", one_line(&format!("{error:#}"))))
}

/// A wrong result.
pub fn wrong<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Wrong(text.into()))
}

/// Arguments that do not fit.
pub fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Usage(text.into()))
}

/// A text on one line.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
