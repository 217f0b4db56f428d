//! `transfer`: batches of transfers between accounts, the headline workload; `init` loads their accounts.
//!
//! Invariant: a batch depends on the stream's parameters and its number alone, so that a run goes on where another
//! stopped without replaying anything.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::time::Instant;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use pleach_core::node::value_hash;
use pleach_core::{Blake3, Key, ValueHash};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::meter::{Meter, Phases};
use super::replay::Replay;
use super::{Plan, merkle};
use crate::cli::{Count, Flags, count, count_or_auto, switch};
use crate::draw::{BALANCE, Distribution, Draws, Sampler, account_key, number};
use crate::engine::pleach::value;
use crate::engine::{Access, Engine, Kind, Name, Op, Root, Witness};
use crate::error::{Error, Result, usage, wrong};
use crate::job::{Side, Stage};
use crate::machine;
use crate::measure::{Figure, Unit, float, from_hex, grouped, hex};

/// Name and version of the draws: the last 24 bytes of the generator's key.
const DOMAIN: &[u8; 24] = b"pleach-bench transfer v1";
const SOAK: &[u8; 24] = b"pleach-bench soak     v1";
/// `--batches auto`: fewest and most batches, and the checkpoints that it waits for.
const AUTO_BATCHES: (u64, u64, u64) = (40, 4000, 3);
/// `--warmup auto`: fewest and most batches.
const AUTO_WARMUP: (u64, u64) = (8, 1000);

/// `nomt-bench init`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct InitArgs {
    /// Number of accounts, as a power of two
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u32>(1..=32))]
    log2: u32,
}

/// The stream of transfers.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct StreamArgs {
    /// Number of accounts at the start, as a power of two
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u32>(1..=32))]
    pub log2: u32,
    /// Transfers of a batch; a batch is one commit
    #[arg(long, default_value_t = 25_000, value_parser = count::<u32>(1..=10_000_000))]
    pub batch: u32,
    /// Percent of a batch's receivers that are new accounts
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = count::<u32>(0..=100))]
    pub fresh: u32,
    /// How accounts are drawn: uniform, zipf:S or pareto
    #[arg(long, default_value = "uniform")]
    pub distribution: Distribution,
    /// Announce a batch's keys before reading them
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch, action = clap::ArgAction::Set)]
    pub prefetch: bool,
    /// Prove every read and write of a batch
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch, action = clap::ArgAction::Set)]
    pub witness: bool,
    /// Verify one witness in K
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = count::<u64>(1..=u64::MAX))]
    pub verify_every: u64,
}

/// `nomt-bench transfer`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct TransferArgs {
    #[command(flatten)]
    pub stream: StreamArgs,
    /// Batches to measure; auto: until three checkpoints have passed, but at least 40
    #[arg(long, value_name = "N|auto", default_value = "40", value_parser = count_or_auto)]
    batches: Count,
    /// Batches before the clock starts; auto: until the number of pending entries is steady
    #[arg(long, value_name = "N|auto", default_value = "4", value_parser = count_or_auto)]
    warmup: Count,
    /// Keep the newest K batches uncommitted and commit those that are older
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = count::<u64>(0..=4096))]
    overlay_window: u64,
    /// Announce the next batch's keys before a batch is finished, to engines that can take them
    #[arg(long)]
    ahead: bool,
}

impl InitArgs {
    pub const fn accounts(&self) -> u64 {
        1 << self.log2
    }

    pub fn plan(&self, flags: &Flags) -> Result<Plan> {
        if flags.dir.is_none() && !flags.keep {
            return usage("init would remove what it loads: add --dir DIR or --keep");
        }
        Ok(Plan {
            stages: &[Stage::Load],
            alternate: 0,
            reuses: true,
            keys: self.accounts(),
            runs: merkle,
            ..Plan::ROUNDS
        })
    }
}

