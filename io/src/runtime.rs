//! The one source of threads, time and randomness.
//!
//! Background work is written as step functions. Production runs each on a thread of its own
//! that sleeps while idle; the simulator runs them on the caller's thread in an order drawn from
//! a seed.

use core::time::Duration;

use crate::error::Result;

/// When a step function wants its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do now.
    Again,
    /// Nothing to do until the task's event is notified.
    Idle,
    /// Nothing to do until the event is notified or this time has passed.
    IdleFor(Duration),
    /// The task has ended; it is never stepped again.
    Done,
}

/// A background task: called repeatedly until it returns [`Step::Done`].
pub type Task = Box<dyn FnMut() -> Step + Send>;

/// Something to wait for. Cloning gives the same event.
///
/// Notifications are never lost: a waiter that checks its condition, then waits, is woken by a
/// notification that came in between.
pub trait Event: Clone + Send + Sync + 'static {
    /// Wakes every waiter and the tasks spawned on this event.
    fn notify(&self);
}

/// Executor, clock and source of randomness.
pub trait Runtime: Clone + Send + Sync + 'static {
    /// Its kind of event.
    type Event: Event;
    /// Handle of a spawned task; dropping it waits until the task has returned [`Step::Done`].
    type Handle: Send + 'static;

    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Duration;
    /// 64 random bits (database ids, nothing secret).
    fn random(&self) -> u64;
    /// A new event.
    fn event(&self) -> Self::Event;
    /// Starts a background task that is stepped whenever `event` is notified.
    ///
    /// # Errors
    /// When the system gives no further thread; the task is dropped.
    fn spawn(&self, name: &str, event: &Self::Event, task: Task) -> Result<Self::Handle>;
    /// Waits until `done` is true, which is called again after each notification of `event` and,
    /// with a timeout, when the timeout has passed. Returns the last answer of `done`.
    fn wait(
        &self,
        event: &Self::Event,
        timeout: Option<Duration>,
        done: &mut dyn FnMut() -> bool,
    ) -> bool;
    /// Number of workers that [`Runtime::fork_join`] uses at most.
    fn workers(&self) -> usize;
    /// Runs `job(0)` to `job(count - 1)`, each on a worker of its own where there are threads, and
    /// returns when all have returned. Index `i` always runs on the same thread, which is named and
    /// sleeps in between, so a worker may own a ring. `count` is at most [`Runtime::workers`].
    ///
    /// # Panics
    /// When a job panicked: the panic continues here, after all other jobs have returned.
    fn fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync));
    /// Gives memory back to the system that the allocator keeps and nobody uses, if more than `above`
    /// bytes of the process are resident. Gives the bytes by which that helped; `None` when nothing was
    /// done, because less is resident, or because there is no way to do it here.
    fn trim_memory(&self, above: u64) -> Option<u64>;
}
