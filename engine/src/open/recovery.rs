//! Recovery of the state in memory: the mirror of commit, flush and checkpoint. The steps have the names
//! of `docs/commit-and-recovery.md`; `choose` and what comes after `check-root` are not here.
//!
//! * `image`: the superblock names an image, and the hash of its table. Branch pages are read from the
//!   root down, each with the tag that its parent expects; they give the regions with their nodes and log
//!   positions. Then come the changes that pend, and the overflow map.
//! * `history`: the records of past commits below the replay start ([`super::history`]).
//! * `scan`, `replay`: the log from the replay start on. A record is applied to a region only when it ends
//!   after that region's own log position. Commits add pending changes and nodes, location records move
//!   pages. No leaf page is read.
//! * `check-root`: the nodes fold to a root, which must be that of the last commit.

use std::collections::HashSet;
use std::sync::Arc;

use pleach_beatree::page_no::page_offset;
use pleach_beatree::region::{Applied, Dropped, NodePage, Pending, RegionImage, Relocation};
use pleach_beatree::space::{Extents, SpaceError};
use pleach_beatree::split::{Joined, join_held, split_regions};
use pleach_beatree::{ChildRef, ChildTable, PageNo, Region, RegionIndex, Stored};
use pleach_core::fold::BatchFolder;
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::overflow::PageRun;
use pleach_core::page::stream::StreamId;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::{Device, OpenMode};

use super::history::{self, History, bad_record, stored};
use crate::error::{Contradiction, Error, Result};
use crate::format::commit_body::CommitView;
use crate::format::image::ImageReader;
use crate::format::image_error::ImageError;
use crate::format::location_body::{LocationView, Run as LogRun};
use crate::format::names::OVERFLOW_FILE;
use crate::format::pending;
use crate::format::position::LogPos;
use crate::format::record::{Header, Kind, RecordView};
use crate::format::superblock::Superblock;
use crate::format::table::Table;
use crate::log::{ScanEnd, ScanInput, scan};
use crate::options::HistoryLimits;
use crate::roots::Roots;
use crate::state::commits::Tip;
use crate::state::overflow;
use crate::state::space::Held;
use crate::state::undo::Undo;

/// A database's state in memory, as the device has it.
pub(crate) struct Recovered {
    pub(crate) regions: RegionIndex,
    pub(crate) extents: Extents,
    pub(crate) tip: Tip,
    pub(crate) scan: ScanEnd,
    pub(crate) pending_bytes: usize,
    pub(crate) pending_entries: usize,
    /// Numbers of all leaf pages.
    pub(crate) leaf_pages: Vec<PageNo>,
    /// The image names pages of the leaf file below this one.
    pub(crate) image_leaf_end: u32,
    /// The history.
    pub(crate) undo: Undo,
    /// Runs of the overflow file that the history alone names: what releases them, and all of them.
    pub(crate) held: Held,
    pub(crate) held_runs: Vec<PageRun>,
    /// Why the history is not there, though it should be.
    pub(crate) history_lost: Option<Error>,
}

struct Replay<H> {
    regions: RegionIndex,
    extents: Extents,
    tip: Tip,
    history: History,
    changed: Vec<Arc<Region>>,
    image_leaf_end: u32,
    hasher: std::marker::PhantomData<H>,
}

/// What the two superblocks and the incarnation know of the log, whichever of them is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The last incarnation before this open.
    pub(crate) incarnation: u32,
    /// The log was synced below this.
    pub(crate) durable_through: LogPos,
    /// Segments had been prepared below this.
    pub(crate) prepared_through: LogPos,
    /// Was the database closed cleanly at the end of the log that the superblock names?
    pub(crate) clean: bool,
}