impl TransferArgs {
    pub fn plan(&self) -> Result<Plan> {
        if self.batches == Count::Fixed(0) {
            return usage("--batches 0 measures nothing: say 1 or more");
        }
        if self.ahead && !self.stream.prefetch {
            return usage("--ahead announces keys, and --prefetch off none: leave one of them out");
        }
        let fixed = |count, auto| if let Count::Fixed(fixed) = count { fixed } else { auto };
        let batches = fixed(self.warmup, 100) + fixed(self.batches, 400);
        Ok(self.stream.plan(batches))
    }
}

/// Only engines that make what others are measured with; the oracle makes none, and is measured by nobody.
pub fn witnessed(kind: Kind) -> core::result::Result<(), &'static str> {
    merkle(kind)?;
    if kind.caps().witness || kind == Kind::Model {
        return Ok(());
    }
    Err("it makes no witness: say --witness off")
}

impl StreamArgs {
    /// The plan of so many batches.
    pub fn plan(&self, batches: u64) -> Plan {
        let stream = self.stream(0);
        let initial = 1_u64 << self.log2;
        Plan {
            stages: &[Stage::Load, Stage::Run, Stage::Check],
            alternate: 0,
            reuses: true,
            // At least a quarter more than are loaded, for runs that go on later.
            keys: stream.accounts_before(initial, batches).max(initial + initial / 4),
            writes: batches.saturating_mul(2 * u64::from(self.batch)),
            runs: if self.witness { witnessed } else { merkle },
            ..Plan::ROUNDS
        }
    }

    /// The stream that these flags describe.
    pub const fn stream(&self, seed: u64) -> Stream {
        let Self { log2, batch, fresh, distribution, .. } = *self;
        Stream { seed, initial: 1 << log2, batch, fresh, distribution, closing: None }
    }
}

/// All that determines a stream of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    pub seed: u64,
    /// Accounts that are loaded.
    pub initial: u64,
    pub batch: u32,
    pub fresh: u32,
    pub distribution: Distribution,
    /// Of a soak alone.
    pub closing: Option<Closing>,
}

/// How accounts close: each moves its whole balance to another one and is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// Loaded accounts that close in a batch, as a percentage of its transfers.
    pub deletes: u32,
    /// New accounts close this many batches later.
    pub life: u32,
}

impl Stream {
    /// New accounts of a batch.
    pub fn fresh_per_batch(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.fresh) / 100
    }

    /// Account ids given out before batch `number`, when `initial` were loaded.
    pub fn accounts_before(&self, initial: u64, number: u64) -> u64 {
        initial + number.saturating_mul(self.fresh_per_batch())
    }

    /// The batch whose new accounts close for good in batch `number`.
    pub fn closes_with(&self, number: u64) -> Option<u64> {
        number.checked_sub(u64::from(self.closing?.life))
    }

    /// Draws batch `number`, from 0. Senders and old receivers are of the accounts that were loaded, so that hardly any
    /// transfer is from an empty account; new ones are not used again.
    pub fn batch(&self, number: u64) -> Batch {
        let initial = self.initial;
        let first_new = self.accounts_before(initial, number);
        let sampler = Sampler::new(self.distribution, initial);
        let domain = if self.closing.is_some() { SOAK } else { DOMAIN };
        let mut draws = Draws::new(self.seed, domain, number);
        let count = u64::from(self.batch);
        let old = count - self.fresh_per_batch();
        let mut batch = Batch::default();
        // Nobody pays themselves: the next account is taken, without another draw.
        let other =
            |drawn: u64, than: u64| if drawn == than { (drawn + 1) % initial } else { drawn };
        for index in 0..count {
            let sender = sampler.draw(&mut draws);
            let receiver = if index < old {
                other(sampler.draw(&mut draws), sender)
            } else {
                first_new + (index - old)
            };
            let pair = (batch.slot(sender), batch.slot(receiver));
            batch.transfers.push(pair);
        }
        let mut close = |closed: u64, heir: u64| {
            let pair = (batch.slot(closed), batch.slot(heir));
            batch.closes.push(pair);
        };
        if let Some(closing) = self.closing {
            for _ in 0..count * u64::from(closing.deletes) / 100 {
                let closed = sampler.draw(&mut draws);
                close(closed, other(sampler.draw(&mut draws), closed));
            }
        }
        if let Some(old) = self.closes_with(number) {
            let first = self.accounts_before(initial, old);
            for id in first..first + self.fresh_per_batch() {
                close(id, sampler.draw(&mut draws));
            }
        }
        batch
    }
}

