//! From units to pages: workers sort, divide into pages, fold and write, each with a queue of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pleach_beatree::load::{BuiltLeaf, LoadUnit, RepeatedKey};
use pleach_beatree::page_plan::{
    CellRef, PageCells, PageNodes, PagePlan, PageStamp, fold_pages, write_page,
};
use pleach_beatree::{ChildRef, PageNo};
use pleach_core::fold::Folder;
use pleach_io::{File, IoError, PAGE, PageBuf, Queue, Request, RequestKind};
use pleach_journal::format::trie_kind::TrieKind;

use super::blocks::FrozenBlocks;
use super::collect::UnitSource;
use super::sizes::{BUFFERS, DEPTH, LoadSizes};
use crate::error::{Error, NoRoom, Result, full_or};
use crate::state::NamespaceDb;
use crate::state::order::images::NUMBERS_FOR_CLOSE;

/// Pages that are put into the cache, and up to a batch of each worker more. Caching a page costs half as much as its
/// load, mostly for fresh memory: more of them would slow a large load.
const MAX_CACHED: usize = 8192;

/// What all workers share.
pub(super) struct UnitBuilder<'a> {
    db: &'a NamespaceDb,
    blocks: &'a FrozenBlocks,
    /// Pages that a worker folds and writes at once.
    batch: usize,
    flush: u64,
    /// Number of the load's commit.
    commit: u64,
    /// All leaf pages that the load has allocated.
    taken: &'a Mutex<Vec<PageNo>>,
    units: Vec<Mutex<Option<UnitSource>>>,
    next: AtomicUsize,
    built: Mutex<Vec<(usize, Vec<BuiltLeaf>)>>,
    keys: AtomicU64,
    /// Pages that were put into the cache, or found no room there.
    cached: AtomicUsize,
    failed: Mutex<Option<Error>>,
    stop: AtomicBool,
    progress: &'a (dyn Fn(u64) + Sync),
}

