//! `nomt-bench overlay`: the root of a block that stays in memory, over a state that is committed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pleach::{Access, Block, Key, Node, Overlay, Pleach, SessionOptions};

use super::engine::{open_durable, wrap};
use super::ledger::{Item, Ledger, changes, read};
use super::sheet::{Subject, Turn};
use super::states::{States, contents, merkle};
use super::{Sheet, draws};
use crate::args::parts::OverlayArgs;
use crate::backend::Root;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::text::grouped;
use crate::trees::{Ground, Tree};

/// What is done with a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Root,
    Witness,
    Overlay,
    Commit,
}

impl What {
    /// In the order of a round; every second one is the other way round, as subjects take turns.
    const fn of_round(round: u64) -> [Self; 4] {
        if round.is_multiple_of(2) {
            [Self::Root, Self::Witness, Self::Overlay, Self::Commit]
        } else {
            [Self::Commit, Self::Overlay, Self::Witness, Self::Root]
        }
    }
}

const SUBJECTS: [(&str, What); 4] = [
    ("root, pleach", What::Root),
    ("root + witness, pleach", What::Witness),
    ("root, then overlay, pleach", What::Overlay),
    ("commit, synced, pleach", What::Commit),
];
/// Of the other states.
const THEIRS: [(&str, What); 2] = [("root", What::Root), ("commit, synced", What::Commit)];

/// What a case has, of one number of updates.
struct Bench<'a> {
    /// Opened anew in each turn.
    cold: bool,
    args: &'a OverlayArgs,
    /// Where our database is.
    at: &'a Path,
    ledger: Ledger,
    updates: u64,
}

/// Another state that is open, or its folder.
struct Other {
    ground: Ground,
    folder: PathBuf,
    tree: RefCell<Option<Box<dyn Tree>>>,
}

/// Measures all cases; the databases are made in a folder.
pub(crate) fn run(args: &OverlayArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    if args.updates.iter().all(|updates| *updates > args.accounts) {
        return Err(BenchError::Usage(format!(
            "--updates has nothing up to the {} of --accounts: lower the one or raise the other",
            grouped(args.accounts)
        )));
    }
    let ledger = Ledger { eoa: 0, contracts: args.accounts, slots: args.slots };
    let states =
        States::new(&args.states, (args.storage.cache_mib(), ledger.keys()), merkle, sheet)?;
    states.fit()?;
    let ours = at.join("pleach");
    let with_ours = states.grounds.contains(&Ground::Pleach);
    let mut others = Vec::new();
    for &ground in &states.grounds {
        interrupt::check()?;
        let folder = at.join(ground.name());
        let mut tree = states.open(ground, &folder)?;
        tree.load(&mut ledger.genesis())?;
        states.note(ground, &*tree, sheet);
        tree.close()?;
        if ground != Ground::Pleach {
            others.push(Other { ground, folder, tree: RefCell::new(None) });
        }
    }
    let rounds = args.parts.rounds();
    for &updates in &args.updates {
        if updates > args.accounts {
            let text = format!("{} updates are more than there are accounts", grouped(updates));
            sheet.notes.push(format!("{text}: left out"));
            continue;
        }
        let bench = Bench { cold: false, args, at: &ours, ledger, updates };
        let db = with_ours.then(|| open_durable(&ours, args.storage.cache_mib())).transpose()?;
        if let Some(db) = &db {
            bench.read_all(db)?;
        }
        let mut warm: Vec<Subject<'_>> = Vec::new();
        for (name, what) in SUBJECTS {
            let (bench, Some(db)) = (&bench, &db) else { break };
            warm.push((name.to_owned(), Box::new(move |round| bench.turn(db, what, round))));
        }
        for other in &others {
            let mut tree = states.open(other.ground, &other.folder)?;
            read(&mut *tree, &bench.accounts())?;
            other.tree.replace(Some(tree));
            warm.extend(THEIRS.map(|(name, what)| other.subject(&bench, None, name, what)));
        }
        let name = format!("warm, {}", grouped(updates));
        sheet.case(bar, (&name, updates), rounds, warm)?;
        db.map_or(Ok(()), |db| db.close().map(drop)).map_err(wrap)?;
        for other in &others {
            if let Some(tree) = other.tree.take() {
                tree.close()?;
            }
        }

        let bench = Bench { cold: true, ..bench };
        let mut cold: Vec<Subject<'_>> = Vec::new();
        for (name, what) in SUBJECTS.into_iter().filter(|_| with_ours) {
            let bench = &bench;
            let turn = move |round| {
                let db = open_durable(bench.at, bench.args.storage.cache_mib())?;
                let turn = bench.turn(&db, what, round)?;
                db.close().map_err(wrap)?;
                Ok(turn)
            };
            cold.push((name.to_owned(), Box::new(turn)));
        }
        for other in &others {
            cold.extend(
                THEIRS.map(|(name, what)| other.subject(&bench, Some(&states), name, what)),
            );
        }
        let name = format!("cold, {}", grouped(updates));
        sheet.case(bar, (&name, updates), rounds, cold)?;
    }
    same_contents(&states, at, &ledger, sheet)
}

