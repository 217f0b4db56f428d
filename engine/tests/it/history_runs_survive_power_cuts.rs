//! A power cut while a run of the history is written, named, merged or removed keeps each state that the window has.

use std::time::Instant;

use pleach::{Access, Durability};
use pleach_io::sim::{SimDisk, SimOptions};

use crate::common::{Rng, bytes, cases};
use crate::crash::check::check;
use crate::crash::workload::{commit_batch, commit_one};
use crate::crash::{History, PERIOD, Setup, durable, report, unrecorded};

/// Commits behind short opens, so that there are many runs, which are merged. Gives the states, and how often runs were merged.
fn run(setup: &Setup, disk: &SimDisk, opens: u64) -> (History, u64) {
    let (mut history, mut rng, mut merges) = (History::default(), Rng::new(setup.seed), 0);
    for open in 0..opens {
        let (db, runtime) = setup.open(disk, setup.seed + open).expect("opened");
        disk.mark(durable(history.newest()));
        // No checkpoint is due: what is written of runs are merges.
        runtime.step_some(rng.index(200));
        merges += u64::from(db.metrics().history_written_bytes > 0);
        if rng.below(2) == 0 {
            // Pages of long values come where runs were, as soon as these are free.
            let put = |id| Access::write(setup.key(id), Some(bytes(&mut rng, 30_000)));
            let long = (0..setup.ids.min(20)).map(put).collect();
            commit_batch((setup, disk), (&db, &runtime), &mut rng, &mut history, long)
                .expect("committed");
            db.drain(0).expect("flushed");
        }
        for _ in 0..=rng.below(4) {
            commit_one(setup, disk, &db, &runtime, &mut rng, &mut history).expect("committed");
            runtime.step_some(rng.index(20));
        }
        if rng.below(4) > 0 {
            db.close().expect("closed");
            disk.mark(durable(history.newest()));
        }
    }
    (history, merges)
}

#[test]
fn a_power_cut_beside_runs_keeps_each_state() {
    let since = Instant::now();
    let (mut schedules, mut merges) = (0, 0);
    for seed in 0..cases(2) {
        for (history, durability) in [
            (4, Durability::Commit),
            (30, Durability::None),
            (200, Durability::Commit),
            (200, Durability::Periodic(PERIOD)),
        ] {
            let mut setup = Setup::draw(6000 + seed).durability(durability);
            // What is on the device is read from there.
            (setup.history, setup.history_bytes, setup.cache_kib) = (history, 1, 8 << 10);
            let disk = SimDisk::new(setup.seed, SimOptions::default());
            let (states, merged) = run(&setup, &disk, 30);
            merges += merged;
            let trace = disk.trace();
            let stride = trace.boundaries().len().div_ceil(25).max(1);
            for point in
                trace.crash_points().skip(usize::try_from(seed).expect("small")).step_by(stride)
            {
                for outcome in point.outcomes(setup.seed, 2) {
                    let promise = setup.promise(point.marks());
                    let what = format!("{setup:?}, {outcome}");
                    check(&setup, &outcome.disk_with(unrecorded()), &states, promise, &what);
                    schedules += 1;
                }
            }
        }
    }
    assert!(merges > 0, "no run was merged");
    println!("{merges} opens merged runs");
    report("power cuts beside runs", schedules, since);
}
