//! The history: what the commits before the newest one had.
//!
//! The records of the window tell it, those below the replay start and those that are replayed ([`History::commit`]). An open
//! needs those that it replays. It leaves the others where they are ([`History::before_replay`]) until somebody asks for one of
//! their commits ([`reach`]), unless it has to know which runs of long values they name. No more is kept in memory than the
//! limits say. The runs of long
//! values that the window names, and nobody else, are used and retired: they are free when a durable
//! record says that the window has moved on (rule `runs-after-window`).
//!
//! Where the log is damaged, what lies before the damage is lost, and that is said; what lies behind it is whole, and so
//! is the database. A read that fails is no damage: it fails the open, unless no history is wanted.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::space::Extents;
use pleach_core::Hasher;
use pleach_core::page::overflow::PageRun;
use pleach_io::{Disk, OpenMode};

use crate::error::{Contradiction, Error, Result};
use crate::format::bytes::BodyError;
use crate::format::commit_body::{CommitView, EntryKind, NamespaceView};
use crate::format::position::LogPos;
use crate::format::record::{Header, Kind};
use crate::format::superblock::Superblock;
use crate::format::superblock_store::SuperblockStore;
use crate::log::segment::reaches_back;
use crate::log::{Broken, chain, next_record, walk};
use crate::opening::LostHistory;
use crate::options::{Below, HistoryLimits};
use crate::roots::{Roots, TrieRoot};
use crate::state::Shared;
use crate::state::commits::Tip;
use crate::state::overflow;
use crate::state::replaced::{Restored, restored};
use crate::state::space::Held;
use crate::state::undo::Undo;
use crate::state::window::{Before, Unread};

/// Tries of a reading of the history, beside a process that gives segments up.
const TRIES: u32 = 16;

/// A long value that the undo of a commit names.
struct NamedValue {
    number: u64,
    start: LogPos,
    stored: Stored,
}

/// The history in the making.
pub(crate) struct History {
    undo: Arc<Undo>,
    limits: HistoryLimits,
    /// Where the replay starts: the log is at least as long.
    replay: LogPos,
    /// The commit that came last, and its roots.
    tip: u64,
    roots: Roots,
    /// The oldest commit that can be read.
    from: u64,
    /// Where the newest record says that the history begins; 0 as long as none was read. Other than `from`, this
    /// holds whichever generation the next open uses, and whether it can read the history or not.
    stated: u64,
    values: Vec<NamedValue>,
    /// Is it that of a read-only open?
    follows: bool,
    /// Were records below the replay start left unread?
    is_left: bool,
    /// Why commits before those that were read are not known.
    lost: Option<Error>,
}

/// A history that is ready.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct Recovered {
    /// What commits replaced.
    pub undo: Arc<Undo>,
    /// Where the newest record says that the history begins; 0 where that is not known.
    pub(crate) stated: u64,
    /// What releases the runs of the overflow file that the history alone names.
    pub(crate) held: Held,
    /// These runs.
    pub held_runs: Vec<PageRun>,
    /// Long values that the history names, with the commit that has replaced each.
    pub long_values: Vec<(u64, Stored)>,
    /// Why some of the history is not there, or all of it, though it should be.
    pub(crate) lost: Option<Error>,
}

impl History {
    fn new(limits: HistoryLimits, replay: LogPos, tip: u64, roots: Roots) -> Self {
        let (undo, values) = (Arc::new(Undo::new(limits, tip)), Vec::new());
        Self {
            undo,
            limits,
            replay,
            tip,
            roots,
            from: tip,
            stated: 0,
            values,
            follows: false,
            is_left: false,
            lost: None,
        }
    }

    /// The history that goes on from what was recovered.
    pub(crate) fn after(recovered: &Recovered, tip: &Tip, limits: HistoryLimits) -> Self {
        let Recovered { undo, stated, .. } = recovered;
        Self {
            undo: Arc::clone(undo),
            from: undo.from(),
            stated: *stated,
            follows: true,
            ..Self::new(limits, LogPos::START, tip.number, tip.roots.clone())
        }
    }

