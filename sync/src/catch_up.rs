//! A database brought from one root to another by a stranger's changes.

use std::io::Read;

use pleach::Db;
use pleach::proof::roots;
use pleach_core::TERMINATOR;
use pleach_ops::export::{ChangeReader, StreamError, Trust, apply_changes};

use crate::error::{Error, Result};
use crate::frames::Target;

/// Bytes of a change stream that are read, at most: all changes are in memory until they are committed.
pub(crate) const LIMIT: u64 = 512 << 20;

/// Applies the changes of [`Server::changes`](crate::Server::changes) to a database, as one commit, and gives its number.
/// They are judged by the root alone: the stream needs no trust. A target of one namespace is that of a database which
/// has no other pairs. A database that is at the target is left as it is.
///
/// Blocks while it reads the stream, and commits.
///
/// # Errors
/// [`Error::Lie`] for a stream that is not what it should be, is longer than 512 MiB, or leads elsewhere: nothing was
/// changed. [`Error::Stream`] when it cannot be read, or begins at another state than the database's; [`Error::Db`].
pub fn catch_up(db: &Db, to: &Target, stream: impl Read) -> Result<u64> {
    let zero = (to.namespace != Some(0)).then_some((0, &TERMINATOR));
    let root = match to.namespace {
        None => to.root,
        Some(namespace) => {
            roots::over_all(to.hasher, zero.into_iter().chain([(namespace, &to.root)]))
        }
    };
    let reader = ChangeReader::new(stream.take(LIMIT)).map_err(|error| judged(error.into()))?;
    Ok(apply_changes(db, reader, Trust::Root(root)).map_err(judged)?.commit)
}

/// Tells what a stream says wrongly from what fails here.
fn judged(error: pleach_ops::Error) -> Error {
    match error {
        pleach_ops::Error::Stream(
            StreamError::Read(_) | StreamError::OtherState { .. } | StreamError::Hasher { .. },
        ) => Error::Stream(error),
        pleach_ops::Error::Stream(_) | pleach_ops::Error::Db(pleach::Error::OtherRoot { .. }) => {
            Error::Lie(error)
        }
        pleach_ops::Error::Db(error) => Error::Db(error),
        error => Error::Stream(error),
    }
}
