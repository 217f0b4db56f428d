//! `bank`: transfers between named accounts with a log of them, in transactions of plain stores, as the bank benchmark
//! of `PsiTri` has them. That goes back to TPC-B.
//!
//! Each transfer reads both accounts and writes them and an entry of the log, inside the transaction, however many
//! share one: an account that comes again in a batch is read again. Which accounts: the sum of two draws below their
//! number, halved, so that those in the middle of the ids come most often, and those at both ends hardly ever (a
//! triangular distribution).

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pleach_core::Key;
use pleach_core::hexadecimal::hex;
use serde::{Deserialize, Serialize};

use super::meter::WrittenBefore;
use super::{StopOnDrop, WorkPlan};
use crate::draw::{Distribution, Draws, Sampler, account_key, number};
use crate::engine::buffered::hashed;
use crate::engine::pleach::value;
use crate::engine::{Engine, EngineKind, Pair, PlainKey, Reader, Tx, View, values};
use crate::error::{Error, Result, wrong};
use crate::flags::{Durability, count};
use crate::job_context::JobContext;
use crate::machine::{ResourceUsage, folder_bytes};
use crate::measure::{Figure, Times, Unit, float, grouped, ratio, tried};
use crate::signals;

/// What every account begins with, and the largest amount of a transfer.
const INITIAL: u64 = 1_000_000;
/// First byte of the keys of accounts, and of those of the log, which come behind them.
const ACCOUNT: u8 = 1;
const LOG: u8 = 2;
/// A turn is this part of a phase, but one batch at least.
const TURNS: u64 = 100;
/// Reads of a reader's round, all of one view; the sum of all accounts is taken in one round of so many.
const READS: u64 = 100;
const SUM_EVERY: u64 = 256;
/// Up to so many pairs the root is compared with that of a load of the same.
const RELOADED: u64 = 1 << 20;
/// Keys that an engine without views reads at once.
const CHUNK: usize = 16_384;

/// `nomt-bench bank`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct BankArgs {
    /// Accounts that are loaded (1,000,000 in the published benchmark)
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count::<u64>(2..=1 << 30))]
    accounts: u64,
    /// Transfers of each phase (10,000,000 in the published benchmark)
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = count::<u64>(1..=1 << 40))]
    transfers: u64,
    /// Transfers of a commit
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,100,10000",
        value_parser = count::<u64>(1..=100_000_000))]
    batch: Vec<u64>,
    /// Commits from one sync to the next; 0: none before the end of a phase. --durability commit syncs each
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = count::<u64>(0..=u64::MAX))]
    sync_every: u64,
    /// Threads that read beside the transfers of the second phase; 0 leaves it out
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = count::<u64>(0..=256))]
    readers: u64,
}

impl BankArgs {
    pub fn plan(&self) -> WorkPlan {
        let durability = if self.sync_every == 1 { Durability::Commit } else { Durability::None };
        WorkPlan {
            durability,
            keys: self.accounts.saturating_add(2 * self.transfers),
            writes: self.transfers.saturating_mul(6),
            ..WorkPlan::ROUNDS
        }
    }
}

/// The workload.
pub fn run(args: &BankArgs, side: &mut JobContext) -> Result<()> {
    let accounts = Accounts::new(args.accounts);
    let is_durable = side.flags.durability == Durability::Commit;
    let sync_every = if is_durable { 1 } else { args.sync_every };
    let synced = match sync_every {
        0 => "no commit synced".to_owned(),
        1 => "each commit synced".to_owned(),
        every => format!("one commit in {} synced", grouped(every)),
    };
    for &batch in &args.batch {
        let part = ((args.transfers / TURNS / batch).max(1) * batch).min(args.transfers);
        let case = format!("{} a commit, {synced}", grouped(batch));
        let took = BankTimes::default();
        let mut bank = Bank { args, accounts: &accounts, batch, part, sync_every, case, took };
        for _ in 0..side.flags.rounds(1) {
            if !side.is_stopped() {
                bank.round(side)?;
            }
        }
        bank.report(side)?;
    }
    Ok(())
}

/// All accounts: their keys, and their ids in the order of keys.
struct Accounts {
    keys: Vec<PlainKey>,
    sorted: Vec<u32>,
}

impl Accounts {
    fn new(count: u64) -> Self {
        let keys: Vec<PlainKey> = (0..count).map(key).collect();
        let mut sorted: Vec<u32> = (0..u32::try_from(count).expect("at most 2^30")).collect();
        sorted.sort_unstable_by_key(|id| &keys[*id as usize]);
        Self { keys, sorted }
    }

