//! An error of the device at any operation gives a typed error and no false acknowledgement: the
//! commit that met it is refused or whole, later ones are refused once a write or a sync has
//! failed, what was published stays readable, and reopening gives a state that may be there. A
//! full device refuses cleanly and goes on when there is room.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::common::{Rng, cases};
use crate::crash::check::check;
use crate::crash::workload::{Run, commit_one, run};
use crate::crash::{History, Promise, Setup, report, unrecorded};
use pleach::{Error, SessionOptions};
use pleach_io::Operation;
use pleach_io::sim::{Aftermath, Fault, FaultRepeats, FaultRule, Quota, SimDisk, SimOptions, code};

const COMMITS: u64 = 6;

/// The device fails as the rule says; then the run's last error and the state left are checked.
fn strike(setup: &Setup, rule: &FaultRule) {
    let what = format!("{setup:?}, {rule:?}");
    let disk = SimDisk::new(setup.seed, SimOptions { rules: vec![rule.clone()], ..unrecorded() });
    let outcome = catch_unwind(AssertUnwindSafe(|| run(setup, &disk, COMMITS)));
    let run = outcome.unwrap_or_else(|_| panic!("{what}: panicked"));
    disk.heal();
    let promise = Promise { least: run.acknowledged, most: run.history.newest() };
    // The process ends; the machine does not. Then the power fails, which takes what a failed
    // sync has left visible.
    let trace_free = disk.image();
    check(
        setup,
        &SimDisk::from_image_with(&trace_free, 3, unrecorded()),
        &run.history,
        promise,
        &what,
    );
}

/// The same with a power failure at the end: everything unsynced is lost, or random parts of it.
fn strike_and_cut(setup: &Setup, rule: &FaultRule) -> Run {
    let what = format!("{setup:?}, {rule:?}, then a power failure");
    let disk =
        SimDisk::new(setup.seed, SimOptions { rules: vec![rule.clone()], ..SimOptions::default() });
    let run = run(setup, &disk, COMMITS);
    let trace = disk.trace();
    let promise = Promise { least: run.acknowledged, most: run.history.newest() };
    for outcome in trace.crash_point(trace.len()).outcomes(setup.seed, 4) {
        let what = format!("{what}, {outcome}");
        check(setup, &outcome.disk_with(unrecorded()), &run.history, promise, &what);
    }
    run
}

fn operations(setup: &Setup) -> u64 {
    let disk = SimDisk::new(setup.seed, unrecorded());
    let run = run(setup, &disk, COMMITS);
    assert!(run.failed.is_none(), "{setup:?}: {:?}", run.failed);
    disk.operations()
}

fn faults() -> Vec<(FaultRepeats, Fault)> {
    let codes = [code::EIO, code::ENOSPC, code::EDQUOT, code::EINTR, code::EAGAIN, code::EFBIG];
    let mut faults: Vec<_> = codes
        .iter()
        .flat_map(|code| {
            [FaultRepeats::Once, FaultRepeats::Forever].map(|times| (times, Fault::Errno(*code)))
        })
        .collect();
    for bytes in [0, 512, 2048] {
        faults.extend(
            [FaultRepeats::Once, FaultRepeats::Forever].map(|times| (times, Fault::Short(bytes))),
        );
    }
    for aftermath in [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed] {
        faults.extend(
            [FaultRepeats::Once, FaultRepeats::Forever]
                .map(|times| (times, Fault::Sync(aftermath))),
        );
    }
    faults
}

#[test]
fn every_operation_may_fail() {
    let since = Instant::now();
    let mut schedules = 0;
    let faults = faults();
    // Each operation meets some of the faults; with more cases, all of them.
    let stride = usize::try_from(24 / cases(1).clamp(1, 24)).expect("small");
    for seed in 0..cases(1).min(2) {
        let setup = Setup::draw(5000 + seed);
        for number in 1..=operations(&setup) {
            let first = usize::try_from(number).expect("small") * 7 % stride;
            for (times, fault) in faults.iter().skip(first).step_by(stride) {
                let rule = FaultRule::at(number, *times, *fault);
                strike(&setup, &rule);
                strike_and_cut(&setup, &rule);
                schedules += 2;
            }
        }
    }
    report("failing operations", schedules, since);
}

