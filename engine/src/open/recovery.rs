//! Recovery of the state in memory: the mirror of commit, flush and checkpoint. The steps have the names of
//! `docs/commit-and-recovery.md`; `choose` and the steps after `check-root` are not here.
//!
//! * `image`: the superblock names an image, and the hash of its table. For each namespace branch pages are
//!   read from the root down, each with the tag that its parent expects; they give the regions with their
//!   nodes and log positions. Then come the buffered changes, and in the end the overflow map.
//! * `history`: the run descriptors of past commits, and the records behind them up to the replay start
//!   (`super::history`).
//! * `scan`, `replay`: the log from the replay start on. A record is applied to a region only when it ends
//!   after that region's own log position. Commits add buffered changes and nodes, location records move
//!   pages. No leaf page is read.
//! * `check-root`: the nodes of each trie fold to a root, which must be that of the last commit; of a dropped trie,
//!   that of the commit before the drop, as long as the history reaches back to it. Where they do not, all nodes of the
//!   trie are computed anew from its pairs (`super::rebuild`), which reads every leaf page. A plain trie has no nodes:
//!   each record's digest is checked against the one before and its changes.

use std::collections::HashSet;
use std::sync::Arc;

use pleach_beatree::page_no::page_offset;
use pleach_beatree::pages::{Quarantine, overflow};
use pleach_beatree::region::Relocation;
use pleach_beatree::space::{OverflowSpace, SpaceError};
use pleach_beatree::{ChildRef, Error as TreeError, PageNo};
use pleach_core::page::overflow::OverflowExtent;
use pleach_core::page::stream::StreamId;
use pleach_core::{Hasher, Node};
use pleach_io::{Disk, OpenMode, PAGE};
use pleach_journal::format::commit_body::{CommitView, EntryKind, NamespaceView};
use pleach_journal::format::image::ImageReader;
use pleach_journal::format::location_body::LocationView;
use pleach_journal::format::names::OVERFLOW_FILE;
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::record::{LogRecordKind, RecordHeader, RecordView};
use pleach_journal::format::superblock::Superblock;
use pleach_journal::format::table::{ImageTable, TrieSums, map_end};
use pleach_journal::format::trie_kind::TrieKind;
use pleach_journal::log::{ScanEnd, ScanError, ScanInput, scan, scan_lenient};

use super::history::{self, HistoryReplay, bad_record, roots_after};
use super::rebuild::rebuild;
pub use super::trie::RecoveredTrie;
use super::trie::{ImageSource, TrieReplay};
use crate::digest;
use crate::error::{Contradiction, Error, Result};
use crate::options::HistoryLimits;
use crate::roots::{Roots, TrieRoot};
use crate::state::away::leaf_number;
use crate::state::commits::CommitState;
use crate::state::history::ImageHistory;
use crate::state::undo::replaced::stored;
use pleach_history::{DiskRun, RunDescriptor, RunFile};

/// Most pages of runs of the history that stay in memory after a read; and an eighth of the memory for undo, with about
/// this many bytes a page.
const MOST_RUN_PAGES: u64 = 2048;
const RUN_PAGE: u64 = 8192;

/// A database's state in memory, recovered from the device.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct RecoveredState {
    /// The database's own hasher.
    pub(crate) hasher: Hasher,
    /// The tries of all namespaces, in ascending order; also tries that are dropped and not reclaimed.
    pub tries: Vec<RecoveredTrie>,
    /// The used pages of the overflow file.
    pub extents: OverflowSpace,
    /// The newest commit.
    pub tip: CommitState,
    /// The end of the log, and its kind.
    pub scan: ScanEnd,
    /// Bytes of buffered changes.
    pub buffered_bytes: usize,
    /// Number of buffered changes.
    pub buffered_entries: usize,
    /// Page numbers of the leaf pages of regions that are in memory.
    pub leaf_pages: Vec<PageNo>,
    /// A map of those of regions that are away.
    pub(crate) leaf_map: Vec<u8>,
    /// The number of all leaf pages.
    pub(crate) leaf_page_count: u64,
    /// The number of leaf pages with nodes.
    pub(crate) leaf_pages_with_nodes: u64,
    /// The image names only leaf pages below this one.
    pub(crate) image_leaf_end: u32,
    /// Regions that cannot be read.
    pub(crate) quarantine: Arc<Quarantine>,
    /// True when regions may be away.
    pub(crate) is_late: bool,
    /// The history.
    pub history: history::RecoveredHistory,
    /// Namespaces whose nodes were computed from their pairs, since the nodes in the files were wrong.
    pub(crate) rebuilt: Vec<u8>,
    /// True when the newest state has another root than its commit has recorded, accepted by the caller.
    pub(crate) root_accepted: bool,
}

