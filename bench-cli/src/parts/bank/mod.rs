//! `nomt-bench bank`: transfers between named accounts with a log of them, on several stores.

mod accounts;
mod check;
mod readers;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Sheet;
use super::sheet::{Timed, Timings};
use crate::args::stores::BankArgs;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::stores::{self, Engine, Store, StoreOptions};
use crate::text::grouped;
use accounts::{Accounts, INITIAL, Replay, Teller, Transfer, balance, log_key};
use readers::Read;

/// Measures all batches on all stores; their files are made in a folder.
pub(crate) fn run(args: &BankArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let engines = stores::chosen(&args.stores.backend)?;
    let accounts = Accounts::new(args.accounts);
    for &batch in &args.batch {
        let mut timings = Timings::default();
        for round in 0..args.parts.rounds() {
            for turn in 0..engines.len() {
                // Reversed every second round: what disturbs the machine disturbs all.
                let turn = if round % 2 == 0 { turn } else { engines.len() - 1 - turn };
                let bank = Bank { args, accounts: &accounts, batch, engine: engines[turn] };
                bank.round(at, bar, &mut timings, sheet)?;
            }
        }
        let synced = match args.sync_every {
            0 => "no commit synced".to_owned(),
            1 => "each commit synced".to_owned(),
            every => format!("one commit in {} synced", grouped(every)),
        };
        let case = format!("{} a commit, {synced}", grouped(batch));
        sheet.timings(&case, &timings, &engines.iter().map(|one| one.name()).collect::<Vec<_>>());
    }
    let tried = 2 * args.transfers;
    let succeed = Replay::new(args.parts.results.seed, &accounts, tried).count() as u64;
    sheet.notes.push(format!(
        "{} of the first {} transfers move something; balances, log and order are those of a replay",
        grouped(succeed),
        grouped(tried)
    ));
    for engine in engines {
        let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
        let store = stores::open(engine, &options(args, folder.path())?)?;
        let settings: Vec<_> =
            store.settings().into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
        sheet.notes.push(format!("{}: {}", engine.name(), settings.join("; ")));
        store.close()?;
    }
    Ok(())
}

/// Says something once.
fn note(sheet: &mut Sheet, text: String) {
    if !sheet.notes.contains(&text) {
        sheet.notes.push(text);
    }
}

fn options(args: &BankArgs, folder: &Path) -> Result<StoreOptions> {
    Ok(StoreOptions {
        durable: args.sync_every > 0,
        peer_args: stores::peer_args(&args.stores.settings.peer_arg, &args.stores.backend)?,
        ..StoreOptions::new(folder, args.storage.cache_mib())
    })
}

/// What is timed of writes.
struct Names {
    write_only: &'static str,
    last_sync: &'static str,
    beside_readers: &'static str,
}

const KEPT: Names = Names {
    write_only: "write-only, survives a kill",
    last_sync: "last sync",
    beside_readers: "beside readers, survives a kill",
};
/// Of a store that a kill may take commits from. They have names of their own, so that no ratio is made of stores
/// that promise different things.
const LOST: Names = Names {
    write_only: "write-only, may be lost on a kill",
    last_sync: "last sync of what a kill had taken",
    beside_readers: "beside readers, may be lost on a kill",
};

/// A store, in a round, with batches of one size.
struct Bank<'a> {
    args: &'a BankArgs,
    accounts: &'a Accounts,
    batch: u64,
    engine: Engine,
}

/// Where a run is.
struct Desk {
    teller: Teller,
    /// Entries of the log.
    logged: u64,
    /// Transfers drawn.
    drawn: u64,
    commits: u64,
    /// Did the store take what was announced?
    announced: bool,
    changed: Changed,
}

/// What a batch changes.
#[derive(Default)]
struct Changed {
    balances: HashMap<u32, (u64, bool)>,
    log: Vec<([u8; 9], [u8; 24])>,
}

