//! Gives work that callers wait for precedence over background work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The finishes and publications that run.
#[derive(Default)]
pub(crate) struct Foreground {
    finishing: AtomicUsize,
    publishing: AtomicUsize,
}

impl Foreground {
    /// Counts a running finish while the guard lives.
    pub(crate) fn begin_finish(&self) -> ForegroundGuard<'_> {
        ForegroundGuard::of(&self.finishing)
    }

    /// Counts a publication while the guard lives.
    pub(crate) fn begin_publish(&self) -> ForegroundGuard<'_> {
        ForegroundGuard::of(&self.publishing)
    }

    /// True while a finish runs.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Relaxed) > 0
    }

    /// True while a finish or a publication runs.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_finishing() || self.publishing.load(Ordering::Relaxed) > 0
    }
}

/// See [`Foreground`].
pub(crate) struct ForegroundGuard<'a>(&'a AtomicUsize);

impl<'a> ForegroundGuard<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for ForegroundGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A background task's patience, which has an end: otherwise changes would pile up behind sessions that finish one
/// after the other, until commits had to wait.
#[derive(Default)]
pub(crate) struct Patience {
    since: Option<Duration>,
}

impl Patience {
    /// How long a task waits between two looks.
    pub(crate) const LOOK: Duration = Duration::from_millis(1);
    /// The longest time that it waits before its next step.
    const LONGEST: Duration = Duration::from_millis(250);

    /// True when the task should wait now.
    pub(crate) fn should_wait(&mut self, foreground: &Foreground, now: Duration) -> bool {
        if !foreground.is_busy() {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let waits = now.saturating_sub(since) < Self::LONGEST;
        if !waits {
            self.since = None;
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_gives_way_while_somebody_waits_and_never_for_ever() {
        let (foreground, mut task) = (Foreground::default(), Patience::default());
        let mut now = Duration::ZERO;
        assert!(!task.should_wait(&foreground, now));
        let (one, two) = (foreground.begin_finish(), foreground.begin_publish());
        drop(one);
        assert!(!foreground.is_finishing());
        let mut steps = 0;
        for _ in 0..2502 {
            steps += u32::from(!task.should_wait(&foreground, now));
            now += Patience::LOOK;
        }
        assert_eq!(steps, 9, "one in 251 looks");
        drop(two);
        assert!(!task.should_wait(&foreground, now));
    }
}
