//! `nomt-bench flatten`: overlays over each other become one commit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pleach::{Access, Key, LoadOptions, Overlay, Pleach, SessionOptions};

use super::engine::{check, encode, open_durable, wrap};
use super::sheet::{Subject, Turn};
use super::{Sheet, draws};
use crate::account;
use crate::args::parts::{FlattenArgs, Layering};
use crate::draws::{Draws, Sampler};
use crate::error::{BenchError, Result};
use crate::measure::Phase;
use crate::progress::Progress;
use crate::text::grouped;

/// Accounts that are loaded.
const LOADED: u64 = 1 << 17;
/// Popular keys of the distribution `hot`.
const HOT: u64 = 100;

type Map = BTreeMap<Key, u64>;
/// A layer: its changes, each key once; none is a delete.
type Layer = BTreeMap<Key, Option<u64>>;

/// Measures all cases; databases are made in a folder.
pub(crate) fn run(args: &FlattenArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    for &count in &args.layers {
        let bench = Bench::new(args, at, count);
        let distinct = bench.merged.len() as u64;
        let name = format!("{count} layers, {} changes", grouped(count * args.keys_per_layer));
        let reads = [Phase::new(), Phase::new()].map(std::cell::RefCell::new);
        let subjects: Vec<Subject<'_>> = vec![
            ("merged commit".to_owned(), Box::new(|round| bench.merge(round, &reads))),
            ("one block of the same".to_owned(), Box::new(|_| bench.at_once())),
        ];
        sheet.case(bar, (&name, distinct), args.parts.rounds(), subjects)?;
        let [idle, beside] = reads.map(|phase| phase.into_inner().quantiles());
        for (subject, reads) in [("reads, idle", idle), ("reads beside the merge", beside)] {
            sheet.latencies(&name, subject, reads, idle);
        }
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a FlattenArgs,
    at: &'a Path,
    layers: Vec<Layer>,
    /// The last change of each key.
    merged: Layer,
    /// What is there in the end.
    state: Map,
}

impl<'a> Bench<'a> {
    fn new(args: &'a FlattenArgs, at: &'a Path, count: u64) -> Self {
        let mut random = draws(args.parts.results.seed, count);
        let sampler = match args.distribution {
            Layering::Hot => None,
            Layering::Spread(distribution) => Some(Sampler::new(distribution, LOADED)),
        };
        let id = |random: &mut Draws| match &sampler {
            Some(sampler) => sampler.draw(random),
            None if random.below(10) < 9 => random.below(HOT),
            None => random.below(LOADED),
        };
        let mut layers = Vec::new();
        let mut merged = Layer::new();
        let mut state: Map = (0..LOADED).map(|id| (account::key(id), id)).collect();
        for _ in 0..count {
            let mut layer = Layer::new();
            for _ in 0..args.keys_per_layer {
                let key = account::key(id(&mut random));
                let new = if random.below(10) == 0 { None } else { Some(random.bits()) };
                layer.insert(key, new);
            }
            for (key, new) in &layer {
                match new {
                    Some(new) => state.insert(*key, *new),
                    None => state.remove(key),
                };
            }
            merged.extend(layer.iter().map(|(key, new)| (*key, *new)));
            layers.push(layer);
        }
        Self { args, at, layers, merged, state }
    }

    fn wrong(&self, what: &str) -> BenchError {
        BenchError::Wrong(format!("{} layers: {what}", self.layers.len()))
    }

    /// A database of the loaded accounts, all of them cached, in a folder that goes with it.
    fn database(&self) -> Result<(Pleach, tempfile::TempDir)> {
        let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
        let db = open_durable(folder.path(), self.args.storage.cache_mib())?;
        let pairs = (0..LOADED).map(|id| (account::key(id), encode(id)));
        db.bulk_load(pairs, &LoadOptions::new()).map_err(wrap)?;
        let keys: Vec<Key> = (0..LOADED).map(account::key).collect();
        let session = db.session(SessionOptions::new()).map_err(wrap)?;
        session.read_many(&keys).map_err(wrap)?;
        drop(session);
        Ok((db, folder))
    }

    fn chain(&self, db: &Pleach) -> Result<Vec<Overlay>> {
        let mut chain: Vec<Overlay> = Vec::new();
        for layer in &self.layers {
            let options = SessionOptions::new().witness(false);
            let options = match chain.last() {
                Some(newest) => options.over(newest),
                None => options,
            };
            let session = db.session(options).map_err(wrap)?;
            chain.push(session.finish(accesses(layer)).map_err(wrap)?.into_overlay());
        }
        Ok(chain)
    }

    fn merge(&self, round: u64, reads: &[std::cell::RefCell<Phase>; 2]) -> Result<Turn> {
        let (db, _folder) = self.database()?;
        let chain = self.chain(&db)?;
        let newest = chain.last().expect("one layer at least");
        let (root, before) = (newest.root(), db.commit_number());
        let changes = db.metrics().changes;
        self.reads(&db, round, &mut reads[0].borrow_mut(), || {
            std::thread::sleep(std::time::Duration::from_millis(20));
        })?;
        let mut merged = (Turn::default(), Ok(0));
        self.reads(&db, round, &mut reads[1].borrow_mut(), || {
            merged = Turn::of(|| newest.commit());
        })?;
        let (turn, number) = merged;
        let changed = db.metrics().changes - changes;
        if number.map_err(wrap)? != before + 1 || db.root() != root {
            return Err(self.wrong("the commit is not the newest overlay's"));
        }
        if changed != self.merged.len() as u64 {
            let text = format!("{changed} keys were changed of {}", self.merged.len());
            return Err(self.wrong(&text));
        }
        drop(chain);
        self.finish(&db)?;
        Ok(turn)
    }

    fn at_once(&self) -> Result<Turn> {
        let (db, _folder) = self.database()?;
        let (turn, number) = Turn::of(|| -> Result<u64> {
            let session = db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
            session.finish(accesses(&self.merged)).map_err(wrap)?.commit().map_err(wrap)
        });
        number?;
        self.finish(&db)?;
        Ok(turn)
    }

    fn finish(&self, db: &Pleach) -> Result<()> {
        let pairs: Vec<_> = self.state.iter().map(|(key, value)| (*key, *value)).collect();
        check(db, &pairs)?;
        db.close().map(drop).map_err(wrap)
    }

    /// Another thread reads cached accounts of the committed state while something runs.
    fn reads(&self, db: &Pleach, round: u64, phase: &mut Phase, run: impl FnOnce()) -> Result<()> {
        let done = AtomicBool::new(false);
        let session = db.session(SessionOptions::new()).map_err(wrap)?;
        let seed = self.args.parts.results.seed ^ 1;
        std::thread::scope(|scope| {
            let (done, session) = (&done, &session);
            let reader = scope.spawn(move || -> Result<Vec<std::time::Duration>> {
                let mut random = draws(seed, round);
                let mut times = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let id = random.below(LOADED);
                    let key = account::key(id);
                    let from = Instant::now();
                    let value = session.read(&key).map_err(wrap)?;
                    times.push(from.elapsed());
                    if value != Some(encode(id)) {
                        return Err(BenchError::Wrong(format!("a read beside it, of {id}")));
                    }
                }
                Ok(times)
            });
            run();
            done.store(true, Ordering::Relaxed);
            let times = reader.join().map_err(|_| self.wrong("the reader panicked"))??;
            for time in times {
                phase.record(time);
            }
            Ok(())
        })
    }
}

fn accesses(layer: &Layer) -> Vec<Access> {
    layer.iter().map(|(key, new)| Access::write(*key, new.map(encode))).collect()
}
