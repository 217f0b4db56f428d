//! Opening a database. The folder is examined ([`examine`], [`recovery`]), or a new database is created in it. Then the
//! files are taken over for writing, and the background tasks start.
//!
//! Everything is opened, measured and checked before the first byte is written. The folder's lock is held from before
//! the examination on. Only `Db::open` calls this; the tools of `pleach-ops` stop after [`examine`].

mod assemble;
#[cfg(test)]
mod damage_tests;
pub mod examine;
mod follow;
pub(crate) mod history;
pub mod pages;
mod rebuild;
#[cfg(test)]
mod rebuild_tests;
pub mod recovery;
#[cfg(test)]
mod tests;
mod trie;

use std::sync::Arc;

use pleach_beatree::page_no::page_offset;
use pleach_beatree::space;
use pleach_io::{Disk, Event, Executor, LockMode, OpenMode, Step, TaskHandle};
use pleach_journal::format::creation::{self, DirectoryState, UNFINISHED};
use pleach_journal::format::incarnation;
use pleach_journal::format::names::{IMAGES, LEAF_FILE, OVERFLOW_FILE};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::superblock::{self, FORMAT_VERSION, Geometry, Superblock};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::format::trie_kind::TrieKind;
use pleach_journal::log::{LogWriter, SegmentOptions, WriterStart, segment};

use crate::checkpoint::{Checkpointer, checkpoint, first_image};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::flush::Flusher;
use crate::opening::Opening;
use crate::options::{Durability, Options};
use crate::prefetch::Prefetcher;
use crate::prefetch::requests::PrefetchState;
use crate::roots::{Roots, TrieRoot};
use crate::state::pace::beats::{ENDED, IDLE, Task};
use crate::state::{NamespaceDb, PanicGuard};
pub(crate) use assemble::OpenedEngine;
use assemble::{OpenRole, assemble, start_loader};
use examine::{Examination, clarify_error};
pub use follow::examine_beside;
pub(crate) use follow::open_replica;
use recovery::LogEnd;

/// Opens a database, creates it when the options say so, and starts its tasks.
pub(crate) fn open(device: Disk, runtime: Executor, options: Options) -> Result<OpenedEngine> {
    let _span = tracing::info_span!("open", path = %options.path.display()).entered();
    let opened = if options.read_only {
        open_replica(device, runtime, options)?
    } else {
        open_checked(device, runtime, options).map_err(clarify_error)?
    };
    let Opening { created, closed, commit, oldest, replayed, .. } = &opened.opening;
    tracing::info!(commit, oldest, replayed, closed, created, "opened");
    Ok(opened)
}

fn open_checked(device: Disk, runtime: Executor, options: Options) -> Result<OpenedEngine> {
    let look = || examine::inspect(&device, options.create, options.tuning.fills);
    if look()? == DirectoryState::NoSuperblock {
        return Err(Error::MissingFile { file: superblock::FILE.to_owned() });
    }
    let lock = device.lock(LockMode::Exclusive)?;
    // Checked again under the lock: another process may have come first.
    let created = look()? != DirectoryState::Database;
    if created {
        create(&device, &runtime, &options)?;
    }
    let superblocks = examine::superblocks(&device, OpenMode::Write)?;
    let limits = |found: &Superblock| options.history_limits(found.history);
    let accept = options.accept_root;
    let mut examined = examine::examine(
        options.hasher,
        &device,
        superblocks,
        limits,
        accept.as_ref(),
        LogEnd::Proven,
        true,
    )?;
    if options.require_history {
        examined.require_history()?;
    }
    if examined.incarnation.number == u32::MAX {
        return Err(incarnation::IncarnationError::Exhausted.into());
    }
    examined.opening.created = created;
    let opening = examined.opening.clone();
    let (root_accepted, is_late) = (examined.recovered.root_accepted, examined.recovered.is_late);
    let state = take_over_files(device, runtime, options, examined, lock)?;
    let prefetching = PrefetchState::new(&state.runtime, state.budget.values_bytes());
    let prefetching = Arc::new(prefetching);
    // Replays from either superblock would find the recorded root again, and the next commit made on another. And a
    // creation has written one image: a bad page of it would lose the database.
    let images = if root_accepted { 2 } else { u32::from(state.images.newest().generation == 1) };
    for _ in 0..images {
        match checkpoint(&state, false) {
            Err(error @ Error::Full(_)) if !root_accepted => {
                tracing::warn!(%error, "there is no second image yet");
            }
            // The outcome does not matter: the state is the same as before.
            Err(Error::InDoubt(cause)) => return Err(Error::Poisoned(cause)),
            made => made?,
        }
    }
    let engine = Arc::new(Engine::new(state, prefetching));
    let mut tasks = start_tasks(&engine)?;
    if is_late {
        tasks.push(start_loader(&engine)?);
    }
    Ok(OpenedEngine { engine, tasks, opening })
}