/// Builds all units of commit `commit` and gives the pages in key order. They are written and not yet synced, and the
/// first are in the cache; `taken` gets the allocated pages, even on an error. `progress` gets the number of pairs in
/// pages.
pub(super) fn build(
    db: &NamespaceDb,
    blocks: &FrozenBlocks,
    units: Vec<UnitSource>,
    sizes: &LoadSizes,
    commit: u64,
    taken: &Mutex<Vec<PageNo>>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<BuiltLeaf>> {
    let workers = sizes.workers.min(units.len()).max(1);
    let building = UnitBuilder {
        db,
        blocks,
        batch: sizes.batch,
        flush: db.images.next_number(NUMBERS_FOR_CLOSE)?,
        commit,
        taken,
        units: units.into_iter().map(|unit| Mutex::new(Some(unit))).collect(),
        next: AtomicUsize::new(0),
        built: Mutex::default(),
        keys: AtomicU64::new(0),
        cached: AtomicUsize::new(0),
        failed: Mutex::default(),
        stop: AtomicBool::new(false),
        progress,
    };
    db.runtime.fork_join(workers, &|_| building.run_worker());
    if let Some(error) = building.failed.into_inner() {
        return Err(error);
    }
    let mut built = building.built.into_inner();
    built.sort_unstable_by_key(|(index, _)| *index);
    Ok(built.into_iter().flat_map(|(_, leaves)| leaves).collect())
}

impl UnitBuilder<'_> {
    /// A worker's share: builds units one after the other, until there are none.
    fn run_worker(&self) {
        if let Err(error) = self.build_units() {
            self.stop.store(true, Ordering::Release);
            self.failed.lock().get_or_insert(error);
        }
    }

    fn build_units(&self) -> Result<()> {
        let buffers = self.batch * BUFFERS * PAGE;
        self.blocks.bytes.add(buffers);
        let mut worker = LoadWorker {
            batch: self.batch,
            queue: self.db.store.device.queue(DEPTH)?,
            folder: Folder::new(self.db.hasher),
            spare: Vec::new(),
            failed: None,
        };
        while !self.stop.load(Ordering::Acquire) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(index) else { break };
            let unit = unit.lock().take().expect("each unit has one worker");
            let keys = unit.keys;
            let result = self.build_unit(&mut worker, unit);
            if result.is_err() {
                // Requests in flight are completed before the error is returned.
                let _ = worker.finish_writes();
            }
            self.built.lock().push((index, result?));
            let done = self.keys.fetch_add(keys, Ordering::Relaxed) + keys;
            (self.progress)(done);
        }
        worker.finish_writes()?;
        self.blocks.bytes.subtract(buffers);
        Ok(())
    }

    fn build_unit(&self, worker: &mut LoadWorker, source: UnitSource) -> Result<Vec<BuiltLeaf>> {
        // Blocks are read through the same queue, which must be empty for that.
        worker.finish_writes()?;
        let blocks = self.blocks.read_blocks(&mut worker.queue, source.blocks)?;
        let filled: Vec<&[u8]> = blocks.iter().map(|(buf, filled)| &buf[..*filled]).collect();
        let unit = LoadUnit::new(source.prefix, &filled)
            .map_err(|RepeatedKey(key)| Error::RepeatedKey(key))?;
        self.blocks.bytes.add(unit.bytes());
        let planned = unit.plan();
        let count = planned.iter().filter(|page| !page.cells.is_empty()).count();
        let numbers = if count > 0 { self.db.space.allocate_leaves(count)? } else { Vec::new() };
        self.taken.lock().extend_from_slice(&numbers);
        let mut numbers = numbers.as_slice();
        let mut leaves = Vec::with_capacity(planned.len());
        let mut cells: Vec<CellRef<'_>> = Vec::new();
        for batch in planned.chunks(self.batch) {
            cells.clear();
            let (from, to) = (batch[0].cells.start, batch[batch.len() - 1].cells.end);
            cells.extend(unit.cells(from..to));
            let count = batch.iter().filter(|page| !page.cells.is_empty()).count();
            let own = numbers.split_off(..count).expect("a number for each page");
            self.write_batch(worker, batch, &cells, own, &mut leaves)?;
        }
        let read: usize = blocks.iter().map(|(buf, _)| buf.len()).sum();
        self.blocks.bytes.subtract(read + unit.bytes());
        Ok(leaves)
    }

    /// Folds and writes neighbouring pages with these cells.
    fn write_batch(
        &self,
        worker: &mut LoadWorker,
        batch: &[PagePlan],
        cells: &[CellRef<'_>],
        numbers: &[PageNo],
        leaves: &mut Vec<BuiltLeaf>,
    ) -> Result<()> {
        let from = batch[0].cells.start;
        let unfolded: Vec<PageCells<'_>> = batch
            .iter()
            .map(|page| PageCells {
                prefix: page.prefix,
                cells: &cells[page.cells.start - from..page.cells.end - from],
                known: None,
            })
            .collect();
        let nodes = fold_pages(&mut worker.folder, &unfolded);
        let first = leaves.len();
        leaves.extend(unfolded.iter().zip(&nodes).map(|(page, nodes)| BuiltLeaf {
            child: ChildRef { prefix: page.prefix, page: None, tag: 0 },
            node: nodes.own,
        }));
        let is_cached = self.cached.fetch_add(numbers.len(), Ordering::Relaxed) < MAX_CACHED;
        let mut pages = (0..batch.len()).filter(|page| !unfolded[*page].cells.is_empty());
        for run in numbers.chunk_by(|a, b| a.is_before(*b)) {
            let mut buf = worker.buffer(run.len());
            for (slot, (number, page)) in run.iter().zip(pages.by_ref()).enumerate() {
                let stamp = PageStamp {
                    identity: self.db.store.leaf_identity(*number),
                    flush: self.flush,
                    namespace: self.db.namespace,
                    last_commit: self.commit,
                };
                let page_of = &unfolded[page];
                let nodes = match self.db.kind {
                    TrieKind::Merkle => &nodes[page].stored,
                    TrieKind::Plain => &PageNodes::PLAIN.stored,
                };
                let (prefix, cells) = (&page_of.prefix, page_of.cells);
                let tag = write_page(buf.page_mut(slot), &stamp, prefix, cells, nodes);
                let child = &mut leaves[first + page].child;
                (child.page, child.tag) = (Some(*number), tag);
                if is_cached {
                    self.db.store.cache.insert_if_room(*number, tag, buf.page(slot));
                }
            }
            worker.write(&self.db.store.leaf_file, buf, run[0].offset())?;
        }
        Ok(())
    }
}

/// The state of a worker from unit to unit.
struct LoadWorker {
    /// Pages of a batch.
    batch: usize,
    queue: Box<dyn Queue>,
    folder: Folder,
    /// Buffers for a whole batch.
    spare: Vec<PageBuf>,
    failed: Option<IoError>,
}

impl LoadWorker {
    fn buffer(&mut self, pages: usize) -> PageBuf {
        let spare = if pages == self.batch { self.spare.pop() } else { None };
        spare.unwrap_or_else(|| PageBuf::zeroed(pages))
    }

    fn write(&mut self, file: &File, buf: PageBuf, offset: u64) -> Result<()> {
        while self.queue.in_flight() == self.queue.depth() {
            self.complete()?;
        }
        self.queue.push(Request {
            file: file.clone(),
            kind: RequestKind::Write,
            offset,
            buf,
            token: 0,
        });
        self.queue.submit()?;
        self.failed.take().map_or(Ok(()), |error| Err(full_or(NoRoom::LeafPages)(error)))
    }

    fn complete(&mut self) -> Result<()> {
        let mut next = self.queue.wait()?;
        while let Some(completion) = next {
            self.failed = self.failed.take().or(completion.result.err());
            if completion.buf.pages() == self.batch {
                self.spare.push(completion.buf);
            }
            next = self.queue.poll();
        }
        Ok(())
    }

    /// Waits for all writes in flight.
    fn finish_writes(&mut self) -> Result<()> {
        while self.queue.in_flight() > 0 {
            self.complete()?;
        }
        self.failed.take().map_or(Ok(()), |error| Err(full_or(NoRoom::LeafPages)(error)))
    }
}
