//! Checkpoint: an image of index, nodes, delta and overflow map, so that old log can go.
//!
//! 1. *Cut*: with no commit in flight and the queue written, the end of the log is where a replay
//!    of this image will start.
//! 2. Region by region, under its lock for the time of a copy: branch page and pending changes,
//!    which carry the region's own log position. Commits and flushes go on in between.
//! 3. Upper levels, streams, table; sync the image.
//! 4. Sync the log past every position in the image.
//! 5. Write the older superblock slot and sync it.
//! 6. Retire log segments that neither superblock needs.

pub(crate) mod delta;
pub(crate) mod image;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pleach_beatree::Region;
use pleach_beatree::region::{NodePage, Nodes};
use pleach_beatree::space::{self, Extents};
use pleach_core::page::branch::Entry;
use pleach_core::page::stream::StreamId;
use pleach_core::{Hasher, Key, Node};
use pleach_io::{Device, Event, OpenMode, Runtime, Step};

use crate::error::{Error, Result};
use crate::log::Point;
use crate::metrics::Counters;
use crate::options::Durability;
use crate::quarantine::backoff;
use crate::shared::{LAST_NUMBERS, Shared, Tip};
use crate::superblock::{DurabilityMode, ImagePlace, Superblock};
use crate::watchdog::{IDLE, Task};
use image::{ImageWriter, Written, node_file};
use table::{StreamPlace, Table};

/// How often a region's nodes may come and go between their reading and their copying, in one step.
const COPIES: usize = 4;
/// Pages that an image may grow by, beside a quarter, without asking for room.
const IMAGE_SLACK: u64 = 32;

struct Work<D: Device> {
    writer: ImageWriter<D>,
    file: crate::superblock::ImageFile,
    cut: Point,
    tip: Tip,
    next: Option<Key>,
    written: Vec<Written>,
    /// Position of each written region.
    positions: Vec<u64>,
    delta: Vec<u8>,
    map: Vec<u8>,
    /// Highest log position in the image.
    position: u64,
    /// Nodes that were read for a copy of their region, and where: they do not enter memory for it.
    read: Option<NodePage>,
    nodes: Vec<Node>,
}

/// The checkpoint task.
pub(crate) struct Checkpointer<H: Hasher, D: Device, R: Runtime> {
    shared: Arc<Shared<H, D, R>>,
    work: Option<Work<D>>,
    /// The log could not be prepared beyond this.
    refused_at: Option<u64>,
    /// Both image files were told to have room for an image of so many pages.
    room_for: u64,
    /// Checkpoints in a row that met nodes which cannot be read, and when the next may be.
    failures: u32,
    not_before: Duration,
}

/// How far a step has brought an image.
enum Serialised {
    Some,
    All,
    /// The nodes of a region are not in memory and cannot be read.
    Unreadable(Error),
}

