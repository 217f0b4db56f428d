//! What announcing keys costs, in one call and in calls of 64, in turns: the calls alone, and with reading all
//! of the keys afterwards.
//!
//! ```sh
//! cargo run --release -p pleach --example prefetch FOLDER
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use pleach::load::LoadOptions;
use pleach::{Db, Hasher, Key, Options, SessionOptions, Value};

const ACCOUNTS: u64 = 1 << 19;
const KEYS: u64 = 50_000;
const ROUNDS: u64 = 9;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: prefetch FOLDER, that of a new database");
        return ExitCode::FAILURE;
    };
    match run(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn run(folder: &Path) -> pleach::Result<()> {
    let open = || Db::open(Options::new(folder).create(true));
    let db = open()?;
    let pairs = (0..ACCOUNTS).map(|id| (key(id), Value::from(&id.to_be_bytes())));
    db.bulk_load(pairs, &LoadOptions::new())?;
    db.close()?;
    let mut figures: [Vec<[f64; 4]>; 2] = Default::default();
    for round in 0..2 * ROUNDS {
        let in_parts = round % 2 == 1;
        let first = round / 2 * KEYS;
        let keys: Vec<Key> = (first..first + KEYS).map(|id| key(id * 7919 % ACCOUNTS)).collect();
        // Without a page in memory, then with those that are needed.
        let db = open()?;
        let (cold, warm) = (announce(&db, &keys, in_parts)?, announce(&db, &keys, in_parts)?);
        figures[usize::from(in_parts)].push([cold.0, cold.1, warm.0, warm.1]);
        db.close()?;
    }
    println!(
        "milliseconds, medians of {ROUNDS}    cold: calls   and reads    warm: calls   and reads"
    );
    for (name, rounds) in ["in one call", "in calls of 64"].into_iter().zip(&figures) {
        let [calls, reads, warm_calls, warm_reads] = [0, 1, 2, 3].map(|at| {
            let mut all: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        });
        println!("{name:<28} {calls:>15.2} {reads:>11.1} {warm_calls:>14.2} {warm_reads:>11.1}");
    }
    Ok(())
}

/// Milliseconds for announcing the keys, and for that and reading them.
fn announce(db: &Db, keys: &[Key], in_parts: bool) -> pleach::Result<(f64, f64)> {
    let session = db.session(SessionOptions::new())?;
    let before = db.metrics();
    let since = Instant::now();
    if in_parts {
        for some in keys.chunks(64) {
            session.prefetch(some);
        }
    } else {
        session.prefetch(keys);
    }
    let called = since.elapsed();
    for key in keys {
        session.read(key)?;
    }
    let read = since.elapsed();
    let after = db.metrics();
    eprintln!("{} pages read", after.cache_misses - before.cache_misses);
    Ok((called.as_secs_f64() * 1e3, read.as_secs_f64() * 1e3))
}
