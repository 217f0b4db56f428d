//! The production runtime: named threads that sleep while there is nothing to do.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! use pleach_io::{Runtime, Step, Threads};
//!
//! let threads = Threads::new(2)?;
//! let (asked, answered) = (threads.event(), threads.event());
//! let count = Arc::new(AtomicU32::new(0));
//! let task = {
//!     let (count, answered) = (count.clone(), answered.clone());
//!     Box::new(move || {
//!         count.fetch_add(1, Ordering::Relaxed);
//!         answered.notify();
//!         Step::Done
//!     })
//! };
//! let handle = threads.start("counter", &asked, task)?;
//! threads.wait(&answered, None, &mut || count.load(Ordering::Relaxed) == 1);
//! handle.join()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants:
//! * an event's number only grows: whoever reads it, then checks a condition, then sleeps until the
//!   number changes, cannot miss a notification in between;
//! * `fork_join`'s index `i` runs on pool thread `i` and on no other, except inside a job, where
//!   all indices run on the calling thread (a worker that waited for workers could wait for ever);
//! * a panic in a task ends that task, is logged through `tracing::error!` and reported by
//!   [`ThreadTask::join`]; nobody waits for the task in vain;
//! * threads that sleep are in no table of the process: a child that is forked meanwhile would find threads there that it
//!   does not have, which is how `parking_lot` keeps those that sleep. So the locks of this module are the standard
//!   library's.

mod memory;
mod sleep;
mod workers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Result;
use crate::process::{ProcessBound, ProcessTag};
use crate::runtime::{Event, Executor, Notify, Runtime, Step, Task, TaskHandle};

pub(crate) use sleep::no_thread;
use sleep::{lock, sleep};
use workers::Workers;

/// Threads, clock and randomness of the operating system. Cloning gives another handle.
#[derive(Clone)]
pub struct Threads(Arc<ThreadsInner>);

impl core::fmt::Debug for Threads {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Threads").field("workers", &self.workers()).finish_non_exhaustive()
    }
}

struct ThreadsInner {
    start: Instant,
    workers: ProcessBound<Workers>,
}

impl Threads {
    /// A runtime with `workers` (at least 1) threads for [`Runtime::fork_join`], started now.
    pub fn new(workers: usize) -> Result<Self> {
        let workers = ProcessBound::new(Workers::start(workers.max(1))?);
        Ok(Self(Arc::new(ThreadsInner { start: Instant::now(), workers })))
    }