impl RecoveredState {
    /// Retires all free runs when some of the history could not be read: the runs that it names are not known, and the
    /// next open may read it. So free runs wait, like named ones, for a durable record that says that the window has
    /// moved past it (rule `runs-after-window`).
    pub(super) fn retain_unreadable_runs(&mut self) {
        let end = self.scan.end.position;
        if self.history.lost.is_some() && self.extents.retire_free(end.get()) {
            self.history.retired_extents.push_back((end.get(), self.tip.number));
        }
    }

    /// The trie of a namespace in the newest state.
    pub fn trie(&self, namespace: u8) -> Result<&RecoveredTrie> {
        let found = self.tries.iter().find(|trie| trie.namespace == namespace);
        found.filter(|trie| trie.dropped.is_none()).ok_or(Error::Namespace(namespace))
    }
}

pub(super) struct Replay {
    /// In ascending order.
    pub(super) tries: Vec<TrieReplay>,
    /// The used runs of the overflow file; not known in a read-only open.
    extents: Option<OverflowSpace>,
    pub(super) tip: CommitState,
    pub(super) history: HistoryReplay,
    /// The image's map of leaf pages.
    leaf_map: Vec<u8>,
    quarantine: Arc<Quarantine>,
    pub(super) hasher: Hasher,
}

/// The rule by which a recovery finds the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// Where no valid record follows, unless that is damage.
    Proven,
    /// Also where another process is writing on: what follows is damage only if no valid record appears there.
    Live,
    /// Where the log is damaged, whatever evidence says: a repair cuts it there.
    Damage,
    /// As `Damage`. Pages that the files do not have any more are errors of later reads.
    Salvage,
}

/// The bounds of the log by both superblocks and the incarnation, whichever is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBounds {
    /// The last incarnation before this open.
    pub(crate) incarnation: u32,
    /// The log was synced below this.
    pub(crate) durable_through: LogPos,
    /// Segments had been prepared below this.
    pub(crate) prepared_through: LogPos,
    /// True when the database was closed cleanly at the end of the log that the superblock names.
    pub(crate) clean: bool,
    /// The rule for the end of the log.
    pub(crate) log_end: LogEnd,
    /// True when regions may stay in the image until they are used: those of a reader always, of a writer after a clean
    /// close. Another open of a writer reads all, so that it takes the older image when one is damaged.
    pub(crate) late: bool,
}

