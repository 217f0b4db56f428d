//! Bulk load: an empty database becomes commit number 1 with all pairs at once.
//!
//! 1. Take the only ticket there is: other commits find their parent stale from here on.
//! 2. Collect the pairs in buckets by the leading bits of their keys; what does not fit the
//!    load's memory goes to a spill file. Long values go to the overflow file at once.
//! 3. Workers sort, cut, fold and write, unit by unit; places are handed out from the start of
//!    the leaf file, so it is written about sequentially. Sync.
//! 4. Build the index, and reserve room for its image.
//! 5. Publish: index, tip and number in one moment, under the sequencer's lock.
//! 6. Two checkpoints, so that both superblocks lead to the load: the log has nothing of it.
//!
//! A load is a history barrier: nothing before it can be rolled back to. Until the first
//! checkpoint of step 6 is durable, a crash leaves the empty database: its index names none of
//! the pages, and its overflow map none of the runs. A failure up to step 4 leaves it, too, and
//! gives the room back; one in step 6 refuses further writes until the database is reopened.

mod blocks;
mod build;
mod collect;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_beatree::load::{Record, regions};
use pleach_beatree::space::{Extents, Space};
use pleach_beatree::{RegionIndex, Stored, Value};
use pleach_core::page::leaf::MAX_INLINE;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::{Device, Event, OpenMode, Runtime};

use crate::checkpoint::checkpoint;
use crate::checkpoint::image::image_name;
use crate::db::{Db, geometry_of};
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::overflow::{self, Tentative};
use crate::session::MAX_VALUE;
use crate::shared::{Shared, Tip};
use blocks::{Blocks, full};
use build::{Built, build};
use collect::{Buckets, Sizes};

/// Number of the commit that a load makes.
const COMMIT: u64 = 1;
/// A ticket that no commit's parent can have: nothing is committed while the load's own commit is
/// published and not yet durable.
const CLOSED: u64 = u64::MAX;
/// Pairs between two calls of the progress function.
const TICK: u64 = 1 << 16;
/// The default memory is at most this.
const DEFAULT_MEMORY: u64 = 8 << 30;

/// Told how far a load has come.
pub type Progress = Box<dyn Fn(u64) + Send + Sync>;

/// Options of [`Db::bulk_load`].
#[derive(Default)]
pub struct LoadOptions {
    memory: Option<u64>,
    progress: Option<Progress>,
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl LoadOptions {
    /// The defaults: half of the machine's memory, at most 8 GiB; no progress told.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory that the load may take, in MiB, at least 1. Pairs beyond it wait in a file.
    #[must_use]
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.memory = Some(mib.max(1) << 20);
        self
    }

    /// A function that is told how far the load has come, in pairs: each counts half when it is
    /// taken from the iterator and half when it is in a page. Workers call it, too.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or_else(|| DEFAULT_MEMORY.min(machine_memory() / 2)).max(1 << 20)
    }

    fn tell(&self, done: u64) {
        if let Some(progress) = &self.progress {
            progress(done);
        }
    }
}

/// What a load did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Pairs loaded.
    pub accounts: u64,
    /// Seconds from the first pair to durability.
    pub seconds: f64,
    /// Bytes written: pages, long values, spilled pairs, images.
    pub bytes_written: u64,
    /// Leaf pages written.
    pub pages: u64,
    /// Bytes of pairs that did not fit the load's memory and went over a file.
    pub spilled_bytes: u64,
    /// The root.
    pub root: Node,
}

/// Bytes of memory that the system has; a cautious guess where it does not say.
fn machine_memory() -> u64 {
    let kib = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    kib.map_or(2 << 30, |kib| kib << 10)
}

