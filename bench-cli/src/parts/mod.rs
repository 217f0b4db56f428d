//! Workloads of single parts: cases, and subjects that do the same work in turns ([`sheet`]).
//!
//! * [`hash`]: hashing, [`proof`]: proofs, [`auth`]: the engine beside plain maps, [`grind`]: keys that a
//!   trie may suffer from;
//! * [`overlay`], [`threshold`], [`flatten`]: blocks that stay in memory; [`erc20`]: token transfers;
//! * [`bank`]: plain stores and Pleach beside each other, [`import`]: a bulk load, [`history`]: a change index;
//! * [`engine`] and [`states`]: the databases that they use; [`ledger`]: accounts, contracts and transfers.

pub(crate) mod auth;
pub(crate) mod bank;
mod engine;
pub(crate) mod erc20;
pub(crate) mod flatten;
pub(crate) mod grind;
pub(crate) mod hash;
pub(crate) mod history;
pub(crate) mod import;
mod ledger;
pub(crate) mod overlay;
pub(crate) mod proof;
mod sheet;
mod states;
pub(crate) mod threshold;

pub(crate) use sheet::{Row, Sheet};

use crate::draws::Draws;

/// The generator of a round.
fn draws(seed: u64, round: u64) -> Draws {
    Draws::new(seed, b"pleach-bench parts    v1", round)
}
