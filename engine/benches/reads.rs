//! What a read of a cached page costs: key by key, many at once, with and without keys that were announced before,
//! and from several threads.
//!
//! `cargo bench -p pleach --bench reads [-- BITS]`: 2^20 accounts unless told otherwise, all cached. In a turn each way reads
//! 50,000 keys that no other one has read in that turn. Figures are nanoseconds a key, medians over calls for 500
//! keys, with the share of the keys that had been looked up before they were read; of threads, keys a second of all
//! together, the best of the turns.

#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "small numbers")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Durability, Hasher, Key, Options, SessionOptions, Value};

type Failure = Box<dyn std::error::Error>;

const KEYS: u64 = 50_000;
const CALL: usize = 500;
const TURNS: u64 = 9;
/// Until all that was announced has been looked up.
const REST: Duration = Duration::from_millis(400);

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// Keys of one way in one turn.
fn keys(bits: u32, turn: u64) -> Vec<Key> {
    let draw = |at: u64| {
        let hash = Hasher::BLAKE3.hash(&[turn.to_be_bytes(), at.to_be_bytes()].concat());
        key(u64::from_be_bytes(hash[..8].try_into().expect("8 bytes")) >> (64 - bits))
    };
    (0..KEYS).map(draw).collect()
}

struct Way {
    name: &'static str,
    announced: bool,
    rest: bool,
    many: bool,
}

const WAYS: [Way; 6] = [
    Way { name: "read", announced: false, rest: false, many: false },
    Way { name: "prefetch, read at once", announced: true, rest: false, many: false },
    Way { name: "prefetch, later read", announced: true, rest: true, many: false },
    Way { name: "read_many", announced: false, rest: false, many: true },
    Way { name: "prefetch, read_many at once", announced: true, rest: false, many: true },
    Way { name: "prefetch, later read_many", announced: true, rest: true, many: true },
];

/// Adds the nanoseconds that a key took in each call.
fn run(db: &Db, way: &Way, keys: &[Key], nanos: &mut Vec<f64>) -> Result<(), Failure> {
    // What was looked up for the last commit makes room for what is for this one.
    let write = Access::write([0; 32], Some(Value::from(b"written".as_slice())));
    db.session(SessionOptions::new())?.finish(vec![write])?.commit()?;
    let session = db.session(SessionOptions::new())?;
    if way.announced {
        session.prefetch(keys);
    }
    if way.rest {
        sleep(REST);
    }
    for call in keys.chunks(CALL) {
        let since = Instant::now();
        let mut found = 0;
        if way.many {
            found += session.read_many(call)?.iter().flatten().count();
        } else {
            for key in call {
                found += usize::from(session.read(key)?.is_some());
            }
        }
        nanos.push(since.elapsed().as_nanos() as f64 / call.len() as f64);
        assert_eq!(found, call.len(), "all accounts are there");
    }
    Ok(())
}

/// Keys a second of so many threads, each with its own keys.
fn threads(db: &Db, threads: u64, many: bool, bits: u32, turn: u64) -> Result<f64, Failure> {
    let session = db.session(SessionOptions::new())?;
    let all: Vec<Vec<Key>> =
        (0..threads).map(|thread| keys(bits, 1000 * (turn + 1) + thread)).collect();
    let since = Instant::now();
    std::thread::scope(|scope| {
        let read = |keys: &[Key]| {
            if many {
                keys.chunks(CALL).all(|call| session.read_many(call).is_ok())
            } else {
                keys.iter().all(|key| session.read(key).is_ok())
            }
        };
        let started: Vec<_> = all.iter().map(|keys| scope.spawn(move || read(keys))).collect();
        assert!(started.into_iter().all(|thread| thread.join().is_ok_and(|fine| fine)));
    });
    Ok((KEYS * threads) as f64 / since.elapsed().as_secs_f64())
}

fn main() -> Result<(), Failure> {
    let bits = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(20);
    let folder = tempfile::tempdir()?;
    let options = Options::new(folder.path()).create(true).cache_mib(2048);
    let db = Db::open(options.durability(Durability::None))?;
    let value = |id: u64| Value::from(id.to_be_bytes().as_slice());
    db.bulk_load((0..1 << bits).map(|id| (key(id), value(id))), &LoadOptions::default())?;
    // Every page, before anything is measured.
    for at in 0..1u64 << (bits - 12) {
        let keys: Vec<Key> = (at << 12..(at + 1) << 12).map(key).collect();
        db.session(SessionOptions::new())?.read_many(&keys)?;
    }
    let mut nanos = WAYS.map(|_| Vec::new());
    let mut hits = WAYS.map(|_| 0);
    for turn in 0..TURNS {
        for at in 0..WAYS.len() {
            let at = (at + turn as usize) % WAYS.len();
            let before = db.metrics().value_cache_hits;
            run(&db, &WAYS[at], &keys(bits, turn << 8 | at as u64), &mut nanos[at])?;
            hits[at] += db.metrics().value_cache_hits - before;
        }
    }
    for ((way, mut nanos), hits) in WAYS.iter().zip(nanos).zip(hits) {
        nanos.sort_unstable_by(f64::total_cmp);
        let share = hits * 100 / (TURNS * KEYS);
        println!("{:28} {:6.0} ns a key, {share} % prefetched", way.name, nanos[nanos.len() / 2]);
    }
    for many in [false, true] {
        let way = if many { "read_many" } else { "read" };
        for count in [1, 2, 4] {
            let mut best = 0.0;
            for turn in 0..TURNS {
                best = f64::max(best, threads(&db, count, many, bits, turn)?);
            }
            println!("{way:10} {count} threads {:8.2} million keys a second", best / 1e6);
        }
    }
    Ok(())
}
