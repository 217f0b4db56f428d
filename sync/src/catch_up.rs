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
/// [`Error::Lie`] for a stream that is not what it should be, or leads elsewhere; [`Error::TooManyChanges`] for more than
/// 512 MiB, or than a commit takes; [`Error::Stream`] when it cannot be read, or begins at another state than the
/// database's: nothing was changed. [`Error::Db`].
pub fn catch_up(db: &Db, to: &Target, stream: impl Read) -> Result<u64> {
    catch_up_within(db, to, stream, LIMIT)
}

/// The same, with another limit.
pub fn catch_up_within(db: &Db, to: &Target, stream: impl Read, limit: u64) -> Result<u64> {
    let zero = (to.namespace != Some(0)).then_some((0, &TERMINATOR));
    let root = match to.namespace {
        None => to.root,
        Some(namespace) => {
            roots::over_all(to.hasher, zero.into_iter().chain([(namespace, &to.root)]))
        }
    };
    let mut stream = stream.take(limit);
    let reader = ChangeReader::new(&mut stream).map_err(pleach_ops::Error::from);
    match reader.and_then(|reader| apply_changes(db, reader, Trust::Root(root))) {
        Ok(applied) => Ok(applied.commit),
        // It was cut off there.
        Err(_) if stream.limit() == 0 => Err(Error::TooManyChanges),
        Err(error) => Err(judged(error)),
    }
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
        pleach_ops::Error::Db(pleach::Error::BatchTooLarge { .. }) => Error::TooManyChanges,
        pleach_ops::Error::Db(error) => Error::Db(error),
        error => Error::Stream(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_commit_takes_is_no_lie() {
        let error = pleach::Error::BatchTooLarge { bytes: 2, limit: 1 };
        assert!(matches!(judged(error.into()), Error::TooManyChanges));
    }
}