/// A drawn batch: transfers between slots, and the account of each slot.
#[derive(Debug, Default)]
pub struct Batch {
    /// Distinct accounts in the order of their first use.
    pub accounts: Vec<u64>,
    /// Sender's and receiver's index in `accounts`.
    pub transfers: Vec<(usize, usize)>,
    /// In order, after the transfers: an account that closes, and the one that gets its balance.
    pub closes: Vec<(usize, usize)>,
    slots: HashMap<u64, usize>,
}

impl Batch {
    fn slot(&mut self, account: u64) -> usize {
        match self.slots.entry(account) {
            Entry::Occupied(slot) => *slot.get(),
            Entry::Vacant(free) => {
                self.accounts.push(account);
                *free.insert(self.accounts.len() - 1)
            }
        }
    }

    /// Runs it on the balances that were read, one for each account; an absent one has nothing.
    pub fn apply(&self, seen: &[Option<u64>]) -> Result<Applied> {
        let mut balances = seen.to_vec();
        let mut touched = vec![false; seen.len()];
        let mut add = |balances: &mut [Option<u64>], to: usize, amount: u64| {
            let Some(sum) = balances[to].unwrap_or(0).checked_add(amount) else {
                return wrong(format!("account {} would hold 2^64", self.accounts[to]));
            };
            balances[to] = Some(sum);
            touched[to] = true;
            Ok(())
        };
        let mut applied = Applied::default();
        for &(from, to) in &self.transfers {
            let Some(left) = balances[from].and_then(|balance| balance.checked_sub(1)) else {
                applied.empty += 1;
                continue;
            };
            balances[from] = Some(left);
            add(&mut balances, from, 0)?;
            add(&mut balances, to, 1)?;
            applied.moved += 1;
        }
        for &(account, heir) in &self.closes {
            // Closing an account that is not there does nothing.
            let Some(left) = balances[account] else { continue };
            add(&mut balances, account, 0)?;
            balances[account] = None;
            applied.closed += 1;
            if left > 0 {
                add(&mut balances, heir, left)?;
            }
        }
        applied.changes = balances
            .into_iter()
            .zip(touched)
            .map(|(balance, touched)| touched.then_some(balance))
            .collect();
        Ok(applied)
    }
}

/// What was moved is not lost: the sum of the balances is what it was.
fn conserved(seen: &[Option<u64>], changes: &[Option<Option<u64>>]) -> Result<()> {
    let (mut before, mut after) = (0_u128, 0_u128);
    for (seen, change) in seen.iter().zip(changes) {
        before += u128::from(seen.unwrap_or(0));
        after += u128::from(change.unwrap_or(*seen).unwrap_or(0));
    }
    if before == after {
        return Ok(());
    }
    wrong(format!("a batch turned a sum of {before} into {after}"))
}

/// What a batch comes to.
#[derive(Debug, Default)]
pub struct Applied {
    /// Of each account: nothing if it was only read, else its new balance, or none if it was closed.
    pub changes: Vec<Option<Option<u64>>>,
    /// Transfers that moved 1.
    pub moved: u64,
    /// Transfers from an empty account, which moved nothing.
    pub empty: u64,
    /// Accounts that were there and were closed.
    pub closed: u64,
}

