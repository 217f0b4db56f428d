//! A session or an overlay whose state cannot be read any more keeps neither disk nor a namespace's number, and
//! long values that only older states name are bounded in bytes. A session that had been told `SnapshotTooOld` once
//! kept each value that was replaced from then on: 127 MB and growing, where 8.9 MB were level without it.

use std::time::Duration;

use pleach::{Access, Error, Options, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimRuntime};
use pleach_ops::{CheckOptions, check_on};

use crate::common::{commit, uniform};
use crate::crash::{Setup, SimDb, unrecorded};

/// The key of the long value.
const LONG: u64 = 1_000_000;

fn options() -> Options {
    let mut setup = Setup::draw(3);
    (setup.cache_kib, setup.flush_at, setup.history) = (4096, 1, 8);
    setup.options().undo_memory_bytes(256 << 10)
}

fn open(disk: &SimDisk, options: &Options) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = SimDb::open_on(disk.clone(), runtime.clone(), options.clone()).expect("opened");
    (db, runtime)
}

fn long(round: u64) -> Value {
    let mut bytes = vec![7; 300_000];
    bytes[..8].copy_from_slice(&round.to_be_bytes());
    Value::from(bytes)
}

/// A new long value, and short ones.
fn round(round: u64) -> Vec<Access> {
    let short = Value::from(round.to_be_bytes().as_slice());
    let puts = (0..100).map(|id| Access::write(uniform(id), Some(short.clone())));
    puts.chain([Access::write(uniform(LONG), Some(long(round)))]).collect()
}

/// The background writes and frees what it can.
fn settle(db: &SimDb, runtime: &SimRuntime) {
    db.drain(0).expect("flushed");
    runtime.clock().advance(Duration::from_millis(150));
    runtime.step_some(300);
}

fn is_whole(db: &SimDb, disk: &SimDisk) {
    db.close().expect("closed");
    let report = check_on(disk, CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// 400 commits after somebody has taken hold of the tenth.
fn holds_nothing(kept_overlay: bool) {
    let disk = SimDisk::new(3, unrecorded());
    let (db, runtime) = open(&disk, &options());
    db.add_namespace(5).expect("added");
    for at in 0..10 {
        commit(&db, round(at));
    }
    let put = |id| Access::write(uniform(id), Some(Value::from(&[1]))).in_namespace(5);
    commit(&db, (0..20).map(put).collect());
    settle(&db, &runtime);
    let (mut session, mut overlay) = (None, None);
    let new = db.session(SessionOptions::new()).expect("a session");
    if kept_overlay {
        let kept = new.finish(round(10)).expect("finished").into_overlay();
        kept.commit().expect("committed");
        overlay = Some(kept);
    } else {
        new.namespace(5).expect("it exists").prefetch(&[uniform(3)]);
        session = Some(new);
    }
    db.drop_namespace(5).expect("dropped");
    let mut level = 0;
    for at in 11..411 {
        commit(&db, round(at));
        settle(&db, &runtime);
        if at == 60 {
            level = disk.used();
        }
    }
    let used = disk.used();
    assert!(used <= level + (1 << 20), "{used} bytes, and {level} long before");
    let pins = db.pins();
    assert_eq!((pins.len(), pins[0].readable, pins[0].bytes), (1, false, 0), "{pins:?}");
    if let Some(session) = &session {
        for id in [LONG, 0, 77] {
            let read = session.read(&uniform(id));
            assert!(matches!(read, Err(Error::SnapshotTooOld { .. })), "{read:?}");
        }
        let dropped = session.namespace(5).and_then(|of| of.read(&uniform(3)));
        assert!(matches!(dropped, Err(Error::SnapshotTooOld { .. })), "{dropped:?}");
    }
    if let Some(overlay) = &overlay {
        let change = overlay.changes().find(|change| *change.key() == uniform(LONG));
        let change = change.expect("it writes the key");
        assert_eq!(change.value().expect("in memory"), Some(long(10)));
        let prior = change.prior();
        assert!(matches!(prior, Err(Error::SnapshotTooOld { .. })), "{prior:?}");
    }
    db.add_namespace(5).expect("nobody can read what was dropped");
    if let Some(session) = &session {
        let dropped = session.namespace(5).and_then(|of| of.prove(&uniform(3)));
        assert!(matches!(dropped, Err(Error::SnapshotTooOld { .. })), "{dropped:?}");
    }
    drop((session, overlay));
    is_whole(&db, &disk);
}

#[test]
fn a_session_that_is_too_old_keeps_neither_disk_nor_a_number() {
    holds_nothing(false);
}

#[test]
fn an_overlay_whose_past_is_gone_keeps_neither_disk_nor_a_number() {
    holds_nothing(true);
}

#[test]
fn long_values_of_older_states_are_bounded_in_bytes() {
    // Room for ten values, each of which takes 75 pages, and for a few small runs.
    let limit = 3;
    for history in [1000, 0] {
        let options = options().history(history).undo_memory_bytes(1 << 30).history_disk_mib(limit);
        let disk = SimDisk::new(3, unrecorded());
        let (db, runtime) = open(&disk, &options);
        commit(&db, vec![Access::write(uniform(LONG), Some(long(1)))]);
        let held = db.session(SessionOptions::new()).expect("a session");
        let mut level = 0;
        for at in 2..100 {
            commit(&db, vec![Access::write(uniform(LONG), Some(long(at)))]);
            settle(&db, &runtime);
            // Undo of two commits ago is inserted; the limit is reached with the next commits.
            let read = held.read(&uniform(LONG));
            match at {
                ..=11 => assert_eq!(read.expect("within the limit"), Some(long(1)), "{at}"),
                15.. => assert!(matches!(read, Err(Error::SnapshotTooOld { .. })), "{read:?}"),
                _ => {}
            }
            if at == 20 {
                level = disk.used();
            }
        }
        let used = disk.used();
        assert!(used <= level + (1 << 20), "{used} bytes, and {level} long before");
        drop(held);
        // Runs go as a whole, each with some commits.
        let kept = db.history();
        assert!(*kept.end() == 99 && *kept.start() >= if history > 0 { 89 } else { 99 });
        assert!(history == 0 || *kept.start() < 96, "{kept:?}");
        is_whole(&db, &disk);
        let (db, _runtime) = open(&disk, &options);
        assert_eq!(db.history(), kept);
        for at in kept {
            let session = db.at(at).expect("in the history");
            assert_eq!(session.read(&uniform(LONG)).expect("read"), Some(long(at)));
        }
    }
}

/// Where its undo is gone a session keeps no memory, either: undo grew again to its limit behind it.
#[test]
fn a_session_that_is_too_old_keeps_no_undo() {
    let disk = SimDisk::new(3, unrecorded());
    let (db, _runtime) = open(&disk, &options().history(0));
    let short = |at: u64| {
        let value = Value::from(at.to_be_bytes().as_slice());
        (0..100).map(|id| Access::write(uniform(id), Some(value.clone()))).collect::<Vec<_>>()
    };
    commit(&db, short(0));
    let old = db.session(SessionOptions::new()).expect("a session");
    let mut at = 0;
    while old.read(&uniform(1)).is_ok() {
        at += 1;
        assert!(at < 1000, "undo is bounded");
        commit(&db, short(at));
    }
    commit(&db, short(at + 1));
    assert_eq!(db.metrics().undo_bytes, 0);
    drop(old);
}
