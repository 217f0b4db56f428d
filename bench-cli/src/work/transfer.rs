//! `transfer`: batches of transfers between accounts, the headline workload; `init` loads their accounts.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Instant;

use pleach_core::hexadecimal::{from_hex, hex};
use pleach_core::node::value_hash;
use pleach_core::{Hasher, Key, ValueHash};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::meter::{Meter, Phases};
use super::replay::Replay;
use super::stream::{Stream, StreamBatch, conserved};
use super::{WorkPlan, load_keys, merkle};
use crate::draw::{BALANCE, Distribution, Draws, account_key, number};
use crate::engine::pleach::value;
use crate::engine::{Engine, EngineKind, EngineWitness, Op, Root, StateAccess};
use crate::error::{Error, Result, usage, wrong};
use crate::flags::{Count, Flags, count, count_or_auto, switch};
use crate::job_context::{JobContext, JobStage};
use crate::machine;
use crate::measure::{Unit, float, grouped};

/// `--batches auto`: fewest and most batches, and the checkpoints that it waits for.
const AUTO_BATCHES: (u64, u64, u64) = (40, 4000, 3);
/// `--warmup auto`: fewest and most batches.
const AUTO_WARMUP: (u64, u64) = (8, 1000);

/// Plain stores have no room for a number beside their pairs: the batches that are done are the balance of this account.
const BATCHES: u64 = u64::MAX;

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
    /// Batches before the clock starts; auto: until the number of pending entries is steady, at most 1,000
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = count_or_auto)]
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

    pub fn plan(&self, flags: &Flags) -> Result<WorkPlan> {
        if flags.dir.is_none() && !flags.keep {
            return usage("init would remove what it loads: add --dir DIR or --keep");
        }
        Ok(WorkPlan {
            stages: &[JobStage::Load],
            alternate: 0,
            reuses: true,
            keys: self.accounts(),
            runs: merkle,
            ..WorkPlan::ROUNDS
        })
    }
}

impl TransferArgs {
    pub fn plan(&self) -> Result<WorkPlan> {
        if self.batches == Count::Fixed(0) {
            return usage("--batches 0 measures nothing: say 1 or more");
        }
        if self.ahead && !self.stream.prefetch {
            return usage("--ahead announces keys, and --prefetch off none: leave one of them out");
        }
        let batches = fixed(self.warmup).unwrap_or(100) + fixed(self.batches).unwrap_or(400);
        Ok(self.stream.plan(batches))
    }
}

const fn fixed(count: Count) -> Option<u64> {
    if let Count::Fixed(count) = count { Some(count) } else { None }
}

/// Only engines that make what others are measured with; the oracle makes none, and is measured by nobody.
pub fn witnessed(kind: EngineKind) -> core::result::Result<(), &'static str> {
    merkle(kind)?;
    if kind.caps().witness || kind == EngineKind::Model {
        return Ok(());
    }
    Err("it makes no witness: say --witness off")
}

impl StreamArgs {
    /// The plan of so many batches.
    pub fn plan(&self, batches: u64) -> WorkPlan {
        let stream = self.stream(0);
        WorkPlan {
            stages: &[JobStage::Load, JobStage::Run, JobStage::Check],
            alternate: 0,
            reuses: true,
            // At least a quarter more than are loaded, for runs that go on later.
            keys: stream.accounts_before(batches).max(stream.initial + stream.initial / 4),
            writes: batches.saturating_mul(2 * u64::from(self.batch)),
            runs: if self.witness { witnessed } else { merkle },
            ..WorkPlan::ROUNDS
        }
    }

    /// The stream that these flags describe.
    pub const fn stream(&self, seed: u64) -> Stream {
        let Self { log2, batch, fresh, distribution, .. } = *self;
        Stream { seed, initial: 1 << log2, batch, fresh, distribution, closing: None }
    }
}

/// The load stage of all workloads over accounts.
pub fn load(accounts: u64, side: &mut JobContext) -> Result<()> {
    let room = accounts + accounts / 4;
    let parameters = json!({ "accounts": accounts });
    load_once(side, &parameters, room, ("accounts", accounts), |engine, side| {
        let (kind, mut told) = (side.kind, Ok(()));
        let keys = (0..accounts).map_while(|id| {
            if id % 1024 == 0 {
                told = side.progress(id, accounts);
            }
            told.is_ok().then(|| (account_key(id), ()))
        });
        load_keys(engine, kind, keys, |()| value(BALANCE))?;
        told?;
        let root = engine.root();
        if let Some(root) = &root {
            RootLog::open(side)?.append(0, root)?;
        }
        side.check_root("root after 0 batches", root.as_ref())
    })
}

