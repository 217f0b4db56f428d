//! The run job: warm-up, measured batches, drain.
//!
//! The clock runs only during the engine's own phases and the drain. Batches are drawn and verified,
//! and the parent is told, between batches, while background work is paused.

use std::time::{Duration, Instant};

use crate::args::values::Count;
use crate::backend::roots::RootWriter;
use crate::backend::{self, Backend, Counters, Done, Root, Work};
use crate::child::claims::{Claims, sums_of};
use crate::child::pipe::{next_order, say};
use crate::child::series::Sampler;
use crate::child::views::Views;
use crate::child::{Event, HexRoot, Order, RunPlan, RunResult, Spec};
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::machine::{self, DiskUse};
use crate::measure::Phase;
use crate::workload::transfer::{self, Prepared};

/// `--batches auto`: fewest and most batches, and the number of checkpoints that it waits for.
const AUTO_BATCHES: (u64, u64, u64) = (40, 4000, 3);
/// `--warmup auto`: fewest and most batches.
const AUTO_WARMUP: (u64, u64) = (8, 1000);

/// Opens the database, runs the plan, closes it.
pub(crate) fn run(spec: &Spec, plan: RunPlan) -> Result<RunResult> {
    let start = Instant::now();
    let engine = backend::open(spec.backend, &spec.place, &spec.options)?;
    let opened = start.elapsed();
    let next = engine.batches()?;
    let mut runner = Runner {
        root: engine.root(),
        engine,
        spec,
        next,
        drawn: None,
        roots: RootWriter::open(&spec.place.roots)?,
        outside: DiskUse::default(),
        peak: 0,
        verify_every: plan.verify_every,
        drained: Duration::ZERO,
        phases: Phases::new(),
        sampler: None,
        views: Views::new(plan.views),
        result: RunResult { open_seconds: opened.as_secs_f64(), ..RunResult::default() },
    };
    runner.engine.pause();
    let warmup = runner.warm_up(plan)?;
    if runner.engine.works_on() {
        // What was due before belongs to no batch that is measured.
        runner.engine.drain(0)?;
    }
    runner.clocked(plan, warmup)?;
    runner.close()
}

#[derive(Debug)]
struct Phases {
    execute: Phase,
    finish: Phase,
    commit: Phase,
    total: Phase,
    clock: Duration,
}

impl Phases {
    fn new() -> Self {
        Self {
            execute: Phase::new(),
            finish: Phase::new(),
            commit: Phase::new(),
            total: Phase::new(),
            clock: Duration::ZERO,
        }
    }

    fn record(&mut self, done: &Done) {
        let total = done.execute + done.finish + done.commit;
        self.execute.record(done.execute);
        self.finish.record(done.finish);
        self.commit.record(done.commit);
        self.total.record(total);
        self.clock += total;
    }
}

/// What there was when the clock started.
#[derive(Debug)]
struct Start {
    time: Instant,
    counters: Counters,
    disk: DiskUse,
}

#[derive(Debug)]
struct Runner<'a> {
    engine: Box<dyn Backend>,
    spec: &'a Spec,
    next: u64,
    /// The next batch, where it was announced ahead.
    drawn: Option<Prepared>,
    root: Root,
    roots: RootWriter,
    /// Disk use of the harness between batches.
    outside: DiskUse,
    /// Peak memory before the last verification.
    peak: u64,
    verify_every: u64,
    /// Time of the drains at the ends of turns.
    drained: Duration,
    phases: Phases,
    /// Present once batches are measured.
    sampler: Option<Sampler>,
    views: Views,
    result: RunResult,
}

