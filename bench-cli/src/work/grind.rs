//! `grind`: keys that are bad for a trie, beside keys that are hashes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pleach::SessionOptions;
use pleach_core::{Hasher, Key, proof};
use serde::{Deserialize, Serialize};

use super::{WorkPlan, draws, ours};
use crate::draw::Draws;
use crate::engine::pleach::{check, value};
use crate::engine::{Engine, PlainKey, Root, StateAccess};
use crate::error::{Error, Result, of_engine, wrong};
use crate::flags::count;
use crate::job_context::JobContext;
use crate::measure::{Figure, Times, Unit, float, hex, ratio, timed};

/// Commits that the keys come in.
const COMMITS: usize = 20;
/// Keys whose paths are looked at.
const PATHS: usize = 1000;
const SHAPES: [&str; 7] =
    ["uniform", "shared 40", "shared 48", "shared 56", "shared 64", "sequential", "last byte"];

/// `nomt-bench grind`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct GrindArgs {
    /// Keys of each shape
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count::<u64>(20..=10_000_000))]
    keys: u64,
}

impl GrindArgs {
    #[expect(clippy::unnecessary_wraps, reason = "as all workloads have it")]
    pub fn plan(&self) -> Result<WorkPlan> {
        let keys = self.keys * SHAPES.len() as u64;
        Ok(WorkPlan { runs: ours, keys, writes: keys, ..WorkPlan::ROUNDS })
    }
}

/// A key of a shape: random bits, and what the shape makes of them.
fn key(shape: &str, random: &mut Draws, number: u64) -> Key {
    let mut key = [0; 32];
    for part in key.chunks_exact_mut(8) {
        part.copy_from_slice(&random.bits().to_be_bytes());
    }
    match shape {
        "sequential" => {
            key = [0; 32];
            key[24..].copy_from_slice(&number.to_be_bytes());
        }
        "last byte" => {
            key = [0x5a; 32];
            key[29..].copy_from_slice(&number.to_be_bytes()[5..]);
        }
        // So many bits are the same.
        _ => {
            let bits = shape.strip_prefix("shared ").and_then(|bits| bits.parse().ok());
            key[..bits.unwrap_or(0) / 8].fill(0xa5);
        }
    }
    key
}

/// As many pairs, in random order.
fn pairs(shape: &str, random: &mut Draws, count: u64) -> Vec<(Key, u64)> {
    let mut seen = BTreeSet::new();
    let mut pairs = Vec::new();
    while (pairs.len() as u64) < count {
        let key = key(shape, random, pairs.len() as u64);
        if seen.insert(key) {
            pairs.push((key, random.bits()));
        }
    }
    random.shuffle(&mut pairs);
    pairs
}

pub fn run(args: &GrindArgs, side: &mut JobContext) -> Result<()> {
    let mut figures: Vec<[Figure; 5]> = Vec::new();
    for (number, shape) in (0..).zip(SHAPES) {
        if !side.turn()? {
            break;
        }
        let mut random = draws(side.flags.seed, number);
        figures.push(grind(side, shape, &pairs(shape, &mut random, args.keys))?);
        side.progress(number + 1, SHAPES.len() as u64)?;
    }
    // By what they say, so that shapes stand below each other.
    for at in 0..5 {
        for of_shape in &figures {
            side.figure(of_shape[at].clone())?;
        }
    }
    Ok(())
}

