//! Errors that give back what they could not use: a session, a block.
//!
//! Whoever is told to try again must still have what to try with. Both turn into [`Error`] by `?`
//! in functions that return it, which lets go of what was given back.

use std::fmt;

use pleach_core::{Blake3, Hasher};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::block::Block;
use crate::error::Error;
use crate::session::{Access, Session};

/// A finish that gave no block: why, the session as it was before, and the accesses.
///
/// The session stands on the state that it stood on, with what it announced, and can read, announce
/// and finish. As long as this lives, so does the session, which keeps its state's undo.
pub struct FinishError<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Box<Unfinished<H, D, R>>,
);

/// Apart, so that a result is as small as its good case.
struct Unfinished<H: Hasher, D: Device, R: Runtime> {
    session: Session<H, D, R>,
    accesses: Vec<Access>,
    error: Error,
}

impl<H: Hasher, D: Device, R: Runtime> FinishError<H, D, R> {
    pub(crate) fn new(session: Session<H, D, R>, accesses: Vec<Access>, error: Error) -> Self {
        Self(Box::new(Unfinished { session, accesses, error }))
    }

    /// Why there is no block.
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// The session.
    pub fn session(&self) -> &Session<H, D, R> {
        &self.0.session
    }

    /// The accesses, as they were given.
    pub fn accesses(&self) -> &[Access] {
        &self.0.accesses
    }

    /// The reason alone.
    pub fn into_error(self) -> Error {
        self.0.error
    }

    /// The session alone.
    pub fn into_session(self) -> Session<H, D, R> {
        self.0.session
    }

    /// Session, accesses and reason.
    pub fn into_parts(self) -> (Session<H, D, R>, Vec<Access>, Error) {
        let Unfinished { session, accesses, error } = *self.0;
        (session, accesses, error)
    }
}

/// A commit that did not come to its end: why, and the block, as it was before.
///
/// After [`Error::Full`] nothing took place, and the block can be committed when there is room. A
/// block that is stale, or whose database is closed or poisoned, comes back too: its root and its
/// witness may still be wanted.
pub struct CommitError<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Box<(Block<H, D, R>, Error)>,
);

impl<H: Hasher, D: Device, R: Runtime> CommitError<H, D, R> {
    pub(crate) fn new(block: Block<H, D, R>, error: Error) -> Self {
        Self(Box::new((block, error)))
    }

    /// Why it is not committed.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The block.
    pub fn block(&self) -> &Block<H, D, R> {
        &self.0.0
    }

    /// The reason alone.
    pub fn into_error(self) -> Error {
        self.0.1
    }

    /// The block alone.
    pub fn into_block(self) -> Block<H, D, R> {
        self.0.0
    }

    /// Block and reason.
    pub fn into_parts(self) -> (Block<H, D, R>, Error) {
        *self.0
    }
}

/// Both speak as their reason does.
macro_rules! speaks_as_its_reason {
    ($name:ident, $given:literal, $back:ident) => {
        impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for $name<H, D, R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("error", self.error())
                    .field($given, self.$back())
                    .finish_non_exhaustive()
            }
        }

        impl<H: Hasher, D: Device, R: Runtime> fmt::Display for $name<H, D, R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.error().fmt(f)
            }
        }

        impl<H: Hasher, D: Device, R: Runtime> std::error::Error for $name<H, D, R> {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(self.error())
            }
        }

        impl<H: Hasher, D: Device, R: Runtime> From<$name<H, D, R>> for Error {
            fn from(error: $name<H, D, R>) -> Self {
                error.into_error()
            }
        }
    };
}

speaks_as_its_reason!(FinishError, "session", session);
speaks_as_its_reason!(CommitError, "block", block);