/// All states have done the same blocks: their contents are the same, and so are roots of the same kind.
fn same_contents(states: &States, at: &Path, ledger: &Ledger, sheet: &mut Sheet) -> Result<()> {
    let mut known: Option<(&str, blake3::Hash)> = None;
    let mut roots = None;
    for &ground in &states.grounds {
        let mut tree = states.open(ground, &at.join(ground.name()))?;
        let found = contents(&mut *tree, ledger)?;
        let root = tree.root().filter(|_| ground.has_our_roots());
        tree.close()?;
        let (name, digest) = *known.get_or_insert((ground.name(), found));
        let same = root.is_none() || *roots.get_or_insert(root) == root;
        if digest != found || !same {
            let text = format!("{name} and {} differ at the end", ground.name());
            return Err(BenchError::Wrong(text));
        }
    }
    if let Some((_, digest)) = known {
        sheet.notes.push(format!("all contents were read back; their digest is {digest}"));
    }
    Ok(())
}

impl Other {
    /// What it does in a case; opened anew by each turn if there are states to open it with.
    fn subject<'a>(
        &'a self,
        bench: &'a Bench<'a>,
        anew: Option<&'a States>,
        name: &str,
        what: What,
    ) -> Subject<'a> {
        let turn = move |round| {
            let Some(states) = anew else {
                let mut tree = self.tree.borrow_mut();
                let tree = tree.as_mut().expect("opened before the case");
                return self.turns(bench, &mut **tree, what, round);
            };
            let mut tree = states.open(self.ground, &self.folder)?;
            let turn = self.turns(bench, &mut *tree, what, round)?;
            tree.close()?;
            Ok(turn)
        };
        (format!("{name}, {}", self.ground.name()), Box::new(turn))
    }

    /// A turn. It has two subjects of our four: the first of them in a round does what lies between, too, outside of
    /// the clock, so that all states get the same blocks in the same order.
    fn turns(
        &self,
        bench: &Bench<'_>,
        tree: &mut dyn Tree,
        what: What,
        round: u64,
    ) -> Result<Turn> {
        let turn = bench.their_turn(tree, self.ground, what, round)?;
        let [first, between @ .., _] = What::of_round(round);
        if what == first {
            for what in between {
                bench.their_turn(tree, self.ground, what, round)?;
            }
        }
        Ok(turn)
    }
}

