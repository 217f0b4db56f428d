//! An open trusts only what it can prove: ways in which a first version of the open path lost or
//! refused a database, found by a hostile reading of it. Each test tells its story.

use pleach::load::LoadOptions;
use pleach::{Access, Error, Value};
use pleach_io::sim::{
    Aftermath, CrashMode, Damage, DamagedPage, Fault, FaultRepeats, FaultRule, Grain, SimDisk,
    SimOptions,
};
use pleach_io::{Device, OpenMode, Operation, PageBuf};
use pleach_journal::format::names::{
    SEGMENT_SPARE, SEGMENT_TEMPORARY, parse_segment_name, segment_name,
};
use pleach_ops::{CheckOptions, Verdict, check_on, stat_on};

use crate::common::Rng;
use crate::crash::Setup;
use crate::crash::workload::{commit_one, run};

fn small(seed: u64, ids: u64) -> Setup {
    Setup { ids, ..Setup::draw(seed) }
}

/// A process was killed between the rename of a new segment and the sync of the folder. The next open took
/// the visible name for a durable one, wrote that into the superblock, and a power failure in that open left
/// a database that was called damaged for ever.
#[test]
fn a_name_that_may_not_be_durable_is_not_vouched_for() {
    let setup = small(1, 60);
    let disk = SimDisk::new(1, SimOptions::default());
    let run = run(&setup, &disk, 10);
    assert!(run.failed.is_none());
    let disk = SimDisk::from_image_with(&disk.image(), 3, SimOptions::default());
    make_next_segment(&disk);
    disk.record();
    drop(setup.open(&disk, 5).expect("opens"));
    let mut outcomes = 0;
    for point in disk.trace().crash_points() {
        for outcome in point.subsets(Grain::Item).into_iter().flatten() {
            outcomes += 1;
            let opened = setup.open(&outcome.disk(), 6).map(drop);
            opened.unwrap_or_else(|error| panic!("{outcome}: {error}"));
        }
    }
    assert!(outcomes > 40, "{outcomes}");
}

/// A segment under its name, as `prepare` leaves it before it syncs the folder.
fn make_next_segment(disk: &SimDisk) {
    let names = disk.list().expect("listed");
    let last = names.iter().filter_map(|name| parse_segment_name(name)).max().expect("a log");
    let file = disk.open(SEGMENT_TEMPORARY, OpenMode::CreateNew).expect("made");
    disk.write_at(&file, &PageBuf::zeroed(4), 4, 0).expect("written");
    disk.sync(&file).expect("synced");
    disk.rename(SEGMENT_TEMPORARY, &segment_name(last + 1)).expect("renamed");
}

/// Each open copied the end of the log again, also where no commit had followed: the superblocks that it confirmed knew
/// only of what had been proven before.
#[test]
fn a_confirmed_log_is_not_copied_again() {
    let setup = small(2, 60);
    let disk = SimDisk::new(2, SimOptions::default());
    let (db, runtime) = setup.open(&disk, 1).expect("created");
    let mut history = crate::crash::History::default();
    commit_one(&setup, &disk, &db, &runtime, &mut Rng::new(2), &mut history).expect("commits");
    drop((db, runtime));
    let spare_is_bad = |disk: &SimDisk| {
        let fault = Fault::Errno(5);
        disk.inject(FaultRule::nth(
            Operation::Write,
            SEGMENT_SPARE,
            1,
            FaultRepeats::Forever,
            fault,
        ));
    };
    spare_is_bad(&disk);
    assert!(setup.open(&disk, 2).is_err(), "the first open copies");
    disk.heal();
    drop(setup.open(&disk, 3).expect("opens"));
    let struck = disk.ledger().len();
    spare_is_bad(&disk);
    let (db, _) = setup.open(&disk, 4).expect("opens without a copy");
    assert_eq!((db.commit_number(), disk.ledger().len()), (1, struck));
}