    /// Starts a background task as [`Runtime::spawn`] does, with a handle that says how it ended.
    ///
    /// # Errors
    /// When the system gives no further thread; the task is dropped.
    pub fn start(&self, name: &str, event: &Event, mut task: Task) -> Result<ThreadTask> {
        let panicked = Arc::new(AtomicBool::new(false));
        let (event, flag, label) = (event.clone(), panicked.clone(), name.to_owned());
        let body = move || {
            let result =
                catch_unwind(AssertUnwindSafe(|| run(&label, event.downcast(), &mut task)));
            // What the task captured may panic on being dropped, too.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
            if result.is_err() || dropped.is_err() {
                flag.store(true, Ordering::Release);
                tracing::error!(task = label, "a background task panicked");
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = thread.map_err(|error| no_thread(name, &error))?;
        Ok(ThreadTask { thread: Some(thread), home: ProcessTag::current(), panicked })
    }
}

/// How long a task that has nothing to do is not woken by what is not urgent. A database that commits every few
/// microseconds wakes its tasks a thousand times a second, not once a commit.
const REST: Duration = Duration::from_millis(1);

/// An event: a number that grows, and sleepers.
#[derive(Clone, Debug, Default)]
struct ThreadEvent(Arc<EventInner>);

#[derive(Debug, Default)]
struct EventInner {
    state: Mutex<EventState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EventState {
    /// Notifications so far.
    number: u64,
    /// Urgent notifications among these.
    urgent: u64,
    /// Threads that sleep until the next notification: without one a notification is no system call.
    sleepers: usize,
    /// Threads that sleep until the next urgent one.
    resting: usize,
}

impl ThreadEvent {
    fn number(&self) -> u64 {
        lock(&self.0.state).number
    }

    /// Sleeps until the number is not `seen`. False when `deadline` came first.
    fn sleep(&self, seen: u64, deadline: Option<Instant>) -> bool {
        self.sleep_while(|state| state.number == seen, |state| &mut state.sleepers, deadline)
    }

    /// The numbers of notifications and of urgent ones.
    fn numbers(&self) -> (u64, u64) {
        let state = lock(&self.0.state);
        (state.number, state.urgent)
    }

    /// As [`Self::sleep`], after a rest, which only what is urgent ends.
    fn sleep_rested(&self, seen: u64, urgent: u64, deadline: Option<Instant>) {
        let rested = Instant::now() + REST;
        let rested = deadline.map_or(rested, |deadline| deadline.min(rested));
        if !self.sleep_while(
            |state| state.urgent == urgent,
            |state| &mut state.resting,
            Some(rested),
        ) {
            self.sleep(seen, deadline);
        }
    }

    /// Sleeps while that is so, counted as the second one says. False when `deadline` came first.
    fn sleep_while(
        &self,
        goes_on: impl Fn(&EventState) -> bool,
        counted: impl Fn(&mut EventState) -> &mut usize,
        deadline: Option<Instant>,
    ) -> bool {
        let mut state = lock(&self.0.state);
        while goes_on(&state) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            *counted(&mut state) += 1;
            state = match left {
                None => sleep(&self.0.changed, state),
                Some(left) => {
                    let slept = self.0.changed.wait_timeout(state, left);
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            *counted(&mut state) -= 1;
        }
        true
    }
}

impl Notify for ThreadEvent {
    fn notify(&self) {
        let mut state = lock(&self.0.state);
        state.number += 1;
        state.urgent += 1;
        let asleep = state.sleepers + state.resting > 0;
        drop(state);
        if asleep {
            self.0.changed.notify_all();
        }
    }

    fn notify_soon(&self) {
        let mut state = lock(&self.0.state);
        state.number += 1;
        let asleep = state.sleepers > 0;
        drop(state);
        if asleep {
            self.0.changed.notify_all();
        }
    }
}

/// A spawned task. Dropping it waits for the task's end; in the task itself it does not.
#[derive(Debug)]
pub struct ThreadTask {
    thread: Option<JoinHandle<()>>,
    home: ProcessTag,
    panicked: Arc<AtomicBool>,
}

/// A task that ended by a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a background task panicked")]
pub struct TaskPanicked;

impl ThreadTask {
    /// Waits for the task's end.
    pub fn join(mut self) -> std::result::Result<(), TaskPanicked> {
        self.wait();
        if self.panicked.load(Ordering::Acquire) { Err(TaskPanicked) } else { Ok(()) }
    }

    /// True when the task has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn wait(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.home.is_current() {
            // A child that was forked has no such thread, and must not let go of it, either.
            std::mem::forget(thread);
        } else if thread.thread().id() != std::thread::current().id() {
            // Panics of the task are caught inside.
            let _ = thread.join();
        }
    }
}

impl Drop for ThreadTask {
    fn drop(&mut self) {
        self.wait();
    }
}

fn run(name: &str, event: &ThreadEvent, task: &mut Task) {
    loop {
        let (seen, urgent) = event.numbers();
        match task() {
            Step::Continue => {}
            Step::Idle => event.sleep_rested(seen, urgent, None),
            Step::IdleFor(time) => event.sleep_rested(seen, urgent, deadline(Some(time))),
            Step::Done => break,
        }
    }
    tracing::trace!(name, "task ended");
}

/// The end of a timeout; one beyond the clock's range never ends.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|time| Instant::now().checked_add(time))
}

impl From<Threads> for Executor {
    fn from(value: Threads) -> Self {
        Arc::new(value)
    }
}

impl Runtime for Threads {
    fn now(&self) -> Duration {
        self.0.start.elapsed()
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        loop {
            match getrandom(&mut bytes, GetRandomFlags::empty()) {
                Ok(8) => return u64::from_ne_bytes(bytes),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return keyed_random(),
            }
        }
    }

    fn event(&self) -> Event {
        Event::new(ThreadEvent::default())
    }

    fn spawn(&self, name: &str, event: &Event, task: Task) -> Result<TaskHandle> {
        Ok(Box::new(self.start(name, event, task)?))
    }

    fn wait(
        &self,
        event: &Event,
        timeout: Option<Duration>,
        done: &mut dyn FnMut() -> bool,
    ) -> bool {
        let (deadline, event) = (deadline(timeout), event.downcast::<ThreadEvent>());
        loop {
            let seen = event.number();
            if done() {
                return true;
            }
            if !event.sleep(seen, deadline) {
                return done();
            }
        }
    }

    fn workers(&self) -> usize {
        self.0.workers.count()
    }

    /// # Panics
    /// Also when `count` is larger than [`Runtime::workers`].
    fn fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.0.workers.process().is_current() {
            self.0.workers.fork_join(count, job);
        } else {
            // A caller's code has forked inside of an operation, which goes on here without workers.
            workers::inline(count, job);
        }
    }

    fn trim_memory(&self, above: u64) -> Option<u64> {
        memory::trim(above)
    }
}

/// Randomness where the system call is forbidden: the standard library has its own ways to seed its hash maps.
fn keyed_random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
