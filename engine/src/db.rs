//! Opening, creating and closing a database, and what its handle offers.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_beatree::Top;
use pleach_beatree::cache::{Buffers, Cache};
use pleach_beatree::grace::Grace;
use pleach_beatree::space::{self, Space};
use pleach_core::{Blake3, Hasher, Node, Prefix, TERMINATOR};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::threads::Threads;
use pleach_io::{Device, DeviceInfo, Event, LockMode, OpenMode, Runtime, Step};

use crate::ahead::{Arrivals, FoldAhead};
use crate::answers::Answers;
use crate::checkpoint::image::image_name;
use crate::checkpoint::{Checkpointer, checkpoint, first_image};
use crate::creation::{self, Folder};
use crate::error::{Error, Hex, Result};
use crate::finish::Workers;
use crate::flush::Flusher;
use crate::foreground::Foreground;
use crate::handles::{Counted, Kind, OpenHandles};
use crate::incarnation;
use crate::log::{LogWriter, SegmentOptions, WriterStart};
use crate::metrics::{Counters, Metrics};
use crate::node_cache::{NodeCache, SPILL_FILE};
use crate::options::Options;
use crate::overlays::Overlays;
use crate::prefetch::{Prefetcher, Prefetches};
use crate::recovery::{Recovered, recover};
use crate::sequencer::Sequencer;
use crate::session::{Session, SessionOptions};
use crate::shared::{Files, LEAF_FILE, OVERFLOW_FILE, PoisonOnPanic, Shared};
use crate::superblock::{self, ImageFile, Superblock, SuperblockStore};
use crate::touches::SpareSorter;
use crate::undo::Undo;
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
        let device = OsDevice::open(&options.path, os)?;
        let runtime = Threads::new(options.threads)?;
        Self::open_on(device, runtime, options)
    }
}

impl<H: Hasher, D: Device, R: Runtime> Db<H, D, R> {
    /// Opens a database on any device and runtime (a simulated disk, for crash tests).
    pub fn open_on(device: D, runtime: R, options: Options) -> Result<Self> {
        options.check()?;
        let folder = creation::inspect(&device)?;
        match folder {
            Folder::Foreign(found) => return Err(Error::NotADatabase { found }),
            Folder::Empty | Folder::HalfCreated if !options.create => return Err(Error::Missing),
            _ => {}
        }
        let lock = device.lock(LockMode::Exclusive)?;
        // Looked at again: another process may have come first.
        if creation::inspect(&device)? != Folder::Database {
            create::<H, D, R>(&device, &runtime, &options)?;
        }
        let mut superblocks = SuperblockStore::open(device.clone(), OpenMode::Write)?;
        let newest = *superblocks.newest();
        newest.check_features(true)?;
        if newest.hasher != H::ID {
            return Err(Error::WrongHasher { expected: H::ID, found: newest.hasher });
        }
        let last = incarnation::read(&device, newest.database)?;
        let recovered = recover::<H, D>(&device, &newest, last)?;
        if let Some(cut) = &recovered.scan.cut {
            tracing::warn!(
                position = cut.position,
                bytes = cut.bytes,
                "the log's torn end was cut off"
            );
        }
        superblocks.confirm()?;
        let incarnation = incarnation::raise(&device, newest.database)?;
        let shared = Arc::new(assemble(
            device,
            runtime,
            options,
            superblocks,
            incarnation,
            recovered,
            lock,
        )?);
        let tasks = start_tasks(&shared);
        Ok(Self { shared, tasks: Mutex::new(Some(tasks)) })
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
        counters.snapshot()
    }

