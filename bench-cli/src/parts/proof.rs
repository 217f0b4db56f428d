//! `nomt-bench proof`: path proofs, multiproofs, witnesses and ranges: made, and verified.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::Path;

use pleach::{Access, Blake3, Key, LoadOptions, Node, Pleach, Session, SessionOptions};
use pleach_core::{Limits, proof, witness};

use super::engine::{encode, open, wrap};
use super::sheet::{Subject, Turn};
use super::{Sheet, draws};
use crate::account;
use crate::args::parts::ProofArgs;
use crate::error::{BenchError, Result};
use crate::progress::Progress;
use crate::text::{counted, grouped};

/// The ways to prove several accounts.
const SUBJECTS: [&str; 4] = ["path", "multiproof", "witness", "range"];

/// What a round proves.
struct Drawn {
    /// Accounts that lie anywhere.
    keys: Vec<Key>,
    /// Accounts that follow each other.
    run: Vec<Key>,
    proofs: [Vec<Vec<u8>>; 4],
}

struct Bench<'a> {
    db: &'a Pleach,
    seed: u64,
    /// All accounts, in key order, with their values.
    accounts: &'a [(Key, u64)],
    root: Node,
    count: usize,
    drawn: RefCell<(u64, Drawn)>,
}

fn wrong(subject: &str, count: usize, error: impl std::fmt::Display) -> BenchError {
    BenchError::Wrong(format!("{subject} of {}: {error}", counted(count, "account")))
}

/// Measures all cases in a folder.
pub(crate) fn run(args: &ProofArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    if args.count.iter().all(|count| *count > 1 << args.log2) {
        return Err(BenchError::Usage(format!(
            "--count has nothing up to the {} accounts of --log2: lower the one or raise the other",
            grouped(1 << args.log2)
        )));
    }
    let mut accounts: Vec<_> = (0..1 << args.log2).map(|id: u64| (account::key(id), id)).collect();
    let db = open(at, args.storage.cache_mib())?;
    let pairs = accounts.iter().map(|(key, id)| (*key, encode(*id)));
    let root = db.bulk_load(pairs, &LoadOptions::new()).map_err(wrap)?.root;
    accounts.sort_unstable();
    // Everything that fits is cached from here on.
    let keys: Vec<Key> = accounts.iter().map(|one| one.0).collect();
    let session = db.session(SessionOptions::new()).map_err(wrap)?;
    for keys in keys.chunks(1 << 16) {
        session.read_many(keys).map_err(wrap)?;
    }
    drop((session, keys));
    let before = db.metrics().cache_misses;
    for &count in &args.count {
        let Some(count) = usize::try_from(count).ok().filter(|count| *count <= accounts.len())
        else {
            let text = format!("{} accounts are more than there are: left out", grouped(count));
            sheet.notes.push(text);
            continue;
        };
        let empty = Drawn { keys: Vec::new(), run: Vec::new(), proofs: Default::default() };
        let bench = Bench {
            db: &db,
            seed: args.parts.results.seed,
            accounts: &accounts,
            root,
            count,
            drawn: RefCell::new((u64::MAX, empty)),
        };
        bench.measure(args.parts.rounds(), bar, sheet)?;
    }
    let misses = db.metrics().cache_misses - before;
    sheet.notes.push(format!("{} pages were not cached while it was measured", grouped(misses)));
    db.close().map(drop).map_err(wrap)
}

