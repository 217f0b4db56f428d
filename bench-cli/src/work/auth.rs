//! `auth`: what it costs that a state is authenticated, beside maps that are not, and beside a digest of everything
//! that was written.

use core::time::Duration;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use hashbrown::HashMap;
use pleach_core::Key;
use serde::{Deserialize, Serialize};

use super::{WorkPlan, draws};
use crate::draw::account_key;
use crate::engine::pleach::value;
use crate::engine::{Engine, EngineKind, PlainKey, Root, StateAccess};
use crate::error::{Result, wrong};
use crate::flags::count;
use crate::job_context::JobContext;
use crate::measure::{Times, grouped, timed, tried};

type AuthPair = (Key, u64);

/// Blocks one after the other.
const BLOCKS: usize = 3;

/// `nomt-bench auth`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct AuthArgs {
    /// Numbers of pairs
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        default_value = "100,500,1000,5000,10000,50000,100000", value_parser = count::<u64>(2..=10_000_000))]
    sizes: Vec<u64>,
}

impl AuthArgs {
    pub fn plan(&self) -> WorkPlan {
        let most = self.sizes.iter().max().copied().unwrap_or(0);
        // Every second pair of a block is new.
        WorkPlan { keys: 2 * most, writes: 3 * most, runs, ..WorkPlan::ROUNDS }
    }
}

fn runs(kind: EngineKind) -> core::result::Result<(), &'static str> {
    let caps = kind.caps();
    if caps.merkle && !caps.overlays { Err("it has no blocks over each other") } else { Ok(()) }
}