impl<H: Hasher, D: Device, R: Runtime> Checkpointer<H, D, R> {
    pub(crate) fn new(shared: Arc<Shared<H, D, R>>) -> Self {
        Self {
            shared,
            work: None,
            refused_at: None,
            room_for: 0,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// One step of the task.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(Error::Full(why)) => {
                tracing::warn!(%why, "no room for a checkpoint; it is tried again");
                self.shared.checkpoint_full.store(true, Ordering::Release);
                self.shared.progress.notify();
                self.work = None;
                self.shared.enters(Task::Checkpoint, IDLE);
                Step::IdleFor(Duration::from_millis(500))
            }
            Err(error) => {
                tracing::error!(%error, "the checkpoint failed");
                self.shared.poison(&error);
                Step::Done
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        if self.work.is_none() {
            if self.shared.closing.load(Ordering::Acquire) {
                return Ok(Step::Done);
            }
            if self.shared.paused.load(Ordering::Acquire) {
                return Ok(Step::Idle);
            }
        }
        self.prepare_log();
        self.keep_room();
        let Some(work) = &mut self.work else {
            if !self.shared.log_is_long() {
                return Ok(Step::Idle);
            }
            let wait = self.not_before.saturating_sub(self.shared.runtime.now());
            // A page that has come back may have been the one that was missing.
            if !wait.is_zero() && self.shared.stuck.checkpoint_error().is_some() {
                self.shared.enters(Task::Checkpoint, IDLE);
                return Ok(Step::IdleFor(wait));
            }
            // An image that is begun is one less to fall back on.
            if let Err(error) = self.shared.try_nodes_aside() {
                return Ok(self.puts_off(error));
            }
            self.shared.enters(Task::Checkpoint, "waiting for a moment without commits");
            return Ok(match start(&self.shared, LAST_NUMBERS)? {
                Started::Begun(work) => {
                    self.work = Some(*work);
                    // There may be room now, and what could not be read may be readable: whoever
                    // commits waits for what comes of it.
                    self.shared.checkpoint_full.store(false, Ordering::Release);
                    self.shared.stuck.set_checkpoint(None);
                    Step::Again
                }
                Started::CommitInFlight => Step::IdleFor(Duration::from_millis(1)),
                Started::PutOff(error) => self.puts_off(error),
            });
        };
        self.shared.enters(Task::Checkpoint, "serialising regions");
        let from = work.next;
        match serialise(&self.shared, work, self.shared.options.checkpoint_regions)? {
            Serialised::Some if work.next == from => {}
            Serialised::Some => {
                let now = self.shared.runtime.now();
                self.shared.beats.comes_further(Task::Checkpoint, now);
            }
            Serialised::All => {
                if let Some(work) = self.work.take() {
                    finish(&self.shared, work, None)?;
                }
                self.failures = 0;
                self.shared.stuck.set_checkpoint(None);
                self.shared.progress.notify();
            }
            Serialised::Unreadable(error) => return Ok(self.puts_off(error)),
        }
        Ok(Step::Again)
    }

    /// The image cannot be made for now. Nothing names it yet, and the log keeps what the one in use
    /// does not have.
    fn puts_off(&mut self, error: Error) -> Step {
        self.work = None;
        self.shared.enters(Task::Checkpoint, IDLE);
        self.failures += 1;
        let wait = backoff(self.failures);
        tracing::error!(%error, ?wait, "no checkpoint can be made; it is tried again");
        self.not_before = self.shared.runtime.now().saturating_add(wait);
        self.shared.stuck.set_checkpoint(Some(error));
        self.shared.progress.notify();
        if self.shared.closing.load(Ordering::Acquire) { Step::Done } else { Step::IdleFor(wait) }
    }

    /// Keeps room for the next image as regions and pending changes grow, so that a disk that fills up
    /// between two checkpoints does not keep the next one, and with it a close, from being written.
    fn keep_room(&mut self) {
        let pending = self.shared.counters.pending_bytes.load(Ordering::Relaxed);
        let pages = self.shared.top.load().regions().len() as u64 + pending / 4096;
        if pages > self.room_for {
            reserve_images(&self.shared, pages);
            self.room_for = pages + pages / 4;
        }
    }

    /// Keeps the log prepared for half a segment more. Where that fails nothing is lost: the commit that
    /// needs the segment tries again, and says so.
    fn prepare_log(&mut self) {
        let sequencer = &self.shared.sequencer;
        let Some(through) = sequencer.runs_out_at() else { return };
        let prepared = sequencer.segments().prepared_through();
        if self.refused_at == Some(prepared) {
            return;
        }
        let prepare = || self.shared.prepare_log(through);
        if let Err(error) =
            self.shared.within(Task::Checkpoint, "making a segment of the log", prepare)
        {
            tracing::warn!(%error, "the log's next segment could not be made ahead");
            self.refused_at = Some(prepared);
        }
    }
}

/// A whole checkpoint on the calling thread, as close and bulk load make it.
pub(crate) fn checkpoint<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    clean: bool,
) -> Result<()> {
    let made = checkpoint_now(shared, clean);
    // The stages were the caller's: the task itself, which may sleep for long, has nothing to do with
    // how far they got.
    shared.enters(Task::Checkpoint, IDLE);
    made
}

fn checkpoint_now<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    clean: bool,
) -> Result<()> {
    // As for the task: no image is begun that is known not to come to its end.
    shared.try_nodes_aside()?;
    let mut work = loop {
        match start(shared, 0)? {
            Started::Begun(work) => break *work,
            Started::CommitInFlight => {}
            Started::PutOff(error) => return Err(error),
        }
        // Another thread is between a commit's ticket and its publication, which says so.
        shared.runtime.wait(&shared.progress, Some(Duration::from_millis(10)), &mut || {
            shared.sequencer.lock().in_flight == 0
        });
    };
    loop {
        match serialise(shared, &mut work, usize::MAX)? {
            Serialised::Some => {}
            Serialised::All => break,
            Serialised::Unreadable(error) => return Err(error),
        }
    }
    let end = clean.then_some(work.cut.position);
    finish(shared, work, end)
}

/// What comes of step 1.
enum Started<D: Device> {
    Begun(Box<Work<D>>),
    CommitInFlight,
    /// There is no number for the image, or no file: nothing was written, and it can be tried again.
    PutOff(Error),
}