/// Step by step: marker, files, an image of the empty trie, log, incarnation, superblock.
fn create(device: &Disk, runtime: &Executor, options: &Options) -> Result<()> {
    let hasher = options.hasher.unwrap_or_default();
    let segment = options.geometry.log_segment;
    let log_limit = options.log_limit_of(options.geometry.default_log_limit(), segment)?;
    creation::create(device, runtime.random(), |device, database| {
        let unfinished = options.tuning.fills.then_some(UNFINISHED);
        let names = [LEAF_FILE, OVERFLOW_FILE].into_iter().chain(IMAGES);
        for name in names.chain(unfinished) {
            // Empty files: the sync of the folder makes them durable.
            device.open(name, OpenMode::CreateNew)?;
        }
        incarnation::create(device, database, incarnation::FIRST)?;
        segment::create(device, database, options.geometry.log_segment)?;
        let image = first_image(
            device,
            database,
            space::FileGeometry {
                segment_pages: options.geometry.segment_pages,
                size_percent: options.geometry.size_factor,
            },
        )?;
        let geometry = Geometry {
            page_size: 4096,
            size_factor_percent: options.geometry.size_factor,
            log_segment: options.geometry.log_segment,
            log_limit,
            leaf_segment: page_offset(options.geometry.segment_pages.into()),
            overflow_segment: page_offset(options.geometry.segment_pages.into()),
            stored_levels: pleach_beatree::page_plan::STORED_LEVELS,
        };
        let first = Superblock {
            database,
            created_by: FORMAT_VERSION,
            hasher: hasher.into(),
            geometry,
            image,
            root: Roots::new([(0, TrieRoot::empty(TrieKind::Merkle))]).over_all(hasher),
            next_flush: 1,
            history: options.history.unwrap_or(0),
            prepared_through: options.geometry.log_segment.into(),
            // So the first open does not look for records.
            clean_end: Some(LogPos::START),
            ..Superblock::default()
        };
        // The superblock proves that all other files are there: its name must not be durable before theirs.
        device.sync_folder()?;
        SuperblockStore::create(device.clone(), &first)?;
        Ok(())
    })
}

