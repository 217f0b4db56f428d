//! `history`: finds the blocks at which keys changed, with the questions of the sharded-bitmap benchmark. This
//! project's engine has the answers in its history; the others get a sharded index, as is usual in ordered stores.

use core::time::Duration;

use pleach::load::LoadOptions;
use pleach::{Access, Db, SessionOptions, Value};
use pleach_core::hexadecimal::hex;
use pleach_core::search::lower_bound_near;
use serde::{Deserialize, Serialize};

use super::numbers::{Numbers, first, last_at_most, push};
use super::{WorkPlan, draws};
use crate::draw::{Draws, account_key};
use crate::engine::{Engine, EngineKind, Pair, PlainKey, Reader};
use crate::error::{Error, Result, of_engine, wrong};
use crate::flags::{Durability, count};
use crate::job_context::JobContext;
use crate::measure::{Times, grouped, tried};

/// Appends of a turn, a commit each, and blocks of an unwind.
const APPENDS: u64 = 100;
/// Point queries of a turn.
const QUERIES: u64 = 1000;
/// Blocks between two changes of a key, at most.
const GAP: u64 = 20;
/// The namespace of the index: one with a trie of `pleach`, one without of `pleach-plain`.
const NAMESPACE: u8 = 1;
/// All changes of a key in one shard.
const UNSHARDED: u32 = u32::MAX;

/// `nomt-bench history`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct HistoryArgs {
    /// Changes of a shard, or none for one value a key; Pleach has no shards, and does the same for each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "none,100,500,2000,10000",
        value_parser = shard)]
    shards: Vec<u32>,
    /// Changes of the key that is looked at
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10000,100000",
        value_parser = count::<u64>(200..=100_000_000))]
    len: Vec<u64>,
    /// Other keys of the index, with one change each
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count::<u64>(0..=100_000_000))]
    keys: u64,
}

/// Changes of a shard.
fn shard(text: &str) -> core::result::Result<u32, String> {
    let number = if text == "none" { Ok(UNSHARDED) } else { count(2..=10_000_000)(text) };
    number.map_err(|why| format!("{why}, or none"))
}

impl HistoryArgs {
    pub fn plan(&self) -> WorkPlan {
        let runs = |kind: EngineKind| {
            if kind.caps().views { Ok(()) } else { Err("it has no ordered seek") }
        };
        let keys = self.keys + self.len.iter().sum::<u64>() / 100;
        WorkPlan { durability: Durability::None, keys, runs, ..WorkPlan::ROUNDS }
    }
}

/// The workload.
pub fn run(args: &HistoryArgs, side: &mut JobContext) -> Result<()> {
    let seed = side.flags.seed;
    if side.flags.history == 0 {
        side.flags.history = u64::MAX;
    }
    let lists: Vec<Vec<u64>> = (0..).zip(&args.len).map(|(id, len)| list(seed, id, *len)).collect();
    for &shard in &args.shards {
        let (_folder, mut engine) = side.open_new(args.plan().keys)?;
        let mut index: Box<dyn Index + '_> = match engine.as_pleach() {
            Some(ours) => {
                ours.add_storage()?;
                Box::new(PleachIndex { db: ours.db.clone(), chains: Vec::new() })
            }
            None => Box::new(StoreIndex {
                sync: side.flags.durability == Durability::Commit,
                shard: u64::from(shard),
                reader: engine.reader()?,
                engine: &mut *engine,
            }),
        };
        index.build(&lists, args.keys)?;
        let mut times: Vec<[Times; 4]> = lists.iter().map(|_| Default::default()).collect();
        for round in 0..=side.flags.rounds(15) {
            if !side.turn()? {
                break;
            }
            for ((key, list), times) in (0..).zip(&lists).zip(&mut times) {
                let took = turn(&mut *index, key, list, draws(seed, round << 8 | key))?;
                // The first is to warm up.
                if round > 0 {
                    times.iter_mut().zip(took).for_each(|(times, took)| times.record(took));
                }
            }
        }
        let shards = match shard {
            UNSHARDED => "no shards".to_owned(),
            shard => format!("shards of {}", grouped(u64::from(shard))),
        };
        for ((key, list), [append, point, scan, unwind]) in (0..).zip(&lists).zip(&times) {
            let case = format!("{shards}, {} changes", grouped(list.len() as u64));
            let bytes: Vec<u8> = index.scan(key)?.into_iter().flat_map(u64::to_le_bytes).collect();
            side.check(format!("changes, {case}"), hex(blake3::hash(&bytes).as_bytes()))?;
            if append.count() > 0 {
                side.figure(append.each(&case, "append one", APPENDS).committed())?;
                side.figure(point.each(&case, "point query", QUERIES))?;
                side.figure(scan.each(&case, "full scan, a change", list.len() as u64))?;
                side.figure(unwind.each(&case, "unwind 100", 1).committed())?;
            }
        }
        drop(index);
        engine.close()?;
        if side.is_stopped() {
            break;
        }
    }
    Ok(())
}

