//! `block`: what a node does. A mainnet block of 60 M gas reads and writes accounts and storage slots, and is one
//! durable commit. The shape (603 accounts and 700 slots written, 982 slots read) is that of the CC0 assets of the size
//! analysis of EIP-7928.
//!
//! In closed loop a block begins when the one before is committed. In open loop (`--rate`) it is due at a fixed time,
//! whether or not the engine is ready, and its latency counts from then: a slow block makes those behind it late, as it
//! does in a node.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use pleach::Value;
use pleach_core::{Hasher, Key};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::maintenance::Task;
use super::meter::{Meter, Phases};
use super::transfer::{load_once, same_stream, witnessed};
use super::{StopOnDrop, WorkPlan, load_keys};
use crate::draw::{Distribution, Draws, Sampler, account_key};
use crate::engine::{Engine, EngineKind, Op, PlainKey, StateAccess};
use crate::error::{Error, Result, usage, wrong};
use crate::flags::{count, switch};
use crate::job_context::{JobContext, JobStage};
use crate::measure::{Times, Unit, grouped};

const DOMAIN: &[u8; 24] = b"pleach-bench block    v1";

/// `nomt-bench block`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct BlockArgs {
    /// Number of accounts, and of slots, as a power of two
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u32>(4..=29))]
    log2: u32,
    /// Accounts that a block reads and writes
    #[arg(long, value_name = "N", default_value_t = 603, value_parser = count::<usize>(1..=1_000_000))]
    accounts: usize,
    /// Slots that it reads and writes
    #[arg(long, value_name = "N", default_value_t = 700, value_parser = count::<usize>(0..=1_000_000))]
    written: usize,
    /// Slots that it reads alone
    #[arg(long, value_name = "N", default_value_t = 982, value_parser = count::<usize>(0..=1_000_000))]
    read: usize,
    /// How accounts and slots are drawn: uniform, zipf:S or pareto
    #[arg(long, default_value = "zipf:0.99")]
    distribution: Distribution,
    /// Announce what a block touches before it is executed, as a block-level access list does
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch, action = clap::ArgAction::Set)]
    announce: bool,
    /// Prove every read and write of a block, where an engine can
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch, action = clap::ArgAction::Set)]
    witness: bool,
    /// Blocks of the closed loop
    #[arg(long, value_name = "B", default_value_t = 400, value_parser = count::<u64>(1..=100_000_000))]
    blocks: u64,
    /// Blocks before the clock starts
    #[arg(long, value_name = "B", default_value_t = 50, value_parser = count::<u64>(0..=100_000_000))]
    warmup: u64,
    /// Open loop: blocks a second
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Open loop: how long; of pleach so long alone, beside backups, and beside scrubs
    #[arg(long, value_name = "M", default_value_t = 1.0, requires = "rate")]
    minutes: f64,
}

impl BlockArgs {
    fn blocks(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked by the plan"
        )]
        let open = |rate: f64| (rate * self.minutes * 60.0) as u64;
        self.warmup + self.rate.map_or(self.blocks, open)
    }

    pub fn plan(&self) -> Result<WorkPlan> {
        let number = 1_usize << self.log2;
        if self.accounts > number / 2 || self.written + self.read > number / 2 {
            return usage(format!(
                "a block touches at most half of the {number} of --log2: raise it"
            ));
        }
        if self.rate.is_some_and(|rate| !(0.001..=100_000.0).contains(&rate)) {
            return usage("--rate is from 0.001 to 100000 blocks a second");
        }
        if matches!(self.distribution, Distribution::Zipf(exponent) if exponent > 1.5) {
            return usage(
                "what a block touches is drawn until it is distinct: zipf:S with S up to 1.5",
            );
        }
        if !(0.001..=100_000.0).contains(&self.minutes) {
            return usage("--minutes are from 0.001 to 100000");
        }
        Ok(WorkPlan {
            runs: if self.witness { witnessed } else { |_| Ok(()) },
            stages: &[JobStage::Load, JobStage::Run],
            alternate: 0,
            reuses: true,
            keys: 2 << self.log2,
            writes: self.blocks() * (self.accounts + self.written) as u64,
            ..WorkPlan::ROUNDS
        })
    }
}

/// Key of a slot.
fn slot_key(id: u64) -> Key {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_be_bytes());
    Hasher::BLAKE3.hash(&bytes)
}

/// The value of an account that block `number` has written, or 0: a nonce, a balance and a code hash, 72 bytes.
fn account_value(id: u64, number: u64) -> Value {
    let mut bytes = [0; 72];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes[32..40].copy_from_slice(&id.to_be_bytes());
    bytes[40..].copy_from_slice(&Hasher::BLAKE3.hash(&id.to_le_bytes()));
    Value::from(bytes.as_slice())
}

