//! Plain ordered key-value stores behind one trait ([`Store`]), for workloads that need no witness: each
//! does the same operations, and each is set up as its own documentation advises.
//!
//! * [`store`]: the trait; [`engine`]: which engine, opened how;
//! * [`pleach`], [`btreemap`]: the engines.

#![allow(dead_code, unused_imports, reason = "`bank` and `history` come next")]

mod btreemap;
mod engine;
mod pleach;
mod store;

use crate::error::Result;
pub(crate) use engine::{Engine, StoreOptions};
pub(crate) use store::{Change, Pair, Store, StoreView};

/// Opens or creates a store.
pub(crate) fn open(engine: Engine, options: &StoreOptions) -> Result<Box<dyn Store>> {
    match engine {
        Engine::Pleach => Ok(Box::new(pleach::PleachStore::open(options)?)),
        Engine::BTreeMap => Ok(Box::new(btreemap::MapStore::open(options)?)),
    }
}

#[cfg(test)]
mod tests;
