//! `nomt-bench erc20`: blocks of token transfers over accounts and contracts' slots.

use std::collections::HashMap;
use std::path::Path;

use pleach::Key;

use super::ledger::{Item, Ledger, Transfer, changes, execute, items, read};
use super::sheet::{Timed, Timings, Turn};
use super::states::{States, contents, expected};
use super::{Sheet, draws};
use crate::args::parts::Erc20Args;
use crate::backend::Root;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::text::grouped;
use crate::trees::{Ground, Tree};

/// Up to this many keys all are read back, and the root is that of a load of a plain map.
const REPLAYED: u64 = 1 << 20;

/// What is timed of a state.
struct Names {
    import: &'static str,
    execute: &'static str,
    /// All that a block writes: a root's finish and commit together, or the batch of a plain store. A commit alone is
    /// an append to a log, beside which no store's write stands.
    write: &'static str,
    /// Of a state with a root, both apart.
    parts: Option<[&'static str; 2]>,
}

const NAMES: Names = Names {
    import: "genesis import",
    execute: "execute",
    write: "finish + commit, synced",
    parts: Some(["finish (the root)", "commit, synced"]),
};
/// A plain store has no root to be made. What it is timed for has names of its own, so that no claim is made of it.
const FLAT: Names = Names {
    import: "genesis import, flat",
    execute: "execute, flat",
    write: "write, synced, flat",
    parts: None,
};

/// Nothing of it is ever synced.
const IN_MEMORY: Names =
    Names { import: "genesis import, in memory, flat", write: "write, in memory, flat", ..FLAT };

impl Names {
    const fn of(ground: Ground) -> &'static Self {
        if let Ground::Flat(engine) = ground {
            if engine.has_files() { &FLAT } else { &IN_MEMORY }
        } else {
            &NAMES
        }
    }
}

/// A state under test.
struct Side {
    ground: Ground,
    tree: Box<dyn Tree>,
    /// After its newest block.
    root: Option<Root>,
}

/// Measures the import and the blocks; the databases are made in a folder.
pub(crate) fn run(args: &Erc20Args, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let ledger = Ledger { eoa: args.eoa, contracts: args.contracts, slots: args.slots };
    let all = |_| Ok(());
    let states = States::new(&args.states, (args.storage.cache_mib(), ledger.keys()), all, sheet)?;
    states.fit()?;
    let mut timings = Timings::default();
    let mut sides = Vec::new();
    for &ground in &states.grounds {
        interrupt::check()?;
        let mut tree = states.open(ground, &at.join(ground.name()))?;
        let (import, loaded) = Turn::of(|| tree.load(&mut ledger.genesis()));
        loaded?;
        timings.add(
            Timed { what: Names::of(ground).import, subject: ground.name() },
            ledger.keys(),
            import.took,
        );
        states.note(ground, &*tree, sheet);
        let root = tree.root();
        sides.push(Side { ground, tree, root });
    }
    same_roots(&sides)?;
    let mut random = draws(args.results.seed, 0);
    let mut known: HashMap<Item, u64> = HashMap::new();
    let mut transfers = 0_u64;
    for block in 0..args.blocks {
        let stopped = interrupt::check();
        if stopped.is_err() && block > 0 {
            sheet.notes.push(format!("ended after {block} blocks of {}", args.blocks));
            break;
        }
        stopped?;
        let drawn: Vec<Transfer> = (0..args.transfers).map(|_| ledger.draw(&mut random)).collect();
        let mut after = HashMap::new();
        for turn in 0..sides.len() {
            // All do the same block, in reversed order every second time.
            let at = if block % 2 == 0 { turn } else { sides.len() - 1 - turn };
            let side = &mut sides[at];
            let ([execute, finish, commit], made) = one(side, &ledger, &drawn, &known)?;
            let (names, subject) = (Names::of(side.ground), side.ground.name());
            let mut add = |what, took| timings.add(Timed { what, subject }, 1, took);
            add(names.execute, execute.took);
            if let Some([of_finish, of_commit]) = names.parts {
                add(of_finish, finish.took);
                add(of_commit, commit.took);
            }
            add(names.write, finish.took + commit.took);
            after = made;
        }
        known.extend(after);
        same_roots(&sides)?;
        transfers += args.transfers;
        bar.at(block + 1, args.blocks);
    }
    let names: Vec<&'static str> = states.grounds.iter().map(|ground| ground.name()).collect();
    let case =
        format!("{} keys, blocks of {} transfers", grouped(ledger.keys()), grouped(args.transfers));
    sheet.timings(&case, &timings, &names);
    if states.grounds.iter().any(|ground| !ground.is_merkle()) {
        sheet.notes.push(
            "rows marked flat are of stores that make no root: beside finish + commit they show what a root costs"
                .to_owned(),
        );
    }
    verify(&states, &mut sides, &ledger, &known, at, sheet)?;
    sheet.notes.push(format!(
        "{} transfers, {} keys were touched; all of them were read back",
        grouped(transfers),
        grouped(known.len() as u64)
    ));
    sides.into_iter().try_for_each(|side| side.tree.close())
}