/// The same, and the sync of the folder failed: commits were acknowledged into a file whose name a power
/// failure took.
#[test]
fn a_segment_whose_name_was_lost_takes_no_records() {
    let setup = small(1, 60);
    let disk = SimDisk::new(1, SimOptions::default());
    let mut run = run(&setup, &disk, 10);
    let disk = SimDisk::from_image_with(&disk.image(), 3, SimOptions::default());
    make_next_segment(&disk);
    let fault = Fault::Sync(Aftermath::NewVisible);
    disk.inject(FaultRule::nth(Operation::SyncFolder, "", 1, FaultRepeats::Once, fault));
    assert!(disk.sync_folder().is_err());
    disk.heal();
    let mut rng = Rng::new(1);
    let (db, runtime) = setup.open(&disk, 5).expect("opens");
    disk.record();
    for _ in 0..12 {
        commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut run.history).expect("commits");
        let tip = db.commit_number();
        let point = disk.trace().crash_points().last().expect("a point");
        for mode in [CrashMode::Kept, CrashMode::Dropped] {
            let survivor = point.outcome(mode).disk();
            let found = setup.open(&survivor, 6).map(|(db, _)| db.commit_number());
            assert!(matches!(found, Ok(number) if number == tip), "{tip}, {mode:?}: {found:?}");
        }
    }
}

/// A bulk load writes no log. Between its two checkpoints the older generation is the empty database with
/// an unbroken log, and one bit of the newest image led back to it.
#[test]
fn a_load_does_not_fall_back_to_the_empty_database() {
    let setup = small(1, 60);
    let disk = SimDisk::new(1, SimOptions::default());
    let (db, _) = setup.open(&disk, 1).expect("created");
    let mut rng = Rng::new(3);
    let pairs: Vec<_> =
        (0..60).map(|id| (setup.key(id), crate::common::bytes(&mut rng, 40))).collect();
    disk.record();
    let options = LoadOptions::new().memory_mib(1);
    let root = db.bulk_load(pairs, &options).expect("loaded").root;
    let trace = disk.trace();
    drop(db);
    let mut between = 0;
    for point in trace.crash_points() {
        let survivor = point.outcome(CrashMode::Kept).disk();
        let before = stat_on(&survivor, None).expect("looked at");
        let loaded = before.commit == 1 && before.root == root;
        if !loaded || before.other_slot.is_ok_and(|other| other.commit != 0) {
            continue;
        }
        between += 1;
        let image = if before.superblock.image.file as u8 == 0 { "image-a" } else { "image-b" };
        let rot =
            Damage::Flip { at: DamagedPage { file: image.to_owned(), page: 0 }, byte: 600, bit: 1 };
        // Before it is opened again, and after.
        for reopen in [false, true] {
            if reopen {
                let (db, _) = setup.open(&survivor, 2).expect("opens");
                assert_eq!((db.commit_number(), db.root()), (1, root));
                drop(db);
            }
            let disk = SimDisk::from_image_with(&survivor.image(), 3, SimOptions::default());
            disk.damage(&rot);
            let opened = setup.open(&disk, 4).map(|(db, _)| db.commit_number());
            assert!(opened.is_err(), "reopened {reopen}: opened at {opened:?}");
            if reopen {
                // A bad slot does not lead there either.
                let disk = SimDisk::from_image_with(&survivor.image(), 3, SimOptions::default());
                for page in [0, 16] {
                    let at = DamagedPage { file: "super".to_owned(), page };
                    disk.damage(&Damage::Flip { at, byte: 300, bit: 1 });
                    let opened = setup.open(&disk, 4).map(|(db, _)| db.commit_number());
                    assert!(!matches!(opened, Ok(0)), "slot at {page}");
                }
            }
        }
    }
    assert!(between > 0, "no point between the two checkpoints");
}

