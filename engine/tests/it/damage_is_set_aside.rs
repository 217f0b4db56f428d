//! A page that the background cannot read is quarantined: its changes stay buffered, in the log and in images;
//! everything else goes on; whoever needs the page gets its error; a good read releases it.
//!
//! One flipped bit in a leaf page with buffered changes, or one read that failed once, poisoned the database once: all
//! writing ended, and after a reopening the same again.

use std::time::Duration;

use crate::common::{Keys, Model, Rng, bytes};
use crate::crash::{Setup, SimDb, unrecorded};
use pleach::{Access, Durability, Error, Hasher, SessionOptions, Value};
use pleach_core::Key;
use pleach_io::Operation;
use pleach_io::sim::{
    Damage, DamagedPage, Fault, FaultRepeats, FaultRule, Image, SimDisk, SimRuntime, code,
};

const IDS: u64 = 60;

/// Pages are flushed by a drain, or when too many changes are buffered.
fn setup(seed: u64) -> Setup {
    Setup {
        seed,
        keys: Keys::Uniform,
        ids: IDS,
        flush_at: 200,
        durability: Durability::Commit,
        cache_kib: 4096,
        keeps_lines: true,
        checkpoint_regions: 1,
        history: 0,
        history_bytes: 64 << 20,
    }
}

/// A database at rest: about 20 pages, with changes buffered for most of them.
fn at_rest(setup: &Setup) -> (Image, Model) {
    let disk = SimDisk::new(setup.seed, unrecorded());
    let (mut rng, mut model) = (Rng::new(setup.seed), Model::default());
    let (db, _) = setup.open(&disk, 1).expect("no faults");
    let mut put = |ids: &mut dyn Iterator<Item = u64>, len: usize| {
        let accesses: Vec<Access> =
            ids.map(|id| Access::write(setup.key(id), Some(bytes(&mut rng, len)))).collect();
        model.apply(&accesses);
        commit(&db, accesses).expect("no faults");
    };
    put(&mut (0..IDS), 1000);
    db.drain(0).expect("no faults");
    put(&mut (0..IDS).step_by(2), 900);
    drop(db);
    (disk.image(), model)
}

fn commit(db: &SimDb, accesses: Vec<Access>) -> Result<u64, Error> {
    let session = db.session(SessionOptions::new().witness(false))?;
    session.finish(accesses)?.commit().map_err(pleach::CommitError::into_error)
}

fn is_bad_page(error: &Error) -> bool {
    matches!(error, Error::Page { .. } | Error::StalePage { .. } | Error::Io(_))
}

/// Every key has its value, or the error of a bad page; gives the number of errors.
fn reads(setup: &Setup, db: &SimDb, model: &Model, what: &str) -> usize {
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut bad = 0;
    for id in 0..IDS {
        let key = setup.key(id);
        match session.read(&key) {
            Ok(value) => assert!(value.as_ref() == model.values.get(&key), "{what}: key {id}"),
            Err(error) => {
                assert!(is_bad_page(&error), "{what}: key {id}: {error}");
                bad += 1;
            }
        }
    }
    bad
}

/// Commits each key once, alone; gives the number of those that met a bad page.
fn commits(setup: &Setup, db: &SimDb, runtime: &SimRuntime, model: &mut Model, what: &str) -> u64 {
    let mut refused = 0;
    for id in 0..IDS {
        let key: Key = setup.key(id);
        let put = vec![Access::write(key, Some(Value::from(&id.to_le_bytes()[..])))];
        match commit(db, put.clone()) {
            Ok(_) => model.apply(&put),
            Err(error) => {
                assert!(is_bad_page(&error), "{what}: committing {id}: {error}");
                refused += 1;
            }
        }
        runtime.step_some(6);
    }
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3), "{what}");
    refused
}