/// The load stage of all workloads over accounts.
pub fn load(accounts: u64, side: &mut Side) -> Result<()> {
    let parameters = json!({ "accounts": accounts });
    if side.find_loaded(&parameters)? {
        return side.note("its database was loaded by a run before");
    }
    side.note_loaded(&parameters, false)?;
    let mut engine = side.open(accounts + accounts / 4, false)?;
    let start = Instant::now();
    let mut failed = None;
    let mut pairs = (0..accounts).map_while(|id| {
        if id % 1024 == 0
            && let Err(error) = side.progress(id, accounts)
        {
            failed = Some(error);
            return None;
        }
        Some((Name::from(account_key(id)), value(BALANCE)))
    });
    engine.load(&mut pairs)?;
    failed.map_or(Ok(()), Err)?;
    let root = engine.root();
    engine.close()?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(root) = root {
        Roots::open(side)?.append(0, &root)?;
    }
    side.check_root("root after 0 batches", root.as_ref())?;
    side.figure(Figure::one("load", "accounts", Unit::PerSecond, float(accounts) / seconds))?;
    side.figure(Figure::one(
        "load",
        "peak resident memory",
        Unit::Bytes,
        float(machine::peak_rss()),
    ))?;
    let files = machine::folder_bytes(&side.folder);
    side.figure(Figure::one("load", "size of the files", Unit::Bytes, float(files)))?;
    side.note_loaded(&parameters, true)
}

/// The record of roots beside a database: a line `NUMBER ROOT` a batch, appended before the batch is committed. Engines
/// without room for a number learn from it how many batches their root stands for, after a kill as well.
pub struct Roots(std::fs::File);

impl Roots {
    pub fn open(side: &Side) -> Result<Self> {
        let path = side.beside(".roots");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        file.map(Self).map_err(Error::file(&path))
    }

    pub fn append(&mut self, number: u64, root: &Root) -> Result<()> {
        // One call a line, so that a kill leaves whole lines; the first newline ends one that it left incomplete.
        let written = self.0.write_all(format!("\n{number} {}\n", hex(root)).as_bytes());
        written.map_err(|error| Error::Failed(format!("the record of roots: {error}")))
    }

    /// All of a database: the root of each number.
    pub fn read(side: &Side) -> Result<BTreeMap<u64, Root>> {
        let path = side.beside(".roots");
        let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
        let line = |line: &str| {
            let (number, root) = line.split_once(' ')?;
            Some((number.parse().ok()?, from_hex(root)?.try_into().ok()?))
        };
        Ok(text.lines().filter_map(line).collect())
    }
}

/// Batches that a database contains.
pub fn batches_done(engine: &dyn Engine, side: &Side) -> Result<u64> {
    if let Some(number) = engine.marked()? {
        return Ok(number);
    }
    let root = engine.root().unwrap_or_default();
    let roots = Roots::read(side)?;
    let found = roots.iter().rev().find(|entry| *entry.1 == root).map(|entry| *entry.0);
    found.ok_or_else(|| Error::Wrong(format!("its root {} is that of no batch", hex(&root))))
}

/// The database was run with this stream before, or with none.
pub fn same_stream(side: &Side, stream: &impl Serialize) -> Result<()> {
    let path = side.beside(".stream");
    let ours = serde_json::to_string(stream).map_err(|error| Error::Failed(error.to_string()))?;
    match std::fs::read_to_string(&path) {
        Ok(theirs) if theirs == ours => return Ok(()),
        Ok(theirs) => {
            return usage(format!(
                "{} has batches of another stream, {theirs}: use that, another --dir, or --reset",
                side.folder.display()
            ));
        }
        Err(_) => {}
    }
    std::fs::write(&path, ours).map_err(Error::file(&path))
}