/// Blocks at which a key changes.
fn list(seed: u64, id: u64, len: u64) -> Vec<u64> {
    let mut draws = draws(seed, 1 << 32 | id);
    let mut block = 0;
    let mut next = || {
        block += 1 + draws.below(GAP);
        block
    };
    (0..len).map(|_| next()).collect()
}

/// Runs all four operations once with one key, which is unchanged afterwards, and returns their times. All results are
/// checked against the list.
fn turn(index: &mut dyn Index, key: u64, list: &[u64], mut draws: Draws) -> Result<[Duration; 4]> {
    let same = |same: bool, what: &str| {
        if same { Ok(()) } else { wrong(format!("{what} is not what the list of changes says")) }
    };
    let last = list.last().copied().unwrap_or(0);
    let further: Vec<u64> = (last + 1..=last + APPENDS).collect();
    let (append, ()) = tried(|| further.chunks(1).try_for_each(|block| index.append(key, block)))?;
    let expected: Vec<_> = further.iter().copied().map(Some).collect();
    same(index.last_at(key, &further)? == expected, "an append")?;
    let (unwind, ()) = tried(|| index.unwind(key, last))?;
    same(index.last_at(key, &[u64::MAX])? == [Some(last)], "what an unwind has left")?;

    let blocks: Vec<u64> = (0..QUERIES).map(|_| draws.below(last + GAP)).collect();
    let (point, found) = tried(|| index.last_at(key, &blocks))?;
    let before = |block: &u64| list.partition_point(|change| change <= block).checked_sub(1);
    let expected = blocks.iter().map(|block| before(block).map(|at| list[at]));
    same(expected.eq(found), "a point query")?;
    let (scan, found) = tried(|| index.scan(key))?;
    same(found == list, "a scan")?;
    Ok([append, point, scan, unwind])
}

/// An index of blocks at which keys have changed. Keys are numbers here.
trait Index {
    /// The first keys have changed at these blocks, and `others` more at block 0 alone.
    fn build(&mut self, lists: &[Vec<u64>], others: u64) -> Result<()>;
    /// A key has changed at these blocks: one commit.
    fn append(&mut self, key: u64, blocks: &[u64]) -> Result<()>;
    /// The last change at or before each of these blocks, all of one view.
    fn last_at(&mut self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>>;
    /// All changes of a key.
    fn scan(&mut self, key: u64) -> Result<Vec<u64>>;
    /// Removes the changes of a key after a block: one commit.
    fn unwind(&mut self, key: u64, to: u64) -> Result<()>;
}

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("pleach")(error)
}

/// The history of a database: each block of a key is a commit.
struct PleachIndex {
    db: Db,
    /// Of each key its blocks, with their commits: both ascend. A rollback takes blocks away, not commits.
    chains: Vec<Vec<(u64, u64)>>,
}

impl PleachIndex {
    /// Changes a key in a block.
    fn change(&mut self, key: u64, block: u64) -> Result<()> {
        let value = Value::from(block.to_le_bytes().as_slice());
        let write = Access::write(account_key(key), Some(value)).in_namespace(NAMESPACE);
        let session = self.db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let commit = session.finish(vec![write]).map_err(wrap)?.commit().map_err(wrap)?;
        self.chain(key).push((block, commit));
        Ok(())
    }

    fn chain(&mut self, key: u64) -> &mut Vec<(u64, u64)> {
        &mut self.chains[usize::try_from(key).expect("a list of few")]
    }

    /// The blocks among commits that changed a key, which go on from a place of its chain.
    fn blocks(
        &self,
        key: u64,
        mut near: usize,
        commits: impl Iterator<Item = pleach::Result<u64>>,
    ) -> impl Iterator<Item = Result<u64>> {
        let chain = &self.chains[usize::try_from(key).expect("a list of few")];
        commits.filter_map(move |commit| {
            let commit = match commit {
                Ok(commit) => commit,
                Err(error) => return Some(Err(wrap(error))),
            };
            near = lower_bound_near(near, chain.len(), |at| chain[at].1 < commit);
            let known = chain.get(near).filter(|known| known.1 == commit);
            near += 1;
            known.map(|known| Ok(known.0))
        })
    }
}

