//! A long history on the device: what it costs commits, how much room it takes, and what reads and proofs at its far end cost.
//!
//! `cargo bench -p pleach --bench depth [-- LOG2 COMMITS CHANGES [FOLDER]]`: 2^20 accounts, 10,000 commits of 1,313 changes,
//! all in the history, 1 GiB of memory, unless told otherwise. First a tenth of the commits are made without a history. After
//! the last commit the database is closed and opened again, so that all of the history is on the device; then reads and
//! proofs, of one key each, and scans are timed at the far end, in the middle and at the newest commit. At last commits are
//! timed alone and beside a thread that reads and proves at the far end, in turns.
//!
//! FOLDER stays; where a run before has left its database there, the rest is measured on that.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Durability, Hasher, Key, Options, SessionOptions, Value};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const READS: u64 = 5000;
const PROOFS: u64 = 500;
const SCANS: u64 = 200;
/// Pairs of a scan.
const PAIRS: usize = 1000;
/// Commits of a turn, and turns of each kind.
const TURN: u64 = 100;
const TURNS: u64 = 10;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// Accounts that look drawn.
fn ids(accounts: u64, purpose: u64, count: u64) -> Vec<u64> {
    let draw = |at: u64| {
        let hash = Hasher::BLAKE3.hash(&[purpose.to_be_bytes(), at.to_be_bytes()].concat());
        u64::from_be_bytes(hash[..8].try_into().expect("8 bytes")) % accounts
    };
    let mut ids: Vec<u64> = (0..count).map(draw).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments.retain(|argument| argument != "--bench");
    let number = |at: usize, default: u64| -> Result<u64> {
        Ok(arguments.get(at).map_or(Ok(default), |number| number.parse())?)
    };
    let (accounts, commits, changes) = (1 << number(0, 20)?, number(1, 10_000)?, number(2, 1313)?);
    let temporary = tempfile::tempdir()?;
    let folder = arguments.get(3).map_or(temporary.path(), Path::new);
    let (without, with) = (folder.join("without"), folder.join("with"));
    if !with.exists() {
        build(&without, 0, (accounts, commits / 10, changes))?;
        std::fs::remove_dir_all(&without)?;
        build(&with, u64::MAX, (accounts, commits, changes))?;
    }
    let stat = pleach_ops::stat(&with)?;
    println!(
        "history: {} commits, {:.2} GB, {:.1} bytes a change",
        stat.commit - stat.oldest_commit,
        as_float(stat.history_bytes) / 1e9,
        as_float(stat.history_bytes) / as_float((stat.commit - stat.oldest_commit) * changes)
    );
    let since = Instant::now();
    let db = Db::open(options(&with, u64::MAX))?;
    println!("open: {:?}", since.elapsed());
    let (oldest, newest) = (*db.history().start(), db.commit_number());
    let places =
        [("far end", oldest), ("middle", newest - (newest - oldest) / 2), ("newest", newest)];
    for (place, at) in places {
        measure(&db, accounts, place, at)?;
    }
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        commit(&db, accounts, TURN, changes, &mut alone)?;
        commit_beside(&db, accounts, changes, oldest, &mut beside)?;
    }
    println!("finish and commit alone: {}", quantiles(&mut alone));
    println!(
        "finish and commit beside reads and proofs at the far end: {}",
        quantiles(&mut beside)
    );
    db.close()?;
    Ok(())
}

/// A database of `accounts`, with so many commits after a load.
fn build(folder: &Path, history: u64, (accounts, commits, changes): (u64, u64, u64)) -> Result<()> {
    let db = Db::open(options(folder, history))?;
    db.bulk_load((0..accounts).map(|id| (key(id), value(id))), &LoadOptions::default())?;
    let (mut times, begun) = (Vec::new(), Instant::now());
    commit(&db, accounts, commits, changes, &mut times)?;
    println!(
        "{} a history: {commits} commits of {changes} changes in {:?}; finish and commit {}",
        if history > 0 { "with" } else { "without" },
        begun.elapsed(),
        quantiles(&mut times)
    );
    let since = Instant::now();
    db.close()?;
    let metrics = db.metrics();
    println!(
        "close: {:?}; runs: {:.2} GB written, {:.2} times what they take",
        since.elapsed(),
        as_float(metrics.history_written_bytes) / 1e9,
        as_float(metrics.history_written_bytes) / as_float(metrics.history_bytes)
    );
    Ok(())
}

fn options(folder: &Path, history: u64) -> Options {
    let options = Options::new(folder).create(true).cache_mib(1024);
    options.durability(Durability::None).history(history)
}

fn value(number: u64) -> Value {
    Value::from(number.to_be_bytes().as_slice())
}

fn commit(
    db: &Db,
    accounts: u64,
    commits: u64,
    changes: u64,
    times: &mut Vec<Duration>,
) -> Result<()> {
    for _ in 0..commits {
        let number = db.commit_number();
        let ids = ids(accounts, number + 1000, changes).into_iter();
        let writes: Vec<_> =
            ids.map(|id| Access::write(key(id), Some(value(number + id)))).collect();
        let since = Instant::now();
        let session = db.session(SessionOptions::new().witness(false))?;
        let block = session.finish(writes)?;
        block.commit()?;
        times.push(since.elapsed());
    }
    Ok(())
}

/// The commits of a turn, while another thread reads and proves keys of the commit `far`.
fn commit_beside(
    db: &Db,
    accounts: u64,
    changes: u64,
    far: u64,
    times: &mut Vec<Duration>,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> pleach::Result<()> {
            let session = db.at(far)?;
            for id in ids(accounts, 9 + db.commit_number(), READS) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                session.read(&key(id))?;
                session.prove(&key(id))?;
            }
            Ok(())
        });
        let committed = commit(db, accounts, TURN, changes, times);
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("no panic")?;
        committed
    })
}

/// Reads and proofs of one key each, and scans, of a state.
fn measure(db: &Db, accounts: u64, place: &str, commit: u64) -> Result<()> {
    let before = db.metrics();
    let session = db.at(commit)?;
    let mut times = Vec::new();
    for id in ids(accounts, 7 + commit, READS) {
        let since = Instant::now();
        assert!(session.read(&key(id))?.is_some());
        times.push(since.elapsed());
    }
    println!("{place}: a read {}", quantiles(&mut times));
    times.clear();
    for id in ids(accounts, 8 + commit, PROOFS) {
        let since = Instant::now();
        let proof = session.prove(&key(id))?;
        times.push(since.elapsed());
        pleach::proof::path::verify(Hasher::BLAKE3, &proof, &session.root())?;
    }
    println!("{place}: a proof {}", quantiles(&mut times));
    times.clear();
    for id in ids(accounts, 9 + commit, SCANS) {
        let since = Instant::now();
        for pair in session.iter(key(id)..).take(PAIRS) {
            pair?;
        }
        times.push(since.elapsed());
    }
    println!("{place}: a scan of {PAIRS} pairs {}", quantiles(&mut times));
    let undo = (before.undo_bytes, db.metrics().undo_bytes);
    println!("{place}: memory for undo from {} to {} bytes", undo.0, undo.1);
    Ok(())
}

fn quantiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    format!("p50 {:?}, p99 {:?}, worst {:?}", at(50), at(99), at(100))
}

#[expect(clippy::cast_precision_loss, reason = "figures to read")]
fn as_float(number: u64) -> f64 {
    number as f64
}
