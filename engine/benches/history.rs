//! What reading and proving cost some commits back, beside the newest commit, and what a history costs commits, in
//! one run.
//!
//! `cargo bench -p pleach --bench history [-- log2=ACCOUNTS COMMITS CHANGES BACK...]`: 2^18 accounts, 1,024 commits of
//! 2,000 changes each, 0, 1, 128 and 1,024 commits back unless told otherwise, everything in memory. Pages of 2^18
//! accounts fit into the caches of some processors, those of 2^20 into none. Figures are
//! processor time of all threads, medians of nine turns. In a turn all distances have the same keys; each begins
//! as often as the others; and before each, untimed, the newest state is asked for other keys, so that none
//! finds in the processor's caches what the one before has left there. A ratio is that of two figures of one turn.
//! Before that, as many commits are made without a history, and with one of 128; after it, the same is measured of
//! the database when it has been opened again, so that the history is on the device.

use std::path::Path;
use std::time::Instant;

use pleach::load::LoadOptions;
use pleach::{Access, Db, Durability, Error, Hasher, Key, Options, Session, SessionOptions, Value};

/// Memory for the pages of 2^22 accounts and more.
const CACHE_MIB: u64 = 1024;
const READS: u64 = 50_000;
const PROVEN: u64 = 4096;
const PROOFS: u32 = 8;
/// Keys that are proven one by one.
const SINGLE: usize = 128;
const TURNS: usize = 9;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// The ids of one purpose: the same for each distance.
fn ids(accounts: u64, purpose: u64, count: u64) -> impl Iterator<Item = u64> {
    let draw = move |at: u64| {
        let hash = Hasher::BLAKE3.hash(&[purpose.to_be_bytes(), at.to_be_bytes()].concat());
        u64::from_be_bytes(hash[..8].try_into().expect("8 bytes")) % accounts
    };
    (0..count).map(draw)
}

fn distinct(accounts: u64, purpose: u64, count: u64) -> Vec<Key> {
    let mut ids: Vec<u64> = ids(accounts, purpose, count).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(key).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut log2 =
        std::env::args().filter_map(|arg| arg.strip_prefix("log2=")?.parse::<u32>().ok());
    let accounts = 1_u64 << log2.next().unwrap_or(18);
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let commits = numbers.next().unwrap_or(1024);
    let changes = numbers.next().unwrap_or(2000);
    for history in [0, 128].into_iter().filter(|history| *history < commits) {
        let folder = tempfile::tempdir()?;
        committed(folder.path(), accounts, history, commits, changes)?.close()?;
    }
    let folder = tempfile::tempdir()?;
    let db = committed(folder.path(), accounts, commits, commits, changes)?;
    let mut distances: Vec<u64> = numbers.collect();
    if distances.is_empty() {
        distances = vec![1, 128, 1024];
    }
    distances.retain(|back| (1..=commits).contains(back));
    distances.insert(0, 0);
    measure(&db, accounts, &distances)?;
    db.close()?;
    println!("opened again:");
    measure(&Db::open(options(folder.path(), commits))?, accounts, &distances)
}

fn options(folder: &Path, history: u64) -> Options {
    Options::new(folder)
        .create(true)
        .cache_mib(CACHE_MIB)
        .durability(Durability::None)
        .history(history)
        .undo_memory_bytes(4 << 30)
}

/// Measures what reads and proofs cost at these distances.
fn measure(db: &Db, accounts: u64, distances: &[u64]) -> Result<(), Box<dyn std::error::Error>> {
    let mut costs = vec![[Cost::default(); TURNS]; distances.len()];
    for (turn, purpose) in (0..TURNS).zip(0_u64..) {
        let (keys, proven) =
            (read_keys(accounts, purpose), distinct(accounts, purpose + 100, PROVEN));
        let (other_keys, other_proven) =
            (read_keys(accounts, purpose + 200), distinct(accounts, purpose + 300, PROVEN));
        for place in 0..distances.len() {
            let at = (turn + place) % distances.len();
            let (tip, session) = (db.commit_number(), db.at(db.commit_number() - distances[at])?);
            let newest = db.at(tip)?;
            let cost = &mut costs[at][turn];
            read_all(&newest, &other_keys)?;
            cost.read = timed(|| read_all(&session, &keys))? / as_float(READS);
            prove(&newest, &other_proven)?;
            cost.first_proof = timed(|| prove(&session, &proven))? / 1e6;
            cost.single = timed(|| prove_each(&session, &other_proven[..SINGLE]))?
                / 1e3
                / as_float(SINGLE as u64);
            let before = db.metrics();
            let proofs = || (0..PROOFS).try_for_each(|_| prove(&session, &proven));
            cost.proof = timed(proofs)? / 1e6 / f64::from(PROOFS);
            let after = db.metrics();
            let each = |count: u64| as_float(count) / f64::from(PROOFS);
            cost.hashes = each(after.hashes - before.hashes);
            cost.pages = each(after.pages_folded - before.pages_folded);
        }
    }
    println!(
        "back    ns a read  ratio    us to prove a key  ratio    ms to prove {PROVEN} keys  ratio    \
         for the first time  ratio    hashes  pages"
    );
    for (back, cost) in distances.iter().zip(&costs) {
        let of = |figure: fn(&Cost) -> f64| median(cost.iter().map(figure));
        let ratio = |figure: fn(&Cost) -> f64| {
            median(cost.iter().zip(&costs[0]).map(|(one, newest)| figure(one) / figure(newest)))
        };
        println!(
            "{back:>4} {:>12.0} {:>6.2} {:>20.1} {:>6.2} {:>24.2} {:>6.2} {:>21.2} {:>6.2} {:>9.0} {:>6.0}",
            of(|cost| cost.read),
            ratio(|cost| cost.read),
            of(|cost| cost.single),
            ratio(|cost| cost.single),
            of(|cost| cost.proof),
            ratio(|cost| cost.proof),
            of(|cost| cost.first_proof),
            ratio(|cost| cost.first_proof),
            of(|cost| cost.hashes),
            of(|cost| cost.pages),
        );
    }
    Ok(())
}