/// Times by measurement, in order of their first appearance.
#[derive(Default)]
struct AuthTimes(Vec<(&'static str, Times)>);

impl AuthTimes {
    fn add(&mut self, name: &'static str, took: Duration) {
        let at = self.0.iter().position(|one| one.0 == name).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push((name, Times::default()));
        }
        self.0[at].1.record(took);
    }
}

/// The workload; a turn is a round of a size.
pub fn run(args: &AuthArgs, side: &mut JobContext) -> Result<()> {
    for &size in &args.sizes {
        let bench = AuthBench::new(size, side)?;
        let mut figures = AuthTimes::default();
        for round in 0..=side.flags.rounds(15) {
            if !side.turn()? {
                break;
            }
            // The maps belong to no engine: one process is enough.
            if side.first {
                bench.maps(&mut figures)?;
            }
            bench.engine(side, &mut figures)?;
            if round == 0 {
                figures.0.clear();
            }
        }
        let case = format!("{} pairs", grouped(size));
        for (name, times) in figures.0 {
            let figure = times.latencies(&case, name);
            let commits = ["set", "sequential, synced"].contains(&name);
            side.figure(if commits { figure.committed() } else { figure })?;
        }
    }
    Ok(())
}

struct AuthBench {
    /// Blocks of pairs; the first is that of all figures but the sequential ones.
    blocks: Vec<Vec<AuthPair>>,
    /// The root of a load after each block, where it is ours.
    roots: Vec<Option<Root>>,
    /// The state after the last block.
    state: BTreeMap<Key, u64>,
}

impl AuthBench {
    fn new(size: u64, side: &JobContext) -> Result<Self> {
        let mut random = draws(side.flags.seed, size);
        let count = usize::try_from(size).unwrap_or(usize::MAX);
        let mut ids = 0..;
        let mut bench = Self { blocks: Vec::new(), roots: Vec::new(), state: BTreeMap::new() };
        for _ in 0..BLOCKS {
            let mut pairs: Vec<AuthPair> = Vec::new();
            if let Some(before) = bench.blocks.last() {
                // Every second one of the block before, so that no key comes twice.
                let old = before.iter().step_by(2).take(count / 2);
                pairs.extend(old.map(|pair| (pair.0, random.bits())));
            }
            let new = ids.by_ref().take(count - pairs.len());
            pairs.extend(new.map(|id| (account_key(id), random.bits())));
            // In no order, as blocks have them.
            random.shuffle(&mut pairs);
            bench.state.extend(pairs.iter().copied());
            bench.blocks.push(pairs);
            if side.kind.caps().our_root {
                let folder = side.scratch()?;
                let mut other = side.open_other(EngineKind::Pleach, folder.path().to_owned())?;
                let pairs = bench.state.iter();
                other.load(&mut pairs.map(|pair| (PlainKey::from(*pair.0), value(*pair.1))))?;
                bench.roots.push(other.root());
                other.close()?;
            }
        }
        Ok(bench)
    }

    fn accesses(&self) -> Vec<Vec<StateAccess>> {
        let write = |pair: &AuthPair| StateAccess::write(pair.0, value(pair.1));
        self.blocks.iter().map(|pairs| pairs.iter().map(write).collect()).collect()
    }

    /// The operations on maps and the digest, all with the same hasher.
    fn maps(&self, figures: &mut AuthTimes) -> Result<()> {
        let pairs = &self.blocks[0];
        let (took, hashed) = timed(|| {
            let mut map = HashMap::new();
            for (key, value) in pairs {
                map.insert(*key, *value);
            }
            map
        });
        figures.add("set, hash map", took);
        let (took, ordered) = timed(|| {
            let mut map = BTreeMap::new();
            for (key, value) in pairs {
                map.insert(*key, *value);
            }
            map
        });
        figures.add("set, ordered map", took);
        figures.add("get, hash map", get(pairs, |key| hashed.get(key))?);
        figures.add("get, ordered map", get(pairs, |key| ordered.get(key))?);

        let (took, digest) = timed(|| roll(&mut blake3::Hasher::new(), pairs));
        black_box(digest);
        figures.add("commitment, rolling BLAKE3", took);
        let mut map = HashMap::new();
        let (took, ()) = timed(|| {
            let mut hasher = blake3::Hasher::new();
            for pairs in &self.blocks {
                map.extend(pairs.iter().copied());
                black_box(roll(&mut hasher, pairs));
            }
        });
        figures.add("sequential, hash map and rolling BLAKE3", took);
        if map.len() == self.state.len()
            && self.state.iter().all(|pair| map.get(pair.0) == Some(pair.1))
        {
            return Ok(());
        }
        wrong("a hash map has lost a pair")
    }

    /// What an engine does, on an empty database: a block is begun, finished and committed on the clock; its accesses
    /// are there before.
    fn engine(&self, side: &JobContext, figures: &mut AuthTimes) -> Result<()> {
        let (_folder, mut opened) = side.open_new(self.state.len() as u64)?;
        let engine = &mut *opened;
        let mut roots = Vec::new();
        if side.kind.caps().merkle {
            let blocks = self.accesses();
            let from = Instant::now();
            for accesses in blocks {
                engine.begin(false)?;
                engine.finish(accesses)?;
                roots.push(engine.root());
                if roots.len() == 1 {
                    figures.add("commitment", from.elapsed());
                }
            }
            figures.add("sequential", from.elapsed());
            engine.discard()?;
        }
        if side.kind.caps().our_root && roots != self.roots {
            return wrong("a root is not that of a load of the same pairs");
        }
        let mut all = Duration::ZERO;
        for (at, accesses) in self.accesses().into_iter().enumerate() {
            let from = Instant::now();
            engine.begin(false)?;
            engine.finish(accesses)?;
            engine.commit()?;
            let took = from.elapsed();
            all += took;
            if at == 0 {
                figures.add("set", took);
                // Once before it counts, so that all is cached.
                read_all(engine, &self.blocks[0])?;
                figures.add("get", read_all(engine, &self.blocks[0])?);
            }
            if roots.get(at).is_some_and(|root| *root != engine.root()) {
                return wrong("a commit has another root than the same block in memory");
            }
        }
        figures.add("sequential, synced", all);
        let state: Vec<AuthPair> = self.state.iter().map(|pair| (*pair.0, *pair.1)).collect();
        read_all(engine, &state)?;
        let name = format!("root of {BLOCKS} blocks of {} pairs", self.blocks[0].len());
        side.check_root(name, engine.root().as_ref())?;
        opened.close()
    }
}

/// Gets all values of a map and compares them, twice: the second time counts.
fn get<'a>(pairs: &[AuthPair], of: impl Fn(&Key) -> Option<&'a u64>) -> Result<Duration> {
    let all = || pairs.iter().filter(|pair| of(&pair.0) == Some(&pair.1)).count();
    black_box(all());
    let (took, right) = timed(all);
    if right == pairs.len() { Ok(took) } else { wrong("a map has other values") }
}

/// The same of an engine, once, in a block.
fn read_all(engine: &mut dyn Engine, pairs: &[AuthPair]) -> Result<Duration> {
    let keys: Vec<Key> = pairs.iter().map(|pair| pair.0).collect();
    let mut right = 0;
    let (took, ()) = tried(|| {
        engine.begin(false)?;
        engine.read(0, &keys, &mut |at, value| {
            right += usize::from(value == Some(&pairs[at].1.to_le_bytes()[..]));
        })
    })?;
    engine.discard()?;
    if right == pairs.len() {
        Ok(took)
    } else {
        wrong(format!("{right} of {} values are right", pairs.len()))
    }
}

/// Hashes pairs as they come.
fn roll(hasher: &mut blake3::Hasher, pairs: &[AuthPair]) -> blake3::Hash {
    for (key, value) in pairs {
        hasher.update(key);
        hasher.update(&value.to_le_bytes());
    }
    hasher.finalize()
}
