//! How background tasks and callers share the machine: the stages of tasks, who gives way to whom and who waits for
//! what, and what cannot be done for now. [`budget`] decides when background work is due and how much memory each part
//! has; [`trim_schedule`] decides when free memory goes back to the system.

pub(crate) mod beats;
pub(crate) mod budget;
pub(crate) mod foreground;
pub(crate) mod trim_schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use pleach_beatree::pages::PageWaiters;
use pleach_io::{Event, Executor};

use self::beats::{Beats, Task, TaskState};
use self::foreground::Foreground;
use crate::error::Error;

/// The pace of one open database.
pub(crate) struct Pace {
    runtime: Executor,
    /// The event on which the flush and the checkpoint are stepped: a commit notifies it without haste.
    pub(crate) work: Event,
    /// Notified when background work or a commit has made progress.
    progress: Event,
    /// Finishes and publications, which have precedence.
    pub(crate) foreground: Foreground,
    /// The stages of the background tasks.
    pub(crate) beats: Beats,
    closing: Flag,
    paused: Flag,
    /// Callers that wait until all buffered changes are flushed, however few commits have changed a page.
    draining: AtomicU64,
    /// True when the last flush found no room.
    pub(crate) is_flush_full: Flag,
    /// True when the last checkpoint found no room.
    pub(crate) is_checkpoint_full: Flag,
    /// True when the last run of the history found no room.
    pub(crate) is_history_full: Flag,
    /// True when the last commit that put something found too little room.
    pub(crate) is_room_short: Flag,
    /// The commit as of which the flush can write no buffered change, and why. Errors that poison are not kept here.
    flush_stuck: Mutex<Option<(u64, Error)>>,
    /// Why no checkpoint can be made.
    checkpoint_stuck: Mutex<Option<Error>>,
}

impl Pace {
    /// A pace whose tasks count as stalled after `stall_after` without progress.
    pub(crate) fn new(runtime: Executor, stall_after: Duration) -> Arc<Self> {
        Arc::new(Self {
            work: runtime.event(),
            progress: runtime.event(),
            beats: Beats::new(stall_after),
            runtime,
            foreground: Foreground::default(),
            closing: Flag::default(),
            paused: Flag::default(),
            draining: AtomicU64::new(0),
            is_flush_full: Flag::default(),
            is_checkpoint_full: Flag::default(),
            is_history_full: Flag::default(),
            is_room_short: Flag::default(),
            flush_stuck: Mutex::default(),
            checkpoint_stuck: Mutex::default(),
        })
    }

    /// Time since an arbitrary start.
    pub(crate) fn now(&self) -> Duration {
        self.runtime.now()
    }

    /// Seconds since 1970 by the system's clock.
    pub(crate) fn unix_time(&self) -> Option<u64> {
        let since = self.runtime.system_time().duration_since(SystemTime::UNIX_EPOCH);
        since.ok().map(|since| since.as_secs())
    }

    /// Wakes the flush and the checkpoint.
    pub(crate) fn wake(&self) {
        self.work.notify();
    }

    /// Wakes all waiters, which check their conditions again.
    pub(crate) fn notify(&self) {
        self.progress.notify();
    }

    /// Waits until `done` is true, which is called after each notification, or the timeout. Returns its last result.
    pub(crate) fn wait(&self, timeout: Option<Duration>, done: &mut dyn FnMut() -> bool) -> bool {
        self.runtime.wait(&self.progress, timeout, done)
    }

    /// True while the database is being closed: tasks end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Makes all tasks end.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.paused.set(false);
        self.wake();
    }

    /// True while the caller has paused background work.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(crate) fn pause(&self) {
        self.paused.set(true);
    }

    pub(crate) fn resume(&self) {
        self.paused.set(false);
        self.wake();
    }

    /// True while somebody waits until all buffered changes are flushed.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire) > 0
    }

    /// Makes the flush write all buffered changes while the guard lives. Errors of earlier attempts are forgotten.
    pub(crate) fn begin_drain(&self) -> DrainGuard<'_> {
        self.is_flush_full.set(false);
        self.is_checkpoint_full.set(false);
        self.clear_flush_stuck();
        self.draining.fetch_add(1, Ordering::AcqRel);
        self.wake();
        DrainGuard(&self.draining)
    }

    /// Records that the flush can write none of the changes that were buffered at commit `published`, and why.
    pub(crate) fn set_flush_stuck(&self, published: u64, error: Error) {
        *self.flush_stuck.lock() = Some((published, error));
    }

    /// Records that the flush may be able to go on.
    pub(crate) fn clear_flush_stuck(&self) {
        *self.flush_stuck.lock() = None;
    }

    /// Why no change buffered at this commit can be flushed, if that is so.
    pub(crate) fn flush_error(&self, published: u64) -> Option<Error> {
        let flush = self.flush_stuck.lock();
        flush.as_ref().filter(|(at, _)| *at == published).map(|(_, error)| error.clone())
    }

    /// Sets why no checkpoint can be made; `None` when one can.
    pub(crate) fn set_checkpoint_error(&self, error: Option<Error>) {
        *self.checkpoint_stuck.lock() = error;
    }

    /// Why no checkpoint can be made.
    pub(crate) fn checkpoint_error(&self) -> Option<Error> {
        self.checkpoint_stuck.lock().clone()
    }

    /// Sets a task's stage.
    pub(crate) fn enter_stage(&self, task: Task, stage: &'static str) {
        self.beats.enter_stage(task, stage, self.now());
    }

    /// Notes that a task has made progress in its stage.
    pub(crate) fn heartbeat(&self, task: Task) {
        self.beats.heartbeat(task, self.now());
    }

    /// Runs work that may take long and is not the task's own as a stage, then restores the stage before, with its
    /// time.
    pub(crate) fn run_as_stage<T>(
        &self,
        task: Task,
        stage: &'static str,
        work: impl FnOnce() -> T,
    ) -> T {
        let (before, since) = self.beats.stage(task);
        self.enter_stage(task, stage);
        let result = work();
        self.beats.set_stage(task, before, since);
        result
    }

    /// The states of the background tasks.
    pub(crate) fn tasks(&self) -> Vec<TaskState> {
        self.beats.list(self.now())
    }
}

impl PageWaiters for Pace {
    fn page_released(&self) {
        self.clear_flush_stuck();
        // The checkpoint may be waiting for the nodes of this page, or for nodes folded from it.
        self.set_checkpoint_error(None);
        self.wake();
    }
}

/// A condition that one thread sets and others see.
#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, holds: bool) {
        self.0.store(holds, Ordering::Release);
    }
}

/// See [`Pace::begin_drain`].
pub(crate) struct DrainGuard<'a>(&'a AtomicU64);

impl Drop for DrainGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