impl Bench<'_> {
    fn measure(&self, rounds: u64, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let count = self.count as u64;
        let name = |what: &str| format!("{what}, {}", grouped(count));
        let generate = SUBJECTS.iter().enumerate().map(|(at, subject)| -> Subject<'_> {
            ((*subject).to_owned(), Box::new(move |round| self.generate(at, round)))
        });
        sheet.case(bar, (&name("generate"), count), rounds, generate.collect())?;
        // What the last round has made is what is verified in each.
        let verify = SUBJECTS.iter().enumerate().map(|(at, subject)| -> Subject<'_> {
            ((*subject).to_owned(), Box::new(move |_| self.verify(at)))
        });
        sheet.case(bar, (&name("verify"), count), rounds, verify.collect())
    }

    /// Draws the accounts of a round, once.
    fn draw(&self, round: u64) {
        let mut drawn = self.drawn.borrow_mut();
        if drawn.0 == round {
            return;
        }
        let mut random = draws(self.seed, round);
        let all = self.accounts.len() as u64;
        let mut ids = BTreeSet::new();
        // Draws of an account that is there already are repeated: of more than half, those that are left out.
        let few = self.count.min(self.accounts.len() - self.count);
        while ids.len() < few {
            ids.insert(usize::try_from(random.below(all)).expect("an index"));
        }
        let keys = self.accounts.iter().enumerate();
        let inside = few == self.count;
        let keys = keys.filter(|(at, _)| ids.contains(at) == inside).map(|(_, one)| one.0);
        drawn.1.keys = keys.collect();
        let first = usize::try_from(random.below(all - self.count as u64 + 1)).expect("an index");
        let run = &self.accounts[first..first + self.count];
        drawn.1.run = run.iter().map(|one| one.0).collect();
        drawn.0 = round;
    }

    fn session(&self) -> Result<Session> {
        self.db.session(SessionOptions::new()).map_err(wrap)
    }

    fn generate(&self, subject: usize, round: u64) -> Result<Turn> {
        self.draw(round);
        let session = self.session()?;
        let proofs = {
            let drawn = &self.drawn.borrow().1;
            let keys = &drawn.keys;
            let (turn, proofs) = Turn::of(|| -> pleach::Result<Vec<Vec<u8>>> {
                match subject {
                    0 => keys.iter().map(|key| session.prove(key)).collect(),
                    1 => Ok(vec![session.prove_many(keys)?]),
                    2 => {
                        let reads = keys.iter().map(|key| Access::read(*key)).collect();
                        let mut block = session.finish(reads).map_err(pleach::Error::from)?;
                        let witness = block.take_witness().expect("asked for");
                        Ok(vec![witness.to_vec()])
                    }
                    _ => {
                        let (first, last) = (drawn.run[0], drawn.run[drawn.run.len() - 1]);
                        Ok(vec![session.prove_range(&(first..=last))?])
                    }
                }
            });
            (turn, proofs.map_err(wrap)?)
        };
        let (mut turn, proofs) = proofs;
        turn.bytes = Some(proofs.iter().map(|proof| proof.len() as u64).sum());
        self.drawn.borrow_mut().1.proofs[subject] = proofs;
        // In the round that made it, outside the clock.
        self.verify(subject)?;
        Ok(turn)
    }

    fn verify(&self, subject: usize) -> Result<Turn> {
        let Drawn { keys, run, proofs } = &self.drawn.borrow().1;
        let (proofs, name, limits) = (&proofs[subject], SUBJECTS[subject], Limits::UNLIMITED);
        let failed = |error: proof::VerifyError| wrong(name, self.count, error);
        match subject {
            0 => {
                let (turn, verified) = Turn::of(|| {
                    let one = |proof: &Vec<u8>| proof::path::verify::<Blake3>(proof, &self.root);
                    black_box(proofs.iter().map(one).collect::<core::result::Result<Vec<_>, _>>())
                });
                let verified = verified.map_err(failed)?;
                let mut each = keys.iter().zip(&verified);
                self.judge(
                    name,
                    keys.len(),
                    each.all(|(key, one)| self.is_proven(key, |key, value| one.proves(key, value))),
                )?;
                Ok(turn)
            }
            1 => {
                let (turn, verified) = Turn::of(|| {
                    black_box(proof::multi::verify_with::<Blake3>(&proofs[0], &self.root, &limits))
                });
                let verified = verified.map_err(failed)?;
                let proven =
                    |key: &Key| self.is_proven(key, |key, value| verified.proves(key, value));
                self.judge(name, keys.len(), keys.iter().all(proven))?;
                Ok(turn)
            }
            2 => {
                let (turn, verified) = Turn::of(|| {
                    black_box(witness::verify_with::<Blake3>(&proofs[0], &self.root, &limits))
                });
                let verified = verified.map_err(failed)?;
                let proven =
                    |key: &Key| self.is_proven(key, |key, value| verified.proves(key, value));
                self.judge(name, verified.op_count(), keys.iter().all(proven))?;
                Ok(turn)
            }
            _ => {
                let (bytes, first, last) = (&proofs[0], &run[0], &run[run.len() - 1]);
                let (turn, verified) = Turn::of(|| {
                    black_box(proof::range::verify_with::<Blake3>(
                        bytes, &self.root, first, last, &limits,
                    ))
                });
                let verified = verified.map_err(failed)?;
                let proven =
                    |key: &Key| self.is_proven(key, |key, value| verified.proves(key, value));
                self.judge(name, verified.pairs().count(), run.iter().all(proven))?;
                Ok(turn)
            }
        }
    }

    /// Does a proof say of an account what it has?
    fn is_proven(&self, key: &Key, proves: impl Fn(&Key, Option<&[u8]>) -> Option<bool>) -> bool {
        let at = self.accounts.binary_search_by_key(key, |one| one.0).expect("an account");
        proves(key, Some(&encode(self.accounts[at].1))) == Some(true)
    }

    fn judge(&self, name: &str, answers: usize, all: bool) -> Result<()> {
        if answers == self.count && all {
            return Ok(());
        }
        Err(wrong(name, self.count, format!("{answers} answers, all as read: {all}")))
    }
}
