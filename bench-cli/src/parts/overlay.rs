//! `nomt-bench overlay`: the root of a block that stays in memory, over a state that is committed.

use std::collections::BTreeSet;
use std::path::Path;

use pleach::{Access, Block, LoadOptions, Node, Overlay, Pleach, SessionOptions};

use super::engine::{open_durable, wrap};
use super::ledger::{Item, Ledger};
use super::sheet::{Subject, Turn};
use super::{Sheet, draws};
use crate::args::parts::OverlayArgs;
use crate::error::{BenchError, Result};
use crate::progress::Progress;
use crate::text::grouped;

/// What is done with a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Root,
    Witness,
    Overlay,
    Commit,
}

const SUBJECTS: [(&str, What); 4] = [
    ("root", What::Root),
    ("root + witness", What::Witness),
    ("root, then overlay", What::Overlay),
    ("commit", What::Commit),
];

struct Bench<'a> {
    args: &'a OverlayArgs,
    at: &'a Path,
    ledger: Ledger,
    updates: u64,
}

/// Measures all cases; the database is made in a folder.
pub(crate) fn run(args: &OverlayArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let ledger = Ledger { eoa: 0, contracts: args.accounts, slots: args.slots };
    let db = open_durable(at, args.storage.cache_mib())?;
    db.bulk_load(ledger.genesis(), &LoadOptions::new()).map_err(wrap)?;
    db.close().map_err(wrap)?;
    for &updates in &args.updates {
        if updates > args.accounts {
            let text = format!("{} updates are more than there are accounts", grouped(updates));
            sheet.notes.push(format!("{text}: left out"));
            continue;
        }
        let bench = Bench { args, at, ledger, updates };
        let db = open_durable(at, args.storage.cache_mib())?;
        let warm = SUBJECTS.map(|(name, what)| -> Subject<'_> {
            let (bench, db) = (&bench, &db);
            (name.to_owned(), Box::new(move |round| bench.turn(db, what, round)))
        });
        let name = format!("warm, {}", grouped(updates));
        sheet.case(bar, (&name, updates), args.parts.rounds(), warm.into())?;
        db.close().map_err(wrap)?;
        let cold = SUBJECTS.map(|(name, what)| -> Subject<'_> {
            let bench = &bench;
            let turn = move |round| {
                let db = open_durable(bench.at, bench.args.storage.cache_mib())?;
                let turn = bench.turn(&db, what, round)?;
                db.close().map_err(wrap)?;
                Ok(turn)
            };
            (name.to_owned(), Box::new(turn))
        });
        let name = format!("cold, {}", grouped(updates));
        sheet.case(bar, (&name, updates), args.parts.rounds(), cold.into())?;
    }
    Ok(())
}

impl Bench<'_> {
    /// The accounts that change in a round, the same for all subjects, and their new nonce.
    fn changes(&self, round: u64) -> (Vec<Item>, u64) {
        let mut random = draws(self.args.parts.seed, self.updates << 16 | round);
        let mut ids = BTreeSet::new();
        while (ids.len() as u64) < self.updates {
            ids.insert(random.below(self.ledger.contracts));
        }
        (ids.into_iter().map(Item::Account).collect(), random.bits())
    }

    fn turn(&self, db: &Pleach, what: What, round: u64) -> Result<Turn> {
        let (items, nonce) = self.changes(round);
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