    /// All pairs after so many transfers in the order of keys: accounts, then the log.
    fn pairs(&self, seed: u64, transfers: u64) -> impl Iterator<Item = Pair> {
        let mut last = TransferReplay::new(seed, self.keys.len(), transfers);
        last.by_ref().for_each(drop);
        let pair =
            move |id: &u32| (self.keys[*id as usize].clone(), value(last.balances[*id as usize]));
        let log = (0..).zip(TransferReplay::new(seed, self.keys.len(), transfers));
        let entry = |(number, transfer): (u64, BankTransfer)| {
            (PlainKey::from_iter(log_key(number)), (&transfer.logged()).into())
        };
        self.sorted.iter().map(pair).chain(log.map(entry))
    }
}

/// The key of an account: a word for an even id, 12 bytes of a hash or a decimal number for the others.
fn key(id: u64) -> PlainKey {
    let mut key = PlainKey::new();
    key.push(ACCOUNT);
    match id % 4 {
        1 => key.extend(account_key(id)[..12].iter().copied()),
        3 => key.extend(id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_string().bytes()),
        _ => {
            // Five syllables of six bits, of a number that goes through all of 30 bits as ids do.
            let number = id.wrapping_mul(0x2545_f491);
            for at in 0..5 {
                let bits = usize::try_from(number >> (6 * at) & 63).expect("six bits");
                key.extend([b"bdfghjklmnprstvz"[bits / 4], b"aeio"[bits % 4]]);
            }
        }
    }
    key
}

