//! Recovery of the history: what the commits before the newest one had.
//!
//! The records of the window tell it, those below the replay start ([`History::before_replay`]) and those
//! that are replayed ([`History::commit`]). No more is kept in memory than the limits say. The runs of long
//! values that the window names, and nobody else, are used and retired: they are free when a durable
//! record says that the window has moved on (rule `runs-after-window`).
//!
//! Where the log is damaged, what lies before the damage is lost, and that is said; what lies behind it is whole, and so
//! is the database. A read that fails is no damage: it fails the open, unless no history is wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::space::Extents;
use pleach_core::Hasher;
use pleach_core::page::overflow::PageRun;
use pleach_io::Device;

use crate::error::{Contradiction, Error, Result};
use crate::format::bytes::BodyError;
use crate::format::commit_body::{CommitView, EntryKind, NamespaceView};
use crate::format::position::LogPos;
use crate::format::record::{Header, Kind};
use crate::format::superblock::Superblock;
use crate::log::{Broken, chain, next_record};
use crate::options::HistoryLimits;
use crate::roots::{Roots, TrieRoot};
use crate::state::commits::Tip;
use crate::state::overflow;
use crate::state::replaced::{Restored, restored};
use crate::state::space::Held;
use crate::state::undo::Undo;
use crate::state::window::Before;

/// A long value that the undo of a commit names.
struct NamedValue {
    number: u64,
    start: LogPos,
    stored: Stored,
}

/// The history in the making.
pub(super) struct History {
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
    /// Why commits before those that were read are not known.
    lost: Option<Error>,
}

/// A history that is ready.
pub(super) struct Recovered {
    pub(super) undo: Arc<Undo>,
    /// Where the newest record says that the history begins; 0 where that is not known.
    pub(super) stated: u64,
    pub(super) held: Held,
    pub(super) held_runs: Vec<PageRun>,
    pub(super) long_values: Vec<(u64, Stored)>,
    pub(super) lost: Option<Error>,
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
            lost: None,
        }
    }

    /// The history that goes on from what was recovered.
    pub(super) fn after(undo: &Arc<Undo>, tip: &Tip, stated: u64, limits: HistoryLimits) -> Self {
        Self {
            undo: Arc::clone(undo),
            limits,
            replay: LogPos::START,
            tip: tip.number,
            roots: tip.roots.clone(),
            from: undo.from(),
            stated,
            values: Vec::new(),
            follows: true,
            lost: None,
        }
    }

    /// The window begins where the records say, or later.
    pub(super) fn settle(&self) {
        if self.limits.commits > 0 {
            self.undo.was_from(self.from, self.stated);
        }
    }

    /// The history up to the replay start, where the roots are `at_replay`; `past` are those before its
    /// first record, as the image has them.
    pub(super) fn before_replay<H: Hasher, D: Device>(
        device: &D,
        superblock: &Superblock,
        past: Option<&Roots>,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self> {
        match Self::newest_part::<H, D>(device, superblock, past, at_replay, limits) {
            // Nobody wants it.
            Err(error) if limits.commits == 0 => {
                let lost = Some(error);
                let replay = superblock.replay.position;
                Ok(Self { lost, ..Self::new(limits, replay, superblock.commit, at_replay.clone()) })
            }
            read => read,
        }
    }

    /// What is whole of it, up to the replay start.
    fn newest_part<H: Hasher, D: Device>(
        device: &D,
        superblock: &Superblock,
        past: Option<&Roots>,
        at_replay: &Roots,
        limits: HistoryLimits,
    ) -> Result<Self> {
        let Superblock { database, replay, geometry, .. } = *superblock;
        let mut from = superblock.log_from();
        let mut first = Some(past.unwrap_or(at_replay).clone());
        let mut lost = None;
        // Each turn begins behind the damage that ended the one before, at the replay start at last.
        loop {
            let first = first
                .take()
                .map_or_else(|| roots_before::<D>(device, superblock, from, at_replay), Ok);
            let read = first.and_then(|first| {
                Self::read::<H, D>(device, superblock, from, &first, at_replay, limits)
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

    fn read<H: Hasher, D: Device>(
        device: &D,
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
            history.commit::<H>(&view, &record.header)
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
    pub(super) fn commit<H: Hasher>(
        &mut self,
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
            let restored = restored::<H>(&namespace, header)?;
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
            let before = Before { start: header.position, roots, blob: before.blob.into() };
            let log_after = self.replay.checked_since(end).unwrap_or(0);
            if self.undo.is_beyond_memory(log_after) {
                let overflow = replaced.iter().map(Restored::overflow_bytes).sum();
                self.undo.leave_in_log(header.number, overflow, before, end);
            } else {
                self.undo.restore(header.number, replaced, before, end);
            }
        }
        // Whoever only follows gives no runs back.
        let from = if self.follows { u64::MAX } else { self.from };
        self.values.retain(|value| value.number > from);
        Ok(())
    }

    /// All commits have come: the runs that the history alone names are taken.
    pub(super) fn finish(self, extents: &mut Extents) -> Result<Recovered> {
        let Self { undo, from, stated, values, lost, limits, tip, .. } = self;
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
        // Where there is no record there is no past, unless it is lost.
        let stated = if stated == 0 && lost.is_none() { from } else { stated };
        Ok(Recovered { undo, stated, held, held_runs, long_values, lost })
    }
}

/// The roots before the record at `from`, from those at the replay start: what no record since then names has
/// not changed.
fn roots_before<D: Device>(
    device: &D,
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
pub(crate) fn root_before(entry: &NamespaceView<'_>) -> Option<TrieRoot> {
    let existed = !matches!(entry.kind, EntryKind::Added | EntryKind::Restored);
    existed.then_some(TrieRoot { kind: entry.trie, node: *entry.previous_root })
}

/// The roots after a commit, as far as this entry of its record says.
pub(super) fn roots_after(before: &Roots, commit: u64, entry: &NamespaceView<'_>) -> Result<Roots> {
    if before.of(entry.ns) != root_before(entry) {
        return Err(Contradiction::CommitRoot { commit }.into());
    }
    Ok(before.with([(entry.ns, root_after(entry))]))
}

/// The root of a namespace after a commit, as this entry of its record says.
pub(crate) fn root_after(entry: &NamespaceView<'_>) -> Option<TrieRoot> {
    let exists = entry.kind != EntryKind::Dropped;
    exists.then_some(TrieRoot { kind: entry.trie, node: *entry.new_root })
}

pub(super) fn bad_record(position: LogPos) -> impl Fn(BodyError) -> Contradiction + Copy {
    move |error| Contradiction::Record { position, error }
}