/// Makes a database with this many commits, and says what they took.
fn committed(
    folder: &Path,
    accounts: u64,
    history: u64,
    commits: u64,
    changes: u64,
) -> Result<Db, Box<dyn std::error::Error>> {
    let db = Db::open(options(folder, history))?;
    let value = |number: u64| Value::from(number.to_be_bytes().as_slice());
    db.bulk_load((0..accounts).map(|id| (key(id), value(id))), &LoadOptions::default())?;
    let log = db.metrics().log_bytes;
    let (mut wall, mut on_processors) = (0.0, 0.0);
    for number in 0..commits {
        let writes = distinct(accounts, number + 1000, changes).into_iter();
        let writes: Vec<_> = writes.map(|key| Access::write(key, Some(value(number)))).collect();
        let session = db.session(SessionOptions::new().witness(false))?;
        let block = session.finish(writes)?;
        let begun = Instant::now();
        on_processors +=
            timed(|| block.commit().map(drop).map_err(pleach::CommitError::into_error))?;
        wall += begun.elapsed().as_secs_f64();
    }
    db.drain(0)?;
    let metrics = db.metrics();
    println!(
        "history {history}, {commits} commits of {changes} changes, each commit alone: {:.2} ms, {:.2} ms of \
         processors, {} bytes of log; undo: {:.1} MiB, {:.1} bytes a change",
        wall * 1e3 / as_float(commits),
        on_processors / 1e6 / as_float(commits),
        (metrics.log_bytes - log) / commits,
        as_float(metrics.undo_bytes) / as_float(1 << 20),
        as_float(metrics.undo_bytes) / as_float(history.max(1) * changes),
    );
    Ok(db)
}

/// What one distance costs in one turn: nanoseconds a read, microseconds a proof of one key, milliseconds one of many.
#[derive(Clone, Copy, Default)]
struct Cost {
    read: f64,
    single: f64,
    proof: f64,
    first_proof: f64,
    /// Of one proof: hashes, and pages folded.
    hashes: f64,
    pages: f64,
}

fn read_keys(accounts: u64, purpose: u64) -> Vec<Key> {
    ids(accounts, purpose, READS).map(key).collect()
}

fn read_all(session: &Session, keys: &[Key]) -> Result<(), Error> {
    for key in keys {
        assert!(session.read(key)?.is_some());
    }
    Ok(())
}

fn prove(session: &Session, keys: &[Key]) -> Result<(), Error> {
    let accesses: Vec<_> = keys.iter().map(|key| Access::read(*key)).collect();
    let mut block = session.fork()?.finish(accesses)?;
    assert!(block.take_witness().is_some());
    Ok(())
}

/// Proves keys one by one.
fn prove_each(session: &Session, keys: &[Key]) -> Result<(), Error> {
    keys.iter().try_for_each(|key| session.prove(key).map(drop))
}

/// Nanoseconds of processor time of all threads.
fn timed(work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Box<dyn std::error::Error>> {
    let since = on_processors();
    work()?;
    Ok(as_float(on_processors() - since))
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Nanoseconds for which the threads of this process have run, to this moment: what the scheduler writes of each
/// thread under `/proc` is a tick old, which is a third of what all reads of a turn take.
fn on_processors() -> u64 {
    let ran = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanos = i128::from(ran.tv_sec) * 1_000_000_000 + i128::from(ran.tv_nsec);
    u64::try_from(nanos).expect("a process has not run for centuries")
}

#[expect(clippy::cast_precision_loss, reason = "figures to read")]
fn as_float(number: u64) -> f64 {
    number as f64
}
