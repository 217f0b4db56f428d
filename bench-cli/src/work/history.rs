//! `history`: an index of the blocks at which keys have changed, as the sharded-bitmap benchmark defines it. This
//! project's engine has a crate for that, over a namespace of it; the others get the same as is usual in ordered stores.

use core::time::Duration;

use pleach::{AccessKind, Key, LoadOptions, Namespace, Pleach, SessionOptions, Value};
use pleach_change_index::internals::{Numbers, first, last_at_most, push};
use pleach_change_index::{ChangeIndex, Stage};
use serde::{Deserialize, Serialize};

use super::{Plan, draws};
use crate::cli::{Durability, count};
use crate::draw::{Draws, account_key};
use crate::engine::{Engine, Kind, Name, Pair, Reader, View};
use crate::error::{Error, Result, of_engine, wrong};
use crate::job::Side;
use crate::measure::{Times, grouped, hex, timed};

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
    /// Changes of a shard, or none for one value a key
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
    pub fn plan(&self) -> Plan {
        let runs =
            |kind: Kind| if kind.caps().views { Ok(()) } else { Err("it has no ordered seek") };
        let keys = self.keys + self.len.iter().sum::<u64>() / 100;
        Plan { durability: Durability::None, keys, runs, ..Plan::ROUNDS }
    }
}