/// The workload.
pub fn run(args: &TransferArgs, side: &mut Side) -> Result<()> {
    let stream = args.stream.stream(side.flags.seed);
    match side.stage {
        Stage::Load => load(stream.initial, side),
        Stage::Check => check(&stream, side),
        Stage::Run => {
            let keys = args.plan()?.keys;
            let mut runner = Runner::open(&args.stream, stream, keys, side)?;
            runner.overlays = args.overlay_window;
            runner.ahead = args.ahead;
            runner.warm_up(args.warmup, side)?;
            let mut meter = Meter::new(&mut *runner.engine, side);
            let checkpoints =
                |meter: &Meter, engine: &dyn Engine| meter.counted(engine, "checkpoints");
            let wanted = side.decided("batches");
            while side.turn()? {
                runner.batch(Some(&mut meter), side)?;
                meter.hand_over(&mut *runner.engine, side)?;
                let done = meter.batches();
                let enough = match (args.batches, wanted) {
                    (Count::Fixed(count), _) | (Count::Auto, Some(count)) => done >= count,
                    (Count::Auto, None) => {
                        let (fewest, most, wanted) = AUTO_BATCHES;
                        let seen = checkpoints(&meter, &*runner.engine);
                        // An engine that counts none stops at the fewest.
                        let enough = done >= fewest && seen.is_none_or(|seen| seen >= wanted);
                        side.may_decide() && (enough || done >= most)
                    }
                };
                if let Count::Fixed(count) = args.batches {
                    side.progress(done, count)?;
                } else {
                    side.progress(done, 0)?;
                }
                if enough {
                    break;
                }
            }
            if side.decided("batches").is_none() {
                side.decide("batches", meter.batches())?;
            }
            runner.end(meter, "transfers", side).map(drop)
        }
    }
}

/// Runs batch after batch.
pub struct Runner {
    pub engine: Box<dyn Engine>,
    stream: Stream,
    prefetch: bool,
    witness: bool,
    verify_every: u64,
    /// Batches that stay uncommitted.
    pub overlays: u64,
    /// Keys of the next batch are announced.
    ahead: bool,
    waiting: u64,
    /// Of those, batches before the clock.
    before: u64,
    /// The number of the next batch.
    pub next: u64,
    /// It, where it was announced.
    drawn: Option<(Batch, Vec<Key>)>,
    root: Root,
    roots: Roots,
    pub moved: u64,
    pub empty: u64,
    pub closed: u64,
    witnesses: u64,
    witness_bytes: u64,
    verified: u64,
    /// Before a commit begins and once it is acknowledged, the parent is told.
    pub tells: bool,
}

impl Runner {
    /// Opens the database that was loaded, with background work paused.
    pub fn open(args: &StreamArgs, stream: Stream, keys: u64, side: &Side) -> Result<Self> {
        same_stream(side, &stream)?;
        let from = Instant::now();
        let mut engine = side.open(keys, args.witness)?;
        side.figure(Figure::one("open", "open", Unit::Ms, from.elapsed().as_secs_f64() * 1000.0))?;
        let next = batches_done(&*engine, side)?;
        let Some(root) = engine.root() else {
            return usage("transfers are for engines with a root");
        };
        engine.pause(true);
        Ok(Self {
            engine,
            stream,
            prefetch: args.prefetch,
            witness: args.witness && side.kind.caps().witness,
            verify_every: args.verify_every,
            overlays: 0,
            ahead: false,
            waiting: 0,
            before: 0,
            next,
            drawn: None,
            root,
            roots: Roots::open(side)?,
            moved: 0,
            empty: 0,
            closed: 0,
            witnesses: 0,
            witness_bytes: 0,
            verified: 0,
            tells: false,
        })
    }

    /// Batches before the clock.
    pub fn warm_up(&mut self, warmup: Count, side: &mut Side) -> Result<()> {
        let wanted = side.decided("warm-up");
        let mut levels = Vec::new();
        loop {
            let done = levels.len() as u64;
            let enough = match (warmup, wanted) {
                (Count::Fixed(count), _) | (Count::Auto, Some(count)) => done >= count,
                (Count::Auto, None) => {
                    done >= AUTO_WARMUP.1 || (done >= AUTO_WARMUP.0 && is_steady(&levels))
                }
            };
            if enough || crate::signals::asked() {
                break;
            }
            self.batch(None, side)?;
            levels.push(self.engine.pending());
            side.progress(done + 1, 0)?;
        }
        if wanted.is_none() {
            side.decide("warm-up", levels.len() as u64)?;
        }
        (self.moved, self.empty, self.closed) = (0, 0, 0);
        self.before = self.waiting;
        if side.kind.caps().works_on {
            // What was due before belongs to no batch that is measured.
            self.engine.drain(0)?;
        }
        Ok(())
    }

