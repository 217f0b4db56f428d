//! Background tasks say what they are at, and one of them watches the others.
//!
//! Each task has a [`Beat`]: its stage, and since when. The stage changes when the work does, not with
//! each step: a task that hangs in one step and one that steps round and round without getting on look
//! the same. Giving way to callers, waiting for room and having nothing to do are [`IDLE`].
//!
//! The watchdog looks once a second while any task is at work, and sleeps otherwise: who begins to
//! work while it sleeps wakes it. It decides nothing; it says who has not come further, once each time, and
//! keeps the notice in the folder true ([`crate::notice`]).

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pleach_core::Hasher;
use pleach_io::{Device, Event, Runtime, Step};

use crate::notice::Notice;
use crate::shared::Shared;

/// Stage of a task that has nothing to do, or lets others go first.
pub(crate) const IDLE: &str = "idle";
/// Stage of a task that will not be stepped again.
pub(crate) const ENDED: &str = "ended";

/// Time without progress after which a task is said to be stalled.
pub(crate) const STALLED: Duration = Duration::from_secs(10);
/// How often the watchdog looks.
const LOOK: Duration = Duration::from_secs(1);

/// The tasks, by their place in [`Beats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Flush,
    Checkpoint,
    Prefetch,
    Ahead,
}

impl Task {
    const ALL: [Self; 4] = [Self::Flush, Self::Checkpoint, Self::Prefetch, Self::Ahead];

    /// As its thread is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flush => "pleach-flush",
            Self::Checkpoint => "pleach-checkpoint",
            Self::Prefetch => "pleach-prefetch",
            Self::Ahead => "pleach-ahead",
        }
    }
}

/// What a background task is at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskState {
    /// Name of the task, and of its thread.
    pub name: &'static str,
    /// What it is at; "idle" when there is nothing to do.
    pub stage: &'static str,
    /// For how long, or since it last came further.
    pub since: Duration,
    /// Steps it has begun since the database was opened.
    pub steps: u64,
    /// Has it not come further for 10 s?
    pub stalled: bool,
}

struct Beat {
    /// The stage, and when the task entered it or last came further in it.
    at: Mutex<(&'static str, Duration)>,
    steps: AtomicU64,
}

impl Beat {
    /// The stage and for how long, unless it is one without work.
    fn at_work(&self, now: Duration) -> Option<(&'static str, Duration)> {
        let (stage, since) = *self.at.lock();
        (stage != IDLE && stage != ENDED).then(|| (stage, now.saturating_sub(since)))
    }
}

/// The beats of all tasks.
pub(crate) struct Beats<E> {
    each: [Beat; Task::ALL.len()],
    limit: Duration,
    /// Does the watchdog sleep until somebody begins to work?
    asleep: AtomicBool,
    pub(crate) event: E,
}

impl<E: Event> Beats<E> {
    /// Beats of idle tasks that are said to be stalled after `limit`.
    pub(crate) fn new(event: E, limit: Duration) -> Self {
        let beat = |_| Beat { at: Mutex::new((IDLE, Duration::ZERO)), steps: AtomicU64::new(0) };
        Self { each: Task::ALL.map(beat), limit, asleep: AtomicBool::new(true), event }
    }

    fn beat(&self, task: Task) -> &Beat {
        &self.each[task as usize]
    }

    /// A task begins a step.
    pub(crate) fn steps(&self, task: Task) {
        self.beat(task).steps.fetch_add(1, Ordering::Relaxed);
    }

    /// A task is at `stage` now; nothing changes when it was before.
    pub(crate) fn enter(&self, task: Task, stage: &'static str, now: Duration) {
        {
            let mut at = self.beat(task).at.lock();
            if at.0 == stage {
                return;
            }
            *at = (stage, now);
        }
        if stage != IDLE && stage != ENDED && self.asleep.swap(false, Ordering::SeqCst) {
            self.event.notify();
        }
    }

    /// A task has come further in its stage.
    pub(crate) fn comes_further(&self, task: Task, now: Duration) {
        self.beat(task).at.lock().1 = now;
    }

    /// What the tasks are at.
    pub(crate) fn list(&self, now: Duration) -> Vec<TaskState> {
        let state = |task: &Task| {
            let beat = self.beat(*task);
            let (stage, since) = *beat.at.lock();
            let stalled = beat.at_work(now).is_some_and(|(_, time)| time >= self.limit);
            let (name, steps) = (task.name(), beat.steps.load(Ordering::Relaxed));
            TaskState { name, stage, since: now.saturating_sub(since), steps, stalled }
        };
        Task::ALL.iter().map(state).collect()
    }