/// States with the same commitment have the same root.
fn same_roots(sides: &[Side]) -> Result<()> {
    let mut ours = sides.iter().filter(|side| side.ground.has_our_roots());
    let Some(first) = ours.next() else { return Ok(()) };
    match ours.find(|side| side.root != first.root) {
        None => Ok(()),
        Some(other) => {
            let (first, other) = (first.ground.name(), other.ground.name());
            Err(BenchError::Wrong(format!("{first} and {other} have different roots")))
        }
    }
}

fn one(
    side: &mut Side,
    ledger: &Ledger,
    block: &[Transfer],
    known: &HashMap<Item, u64>,
) -> Result<([Turn; 3], HashMap<Item, u64>)> {
    let wrong = |what: &str| BenchError::Wrong(format!("{}: {what}", side.ground.name()));
    if side.tree.root() != side.root {
        return Err(wrong("its root is not the last block's"));
    }
    let tree = &mut *side.tree;
    let (executed, done) = Turn::of(|| {
        tree.begin()?;
        let items = items(ledger, block);
        let before = read(tree, &items)?;
        let mut after = before.clone();
        execute(ledger, block, &mut after)?;
        Ok::<_, BenchError>((items, before, after))
    });
    let (items, before, after) = done?;
    let changes = changes(&items, &after);
    let (finished, made) = Turn::of(|| tree.finish(changes));
    side.root = made?.root;
    let (committed, done) = Turn::of(|| tree.commit());
    done?;
    // What was read is what the blocks before have left.
    let expected = |item: &Item| known.get(item).copied().unwrap_or(item.beginning());
    if before.iter().any(|(item, number)| *number != expected(item)) {
        return Err(wrong("a block read what no block before had left"));
    }
    Ok(([executed, finished, committed], after))
}

/// Everything that was touched, and if there are not too many, all contents; the root, where it is ours.
fn verify(
    states: &States,
    sides: &mut [Side],
    ledger: &Ledger,
    known: &HashMap<Item, u64>,
    at: &Path,
    sheet: &mut Sheet,
) -> Result<()> {
    let number = |item: Item| known.get(&item).copied().unwrap_or(item.beginning());
    let all = ledger.keys() <= REPLAYED;
    let digest = all.then(|| expected(ledger, number));
    let root = if all { Some(replayed(states, ledger, number, at)?) } else { None };
    let items: Vec<Item> = known.keys().copied().collect();
    for side in sides {
        let name = side.ground.name();
        let wrong = |what: &str| Err(BenchError::Wrong(format!("{name}: {what}")));
        if read(&mut *side.tree, &items)? != *known {
            return wrong("what was touched is not what is there");
        }
        if let Some(digest) = digest
            && contents(&mut *side.tree, ledger)? != digest
        {
            return wrong("the contents are not those of the replay");
        }
        if root.is_some_and(|root| side.ground.has_our_roots() && side.root != Some(root)) {
            return wrong("the root is not that of the replay");
        }
    }
    if let Some(digest) = digest {
        sheet.notes.push(format!("all contents were read back; their digest is {digest}"));
    }
    Ok(())
}

/// The root of the contents that should be there, by a load.
fn replayed(
    states: &States,
    ledger: &Ledger,
    number: impl Fn(Item) -> u64,
    at: &Path,
) -> Result<Root> {
    let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
    let mut tree = states.open(Ground::Pleach, folder.path())?;
    let pair = |item: Item| -> (Key, Vec<u8>) { (item.key(), item.value(number(item)).to_vec()) };
    tree.load(&mut ledger.items().map(pair))?;
    let root = tree.root();
    tree.close()?;
    root.ok_or_else(|| BenchError::Wrong("a load has no root".to_owned()))
}
