//! The steps of a checkpoint, by the names of `docs/commit-and-recovery.md`.
//!
//! 0. `write-history`: undo since the last checkpoint becomes a run on the device.
//! 1. `cut`: with no commit in flight and the queue written, the end of the log is where a replay of this image will
//!    start.
//! 2. `copy-regions`, one by one, each under its lock for the time of a copy: branch page and buffered changes, which
//!    carry the region's own log position. Commits and flushes go on in between.
//! 3. `finish-image`: upper levels, streams, table; sync the image.
//! 4. `sync-log` past every log position in the image.
//! 5. `superblock`: write the older slot and sync it.
//! 6. `shrink-files`: cut ends of files off that nothing names any more.
//! 7. `drop-log`: retire log segments that neither superblock needs.
//!
//! Called by the task, and by a load or a close on their own threads.

use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::pages::OverflowMapImage;
use pleach_beatree::space::MAX_PAGES;
use pleach_core::Key;
use pleach_core::page::branch::BranchEntry;
use pleach_core::page::stream::StreamId;
use pleach_io::Disk;
use pleach_journal::format::buffered::TrieEncoder;
use pleach_journal::format::image::{ImageWriter, WrittenBranch};
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::superblock::{DurabilityMode, ImageRef, Superblock};
use pleach_journal::format::table::{TrieRef, map_end};
use pleach_journal::log::copies;

use super::image::finish_image;
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::options::Durability;
use crate::state::NamespaceDb;
use crate::state::commits::CommitState;
use crate::state::history::ImageHistory;
use crate::state::order::images::{ImageGuard, NUMBERS_FOR_CLOSE};
use crate::state::pace::beats::{IDLE, Task};
use crate::state::tries::Trie;
use pleach_history::DiskRun;

/// Time until a checkpoint checks again whether its cut can be made.
const CUT_RETRY: Duration = Duration::from_millis(10);

/// An image in the making.
pub(super) struct ImageBuild {
    writer: ImageWriter,
    cut: LogPoint,
    /// The history at the cut.
    history: ImageHistory,
    tip: CommitState,
    /// Tries at the cut that are not in the image yet; the last one is the next.
    tries: Vec<Trie>,
    /// The trie that is being copied; `None` when all are written.
    copying: Option<TrieCopy>,
    done: Vec<TrieRef>,
    /// Regions copied so far, of all tries.
    pub(super) regions: usize,
    map: OverflowMapImage,
    /// The leaf pages that the image names: page n is bit n % 8 of byte n / 8.
    leaf_map: Vec<u8>,
    /// Highest log position in the image.
    log_position: LogPos,
    /// While it lives no regions are joined, and no trie is removed.
    making: ImageGuard,
}

/// A trie whose regions are being copied.
struct TrieCopy {
    trie: Trie,
    /// The first key of the next region.
    next: Key,
    written: Vec<WrittenBranch>,
    buffered: TrieEncoder,
}

impl TrieCopy {
    fn new(trie: Trie) -> Self {
        Self { trie, next: [0; 32], written: Vec::new(), buffered: TrieEncoder::default() }
    }
}

impl ImageBuild {
    /// Writes the upper levels and the buffered changes of a trie whose regions are all copied.
    fn finish_trie(&mut self, of: TrieCopy) -> Result<()> {
        let TrieCopy { trie, written, buffered, .. } = of;
        let namespace = trie.namespace;
        let (root, level) = self.writer.write_upper_levels(namespace, written)?;
        let (buffered, sums) = buffered.finish();
        let buffered = self.writer.write_named_stream(namespace, StreamId::Buffered, &buffered)?;
        self.done.push(TrieRef {
            namespace,
            level,
            root_tag: root.tag,
            root_page: root.page,
            kind: trie.kind,
            root: self.tip.roots.of(namespace).map(|root| root.node),
            dropped: trie.dropped.unwrap_or(0),
            buffered,
            sums,
        });
        self.copying = self.tries.pop().map(TrieCopy::new);
        Ok(())
    }
}

