//! Every open read all records of the history, since they name long values: one key of a database with 1.1 GB of log took six
//! seconds, and so did each command that looks at the newest state.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach::{Access, Db, Durability, Error, Geometry, Options, SessionOptions, Value};
use pleach_io::sim::{
    CrashMode, Damage, DamagedPage, Fault, FaultRepeats, FaultRule, SimDisk, SimRuntime, code,
};
use pleach_io::{Device, Operation};
use pleach_ops::{explain_on, stat_on};

use crate::common::held_device::{Gate, Held};
use crate::common::{commit, uniform};
use crate::crash::{SimDb, unrecorded};

type HeldDb = Db;

fn options(history: u64) -> Options {
    let options = Options::new("sim").create(true).cache_kib(512).threads(1).in_flight(4);
    options.history(history).undo_memory_bytes(8 << 10).kept_log_mib(0).geometry(Geometry::least())
}

fn writer(disk: &SimDisk, history: u64) -> SimDb {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    Db::open_on(disk.clone(), runtime, options(history)).expect("opens")
}

fn held(disk: &SimDisk, options: Options) -> (HeldDb, Arc<Gate>) {
    let (held, gate) = Held::new(disk.clone());
    let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
    (Db::open_on(held, runtime, options).expect("opens"), gate)
}

fn value(number: u64) -> Value {
    Value::from(number.to_be_bytes().repeat(40).as_slice())
}

/// Key 0 and another one have the number of the commit.
fn commit_some(db: &Db, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        let accesses =
            [0, 1 + number % 50].map(|id| Access::write(uniform(id), Some(value(number))));
        let session = db.session(SessionOptions::new()).expect("a session");
        let block = session.finish(accesses.to_vec()).expect("finished");
        assert_eq!(block.commit().expect("committed"), number);
    }
}

/// Reads of the log's files.
fn log_reads(reads: &BTreeMap<(String, u64), u32>) -> u32 {
    reads.iter().filter(|((file, _), _)| file.starts_with("log-")).map(|(_, count)| count).sum()
}

/// Reads of the overflow file, where there is no long value.
fn reads_of_runs(reads: &BTreeMap<(String, u64), u32>) -> u32 {
    reads.iter().filter(|((file, _), _)| file == "overflow").map(|(_, count)| count).sum()
}

fn segments(disk: &SimDisk) -> usize {
    disk.list().expect("listed").iter().filter(|name| name.starts_with("log-")).count()
}

/// A closed database with so many commits, all in its history.
fn closed(commits: u64) -> SimDisk {
    let disk = SimDisk::new(commits, unrecorded());
    let db = writer(&disk, 100_000);
    commit_some(&db, 1..=commits);
    db.close().expect("closed");
    disk
}

#[test]
fn what_an_open_reads_of_the_log_does_not_grow_with_the_history() {
    let reads_of = |commits: u64| {
        let disk = closed(commits);
        let mut counts = Vec::new();
        for reads_only in [true, false] {
            let options = options(100_000).create(false).read_only(reads_only);
            let (db, gate) = held(&disk, options);
            assert_eq!(db.history(), 0..=commits);
            let session = db.snapshot().expect("a snapshot");
            assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(commits)));
            session.prove(&uniform(0)).expect("proven");
            drop(session);
            counts.push(log_reads(&gate.reads()));
            // An older state is there for those who ask.
            let session = db.at(1).expect("in the history");
            assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(1)));
            assert!(reads_of_runs(&gate.reads()) > 0);
            drop(session);
            db.close().expect("closed");
        }
        let (device, gate) = Held::new(disk.clone());
        let stat = stat_on(device.clone(), None).expect("looked at");
        assert_eq!((stat.oldest_commit, stat.commit, stat.log_replay_bytes), (0, commits, 0));
        assert!(stat.history_bytes > commits * 300, "{}", stat.history_bytes);
        counts.push(log_reads(&gate.reads()));
        assert!(
            explain_on(device.clone(), None, 0, &uniform(0), false).expect("explained").present
        );
        counts.push(log_reads(&gate.reads()));
        counts
    };
    let (few, many) = (reads_of(20), reads_of(300));
    // The end of the log may lie over the end of a segment.
    let more = few.iter().zip(&many).filter(|(few, many)| **many > **few + 4).count();
    assert_eq!(more, 0, "{many:?} reads with 300 commits, {few:?} with 20");
}