/// Step 1.
fn start<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    kept: u64,
) -> Result<Started<D>> {
    // Tip and map are those of the very point where the replay starts.
    let Some((cut, (tip, map))) = shared
        .sequencer
        .cut(|point| (shared.tip.lock().clone(), overflow_map(shared, point.position)))?
    else {
        return Ok(Started::CommitInFlight);
    };
    let file = shared.superblocks.lock().newest().image.file.other();
    let writer = shared
        .flush_number(kept)
        .and_then(|number| ImageWriter::start(&shared.device, file, shared.database, number));
    let writer = match writer {
        Ok(writer) => writer,
        Err(error) => return Ok(Started::PutOff(error)),
    };
    Ok(Started::Begun(Box::new(Work {
        writer,
        file,
        cut,
        tip,
        next: Some([0; 32]),
        written: Vec::new(),
        positions: Vec::new(),
        delta: Vec::new(),
        map: map?,
        position: cut.position,
        read: None,
        nodes: Vec::new(),
    })))
}

/// Step 2, for up to `count` regions.
fn serialise<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    work: &mut Work<D>,
    count: usize,
) -> Result<Serialised> {
    for _ in 0..count {
        let Some(key) = work.next else { return Ok(Serialised::All) };
        // Whatever is full is written before the lock is taken.
        work.writer.make_room()?;
        // Who is overtaken each time goes on with the next step.
        for _ in 0..COPIES {
            let Some((region, at)) = copy_region(shared, work, &key)? else { break };
            work.read = None;
            match shared.nodes_for_image(&region, &at, &mut work.nodes) {
                Ok(read) => work.read = read.then_some(at),
                Err(error) => return Ok(Serialised::Unreadable(error)),
            }
        }
    }
    Ok(if work.next.is_none() { Serialised::All } else { Serialised::Some })
}

/// Copies the region over a key, unless its nodes are away and not those that were read: then it says
/// which region that is and where they are. Nodes that are away stay away: an image that brought in
/// what it copies would leave the nodes of all regions in memory, whatever they may take.
fn copy_region<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    work: &mut Work<D>,
    key: &Key,
) -> Result<Option<(Arc<Region>, NodePage)>> {
    shared.in_region(key, |region, state| {
        let nodes = match state.nodes() {
            Nodes::Resident(nodes) => nodes,
            // A place names a page with exactly the region's nodes.
            Nodes::Paged(at) if work.read == Some(*at) => &work.nodes,
            Nodes::Paged(at) => return Ok(Some((Arc::clone(region), *at))),
        };
        let entries = state.children().iter().zip(nodes).map(|(cut, node)| Entry {
            depth: cut.prefix.len(),
            place: cut.page.map(u64::from),
            tag: cut.tag,
            node: *node,
        });
        let (page, tag) = work.writer.branch(region.prefix(), 1, state.log_position(), entries)?;
        work.written.push(Written { prefix: *region.prefix(), page, tag, node: *state.own() });
        delta::encode(&mut work.delta, region.prefix(), state);
        work.positions.push(state.log_position());
        work.position = work.position.max(state.log_position());
        work.next = region.prefix().next().map(|next| *next.first_key());
        Ok(None)
    })
}

/// The overflow map as of a point of the log, as a recovery wants it: runs that records up to
/// there gave up are free (no reader outlives a crash), runs that no record names yet are free.
fn overflow_map<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    through: u64,
) -> Result<Vec<u8>> {
    // One moment for both: a run is in the clone and tentative, or in neither.
    let (mut extents, tentative) = {
        let extents = shared.extents.lock();
        (extents.clone(), shared.tentative.lock().clone())
    };
    for run in &tentative {
        extents.mark_free(*run)?;
    }
    let mut map = Vec::new();
    extents.encode(through, &mut map);
    Ok(map)
}

/// The image of a database without keys: one region, one prefix, no page.
pub(crate) fn first_image<D: Device>(
    device: &D,
    database: u64,
    geometry: space::FileGeometry,
) -> Result<ImagePlace> {
    let file = crate::superblock::ImageFile::A;
    let mut writer = ImageWriter::start(device, file, database, 0)?;
    let entry = Entry { depth: 0, place: None, tag: 0, node: pleach_core::TERMINATOR };
    let (page, tag) = writer.branch(&pleach_core::Prefix::ROOT, 1, 0, std::iter::once(entry))?;
    let delta = StreamPlace::of(writer.stream(StreamId::Delta, &[])?, &[]);
    let mut map = Vec::new();
    Extents::new(geometry).encode(0, &mut map);
    let map = StreamPlace::of(writer.stream(StreamId::FreeMap, &map)?, &map);
    let table = Table {
        delta,
        map,
        level: 1,
        top_tag: tag,
        top_page: page,
        top_node: pleach_core::TERMINATOR,
        blob: Vec::new(),
    };
    place_of(writer, file, &table)
}

