//! Opening, creating and closing a database, and what its handle offers.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_beatree::RegionIndex;
use pleach_beatree::cache::{Buffers, Cache};
use pleach_beatree::grace::Grace;
use pleach_beatree::space;
use pleach_core::{Blake3, Hasher, Node, Prefix, TERMINATOR};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::threads::Threads;
use pleach_io::{Device, DeviceInfo, Event, IoError, LockMode, OpenMode, Operation, Runtime, Step};

use crate::ahead::{Arrivals, FoldAhead};
use crate::answers::Answers;
use crate::checkpoint::{Checkpointer, checkpoint, first_image};
use crate::creation::{self, Folder};
use crate::error::{Error, Hex, Result};
use crate::examine::{self, Examined, Opening, plainly};
use crate::files::{self, IMAGES};
use crate::finish::Workers;
use crate::flush::Flusher;
use crate::foreground::Foreground;
use crate::handles::{Counted, Kind, OpenHandles};
use crate::incarnation;
use crate::log::{LogWriter, SegmentOptions, WriterStart, segment};
use crate::metrics::{Counters, Metrics};
use crate::node_cache::{NodeCache, SPILL_FILE};
use crate::notice;
use crate::options::Options;
use crate::overlays::Overlays;
use crate::prefetch::{Prefetcher, Prefetches};
use crate::quarantine::{Quarantine, Quarantined, Stuck};
use crate::sequencer::Sequencer;
use crate::session::{Session, SessionOptions};
use crate::shared::{Files, LEAF_FILE, OVERFLOW_FILE, PoisonOnPanic, Shared};
use crate::superblock::{self, Superblock, SuperblockStore};
use crate::touches::SpareSorter;
use crate::undo::Undo;
use crate::watchdog::{Beats, ENDED, IDLE, Task, TaskState, Watchdog};
use crate::witness::Spare;

/// Bytes of page buffers that wait to be used again.
const BUFFERS: usize = 8 << 20;

/// An open database.
pub struct Db<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    pub(crate) shared: Arc<Shared<H, D, R>>,
    tasks: Mutex<Option<Vec<R::Handle>>>,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Db<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tip = self.shared.tip.lock().clone();
        f.debug_struct("Db")
            .field("path", &self.shared.options.path)
            .field("commit", &tip.number)
            .field("root", &Hex(&tip.root))
            .finish_non_exhaustive()
    }
}

impl<H: Hasher> Db<H> {
    /// Opens the database in a folder; creates it when the options say so.
    ///
    /// # Errors
    /// A wrong, foreign or newer folder, another hasher, a second process, damage: each has its
    /// variant, and nothing was changed.
    pub fn open(options: Options) -> Result<Self> {
        options.check()?;
        let os = OsOptions {
            io: options.io,
            direct: options.direct,
            create_folder: options.create,
            ..OsOptions::default()
        };
        let device = OsDevice::open(&options.path, os).map_err(no_folder)?;
        let runtime = Threads::new(options.threads)?;
        Self::open_on(device, runtime, options)
    }
}

/// A folder that is not there has no database in it.
pub(crate) fn no_folder(error: IoError) -> Error {
    match error {
        IoError::Os { operation: Operation::OpenFolder, .. } if error.is_not_found() => {
            Error::Missing
        }
        other => other.into(),
    }
}

impl<H: Hasher, D: Device, R: Runtime> Db<H, D, R> {
    /// Opens a database on any device and runtime (a simulated disk, for crash tests).
    pub fn open_on(device: D, runtime: R, options: Options) -> Result<Self> {
        options.check()?;
        Self::open_checked(device, runtime, options).map_err(plainly)
    }