/// Reads the state that a superblock leads to. Writes nothing.
pub(crate) fn recover<H: Hasher, D: Device>(
    device: &D,
    superblock: &Superblock,
    known: &Known,
    limits: HistoryLimits,
) -> Result<Recovered> {
    let mut image = ImageReader::open(device, &superblock.image, superblock.database)?;
    let table = read_table(&mut image, superblock)?;
    let regions = read_regions::<H, D>(&mut image, &table, superblock.commit)?;
    let regions = RegionIndex::new(regions);
    let ends = regions.regions().iter().map(|region| region.read().children().page_end());
    let image_leaf_end = ends.max().unwrap_or(0);
    let stream = image.checked_stream(StreamId::Pending, &table.pending)?;
    pending::decode::<H, Error>(&stream, |prefix, pending, dropped| {
        install(&regions, &prefix, pending, dropped)
    })?;
    let map = image.checked_stream(StreamId::FreeMap, &table.map)?;
    let mut extents = Extents::parse(superblock.page_space(), &map).map_err(bad_map)?;
    grow_to_file(device, superblock, &mut extents)?;
    let tip = Tip {
        number: superblock.commit,
        roots: Roots::of_first(superblock.root),
        blob: table.blob.into(),
    };
    let mut replay = Replay::<H> {
        regions,
        extents,
        tip,
        history: History::before_replay::<H, D>(device, superblock, limits),
        changed: Vec::new(),
        image_leaf_end,
        hasher: std::marker::PhantomData,
    };
    let input = ScanInput {
        database: superblock.database,
        segment_size: superblock.geometry.log_segment,
        incarnation: known.incarnation,
        from: superblock.replay,
        durable_through: known.durable_through,
        prepared_through: known.prepared_through,
        clean: known.clean,
    };
    let scan = scan(device, &input, |record| replay.record(record))?;
    replay.finish(scan)
}

/// The overflow file may have grown since the image: records name runs in the new segments.
fn grow_to_file<D: Device>(
    device: &D,
    superblock: &Superblock,
    extents: &mut Extents,
) -> Result<()> {
    let file = device.open(OVERFLOW_FILE, OpenMode::Read)?;
    let expected = page_offset(extents.stats().pages);
    let found = device.len(&file)?;
    if found < expected {
        return Err(Error::ShortFile { file: OVERFLOW_FILE, found, expected });
    }
    let more = (found - expected) / superblock.geometry.overflow_segment;
    let more = u32::try_from(more)
        .map_err(|_| Contradiction::FileTooLong { file: OVERFLOW_FILE, bytes: found })?;
    Ok(extents.grown(more).map_err(bad_map)?)
}

fn read_table<D: Device>(image: &mut ImageReader<D>, superblock: &Superblock) -> Result<Table> {
    let first = superblock.image.table_page;
    let head = image.head(StreamId::Namespaces, first)?;
    let bytes = image.stream(StreamId::Namespaces, first, Table::len_of(&head)?)?;
    if pleach_core::hasher::Blake3::hash(&bytes) != superblock.image.table_hash {
        return Err(ImageError::OtherTable.into());
    }
    Ok(Table::decode(&bytes)?)
}

/// All regions, from the branch pages.
fn read_regions<H: Hasher, D: Device>(
    image: &mut ImageReader<D>,
    table: &Table,
    commit: u64,
) -> Result<Vec<Arc<Region>>> {
    let mut level = table.level;
    let mut pages = vec![(Prefix::ROOT, table.root_page, table.root_tag)];
    while level > 1 {
        let mut below = Vec::new();
        for (prefix, page, tag) in pages {
            for (prefix, entry) in image.branch(page, tag, &prefix, level)?.entries {
                let page = entry.page_no.ok_or(Contradiction::BranchWithoutPage { prefix })?;
                below.push((prefix, page, entry.tag));
            }
        }
        pages = below;
        level -= 1;
    }
    let mut regions = Vec::with_capacity(pages.len());
    for (prefix, page, tag) in pages {
        let branch = image.branch(page, tag, &prefix, 1)?;
        let mut children = Vec::with_capacity(branch.entries.len());
        for (prefix, entry) in &branch.entries {
            let page = entry.page_no.map(leaf_number).transpose()?;
            children.push(ChildRef { prefix: *prefix, page, tag: entry.tag });
        }
        let nodes: Vec<Node> = branch.entries.iter().map(|(_, entry)| entry.node).collect();
        regions.push(Arc::new(Region::from_image::<H>(RegionImage {
            children: ChildTable::new(prefix, &children),
            nodes,
            page: NodePage { file: image.node_file(), page, tag },
            commit,
            log_position: branch.log_pos,
        })));
    }
    Ok(regions)
}

fn install(
    regions: &RegionIndex,
    prefix: &Prefix,
    pending: Vec<Pending>,
    dropped: Vec<Dropped>,
) -> Result<()> {
    let region = regions.region(prefix.first_key());
    if region.prefix() != prefix {
        return Err(Contradiction::PendingOutsideRegions { prefix: *prefix }.into());
    }
    region.write().restore_pending(pending, dropped);
    Ok(())
}

impl<H: Hasher> Replay<H> {
    fn record(&mut self, record: &RecordView<'_>) -> Result<()> {
        let bad = bad_record(record.header.position);
        match record.header.kind {
            Kind::Commit => {
                self.commit(&CommitView::parse(record.body).map_err(bad)?, &record.header)
            }
            Kind::Location => {
                self.location(&LocationView::parse(record.body).map_err(bad)?, &record.header)
            }
            Kind::Close => Ok(()),
        }
    }

