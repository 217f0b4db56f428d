//! Keys that were announced are at hand when they are read, and their pages are read once. That they read as others do, whatever
//! was committed since, is said by `plans_follow_their_models`.

use std::collections::BTreeSet;
use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_core::Key;
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::held_device::{Held, Patient};
use crate::common::{Rng, commit, open, uniform as key};
use crate::crash::unrecorded;

const KEYS: u64 = 6_000;

/// None, short, as long as an answer can be and longer, in an overflow run.
fn value(id: u64) -> Option<Value> {
    let len = match id % 11 {
        0 => return None,
        1 => 88,
        2 => 89,
        3 if id.is_multiple_of(97) => 3000,
        4 => 0,
        _ => 8,
    };
    Some(Value::from(id.to_le_bytes().repeat(len / 8 + 1)[..len].to_vec()))
}

/// What was looked up ahead is taken from there, whether keys are read one by one or many at once.
#[test]
fn many_announced_keys_are_taken_from_the_value_cache() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 64);
    commit(&db, (0..KEYS).map(|id| Access::write(key(id), value(id))).collect());
    let session = db.session(SessionOptions::new()).expect("a session");
    let keys: Vec<Key> = (0..2000).map(key).collect();
    session.prefetch(&keys);
    // One by one: what is late is looked up by these reads.
    for key in &keys {
        session.read(key).expect("read");
    }
    let hits = || db.metrics().value_cache_hits;
    let before = hits();
    for key in &keys {
        session.read(key).expect("read");
    }
    let between = hits();
    let got = session.read_many(&keys).expect("read");
    assert!(got.into_iter().eq((0..2000).map(value)));
    let (one_by_one, many) = (between - before, hits() - between);
    assert!(one_by_one > 1000, "{one_by_one} of 2000 were at hand");
    // The background may still have put some in between.
    assert!(many >= one_by_one, "{many}: what was at hand was taken from there");
}

/// The value cache has values of commits. Those of an overlay come before, whether they are put, replaced or deleted there.
#[test]
fn an_overlays_values_come_before_announced_ones() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 64);
    let put = |id: u64, value: u64| Access::write(key(id), Some(Value::from(value.to_le_bytes())));
    commit(&db, (0..300).map(|id| put(id, 1)).collect());
    let session = db.session(SessionOptions::new()).expect("a session");
    let changes = (0..400).step_by(2).map(|id: u64| {
        if id.is_multiple_of(6) { Access::write(key(id), None) } else { put(id, 2) }
    });
    let overlay = session.finish(changes).expect("finished").into_overlay();
    let keys: Vec<Key> = (0..400).map(key).collect();
    let expected = (0..400_u64).map(|id| match id {
        _ if id.is_multiple_of(6) => None,
        _ if id.is_multiple_of(2) => Some(Value::from(2_u64.to_le_bytes())),
        0..300 => Some(Value::from(1_u64.to_le_bytes())),
        _ => None,
    });
    let expected: Vec<Option<Value>> = expected.collect();
    // The commit's own session has the values of the commit put there, for all.
    let below = db.session(SessionOptions::new()).expect("a session");
    let above = db.session(SessionOptions::new().over(&overlay)).expect("a session");
    for session in [&below, &above] {
        session.prefetch(&keys);
        for key in &keys {
            session.read(key).expect("read");
        }
    }
    let one_by_one = keys.iter().map(|key| above.read(key).expect("read"));
    assert!(one_by_one.eq(expected.iter().cloned()));
    assert_eq!(above.read_many(&keys).expect("read"), expected);
}

/// However slow the machine is: a reader that misses a page which the task has asked for waits for it.
#[test]
fn announced_pages_are_read_once() {
    let disk = SimDisk::new(1, unrecorded());
    let open = || {
        let (device, gate) = Held::new(disk.clone());
        let options = Options::new("sim").create(true).cache_mib(64).in_flight(16);
        let options = options.small();
        Db::open_on(device, Patient::new(2, &gate), options).expect("opened")
    };
    let db = open();
    let accesses = (0..KEYS).map(|id| Access::write(key(id), Some(Value::from(b"12345678"))));
    commit(&db, accesses.collect());
    db.drain(0).expect("drained");
    db.close().expect("closed");
    let db = open();
    let session = db.session(SessionOptions::new()).expect("a session");
    let keys: Vec<Key> = (0..KEYS).map(key).collect();
    session.prefetch(&keys);
    for key in &keys {
        assert_eq!(session.read(key).expect("read").as_deref(), Some(b"12345678".as_slice()));
    }
    let metrics = db.metrics();
    assert!(metrics.leaf_pages > 50);
    assert_eq!(metrics.cache_misses, metrics.leaf_pages);
}

