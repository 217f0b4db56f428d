//! Opening the folder's database.

use std::path::Path;

use pleach::{Db, Options, Session};

use crate::error::{CliError, Result};

/// Memory of a command that reads, in MiB.
const READING_MIB: u64 = 128;

/// Opens the folder's database for reading alone, whether a process writes it or not.
pub(crate) fn open_reading(folder: &Path) -> Result<Db> {
    let options = Options::new(folder).cache_mib(READING_MIB).read_only(true);
    Db::open(options).map_err(CliError::engine(folder))
}

/// The same, and returns the result of `read`.
pub(crate) fn reading<T, E: Into<pleach_ops::Error>>(
    folder: &Path,
    read: impl FnOnce(&Db) -> core::result::Result<T, E>,
) -> Result<T> {
    read(&open_reading(folder)?).map_err(CliError::engine(folder))
}

/// The state of a commit of the history, or the newest one.
pub(crate) fn session(db: &Db, at: Option<u64>) -> pleach::Result<Session> {
    match at {
        Some(commit) => db.at(commit),
        None => db.snapshot(),
    }
}
