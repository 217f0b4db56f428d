//! `proof`: path proofs, multiproofs, witnesses and ranges: made, and verified. Other engines have witnesses alone.

use core::time::Duration;
use std::collections::BTreeSet;

use pleach::SessionOptions;
use pleach_core::node::value_hash;
use pleach_core::proof::{multi, path, range};
use pleach_core::{Hasher, Key, proof::Limits};
use serde::{Deserialize, Serialize};

use super::transfer::numbers;
use super::{WorkPlan, draws};
use crate::draw::account_key;
use crate::engine::pleach::value;
use crate::engine::{Engine, EngineKind, Op, PlainKey, StateAccess, values};
use crate::error::{Error, Result, of_engine, usage, wrong};
use crate::flags::count;
use crate::job_context::JobContext;
use crate::measure::{Times, Unit, grouped, ratio, timed};

/// The ways to prove several accounts.
const WAYS: [&str; 4] = ["witness", "path", "multiproof", "range"];

/// `nomt-bench proof`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct ProofArgs {
    /// Number of accounts, as a power of two
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u32>(1..=28))]
    log2: u32,
    /// Numbers of accounts that are proven together
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,256,4096,25000",
        value_parser = count::<u64>(1..=10_000_000))]
    count: Vec<u64>,
}

impl ProofArgs {
    pub fn plan(&self) -> Result<WorkPlan> {
        let keys = 1 << self.log2;
        if self.count.iter().all(|count| *count > keys) {
            return usage(format!(
                "--count has nothing up to the {} accounts of --log2: lower the one or raise the other",
                grouped(keys)
            ));
        }
        let runs = |kind: EngineKind| {
            if kind.caps().witness { Ok(()) } else { Err("it has no witnesses") }
        };
        Ok(WorkPlan { keys, runs, ..WorkPlan::ROUNDS })
    }
}

/// Accounts with their balances, in the order of their keys.
type AccountList = [(Key, u64)];

/// What a proof took.
struct ProofTimes {
    generate: Duration,
    verify: Duration,
    bytes: u64,
}

pub fn run(args: &ProofArgs, side: &mut JobContext) -> Result<()> {
    let mut all: Vec<(Key, u64)> = (0..1 << args.log2).map(|id| (account_key(id), id)).collect();
    all.sort_unstable();
    let mut engine = side.open(all.len() as u64)?;
    engine.load(&mut all.iter().map(|(key, id)| (PlainKey::from(*key), value(*id))))?;
    side.check_root("root", engine.root().as_ref())?;
    // Everything that fits is cached from here on.
    for accounts in all.chunks(1 << 16) {
        let keys: Vec<Key> = accounts.iter().map(|one| one.0).collect();
        values(&mut *engine, &keys)?;
    }
    let misses = |engine: &dyn Engine| {
        engine.counters().iter().find(|one| one.0 == "cache misses").map_or(0, |one| one.1)
    };
    let before = misses(&*engine);
    for &count in &args.count {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count <= all.len() {
            measure(&mut *engine, &all, count, side)?;
        } else {
            side.note(format!("{count} accounts are more than there are: left out"))?;
        }
    }
    let misses = misses(&*engine) - before;
    if side.kind == EngineKind::Pleach {
        side.note(format!("{misses} pages were not cached while it was measured"))?;
    }
    engine.close()
}

/// All ways of the engine, with so many accounts.
fn measure(
    engine: &mut dyn Engine,
    all: &AccountList,
    count: usize,
    side: &mut JobContext,
) -> Result<()> {
    let ways = if engine.as_pleach().is_some() { WAYS.len() } else { 1 };
    let mut times: Vec<[Times; 2]> = (0..ways).map(|_| Default::default()).collect();
    let mut bytes = vec![0; ways];
    for round in 0..=side.flags.rounds(15) {
        if !side.turn()? {
            break;
        }
        let (some, run) = draw(all, count, side.flags.seed, round);
        for at in 0..ways {
            let at = if round % 2 == 0 { at } else { ways - 1 - at };
            let took = prove(engine, WAYS[at], &some, run)?;
            if round > 0 {
                times[at][0].record(took.generate);
                times[at][1].record(took.verify);
                bytes[at] += took.bytes;
            }
        }
    }
    let case = format!("{} at once", grouped(count as u64));
    for ((way, [generate, verify]), bytes) in WAYS.iter().zip(times).zip(bytes) {
        if generate.count() > 0 {
            let bytes = ratio(bytes, generate.count());
            side.figure(generate.latencies(&case, &format!("{way}, generate")))?;
            side.figure(verify.latencies(&case, &format!("{way}, verify")))?;
            side.value(&case, &format!("{way}, size"), Unit::Bytes, bytes)?;
        }
    }
    Ok(())
}

