//! A long value is read from the device and hashed once, and then found in memory, within the budget. It was read anew
//! each time: 56 microseconds for 2,000 bytes, a hundred times a short value.

use std::time::Duration;

use pleach::{Access, Options, Value};
use pleach_core::Key;
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::{commit, uniform};
use crate::crash::{Setup, SimDb, unrecorded};

/// An eighth of 4 MiB is for long values.
const SHARE: u64 = 512 << 10;

fn options() -> Options {
    let mut setup = Setup::draw(3);
    (setup.cache_kib, setup.flush_at, setup.history) = (4096, 1, 4);
    setup.options()
}

fn open(disk: &SimDisk) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = SimDb::open_on(disk.clone(), runtime.clone(), options()).expect("opened");
    (db, runtime)
}

fn value(id: u64, round: u64, len: usize) -> Value {
    let mut bytes = vec![7; len];
    bytes[..8].copy_from_slice(&id.to_be_bytes());
    bytes[8..16].copy_from_slice(&round.to_be_bytes());
    Value::from(bytes)
}

fn put(db: &SimDb, ids: std::ops::Range<u64>, round: u64, len: usize) {
    let write = |id| Access::write(uniform(id), Some(value(id, round, len)));
    commit(db, ids.map(write).collect());
    db.drain(0).expect("flushed");
}

/// Reads all of them and says how many were read from the device for that.
fn reads(db: &SimDb, ids: std::ops::Range<u64>, round: u64, len: usize) -> u64 {
    let before = db.metrics().long_values_read;
    let session = db.snapshot().expect("a session");
    for id in ids {
        let read = session.read(&uniform(id)).expect("read");
        assert!(read == Some(value(id, round, len)), "another value of {id} in round {round}");
    }
    db.metrics().long_values_read - before
}

#[test]
fn a_long_value_is_read_from_the_device_once() {
    let disk = SimDisk::new(3, unrecorded());
    let (db, runtime) = open(&disk);
    put(&db, 0..50, 0, 2000);
    assert_eq!(reads(&db, 0..50, 0, 2000), 50);
    assert_eq!(reads(&db, 0..50, 0, 2000), 0, "they are in memory");
    let keys: Vec<Key> = (0..50).map(uniform).collect();
    let before = db.metrics().long_values_read;
    assert_eq!(db.snapshot().expect("a session").read_many(&keys).expect("read").len(), 50);
    assert_eq!(db.metrics().long_values_read, before);
    // Runs that are free are used again, for other values of the same keys.
    for round in 1..40 {
        put(&db, 0..50, round, 2000);
        runtime.clock().advance(Duration::from_millis(150));
        runtime.step_some(300);
        assert_eq!(reads(&db, 0..50, round, 2000), 50);
        assert_eq!(reads(&db, 0..50, round, 2000), 0);
    }
    assert!(disk.used() < 12 << 20, "{} bytes: no run was used again", disk.used());
    let oldest = db.at(*db.history().start()).expect("in the history");
    assert_eq!(oldest.read(&uniform(9)).expect("read"), Some(value(9, 35, 2000)));
    drop(oldest);
    db.rollback(2).expect("rolled back");
    assert_eq!(reads(&db, 0..50, 37, 2000), 0, "what is to be written is in memory, too");
    db.drain(0).expect("flushed");
    assert_eq!(reads(&db, 0..50, 37, 2000), 50, "they were written anew");
    db.close().expect("closed");
    drop(db);
    let (db, _runtime) = open(&disk);
    assert_eq!(reads(&db, 0..50, 37, 2000), 50);
    assert_eq!(reads(&db, 0..50, 37, 2000), 0);
}

#[test]
fn long_values_in_memory_stay_within_their_share() {
    let disk = SimDisk::new(3, unrecorded());
    let (db, _runtime) = open(&disk);
    put(&db, 0..900, 0, 2000);
    assert_eq!(db.metrics().long_value_bytes, 0);
    let pairs = db.snapshot().expect("a session").iter(..).count();
    assert_eq!((pairs, db.metrics().long_value_bytes), (900, 0), "an iterator keeps none");
    let alone = db.metrics().leaf_cache_budget;
    assert_eq!(reads(&db, 0..900, 0, 2000), 900);
    let metrics = db.metrics();
    let taken = metrics.long_value_bytes;
    assert!(taken > SHARE / 2 && taken <= SHARE, "{taken} bytes");
    // By steps of a 64th of the budget.
    let given = alone - metrics.leaf_cache_budget;
    assert!(given + (64 << 10) >= taken, "the leaf cache gave {given} bytes for {taken}");
    // A 16th of the share is large.
    put(&db, 1000..1001, 0, 40_000);
    assert_eq!(reads(&db, 1000..1001, 0, 40_000), 1);
    assert_eq!(reads(&db, 1000..1001, 0, 40_000), 1);
}
