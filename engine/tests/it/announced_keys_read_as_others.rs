//! Keys that were announced are at hand when they are read, and their pages are read once. That they read as others do, whatever
//! was committed since, is said by `plans_follow_their_models`.

use pleach::{Access, Db, Options, Value};
use pleach_core::Key;
use pleach_io::sim::SimDisk;

use crate::common::held_device::{Held, Patient};
use crate::common::{commit, open, uniform as key};
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
    let session = db.session(pleach::SessionOptions::new()).expect("a session");
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
    let session = db.session(pleach::SessionOptions::new()).expect("a session");
    let keys: Vec<Key> = (0..KEYS).map(key).collect();
    session.prefetch(&keys);
    for key in &keys {
        assert_eq!(session.read(key).expect("read").as_deref(), Some(b"12345678".as_slice()));
    }
    let metrics = db.metrics();
    assert!(metrics.leaf_pages > 50);
    assert_eq!(metrics.cache_misses, metrics.leaf_pages);
}
