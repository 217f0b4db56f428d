//! The engines under test, behind one trait ([`Backend`]), so that all of them do the same operations
//! and are measured by the same code. Each implementation follows its engine's own documentation.
//!
//! * [`engine`]: the trait; [`kind`] and [`options`]: which engine, opened how and where;
//! * [`pleach`], `trees`, [`model`]: the engines;
//! * [`roots`]: the record of roots beside each database; [`sizing`]: memory and disk it will need.

mod engine;
mod kind;
mod model;
mod options;
mod pleach;
pub(crate) mod roots;
pub(crate) mod sizing;
#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
mod trees;

use std::path::Path;

use crate::error::{BenchError, Result};
#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
use crate::trees::Ground;
pub(crate) use engine::{Backend, Counters, Done, Timing, View, Work};
pub(crate) use kind::Kind;
pub(crate) use options::{EngineOptions, Place};

pub(crate) use crate::trees::{Proven, Root, Witness};

/// Refuses settings that none of the backends understands, before anything is created.
pub(crate) fn check_settings(kinds: &[Kind], options: &EngineOptions) -> Result<()> {
    for (name, value) in &options.peer_args {
        let peer = name.split_once('.').map_or(name.as_str(), |(peer, _)| peer);
        if !kinds.iter().any(|kind| kind.name() == peer) {
            let text = format!("--peer-arg {name}={value}: {peer} is not in --backend");
            return Err(BenchError::Usage(text));
        }
    }
    // A ratio would say what a sync costs, not an engine.
    let syncs = |kind: &&Kind| kind.syncs_each_commit(options.durability);
    if let (Some(one), Some(other)) =
        (kinds.iter().find(syncs), kinds.iter().find(|kind| !syncs(kind)))
    {
        let (durability, one, other) = (options.durability, one.name(), other.name());
        return Err(BenchError::Usage(format!(
            "--durability {durability}: {one} syncs each commit all the same, {other} does not: say --durability \
             commit, or run them apart"
        )));
    }
    if kinds.contains(&Kind::Pleach) {
        pleach::check_settings(options)?;
    }
    #[cfg(feature = "peer-nomt")]
    if kinds.contains(&Kind::Nomt) {
        trees::check_settings(Ground::Nomt, options)?;
    }
    #[cfg(feature = "peer-sp-trie")]
    if kinds.contains(&Kind::SpTrie) {
        trees::check_settings(Ground::SpTrie, options)?;
    }
    #[cfg(feature = "peer-jmt")]
    if kinds.contains(&Kind::Jmt) {
        trees::check_settings(Ground::Jmt, options)?;
    }
    Ok(())
}

/// Opens a backend's database, creating it when the folder is empty or missing.
pub(crate) fn open(kind: Kind, place: &Place, options: &EngineOptions) -> Result<Box<dyn Backend>> {
    match kind {
        Kind::Model => Ok(Box::new(model::Model::open(place)?)),
        Kind::Pleach => Ok(Box::new(pleach::PleachBackend::open(place, options)?)),
        #[cfg(feature = "peer-nomt")]
        Kind::Nomt => Ok(Box::new(trees::TreeBackend::open(Ground::Nomt, place, options)?)),
        #[cfg(not(feature = "peer-nomt"))]
        Kind::Nomt => Err(kind.missing("peer-nomt")),
        #[cfg(feature = "peer-sp-trie")]
        Kind::SpTrie => Ok(Box::new(trees::TreeBackend::open(Ground::SpTrie, place, options)?)),
        #[cfg(not(feature = "peer-sp-trie"))]
        Kind::SpTrie => Err(kind.missing("peer-sp-trie")),
        #[cfg(feature = "peer-jmt")]
        Kind::Jmt => Ok(Box::new(trees::TreeBackend::open(Ground::Jmt, place, options)?)),
        #[cfg(not(feature = "peer-jmt"))]
        Kind::Jmt => Err(kind.missing("peer-jmt")),
    }
}

/// What the offline checker finds in a closed database; empty if the engine has no checker.
pub(crate) fn check(kind: Kind, folder: &Path) -> Result<Vec<String>> {
    match kind {
        Kind::Pleach => pleach::check(folder),
        _ => Ok(Vec::new()),
    }
}

/// Does the engine have an offline checker?
pub(crate) const fn has_checker(kind: Kind) -> bool {
    matches!(kind, Kind::Pleach)
}
