//! What an engine is opened with, and where.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::args::values::{Durability, IoChoice, Switch};

/// Everything an engine is opened with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineOptions {
    pub(crate) durability: Durability,
    pub(crate) witness: Switch,
    pub(crate) prefetch: Switch,
    pub(crate) cache_mib: u64,
    pub(crate) threads: usize,
    pub(crate) in_flight: u32,
    pub(crate) io: IoChoice,
    pub(crate) trie_cache_kib: Option<u64>,
    pub(crate) load_mib: Option<u64>,
    pub(crate) log_limit_mib: u64,
    pub(crate) history: u64,
    pub(crate) history_mib: Option<u64>,
    pub(crate) overlay_window: u32,
    /// Are the keys of the next batch announced before a batch is finished, where the engine can do that?
    pub(crate) ahead: bool,
    /// Are the phases of each batch recorded, where the engine can do that?
    pub(crate) timed: bool,
    /// Names such as `nomt.readers`, each with its value.
    pub(crate) peer_args: Vec<(String, String)>,
    /// Number of accounts to size the database for, if the engine must know it in advance.
    pub(crate) expected_accounts: u64,
}

/// Where a backend's files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The database folder.
    pub(crate) folder: PathBuf,
    /// The record of roots, next to that folder.
    pub(crate) roots: PathBuf,
}

/// The value of a `--peer-arg` by its full name, such as `nomt.readers`.
pub(crate) fn peer_arg<'a>(options: &'a EngineOptions, name: &str) -> Option<&'a str> {
    options.peer_args.iter().rev().find(|arg| arg.0 == name).map(|arg| arg.1.as_str())
}
