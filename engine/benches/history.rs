//! What reading and proving cost some commits back, beside the newest commit, in one run.
//!
//! `cargo bench -p pleach --bench history [-- COMMITS CHANGES]`: 2^18 accounts, 1,024 commits of 2,000
//! changes each unless told otherwise, everything in memory. Figures are processor time of all threads, the best
//! of seven turns, in which the distances take turns: so other work on the machine counts little, and
//! meets all of them alike.

use std::time::Instant;

use pleach::{
    Access, Blake3, Durability, Hasher as _, Key, LoadOptions, Options, Pleach, SessionOptions,
    Value,
};

const ACCOUNTS: u64 = 1 << 18;
const READS: u64 = 50_000;
const PROVEN: u64 = 4096;
const PROOFS: u32 = 8;
const TURNS: u64 = 7;

fn key(id: u64) -> Key {
    Blake3::hash(&id.to_be_bytes())
}

/// The ids of one purpose: the same for each distance.
fn ids(purpose: u64, count: u64) -> impl Iterator<Item = u64> {
    let draw = move |at: u64| {
        let hash = Blake3::hash(&[purpose.to_be_bytes(), at.to_be_bytes()].concat());
        u64::from_be_bytes(hash[..8].try_into().expect("8 bytes")) % ACCOUNTS
    };
    (0..count).map(draw)
}

fn distinct(purpose: u64, count: u64) -> Vec<Key> {
    let mut ids: Vec<u64> = ids(purpose, count).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(key).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let commits = numbers.next().unwrap_or(1024);
    let changes = numbers.next().unwrap_or(2000);
    let folder = tempfile::tempdir()?;
    let options = Options::new(folder.path())
        .create(true)
        .durability(Durability::None)
        .history(commits)
        .history_bytes(4 << 30)
        .history_log_bytes(u64::MAX);
    let db = Pleach::open(options)?;
    let value = |number: u64| Value::from(number.to_be_bytes().as_slice());
    db.bulk_load((0..ACCOUNTS).map(|id| (key(id), value(id))), &LoadOptions::default())?;
    let begun = Instant::now();
    let log = db.metrics().log_bytes;
    for number in 0..commits {
        let writes = distinct(number + 1000, changes).into_iter();
        let writes = writes.map(|key| Access::write(key, Some(value(number)))).collect();
        let session = db.session(SessionOptions::new().witness(false))?;
        session.finish(writes)?.commit()?;
    }
    db.drain(0)?;
    let metrics = db.metrics();
    println!(
        "{commits} commits of {changes} changes: {:.2} ms and {} bytes of log each, {:.1} MiB of undo",
        begun.elapsed().as_secs_f64() * 1e3 / as_float(commits),
        (metrics.log_bytes - log) / commits,
        as_float(metrics.undo_bytes) / as_float(1 << 20),
    );
    let back = [0, 1, 128, 1024].into_iter().filter(|back| *back <= commits);
    let mut best: Vec<(u64, f64, f64)> = back.map(|back| (back, f64::MAX, f64::MAX)).collect();
    for turn in 0..TURNS {
        let keys: Vec<Key> = ids(turn, READS).map(key).collect();
        let proven = distinct(turn + 100, PROVEN);
        for (back, read, proof) in &mut best {
            let session = db.at(db.commit_number() - *back)?;
            let since = on_processors()?;
            for key in &keys {
                assert!(session.read(key)?.is_some());
            }
            *read = read.min(as_float(on_processors()? - since) / as_float(READS));
            let since = on_processors()?;
            for _ in 0..PROOFS {
                let accesses = proven.iter().map(|key| Access::read(*key)).collect();
                let mut block = session.fork()?.finish(accesses)?;
                assert!(block.take_witness().is_some());
            }
            *proof = proof.min(as_float(on_processors()? - since) / 1e6 / f64::from(PROOFS));
        }
    }
    println!("back   ns a read   ms to prove {PROVEN} keys");
    for (back, read, proof) in best {
        println!("{back:>4} {read:>11.0} {proof:>12.2}");
    }
    Ok(())
}

/// Nanoseconds for which the threads of this process have run.
fn on_processors() -> std::io::Result<u64> {
    let mut nanos = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let figures = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let ran = figures.split(' ').next().and_then(|ran| ran.parse::<u64>().ok());
        nanos += ran.unwrap_or(0);
    }
    Ok(nanos)
}

#[expect(clippy::cast_precision_loss, reason = "figures to read")]
fn as_float(number: u64) -> f64 {
    number as f64
}
