//! Which store, opened how.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::args::named;
use crate::error::{BenchError, Result};
use crate::machine;

/// A store that `--backend` of a workload over plain stores can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// This project's engine, with the Merkle trie.
    Pleach,
    /// The same in a plain namespace, which has none.
    #[serde(rename = "pleach-plain")]
    PleachPlain,
    /// A sorted map in memory behind a lock: the oracle.
    BTreeMap,
    /// The crate redb.
    #[cfg(feature = "peer-redb")]
    Redb,
    /// The crate fjall.
    #[cfg(feature = "peer-fjall")]
    Fjall,
    /// SQLite, by the crate rusqlite.
    #[cfg(feature = "peer-sqlite")]
    Sqlite,
    /// MDBX, by the crate signet-libmdbx.
    #[cfg(feature = "peer-mdbx")]
    Mdbx,
    /// RocksDB, by the crate rocksdb.
    #[cfg(feature = "peer-rocksdb")]
    RocksDb,
}

impl Engine {
    /// All of this build.
    pub(crate) const ALL: &[Self] = &[
        Self::Pleach,
        Self::PleachPlain,
        Self::BTreeMap,
        #[cfg(feature = "peer-redb")]
        Self::Redb,
        #[cfg(feature = "peer-fjall")]
        Self::Fjall,
        #[cfg(feature = "peer-sqlite")]
        Self::Sqlite,
        #[cfg(feature = "peer-mdbx")]
        Self::Mdbx,
        #[cfg(feature = "peer-rocksdb")]
        Self::RocksDb,
    ];

    /// Its name on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pleach => "pleach",
            Self::PleachPlain => "pleach-plain",
            Self::BTreeMap => "btreemap",
            #[cfg(feature = "peer-redb")]
            Self::Redb => "redb",
            #[cfg(feature = "peer-fjall")]
            Self::Fjall => "fjall",
            #[cfg(feature = "peer-sqlite")]
            Self::Sqlite => "sqlite",
            #[cfg(feature = "peer-mdbx")]
            Self::Mdbx => "mdbx",
            #[cfg(feature = "peer-rocksdb")]
            Self::RocksDb => "rocksdb",
        }
    }

    /// Is it this project's?
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Pleach | Self::PleachPlain)
    }

    /// Has it files? Otherwise nothing of it is ever durable, and it copies everything when it is written beside a
    /// view, so that nobody should read beside writes.
    pub(crate) const fn has_files(self) -> bool {
        !matches!(self, Self::BTreeMap)
    }

    /// Does a commit that is not synced survive the end of its process? Those of others are kept by it until the next
    /// sync.
    pub(crate) const fn survives_a_kill(self) -> bool {
        match self {
            Self::BTreeMap => false,
            #[cfg(feature = "peer-redb")]
            Self::Redb => false,
            _ => true,
        }
    }

    /// The store with this name, if this build has it.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        named::backend(name, Self::ALL.iter().copied(), Self::name)
    }
}

/// What a store is opened with.
#[derive(Clone, Debug)]
pub(crate) struct StoreOptions {
    /// Where its files are; empty for a new store.
    pub(crate) folder: PathBuf,
    /// Memory that it may take for caches and buffers, in MiB.
    pub(crate) cache_mib: u64,
    pub(crate) threads: usize,
    /// Are commits synced: all of them, or some? Otherwise none is that the caller waits for.
    pub(crate) durable: bool,
    /// Keys that it will have, about, for an engine that has to know.
    #[cfg_attr(not(feature = "peer-nomt"), allow(dead_code, reason = "only nomt has to"))]
    pub(crate) keys: u64,
    /// Are the keys of a block announced before they are read, where an engine has to know?
    #[cfg_attr(not(feature = "peer-nomt"), allow(dead_code, reason = "only nomt has to"))]
    pub(crate) prefetch: bool,
    /// Are witnesses made, where an engine has to know?
    #[cfg_attr(not(feature = "peer-nomt"), allow(dead_code, reason = "only nomt has to"))]
    pub(crate) witness: bool,
    /// Names such as `redb.quick_repair`, each with its value. Those of other engines are not for this one.
    pub(crate) peer_args: Vec<(String, String)>,
}

impl StoreOptions {
    /// A folder and a budget; all cores, durable, without witnesses, and nothing set.
    pub(crate) fn new(folder: &Path, cache_mib: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            cache_mib,
            threads: machine::cores(),
            durable: true,
            keys: 0,
            prefetch: true,
            witness: false,
            peer_args: Vec::new(),
        }
    }

    /// What tests open one with.
    #[cfg(test)]
    pub(crate) fn of_test(folder: &Path) -> Self {
        Self { threads: 2, ..Self::new(folder, 64) }
    }

    /// The settings of one engine, without its name. What it does not know is refused.
    pub(crate) fn peer_args_of(&self, engine: &str, known: &[&str]) -> Result<Vec<(&str, &str)>> {
        let mut own = Vec::new();
        for (name, value) in &self.peer_args {
            let Some((peer, setting)) = name.split_once('.') else { continue };
            if peer != engine {
                continue;
            }
            if !known.contains(&setting) {
                let text = format!("--peer-arg {name}={value}: {peer} has no such setting");
                return Err(BenchError::Usage(text));
            }
            own.push((setting, value.as_str()));
        }
        Ok(own)
    }
}
