//! A crash during recovery, and during the recovery from that, changes nothing: the same commit
//! is found, and its database is fit for work. So it is for crashes of creation and close.

use std::time::Instant;

use crate::common::cases;
use crate::crash::check::{check, state_of};
use crate::crash::workload::run;
use crate::crash::{History, PERIOD, Promise, Setup, begun, durable, report, unrecorded};
use pleach::Durability;
use pleach_io::sim::{CrashOutcome, SimDisk, SimOptions};

/// How much is looked at on each level of crashes within recoveries.
#[derive(Clone, Copy)]
struct Level {
    points: usize,
    outcomes: usize,
}

const LEVELS: [Level; 3] = [
    Level { points: 2, outcomes: 2 },
    Level { points: 2, outcomes: 2 },
    Level { points: 2, outcomes: 1 },
];

/// Recovers on what `outcome` left, crashes that recovery in turn, and so on.
fn recover(
    setup: &Setup,
    history: &History,
    promise: Promise,
    outcome: &CrashOutcome,
    levels: &[Level],
    what: &str,
) -> u64 {
    let disk = outcome.disk_with(SimOptions::default());
    let (db, _) =
        setup.open(&disk, 7).unwrap_or_else(|error| panic!("{what}: does not open: {error}"));
    let found = state_of(&db, history, promise, &what);
    let trace = disk.trace();
    drop(db);
    let (db, _) =
        setup.open(&disk, 8).unwrap_or_else(|error| panic!("{what}: does not open twice: {error}"));
    let same = Promise { least: found, most: found };
    state_of(&db, history, same, &what);
    drop(db);
    let Some((level, deeper)) = levels.split_first() else {
        check(setup, &disk, history, same, &what);
        return 1;
    };
    // What was found is what will be found: a commit that was not acknowledged may still be
    // taken for lost or kept, but not differently each time, once an open has come to its end.
    let whole = trace.len();
    let boundaries = trace.boundaries();
    let step = boundaries.len().div_ceil(level.points).max(1);
    let mut schedules = 1;
    for boundary in boundaries.into_iter().rev().step_by(step) {
        let point = trace.crash_point(boundary);
        for inner in point.outcomes(setup.seed, level.outcomes) {
            let what = format!("{what}; in its recovery of {whole} events: {inner}");
            schedules += recover(setup, history, same, &inner, deeper, &what);
        }
    }
    schedules
}

#[test]
fn a_crash_in_recovery_changes_nothing() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in 0..cases(1) {
        for durability in [Durability::Commit, Durability::None, Durability::Periodic(PERIOD)] {
            let setup = Setup::draw(2000 + seed).durability(durability);
            let disk = SimDisk::new(setup.seed, SimOptions::default());
            let run = run(&setup, &disk, 10);
            assert!(run.failed.is_none(), "{setup:?}: {:?}", run.failed);
            let trace = disk.trace();
            let stride = trace.boundaries().len().div_ceil(4).max(1);
            for point in trace.crash_points().skip(11).step_by(stride) {
                for outcome in point.outcomes(setup.seed, 3) {
                    let promise = setup.promise(point.marks());
                    let what = format!("{setup:?}, {outcome}");
                    schedules += recover(&setup, &run.history, promise, &outcome, &LEVELS, &what);
                }
            }
        }
    }
    report("crashes in recoveries", schedules, since);
}

#[test]
fn a_crash_in_creation_leaves_a_folder_that_opens() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in 0..cases(1) {
        let setup = Setup::draw(3000 + seed);
        let disk = SimDisk::new(seed, SimOptions::default());
        drop(setup.open(&disk, seed).expect("no faults"));
        let empty = Promise { least: 0, most: 0 };
        for point in disk.trace().crash_points() {
            for outcome in point.outcomes(seed, 8) {
                let what = format!("creation, {outcome}");
                check(&setup, &outcome.disk_with(unrecorded()), &History::default(), empty, &what);
                schedules += 1;
            }
        }
    }
    report("crashes in creation", schedules, since);
}

#[test]
fn a_crash_in_close_loses_nothing() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in 0..cases(3) {
        let durability = [Durability::Commit, Durability::None][usize::from(seed % 2 == 1)];
        let setup = Setup::draw(4000 + seed).durability(durability);
        let disk = SimDisk::new(seed, SimOptions::default());
        let run = run(&setup, &disk, 6);
        assert!(run.failed.is_none(), "{setup:?}: {:?}", run.failed);
        let (db, _) = setup.open(&disk, seed).expect("no faults");
        let newest = run.history.newest();
        disk.record();
        disk.mark(begun(newest));
        disk.mark(durable(newest));
        db.close().expect("no faults");
        for point in disk.trace().crash_points().skip(2) {
            for outcome in point.outcomes(seed, 4) {
                let what = format!("{setup:?}, close, {outcome}");
                let promise = setup.promise(point.marks());
                check(&setup, &outcome.disk_with(unrecorded()), &run.history, promise, &what);
                schedules += 1;
            }
        }
    }
    report("crashes in close", schedules, since);
}
