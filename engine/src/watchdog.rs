//! The task that watches the others ([`crate::state::beats`]).
//!
//! The watchdog looks once a second while any task is at work, and sleeps otherwise: who begins to
//! work while it sleeps wakes it. It decides nothing: it logs which tasks make no progress, once each time.

use std::sync::Arc;
use std::time::Duration;

use pleach_io::Step;

use crate::state::State;
use crate::state::beats::{Beats, Task};

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_secs(1);

/// Which tasks the watchdog has named.
#[derive(Default)]
struct Named([bool; Task::ALL.len()]);

impl Named {
    /// Names the tasks that have stalled since the last look, and those that go on. Is any task at
    /// work?
    fn look(&mut self, beats: &Beats, now: Duration) -> bool {
        let mut busy = false;
        for (task, named) in Task::ALL.into_iter().zip(&mut self.0) {
            let at_work = beats.beat(task).at_work(now);
            busy |= at_work.is_some();
            let stalled = at_work.filter(|(_, time)| *time >= beats.limit());
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
pub(crate) struct Watchdog {
    db: Arc<State>,
    named: Named,
}

impl Watchdog {
    pub(crate) fn new(db: Arc<State>) -> Self {
        Self { db, named: Named::default() }
    }

    /// One look.
    pub(crate) fn step(&mut self) -> Step {
        let pace = &self.db.pace;
        if pace.is_closing() {
            return Step::Done;
        }
        let beats = pace.beats();
        // Before the look: who begins to work after it finds this and wakes the watchdog.
        beats.set_asleep(true);
        let busy = self.named.look(beats, pace.now());
        if busy {
            beats.set_asleep(false);
            return Step::IdleFor(LOOK.min(beats.limit() / 2));
        }
        Step::Idle
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use pleach_io::{Event, Notify};

    use super::*;
    use crate::state::beats::{ENDED, IDLE};

    const STALLED: Duration = Duration::from_secs(10);

    #[derive(Clone, Default)]
    struct Told(Arc<AtomicU64>);

    impl Notify for Told {
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
        let beats = Beats::new(Event::new(told.clone()), STALLED);
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
        assert_eq!(named.0, [true, false, false]);
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
        let (mut named, beats) =
            (Named::default(), Beats::new(Event::new(Told::default()), STALLED));
        beats.enter(Task::Checkpoint, "serialising", seconds(0));
        beats.enter(Task::Prefetch, "reading", seconds(0));
        beats.enter(Task::Prefetch, IDLE, seconds(1));
        beats.enter(Task::Flush, ENDED, seconds(1));
        for now in (0..100).step_by(9) {
            beats.heartbeat(Task::Checkpoint, seconds(now));
            named.look(&beats, seconds(now + 9));
            assert_eq!(named.0, [false; 3]);
        }
        assert!(named.look(&beats, seconds(200)));
        assert_eq!(named.0, [false, true, false]);
    }
}