/// The value of a slot that block `number` has written, or 0: 32 bytes.
fn slot_value(id: u64, number: u64) -> Value {
    let mut bytes = [0; 32];
    bytes[16..24].copy_from_slice(&id.to_be_bytes());
    bytes[24..].copy_from_slice(&number.to_be_bytes());
    Value::from(bytes.as_slice())
}

/// The pairs of a space: key of an id, and its value after a block.
struct Space {
    key: fn(u64) -> Key,
    value: fn(u64, u64) -> Value,
}

const SPACES: [Space; 2] =
    [Space { key: account_key, value: account_value }, Space { key: slot_key, value: slot_value }];

/// The accounts of a block, and its slots, the written ones first; each once.
type DrawnBlock = [Vec<u64>; 2];

struct Blocks<'a> {
    args: &'a BlockArgs,
    seed: u64,
    sampler: Sampler,
    /// The block that has written each account or slot last.
    known: [HashMap<u64, u64>; 2],
    /// The number of the next block, from 1 on.
    next: u64,
}

fn distinct(count: usize, mut draw: impl FnMut() -> u64) -> Vec<u64> {
    let mut seen = HashSet::with_capacity(count);
    let mut list = Vec::with_capacity(count);
    while list.len() < count {
        let id = draw();
        if seen.insert(id) {
            list.push(id);
        }
    }
    list
}

fn last(known: &HashMap<u64, u64>, id: u64) -> u64 {
    known.get(&id).copied().unwrap_or(0)
}

impl Blocks<'_> {
    /// Draws block `number`: its accounts, then its slots; what was drawn already is drawn again.
    fn draw(&self, number: u64) -> DrawnBlock {
        let mut draws = Draws::new(self.seed, DOMAIN, number);
        let accounts = distinct(self.args.accounts, || self.sampler.draw(&mut draws));
        let slots = distinct(self.args.written + self.args.read, || self.sampler.draw(&mut draws));
        [accounts, slots]
    }

    fn note(&mut self, drawn: &DrawnBlock) {
        let number = self.next;
        let written = [&drawn[0][..], &drawn[1][..self.args.written]];
        for (known, ids) in self.known.iter_mut().zip(written) {
            known.extend(ids.iter().map(|id| (*id, number)));
        }
        self.next += 1;
    }

    /// Work outside of the clock: keys, the values that must be read, and those that are written.
    fn prepare(&self, drawn: &DrawnBlock) -> PreparedBlock {
        let mut ready = PreparedBlock::default();
        for (space, Space { key, value }) in (0_u8..).zip(SPACES) {
            let place = usize::from(space);
            for (at, id) in drawn[place].iter().enumerate() {
                let key = key(*id);
                let is_only_read = space == 1 && at >= self.args.written;
                let written = (!is_only_read).then(|| value(*id, self.next));
                let op = written.map_or(Op::Read, |value| Op::ReadWrite(Some(value)));
                ready.keys[place].push(key);
                ready.values[place].push(value(*id, last(&self.known[place], *id)));
                ready.accesses.push(StateAccess { space, key, op });
            }
        }
        ready
    }

    /// Runs a prepared block; returns its phases, and when it was committed.
    fn run(
        &mut self,
        engine: &mut dyn Engine,
        ready: PreparedBlock,
        witness: bool,
    ) -> Result<(Phases, Instant)> {
        let number = self.next;
        let start = Instant::now();
        engine.begin(witness)?;
        for (space, keys) in (0..).zip(&ready.keys) {
            if self.args.announce {
                engine.announce(space, keys)?;
            }
        }
        let mut right = 0;
        for (space, (keys, values)) in (0..).zip(ready.keys.iter().zip(&ready.values)) {
            engine.read(space, keys, &mut |at, found| {
                right += usize::from(found == Some(&*values[at]));
            })?;
        }
        if right != ready.accesses.len() {
            return wrong(format!("block {number}: {right} of its reads are right"));
        }
        let executed = Instant::now();
        engine.mark(number);
        let made = engine.finish(ready.accesses)?;
        let finished = Instant::now();
        engine.commit()?;
        let committed = Instant::now();
        if made.is_some() != witness {
            return wrong(format!("block {number}: a witness is missing, or was not asked for"));
        }
        let phases = Phases {
            execute: executed - start,
            finish: finished - executed,
            commit: committed - finished,
        };
        Ok((phases, committed))
    }
}