/// The key of an entry of the log.
fn log_key(number: u64) -> [u8; 9] {
    let mut key = [LOG; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The generator of a run: stream 0 is of the transfers, those behind it of the readers.
fn draws(seed: u64, stream: u64) -> Draws {
    Draws::new(seed, b"pleach-bench bank     v2", stream)
}

/// A transfer.
#[derive(Clone, Copy)]
struct BankTransfer {
    from: u64,
    to: u64,
    amount: u64,
}

impl BankTransfer {
    fn draw(draws: &mut Draws, accounts: u64) -> Self {
        let mut account = || u64::midpoint(draws.below(accounts), draws.below(accounts));
        let (from, mut to) = (account(), account());
        if to == from {
            to = (to + 1) % accounts;
        }
        Self { from, to, amount: 1 + draws.below(INITIAL) }
    }

    /// Two reads, and if the sender has enough, three writes. True when it has.
    fn run(
        &self,
        tx: &mut dyn Tx,
        keys: &[PlainKey],
        entry: u64,
        found: &mut Vec<u8>,
    ) -> Result<bool> {
        let [from, to] = [self.from, self.to].map(|id| &keys[index(id)]);
        let mut balance = |key| {
            let is_there = tx.get(key, found)?;
            if is_there { number(found) } else { wrong(format!("{key:02x?} is not there")) }
        };
        let (has, had) = (balance(from)?, balance(to)?);
        let Some(less) = has.checked_sub(self.amount) else { return Ok(false) };
        tx.put(from, Some(&less.to_le_bytes()))?;
        tx.put(to, Some(&(had + self.amount).to_le_bytes()))?;
        tx.put(&log_key(entry), Some(&self.logged()))?;
        Ok(true)
    }

    /// The transfer's value in the log: both accounts and the amount.
    fn logged(&self) -> [u8; 24] {
        let mut value = [0; 24];
        for (part, number) in value.chunks_mut(8).zip([self.from, self.to, self.amount]) {
            part.copy_from_slice(&number.to_le_bytes());
        }
        value
    }
}

/// The same transfers on plain numbers: those that move something, one after the other.
struct TransferReplay {
    draws: Draws,
    left: u64,
    balances: Vec<u64>,
}

impl TransferReplay {
    fn new(seed: u64, accounts: usize, transfers: u64) -> Self {
        Self { draws: draws(seed, 0), left: transfers, balances: vec![INITIAL; accounts] }
    }
}

impl Iterator for TransferReplay {
    type Item = BankTransfer;

    fn next(&mut self) -> Option<BankTransfer> {
        while self.left > 0 {
            self.left -= 1;
            let transfer = BankTransfer::draw(&mut self.draws, self.balances.len() as u64);
            let [from, to] = [transfer.from, transfer.to].map(index);
            if let Some(less) = self.balances[from].checked_sub(transfer.amount) {
                self.balances[from] = less;
                self.balances[to] += transfer.amount;
                return Some(transfer);
            }
        }
        None
    }
}

fn index(id: u64) -> usize {
    usize::try_from(id).expect("at most 2^30")
}

/// Times of transfers.
#[derive(Default)]
struct Pace {
    commits: Times,
    clock: Duration,
    transfers: u64,
    /// Of equal parts of a phase, for the spread; and of the part at hand.
    parts: Times,
    part: (u64, Duration),
}

impl Pace {
    fn add(&mut self, transfers: u64, took: Duration, part: u64) {
        self.commits.record(took);
        self.clock += took;
        self.transfers += transfers;
        self.part = (self.part.0 + transfers, self.part.1 + took);
        if self.part.0 >= part {
            self.parts.record(self.part.1);
            self.part = Default::default();
        }
    }

    /// Transfers a second, with some time on top.
    fn rate(&self, case: &str, name: &str, part: u64, further: Duration) -> Figure {
        let rate = float(self.transfers) / (self.clock + further).as_secs_f64().max(1e-9);
        self.parts.rate(case, name, part, rate).committed()
    }
}

/// What all rounds of a batch size took.
#[derive(Default)]
struct BankTimes {
    load: Times,
    alone: Pace,
    last_sync: Times,
    /// The time of the last sync and of remaining background work, also before another engine's turn.
    drain: Duration,
    written: u64,
    /// Parts of `written`, where the engine counts them.
    parts: Vec<(&'static str, u64)>,
    beside: Pace,
    reads: Times,
    sums: u64,
    scan: Times,
    pairs: u64,
    files: u64,
}

/// Batches of one size.
struct Bank<'a> {
    args: &'a BankArgs,
    accounts: &'a Accounts,
    batch: u64,
    /// Transfers of a turn.
    part: u64,
    sync_every: u64,
    case: String,
    took: BankTimes,
}

/// The transfers of a round.
struct TransferRound {
    engine: Box<dyn Engine>,
    draws: Draws,
    drawn: u64,
    /// Entries of the log.
    logged: u64,
    commits: u64,
}

impl Bank<'_> {
    fn round(&mut self, side: &mut JobContext) -> Result<()> {
        let (folder, mut engine) = side.open_new(self.args.plan().keys)?;
        let start = &mut self.accounts.pairs(0, 0);
        let (load, ()) = tried(|| {
            engine.load(start)?;
            side.settle(&mut *engine)
        })?;
        self.took.load.record(load);
        engine.pause(true);
        let (from, pending) = (ResourceUsage::now(), engine.pending());
        let before = WrittenBefore::new(&*engine, folder.path());
        let draws = draws(side.flags.seed, 0);
        let mut desk = TransferRound { engine, draws, drawn: 0, logged: 0, commits: 0 };
        while desk.drawn < self.args.transfers && side.turn()? {
            let until = (desk.drawn + self.part).min(self.args.transfers);
            desk.engine.pause(false);
            self.transfer(&mut desk, until, |took| &mut took.alone)?;
            if side.is_turn_ending() {
                self.took.drain += tried(|| side.settle(&mut *desk.engine))?.0;
            }
            desk.engine.pause(true);
            side.progress(desk.drawn, self.args.transfers)?;
        }
        desk.engine.pause(false);
        let (sync, ()) = tried(|| desk.engine.sync())?;
        let (drain, ()) = tried(|| desk.engine.drain(pending))?;
        self.took.last_sync.record(sync);
        self.took.drain += sync + drain;
        let written = ResourceUsage::now().since(&from).written;
        self.took.written += written;
        let parts = before.parts(&*desk.engine, written);
        for (at, part) in parts.into_iter().flatten().enumerate() {
            match self.took.parts.get_mut(at) {
                Some((_, bytes)) => *bytes += part.1,
                None => self.took.parts.push(part),
            }
        }
        if self.args.readers > 0 && !side.is_stopped() {
            self.beside_readers(&mut desk, side)?;
        }
        desk.engine.pause(true);
        self.validate(&mut desk, side)?;
        self.took.files = folder_bytes(folder.path());
        desk.engine.close()
    }

    fn report(&self, side: &JobContext) -> Result<()> {
        let (took, case, part) = (&self.took, &self.case, self.part);
        if took.alone.transfers == 0 {
            return Ok(());
        }
        let zero = Duration::ZERO;
        side.figure(took.load.per_second(case, "accounts loaded", self.args.accounts))?;
        side.figure(took.alone.rate(case, "transfers", part, zero))?;
        let drained = "transfers, synced and drained";
        side.figure(took.alone.rate(case, drained, part, took.drain))?;
        side.figure(took.alone.commits.latencies(case, "a commit").committed())?;
        side.figure(took.last_sync.latencies(case, "last sync").committed())?;
        for (name, bytes) in
            [("bytes written of a transfer", took.written)].iter().chain(&took.parts)
        {
            let of_each = ratio(*bytes, took.alone.transfers);
            side.figure(Figure::one(case, name, Unit::Bytes, of_each).committed())?;
        }
        if took.reads.count() > 0 {
            side.figure(took.beside.rate(case, "transfers beside readers", part, zero))?;
            side.figure(took.reads.each(case, "a read beside transfers", READS))?;
            side.value(case, "sums beside, conserved", Unit::Count, float(took.sums))?;
        }
        if took.pairs > 0 {
            side.figure(took.scan.each(case, "a pair scanned", took.pairs))?;
        }
        side.value(case, "size of the files", Unit::Bytes, float(took.files))
    }

    /// Draws and does transfers until so many are drawn. The clock stands while they are drawn.
    fn transfer(
        &mut self,
        desk: &mut TransferRound,
        until: u64,
        pace: fn(&mut BankTimes) -> &mut Pace,
    ) -> Result<()> {
        let (keys, mut found) = (&self.accounts.keys, Vec::new());
        while desk.drawn < until && !signals::is_stop_requested() {
            let count = self.batch.min(until - desk.drawn);
            let draw = |_| BankTransfer::draw(&mut desk.draws, self.args.accounts);
            let batch: Vec<BankTransfer> = (0..count).map(draw).collect();
            desk.drawn += count;
            desk.commits += 1;
            let sync = self.sync_every > 0 && desk.commits.is_multiple_of(self.sync_every);
            let before = desk.logged;
            let (took, ()) = tried(|| {
                desk.engine.transact(sync, &mut |tx| {
                    desk.logged = before;
                    for transfer in &batch {
                        desk.logged +=
                            u64::from(transfer.run(tx, keys, desk.logged, &mut found)?);
                    }
                    Ok(())
                })
            })?;
            pace(&mut self.took).add(count, took, self.part);
        }
        Ok(())
    }

    /// As many transfers again, while other threads read. All engines do them, so that all end with the same.
    fn beside_readers(&mut self, desk: &mut TransferRound, side: &JobContext) -> Result<()> {
        let mut count = self.args.readers;
        if !side.kind.caps().views {
            side.note("it has no views beside commits: nothing was read beside transfers")?;
            count = 0;
        }
        let readers = (0..count).map(|_| desk.engine.reader()).collect::<Result<Vec<_>>>()?;
        let (accounts, until) = (self.accounts, 2 * self.args.transfers);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let start = |(stream, reader)| {
                let (draws, stop) = (draws(side.flags.seed, stream), &stop);
                scope.spawn(move || read(reader, accounts, draws, stop))
            };
            let threads: Vec<_> = (1..).zip(readers).map(start).collect();
            let stops = StopOnDrop(&stop);
            let done = self.transfer(desk, until, |took| &mut took.beside);
            drop(stops);
            for thread in threads {
                let panicked = |_| Error::Wrong("a reader panicked".to_owned());
                let (times, sums) = thread.join().map_err(panicked)??;
                self.took.reads.add(&times);
                self.took.sums += sums;
            }
            done
        })
    }

    /// Checks that all pairs are there, in order, and no others; the root is that of a load of the same.
    fn validate(&mut self, desk: &mut TransferRound, side: &JobContext) -> Result<()> {
        let (engine, took) = (&mut desk.engine, &mut self.took);
        let pairs = || self.accounts.pairs(side.flags.seed, desk.drawn);
        let (mut expected, mut seen, mut digest) = (pairs(), 0, blake3::Hasher::new());
        let mut compare = |key: &[u8], found: &[u8]| match expected.next() {
            Some((name, value)) if name[..] == *key && *value == *found => {
                digest.update(key).update(found);
                seen += 1;
                Ok(())
            }
            other => wrong(format!("pair {seen} is {key:02x?} {found:02x?}, and not {other:02x?}")),
        };
        let has_names = side.kind.caps().views || side.kind == EngineKind::Model;
        if has_names {
            engine.reader()?.view(&mut |view| {
                took.pairs = 0;
                let mut count = |_: &[u8], _: &[u8]| {
                    took.pairs += 1;
                    true
                };
                let (scan, ()) = tried(|| view.scan(&[], &mut count))?;
                took.scan.record(scan);
                let mut compared = Ok(());
                view.scan(&[], &mut |key, found| {
                    compared = compare(key, found);
                    compared.is_ok()
                })?;
                compared
            })?;
        } else {
            side.note("its keys are hashes of the names: pairs are read by their keys")?;
            let mut names = pairs().map(|pair| pair.0).peekable();
            while names.peek().is_some() {
                let names: Vec<PlainKey> = names.by_ref().take(CHUNK).collect();
                let keys = names.iter().map(|name| hashed(name)).collect::<Result<Vec<Key>>>()?;
                for (name, found) in names.iter().zip(values(&mut **engine, &keys)?) {
                    compare(name, found.as_deref().unwrap_or_default())?;
                }
            }
        }
        if seen != self.args.accounts + desk.logged {
            return wrong(format!("{seen} pairs are there, {} of them should be log", desk.logged));
        }
        let at = format!("after {} transfers, {}", grouped(desk.drawn), self.case);
        side.check(format!("digest {at}"), hex(digest.finalize().as_bytes()))?;
        side.note(format!(
            "{} of {} transfers move something; balances, log and order are those of a replay",
            grouped(desk.logged),
            grouped(desk.drawn)
        ))?;
        if !side.kind.has_root_of_pairs() || seen > RELOADED {
            return Ok(());
        }
        let folder = side.scratch()?;
        let mut other = side.open_in(folder.path().to_owned(), seen)?;
        other.load(&mut pairs())?;
        let root = other.root();
        other.close()?;
        // The oracle makes its root in a load alone.
        if side.kind != EngineKind::Model && engine.root() != root {
            return wrong("the root is not that of a load of the same pairs");
        }
        let keys = if has_names { "names" } else { "hashed names" };
        side.check_root(format!("root of {keys} {at}"), root.as_ref())
    }
}