    /// Everything is opened, measured and checked before the first byte is written.
    fn open_checked(device: D, runtime: R, options: Options) -> Result<Self> {
        let folder = creation::inspect(&device)?;
        match folder {
            Folder::Foreign(found) => return Err(Error::NotADatabase { found }),
            Folder::Empty | Folder::HalfCreated if !options.create => return Err(Error::Missing),
            Folder::NoSuperblock => {
                return Err(Error::MissingFile { file: superblock::FILE.to_owned() });
            }
            _ => {}
        }
        let lock = device.lock(LockMode::Exclusive)?;
        // Looked at again: another process may have come first.
        let created = creation::inspect(&device)? != Folder::Database;
        if created {
            create::<H, D, R>(&device, &runtime, &options)?;
        }
        let superblocks = examine::superblocks(&device, OpenMode::Write)?;
        let mut examined = examine::examine::<H, D>(&device, superblocks)?;
        if examined.incarnation.number == u32::MAX {
            return Err(incarnation::IncarnationError::Exhausted.into());
        }
        examined.opening.created = created;
        let shared = Arc::new(begin(device, runtime, options, examined, lock)?);
        let tasks = start_tasks(&shared);
        Ok(Self { shared, tasks: Mutex::new(Some(tasks)) })
    }

    /// How the open found the database: what was cut off, whether it had been closed, what it had to
    /// go around.
    pub fn opened(&self) -> &Opening {
        &self.shared.opening
    }

    /// A session on the newest commit, or on the overlay that the options name.
    ///
    /// # Errors
    /// [`Error::ForeignOverlay`] when the overlay was not made through this handle.
    pub fn session(&self, options: SessionOptions<H, D, R>) -> Result<Session<H, D, R>> {
        let (view, root) = match &options.over {
            // By the open, not by the database's number, which copies of a folder share. Whatever
            // else stands on overlays (blocks, further overlays) comes from a session, so here is
            // the only door.
            Some(overlay) if !Arc::ptr_eq(&overlay.0.shared, &self.shared) => {
                return Err(Error::ForeignOverlay);
            }
            Some(overlay) => (overlay.view(), overlay.root()),
            None => self.shared.tip_view(),
        };
        Ok(Session {
            shared: Arc::clone(&self.shared),
            view,
            root,
            parent: options.over,
            witness: options.witness,
            announces: AtomicBool::new(false),
            announced: Mutex::default(),
            queue: Mutex::new(None),
            counted: Counted::new(&self.shared.handles, Kind::Session),
        })
    }

    /// Root of the newest commit.
    pub fn root(&self) -> Node {
        self.shared.tip.lock().root
    }

    /// Number of the newest commit; 0 in a new database.
    pub fn commit_number(&self) -> u64 {
        self.shared.tip.lock().number
    }

    /// The blob of the newest commit.
    pub fn blob(&self) -> Vec<u8> {
        self.shared.tip.lock().blob.to_vec()
    }

    /// What serves the folder.
    pub fn device_info(&self) -> DeviceInfo {
        self.shared.device.info()
    }

    /// Counters and levels.
    pub fn metrics(&self) -> Metrics {
        let counters = &self.shared.counters;
        counters.sequencer_nanos.store(self.shared.sequencer.held_nanos(), Ordering::Relaxed);
        counters.log_bytes.store(self.shared.sequencer.log_bytes(), Ordering::Relaxed);
        counters.quarantined_pages.store(self.shared.quarantine.len(), Ordering::Relaxed);
        let stalled = self.shared.beats.stalled(self.shared.runtime.now());
        counters.stalled_tasks.store(stalled, Ordering::Relaxed);
        counters.snapshot()
    }

    /// What the background tasks are at, and which of them do not come further.
    pub fn tasks(&self) -> Vec<TaskState> {
        self.shared.beats.list(self.shared.runtime.now())
    }