/// Loads a database with room for `room` keys, unless an earlier run has, and reports how many of `what` a second.
pub fn load_once(
    side: &mut JobContext,
    parameters: &Value,
    room: u64,
    (what, count): (&str, u64),
    load: impl FnOnce(&mut dyn Engine, &mut JobContext) -> Result<()>,
) -> Result<()> {
    if side.find_loaded(parameters)? {
        return side.note("its database was loaded by a run before");
    }
    side.note_loaded(parameters, false)?;
    let mut engine = side.open(room)?;
    let start = Instant::now();
    load(&mut *engine, side)?;
    engine.close()?;
    let rate = float(count) / start.elapsed().as_secs_f64();
    side.value("load", what, Unit::PerSecond, rate)?;
    side.value("load", "peak resident memory", Unit::Bytes, float(machine::peak_rss()))?;
    let files = machine::folder_bytes(&side.folder);
    side.value("load", "size of the files", Unit::Bytes, float(files))?;
    side.note_loaded(parameters, true)
}

/// The record of roots beside a database: a line `NUMBER ROOT` a batch, appended before the batch is committed. Engines
/// without room for a number learn from it how many batches their root stands for, after a kill as well.
pub struct RootLog(std::fs::File);

impl RootLog {
    pub fn open(side: &JobContext) -> Result<Self> {
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
    pub fn read(side: &JobContext) -> Result<BTreeMap<u64, Root>> {
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
pub fn batches_done(engine: &mut dyn Engine, side: &JobContext) -> Result<u64> {
    if let Some(number) = engine.marked()? {
        return Ok(number);
    }
    let Some(root) = engine.root() else {
        engine.begin(false)?;
        let found = numbers(engine, 0, &[account_key(BATCHES)])?;
        engine.discard()?;
        return Ok(found[0].unwrap_or(0));
    };
    let roots = RootLog::read(side)?;
    let found = roots.iter().rev().find(|entry| *entry.1 == root).map(|entry| *entry.0);
    found.ok_or_else(|| Error::Wrong(format!("its root {} is that of no batch", hex(root))))
}

/// The database was run with this stream before, or with none.
pub fn same_stream(side: &JobContext, stream: &impl Serialize) -> Result<()> {
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
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::file(&path)(error)),
    }
    // Synced, and the names in the folder: `recover` may cut the power before anything else is.
    let written = std::fs::File::create(&path).and_then(|mut file| {
        file.write_all(ours.as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(path.parent().unwrap_or(&path))?.sync_all()
    });
    written.map_err(Error::file(&path))
}

/// The workload.
pub fn run(args: &TransferArgs, side: &mut JobContext) -> Result<()> {
    let stream = args.stream.stream(side.flags.seed);
    match side.stage {
        JobStage::Load => load(stream.initial, side),
        JobStage::Check => check(&stream, side),
        JobStage::Run => {
            let keys = args.plan()?.keys;
            let mut runner = Runner::open(&args.stream, stream, keys, side)?;
            runner.overlays = args.overlay_window;
            runner.ahead = args.ahead;
            runner.warm_up(args.warmup, side)?;
            let meter = runner.measure(fixed(args.batches), side, |runner, meter| {
                let (fewest, most, wanted) = AUTO_BATCHES;
                let (done, seen) = (meter.batches(), meter.counted(&*runner.engine, "checkpoints"));
                // An engine that counts none stops at the fewest.
                let enough = done >= fewest && seen.is_none_or(|seen| seen >= wanted);
                Ok(enough || done >= most)
            })?;
            runner.end(meter, side)
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
    drawn: Option<(StreamBatch, Vec<Key>)>,
    root: Root,
    roots: RootLog,
    moved: u64,
    empty: u64,
    closed: u64,
    witnesses: u64,
    witness_bytes: u64,
    verified: u64,
    /// Before a commit begins and once it is acknowledged, the parent is told.
    pub tells: bool,
}

impl Runner {
    /// Opens the database that was loaded, with background work paused.
    pub fn open(args: &StreamArgs, stream: Stream, keys: u64, side: &JobContext) -> Result<Self> {
        same_stream(side, &stream)?;
        let from = Instant::now();
        let mut engine = side.open(keys)?;
        side.value("open", "open", Unit::Ms, from.elapsed().as_secs_f64() * 1000.0)?;
        let next = batches_done(&mut *engine, side)?;
        let root = engine.root().unwrap_or_default();
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
            roots: RootLog::open(side)?,
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
    pub fn warm_up(&mut self, warmup: Count, side: &mut JobContext) -> Result<()> {
        let wanted = fixed(warmup).or(side.decided("warm-up"));
        let mut levels = Vec::new();
        loop {
            let done = levels.len() as u64;
            let is_steady = wanted.is_none() && done >= AUTO_WARMUP.0 && is_steady(&levels);
            let enough = is_steady || done >= wanted.unwrap_or(AUTO_WARMUP.1);
            if enough || crate::signals::is_stop_requested() {
                break;
            }
            self.batch(None, side)?;
            levels.push(self.engine.pending());
            side.progress(done + 1, 0)?;
        }
        if wanted.is_none() {
            side.decide("warm-up", levels.len() as u64)?;
            let (batches, level) =
                (levels.len(), if is_steady(&levels) { "was" } else { "was not" });
            side.note(format!(
                "{batches} batches before the clock; what they left buffered {level} level"
            ))?;
        }
        (self.moved, self.empty, self.closed) = (0, 0, 0);
        self.before = self.waiting;
        // What was due before belongs to no batch that is measured.
        side.settle(&mut *self.engine)
    }

    /// Batches on the clock: so many, or until the first engine says, at the end of a turn, that it is enough.
    pub fn measure(
        &mut self,
        wanted: Option<u64>,
        side: &mut JobContext,
        mut enough: impl FnMut(&mut Self, &Meter) -> Result<bool>,
    ) -> Result<Meter> {
        let wanted = wanted.or(side.decided("batches"));
        let mut meter = Meter::new(&mut *self.engine, side);
        while side.turn()? {
            self.batch(Some(&mut meter), side)?;
            let enough = enough(self, &meter)?;
            meter.hand_over(&mut *self.engine, side)?;
            let done = meter.batches();
            side.progress(done, wanted.unwrap_or(0))?;
            if wanted.map_or(side.can_decide() && enough, |wanted| done >= wanted) {
                break;
            }
        }
        if wanted.is_none() {
            side.decide("batches", meter.batches())?;
        }
        Ok(meter)
    }

    fn draw(&self, number: u64) -> (StreamBatch, Vec<Key>) {
        let batch = self.stream.batch(number);
        let keys = batch.accounts.iter().map(|id| account_key(*id)).collect();
        (batch, keys)
    }

    /// Draws, runs and verifies the next batch.
    pub fn batch(&mut self, mut meter: Option<&mut Meter>, side: &JobContext) -> Result<()> {
        let number = self.next;
        let (batch, keys) = self.drawn.take().unwrap_or_else(|| self.draw(number));
        self.drawn = self.ahead.then(|| self.draw(number + 1));

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
        if let Some((_, keys)) = &self.drawn {
            engine.announce(0, keys)?;
        }
        let executed = Instant::now();
        let accesses = keys.iter().zip(&applied.changes).map(|(key, change)| StateAccess {
            space: 0,
            key: *key,
            op: change.map_or(Op::Read, |new| Op::ReadWrite(new.map(value))),
        });
        let count = || StateAccess::write(account_key(BATCHES), value(number + 1));
        let accesses = accesses.chain((!side.kind.caps().merkle).then(count)).collect();
        engine.mark(number + 1);
        let witness = engine.finish(accesses)?;
        let finished = Instant::now();
        let root = engine.root().unwrap_or_default();
        self.roots.append(number + 1, &root)?;
        if self.tells {
            side.committing(number + 1, &root)?;
        }
        let committing = Instant::now();
        self.waiting += 1;
        while self.waiting > self.overlays {
            engine.commit()?;
            self.waiting -= 1;
        }
        let phases = Phases {
            execute: executed - start,
            finish: finished - executed,
            commit: committing.elapsed(),
        };
        match &mut meter {
            Some(meter) => meter.halt(engine),
            None => engine.pause(true),
        }
        if self.tells {
            side.committed(number + 1)?;
        }
        conserved(&seen, &applied.changes)?;
        self.moved += applied.moved;
        self.empty += applied.empty;
        self.closed += applied.closed;
        if let Some(witness) = witness {
            let claims = Claims { keys: &keys, seen: &seen, changes: &applied.changes };
            self.verify(&*witness, &claims, &root, meter.is_some())?;
        }
        if let Some(meter) = meter {
            meter.record(&phases, applied.moved + applied.empty, keys.len() as u64);
        }
        self.root = root;
        self.next += 1;
        Ok(())
    }

    /// Verifies the witness of the batch at hand, if it is one of those that are.
    fn verify(
        &mut self,
        witness: &dyn EngineWitness,
        claims: &Claims<'_>,
        root: &Root,
        measured: bool,
    ) -> Result<()> {
        let verify = self.next.is_multiple_of(self.verify_every);
        if measured {
            self.witnesses += 1;
            self.witness_bytes += witness.bytes();
            self.verified += u64::from(verify);
        }
        let holds = if verify { claims.hold(witness, &self.root, root) } else { Ok(()) };
        holds.map_err(|why| Error::Wrong(format!("batch {}: its witness {why}", self.next)))
    }

    /// Drains, gives all figures, and closes.
    pub fn end(mut self, meter: Meter, side: &JobContext) -> Result<()> {
        let batches = meter.batches();
        if batches == 0 {
            return self.engine.close();
        }
        meter.end(&mut *self.engine, side, self.waiting - self.before, "transfers")?;
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
            side.value("", "bytes of a witness", Unit::Bytes, bytes)?;
            side.note(format!(
                "{} of {} witnesses verified, read by read",
                self.verified, self.witnesses
            ))?;
        } else if self.witness {
            return wrong("no batch gave a witness");
        }
        let from = Instant::now();
        self.engine.close()?;
        side.value("open", "close", Unit::Ms, from.elapsed().as_secs_f64() * 1000.0)?;
        for (number, root) in RootLog::read(side)? {
            side.check_root(format!("root after {number} batches"), Some(&root))?;
        }
        Ok(())
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

/// True when the number of buffered entries no longer grows: its averages over the last four batches and over the four
/// before them differ by less than a twentieth.
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
        witness: &dyn EngineWitness,
        before: &Root,
        after: &Root,
    ) -> core::result::Result<(), String> {
        let hash = |balance: u64| value_hash(Hasher::BLAKE3, &balance.to_le_bytes());
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

/// Reads balances back from the database.
pub fn check(stream: &Stream, side: &mut JobContext) -> Result<()> {
    let mut engine = side.open(stream.initial + stream.initial / 4)?;
    let batches = batches_done(&mut *engine, side)?;
    read_back(stream, batches, &mut *engine, side)?;
    engine.close()
}

/// Reads balances back and compares them with the replay of so many batches.
pub fn read_back(
    stream: &Stream,
    batches: u64,
    engine: &mut dyn Engine,
    side: &mut JobContext,
) -> Result<()> {
    let mut replay = Replay::new(stream.initial)?;
    for number in 0..batches {
        replay.step(stream, number)?;
        side.progress(number + 1, batches)?;
    }
    let expected = replay.sum()?;
    let ids = stream.accounts_before(batches);
    let all = ids <= ALL;
    let list = if all { (0..ids).collect() } else { sample(stream, batches) };
    let mut sum = 0;
    engine.begin(false)?;
    for ids in list.chunks(CHUNK) {
        let keys: Vec<Key> = ids.iter().map(|id| account_key(*id)).collect();
        let found = numbers(engine, 0, &keys)?;
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
    if all && sum != expected {
        return wrong(format!("balances sum to {sum}, {expected} were loaded"));
    }
    let which = if all {
        format!("all of them; their sum is {}", grouped(sum))
    } else {
        "a sample".to_owned()
    };
    let count = grouped(list.len() as u64);
    side.note(format!("after {batches} batches {count} balances are those of a replay, {which}"))
}

/// Half is drawn from all accounts, half from those of the last batch.
fn sample(stream: &Stream, batches: u64) -> Vec<u64> {
    let mut draws = Draws::new(stream.seed, b"pleach-bench sample   v1", batches);
    let recent = batches.checked_sub(1).map_or_else(Vec::new, |last| stream.batch(last).accounts);
    let ids = stream.accounts_before(batches);
    let one = |index: u64| match recent.get(draws.index(recent.len().max(1))) {
        Some(id) if index.is_multiple_of(2) => *id,
        _ => draws.below(ids),
    };
    (0..SAMPLE).map(one).collect()
}
