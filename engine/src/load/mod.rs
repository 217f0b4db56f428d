//! Bulk load: an empty namespace gets all its pairs at once, as the next commit.
//!
//! 1. Take the next ticket: from here on other commits fail, since the load has the database to itself.
//! 2. Collect the pairs in buckets by the leading bits of their keys; pairs beyond the
//!    load's memory go to a spill file. Long values go to the overflow file at once.
//! 3. Workers sort, divide into pages, fold and write, unit by unit. Page numbers are allocated from
//!    the start of the leaf file, so it is written about sequentially. The first pages go to the cache, too. Sync.
//! 4. Build the index, and reserve room for the next image. A plain namespace discards its nodes when the root is
//!    known.
//! 5. Publish: index, tip and number in one moment, under the sequencer's lock.
//! 6. Two checkpoints, so that both superblocks lead to the load: the log has no record of it.
//!
//! A load is a history barrier: nothing before it can be read or rolled back to. Until the first checkpoint of step 6
//! is durable, a crash leaves the state before: its indexes name none of the pages, and its overflow map none of the
//! runs. A failure up to step 4 leaves that state, too, and frees the room (files are not shortened when a concurrent
//! flush has made records durable; checkpoints cut them); so does a close that comes before step 5. A failure in step 6
//! refuses further writes until the database is reopened, and leaves the load in doubt. The tries of other namespaces
//! are not changed; they are flushed meanwhile as always, and no commit changes them.

mod blocks;
mod build;
mod collect;
mod sizes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use pleach_beatree::load::{BuiltLeaf, LoadRecord, regions};
use pleach_beatree::page_no::page_offset;
use pleach_beatree::pages::TentativeExtents;
use pleach_beatree::{PageNo, RegionIndex, Stored, Value};
use pleach_core::page::leaf::MAX_INLINE;
use pleach_core::{Key, Node, Prefix, TERMINATOR};
use pleach_journal::format::names::IMAGES;
use pleach_journal::format::trie_kind::TrieKind;

use crate::access::MAX_VALUE;
use crate::checkpoint::checkpoint;
use crate::digest;
use crate::error::{Error, NoRoom, Result, full_or};
use crate::handles::Holder;
use crate::memory_limit::memory_limit;
use crate::roots::TrieRoot;
use crate::state::NamespaceDb;
use crate::state::commits::CommitState;
use crate::state::values;
use blocks::LoadBlocks;
use build::build;
use collect::Buckets;
use sizes::LoadSizes;

/// Pairs between two calls of the progress function.
const TICK: u64 = 1 << 16;
/// The default memory is at most this.
const DEFAULT_MEMORY: u64 = 8 << 30;

/// A function that gets the progress of an operation: the amount done, and the whole amount where that is known. Each
/// user says what is counted.
pub type Progress = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// Options of [`Db::bulk_load`](crate::Db::bulk_load).
#[derive(Default)]
pub struct LoadOptions {
    namespace: u8,
    root: Option<Node>,
    memory: Option<u64>,
    progress: Option<Progress>,
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("namespace", &self.namespace)
            .field("root", &self.root)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl LoadOptions {
    /// The defaults: into namespace 0; half of the memory that the process may have (the machine's, or less where a
    /// control group has a limit), at most 8 GiB; no progress function.
    pub fn new() -> Self {
        Self::default()
    }

    /// The namespace that is loaded. It exists, and has no pairs.
    #[must_use]
    pub fn namespace(mut self, namespace: u8) -> Self {
        self.namespace = namespace;
        self
    }

    /// The root that the pairs must lead to: with another one the load fails ([`Error::OtherRoot`]) and changes
    /// nothing. No effect on a plain namespace, which has no root.
    #[must_use]
    pub fn root(mut self, root: Node) -> Self {
        self.root = Some(root);
        self
    }

    /// Memory that blocks of pairs and buffers of pages may take, in MiB, at least 1. Further pairs go to a file. The
    /// index of the loaded pages comes on top: about 150 bytes a page.
    #[must_use]
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.memory = Some(mib.max(1) << 20);
        self
    }

