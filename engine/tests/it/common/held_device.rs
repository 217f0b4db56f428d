//! A device that counts reads by page and holds them while a test has its gate closed, and a runtime
//! that says who waits for a page in flight. With both a test knows when readers have met.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pleach_io::sim::SimDisk;
use pleach_io::{
    Completion, Device, DeviceInfo, Disk, Event, Executor, File, IoError, LockMode, OpenMode,
    Operation, PageBuf, PagePool, Queue, Request, RequestKind, Result, Runtime, Task, TaskHandle,
    Threads,
};

/// Nothing takes this long, however loaded the machine: whoever waits for so long waits in vain.
pub const NEVER: Duration = Duration::from_secs(60);

/// What the next read to pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    Fails,
    Panics,
}

/// What becomes of syncs of the log.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Syncs {
    #[default]
    GoOn,
    Held,
    Fail,
}

type BehindOpen = (String, u32, fn(&SimDisk, &str));
type AtEachOpen = (&'static str, Box<dyn FnMut() + Send>);
type BehindSync = (&'static str, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct State {
    closed: bool,
    /// True when writes of leaf pages are held, too.
    no_writes: bool,
    syncs: Syncs,
    /// Syncs of the log since they were held last.
    log_syncs: u64,
    /// Reads by file and page.
    reads: BTreeMap<(String, u64), u32>,
    /// Threads that sleep in the device or for a page that another thread reads.
    stuck: usize,
    /// Waits for a page in flight, and those that came to their bound.
    waits: u64,
    in_vain: u64,
    mishap: Option<Mishap>,
    /// What comes right behind an open of a file, before it is read, and how many opens of it come before that one.
    behind_open: Option<BehindOpen>,
    /// What comes right behind each open of a file whose name begins like this.
    at_each_open: Option<AtEachOpen>,
    /// What comes right behind the next sync of a file.
    behind_sync: Option<BehindSync>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// What the test, the device and the runtime share.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.notify_all();
        changed
    }

    /// From here on reads are held, and counted from zero; and so are writes of leaf pages.
    pub fn close(&self) {
        self.change(|state| {
            (state.closed, state.no_writes) = (true, true);
            (state.waits, state.in_vain) = (0, 0);
            state.reads.clear();
        });
    }

    /// Reads go on.
    pub fn open(&self) {
        self.change(|state| state.closed = false);
    }

    /// Writes go on.
    pub fn let_write(&self) {
        self.change(|state| state.no_writes = false);
    }

    /// Syncs of the log are held, and counted from zero.
    pub fn hold_syncs(&self) {
        self.change(|state| (state.syncs, state.log_syncs) = (Syncs::Held, 0));
    }

    /// Syncs of the log go on, or fail.
    pub fn let_sync(&self, fails: bool) {
        self.change(|state| state.syncs = if fails { Syncs::Fail } else { Syncs::GoOn });
    }

    /// How often the log was synced since that was held.
    pub fn log_syncs(&self) -> u64 {
        self.state.lock().log_syncs
    }

    /// Holds a sync until syncs go on. True when it fails.
    fn pass_sync(&self) -> bool {
        let mut state = self.state.lock();
        state.log_syncs += 1;
        self.changed.wait_while(&mut state, |state| state.syncs == Syncs::Held);
        state.syncs == Syncs::Fail
    }

    /// Waits until so many threads are stuck. The gate is closed, so they stay.
    pub fn until_stuck(&self, threads: usize) {
        let end = Instant::now() + NEVER;
        let mut state = self.state.lock();
        while state.stuck < threads {
            if self.changed.wait_until(&mut state, end).timed_out() {
                // Threads that are held could not be joined.
                (state.closed, state.no_writes) = (false, false);
                self.changed.notify_all();
                panic!("{} threads of {threads} have met", state.stuck);
            }
        }
    }

    /// The next read that passes fails or panics.
    pub fn mishap(&self, mishap: Mishap) {
        self.change(|state| state.mishap = Some(mishap));
    }

    /// Right behind one of the next opens of a file, that after `others`, something is done with the disk, before the file is
    /// read.
    pub fn behind_open(&self, file: &str, others: u32, what: fn(&SimDisk, &str)) {
        self.change(|state| state.behind_open = Some((file.to_owned(), others, what)));
    }

    /// The same behind each open of a file whose name begins with `prefix`.
    pub fn at_each_open(&self, prefix: &'static str, what: impl FnMut() + Send + 'static) {
        self.change(|state| state.at_each_open = Some((prefix, Box::new(what))));
    }

    /// Right behind the next sync of a file, in the thread that syncs, something is done.
    pub fn behind_sync(&self, file: &'static str, what: impl FnOnce() + Send + 'static) {
        self.change(|state| state.behind_sync = Some((file, Box::new(what))));
    }

    fn synced(&self, name: &str) {
        let due = self.change(|state| state.behind_sync.take_if(|(file, _)| *file == name));
        if let Some((_, what)) = due {
            what();
        }
    }

    fn opened(&self, disk: &SimDisk, name: &str) {
        let each = self.change(|state| state.at_each_open.take());
        if let Some((prefix, mut what)) = each {
            if name.starts_with(prefix) {
                what();
            }
            self.change(|state| state.at_each_open = Some((prefix, what)));
        }
        let due = self.change(|state| match &mut state.behind_open {
            Some((file, 0, what)) if file == name => {
                let what = *what;
                state.behind_open = None;
                Some(what)
            }
            Some((file, others, _)) if file == name => {
                *others -= 1;
                None
            }
            _ => None,
        });
        if let Some(what) = due {
            what(disk, name);
        }
    }

    /// How often each page was read since the gate was closed.
    pub fn reads(&self) -> BTreeMap<(String, u64), u32> {
        self.state.lock().reads.clone()
    }

    /// Waits for a page in flight, and how many of them came to their bound.
    pub fn waits(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.waits, state.in_vain)
    }

    fn count(&self, file: &File, offset: u64) {
        let page = (file.name().to_owned(), offset / 4096);
        *self.state.lock().reads.entry(page).or_default() += 1;
    }

    /// True when the transfers in this queue are held.
    fn holds(&self, queue: &HeldQueue) -> bool {
        let state = self.state.lock();
        state.closed && !queue.reads.is_empty() || state.no_writes && queue.writes > 0
    }

    /// Holds a write until they go on.
    fn pass_write(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.no_writes);
    }

    /// Holds a read until the gate is open, and says what becomes of it.
    fn pass(&self) -> Option<Mishap> {
        let mut state = self.state.lock();
        if state.closed {
            state.stuck += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| state.closed);
            state.stuck -= 1;
        }
        state.mishap.take()
    }
}