/// Reads the state that a superblock leads to. Writes nothing. `accept` is a root that the pairs of a namespace may
/// have instead of the recorded one.
pub(crate) fn recover(
    hasher: Hasher,
    device: &Disk,
    superblock: &Superblock,
    bounds: &LogBounds,
    limits: HistoryLimits,
    accept: Option<&Node>,
) -> Result<RecoveredState> {
    let late = bounds.late && (bounds.clean || bounds.log_end == LogEnd::Live);
    let mut image = ImageReader::open(device, &superblock.image, superblock.database)?;
    let table = read_table(&mut image, superblock)?;
    let mut tries = Vec::with_capacity(table.tries.len());
    let quarantine = Arc::default();
    for named in &table.tries {
        let from = ImageSource { image: &image, superblock, quarantine: &quarantine };
        tries.push(TrieReplay::read(hasher, &from, named, late)?);
    }
    let leaf_map = image.read_checked_stream(0, StreamId::LeafMap, &table.leaf_map)?;
    let map = image.read_checked_stream(0, StreamId::FreeMap, &table.overflow_map)?;
    let extents = OverflowSpace::parse(superblock.page_space(), &map).map_err(bad_map)?;
    // A salvage needs no overflow map, and records may name pages that the file does not have any more.
    let keeps_map = bounds.log_end != LogEnd::Salvage;
    let (extents, of_image) = if keeps_map { (Some(extents), None) } else { (None, Some(extents)) };
    let root = |kind, node| TrieRoot { kind, node };
    let roots = table.tries.iter();
    let roots = roots.filter_map(|trie| Some((trie.namespace, root(trie.kind, trie.root?))));
    let roots = Roots::new(roots);
    if roots.over_all(hasher) != superblock.root {
        return Err(TreeError::OtherTable.into());
    }
    let past =
        table.prior_roots.iter().map(|(namespace, kind, node)| (*namespace, root(*kind, *node)));
    // Without an entry for it the roots are the present ones.
    let past = if table.prior_roots.is_empty() { roots.clone() } else { Roots::new(past) };
    let cached = (limits.bytes / RUN_PAGE / 8).clamp(16, MOST_RUN_PAGES);
    let file = RunFile::new(hasher, device.clone(), superblock.database, cached);
    let file = Arc::new(file);
    let runs = read_runs(&mut image, &table)?.into_iter();
    let runs = runs.map(|names| Arc::new(DiskRun::new(names, &file))).collect();
    let (records, kept_from) =
        (table.records_from.min(superblock.replay.position), table.kept_from);
    let named = ImageHistory { runs, records, past: Some(past), kept_from };
    let history = HistoryReplay::before_replay(&file, superblock, named, &roots, limits)?;
    let mut replay = Replay {
        tries,
        extents,
        tip: CommitState { number: superblock.commit, roots, blob: table.blob.into() },
        history,
        leaf_map,
        quarantine,
        hasher,
    };
    let input = ScanInput {
        database: superblock.database,
        segment_size: superblock.geometry.log_segment,
        incarnation: bounds.incarnation,
        from: superblock.replay,
        durable_through: bounds.durable_through,
        prepared_through: bounds.prepared_through,
        clean: bounds.clean,
        live: false,
    };
    let mut last = input.from;
    let mut record = |record: &RecordView<'_>| {
        last = LogPoint { position: record.header.end(), checksum: record.checksum };
        replay.apply_record(record)
    };
    let scan = if matches!(bounds.log_end, LogEnd::Damage | LogEnd::Salvage) {
        scan_lenient(device, &input, &mut record)?
    } else {
        match scan(device, &input, &mut record) {
            // A record that was incomplete when the damage was judged may be whole by now, which makes what lies behind
            // it no evidence.
            Err(damaged @ Error::Scan(ScanError::Damaged { .. }))
                if bounds.log_end == LogEnd::Live =>
            {
                let on = ScanInput { from: last, live: true, ..input };
                let end = scan(device, &on, |record| replay.apply_record(record))?;
                if end.records == 0 {
                    return Err(damaged);
                }
                end
            }
            scanned => scanned?,
        }
    };
    // Only now: while another process writes, the file grows before the records that name the new pages.
    if let Some(extents) = &mut replay.extents {
        grow_to_file(device, superblock, extents)?;
    }
    replay.extents = replay.extents.or(of_image);
    replay.finish_recovery(scan, device, superblock.database, accept)
}

/// The overflow file may have grown since the image, beyond the runs that records name. It is never shorter than these.
fn grow_to_file(device: &Disk, superblock: &Superblock, extents: &mut OverflowSpace) -> Result<()> {
    let file = device.open(OVERFLOW_FILE, OpenMode::Read)?;
    let expected = page_offset(extents.stats().pages);
    let found = device.len(&file)?;
    if found < expected {
        return Err(Error::ShortFile { file: OVERFLOW_FILE, found, expected });
    }
    let whole = found - found % superblock.geometry.overflow_segment;
    Ok(extents.grow_to(whole / PAGE as u64).map_err(bad_map)?)
}

