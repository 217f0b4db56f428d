//! Recovery of the history: the states of the commits before the newest one.
//!
//! An image names runs on the device, which have what commits up to one have replaced, and the position of the
//! records after it. An open reads only the long values that runs name, where they name any; these records, up to the
//! replay start; and the records that are replayed ([`HistoryReplay::apply_commit`]). The runs of the overflow file
//! with long values that only the window names are used and retired: they become free when a durable record says that
//! the window has moved on (rule `runs-after-window`).
//!
//! Where a run or the log is damaged, the commits before the damage are lost, which the open reports; the commits
//! behind it are whole, and so is the database. A failed read is no damage: it fails the open, unless no history is
//! wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_beatree::pages::{RetiredExtents, overflow};
use pleach_beatree::space::OverflowSpace;
use pleach_beatree::{Error as TreeError, Stored};
use pleach_core::Hasher;
use pleach_core::page::overflow::OverflowExtent;
use pleach_io::Disk;
use pleach_journal::format::bytes::BodyError;
use pleach_journal::format::commit_body::{CommitView, EntryKind, NamespaceView, UndoHeader};
use pleach_journal::format::names::OVERFLOW_FILE;
use pleach_journal::format::position::LogPos;
use pleach_journal::format::record::{LogRecordKind, RecordHeader};
use pleach_journal::format::superblock::Superblock;
use pleach_journal::log::{BrokenChain, next_record, read_chain};

use crate::error::{Contradiction, Error, Result};
use crate::options::HistoryLimits;
use crate::roots::{Roots, TrieRoot};
use crate::state::commits::CommitState;
use crate::state::history::ImageHistory;
use crate::state::history::PriorCommit;
use crate::state::undo::Undo;
use crate::state::undo::replaced::record_undo;
use pleach_history::{DiskRun, RunFile};

/// A long value that undo of a commit names.
struct NamedValue {
    number: u64,
    start: LogPos,
    stored: Stored,
}

/// The history while records are replayed.
pub(crate) struct HistoryReplay {
    undo: Arc<Undo>,
    limits: HistoryLimits,
    /// The newest commit so far, and its roots.
    tip: u64,
    roots: Roots,
    /// The oldest commit that can be read.
    from: u64,
    /// The begin of the history in the newest record; 0 as long as none was read. Unlike `from`, it is the same
    /// whichever generation the next open uses, and whether that can read the history or not.
    recorded_begin: u64,
    values: Vec<NamedValue>,
    /// True in a read-only open.
    is_follower: bool,
    /// Runs on the device.
    disk: Vec<Arc<DiskRun>>,
    /// The error that has cost the commits before the readable ones.
    lost: Option<Error>,
}

/// The recovered history.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct RecoveredHistory {
    /// The undo of its commits.
    pub undo: Arc<Undo>,
    /// The begin of the history in the newest record; 0 where that is not known.
    pub(crate) recorded_begin: u64,
    /// The retired runs of the overflow file that the history alone names: what they are retired under, and the commit
    /// from which on no view names them.
    pub(crate) retired_extents: RetiredExtents,
    /// The runs on the device that the image names.
    pub(crate) disk: Vec<Arc<DiskRun>>,
    /// The retired runs, and the pages of runs of the history.
    pub overflow_extents: Vec<OverflowExtent>,
    /// Long values that the history names, with the commit that has replaced each.
    pub long_values: Vec<(u64, Stored)>,
    /// The error that has cost some or all of the history.
    pub(crate) lost: Option<Error>,
}

impl RecoveredHistory {
    /// One error for each damaged run on the device; reads all pages of the runs.
    pub fn damaged_runs(&self) -> impl Iterator<Item = Error> {
        self.disk.iter().filter_map(|run| Some(run.check().err()?.into()))
    }
}