/// A block that is ready to run, space by space.
#[derive(Default)]
struct PreparedBlock {
    keys: [Vec<Key>; 2],
    values: [Vec<Value>; 2],
    accesses: Vec<StateAccess>,
}

/// The workload.
pub fn run(args: &BlockArgs, side: &mut JobContext) -> Result<()> {
    if side.stage == JobStage::Load {
        return load(args, side);
    }
    let number = 1_u64 << args.log2;
    let witness = args.witness && side.kind.caps().witness;
    if args.witness && !witness {
        side.note("it makes no witness")?;
    }
    let drawn = json!([side.flags.seed, args.accounts, args.written, args.read, args.distribution]);
    same_stream(side, &drawn)?;
    let mut engine = side.open(2 * number)?;
    let mut blocks = Blocks {
        args,
        seed: side.flags.seed,
        sampler: Sampler::new(args.distribution, number),
        known: Default::default(),
        next: 1,
    };
    // What blocks of a run before have written follows from their numbers.
    let beside = side.beside(".blocks");
    let noted = || std::fs::read_to_string(&beside).ok().and_then(|text| text.parse().ok());
    let cut = || Error::Usage("its last run was cut off: say --reset".to_owned());
    let done = match engine.marked()? {
        Some(done) => done,
        None if beside.exists() => noted().ok_or_else(cut)?,
        None => 0,
    };
    std::fs::write(&beside, "running").map_err(Error::file(&beside))?;
    for number in 1..=done {
        let drawn = blocks.draw(number);
        blocks.note(&drawn);
    }
    for at in 0..args.warmup {
        let drawn = blocks.draw(blocks.next);
        let ready = blocks.prepare(&drawn);
        blocks.run(&mut *engine, ready, witness)?;
        blocks.note(&drawn);
        side.progress(at, args.warmup)?;
    }
    // What the load has left belongs to no block.
    side.settle(&mut *engine)?;
    match args.rate {
        None => closed(args, side, &mut *engine, &mut blocks, witness)?,
        Some(rate) => open(args, side, &mut *engine, &mut blocks, (rate, witness))?,
    }
    verify(side, &mut *engine, &blocks)?;
    let number = (blocks.next - 1).to_string();
    engine.close()?;
    std::fs::write(&beside, number).map_err(Error::file(&beside))
}

/// A block begins when the one before is committed.
fn closed(
    args: &BlockArgs,
    side: &mut JobContext,
    engine: &mut dyn Engine,
    blocks: &mut Blocks<'_>,
    witness: bool,
) -> Result<()> {
    engine.pause(true);
    engine.drain(0)?;
    let mut meter = Meter::new(engine, side);
    let touched = (args.accounts + args.written + args.read) as u64;
    while meter.batches() < args.blocks && side.turn()? {
        let drawn = blocks.draw(blocks.next);
        let ready = blocks.prepare(&drawn);
        meter.go(engine);
        let (phases, _) = blocks.run(engine, ready, witness)?;
        meter.halt(engine);
        blocks.note(&drawn);
        meter.record(&phases, 1, touched);
        meter.hand_over(engine, side)?;
        side.progress(meter.batches(), args.blocks)?;
    }
    if meter.batches() == 0 { Ok(()) } else { meter.end(engine, side, 0, "blocks") }
}

/// Blocks are due at fixed times.
fn open(
    args: &BlockArgs,
    side: &mut JobContext,
    engine: &mut dyn Engine,
    blocks: &mut Blocks<'_>,
    (rate, witness): (f64, bool),
) -> Result<()> {
    let cases: &[(&str, Option<Task>)] = if side.kind == EngineKind::Pleach {
        &[
            ("alone", None),
            ("beside backups", Some(Task::Backup)),
            ("beside scrubs", Some(Task::Scrub)),
        ]
    } else {
        &[("alone", None)]
    };
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    if !side.turn()? {
        return Ok(());
    }
    for (name, beside) in cases {
        let stop = Arc::new(AtomicBool::new(false));
        // What a killed run has left goes first.
        let scratch = side.beside(".beside");
        if scratch.exists() {
            std::fs::remove_dir_all(&scratch).map_err(Error::file(&scratch))?;
        }
        std::fs::create_dir(&scratch).map_err(Error::file(&scratch))?;
        let db = engine.as_pleach().map(|own| own.db.clone());
        let outcome = std::thread::scope(|scope| {
            let (copy, stop) = (scratch.join("backup"), &stop);
            let worker = scope.spawn(move || {
                let mut begun: u64 = 0;
                let task = beside.zip(db);
                while let Some((task, db)) = task.as_ref().filter(|_| !stop.load(Ordering::Relaxed))
                {
                    begun += 1;
                    task.run(db, &copy, stop)?;
                }
                Ok(begun)
            });
            let stops = StopOnDrop(stop);
            let measured = paced(engine, blocks, time, rate, witness);
            drop(stops);
            let worked = worker
                .join()
                .unwrap_or_else(|_| Err(Error::Failed("a thread panicked".to_owned())));
            Ok::<_, Error>((measured?, worked?))
        });
        std::fs::remove_dir_all(&scratch).map_err(Error::file(&scratch))?;
        let ((late, service, backlog), worked) = outcome?;
        let case = format!("{name}, {rate} blocks a second");
        side.figure(late.latencies(&case, "from due to committed").committed())?;
        side.figure(service.latencies(&case, "finish + commit").committed())?;
        side.value(&case, "most blocks late at a time", Unit::Count, backlog)?;
        if beside.is_some() {
            side.note(format!("{name}: {worked} were begun, of {} blocks", grouped(late.count())))?;
        }
        if crate::signals::is_stop_requested() {
            break;
        }
    }
    Ok(())
}