fn grind(side: &JobContext, shape: &str, pairs: &[(Key, u64)]) -> Result<[Figure; 5]> {
    let folder = side.scratch()?;
    let mut engine = side.open_in(folder.path().to_owned(), pairs.len() as u64)?;
    let (mut finishes, mut commits) = (Times::default(), Times::default());
    for pairs in pairs.chunks(pairs.len().div_ceil(COMMITS)) {
        let accesses = pairs.iter().map(|(key, number)| StateAccess::write(*key, value(*number)));
        let accesses = accesses.collect();
        let (took, finished) = timed(|| {
            engine.begin(false)?;
            engine.finish(accesses)
        });
        finished?;
        finishes.record(took);
        let (took, committed) = timed(|| engine.commit());
        committed?;
        commits.record(took);
    }
    engine.drain(0)?;
    let root = engine.root();
    if root != root_of_load(side, pairs)? {
        return wrong(format!("{shape}: the root is not that of a load"));
    }
    side.check_root(format!("root of {shape}"), root.as_ref())?;
    check_pairs(&*engine, shape, pairs)?;
    let longest = longest_path(&mut *engine, shape, pairs)?;
    let leaf_pages = engine.as_pleach().map_or(0, |own| own.db.metrics().leaf_pages);
    engine.close()?;
    check(folder.path())?;
    let bytes = used(folder.path(), "leaf")? + used(folder.path(), "overflow")?;
    let one = |case, unit, value| Figure::one(case, shape, unit, value);
    Ok([
        finishes.latencies("finish of a batch", shape),
        commits.latencies("commit of a batch", shape).committed(),
        one("leaf pages", Unit::Count, float(leaf_pages)),
        one("longest path, siblings", Unit::Count, float(longest)),
        one("bytes of files a key", Unit::Bytes, ratio(bytes, pairs.len() as u64)),
    ])
}

/// The root that a load of these pairs gives, in a database of its own.
fn root_of_load(side: &JobContext, pairs: &[(Key, u64)]) -> Result<Option<Root>> {
    let folder = side.scratch()?;
    let mut engine = side.open_in(folder.path().to_owned(), pairs.len() as u64)?;
    engine.load(&mut pairs.iter().map(|(key, number)| (PlainKey::from(*key), value(*number))))?;
    let root = engine.root();
    engine.close()?;
    Ok(root)
}

/// Checks that exactly these pairs are there.
fn check_pairs(engine: &dyn Engine, shape: &str, pairs: &[(Key, u64)]) -> Result<()> {
    engine.reader()?.view(&mut |view| {
        let mut found = Vec::new();
        for (key, number) in pairs {
            if !view.get(key, &mut found)? || found != number.to_le_bytes() {
                return wrong(format!("{shape}: key {} has another value", hex(key)));
            }
        }
        let mut there = 0;
        view.scan(&[], &mut |_, _| {
            there += 1;
            true
        })?;
        let holds = there == pairs.len();
        if holds { Ok(()) } else { wrong(format!("{shape}: {there} keys are there")) }
    })
}

/// The most siblings on a key's path, of a thousand keys.
fn longest_path(engine: &mut dyn Engine, shape: &str, pairs: &[(Key, u64)]) -> Result<u64> {
    let Some(own) = engine.as_pleach() else { return wrong("only pleach has path proofs") };
    let root = own.db.root();
    let session = own.db.session(SessionOptions::new()).map_err(of_engine("pleach"))?;
    let mut longest = 0;
    for (key, number) in pairs.iter().step_by(pairs.len().div_ceil(PATHS)) {
        let bytes = session.prove(key).map_err(of_engine("pleach"))?;
        let is_proven = proof::path::verify(Hasher::BLAKE3, &bytes, &root)
            .is_ok_and(|path| path.proves(key, Some(&number.to_le_bytes())) == Some(true));
        let path = proof::PathProof::decode(Hasher::BLAKE3, &bytes).ok().filter(|_| is_proven);
        let Some(path) = path else {
            return wrong(format!("{shape}: a path proof does not prove its pair"));
        };
        longest = longest.max(path.siblings.len());
    }
    Ok(longest as u64)
}

/// Bytes that a file takes on the device.
fn used(folder: &Path, name: &str) -> Result<u64> {
    let file = folder.join(name);
    Ok(std::fs::metadata(&file).map_err(Error::file(&file))?.blocks() * 512)
}
