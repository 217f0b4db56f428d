//! The stage of each background task, and since when. Status and metrics show a task without progress for too long.
//!
//! The stage changes with the work, not with each step: a task that hangs in one step and a task whose steps change
//! nothing look the same. Giving way to callers, waiting for room and having nothing to do are [`IDLE`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Stage of a task that has nothing to do, or gives way.
pub(crate) const IDLE: &str = "idle";
/// Stage of a task that will not be stepped again.
pub(crate) const ENDED: &str = "ended";

/// The tasks, in the order of [`Beats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Flush,
    Checkpoint,
    Prefetch,
}

impl Task {
    pub(crate) const ALL: [Self; 3] = [Self::Flush, Self::Checkpoint, Self::Prefetch];

    /// The name of the task's thread.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flush => "pleach-flush",
            Self::Checkpoint => "pleach-checkpoint",
            Self::Prefetch => "pleach-prefetch",
        }
    }
}

/// The stage of a background task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskState {
    /// Name of the task, and of its thread.
    pub name: &'static str,
    /// The stage; "idle" when there is nothing to do.
    pub stage: &'static str,
    /// Time in this stage, or since the last progress in it.
    pub since: Duration,
    /// Steps begun since the database was opened.
    pub steps: u64,
    /// True when the task has made no progress for 10 s.
    pub stalled: bool,
}

pub(crate) struct Beat {
    /// The stage, and when the task entered it or last made progress in it.
    at: Mutex<(&'static str, Duration)>,
    steps: AtomicU64,
}

impl Beat {
    /// The stage and the time in it, unless it is idle or ended.
    pub(crate) fn busy_stage(&self, now: Duration) -> Option<(&'static str, Duration)> {
        let (stage, since) = *self.at.lock();
        (stage != IDLE && stage != ENDED).then(|| (stage, now.saturating_sub(since)))
    }
}

/// The beats of all tasks.
pub(crate) struct Beats {
    each: [Beat; Task::ALL.len()],
    limit: Duration,
}

impl Beats {
    /// Beats of idle tasks. A task without progress for `limit` counts as stalled.
    pub(crate) fn new(limit: Duration) -> Self {
        let beat = |_| Beat { at: Mutex::new((IDLE, Duration::ZERO)), steps: AtomicU64::new(0) };
        Self { each: Task::ALL.map(beat), limit }
    }

    pub(crate) fn beat(&self, task: Task) -> &Beat {
        &self.each[task as usize]
    }

    /// Counts a step that a task begins.
    pub(crate) fn count_step(&self, task: Task) {
        self.beat(task).steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets a task's stage; nothing changes when it is the same. The log names a stage that took too long.
    pub(crate) fn enter_stage(&self, task: Task, stage: &'static str, now: Duration) {
        let beat = self.beat(task);
        let slow =
            beat.busy_stage(now).filter(|(before, time)| *before != stage && *time >= self.limit);
        let mut at = beat.at.lock();
        if at.0 != stage {
            *at = (stage, now);
        }
        drop(at);
        if let Some((stage, time)) = slow {
            tracing::error!(task = task.name(), stage, ?time, "a background task was stalled");
        }
    }

    /// Notes that a task has made progress in its stage.
    pub(crate) fn heartbeat(&self, task: Task, now: Duration) {
        self.beat(task).at.lock().1 = now;
    }

    /// The states of all tasks.
    pub(crate) fn list(&self, now: Duration) -> Vec<TaskState> {
        let state = |task: &Task| {
            let beat = self.beat(*task);
            let (stage, since) = *beat.at.lock();
            let stalled = beat.busy_stage(now).is_some_and(|(_, time)| time >= self.limit);
            let (name, steps) = (task.name(), beat.steps.load(Ordering::Relaxed));
            TaskState { name, stage, since: now.saturating_sub(since), steps, stalled }
        };
        Task::ALL.iter().map(state).collect()
    }

    /// Number of stalled tasks.
    pub(crate) fn stalled_count(&self, now: Duration) -> u64 {
        self.list(now).iter().filter(|task| task.stalled).count() as u64
    }

    /// A task's stage, and since when it is in it.
    pub(crate) fn stage(&self, task: Task) -> (&'static str, Duration) {
        *self.beat(task).at.lock()
    }

    /// Restores the stage that [`Self::stage`] returned.
    pub(crate) fn set_stage(&self, task: Task, stage: &'static str, since: Duration) {
        *self.beat(task).at.lock() = (stage, since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALLED: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_task_that_hangs_or_turns_round_and_round_is_stalled_after_10_seconds() {
        let beats = Beats::new(STALLED);
        beats.enter_stage(Task::Flush, "publishing", seconds(100));
        for now in 100..110 {
            // A step alone is no progress.
            beats.count_step(Task::Flush);
            beats.enter_stage(Task::Flush, "publishing", seconds(now));
            assert_eq!(beats.stalled_count(seconds(now)), 0);
        }
        assert_eq!(beats.stalled_count(seconds(110)), 1);
        let flush = &beats.list(seconds(112))[0];
        assert_eq!((flush.name, flush.stage), ("pleach-flush", "publishing"));
        assert_eq!((flush.since, flush.steps, flush.stalled), (seconds(12), 10, true));
        beats.enter_stage(Task::Flush, "gathering", seconds(113));
        assert_eq!(beats.stalled_count(seconds(113)), 0);
    }

    #[test]
    fn who_comes_further_or_has_nothing_to_do_is_not_stalled() {
        let beats = Beats::new(STALLED);
        beats.enter_stage(Task::Checkpoint, "serialising", seconds(0));
        beats.enter_stage(Task::Prefetch, "reading", seconds(0));
        beats.enter_stage(Task::Prefetch, IDLE, seconds(1));
        beats.enter_stage(Task::Flush, ENDED, seconds(1));
        for now in (0..100).step_by(9) {
            beats.heartbeat(Task::Checkpoint, seconds(now));
            assert_eq!(beats.stalled_count(seconds(now + 9)), 0);
        }
        let stalled = beats.list(seconds(200)).into_iter().filter(|task| task.stalled);
        assert_eq!(stalled.map(|task| task.name).collect::<Vec<_>>(), ["pleach-checkpoint"]);
    }
}