/// Marks runs that a record names used. Extends the map where the file has grown since the image.
fn mark_used(
    extents: &mut OverflowSpace,
    runs: impl Iterator<Item = OverflowExtent>,
) -> Result<()> {
    for run in runs {
        let end = run.start.saturating_add(run.pages.into());
        extents.grow_to(end).and_then(|()| extents.mark_used(run)).map_err(bad_map)?;
    }
    Ok(())
}

/// The descriptors of the history's runs.
pub(super) fn read_runs(image: &mut ImageReader, table: &ImageTable) -> Result<Vec<RunDescriptor>> {
    if table.history.len == 0 {
        return Ok(Vec::new());
    }
    let bytes = image.read_checked_stream(0, StreamId::History, &table.history)?;
    let (mut left, mut runs) = (&bytes[..], Vec::<RunDescriptor>::new());
    while !left.is_empty() {
        let (next, rest) = RunDescriptor::decode(left).ok_or(TreeError::Table)?;
        if runs.last().is_some_and(|last| last.last_commit != next.after) {
            return Err(TreeError::Table.into());
        }
        left = rest;
        runs.push(next);
    }
    Ok(runs)
}

pub(super) fn read_table(image: &mut ImageReader, superblock: &Superblock) -> Result<ImageTable> {
    let first = superblock.image.table_page;
    let head = image.read_stream_head(StreamId::Namespaces, first)?;
    let bytes = image.read_stream(0, StreamId::Namespaces, first, ImageTable::len_of(&head)?)?;
    if Hasher::BLAKE3.hash(&bytes) != superblock.image.table_hash {
        return Err(TreeError::OtherTable.into());
    }
    Ok(ImageTable::decode(&bytes)?)
}

impl Replay {
    /// A replay of later records, on the recovered regions and undo.
    pub(super) fn continue_from(recovered: &RecoveredState, limits: HistoryLimits) -> Self {
        let RecoveredState { history, tip, .. } = recovered;
        let tries = recovered.tries.iter().cloned();
        Self {
            tries: tries.map(|trie| TrieReplay::continue_from(recovered.hasher, trie)).collect(),
            extents: None,
            tip: tip.clone(),
            history: HistoryReplay::continue_from(history, tip, limits),
            leaf_map: Vec::new(),
            quarantine: Arc::clone(&recovered.quarantine),
            hasher: recovered.hasher,
        }
    }

    pub(super) fn apply_record(&mut self, record: &RecordView<'_>) -> Result<()> {
        let bad = bad_record(record.header.position);
        match record.header.kind {
            LogRecordKind::Commit => {
                self.apply_commit(&CommitView::parse(record.body).map_err(bad)?, &record.header)
            }
            LogRecordKind::Location => {
                self.apply_location(&LocationView::parse(record.body).map_err(bad)?, &record.header)
            }
            LogRecordKind::Close => Ok(()),
        }
    }

