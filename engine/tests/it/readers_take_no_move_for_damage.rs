//! A process that opens the database for writing puts copies of files in the place of others, and uses those for something else. A
//! reader that has opened such a file before, and reads it afterwards, called that damage: `at` and sessions of older commits gave
//! "the log of past commits is damaged" beside a writer that was started again.

use pleach::{Access, Db, Error, Geometry, Options, Session, Value};
use pleach_io::sim::{SimDisk, SimRuntime};
use pleach_io::{Device, OpenMode, PageBuf};
use pleach_ops::stat_on;

use crate::common::held_device::{Gate, Held};
use crate::common::{commit, uniform};
use crate::crash::{SimDb, unrecorded};

type Reader = Db;

/// Commits that are made, each of which changes two keys.
const COMMITS: u64 = 60;

fn options(history: u64) -> Options {
    // Undo of the history is on the device alone.
    let options = Options::new("sim").create(true).cache_kib(256).threads(1).in_flight(4);
    options.history(history).undo_memory_bytes(1).kept_log_mib(0).geometry(Geometry::least())
}

fn writer(disk: &SimDisk, history: u64) -> SimDb {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    Db::open_on(disk.clone(), runtime, options(history)).expect("opens")
}

fn reader(disk: &SimDisk) -> (Reader, std::sync::Arc<Gate>) {
    let (held, gate) = Held::new(disk.clone());
    let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
    let options = options(40).create(false).read_only(true);
    (Db::open_on(held, runtime, options).expect("opens beside the writer"), gate)
}

/// Key 0 and another one have the number of the commit.
fn commit_some(db: &SimDb, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        let value = || Some(Value::from(number.to_be_bytes().repeat(60).as_slice()));
        let accesses = [0, 1 + number % 7].map(|id| Access::write(uniform(id), value()));
        assert_eq!(commit(db, accesses.to_vec()), number);
    }
}

fn read(session: &Session, key: u64) -> Result<u64, Error> {
    let value = session.read(&uniform(key))?.expect("written by each commit");
    Ok(u64::from_be_bytes(*value.first_chunk().expect("8 bytes")))
}

/// What a writer's open does with a file: a copy takes its place, and the file itself is written over.
fn put_a_copy_in_its_place(disk: &SimDisk, name: &str) {
    let file = disk.open(name, OpenMode::Read).expect("there");
    let len = disk.len(&file).expect("a length");
    let pages = usize::try_from(len / 4096).expect("small");
    let mut buf = PageBuf::zeroed(pages);
    disk.read_at(&file, &mut buf, 0).expect("read");
    let copy = disk.open("copy", OpenMode::CreateNew).expect("made");
    disk.allocate(&copy, 0, len).expect("room");
    disk.write_at(&copy, &buf, pages, 0).expect("written");
    assert!(disk.exchange("copy", name).expect("exchanged"));
    buf.fill(0xa5);
    let old = disk.open("copy", OpenMode::Write).expect("there");
    disk.write_at(&old, &buf, pages, 0).expect("written");
    disk.remove("copy").expect("removed");
}

#[test]
fn a_segment_that_is_exchanged_between_a_readers_open_and_its_read_is_read_anew() {
    let disk = SimDisk::new(1, unrecorded());
    let db = writer(&disk, 40);
    commit_some(&db, 1..=COMMITS);
    let segments: Vec<String> = (disk.list().expect("listed").into_iter())
        .filter(|name| name.starts_with("log-"))
        .collect();
    assert!(segments.len() > 3, "{segments:?}");
    for segment in &segments {
        for others in 0..6 {
            let (reader, gate) = reader(&disk);
            let oldest = *reader.history().start();
            gate.behind_open(segment, others, put_a_copy_in_its_place);
            let session = reader.at(oldest).unwrap_or_else(|error| panic!("{segment}: {error}"));
            let found = read(&session, 0).unwrap_or_else(|error| panic!("{segment}: {error}"));
            assert_eq!(found, oldest, "{segment}, behind open {others}");
        }
    }
}

#[test]
fn a_superblock_that_is_exchanged_between_open_and_read_is_read_anew() {
    let disk = SimDisk::new(1, unrecorded());
    let db = writer(&disk, 40);
    commit_some(&db, 1..=8);
    let (held, gate) = Held::new(disk.clone());
    let expected = stat_on(held.clone(), None).expect("looked at");
    assert!(expected.in_use && expected.opening.notes.is_empty());
    for file in ["super", "incarnation"] {
        for others in 0..6 {
            gate.behind_open(file, others, put_a_copy_in_its_place);
            let found = stat_on(held.clone(), None).expect("looked at");
            let what = format!("{file}, behind open {others}");
            assert!(found.opening.notes.is_empty(), "{what}: {:?}", found.opening.notes);
            assert_eq!(found.other_slot, expected.other_slot, "{what}");
        }
    }
    let (reader, gate) = reader(&disk);
    for others in 0..3 {
        gate.behind_open("super", others, put_a_copy_in_its_place);
        assert_eq!(reader.refresh().expect("goes on"), 8);
    }
}

/// The writer was opened with a shorter history, and has used segments of the log again: no record says so, the superblock does.
#[test]
fn what_the_writer_has_given_up_without_a_record_is_too_old() {
    let disk = SimDisk::new(1, unrecorded());
    let db = writer(&disk, 40);
    commit_some(&db, 1..=COMMITS);
    let (reader, _) = reader(&disk);
    let oldest = *reader.history().start();
    let segments = || disk.list().expect("listed");
    let before = segments();
    db.close().expect("closed");
    drop(db);
    for _ in 0..3 {
        writer(&disk, 2).close().expect("closed");
    }
    assert!(segments() != before, "no segment was given up");
    // What is not written over yet is right.
    match reader.at(oldest).and_then(|session| read(&session, 0)) {
        Ok(found) => assert_eq!(found, oldest),
        Err(error) => assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error}"),
    }
    assert_eq!(read(&reader.snapshot().expect("the newest"), 0).expect("read"), COMMITS);
}

#[test]
fn a_run_that_is_bad_at_a_second_look_is_damage() {
    let disk = SimDisk::new(1, unrecorded());
    let db = writer(&disk, 40);
    commit_some(&db, 1..=COMMITS);
    db.close().expect("closed");
    let (reader, _) = reader(&disk);
    let oldest = *reader.history().start();
    let file = disk.open("overflow", OpenMode::Write).expect("there");
    let pages = usize::try_from(disk.len(&file).expect("a length") / 4096).expect("small");
    let mut noise = PageBuf::zeroed(pages);
    noise.fill(0xa5);
    disk.write_at(&file, &noise, pages, 0).expect("written");
    let error = reader.at(oldest).and_then(|session| read(&session, 0)).expect_err("damaged");
    assert!(matches!(error, Error::Page { .. }), "{error}");
}
