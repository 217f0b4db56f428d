//! Persistent workers for `fork_join`.
//!
//! Each worker has a list of jobs and sleeps on it. A call puts one entry on each of the first
//! `count` lists and sleeps until all have run.
//!
//! Invariants:
//! * entries of one call are put on all lists under one lock: two calls are in the same order on
//!   every list, so jobs of one call may wait for each other;
//! * a call returns, by value or by panic, only after its last job has returned: that is what
//!   makes lending the closure to other threads sound.
#![expect(unsafe_code, reason = "a borrowed closure is lent to threads that outlive the borrow")]

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use super::sleep::{lock, no_thread, sleep};
use crate::error::Result;

type Panic = Box<dyn Any + Send>;

thread_local! {
    /// True in threads that are workers of a pool.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

pub(super) struct Workers {
    lists: Vec<Arc<WorkList>>,
    threads: Vec<JoinHandle<()>>,
    /// Held while the entries of one call are put on the lists.
    order: Mutex<()>,
}

/// What one worker has to do.
#[derive(Default)]
struct WorkList {
    state: Mutex<WorkListState>,
    filled: Condvar,
}

#[derive(Default)]
struct WorkListState {
    entries: VecDeque<WorkItem>,
    closed: bool,
}

/// One index of one call.
struct WorkItem {
    job: WorkClosure,
    call: Arc<Call>,
}

/// A closure lent for the duration of a call.
#[derive(Clone, Copy)]
struct WorkClosure(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, so a reference to it may be used from any thread; the pointer is
// only made into one while the call that lent it has not returned.
unsafe impl Send for WorkClosure {}

/// A call that waits for its jobs.
struct Call {
    state: Mutex<CallState>,
    ended: Condvar,
}

struct CallState {
    running: usize,
    panic: Option<Panic>,
}

impl Workers {
    pub(super) fn start(count: usize) -> Result<Self> {
        let mut workers = Self { lists: Vec::new(), threads: Vec::new(), order: Mutex::new(()) };
        for index in 0..count {
            let list = Arc::new(WorkList::default());
            let own = list.clone();
            let thread = std::thread::Builder::new()
                .name(format!("pleach-work-{index}"))
                .spawn(move || serve(&own, index))
                .map_err(|error| no_thread("workers", &error))?;
            workers.lists.push(list);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub(super) fn count(&self) -> usize {
        self.lists.len()
    }

    pub(super) fn fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        assert!(count <= self.count(), "fork_join of {count} on {} workers", self.count());
        if IS_WORKER.get() {
            return inline(count, job);
        }
        if count == 0 {
            return;
        }
        let state = Mutex::new(CallState { running: count, panic: None });
        let call = Arc::new(Call { state, ended: Condvar::new() });
        let job = erase(job);
        {
            // Nothing between here and `wait` unwinds: lists that cannot grow abort the process.
            let _order = lock(&self.order);
            for list in &self.lists[..count] {
                list.push(WorkItem { job, call: call.clone() });
            }
        }
        if let Some(panic) = call.wait() {
            resume_unwind(panic);
        }
    }
}

/// Forgets how long the closure lives.
#[expect(clippy::transmute_ptr_to_ptr, reason = "a cast cannot extend a trait object's lifetime")]
fn erase<'a>(job: &'a (dyn Fn(usize) + Sync + 'a)) -> WorkClosure {
    // SAFETY: both types are the same wide pointer and differ in a lifetime only; `WorkItem::run`
    // dereferences it only while `'a` lasts, as argued there.
    let job = unsafe {
        std::mem::transmute::<
            *const (dyn Fn(usize) + Sync + 'a),
            *const (dyn Fn(usize) + Sync + 'static),
        >(std::ptr::from_ref(job))
    };
    WorkClosure(job)
}

impl Drop for Workers {
    fn drop(&mut self) {
        for list in &self.lists {
            lock(&list.state).closed = true;
            list.filled.notify_one();
        }
        let this = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle may go inside a job: that worker ends by itself.
            if thread.thread().id() != this {
                let _ = thread.join();
            }
        }
    }
}

impl WorkList {
    fn push(&self, entry: WorkItem) {
        lock(&self.state).entries.push_back(entry);
        self.filled.notify_one();
    }

    /// The next entry; `None` when there will be none.
    fn next(&self) -> Option<WorkItem> {
        let mut state = lock(&self.state);
        loop {
            if let Some(entry) = state.entries.pop_front() {
                return Some(entry);
            }
            if state.closed {
                return None;
            }
            state = sleep(&self.filled, state);
        }
    }
}

impl WorkItem {
    fn run(self, index: usize) {
        let Self { job, call } = self;
        // SAFETY: `fork_join` borrows the closure until it returns, and it returns only after
        // `call.end` was called for each entry, which happens below, after the last use.
        let job: &(dyn Fn(usize) + Sync) = unsafe { &*job.0 };
        let result = catch_unwind(AssertUnwindSafe(|| job(index)));
        call.end(result.err());
    }
}

impl Call {
    fn end(&self, panic: Option<Panic>) {
        let mut state = lock(&self.state);
        state.running -= 1;
        // Of further panics the payload is leaked: dropping it is somebody's code, and might panic in turn.
        let surplus = if state.panic.is_none() {
            state.panic = panic;
            None
        } else {
            panic
        };
        let last = state.running == 0;
        drop(state);
        if last {
            self.ended.notify_one();
        }
        std::mem::forget(surplus);
    }

    fn wait(&self) -> Option<Panic> {
        let mut state = lock(&self.state);
        while state.running > 0 {
            state = sleep(&self.ended, state);
        }
        state.panic.take()
    }
}

fn serve(list: &WorkList, index: usize) {
    IS_WORKER.set(true);
    while let Some(entry) = list.next() {
        entry.run(index);
    }
}

/// All indices here, for a call from inside a job, or in a process without workers.
pub(super) fn inline(count: usize, job: &(dyn Fn(usize) + Sync)) {
    let mut first = None;
    for index in 0..count {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(index))) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}