/// The accounts of a round: some that lie anywhere, and as many that follow each other, both in the order of keys.
fn draw(all: &AccountList, count: usize, seed: u64, round: u64) -> (Vec<(Key, u64)>, &AccountList) {
    let mut random = draws(seed, round);
    // Draws of an account that is there already are repeated: of more than half, those that are left out are drawn.
    let few = count.min(all.len() - count);
    let mut drawn = BTreeSet::new();
    while drawn.len() < few {
        drawn.insert(random.index(all.len()));
    }
    let some = all.iter().enumerate().filter(|(at, _)| drawn.contains(at) == (few == count));
    let some = some.map(|(_, one)| *one).collect();
    let first = random.index(all.len() - count + 1);
    (some, &all[first..first + count])
}

/// Makes a proof, verifies it, and looks whether it says what is true of each account.
fn prove(
    engine: &mut dyn Engine,
    way: &str,
    some: &AccountList,
    run: &AccountList,
) -> Result<ProofTimes> {
    let keys: Vec<Key> = some.iter().map(|one| one.0).collect();
    if way == "witness" {
        return witness(engine, some, &keys);
    }
    let Some(own) = engine.as_pleach() else { return wrong("only pleach has other proofs") };
    let root = own.db.root();
    let (generate, proofs) = timed(|| -> pleach::Result<Vec<Vec<u8>>> {
        let session = own.db.session(SessionOptions::new())?;
        match way {
            "path" => keys.iter().map(|key| Ok(session.prove(key)?.into())).collect(),
            "multiproof" => Ok(vec![session.prove_many(&keys)?.into()]),
            _ => Ok(vec![session.prove_range(run[0].0..=run[run.len() - 1].0)?.into()]),
        }
    });
    let proofs = proofs.map_err(of_engine("pleach"))?;
    let failed = |error| Error::Wrong(format!("{way} of {} accounts: {error}", keys.len()));
    let limits = &Limits::UNLIMITED;
    let (verify, holds) = match way {
        "path" => {
            let one = |proof: &Vec<u8>| path::verify(Hasher::BLAKE3, proof, &root);
            let (took, each) =
                timed(|| proofs.iter().map(one).collect::<core::result::Result<Vec<_>, _>>());
            let each = each.map_err(failed)?;
            let mut pairs = some.iter().zip(&each);
            let all = pairs.all(|(one, proof)| holds(one, |key, value| proof.proves(key, value)));
            (took, all && each.len() == some.len())
        }
        "multiproof" => {
            let (took, proof) =
                timed(|| multi::verify_with(Hasher::BLAKE3, &proofs[0], &root, limits));
            let proof = proof.map_err(failed)?;
            (took, some.iter().all(|one| holds(one, |key, value| proof.proves(key, value))))
        }
        _ => {
            let (first, last) = (&run[0].0, &run[run.len() - 1].0);
            let verify =
                || range::verify_with(Hasher::BLAKE3, &proofs[0], &root, first, last, limits);
            let (took, proof) = timed(verify);
            let proof = proof.map_err(failed)?;
            let all = run.iter().all(|one| holds(one, |key, value| proof.proves(key, value)));
            (took, all && proof.pairs().count() == run.len())
        }
    };
    if !holds {
        return wrong(format!("{way} of {} accounts: not all is as it was read", keys.len()));
    }
    let bytes = proofs.iter().map(|proof| proof.len() as u64).sum();
    Ok(ProofTimes { generate, verify, bytes })
}

/// True when a proof says that an account has its balance.
fn holds((key, id): &(Key, u64), proves: impl Fn(&Key, Option<&[u8]>) -> Option<bool>) -> bool {
    proves(key, Some(&id.to_le_bytes())) == Some(true)
}

/// The witness of a block that reads, as each engine makes it.
fn witness(engine: &mut dyn Engine, some: &AccountList, keys: &[Key]) -> Result<ProofTimes> {
    let failed = |why: &str| Error::Wrong(format!("witness of {} accounts: {why}", keys.len()));
    let Some(root) = engine.root() else { return Err(failed("there is no root")) };
    let reads = keys.iter().map(|key| StateAccess { space: 0, key: *key, op: Op::Read }).collect();
    // With the reads: some engines record it there.
    let (generate, made) = timed(|| -> Result<_> {
        engine.begin(true)?;
        engine.announce(0, keys)?;
        let seen = numbers(engine, 0, keys)?;
        Ok((seen, engine.finish(reads)?))
    });
    let (seen, Some(witness)) = made? else { return Err(failed("there is none")) };
    engine.discard()?;
    // Before it is verified: some engines make the form that is sent when it is first asked for.
    let bytes = witness.bytes();
    let (verify, proven) = timed(|| witness.verify(&root));
    let mut proven = proven.map_err(|error| failed(&error))?;
    proven.reads.sort_unstable();
    if !seen.into_iter().eq(some.iter().map(|one| Some(one.1))) {
        return Err(failed("other values were read"));
    }
    let hash = |id: u64| Some(value_hash(Hasher::BLAKE3, &id.to_le_bytes()));
    let reads: Vec<_> = some.iter().map(|(key, id)| (*key, hash(*id))).collect();
    if proven.root != root || proven.reads != reads || !proven.writes.is_empty() {
        return Err(failed("it proves something else than was read"));
    }
    Ok(ProofTimes { generate, verify, bytes })
}