impl<H: Hasher, D: Device, R: Runtime> Db<H, D, R> {
    /// Fills an empty database with pairs in any order, each key once, as commit number 1. Far
    /// faster than commits: no log, no witness, pages written front to back. Durable when it
    /// returns, whatever the durability mode. What fails before that leaves the database empty.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] after the first commit; [`Error::InUse`] while a session or an overlay
    /// is open; [`Error::RepeatedKey`]; [`Error::ValueTooLarge`]; [`Error::Full`].
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one load")]
    pub fn bulk_load(
        &self,
        items: impl Iterator<Item = (Key, Value)>,
        options: LoadOptions,
    ) -> Result<LoadReport> {
        let shared = &*self.shared;
        let since = shared.runtime.now();
        let ticket = Ticket::take(shared)?;
        let room = Room::now(shared)?;
        let images = shared.counters.image_bytes.load(Ordering::Relaxed);
        let result = load(shared, items, &options);
        if result.is_err() && shared.published.load(Ordering::Acquire) == 0 {
            room.give_back(shared);
        }
        let loaded = result?;
        ticket.settle();
        options.tell(loaded.keys);
        let images = shared.counters.image_bytes.load(Ordering::Relaxed) - images;
        Ok(LoadReport {
            accounts: loaded.keys,
            seconds: shared.runtime.now().saturating_sub(since).as_secs_f64(),
            bytes_written: (loaded.pages + loaded.overflow_pages) * 4096 + loaded.spilled + images,
            pages: loaded.pages,
            spilled_bytes: loaded.spilled,
            root: loaded.root,
        })
    }
}

struct Loaded {
    keys: u64,
    pages: u64,
    overflow_pages: u64,
    spilled: u64,
    root: Node,
}

/// The load's right to be the next commit; dropped before the end, it is given back.
struct Ticket<'a, H: Hasher, D: Device, R: Runtime> {
    shared: &'a Shared<H, D, R>,
    settled: bool,
}

impl<'a, H: Hasher, D: Device, R: Runtime> Ticket<'a, H, D, R> {
    fn take(shared: &'a Shared<H, D, R>) -> Result<Self> {
        let mut state = shared.sequencer.lock();
        state.check_open()?;
        if state.ticketed != 0 {
            return Err(Error::NotEmpty(
                state.ticketed.min(shared.published.load(Ordering::Acquire).max(1)),
            ));
        }
        if shared.undo.oldest_pin() != u64::MAX {
            return Err(Error::InUse);
        }
        state.ticketed = COMMIT;
        Ok(Self { shared, settled: false })
    }

    fn settle(mut self) {
        self.shared.sequencer.lock().ticketed = COMMIT;
        self.settled = true;
    }
}

impl<H: Hasher, D: Device, R: Runtime> Drop for Ticket<'_, H, D, R> {
    fn drop(&mut self) {
        if !self.settled && self.shared.published.load(Ordering::Acquire) == 0 {
            self.shared.sequencer.lock().ticketed = 0;
        }
    }
}

/// The files before the load, for giving room back.
struct Room {
    leaf: u64,
    overflow: u64,
    extents: Extents,
}

impl Room {
    fn now<H: Hasher, D: Device, R: Runtime>(shared: &Shared<H, D, R>) -> Result<Self> {
        Ok(Self {
            leaf: shared.device.len(&shared.files.leaf)?,
            overflow: shared.device.len(&shared.files.overflow)?,
            extents: shared.extents.lock().clone(),
        })
    }

    /// No index names any page: both files are again what they were.
    fn give_back<H: Hasher, D: Device, R: Runtime>(self, shared: &Shared<H, D, R>) {
        let stays = |error| tracing::warn!(%error, "a failed load's pages stay reserved");
        let geometry = geometry_of(shared.superblocks.lock().newest());
        let mut space = shared.space.lock();
        let len = match shared.device.set_len(&shared.files.leaf, self.leaf) {
            Ok(()) => self.leaf,
            Err(error) => {
                stays(error);
                u64::from(space.pages()) * 4096
            }
        };
        let segments = len / 4096 / u64::from(geometry.segment_pages);
        let segments = u32::try_from(segments).expect("no more than the space had");
        *space = Space::from_used(geometry, segments, []).expect("no longer than before");
        drop(space);
        let mut extents = shared.extents.lock();
        match shared.device.set_len(&shared.files.overflow, self.overflow) {
            Ok(()) => *extents = self.extents,
            Err(error) => stays(error),
        }
    }
}

