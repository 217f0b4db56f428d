//! `soak`: for some minutes, transfers with new accounts, accounts that close and sessions that stay open. It is checked
//! as `transfer` is, and its figures must stay level.

use std::collections::VecDeque;

use pleach::{Key, Session, Value};
use serde::{Deserialize, Serialize};

use super::WorkPlan;
use super::maintenance::Maintenance;
use super::meter::Meter;
use super::stream::{Closing, Stream};
use super::transfer::{Runner, StreamArgs, check, load};
use crate::draw::account_key;
use crate::error::{Result, of_engine, usage, wrong};
use crate::flags::{Count, Flags, count, count_or_auto};
use crate::job_context::{JobContext, JobStage};
use crate::measure::{Unit, float};

/// A session reads accounts that the next batches change: those of this many batches, at most this many of each.
const BATCHES: u64 = 4;
const KEYS: usize = 512;
/// How far a figure may move from the second quarter of a run to its last.
const LEVEL: f64 = 1.25;

/// `nomt-bench soak`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct SoakArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// How long it runs, verification included
    #[arg(long, value_name = "M", default_value_t = 10.0)]
    minutes: f64,
    /// Run this many batches, however long they take
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = count::<u64>(1..=10_000_000))]
    batches: Option<u64>,
    /// Loaded accounts that close in each batch, as a percentage of its transfers
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = count::<u32>(0..=100))]
    deletes: u32,
    /// Number of batches after which new accounts close
    #[arg(long, value_name = "BATCHES", default_value_t = 16, value_parser = count::<u32>(1..=1_000_000))]
    life: u32,
    /// Sessions of pleach that are held open while batches run
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = count::<u32>(0..=1024))]
    sessions: u32,
    /// Number of batches that each session stays open for
    #[arg(long, value_name = "BATCHES", default_value_t = 16, value_parser = count::<u32>(1..=1_000_000))]
    session_batches: u32,
    /// Batches before the clock starts; auto: until the number of pending entries is steady
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = count_or_auto)]
    warmup: Count,
    /// Scrub the newest state of pleach and make a verified backup, by turns, which needs as much room again
    #[arg(long)]
    maintenance: bool,
    /// Exit 1 when a figure does not stay level
    #[arg(long)]
    require_level: bool,
}

impl SoakArgs {
    pub fn plan(&self, flags: &Flags) -> Result<WorkPlan> {
        if !(0.001..=100_000.0).contains(&self.minutes) {
            return usage("--minutes are from 0.001 to 100000");
        }
        if self.maintenance && !flags.backend.iter().any(|name| name.starts_with("pleach")) {
            return usage("--maintenance is of pleach alone: add it to --backend, or leave it out");
        }
        let (needed, budget) = (self.undo_mib(flags), flags.cache_mib);
        let ours = flags.backend.iter().any(|name| name == "pleach");
        if ours && self.sessions > 0 && flags.undo_memory_mib.is_none() && needed * 2 > budget {
            return usage(format!(
                "sessions of {} batches need up to {needed} MiB of undo, which is more than half of --cache-mib {budget}: \
                 raise it to {}, or lower --batch or --session-batches, or say --sessions 0",
                self.session_batches,
                2 * needed
            ));
        }
        // After this many batches the number of accounts does not grow any more.
        let batches = u64::from(self.life) + 1;
        Ok(WorkPlan { writes: 1 << 30, ..self.stream.plan(batches) })
    }

    fn stream(&self, seed: u64) -> Stream {
        let closing = Some(Closing { deletes: self.deletes, life: self.life });
        Stream { closing, ..self.stream.stream(seed) }
    }

    /// The most that changes of so many batches take in undo, in MiB: as docs/memory.md has it, plus a quarter. An
    /// engine of less memory would forget what its sessions read, which ends the run.
    fn undo_mib(&self, flags: &Flags) -> u64 {
        let (batch, fresh) = (u64::from(self.stream.batch), u64::from(self.stream.fresh));
        // Both sides of a transfer; an account that closes, and its heir.
        let changes = 2 * batch + 2 * (batch * (u64::from(self.deletes) + fresh) / 100);
        // The oldest session ends after a commit of its last batch.
        let commits = u64::from(self.session_batches) + 1;
        let accounts =
            (1 << self.stream.log2) + batch * fresh / 100 * (u64::from(self.life) + commits + 1);
        let versions = changes.min(accounts) * commits;
        // With a history the nodes that changed are kept, too.
        let version = if flags.history > 0 { 32 + 56 + 2 * 32 } else { 32 };
        ((versions * version + versions.min(accounts) * 160) * 5 / 4).div_ceil(1 << 20)
    }
}