/// Makes a whole checkpoint on the calling thread, for a close and a load. `clean`: nothing follows in the log.
pub(crate) fn checkpoint(db: &NamespaceDb, clean: bool) -> Result<()> {
    let made = checkpoint_now(db, clean);
    // The stages were the caller's: the task itself, which may sleep for long, is in none of them.
    db.pace.enter_stage(Task::Checkpoint, IDLE);
    made
}

fn checkpoint_now(db: &NamespaceDb, clean: bool) -> Result<()> {
    write_history(db).map_err(|error| poison_unless_full(db, error))?;
    let build = copy_all_regions(db, || start_image(db, 0, true))
        .map_err(|error| poison_unless_full(db, error))??;
    let end = clean.then_some(build.cut.position);
    finish_checkpoint(db, build, end).map_err(|error| poison_unless_full(db, error))
}

/// Checkpoint `cut`, once it is possible, and `copy-regions` for all. The inner error is one that defers the image.
fn copy_all_regions(
    db: &NamespaceDb,
    mut start: impl FnMut() -> Result<StartOutcome>,
) -> Result<Result<ImageBuild>> {
    let mut build = loop {
        match start()? {
            StartOutcome::Begun(build) => break *build,
            StartOutcome::Busy => {
                // Another image may be in the making, too.
                db.pace.wait(Some(CUT_RETRY), &mut || !db.images.is_image_in_progress());
                wait_for_quiet(db);
            }
            StartOutcome::Deferred(error) => return Ok(Err(error)),
        }
    };
    copy_regions(&mut build, usize::MAX)?;
    Ok(Ok(build))
}

/// Waits a moment for another thread between a commit's ticket and its publication, which notifies the caller.
fn wait_for_quiet(db: &NamespaceDb) {
    db.pace.wait(Some(CUT_RETRY), &mut || db.commits.sequencer.lock().in_flight == 0);
}

/// A backup without leaf pages and long values.
pub(crate) struct BackupImage {
    /// The backup's superblock: where its log begins, and where it ends ([`Superblock::durable_through`]).
    pub(crate) superblock: Superblock,
    /// The newest commit before that end.
    pub(crate) newest: CommitState,
    /// Runs of the history that the image names: their pages stay in use.
    _runs: Vec<Arc<DiskRun>>,
}

/// Writes an image of the database, and its log from there on, to another device, where the image files exist. All leaf
/// pages and overflow runs that the two name are those of the moment when this returns; the caller keeps them in place
/// until it has copied them. No checkpoint is made meanwhile.
pub(crate) fn write_backup_image(db: &NamespaceDb, target: &Disk) -> Result<BackupImage> {
    let build = copy_all_regions(db, || {
        db.commits.sequencer.lock().check_open()?;
        start_image_on(db, target, NUMBERS_FOR_CLOSE, false)
    })??;
    let sequencer = &db.commits.sequencer;
    let (end, newest) = loop {
        // A close lets this go on, and waits for the image.
        sequencer.lock().check_writable()?;
        match sequencer.cut(false, |_| db.commits.tip())? {
            Some((point, tip)) => break (point.position, tip),
            None => wait_for_quiet(db),
        }
    };
    assert!(end >= build.log_position, "the log has all that the image has");
    sequencer.write_through(end, true).inspect_err(|error| db.poison(error))?;
    let ImageBuild { writer, cut, history: past, tip, done, map, leaf_map, making, .. } = build;
    let image = finish_image(writer, &tip, done, &past, &map.bytes, &leaf_map)?;
    let before = db.images.newest();
    let superblock = Superblock {
        // Log that became durable since is not in the copy.
        durable_through: end,
        ..superblock(db, &before, image, &tip, cut, past.records, None)
    };
    let (from, prepared) = (superblock.log_from, superblock.prepared_through);
    copies::copy(
        &db.store.device,
        target,
        superblock.database,
        sequencer.segments.size(),
        from..end,
        prepared,
    )?;
    drop(making);
    db.pace.notify();
    Ok(BackupImage { superblock, newest, _runs: past.runs })
}

/// As in the task: without room nothing has changed, any other failed write or sync poisons and is in doubt.
fn poison_unless_full(db: &NamespaceDb, error: Error) -> Error {
    if matches!(error, Error::Full(_)) {
        return error;
    }
    db.poison(&error);
    error.to_in_doubt()
}

