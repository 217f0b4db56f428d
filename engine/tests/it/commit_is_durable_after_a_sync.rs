//! Without durability a power cut may take the newest commits; those before a `Db::sync` stay.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::held_device::{Held, NEVER, Patient};
use crate::common::{commit, uniform};
use crate::crash::{Setup, unrecorded};
use pleach::{Access, Db, Durability, Error, Geometry, Options, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

const COMMITS: u64 = 3;

/// Three commits, perhaps a sync, and one commit more; then the power fails. Numbers of the newest commit that is
/// there, in several outcomes.
fn left(seed: u64, sync: bool) -> Vec<u64> {
    let setup = Setup::draw(seed).durability(Durability::None);
    let disk = SimDisk::new(seed, SimOptions::default());
    let (db, _runtime) = setup.open(&disk, 1).expect("no faults");
    let put = |id: u64| vec![Access::write(uniform(id), Some(Value::from(&id.to_be_bytes())))];
    for id in 1..=COMMITS {
        assert_eq!(commit(&db, put(id)), id);
    }
    if sync {
        db.sync().expect("no faults");
        // There is nothing left to do.
        db.sync().expect("no faults");
    }
    commit(&db, put(COMMITS + 1));
    let trace = disk.trace();
    let point = trace.crash_point(trace.len());
    let mut numbers = Vec::new();
    for outcome in point.outcomes(seed, 8) {
        let (db, _runtime) = setup.open(&outcome.disk_with(unrecorded()), 2).expect("it opens");
        numbers.push(db.commit_number());
    }
    numbers
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    let mut lost = 0;
    for seed in 7300..7310 {
        for number in left(seed, true) {
            assert!((COMMITS..=COMMITS + 1).contains(&number), "seed {seed}: {number}");
        }
        lost += left(seed, false).into_iter().filter(|number| *number < COMMITS).count();
    }
    assert!(lost > 0, "nothing is ever lost without it");
}

#[test]
fn a_closed_database_syncs_nothing() {
    let setup = Setup::draw(7320).durability(Durability::None);
    let (db, _runtime) = setup.open(&SimDisk::new(1, unrecorded()), 1).expect("no faults");
    db.close().expect("closed");
    assert!(matches!(db.sync(), Err(Error::Closed)));
}

/// A flush would sync the log.
fn without_flushes(seed: u64, durability: Durability) -> Setup {
    Setup { flush_at: u8::MAX, cache_kib: 4096, ..Setup::draw(seed) }.durability(durability)
}

#[test]
fn commits_before_a_sync_survive_a_power_cut_among_those_after_it() {
    // Records follow each other byte by byte, and a write covers whole pages: one that covered a page with a
    // synced record could tear it.
    for (seed, durability) in [
        (7330, Durability::None),
        (7331, Durability::Periodic(Duration::from_secs(3600))),
        (7332, Durability::Commit),
    ] {
        let setup = without_flushes(seed, durability);
        let disk = SimDisk::new(seed, SimOptions::default());
        let (db, _runtime) = setup.open(&disk, 1).expect("no faults");
        let put = |db: &Db, id: u64| {
            let value = Value::from(&id.to_be_bytes());
            assert_eq!(commit(db, vec![Access::write(uniform(id), Some(value))]), id);
        };
        disk.record();
        for id in 1..=16 {
            put(&db, id);
            if id % 4 == 0 {
                db.sync().expect("no faults");
                disk.mark(id);
            }
        }
        for point in disk.trace().crash_points() {
            let durable = point.marks().iter().copied().max().unwrap_or(0);
            for outcome in point.outcomes(seed, 12) {
                let survivor = outcome.disk();
                let (db, _runtime) = setup.open(&survivor, 2).expect("it opens");
                let number = db.commit_number();
                assert!((durable..=16).contains(&number), "{durable}, {outcome}: {number}");
                let session = db.session(SessionOptions::new()).expect("a session");
                for id in 1..=16 {
                    let value = session.read(&uniform(id)).expect("read");
                    let expected = (id <= number).then(|| Value::from(&id.to_be_bytes()));
                    assert_eq!(value, expected, "{outcome}");
                }
                drop(session);
                // What was found is durable by then: the next record shares no block with it.
                survivor.record();
                put(&db, number + 1);
                let trace = survivor.trace();
                for again in trace.crash_point(trace.len()).outcomes(seed, 7) {
                    let disk = again.disk_with(unrecorded());
                    let (db, _runtime) = setup.open(&disk, 3).expect("it opens");
                    assert!(db.commit_number() >= number, "{outcome}, {again}");
                }
            }
        }
    }
}

#[test]
fn a_commit_waits_for_no_sync_and_leaves_its_block_alone() {
    // It waited for the log's writer, which the sync had, for up to 7 ms beside a flush.
    for seed in 0..8 {
        let disk = SimDisk::new(seed, SimOptions::default());
        let (device, gate) = Held::new(disk.clone());
        let options = Options::new("sim").create(true).cache_mib(8).geometry(Geometry::small());
        let options = options.durability(Durability::None);
        let db = Db::open_on(device, Patient::new(2, &gate), options.clone()).expect("opened");
        db.pause_background();
        let put = |id: u64| {
            let value = Value::from(&id.to_be_bytes());
            commit(&db, vec![Access::write(uniform(id), Some(value))])
        };
        assert_eq!((put(1), put(2)), (1, 2));
        gate.hold_syncs();
        thread::scope(|scope| {
            let sync = scope.spawn(|| db.sync());
            until(|| gate.log_syncs() == 1);
            let other = scope.spawn(|| put(3));
            until(|| other.is_finished());
            assert_eq!(other.join().expect("no panic"), 3);
            gate.let_sync(false);
            sync.join().expect("no panic").expect("synced");
        });
        let trace = disk.trace();
        for outcome in trace.crash_point(trace.len()).outcomes(seed, 12) {
            let runtime = SimRuntime::new(seed);
            let db = Db::open_on(outcome.disk_with(unrecorded()), runtime, options.clone());
            let number = db.expect("it opens").commit_number();
            assert!((2..=3).contains(&number), "{outcome}: {number}");
        }
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + NEVER;
    while !done() {
        assert!(Instant::now() < end, "it never happens");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn small_commits_write_their_bytes_and_not_a_block_each() {
    let written = |durability, every: u64| {
        let setup = without_flushes(7340, durability);
        let (db, _runtime) = setup.open(&SimDisk::new(1, unrecorded()), 1).expect("no faults");
        let before = db.metrics().log_bytes;
        for id in 1..=100_u64 {
            let value = Value::from(&id.to_be_bytes());
            commit(&db, vec![Access::write(uniform(id), Some(value))]);
            if id % every == 0 {
                db.sync().expect("no faults");
            }
        }
        db.metrics().log_bytes - before
    };
    // A record of about 300 bytes, and once more what is left of each block when its first record is written.
    let shared = written(Durability::None, u64::MAX);
    assert!((20_000..80_000).contains(&shared), "{shared}");
    assert_eq!(written(Durability::Periodic(Duration::from_secs(3600)), u64::MAX), shared);
    assert!(written(Durability::None, 10) < 100_000);
    for alone in [written(Durability::None, 1), written(Durability::Commit, u64::MAX)] {
        assert!(alone >= 100 * 4096, "{alone}");
    }
}