/// The copy of a segment was read from its first byte, and a dead sector below the replay start, which
/// nobody needs, kept a killed database closed, with the incarnation raised at every attempt.
#[test]
fn a_dead_sector_below_the_replay_start_does_not_matter() {
    let mut tried = 0;
    for seed in 0..40 {
        let setup = small(seed, 60);
        let disk = SimDisk::new(seed, SimOptions::default());
        let mut run = run(&setup, &disk, 14);
        assert!(run.failed.is_none());
        let mut rng = Rng::new(seed);
        let (db, _) = setup.open(&disk, seed).expect("opens");
        db.close().expect("closed");
        let (db, runtime) = setup.open(&disk, seed).expect("opens");
        commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut run.history).expect("commits");
        drop(db);
        let disk = SimDisk::from_image_with(&disk.image(), 3, SimOptions::default());
        let block = stat_on(&disk, None).expect("looked at").superblock;
        let (from, size) = (block.replay.position.get(), block.geometry.log_segment);
        if from % size < 8192 {
            continue;
        }
        tried += 1;
        let at = DamagedPage { file: segment_name(from / size), page: 0 };
        disk.damage(&Damage::Unreadable(at));
        let (db, _) = setup.open(&disk, 9).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(db.commit_number(), run.history.newest());
    }
    assert!(tried > 10, "{tried}");
}

/// An incarnation file from a backup was taken after a clean close, and numbers were given out twice.
#[test]
fn an_old_incarnation_is_found_by_the_superblock() {
    let setup = small(1, 60);
    let disk = SimDisk::new(1, SimOptions::default());
    assert!(run(&setup, &disk, 10).failed.is_none());
    let old = disk.image().file("incarnation").expect("there").to_vec();
    for _ in 0..3 {
        let (db, _) = setup.open(&disk, 1).expect("opens");
        db.close().expect("closed");
    }
    let file = disk.open("incarnation", OpenMode::Write).expect("there");
    let mut pages = PageBuf::zeroed(2);
    pages[..8192].copy_from_slice(&old);
    disk.write_at(&file, &pages, 2, 0).expect("written");
    let report = check_on(&disk, CheckOptions::default()).expect("checked");
    assert_eq!(report.verdict(), Verdict::DoesNotOpen);
    let error = setup.open(&disk, 2).map(drop).expect_err("an old incarnation");
    assert!(matches!(error, Error::Incarnation(_)), "{error}");
}

/// The mark of a spare file could be written by an application: a log segment whose first page was the
/// middle of such a value passed for a spare after a failed sync of the folder, and was overwritten.
#[test]
fn a_value_does_not_pass_for_the_mark_of_a_spare() {
    // The mark of another database, as an application may know it.
    let other = SimDisk::new(2, SimOptions::default());
    drop(small(2, 3).open(&other, 2).expect("created"));
    let mark = other.image().file("log.spare").expect("there").to_vec()[..4096].to_vec();
    let setup = Setup { cache_kib: 4096, ..small(1, 60) };
    let disk = SimDisk::new(1, SimOptions::default());
    let (db, _) = setup.open(&disk, 1).expect("created");
    let commit = |value: &[u8], id| {
        crate::common::commit(&db, vec![Access::write(setup.key(id), Some(Value::from(value)))]);
    };
    let mut probe = vec![7u8; 5000];
    probe[..16].copy_from_slice(b"WHERE-IS-A-VALUE");
    commit(&probe, 0);
    let log = disk.image().file(&segment_name(0)).expect("there").to_vec();
    let at = log.windows(16).position(|bytes| bytes == b"WHERE-IS-A-VALUE").expect("in the log");
    let mut value = vec![1u8; (4096 - at % 4096) % 4096];
    (0..12).for_each(|_| value.extend_from_slice(&mark));
    commit(&value, 1);
    let tip = db.commit_number();
    drop(db);
    let image = disk.image();
    let is_marked = |name: &&str| {
        parse_segment_name(name).is_some()
            && image.file(name).expect("listed").to_vec()[..4096] == mark[..]
    };
    assert!(image.names().filter(is_marked).count() >= 2, "segments begin with the value");
    let mut outcomes = 0;
    for nth in 2..8 {
        let disk = SimDisk::from_image_with(&image, 3, SimOptions::default());
        let fault = Fault::Sync(Aftermath::NewVisible);
        disk.inject(FaultRule::nth(Operation::SyncFolder, "", nth, FaultRepeats::Once, fault));
        let failed = setup.open(&disk, 2).is_err();
        disk.heal();
        if !failed {
            continue;
        }
        disk.record();
        drop(setup.open(&disk, 2).expect("opens"));
        for point in disk.trace().crash_points() {
            for outcome in point.outcomes(1, 4) {
                outcomes += 1;
                let found = setup.open(&outcome.disk(), 3).map(|(db, _)| db.commit_number());
                assert!(
                    matches!(found, Ok(number) if number == tip),
                    "{nth}, {outcome}: {found:?}"
                );
            }
        }
    }
    assert!(outcomes > 100, "{outcomes}");
}