    /// Number of tasks that have not come further for too long.
    pub(crate) fn stalled(&self, now: Duration) -> u64 {
        self.list(now).iter().filter(|task| task.stalled).count() as u64
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// A task is at `stage` from now on.
    pub(crate) fn enters(&self, task: Task, stage: &'static str) {
        self.beats.enter(task, stage, self.runtime.now());
    }

    /// What is the matter, a line each: tasks that do not come further, pages that are set aside.
    fn matter(&self) -> String {
        let mut lines = String::new();
        for task in self.beats.list(self.runtime.now()).iter().filter(|task| task.stalled) {
            let _ = writeln!(lines, "the task {} does not come further: {}", task.name, task.stage);
        }
        for page in self.quarantine.list() {
            let _ =
                writeln!(lines, "page {} of {} is set aside: {}", page.page, page.file, page.error);
        }
        lines
    }

    /// Does something that is no part of the task's own work and may take long: the stage before
    /// goes on afterwards as if nothing had been.
    pub(crate) fn within<T>(&self, task: Task, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let before = *self.beats.beat(task).at.lock();
        self.enters(task, stage);
        let result = work();
        *self.beats.beat(task).at.lock() = before;
        result
    }
}

/// Which tasks the watchdog has named.
#[derive(Default)]
struct Named([bool; Task::ALL.len()]);

impl Named {
    /// Names the tasks that have stalled since the last look, and those that go on. Is any task at
    /// work?
    fn look<E: Event>(&mut self, beats: &Beats<E>, now: Duration) -> bool {
        let mut busy = false;
        for (task, named) in Task::ALL.into_iter().zip(&mut self.0) {
            let at_work = beats.beat(task).at_work(now);
            busy |= at_work.is_some();
            let stalled = at_work.filter(|(_, time)| *time >= beats.limit);
            let was = std::mem::replace(named, stalled.is_some());
            match stalled {
                Some((stage, time)) if !was => {
                    tracing::error!(
                        task = task.name(),
                        stage,
                        ?time,
                        "a background task does not come further"
                    );
                }
                None if was => tracing::info!(task = task.name(), "a background task goes on"),
                _ => {}
            }
        }
        busy
    }
}

/// The task that watches.
pub(crate) struct Watchdog<H: Hasher, D: Device, R: Runtime> {
    shared: Arc<Shared<H, D, R>>,
    named: Named,
    notice: Notice,
}

impl<H: Hasher, D: Device, R: Runtime> Watchdog<H, D, R> {
    pub(crate) fn new(shared: Arc<Shared<H, D, R>>) -> Self {
        let notice = Notice::new(&shared.device);
        Self { shared, named: Named::default(), notice }
    }

    /// One look.
    pub(crate) fn step(&mut self) -> Step {
        if self.shared.closing.load(Ordering::Acquire) {
            self.notice.tell(&self.shared.device, String::new());
            return Step::Done;
        }
        let beats = &self.shared.beats;
        // Before the look: who begins to work behind it finds this and wakes the watchdog.
        beats.asleep.store(true, Ordering::SeqCst);
        let busy = self.named.look(beats, self.shared.runtime.now());
        // Behind the events: on a device that hangs this may be the last that is heard.
        self.notice.tell(&self.shared.device, self.shared.matter());
        let beats = &self.shared.beats;
        if busy {
            beats.asleep.store(false, Ordering::SeqCst);
            return Step::IdleFor(LOOK.min(beats.limit / 2));
        }
        Step::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Told(Arc<AtomicU64>);

    impl Event for Told {
        fn notify(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_task_that_hangs_or_turns_round_and_round_is_named_after_10_seconds() {
        let (told, mut named) = (Told::default(), Named::default());
        let beats = Beats::new(told.clone(), STALLED);
        assert!(!named.look(&beats, seconds(100)), "all are idle");
        beats.enter(Task::Flush, "publishing", seconds(100));
        assert_eq!(told.0.load(Ordering::Relaxed), 1, "the sleeping watchdog is woken");
        for now in 100..110 {
            // It steps, and is where it was.
            beats.steps(Task::Flush);
            beats.enter(Task::Flush, "publishing", seconds(now));
            assert!(named.look(&beats, seconds(now)));
            assert!(!named.0[0] && beats.stalled(seconds(now)) == 0);
        }
        named.look(&beats, seconds(110));
        assert_eq!(named.0, [true, false, false, false]);
        assert_eq!(beats.stalled(seconds(110)), 1);
        let flush = &beats.list(seconds(112))[0];
        assert_eq!((flush.name, flush.stage), ("pleach-flush", "publishing"));
        assert_eq!((flush.since, flush.steps, flush.stalled), (seconds(12), 10, true));
        beats.enter(Task::Flush, "gathering", seconds(113));
        named.look(&beats, seconds(113));
        assert!(!named.0[0] && beats.stalled(seconds(113)) == 0);
        assert_eq!(told.0.load(Ordering::Relaxed), 1, "nobody wakes who is awake");
    }

    #[test]
    fn who_comes_further_or_has_nothing_to_do_is_not_named() {
        let (mut named, beats) = (Named::default(), Beats::new(Told::default(), STALLED));
        beats.enter(Task::Checkpoint, "serialising", seconds(0));
        beats.enter(Task::Prefetch, "reading", seconds(0));
        beats.enter(Task::Prefetch, IDLE, seconds(1));
        beats.enter(Task::Ahead, ENDED, seconds(1));
        for now in (0..100).step_by(9) {
            beats.comes_further(Task::Checkpoint, seconds(now));
            named.look(&beats, seconds(now + 9));
            assert_eq!(named.0, [false; 4]);
        }
        assert!(named.look(&beats, seconds(200)));
        assert_eq!(named.0, [false, true, false, false]);
    }
}
