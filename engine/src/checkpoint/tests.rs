//! What a checkpoint leaves behind.

use std::time::Duration;

use pleach_core::{Hasher, Key};
use pleach_io::Operation;
use pleach_io::sim::{
    CrashMode, Fault, FaultRepeats, FaultRule, Quota, SimDisk, SimOptions, SimRuntime, code,
};

use super::checkpoint;
use super::write::{StartOutcome, copy_regions, finish_checkpoint, start_image};
use crate::commit::ROOM_TIMEOUT;
use crate::error::{Error, NoRoom};
use crate::load::LoadOptions;
use crate::{Access, CommitOptions, Db, Durability, Options, SessionOptions, Value};
use pleach_ops::{CheckOptions, check_on};

type SimDb = Db;

/// Pairs of the database.
const PAIRS: u64 = 20_000;

fn id(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// A loaded database of a few dozen regions, which keep no lines.
fn loaded() -> (SimDb, SimDisk, SimRuntime) {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim")
        .create(true)
        .cache_mib(8)
        .tune(|tuning| tuning.trie_cache = Some(0))
        .threads(1)
        .small()
        .log_limit_bytes(256 << 10);
    let db = SimDb::open_on(disk.clone(), runtime.clone(), options).expect("created");
    let pairs = (0..PAIRS).map(|at| (id(at), Value::from(vec![1; 200])));
    db.bulk_load(pairs, &LoadOptions::new().memory_mib(8)).expect("loaded");
    (db, disk, runtime)
}

/// A load left its last stage behind, and nobody ended it: the watchdog named a checkpoint task that slept.
#[test]
fn a_load_leaves_no_stage_behind() {
    let (db, _, runtime) = loaded();
    runtime.clock().advance(Duration::from_secs(60));
    let stalled: Vec<_> = db.tasks().into_iter().filter(|task| task.stalled).collect();
    assert!(stalled.is_empty(), "{stalled:?}");
    assert_eq!(db.metrics().stalled_tasks, 0);
    db.close().expect("closed");
}

/// A failure to keep room for the next image, once the superblock is written, is the failure of no write and no sync.
#[test]
fn what_fails_beside_writes_and_syncs_poisons_nothing() {
    for operation in [Operation::Open, Operation::Allocate] {
        let (db, disk, runtime) = loaded();
        let fault = Fault::Errno(code::EIO);
        disk.inject(FaultRule::nth(operation, "image", 1, FaultRepeats::Forever, fault));
        let made = db.metrics().checkpoints;
        // More than the log may have without a checkpoint, and less than twice that.
        for round in 0..18 {
            let value = Value::from(vec![round; 1000]);
            let put: Vec<_> =
                (0..20).map(|at| Access::write(id(at), Some(value.clone()))).collect();
            let session = db.session(SessionOptions::new()).expect("a session");
            session.finish(put).expect("finished").commit().expect("committed");
            runtime.step_some(20);
        }
        assert!(!db.is_poisoned(), "{operation:?}");
        // Without its file an image is not begun; without room kept for the next one it is made.
        let more = db.metrics().checkpoints > made;
        assert_eq!(more, operation == Operation::Allocate, "{operation:?}");
        disk.heal();
        runtime.clock().advance(Duration::from_secs(61));
        checkpoint(&db.state(), false).expect("a checkpoint");
        db.close().expect("closed");
        let report = check_on(&disk, CheckOptions::default()).expect("checked");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// The map in an image has the length of the overflow file: the file is synced before a superblock names that image,
/// also where it has grown for a value that was not written then.
#[test]
fn an_image_never_names_more_of_a_file_than_a_power_cut_leaves() {
    let disk = SimDisk::new(1, SimOptions::default());
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
    let db = SimDb::open_on(disk.clone(), runtime, options.clone()).expect("created");
    let put = |at, len| {
        let session = db.session(SessionOptions::new()).expect("a session");
        let long = Access::write(id(at), Some(Value::from(vec![3; len])));
        session
            .finish(vec![long])
            .expect("finished")
            .commit()
            .map_err(crate::CommitError::into_error)
    };
    put(0, 100_000).expect("committed");
    let fault = Fault::Errno(code::ENOSPC);
    disk.inject(FaultRule::nth(Operation::Write, "overflow", 1, FaultRepeats::Once, fault));
    let error = put(1, 1_000_000).expect_err("no room for its pages");
    assert!(error.is_full(), "{error}");
    checkpoint(&db.state(), false).expect("a checkpoint");
    let point = disk.trace().crash_points().last().expect("a point");
    let cut = point.outcome(CrashMode::Dropped).disk();
    let runtime = SimRuntime::with_clock(2, cut.clock(), 1);
    let db = SimDb::open_on(cut.clone(), runtime, options).expect("opens");
    assert_eq!(db.commit_number(), 1);
    db.close().expect("closed");
    let report = check_on(&cut, CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Rule `log-before-superblock`: a region that is copied late has commits behind the cut. The log has them, too, when the
/// image is named, though nobody has synced them.
#[test]
fn an_image_has_no_commit_that_a_power_cut_takes() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = |disk: &SimDisk| {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
        SimDb::open_on(disk.clone(), runtime, options.durability(Durability::None)).expect("opened")
    };
    let db = open(&disk);
    disk.record();
    let put = |value: u8| {
        let put = |at| Access::write(id(at), Some(Value::from(vec![value; 40])));
        let session = db.session(SessionOptions::new()).expect("a session");
        let block = session.finish((0..100).map(put).collect::<Vec<_>>()).expect("finished");
        block.commit().expect("committed")
    };
    put(1);
    let mut build = match start_image(&db.state(), 0, true).expect("a cut") {
        StartOutcome::Begun(build) => *build,
        _ => panic!("nothing is in flight"),
    };
    put(2);
    let copied = copy_regions(&mut build, usize::MAX);
    assert!(copied.expect("copied"), "all regions are copied");
    finish_checkpoint(&db.state(), build, None).expect("an image");
    let point = disk.trace().crash_points().last().expect("a point");
    let cut = open(&point.outcome(CrashMode::Dropped).disk());
    assert_eq!((cut.commit_number(), cut.root()), (2, db.root()));
    assert!(cut.opened().notes.is_empty(), "{:?}", cut.opened().notes);
}

/// A put waits for room as long as a checkpoint may free some, but not for ever; deletes go on.
#[test]
fn a_commit_does_not_wait_for_room_for_ever() {
    let (db, disk, runtime) = loaded();
    let write = |value: Option<usize>| {
        let session = db.session(SessionOptions::new()).expect("a session");
        let value = value.map(|len| Value::from(vec![5; len]));
        let accesses = (0..200).map(|at| Access::write(id(at), value.clone())).collect::<Vec<_>>();
        session.finish(accesses).expect("finished").commit().map_err(crate::CommitError::into_error)
    };
    let since = runtime.clock().now();
    // Another image is in the making and never done: the log cannot be cut.
    let making = loop {
        write(Some(500)).expect("committed");
        if let Some(making) = db.state().images.try_begin_image()
            && db.state().can_checkpoint_free_room()
        {
            break making;
        }
    };
    disk.set_quota(Some(Quota { bytes: disk.used() + (32 << 10), code: code::ENOSPC }));
    let full = (0..100).find_map(|_| write(Some(500)).err()).expect("there is little room");
    assert!(matches!(full, Error::Full(NoRoom::Reserve { .. })), "{full}");
    assert!(runtime.clock().now() >= since + ROOM_TIMEOUT, "it has waited for the checkpoint");
    write(None).expect("deletes go on");
    drop(making);
    disk.set_quota(None);
    write(Some(500)).expect("there is room");
    db.close().expect("closed");
}

/// A checkpoint names the log that it needs before it deletes the files before that. A put that came in between was
/// refused, though the device was about to have room.
#[test]
fn a_put_waits_for_a_checkpoint_that_is_about_to_delete_files() {
    let (db, disk, _) = loaded();
    let put = |options: CommitOptions| {
        let session = db.session(SessionOptions::new()).expect("a session");
        let accesses = (0..200).map(|at| Access::write(id(at), Some(Value::from(vec![5; 500]))));
        let block = session.finish(accesses.collect::<Vec<_>>()).expect("finished");
        block.commit_with(options).map(drop).map_err(crate::CommitError::into_error)
    };
    db.drain(0).expect("flushed");
    for _ in 0..2 {
        checkpoint(&db.state(), false).expect("a checkpoint");
    }
    disk.set_quota(Some(Quota { bytes: disk.used() + (32 << 10), code: code::ENOSPC }));
    let no_wait = CommitOptions::new().wait(false);
    let full = |error: &Error| matches!(error, Error::Full(NoRoom::Reserve { .. }));
    while put(no_wait).is_ok() {}
    assert!(put(no_wait).is_err_and(|error| full(&error)), "nothing can free room");
    let making = db.state().images.try_begin_image().expect("no other");
    assert!(!db.state().can_checkpoint_free_room());
    assert!(matches!(put(no_wait), Err(Error::WouldWait)));
    drop(making);
    assert!(put(no_wait).is_err_and(|error| full(&error)));
    disk.set_quota(None);
    put(CommitOptions::new()).expect("there is room");
    db.close().expect("closed");
}

/// After a record that ends in a segment's last block, the next one starts in another segment: on a full device,
/// checkpoints were once made without end to free the segment before.
#[test]
fn a_segment_of_which_a_block_is_left_is_not_freed_for_ever() {
    let (db, ..) = loaded();
    let size = db.state().commits.sequencer.segments.size();
    let end = || db.state().commits.sequencer.lock().log_end();
    let put = |value: u8| {
        let session = db.session(SessionOptions::new()).expect("a session");
        let accesses = [Access::write(id(1), Some(Value::from(vec![value; 3000])))];
        session.finish(accesses).expect("finished").commit().expect("committed");
    };
    let checkpoints = || {
        for _ in 0..2 {
            checkpoint(&db.state(), false).expect("a checkpoint");
        }
        assert!(!db.state().can_checkpoint_free_room());
    };
    for value in 0..=u8::MAX {
        put(value);
        if end().in_segment(size) == 0 {
            break;
        }
    }
    checkpoints();
    assert_eq!(end().in_segment(size), 0, "nothing was committed since");
    // The next commit is in the segment after that, and a full device needs the one before.
    put(1);
    assert!(db.state().can_checkpoint_free_room());
    checkpoints();
    db.close().expect("closed");
}

/// An image's number is that of its cut, and a region may be copied later, with a commit that came between and was
/// flushed. After a crash the region has no buffered changes and the record is not replayed, so it passed for one of
/// the cut's commit: a session there read newer pairs, and its proof had another root.
#[test]
fn a_region_that_was_copied_late_knows_its_commits_after_a_crash() {
    late_region(true);
    // Its last record is that of the commit, which is not applied twice.
    late_region(false);
}

fn late_region(is_flushed: bool) {
    let disk = SimDisk::new(3, SimOptions { record: false, ..SimOptions::default() });
    let open = |seed| {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
        let options = Options::new("sim")
            .create(true)
            .cache_mib(16)
            .threads(1)
            .tune(|tuning| tuning.flush_at = 1)
            .small();
        let options = options.history(4).log_limit_bytes(16 << 20);
        SimDb::open_on(disk.clone(), runtime, options).expect("opened")
    };
    let db = open(1);
    let put = |db: &SimDb, value: u8| {
        let put = |at| Access::write(id(at), Some(Value::from(vec![value; 200])));
        let session = db.session(SessionOptions::new()).expect("a session");
        session
            .finish((0..3000).map(put).collect::<Vec<_>>())
            .expect("finished")
            .commit()
            .expect("committed")
    };
    put(&db, 1);
    let at_cut = put(&db, 2);
    db.drain(0).expect("flushed");
    let root = db.root();
    let mut work = match start_image(&db.state(), 0, true).expect("a cut") {
        StartOutcome::Begun(work) => *work,
        _ => panic!("nothing is in flight"),
    };
    put(&db, 3);
    if is_flushed {
        db.drain(0).expect("flushed");
    }
    let copied = copy_regions(&mut work, usize::MAX);
    assert!(copied.expect("copied"), "all regions are copied");
    finish_checkpoint(&db.state(), work, None).expect("an image");
    drop(db);
    let db = open(2);
    assert!(!db.opened().closed && db.commit_number() == at_cut + 1);
    let session = db.at(at_cut).expect("in the history");
    assert_eq!(session.root(), root);
    assert!(session.iter(..).all(|pair| pair.expect("read").1[..] == [2; 200]));
    session.prove_many(&[id(0), id(2999)]).expect("its fold has its root");
    drop(session);
    db.close().expect("closed");
}