/// Rounds of reads, each of a view of its own, until told to stop. Returns the time of each, the view included, and the
/// number of sums.
fn read(
    mut reader: Box<dyn Reader>,
    accounts: &Accounts,
    mut draws: Draws,
    stop: &AtomicBool,
) -> Result<(Times, u64)> {
    let count = accounts.keys.len() as u64;
    let sampler = Sampler::new(Distribution::Pareto, count);
    let (mut times, mut sums, mut value) = (Times::default(), 0, Vec::new());
    for round in 0_u64.. {
        let from = Instant::now();
        reader.view(&mut |view| {
            for _ in 0..READS {
                let id = sampler.draw(&mut draws);
                if !view.get(&accounts.keys[index(id)], &mut value)? {
                    return wrong(format!("a reader misses account {id}"));
                }
                number(&value)?;
            }
            times.record(from.elapsed());
            if round.is_multiple_of(SUM_EVERY) {
                conserved(view, count)?;
                sums += 1;
            }
            Ok(())
        })?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok((times, sums))
}

/// Checks that the sum of all accounts is the initial one.
fn conserved(view: &dyn View, accounts: u64) -> Result<()> {
    let (mut sum, mut count, mut failed) = (0_u64, 0_u64, Ok(()));
    view.scan(&[], &mut |key, value| {
        if key[0] == LOG {
            return false;
        }
        count += 1;
        match number(value) {
            Ok(balance) => sum = sum.wrapping_add(balance),
            Err(error) => failed = Err(error),
        }
        failed.is_ok()
    })?;
    failed?;
    if (count, sum) == (accounts, accounts * INITIAL) {
        return Ok(());
    }
    wrong(format!("a view has {count} accounts with {sum} in all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_come_before_the_log() {
        let accounts = Accounts::new(200_000);
        let keys = || accounts.sorted.iter().map(|id| &accounts.keys[*id as usize]);
        assert!(
            keys().is_sorted_by(|a, b| a < b) && keys().all(|key| (3..=31).contains(&key.len()))
        );
        assert!(
            keys().next_back().expect("some")[..] < log_key(0)[..] && log_key(255) < log_key(256)
        );
    }

    #[test]
    fn transfers_are_most_of_the_middle_and_conserve_the_sum() {
        let mut replay = TransferReplay::new(1, 1000, 20_000);
        let (mut moved, mut middle) = (0, 0);
        for transfer in replay.by_ref() {
            assert!(transfer.from != transfer.to && (1..=INITIAL).contains(&transfer.amount));
            moved += 1;
            middle += usize::from((250..750).contains(&transfer.to));
        }
        assert_eq!(replay.balances.iter().sum::<u64>(), 1000 * INITIAL);
        assert!((8_000..20_000).contains(&moved), "{moved}");
        // The middle half has three quarters of the draws.
        assert!((70..80).contains(&(middle * 100 / moved)), "{middle} of {moved}");
    }
}