#[test]
fn any_leaf_page_may_have_rotted() {
    let (mut struck, mut listed) = (0, 0);
    for seed in 0..crate::common::cases(2) {
        let setup = setup(100 + seed);
        let (image, before) = at_rest(&setup);
        let flip = |disk: &SimDisk, page| {
            let at = DamagedPage { file: "leaf".to_owned(), page };
            disk.damage(&Damage::Flip {
                at,
                byte: 1000 + u16::try_from(page).expect("few"),
                bit: 3,
            })
        };
        for page in 0.. {
            let disk = SimDisk::from_image_with(&image, 3, unrecorded());
            if !flip(&disk, page) {
                break;
            }
            struck += 1;
            let what = format!("seed {seed}, page {page}");
            let mut model = before.clone();
            let (db, runtime) = setup.open(&disk, page).expect("opens");
            reads(&setup, &db, &model, &what);
            let drained = db.drain(0);
            let aside = db.quarantined();
            match &drained {
                Ok(()) => assert!(aside.is_empty(), "{what}"),
                Err(Error::Quarantined { pages: 1, first }) => {
                    assert!(is_bad_page(first), "{what}: {first}");
                    assert_eq!((aside.len(), aside[0].file, aside[0].page), (1, "leaf", page));
                    assert_eq!(db.metrics().quarantined_pages, 1);
                    listed += 1;
                }
                Err(error) => panic!("{what}: {error}"),
            }
            // Many checkpoints are made beside the page: the changes that are buffered for it are in the images.
            let refused = commits(&setup, &db, &runtime, &mut model, &what);
            assert!(refused <= 4, "{what}: a page has four keys at most, {refused} refused");
            for round in 0..4 {
                let commit_all = commits(&setup, &db, &runtime, &mut model, &what);
                assert_eq!(commit_all, refused, "{what}, round {round}");
                assert!(db.drain(0).is_ok() == drained.is_ok(), "{what}, round {round}");
            }
            assert!(reads(&setup, &db, &model, &what) <= 4);
            assert!(db.metrics().checkpoints > 1, "{what}: {:?}", db.metrics());
            db.close().unwrap_or_else(|error| panic!("{what}: closing: {error}"));
            let (db, runtime) = setup.open(&disk, page + 1).expect("opens again");
            reads(&setup, &db, &model, &what);
            assert_eq!(db.drain(0).is_ok(), drained.is_ok(), "{what}: reopened");
            // The medium is mended: the page is flushed with its buffered changes, whether somebody reads it or its
            // trial is due.
            flip(&disk, page);
            assert_eq!(reads(&setup, &db, &model, &what), 0);
            if page % 2 == 0 || !db.quarantined().is_empty() {
                // Nobody had to read the page: all its keys are buffered.
                runtime.clock().advance(Duration::from_secs(61));
            }
            db.drain(0).unwrap_or_else(|error| panic!("{what}: mended: {error}"));
            assert!(db.quarantined().is_empty(), "{what}: mended");
            assert_eq!(commits(&setup, &db, &runtime, &mut model, &what), 0);
            db.close().expect("closed");
        }
    }
    println!("{struck} pages struck, {listed} of them set aside");
    assert!(listed > 20 && struck > listed);
}

#[test]
fn a_read_that_fails_once_is_tried_again() {
    for nth in 1..20 {
        let setup = setup(200);
        let (image, mut model) = at_rest(&setup);
        let disk = SimDisk::from_image_with(&image, 3, unrecorded());
        let (db, runtime) = setup.open(&disk, nth).expect("opens");
        disk.inject(FaultRule::nth(
            Operation::Read,
            "leaf",
            nth,
            FaultRepeats::Once,
            Fault::Errno(code::EIO),
        ));
        let first = db.drain(0);
        assert!(matches!(first, Ok(()) | Err(Error::Quarantined { pages: 1, .. })), "{first:?}");
        runtime.clock().advance(Duration::from_millis(1001));
        db.drain(0).expect("the second time it was read");
        assert!(db.quarantined().is_empty(), "read {nth}: {first:?}, {:?}", db.quarantined());
        disk.heal();
        assert_eq!(commits(&setup, &db, &runtime, &mut model, "after a read that failed once"), 0);
        db.close().expect("closed");
    }
}

#[test]
fn reads_that_always_fail_stop_nothing_but_those_who_need_them() {
    let setup = setup(300);
    let (image, model) = at_rest(&setup);
    let disk = SimDisk::from_image_with(&image, 3, unrecorded());
    let (db, runtime) = setup.open(&disk, 1).expect("opens");
    disk.inject(FaultRule::nth(
        Operation::Read,
        "leaf",
        1,
        FaultRepeats::Forever,
        Fault::Errno(code::EIO),
    ));
    let session = db.session(SessionOptions::new()).expect("a session");
    let keys: Vec<Key> = (0..IDS).map(|id| setup.key(id)).collect();
    session.prefetch(&keys);
    runtime.step_some(1000);
    drop(session);
    let drained = db.drain(0);
    assert!(matches!(drained, Err(Error::Quarantined { pages: 2.., .. })), "{drained:?}");
    // Half of the keys are buffered, and are read from memory.
    assert_eq!(reads(&setup, &db, &model, "no leaf page is readable"), 30);
    let put = vec![Access::write(setup.key(0), None)];
    assert!(commit(&db, put).is_err_and(|error| is_bad_page(&error)));
    disk.heal();
    assert_eq!(reads(&setup, &db, &model, "healed"), 0);
    // Some pages were read; all keys of the other ones are buffered.
    runtime.clock().advance(Duration::from_secs(61));
    db.drain(0).expect("everything is readable");
    assert!(db.quarantined().is_empty());
    db.close().expect("closed");
}