    /// Draws, runs and verifies the next batch.
    pub fn batch(&mut self, meter: Option<&mut Meter>, side: &Side) -> Result<()> {
        let number_of = self.next;
        let draw = |stream: &Stream, number| {
            let batch = stream.batch(number);
            let keys: Vec<Key> = batch.accounts.iter().map(|id| account_key(*id)).collect();
            (batch, keys)
        };
        let (batch, keys) = self.drawn.take().unwrap_or_else(|| draw(&self.stream, number_of));
        let next = self.ahead.then(|| draw(&self.stream, number_of + 1));

        let mut meter = meter;
        let engine = &mut *self.engine;
        match &mut meter {
            Some(meter) => meter.go(engine),
            None => engine.pause(false),
        }
        let start = Instant::now();
        engine.begin(self.witness)?;
        if self.prefetch {
            engine.announce(0, &keys)?;
        }
        let seen = numbers(engine, 0, &keys)?;
        let applied = batch.apply(&seen)?;
        if let Some((_, keys)) = &next {
            engine.announce(0, keys)?;
        }
        let executed = Instant::now();
        let accesses = keys.iter().zip(&applied.changes).map(|(key, change)| Access {
            space: 0,
            key: *key,
            op: change.map_or(Op::Read, |new| Op::ReadWrite(new.map(value))),
        });
        engine.mark(number_of + 1);
        let witness = engine.finish(accesses.collect())?;
        let finished = Instant::now();
        let Some(root) = engine.root() else { return wrong("a block has no root") };
        self.roots.append(number_of + 1, &root)?;
        if self.tells {
            side.committing(number_of + 1, &root)?;
        }
        let committing = Instant::now();
        self.waiting += 1;
        while self.waiting > self.overlays {
            engine.commit()?;
            self.waiting -= 1;
        }
        let committed = Instant::now();
        let phases = Phases {
            execute: executed - start,
            finish: finished - executed,
            commit: committed - committing,
        };
        match &mut meter {
            Some(meter) => meter.halt(engine),
            None => engine.pause(true),
        }
        if self.tells {
            side.committed(number_of + 1)?;
        }
        conserved(&seen, &applied.changes)?;
        let measured = meter.is_some();
        if let Some(meter) = meter {
            meter.record(&phases, applied.moved + applied.empty, keys.len() as u64);
        }
        self.moved += applied.moved;
        self.empty += applied.empty;
        self.closed += applied.closed;
        if let Some(witness) = witness {
            let verify = number_of.is_multiple_of(self.verify_every);
            if measured {
                self.witnesses += 1;
                self.witness_bytes += witness.bytes();
                self.verified += u64::from(verify);
            }
            if verify {
                let claims = Claims { keys: &keys, seen: &seen, changes: &applied.changes };
                let holds = claims.hold(&*witness, &self.root, &root);
                holds
                    .map_err(|why| Error::Wrong(format!("batch {number_of}: its witness {why}")))?;
            }
        }
        self.root = root;
        self.next += 1;
        self.drawn = next;
        Ok(())
    }

    /// Drains, gives all figures, and closes. Gives the batches that the database has.
    pub fn end(mut self, meter: Meter, what: &str, side: &Side) -> Result<u64> {
        let batches = meter.batches();
        if batches == 0 {
            return self.engine.close().map(|()| self.next);
        }
        meter.end(&mut *self.engine, side, self.waiting - self.before, what)?;
        // As many as were waiting before the clock.
        for _ in 0..self.before {
            self.engine.commit()?;
        }
        if self.engine.root() != Some(self.root) {
            return wrong("the last root is not the last batch's");
        }
        if self.moved == 0 {
            side.note("NOTHING WAS MOVED: all transfers were from empty accounts")?;
        }
        side.note(format!(
            "{} transfers moved something, {} were from empty accounts; {} accounts closed",
            grouped(self.moved),
            grouped(self.empty),
            grouped(self.closed)
        ))?;
        if self.witnesses > 0 {
            if self.witnesses != batches {
                return wrong(format!("{batches} batches gave {} witnesses", self.witnesses));
            }
            let bytes = float(self.witness_bytes) / float(self.witnesses);
            side.figure(Figure::one("", "bytes of a witness", Unit::Bytes, bytes))?;
            side.note(format!(
                "{} of {} witnesses verified, read by read",
                self.verified, self.witnesses
            ))?;
        } else if self.witness {
            return wrong("no batch gave a witness");
        }
        let from = Instant::now();
        self.engine.close()?;
        side.figure(Figure::one("open", "close", Unit::Ms, from.elapsed().as_secs_f64() * 1000.0))?;
        for (number, root) in Roots::read(side)? {
            side.check_root(format!("root after {number} batches"), Some(&root))?;
        }
        Ok(self.next)
    }
}

