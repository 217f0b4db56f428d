//! The one source of threads, time and randomness.
//!
//! Background work is written as step functions. Production runs each on a thread of its own that sleeps while idle;
//! the simulator runs them on the caller's thread in an order drawn from a seed.

use core::any::Any;
use core::time::Duration;
use std::sync::Arc;
use std::time::SystemTime;

use crate::error::Result;

/// When a step function wants its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do now.
    Continue,
    /// Nothing to do until the task's event is notified.
    Idle,
    /// Nothing to do until the event is notified or this time has passed.
    IdleFor(Duration),
    /// The task has ended; it is never stepped again.
    Done,
}

/// A background task: called repeatedly until it returns [`Step::Done`].
pub type Task = Box<dyn FnMut() -> Step + Send>;

/// The runtime's part of an event.
pub trait Notify: Any + Send + Sync {
    /// Wakes every waiter and the tasks spawned on this event.
    fn notify(&self);

    /// Like [`Self::notify`], not urgent: a busy waiter may be woken a millisecond later.
    fn notify_soon(&self) {
        self.notify();
    }
}

/// An event to wait for. Cloning gives the same event. Notifications are never lost: a waiter that checks its
/// condition, then waits, is woken by a notification that came in between.
#[derive(Clone)]
pub struct Event(Arc<dyn Notify>);

impl core::fmt::Debug for Event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}

impl Event {
    /// A handle of `event`.
    pub fn new(event: impl Notify) -> Self {
        Self(Arc::new(event))
    }

    /// Wakes every waiter and the tasks spawned on this event.
    pub fn notify(&self) {
        self.0.notify();
    }

    /// Like [`Self::notify`], not urgent and frequent: a task that has just taken a step may take the next one a
    /// millisecond later, for all notifications until then.
    pub fn notify_soon(&self) {
        self.0.notify_soon();
    }

    /// The runtime's part of the event.
    ///
    /// # Panics
    /// When another kind of runtime has made it.
    pub fn downcast<E: Notify>(&self) -> &E {
        let event: &dyn Any = &*self.0;
        event.downcast_ref().expect("a runtime is given only events that it has made")
    }
}

/// Handle of a spawned task; dropping it waits until the task has returned [`Step::Done`].
pub type TaskHandle = Box<dyn Send>;

/// A runtime that the database and its tasks share.
pub type Executor = Arc<dyn Runtime>;

/// Executor, clock and source of randomness.
pub trait Runtime: core::fmt::Debug + Send + Sync + 'static {
    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Duration;
    /// The time of the day of the system; it may go back.
    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }
    /// 64 random bits (database ids, nothing secret).
    fn random(&self) -> u64;
    /// A new event.
    fn event(&self) -> Event;
    /// Starts a background task that is stepped whenever `event` is notified.
    ///
    /// # Errors
    /// When the system gives no further thread; the task is dropped.
    fn spawn(&self, name: &str, event: &Event, task: Task) -> Result<TaskHandle>;
    /// Waits until `done` is true, which is called again after each notification of `event` and,
    /// with a timeout, when the timeout has passed. Returns the last answer of `done`.
    fn wait(
        &self,
        event: &Event,
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
    /// Like [`Runtime::fork_join`], but a single job runs on the calling thread: no worker is woken.
    fn inline_or_fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        if count <= 1 { job(0) } else { self.fork_join(count, job) }
    }
    /// Returns unused memory of the allocator to the system, if more than `above` bytes of the process are resident.
    /// Returns the bytes freed; `None` when nothing was done, because less is resident or there is no way to do it
    /// here.
    fn trim_memory(&self, above: u64) -> Option<u64>;
}
