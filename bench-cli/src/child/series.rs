//! Samples of each measured batch, taken between batches, while the clock and the engine's
//! background work are stopped.

use std::path::PathBuf;
use std::time::Instant;

use crate::backend::{Counters, Done};
use crate::child::BatchSample;
use crate::machine::{self, DiskUse};
use crate::measure::millis;

/// Takes the samples of a run.
#[derive(Debug)]
pub(super) struct Sampler {
    folder: PathBuf,
    start: Instant,
    clock_seconds: f64,
    counters: Counters,
    disk: DiskUse,
    /// Sum of the samples so far.
    seen: DiskUse,
}

impl Sampler {
    /// Starts to sample; the counters are those at the start of the clock.
    pub(super) fn new(folder: PathBuf, counters: Counters, disk: DiskUse) -> Self {
        let (start, seen) = (Instant::now(), DiskUse::default());
        Self { folder, start, clock_seconds: 0.0, counters, disk, seen }
    }

    /// Samples a batch that has just ended; `outside` is the harness's own disk use so far.
    pub(super) fn sample(
        &mut self,
        done: &Done,
        transfers: u64,
        counters: &Counters,
        outside: &DiskUse,
    ) -> BatchSample {
        let disk = DiskUse::now(&self.folder).since(&self.disk).since(outside);
        let this = disk.since(&self.seen);
        self.seen = disk;
        let total = done.execute + done.finish + done.commit;
        self.clock_seconds += total.as_secs_f64();
        let counters = counters.since(&self.counters);
        BatchSample {
            wall_seconds: self.start.elapsed().as_secs_f64(),
            clock_seconds: self.clock_seconds,
            execute_ms: millis(done.execute),
            finish_ms: millis(done.finish),
            commit_ms: millis(done.commit),
            transfers,
            read: this.read,
            written: this.written,
            rss: machine::rss(),
            files: machine::folder_bytes(&self.folder),
            pages_written: counters.pages_written,
            page_runs_written: counters.page_runs_written,
        }
    }
}