fn failed(file: &File, offset: u64) -> IoError {
    IoError::Os {
        file: file.name().to_owned(),
        offset,
        operation: Operation::Read,
        code: 5,
        kind: std::io::ErrorKind::Other,
        message: "the test says so".to_owned(),
    }
}

/// A simulated disk behind a gate.
#[derive(Clone, Debug)]
pub struct Held {
    disk: SimDisk,
    gate: Arc<Gate>,
}

impl Held {
    pub fn new(disk: SimDisk) -> (Self, Arc<Gate>) {
        let gate = Arc::<Gate>::default();
        (Self { disk, gate: Arc::clone(&gate) }, gate)
    }
}

impl From<Held> for Disk {
    fn from(device: Held) -> Self {
        Arc::new(device)
    }
}

impl Device for Held {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }
    fn list(&self) -> Result<Vec<String>> {
        self.disk.list()
    }
    fn open(&self, name: &str, mode: OpenMode) -> Result<File> {
        let file = self.disk.open(name, mode)?;
        self.gate.opened(&self.disk, name);
        Ok(file)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.disk.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.disk.rename(from, to)
    }
    fn exchange(&self, a: &str, b: &str) -> Result<bool> {
        self.disk.exchange(a, b)
    }
    fn sync_folder(&self) -> Result<()> {
        self.disk.sync_folder()
    }
    fn lock(&self, mode: LockMode) -> Result<Box<dyn Send + Sync>> {
        self.disk.lock(mode)
    }
    fn free_space(&self) -> Result<(u64, u64)> {
        self.disk.free_space()
    }
    fn len(&self, file: &File) -> Result<u64> {
        self.disk.len(file)
    }
    fn set_len(&self, file: &File, len: u64) -> Result<()> {
        self.disk.set_len(file, len)
    }
    fn allocate(&self, file: &File, offset: u64, len: u64) -> Result<()> {
        self.disk.allocate(file, offset, len)
    }
    fn read_at(&self, file: &File, buf: &mut PageBuf, offset: u64) -> Result<()> {
        self.gate.count(file, offset);
        match self.gate.pass() {
            None => self.disk.read_at(file, buf, offset),
            Some(Mishap::Fails) => Err(failed(file, offset)),
            Some(Mishap::Panics) => panic!("the test says so"),
        }
    }
    fn write_bytes(&self, file: &File, buf: &PageBuf, len: usize, offset: u64) -> Result<()> {
        self.disk.write_bytes(file, buf, len, offset)
    }
    fn sync(&self, file: &File) -> Result<()> {
        if file.name().starts_with("log-") && self.gate.pass_sync() {
            return Err(failed(file, 0));
        }
        self.disk.sync(file)?;
        self.gate.synced(file.name());
        Ok(())
    }
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        let queue = self.disk.queue(depth)?;
        Ok(Box::new(HeldQueue {
            queue,
            gate: Arc::clone(&self.gate),
            reads: BTreeMap::new(),
            writes: 0,
        }))
    }
}

