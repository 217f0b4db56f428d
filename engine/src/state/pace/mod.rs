//! How background tasks and callers share the machine: what the tasks are doing, who gives way to whom,
//! who waits for what, and what cannot be done for the time being. When background work is due, and how much memory each
//! part has, is [`budget`]'s; free memory of the allocator goes back by [`trim_schedule`].

pub(crate) mod beats;
pub(crate) mod budget;
pub(crate) mod foreground;
pub(crate) mod trim_schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use pleach_io::{Event, Executor};

use self::beats::{Beats, Task, TaskState};
use self::foreground::Foreground;
use crate::error::Error;

/// The pace of one open database.
pub(crate) struct Pace {
    runtime: Executor,
    /// The event on which the flush and the checkpoint are stepped: a commit notifies it without haste.
    pub(crate) work: Event,
    /// Tells waiters that background work or a commit has come further.
    progress: Event,
    /// Callers that want the processors for themselves.
    pub(crate) foreground: Foreground,
    /// What the background tasks are at.
    pub(crate) beats: Beats,
    closing: AtomicBool,
    paused: AtomicBool,
    /// Callers that want pages flushed however few commits have changed them.
    draining: AtomicU64,
    /// The last flush found no room.
    is_flush_full: AtomicBool,
    /// The last checkpoint found no room.
    is_checkpoint_full: AtomicBool,
    /// The last run of the history found no room.
    pub(crate) is_history_full: AtomicBool,
    /// The last commit that put something found too little room.
    pub(crate) is_room_short: AtomicBool,
    /// As of this commit no changes are left that the flush could write, and why; nothing has failed that poisons.
    flush_stuck: Mutex<Option<(u64, Error)>>,
    /// Why no checkpoint can be made.
    checkpoint_stuck: Mutex<Option<Error>>,
}

impl Pace {
    /// The pace of tasks that are said to be stalled after `stall_after` without progress.
    pub(crate) fn new(runtime: Executor, stall_after: Duration) -> Arc<Self> {
        Arc::new(Self {
            work: runtime.event(),
            progress: runtime.event(),
            beats: Beats::new(stall_after),
            runtime,
            foreground: Foreground::default(),
            closing: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            draining: AtomicU64::new(0),
            is_flush_full: AtomicBool::new(false),
            is_checkpoint_full: AtomicBool::new(false),
            is_history_full: AtomicBool::new(false),
            is_room_short: AtomicBool::new(false),
            flush_stuck: Mutex::default(),
            checkpoint_stuck: Mutex::default(),
        })
    }

    /// Time since an arbitrary start.
    pub(crate) fn now(&self) -> Duration {
        self.runtime.now()
    }

    /// Seconds since 1970, as the system says.
    pub(crate) fn unix_time(&self) -> Option<u64> {
        let since = self.runtime.system_time().duration_since(SystemTime::UNIX_EPOCH);
        since.ok().map(|since| since.as_secs())
    }

    /// Wakes the flush and the checkpoint.
    pub(crate) fn wake(&self) {
        self.work.notify();
    }

    /// Something has come further: whoever waits looks again.
    pub(crate) fn notify(&self) {
        self.progress.notify();
    }

    /// Waits until `done`, which is asked again whenever something has come further, and when the time
    /// is over.
    pub(crate) fn wait(&self, timeout: Option<Duration>, done: &mut dyn FnMut() -> bool) -> bool {
        self.runtime.wait(&self.progress, timeout, done)
    }

    /// The database is being closed: tasks come to their end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Lets all tasks come to their end.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.paused.store(false, Ordering::Release);
        self.wake();
    }

    /// Does the caller hold background work back?
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::Release);
    }

    pub(crate) fn resume(&self) {
        self.paused.store(false, Ordering::Release);
        self.wake();
    }

    /// Does anybody want all that pends flushed?
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire) > 0
    }

    /// All that pends is to be flushed while this lives. What was said of earlier attempts no longer
    /// holds.
    pub(crate) fn begin_drain(&self) -> DrainGuard<'_> {
        self.set_flush_full(false);
        self.set_checkpoint_full(false);
        self.clear_flush_stuck();
        self.draining.fetch_add(1, Ordering::AcqRel);
        self.wake();
        DrainGuard(&self.draining)
    }

    /// Did the last flush find no room?
    pub(crate) fn is_flush_full(&self) -> bool {
        self.is_flush_full.load(Ordering::Acquire)
    }

    pub(crate) fn set_flush_full(&self, full: bool) {
        self.is_flush_full.store(full, Ordering::Release);
    }

    /// Did the last checkpoint find no room?
    pub(crate) fn is_checkpoint_full(&self) -> bool {
        self.is_checkpoint_full.load(Ordering::Acquire)
    }

    pub(crate) fn set_checkpoint_full(&self, full: bool) {
        self.is_checkpoint_full.store(full, Ordering::Release);
    }

    /// The flush has nothing left that it could write of what pended at commit `published`.
    pub(crate) fn set_flush_stuck(&self, published: u64, error: Error) {
        *self.flush_stuck.lock() = Some((published, error));
    }

    /// The flush may be able to go on.
    pub(crate) fn clear_flush_stuck(&self) {
        *self.flush_stuck.lock() = None;
    }

    /// Why nothing of what pends at this commit can be flushed, if that is so.
    pub(crate) fn flush_error(&self, published: u64) -> Option<Error> {
        let flush = self.flush_stuck.lock();
        flush.as_ref().filter(|(at, _)| *at == published).map(|(_, error)| error.clone())
    }

    /// Why no checkpoint can be made, or that one can.
    pub(crate) fn set_checkpoint_error(&self, error: Option<Error>) {
        *self.checkpoint_stuck.lock() = error;
    }

    /// Why no checkpoint can be made.
    pub(crate) fn checkpoint_error(&self) -> Option<Error> {
        self.checkpoint_stuck.lock().clone()
    }

    /// A task is at `stage` from now on.
    pub(crate) fn enter_stage(&self, task: Task, stage: &'static str) {
        self.beats.enter_stage(task, stage, self.now());
    }

    /// A task has come further in its stage.
    pub(crate) fn heartbeat(&self, task: Task) {
        self.beats.heartbeat(task, self.now());
    }

    /// Does something that is no part of the task's own work and may take long: the stage before
    /// goes on afterwards as if nothing had been.
    pub(crate) fn run_as_stage<T>(
        &self,
        task: Task,
        stage: &'static str,
        work: impl FnOnce() -> T,
    ) -> T {
        let before = self.beats.stage(task);
        self.enter_stage(task, stage);
        let result = work();
        self.beats.set_stage(task, before);
        result
    }

    /// The background tasks, as they are now.
    pub(crate) fn tasks(&self) -> Vec<TaskState> {
        self.beats.list(self.now())
    }
}

/// See [`Pace::begin_drain`].
pub(crate) struct DrainGuard<'a>(&'a AtomicU64);

impl Drop for DrainGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