/// Recovery from `confirm-log` to `open`: makes the examined state durable, and takes the files over for
/// writing.
fn take_over_files(
    device: Disk,
    runtime: Executor,
    mut options: Options,
    mut examined: Examination,
    lock: Box<dyn Send + Sync>,
) -> Result<Arc<NamespaceDb>> {
    let Examination { superblocks, recovered, log_from, opening, .. } = &mut examined;
    recovered.retain_unreadable_runs();
    if let Some(cut) = &opening.cut {
        tracing::warn!(
            position = %cut.position,
            bytes = cut.bytes,
            "the log's torn end was cut off"
        );
    }
    if let Some(error) = &opening.fell_back {
        tracing::error!(%error, "the newest checkpoint cannot be used; the one before it is");
    }
    for note in &opening.notes {
        tracing::warn!(%note, "found when the database was opened");
    }
    let newest = superblocks.newest().geometry;
    let log_limit = options.log_limit_of(newest.log_limit, newest.log_segment)?;
    // Steps that can fail for other reasons than the medium come first.
    create_missing_image(&device)?;
    // The database keeps the geometry that it was created with.
    let size = newest.log_segment;
    options.geometry = crate::options::Geometry {
        segment_pages: superblocks.newest().page_space().segment_pages,
        log_segment: size,
        size_factor: newest.size_factor_percent,
    };
    let (database, scan) = (superblocks.newest().database, &recovered.scan);
    // Segments that other processes read are no dead blocks, either.
    let kept_from = superblocks.newest().log_from;
    let mut start = WriterStart::after_scan(scan, database, *log_from, kept_from);
    start.confirm(&device, size)?;
    superblocks.confirm(start.proven, start.prepared_through)?;
    let incarnation = incarnation::raise(&device, database)?;
    // Waiting spares take room: half of the log's, and less on a small device.
    let spares = (log_limit / 2 / size).max(4).min(device.free_space()?.1 / 128 / size);
    let cached = options.durability != Durability::Commit;
    let segments = SegmentOptions { size, spares: spares.clamp(1, 32) as usize, cached };
    let writer = LogWriter::open(device.clone(), segments, &start, incarnation)?;
    examine::renew_spares(&device, superblocks.newest());
    let open_as = OpenRole::Writer { lock, log_limit, incarnation };
    assemble(device, runtime, options, examined, writer, open_as)
}

/// Makes the file of the image that is not in use, if it is missing.
fn create_missing_image(device: &Disk) -> Result<()> {
    let names = device.list()?;
    for file in IMAGES.into_iter().filter(|file| !names.iter().any(|name| name == file)) {
        device.open(file, OpenMode::CreateNew)?;
    }
    Ok(())
}

/// Starts the background tasks. Where one cannot be started, the earlier ones end.
fn start_tasks(engine: &Engine) -> Result<Vec<TaskHandle>> {
    let (db, prefetching) = (&engine.db, &engine.prefetch);
    let mut flusher = Flusher::new(Arc::clone(db));
    let mut checkpointer = Checkpointer::new(Arc::clone(db));
    let mut prefetcher = Prefetcher::new(Arc::clone(db), Arc::clone(prefetching));
    let guarded = |task: Task, mut step: pleach_io::Task| -> pleach_io::Task {
        let guarded = Arc::clone(db);
        Box::new(move || {
            let _guard = PanicGuard(&guarded);
            guarded.pace.beats.count_step(task);
            let next = step();
            match next {
                Step::Idle => guarded.pace.enter_stage(task, IDLE),
                Step::Done => guarded.pace.enter_stage(task, ENDED),
                // Waiting for a time may be part of the work: the task itself reports progress.
                Step::Continue | Step::IdleFor(_) => {}
            }
            next
        })
    };
    let (flush, checkpoint, prefetch) = (Task::Flush, Task::Checkpoint, Task::Prefetch);
    let work = &db.pace.work;
    let tasks: [(&str, &Event, pleach_io::Task); 3] = [
        (flush.name(), work, guarded(flush, Box::new(move || flusher.step()))),
        (checkpoint.name(), work, guarded(checkpoint, Box::new(move || checkpointer.step()))),
        (
            prefetch.name(),
            &prefetching.event,
            guarded(prefetch, Box::new(move || prefetcher.step())),
        ),
    ];
    // The tasks are told to end before the handles are dropped, which waits for them.
    let start = |(name, event, task)| {
        db.runtime.spawn(name, event, task).inspect_err(|_| engine.end_tasks(None))
    };
    Ok(tasks.into_iter().map(start).collect::<pleach_io::Result<_>>()?)
}