/// A queue whose reads end when the gate is open.
pub struct HeldQueue {
    queue: Box<dyn Queue>,
    gate: Arc<Gate>,
    /// Reads that have not ended, by token.
    reads: BTreeMap<u64, (File, u64)>,
    /// Writes of leaf pages that have not ended.
    writes: usize,
}

impl HeldQueue {
    fn ended(&mut self, mut completion: Completion, mishap: Option<Mishap>) -> Completion {
        match (self.reads.remove(&completion.token), mishap) {
            (Some((file, offset)), Some(_)) => completion.result = Err(failed(&file, offset)),
            (Some(_), None) => {}
            (None, _) => self.writes = self.writes.saturating_sub(1),
        }
        completion
    }
}

impl Queue for HeldQueue {
    fn depth(&self) -> usize {
        self.queue.depth()
    }
    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
    fn push(&mut self, request: Request) {
        if request.kind == RequestKind::Read {
            self.gate.count(&request.file, request.offset);
            self.reads.insert(request.token, (request.file.clone(), request.offset));
        } else if request.file.name() == "leaf" {
            self.writes += 1;
        }
        self.queue.push(request);
    }
    fn submit(&mut self) -> Result<()> {
        self.queue.submit()
    }
    fn poll(&mut self) -> Option<Completion> {
        if self.gate.holds(self) {
            return None;
        }
        let completion = self.queue.poll()?;
        Some(self.ended(completion, None))
    }
    fn wait(&mut self) -> Result<Option<Completion>> {
        self.queue.submit()?;
        let mishap = if self.reads.is_empty() { None } else { self.gate.pass() };
        assert!(mishap != Some(Mishap::Panics), "the test says so");
        if self.writes > 0 {
            self.gate.pass_write();
        }
        let completion = self.queue.wait()?;
        Ok(completion.map(|completion| self.ended(completion, mishap)))
    }
    fn register(&mut self, pool: &PagePool) -> bool {
        self.queue.register(pool)
    }
}

/// Threads on which a wait with a bound, which is one for a page in flight, has all the time that a
/// loaded machine needs.
#[derive(Clone, Debug)]
pub struct Patient {
    threads: Threads,
    gate: Arc<Gate>,
}

impl Patient {
    pub fn new(workers: usize, gate: &Arc<Gate>) -> Self {
        let threads = Threads::new(workers).expect("threads");
        Self { threads, gate: Arc::clone(gate) }
    }
}

impl From<Patient> for Executor {
    fn from(runtime: Patient) -> Self {
        Arc::new(runtime)
    }
}

impl Runtime for Patient {
    fn now(&self) -> Duration {
        self.threads.now()
    }
    fn random(&self) -> u64 {
        self.threads.random()
    }
    fn event(&self) -> Event {
        self.threads.event()
    }
    fn spawn(&self, name: &str, event: &Event, task: Task) -> pleach_io::Result<TaskHandle> {
        self.threads.spawn(name, event, task)
    }
    fn wait(
        &self,
        event: &Event,
        timeout: Option<Duration>,
        done: &mut dyn FnMut() -> bool,
    ) -> bool {
        if timeout.is_none() {
            return self.threads.wait(event, None, done);
        }
        let mut stuck = false;
        let done = self.threads.wait(event, Some(NEVER), &mut || {
            let done = done();
            if !done && !stuck {
                stuck = true;
                self.gate.change(|state| {
                    (state.stuck, state.waits) = (state.stuck + 1, state.waits + 1);
                });
            }
            done
        });
        if stuck {
            self.gate.change(|state| {
                state.stuck -= 1;
                state.in_vain += u64::from(!done);
            });
        }
        done
    }
    fn workers(&self) -> usize {
        self.threads.workers()
    }
    fn fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        self.threads.fork_join(count, job);
    }
    fn trim_memory(&self, above: u64) -> Option<u64> {
        self.threads.trim_memory(above)
    }
}