/// Writes the table and ends the image.
fn place_of<D: Device>(
    mut writer: ImageWriter<D>,
    file: crate::superblock::ImageFile,
    table: &Table,
) -> Result<ImagePlace> {
    let table = table.encode();
    let table_page = writer.stream(StreamId::Namespaces, &table)?;
    let number = writer.number();
    let pages = writer.finish()?;
    Ok(ImagePlace {
        file,
        pages: u32::try_from(pages)
            .map_err(|_| Error::Corrupt("an image of 2^32 pages".to_owned()))?,
        table_page,
        number,
        table_hash: pleach_core::hasher::Blake3::hash(&table),
    })
}

/// Keeps room for the next images in both files: a checkpoint on a full disk is what lets its log, and
/// with it the disk, become free again. Without room they stay as they are.
///
/// The checkpoint has been made by then, and this is neither a write nor a sync of anything: whatever
/// fails, nothing is lost but the room.
fn reserve_images<H: Hasher, D: Device, R: Runtime>(shared: &Shared<H, D, R>, pages: u64) {
    let wanted = (pages + pages / 4 + IMAGE_SLACK) * 4096;
    for name in crate::files::IMAGES {
        let reserve = || -> Result<()> {
            let file = shared.device.open(name, OpenMode::Write)?;
            let len = shared.device.len(&file)?;
            if len < wanted {
                shared.reserve_file(&file, len, wanted - len)?;
            }
            Ok(())
        };
        match reserve() {
            Ok(()) | Err(Error::Full(_)) => {}
            Err(error) => tracing::warn!(name, %error, "no room was kept for the next image"),
        }
    }
}

/// Steps 3 to 6.
fn finish<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    mut work: Work<D>,
    clean_end: Option<u64>,
) -> Result<()> {
    let enters = |stage| shared.enters(Task::Checkpoint, stage);
    enters("writing the image");
    let written = std::mem::take(&mut work.written);
    let (top, level) = work.writer.upper(written.clone())?;
    let delta = work.writer.stream(StreamId::Delta, &work.delta)?;
    let map = work.writer.stream(StreamId::FreeMap, &work.map)?;
    let table = Table {
        delta: StreamPlace::of(delta, &work.delta),
        map: StreamPlace::of(map, &work.map),
        level,
        top_tag: top.tag,
        top_page: top.page,
        top_node: work.tip.root,
        blob: work.tip.blob.to_vec(),
    };
    let image = place_of(work.writer, work.file, &table)?;
    Counters::add(&shared.counters.image_bytes, u64::from(image.pages) * 4096);
    enters("syncing the log");
    shared.sequencer.write_through(work.position, true)?;
    enters("writing the superblock");
    let mut store = shared.superblocks.lock();
    let older = store.newest().replay.position;
    let next = Superblock {
        image,
        commit: work.tip.number,
        root: work.tip.root,
        next_flush: shared.flushes.load(Ordering::Relaxed),
        incarnation: shared.incarnation,
        replay: work.cut,
        durable_through: shared.sequencer.durable(),
        clean_end,
        prepared_through: shared.sequencer.segments().prepared_through(),
        durability: match shared.options.durability {
            Durability::Commit => DurabilityMode::Commit,
            Durability::Periodic(time) => {
                DurabilityMode::Periodic(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
            }
            Durability::None => DurabilityMode::None,
        },
        ..*store.newest()
    };
    store.write(&next)?;
    drop(store);
    enters("recycling the log");
    for (region, position) in written.iter().zip(&work.positions) {
        let place = NodePage { file: node_file(work.file), page: region.page, tag: region.tag };
        shared.checkpointed(region.prefix.first_key(), *position, place);
    }
    reserve_images(shared, u64::from(image.pages));
    shared.replay_start.store(work.cut.position, Ordering::Release);
    shared.checkpoint_full.store(false, Ordering::Release);
    Counters::add(&shared.counters.checkpoints, 1);
    let overtaken = work.positions.iter().any(|position| *position > work.cut.position);
    Counters::add(&shared.counters.checkpoints_overtaken, u64::from(overtaken));
    shared
        .sequencer
        .segments()
        .retire(older.min(work.cut.position))
        .map_err(crate::sequencer::full_or)?;
    shared.progress.notify();
    shared.fit_cache();
    Ok(())
}