impl Index for PleachIndex {
    fn build(&mut self, lists: &[Vec<u64>], others: u64) -> Result<()> {
        let ids = lists.len() as u64..lists.len() as u64 + others;
        let pairs = ids.map(|id| (account_key(id), Value::from([0; 8].as_slice())));
        let options = LoadOptions::new().namespace(NAMESPACE);
        self.db.bulk_load(pairs, &options).map_err(wrap)?;
        self.chains = vec![Vec::new(); lists.len()];
        let keys = (0..).zip(lists).flat_map(|(key, list)| list.iter().map(move |at| (*at, key)));
        let mut changes: Vec<(u64, u64)> = keys.collect();
        changes.sort_unstable();
        changes.into_iter().try_for_each(|(block, key)| self.change(key, block))
    }

    fn append(&mut self, key: u64, blocks: &[u64]) -> Result<()> {
        blocks.iter().try_for_each(|block| self.change(key, *block))
    }

    fn last_at(&mut self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>> {
        let last_at = |block: &u64| {
            let chain = &self.chains[usize::try_from(key).expect("a list of few")];
            // Gaps between blocks are even.
            let guess = block.saturating_mul(chain.len() as u64)
                / chain.last().map_or(1, |last| last.0.max(1));
            let guess = usize::try_from(guess).unwrap_or(usize::MAX);
            let behind = lower_bound_near(guess, chain.len(), |at| chain[at].0 <= *block);
            let Some(at) = behind.checked_sub(1) else { return Ok(None) };
            // The newest commit through which the chain is at this block.
            let until = chain.get(at + 1).map_or(u64::MAX, |next| next.1 - 1);
            let commits = self.db.changes_of(NAMESPACE, &account_key(key), ..=until);
            self.blocks(key, at, commits.rev()).next().transpose()
        };
        blocks.iter().map(last_at).collect()
    }

    fn scan(&mut self, key: u64) -> Result<Vec<u64>> {
        self.blocks(key, 0, self.db.changes_of(NAMESPACE, &account_key(key), ..)).collect()
    }

    fn unwind(&mut self, key: u64, to: u64) -> Result<()> {
        let chain = self.chain(key);
        let kept = chain.partition_point(|(block, _)| *block <= to);
        let Some((_, first)) = chain.get(kept).copied() else { return Ok(()) };
        chain.truncate(kept);
        self.db.rollback_to(first - 1).map(drop).map_err(wrap)
    }
}

/// A sharded index in an ordered store: each shard under its key and its last number, but the newest under the largest
/// one, so that a read finds the shard that is appended to, and a seek the one that has a block.
struct StoreIndex<'a> {
    engine: &'a mut dyn Engine,
    reader: Box<dyn Reader>,
    /// Changes of a shard.
    shard: u64,
    sync: bool,
}

/// The newest shard, as a last number.
const NEWEST: u64 = u64::MAX;

/// Where the shard of a key with this last number is.
fn at(key: u64, last: u64) -> PlainKey {
    key.to_be_bytes().into_iter().chain(last.to_be_bytes()).collect()
}

/// What a shard's list of numbers has in front.
#[derive(Clone, Copy, Default)]
struct Head {
    count: u64,
    last: u64,
    /// One more than the last number of the shard before, which so is found too; 0 of the first.
    from: u64,
}

impl Head {
    const BYTES: usize = 24;

    /// A shard behind those before, and its value.
    fn after(from: u64) -> (Self, Vec<u8>) {
        (Self { from, ..Self::default() }, vec![0; Self::BYTES])
    }

    fn parse(value: &[u8]) -> Result<(Self, &[u8])> {
        let (head, list) =
            value.split_first_chunk::<{ Self::BYTES }>().ok_or_else(|| damaged(()))?;
        let mut parts = head.as_chunks().0.iter().map(|part| u64::from_le_bytes(*part));
        let mut part = || parts.next().unwrap_or(0);
        Ok((Self { count: part(), last: part(), from: part() }, list))
    }

    fn push(&mut self, value: &mut Vec<u8>, number: u64) {
        push(value, (self.count > 0).then_some(self.last), number);
        (self.count, self.last) = (self.count + 1, number);
    }

