//! Where a database is: on a simulated disk, or in a folder of the system.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pleach::{Db, Hasher};
use pleach_io::os::OsDevice;
use pleach_io::sim::{CrashMode, SimDisk, SimOptions, SimRuntime};
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::plan::Opening;

pub type DbOf<H, P> = Db<H, <P as Place>::Device, <P as Place>::Runtime>;

pub trait Place {
    type Device: Device;
    type Runtime: Runtime;

    fn path(&self) -> &Path;

    fn open<H: Hasher>(&mut self, opening: &Opening, seed: u64) -> pleach::Result<DbOf<H, Self>>
    where
        Self: Sized;

    /// Gives the background time for some steps.
    fn background(&self, steps: usize);

    /// What a power failure leaves, now; nothing where that cannot be known.
    fn after_power_cut(&self, seed: u64) -> Option<Self>
    where
        Self: Sized;
}

pub struct Simulated {
    disk: SimDisk,
    runtime: SimRuntime,
}

fn unrecorded() -> SimOptions {
    SimOptions { record: false, ..SimOptions::default() }
}

impl Simulated {
    pub fn new(seed: u64) -> Self {
        Self::on(SimDisk::new(seed, unrecorded()), seed)
    }

    fn on(disk: SimDisk, seed: u64) -> Self {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
        Self { disk, runtime }
    }
}

impl Place for Simulated {
    type Device = SimDisk;
    type Runtime = SimRuntime;

    fn path(&self) -> &Path {
        Path::new("sim")
    }

    fn open<H: Hasher>(&mut self, opening: &Opening, seed: u64) -> pleach::Result<DbOf<H, Self>> {
        self.runtime = SimRuntime::with_clock(seed, self.disk.clock(), opening.threads);
        Db::open_on(self.disk.clone(), self.runtime.clone(), opening.options.clone())
    }

    fn background(&self, steps: usize) {
        self.runtime.step_some(steps);
        self.runtime.clock().advance(Duration::from_millis(steps as u64));
    }

    fn after_power_cut(&self, seed: u64) -> Option<Self> {
        let outcome = self.disk.trace().crash_point(0).outcome(CrashMode::Random(seed));
        Some(Self::on(outcome.disk_with(unrecorded()), seed))
    }
}

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self(path.to_path_buf())
    }
}

impl Place for Folder {
    type Device = OsDevice;
    type Runtime = Threads;

    fn path(&self) -> &Path {
        &self.0
    }

    fn open<H: Hasher>(&mut self, opening: &Opening, _seed: u64) -> pleach::Result<DbOf<H, Self>> {
        Db::open(opening.options.clone())
    }

    fn background(&self, steps: usize) {
        if steps > 0 {
            std::thread::sleep(Duration::from_micros(steps as u64 * 20));
        }
    }

    fn after_power_cut(&self, _seed: u64) -> Option<Self> {
        None
    }
}
