//! States behind one trait ([`Tree`]), block by block, for workloads that run on this project's engine, on other
//! people's Merkle trees and, where no root is asked for, on plain stores.
//!
//! * [`tree`]: the trait; [`witness`]: what proves a block; [`ground`]: which state; [`memory`]: what it takes;
//!   [`readers`]: reading keys with several threads;
//! * [`pleach`], [`flat`], `nomt`, `sp_trie`, `jmt`: the states; `over_rocks`: what the last two share.

mod flat;
mod ground;
#[cfg(feature = "peer-jmt")]
mod jmt;
pub(crate) mod memory;
#[cfg(feature = "peer-nomt")]
mod nomt;
#[cfg(any(feature = "peer-sp-trie", feature = "peer-jmt"))]
mod over_rocks;
mod pleach;
pub(crate) mod readers;
#[cfg(feature = "peer-sp-trie")]
mod sp_trie;
mod tree;
mod witness;

use crate::error::{BenchError, Result};
use crate::stores::{self, StoreOptions};
pub(crate) use ground::Ground;
pub(crate) use tree::{Change, Pair, Tree};
pub(crate) use witness::{Proven, Root, Witness};

/// Opens or creates a state.
pub(crate) fn open(ground: Ground, options: &StoreOptions) -> Result<Box<dyn Tree>> {
    let at = &options.folder;
    std::fs::create_dir_all(at).map_err(BenchError::file(at))?;
    Ok(match ground {
        Ground::Pleach => Box::new(pleach::PleachTree::open(options)?),
        #[cfg(feature = "peer-nomt")]
        Ground::Nomt => Box::new(nomt::NomtTree::open(options)?),
        #[cfg(feature = "peer-sp-trie")]
        Ground::SpTrie => Box::new(sp_trie::SpTrie::open(options, options.durable)?),
        #[cfg(feature = "peer-jmt")]
        Ground::Jmt => Box::new(jmt::Jmt::open(options, options.durable)?),
        Ground::Flat(engine) => {
            Box::new(flat::FlatTree::new(stores::open(engine, options)?, options.durable))
        }
    })
}

/// Refuses settings that a state does not have.
#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
pub(crate) fn check_settings(ground: Ground, options: &StoreOptions) -> Result<()> {
    match ground {
        #[cfg(feature = "peer-nomt")]
        Ground::Nomt => nomt::Settings::new(options).map(drop),
        other => options.peer_args_of(other.name(), &[]).map(drop),
    }
}

#[cfg(test)]
mod tests;