    /// The value, with this in front.
    fn on<'a>(&self, value: &'a mut [u8]) -> &'a [u8] {
        for (part, number) in value.chunks_mut(8).zip([self.count, self.last, self.from]) {
            part.copy_from_slice(&number.to_le_bytes());
        }
        value
    }
}

fn damaged<E>(_: E) -> Error {
    Error::Wrong("a shard is damaged".to_owned())
}

/// Appends numbers to the newest shard of a key, which has this value. Gives all that is to be stored to `put`.
fn append(
    (mut head, mut value): (Head, Vec<u8>),
    key: u64,
    numbers: &[u64],
    shard: u64,
    put: &mut dyn FnMut(PlainKey, &[u8]) -> Result<()>,
) -> Result<()> {
    for &number in numbers {
        if head.count == shard {
            put(at(key, head.last), head.on(&mut value))?;
            (head, value) = Head::after(head.last + 1);
        }
        head.push(&mut value, number);
    }
    put(at(key, NEWEST), head.on(&mut value))
}

impl Index for StoreIndex<'_> {
    fn build(&mut self, lists: &[Vec<u64>], others: u64) -> Result<()> {
        let mut pairs: Vec<Pair> = Vec::new();
        let others = (0..others).map(|_| &[0][..]);
        for (key, list) in (0..).zip(lists.iter().map(Vec::as_slice).chain(others)) {
            append(Head::after(0), key, list, self.shard, &mut |name, value| {
                pairs.push((name, Value::from(value)));
                Ok(())
            })?;
        }
        self.engine.load(&mut pairs.into_iter())
    }

    fn append(&mut self, key: u64, blocks: &[u64]) -> Result<()> {
        let shard = self.shard;
        self.engine.transact(self.sync, &mut |tx| {
            let mut value = Vec::new();
            let is_there = tx.get(&at(key, NEWEST), &mut value)?;
            let newest = if is_there { (Head::parse(&value)?.0, value) } else { Head::after(0) };
            append(newest, key, blocks, shard, &mut |name, value| tx.put(&name, Some(value)))
        })
    }

    fn last_at(&mut self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>> {
        let mut found = Vec::with_capacity(blocks.len());
        self.reader.view(&mut |view| {
            for &block in blocks {
                let mut last = Ok(None);
                view.scan(&at(key, block), &mut |name, value| {
                    if name.starts_with(&key.to_be_bytes()) {
                        last = last_of(value, block);
                    }
                    false
                })?;
                found.push(last?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn scan(&mut self, key: u64) -> Result<Vec<u64>> {
        let (mut numbers, mut done) = (Vec::new(), Ok(()));
        self.reader.view(&mut |view| {
            view.scan(&at(key, 0), &mut |name, value| {
                let is_its = name.starts_with(&key.to_be_bytes());
                if is_its {
                    done = Head::parse(value).and_then(|(_, list)| {
                        Numbers::new(list).try_for_each(|number| {
                            numbers.push(number.map_err(damaged)?);
                            Ok(())
                        })
                    });
                }
                is_its && done.is_ok()
            })
        })?;
        done.map(|()| numbers)
    }

    fn unwind(&mut self, key: u64, to: u64) -> Result<()> {
        self.engine.transact(self.sync, &mut |tx| {
            let (mut last, mut value) = (NEWEST, Vec::new());
            while tx.get(&at(key, last), &mut value)? {
                let (mut head, list) = Head::parse(&value)?;
                tx.put(&at(key, last), None)?;
                if head.from > to.saturating_add(1) {
                    last = head.from - 1;
                    continue;
                }
                let kept = last_at_most(list, to).map_err(damaged)?;
                head.count = kept.map_or(0, |(before, _)| before + 1);
                let (list, last) = first(list, head.count).map_err(damaged)?;
                let length = Head::BYTES + list.len();
                value.truncate(length);
                head.last = last.unwrap_or(0);
                // An empty shard has the last number of the shard before, if there is one.
                if head.count + head.from > 0 {
                    tx.put(&at(key, NEWEST), Some(head.on(&mut value)))?;
                }
                break;
            }
            Ok(())
        })
    }
}

/// The last number at or before a block, which the shard has or the one before ends with.
fn last_of(value: &[u8], block: u64) -> Result<Option<u64>> {
    let (head, list) = Head::parse(value)?;
    if head.count > 0 && head.last <= block {
        return Ok(Some(head.last));
    }
    let found = last_at_most(list, block).map_err(damaged)?.map(|found| found.1);
    Ok(found.or(head.from.checked_sub(1)))
}
