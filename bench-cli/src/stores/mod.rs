//! Plain ordered key-value stores behind one trait ([`Store`]), for workloads that need no witness: each
//! does the same operations, and each is set up as its own documentation advises.
//!
//! * [`store`]: the trait; [`engine`]: which engine, opened how; [`help`]: what those of others have in common;
//! * [`pleach`], [`btreemap`]: the engines; `peers`: those of others, where the build has them.

mod btreemap;
mod engine;
pub(crate) mod help;
#[cfg(any(
    feature = "peer-redb",
    feature = "peer-fjall",
    feature = "peer-sqlite",
    feature = "peer-mdbx",
    feature = "peer-rocksdb"
))]
mod peers;
mod pleach;
mod store;

use crate::args::named;
use crate::error::{BenchError, Result};
pub(crate) use engine::{Engine, StoreOptions};
pub(crate) use store::{Change, Pair, Store, StoreView};

/// Opens or creates a store.
pub(crate) fn open(engine: Engine, options: &StoreOptions) -> Result<Box<dyn Store>> {
    match engine {
        Engine::Pleach => Ok(Box::new(pleach::PleachStore::open(options, false)?)),
        Engine::PleachPlain => Ok(Box::new(pleach::PleachStore::open(options, true)?)),
        Engine::BTreeMap => Ok(Box::new(btreemap::MapStore::open(options)?)),
        #[cfg(feature = "peer-redb")]
        Engine::Redb => Ok(Box::new(peers::RedbStore::open(options)?)),
        #[cfg(feature = "peer-fjall")]
        Engine::Fjall => Ok(Box::new(peers::FjallStore::open(options)?)),
        #[cfg(feature = "peer-sqlite")]
        Engine::Sqlite => Ok(Box::new(peers::SqliteStore::open(options)?)),
        #[cfg(feature = "peer-mdbx")]
        Engine::Mdbx => Ok(Box::new(peers::MdbxStore::open(options)?)),
        #[cfg(feature = "peer-rocksdb")]
        Engine::RocksDb => Ok(Box::new(peers::RocksStore::open(options)?)),
    }
}

/// The stores that `--backend` names, each once.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Engine>> {
    named::each_once("--backend", names, Engine::parse)
}

/// Names and values of `--peer-arg`, each of a store that `--backend` names.
pub(crate) fn peer_args(args: &[String], backends: &[String]) -> Result<Vec<(String, String)>> {
    let parse = |arg: &String| {
        let pair = arg.split_once('=');
        let peer = |name: &str| name.split_once('.').map(|(peer, _)| peer.to_owned());
        match pair.and_then(|(name, value)| Some((peer(name)?, name, value))) {
            Some((peer, name, value)) if backends.contains(&peer) => {
                Ok((name.to_owned(), value.to_owned()))
            }
            Some((peer, ..)) => {
                Err(BenchError::Usage(format!("--peer-arg {arg}: {peer} is not in --backend")))
            }
            None => Err(BenchError::Usage(format!("--peer-arg {arg}: say STORE.NAME=VALUE"))),
        }
    };
    args.iter().map(parse).collect()
}

#[cfg(test)]
mod tests;