impl Runner<'_> {
    fn warm_up(&mut self, plan: RunPlan) -> Result<u64> {
        let mut levels = Vec::new();
        loop {
            let done = levels.len() as u64;
            let enough = match plan.warmup {
                Count::Fixed(count) => done >= count,
                Count::Auto => {
                    done >= AUTO_WARMUP.1 || (done >= AUTO_WARMUP.0 && is_steady(&levels))
                }
            };
            if enough || interrupt::asked() {
                return Ok(done);
            }
            self.batch()?;
            levels.push(self.engine.counters().pending_entries.unwrap_or(0));
            let of = match (plan.warmup, plan.batches) {
                (Count::Fixed(warmup), Count::Fixed(batches)) => warmup + batches,
                _ => 0,
            };
            say(&Event::Progress { done: done + 1, of })?;
        }
    }

    fn clocked(&mut self, plan: RunPlan, warmup: u64) -> Result<()> {
        let start = self.start_clock(warmup);
        if plan.stepped {
            self.steps(plan, &start, warmup)?;
        } else {
            while !self.enough(plan, &start) && !interrupt::asked() {
                self.batch()?;
                let of = match plan.batches {
                    Count::Fixed(batches) => warmup + batches,
                    Count::Auto => 0,
                };
                say(&Event::Progress { done: warmup + self.result.batches, of })?;
            }
        }
        self.views.finish(self.engine.as_mut())?;
        self.result.sessions_ended = self.views.ended;
        self.result.session_reads = self.views.reads;
        self.result.session_changes = self.views.changed;
        self.stop_clock(&start)
    }

    fn start_clock(&mut self, warmup: u64) -> Start {
        let folder = &self.spec.place.folder;
        self.peak = 0;
        machine::reset_peak_rss();
        self.outside = DiskUse::default();
        self.result.first_batch = self.next;
        self.result.warmup = warmup;
        let (counters, disk) = (self.engine.counters(), DiskUse::now(folder));
        let start = Start { time: Instant::now(), counters, disk };
        self.sampler = Some(Sampler::new(folder.clone(), start.counters, start.disk));
        start
    }

    /// Runs batches when told to. In between, other backends run: what the device does then is not
    /// counted for this engine.
    fn steps(&mut self, plan: RunPlan, start: &Start, warmup: u64) -> Result<()> {
        let folder = &self.spec.place.folder;
        let mut event = Event::Ready { warmup };
        loop {
            let before = DiskUse::now(folder);
            say(&event)?;
            let order = next_order()?;
            let waited = DiskUse::now(folder).since(&before);
            self.outside = self.outside.plus(&DiskUse { read: 0, written: 0, ..waited });
            let Order::Go(batches) = order else { return Ok(()) };
            for _ in 0..batches {
                if interrupt::asked() {
                    break;
                }
                self.batch()?;
            }
            if self.engine.works_on() {
                let draining = Instant::now();
                self.engine.drain(0)?;
                self.drained += draining.elapsed();
            }
            event = Event::Stepped { enough: self.enough(plan, start) };
        }
    }

    fn stop_clock(&mut self, start: &Start) -> Result<()> {
        self.engine.resume();
        let settling = Instant::now();
        self.engine.settle()?;
        let acknowledged = self.phases.clock + settling.elapsed();
        let draining = Instant::now();
        self.engine.drain(start.counters.pending_entries.unwrap_or(0))?;
        let drained = acknowledged + self.drained + draining.elapsed();

        let result = &mut self.result;
        result.seconds_acknowledged = acknowledged.as_secs_f64();
        result.seconds_drained = drained.as_secs_f64();
        let disk = DiskUse::now(&self.spec.place.folder);
        result.disk = disk.since(&start.disk).since(&self.outside);
        result.counters = self.engine.counters().since(&start.counters);
        result.peak_rss_bytes = machine::peak_rss().max(self.peak);
        Ok(())
    }

    fn enough(&self, plan: RunPlan, start: &Start) -> bool {
        let done = self.result.batches;
        match (plan.batches, plan.seconds) {
            (Count::Fixed(count), _) => done >= count,
            (Count::Auto, Some(seconds)) => {
                done > 0 && start.time.elapsed().as_secs_f64() >= seconds
            }
            (Count::Auto, None) => {
                let (fewest, most, wanted) = AUTO_BATCHES;
                // An engine that counts no checkpoints stops at the fewest.
                let checkpoints = self.engine.counters().since(&start.counters).checkpoints;
                done >= most || (done >= fewest && checkpoints.is_none_or(|seen| seen >= wanted))
            }
        }
    }

    /// Draws, runs and verifies the next batch. Background work runs only during the batch itself.
    fn batch(&mut self) -> Result<()> {
        let number = self.next;
        let draw = |number| Prepared::new(self.spec.stream.batch(self.spec.initial(), number));
        let prepared = self.drawn.take().unwrap_or_else(|| draw(number));
        let next = self.spec.options.ahead.then(|| draw(number + 1));
        let (mut moved, mut empty, mut closed) = (0, 0, 0);
        let (mut seen, mut changes) = (Vec::new(), Vec::new());
        let roots = &mut self.roots;
        let work = Work {
            number,
            keys: &prepared.keys,
            next: next.as_ref().map(|next| &*next.keys),
            compute: &mut |balances| {
                let applied = transfer::apply(&prepared.batch, balances)?;
                (moved, empty, closed) = (applied.moved, applied.empty, applied.closed);
                seen = balances.to_vec();
                changes.clone_from(&applied.changes);
                Ok(applied.changes)
            },
            before_commit: &mut |root| {
                roots.append(number + 1, root)?;
                say(&Event::Committing { number: number + 1, root: HexRoot(*root) })
            },
        };
        self.engine.resume();
        let done = self.engine.run_batch(work);
        self.engine.pause();
        let done = done?;
        say(&Event::Committed { number: number + 1 })?;
        let (before, after) = sums_of(&seen, &changes);
        if before != after {
            let text = format!("batch {number} turned a sum of {before} into {after}");
            return Err(BenchError::Wrong(text));
        }
        let timings = self.engine.timings();
        if let Some(sampler) = &mut self.sampler {
            self.phases.record(&done);
            let counters = self.engine.counters();
            let result = &mut self.result;
            result.series.push(sampler.sample(&done, moved + empty, &counters, &self.outside));
            result.batches += 1;
            result.transfers += moved + empty;
            result.moved += moved;
            result.empty += empty;
            result.closed += closed;
            result.accounts += prepared.keys.len() as u64;
            if self.spec.options.timed {
                result.timings.push(timings);
            }
        }
        self.verify(number, &done, &Claims { keys: &prepared.keys, seen, changes })?;
        self.root = done.root;
        self.next += 1;
        self.drawn = next;
        let before = DiskUse::now(&self.spec.place.folder);
        self.views.turn(self.engine.as_mut(), self.spec, self.next)?;
        let own = DiskUse::now(&self.spec.place.folder).since(&before);
        self.outside = self.outside.plus(&own);
        Ok(())
    }

    fn verify(&mut self, number: u64, done: &Done, claims: &Claims<'_>) -> Result<()> {
        if done.prev_root != self.root {
            let text = format!("batch {number} does not start at the root of the one before");
            return Err(BenchError::Wrong(text));
        }
        let Some(witness) = &done.witness else { return Ok(()) };
        let clocked = self.sampler.is_some();
        if clocked {
            self.result.witnesses += 1;
            self.result.witness_bytes += witness.bytes();
        }
        if !number.is_multiple_of(self.verify_every) {
            return Ok(());
        }
        let folder = &self.spec.place.folder;
        let before = DiskUse::now(folder);
        self.peak = self.peak.max(machine::peak_rss());
        let verified = claims.hold(done, &**witness);
        machine::reset_peak_rss();
        self.outside = self.outside.plus(&DiskUse::now(folder).since(&before));
        self.result.witnesses_verified += u64::from(clocked);
        verified.map_err(|why| BenchError::Wrong(format!("batch {number}: its witness: {why}")))
    }

    fn close(self) -> Result<RunResult> {
        let root = self.engine.root();
        if root != self.root {
            return Err(BenchError::Wrong("the last root is not the last batch's".to_owned()));
        }
        let mut result = self.result;
        result.interrupted = interrupt::asked();
        result.notes = self.engine.notes();
        let closing = Instant::now();
        self.engine.close()?;
        result.close_seconds = closing.elapsed().as_secs_f64();
        result.root = HexRoot(root);
        result.execute = self.phases.execute.quantiles();
        result.finish = self.phases.finish.quantiles();
        result.commit = self.phases.commit.quantiles();
        result.total = self.phases.total.quantiles();
        result.files_bytes = machine::folder_bytes(&self.spec.place.folder);
        Ok(result)
    }
}

/// Has the number of pending entries stopped growing? It has if the averages over the last four
/// batches and over the four before them differ by less than a twentieth.
fn is_steady(levels: &[u64]) -> bool {
    let Some(recent) = levels.last_chunk::<8>() else { return false };
    let (old, new) = (recent[..4].iter().sum::<u64>(), recent[4..].iter().sum::<u64>());
    old.abs_diff(new) <= old.max(new) / 20
}
