//! Workloads of single parts: cases, and subjects that do the same work in turns ([`sheet`]).
//!
//! * [`hash`]: hashing, [`proof`]: proofs, [`auth`]: the engine beside plain maps, [`grind`]: keys that a
//!   trie may suffer from;
//! * [`engine`]: the database that they use.

pub(crate) mod auth;
mod engine;
pub(crate) mod grind;
pub(crate) mod hash;
pub(crate) mod proof;
mod sheet;

pub(crate) use sheet::{Row, Sheet};

use crate::draws::Draws;

/// The generator of a round.
fn draws(seed: u64, round: u64) -> Draws {
    Draws::new(seed, b"pleach-bench parts    v1", round)
}
