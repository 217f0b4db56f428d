//! The binary `nomt-bench`, which measures Pleach and its peers. This library has one function for it, [`nomt_bench`]; all
//! the rest is private. `--help` lists the flags. `docs/workloads.md` in the repository says what is drawn, run,
//! checked and measured.
//!
//! # `nomt-bench`
//!
//! | subcommand | does |
//! |---|---|
//! | `init` | loads 2^N accounts |
//! | `transfer` | transfers between accounts: the headline workload |
//! | `soak` | the same for some minutes, with accounts that close and sessions that stay open |
//! | `recover` | kills a running transfer again and again, and checks what reopens |
//! | `device` | measures the device alone, without a database |
//! | `hash`, `proof`, `auth`, `grind` | single parts, beside what does the same |
//! | `overlay`, `threshold`, `flatten` | blocks that stay in memory |
//! | `erc20` | token transfers over accounts and contracts |
//! | `bank` | transfers between named accounts, with a log of them, on several stores |
//! | `import` | a bulk load of a stream, under a limit of memory |
//! | `history` | an index of the blocks at which keys have changed |
//! | `compare` | many of these, on all backends of a build: one JSON, one page |
//!
//! Every result is checked, or the command fails: all balances (or a sample of them) against a replay
//! of the draws, every root against that of the other backends, and witnesses against the reads and
//! writes of their batch.
//!
//! # How a run flows
//!
//! ```text
//! parent   args       the command line
//!            │
//!          command    init, transfer, soak, recover
//!            ├─ setting          checks the flags against each other and the machine; home: the folder
//!            ├─ prepare ───────────┐  load job, if the folder has no database that fits
//!            ├─ one_by_one ────────┤  run job; with --alternate: in_turns
//!            ├─ verify ────────────┤  check job; then compares the roots of all backends
//!            │                     │
//!            │                   child::spawn: a process per job, messages through its pipes
//!            │                     │
//! child      │                   child          load, run, check, inspect
//!            │                     ├─ draws     the batches of a stream
//!            │                     ├─ workload  what a batch computes; the replay of all batches
//!            │                     └─ backend   the engine under test
//!            │
//! parent   outcome    what came back
//!            │
//!          report     tables, JSON, a page with plots
//! ```
//!
//! Each job has a process of its own, so that memory and I/O of the backends do not mix, and so that
//! `recover` has something to kill.
//!
//! Below all of these: `measure` (latencies), `machine` (what the operating system counts), `interrupt`
//! (Ctrl-C), `output` and `progress` (what is printed), `text` (how numbers are printed), `account`
//! (keys and balances as bytes) and `error` (with exit codes). `device` needs no child and no backend, nor do the workloads of single
//! parts, in `parts`; `stores` are the engines of those that need no witness, `trees` are states with a root (or, over
//! `stores`, without), block by block.
//!
//! `compare` runs the other subcommands, each as a process: the module `compare` knows which, and keeps what they
//! found.

mod account;
mod args;
mod backend;
mod child;
mod command;
mod compare;
mod device;
mod draws;
mod error;
mod home;
mod interrupt;
mod machine;
mod measure;
mod outcome;
mod output;
mod parts;
mod progress;
mod report;
#[cfg(any(feature = "peer-rocksdb", feature = "peer-sp-trie", feature = "peer-jmt"))]
mod rocks;
mod setting;
mod stores;
mod text;
mod trees;
mod versions;
mod workload;

use std::process::ExitCode;

use args::{BenchCli, BenchCommand};
use error::BenchError;

/// The binary `nomt-bench`: measures Pleach and its peers.
pub fn nomt_bench() -> ExitCode {
    let cli = match args::parse::<BenchCli>() {
        Ok(cli) => cli,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(error)) => return output::report("nomt-bench", &error),
    };
    if let Err(error) = child::tied::tie() {
        return output::report("nomt-bench", &error);
    }
    if matches!(cli.command, BenchCommand::Child) {
        return child::main();
    }
    if let BenchCommand::Become { words } = &cli.command {
        return output::report("nomt-bench", &child::tied::become_other(words));
    }
    if let BenchCommand::Load(job) = &cli.command {
        return match parts::import::load(job) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => output::report("nomt-bench", &error),
        };
    }
    let outcome = interrupt::listen().and_then(|()| match cli.command {
        BenchCommand::Init(args) => command::init::init(args),
        BenchCommand::Transfer(args) => command::transfer::transfer(args),
        BenchCommand::Soak(args) => command::soak::soak(args),
        BenchCommand::Recover(args) => command::recover::recover(args),
        BenchCommand::Device(args) => command::device::device(&args),
        BenchCommand::Hash(args) => command::parts::hash(&args),
        BenchCommand::Proof(args) => command::parts::proof(&args),
        BenchCommand::Auth(args) => command::parts::auth(&args),
        BenchCommand::Grind(args) => command::parts::grind(&args),
        BenchCommand::Overlay(args) => command::parts::overlay(&args),
        BenchCommand::Threshold(args) => command::parts::threshold(&args),
        BenchCommand::Flatten(args) => command::parts::flatten(&args),
        BenchCommand::Erc20(args) => command::parts::erc20(&args),
        BenchCommand::Bank(args) => command::parts::bank(&args),
        BenchCommand::Import(args) => command::parts::import(&args),
        BenchCommand::History(args) => command::parts::history(&args),
        BenchCommand::Load(_) | BenchCommand::Child | BenchCommand::Become { .. } => {
            Err(BenchError::Usage("this subcommand is internal".to_owned()))
        }
        BenchCommand::Compare(args) => command::compare::compare(&args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report("nomt-bench", &error),
    }
}
