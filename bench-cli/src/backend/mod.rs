//! Engines under test, behind one trait, so that all of them do the same operations and are
//! measured by the same code. Each implementation follows its engine's own documentation.

pub(crate) mod batches;
mod model;
#[cfg(feature = "peer-nomt")]
mod nomt;
mod pleach;
mod readers;
pub(crate) mod sizing;

use core::time::Duration;
use std::path::{Path, PathBuf};

use pleach_core::{Key, ValueHash};
use serde::{Deserialize, Serialize};

use crate::args::values::{Durability, IoChoice, Switch};
#[cfg(feature = "peer-nomt")]
use crate::backend::batches::Batches;
use crate::error::{BenchError, Result};
use crate::workload::transfer::Change;

/// A trie root.
pub(crate) type Root = [u8; 32];

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// This project's engine.
    Pleach,
    /// The crate nomt.
    Nomt,
    /// Sorted map and naive root: the oracle for small sizes.
    Model,
}

impl Kind {
    /// The backend of a name, when this build has it.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "model" => Ok(Self::Model),
            "pleach" => Ok(Self::Pleach),
            "nomt" if cfg!(feature = "peer-nomt") => Ok(Self::Nomt),
            "nomt" => Err(missing("nomt", "peer-nomt")),
            _ => {
                let text = format!("no backend {name}: this build has {}", Self::built_in());
                Err(BenchError::Usage(text))
            }
        }
    }

    /// The list of backends that this build has, the oracle left out.
    pub(crate) fn built_in() -> String {
        let all = [("pleach", true), ("nomt", cfg!(feature = "peer-nomt"))];
        let present: Vec<_> = all.iter().filter(|one| one.1).map(|one| one.0).collect();
        if present.is_empty() { "none".to_owned() } else { present.join(", ") }
    }

    /// Its name on the command line, in folders and in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pleach => "pleach",
            Self::Nomt => "nomt",
            Self::Model => "model",
        }
    }

    /// Version of the engine.
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::Pleach | Self::Model => env!("CARGO_PKG_VERSION"),
            Self::Nomt => "1.0.5",
        }
    }
}

fn missing(name: &str, feature: &str) -> BenchError {
    let text = format!("this build has no backend {name}: build with --features {feature}");
    BenchError::Usage(text)
}

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
    pub(crate) overlay_window: u32,
    /// `nomt.readers` and the like, with their values.
    pub(crate) peer_args: Vec<(String, String)>,
    /// Accounts that the database is sized for, where an engine must know.
    pub(crate) expected_accounts: u64,
}

/// A backend's place on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The database folder.
    pub(crate) folder: PathBuf,
    /// Roots by batch number, beside it.
    pub(crate) roots: PathBuf,
}

/// From balances read to changes, both in the order of a batch's accounts.
pub(crate) type Compute<'a> = dyn FnMut(&[Option<u64>]) -> Result<Vec<Change>> + 'a;

/// One batch to run.
pub(crate) struct Work<'a> {
    /// Its number in the stream.
    pub(crate) number: u64,
    /// Keys of its distinct accounts, in the order of first use.
    pub(crate) keys: &'a [Key],
    /// What the batch does.
    pub(crate) compute: &'a mut Compute<'a>,
    /// To be called with the new root once it is known and before anything is committed.
    pub(crate) before_commit: &'a mut dyn FnMut(&Root) -> Result<()>,
}

/// A batch that has run.
pub(crate) struct Done {
    pub(crate) execute: Duration,
    pub(crate) finish: Duration,
    pub(crate) commit: Duration,
    pub(crate) prev_root: Root,
    pub(crate) root: Root,
    pub(crate) witness: Option<Box<dyn Witness>>,
}

/// What a witness proves, in any order.
#[derive(Debug, Default)]
pub(crate) struct Proven {
    /// The root that the batch leads to.
    pub(crate) new_root: Root,
    /// Keys read, with the hash of the value seen.
    pub(crate) reads: Vec<(Key, Option<ValueHash>)>,
    /// Keys written, with the hash of the new value.
    pub(crate) writes: Vec<(Key, Option<ValueHash>)>,
}

/// A batch's witness in the engine's own form.
pub(crate) trait Witness {
    /// Its size.
    fn bytes(&self) -> u64;
    /// Verifies it statelessly against the previous root and gives all that it proves.
    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String>;
}

/// One state, readable while batches go on.
pub(crate) trait View {
    /// Its root.
    fn root(&self) -> Root;
    /// Values of keys in it.
    fn read(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;
}

/// Counters of an engine; `None` where it keeps none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) cache_hits: Option<u64>,
    pub(crate) cache_misses: Option<u64>,
    pub(crate) page_rereads: Option<u64>,
    pub(crate) upper_trie_pages_read: Option<u64>,
    pub(crate) pending_entries: Option<u64>,
    pub(crate) pending_bytes: Option<u64>,
    pub(crate) checkpoints: Option<u64>,
    pub(crate) leaf_pages: Option<u64>,
    pub(crate) pages_written: Option<u64>,
    /// Device writes that these took.
    pub(crate) page_runs_written: Option<u64>,
    pub(crate) bytes_written_log: Option<u64>,
    /// Nanoseconds that commits and flushes spent one after the other, under one lock.
    pub(crate) sequencer_nanos: Option<u64>,
    /// Microseconds that commits waited for background writes.
    pub(crate) stalled_micros: Option<u64>,
    pub(crate) hashes: Option<u64>,
}