#[test]
fn a_failed_sync_refuses_what_follows_and_is_not_repeated() {
    for (seed, aftermath) in
        [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed].into_iter().enumerate()
    {
        let setup = Setup::draw(6000 + seed as u64);
        let disk = SimDisk::new(setup.seed, unrecorded());
        let (db, runtime) = setup.open(&disk, 1).expect("no faults");
        let (mut rng, mut history) = (Rng::new(setup.seed), History::default());
        for _ in 0..3 {
            commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history).expect("no faults");
        }
        disk.inject(FaultRule::nth(
            Operation::Sync,
            "log-",
            1,
            FaultRepeats::Once,
            Fault::Sync(aftermath),
        ));
        let failed = loop {
            match commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(!matches!(failed, Error::Full(_)), "{failed}");
        let published = history.newest() - 1;
        assert_eq!(db.commit_number(), published, "the failed commit was not published");
        crate::crash::check::reads(&setup, &db, history.model(published), &"after the failure");
        history.truncate(published + 1);
        // The device works again; the database does not.
        for _ in 0..3 {
            let error = commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history);
            assert!(matches!(error, Err(Error::Poisoned(_))), "{error:?}");
            history.truncate(published + 1);
        }
        assert!(matches!(db.drain(0), Err(Error::Poisoned(_))), "a drain is told");
        assert!(db.session(SessionOptions::new()).is_ok(), "reads go on");
        assert!(matches!(db.close(), Err(Error::Poisoned(_))), "a close is told");
    }
}

#[test]
fn a_full_device_refuses_and_goes_on_with_room() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in 0..cases(40) {
        let setup = Setup::draw(7000 + seed);
        let disk = SimDisk::new(setup.seed, unrecorded());
        let (mut db, mut runtime) = setup.open(&disk, 1).expect("no faults");
        let (mut rng, mut history) = (Rng::new(setup.seed), History::default());
        for round in 0..4 {
            for _ in 0..3 {
                commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history)
                    .expect("there is room");
            }
            let room = rng.below(40) * 4096;
            let code = [code::ENOSPC, code::EDQUOT][usize::from(seed % 2 == 1)];
            disk.set_quota(Some(Quota { bytes: disk.used() + room, code }));
            for _ in 0..20 {
                let before = history.newest();
                match commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history) {
                    Ok(()) => {}
                    Err(Error::Full(_)) => {
                        history.truncate(before + 1);
                        assert_eq!(db.commit_number(), before, "seed {seed} round {round}");
                        crate::crash::check::reads(
                            &setup,
                            &db,
                            history.model(before),
                            &format!("seed {seed}, full"),
                        );
                        schedules += 1;
                    }
                    Err(error) => panic!("seed {seed} round {round}: {error}"),
                }
                runtime.step_some(rng.index(10));
            }
            match rng.below(4) {
                // Closing a full database is refused or done, and does not hang.
                0 => {
                    let closed = db.close();
                    assert!(
                        matches!(closed, Ok(_) | Err(Error::Full(_))),
                        "seed {seed}: {closed:?}"
                    );
                    disk.set_quota(None);
                    if closed.is_err() {
                        db.close().expect("there is room now");
                    }
                    (db, runtime) = setup.open(&disk, 2).expect("opens");
                }
                1 => {
                    drop(db);
                    disk.set_quota(None);
                    (db, runtime) = setup.open(&disk, 2).expect("opens");
                }
                _ => {
                    disk.set_quota(None);
                    // A checkpoint that found no room is tried again after half a second.
                    runtime.clock().advance(Duration::from_millis(500));
                    runtime.step_some(8);
                }
            }
            assert_eq!(db.root(), history.root(history.newest()), "seed {seed} round {round}");
        }
        drop(db);
        let newest = history.newest();
        let promise = Promise { least: newest, most: newest };
        check(&setup, &disk, &history, promise, &format!("seed {seed}, full and again with room"));
    }
    report("refusals for want of room", schedules, since);
}