fn load<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    items: impl Iterator<Item = (Key, Value)>,
    options: &LoadOptions,
) -> Result<Loaded> {
    let workers = shared.runtime.workers();
    let sizes = Sizes::new(options.memory_bytes(), workers);
    let mut blocks = Blocks::new(&shared.device, sizes.block_pages, sizes.blocks)?;
    let mut values = Tentative::new(&shared.extents, &shared.tentative);
    let before = shared.extents.lock().stats().live;
    let mut buckets = Buckets::new(Prefix::ROOT, &sizes);
    let keys = collect(shared, items, options, &mut buckets, &mut blocks, &mut values)?;
    let units = buckets.into_units(&mut blocks, &sizes, workers)?;
    let blocks = blocks.freeze()?;
    let built = build(shared, &blocks, units, &|done| options.tell(keys / 2 + done / 2))?;
    let spilled = blocks.spilled;
    drop(blocks);
    let overflow_pages = shared.extents.lock().stats().live - before;
    if !values.is_empty() {
        shared.device.sync(&shared.files.overflow)?;
    }
    shared.device.sync(&shared.files.leaf)?;
    let pages = built.pages;
    let root = publish(shared, built, values)?;
    let durable = checkpoint(shared, false).and_then(|()| checkpoint(shared, false));
    if let Err(error) = durable {
        // Published and perhaps not durable: only reopening tells.
        shared.poison(&error);
        return Err(error);
    }
    Ok(Loaded { keys, pages, overflow_pages, spilled, root })
}

/// Step 2; gives the number of pairs.
fn collect<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    items: impl Iterator<Item = (Key, Value)>,
    options: &LoadOptions,
    buckets: &mut Buckets,
    blocks: &mut Blocks<D>,
    values: &mut Tentative<'_>,
) -> Result<u64> {
    let mut keys = 0;
    for (key, value) in items {
        if value.len() <= MAX_INLINE {
            buckets.push(blocks, &Record { key: &key, bytes: &value, overflow: false })?;
        } else if value.len() > MAX_VALUE {
            return Err(Error::ValueTooLarge {
                bytes: value.len() as u64,
                limit: MAX_VALUE as u64,
            });
        } else if let Stored::Large(large) = Stored::put::<H>(value) {
            let cell = overflow::write(shared, values, &large, 0)?;
            buckets.push(blocks, &Record { key: &key, bytes: &cell, overflow: true })?;
        }
        keys += 1;
        if keys % TICK == 0 {
            options.tell(keys / 2);
        }
    }
    Ok(keys)
}

/// Steps 4 and 5; gives the root.
fn publish<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    built: Built,
    values: Tentative<'_>,
) -> Result<Node> {
    let (regions, root) = regions::<H>(&built.leaves, COMMIT);
    drop(built.leaves);
    reserve_image(shared, regions.len() as u64)?;
    let top = Arc::new(RegionIndex::new(regions));
    let structure = shared.structure.lock();
    let mut state = shared.sequencer.lock();
    if shared.undo.oldest_pin() != u64::MAX {
        return Err(Error::InUse);
    }
    let old = shared.top.swap(top);
    for region in old.regions() {
        region.write().retire();
    }
    values.named();
    let mut tip = shared.tip.lock();
    *tip = Tip { number: COMMIT, root, blob: Arc::clone(&tip.blob) };
    drop(tip);
    shared.published.store(COMMIT, Ordering::Release);
    state.ticketed = CLOSED;
    drop(state);
    drop(structure);
    shared.begin_batch(COMMIT + 1);
    Counters::add(&shared.counters.leaf_pages, built.pages);
    shared.progress.notify();
    Ok(root)
}

/// Room for the image of so many regions, so that a full device shows before anything is
/// published.
fn reserve_image<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    regions: u64,
) -> Result<()> {
    let free_runs = shared.extents.lock().stats().free_runs;
    // Upper levels are a fraction of the regions; a free run takes less than 16 bytes.
    let bytes = (regions + regions / 4 + free_runs / 250 + 16) * 4096;
    let newest = shared.superblocks.lock().newest().image.file;
    for file in [newest.other(), newest] {
        let file = shared.device.open(image_name(file), OpenMode::Write)?;
        shared.device.allocate(&file, 0, bytes).map_err(full)?;
    }
    Ok(())
}
