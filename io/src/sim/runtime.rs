//! [`SimRuntime`]: background tasks on the caller's thread, in an order drawn from a seed.
//!
//! Tasks run only inside [`Runtime::wait`], [`SimRuntime::step_some`] and the drop of a handle; in between, the
//! foreground runs alone. Of all runnable tasks the seed picks one and it takes one step. Time is virtual: it moves a
//! little per step, and jumps to the next timer when nothing is runnable.
//!
//! Re-entrancy: a step may itself wait (or be a whole foreground call); that steps the *other* tasks, not the running
//! ones. No lock of the runtime is held during a step, nor while `done` is called. A caller that waits while it holds a
//! lock of its own that a task takes stops for ever, since there is only this one thread.
//!
//! Deadlock: nothing runnable, no timer, and what is waited for has not happened. That panics and lists the tasks; so
//! does a `done` that is true although its event was never notified: on real threads the caller would sleep for ever.

use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::clock::SimClock;
use super::rng::Rng;
use crate::error::Result;
use crate::runtime::{Event, Executor, Notify, Runtime, Step, Task, TaskHandle};

/// What a step takes at least.
const STEP: Duration = Duration::from_micros(1);
/// Steps in one wait after which it counts as hanging.
const STEPS_LIMIT: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Ready,
    Idle,
    IdleUntil(Duration),
    /// Inside its step; `true` once its event was notified meanwhile.
    Running(bool),
}

struct TaskEntry {
    name: String,
    event: u64,
    mode: Mode,
    /// Absent while it runs.
    task: Option<Task>,
}

struct Tasks {
    rng: Rng,
    next: u64,
    /// Ended tasks are gone from here.
    entries: BTreeMap<u64, TaskEntry>,
    /// Notifications of each event so far.
    notified: BTreeMap<u64, u64>,
}

struct SimRuntimeInner {
    tasks: Mutex<Tasks>,
    random: Mutex<Rng>,
    clock: SimClock,
    workers: usize,
}

/// Single-threaded executor with a virtual clock. Clones are the same executor.
#[derive(Clone)]
pub struct SimRuntime(Arc<SimRuntimeInner>);

impl core::fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimRuntime").field("now", &self.0.clock.now()).finish_non_exhaustive()
    }
}

/// Event of a [`SimRuntime`].
struct SimEvent {
    shared: Arc<SimRuntimeInner>,
    id: u64,
}

impl Notify for SimEvent {
    fn notify(&self) {
        let mut tasks = self.shared.tasks.lock();
        *tasks.notified.entry(self.id).or_default() += 1;
        for entry in tasks.entries.values_mut().filter(|entry| entry.event == self.id) {
            entry.mode = match entry.mode {
                Mode::Running(_) => Mode::Running(true),
                _ => Mode::Ready,
            };
        }
    }
}

/// Handle of a task; dropping it steps the tasks until this one has ended.
struct SimHandle {
    runtime: SimRuntime,
    id: u64,
}

impl SimRuntime {
    /// An executor with a clock of its own and two workers.
    pub fn new(seed: u64) -> Self {
        Self::with_clock(seed, SimClock::default(), 2)
    }

    /// An executor on `clock`, usually that of a [`SimDisk`](super::SimDisk::clock), whose
    /// [`Runtime::fork_join`] has `workers` workers.
    pub fn with_clock(seed: u64, clock: SimClock, workers: usize) -> Self {
        let tasks = Tasks {
            rng: Rng::labelled(seed, 0x7a),
            next: 0,
            entries: BTreeMap::new(),
            notified: BTreeMap::new(),
        };
        let random = Mutex::new(Rng::labelled(seed, 0x7d));
        Self(Arc::new(SimRuntimeInner {
            tasks: Mutex::new(tasks),
            random,
            clock,
            workers: workers.max(1),
        }))
    }

    /// The clock.
    pub fn clock(&self) -> SimClock {
        self.0.clock.clone()
    }

    /// Lets background tasks take up to `count` steps between two foreground calls; gives the
    /// number taken. Time does not jump to timers.
    pub fn step_some(&self, count: usize) -> usize {
        (0..count).take_while(|_| self.step()).count()
    }

    /// Takes one step of a task that the seed picks; false when none is runnable.
    fn step(&self) -> bool {
        let now = self.0.clock.now();
        let picked = {
            let mut tasks = self.0.tasks.lock();
            let due = |entry: &TaskEntry| match entry.mode {
                Mode::Ready => true,
                Mode::IdleUntil(when) => when <= now,
                Mode::Idle | Mode::Running(_) => false,
            };
            let ready: Vec<u64> =
                tasks.entries.iter().filter(|(_, it)| due(it)).map(|(id, _)| *id).collect();
            if ready.is_empty() {
                return false;
            }
            let id = ready[tasks.rng.index(ready.len())];
            let late = tasks.rng.below(20);
            self.0.clock.advance(STEP + Duration::from_micros(late));
            tasks.entries.get_mut(&id).and_then(|entry| {
                entry.mode = Mode::Running(false);
                entry.task.take().map(|task| (id, task))
            })
        };
        let Some((id, mut task)) = picked else { return false };
        let ended = catch_unwind(AssertUnwindSafe(&mut task));
        let step = ended.as_ref().map_or(Step::Done, |step| *step);
        self.put_back(id, task, step);
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
        true
    }

