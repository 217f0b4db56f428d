//! Where the time of a batch goes: a clock for each phase of a finish and a commit.
//!
//! The sum of each phase is among the [`Metrics`](crate::Metrics) at all times: two looks at a clock a phase.
//! Recording keeps each phase by itself, with what each of its tasks took, for whoever wants to know what
//! more workers would bring.
//!
//! Invariants: what is measured decides nothing; no phase contains another one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::metrics::Counters;
use crate::observe;

/// A phase of a finish or a commit. What a caller waits for besides is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Of a finish: accesses in the order of their keys.
    Sort,
    /// Chunks of the trie are gathered, read and folded; of a plain namespace the values before are read.
    Fold,
    /// The regions' nodes are folded into the root, and what of it the witness needs is emitted.
    Root,
    /// The witness is put together.
    Witness,
    /// Of a commit, all before its record: checks, long values, nodes that must be in memory.
    Prepare,
    /// The record is encoded, with what it replaces where there is a history.
    Record,
    /// It is written and synced, as the durability says.
    Log,
    /// Changes and nodes go to the index.
    Apply,
    /// The commit becomes the newest one.
    Publish,
    /// Undo that is not needed any more goes, and that of a history is put in order.
    Settle,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 10] = [
        Self::Sort,
        Self::Fold,
        Self::Root,
        Self::Witness,
        Self::Prepare,
        Self::Record,
        Self::Log,
        Self::Apply,
        Self::Publish,
        Self::Settle,
    ];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sort => "sort",
            Self::Fold => "fold",
            Self::Root => "root",
            Self::Witness => "witness",
            Self::Prepare => "prepare",
            Self::Record => "record",
            Self::Log => "log",
            Self::Apply => "apply",
            Self::Publish => "publish",
            Self::Settle => "settle",
        }
    }

    fn sum(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Self::Sort => &counters.sort_nanos,
            Self::Fold => &counters.fold_nanos,
            Self::Root => &counters.root_nanos,
            Self::Witness => &counters.witness_nanos,
            Self::Prepare => &counters.prepare_nanos,
            Self::Record => &counters.record_nanos,
            Self::Log => &counters.log_nanos,
            Self::Apply => &counters.apply_nanos,
            Self::Publish => &counters.publish_nanos,
            Self::Settle => &counters.settle_nanos,
        }
    }
}

/// One phase of one batch in one namespace, as it was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Timing {
    /// The phase.
    pub phase: Phase,
    /// How long the caller was in it.
    pub wall: Duration,
    /// What each of its tasks took, in the order in which they are claimed; empty where the caller did all
    /// by itself. Waiting for the device between two steps of a task is not in it.
    pub tasks: Vec<Duration>,
}

/// Most timings that are kept: those of some hundred batches.
const KEPT: usize = 4096;

/// Tells the time.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The phases of an open database.
pub(crate) struct Timings {
    clock: Clock,
    counters: Arc<Counters>,
    records: AtomicBool,
    /// Oldest first.
    kept: Mutex<VecDeque<Timing>>,
}

impl Timings {
    pub(crate) fn new(clock: Clock, counters: Arc<Counters>) -> Self {
        Self { clock, counters, records: AtomicBool::new(false), kept: Mutex::default() }
    }

    /// Records each phase from now on, or no more.
    pub(crate) fn record(&self, records: bool) {
        self.records.store(records, Ordering::Relaxed);
    }

    /// What was recorded since the last call, oldest first.
    pub(crate) fn take(&self) -> Vec<Timing> {
        std::mem::take(&mut *self.kept.lock()).into()
    }

    /// Measures an operation for the histogram of this name, from here until what this gives is dropped.
    pub(crate) fn observe(&self, name: &'static str) -> Observed<'_> {
        Observed { timings: self, name, since: (self.clock)() }
    }

    /// Begins a phase that the caller does alone. It ends when this is dropped.
    pub(crate) fn begin(&self, phase: Phase) -> Timed<'_> {
        self.tasks(phase, 0)
    }

    /// Begins a phase of so many tasks, which are claimed one by one.
    pub(crate) fn tasks(&self, phase: Phase, count: usize) -> Timed<'_> {
        self.timed(Some(phase), count)
    }

    /// Tasks of something that is no phase.
    pub(crate) fn untimed(&self, count: usize) -> Timed<'_> {
        self.timed(None, count)
    }

    fn timed(&self, phase: Option<Phase>, count: usize) -> Timed<'_> {
        let records = phase.is_some() && self.records.load(Ordering::Relaxed);
        let spent =
            if records { (0..count).map(|_| AtomicU64::new(0)).collect() } else { [].into() };
        let since = phase.map_or(Duration::ZERO, |_| (self.clock)());
        Timed { timings: self, phase, since, records, count, next: AtomicUsize::new(0), spent }
    }
}

