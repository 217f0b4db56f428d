//! What a subcommand runs with: its flags, checked against each other and against the machine, its
//! backends and its folder.

mod needs;

use crate::args::values::{Count, Switch};
use crate::args::{Common, TransferArgs, named};
use crate::backend::sizing::Demand;
use crate::backend::{self, EngineOptions, Kind};
use crate::child::{Job, Spec};
use crate::draws::Stream;
use crate::error::{BenchError, Result};
use crate::home::Home;
use crate::{machine, output};

/// What all subcommands that open a database share.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) common: Common,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) home: Home,
    pub(crate) stream: Stream,
    pub(crate) options: EngineOptions,
    /// Batches per turn, if the backends take turns.
    pub(crate) alternate: Option<u32>,
}

/// What a subcommand adds to the common flags.
#[derive(Debug)]
pub(crate) struct Extra {
    pub(crate) stream: Stream,
    pub(crate) witness: Switch,
    pub(crate) prefetch: Switch,
    pub(crate) overlay_window: u32,
    pub(crate) ahead: bool,
    /// For sizing: the number of batches after which the number of accounts is largest.
    pub(crate) batches: u64,
    /// For sizing: the number of batches that are run, or the largest possible if it is not known.
    pub(crate) written: u64,
    /// Batches per turn, if the backends take turns.
    pub(crate) alternate: Option<u32>,
    /// Are the phases of each batch recorded?
    pub(crate) timed: bool,
}

impl Extra {
    /// What `transfer` adds.
    pub(crate) fn of_transfer(args: &TransferArgs) -> Self {
        let fixed = |count, auto| if let Count::Fixed(fixed) = count { fixed } else { auto };
        let batches = fixed(args.warmup, 100) + fixed(args.batches, 400);
        Self {
            stream: args.stream.of(args.common.seed),
            witness: args.stream.witness,
            prefetch: args.stream.prefetch,
            overlay_window: args.overlay_window,
            ahead: args.ahead,
            batches,
            written: batches,
            alternate: args.alternate,
            timed: !args.cores.is_empty(),
        }
    }

    /// What engines are opened with, and what a run does to them.
    fn options(&self, common: &Common) -> Result<(EngineOptions, Demand)> {
        let initial = 1u64 << common.log2;
        let grown = self.stream.live_before(initial, self.batches);
        let options = EngineOptions {
            durability: common.durability,
            witness: self.witness,
            prefetch: self.prefetch,
            cache_mib: common.cache_mib,
            threads: common.threads.map_or_else(machine::cores, usize::from),
            in_flight: common.in_flight,
            io: common.io,
            trie_cache_kib: common.trie_cache_kib,
            load_mib: common.load_mib,
            log_limit_mib: common.log_limit_mib,
            history: common.history,
            history_mib: common.history_mib,
            overlay_window: self.overlay_window,
            ahead: self.ahead,
            timed: self.timed,
            peer_args: peer_args(&common.peer_arg)?,
            // At least a quarter more than are loaded, for runs that continue later.
            expected_accounts: grown.max(initial + initial / 4),
        };
        let accesses = self.written.saturating_mul(2 * u64::from(self.stream.batch));
        Ok((options, Demand { accounts: grown, accesses }))
    }
}

fn kinds(common: &Common) -> Result<Vec<Kind>> {
    named::each_once("--backend", &common.backend, Kind::parse)
}

/// Bytes that `transfer` asks for on the device of its folder before it starts.
pub(crate) fn transfer_disk(args: &TransferArgs) -> Result<u64> {
    let (options, demand) = Extra::of_transfer(args).options(&args.common)?;
    Ok(needs::disk(&kinds(&args.common)?, &options, &demand))
}

impl Setting {
    /// Checks the flags against each other and the machine, and makes the folder.
    pub(crate) fn new(common: Common, extra: &Extra) -> Result<Self> {
        output::check_file(common.json.as_deref())?;
        let kinds = kinds(&common)?;
        let (options, demand) = extra.options(&common)?;
        backend::check_settings(&kinds, &options)?;
        if options.ahead && !options.prefetch.0 {
            let text =
                "--ahead announces keys, and --prefetch off announces none: leave one of them out";
            return Err(BenchError::Usage(text.to_owned()));
        }
        if extra.alternate.is_some() {
            check_sides(kinds.len())?;
        }
        needs::check(&common, &kinds, &options, &demand, extra.alternate.is_some())?;
        let home = Home::new(common.dir.as_deref(), common.keep)?;
        let (stream, alternate) = (extra.stream, extra.alternate);
        Ok(Self { common, kinds, home, stream, options, alternate })
    }

    /// The description of a job for a backend.
    pub(crate) fn spec(&self, kind: Kind, job: Job) -> Spec {
        Spec {
            job,
            backend: kind,
            place: self.home.place(kind),
            log2: self.common.log2,
            stream: self.stream,
            options: self.options.clone(),
        }
    }
}

fn peer_args(args: &[String]) -> Result<Vec<(String, String)>> {
    // Each peer says what it knows; of one that has no settings, or is not built, nothing is.
    let known = |name: &str| ["nomt", "pleach", "sp-trie", "jmt"].contains(&name);
    args.iter()
        .map(|arg| match arg.split_once('=') {
            Some((name, value)) if name.split_once('.').is_some_and(|(peer, _)| known(peer)) => {
                Ok((name.to_owned(), value.to_owned()))
            }
            _ => Err(BenchError::Usage(format!(
                "--peer-arg {arg}: say PEER.NAME=VALUE, such as nomt.readers=16"
            ))),
        })
        .collect()
}

/// Refuses `--alternate` with a single backend.
fn check_sides(backends: usize) -> Result<()> {
    if backends > 1 {
        return Ok(());
    }
    let text = "--alternate takes turns between backends: name two or more with --backend";
    Err(BenchError::Usage(text.to_owned()))
}