impl Bench<'_> {
    /// All that turns draw from.
    fn accounts(&self) -> Vec<Item> {
        (0..self.ledger.contracts).map(Item::Account).collect()
    }

    /// Reads all accounts, so that their pages are cached before the first turn: one in which pages are read for the
    /// first time is no warm one.
    fn read_all(&self, db: &Pleach) -> Result<()> {
        let session = db.session(SessionOptions::new()).map_err(wrap)?;
        let keys: Vec<Key> = self.accounts().into_iter().map(Item::key).collect();
        let values = session.read_many(&keys).map_err(wrap)?;
        if values.iter().any(Option::is_none) {
            return Err(BenchError::Wrong("an account is missing".to_owned()));
        }
        Ok(())
    }

    /// The accounts that change in a subject's turn, and their new nonce. Each turn has its own: what is written again
    /// costs less, and what was just written lies elsewhere.
    fn changes(&self, what: What, round: u64) -> (Vec<Item>, u64) {
        let turn = round << 3 | u64::from(self.cold) << 2 | what as u64;
        let mut random = draws(self.args.parts.results.seed, self.updates << 32 | turn);
        let mut ids = BTreeSet::new();
        while (ids.len() as u64) < self.updates {
            ids.insert(random.below(self.ledger.contracts));
        }
        (ids.into_iter().map(Item::Account).collect(), random.bits())
    }

    fn turn(&self, db: &Pleach, what: What, round: u64) -> Result<Turn> {
        let (items, nonce) = self.changes(what, round);
        let write = |item: &Item| Access::write(item.key(), Some(item.value(nonce)));
        let accesses: Vec<Access> = items.iter().map(write).collect();
        let options = SessionOptions::new().witness(what == What::Witness);
        let (turn, made) = Turn::of(|| -> Result<Made> {
            let session = db.session(options).map_err(wrap)?;
            let block = session.finish(accesses).map_err(wrap)?;
            Ok(match what {
                What::Root | What::Witness => Made::Block(Box::new(block)),
                What::Overlay => Made::Overlay(block.into_overlay()),
                What::Commit => {
                    let root = block.root();
                    block.commit().map_err(wrap)?;
                    Made::Committed(root)
                }
            })
        });
        self.check(db, made?, &items, nonce)?;
        Ok(turn)
    }

    /// The same of another state.
    fn their_turn(
        &self,
        tree: &mut dyn Tree,
        ground: Ground,
        what: What,
        round: u64,
    ) -> Result<Turn> {
        let (items, nonce) = self.changes(what, round);
        let numbers = items.iter().map(|item| (*item, nonce)).collect();
        let changes = changes(&items, &numbers);
        let (turn, root) = Turn::of(|| -> Result<Option<Root>> {
            tree.begin()?;
            let root = tree.finish(changes)?.root;
            if what == What::Commit {
                tree.commit()?;
            }
            Ok(root)
        });
        let root = root?;
        let wrong = |what: &str| {
            let (name, updates) = (ground.name(), self.updates);
            Err(BenchError::Wrong(format!("{name}, {updates} updates: {what}")))
        };
        let some: Vec<Item> = items.iter().step_by(items.len().div_ceil(100)).copied().collect();
        if read(tree, &some)?.values().any(|number| *number != nonce) {
            return wrong("the block has another value");
        }
        if what != What::Commit {
            tree.commit()?;
        }
        if root.is_none() || tree.root() != root {
            return wrong("its commit has another root");
        }
        Ok(turn)
    }

    /// A session over the block reads what it has written, and the root of its commit is the promised one.
    fn check(&self, db: &Pleach, made: Made, items: &[Item], nonce: u64) -> Result<()> {
        let wrong = |what: &str| BenchError::Wrong(format!("{} updates: {what}", self.updates));
        let (overlay, root) = match made {
            Made::Committed(root) => (None, root),
            Made::Block(block) => {
                let root = block.root();
                (Some(block.into_overlay()), root)
            }
            Made::Overlay(overlay) => {
                let root = overlay.root();
                (Some(overlay), root)
            }
        };
        let options = SessionOptions::new();
        let options = match &overlay {
            Some(overlay) => options.over(overlay),
            None => options,
        };
        let session = db.session(options).map_err(wrap)?;
        if session.root() != root {
            return Err(wrong("another root"));
        }
        for item in items.iter().step_by(items.len().div_ceil(100)) {
            let value = session.read(&item.key()).map_err(wrap)?;
            if value.as_deref().and_then(|value| item.number(value)) != Some(nonce) {
                return Err(wrong("the overlay has another value"));
            }
        }
        drop(session);
        if let Some(overlay) = overlay {
            overlay.commit().map_err(wrap)?;
            if db.root() != root {
                return Err(wrong("its commit has another root"));
            }
        }
        Ok(())
    }
}

/// What a turn leaves behind.
enum Made {
    Block(Box<Block>),
    Overlay(Overlay),
    Committed(Node),
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: OverlayArgs,
    }

    /// Subjects of a round once wrote the same values one after the other.
    #[test]
    fn no_two_turns_write_the_same() {
        let Flags { args } = Flags::parse_from(["overlay"]);
        let ledger = Ledger { eoa: 0, contracts: 1000, slots: 0 };
        let mut seen = Vec::new();
        for cold in [false, true] {
            let bench = Bench { cold, args: &args, at: Path::new(""), ledger, updates: 50 };
            for round in 0..4 {
                for what in What::of_round(round) {
                    let made = bench.changes(what, round);
                    assert_eq!(made, bench.changes(what, round), "drawn again");
                    assert_eq!(made.0.len(), 50);
                    let same = |one: &(Vec<Item>, u64)| one.0 == made.0 || one.1 == made.1;
                    assert!(!seen.iter().any(same), "{round}");
                    seen.push(made);
                }
            }
        }
    }

    #[test]
    fn rounds_have_the_order_in_which_subjects_take_turns() {
        for round in 0..2 {
            let mut order = SUBJECTS.map(|(_, what)| what);
            if round == 1 {
                order.reverse();
            }
            assert!(What::of_round(round) == order);
            // The two of other states are the first and the last.
            let theirs = THEIRS.map(|(_, what)| what);
            assert!(theirs.contains(&order[0]) && theirs.contains(&order[3]));
        }
    }
}