    /// Pages that the background has set aside because they cannot be read, by file and page. What
    /// pends on them stays in the log and in images; sessions that need them get the error.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.shared.quarantine.list()
    }

    /// Waits until the background has brought the pending changes down to so many, or can bring
    /// them no further.
    ///
    /// # Errors
    /// [`Full`](Error::Full) when there is no room for them, [`Quarantined`](Error::Quarantined) when
    /// those that are left belong to pages that cannot be read, [`Poisoned`](Error::Poisoned).
    pub fn drain(&self, max_pending_entries: u64) -> Result<()> {
        let shared = &self.shared;
        let level = || shared.counters.pending_entries.load(Ordering::Relaxed);
        let mut failed = None;
        let mut stuck = None;
        shared.full.store(false, Ordering::Release);
        shared.stuck.flush_goes_on();
        shared.draining.fetch_add(1, Ordering::AcqRel);
        shared.work.notify();
        shared.runtime.wait(&shared.progress, None, &mut || {
            failed = shared.sequencer.lock().check_open().err();
            stuck = shared.stuck.flush_error(shared.published.load(Ordering::Acquire));
            failed.is_some()
                || shared.full.load(Ordering::Acquire)
                || level() <= max_pending_entries
                || stuck.is_some()
        });
        shared.draining.fetch_sub(1, Ordering::AcqRel);
        match failed {
            Some(error) => Err(error),
            None if level() > max_pending_entries => Err(stuck.unwrap_or_else(|| {
                Error::Full("the pending changes cannot be written to pages".to_owned())
            })),
            None => Ok(()),
        }
    }

    /// Holds background work back: for measurements between batches.
    pub fn pause_background(&self) {
        self.shared.paused.store(true, Ordering::Release);
    }

    /// Lets background work go on.
    pub fn resume_background(&self) {
        self.shared.paused.store(false, Ordering::Release);
        self.shared.work.notify();
    }

    /// Sessions, blocks and overlays that live, each of which keeps the folder locked.
    pub fn open_handles(&self) -> OpenHandles {
        self.shared.handles.open()
    }

    /// Has a write or a sync failed? Then reads go on, nothing is committed any more, and the
    /// database has to be opened again.
    pub fn is_poisoned(&self) -> bool {
        self.shared.sequencer.lock().check().is_err()
    }

    /// Writes a checkpoint and closes: nothing is committed from here on, by whatever handle
    /// ([`Error::Closed`]), but for commits that other threads have begun, which come to their end.
    /// Dropping the database without this is safe too: the next open replays the log.
    ///
    /// # Errors
    /// [`Error::StillOpen`] when sessions, blocks or overlays live on, with how many of each.
    /// The database is closed and its checkpoint written all the same; they can be read, and the
    /// folder stays locked until the last of them is dropped. [`Error::Poisoned`] and
    /// [`Error::Full`] when there is no checkpoint: the next open replays the log.
    pub fn close(self) -> Result<()> {
        self.refuse_commits();
        self.stop();
        self.shared.sequencer.lock().check()?;
        checkpoint(&self.shared, true)?;
        let open = self.open_handles();
        if open.is_empty() { Ok(()) } else { Err(Error::StillOpen(open)) }
    }

    /// No commit takes a ticket from here on, and whoever waits for room is told.
    fn refuse_commits(&self) {
        self.shared.sequencer.close();
        self.shared.progress.notify();
    }

    fn stop(&self) {
        if let Some(tasks) = self.tasks.lock().take() {
            self.shared.closing.store(true, Ordering::Release);
            self.shared.paused.store(false, Ordering::Release);
            self.shared.work.notify();
            self.shared.prefetches.event.notify();
            self.shared.arrivals.event.notify();
            self.shared.beats.event.notify();
            drop(tasks);
        }
    }
}

impl<H: Hasher, D: Device, R: Runtime> Drop for Db<H, D, R> {
    fn drop(&mut self) {
        // Sessions and overlays may live on: they read, and commit no more.
        self.refuse_commits();
        self.stop();
    }
}

