//! The steps of a checkpoint.
//!
//! 1. *Cut*: with no commit in flight and the queue written, the end of the log is where a replay
//!    of this image will start.
//! 2. Region by region, under its lock for the time of a copy: branch page and pending changes,
//!    which carry the region's own log position. Commits and flushes go on in between.
//! 3. Upper levels, streams, table; sync the image.
//! 4. Sync the log past every position in the image.
//! 5. Write the older superblock slot and sync it.
//! 6. Retire log segments that neither superblock needs.

use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::Region;
use pleach_beatree::region::{NodePage, Nodes};
use pleach_beatree::space::{self, Extents};
use pleach_core::page::branch::Entry;
use pleach_core::page::stream::StreamId;
use pleach_core::{Hasher, Key, Node, Prefix, TERMINATOR};
use pleach_io::{Device, OpenMode, Runtime};

use crate::error::{Error, Result};
use crate::format::image::{ImageWriter, Written, node_file};
use crate::format::image_error::ImageError;
use crate::format::names::{IMAGES, ImageFile};
use crate::format::pending;
use crate::format::position::{LogPos, Point};
use crate::format::superblock::{DurabilityMode, ImageRef, Superblock};
use crate::format::table::{StreamRef, Table};
use crate::metrics::Counters;
use crate::options::Durability;
use crate::state::State;
use crate::state::beats::{IDLE, Task};
use crate::state::commits::Tip;

/// How often a region's nodes may come and go between their reading and their copying, in one step.
const COPIES: usize = 4;
/// Pages that an image may grow by, beside a quarter, without asking for room.
const IMAGE_SLACK: u64 = 32;

/// An image in the making.
pub(super) struct Work<D: Device> {
    writer: ImageWriter<D>,
    file: ImageFile,
    cut: Point,
    tip: Tip,
    /// The first key of the next region; none when all are written.
    pub(super) next: Option<Key>,
    written: Vec<Written>,
    /// Position of each written region.
    positions: Vec<LogPos>,
    pending: Vec<u8>,
    map: Vec<u8>,
    /// Highest log position in the image.
    position: LogPos,
    /// Nodes that were read for a copy of their region, and where: they do not enter memory for it.
    read: Option<NodePage>,
    nodes: Vec<Node>,
}

/// How far a step has brought an image.
pub(super) enum Serialised {
    Some,
    All,
    /// The nodes of a region are not in memory and cannot be read.
    Unreadable(Error),
}

/// A whole checkpoint on the calling thread, as close and bulk load make it.
pub(crate) fn checkpoint<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    clean: bool,
) -> Result<()> {
    let made = checkpoint_now::<H, D, R>(db, clean);
    // The stages were the caller's: the task itself, which may sleep for long, has nothing to do with
    // how far they got.
    db.pace.enters(Task::Checkpoint, IDLE);
    made
}

fn checkpoint_now<H: Hasher, D: Device, R: Runtime>(db: &State<D, R>, clean: bool) -> Result<()> {
    // As for the task: no image is begun that is known not to come to its end.
    db.nodes.try_nodes_aside::<H>()?;
    let mut work = loop {
        match start(db, 0)? {
            Started::Begun(work) => break *work,
            Started::CommitInFlight => {}
            Started::PutOff(error) => return Err(error),
        }
        // Another thread is between a commit's ticket and its publication, which says so.
        db.pace.wait(Some(Duration::from_millis(10)), &mut || {
            db.commits.sequencer().lock().in_flight == 0
        });
    };
    loop {
        match serialise::<H, D, R>(db, &mut work, usize::MAX)? {
            Serialised::Some => {}
            Serialised::All => break,
            Serialised::Unreadable(error) => return Err(error),
        }
    }
    let end = clean.then_some(work.cut.position);
    finish(db, work, end)
}

/// What comes of step 1.
pub(super) enum Started<D: Device> {
    Begun(Box<Work<D>>),
    CommitInFlight,
    /// There is no number for the image, or no file: nothing was written, and it can be tried again.
    PutOff(Error),
}

/// Step 1.
pub(super) fn start<D: Device, R: Runtime>(db: &State<D, R>, kept: u64) -> Result<Started<D>> {
    // Tip and map are those of the very point where the replay starts.
    let Some((cut, (tip, map))) = db
        .commits
        .sequencer()
        .cut(|point| (db.commits.tip(), db.space.overflow_map(point.position)))?
    else {
        return Ok(Started::CommitInFlight);
    };
    let file = db.images.newest().image.file.other();
    let writer = db.images.next_number(kept).and_then(|number| {
        Ok(ImageWriter::start(db.store.device(), file, db.store.database(), number)?)
    });
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
        pending: Vec::new(),
        map: map?,
        position: cut.position,
        read: None,
        nodes: Vec::new(),
    })))
}

