//! Where a database is: on a simulated disk, or in a folder of the system.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pleach::Db;
use pleach_io::sim::{CrashMode, SimDisk, SimOptions, SimRuntime, Trace};
use pleach_io::{Device as _, OpenMode};
use pleach_ops::{CheckOptions, CheckReport, check, check_on};

use crate::plan::Opening;

pub trait Place: Sized {
    fn path(&self) -> &Path;

    fn open(&mut self, opening: &Opening, seed: u64) -> pleach::Result<Db>;

    /// Another open, for reading alone.
    fn open_reader(&self, opening: &Opening, seed: u64) -> pleach::Result<Db>;

    /// Whether all regions of that open are in memory then.
    fn loads_reader(&self, _seed: u64) -> bool {
        false
    }

    /// Gives the background time for some steps.
    fn background(&self, steps: usize);

    /// What a power failure leaves, now; nothing where that cannot be known.
    fn after_power_cut(&self, seed: u64) -> Option<Self>;

    /// From here on this commit is durable.
    fn mark(&self, commit: u64);

    /// What the checker says of a closed database.
    fn check(&self) -> CheckReport;

    /// The length of the files of pages and of long values, where files are looked at.
    fn length(&self) -> u64;
}

thread_local! {
    /// The runtime that this thread opened a simulated database on last.
    static RUNTIME: RefCell<Option<SimRuntime>> = const { RefCell::new(None) };
}

/// What a read comes to that does not block: its thread gives the tasks of its simulated runtime steps meanwhile, where it has one.
pub fn complete<T>(read: impl Future<Output = T>) -> T {
    let (mut read, mut context) = (pin!(read), Context::from_waker(Waker::noop()));
    for _ in 0..1_000_000 {
        if let Poll::Ready(read) = read.as_mut().poll(&mut context) {
            return read;
        }
        RUNTIME.with_borrow(|runtime| match runtime {
            Some(runtime) if runtime.step_some(1) == 0 => {
                runtime.clock().advance(Duration::from_millis(1));
            }
            Some(_) => {}
            None => std::thread::sleep(Duration::from_micros(50)),
        });
    }
    panic!("nobody reads the page");
}

pub struct Simulated {
    disk: SimDisk,
    runtime: SimRuntime,
}

pub fn unrecorded() -> SimOptions {
    SimOptions { record: false, ..SimOptions::default() }
}

impl Simulated {
    pub fn new(seed: u64, recorded: bool) -> Self {
        let options = SimOptions { record: recorded, ..SimOptions::default() };
        Self::on(SimDisk::new(seed, options), seed)
    }

    pub fn on(disk: SimDisk, seed: u64) -> Self {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
        Self { disk, runtime }
    }

    pub fn trace(&self) -> Trace {
        self.disk.trace()
    }
}

impl Place for Simulated {
    fn path(&self) -> &Path {
        Path::new("sim")
    }

    fn open(&mut self, opening: &Opening, seed: u64) -> pleach::Result<Db> {
        self.runtime = SimRuntime::with_clock(seed, self.disk.clock(), opening.threads);
        RUNTIME.set(Some(self.runtime.clone()));
        Db::open_on(self.disk.clone(), self.runtime.clone(), opening.options.clone())
    }

    fn open_reader(&self, opening: &Opening, seed: u64) -> pleach::Result<Db> {
        let runtime = SimRuntime::with_clock(seed, self.disk.clock(), opening.threads);
        let options = opening.options.clone().create(false).read_only(true);
        let db = Db::open_on(self.disk.clone(), runtime.clone(), options)?;
        if self.loads_reader(seed) {
            runtime.step_some(100);
        }
        Ok(db)
    }

    fn loads_reader(&self, seed: u64) -> bool {
        seed.is_multiple_of(2)
    }

    fn background(&self, steps: usize) {
        self.runtime.step_some(steps);
        self.runtime.clock().advance(Duration::from_millis(steps as u64));
    }

    fn after_power_cut(&self, seed: u64) -> Option<Self> {
        let outcome = self.disk.trace().crash_point(0).outcome(CrashMode::Random(seed));
        Some(Self::on(outcome.disk_with(unrecorded()), seed))
    }

    fn mark(&self, commit: u64) {
        self.disk.mark(commit);
    }

    fn check(&self) -> CheckReport {
        check_on(&self.disk, CheckOptions::default()).expect("checked")
    }

    fn length(&self) -> u64 {
        let length = |file| self.disk.len(&self.disk.open(file, OpenMode::Read)?);
        ["leaf", "overflow"].into_iter().map(|file| length(file).expect("its length")).sum()
    }
}

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self(path.to_path_buf())
    }
}

impl Place for Folder {
    fn path(&self) -> &Path {
        &self.0
    }

    fn open(&mut self, opening: &Opening, _seed: u64) -> pleach::Result<Db> {
        // One of an earlier plan would be given steps in the place of this database's threads.
        RUNTIME.set(None);
        Db::open(opening.options.clone())
    }

    fn open_reader(&self, opening: &Opening, _seed: u64) -> pleach::Result<Db> {
        Db::open(opening.options.clone().create(false).read_only(true))
    }

    fn background(&self, steps: usize) {
        if steps > 0 {
            std::thread::sleep(Duration::from_micros(steps as u64 * 20));
        }
    }

    fn after_power_cut(&self, _seed: u64) -> Option<Self> {
        None
    }

    fn mark(&self, _commit: u64) {}

    fn check(&self) -> CheckReport {
        check(&self.0, CheckOptions::default()).expect("checked")
    }

    fn length(&self) -> u64 {
        0
    }
}
