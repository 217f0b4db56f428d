//! Pages that come for announced keys are folded before the finish, which then has less to do and
//! says the same.

use std::time::{Duration, Instant};

use pleach::{Access, LoadOptions, Options, Pleach, Session, SessionOptions, Value};
use pleach_core::{Blake3, Hasher, Key};
use pleach_io::{OsDevice, Threads};

const ACCOUNTS: u64 = 320_000;
const ROUNDS: u64 = 8;

fn key(id: u64) -> Key {
    Blake3::hash(&id.to_be_bytes())
}

fn open(path: &std::path::Path) -> Pleach {
    // A page is rewritten late, so that changes pend on many of them; half of the budget caches
    // about 900 pages of some 5,000.
    let options = Options::new(path).create(true).cache_mib(8).threads(2).in_flight(16);
    Pleach::open(options.flush_at(8)).expect("opened")
}

/// Accounts of a round: some pages come again.
fn keys(round: u64) -> Vec<Key> {
    let from = round % 3 * 1000 + round / ROUNDS * 20_000;
    (0..300).map(|at| key(from + at * (1 + round % 2))).collect()
}

/// Reads, changes and deletions; some of keys that were never there, and some not announced.
fn accesses(round: u64) -> Vec<Access> {
    let access = |(at, key): (usize, Key)| match at % 5 {
        0 => Access::read(key),
        1 => Access::write(key, None),
        _ => Access::read_write(key, Some(Value::from(&(round + at as u64).to_le_bytes()))),
    };
    let absent = (0..20).map(|id| key(ACCOUNTS + round * 50 + id));
    keys(round).into_iter().chain(absent).enumerate().map(access).collect()
}

/// Waits until the task that folds ahead has nothing left.
fn settle(db: &Pleach) {
    let begin = Instant::now();
    let mut last = (u64::MAX, u64::MAX);
    while begin.elapsed() < Duration::from_secs(20) {
        let metrics = db.metrics();
        let now = (metrics.pages_folded_ahead, metrics.cache_misses);
        if now == last {
            return;
        }
        last = now;
        std::thread::sleep(Duration::from_millis(40));
    }
}

/// Root, witness, and hash calls of a finish.
fn told(
    db: &Pleach,
    session: Session<Blake3, OsDevice, Threads>,
    round: u64,
) -> (pleach_core::Node, Vec<u8>, u64) {
    let before = db.metrics().hashes;
    let mut block = session.finish(accesses(round)).expect("finished");
    let witness = block.take_witness().expect("asked for").into_vec();
    (block.root(), witness, db.metrics().hashes - before)
}

#[test]
fn a_finish_says_the_same_with_fewer_hashes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let items = (0..ACCOUNTS).map(|id| (key(id), Value::from(&7u64.to_le_bytes())));
    db.bulk_load(items, LoadOptions::new()).expect("loaded");
    let session = || db.session(SessionOptions::new()).expect("a session");
    let (mut plain, mut ahead) = (0, 0);
    for round in 0..ROUNDS {
        let (root, witness, hashes) = told(&db, session(), round);
        plain += hashes;
        // What was cached goes, mostly.
        for id in 0..4000 {
            session().read(&key(100_000 + round * 4000 + id)).expect("read");
        }
        let folded = db.metrics().pages_folded_ahead;
        let announced = session();
        announced.prefetch(&keys(round));
        let begin = Instant::now();
        while db.metrics().pages_folded_ahead < folded + 150
            && begin.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        settle(&db);
        let folded = db.metrics().pages_folded_ahead - folded;
        assert!(folded > 150, "round {round}: {folded} pages were folded ahead");
        let (other_root, other_witness, hashes) = told(&db, announced, round);
        assert_eq!(root, other_root, "round {round}");
        assert!(witness == other_witness, "round {round}: witnesses differ");
        ahead += hashes;
        // A session that stands on an older commit than what was folded.
        let old = session();
        let (old_twin, twin) = (session(), session());
        old.prefetch(&keys(round + ROUNDS));
        let block = twin.finish(accesses(round)).expect("finished");
        assert_eq!(block.root(), root);
        block.commit().expect("committed");
        old.prefetch(&keys(round + ROUNDS));
        settle(&db);
        let (root, witness, _) = told(&db, old_twin, round + ROUNDS);
        let (old_root, old_witness, _) = told(&db, old, round + ROUNDS);
        assert_eq!(root, old_root, "round {round}");
        assert!(witness == old_witness, "round {round}: witnesses differ");
    }
    assert!(ahead * 10 < plain * 7, "hash calls of finishes: {ahead} with, {plain} without");
    db.close().expect("closed");
}

/// Keys that share 251 bits, with long values: their pages lie too deep to have a treelet.
fn deep(at: u8) -> Key {
    let mut key = [0xa5; 32];
    key[31] = at;
    key
}

#[test]
fn pages_too_deep_for_a_treelet_leave_the_others_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let long = |round: u64| Some(Value::from(round.to_le_bytes().repeat(26)));
    let mut db = open(folder.path());
    let mut items: Vec<(Key, Value)> =
        (0..ACCOUNTS / 8).map(|id| (key(id), Value::from(b"7"))).collect();
    items.extend((0..32).map(|at| (deep(at), long(0).expect("some"))));
    items.sort_by_key(|item| item.0);
    db.bulk_load(items.into_iter(), LoadOptions::new()).expect("loaded");
    for round in 1..8 {
        // Changes pend on pages of both kinds; then all pages are cold.
        let own: Vec<Key> = (0..32)
            .map(deep)
            .chain((0..200).map(|at| key((round * 31 + at * 97) % 20_000)))
            .collect();
        let write = |round: u64| {
            let value = move |key: &Key| {
                if key[0] == 0xa5 && key[1] == 0xa5 {
                    long(round)
                } else {
                    Some(Value::from(&round.to_le_bytes()))
                }
            };
            own.iter().map(|key| Access::read_write(*key, value(key))).collect::<Vec<_>>()
        };
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(write(round)).expect("finished").commit().expect("committed");
        db.close().expect("closed");
        db = open(folder.path());
        let announced = db.session(SessionOptions::new()).expect("a session");
        let before = db.metrics().pages_folded_ahead;
        announced.prefetch(&own);
        let begin = Instant::now();
        while db.metrics().pages_folded_ahead < before + 100
            && begin.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        settle(&db);
        assert!(db.metrics().pages_folded_ahead >= before + 100, "round {round}");
        let mut block = announced.finish(write(round + 100)).expect("finished");
        let (root, witness) = (block.root(), block.take_witness().expect("asked for"));
        drop(block);
        db.close().expect("closed");
        db = open(folder.path());
        let plain = db.session(SessionOptions::new()).expect("a session");
        let mut block = plain.finish(write(round + 100)).expect("finished");
        assert_eq!(root, block.root(), "round {round}");
        assert!(*witness == *block.take_witness().expect("asked for"), "round {round}");
    }
    db.close().expect("closed");
}