    /// A function that gets the load's progress in pairs: each counts half when it is taken from the iterator and half
    /// when it is in a page. Workers call it, too.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or_else(|| DEFAULT_MEMORY.min(memory_limit().bytes / 2)).max(1 << 20)
    }

    fn report_progress(&self, done: u64) {
        if let Some(progress) = &self.progress {
            progress(done, None);
        }
    }
}

/// The result of a load.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Number of pairs loaded.
    pub accounts: u64,
    /// Seconds from the first pair to durability.
    pub seconds: f64,
    /// Bytes written: pages, long values, spilled pairs, images.
    pub bytes_written: u64,
    /// Leaf pages written.
    pub pages: u64,
    /// Bytes of pairs that did not fit into the load's memory and went through a file.
    pub spilled_bytes: u64,
    /// Most bytes that blocks of pairs and buffers of pages took at once: at most the load's memory and a tenth.
    pub buffer_bytes: u64,
    /// The root of the loaded namespace; the digest of a plain one.
    pub root: Node,
}

/// Most pairs that a load takes at once from its caller, and bytes of values after which it takes no more.
const CHUNK: (usize, usize) = (64, 64 << 10);

/// Gives the next pairs ([`fill_chunk`]); false when there are no more, and it must not be called again. With it the
/// load itself is compiled once, whatever its caller's iterator.
pub(crate) type PairSource<'a> = &'a mut dyn FnMut(&mut Vec<(Key, Value)>) -> Result<bool>;

/// Takes pairs until a chunk is full; false when there are no more.
pub(crate) fn fill_chunk(
    chunk: &mut Vec<(Key, Value)>,
    mut next: impl FnMut() -> Result<Option<(Key, Value)>>,
) -> Result<bool> {
    let mut bytes = 0;
    while chunk.len() < CHUNK.0 && bytes < CHUNK.1 {
        let Some((key, value)) = next()? else { return Ok(false) };
        bytes += value.len();
        chunk.push((key, value));
    }
    Ok(true)
}

/// See [`Db::bulk_load`](crate::Db::bulk_load).
pub(crate) fn bulk_load(
    db: &NamespaceDb,
    fill: PairSource<'_>,
    options: &LoadOptions,
) -> Result<LoadReport> {
    let ticket = LoadTicket::take(db, options.namespace)?;
    // In this order: every record that may name pages behind the files' ends is seen.
    let end = db.commits.sequencer.lock().log_end();
    let (before, taken) = (db.space.file_lengths()?, Mutex::default());
    let result = load(&ticket, fill, options, &taken);
    if result.is_err() && db.commits.published() < ticket.commit {
        let (is_durable, taken) = (|| db.commits.sequencer.durable() > end, taken.into_inner());
        for page in &taken {
            db.store.cache.remove(*page);
        }
        db.space.roll_back_load(before, taken, is_durable);
    }
    let report = result?;
    ticket.release();
    options.report_progress(report.accounts);
    Ok(report)
}

/// The load's right to be the next commit, returned when it is dropped before publication. Nothing else is committed
/// meanwhile, nor while the load's own commit is published and not yet durable.
struct LoadTicket {
    /// The trie that is loaded.
    db: NamespaceDb,
    /// The number of the load's commit.
    commit: u64,
    /// When the load began, by the runtime's clock.
    since: Duration,
    /// Bytes of images that the database had written then.
    image_bytes: u64,
}