    fn put_back(&self, id: u64, task: Task, step: Step) {
        let now = self.0.clock.now();
        let mut tasks = self.0.tasks.lock();
        if step == Step::Done {
            tasks.entries.remove(&id);
            // What the task owns may notify events as it goes.
            drop(tasks);
            drop(task);
            return;
        }
        if let Some(entry) = tasks.entries.get_mut(&id) {
            entry.task = Some(task);
            entry.mode = match (entry.mode, step) {
                (Mode::Running(true), _) | (_, Step::Continue) => Mode::Ready,
                (_, Step::IdleFor(time)) => Mode::IdleUntil(now.saturating_add(time)),
                _ => Mode::Idle,
            };
        }
    }

    /// Moves time to the next timer, but not beyond `limit`; false when there is nothing to wait for.
    fn jump(&self, limit: Option<Duration>) -> bool {
        let timers = self.0.tasks.lock();
        let next = timers.entries.values().filter_map(|entry| match entry.mode {
            Mode::IdleUntil(when) => Some(when),
            _ => None,
        });
        let Some(when) = next.chain(limit).min() else { return false };
        self.0.clock.advance_to(when);
        true
    }

    fn notified(&self, event: u64) -> u64 {
        self.0.tasks.lock().notified.get(&event).copied().unwrap_or(0)
    }

    /// Panics: nothing can go on.
    fn stuck(&self, what: &str) -> ! {
        let mut list = String::new();
        for (id, entry) in &self.0.tasks.lock().entries {
            let _ = write!(list, "\n  task {id} {:?}: {:?}", entry.name, entry.mode);
        }
        panic!("the simulation is stuck: {what}; tasks:{list}");
    }

    /// One step, or a jump in time; false when neither is possible.
    fn move_on(&self, limit: Option<Duration>) -> bool {
        self.step() || self.jump(limit)
    }
}

impl From<SimRuntime> for Executor {
    fn from(value: SimRuntime) -> Self {
        Arc::new(value)
    }
}

impl From<&SimRuntime> for Executor {
    fn from(value: &SimRuntime) -> Self {
        Arc::new(value.clone())
    }
}

impl Runtime for SimRuntime {
    fn now(&self) -> Duration {
        self.0.clock.now()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.now()
    }

    fn random(&self) -> u64 {
        self.0.random.lock().next()
    }

    fn event(&self) -> Event {
        let mut tasks = self.0.tasks.lock();
        tasks.next += 1;
        Event::new(SimEvent { shared: Arc::clone(&self.0), id: tasks.next })
    }

    fn spawn(&self, name: &str, event: &Event, task: Task) -> Result<TaskHandle> {
        let mut tasks = self.0.tasks.lock();
        tasks.next += 1;
        let id = tasks.next;
        let (name, event, task) = (name.to_owned(), event.downcast::<SimEvent>().id, Some(task));
        tasks.entries.insert(id, TaskEntry { name, event, mode: Mode::Ready, task });
        Ok(Box::new(SimHandle { runtime: self.clone(), id }))
    }

    fn wait(
        &self,
        event: &Event,
        timeout: Option<Duration>,
        done: &mut dyn FnMut() -> bool,
    ) -> bool {
        let event = event.downcast::<SimEvent>().id;
        let deadline = timeout.map(|timeout| self.now().saturating_add(timeout));
        // Sometimes the background is faster than the caller.
        let extra = {
            let mut tasks = self.0.tasks.lock();
            if tasks.rng.chance(1, 4) { tasks.rng.index(4) } else { 0 }
        };
        self.step_some(extra);
        let mut seen = self.notified(event);
        if done() {
            return true;
        }
        for _ in 0..STEPS_LIMIT {
            let now = self.notified(event);
            if now != seen {
                seen = now;
                if done() {
                    return true;
                }
                continue;
            }
            if deadline.is_some_and(|deadline| self.now() >= deadline) {
                return done();
            }
            if !self.move_on(deadline) {
                if done() {
                    self.stuck("what was waited for is true, but its event was not notified");
                }
                self.stuck("nothing is runnable and what was waited for has not happened");
            }
        }
        self.stuck("too many steps in one wait")
    }

    fn workers(&self) -> usize {
        self.0.workers
    }

    /// Nothing: a run depends on its seed alone.
    fn trim_memory(&self, _above: u64) -> Option<u64> {
        None
    }

    fn fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        assert!(count <= self.workers(), "{count} jobs for {} workers", self.workers());
        let mut order: Vec<usize> = (0..count).collect();
        self.0.tasks.lock().rng.shuffle(&mut order);
        let run = |index| catch_unwind(AssertUnwindSafe(|| job(index))).err();
        let panics: Vec<_> = order.into_iter().filter_map(run).collect();
        if let Some(first) = panics.into_iter().next() {
            resume_unwind(first);
        }
    }
}

impl Drop for SimHandle {
    /// A panicking thread, and the task itself, leave the task alone: it could not end.
    fn drop(&mut self) {
        let mode =
            |this: &Self| this.runtime.0.tasks.lock().entries.get(&this.id).map(|entry| entry.mode);
        for _ in 0..STEPS_LIMIT {
            match mode(self) {
                None | Some(Mode::Running(_)) => return,
                Some(_) if std::thread::panicking() => return,
                Some(_) => {}
            }
            if !self.runtime.move_on(None) {
                self.runtime.stuck("a dropped handle's task was never told to end");
            }
        }
        self.runtime.stuck("a dropped handle's task does not end");
    }
}