/// An operation that is measured.
pub(crate) struct Observed<'a> {
    timings: &'a Timings,
    name: &'static str,
    since: Duration,
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        let wall = (self.timings.clock)().saturating_sub(self.since);
        observe::operation(self.name, wall);
    }
}

/// A phase under way, and its tasks.
pub(crate) struct Timed<'a> {
    timings: &'a Timings,
    phase: Option<Phase>,
    since: Duration,
    records: bool,
    count: usize,
    next: AtomicUsize,
    /// Nanoseconds of each task, where they are recorded.
    spent: Box<[AtomicU64]>,
}

impl Timed<'_> {
    /// The next task that nobody has claimed.
    pub(crate) fn claim(&self) -> Option<usize> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        (at < self.count).then_some(at)
    }

    /// Runs tasks, one after the other, until all are claimed.
    pub(crate) fn each(&self, mut run: impl FnMut(usize)) {
        while let Some(at) = self.claim() {
            self.time(at, || run(at));
        }
    }

    /// Runs a part of a task.
    pub(crate) fn time<T>(&self, task: usize, run: impl FnOnce() -> T) -> T {
        let Some(spent) = self.spent.get(task) else { return run() };
        let since = (self.timings.clock)();
        let done = run();
        Counters::add(spent, nanos((self.timings.clock)().saturating_sub(since)));
        done
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let Some(phase) = self.phase else { return };
        let wall = (self.timings.clock)().saturating_sub(self.since);
        Counters::add(phase.sum(&self.timings.counters), nanos(wall));
        observe::phase(phase.name(), wall);
        if !self.records {
            return;
        }
        let spent = std::mem::take(&mut self.spent);
        let tasks = spent.into_iter().map(|spent| Duration::from_nanos(spent.into_inner()));
        let timing = Timing { phase, wall, tasks: tasks.collect() };
        let mut kept = self.timings.kept.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(timing);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that goes on by a microsecond with each look.
    fn timings() -> (Timings, Arc<Counters>) {
        let (looks, counters) = (AtomicU64::new(0), Arc::<Counters>::default());
        let clock = move || Duration::from_micros(looks.fetch_add(1, Ordering::Relaxed));
        (Timings::new(Box::new(clock), Arc::clone(&counters)), counters)
    }

    #[test]
    fn each_task_is_claimed_once_and_sums_count_without_a_record() {
        let (timings, counters) = timings();
        let mut seen = Vec::new();
        timings.tasks(Phase::Apply, 3).each(|at| seen.push(at));
        timings.untimed(2).each(|at| seen.push(at));
        assert_eq!(seen, [0, 1, 2, 0, 1]);
        assert_eq!(counters.apply_nanos.load(Ordering::Relaxed), 1000, "two looks");
        assert!(timings.take().is_empty());
    }

    #[test]
    fn what_is_recorded_has_its_tasks_and_is_bounded() {
        let (timings, counters) = timings();
        timings.record(true);
        {
            let phase = timings.tasks(Phase::Fold, 2);
            phase.time(1, || ());
            phase.time(0, || ());
            phase.time(1, || ());
        }
        let [fold] = &timings.take()[..] else { panic!("one phase") };
        let micros: Vec<u128> = fold.tasks.iter().map(Duration::as_micros).collect();
        assert_eq!((fold.phase, fold.wall.as_micros(), micros), (Phase::Fold, 7, vec![1, 2]));
        for _ in 0..KEPT {
            drop(timings.begin(Phase::Sort));
        }
        drop(timings.begin(Phase::Root));
        let kept = timings.take();
        assert_eq!((kept.len(), kept[KEPT - 1].phase), (KEPT, Phase::Root));
        assert!(kept.iter().all(|timing| timing.tasks.is_empty()));
        for phase in Phase::ALL {
            assert!(
                Phase::ALL.iter().all(|other| (other.name() == phase.name()) == (*other == phase))
            );
            drop(timings.begin(phase));
            assert!(phase.sum(&counters).load(Ordering::Relaxed) > 0, "{phase:?}");
        }
    }
}