    fn commit(&mut self, view: &CommitView<'_>, header: &Header) -> Result<()> {
        let (number, bad) = (header.number, bad_record(header.position));
        if number != self.tip.number + 1 {
            let before = self.tip.number;
            return Err(Contradiction::CommitOrder { before, found: number }.into());
        }
        for namespace in view.namespaces() {
            let namespace = namespace.map_err(bad)?;
            if namespace.ns != 0 {
                return Err(Error::Namespace(namespace.ns));
            }
            if *namespace.previous_root != self.tip.roots.first() {
                return Err(Contradiction::CommitRoot { commit: number }.into());
            }
            let mut changes = Vec::with_capacity(namespace.change_bound());
            for change in namespace.changes() {
                let (key, value) = change.map_err(bad)?;
                changes.push((*key, stored::<H>(number, value)?));
            }
            let mut nodes = Vec::with_capacity(namespace.node_bound());
            for node in namespace.nodes() {
                let (prefix, node) = node.map_err(bad)?;
                nodes.push((prefix, *node));
            }
            // The map is that of the replay start: every record since then counts, whatever the
            // regions' own log positions.
            for run in changes.iter().flat_map(|(_, stored)| overflow::runs(stored)) {
                self.extents.mark_used(run).map_err(bad_map)?;
            }
            self.apply(number, record_end(header), &changes, &nodes)?;
            self.tip.roots = Roots::of_first(*namespace.new_root);
        }
        self.tip.number = number;
        self.tip.blob = view.blob.into();
        self.history.commit::<H>(view, header)
    }

    fn apply(
        &mut self,
        number: u64,
        end: LogPos,
        changes: &[(Key, Stored)],
        nodes: &[(Prefix, Node)],
    ) -> Result<()> {
        let (mut changes, mut nodes) = (changes, nodes);
        let mut scratch = Vec::new();
        while let Some((key, _)) = changes.first() {
            let region = Arc::clone(self.regions.region(key));
            let count = changes.partition_point(|(key, _)| region.prefix().covers(key));
            let of_region = changes.split_off(..count).expect("counted");
            let count = nodes.partition_point(|(at, _)| region.prefix().covers(at.first_key()));
            let of_nodes = nodes.split_off(..count).expect("counted");
            let mut state = region.write();
            if end.get() <= state.log_position() {
                // The image's commit is that of its cut, and the region was copied later: views of commits
                // between the two have to ask undo.
                state.has_commit(number);
                continue;
            }
            let mut children = Vec::with_capacity(of_nodes.len());
            for (at, node) in of_nodes {
                let child = state.children().find(at.first_key());
                if state.children().prefix(child) != *at {
                    let (commit, prefix) = (number, *at);
                    return Err(Contradiction::NodeWithoutPage { commit, prefix }.into());
                }
                children.push((u32::try_from(child).expect("few children"), *node));
            }
            let mut applied = Applied {
                commit: number,
                log_position: end.get(),
                changes: &mut of_region.iter().cloned(),
                nodes: &children,
                own: *state.own(),
                inner: None,
            };
            state.apply(&mut applied, &mut scratch, |_, _| {});
            drop(state);
            self.changed.push(region);
        }
        Ok(())
    }

