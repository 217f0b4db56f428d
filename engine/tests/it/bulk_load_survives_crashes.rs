//! A power failure at any moment of a load leaves the empty database or the loaded one, the
//! loaded one for sure once the load has returned; a full disk leaves the empty one, open and
//! usable. On the simulated disk.

use crate::common::{Keys, Rng, bytes, cases, key};
use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Options, Value};
use pleach_core::{Key, Node, TERMINATOR};
use pleach_io::Device as _;
use pleach_io::sim::{Quota, SimDisk, SimOptions, SimRuntime, code};
use pleach_ops::{CheckOptions, check_on};

type SimDb = Db;

fn options() -> Options {
    Options::new("simulated")
        .create(true)
        .cache_mib(16)
        .threads(2)
        .in_flight(16)
        .small()
        .log_limit_bytes(256 << 10)
}

fn open(disk: &SimDisk, seed: u64) -> pleach::Result<SimDb> {
    SimDb::open_on(disk.clone(), SimRuntime::new(seed), options())
}

fn pairs(seed: u64, count: u64) -> Vec<(Key, Value)> {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|id| {
            let len = if id % 200 == 9 { 5000 } else { 40 };
            (key(Keys::Uniform, id), bytes(&mut rng, len))
        })
        .collect()
}

/// Marks on the trace.
const BEGUN: u64 = 1;
const DONE: u64 = 2;

fn crash_everywhere(seed: u64, count: u64) -> (usize, usize) {
    let disk = SimDisk::new(seed, SimOptions::default());
    let db = open(&disk, seed).expect("created");
    disk.mark(BEGUN);
    let load = LoadOptions::new().memory_mib(1);
    let root = db.bulk_load(pairs(seed, count), &load).expect("loaded").root;
    disk.mark(DONE);
    let trace = disk.trace();
    drop(db);
    let (mut empty, mut loaded) = (0, 0);
    for point in trace.crash_points() {
        if !point.marks().contains(&BEGUN) {
            continue;
        }
        let done = point.marks().contains(&DONE);
        for outcome in point.outcomes(seed, 3) {
            let survivor = outcome.disk();
            let found = reopened(&survivor, seed);
            match found {
                (TERMINATOR, 0) if !done => {
                    empty += 1;
                    let again = open(&survivor, seed).expect("opened");
                    let load = LoadOptions::new().memory_mib(1);
                    let report = again.bulk_load(pairs(seed, count), &load);
                    assert_eq!(report.expect("loaded again").root, root, "{outcome}");
                }
                (found, 1) if found == root => loaded += 1,
                other => panic!("{outcome}: after a crash (done: {done}) found {other:?}"),
            }
        }
    }
    (empty, loaded)
}