/// Buffered changes that fill their share and cannot be flushed refuse commits with an error that says so.
#[test]
fn pending_changes_of_pages_aside_refuse_commits_and_nobody_waits_for_ever() {
    let mut setup = setup(400);
    setup.cache_kib = 256;
    let disk = SimDisk::new(setup.seed, unrecorded());
    let (db, runtime) = setup.open(&disk, 1).expect("opens");
    let put = |ids: std::ops::Range<u64>, byte: u8| {
        let value = |id| Access::write(setup.key(id), Some(Value::from(vec![byte; 1200])));
        commit(&db, ids.map(value).collect())
    };
    put(0..2000, 1).expect("no faults");
    db.drain(0).expect("no faults");
    // More than may be buffered, since nobody waits for a background that is held back; of their pages few stay cached.
    db.pause_background();
    for from in (0..2000).step_by(20) {
        put(from..from + 20, 2).expect("no faults");
    }
    disk.inject(FaultRule::nth(
        Operation::Read,
        "leaf",
        1,
        FaultRepeats::Forever,
        Fault::Errno(code::EIO),
    ));
    db.resume_background();
    for _ in 0..3 {
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let refused = session.finish(Vec::new()).expect("reads nothing").commit();
        let refused = refused.map_err(pleach::CommitError::into_error);
        assert!(matches!(refused, Err(Error::Quarantined { .. })), "{refused:?}");
        runtime.clock().advance(Duration::from_secs(2));
    }
    assert_eq!(db.commit_number(), 101);
    disk.heal();
    runtime.clock().advance(Duration::from_secs(61));
    db.drain(0).expect("healed");
    put(0..2000, 3).expect("healed");
    let root = db.root();
    db.close().expect("closed");
    let (db, _) = setup.open(&disk, 2).expect("opens");
    assert_eq!(db.root(), root);
}

/// The oldest four neighbours were tried again for ever, and no others were merged: each commit's run stayed.
#[test]
fn merges_go_round_a_run_that_cannot_be_read() {
    let setup = Setup { history: 2000, history_bytes: 1, ..setup(3) };
    let flip = |page: u64| Damage::Flip {
        at: DamagedPage { file: "overflow".to_owned(), page },
        byte: 99,
        bit: 3,
    };
    let runs = |damaged: bool| {
        let disk = SimDisk::new(3, unrecorded());
        let (mut db, mut runtime) = setup.open(&disk, 1).expect("created");
        let put = |db: &SimDb, number: u64| {
            let accesses = (0..8).map(|id| {
                let value = Value::from(number.to_le_bytes().repeat(40).as_slice());
                Access::write(setup.key((number + id) % IDS), Some(value))
            });
            commit(db, accesses.collect()).expect("no commit reads the history");
        };
        for number in 0..60 {
            put(&db, number);
        }
        if damaged {
            db.close().expect("closed");
            drop(db);
            // Past the pages of long values and of merged runs, which are free: a page that a check finds bad.
            let image = disk.image();
            let pages = image.file("overflow").expect("a file").len() / 4096;
            let is_of_run = |page: &u64| {
                let copy = SimDisk::from_image_with(&image, 3, unrecorded());
                copy.damage(&flip(*page));
                let report = pleach_ops::check_on(&copy, pleach_ops::CheckOptions::default());
                !report.expect("checked").findings.is_empty()
            };
            let page = (0..pages).find(is_of_run).expect("a page of a run");
            disk.damage(&flip(page));
            (db, runtime) = setup.open(&disk, 2).expect("opens");
        }
        for number in 60..400 {
            put(&db, number);
            runtime.clock().advance(Duration::from_secs(1));
            runtime.step_some(6);
        }
        let metrics = db.metrics();
        assert_eq!(metrics.history_bad_runs, u64::from(damaged));
        metrics.history_runs
    };
    let (whole, damaged) = (runs(false), runs(true));
    assert!(damaged <= 2 * whole + 4, "{damaged} runs, without damage {whole}");
}