impl Bank<'_> {
    fn open(&self, folder: &Path) -> Result<Box<dyn Store>> {
        stores::open(self.engine, &options(self.args, folder)?)
    }

    fn names(&self) -> &'static Names {
        // What each commit waits for is nothing that a kill takes.
        let kept =
            self.engine.survives_a_kill() || (self.args.sync_every == 1 && self.engine.has_files());
        if kept { &KEPT } else { &LOST }
    }

    fn round(
        &self,
        at: &Path,
        bar: &Progress,
        timings: &mut Timings,
        sheet: &mut Sheet,
    ) -> Result<()> {
        let (name, names) = (self.engine.name(), self.names());
        let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
        let store = self.open(folder.path())?;
        let mut add = |what: &'static str, operations: u64, took: Duration| {
            timings.add(Timed { what, subject: name }, operations, took);
        };
        let from = Instant::now();
        let pair =
            |id: &u32| (self.accounts.keys[*id as usize].clone(), INITIAL.to_le_bytes().to_vec());
        store.load(&mut self.accounts.sorted.iter().map(pair))?;
        let load = if self.engine.has_files() { "load" } else { "load, in memory" };
        add(load, self.args.accounts, from.elapsed());
        let teller = Teller::new(self.args.parts.results.seed, self.args.accounts);
        let mut desk = Desk {
            teller,
            logged: 0,
            drawn: 0,
            commits: 0,
            announced: false,
            changed: Changed::default(),
        };
        store.parts_of_writes();
        let took = self.transfer(&*store, &mut desk, bar)?;
        if self.args.prefetch.0 {
            let text =
                if desk.announced { "are announced to it" } else { "cannot be announced to it" };
            note(sheet, format!("{name}: the accounts of a batch {text}"));
        }
        add(names.write_only, self.args.transfers, took);
        for (what, quantiles) in store.parts_of_writes() {
            timings.latencies(Timed { what, subject: name }, quantiles);
        }
        let from = Instant::now();
        store.sync()?;
        timings.add(Timed { what: names.last_sync, subject: name }, 1, from.elapsed());
        if self.args.readers > 0 {
            if self.engine.has_files() && store.view()?.is_some() {
                self.beside_readers(&*store, &mut desk, bar, timings)?;
            } else {
                let why = "has no views that writes can go on beside";
                note(sheet, format!("{name} {why}: nothing was read beside its transfers"));
            }
        }
        self.validate(&*store, &desk, at, timings, sheet)?;
        store.close()
    }

    /// Transfers of a phase: drawn outside of the clock, which is the sum over the batches.
    fn transfer(&self, store: &dyn Store, desk: &mut Desk, bar: &Progress) -> Result<Duration> {
        let (mut clock, mut left) = (Duration::ZERO, self.args.transfers);
        let mut batch = Vec::new();
        while left > 0 {
            interrupt::check()?;
            batch.clear();
            batch.extend((0..left.min(self.batch)).map(|_| desk.teller.draw()));
            left -= batch.len() as u64;
            let from = Instant::now();
            if self.args.prefetch.0 {
                let ids = batch.iter().flat_map(|transfer| [transfer.from, transfer.to]);
                let mut keys = ids.map(|id| self.accounts.keys[id as usize].as_slice());
                desk.announced = store.announce(&mut keys)?;
            }
            desk.commit(store, self.accounts, &batch, self.args.sync_every)?;
            clock += from.elapsed();
            bar.at(self.args.transfers - left, self.args.transfers);
        }
        Ok(clock)
    }

    fn beside_readers(
        &self,
        store: &dyn Store,
        desk: &mut Desk,
        bar: &Progress,
        timings: &mut Timings,
    ) -> Result<()> {
        let stop = AtomicBool::new(false);
        let (took, read) = std::thread::scope(|scope| {
            let start = |reader| {
                let (seed, stop) = (self.args.parts.results.seed, &stop);
                scope.spawn(move || readers::read(store, self.accounts, (seed, reader), stop))
            };
            let readers: Vec<_> = (0..self.args.readers).map(start).collect();
            // Also when a panic ends this: the scope waits for the readers.
            let stops = Stops(&stop);
            let took = self.transfer(store, desk, bar);
            drop(stops);
            let mut sum = Read::default();
            for reader in readers {
                let failed = |_| BenchError::Wrong("a reader panicked".to_owned());
                let read = reader.join().map_err(failed)??;
                (sum.reads, sum.sums) = (sum.reads + read.reads, sum.sums + read.sums);
                sum.took += read.took;
            }
            Ok::<_, BenchError>((took?, sum))
        })?;
        let subject = self.engine.name();
        timings.add(
            Timed { what: self.names().beside_readers, subject },
            self.args.transfers,
            took,
        );
        timings.add(Timed { what: "reads beside", subject }, read.reads, read.took);
        timings.count(Timed { what: "sums beside, conserved", subject }, read.sums);
        Ok(())
    }

    /// Everything, in order, and the root.
    fn validate(
        &self,
        store: &dyn Store,
        desk: &Desk,
        at: &Path,
        timings: &mut Timings,
        sheet: &mut Sheet,
    ) -> Result<()> {
        let replay = || Replay::new(self.args.parts.results.seed, self.accounts, desk.drawn);
        let Some(view) = store.view()? else {
            note(sheet, format!("{}: not scanned, it has no views", self.engine.name()));
            return Ok(());
        };
        let (from, mut seen) = (Instant::now(), 0_u64);
        view.scan(&[], &mut |_, _| {
            seen += 1;
            true
        })?;
        let subject = self.engine.name();
        timings.add(Timed { what: "scan", subject }, seen, from.elapsed());
        let pairs = check::everything(&*view, self.accounts, replay)?;
        drop(view);
        if (pairs, desk.logged) != (seen, pairs - self.args.accounts) {
            let text = format!("{pairs} pairs, {seen} scanned, {} logged", desk.logged);
            return Err(BenchError::Wrong(text));
        }
        if store.root()?.is_some() && pairs <= check::RELOADED {
            let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
            let other = self.open(folder.path())?;
            check::root(store, &*other, self.accounts, replay)?;
            other.close()?;
        }
        Ok(())
    }
}

