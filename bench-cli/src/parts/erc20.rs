//! `nomt-bench erc20`: blocks of token transfers over accounts and contracts' slots.

use std::collections::HashMap;
use std::path::Path;

use pleach::{LoadOptions, Node, Pleach, SessionOptions};

use super::engine::{open_durable, wrap};
use super::ledger::{Item, Ledger, Transfer, accesses, execute, items, read};
use super::sheet::Turn;
use super::{Sheet, draws};
use crate::args::parts::Erc20Args;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::measure::Phase;
use crate::progress::Progress;
use crate::text::grouped;

/// Up to this many keys the final root is that of a load of a plain map.
const REPLAYED: u64 = 1 << 20;

/// Measures the import and the blocks; the database is made in a folder.
pub(crate) fn run(args: &Erc20Args, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let ledger = Ledger { eoa: args.eoa, contracts: args.contracts, slots: args.slots };
    let db = open_durable(at, args.storage.cache_mib())?;
    let keys = ledger.keys();
    let (import, report) = Turn::of(|| db.bulk_load(ledger.genesis(), &LoadOptions::new()));
    report.map_err(wrap)?;
    sheet.once("genesis import", &format!("{} keys", grouped(keys)), keys, import);
    let mut random = draws(args.parts.seed, 0);
    let mut phases = [(); 3].map(|()| Phase::new());
    let mut numbers: HashMap<Item, u64> = HashMap::new();
    let (mut transfers, mut last) = (0_u64, db.root());
    for block in 0..args.blocks {
        let stopped = interrupt::check();
        if stopped.is_err() && block > 0 {
            sheet.notes.push(format!("ended after {block} blocks of {}", args.blocks));
            break;
        }
        stopped?;
        let drawn: Vec<Transfer> = (0..args.transfers).map(|_| ledger.draw(&mut random)).collect();
        let (turns, root) = one(&db, &ledger, &drawn, &mut numbers, &last)?;
        for (phase, turn) in phases.iter_mut().zip(turns) {
            phase.record(turn.took);
        }
        (transfers, last) = (transfers + args.transfers, root);
        bar.at(block + 1, args.blocks);
    }
    let case = format!("blocks of {} transfers", grouped(args.transfers));
    let first = phases[0].quantiles();
    for (name, phase) in ["execute", "finish (the root)", "commit"].iter().zip(&phases) {
        sheet.latencies(&case, name, phase.quantiles(), first);
    }
    verify(&db, &ledger, &numbers, &last, at, args.storage.cache_mib())?;
    sheet.notes.push(format!(
        "{} transfers, {} keys were touched; all of them were read back",
        grouped(transfers),
        grouped(numbers.len() as u64)
    ));
    db.close().map_err(wrap)
}

fn one(
    db: &Pleach,
    ledger: &Ledger,
    block: &[Transfer],
    known: &mut HashMap<Item, u64>,
    last: &Node,
) -> Result<([Turn; 3], Node)> {
    let (executed, done) = Turn::of(|| {
        let session = db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let items = items(ledger, block);
        session.prefetch(&items.iter().map(|item| item.key()).collect::<Vec<_>>());
        let before = read(&session, &items)?;
        let mut after = before.clone();
        execute(ledger, block, &mut after)?;
        Ok::<_, BenchError>((session, items, before, after))
    });
    let (session, items, before, after) = done?;
    let (finished, made) = Turn::of(|| session.finish(accesses(&items, &after)));
    let made = made.map_err(wrap)?;
    let (root, prev_root) = (made.root(), made.prev_root());
    let (committed, number) = Turn::of(|| made.commit());
    number.map_err(wrap)?;
    // What was read is what the blocks before have left.
    let expected = |item: &Item| known.get(item).copied().unwrap_or(item.beginning());
    if prev_root != *last || before.iter().any(|(item, number)| *number != expected(item)) {
        return Err(BenchError::Wrong("a block read what no block before had left".to_owned()));
    }
    known.extend(after);
    Ok(([executed, finished, committed], root))
}

fn verify(
    db: &Pleach,
    ledger: &Ledger,
    known: &HashMap<Item, u64>,
    last: &Node,
    at: &Path,
    cache_mib: u64,
) -> Result<()> {
    let wrong = |what: &str| BenchError::Wrong(what.to_owned());
    if db.root() != *last {
        return Err(wrong("the root is not the last block's"));
    }
    let session = db.session(SessionOptions::new()).map_err(wrap)?;
    let items: Vec<Item> = known.keys().copied().collect();
    if read(&session, &items)? != *known {
        return Err(wrong("what was touched is not what is there"));
    }
    if ledger.keys() > REPLAYED {
        return Ok(());
    }
    let touched: HashMap<_, _> =
        known.iter().map(|(item, number)| (item.key(), item.value(*number))).collect();
    let pairs = ledger.genesis().map(|(key, value)| {
        let value = touched.get(&key).cloned().unwrap_or(value);
        (key, value)
    });
    let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
    let other = open_durable(folder.path(), cache_mib)?;
    let root = other.bulk_load(pairs, &LoadOptions::new()).map_err(wrap)?.root;
    other.close().map_err(wrap)?;
    if root == *last { Ok(()) } else { Err(wrong("the root is not that of the replay")) }
}
