//! A node that joins: [`Server`] serves the states of a database, [`Fetch`] fetches one from strangers, part by part, each
//! verified against a trusted root before it is kept, and [`catch_up`] applies a stranger's changes.
//!
//! There is no socket, clock or thread: the caller carries an [`Ask`] to a server and the answer back, and says what time
//! it is. Feature `http` has both ends over HTTP/1.1. docs/sync.md has the encodings and what a client believes.
//!
//! *Experimental*: within 0.1 the interface may change, and so may the encodings.
//!
//! ```
//! use std::time::Duration;
//!
//! use pleach::{Access, Db, Hasher, Options, SessionOptions, Value};
//! use pleach_sync::{Fetch, Judgement, Limits, Server, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let at = |name: &str| folder.path().join(name);
//! let db = Db::open(Options::new(at("state")).create(true).small())?;
//! let put = |id| Access::write([id; 32], Some(Value::from(&[id])));
//! db.session(SessionOptions::new())?.finish((0..9).map(put))?.commit()?;
//! let server = Server::open(Options::new(at("state")), Limits::default())?;
//!
//! let target = Target::over_all(db.roots().over_all(Hasher::BLAKE3), Hasher::BLAKE3);
//! let mut fetch = Fetch::open(&at("new.sync"), target, Limits::default())?;
//! while let Some((ticket, ask)) = fetch.ask(0, Duration::ZERO) {
//!     let mut answer = Vec::new();
//!     let answered = server.answer(&ask, &mut answer).map(|()| answer.as_slice());
//!     assert_eq!(fetch.take(ticket, answered, Duration::ZERO)?, Judgement::Kept);
//! }
//! let new = fetch.load(&at("new"), |options| options.small())?;
//! assert_eq!(new.root(), db.root());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod catch_up;
mod error;
mod fetch;
mod frames;
#[cfg(feature = "http")]
pub mod http;
mod limits;
mod ranges;
mod server;
mod wire;

pub use catch_up::catch_up;
pub use error::{Error, Refusal, Result};
pub use fetch::{Fetch, Judged, Judgement, Progress, Ticket};
pub use frames::Target;
pub use limits::Limits;
pub use server::{Feed, Server};
pub use wire::{Ask, FeedHead, Head, MOST_KEYS, PartAsk, Place, verify_keys};

/// Encodings that come from strangers, for fuzzers and tests; no part of the interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::catch_up::catch_up_within;
    pub use crate::frames::Frames;
    pub use crate::wire::{decode_roots, encode_part, encode_roots, verify_part};
}

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