impl LoadTicket {
    /// The ticket of a load into this namespace. The trie is looked up under the lock, so that it is the one in the
    /// newest commit, and not one that was dropped before.
    fn take(db: &NamespaceDb, namespace: u8) -> Result<Self> {
        let (since, image_bytes) = (db.pace.now(), image_bytes(db));
        let mut state = db.commits.sequencer.lock();
        state.check_open()?;
        state.check_not_loading()?;
        let found = state.newest.roots.of(namespace).zip(db.other_trie(namespace));
        let Some((root, db)) = found else { return Err(Error::Namespace(namespace)) };
        // A digest does not show whether there are pairs.
        let has_pairs = root.merkle().is_some_and(|root| root != TERMINATOR);
        // Deleted pairs may have left pages, which the load would leak.
        if has_pairs || !db.tree.load().is_bare() {
            return Err(Error::NotEmpty(state.newest.number.min(db.commits.published()).max(1)));
        }
        if state.in_flight > 0 {
            return Err(Error::InUse(Holder::Operation));
        }
        db.commits.undo.check_unheld()?;
        state.loading = true;
        let commit = state.newest.number + 1;
        drop(state);
        Ok(Self { db, commit, since, image_bytes })
    }

    /// Lets others commit again, and a backup that waits for the end of the load go on.
    fn release(&self) {
        self.db.commits.sequencer.lock().loading = false;
        self.db.pace.notify();
    }
}

impl Drop for LoadTicket {
    fn drop(&mut self) {
        if self.db.commits.published() < self.commit {
            self.release();
        }
    }
}

/// Bytes of images that the database has written.
fn image_bytes(db: &NamespaceDb) -> u64 {
    db.counters.image_bytes.load(Ordering::Relaxed)
}

/// Steps 2 to 6.
fn load(
    ticket: &LoadTicket,
    fill: PairSource<'_>,
    options: &LoadOptions,
    taken: &Mutex<Vec<PageNo>>,
) -> Result<LoadReport> {
    let LoadTicket { db, commit, .. } = ticket;
    let sizes = LoadSizes::new(options.memory_bytes(), db.runtime.workers());
    let mut blocks = LoadBlocks::new(&db.store.device, &sizes)?;
    let mut values = db.space.tentative();
    let mut buckets = Buckets::new(Prefix::ROOT, &sizes);
    let keys = collect(db, fill, options, &mut buckets, &mut blocks, &mut values)?;
    let units = buckets.into_units(&mut blocks, &sizes)?;
    let blocks = blocks.freeze()?;
    let progress = |done| options.report_progress(keys / 2 + done / 2);
    let leaves = build(db, &blocks, units, &sizes, *commit, taken, &progress)?;
    let (spilled, buffer_bytes) = (blocks.spilled, blocks.bytes.peak());
    drop(blocks);
    let overflow_pages = values.pages();
    // A retried load writes all of its values again, so a failed sync does not matter to it.
    if !values.is_empty() {
        let synced = db.store.device.sync(&db.space.overflow);
        let synced = synced.map_err(full_or(NoRoom::OverflowPages));
        // But it does to runs of the history.
        if let Err(error) = &synced
            && db.commits.undo.has_history()
        {
            db.poison(error);
        }
        synced?;
    }
    db.store.device.sync(&db.store.leaf_file).map_err(full_or(NoRoom::LeafPages))?;
    let pages = taken.lock().len() as u64;
    // A close, which may come at any time, makes an image, too.
    let _alone = db.images.lock_maker();
    let root = publish(db, leaves, pages, values, *commit, options.root.as_ref())?;
    if let Err(error) = checkpoint(db, false).and_then(|()| checkpoint(db, false)) {
        // Published and perhaps not durable: only reopening shows which.
        db.poison(&error);
        return Err(error.to_in_doubt());
    }
    Ok(LoadReport {
        accounts: keys,
        seconds: db.pace.now().saturating_sub(ticket.since).as_secs_f64(),
        bytes_written: page_offset(pages + overflow_pages) + spilled + image_bytes(db)
            - ticket.image_bytes,
        pages,
        spilled_bytes: spilled,
        buffer_bytes,
        root,
    })
}

