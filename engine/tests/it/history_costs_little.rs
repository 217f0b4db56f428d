//! What reads and proofs of the history's commits take, in counts: page lookups and hashes.

use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::{
    Access, CommitOptions, Db, Durability, Error, Geometry, Key, Options, SessionOptions, Value,
};
use pleach_io::sim::{Quota, SimDisk, SimRuntime, code};
use pleach_io::{Device as _, OpenMode};

use crate::common::uniform as key;
use crate::crash::{SimDb, unrecorded};

const ACCOUNTS: u64 = 20_000;
const COMMITS: u64 = 60;
const CHANGES: u64 = 1000;

fn value(number: u64) -> Value {
    Value::from(number.to_be_bytes().as_slice())
}

/// The ids that a commit changes; three times all of them in all commits.
fn changed(commit: u64) -> impl Iterator<Item = u64> {
    (0..CHANGES).map(move |at| (commit * CHANGES + at) * 7919 % ACCOUNTS)
}

fn open(folder: &std::path::Path) -> Db {
    let options = Options::new(folder).create(true).cache_mib(256).threads(2);
    let options = options.durability(Durability::None).history(COMMITS).undo_memory_bytes(1 << 30);
    Db::open(options).expect("opened")
}

fn loaded(folder: &std::path::Path) -> Db {
    let db = open(folder);
    let pairs = (0..ACCOUNTS).map(|id| (key(id), value(0)));
    db.bulk_load(pairs, &LoadOptions::default()).expect("loaded");
    db
}

fn writes(commit: u64) -> Vec<Access> {
    changed(commit).map(|id| Access::write(key(id), Some(value(commit)))).collect()
}

fn opened(folder: &std::path::Path) -> Db {
    let db = loaded(folder);
    for commit in 1..=COMMITS {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(writes(commit)).expect("finished").commit().expect("committed");
    }
    db.drain(0).expect("drained");
    db
}

#[test]
fn a_value_that_was_replaced_is_read_without_its_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = opened(folder.path());
    let newest = db.commit_number();
    let looked_up = |back: u64, keys: &[Key]| {
        let session = db.at(newest - back).expect("in the history");
        let before = db.metrics();
        for key in keys {
            assert!(session.read(key).expect("read").is_some());
        }
        let after = db.metrics();
        after.cache_hits + after.cache_misses - before.cache_hits - before.cache_misses
    };
    // Changed by the newest commit, and by none of the nineteen newest ones.
    let late: Vec<Key> = changed(COMMITS).map(key).collect();
    let early: Vec<u64> = changed(COMMITS - 19).collect();
    assert!((0..19).all(|back| changed(COMMITS - back).all(|id| !early.contains(&id))));
    let early: Vec<Key> = early.into_iter().map(key).collect();
    let pages = looked_up(0, &late) + looked_up(0, &early);
    assert!(pages > 0, "the present is in pages");
    for back in [1, 5, 20, 59] {
        assert_eq!(looked_up(back, &late), 0, "{back} back");
    }
    for back in [1, 5, 19] {
        assert!(looked_up(back, &early) > 0, "{back} back");
    }
    assert_eq!(looked_up(20, &early), 0);
}

/// Hashes of a proof, the first time and the second.
fn hashes(db: &Db, back: u64, keys: &[Key]) -> [u64; 2] {
    let session = db.at(db.commit_number() - back).expect("in the history");
    [(); 2].map(|()| {
        let before = db.metrics().hashes;
        assert!(!session.prove_many(keys).expect("proven").is_empty());
        db.metrics().hashes - before
    })
}

/// Asserts that proofs of these states take at most so many times the hashes of one of the newest, `now`: a page that has
/// changed since is hashed from its keys. The first proof takes what later ones take.
fn cost_so_much(db: &Db, states: &[u64], keys: &[Key], now: u64, times: u64) {
    for back in states {
        let [first, then] = hashes(db, *back, keys);
        println!("{back} back: {first} and {then} hashes, {now} now");
        assert_eq!(first, then, "{back} back");
        assert!(first <= times * now, "{back} back: {first} hashes, {now} now");
    }
}

#[test]
fn an_old_proof_hashes_the_pages_that_it_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = opened(folder.path());
    let keys: Vec<Key> = (0..300).map(|at| key(at * 61)).collect();
    let [_, now] = hashes(&db, 0, &keys);
    let undo = db.metrics().undo_bytes;
    cost_so_much(&db, &[59, 1, 5, 20, 40], &keys, now, 8);
    // One key: its page, and what lies above.
    let before = db.metrics().pages_folded;
    cost_so_much(&db, &[59], &keys[..1], now, 1);
    assert_eq!(db.metrics().pages_folded - before, 2, "one page a proof");
    assert_eq!(db.metrics().undo_bytes, undo, "proofs take nothing");
}