/// The numbers that keys have as values, as the block that was begun reads them.
pub fn numbers(engine: &mut dyn Engine, space: u8, keys: &[Key]) -> Result<Vec<Option<u64>>> {
    let mut seen = vec![None; keys.len()];
    let mut failed = None;
    engine.read(space, keys, &mut |at, found| match found.map(number).transpose() {
        Ok(balance) => seen[at] = balance,
        Err(error) => failed = Some(error),
    })?;
    failed.map_or(Ok(seen), Err)
}

/// Has the number of pending entries stopped growing? It has if the averages over the last four batches and over the
/// four before them differ by less than a twentieth.
fn is_steady(levels: &[u64]) -> bool {
    let Some(recent) = levels.last_chunk::<8>() else { return false };
    let (old, new) = (recent[..4].iter().sum::<u64>(), recent[4..].iter().sum::<u64>());
    old.abs_diff(new) <= old.max(new) / 20
}

/// What the witness of a batch must prove, no more and no less.
struct Claims<'a> {
    keys: &'a [Key],
    seen: &'a [Option<u64>],
    changes: &'a [Option<Option<u64>>],
}

impl Claims<'_> {
    /// All processors work on it: the clock stands still, and so does the engine.
    fn hold(
        &self,
        witness: &dyn Witness,
        before: &Root,
        after: &Root,
    ) -> core::result::Result<(), String> {
        let hash = |balance: u64| value_hash::<Blake3>(&balance.to_le_bytes());
        let reads = || -> Vec<_> { self.seen.iter().map(|seen| Some(seen.map(hash))).collect() };
        let writes =
            || -> Vec<_> { self.changes.iter().map(|new| new.map(|new| new.map(hash))).collect() };
        let (proven, (reads, writes)) = rayon::join(
            || witness.verify(before),
            || rayon::join(|| self.of(&reads()), || self.of(&writes())),
        );
        let mut proven = proven?;
        if proven.root != *after {
            return Err("leads to another root".to_owned());
        }
        proven.reads.sort_unstable();
        proven.writes.sort_unstable();
        if proven.reads != reads {
            return Err("proves other reads than were made".to_owned());
        }
        if proven.writes == writes {
            Ok(())
        } else {
            Err("proves other writes than were made".to_owned())
        }
    }

    fn of(&self, hashes: &[Option<Option<ValueHash>>]) -> Vec<(Key, Option<ValueHash>)> {
        let some = self.keys.iter().zip(hashes).filter_map(|(key, hash)| Some((*key, (*hash)?)));
        let mut some: Vec<_> = some.collect();
        some.sort_unstable();
        some
    }
}

/// Up to this many accounts all are read back; of more, a sample of so many.
const ALL: u64 = 1 << 22;
const SAMPLE: u64 = 1 << 17;
const CHUNK: usize = 16_384;

