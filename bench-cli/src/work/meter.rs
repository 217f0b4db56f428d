//! The clock of a run of batches. It runs only in the engine's own phases; batches are drawn and verified while it, and
//! the engine's background work, stand still. It stops only when background work has left no more than there was at its
//! start.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::engine::Engine;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::machine::{self, ResourceUsage};
use crate::measure::{Figure, Times, Unit, float, ratio, tried};

/// The phases of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phases {
    /// Reads, and what is computed of them.
    pub execute: Duration,
    /// The new root, and the witness.
    pub finish: Duration,
    pub commit: Duration,
}

impl Phases {
    pub fn total(&self) -> Duration {
        self.execute + self.finish + self.commit
    }
}

/// An engine's counters: names and values.
pub type Counters = Vec<(&'static str, u64)>;

/// How much a counter has grown; none where the engine has no such one.
fn grown(before: &Counters, now: &Counters, name: &str) -> Option<u64> {
    let of = |counters: &Counters| counters.iter().find(|one| one.0 == name).map(|one| one.1);
    Some(of(now)?.saturating_sub(of(before)?))
}

/// An engine's counters and the bytes of its log files before a run.
pub struct WrittenBefore {
    folder: PathBuf,
    counters: Counters,
    log_files: u64,
}

impl WrittenBefore {
    pub fn new(engine: &dyn Engine, folder: &Path) -> Self {
        let log_files = machine::log_file_bytes(folder);
        Self { folder: folder.to_owned(), counters: engine.counters(), log_files }
    }

    /// What was written since, `all` bytes of it by the system's count; none where the engine has no counters of its
    /// parts. A log file is as large as it will be from the start: what log files have grown are zeros.
    pub fn parts(&self, engine: &dyn Engine, all: u64) -> Option<[(&'static str, u64); 4]> {
        let now = engine.counters();
        let pages = grown(&self.counters, &now, "pages written")? * 4096;
        let images = grown(&self.counters, &now, "image bytes")?;
        let zeros = machine::log_file_bytes(&self.folder).saturating_sub(self.log_files);
        Some([
            ("of them leaf pages", pages),
            ("of them images of checkpoints", images),
            ("of them zeros of new log segments", zeros),
            (
                "of them records of the log, and the rest",
                all.saturating_sub(pages + images + zeros),
            ),
        ])
    }
}

/// Times of batches.
#[derive(Default)]
struct BatchTimes {
    execute: Times,
    finish: Times,
    commit: Times,
    finish_commit: Times,
    total: Times,
}

/// What is measured from the start of the clock on.
pub struct Meter {
    start: Instant,
    before: WrittenBefore,
    pending: u64,
    used: ResourceUsage,
    /// When the clock was started last.
    from: ResourceUsage,
    clock: Duration,
    /// Of drains at the ends of turns.
    drained: Duration,
    times: BatchTimes,
    /// After each batch: seconds since the start, milliseconds of the batch, resident memory, bytes of files.
    columns: [Vec<f64>; 4],
    operations: u64,
    accounts: u64,
    /// The phases of the last batch.
    pub last: Phases,
}

impl Meter {
    /// Starts with background work paused.
    pub fn new(engine: &mut dyn Engine, side: &JobContext) -> Self {
        machine::reset_peak_rss();
        Self {
            start: Instant::now(),
            before: WrittenBefore::new(engine, &side.folder),
            pending: engine.pending(),
            used: ResourceUsage::default(),
            from: ResourceUsage::now(),
            clock: Duration::ZERO,
            drained: Duration::ZERO,
            times: BatchTimes::default(),
            columns: Default::default(),
            operations: 0,
            accounts: 0,
            last: Phases::default(),
        }
    }

    /// The clock starts.
    pub fn go(&mut self, engine: &mut dyn Engine) {
        engine.pause(false);
        self.from = ResourceUsage::now();
    }

    /// The clock stands still.
    pub fn halt(&mut self, engine: &mut dyn Engine) {
        engine.pause(true);
        self.used = self.used.plus(&ResourceUsage::now().since(&self.from));
    }

    /// A batch has run, of so many operations on so many distinct keys.
    pub fn record(&mut self, phases: &Phases, operations: u64, accounts: u64) {
        let total = phases.total();
        self.times.execute.record(phases.execute);
        self.times.finish.record(phases.finish);
        self.times.commit.record(phases.commit);
        self.times.finish_commit.record(phases.finish + phases.commit);
        self.times.total.record(total);
        self.clock += total;
        self.last = *phases;
        self.operations += operations;
        self.accounts += accounts;
        let now = [
            self.start.elapsed().as_secs_f64(),
            total.as_secs_f64() * 1000.0,
            float(machine::rss()),
            float(machine::folder_bytes(&self.before.folder)),
        ];
        for (column, value) in self.columns.iter_mut().zip(now) {
            column.push(value);
        }
    }

    /// Batches so far.
    pub fn batches(&self) -> u64 {
        self.times.total.count()
    }

    /// What the engine has counted since the start.
    pub fn counted(&self, engine: &dyn Engine, name: &str) -> Option<u64> {
        grown(&self.before.counters, &engine.counters(), name)
    }

    /// Seconds since the start, pauses included.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// What a batch took, in milliseconds, and the memory after it: a column each, with the seconds.
    pub fn columns(&self) -> &[Vec<f64>; 4] {
        &self.columns
    }

    /// Another engine's turn is next: whatever goes on in the background ends first, on the clock.
    pub fn hand_over(&mut self, engine: &mut dyn Engine, side: &JobContext) -> Result<()> {
        if side.kind.caps().works_on && side.is_turn_ending() {
            self.go(engine);
            self.drained += tried(|| engine.drain(0))?.0;
            self.halt(engine);
        }
        Ok(())
    }

    /// Commits what is left, drains, and gives all figures.
    pub fn end(
        mut self,
        engine: &mut dyn Engine,
        side: &JobContext,
        left: u64,
        what: &str,
    ) -> Result<()> {
        self.go(engine);
        let (commits, ()) = tried(|| (0..left).try_for_each(|_| engine.commit()))?;
        let acknowledged = self.clock + commits;
        let (drain, ()) = tried(|| engine.drain(self.pending))?;
        let drained = acknowledged + self.drained + drain;
        self.halt(engine);
        let peak = machine::peak_rss();

        let rate = |count: u64, time: Duration| float(count) / time.as_secs_f64().max(1e-9);
        let rate_of = |name: &str, count, time| {
            side.figure(Figure::one("", name, Unit::PerSecond, rate(count, time)).committed())
        };
        // The spread of a rate is that of the batches.
        let (each, name) = (self.operations / self.batches().max(1), format!("{what}, drained"));
        let all = self.times.total.rate("", &name, each, rate(self.operations, drained));
        side.figure(all.committed())?;
        rate_of(&format!("{what}, acknowledged"), self.operations, acknowledged)?;
        rate_of("distinct keys, drained", self.accounts, drained)?;
        self.latencies(side)?;
        self.costs(engine, side, peak)?;
        let [seconds, batch_ms, memory, files] =
            self.columns.each_ref().map(|column| thinned(column));
        side.series(json!({
            "seconds": seconds, "batch_ms": batch_ms, "resident_bytes": memory, "file_bytes": files,
            "operations": ratio(self.operations, self.batches()),
        }))
    }

    /// Reports what batches took.
    fn latencies(&self, side: &JobContext) -> Result<()> {
        let BatchTimes { execute, finish, commit, finish_commit, total } = &self.times;
        side.figure(execute.latencies("", "execute"))?;
        if side.kind.caps().merkle {
            // A plain store has no root to be made: its transaction stands beside both together.
            side.figure(finish.latencies("", "finish"))?;
            side.figure(commit.latencies("", "commit").committed())?;
        }
        side.figure(finish_commit.latencies("", "finish + commit").committed())?;
        side.figure(total.latencies("", "all of it").committed())
    }

    /// Reports processor time, transfers of the device, memory and files, and the engine's counters.
    fn costs(&self, engine: &dyn Engine, side: &JobContext, peak: u64) -> Result<()> {
        let keys = self.accounts.max(1);
        let processor = self.used.processor.as_secs_f64() * 1e9;
        let one = |name: &str, unit, value: f64| {
            side.figure(Figure::one("", name, unit, value).committed())
        };
        one("processor time of a key, all threads", Unit::Nanos, processor / float(keys))?;
        one("device reads of a key", Unit::Ratio, ratio(self.used.read / 4096, keys))?;
        one("bytes written of a key", Unit::Bytes, ratio(self.used.written, keys))?;
        let parts = self.before.parts(engine, self.used.written);
        for (name, bytes) in parts.into_iter().flatten() {
            one(name, Unit::Bytes, ratio(bytes, keys))?;
        }
        if let Some(hashes) = self.counted(engine, "hashes").filter(|hashes| *hashes > 0) {
            let times = processor / (float(hashes) * nanos_of_a_hash());
            side.value("", "processor time / that of its hashes alone", Unit::Ratio, times)?;
        }
        side.value("", "peak resident memory", Unit::Bytes, float(peak))?;
        let files = machine::folder_bytes(&self.before.folder);
        side.value("", "size of the files", Unit::Bytes, float(files))?;
        for (name, _) in &self.before.counters {
            let count = self.counted(engine, name).unwrap_or(0);
            side.value("counted", name, Unit::Count, float(count))?;
        }
        Ok(())
    }
}

/// At most so many points of a column: the mean of as many values each.
const POINTS: usize = 500;

fn thinned(column: &[f64]) -> Vec<f64> {
    let mean = |some: &[f64]| some.iter().sum::<f64>() / float(some.len() as u64);
    column.chunks(column.len().div_ceil(POINTS).max(1)).map(mean).collect()
}

/// Nanoseconds of a node's hash on one core, hashed many at a time: what an engine that did nothing else would take.
fn nanos_of_a_hash() -> f64 {
    use pleach_core::Hasher;
    let blocks = vec![[7_u8; 64]; 1024];
    let mut out = vec![[0; 32]; 1024];
    let mut times = Times::default();
    for _ in 0..64 {
        let from = Instant::now();
        Hasher::BLAKE3.hash64_many(std::hint::black_box(&blocks), &mut out);
        times.record(from.elapsed());
    }
    times.each("", "", 1024).p50
}
