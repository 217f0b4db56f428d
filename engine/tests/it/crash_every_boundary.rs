//! A crash at every boundary of a run leaves the state of a commit: at least the last one that
//! was acknowledged, at most the last one that was begun, whole, and fit for further work.

use std::time::Instant;

use crate::crash::check::check;
use crate::crash::workload::run;
use crate::crash::{PERIOD, Setup, report, seeds, unrecorded};
use pleach::Durability;
use pleach_io::sim::{SimDisk, SimOptions};

/// Looks at `outcomes` images at every `stride`-th crash point of a run.
fn walk(setup: &Setup, commits: u64, stride: usize, outcomes: usize) -> u64 {
    let disk = SimDisk::new(setup.seed, SimOptions::default());
    let run = run(setup, &disk, commits);
    assert!(run.failed.is_none(), "{setup:?}: {:?}", run.failed);
    let trace = disk.trace();
    let mut schedules = 0;
    let offset = usize::try_from(setup.seed).unwrap_or(0) % stride;
    for point in trace.crash_points().skip(offset).step_by(stride) {
        let promise = setup.promise(point.marks());
        for outcome in point.outcomes(setup.seed, outcomes) {
            let what = format!("{setup:?}, {outcome}");
            check(setup, &outcome.disk_with(unrecorded()), &run.history, promise, &what);
            schedules += 1;
        }
    }
    schedules
}

#[test]
fn an_acknowledged_commit_survives() {
    let since = Instant::now();
    let schedules = seeds(0, 12).map(|seed| walk(&Setup::draw(seed), 12, 3, 6)).sum();
    report("durable commits", schedules, since);
}

#[test]
fn without_durability_a_prefix_of_the_commits_survives() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in seeds(1000, 4) {
        for durability in [Durability::None, Durability::Periodic(PERIOD)] {
            schedules += walk(&Setup::draw(seed).durability(durability), 12, 5, 6);
        }
    }
    report("commits that are not synced", schedules, since);
}
