//! How a database is opened, and how a session is.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use pleach_io::os::IoMode;

use crate::error::Error;

/// When a commit is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A commit is durable before it returns.
    Commit,
    /// The log is synced in the background about this often; a crash may lose the commits since.
    Periodic(Duration),
    /// The log is synced when a flush, a checkpoint or close needs it.
    None,
}

/// Sizes that a database is created with; they are recorded in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Pages of a segment of the leaf and overflow files.
    pub segment_pages: u32,
    /// Bytes of a log segment.
    pub log_segment: u64,
    /// Percent of the live pages up to which a leaf file grows before holes are filled; over 100.
    pub size_factor: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self { segment_pages: 256, log_segment: 32 << 20, size_factor: 150 }
    }
}

impl Geometry {
    /// A geometry for tests and development: a database below 1 MiB.
    pub fn tiny() -> Self {
        Self { segment_pages: 16, log_segment: 64 << 10, size_factor: 150 }
    }
}

/// Time without progress after which a background task is said to be stalled.
const STALLED: Duration = Duration::from_secs(10);

/// Options of [`crate::Db::open`].
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) path: PathBuf,
    pub(crate) create: bool,
    pub(crate) cache_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) in_flight: usize,
    pub(crate) durability: Durability,
    pub(crate) io: IoMode,
    pub(crate) direct: bool,
    pub(crate) trie_cache: Option<u64>,
    pub(crate) log_limit: u64,
    pub(crate) flush_at: u8,
    pub(crate) checkpoint_regions: usize,
    pub(crate) stall_after: Duration,
    pub(crate) geometry: Geometry,
}

impl Options {
    /// Options for the database in this folder, with the defaults: not created when missing, a
    /// budget of 1 GiB, all cores, 128 page reads in flight, [`Durability::Commit`].
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_path_buf(),
            create: false,
            cache_bytes: 1 << 30,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            in_flight: 128,
            durability: Durability::Commit,
            io: IoMode::Auto,
            direct: true,
            trie_cache: None,
            log_limit: 256 << 20,
            flush_at: 8,
            checkpoint_regions: 256,
            stall_after: STALLED,
            geometry: Geometry::default(),
        }
    }

    /// Creates the database when the folder is missing or empty.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// The memory budget for everything that grows, in MiB.
    #[must_use]
    pub fn cache_mib(mut self, mib: u64) -> Self {
        self.cache_bytes = mib.saturating_mul(1 << 20);
        self
    }

    /// The same in KiB, for crash tests with a tiny geometry.
    #[must_use]
    pub fn cache_kib(mut self, kib: u64) -> Self {
        self.cache_bytes = kib.saturating_mul(1 << 10);
        self
    }

    /// Worker threads of a finish, a commit and a load.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Page reads in flight, over all workers.
    #[must_use]
    pub fn in_flight(mut self, reads: usize) -> Self {
        self.in_flight = reads;
        self
    }

    /// When a commit is durable.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Which I/O engine serves the folder.
    #[must_use]
    pub fn io(mut self, io: IoMode) -> Self {
        self.io = io;
        self
    }

    /// Bypass the page cache of the system (default), where the file system allows it.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// A cap on resident trie nodes inside the budget, in KiB; `Some(0)`: none stays.
    #[must_use]
    pub fn trie_cache_kib(mut self, kib: Option<u64>) -> Self {
        self.trie_cache = kib.map(|kib| kib.saturating_mul(1 << 10));
        self
    }

    /// Size of the log at which a checkpoint is made, in MiB.
    #[must_use]
    pub fn log_limit_mib(mut self, mib: u64) -> Self {
        self.log_limit = mib.saturating_mul(1 << 20);
        self
    }

    /// The same in bytes, for tests with a tiny geometry.
    #[must_use]
    pub fn log_limit_bytes(mut self, bytes: u64) -> Self {
        self.log_limit = bytes;
        self
    }

    /// The touch on which a page is rewritten, 1 to 255 (default 8;
    /// decision 0014).
    #[must_use]
    pub fn flush_at(mut self, touches: u8) -> Self {
        self.flush_at = touches;
        self
    }

    /// Regions serialised in one background step of a checkpoint (default 256). For tests: with few,
    /// commits and flushes fall between the regions of an image.
    #[doc(hidden)]
    #[must_use]
    pub fn checkpoint_regions(mut self, regions: usize) -> Self {
        self.checkpoint_regions = regions;
        self
    }

    /// How long a background task may not come further before it is said to be stalled (default 10 s).
    #[doc(hidden)]
    #[must_use]
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.stall_after = time;
        self
    }

    /// Sizes for a database that is created; an existing one keeps its own.
    #[must_use]
    pub fn geometry(mut self, geometry: Geometry) -> Self {
        self.geometry = geometry;
        self
    }

    /// Says what is absurd, in one line.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Options(what.to_owned()));
        // Log segments of less than 64 KiB are for crash tests, and so are budgets of a few pages.
        let testing = self.geometry.log_segment < 64 << 10;
        if self.cache_bytes < if testing { 256 << 10 } else { 8 << 20 } {
            return wrong(
                "the memory budget is less than 8 MiB: give `Options::cache_mib` 8 or more",
            );
        }
        if self.cache_bytes > 1 << 44 {
            return wrong("the memory budget is more than 16 TiB: give `Options::cache_mib` less");
        }
        if self.threads == 0 || self.threads > 1024 {
            return wrong("the number of threads must be between 1 and 1024");
        }
        if self.in_flight == 0 || self.in_flight > 32768 {
            return wrong("the number of reads in flight must be between 1 and 32768");
        }
        if self.durability == Durability::Periodic(Duration::ZERO) {
            return wrong("a periodic sync needs a period of at least 1 ms");
        }
        if self.flush_at == 0 {
            return wrong("pages are flushed on their j-th touch: j must be between 1 and 255");
        }
        if self.checkpoint_regions == 0 {
            return wrong("a checkpoint takes at least one region a step");
        }
        if self.log_limit < 4 * self.geometry.log_segment.min(64 << 10) {
            return wrong("the log limit is less than 256 KiB");
        }
        let geometry = &self.geometry;
        if !(16..=1 << 16).contains(&geometry.segment_pages)
            || !geometry.segment_pages.is_power_of_two()
        {
            return wrong("a segment has a power of two of pages, 16 to 65536");
        }
        if !(16 << 10..=1 << 30).contains(&geometry.log_segment)
            || !geometry.log_segment.is_power_of_two()
        {
            return wrong("a log segment has a power of two of bytes, 16 KiB to 1 GiB");
        }
        if !(110..=1000).contains(&geometry.size_factor) {
            return wrong("the size factor is between 110 and 1000 percent");
        }
        Ok(())
    }
}