impl HistoryReplay {
    fn new(
        limits: HistoryLimits,
        tip: u64,
        roots: Roots,
        file: Option<&Arc<RunFile>>,
        disk: Vec<Arc<DiskRun>>,
    ) -> Self {
        let kept = if limits.commits > 0 { disk.clone() } else { Vec::new() };
        let undo = Arc::new(Undo::new(limits, tip, file.cloned(), kept));
        let from = disk.first().map_or(tip, |first| first.descriptor.after);
        let values = Vec::new();
        Self {
            undo,
            limits,
            tip,
            roots,
            from,
            recorded_begin: 0,
            values,
            is_follower: false,
            disk,
            lost: None,
        }
    }

    /// The history that continues the recovered one.
    pub(crate) fn continue_from(
        recovered: &RecoveredHistory,
        tip: &CommitState,
        limits: HistoryLimits,
    ) -> Self {
        let RecoveredHistory { undo, recorded_begin: stated, .. } = recovered;
        Self {
            undo: Arc::clone(undo),
            from: undo.oldest_commit(),
            recorded_begin: *stated,
            is_follower: true,
            ..Self::new(limits, tip.number, tip.roots.clone(), None, Vec::new())
        }
    }

    /// Moves the begin of the window to that in the records, or later.
    pub(crate) fn settle_window(&self) {
        if self.limits.commits > 0 {
            self.undo.set_recovered_begin(self.from, self.recorded_begin);
        }
    }