    fn apply_commit(&mut self, view: &CommitView<'_>, header: &RecordHeader) -> Result<()> {
        let (number, bad) = (header.number, bad_record(header.position));
        if number != self.tip.number + 1 {
            let before = self.tip.number;
            return Err(Contradiction::CommitOrder { before, found: number }.into());
        }
        let mut roots = self.tip.roots.clone();
        for namespace in view.namespaces() {
            let namespace = namespace.map_err(bad)?;
            roots = roots_after(&roots, number, &namespace)?;
            self.apply_entry(number, &namespace)?;
            let mut changes = Vec::with_capacity(namespace.change_bound());
            for change in namespace.changes() {
                let (key, value) = change.map_err(bad)?;
                changes.push((*key, stored(self.hasher, number, value)?));
            }
            let mut nodes = Vec::with_capacity(namespace.node_bound());
            for node in namespace.nodes() {
                let (prefix, node) = node.map_err(bad)?;
                nodes.push((prefix, *node));
            }
            // The map is as of the replay start: every record since then counts, whatever the regions' own log
            // positions.
            if let Some(extents) = &mut self.extents {
                let stored = changes.iter().map(|(_, stored)| stored);
                mark_used(extents, stored.flat_map(overflow::extents))?;
            }
            // A plain trie has no nodes that could be checked in the end.
            if namespace.trie == TrieKind::Plain
                && matches!(namespace.kind, EntryKind::Changed | EntryKind::Added)
            {
                let of = changes.iter().map(|(key, stored)| (key, stored));
                if digest::after_changes(namespace.previous_root, of) != *namespace.new_root {
                    let what = "its digest is not that of its changes";
                    let (commit, namespace) = (number, namespace.ns);
                    return Err(Contradiction::Commit { commit, namespace, what }.into());
                }
            }
            let end = record_end(header);
            self.trie_mut(namespace.ns, header.position)?.apply(number, end, &changes, &nodes)?;
        }
        self.tip = CommitState { number, roots, blob: view.blob.into() };
        self.history.apply_commit(self.hasher, view, header)
    }

    /// Applies an entry to a namespace as a whole: adds, drops or restores it; checks its roots.
    fn apply_entry(&mut self, number: u64, entry: &NamespaceView<'_>) -> Result<()> {
        let (commit, namespace) = (number, entry.ns);
        let what = "it does not fit the state before it";
        let bad = || Contradiction::Commit { commit, namespace, what };
        let found = self.tries.binary_search_by_key(&entry.ns, |replay| replay.trie.namespace);
        let replay = found.ok().map(|at| &mut self.tries[at]);
        let is_other = |replay: &TrieReplay| replay.trie.kind != entry.trie;
        if entry.kind != EntryKind::Added && replay.as_deref().is_some_and(is_other) {
            return Err(bad().into());
        }
        let is_dropped = replay.as_deref().is_some_and(|replay| replay.trie.dropped.is_some());
        match (entry.kind, replay) {
            (EntryKind::Changed | EntryKind::Set, Some(_)) if !is_dropped => {}
            (EntryKind::Dropped, Some(replay)) if !is_dropped => {
                replay.trie.dropped = Some(number);
            }
            (EntryKind::Restored, Some(replay)) if is_dropped => replay.trie.dropped = None,
            (EntryKind::Added, None) => {
                let at = found.expect_err("there is none");
                self.tries.insert(at, TrieReplay::empty(self.hasher, entry.ns, entry.trie, number));
            }
            // The earlier trie was reclaimed: records before this one say so.
            (EntryKind::Added, Some(replay)) if is_dropped && replay.trie.regions.is_bare() => {
                replay.begin_anew(entry.trie, number);
            }
            _ => return Err(bad().into()),
        }
        Ok(())
    }

    /// The trie that a record at `position` names.
    fn trie_mut(&mut self, namespace: u8, position: LogPos) -> Result<&mut TrieReplay> {
        let at = self.tries.binary_search_by_key(&namespace, |replay| replay.trie.namespace);
        let at = at.map_err(|_| Contradiction::NoTrie { position, namespace })?;
        Ok(&mut self.tries[at])
    }

    fn apply_location(&mut self, view: &LocationView<'_>, header: &RecordHeader) -> Result<()> {
        let (start, end) = (header.position, record_end(header));
        let bad = bad_record(start);
        if let Some(extents) = &mut self.extents {
            mark_used(extents, view.allocated())?;
            for run in view.replaced_extents() {
                extents.mark_free(run).map_err(bad_map)?;
            }
        }
        let replaced: HashSet<u64> = view.replaced_extents().map(|run| run.start).collect();
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
        let moved = all.iter().map(|(range, pages, last_commit)| {
            let (range, last_commit) = (*range, *last_commit);
            Relocation { range, pages, last_commit }
        });
        let moved: Vec<Relocation<'_>> = moved.collect();
        let trie = self.trie_mut(view.ns, start)?;
        trie.relocate(&moved, &replaced, start, end)?;
        trie.join(&joins, start, end)
    }