/// Step by step: marker, files, an image of the empty trie, log, incarnation, superblock.
fn create<H: Hasher, D: Device, R: Runtime>(
    device: &D,
    runtime: &R,
    options: &Options,
) -> Result<()> {
    creation::create(device, runtime.random(), |device, database| {
        for name in [LEAF_FILE, OVERFLOW_FILE, SPILL_FILE].into_iter().chain(IMAGES) {
            let file = device.open(name, OpenMode::CreateNew)?;
            device.sync(&file)?;
        }
        notice::create(device)?;
        incarnation::create(device, database)?;
        segment::create(device, database, options.geometry.log_segment)?;
        let image = first_image(
            device,
            database,
            space_geometry(options.geometry.segment_pages, options.geometry.size_factor),
        )?;
        let geometry = superblock::Geometry {
            page_size: 4096,
            size_factor_percent: options.geometry.size_factor,
            log_segment: options.geometry.log_segment,
            log_limit: options.log_limit,
            leaf_segment: u64::from(options.geometry.segment_pages) * 4096,
            overflow_segment: u64::from(options.geometry.segment_pages) * 4096,
            stored_levels: pleach_beatree::build::LEVELS,
        };
        let first = Superblock {
            database,
            created_by: superblock::FORMAT_VERSION,
            hasher: H::ID,
            geometry,
            image,
            root: TERMINATOR,
            next_flush: 1,
            prepared_through: options.geometry.log_segment,
            ..Superblock::default()
        };
        // A superblock proves that all else is there: its name must not be durable before theirs.
        device.sync_folder()?;
        SuperblockStore::create(device.clone(), &first)?;
        Ok(())
    })
}

fn space_geometry(segment_pages: u32, size_percent: u32) -> space::FileGeometry {
    space::FileGeometry { segment_pages, size_percent }
}

/// The geometry that the database was created with.
pub(crate) fn geometry_of(superblock: &Superblock) -> space::FileGeometry {
    let segment_pages = u32::try_from(superblock.geometry.leaf_segment / 4096).unwrap_or(u32::MAX);
    space_geometry(segment_pages, superblock.geometry.size_factor_percent)
}

/// Steps 6 to 9 of recovery: makes durable what was read, and takes the files over for writing.
fn begin<H: Hasher, D: Device, R: Runtime>(
    device: D,
    runtime: R,
    mut options: Options,
    examined: Examined<D>,
    lock: Box<dyn Send + Sync>,
) -> Result<Shared<H, D, R>> {
    let Examined { mut superblocks, recovered, space, log_from, opening, .. } = examined;
    if let Some(cut) = &opening.cut {
        tracing::warn!(
            position = cut.position,
            bytes = cut.bytes,
            "the log's torn end was cut off"
        );
    }
    if let Some(error) = &opening.fell_back {
        tracing::error!(%error, "the newest checkpoint cannot be used; its forerunner is");
    }
    for note in &opening.notes {
        tracing::warn!(%note, "found when the database was opened");
    }
    superblocks.confirm(recovered.scan.proven, recovered.scan.prepared_through)?;
    let newest = *superblocks.newest();
    let incarnation = incarnation::raise(&device, newest.database)?;
    files::make_missing(&device)?;
    // The database keeps the geometry that it was created with.
    options.geometry = crate::options::Geometry {
        segment_pages: geometry_of(&newest).segment_pages,
        log_segment: newest.geometry.log_segment,
        size_factor: newest.geometry.size_factor_percent,
    };
    let replay = newest.replay.position;
    let start = WriterStart::after(&recovered.scan, newest.database, incarnation, log_from, replay);
    let segments = SegmentOptions { size: newest.geometry.log_segment, spares: 4 };
    let writer = LogWriter::open(device.clone(), segments, &start)?;
    examine::renew_spares(&device, &newest);
    let leaf = device.open(LEAF_FILE, OpenMode::Write)?;
    let overflow = device.open(OVERFLOW_FILE, OpenMode::Write)?;
    let leaf_pages = recovered.places.len() as u64;
    let counters = Counters::default();
    Counters::add(&counters.leaf_pages, leaf_pages);
    Counters::add(&counters.pending_bytes, recovered.pending_bytes as u64);
    Counters::add(&counters.pending_entries, recovered.pending_entries as u64);
    let ripe = ripe_pages(&recovered.top, options.flush_at);
    let cache = Cache::new(options.leaf_cache_bytes(recovered.top.bytes()));
    let batch = recovered.tip.number + 1;
    cache.set_batch(batch);
    Ok(Shared {
        work: runtime.event(),
        progress: runtime.event(),
        workers: Workers::new(runtime.workers(), options.outcome_bytes()),
        sorter: SpareSorter::new(options.sorter_bytes()),
        witnesses: Arc::new(Spare::new(options.witness_bytes())),
        sequencer: Sequencer::new(writer, recovered.tip.number),
        cache,
        buffers: Buffers::new(BUFFERS),
        grace: Grace::new(),
        space: Mutex::new(space),
        extents: Mutex::new(recovered.extents),
        undo: Arc::new(Undo::default()),
        overlays: Arc::new(Overlays::default()),
        handles: Arc::default(),
        published: AtomicU64::new(recovered.tip.number),
        batch: AtomicU64::new(batch),
        tip: Mutex::new(recovered.tip),
        top: ArcSwap::from_pointee(recovered.top),
        ripe: Mutex::new(ripe),
        tentative: Mutex::new(Vec::new()),
        answers: Answers::new(options.answers_bytes()),
        prefetches: Prefetches::new(runtime.event(), runtime.event()),
        arrivals: Arrivals::new(runtime.event()),
        foreground: Foreground::default(),
        structure: Mutex::new(()),
        replay_start: AtomicU64::new(newest.replay.position),
        superblocks: Mutex::new(superblocks),
        node_cache: NodeCache::open(&device)?,
        flushes: AtomicU64::new(1),
        opening,
        closing: AtomicBool::new(false),
        paused: AtomicBool::new(false),
        draining: AtomicU64::new(0),
        full: AtomicBool::new(false),
        checkpoint_full: AtomicBool::new(false),
        beats: Beats::new(runtime.event(), options.stall_after),
        quarantine: Quarantine::default(),
        stuck: Stuck::default(),
        files: Files { leaf, overflow },
        database: newest.database,
        incarnation,
        counters,
        device,
        runtime,
        options,
        _lock: lock,
        hasher: PhantomData,
    })
}