#[test]
fn after_a_restart_an_old_proof_has_the_nodes_of_pages_from_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    opened(folder.path()).close().expect("closed");
    let db = open(folder.path());
    let keys: Vec<Key> = (0..300).map(|at| key(at * 61)).collect();
    let [_, now] = hashes(&db, 0, &keys);
    cost_so_much(&db, &[59, 1, 5, 20], &keys, now, 8);
    let before = db.metrics().pages_folded;
    cost_so_much(&db, &[59], &keys[..1], now, 1);
    assert_eq!(db.metrics().pages_folded - before, 2, "one page a proof");
}

/// A database on a simulated disk whose undo is in memory only as long as it must.
fn small(disk: &SimDisk, options: impl Fn(Options) -> Options) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options_of =
        Options::new("sim").create(true).cache_mib(8).threads(1).geometry(Geometry::least());
    let options = options(options_of.undo_memory_bytes(1).kept_log_mib(0));
    (Db::open_on(disk.clone(), runtime.clone(), options).expect("opened"), runtime)
}

fn commit(db: &SimDb, accesses: Vec<Access>) -> Result<u64, Error> {
    let session = db.session(SessionOptions::new().witness(false))?;
    let block = session.finish(accesses)?;
    block.commit().map_err(pleach::CommitError::into_error)
}

/// Pages of runs that were merged, or have left the window, are used again while the database is open.
#[test]
fn the_file_of_a_history_does_not_grow_with_the_commits() {
    let disk = SimDisk::new(1, unrecorded());
    let (db, runtime) = small(&disk, |options| options.history(50));
    let mut lengths = Vec::new();
    for number in 1..=1600u64 {
        let put = |at| Access::write(key((20 * number + at) % 300), Some(value(number)));
        commit(&db, (1..=20).map(put).collect()).expect("committed");
        runtime.step_some(8);
        if number % 400 == 0 {
            let file = disk.open("overflow", OpenMode::Read).expect("there");
            lengths.push(disk.len(&file).expect("a length"));
        }
    }
    assert!(db.metrics().checkpoints > 30, "{} checkpoints", db.metrics().checkpoints);
    assert!(lengths[3] <= lengths[0] * 3 / 2, "{lengths:?}");
}

/// The number of commits that an open asks for is that of the next open without a number, however the first one ends.
#[test]
fn the_length_of_a_history_is_kept_through_a_kill() {
    let disk = SimDisk::new(1, unrecorded());
    let put = |number: u64| vec![Access::write(key(number % 7), Some(value(number)))];
    let (db, _runtime) = small(&disk, |options| options.history(5));
    for number in 1..=20 {
        commit(&db, put(number)).expect("committed");
    }
    db.close().expect("closed");
    for (wanted, newest) in [(12, 40), (3, 60)] {
        let (db, runtime) = small(&disk, |options| options.history(wanted));
        runtime.clock().advance(Duration::from_secs(1));
        runtime.step_some(200);
        drop(db);
        let (db, _runtime) = small(&disk, |options| options);
        for number in newest - 19..=newest {
            commit(&db, put(number)).expect("committed");
        }
        assert_eq!(db.history(), newest - wanted..=newest);
        db.close().expect("closed");
    }
}

/// Where the device has no room for runs, undo stays in memory up to its limit; then commits are refused.
#[test]
fn undo_that_no_device_takes_stays_within_its_memory() {
    let disk = SimDisk::new(1, unrecorded());
    let geometry = Geometry { segment_pages: 16, log_segment: 4 << 20, size_factor: 150 };
    let (db, runtime) = small(&disk, |options| options.history(10_000).geometry(geometry));
    let long = || Some(Value::from(vec![7; 900]));
    for from in (0..8000).step_by(100) {
        commit(&db, (from..from + 100).map(|id| Access::write(key(id), long())).collect())
            .expect("committed");
        runtime.step_some(20);
    }
    db.drain(0).expect("flushed");
    runtime.step_some(100);
    // A commit that only deletes takes the reserve for its record; a run does not.
    let room = disk.used() + (5 << 20);
    disk.set_quota(Some(Quota { bytes: room, code: code::ENOSPC }));
    let mut most = 0;
    let refused = (0..8000).step_by(20).find_map(|from| {
        let delete = |_| {
            let session = db.session(SessionOptions::new().witness(false)).expect("a session");
            let accesses = (from..from + 20).map(|id| Access::write(key(id), None));
            let block = session.finish(accesses.collect::<Vec<_>>()).expect("finished");
            let deleted = block.commit_with(CommitOptions::new().wait(false));
            runtime.clock().advance(Duration::from_millis(500));
            runtime.step_some(20);
            most = most.max(db.metrics().undo_bytes);
            deleted.map_err(pleach::CommitError::into_error)
        };
        // It would have to wait for a checkpoint, and is told that none can be made.
        let mut tries =
            (0..50).map(delete).skip_while(|done| matches!(done, Err(Error::WouldWait)));
        tries.next().unwrap_or(Err(Error::WouldWait)).err()
    });
    assert!(matches!(refused, Some(Error::Full(_))), "{refused:?}, {most} bytes of undo");
    assert!(most < 3 << 20, "{most} bytes of undo");
}