/// The workload.
pub fn run(args: &SoakArgs, side: &mut JobContext) -> Result<()> {
    let stream = args.stream(side.flags.seed);
    match side.stage {
        JobStage::Load => return load(stream.initial, side),
        JobStage::Check => return check(&stream, side),
        JobStage::Run => {}
    }
    let undo = args.undo_mib(&side.flags);
    // An eighth is the engine's own limit.
    if args.sessions > 0 && side.flags.undo_memory_mib.is_none() && undo * 8 > side.flags.cache_mib
    {
        side.flags.undo_memory_mib = Some(undo);
        side.note(format!(
            "undo may take {undo} MiB, for sessions of {} batches",
            args.session_batches
        ))?;
    }
    let keys = args.plan(&side.flags)?.keys;
    let mut runner = Runner::open(&args.stream, stream, keys, side)?;
    runner.warm_up(args.warmup, side)?;
    let mut held = OpenSessions::default();
    let mut maintenance = match runner.engine.as_pleach().filter(|_| args.maintenance) {
        Some(engine) => Some(Maintenance::start(&engine.db, side.beside(".copy"))?),
        None => None,
    };
    let meter = runner.measure(args.batches, side, |runner, meter| {
        if args.sessions > 0 {
            held.turn(args, &stream, runner)?;
        }
        if let Some(maintenance) = &mut maintenance {
            maintenance.committed(meter.last.finish + meter.last.commit)?;
        }
        Ok(meter.seconds() >= args.minutes * 60.0)
    })?;
    held.end_all()?;
    if let Some(maintenance) = maintenance {
        runner.engine.pause(false);
        maintenance.end(side)?;
        runner.engine.pause(true);
    }
    if held.ended > 0 {
        side.note(format!(
            "{} sessions of {} batches read {} old balances right",
            held.ended, args.session_batches, held.reads
        ))?;
    }
    let moved = levels(&meter, side)?;
    runner.end(meter, side)?;
    match moved {
        Some(what) if args.require_level => wrong(format!("not level: {what}")),
        Some(what) => side.note(format!("NOT LEVEL: {what}")),
        None => Ok(()),
    }
}

/// The last quarter of the run over its second one, of time, memory and files. Gives what has moved.
fn levels(meter: &Meter, side: &JobContext) -> Result<Option<String>> {
    let [seconds, batches, memory, files] = meter.columns();
    let quarter = seconds.len() / 4;
    if quarter == 0 {
        return side.note("fewer than four batches: nothing is said of levels").map(|()| None);
    }
    let median = |of: &[f64]| {
        let mut sorted = of.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let mut moved = None;
    for (name, column) in
        [("a batch", batches), ("resident memory", memory), ("size of the files", files)]
    {
        let (early, late) =
            (median(&column[quarter..2 * quarter]), median(&column[column.len() - quarter..]));
        let ratio = if early > 0.0 { late / early } else { 1.0 };
        side.value("last quarter / second", name, Unit::Ratio, ratio)?;
        if ratio > LEVEL && moved.is_none() {
            moved =
                Some(format!("{name} in the last quarter is {ratio:.2} times that of the second"));
        }
    }
    let batches = float(seconds.len() as u64);
    side.value("last quarter / second", "batches", Unit::Count, batches)?;
    Ok(moved)
}

/// Sessions that are held open, the oldest first. Until it ends, each must read what it read when it was opened.
#[derive(Default)]
struct OpenSessions {
    open: VecDeque<HeldSession>,
    ended: u64,
    reads: u64,
}

struct HeldSession {
    session: Session,
    /// Batches that its state has.
    opened: u64,
    keys: Vec<Key>,
    values: Vec<Option<Value>>,
}

impl HeldSession {
    fn is_the_same(&self) -> Result<()> {
        let values = self.session.read_many(&self.keys).map_err(of_engine("pleach"))?;
        if values == self.values {
            return Ok(());
        }
        wrong(format!(
            "the session that was opened after {} batches reads other balances now",
            self.opened
        ))
    }
}

impl OpenSessions {
    /// After a batch: sessions whose time is over read all again and end, and a new one may be opened.
    fn turn(&mut self, args: &SoakArgs, stream: &Stream, runner: &mut Runner) -> Result<()> {
        let batches = runner.next;
        let Some(engine) = runner.engine.as_pleach() else { return Ok(()) };
        let life = u64::from(args.session_batches);
        while self.open.front().is_some_and(|one| batches >= one.opened + life) {
            self.end_one()?;
        }
        let every = (life / u64::from(args.sessions)).max(1);
        if self.open.len() < args.sessions as usize && batches.is_multiple_of(every) {
            let session = engine.session(false)?;
            // Accounts that close come last.
            let some = |number| {
                let accounts = stream.batch(number).accounts;
                let last = accounts.len().saturating_sub(KEYS / 2);
                accounts
                    .iter()
                    .take(KEYS / 2)
                    .chain(&accounts[last..])
                    .copied()
                    .collect::<Vec<u64>>()
            };
            let mut keys: Vec<Key> =
                (batches..batches + BATCHES).flat_map(some).map(account_key).collect();
            keys.sort_unstable();
            keys.dedup();
            let values = session.read_many(&keys).map_err(of_engine("pleach"))?;
            self.open.push_back(HeldSession { session, opened: batches, keys, values });
        }
        Ok(())
    }

    fn end_one(&mut self) -> Result<()> {
        if let Some(one) = self.open.pop_front() {
            one.is_the_same()?;
            self.reads += one.keys.len() as u64;
            self.ended += 1;
        }
        Ok(())
    }

    fn end_all(&mut self) -> Result<()> {
        while !self.open.is_empty() {
            self.end_one()?;
        }
        Ok(())
    }
}