/// Pages that have pending changes enough to be rewritten at once.
fn ripe_pages(top: &RegionIndex, flush_at: u8) -> VecDeque<Prefix> {
    let mut ripe = VecDeque::new();
    for region in top.regions() {
        let state = region.read();
        let children = (0..state.children().len())
            .filter(|child| state.commits_since_write(*child) >= flush_at);
        ripe.extend(children.map(|child| state.children().prefix(child)));
    }
    ripe
}

fn start_tasks<H: Hasher, D: Device, R: Runtime>(shared: &Arc<Shared<H, D, R>>) -> Vec<R::Handle> {
    let mut flusher = Flusher::new(Arc::clone(shared));
    let mut checkpointer = Checkpointer::new(Arc::clone(shared));
    let mut prefetcher = Prefetcher::new(Arc::clone(shared));
    let mut ahead = FoldAhead::new(Arc::clone(shared));
    let mut watchdog = Watchdog::new(Arc::clone(shared));
    let spawn = |task: Task, event, mut step: Box<dyn FnMut() -> Step + Send>| {
        let guarded = Arc::clone(shared);
        let body = move || {
            let _guard = PoisonOnPanic(&*guarded);
            guarded.beats.steps(task);
            let next = step();
            match next {
                Step::Idle => guarded.enters(task, IDLE),
                Step::Done => guarded.enters(task, ENDED),
                // Waiting for a time may be part of the work: the task says so itself.
                Step::Again | Step::IdleFor(_) => {}
            }
            next
        };
        shared.runtime.spawn(task.name(), event, Box::new(body))
    };
    vec![
        spawn(Task::Flush, &shared.work, Box::new(move || flusher.step())),
        spawn(Task::Checkpoint, &shared.work, Box::new(move || checkpointer.step())),
        spawn(Task::Prefetch, &shared.prefetches.event, Box::new(move || prefetcher.step())),
        spawn(Task::Ahead, &shared.arrivals.event, Box::new(move || ahead.step())),
        shared.runtime.spawn(
            "pleach-watchdog",
            &shared.beats.event,
            Box::new(move || watchdog.step()),
        ),
    ]
}