/// The result of `cut`.
pub(super) enum StartOutcome {
    Begun(Box<ImageBuild>),
    /// A commit is in flight, or another image in the making.
    Busy,
    /// There is no number or no file for the image: nothing was written, and it can be tried again.
    Deferred(Error),
}

/// Checkpoint `cut`. Leaves the last `kept` numbers of this open. During a load only it and a close make images.
pub(super) fn start_image(db: &NamespaceDb, kept: u64, loading: bool) -> Result<StartOutcome> {
    start_image_on(db, &db.store.device, kept, loading)
}

/// The same with the image on any device, of this database or of a backup.
fn start_image_on(
    db: &NamespaceDb,
    device: &Disk,
    kept: u64,
    loading: bool,
) -> Result<StartOutcome> {
    if let Err(error) = db.load_regions() {
        return Ok(StartOutcome::Deferred(error));
    }
    // CommitState, tries and map are exactly those of the log position where the replay starts.
    let state = |point: LogPoint| {
        let making = db.images.try_begin_image()?;
        let is_short = db.pace.is_room_short.get();
        let map = db.space.overflow_map_image(point.position.get(), is_short);
        let tries = db.tries.list();
        let past = db.commits.undo.image_history(point.position);
        Some((db.commits.tip(), tries, map, making, past))
    };
    let Some((cut, Some((tip, tries, map, making, past)))) =
        db.commits.sequencer.cut(loading, state)?
    else {
        return Ok(StartOutcome::Busy);
    };
    let file = db.images.newest().image.file.other();
    let writer = db
        .images
        .next_number(kept)
        .and_then(|number| Ok(ImageWriter::start(device, file, db.store.database, number)?));
    let writer = match writer {
        Ok(writer) => writer,
        Err(error) => return Ok(StartOutcome::Deferred(error)),
    };
    let mut tries: Vec<Trie> = tries.iter().rev().cloned().collect();
    Ok(StartOutcome::Begun(Box::new(ImageBuild {
        writer,
        cut,
        history: past,
        tip,
        copying: tries.pop().map(TrieCopy::new),
        tries,
        done: Vec::new(),
        regions: 0,
        map: map?,
        leaf_map: Vec::new(),
        log_position: cut.position,
        making,
    })))
}

/// Checkpoint `copy-regions`, for up to `count` of them. True when all are copied.
pub(super) fn copy_regions(build: &mut ImageBuild, count: usize) -> Result<bool> {
    for _ in 0..count {
        let Some(mut copying) = build.copying.take() else { break };
        // Full buffers are written before the lock is taken.
        build.writer.make_room()?;
        if copy_region(build, &mut copying)? {
            build.copying = Some(copying);
        } else {
            build.finish_trie(copying)?;
        }
    }
    Ok(build.copying.is_none())
}

/// Copies the next region. True when the trie has more.
fn copy_region(build: &mut ImageBuild, of: &mut TrieCopy) -> Result<bool> {
    let TrieCopy { trie, next, written, buffered } = of;
    let key = *next;
    trie.tree.with_region(&key, |region, state| {
        let entries = state.children().iter().enumerate().map(|(index, child)| BranchEntry {
            depth: child.prefix.len(),
            page_no: child.page.map(u64::from),
            tag: child.tag,
            node: *state.node(index),
        });
        let (page, tag) = build.writer.write_branch(
            trie.namespace,
            region.prefix(),
            1,
            state.log_position(),
            entries,
        )?;
        written.push(WrittenBranch {
            prefix: *region.prefix(),
            page,
            tag,
            node: *state.own_node(),
        });
        let end = state.children().page_end();
        assert!(end < MAX_PAGES, "a lost region is in no image");
        let bytes = end.div_ceil(8) as usize;
        build.leaf_map.resize(bytes.max(build.leaf_map.len()), 0);
        for page in state.children().iter().filter_map(|child| child.page) {
            build.leaf_map[(page.get() / 8) as usize] |= 1 << (page.get() % 8);
        }
        buffered.add(region.prefix(), state);
        build.log_position = build.log_position.max(LogPos::new(state.log_position()));
        build.regions += 1;
        let behind = region.prefix().next();
        if let Some(behind) = &behind {
            *next = *behind.first_key();
        }
        Ok(behind.is_some())
    })
}

