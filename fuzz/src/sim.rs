//! Databases on the simulated disk, as small as they can be: log segments of 16 KiB, a checkpoint
//! due at 64 KiB, so that a few commits see flushes, checkpoints and recycled segments.

use std::time::Duration;

use pleach::{Db, Durability, Error, Geometry, Options};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::Input;

/// Period of a database that syncs periodically.
pub const PERIOD: Duration = Duration::from_millis(20);

/// One way to run a database. All that may differ from one open to the next.
#[derive(Clone, Debug)]
pub struct Setup {
    pub create: bool,
    pub flush_at: u8,
    pub cache_kib: u64,
    pub trie_cache_kib: Option<u64>,
    pub in_flight: usize,
    pub threads: usize,
    pub durability: Durability,
    /// Past commits that can be read.
    pub history: u64,
}

impl Setup {
    /// Two bytes of the input. Acknowledged commits are durable.
    pub fn draw(input: &mut Input<'_>) -> Self {
        let (first, second) = (input.u8(), input.u8());
        Self {
            create: true,
            flush_at: [1, 2, 3, 255][usize::from(first & 3)],
            cache_kib: [256, 512, 4096][usize::from(first >> 2 & 3) % 3],
            trie_cache_kib: [None, Some(0), Some(1), Some(64)][usize::from(first >> 4 & 3)],
            in_flight: [1, 4, 64][usize::from(second & 3) % 3],
            threads: 1 + usize::from(second >> 2 & 3),
            durability: Durability::Commit,
            history: [0, 0, 2, 7][usize::from(second >> 4 & 3)],
        }
    }

    pub fn options(&self) -> Options {
        Options::new("sim")
            .create(self.create)
            .cache_kib(self.cache_kib)
            .threads(self.threads)
            .in_flight(self.in_flight)
            .durability(self.durability)
            .tune(|tuning| tuning.flush_at = self.flush_at)
            .tune(|tuning| tuning.trie_cache = self.trie_cache_kib.map(|kib| kib << 10))
            .log_limit_bytes(64 << 10)
            .history(self.history)
            .undo_memory_bytes(64 << 20)
            .geometry(Geometry::least())
    }

    /// Opens the database on a disk, or creates it. Every choice of the executor is the seed's.
    pub fn open(&self, disk: &SimDisk, seed: u64) -> Result<(Db, SimRuntime), Error> {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), self.threads);
        Ok((Db::open_on(disk, &runtime, self.options())?, runtime))
    }
}

/// Options of a disk whose crashes nobody looks at.
pub fn unrecorded() -> SimOptions {
    SimOptions { record: false, ..SimOptions::default() }
}

/// Opens the database on a disk for reading alone.
pub fn reader(disk: &SimDisk) -> Result<Db, Error> {
    let options = Options::new("sim").cache_kib(256).threads(1).geometry(Geometry::least());
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    Db::open_on(disk, runtime, options.read_only(true))
}