/// The workload.
pub fn run(args: &HistoryArgs, side: &mut Side) -> Result<()> {
    let seed = side.flags.seed;
    let lists: Vec<Vec<u64>> = (0..).zip(&args.len).map(|(id, len)| list(seed, id, *len)).collect();
    for &shard in &args.shards {
        let folder = side.scratch()?;
        let mut engine = side.open_in(folder.path().to_owned(), args.plan().keys, false)?;
        side.settings(&*engine)?;
        let mut index: Box<dyn Index + '_> = match engine.as_pleach() {
            Some(ours) => {
                ours.add_storage()?;
                Box::new(OfPleach {
                    db: ours.db.clone(),
                    index: ChangeIndex::new(NAMESPACE, shard).map_err(wrap)?,
                })
            }
            None => Box::new(OfStore {
                sync: side.flags.durability == Durability::Commit,
                shard: shard as usize,
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
        if side.stopped() {
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

/// Does all four once with one key, which is then as it was: what they took. Everything is compared with the list.
fn turn(index: &mut dyn Index, key: u64, list: &[u64], mut draws: Draws) -> Result<[Duration; 4]> {
    let same = |same: bool, what: &str| {
        if same { Ok(()) } else { wrong(format!("{what} is not what the list of changes says")) }
    };
    let last = list.last().copied().unwrap_or(0);
    let further: Vec<u64> = (last + 1..=last + APPENDS).collect();
    let (append, done) = timed(|| further.chunks(1).try_for_each(|block| index.append(key, block)));
    done?;
    let expected: Vec<_> = further.iter().copied().map(Some).collect();
    same(index.last_at(key, &further)? == expected, "an append")?;
    let (unwind, done) = timed(|| index.unwind(key, last));
    done?;
    same(index.last_at(key, &[u64::MAX])? == [Some(last)], "what an unwind has left")?;

    let blocks: Vec<u64> = (0..QUERIES).map(|_| draws.below(last + GAP)).collect();
    let (point, found) = timed(|| index.last_at(key, &blocks));
    let before = |block: &u64| list.partition_point(|change| change <= block).checked_sub(1);
    let expected = blocks.iter().map(|block| before(block).map(|at| list[at]));
    same(expected.eq(found?), "a point query")?;
    let (scan, found) = timed(|| index.scan(key));
    same(found? == list, "a scan")?;
    Ok([append, point, scan, unwind])
}

/// An index of blocks at which keys have changed. Keys are numbers here.
trait Index {
    /// The first keys have changed at these blocks, and so many others at block 0 alone.
    fn build(&mut self, lists: &[Vec<u64>], others: u64) -> Result<()>;
    /// A key has changed at these blocks: one commit.
    fn append(&mut self, key: u64, blocks: &[u64]) -> Result<()>;
    /// The last change at or before each of these blocks, all of one view.
    fn last_at(&mut self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>>;
    /// All changes of a key.
    fn scan(&mut self, key: u64) -> Result<Vec<u64>>;
    /// Forgets the changes of a key after a block: one commit.
    fn unwind(&mut self, key: u64, to: u64) -> Result<()>;
}

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("pleach")(error)
}

/// The change index in a namespace of a database.
struct OfPleach {
    db: Pleach,
    index: ChangeIndex,
}

impl OfPleach {
    fn read<T>(&self, work: impl FnOnce(&Namespace<'_>) -> Result<T>) -> Result<T> {
        let session = self.db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        work(&session.namespace(NAMESPACE).map_err(wrap)?)
    }

    fn write(
        &self,
        change: impl FnOnce(
            &mut Stage<'_, Namespace<'_>>,
        ) -> core::result::Result<(), pleach_change_index::Error>,
    ) -> Result<()> {
        let session = self.db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let namespace = session.namespace(NAMESPACE).map_err(wrap)?;
        let mut stage = self.index.stage(&namespace);
        change(&mut stage).map_err(wrap)?;
        let accesses = stage.into_accesses();
        session.finish(accesses).map_err(wrap)?.commit().map(drop).map_err(wrap)
    }
}

impl Index for OfPleach {
    fn build(&mut self, lists: &[Vec<u64>], others: u64) -> Result<()> {
        // What a stage makes of an empty state is loaded at once.
        let accesses = self.read(|namespace| {
            let mut stage = self.index.stage(namespace);
            for (id, list) in (0..).zip(lists) {
                let key = [account_key(id)];
                list.iter().try_for_each(|block| stage.append(*block, &key)).map_err(wrap)?;
            }
            let ids = lists.len() as u64..lists.len() as u64 + others;
            stage.append(0, &ids.map(account_key).collect::<Vec<Key>>()).map_err(wrap)?;
            Ok(stage.into_accesses())
        })?;
        let pairs = accesses.into_iter().filter_map(|access| match access.kind {
            AccessKind::Read => None,
            AccessKind::Write(value) | AccessKind::ReadWrite(value) => Some((access.key, value?)),
        });
        let options = LoadOptions::new().namespace(NAMESPACE);
        self.db.bulk_load(pairs, &options).map(drop).map_err(wrap)
    }

    fn append(&mut self, key: u64, blocks: &[u64]) -> Result<()> {
        let key = [account_key(key)];
        self.write(|stage| blocks.iter().try_for_each(|block| stage.append(*block, &key)))
    }

    fn last_at(&mut self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>> {
        let key = account_key(key);
        self.read(|namespace| {
            let ask = |block: &u64| self.index.last_at(namespace, &key, *block).map_err(wrap);
            blocks.iter().map(ask).collect()
        })
    }

    fn scan(&mut self, key: u64) -> Result<Vec<u64>> {
        self.read(|namespace| {
            let changes = self.index.changes(namespace, &account_key(key), ..).map_err(wrap)?;
            changes.map(|change| change.map_err(wrap)).collect()
        })
    }

    fn unwind(&mut self, key: u64, to: u64) -> Result<()> {
        self.write(|stage| stage.unwind(&[account_key(key)], to))
    }
}

/// A sharded index in an ordered store: each shard under its key and its first number, the newest first, so that one
/// seek finds the shard of a block, and the one that is open.
struct OfStore<'a> {
    engine: &'a mut dyn Engine,
    reader: Box<dyn Reader>,
    /// Changes of a shard.
    shard: usize,
    sync: bool,
}

/// Where a shard is, and how many numbers it has, the last of them, and their list.
struct Shard {
    key: Name,
    count: u64,
    last: u64,
    list: Vec<u8>,
}

impl Shard {
    /// Where the shard of a key with this first number is.
    fn at(key: u64, first: u64) -> Name {
        key.to_be_bytes().into_iter().chain((u64::MAX - first).to_be_bytes()).collect()
    }

    /// One of these numbers.
    fn new(key: u64, numbers: &[u64]) -> Self {
        let key = Self::at(key, numbers[0]);
        let mut shard = Self { key, count: 0, last: 0, list: Vec::new() };
        for number in numbers {
            shard.push(*number);
        }
        shard
    }

    fn push(&mut self, number: u64) {
        push(&mut self.list, (self.count > 0).then_some(self.last), number);
        (self.count, self.last) = (self.count + 1, number);
    }

    fn parse(key: &[u8], value: &[u8]) -> Option<Self> {
        let (count, rest) = value.split_first_chunk()?;
        let (last, list) = rest.split_first_chunk()?;
        let (count, last) = (u64::from_le_bytes(*count), u64::from_le_bytes(*last));
        Some(Self { key: Name::try_from(key).ok()?, count, last, list: list.to_vec() })
    }

    fn value(&self) -> Vec<u8> {
        [&self.count.to_le_bytes()[..], &self.last.to_le_bytes(), &self.list].concat()
    }
}

fn damaged<E>(_: E) -> Error {
    Error::Wrong("a shard is damaged".to_owned())
}

/// Shows the shards of a key, the newest first, from the one that has `block` on, until told to stop.
fn shards(
    view: &dyn View,
    key: u64,
    block: u64,
    mut each: impl FnMut(Shard) -> Result<bool>,
) -> Result<()> {
    let mut done = Ok(true);
    view.scan(&Shard::at(key, block), &mut |at, value| {
        if !at.starts_with(&key.to_be_bytes()) {
            return false;
        }
        done = Shard::parse(at, value).ok_or_else(|| damaged(())).and_then(&mut each);
        matches!(done, Ok(true))
    })?;
    done.map(drop)
}

/// The shard that has a block, or would have it.
fn newest(view: &dyn View, key: u64, block: u64) -> Result<Option<Shard>> {
    let mut found = None;
    shards(view, key, block, |shard| {
        found = Some(shard);
        Ok(false)
    })?;
    Ok(found)
}

impl OfStore<'_> {
    fn write(&mut self, gone: &[Shard], new: &[Shard]) -> Result<()> {
        self.engine.transact(self.sync, &mut |tx| {
            gone.iter().try_for_each(|shard| tx.put(&shard.key, None))?;
            new.iter().try_for_each(|shard| tx.put(&shard.key, Some(&shard.value())))
        })
    }
}

impl Index for OfStore<'_> {
    fn build(&mut self, lists: &[Vec<u64>], others: u64) -> Result<()> {
        let pair = |shard: Shard| (shard.key.clone(), Value::from(shard.value()));
        let long = (0..).zip(lists).flat_map(|(id, list)| {
            list.chunks(self.shard).map(move |numbers| Shard::new(id, numbers))
        });
        let from = lists.len() as u64;
        let others = (from..from + others).map(|id| Shard::new(id, &[0]));
        let mut pairs: Vec<Pair> = long.chain(others).map(pair).collect();
        pairs.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        self.engine.load(&mut pairs.into_iter())
    }

    fn append(&mut self, key: u64, blocks: &[u64]) -> Result<()> {
        let mut changed = Vec::new();
        self.reader.view(&mut |view| {
            changed = newest(view, key, u64::MAX)?.into_iter().collect();
            Ok(())
        })?;
        for &block in blocks {
            match changed.last_mut() {
                Some(open) if open.count < self.shard as u64 => open.push(block),
                _ => changed.push(Shard::new(key, &[block])),
            }
        }
        self.write(&[], &changed)
    }

    fn last_at(&mut self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>> {
        let mut found = Vec::new();
        self.reader.view(&mut |view| {
            for &block in blocks {
                found.push(match newest(view, key, block)? {
                    Some(shard) if shard.last <= block => Some(shard.last),
                    Some(shard) => {
                        last_at_most(&shard.list, block).map_err(damaged)?.map(|found| found.1)
                    }
                    None => None,
                });
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn scan(&mut self, key: u64) -> Result<Vec<u64>> {
        let mut lists = Vec::new();
        self.reader.view(&mut |view| {
            shards(view, key, u64::MAX, |shard| {
                lists.push(shard.list);
                Ok(true)
            })
        })?;
        let numbers = lists.iter().rev().flat_map(|list| Numbers::new(list));
        numbers.map(|number| number.map_err(damaged)).collect()
    }

    fn unwind(&mut self, key: u64, to: u64) -> Result<()> {
        let (mut gone, mut cut) = (Vec::new(), Vec::new());
        self.reader.view(&mut |view| {
            shards(view, key, u64::MAX, |mut shard| {
                let Some((before, last)) = last_at_most(&shard.list, to).map_err(damaged)? else {
                    gone.push(shard);
                    return Ok(true);
                };
                (shard.count, shard.last) = (before + 1, last);
                shard.list.truncate(first(&shard.list, before + 1).map_err(damaged)?.0.len());
                cut.push(shard);
                Ok(false)
            })
        })?;
        self.write(&gone, &cut)
    }
}