    /// Waits until the background has brought the pending changes down to so many, or can bring
    /// them no further.
    pub fn drain(&self, max_pending_entries: u64) -> Result<()> {
        let shared = &self.shared;
        let level = || shared.counters.pending_entries.load(Ordering::Relaxed);
        let mut failed = None;
        shared.full.store(false, Ordering::Release);
        shared.draining.fetch_add(1, Ordering::AcqRel);
        shared.work.notify();
        shared.runtime.wait(&shared.progress, None, &mut || {
            failed = shared.sequencer.lock().check_open().err();
            failed.is_some()
                || shared.full.load(Ordering::Acquire)
                || level() <= max_pending_entries
        });
        shared.draining.fetch_sub(1, Ordering::AcqRel);
        match failed {
            Some(error) => Err(error),
            None if level() > max_pending_entries => {
                Err(Error::Full("the pending changes cannot be written to pages".to_owned()))
            }
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
    let database = runtime.random();
    creation::create(device, database, is_ours, |device| {
        for name in [LEAF_FILE, OVERFLOW_FILE, image_name(ImageFile::A), image_name(ImageFile::B)] {
            let file = device.open(name, OpenMode::CreateNew)?;
            device.sync(&file)?;
        }
        incarnation::create(device, database)?;
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
            ..Superblock::default()
        };
        SuperblockStore::create(device.clone(), &first)?;
        Ok(())
    })
}

fn space_geometry(segment_pages: u32, size_percent: u32) -> space::Geometry {
    space::Geometry { segment_pages, size_percent }
}

/// The geometry that the database was created with.
pub(crate) fn geometry_of(superblock: &Superblock) -> space::Geometry {
    let segment_pages = u32::try_from(superblock.geometry.leaf_segment / 4096).unwrap_or(u32::MAX);
    space_geometry(segment_pages, superblock.geometry.size_factor_percent)
}

/// Names that a database of ours may have in its folder.
fn is_ours(name: &str) -> bool {
    [
        LEAF_FILE,
        OVERFLOW_FILE,
        "image-a",
        "image-b",
        "super",
        "super.new",
        "incarnation",
        "incarnation.new",
        "log.new",
        SPILL_FILE,
    ]
    .contains(&name)
        || name.starts_with("log-")
}

fn assemble<H: Hasher, D: Device, R: Runtime>(
    device: D,
    runtime: R,
    mut options: Options,
    superblocks: SuperblockStore<D>,
    incarnation: u32,
    recovered: Recovered,
    lock: Box<dyn Send + Sync>,
) -> Result<Shared<H, D, R>> {
    let newest = *superblocks.newest();
    // The database keeps the geometry that it was created with.
    options.geometry = crate::options::Geometry {
        segment_pages: geometry_of(&newest).segment_pages,
        log_segment: newest.geometry.log_segment,
        size_factor: newest.geometry.size_factor_percent,
    };
    let needed_from = superblocks
        .other()
        .as_ref()
        .map_or(newest.replay.position, |other| other.replay.position.min(newest.replay.position));
    let start = WriterStart::after(&recovered.scan, newest.database, incarnation, needed_from);
    let segments = SegmentOptions { size: newest.geometry.log_segment, spares: 4 };
    let writer = LogWriter::open(device.clone(), segments, &start)?;
    let leaf = device.open(LEAF_FILE, OpenMode::Write)?;
    let overflow = device.open(OVERFLOW_FILE, OpenMode::Write)?;
    let geometry = geometry_of(&newest);
    let pages = u32::try_from(device.len(&leaf)? / 4096)
        .map_err(|_| Error::Corrupt("the leaf file has over 2^32 pages".to_owned()))?;
    let segments_now = pages / geometry.segment_pages;
    let leaf_pages = recovered.places.len() as u64;
    let space = Space::from_used(geometry, segments_now, recovered.places)
        .map_err(|error| Error::Corrupt(error.to_string()))?;
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
        closing: AtomicBool::new(false),
        paused: AtomicBool::new(false),
        draining: AtomicU64::new(0),
        full: AtomicBool::new(false),
        checkpoint_full: AtomicBool::new(false),
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
fn ripe_pages(top: &Top, flush_at: u8) -> VecDeque<Prefix> {
    let mut ripe = VecDeque::new();
    for region in top.regions() {
        let state = region.read();
        let children = (0..state.cuts.len()).filter(|child| state.touches[*child] >= flush_at);
        ripe.extend(children.map(|child| state.cuts.prefix(child)));
    }
    ripe
}

fn start_tasks<H: Hasher, D: Device, R: Runtime>(shared: &Arc<Shared<H, D, R>>) -> Vec<R::Handle> {
    let mut flusher = Flusher::new(Arc::clone(shared));
    let mut checkpointer = Checkpointer::new(Arc::clone(shared));
    let mut prefetcher = Prefetcher::new(Arc::clone(shared));
    let mut ahead = FoldAhead::new(Arc::clone(shared));
    let spawn = |name, event, mut step: Box<dyn FnMut() -> Step + Send>| {
        let guarded = Arc::clone(shared);
        let task = move || {
            let _guard = PoisonOnPanic(&*guarded);
            step()
        };
        shared.runtime.spawn(name, event, Box::new(task))
    };
    vec![
        spawn("pleach-flush", &shared.work, Box::new(move || flusher.step())),
        spawn("pleach-checkpoint", &shared.work, Box::new(move || checkpointer.step())),
        spawn("pleach-prefetch", &shared.prefetches.event, Box::new(move || prefetcher.step())),
        spawn("pleach-ahead", &shared.arrivals.event, Box::new(move || ahead.step())),
    ]
}
