//! `nomt-bench history`: an index of the blocks at which keys have changed, for lists of several lengths.

mod indexes;

use std::cell::RefCell;
use std::path::Path;

use super::engine::open;
use super::sheet::{Subject, Turn};
use super::{Sheet, draws};
use crate::args::stores::{HistoryArgs, Shards};
use crate::error::{BenchError, Result};
use crate::measure::float;
use crate::progress::Progress;
use crate::stores::{self, Engine, StoreOptions};
use crate::text::grouped;
use indexes::{Index, OfPleach, OfStore};

/// Appends of a turn, a commit each, and blocks of an unwind.
const APPENDS: u64 = 100;
/// Point queries of a turn.
const QUERIES: u64 = 1000;
/// Blocks between two changes of the key, at most.
const GAP: u64 = 20;

/// Measures all lengths of shards and lists; databases are made in a folder.
pub(crate) fn run(args: &HistoryArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let engines = stores::chosen(&args.stores.backend)?;
    let peer_args = stores::peer_args(&args.stores.settings.peer_arg, &args.stores.backend)?;
    let lists: Vec<Vec<u64>> = (0..).zip(&args.len).map(|(id, len)| list(args, id, *len)).collect();
    for &shards in &args.shards {
        let mut sides = Vec::new();
        for &engine in &engines {
            let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
            let options = StoreOptions {
                durable: false,
                peer_args: peer_args.clone(),
                ..StoreOptions::new(folder.path(), args.storage.cache_mib())
            };
            let mut index: Box<dyn Index> = if engine == Engine::Pleach {
                let db = open(folder.path(), args.storage.cache_mib())?;
                Box::new(OfPleach::new(db, shards.0)?)
            } else {
                Box::new(OfStore::new(stores::open(engine, &options)?, shards.0))
            };
            index.build(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>(), args.keys)?;
            let index = RefCell::new(index);
            sides.push(Side { engine, index, _folder: folder });
        }
        let bench = Bench { args, lists: &lists, sides: &sides };
        bench.measure(shards, bar, sheet)?;
        for side in sides {
            side.index.into_inner().close()?;
        }
    }
    Ok(())
}

/// Blocks at which a key changes.
fn list(args: &HistoryArgs, id: u64, len: u64) -> Vec<u64> {
    let mut random = draws(args.parts.results.seed, 1 << 32 | id);
    let mut block = 0;
    let mut next = || {
        block += 1 + random.below(GAP);
        block
    };
    (0..len).map(|_| next()).collect()
}

struct Side {
    engine: Engine,
    index: RefCell<Box<dyn Index>>,
    _folder: tempfile::TempDir,
}

struct Bench<'a> {
    args: &'a HistoryArgs,
    lists: &'a [Vec<u64>],
    sides: &'a [Side],
}

/// What a turn does with one key of one side.
type Work<'a> = dyn Fn(&Side, u64, &'a [u64], u64) -> Result<Turn> + 'a;

fn same<T: PartialEq>(side: &Side, what: &str, found: &T, expected: &T) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(BenchError::Wrong(format!("{}: {what} is not what the list says", side.engine.name())))
}

impl<'a> Bench<'a> {
    fn measure(&self, shards: Shards, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let scanned = self.lists.iter().map(Vec::len).max().unwrap_or(0) as u64;
        let seed = self.args.parts.results.seed;
        let point =
            move |side: &Side, key, list: &'a [u64], round| point(side, key, list, seed, round);
        // Writes of stores that a kill may take them from have cases of their own, so that no ratio is made of stores
        // that promise different things.
        let (kept, lost) = (Some(true), Some(false));
        let cases: [(&str, Option<bool>, u64, &Work<'a>); 6] = [
            ("append one, no commit synced, survives a kill", kept, APPENDS, &append),
            ("append one, no commit synced, may be lost on a kill", lost, APPENDS, &append),
            ("point query", None, QUERIES, &point),
            ("full scan", None, scanned, &scan),
            ("unwind 100, no commit synced, survives a kill", kept, 1, &unwind),
            ("unwind 100, no commit synced, may be lost on a kill", lost, 1, &unwind),
        ];
        for (name, survives, operations, work) in cases {
            let mut subjects: Vec<Subject<'_>> = Vec::new();
            let mut of = Vec::new();
            let fits = |side: &&Side| survives.is_none_or(|it| it == side.engine.survives_a_kill());
            for side in self.sides.iter().filter(fits) {
                for (key, list) in (0_u64..).zip(self.lists) {
                    let subject =
                        format!("{}, {} changes", side.engine.name(), grouped(list.len() as u64));
                    let turn = move |round| work(side, key, list, round);
                    subjects.push((subject, Box::new(turn)));
                    of.push(if name == "full scan" { list.len() as u64 } else { operations });
                }
            }
            if subjects.is_empty() {
                continue;
            }
            let rows = sheet.rows.len();
            let case = format!("{name}, {shards}");
            sheet.case(bar, (&case, operations), self.args.parts.rounds(), subjects)?;
            let first = of.first().copied().unwrap_or(1);
            for (row, operations) in sheet.rows[rows..].iter_mut().zip(of) {
                row.operations = operations;
                // Of each operation: a scan of a longer list has more of them.
                row.ratio *= float(first) / float(operations.max(1));
            }
        }
        Ok(())
    }
}

/// Blocks behind a list.
fn further(list: &[u64]) -> (u64, Vec<u64>) {
    let last = list.last().copied().unwrap_or(0);
    (last, (last + 1..=last + APPENDS).collect())
}

fn append(side: &Side, key: u64, list: &[u64], _round: u64) -> Result<Turn> {
    let mut index = side.index.borrow_mut();
    let (last, blocks) = further(list);
    let (turn, done) = Turn::of(|| index.append(key, &blocks, false));
    done?;
    let found = index.last_at(key, &blocks)?;
    same(side, "an append", &found, &blocks.iter().copied().map(Some).collect())?;
    index.unwind(key, last)?;
    Ok(turn)
}

fn point(side: &Side, key: u64, list: &[u64], seed: u64, round: u64) -> Result<Turn> {
    let index = side.index.borrow();
    let mut random = draws(seed, round << 8 | key);
    let bound = list.last().copied().unwrap_or(0) + GAP;
    let blocks: Vec<u64> = (0..QUERIES).map(|_| random.below(bound)).collect();
    let (turn, found) = Turn::of(|| index.last_at(key, &blocks));
    let expected = |block: &u64| {
        let behind = list.partition_point(|change| change <= block);
        behind.checked_sub(1).map(|at| list[at])
    };
    same(side, "a point query", &found?, &blocks.iter().map(expected).collect())?;
    Ok(turn)
}

fn scan(side: &Side, key: u64, list: &[u64], _round: u64) -> Result<Turn> {
    let index = side.index.borrow();
    let (turn, found) = Turn::of(|| index.scan(key));
    same(side, "a scan", &found?.as_slice(), &list)?;
    Ok(turn)
}

fn unwind(side: &Side, key: u64, list: &[u64], _round: u64) -> Result<Turn> {
    let mut index = side.index.borrow_mut();
    let (last, blocks) = further(list);
    index.append(key, &blocks, true)?;
    let (turn, done) = Turn::of(|| index.unwind(key, last));
    done?;
    same(side, "what an unwind has left", &index.last_at(key, &[u64::MAX])?, &vec![Some(last)])?;
    Ok(turn)
}