    fn location(&mut self, view: &LocationView<'_>, header: &Header) -> Result<()> {
        let (start, end) = (header.position, record_end(header));
        let bad = bad_record(start);
        let run = |run: LogRun| PageRun { start: run.start, pages: run.pages };
        for run in view.allocated().map(run) {
            self.extents.mark_used(run).map_err(bad_map)?;
        }
        let freed: HashSet<u64> = view.freed().map(|run| run.start).collect();
        for run in view.freed().map(run) {
            self.extents.mark_free(run).map_err(bad_map)?;
        }
        let (mut all, mut joins) = (Vec::new(), Vec::new());
        for rewrite in view.rewrites() {
            let rewrite = rewrite.map_err(bad)?;
            if rewrite.is_join() {
                joins.push(rewrite.range);
                continue;
            }
            let mut pages = Vec::new();
            let mut applied_through = 0;
            for page in rewrite.pages() {
                applied_through = page.applied_through;
                let number = page.page.map(leaf_number).transpose()?;
                let child = ChildRef { prefix: page.prefix, page: number, tag: page.tag };
                pages.push((child, *page.node));
            }
            all.push((rewrite.range, pages, applied_through));
        }
        let mut split = Vec::new();
        let mut rest = all.as_slice();
        while let Some((range, ..)) = rest.first() {
            let region = Arc::clone(self.regions.region(range.first_key()));
            let count =
                rest.partition_point(|(range, ..)| region.prefix().covers(range.first_key()));
            let rewrites = rest.split_off(..count).expect("counted");
            let mut state = region.write();
            if end.get() <= state.log_position() {
                continue;
            }
            if rewrites.iter().any(|(range, ..)| !region.prefix().contains(range)) {
                return Err(Contradiction::RelocationOverRegion { position: start }.into());
            }
            let moves: Vec<Relocation<'_>> = rewrites
                .iter()
                .map(|(range, pages, applied_through)| Relocation {
                    range: *range,
                    pages,
                    through: *applied_through,
                })
                .collect();
            state.relocate(&moves, end.get());
            state.retain_dropped(|dropped| {
                overflow::runs(&dropped.pending.stored)
                    .iter()
                    .all(|run| !freed.contains(&run.start))
            });
            if state.children().len() > MAX_ENTRIES {
                split.push(Arc::clone(&region));
            }
            drop(state);
            self.changed.push(region);
        }
        if !split.is_empty() {
            for region in &split {
                region.write().renew_own::<H>();
            }
            self.regions = split_regions::<H>(&self.regions, &split);
        }
        self.join(&joins, start, end)
    }

    /// Joins the regions below these prefixes, as the record from `start` to `end` says. Both regions of a
    /// pair have the record applied, or neither (rule `join-outside-image`).
    fn join(&mut self, prefixes: &[Prefix], start: LogPos, end: LogPos) -> Result<()> {
        let mut pairs = Vec::new();
        for prefix in prefixes {
            let bad = || Contradiction::JoinedRegions { position: start, prefix: *prefix };
            let at = self.regions.find(prefix.first_key());
            let middle = self.regions.find(prefix.child(true).first_key());
            let [left, right] = [at, middle].map(|at| &self.regions.regions()[at]);
            let has_it = |region: &Region| region.read().log_position() >= end.get();
            if has_it(left) && has_it(right) {
                continue;
            }
            let halves = [left.prefix(), right.prefix()]
                == [false, true].map(|half| prefix.child(half)).each_ref();
            if has_it(left) || has_it(right) || !halves {
                return Err(bad().into());
            }
            for region in [left, right] {
                // Its node is that of the records before this one.
                region.write().renew_own::<H>();
            }
            pairs.push(Joined { at, left: left.write(), right: right.write() });
        }
        if !pairs.is_empty() {
            let joined = join_held::<H>(&self.regions, &mut pairs, end.get());
            drop(pairs);
            self.regions = joined;
        }
        Ok(())
    }

    fn finish(mut self, scan: ScanEnd) -> Result<Recovered> {
        self.changed.sort_by_key(Arc::as_ptr);
        self.changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for region in &self.changed {
            region.write().renew_own::<H>();
        }
        let mut folder = BatchFolder::<H>::new();
        folder.begin(0);
        let (mut pending_bytes, mut pending_entries) = (0, 0);
        let mut leaf_pages = Vec::new();
        for region in self.regions.regions() {
            let state = region.read();
            folder.subtrie(region.prefix(), state.own());
            pending_bytes += state.pending().iter().map(Pending::bytes).sum::<usize>();
            pending_entries += state.pending().len();
            leaf_pages.extend(
                (0..state.children().len()).filter_map(|child| state.children().page(child)),
            );
        }
        let fold = folder.end().expect("no terminal is placed here");
        folder.run();
        if folder.node(fold) != self.tip.roots.first() {
            return Err(Contradiction::Root { commit: self.tip.number }.into());
        }
        let history::Recovered { undo, held, held_runs, lost } =
            self.history.finish(&mut self.extents)?;
        Ok(Recovered {
            undo,
            held,
            held_runs,
            history_lost: lost,
            regions: self.regions,
            extents: self.extents,
            tip: self.tip,
            scan,
            pending_bytes,
            pending_entries,
            leaf_pages,
            image_leaf_end: self.image_leaf_end,
        })
    }
}

/// Where a record ends, as regions remember it: not rounded up.
fn record_end(header: &Header) -> LogPos {
    header.position + header.record_len()
}

fn leaf_number(page: u64) -> Result<PageNo> {
    PageNo::try_from(page).map_err(|_| Contradiction::LeafNumber { page }.into())
}

fn bad_map(error: SpaceError) -> Contradiction {
    Contradiction::OverflowMap(error)
}