/// Checkpoint from `finish-image` to `drop-log`. `clean_end` is the end of the log when nothing follows.
pub(super) fn finish_checkpoint(
    db: &NamespaceDb,
    build: ImageBuild,
    clean_end: Option<LogPos>,
) -> Result<()> {
    let ImageBuild { writer, cut, history: past, tip, done, .. } = build;
    let ImageBuild { map, leaf_map, log_position, making, .. } = build;
    let _span = tracing::debug_span!("checkpoint", commit = tip.number).entered();
    let enters = |stage| db.pace.enter_stage(Task::Checkpoint, stage);
    enters("writing the image");
    let image = finish_image(writer, &tip, done, &past, &map.bytes, &leaf_map)?;
    Counters::add(&db.counters.image_bytes, u64::from(image.pages) * 4096);
    // The map has the length of the overflow file, which a flush or a commit may have grown without syncing it.
    enters("syncing the overflow file");
    db.store.device.sync(&db.space.overflow)?;
    enters("syncing the log");
    db.commits.sequencer.write_through(log_position, true)?;
    enters("writing the superblock");
    let log_from = db.images.advance_kept_log(cut.position, db.kept_log_bytes()).min(past.records);
    let (older, newest) =
        db.images.write(|newest| superblock(db, newest, image, &tip, cut, log_from, clean_end))?;
    db.images.set_named_runs(past.runs);
    enters("recycling the log");
    db.images.fit_image_file(&db.space, &db.store.device, &image);
    db.space.shrink(map_end(&leaf_map), map.peak);
    db.images.set_replay_start(cut.position);
    db.pace.is_checkpoint_full.set(false);
    Counters::add(&db.counters.checkpoints, 1);
    Counters::add(&db.counters.checkpoints_overtaken, u64::from(log_position > cut.position));
    db.commits.sequencer.segments.retire(older.min(newest))?;
    // Whoever waits for room looks at the device again.
    drop(making);
    db.pace.notify();
    db.measure_index();
    tracing::debug!(pages = image.pages, position = %cut.position, "a checkpoint is written");
    Ok(())
}

/// Checkpoint `write-history`: undo since the last checkpoint becomes a run on the device. Without room it stays in the
/// log, unless it exceeds its memory.
pub(super) fn write_history(db: &NamespaceDb) -> Result<()> {
    let undo = &db.commits.undo;
    let number = || db.images.next_number(NUMBERS_FOR_CLOSE);
    let write = || undo.write_run(number, &mut |pages| Ok(db.space.allocate_history(pages)?));
    let written = db.pace.run_as_stage(Task::Checkpoint, "writing the history", write);
    db.pace.is_history_full.set(written.is_err());
    db.pace.notify();
    match written {
        Ok(()) => Ok(()),
        Err(error @ (Error::Full(_) | Error::FlushNumbers)) if !undo.needs_writing(1) => {
            tracing::warn!(%error, "the history stays in the log");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The superblock of an image, after the newest one.
fn superblock(
    db: &NamespaceDb,
    newest: &Superblock,
    image: ImageRef,
    tip: &CommitState,
    cut: LogPoint,
    log_from: LogPos,
    clean_end: Option<LogPos>,
) -> Superblock {
    let sequencer = &db.commits.sequencer;
    Superblock {
        image,
        commit: tip.number,
        root: tip.roots.over_all(db.hasher),
        next_flush: db.images.next_counter(),
        incarnation: db.images.incarnation,
        replay: cut,
        durable_through: sequencer.durable(),
        clean_end,
        prepared_through: sequencer.segments.prepared_through(),
        history: db.commits.undo.history_commits(),
        log_from,
        durability: match db.options.durability {
            Durability::Commit => DurabilityMode::Commit,
            Durability::Periodic(time) => {
                DurabilityMode::Periodic(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
            }
            Durability::None => DurabilityMode::None,
        },
        ..*newest
    }
}