/// Blocks at their times; returns their latencies from when they were due, and their own times.
fn paced(
    engine: &mut dyn Engine,
    blocks: &mut Blocks<'_>,
    time: Duration,
    rate: f64,
    witness: bool,
) -> Result<(Times, Times, f64)> {
    let (mut late, mut service) = (Times::default(), Times::default());
    let start = Instant::now();
    let mut backlog: f64 = 0.0;
    for number in 0_u32.. {
        let due = Duration::from_secs_f64(f64::from(number) / rate);
        if due >= time || crate::signals::is_stop_requested() {
            break;
        }
        let drawn = blocks.draw(blocks.next);
        let ready = blocks.prepare(&drawn);
        if let Some(rest) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(rest);
        }
        backlog = backlog.max(start.elapsed().saturating_sub(due).as_secs_f64() * rate);
        let (phases, committed) = blocks.run(engine, ready, witness)?;
        late.record((committed - start).saturating_sub(due));
        blocks.note(&drawn);
        service.record(phases.finish + phases.commit);
    }
    Ok((late, service, backlog.floor()))
}

/// Reads back everything written.
fn verify(side: &mut JobContext, engine: &mut dyn Engine, blocks: &Blocks<'_>) -> Result<()> {
    let mut digest = blake3::Hasher::new();
    for (space, (known, Space { key, value })) in (0..).zip(blocks.known.iter().zip(SPACES)) {
        let mut ids: Vec<u64> = known.keys().copied().collect();
        ids.sort_unstable();
        for ids in ids.chunks(16_384) {
            let keys: Vec<Key> = ids.iter().map(|id| key(*id)).collect();
            let mut right = 0;
            engine.begin(false)?;
            engine.read(space, &keys, &mut |at, found| {
                let expected = value(ids[at], last(known, ids[at]));
                right += usize::from(found == Some(&*expected));
                digest.update(found.unwrap_or_default());
            })?;
            engine.discard()?;
            if right != ids.len() {
                return wrong(format!(
                    "{} of {} values are not those of the last block",
                    ids.len() - right,
                    ids.len()
                ));
            }
        }
    }
    let touched = blocks.known.iter().map(HashMap::len).sum::<usize>() as u64;
    side.check(format!("values after {} blocks", blocks.next - 1), digest.finalize().to_string())?;
    side.note(format!(
        "{} blocks; all of {} values that they wrote were read back",
        blocks.next - 1,
        grouped(touched)
    ))
}

/// Loads accounts and slots, each into a namespace where the engine has them.
fn load(args: &BlockArgs, side: &mut JobContext) -> Result<()> {
    let number = 1_u64 << args.log2;
    let parameters = json!({ "blocks of accounts": number });
    load_once(side, &parameters, 2 * number, ("keys", 2 * number), |engine, side| {
        let ids = 0..number;
        if let Some(own) = engine.as_pleach() {
            let accounts = |id| (PlainKey::from(account_key(id)), account_value(id, 0));
            let slots = |id| (PlainKey::from(slot_key(id)), slot_value(id, 0));
            own.load_space(0, &mut ids.clone().map(accounts))?;
            own.add_storage()?;
            return own.load_space(1, &mut ids.map(slots));
        }
        let accounts = ids.clone().map(|id| (account_key(id), (false, id)));
        let keys = accounts.chain(ids.map(|id| (slot_key(id), (true, id))));
        load_keys(engine, side.kind, keys, |(is_slot, id)| {
            if is_slot { slot_value(id, 0) } else { account_value(id, 0) }
        })
    })
}