/// Tells readers to stop when it goes.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Desk {
    /// One batch: two reads for each transfer, and what moves is written with its entry of the log.
    fn commit(
        &mut self,
        store: &dyn Store,
        accounts: &Accounts,
        batch: &[Transfer],
        sync_every: u64,
    ) -> Result<()> {
        let Changed { balances, log } = &mut self.changed;
        balances.clear();
        log.clear();
        let mut value = Vec::new();
        for transfer in batch {
            let Transfer { from, to, amount } = *transfer;
            let mut of = |id: u32| -> Result<u64> {
                if let Some((balance, _)) = balances.get(&id) {
                    return Ok(*balance);
                }
                if !store.get(&accounts.keys[id as usize], &mut value)? {
                    return Err(BenchError::Wrong(format!("account {id} is not there")));
                }
                let read = balance(&value)?;
                balances.insert(id, (read, false));
                Ok(read)
            };
            let (has, had) = (of(from)?, of(to)?);
            let Some(less) = has.checked_sub(amount) else { continue };
            balances.insert(from, (less, true));
            balances.insert(to, (had + amount, true));
            log.push((log_key(self.logged), transfer.logged()));
            self.logged += 1;
        }
        self.drawn += batch.len() as u64;
        if log.is_empty() {
            return Ok(());
        }
        let written: Vec<(u32, [u8; 8])> = balances
            .iter()
            .filter(|(_, (_, is_changed))| *is_changed)
            .map(|(id, (balance, _))| (*id, balance.to_le_bytes()))
            .collect();
        let changes: Vec<stores::Change<'_>> = written
            .iter()
            .map(|(id, value)| (accounts.keys[*id as usize].as_slice(), Some(value.as_slice())))
            .chain(log.iter().map(|(key, value)| (key.as_slice(), Some(value.as_slice()))))
            .collect();
        self.commits += 1;
        store.write(&changes, sync_every > 0 && self.commits.is_multiple_of(sync_every))
    }
}