/// Step 2, for up to `count` regions.
pub(super) fn serialise<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    work: &mut Work<D>,
    count: usize,
) -> Result<Serialised> {
    for _ in 0..count {
        let Some(key) = work.next else { return Ok(Serialised::All) };
        // Whatever is full is written before the lock is taken.
        work.writer.make_room()?;
        // Who is overtaken each time goes on with the next step.
        for _ in 0..COPIES {
            let Some((region, at)) = copy_region(db, work, &key)? else { break };
            work.read = None;
            match db.nodes.nodes_for_image::<H>(&region, &at, &mut work.nodes) {
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
fn copy_region<D: Device, R: Runtime>(
    db: &State<D, R>,
    work: &mut Work<D>,
    key: &Key,
) -> Result<Option<(Arc<Region>, NodePage)>> {
    db.index.in_region(key, |region, state| {
        let nodes = match state.nodes() {
            Nodes::Resident(nodes) => nodes,
            // A place names a page with exactly the region's nodes.
            Nodes::Paged(at) if work.read == Some(*at) => &work.nodes,
            Nodes::Paged(at) => return Ok(Some((Arc::clone(region), *at))),
        };
        let entries = state.children().iter().zip(nodes).map(|(cut, node)| Entry {
            depth: cut.prefix.len(),
            page_no: cut.page.map(u64::from),
            tag: cut.tag,
            node: *node,
        });
        let (page, tag) = work.writer.branch(region.prefix(), 1, state.log_position(), entries)?;
        work.written.push(Written { prefix: *region.prefix(), page, tag, node: *state.own() });
        pending::encode(&mut work.pending, region.prefix(), state);
        let position = LogPos::new(state.log_position());
        work.positions.push(position);
        work.position = work.position.max(position);
        work.next = region.prefix().next().map(|next| *next.first_key());
        Ok(None)
    })
}

/// The image of a database without keys: one region, one prefix, no page.
pub(crate) fn first_image<D: Device>(
    device: &D,
    database: u64,
    geometry: space::FileGeometry,
) -> Result<ImageRef> {
    let file = ImageFile::A;
    let mut writer = ImageWriter::start(device, file, database, 0)?;
    let entry = Entry { depth: 0, page_no: None, tag: 0, node: TERMINATOR };
    let (page, tag) = writer.branch(&Prefix::ROOT, 1, 0, std::iter::once(entry))?;
    let delta = StreamRef::of(writer.stream(StreamId::Pending, &[])?, &[]);
    let mut map = Vec::new();
    Extents::new(geometry).encode(0, &mut map);
    let map = StreamRef::of(writer.stream(StreamId::FreeMap, &map)?, &map);
    let table = Table {
        pending: delta,
        map,
        level: 1,
        root_tag: tag,
        root_page: page,
        root_node: TERMINATOR,
        blob: Vec::new(),
    };
    place_of(writer, file, &table)
}

/// Writes the table and ends the image.
fn place_of<D: Device>(
    mut writer: ImageWriter<D>,
    file: ImageFile,
    table: &Table,
) -> Result<ImageRef> {
    let table = table.encode();
    let table_page = writer.stream(StreamId::Namespaces, &table)?;
    let number = writer.number();
    let pages = writer.finish()?;
    Ok(ImageRef {
        file,
        pages: u32::try_from(pages).map_err(|_| ImageError::TooLong { pages })?,
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
pub(super) fn reserve_images<D: Device, R: Runtime>(db: &State<D, R>, pages: u64) {
    let wanted = (pages + pages / 4 + IMAGE_SLACK) * 4096;
    for name in IMAGES {
        let reserve = || -> Result<()> {
            let file = db.store.device().open(name, OpenMode::Write)?;
            let len = db.store.device().len(&file)?;
            if len < wanted {
                db.space.reserve_image(&file, len, wanted - len)?;
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
pub(super) fn finish<D: Device, R: Runtime>(
    db: &State<D, R>,
    mut work: Work<D>,
    clean_end: Option<LogPos>,
) -> Result<()> {
    let enters = |stage| db.pace.enters(Task::Checkpoint, stage);
    enters("writing the image");
    let written = std::mem::take(&mut work.written);
    let (top, level) = work.writer.upper(written.clone())?;
    let delta = work.writer.stream(StreamId::Pending, &work.pending)?;
    let map = work.writer.stream(StreamId::FreeMap, &work.map)?;
    let table = Table {
        pending: StreamRef::of(delta, &work.pending),
        map: StreamRef::of(map, &work.map),
        level,
        root_tag: top.tag,
        root_page: top.page,
        root_node: work.tip.root,
        blob: work.tip.blob.to_vec(),
    };
    let image = place_of(work.writer, work.file, &table)?;
    Counters::add(&db.counters.image_bytes, u64::from(image.pages) * 4096);
    enters("syncing the log");
    db.commits.sequencer().write_through(work.position, true)?;
    enters("writing the superblock");
    let (options, sequencer) = (&db.options, db.commits.sequencer());
    let older = db.images.write(|newest| Superblock {
        image,
        commit: work.tip.number,
        root: work.tip.root,
        next_flush: db.images.number(),
        incarnation: db.images.incarnation(),
        replay: work.cut,
        durable_through: sequencer.durable(),
        clean_end,
        prepared_through: sequencer.segments().prepared_through(),
        durability: match options.durability {
            Durability::Commit => DurabilityMode::Commit,
            Durability::Periodic(time) => {
                DurabilityMode::Periodic(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
            }
            Durability::None => DurabilityMode::None,
        },
        ..*newest
    })?;
    enters("recycling the log");
    for (region, position) in written.iter().zip(&work.positions) {
        let place = NodePage { file: node_file(work.file), page: region.page, tag: region.tag };
        db.nodes.checkpointed(region.prefix.first_key(), *position, place);
    }
    reserve_images(db, u64::from(image.pages));
    db.images.set_replay_start(work.cut.position);
    db.pace.set_checkpoint_full(false);
    Counters::add(&db.counters.checkpoints, 1);
    let overtaken = work.positions.iter().any(|position| *position > work.cut.position);
    Counters::add(&db.counters.checkpoints_overtaken, u64::from(overtaken));
    sequencer.segments().retire(older.min(work.cut.position))?;
    db.pace.tell();
    db.fit_cache();
    Ok(())
}
