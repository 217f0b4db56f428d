//! `flatten`: overlays over each other become one commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach::{Db, Key, SessionOptions};
use serde::{Deserialize, Serialize};

use super::{StopOnDrop, WorkPlan, draws, ours};
use crate::draw::{Draws, Sampler, account_key, number};
use crate::engine::pleach::{PleachEngine, value};
use crate::engine::{Engine, Op, PlainKey, Root, StateAccess, values};
use crate::error::{Error, Result, of_engine, usage, wrong};
use crate::flags::count;
use crate::job_context::JobContext;
use crate::measure::{Times, grouped, timed};

/// Accounts that are loaded.
const LOADED: u64 = 1 << 17;
/// Popular keys of the distribution `hot`.
const HOT: u64 = 100;

/// A layer: its changes, each key once; none is a delete.
type FlattenLayer = BTreeMap<Key, Option<u64>>;

/// `nomt-bench flatten`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct FlattenArgs {
    /// Overlays over each other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4,16,64,128",
        value_parser = count::<u64>(1..=4096))]
    layers: Vec<u64>,
    /// Changes of an overlay
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = count::<u64>(1..=1_000_000))]
    keys_per_layer: u64,
    /// How keys are drawn: hot (nine of ten changes go to a hundred keys), uniform, zipf:S or pareto
    #[arg(long, default_value = "hot")]
    distribution: String,
}

impl FlattenArgs {
    pub fn plan(&self) -> Result<WorkPlan> {
        self.sampler()?;
        let most = self.layers.iter().max().copied().unwrap_or(0);
        let writes = most.saturating_mul(self.keys_per_layer);
        Ok(WorkPlan { keys: LOADED, writes, runs: ours, ..WorkPlan::ROUNDS })
    }

    /// How keys are drawn; none: most changes go to few keys.
    fn sampler(&self) -> Result<Option<Sampler>> {
        let text = &self.distribution;
        if text == "hot" {
            return Ok(None);
        }
        let parsed = text.parse().map_err(|why| format!("--distribution {text}: {why}, or hot"));
        Ok(Some(Sampler::new(parsed.map_err(Error::Usage)?, LOADED)))
    }
}

/// Layers, and their merged result.
struct FlattenBench {
    layers: Vec<FlattenLayer>,
    /// The last change of each key.
    merged: FlattenLayer,
    /// The final state.
    state: BTreeMap<Key, u64>,
}

/// The workload; a turn is a round of a number of layers.
pub fn run(args: &FlattenArgs, side: &mut JobContext) -> Result<()> {
    for &count in &args.layers {
        let bench = FlattenBench::new(args, count, side.flags.seed)?;
        let mut times: [Times; 4] = Default::default();
        for round in 0..=side.flags.rounds(15) {
            if !side.turn()? {
                break;
            }
            let mut unused = Default::default();
            bench.round(round, if round > 0 { &mut times } else { &mut unused }, side)?;
        }
        let [merged, at_once, idle, beside] = &times;
        if merged.count() == 0 {
            break;
        }
        let case = format!("{count} layers, {} changes", grouped(count * args.keys_per_layer));
        side.figure(merged.latencies(&case, "merged commit").committed())?;
        side.figure(at_once.latencies(&case, "one block of the same").committed())?;
        side.figure(idle.nanos(&case, "read, idle"))?;
        side.figure(beside.nanos(&case, "read beside the merge"))?;
    }
    Ok(())
}

impl FlattenBench {
    fn new(args: &FlattenArgs, count: u64, seed: u64) -> Result<Self> {
        let (mut random, sampler) = (draws(seed, count), args.sampler()?);
        let id = |random: &mut Draws| match &sampler {
            Some(sampler) => sampler.draw(random),
            None if random.below(10) < 9 => random.below(HOT),
            None => random.below(LOADED),
        };
        let (mut layers, mut merged) = (Vec::new(), FlattenLayer::new());
        for _ in 0..count {
            let mut layer = FlattenLayer::new();
            for _ in 0..args.keys_per_layer {
                let key = account_key(id(&mut random));
                let new = if random.below(10) == 0 { None } else { Some(random.bits()) };
                layer.insert(key, new);
            }
            merged.extend(&layer);
            layers.push(layer);
        }
        let mut state: BTreeMap<Key, u64> = (0..LOADED).map(|id| (account_key(id), id)).collect();
        for (key, new) in &merged {
            match new {
                Some(new) => state.insert(*key, *new),
                None => state.remove(key),
            };
        }
        Ok(Self { layers, merged, state })
    }