/// Reads balances back and compares them with the replay of all batches.
pub fn check(stream: &Stream, side: &mut Side) -> Result<()> {
    let initial = stream.initial;
    let mut engine = side.open(initial + initial / 4, false)?;
    let batches = batches_done(&*engine, side)?;
    let ids = stream.accounts_before(initial, batches);
    let mut replay = Replay::new(initial)?;
    for number in 0..batches {
        replay.step(stream, number)?;
        side.progress(number + 1, batches)?;
    }
    let expected = replay.sum()?;
    let all = ids <= ALL;
    let list: VecDeque<u64> = if all {
        (0..ids).collect()
    } else {
        // Half is drawn from all accounts, half from those of the last batch.
        let mut draws = Draws::new(stream.seed, b"pleach-bench sample   v1", batches);
        let recent =
            batches.checked_sub(1).map_or_else(Vec::new, |last| stream.batch(last).accounts);
        let one = |index: u64| match recent.get(draws.index(recent.len().max(1))) {
            Some(id) if index.is_multiple_of(2) => *id,
            _ => draws.below(ids),
        };
        (0..SAMPLE).map(one).collect()
    };
    let list: Vec<u64> = list.into();
    let mut sum = 0;
    engine.begin(false)?;
    for ids in list.chunks(CHUNK) {
        let keys: Vec<Key> = ids.iter().map(|id| account_key(*id)).collect();
        let found = numbers(&mut *engine, 0, &keys)?;
        for (id, found) in ids.iter().zip(found) {
            let expected = replay.balance(*id);
            if found != expected {
                return wrong(format!(
                    "account {id} holds {found:?}, and should hold {expected:?}"
                ));
            }
            sum += found.unwrap_or(0);
        }
    }
    engine.discard()?;
    engine.close()?;
    if all && sum != expected {
        return wrong(format!("balances sum to {sum}, {expected} were loaded"));
    }
    side.note(format!(
        "after {batches} batches {} balances are those of a replay{}",
        grouped(list.len() as u64),
        if all {
            format!(", all of them; their sum is {}", grouped(sum))
        } else {
            ", a sample".to_owned()
        }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(batch: u32, fresh: u32, distribution: &str, closing: Option<Closing>) -> Stream {
        let distribution = distribution.parse().expect("a distribution");
        Stream { seed: 1, initial: 64, batch, fresh, distribution, closing }
    }

    #[test]
    fn batches_have_new_receivers_last_and_no_transfer_to_oneself() {
        let stream = Stream { initial: 2, ..stream(101, 25, "pareto", None) };
        for number in 0..5 {
            let batch = stream.batch(number);
            assert_eq!(batch.transfers.len(), 101);
            for (index, &(sender, receiver)) in batch.transfers.iter().enumerate() {
                assert_ne!(sender, receiver);
                assert!(batch.accounts[sender] < 2);
                match index.checked_sub(76) {
                    Some(new) => assert_eq!(batch.accounts[receiver], 2 + number * 25 + new as u64),
                    None => assert!(batch.accounts[receiver] < 2),
                }
            }
        }
    }

    #[test]
    fn new_accounts_close_once_after_their_life() {
        let stream = stream(100, 20, "uniform", Some(Closing { deletes: 10, life: 3 }));
        for number in 0..8 {
            let batch = stream.batch(number);
            let closed: Vec<u64> = batch.closes.iter().map(|pair| batch.accounts[pair.0]).collect();
            assert!(
                batch.closes.iter().all(|pair| pair.0 != pair.1 && batch.accounts[pair.1] < 64)
            );
            let (loaded, new): (Vec<u64>, Vec<u64>) = closed.into_iter().partition(|id| *id < 64);
            assert_eq!(loaded.len(), 10);
            let first = 64 + number.saturating_sub(3) * 20;
            let expected = if number < 3 { first..first } else { first..first + 20 };
            assert_eq!(new, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn closing_moves_all_and_a_later_credit_brings_the_account_back() {
        // 0 pays 1, which closes in favour of 2; 2 closes in favour of 3, which was absent; 4 is absent and closes; 3
        // closes in favour of 1, which is there again.
        let batch = Batch {
            accounts: vec![10, 11, 12, 13, 14],
            transfers: vec![(0, 1)],
            closes: vec![(1, 2), (2, 3), (4, 0), (3, 1)],
            ..Batch::default()
        };
        let applied = batch.apply(&[Some(5), Some(7), Some(0), None, None]).expect("conserved");
        assert_eq!(applied.changes, [Some(Some(4)), Some(Some(8)), Some(None), Some(None), None]);
        assert_eq!((applied.moved, applied.empty, applied.closed), (1, 0, 3));
    }
}
