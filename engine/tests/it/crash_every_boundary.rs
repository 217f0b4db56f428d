//! A crash at every boundary of a run leaves the state of a commit: at least the last one that
//! was acknowledged, at most the last one that was begun, whole, and fit for further work.

use std::time::Instant;

use crate::crash::check::check;
use crate::crash::workload::{Run, run};
use crate::crash::{PERIOD, Setup, only_boundary, report, seeds, unrecorded};
use pleach::Durability;
use pleach_io::sim::{SimDisk, SimOptions};

/// Looks at `outcomes` images at every `stride`-th crash point of a run.
fn walk(setup: &Setup, commits: u64, stride: usize, outcomes: usize) -> u64 {
    walk_run(setup, commits, stride, outcomes).0
}

/// The same; gives the run, too.
fn walk_run(setup: &Setup, commits: u64, stride: usize, outcomes: usize) -> (u64, Run) {
    let disk = SimDisk::new(setup.seed, SimOptions::default());
    let run = run(setup, &disk, commits);
    assert!(run.failed.is_none(), "{setup:?}: {:?}", run.failed);
    let trace = disk.trace();
    let mut schedules = 0;
    let offset = usize::try_from(setup.seed).unwrap_or(0) % stride;
    let points: Vec<_> = match only_boundary() {
        Some(boundary) => vec![trace.crash_point(boundary)],
        None => trace.crash_points().skip(offset).step_by(stride).collect(),
    };
    for point in points {
        let promise = setup.promise(point.marks());
        for outcome in point.outcomes(setup.seed, outcomes) {
            let what = format!("{setup:?}, {outcome}");
            check(setup, &outcome.disk_with(unrecorded()), &run.history, promise, &what);
            schedules += 1;
        }
    }
    (schedules, run)
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

/// The history comes back as well, whatever was dropped, cut or rolled back before the crash.
#[test]
fn the_history_survives_with_the_commits() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in seeds(3000, 8) {
        let mut setup = Setup::draw(seed);
        setup.history = 1 + seed % 7;
        schedules += walk(&setup, 14, 5, 4);
    }
    for seed in seeds(3100, 3) {
        let mut setup = Setup::draw(seed).durability(Durability::None);
        setup.history = 1 + seed % 7;
        schedules += walk(&setup, 14, 7, 4);
    }
    report("a history", schedules, since);
}

/// An image whose regions are of different moments is as good as one of a single moment: a region
/// is replayed from its own position on.
///
/// A checkpoint took 256 regions a step, more than any of these databases had, so that nothing ever
/// fell between two regions.
#[test]
fn images_that_commits_and_flushes_fall_into_are_recovered_from() {
    let since = Instant::now();
    let (mut schedules, mut overtaken, mut large) = (0, 0, 0);
    for seed in seeds(2000, 6) {
        let mut setup = Setup::draw(seed);
        // Regions split at 93 pages, and a page has three values of 1,000 bytes.
        (setup.checkpoint_regions, setup.ids, setup.flush_at) = (1, 600, 1);
        // A region that was copied after its checkpoint's cut has commits that the image's number does not
        // tell: sessions on the commits between took it for theirs, and iterators and proofs gave newer values.
        setup.history = 3;
        let (walked, run) = walk_run(&setup, 24, 41, 3);
        schedules += walked;
        overtaken += run.overtaken;
        large = large.max(run.pages);
    }
    report("images in motion", schedules, since);
    println!("{overtaken} images in motion, {large} pages at most");
    assert!(overtaken > 0, "commits or flushes fell between two regions of an image");
    assert!(large > 93, "regions were split");
}
