//! How a database is opened.

mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pleach_core::{Hasher, Node};

pub use pleach_io::os::IoMode;

/// When a commit is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// A commit is durable before it returns.
    Commit,
    /// The log is synced in the background about this often; a crash may lose the commits since the last sync.
    Periodic(Duration),
    /// The log is synced when a flush, a checkpoint or close needs it.
    None,
}

/// Sizes that a database is created with; they are recorded in it, and every open uses them.
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
        Self { segment_pages: 256, log_segment: LOG_SEGMENT, size_factor: 150 }
    }
}

impl Geometry {
    /// A geometry for tests and development, as [`Options::small`] has it: segments of 64 KiB for pages and
    /// of 128 KiB for the log.
    pub fn small() -> Self {
        Self { segment_pages: 16, log_segment: 128 << 10, size_factor: 150 }
    }

    /// The smallest geometry that works, for crash tests: a few commits fill a segment of the log.
    #[doc(hidden)]
    pub fn least() -> Self {
        Self { log_segment: 16 << 10, ..Self::small() }
    }

    /// The log limit of a database that is created without one: fewer bytes where segments are of a size for tests.
    pub(crate) fn default_log_limit(&self) -> u64 {
        if self.log_segment < LOG_SEGMENT { 8 * self.log_segment } else { LOG_LIMIT }
    }

    fn check(&self) -> Result<(), InvalidOption> {
        let Self { segment_pages: pages, log_segment: bytes, size_factor: percent } = *self;
        if !(16..=1 << 16).contains(&pages) || !pages.is_power_of_two() {
            return Err(InvalidOption::SegmentPages { pages });
        }
        if !(16 << 10..=1 << 30).contains(&bytes) || !bytes.is_power_of_two() {
            return Err(InvalidOption::LogSegment { bytes });
        }
        if !(110..=1000).contains(&percent) {
            return Err(InvalidOption::SizeFactor { percent });
        }
        Ok(())
    }
}

/// Bytes of a log segment, where no geometry is given. An open after a kill reads the newest segments to their end, and
/// copies the last one; a new database makes one, and room for a copy.
const LOG_SEGMENT: u64 = 4 << 20;
/// Bytes of log at which a checkpoint is made, where no limit is given.
const LOG_LIMIT: u64 = 256 << 20;
/// A log limit is at most this many segments: each is a file.
const MAX_LOG_SEGMENTS: u64 = 2048;
/// MiB of log that are kept where there is a history.
pub(crate) const KEPT_LOG_MIB: u64 = 1024;

/// Settings for tests and measurements, which no application needs.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Buffered changes of a page at which it is rewritten, 1 to 255 (decision 0080). Fewer when memory fills.
    pub flush_at: u8,
    /// Regions serialised in one background step of a checkpoint: with few, commits and flushes fall between the
    /// regions of an image.
    pub checkpoint_regions: usize,
    /// Time without progress after which a background task counts as stalled.
    pub stall_after: Duration,
    /// Most bytes of lines, the nodes above pages that regions keep; by default what the nodes of leaf pages leave of a
    /// quarter of the budget. `Some(0)`: none.
    pub trie_cache: Option<u64>,
    /// True when the open reads all runs of the history, and removes damaged runs, with all before them.
    pub reads_history: bool,
    /// True when the database is to be filled (`pleach_ops::open_unfinished`).
    pub fills: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            flush_at: 24,
            checkpoint_regions: 256,
            stall_after: Duration::from_secs(10),
            trie_cache: None,
            reads_history: false,
            fills: false,
        }
    }
}

/// Options of [`crate::Db::open`].
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Options {
    pub(crate) path: PathBuf,
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    /// `None`: BLAKE3 for a new database, for an existing one the hasher that it was created with.
    pub(crate) hasher: Option<Hasher>,
    pub(crate) cache_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) in_flight: usize,
    pub(crate) durability: Durability,
    pub(crate) io: IoMode,
    pub(crate) direct: bool,
    /// Bytes of log that make a checkpoint due; `None` for the limit that the database was created with.
    pub(crate) log_limit: Option<u64>,
    pub(crate) history: Option<u64>,
    pub(crate) undo_memory: Option<u64>,
    pub(crate) history_disk: Option<u64>,
    pub(crate) kept_log_mib: Option<u64>,
    pub(crate) require_history: bool,
    pub(crate) accept_root: Option<Node>,
    pub(crate) geometry: Geometry,
    pub(crate) tuning: Tuning,
}