    /// The window begins where the records say, or later.
    pub(crate) fn settle(&self) {
        if self.limits.commits > 0 {
            self.undo.was_from(self.from, self.stated);
        }
    }

    /// The history up to the replay start, where the roots are `at_replay`; `past` are those before its first record, where
    /// they are known.
    pub(crate) fn before_replay(
        hasher: Hasher,
        device: &Disk,
        superblock: &Superblock,
        past: Option<Roots>,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self> {
        if limits.below != Below::Read
            && let Some(left) = Self::left(device, superblock, past.as_ref(), at_replay, limits)
        {
            return Ok(left);
        }
        match Self::newest_part(hasher, device, superblock, past, at_replay, limits) {
            // Nobody wants it.
            Err(error) if limits.commits == 0 => {
                let lost = Some(error);
                let replay = superblock.replay.position;
                Ok(Self { lost, ..Self::new(limits, replay, superblock.commit, at_replay.clone()) })
            }
            read => read,
        }
    }

    /// The history with the records below the replay start left unread, but for the first, which says where it begins. None
    /// where not all of their segments are there: then what is lost is found by reading the others.
    fn left(
        device: &Disk,
        superblock: &Superblock,
        past: Option<&Roots>,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Option<Self> {
        let Superblock { database, replay, geometry, commit, .. } = *superblock;
        let (size, from, end) = (geometry.log_segment, superblock.log_from(), replay.position);
        let mut history = Self::new(limits, end, commit, at_replay.clone());
        if limits.commits == 0 {
            return Some(history);
        }
        if from >= end || !reaches_back(device, size, end, from).ok()? {
            return None;
        }
        let mut first = None;
        let walked = walk(device, database, size, from.into(), end, |record| {
            first = Some((record.header.kind, record.header.number));
            Ok::<_, Error>(ControlFlow::Break(()))
        });
        let (kind, number) = walked.ok().and(first)?;
        history.from = number.checked_sub(1)?;
        if kind != Kind::Commit || number > commit {
            return None;
        }
        let roots = past?.clone();
        let unread = Unread {
            superblock: *superblock,
            first: history.from,
            roots,
            at_replay: at_replay.clone(),
        };
        history.undo.leave_unread(unread);
        history.is_left = true;
        Some(history)
    }

    /// What is whole of it, up to the replay start.
    fn newest_part(
        hasher: Hasher,
        device: &Disk,
        superblock: &Superblock,
        mut past: Option<Roots>,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self> {
        let Superblock { database, replay, geometry, .. } = *superblock;
        let mut from = superblock.log_from();
        let mut lost = None;
        // Each turn begins behind the damage that ended the one before, at the replay start at last.
        loop {
            let first =
                past.take().map_or_else(|| roots_before(device, superblock, from, at_replay), Ok);
            let read = first.and_then(|first| {
                Self::read(hasher, device, superblock, from, &first, at_replay, limits)
            });
            let Broken { resume, error } = match read {
                Ok(history) => return Ok(Self { lost, ..history }),
                Err(broken) => broken,
            };
            if error.device().is_some() {
                return Err(error);
            }
            let (size, end) = (geometry.log_segment, replay.position);
            from = next_record(device, database, size, resume, end)?.unwrap_or(end);
            lost = Some(error);
        }
    }

    fn read(
        hasher: Hasher,
        device: &Disk,
        superblock: &Superblock,
        from: LogPos,
        first: &Roots,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self, Broken<Error>> {
        let Superblock { database, replay, geometry, commit, .. } = *superblock;
        let begin = |tip, roots| Self::new(limits, replay.position, tip, roots);
        let mut history: Option<Self> = None;
        chain(device, database, geometry.log_segment, from, replay, |record| {
            if record.header.kind != Kind::Commit {
                return Ok::<(), Error>(());
            }
            let number = record.header.number;
            let bad = bad_record(record.header.position);
            let view = CommitView::parse(record.body).map_err(bad)?;
            let history =
                history.get_or_insert_with(|| begin(number.saturating_sub(1), first.clone()));
            if number != history.tip + 1 {
                let before = history.tip;
                return Err(Contradiction::CommitOrder { before, found: number }.into());
            }
            history.commit(hasher, &view, &record.header)
        })?;
        let history = history.unwrap_or_else(|| begin(commit, at_replay.clone()));
        let contradicts =
            |what: Contradiction| Broken { resume: replay.position, error: what.into() };
        if history.tip != commit {
            let before = history.tip;
            return Err(contradicts(Contradiction::CommitOrder { before, found: commit + 1 }));
        }
        if history.roots != *at_replay {
            return Err(contradicts(Contradiction::CommitRoot { commit }));
        }
        Ok(history)
    }

    /// The next commit.
    pub(crate) fn commit(
        &mut self,
        hasher: Hasher,
        view: &CommitView<'_>,
        header: &Header,
    ) -> Result<()> {
        self.tip = header.number;
        let roots = self.roots.clone();
        for namespace in view.namespaces() {
            let namespace = namespace.map_err(bad_record(header.position))?;
            self.roots = roots_after(&self.roots, header.number, &namespace)?;
        }
        let Some(before) = view.before else {
            (self.from, self.stated) = (header.number, header.number);
            self.values.clear();
            self.undo.barrier(header.number);
            return Ok(());
        };
        let kept_from = before.kept_from.min(header.number);
        (self.from, self.stated) = (self.from.max(kept_from), self.stated.max(kept_from));
        let mut replaced = Vec::new();
        for namespace in view.namespaces() {
            let namespace = namespace.map_err(bad_record(header.position))?;
            let restored = restored(hasher, &namespace, header)?;
            let long = restored.values.iter().map(|(_, prior)| prior);
            let named = long.filter(|prior| matches!(prior, Stored::Overflow(_)));
            self.values.extend(named.map(|stored| NamedValue {
                number: header.number,
                start: header.position,
                stored: stored.clone(),
            }));
            replaced.push(restored);
        }
        let end = header.end();
        if self.limits.commits == 0 {
            self.undo.barrier(header.number);
        } else {
            let (blob, back_to) = (before.blob.into(), before.back_to);
            let before = Before { start: header.position, roots, blob, back_to };
            let log_after = self.replay.checked_since(end).unwrap_or(0);
            if self.undo.is_beyond_memory(log_after) {
                let overflow = replaced.iter().map(Restored::overflow_bytes).sum();
                self.undo.leave_in_log(header.number, overflow, before, end);
            } else {
                self.undo.restore(header.number, &replaced, before, end);
            }
        }
        // Whoever only follows gives no runs back.
        let from = if self.follows { u64::MAX } else { self.from };
        self.values.retain(|value| value.number > from);
        Ok(())
    }

    /// All commits have come: the runs that the history alone names are taken.
    pub(crate) fn finish(self, extents: &mut Extents) -> Result<Recovered> {
        let Self { undo, from, stated, values, lost, limits, tip, is_left, .. } = self;
        let (mut held, mut held_runs) = (Held::new(), Vec::new());
        let mut long_values = Vec::new();
        for NamedValue { number, start, stored } in
            values.into_iter().filter(|value| value.number > from)
        {
            for run in overflow::runs(&stored) {
                // What is not free is in a page, or pends, or waits to be given up: a flush sees to it.
                if extents.mark_used(run).is_err() {
                    continue;
                }
                extents.retire(&[run], start.get())?;
                held_runs.push(run);
                if held.back().is_none_or(|(last, _)| *last < start) {
                    held.push_back((start, number));
                }
            }
            long_values.push((number, stored));
        }
        if limits.commits > 0 || from < tip || lost.is_some() {
            undo.was_from(from, stated);
        }
        // Where there is no record there is no past, unless it is lost, or was not read.
        let stated = if stated == 0 && lost.is_none() && !is_left { from } else { stated };
        Ok(Recovered { undo, stated, held, held_runs, long_values, lost })
    }
}

/// Reads the records that an open has left unread, where the state of `commit` or of one before it is in them. What commits
/// replaced stays in the log.
///
/// # Errors
/// Those of reading. What is damaged is lost, and [`Undo::lost`] says so.
pub(crate) fn reach(db: &Shared, commit: u64) -> Result<()> {
    let (undo, device) = (db.commits.undo(), db.store.device());
    if undo.unread(commit).is_none() {
        return Ok(());
    }
    let _alone = undo.reading_back();
    // Another process may move the history on, as far as behind these records.
    let log_from = || match &db.replica {
        None => Ok(LogPos::START),
        Some(_) => SuperblockStore::open(device.clone(), OpenMode::Read)
            .map(|superblocks| superblocks.newest().log_from()),
    };
    for _ in 0..TRIES {
        let Some(Unread { mut superblock, first, roots, at_replay }) = undo.unread(commit) else {
            return Ok(());
        };
        let (from, mut past) = (log_from()?, Some(roots));
        if from > superblock.history_from {
            superblock.history_from = from.min(superblock.replay.position);
            past = None;
        }
        let limits = HistoryLimits::of_disk(u64::MAX, 0, Below::Read);
        let read = History::before_replay(db.hasher, device, &superblock, past, &at_replay, limits);
        let is_whole = read.as_ref().is_ok_and(|read| read.lost.is_none());
        if is_whole || log_from()? <= from {
            // The window may have moved past these records while they were read, and their segments may be gone.
            if undo.unread(commit).is_none() {
                return Ok(());
            }
            let read = read?;
            read.settle();
            let before = read.from;
            let lost = read.lost.map(|error| LostHistory { from: first, before, error });
            undo.adopt(&read.undo, lost);
            return Ok(());
        }
    }
    Err(Error::Overtaken { tries: TRIES })
}

/// The roots before the record at `from`, from those at the replay start: what no record since then names has
/// not changed.
fn roots_before(
    device: &Disk,
    superblock: &Superblock,
    from: LogPos,
    at_replay: &Roots,
) -> Result<Roots, Broken<Error>> {
    let Superblock { database, replay, geometry, .. } = *superblock;
    let mut before = BTreeMap::new();
    chain(device, database, geometry.log_segment, from, replay, |record| {
        if record.header.kind != Kind::Commit {
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

/// The root of a namespace before a commit, as this entry of its record says.
pub fn root_before(entry: &NamespaceView<'_>) -> Option<TrieRoot> {
    let existed = !matches!(entry.kind, EntryKind::Added | EntryKind::Restored);
    existed.then_some(TrieRoot { kind: entry.trie, node: *entry.previous_root })
}

/// The roots after a commit, as far as this entry of its record says.
pub(crate) fn roots_after(before: &Roots, commit: u64, entry: &NamespaceView<'_>) -> Result<Roots> {
    if before.of(entry.ns) != root_before(entry) {
        return Err(Contradiction::CommitRoot { commit }.into());
    }
    Ok(before.with([(entry.ns, root_after(entry))]))
}

/// The root of a namespace after a commit, as this entry of its record says.
pub fn root_after(entry: &NamespaceView<'_>) -> Option<TrieRoot> {
    let exists = entry.kind != EntryKind::Dropped;
    exists.then_some(TrieRoot { kind: entry.trie, node: *entry.new_root })
}

pub(crate) fn bad_record(position: LogPos) -> impl Fn(BodyError) -> Contradiction + Copy {
    move |error| Contradiction::Record { position, error }
}
