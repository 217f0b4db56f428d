//! A key that was announced reads as it would without: whoever looked it up, from wherever it came,
//! and whatever was committed since.

use std::collections::BTreeMap;

use pleach::{Access, Db, Options, Overlay, Value};
use pleach_core::Key;
use pleach_io::sim::SimDisk;

use crate::common::held_device::{Held, Patient};
use crate::common::{commit, open, uniform as key};
use crate::crash::unrecorded;

const KEYS: u64 = 6_000;
const ROUNDS: u64 = 24;

type SessionOptions = pleach::SessionOptions;
type Session = pleach::Session;
type State = BTreeMap<Key, Value>;

/// None, short, as long as an answer can be and longer, in an overflow run.
fn value(id: u64, round: u64) -> Option<Value> {
    let len = match (id + round) % 11 {
        0 => return None,
        1 => 88,
        2 => 89,
        3 if id.is_multiple_of(97) => 3000,
        4 => 0,
        _ => 8,
    };
    Some(Value::from((id * 1000 + round).to_le_bytes().repeat(len / 8 + 1)[..len].to_vec()))
}

fn changes(round: u64) -> impl Iterator<Item = (Key, Option<Value>)> {
    (0..KEYS).filter(move |id| id % ROUNDS <= round).map(move |id| (key(id), value(id, round)))
}

fn apply(state: &mut State, round: u64) {
    for (key, value) in changes(round) {
        match value {
            Some(value) => drop(state.insert(key, value)),
            None => drop(state.remove(&key)),
        }
    }
}

fn accesses(round: u64) -> Vec<Access> {
    changes(round).map(|(key, value)| Access::write(key, value)).collect()
}

/// Announces keys and reads all of them, some that were not announced between.
fn check(db: &Db, options: SessionOptions, state: &State, from: u64) {
    let session = db.session(options).expect("a session");
    read(&session, state, from);
}

fn read(session: &Session, state: &State, from: u64) {
    // Also keys that never were, and in several announcements, some before any of them is read.
    let ids: Vec<u64> = (from..from + 2000).map(|id| id * 7 % (KEYS + 500)).collect();
    let (first, second) = ids.split_at(1200);
    for part in [first, second] {
        for piece in part.chunks(500) {
            session.prefetch(&piece.iter().map(|id| key(*id)).collect::<Vec<_>>());
        }
        for (index, id) in part.iter().enumerate() {
            let got = session.read(&key(*id)).expect("read");
            assert_eq!(got.as_ref(), state.get(&key(*id)), "key {id}");
            if index % 10 == 0 {
                let other = key((id + 3) % KEYS);
                assert_eq!(session.read(&other).expect("read").as_ref(), state.get(&other));
            }
        }
    }
    // Many at once, announced and not, one of them twice.
    let mut keys: Vec<Key> = ids.iter().step_by(3).map(|id| key(id + id % 2)).collect();
    keys.push(keys[0]);
    let got = session.read_many(&keys).expect("read");
    assert!(got.iter().map(Option::as_ref).eq(keys.iter().map(|key| state.get(key))));
}

/// What was looked up ahead is taken from there, whether keys are read one by one or many at once.
#[test]
fn many_announced_keys_are_taken_from_the_value_cache() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut state = State::new();
    let db = open(folder.path(), 64);
    commit(&db, accesses(ROUNDS));
    apply(&mut state, ROUNDS);
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
    assert!(got.iter().map(Option::as_ref).eq(keys.iter().map(|key| state.get(key))));
    let (one_by_one, many) = (between - before, hits() - between);
    assert!(one_by_one > 1000, "{one_by_one} of 2000 were at hand");
    // The background may still have put some in between.
    assert!(many >= one_by_one, "{many}: what was at hand was taken from there");
}

fn run(cache_mib: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut state = State::new();
    let mut db = open(folder.path(), cache_mib);
    let mut old: Vec<(Session, State)> = Vec::new();
    for round in 0..ROUNDS {
        let session = db.session(SessionOptions::new()).expect("a session");
        if round % 3 == 0 {
            session.prefetch(&(0..KEYS).map(key).collect::<Vec<_>>());
        }
        // Sessions of earlier states, announced now.
        for (session, state) in &old {
            read(session, state, round * 100);
        }
        session.finish(accesses(round)).expect("finished").commit().expect("committed");
        apply(&mut state, round);
        check(&db, SessionOptions::new(), &state, round * 50);
        if round % 4 == 1 {
            let session = db.session(SessionOptions::new()).expect("a session");
            session.prefetch(&[key(round)]);
            old.push((session, state.clone()));
        }
        if round % 6 == 5 {
            // On an uncommitted block, whose changes no answer has.
            let session = db.session(SessionOptions::new()).expect("a session");
            let block = session.finish(accesses(round + 1)).expect("finished");
            let overlay: Overlay = block.into_overlay();
            let mut above = state.clone();
            apply(&mut above, round + 1);
            check(&db, SessionOptions::new().over(&overlay), &above, round);
        }
        if round % 8 == 7 {
            // From the device.
            old.clear();
            db.close().expect("closed");
            db = open(folder.path(), cache_mib);
            check(&db, SessionOptions::new(), &state, round);
        }
    }
}

#[test]
fn with_all_in_memory() {
    run(64);
}

#[test]
fn with_a_cache_of_few_pages() {
    run(8);
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