/// Step 2; gives the number of pairs.
fn collect(
    db: &NamespaceDb,
    fill: PairSource<'_>,
    options: &LoadOptions,
    buckets: &mut Buckets,
    blocks: &mut LoadBlocks,
    values: &mut TentativeExtents<'_>,
) -> Result<u64> {
    let mut keys = 0;
    let mut chunk = Vec::with_capacity(CHUNK.0);
    loop {
        let is_last = !fill(&mut chunk)?;
        // The caller's iterator may have forked.
        db.home.check_current()?;
        for (key, value) in chunk.drain(..) {
            if value.len() <= MAX_INLINE {
                buckets.push(blocks, &LoadRecord { key: &key, bytes: &value, overflow: false })?;
            } else if value.len() > MAX_VALUE {
                return Err(Error::ValueTooLarge {
                    bytes: value.len() as u64,
                    limit: MAX_VALUE as u64,
                });
            } else if let Stored::Long(large) = Stored::from_value(db.hasher, value) {
                let cell = values::write(db, values, &large, 0)?;
                buckets.push(blocks, &LoadRecord { key: &key, bytes: &cell, overflow: true })?;
            }
            keys += 1;
            if keys % TICK == 0 {
                options.report_progress(keys / 2);
            }
        }
        if is_last {
            return Ok(keys);
        }
    }
}

/// Steps 4 and 5; gives the root, or the digest of a plain namespace.
fn publish(
    db: &NamespaceDb,
    leaves: Vec<BuiltLeaf>,
    pages: u64,
    values: TentativeExtents<'_>,
    commit: u64,
    expected: Option<&Node>,
) -> Result<Node> {
    let is_plain = db.kind == TrieKind::Plain;
    let (regions, root) = regions(db.hasher, db.namespace, is_plain, &leaves, commit);
    if let Some(expected) = expected.filter(|expected| !is_plain && **expected != root) {
        return Err(Error::OtherRoot { expected: *expected, found: root });
    }
    drop(leaves);
    reserve_image(db, db.image_pages(0) + regions.len() as u64)?;
    let index = RegionIndex::new(regions);
    let (structure, mut state) = loop {
        let structure = db.tree.hold_structure();
        let state = db.commits.sequencer.lock();
        state.check_open()?;
        if !db.images.is_image_in_progress() {
            break (structure, state);
        }
        drop(state);
        drop(structure);
        // The task had begun an image before the load; it begins no other one meanwhile.
        db.pace.wait(Some(Duration::from_millis(100)), &mut || !db.images.is_image_in_progress());
    };
    db.commits.undo.check_unheld()?;
    let old = db.tree.publish(index);
    for region in old.regions() {
        region.write().retire();
    }
    state.layouts += 1;
    values.mark_named();
    let before = db.commits.tip();
    let node = match before.roots.of(db.namespace) {
        Some(before) if is_plain => digest::after_load(&before.node, &root),
        _ => root,
    };
    let after = TrieRoot { kind: db.kind, node };
    let roots = before.roots.with([(db.namespace, Some(after))]);
    let tip = CommitState { number: commit, roots, blob: before.blob };
    state.newest = tip.clone();
    db.commits.publish(tip);
    db.commits.undo.set_barrier(commit);
    drop(state);
    drop(structure);
    db.store.cache.set_batch(commit + 1);
    db.count_leaf_pages(db.kind, isize::try_from(pages).expect("fewer than 2^40 pages"));
    db.pace.notify();
    Ok(node)
}

/// Reserves room for an image of about this number of pages, so that a full device shows before anything is published.
fn reserve_image(db: &NamespaceDb, pages: u64) -> Result<()> {
    let free_extents = db.space.overflow_stats().free_extents;
    // Upper levels are a fraction of the pages; a free run takes less than 16 bytes.
    let bytes = page_offset(pages + pages / 4 + free_extents / 250 + 16);
    Ok(IMAGES.into_iter().try_for_each(|name| db.space.lengthen(name, bytes))?)
}