fn reopened(disk: &SimDisk, seed: u64) -> (Node, u64) {
    let db = open(disk, seed).expect("opened after a crash");
    let found = (db.root(), db.commit_number());
    drop(db);
    let report = check_on(disk, CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    found
}

#[test]
fn a_crash_leaves_nothing_or_all_of_it() {
    for seed in 0..cases(2) {
        let (empty, loaded) = crash_everywhere(seed, 600);
        assert!(empty > 0 && loaded > 0, "both were seen: {empty} and {loaded}");
    }
}

#[test]
fn a_full_disk_leaves_the_empty_database_usable() {
    let mut refused = 0;
    for kib in (400..4000).step_by(300) {
        let quota = Some(Quota { bytes: kib << 10, code: code::ENOSPC });
        let disk = SimDisk::new(kib, SimOptions { quota, record: false, ..SimOptions::default() });
        let Ok(db) = open(&disk, kib) else { continue };
        let before = disk.free_space().expect("known").0;
        let load = LoadOptions::new().memory_mib(1);
        match db.bulk_load(pairs(1, 20_000), &load) {
            Err(Error::Full(_)) => refused += 1,
            Ok(_) => continue,
            Err(other) => panic!("{kib} KiB: {other}"),
        }
        assert_eq!((db.root(), db.commit_number()), (TERMINATOR, 0));
        assert!(!disk.list().expect("listed").iter().any(|name| name == "load-spill"));
        let after = disk.free_space().expect("known").0;
        assert!(after + (256 << 10) >= before, "{kib} KiB: {before} were free, now {after}");
        let few = db.bulk_load(pairs(1, 20), &LoadOptions::new().memory_mib(1));
        if let Ok(report) = few {
            assert_eq!(reopen_root(db, &disk, kib), report.root);
        }
    }
    assert!(refused > 2, "disks that were too small: {refused}");
}

/// Room for the image is reserved before anything is published, with the longest blob, too: whichever page the disk has
/// no room for, the load is refused and leaves no doubt.
#[test]
fn a_disk_that_is_full_at_any_page_refuses_the_load() {
    for blob in [0, 64 << 10] {
        let mut refused = 0;
        // With a page more each time.
        for room in 0.. {
            let disk = SimDisk::new(room, SimOptions { record: false, ..SimOptions::default() });
            let db = open(&disk, room).expect("created");
            // Otherwise a task keeps room for images beforehand.
            db.pause_background();
            let session = db.session(pleach::SessionOptions::new()).expect("a session");
            let mut block = session.finish(Vec::new()).expect("finished");
            block.set_blob(vec![7; blob]).expect("not too long");
            block.commit().expect("committed");
            disk.set_quota(Some(Quota { bytes: disk.used() + room * 4096, code: code::ENOSPC }));
            let load = LoadOptions::new().memory_mib(1);
            match db.bulk_load(pairs(1, 500), &load) {
                Err(Error::Full(_)) => refused += 1,
                Ok(_) => break,
                Err(other) => panic!("{room} pages: {other}"),
            }
            assert_eq!((db.root(), db.commit_number()), (TERMINATOR, 1));
            disk.set_quota(None);
            db.bulk_load(pairs(1, 500), &load).expect("there is room now");
        }
        assert!(refused > 10, "{refused} disks were too small");
    }
}

fn reopen_root(db: SimDb, disk: &SimDisk, seed: u64) -> Node {
    drop(db);
    // An open writes a few files anew, and wants room for them.
    disk.set_quota(None);
    reopened(disk, seed).0
}

/// A flush beside a load spills a value behind the end that the overflow file had, and another one frees it. When
/// the load then fails, the file stays as long as the first one's record wants it.
#[test]
fn a_load_that_fails_leaves_what_records_name() {
    let mut flushed = 0;
    for steps in 0..40 {
        let disk = SimDisk::new(steps, SimOptions { record: false, ..SimOptions::default() });
        let runtime = SimRuntime::with_clock(steps, disk.clock(), 1);
        let options = options().threads(1).tune(|tuning| tuning.flush_at = 1);
        let db: SimDb = Db::open_on(disk.clone(), runtime.clone(), options).expect("created");
        let write = |len: Option<usize>| {
            let value = len.map(|len| Value::from(vec![7; len]));
            let number =
                crate::common::commit(&db, vec![Access::write(key(Keys::Uniform, 3), value)]);
            assert_eq!(number, db.commit_number());
        };
        db.add_namespace(9).expect("added");
        write(Some(5000));
        // The flush has begun to work on this one, and on the next one only afterwards.
        runtime.step_some(usize::try_from(steps).expect("few"));
        write(None);
        let long = (0..300).map(|id| (key(Keys::Uniform, id), Value::from(vec![1; 9000])));
        let flush = (300..400).map(|id| {
            runtime.step_some(20);
            runtime.clock().advance(std::time::Duration::from_millis(30));
            (key(Keys::Uniform, id), Value::from(vec![2; 40]))
        });
        let again = std::iter::once((key(Keys::Uniform, 300), Value::from(vec![3; 40])));
        let load = LoadOptions::new().memory_mib(8).namespace(9);
        let failed = db.bulk_load(long.chain(flush).chain(again), &load);
        assert!(matches!(failed, Err(Error::RepeatedKey(_))), "{failed:?}");
        flushed += u64::from(db.metrics().pages_written > 1);
        let survivor = SimDisk::from_image(&disk.image(), steps);
        let found = reopened(&survivor, steps);
        assert_eq!(found, (TERMINATOR, 3), "after {steps} steps");
    }
    assert!(flushed > 0, "two rounds came, one of them beside the load");
}