impl Counters {
    /// What was counted since `start`; levels (pending entries, leaf pages) are kept as they are.
    pub(crate) fn since(&self, start: &Self) -> Self {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            cache_hits: less(self.cache_hits, start.cache_hits),
            cache_misses: less(self.cache_misses, start.cache_misses),
            page_rereads: less(self.page_rereads, start.page_rereads),
            upper_trie_pages_read: less(self.upper_trie_pages_read, start.upper_trie_pages_read),
            checkpoints: less(self.checkpoints, start.checkpoints),
            pages_written: less(self.pages_written, start.pages_written),
            page_runs_written: less(self.page_runs_written, start.page_runs_written),
            bytes_written_log: less(self.bytes_written_log, start.bytes_written_log),
            sequencer_nanos: less(self.sequencer_nanos, start.sequencer_nanos),
            stalled_micros: less(self.stalled_micros, start.stalled_micros),
            hashes: less(self.hashes, start.hashes),
            ..*self
        }
    }
}

/// An open engine. Everything is called from one thread.
pub(crate) trait Backend {
    /// Root of the newest state, uncommitted overlays included.
    fn root(&self) -> Root;
    /// Number of batches that the committed state contains.
    fn batches(&self) -> Result<u64>;
    /// Loads accounts `0..accounts` into the empty database; `progress` hears how many are in.
    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()>;
    /// Reads, computes, finishes and commits a batch, and times each phase.
    fn run_batch(&mut self, work: Work<'_>) -> Result<Done>;
    /// Commits what is still held as overlays.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
    /// Waits until at most so many pending entries are left to background writes.
    fn drain(&mut self, _pending_entries: u64) -> Result<()> {
        Ok(())
    }
    /// Stops background work while the clock is stopped.
    fn pause(&mut self) {}
    /// Lets background work go on.
    fn resume(&mut self) {}
    /// Its counters now.
    fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Values of keys in the newest state.
    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;
    /// Keeps the newest state readable; an error where commits would wait for that.
    fn view(&mut self) -> Result<Box<dyn View>>;
    /// What is to be printed with the result: settings, fallbacks, durability.
    fn notes(&self) -> Vec<String>;
    /// Closes it cleanly.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Refuses settings that no backend of a run would understand, before anything is created.
pub(crate) fn check_settings(kinds: &[Kind], options: &EngineOptions) -> Result<()> {
    for (name, value) in &options.peer_args {
        let peer = name.split_once('.').map_or(name.as_str(), |(peer, _)| peer);
        if !kinds.iter().any(|kind| kind.name() == peer) {
            let text = format!("--peer-arg {name}={value}: {peer} is not in --backend");
            return Err(BenchError::Usage(text));
        }
    }
    if kinds.contains(&Kind::Pleach) {
        pleach::check_settings(options)?;
    }
    #[cfg(feature = "peer-nomt")]
    if kinds.contains(&Kind::Nomt) {
        nomt::check_settings(options)?;
    }
    Ok(())
}

/// Opens a backend's database, creating it when the folder is empty or missing.
pub(crate) fn open(kind: Kind, place: &Place, options: &EngineOptions) -> Result<Box<dyn Backend>> {
    match kind {
        Kind::Model => Ok(Box::new(model::Model::open(place)?)),
        Kind::Pleach => Ok(Box::new(pleach::PleachBackend::open(place, options)?)),
        #[cfg(feature = "peer-nomt")]
        Kind::Nomt => Ok(Box::new(nomt::NomtBackend::open(place, options)?)),
        #[cfg(not(feature = "peer-nomt"))]
        Kind::Nomt => Err(missing(kind.name(), "peer-nomt")),
    }
}

/// Offline findings in a closed database; empty where the engine has no checker.
pub(crate) fn check(kind: Kind, folder: &Path) -> Result<Vec<String>> {
    match kind {
        Kind::Pleach => pleach::check(folder),
        _ => Ok(Vec::new()),
    }
}

/// Has the engine an offline checker?
pub(crate) const fn has_checker(kind: Kind) -> bool {
    matches!(kind, Kind::Pleach)
}

/// Batches done according to the record of roots beside a database that keeps no blob.
#[cfg(feature = "peer-nomt")]
fn batches_by_root(place: &Place, root: &Root) -> Result<u64> {
    let record = Batches::read(&place.roots)?;
    record.number_of(root).ok_or_else(|| {
        let text =
            format!("its root {} is that of no batch of the stream", crate::account::hex(root));
        BenchError::Wrong(text)
    })
}