impl Options {
    /// Options for the database in this folder, with the defaults: not created when missing, a
    /// budget of 1 GiB, all cores, 128 page reads in flight, [`Durability::Commit`].
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_path_buf(),
            create: false,
            read_only: false,
            hasher: None,
            cache_bytes: 1 << 30,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            in_flight: 128,
            durability: Durability::Commit,
            io: IoMode::Auto,
            direct: true,
            log_limit: None,
            history: None,
            undo_memory: None,
            history_disk: None,
            kept_log_mib: None,
            require_history: false,
            accept_root: None,
            geometry: Geometry::default(),
            tuning: Tuning::default(),
        }
    }

    /// Creates the database when the folder is missing or empty. Not together with [`Self::read_only`].
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// The hash function of the database. Without this a new database has BLAKE3, and an existing one keeps its own, if
    /// that is BLAKE3 or SHA-256.
    #[must_use]
    pub fn hasher(mut self, hasher: Hasher) -> Self {
        self.hasher = Some(hasher);
        self
    }

    /// Opens the database for reading alone, whether a process writes it or not: no lock is taken, nothing is written,
    /// and a process that writes is not held up. Reads give the state of the newest record of the log at the open, or
    /// at the last [`Db::refresh`](crate::Db::refresh). Sessions read, iterate, prove and finish as in any database;
    /// commits give [`Error::ReadOnly`](crate::Error::ReadOnly). `docs/readers.md` has the guarantees.
    ///
    /// A session's state can be read as long as its commit is in the history of the process that writes
    /// ([`Options::history`]) and the log reaches back to the last refresh ([`Options::kept_log_mib`]); then it gives
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// The memory budget for everything that grows, in MiB. A budget that is larger than the memory of the machine, or
    /// than the limit of a control group, causes a warning when the database is opened.
    #[must_use]
    pub fn cache_mib(mut self, mib: u64) -> Self {
        self.cache_bytes = mib.saturating_mul(1 << 20);
        self
    }

    /// The memory budget in KiB, for crash tests with a tiny geometry.
    #[doc(hidden)]
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

    /// Size of the log at which a checkpoint is made, in MiB. The default is the limit that the database was created
    /// with: 256 MiB, which are 64 segments of the log, or 1 MiB for a [small](Self::small) one. At most 2,048 segments,
    /// each a file.
    #[must_use]
    pub fn log_limit_mib(mut self, mib: u64) -> Self {
        self.log_limit = Some(mib.saturating_mul(1 << 20));
        self
    }

    /// The log limit in bytes, for tests with a tiny geometry.
    #[doc(hidden)]
    #[must_use]
    pub fn log_limit_bytes(mut self, bytes: u64) -> Self {
        self.log_limit = Some(bytes);
        self
    }

    /// For tests and development: a database that is created takes less than 2 MiB of disk, instead of 8, and is made
    /// in a fraction of the time. It works like any other and may grow as large, with a checkpoint for each MiB of log,
    /// which is slower under load. An existing database keeps the geometry that it was created with.
    #[must_use]
    pub fn small(self) -> Self {
        self.geometry(Geometry::small())
    }

    /// How many commits before the newest one can be read, proven and rolled back to, across restarts and crashes too.
    /// Without this call a database keeps the number that it was last opened with; a new one has 0. A checkpoint soon
    /// after the open records it. A larger number than before counts from the newest commit on; 0 removes the history
    /// at once, and so opens a database whose device cannot read its history any more; `u64::MAX` keeps as many as
    /// [`Self::history_disk_mib`] leaves room for. Replaced values lie on the device, some 82 bytes a change; memory has the
    /// newest of them ([`Self::undo_memory_mib`]).
    #[must_use]
    pub fn history(mut self, commits: u64) -> Self {
        self.history = Some(commits);
        self
    }

    /// MiB of memory that undo may take, of the history and of pinned commits together (default: an eighth of the
    /// budget). Where commits replace more, the oldest undo is evicted. Undo of the history is then read from the
    /// device when it is needed; without a history, sessions on older commits get
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    #[must_use]
    pub fn undo_memory_mib(self, mib: u64) -> Self {
        self.undo_memory_bytes(mib.saturating_mul(1 << 20))
    }

    /// [`Self::undo_memory_mib`] in bytes, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn undo_memory_bytes(mut self, bytes: u64) -> Self {
        self.undo_memory = Some(bytes);
        self
    }

    /// MiB of the device that the history may take: its runs, and the long values that only older states name, of the
    /// history and of pinned commits together (default: no limit). Where the commits take more, the oldest are removed,
    /// with a warning when that begins, and reading them gives [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    /// The room is used again when an image without them is durable, after a checkpoint or two.
    #[must_use]
    pub fn history_disk_mib(mut self, mib: u64) -> Self {
        self.history_disk = Some(mib.saturating_mul(1 << 20));
        self
    }

    /// MiB of log that are kept beyond what a replay needs, for read-only processes (default: 1,024 with a history,
    /// else none; at most 4 GiB, or 16 MiB in a [small](Self::small) database). A device that
    /// is short of room keeps none.
    #[must_use]
    pub fn kept_log_mib(mut self, mib: u64) -> Self {
        self.kept_log_mib = Some(mib);
        self
    }

    /// Refuses to open, with [`Error::HistoryShort`](crate::Error::HistoryShort), when less of the history can be read
    /// than there should be: because the log or a run is damaged there, or because the history takes more than
    /// [`Self::history_disk_mib`] (default: false). Otherwise [`Opening::lost`](crate::status::Opening::lost) says what is
    /// lost, and reading a commit before the damage gives [`Error::HistoryLost`](crate::Error::HistoryLost). An open
    /// reads the descriptors of the runs, not all of their pages: `pleach check` and a scrub do.
    #[must_use]
    pub fn require_history(mut self, require: bool) -> Self {
        self.require_history = require;
        self
    }

    /// Opens a database whose newest commit has recorded a wrong root of a namespace, if the pairs of that namespace
    /// have this root. `Contradiction::Root` names both; compare the second with the root that the chain has at this
    /// block. The state is written with its right root before the open returns; the next open may lose the history
    /// before it. Where no root is wrong, the option has no effect.
    #[must_use]
    pub fn accept_root(mut self, root: Node) -> Self {
        self.accept_root = Some(root);
        self
    }

    /// Limits of a history, where the database was last opened with a history of `recorded` commits.
    pub(crate) fn history_limits(&self, recorded: u64) -> HistoryLimits {
        HistoryLimits {
            commits: self.history.unwrap_or(recorded),
            bytes: self.undo_memory.unwrap_or(self.cache_bytes / 8),
            disk_bytes: self.history_disk.unwrap_or(u64::MAX),
            reads_runs: self.tuning.reads_history,
        }
    }

    /// Sizes for a database that is created; an existing one keeps its own.
    #[must_use]
    pub fn geometry(mut self, geometry: Geometry) -> Self {
        self.geometry = geometry;
        self
    }

    /// Changes settings for tests and measurements ([`Tuning`]).
    #[doc(hidden)]
    #[must_use]
    pub fn tune(mut self, change: impl FnOnce(&mut Tuning)) -> Self {
        change(&mut self.tuning);
        self
    }

    /// Refuses options that make no sense.
    pub(crate) fn check(&self) -> Result<(), InvalidOption> {
        if self.create && self.read_only {
            return Err(InvalidOption::CreateReadOnly);
        }
        // Log segments of less than 64 KiB are for crash tests, and so are budgets of a few pages.
        let testing = self.geometry.log_segment < 64 << 10;
        let least = if testing { 256 << 10 } else { 8 << 20 };
        if self.cache_bytes < least {
            return Err(InvalidOption::CacheTooSmall { bytes: self.cache_bytes });
        }
        if self.cache_bytes > 1 << 44 {
            return Err(InvalidOption::CacheTooLarge { bytes: self.cache_bytes });
        }
        if self.threads == 0 || self.threads > 1024 {
            return Err(InvalidOption::Threads { threads: self.threads });
        }
        if self.in_flight == 0 || self.in_flight > 32768 {
            return Err(InvalidOption::InFlight { reads: self.in_flight });
        }
        if self.durability == Durability::Periodic(Duration::ZERO) {
            return Err(InvalidOption::Period);
        }
        if self.tuning.flush_at == 0 {
            return Err(InvalidOption::FlushAt);
        }
        if self.tuning.checkpoint_regions == 0 {
            return Err(InvalidOption::CheckpointRegions);
        }
        self.geometry.check()?;
        if let Some(bytes) = self.log_limit
            && bytes < 4 * self.geometry.log_segment.min(64 << 10)
        {
            return Err(InvalidOption::LogLimit { bytes });
        }
        Ok(())
    }

    /// The log limit of a database with a recorded limit, and log segments of this size, in bytes.
    pub(crate) fn log_limit_of(&self, recorded: u64, segment: u64) -> Result<u64, InvalidOption> {
        let bytes = self.log_limit.unwrap_or(recorded);
        let most = MAX_LOG_SEGMENTS * segment;
        if bytes > most {
            return Err(InvalidOption::LogLimitTooLarge { bytes, most });
        }
        Ok(bytes)
    }
}