#[test]
fn what_was_left_unread_can_be_read_proven_and_rolled_back_to() {
    let disk = closed(120);
    for reads_only in [true, false] {
        let (db, _) = held(&disk, options(100_000).create(false).read_only(reads_only));
        for number in [119, 60, 1, 90] {
            let session = db.at(number).expect("in the history");
            assert_eq!(session.commit_number(), number);
            assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(number)));
            assert_eq!(session.root(), db.commit_at(number).expect("in the history").root);
            session.prove(&uniform(0)).expect("proven");
        }
    }
    // What comes after the open, and what was left unread, are one history.
    let (db, _) = held(&disk, options(100_000));
    commit_some(&db, 121..=140);
    assert_eq!(db.history(), 0..=140);
    let roots: Vec<_> =
        [130, 120, 77].map(|number| db.commit_at(number).expect("there").root).into();
    assert_eq!(db.rollback_to(130).expect("rolled back"), 141);
    assert_eq!(db.root(), roots[0]);
    assert_eq!(db.rollback_to(120).expect("rolled back"), 142);
    assert_eq!(db.root(), roots[1]);
    drop(db);
    let (db, _) = held(&disk, options(100_000));
    assert_eq!(db.rollback_to(77).expect("rolled back"), 143);
    assert_eq!(db.root(), roots[2]);
    assert_eq!(db.at(141).expect("there").read(&uniform(0)).expect("read"), Some(value(130)));
}

/// What is left unread does not keep the log for ever, however short each open is.
#[test]
fn the_log_of_short_opens_is_no_longer_than_the_history() {
    let disk = SimDisk::new(1, unrecorded());
    let (mut number, mut most) = (0, 0);
    for turn in 0..60 {
        let db = writer(&disk, 40);
        commit_some(&db, number + 1..=number + 4);
        number += 4;
        assert_eq!(db.history(), number.saturating_sub(40)..=number);
        db.close().expect("closed");
        if turn == 14 {
            most = segments(&disk);
        }
        assert!(most == 0 || segments(&disk) <= most + 3, "{} segments", segments(&disk));
    }
    let db = writer(&disk, 40);
    let oldest = *db.history().start();
    let session = db.at(oldest).expect("in the history");
    assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(oldest)));
    assert!(matches!(db.at(oldest - 1), Err(Error::SnapshotTooOld { .. })));
}

#[test]
fn damage_of_the_log_that_has_the_history_is_told_to_those_who_ask_for_it() {
    // Without room for runs the history stays in the log.
    let disk = SimDisk::new(120, unrecorded());
    let db = writer(&disk, 100_000);
    let full = Fault::Errno(code::ENOSPC);
    disk.inject(FaultRule::nth(Operation::Write, "overflow", 1, FaultRepeats::Forever, full));
    commit_some(&db, 1..=120);
    db.close().expect("closed");
    drop(db);
    // There it stays, open after open, though no replay needs it.
    for turn in 0..3 {
        let db = writer(&disk, 100_000);
        assert_eq!(db.history(), 0..=120, "open {turn}");
        let session = db.at(1).expect("in the history");
        assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(1)));
    }
    disk.heal();
    let log: Vec<String> = (disk.list().expect("listed").into_iter())
        .filter(|name| name.starts_with("log-"))
        .collect();
    let at = DamagedPage { file: log[log.len() / 2].clone(), page: 1 };
    disk.damage(&Damage::Flip { at, byte: 100, bit: 1 });
    for reads_only in [true, false] {
        let (db, _) = held(&disk, options(100_000).create(false).read_only(reads_only));
        let session = db.snapshot().expect("a snapshot");
        assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(120)));
        drop(session);
        let error = db.at(1).map(drop).expect_err("lost");
        let Error::HistoryLost { commit: 1, oldest, newest: 120, .. } = error else {
            panic!("{error}")
        };
        assert!((2..120).contains(&oldest), "{oldest}");
        assert_eq!(*db.history().start(), oldest);
        let session = db.at(oldest).expect("it is whole");
        assert_eq!(session.read(&uniform(0)).expect("read"), Some(value(oldest)));
        let error = db.commit_at(oldest - 1).map(drop).expect_err("lost");
        assert!(matches!(error, Error::HistoryLost { .. }), "{error}");
    }
    // Whoever wants all of it is told at once.
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = options(100_000).require_history(true);
    let error = Db::open_on(disk, runtime, options).map(drop).expect_err("lost");
    assert!(matches!(error, Error::HistoryShort { .. }), "{error}");
}

