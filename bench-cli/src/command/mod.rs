//! The subcommands of `nomt-bench`, in the parent process.

mod alternate;
pub(crate) mod device;
pub(crate) mod init;
pub(crate) mod recover;
pub(crate) mod soak;
pub(crate) mod transfer;

use std::path::Path;

use crate::args::Common;
use crate::args::values::Switch;
use crate::backend::sizing::{self, Demand};
use crate::backend::{self, EngineOptions, Kind};
use crate::child::spawn::{run_job, unexpected};
use crate::child::{Event, Job, LoadResult, Spec};
use crate::draws::Stream;
use crate::error::{BenchError, Result};
use crate::home::Home;
use crate::machine;
use crate::output;
use crate::progress::Progress;
use crate::workload::replay::Replay;

/// What all subcommands that open a database share.
pub(crate) struct Setting {
    pub(crate) common: Common,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) home: Home,
    pub(crate) stream: Stream,
    pub(crate) options: EngineOptions,
    /// Batches a turn, when the backends take turns.
    pub(crate) alternate: Option<u32>,
}

/// What a subcommand adds to the common flags.
pub(crate) struct Extra {
    pub(crate) stream: Stream,
    pub(crate) witness: Switch,
    pub(crate) prefetch: Switch,
    pub(crate) overlay_window: u32,
    /// Batches after which no more accounts live at the same time, for sizing.
    pub(crate) batches: u64,
    /// Batches that are run, for sizing; all that a database can grow by when it is not known.
    pub(crate) written: u64,
    /// Batches a turn, when the backends take turns.
    pub(crate) alternate: Option<u32>,
}

impl Setting {
    /// Checks the flags against each other and the machine, and makes the folder.
    pub(crate) fn new(common: Common, extra: &Extra) -> Result<Self> {
        check_output(common.json.as_deref())?;
        let mut kinds = Vec::new();
        for name in &common.backend {
            let kind = Kind::parse(name)?;
            if kinds.contains(&kind) {
                return Err(BenchError::Usage(format!("--backend names {name} twice")));
            }
            kinds.push(kind);
        }
        let initial = 1u64 << common.log2;
        let grown = extra.stream.live_before(initial, extra.batches);
        let options = EngineOptions {
            durability: common.durability,
            witness: extra.witness,
            prefetch: extra.prefetch,
            cache_mib: common.cache_mib,
            threads: common.threads.map_or_else(machine::cores, usize::from),
            in_flight: common.in_flight,
            io: common.io,
            trie_cache_kib: common.trie_cache_kib,
            load_mib: common.load_mib,
            log_limit_mib: common.log_limit_mib,
            overlay_window: extra.overlay_window,
            peer_args: peer_args(&common.peer_arg)?,
            // A quarter more than will be there, for runs that go on later.
            expected_accounts: grown.max(initial + initial / 4),
        };
        backend::check_settings(&kinds, &options)?;
        if extra.alternate.is_some() {
            alternate::check_sides(kinds.len())?;
        }
        let demand = Demand {
            accounts: grown,
            accesses: extra.written.saturating_mul(2 * u64::from(extra.stream.batch)),
        };
        check_needs(&common, &kinds, &options, &demand, extra.alternate.is_some())?;
        let home = Home::new(common.dir.as_deref(), common.keep)?;
        let (stream, alternate) = (extra.stream, extra.alternate);
        Ok(Self { common, kinds, home, stream, options, alternate })
    }

    /// A job of a backend.
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

    /// Loads a backend's database unless a fitting one is there; tells whether it loaded.
    pub(crate) fn ensure_loaded(
        &self,
        kind: Kind,
        stream: Option<&Stream>,
    ) -> Result<(LoadResult, bool)> {
        let found = self.home.find(kind, self.common.log2, stream, self.common.reset)?;
        if let Some(parameters) = found
            && let Some(loaded) = parameters.loaded
        {
            let stream = stream.or(parameters.stream.as_ref());
            self.home.write(kind, self.common.log2, Some(&loaded), stream)?;
            return Ok((loaded, false));
        }
        self.home.write(kind, self.common.log2, None, stream)?;
        let spec = self.spec(kind, Job::Load);
        let bar = Progress::new(self.common.quiet, &format!("{} load", kind.name()), "accounts");
        let Event::Loaded(loaded) = run_job(&spec, |event| bar.hear(event))? else {
            return Err(unexpected(&spec));
        };
        self.home.write(kind, self.common.log2, Some(&loaded), stream)?;
        Ok((loaded, true))
    }
}

/// Refuses a file that could not be made, before the hours that it would hold.
pub(crate) fn check_output(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        let text = format!("{} cannot be written: name a file in a folder", path.display());
        return Err(BenchError::Usage(text));
    }
    Ok(())
}

fn peer_args(args: &[String]) -> Result<Vec<(String, String)>> {
    let known = |name: &str| ["nomt", "pleach"].contains(&name);
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

/// Empties the system's page cache; says why not, when it could not.
fn drop_caches() -> bool {
    machine::drop_caches().inspect_err(|why| output::say(&format!("nomt-bench: {why}"))).is_ok()
}

/// Refuses what cannot fit, with the need stated; `together`: all backends are open at once.
fn check_needs(
    common: &Common,
    kinds: &[Kind],
    options: &EngineOptions,
    demand: &Demand,
    together: bool,
) -> Result<()> {
    let needs = kinds.iter().map(|&kind| sizing::need(kind, options, demand));
    let checking = Replay::memory(options.expected_accounts);
    let each = needs.clone().map(|need| need.memory);
    let running = if together { each.sum() } else { each.max().unwrap_or(0) };
    let memory = running.max(checking);
    let disk: u64 = needs.map(|need| need.disk).sum();
    if let Some(free) = machine::free_memory()
        && memory > free
    {
        return Err(BenchError::Usage(format!(
            "this needs about {} of memory and {} are free: lower --cache-mib or --log2",
            gib(memory),
            gib(free)
        )));
    }
    let temporary = std::env::temp_dir();
    let folder = common.dir.as_deref().unwrap_or(&temporary);
    // What is there already does not need its room again.
    let present: u64 = common.dir.as_deref().map_or(0, |dir| {
        kinds.iter().map(|kind| machine::folder_bytes(&dir.join(kind.name()))).sum()
    });
    if let Some(free) = machine::free_disk(folder)
        && disk.saturating_sub(present) > free
    {
        return Err(BenchError::Usage(format!(
            "this needs about {} in {} and {} are free: name a larger device with --dir or lower --log2",
            gib(disk),
            folder.display(),
            gib(free)
        )));
    }
    Ok(())
}

/// Bytes as GiB.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", crate::measure::float(bytes) / f64::from(1 << 30))
}
