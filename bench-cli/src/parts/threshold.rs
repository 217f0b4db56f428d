//! `nomt-bench threshold`: executed blocks stay in memory, and are committed when enough are over them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use super::ledger::{Item, Ledger, Transfer, changes, execute, items, read};
use super::sheet::{Subject, Turn};
use super::states::{States, contents, expected, merkle};
use super::{Sheet, draws};
use crate::args::parts::ThresholdArgs;
use crate::backend::Root;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::measure::Phase;
use crate::progress::Progress;
use crate::trees::{Ground, Tree};

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

/// A state with a number of blocks that stay in memory.
struct Side {
    ground: Ground,
    window: u64,
    phases: RefCell<Phases>,
}

/// Measures all windows; databases are made in a folder.
pub(crate) fn run(
    args: &ThresholdArgs,
    at: &Path,
    bar: &Progress,
    sheet: &mut Sheet,
) -> Result<()> {
    let states =
        States::new(&args.states, (args.storage.cache_mib(), LEDGER.keys()), merkle, sheet)?;
    let mut random = draws(args.parts.results.seed, 0);
    let blocks: Vec<Vec<Transfer>> = (0..args.blocks)
        .map(|_| (0..TRANSFERS).map(|_| LEDGER.draw(&mut random)).collect())
        .collect();
    let replay = Replay::new(&states, &blocks, at)?;
    let sides: Vec<Side> = args
        .window
        .iter()
        .flat_map(|&window| states.grounds.iter().map(move |&ground| (ground, window)))
        .map(|(ground, window)| {
            let [block, finish, commit] = [(); 3].map(|()| Phase::new());
            Side { ground, window, phases: RefCell::new(Phases { block, finish, commit }) }
        })
        .collect();
    let subjects = sides.iter().map(|side| -> Subject<'_> {
        let (states, blocks, replay) = (&states, &blocks, &replay);
        (side.name(), Box::new(move |round| side.turn(states, at, blocks, replay, round > 0)))
    });
    let name = format!("{} blocks, each commit synced", args.blocks);
    sheet.case(bar, (&name, args.blocks), args.parts.rounds(), subjects.collect())?;
    let each: [(&str, Figure); 3] = [
        ("a block, each commit synced", |phases| &phases.block),
        ("its finish", |phases| &phases.finish),
        ("a commit, synced", |phases| &phases.commit),
    ];
    for (what, of) in each {
        let first = of(&sides[0].phases.borrow()).quantiles();
        for side in &sides {
            let quantiles = of(&side.phases.borrow()).quantiles();
            sheet.latencies(what, &side.name(), quantiles, first);
        }
    }
    Ok(())
}

/// What is there after all blocks, by a plain map.
struct Replay {
    digest: blake3::Hash,
    /// That of a load of it.
    root: Option<Root>,
}

impl Replay {
    fn new(states: &States, blocks: &[Vec<Transfer>], at: &Path) -> Result<Self> {
        let mut numbers: HashMap<Item, u64> =
            LEDGER.items().map(|item| (item, item.beginning())).collect();
        for block in blocks {
            execute(&LEDGER, block, &mut numbers)?;
        }
        let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
        let mut tree = states.open(Ground::Pleach, folder.path())?;
        let pair = |item: Item| (item.key(), item.value(numbers[&item]).to_vec());
        tree.load(&mut LEDGER.items().map(pair))?;
        let root = tree.root();
        tree.close()?;
        Ok(Self { digest: expected(&LEDGER, |item| numbers[&item]), root })
    }
}

impl Side {
    fn name(&self) -> String {
        format!("window {}, {}", self.window, self.ground.name())
    }

    /// All blocks on a state of its own; figures are noted if `counts`.
    fn turn(
        &self,
        states: &States,
        at: &Path,
        blocks: &[Vec<Transfer>],
        replay: &Replay,
        counts: bool,
    ) -> Result<Turn> {
        let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
        let mut tree = states.open(self.ground, folder.path())?;
        tree.load(&mut LEDGER.genesis())?;
        let mut waiting = 0;
        let (turn, outcome) = Turn::of(|| -> Result<()> {
            for block in blocks {
                interrupt::check()?;
                let (whole, done) = Turn::of(|| one(&mut *tree, block, waiting == self.window));
                let (finish, commit) = done?;
                if counts {
                    let mut phases = self.phases.borrow_mut();
                    phases.block.record(whole.took);
                    phases.finish.record(finish.took);
                    if let Some(commit) = commit {
                        phases.commit.record(commit.took);
                    }
                }
                waiting = (waiting + 1).min(self.window);
            }
            (0..waiting).try_for_each(|_| tree.commit())
        });
        outcome?;
        let ours = self.ground.has_our_roots();
        if (ours && tree.root() != replay.root) || contents(&mut *tree, &LEDGER)? != replay.digest {
            return Err(BenchError::Wrong(format!(
                "{}: the state is not the replay's",
                self.name()
            )));
        }
        tree.close()?;
        Ok(turn)
    }
}

/// Executes a block over the newest one, and commits the oldest if that is due.
fn one(tree: &mut dyn Tree, block: &[Transfer], due: bool) -> Result<(Turn, Option<Turn>)> {
    tree.begin()?;
    let items = items(&LEDGER, block);
    let mut numbers = read(tree, &items)?;
    execute(&LEDGER, block, &mut numbers)?;
    let changes = changes(&items, &numbers);
    let (finish, finished) = Turn::of(|| tree.finish(changes));
    finished?;
    if !due {
        return Ok((finish, None));
    }
    let (commit, committed) = Turn::of(|| tree.commit());
    committed?;
    Ok((finish, Some(commit)))
}