    /// Both commits, each on a database of its own.
    fn round(
        &self,
        round: u64,
        [merged, at_once, idle, beside]: &mut [Times; 4],
        side: &JobContext,
    ) -> Result<()> {
        let by_merge = on_loaded(side, |engine, db| {
            for layer in &self.layers {
                engine.begin(false)?;
                engine.finish(accesses(layer))?;
            }
            let (before, changes) = (db.commit_number(), db.metrics().changes);
            let Some(newest) = engine.stack() else { return wrong("there is no overlay") };
            let root = newest.root();
            let seeds = (side.flags.seed, round);
            reads(db, seeds, idle, || std::thread::sleep(Duration::from_millis(20)))?;
            let (took, number) = reads(db, seeds, beside, || timed(|| newest.commit()))?;
            merged.record(took);
            if number.map_err(of_engine("pleach"))? != before + 1 || db.root() != root {
                return wrong("the commit is not the newest overlay's");
            }
            let changed = db.metrics().changes - changes;
            if changed != self.merged.len() as u64 {
                return wrong(format!("{changed} keys were changed of {}", self.merged.len()));
            }
            engine.discard()?;
            self.check(db)
        })?;
        let by_one = on_loaded(side, |engine, db| {
            let accesses = accesses(&self.merged);
            let from = Instant::now();
            engine.begin(false)?;
            engine.finish(accesses)?;
            engine.commit()?;
            at_once.record(from.elapsed());
            self.check(db)
        })?;
        if by_merge != by_one {
            return wrong("layers that were merged have another root than one block of the same");
        }
        side.check_root(format!("root of {} layers", self.layers.len()), Some(&by_one))
    }

    /// Checks that exactly the expected pairs are there; returns the root.
    fn check(&self, db: &Db) -> Result<Root> {
        let failed = of_engine("pleach");
        let session = db.session(SessionOptions::new().witness(false)).map_err(&failed)?;
        let mut expected = self.state.iter();
        for pair in session.iter(..) {
            let (key, found) = pair.map_err(&failed)?;
            if expected.next() != Some((&key, &number(&found)?)) {
                return wrong("a value is not that of the newest layer");
            }
        }
        if expected.next().is_some() {
            return wrong("a pair is missing");
        }
        Ok(session.root().to_bytes())
    }
}

/// Runs `work` with a database of the loaded accounts, all of them cached.
fn on_loaded(
    side: &JobContext,
    run: impl FnOnce(&mut PleachEngine, &Db) -> Result<Root>,
) -> Result<Root> {
    let (_folder, mut engine) = side.open_new(LOADED)?;
    engine.load(&mut (0..LOADED).map(|id| (PlainKey::from(account_key(id)), value(id))))?;
    let keys: Vec<Key> = (0..LOADED).map(account_key).collect();
    values(&mut *engine, &keys)?;
    let Some(own) = engine.as_pleach() else { return usage("only pleach has overlays that merge") };
    let db = own.db.clone();
    let root = run(own, &db)?;
    drop(db);
    engine.close()?;
    Ok(root)
}

/// Another thread reads cached accounts of the committed state while something runs.
fn reads<T>(
    db: &Db,
    (seed, round): (u64, u64),
    times: &mut Times,
    run: impl FnOnce() -> T,
) -> Result<T> {
    let done = AtomicBool::new(false);
    let session = db.session(SessionOptions::new()).map_err(of_engine("pleach"))?;
    let mut random = draws(seed ^ 1, round);
    let mut read = || {
        while !done.load(Ordering::Relaxed) {
            let id = random.below(LOADED);
            let key = account_key(id);
            let (took, found) = timed(|| session.read(&key));
            times.record(took);
            if found.map_err(of_engine("pleach"))? != Some(value(id)) {
                return wrong(format!("a read beside it, of {id}"));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(&mut read);
        let stops = StopOnDrop(&done);
        let made = run();
        drop(stops);
        reader.join().map_err(|_| Error::Failed("the reader panicked".to_owned()))??;
        Ok(made)
    })
}

/// The changes of a layer, as blind writes.
fn accesses(layer: &FlattenLayer) -> Vec<StateAccess> {
    let write = |(key, new): (&Key, &Option<u64>)| StateAccess {
        space: 0,
        key: *key,
        op: Op::Write(new.map(value)),
    };
    layer.iter().map(write).collect()
}