/// An open with a longer history than the one before: what that one gave up is not given, whether its records are read with the
/// replay or stay unread.
#[test]
fn a_longer_history_does_not_bring_back_what_was_given_up() {
    // Closed in between, there is a run that begins before the window.
    for (is_closed, is_closed_before) in [(false, false), (true, false), (true, true)] {
        let disk = SimDisk::new(1, unrecorded());
        let mut db = writer(&disk, 3);
        commit_some(&db, 1..=6);
        if is_closed_before {
            db.close().expect("closed");
            db = writer(&disk, 3);
        }
        commit_some(&db, 7..=8);
        if is_closed {
            db.close().expect("closed");
        }
        drop(db);
        let db = writer(&disk, 30);
        for number in 1..=8 {
            match db.at(number) {
                Ok(session) if number >= 5 => {
                    let found = session.read(&uniform(0)).expect("read");
                    assert_eq!(found, Some(value(number)), "{number}");
                }
                Err(Error::SnapshotTooOld { .. }) if number < 5 => {}
                other => panic!(
                    "closed {is_closed}, {is_closed_before}, commit {number}: {:?}",
                    other.map(drop)
                ),
            }
        }
    }
}

/// Rule `runs-after-window`, of what an open has found: commits that are not synced move the window on in memory, and a power
/// cut takes them and brings it back.
#[test]
fn a_power_cut_brings_back_a_past_whose_long_values_are_there() {
    let disk = SimDisk::new(1, unrecorded());
    let long = |number: u64| Value::from(number.to_be_bytes().repeat(12_000).as_slice());
    let put = |number: u64| vec![Access::write(uniform(0), Some(long(number)))];
    let db = writer(&disk, 3);
    for number in 1..=8 {
        assert_eq!(commit(&db, put(number)), number);
        db.drain(0).expect("flushed");
    }
    db.close().expect("closed");
    drop(db);
    let disk = SimDisk::from_image(&disk.image(), 2);
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let unsynced = options(3).durability(Durability::None).tune(|tuning| tuning.flush_at = 255);
    let db = Db::open_on(disk.clone(), runtime.clone(), unsynced).expect("opens");
    disk.record();
    for number in 9..=16 {
        assert_eq!(commit(&db, put(number)), number);
        runtime.clock().advance(std::time::Duration::from_millis(200));
        runtime.step_some(500);
    }
    let cut = disk.trace().crash_points().last().expect("a point").outcome(CrashMode::Dropped);
    let db = writer(&cut.disk(), 3);
    assert_eq!(db.history(), 5..=8, "what was not synced is gone");
    for number in 5..=8 {
        let found = db.at(number).expect("in the history").read(&uniform(0)).expect("read");
        assert_eq!(found, Some(long(number)), "{number}");
    }
}

/// Long values that only older states name are not written over.
#[test]
fn long_values_of_an_unread_history_stay() {
    let disk = SimDisk::new(1, unrecorded());
    let long = |number: u64| Value::from(number.to_be_bytes().repeat(9000).as_slice());
    let db = writer(&disk, 30);
    for number in 1..=20 {
        assert_eq!(commit(&db, vec![Access::write(uniform(0), Some(long(number)))]), number);
    }
    db.close().expect("closed");
    for turn in 0..3 {
        let db = writer(&disk, 30);
        for number in 21 + 2 * turn..=22 + 2 * turn {
            assert_eq!(commit(&db, vec![Access::write(uniform(0), Some(long(number)))]), number);
            db.drain(0).expect("flushed");
        }
        for number in db.history().filter(|number| *number > 0) {
            let session = db.at(number).expect("in the history");
            assert_eq!(session.read(&uniform(0)).expect("read"), Some(long(number)), "{number}");
        }
        db.close().expect("closed");
    }
}