    fn finish_recovery(
        mut self,
        scan: ScanEnd,
        device: &Disk,
        database: u64,
        accept: Option<&Node>,
    ) -> Result<RecoveredState> {
        let (mut rebuilt, mut root_accepted) = (Vec::new(), false);
        let (mut sums, mut leaf_pages_with_nodes) = (TrieSums::default(), 0);
        let (mut leaf_pages, mut is_late) = (Vec::new(), false);
        let mut tries = Vec::with_capacity(self.tries.len());
        let image_leaf_end = map_end(&self.leaf_map);
        let mut extents = self.extents.take().expect("a recovery has read the map");
        let history = self.history.finish_history(&mut extents)?;
        for mut trie in self.tries {
            for page in std::mem::take(&mut trie.loaded) {
                if let Some(byte) = self.leaf_map.get_mut((page.get() / 8) as usize) {
                    *byte &= !(1 << (page.get() % 8));
                }
            }
            let mut of_trie = trie.away;
            let (trie, root) = trie.finish();
            let has_away = trie.regions.regions().iter().any(|region| region.row().is_away());
            is_late |= has_away;
            let expected = match trie.dropped {
                _ if trie.kind == TrieKind::Plain => None,
                None => self.tip.roots.get(trie.namespace),
                // The drop is older than the history: the trie may be reclaimed, in part or as a whole.
                Some(commit) => {
                    let before = history.undo.commit_state(commit - 1).ok();
                    before.and_then(|state| state.roots.get(trie.namespace)).or(root)
                }
            };
            if let Some(expected) = expected.filter(|expected| Some(*expected) != root) {
                let (commit, namespace) = (self.tip.number, trie.namespace);
                if let (true, Some(found)) = (has_away, root) {
                    return Err(Contradiction::Root { commit, namespace, expected, found }.into());
                }
                let found = rebuild(self.hasher, device, database, &trie.regions)?;
                let accepted = trie.dropped.is_none() && accept == Some(&found);
                if found != expected && !accepted {
                    return Err(Contradiction::Root { commit, namespace, expected, found }.into());
                }
                if found != expected {
                    let root = TrieRoot { kind: trie.kind, node: found };
                    self.tip.roots = self.tip.roots.with([(namespace, Some(root))]);
                    root_accepted = true;
                }
                rebuilt.push(namespace);
            }
            let rows = trie.regions.regions().iter().map(|region| region.row());
            for state in rows.filter(|row| !row.is_away()) {
                of_trie += TrieSums::of(&state);
                leaf_pages.extend(super::trie::leaf_pages(&state));
            }
            if trie.kind == TrieKind::Merkle {
                leaf_pages_with_nodes += of_trie.pages;
            }
            sums += of_trie;
            tries.push(trie);
        }
        if let Some(error) = self.quarantine.first_lost() {
            return Err(error.into());
        }
        Ok(RecoveredState {
            hasher: self.hasher,
            tries,
            history,
            extents,
            tip: self.tip,
            scan,
            buffered_bytes: usize::try_from(sums.bytes).unwrap_or(usize::MAX),
            buffered_entries: usize::try_from(sums.changes).unwrap_or(usize::MAX),
            leaf_page_count: sums.pages,
            leaf_pages,
            leaf_pages_with_nodes,
            image_leaf_end,
            leaf_map: self.leaf_map,
            quarantine: self.quarantine,
            is_late,
            rebuilt,
            root_accepted,
        })
    }
}

/// The end of a record for a region's log position: not rounded up.
fn record_end(header: &RecordHeader) -> LogPos {
    header.position + header.record_len()
}

fn bad_map(error: SpaceError) -> Contradiction {
    Contradiction::OverflowMap(error)
}
