//! `nomt-bench threshold`: executed blocks stay in memory, and are committed when enough are over them.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::path::Path;

use pleach::{LoadOptions, Node, Overlay, SessionOptions};

use super::engine::{open_durable, wrap};
use super::ledger::{Item, Ledger, Transfer, accesses, execute, items, read};
use super::sheet::{Subject, Turn};
use super::{Sheet, draws};
use crate::args::parts::ThresholdArgs;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::measure::Phase;
use crate::progress::Progress;

const LEDGER: Ledger = Ledger { eoa: 20_000, contracts: 5_000, slots: 10 };
/// Transfers of a block.
const TRANSFERS: usize = 1000;

/// Latencies of a window's blocks.
struct Phases {
    block: Phase,
    finish: Phase,
    commit: Phase,
}

/// One of a window's latencies.
type Figure = fn(&Phases) -> &Phase;

/// Measures all windows; databases are made in a folder.
pub(crate) fn run(
    args: &ThresholdArgs,
    at: &Path,
    bar: &Progress,
    sheet: &mut Sheet,
) -> Result<()> {
    let mut random = draws(args.parts.seed, 0);
    let blocks: Vec<Vec<Transfer>> = (0..args.blocks)
        .map(|_| (0..TRANSFERS).map(|_| LEDGER.draw(&mut random)).collect())
        .collect();
    let root = replayed(&blocks, at, args.storage.cache_mib())?;
    let phases: Vec<RefCell<Phases>> = args
        .window
        .iter()
        .map(|_| {
            let [block, finish, commit] = [(); 3].map(|()| Phase::new());
            RefCell::new(Phases { block, finish, commit })
        })
        .collect();
    let subjects = args.window.iter().zip(&phases).map(|(window, phases)| -> Subject<'_> {
        let (blocks, root) = (&blocks, &root);
        let turn = move |round| {
            let mut phases = phases.borrow_mut();
            // The first round does not count.
            let phases = (round > 0).then_some(&mut *phases);
            one(args, at, *window, blocks, root, phases)
        };
        (format!("window {window}"), Box::new(turn))
    });
    let name = format!("{} blocks, committed and drained", args.blocks);
    sheet.case(bar, (&name, args.blocks), args.parts.rounds(), subjects.collect())?;
    let each: [(&str, Figure); 3] = [
        ("a block", |phases| &phases.block),
        ("its finish", |phases| &phases.finish),
        ("a commit", |phases| &phases.commit),
    ];
    for (what, of) in each {
        let first = of(&phases[0].borrow()).quantiles();
        for (window, phases) in args.window.iter().zip(&phases) {
            let quantiles = of(&phases.borrow()).quantiles();
            sheet.latencies(what, &format!("window {window}"), quantiles, first);
        }
    }
    Ok(())
}

/// The root after all blocks, by a plain map and a load of what is in it then.
fn replayed(blocks: &[Vec<Transfer>], at: &Path, cache_mib: u64) -> Result<Node> {
    let accounts = (0..LEDGER.eoa + LEDGER.contracts).map(Item::Account);
    let slots = (LEDGER.eoa..LEDGER.eoa + LEDGER.contracts)
        .flat_map(|contract| (0..LEDGER.slots).map(move |slot| Item::Slot { contract, slot }));
    let mut numbers: HashMap<Item, u64> =
        accounts.chain(slots).map(|item| (item, item.beginning())).collect();
    for block in blocks {
        execute(&LEDGER, block, &mut numbers)?;
    }
    let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
    let db = open_durable(folder.path(), cache_mib)?;
    let pairs = numbers.iter().map(|(item, number)| (item.key(), item.value(*number)));
    let root = db.bulk_load(pairs, &LoadOptions::new()).map_err(wrap)?.root;
    db.close().map_err(wrap)?;
    Ok(root)
}

fn one(
    args: &ThresholdArgs,
    at: &Path,
    window: u64,
    blocks: &[Vec<Transfer>],
    root: &Node,
    mut phases: Option<&mut Phases>,
) -> Result<Turn> {
    let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
    let db = open_durable(folder.path(), args.storage.cache_mib())?;
    db.bulk_load(LEDGER.genesis(), &LoadOptions::new()).map_err(wrap)?;
    let mut overlays: VecDeque<Overlay> = VecDeque::new();
    let (mut turn, outcome) = Turn::of(|| -> Result<()> {
        for block in blocks {
            interrupt::check()?;
            let (whole, done) = Turn::of(|| -> Result<[Turn; 2]> {
                let options = SessionOptions::new().witness(false);
                let options = match overlays.back() {
                    Some(newest) => options.over(newest),
                    None => options,
                };
                let session = db.session(options).map_err(wrap)?;
                let items = items(&LEDGER, block);
                session.prefetch(&items.iter().map(|item| item.key()).collect::<Vec<_>>());
                let mut numbers = read(&session, &items)?;
                execute(&LEDGER, block, &mut numbers)?;
                let accesses = accesses(&items, &numbers);
                let (finish, block) = Turn::of(|| session.finish(accesses));
                overlays.push_back(block.map_err(wrap)?.into_overlay());
                let (commit, committed) = Turn::of(|| {
                    let due = overlays.len() as u64 > window;
                    due.then(|| overlays.pop_front()).flatten().map(|oldest| oldest.commit())
                });
                committed.transpose().map_err(wrap)?;
                Ok([finish, commit])
            });
            let [finish, commit] = done?;
            if let Some(phases) = &mut phases {
                phases.block.record(whole.took);
                phases.finish.record(finish.took);
                if commit.took > core::time::Duration::from_micros(5) {
                    phases.commit.record(commit.took);
                }
            }
        }
        for overlay in overlays.drain(..) {
            overlay.commit().map_err(wrap)?;
        }
        db.drain(0).map_err(wrap)
    });
    outcome?;
    turn.bytes = None;
    if db.root() != *root {
        return Err(BenchError::Wrong(format!("window {window}: the root is not the replay's")));
    }
    db.close().map_err(wrap)?;
    Ok(turn)
}