/// The device reads for announced keys, and the number of these. What two batches take may be more than
/// the cache can hold, and a flush reads and writes pages beside them.
fn reads_of_announced_keys(cache_mib: u64, keys: u64, ahead: bool) -> (u64, u64) {
    const ACCOUNTS: u64 = 320_000;
    const BATCHES: u64 = 12;
    // As many as the background takes, and a bound where it waits for room.
    const STEPS: usize = 1_000;
    let disk = SimDisk::new(1, unrecorded());
    let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
    let options = Options::new("sim").create(true).cache_mib(cache_mib).in_flight(16).small();
    let db = Db::open_on(disk, runtime.clone(), options).expect("opened");
    let items = (0..ACCOUNTS).map(|id| (key(id), Value::from(&7_u64.to_le_bytes())));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    let mut rng = Rng::new(cache_mib ^ keys);
    // Of one half of the pages, and then of the other: a finish lets go of a page that the next batch needs, too.
    let mut draw = |batch: u64| -> Vec<Key> {
        let ids: BTreeSet<u64> = (0..2 * keys).map(|_| rng.below(ACCOUNTS)).collect();
        ids.into_iter().map(key).filter(|key| u64::from(key[0] & 1) == batch % 2).collect()
    };
    let (mut next, mut announced) = (draw(0), 0);
    let before = db.metrics();
    for batch in 1..=BATCHES {
        let own = std::mem::replace(&mut next, draw(batch));
        announced += own.len() as u64;
        let session = db.session(SessionOptions::new()).expect("a session");
        session.prefetch(&own);
        runtime.step_some(STEPS);
        for key in &own {
            session.read(key).expect("read");
        }
        if ahead && batch < BATCHES {
            session.prefetch(&next);
            runtime.step_some(STEPS);
        }
        let write = |key: &Key| Access::read_write(*key, Some(Value::from(b"12345678")));
        session.finish(own.iter().map(write)).expect("finished").commit().expect("committed");
    }
    let metrics = db.metrics();
    db.close().expect("closed");
    let reads =
        metrics.cache_misses + metrics.page_rereads - before.cache_misses - before.page_rereads;
    (reads, announced)
}

/// What was announced stays until it is used: others, and the next batch, come where there is room.
#[test]
fn announced_pages_stay_until_they_are_used() {
    // Of 5,000 pages the caches have some 900, 1,900 and 4,000.
    for (cache_mib, keys) in [(8, 200), (8, 400), (16, 500), (16, 1200), (32, 1000), (32, 2000)] {
        for ahead in [false, true] {
            let (reads, announced) = reads_of_announced_keys(cache_mib, keys, ahead);
            assert!(
                reads * 100 <= announced * 105,
                "{cache_mib} MiB, {keys} keys, ahead {ahead}: {reads} reads of {announced}"
            );
        }
    }
}

/// Nobody finishes a batch, so nothing that is held is ever let go: keys are looked up all the same, after a while.
#[test]
fn announced_keys_do_not_wait_for_room_for_ever() {
    let disk = SimDisk::new(1, unrecorded());
    let (clock, runtime) = (disk.clock(), SimRuntime::with_clock(1, disk.clock(), 2));
    let options = Options::new("sim").create(true).cache_mib(8).in_flight(16).small();
    let db = Db::open_on(disk, runtime.clone(), options).expect("opened");
    let items = (0..320_000).map(|id| (key(id), Value::from(&7_u64.to_le_bytes())));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    let session = db.session(SessionOptions::new()).expect("a session");
    let misses = || {
        runtime.step_some(2_000);
        db.metrics().cache_misses
    };
    let keys: Vec<Key> = (0..2_000).map(key).collect();
    session.prefetch(&keys);
    let first = misses();
    assert!((300..1_000).contains(&first), "{first}: as much as the cache holds");
    clock.advance(Duration::from_millis(1_900));
    assert_eq!(misses(), first);
    clock.advance(Duration::from_millis(200));
    let all = misses();
    assert!(all > 1_300, "{all} of some 1,600 pages");
    // It has waited once in this batch.
    session.prefetch(&(2_000..4_000).map(key).collect::<Vec<_>>());
    assert!(misses() > all + 1_000);
}