/// A geometry that no writer makes panicked under a good checksum.
#[test]
fn a_hostile_geometry_is_an_error() {
    let setup = small(1, 3);
    let disk = SimDisk::new(1, SimOptions::default());
    drop(setup.open(&disk, 1).expect("created"));
    let bytes = disk.image().file("super").expect("there").to_vec();
    let half = bytes.len() / 2;
    // Both slots: with one good one the database opens.
    let slot = |slot: u32| {
        let page = bytes[half * usize::try_from(slot).expect("small")..].first_chunk();
        let page: &[u8; 4096] = page.expect("a page");
        pleach_journal::format::superblock::Superblock::decode(page, slot).expect("whole")
    };
    for (leaf, overflow) in [(1 << 30, 1 << 30), (0, 0), (1 << 20, 1 << 21), (4097, 4097)] {
        let file = disk.open("super", OpenMode::Write).expect("there");
        for number in [0, 1] {
            let mut hostile = slot(number);
            let geometry = &mut hostile.geometry;
            (geometry.leaf_segment, geometry.overflow_segment) = (leaf, overflow);
            let at = half as u64 * u64::from(number);
            disk.write_at(&file, &hostile.encode(number), 1, at).expect("written");
        }
        assert!(setup.open(&disk, 2).is_err(), "{leaf} {overflow}");
    }
}

/// A sync of the folder failed while the files of an earlier creation were removed: they came back without
/// their marker, or beside another one, and the folder was somebody else's for ever.
#[test]
fn a_creation_is_started_again_however_often_a_folder_sync_fails() {
    let setup = small(1, 3);
    let disk = SimDisk::new(1, SimOptions::default());
    drop(setup.open(&disk, 1).expect("created"));
    let mut outcomes = 0;
    for point in disk.trace().crash_points().step_by(5) {
        let image = point.outcome(CrashMode::Kept);
        for nth in 1..4 {
            let disk = image.disk_with(SimOptions::default());
            if !disk.list().expect("listed").iter().any(|name| name == "CREATING") {
                continue;
            }
            let fault = Fault::Sync(Aftermath::NewVisible);
            disk.inject(FaultRule::nth(Operation::SyncFolder, "", nth, FaultRepeats::Once, fault));
            if setup.open(&disk, 2).is_ok() {
                continue;
            }
            disk.heal();
            disk.record();
            drop(setup.open(&disk, 2));
            for point in disk.trace().crash_points() {
                for outcome in point.outcomes(1, 2) {
                    outcomes += 1;
                    let opened = setup.open(&outcome.disk(), 3).map(drop);
                    opened.unwrap_or_else(|error| panic!("{nth}, {outcome}: {error}"));
                }
            }
        }
    }
    assert!(outcomes > 500, "{outcomes}");
}
