//! The workloads: each is a function that runs in an engine's child from its first line to its last.
//!
//! * [`transfer`], [`block`], [`soak`], [`recover`]: what a node does, batch after batch, with a clock ([`meter`]);
//! * [`bank`], [`history`]: transactions of plain stores; [`overlay`], [`threshold`], [`flatten`], [`erc20`]: blocks in
//!   memory and committed ones, over accounts and contracts ([`ledger`]);
//! * [`import`], [`auth`], [`proof`]: single parts.

pub mod auth;
pub mod bank;
pub mod block;
pub mod erc20;
pub mod flatten;
pub mod history;
pub mod import;
mod ledger;
mod maintenance;
mod meter;
mod numbers;
pub mod overlay;
pub mod proof;
pub mod recover;
mod replay;
pub mod soak;
mod stream;
pub mod threshold;
pub mod transfer;

use std::sync::atomic::{AtomicBool, Ordering};

use clap::Subcommand;
use pleach::Value;
use pleach_core::Key;
use rayon::slice::ParallelSliceMut as _;
use serde::{Deserialize, Serialize};

use crate::draw::Draws;
use crate::engine::{Engine, EngineKind, PlainKey};
use crate::error::Result;
use crate::flags::{Durability, Flags};
use crate::job_context::{JobContext, JobStage};

/// The workloads.
#[derive(Clone, Debug, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Loads 2^N accounts of balance 1000 into --dir
    Init(transfer::InitArgs),
    /// Transfers between accounts: the headline workload
    Transfer(transfer::TransferArgs),
    /// What a node does: mainnet blocks of 60 M gas
    Block(block::BlockArgs),
    /// For some minutes: transfers, new and closed accounts, open sessions; figures must stay level
    Soak(soak::SoakArgs),
    /// Kills a running transfer with SIGKILL again and again, reopens the database and checks it
    Recover(recover::RecoverArgs),
    /// Transfers between named accounts with a log of them, in transactions
    Bank(bank::BankArgs),
    /// The root of a block over a committed state that stays in memory
    Overlay(overlay::OverlayArgs),
    /// Executed blocks stay in memory, and are committed when enough are over them
    Threshold(threshold::ThresholdArgs),
    /// Blocks in memory that become one commit
    Flatten(flatten::FlattenArgs),
    /// Token transfers over accounts and contracts
    Erc20(erc20::Erc20Args),
    /// A bulk load of a stream under a limit of memory
    Import(import::ImportArgs),
    /// An authenticated state beside plain maps and a rolling digest
    Auth(auth::AuthArgs),
    /// An index of the blocks at which keys have changed
    History(history::HistoryArgs),
    /// Path proofs, multiproofs, witnesses and ranges: made and verified
    Proof(proof::ProofArgs),
}

impl Workload {
    /// The workload's name on the command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Init(_) => "init",
            Self::Transfer(_) => "transfer",
            Self::Block(_) => "block",
            Self::Soak(_) => "soak",
            Self::Recover(_) => "recover",
            Self::Bank(_) => "bank",
            Self::Overlay(_) => "overlay",
            Self::Threshold(_) => "threshold",
            Self::Flatten(_) => "flatten",
            Self::Erc20(_) => "erc20",
            Self::Import(_) => "import",
            Self::Auth(_) => "auth",
            Self::History(_) => "history",
            Self::Proof(_) => "proof",
        }
    }
}

/// How a workload is run.
pub struct WorkPlan {
    pub stages: &'static [JobStage],
    /// Where `--durability` is not said.
    pub durability: Durability,
    /// Rounds or batches of a turn, where `--alternate` is not said; 0: one engine after the other.
    pub alternate: u64,
    /// Databases of `--dir` stay, and are used again.
    pub reuses: bool,
    /// Keys that a database will have, about.
    pub keys: u64,
    /// Writes of keys in all.
    pub writes: u64,
    /// Which engines can, and why not.
    pub runs: fn(EngineKind) -> core::result::Result<(), &'static str>,
}