    /// The history up to the replay start, where the roots are `at_replay`, as an image names it.
    pub(crate) fn before_replay(
        file: &Arc<RunFile>,
        superblock: &Superblock,
        mut named: ImageHistory,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self> {
        let Superblock { database, replay, geometry, .. } = *superblock;
        let (device, mut lost) = (&file.device, None);
        // Each turn begins behind the damage that ended the one before, at the latest at the replay start.
        loop {
            let past = named.past.take();
            let first =
                past.map_or_else(|| roots_before(device, superblock, named.records, at_replay), Ok);
            let read = first
                .and_then(|first| Self::read(file, superblock, &named, &first, at_replay, limits));
            let BrokenChain { resume, error } = match read {
                Ok(history) => return Ok(Self { lost, ..history }),
                Err(broken) => broken,
            };
            lost = Some(error.clone());
            if limits.commits == 0 && error.device().is_some() {
                // No history is wanted.
                let (commit, roots) = (superblock.commit, at_replay.clone());
                let none = Self::new(limits, commit, roots, Some(file), Vec::new());
                return Ok(Self { lost, ..none });
            } else if error.device().is_some() {
                return Err(error);
            }
            let (size, end) = (geometry.log_segment, replay.position);
            named.records = next_record(device, database, size, resume, end)?.unwrap_or(end);
            // The runs have the commits before the damage.
            named.runs.clear();
        }
    }

    fn read(
        file: &Arc<RunFile>,
        superblock: &Superblock,
        named: &ImageHistory,
        first: &Roots,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self, BrokenChain<Error>> {
        let Superblock { database, replay, geometry, commit, .. } = *superblock;
        let (device, disk) = (&file.device, &named.runs);
        let contradicts = |error: Error| BrokenChain { resume: replay.position, error };
        let begin = |tip: u64, roots| -> Result<Self> {
            if let Some(last) = disk.last().filter(|last| last.descriptor.last_commit != tip) {
                let before = last.descriptor.last_commit;
                return Err(Contradiction::CommitOrder { before, found: tip + 1 }.into());
            }
            let mut history = Self::new(limits, tip, roots, Some(file), disk.clone());
            (history.from, history.recorded_begin) =
                (history.from.max(named.kept_from.min(tip)), named.kept_from);
            Ok(history)
        };
        let mut history: Option<Self> = None;
        read_chain(device, database, geometry.log_segment, named.records, replay, |record| {
            if record.header.kind != LogRecordKind::Commit {
                return Ok::<(), Error>(());
            }
            let number = record.header.number;
            let bad = bad_record(record.header.position);
            let view = CommitView::parse(record.body).map_err(bad)?;
            let history = match &mut history {
                Some(history) => history,
                none => none.insert(begin(number.saturating_sub(1), first.clone())?),
            };
            if number != history.tip + 1 {
                let before = history.tip;
                return Err(Contradiction::CommitOrder { before, found: number }.into());
            }
            history.apply_commit(file.hasher, &view, &record.header)
        })?;
        let history = match history {
            Some(history) => history,
            None => begin(commit, at_replay.clone()).map_err(contradicts)?,
        };
        if history.tip != commit {
            let (before, found) = (history.tip, commit + 1);
            return Err(contradicts(Contradiction::CommitOrder { before, found }.into()));
        }
        if history.roots != *at_replay {
            return Err(contradicts(Contradiction::CommitRoot { commit }.into()));
        }
        Ok(history)
    }

    /// Applies the next commit.
    pub(crate) fn apply_commit(
        &mut self,
        hasher: Hasher,
        view: &CommitView<'_>,
        header: &RecordHeader,
    ) -> Result<()> {
        self.tip = header.number;
        let roots = self.roots.clone();
        for namespace in view.namespaces() {
            let namespace = namespace.map_err(bad_record(header.position))?;
            self.roots = roots_after(&self.roots, header.number, &namespace)?;
        }
        let Some(before) = view.undo_header else {
            (self.from, self.recorded_begin) = (header.number, header.number);
            self.values.clear();
            self.undo.set_barrier(header.number);
            return Ok(());
        };
        let kept_from = before.kept_from.min(header.number);
        (self.from, self.recorded_begin) =
            (self.from.max(kept_from), self.recorded_begin.max(kept_from));
        let mut replaced = Vec::new();
        for namespace in view.namespaces() {
            let namespace = namespace.map_err(bad_record(header.position))?;
            let restored = record_undo(hasher, &namespace, header)?;
            let priors = restored.changes.priors().map(|(_, prior)| prior);
            let named = priors.filter(|prior| matches!(prior, Stored::Overflow(_)));
            self.values.extend(named.map(|stored| NamedValue {
                number: header.number,
                start: header.position,
                stored: stored.clone(),
            }));
            replaced.push(restored);
        }
        if self.limits.commits == 0 {
            self.undo.set_barrier(header.number);
        } else {
            let UndoHeader { blob, back_to, time, .. } = before;
            let (start, blob) = (header.position, blob.into());
            let before = PriorCommit { start, roots, blob, back_to, time };
            self.undo.push(header.number, replaced, Some(before));
            self.undo.settle();
        }
        // A follower releases no runs.
        let from = if self.is_follower { u64::MAX } else { self.from };
        self.values.retain(|value| value.number > from);
        Ok(())
    }

    /// Ends the replay: marks the runs used that the history alone names.
    pub(crate) fn finish_history(mut self, map: &mut OverflowSpace) -> Result<RecoveredHistory> {
        self.claim_runs(map)?;
        let Self { undo, from, recorded_begin: stated, values, lost, limits, tip, disk, .. } = self;
        let (mut held, mut held_extents) = (RetiredExtents::new(), Vec::new());
        let mut long_values = Vec::new();
        for NamedValue { number, start, stored } in
            values.into_iter().filter(|value| value.number > from)
        {
            for run in overflow::extents(&stored) {
                // A run that is not free is named by a page or a buffered change, or waits to be retired by a flush.
                if map.mark_used(run).is_err() {
                    continue;
                }
                map.retire(&[run], start.get())?;
                held_extents.push(run);
                if held.back().is_none_or(|(last, _)| *last < start.get()) {
                    held.push_back((start.get(), number));
                }
            }
            long_values.push((number, stored));
        }
        held_extents.extend(disk.iter().flat_map(|run| &run.descriptor.pages));
        if limits.commits > 0 || from < tip || lost.is_some() {
            undo.set_recovered_begin(from, stated);
        }
        // Without a record there is no history, unless it is lost.
        let stated = if stated == 0 && lost.is_none() { from } else { stated };
        Ok(RecoveredHistory {
            undo,
            recorded_begin: stated,
            retired_extents: held,
            disk,
            overflow_extents: held_extents,
            long_values,
            lost,
        })
    }

    /// Marks the pages of runs on the device used: an image's map has them free, so that the present never depends on
    /// them. Where one of the pages is used otherwise by now, or a run that is to be read is damaged, that run and all
    /// before it are lost.
    fn claim_runs(&mut self, extents: &mut OverflowSpace) -> Result<()> {
        for at in (0..self.disk.len()).rev() {
            let run = &self.disk[at];
            let pages = &run.descriptor.pages;
            let taken = pages.iter().position(|run| extents.mark_used(*run).is_err());
            let read = match taken {
                Some(at) => {
                    let (file, page) = (OVERFLOW_FILE, pages[at].start);
                    let what = "the page is taken by something else";
                    Err(TreeError::Contents { file, page, what }.into())
                }
                None if self.limits.reads_runs => run.check().map_err(Error::from),
                None => Ok(()),
            };
            let mut own = Vec::new();
            // Commit numbers serve as positions: each record takes more bytes than its commit has numbers before it.
            let see =
                |number: u64, stored| own.push(NamedValue { number, start: number.into(), stored });
            let read = read.and_then(|()| Ok(run.for_each_long_value(see)?));
            let Err(error) = read else {
                own.append(&mut self.values);
                self.values = own;
                continue;
            };
            if error.device().is_some() && self.limits.commits > 0 && !self.limits.reads_runs {
                return Err(error);
            }
            for run in &pages[..taken.unwrap_or(pages.len())] {
                extents.mark_free(*run)?;
            }
            self.from = self.from.max(run.descriptor.last_commit);
            self.lost = Some(error);
            self.disk.drain(..=at);
            self.undo.replace_disk_runs(self.disk.clone(), self.from);
            break;
        }
        Ok(())
    }
}

/// The roots before the record at `from`, from those at the replay start: a root that no record since then names has
/// not changed.
fn roots_before(
    device: &Disk,
    superblock: &Superblock,
    from: LogPos,
    at_replay: &Roots,
) -> Result<Roots, BrokenChain<Error>> {
    let Superblock { database, replay, geometry, .. } = *superblock;
    let mut before = BTreeMap::new();
    read_chain(device, database, geometry.log_segment, from, replay, |record| {
        if record.header.kind != LogRecordKind::Commit {
            return Ok::<(), Error>(());
        }
        let bad = bad_record(record.header.position);
        for namespace in CommitView::parse(record.body).map_err(bad)?.namespaces() {
            let namespace = namespace.map_err(bad)?;
            before.entry(namespace.ns).or_insert_with(|| root_before(&namespace));
        }
        Ok(())
    })?;
    Ok(at_replay.with(before))
}

/// The root of a namespace before a commit, from the entry of its record.
pub fn root_before(entry: &NamespaceView<'_>) -> Option<TrieRoot> {
    let existed = !matches!(entry.kind, EntryKind::Added | EntryKind::Restored);
    existed.then_some(TrieRoot { kind: entry.trie, node: *entry.previous_root })
}

/// The roots after a commit, with the changes by this entry of its record.
pub(crate) fn roots_after(before: &Roots, commit: u64, entry: &NamespaceView<'_>) -> Result<Roots> {
    if before.of(entry.ns) != root_before(entry) {
        return Err(Contradiction::CommitRoot { commit }.into());
    }
    Ok(before.with([(entry.ns, root_after(entry))]))
}

/// The root of a namespace after a commit, from the entry of its record.
pub fn root_after(entry: &NamespaceView<'_>) -> Option<TrieRoot> {
    let exists = entry.kind != EntryKind::Dropped;
    exists.then_some(TrieRoot { kind: entry.trie, node: *entry.new_root })
}

pub(crate) fn bad_record(position: LogPos) -> impl Fn(BodyError) -> Contradiction + Copy {
    move |error| Contradiction::Record { position, error }
}
