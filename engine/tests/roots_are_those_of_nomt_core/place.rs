//! Where a database is: on a simulated disk, or in a folder of the system.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pleach::Db;
use pleach_io::sim::{CrashMode, SimDisk, SimOptions, SimRuntime};

use crate::plan::Opening;

pub trait Place {
    fn path(&self) -> &Path;

    fn open(&mut self, opening: &Opening, seed: u64) -> pleach::Result<Db>
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
    fn path(&self) -> &Path {
        Path::new("sim")
    }

    fn open(&mut self, opening: &Opening, seed: u64) -> pleach::Result<Db> {
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
    fn path(&self) -> &Path {
        &self.0
    }

    fn open(&mut self, opening: &Opening, _seed: u64) -> pleach::Result<Db> {
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