impl WorkPlan {
    /// Rounds in turns, on databases that are made anew.
    pub const ROUNDS: Self = Self {
        stages: &[JobStage::Run],
        durability: Durability::Commit,
        alternate: 1,
        reuses: false,
        keys: 0,
        writes: 0,
        runs: |_| Ok(()),
    };
}

/// Only engines with a root.
fn merkle(kind: EngineKind) -> core::result::Result<(), &'static str> {
    if kind.caps().merkle { Ok(()) } else { Err("it has no root") }
}

/// Only engines with a root, whose blocks stay in memory.
fn overlays(kind: EngineKind) -> core::result::Result<(), &'static str> {
    merkle(kind)?;
    if kind.caps().overlays { Ok(()) } else { Err("it has no blocks over each other") }
}

/// Only this project's.
fn ours(kind: EngineKind) -> core::result::Result<(), &'static str> {
    if kind == EngineKind::Pleach { Ok(()) } else { Err("it is about what only pleach has") }
}

/// How a workload is run; refuses arguments that do not fit each other.
pub fn plan(work: &Workload, flags: &Flags) -> Result<WorkPlan> {
    match work {
        Workload::Init(args) => args.plan(flags),
        Workload::Transfer(args) => args.plan(),
        Workload::Block(args) => args.plan(),
        Workload::Soak(args) => args.plan(flags),
        Workload::Recover(args) => Ok(args.plan(flags)),
        Workload::Bank(args) => Ok(args.plan()),
        Workload::Overlay(args) => args.plan(),
        Workload::Threshold(args) => args.plan(),
        Workload::Flatten(args) => args.plan(),
        Workload::Erc20(args) => Ok(args.plan()),
        Workload::Import(args) => args.plan(flags),
        Workload::Auth(args) => Ok(args.plan()),
        Workload::History(args) => Ok(args.plan()),
        Workload::Proof(args) => args.plan(),
    }
}

/// Runs a workload, in the child.
pub fn run(work: &Workload, side: &mut JobContext) -> Result<()> {
    match work {
        Workload::Init(args) => transfer::load(args.accounts(), side),
        Workload::Transfer(args) => transfer::run(args, side),
        Workload::Block(args) => block::run(args, side),
        Workload::Soak(args) => soak::run(args, side),
        Workload::Recover(args) => recover::run(args, side),
        Workload::Bank(args) => bank::run(args, side),
        Workload::Overlay(args) => overlay::run(args, side),
        Workload::Threshold(args) => threshold::run(args, side),
        Workload::Flatten(args) => flatten::run(args, side),
        Workload::Erc20(args) => erc20::run(args, side),
        Workload::Import(args) => import::run(args, side),
        Workload::Auth(args) => auth::run(args, side),
        Workload::History(args) => history::run(args, side),
        Workload::Proof(args) => proof::run(args, side),
    }
}

/// Loads keys, each with what its value is made of. Engines whose load does not sort by itself get them in their order,
/// so that a page is written once or twice.
fn load_keys<T: Ord + Send>(
    engine: &mut dyn Engine,
    kind: EngineKind,
    keys: impl Iterator<Item = (Key, T)>,
    value: impl Fn(T) -> Value,
) -> Result<()> {
    let pair = |(key, what): (Key, T)| (PlainKey::from(key), value(what));
    if matches!(kind, EngineKind::Pleach | EngineKind::PleachPlain) {
        return engine.load(&mut keys.map(pair));
    }
    let mut keys: Vec<(Key, T)> = keys.collect();
    keys.par_sort_unstable();
    engine.load(&mut keys.into_iter().map(pair))
}

/// The generator of a round of a workload that has rounds.
fn draws(seed: u64, round: u64) -> Draws {
    Draws::new(seed, b"pleach-bench parts    v1", round)
}

/// Tells other threads to stop when it goes: also after an error or a panic, since a scope waits for them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
