//! Keys that are announced one by one: no key is left behind, pages come without any further call, and values are right.

use std::time::Duration;

use pleach::{Access, Blake3, Db, Geometry, Options, SessionOptions, Value};
use pleach_core::Key;
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::uniform as key;
use crate::crash::{SimDb, unrecorded};

const KEYS: u64 = 4_000;

fn open(disk: &SimDisk, cache_mib: u64) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim").create(true).cache_mib(cache_mib).threads(1);
    let options = options.in_flight(16).geometry(Geometry::small());
    (Db::<Blake3, _, _>::open_on(disk.clone(), runtime.clone(), options).expect("opened"), runtime)
}

/// A database of which no page is in memory.
fn cold() -> (SimDb, SimRuntime) {
    let disk = SimDisk::new(1, unrecorded());
    let (db, _runtime) = open(&disk, 64);
    let put = (0..KEYS).map(|id| Access::write(key(id), Some(Value::from(&id.to_le_bytes()))));
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(put.collect()).expect("finished").commit().expect("committed");
    db.drain(0).expect("room");
    db.close().expect("closed");
    open(&disk, 64)
}

fn one(key: &Key) -> &[Key] {
    std::slice::from_ref(key)
}

/// Lets the background do all that it can, and time pass.
fn settle(runtime: &SimRuntime) {
    for _ in 0..3 {
        runtime.step_some(100_000);
        runtime.clock().advance(Duration::from_millis(1));
    }
}

#[test]
fn no_key_is_left_behind() {
    let (db, runtime) = cold();
    settle(&runtime);
    let session = db.session(SessionOptions::new()).expect("a session");
    // Not a multiple of what is gathered.
    let keys: Vec<Key> = (0..3_001).map(key).collect();
    for key in &keys {
        session.prefetch(one(key));
    }
    // Nobody reads, and nobody announces: the last keys come in, too.
    settle(&runtime);
    let before = db.metrics();
    assert!(before.cache_misses > 50, "{} pages were read", before.cache_misses);
    for (id, key) in keys.iter().enumerate() {
        let expected = Value::from(&(id as u64).to_le_bytes());
        assert_eq!(session.read(key).expect("reads"), Some(expected));
    }
    let after = db.metrics();
    assert_eq!(after.cache_misses, before.cache_misses, "all were there");
    // Keys whose page was on its way for another one have a page and no value.
    assert!(after.value_cache_hits > before.value_cache_hits, "and looked up");
}

/// One key, and then silence: it is there after a bounded time, without any further call.
#[test]
fn a_single_key_comes_in_by_itself() {
    let (db, runtime) = cold();
    settle(&runtime);
    let session = db.session(SessionOptions::new()).expect("a session");
    for id in 0..5 {
        let before = db.metrics();
        session.prefetch(one(&key(id * 700)));
        settle(&runtime);
        let after = db.metrics();
        assert!(after.cache_misses > before.cache_misses, "its page was read");
    }
}

/// A session that announces a little ahead of its reads, one that ends first, one that finishes.
#[test]
fn announcing_and_reading_may_alternate() {
    let (db, runtime) = cold();
    settle(&runtime);
    let session = db.session(SessionOptions::new()).expect("a session");
    let ahead = 60;
    for id in 0..KEYS {
        session.prefetch(one(&key(id)));
        if id >= ahead {
            let expected = Value::from(&(id - ahead).to_le_bytes());
            assert_eq!(session.read(&key(id - ahead)).expect("reads"), Some(expected));
        }
    }
    settle(&runtime);
    let other = db.session(SessionOptions::new()).expect("a session");
    other.prefetch(&[key(1), key(2)]);
    drop(other);
    session.prefetch(one(&key(3)));
    let put = vec![Access::write(key(3), Some(Value::from(&[3])))];
    session.finish(put).expect("finished").commit().expect("committed");
    settle(&runtime);
    db.close().expect("closed");
}

/// With all in memory nothing is read.
#[test]
fn what_is_here_is_not_read_again() {
    let (db, runtime) = cold();
    settle(&runtime);
    let keys: Vec<Key> = (0..KEYS).map(key).collect();
    let session = db.session(SessionOptions::new()).expect("a session");
    session.read_many(&keys).expect("reads");
    settle(&runtime);
    let before = db.metrics();
    for key in &keys {
        session.prefetch(one(key));
    }
    for (id, key) in keys.iter().enumerate() {
        let expected = Value::from(&(id as u64).to_le_bytes());
        assert_eq!(session.read(key).expect("reads"), Some(expected));
    }
    assert_eq!(db.metrics().cache_misses, before.cache_misses);
}
