//! The time of a batch by phases: a clock for each phase of a finish and a commit.
//!
//! The sum of each phase is among the [`Metrics`](crate::Metrics): a phase reads the clock twice.
//!
//! Invariants: measured times decide nothing; no phase contains another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::metrics::Counters;
use crate::observe;
use crate::phase::Phase;

/// Gives the time.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The timers of an open database's phases.
pub(crate) struct Timings {
    clock: Clock,
    counters: Arc<Counters>,
}

impl Timings {
    pub(crate) fn new(clock: Clock, counters: Arc<Counters>) -> Self {
        Self { clock, counters }
    }

    /// Measures an operation for the histogram of this name until the result is dropped.
    pub(crate) fn begin_operation(&self, name: &'static str) -> OperationTimer<'_> {
        OperationTimer {
            timings: self,
            name,
            since: cfg!(feature = "metrics").then(|| (self.clock)()),
        }
    }

    /// Begins a phase of the calling thread alone. It ends when the result is dropped.
    pub(crate) fn begin_phase(&self, phase: Phase) -> PhaseTimer<'_> {
        self.begin_tasks(Some(phase), 0)
    }

    /// Begins a phase of `count` tasks, which are claimed one by one; without a phase, nothing is measured.
    pub(crate) fn begin_tasks(&self, phase: Option<Phase>, count: usize) -> PhaseTimer<'_> {
        let since = phase.map_or(Duration::ZERO, |_| (self.clock)());
        PhaseTimer { timings: self, phase, since, count, next: AtomicUsize::new(0) }
    }
}

/// An operation that is measured.
pub(crate) struct OperationTimer<'a> {
    timings: &'a Timings,
    name: &'static str,
    /// `None` where there are no histograms.
    since: Option<Duration>,
}

impl Drop for OperationTimer<'_> {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        let wall = (self.timings.clock)().saturating_sub(since);
        observe::operation(&self.timings.counters.origin, self.name, wall);
    }
}

/// A phase under way, and its tasks.
pub(crate) struct PhaseTimer<'a> {
    timings: &'a Timings,
    phase: Option<Phase>,
    since: Duration,
    count: usize,
    next: AtomicUsize,
}

impl PhaseTimer<'_> {
    /// Claims the next task.
    pub(crate) fn claim(&self) -> Option<usize> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        (at < self.count).then_some(at)
    }

    /// Runs tasks, one after the other, until all are claimed.
    pub(crate) fn run_tasks(&self, mut run: impl FnMut(usize)) {
        while let Some(at) = self.claim() {
            run(at);
        }
    }
}

impl Drop for PhaseTimer<'_> {
    fn drop(&mut self) {
        let Some(phase) = self.phase else { return };
        let wall = (self.timings.clock)().saturating_sub(self.since);
        let nanos = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&self.timings.counters.phase_nanos[phase as usize], nanos);
        observe::phase(&self.timings.counters.origin, phase.name(), wall);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A clock that advances by a microsecond with each read.
    fn timings() -> (Timings, Arc<Counters>) {
        let (looks, counters) = (AtomicU64::new(0), Arc::<Counters>::default());
        let clock = move || Duration::from_micros(looks.fetch_add(1, Ordering::Relaxed));
        (Timings::new(Box::new(clock), Arc::clone(&counters)), counters)
    }

    #[test]
    fn each_task_is_claimed_once_and_sums_count() {
        let (timings, counters) = timings();
        let mut seen = Vec::new();
        timings.begin_tasks(Some(Phase::Apply), 3).run_tasks(|at| seen.push(at));
        timings.begin_tasks(None, 2).run_tasks(|at| seen.push(at));
        assert_eq!(seen, [0, 1, 2, 0, 1]);
        assert_eq!(counters.snapshot().time_of(Phase::Apply).as_nanos(), 1000, "two looks");
    }

    #[test]
    fn each_phase_has_a_name_and_a_sum() {
        let (timings, counters) = timings();
        for phase in Phase::ALL {
            assert_eq!(phase.name(), format!("{phase:?}").to_lowercase());
            assert!(
                Phase::ALL.iter().all(|other| (other.name() == phase.name()) == (*other == phase))
            );
            drop(timings.begin_phase(phase));
            assert_eq!(counters.snapshot().time_of(phase).as_nanos(), 1000, "{phase:?}");
        }
    }
}