/// Limits of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Commits before the newest that can be read.
    pub(crate) commits: u64,
    /// Bytes of memory for all undo, that of pinned commits included.
    pub(crate) bytes: u64,
    /// Bytes of the device for runs, and for long values that only older states name, those of pinned commits included.
    pub(crate) disk_bytes: u64,
    /// True when an open reads all runs.
    pub reads_runs: bool,
}

impl HistoryLimits {
    /// Limits of commits and of bytes of memory, without a limit on the device.
    pub fn of_disk(commits: u64, bytes: u64) -> Self {
        Self { commits, bytes, disk_bytes: u64::MAX, reads_runs: false }
    }
}

pleach_core::debug_is_text!(InvalidOption);

/// An option that makes no sense.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOption {
    /// A pair of [`Options::set`] that is not understood.
    #[error("the option `{pair}` is not understood: {wanted} is wanted")]
    Text {
        /// The pair, as it was given.
        pair: String,
        /// What would be understood.
        wanted: &'static str,
    },
    /// An open for reading alone is to create the database.
    #[error("what is opened for reading alone is not created: give `create` or `read_only`")]
    CreateReadOnly,
    /// The memory budget is too small.
    #[error("the memory budget is less than 8 MiB: give the option `cache_mib` 8 or more")]
    CacheTooSmall {
        /// The budget.
        bytes: u64,
    },
    /// The memory budget is too large.
    #[error("the memory budget is more than 16 TiB: give the option `cache_mib` less")]
    CacheTooLarge {
        /// The budget.
        bytes: u64,
    },
    /// The address space of the process (`RLIMIT_AS`) has no room for the memory budget.
    #[error(
        "the memory budget and the threads need {} MiB of address space, and {} are left: raise the limit (`ulimit -v`), or \
         give the option `cache_mib` or `threads` less",
        needed >> 20, left >> 20
    )]
    AddressSpace {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// No threads, or too many.
    #[error("{threads} threads: give the option `threads` 1 to 1024")]
    Threads {
        /// Their number.
        threads: usize,
    },
    /// No reads in flight, or too many.
    #[error("{reads} reads in flight: give the option `in_flight` 1 to 32768")]
    InFlight {
        /// Their number.
        reads: usize,
    },
    /// A periodic sync without a period.
    #[error("a periodic sync needs a period: give the option `durability` 1 ms or more")]
    Period,
    /// Pages would be rewritten before any commit has changed them.
    #[error("pages cannot be rewritten after 0 commits: give 1 to 255")]
    FlushAt,
    /// A checkpoint that takes no region in a step.
    #[error("a checkpoint takes no region in a step: give 1 or more")]
    CheckpointRegions,
    /// A checkpoint would be due all the time.
    #[error("a log limit of {bytes} bytes is less than 256 KiB: give `log_limit_mib` more")]
    LogLimit {
        /// The limit.
        bytes: u64,
    },
    /// A checkpoint would be due when the log has more files than may be open.
    #[error(
        "a log limit of {bytes} bytes is more than 2048 segments of this database's log: give the \
         option `log_limit_mib` at most {} MiB, or none",
        most >> 20
    )]
    LogLimitTooLarge {
        /// The limit.
        bytes: u64,
        /// The largest limit of the database, in bytes.
        most: u64,
    },
    /// Segments of the leaf and overflow files have a size that does not work.
    #[error("{pages} pages in a segment: give a power of two, 16 to 65536")]
    SegmentPages {
        /// Pages of a segment.
        pages: u32,
    },
    /// Segments of the log have a size that does not work.
    #[error("{bytes} bytes in a log segment: give a power of two, 16 KiB to 1 GiB")]
    LogSegment {
        /// Bytes of a segment.
        bytes: u64,
    },
    /// The leaf file would grow too little to work in, or too much.
    #[error("a size factor of {percent} %: give 110 to 1000")]
    SizeFactor {
        /// The factor.
        percent: u32,
    },
}
