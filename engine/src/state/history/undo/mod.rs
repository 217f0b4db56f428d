//! What commits replaced, for sessions on older states.
//!
//! A session, an overlay or a snapshot pins the commit that it reads; the history window keeps the last commits
//! readable for anyone. A commit's undo is *pushed* before its changes are applied, as the commit's own sorted lists,
//! shared, at no cost. Mostly it is freed as soon as the commit is published. Otherwise it is *inserted*: it becomes a
//! run ([`pleach_history`]), so that a lookup costs about the same however many commits lie between. Window and pins
//! are of commits, whatever namespaces they change.
//!
//! All undo is one value, [`UndoSet`], which has the commit where it begins. It is replaced as a whole, under the lock
//! of window and pins. A reader looks in it last, and loads it once: when it reaches back to the reader's commit it has
//! the answer, otherwise the read is an error. A reader of the newest pushed commit need not look.
//!
//! With a history, each checkpoint writes the undo since the checkpoint before to the device, as a run
//! ([`Undo::write_run`]), and merges the runs there ([`Undo::merge_disk_runs`]). Undo on the device may leave memory.
//!
//! Locks, none held over I/O: merges, then the lock of window and pins.

mod disk;
mod lookups;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_journal::format::position::LogPos;

pub(crate) use self::disk::ImageHistory;
pub(crate) use super::changes::{ChangeList, Changes, KeyUpdate};
use super::pins::{Pin, PinId, Pins};
use super::replaced::{NamespaceUndo, RecordUndo, commit_run, record_run};
use super::window::{PriorCommit, Window};
use crate::error::{Error, Result};
use crate::handles::Holder;
use crate::options::HistoryLimits;
use crate::state::order::sequencer::CommitState;
use pleach_history::{DiskRun, Merges, RunFile, RunSize, Runs};

/// The undo of a commit that is not inserted yet.
#[derive(Clone)]
struct RecentCommit {
    number: u64,
    /// Namespaces that it changes, ascending.
    namespaces: Arc<[NamespaceUndo]>,
}

impl RecentCommit {
    /// The commit's undo in a namespace.
    fn in_namespace(&self, namespace: u8) -> Option<&NamespaceUndo> {
        let at = self.namespaces.binary_search_by_key(&namespace, |one| one.namespace).ok()?;
        Some(&self.namespaces[at])
    }

    fn bytes(&self) -> u64 {
        self.namespaces.iter().map(NamespaceUndo::bytes).sum()
    }
}

/// All undo that is kept.
#[derive(Clone)]
pub(in crate::state) struct UndoSet {
    /// Runs on the device, oldest first; each begins with the commit after the last of the run before.
    disk: Arc<[Arc<DiskRun>]>,
    /// Memory has the undo of all commits after this one; the runs on the device end here, or later.
    memory_from: u64,
    /// Inserted commits.
    runs: Runs,
    /// Commits not inserted yet, oldest first; all are newer than the inserted ones.
    recent: Vec<RecentCommit>,
    /// Bytes of runs in the making.
    merging: u64,
    /// The undo of all commits after this one is kept. It only rises: what older states name may be free, even where a
    /// run on the device has their undo.
    floor: u64,
}

impl UndoSet {
    /// The undo that is on the device, all of it through `tip`.
    fn new(disk: Vec<Arc<DiskRun>>, tip: u64) -> Self {
        let (runs, recent) = (Runs::default(), Vec::new());
        let mut set =
            Self { disk: disk.into(), memory_from: tip, runs, recent, merging: 0, floor: 0 };
        set.floor = set.reach();
        set
    }

    /// The commit whose undo is the last that neither memory nor the device has.
    fn reach(&self) -> u64 {
        let first = self.disk.first();
        first.map_or(self.memory_from, |first| first.descriptor.after.min(self.memory_from))
    }

    /// Bytes of memory of all runs and recent commits.
    fn bytes(&self) -> u64 {
        let runs: u64 = self.runs.sizes().map(|run| run.bytes).sum();
        runs + self.merging + self.recent.iter().map(RecentCommit::bytes).sum::<u64>()
    }
}

struct Retention {
    window: Window,
    pins: Pins,
}

impl Retention {
    /// The oldest commit that is held; the largest number when none is.
    fn oldest_held(&self) -> u64 {
        self.holder().map_or(u64::MAX, |(commit, _)| commit)
    }

    /// The same commit, and what holds it.
    fn holder(&self) -> Option<(u64, Holder)> {
        self.pins.oldest(|commit| self.window.is_readable(commit))
    }
}

/// Commits that are not inserted while there is no history: a finish and a commit need undo for a short time only.
const RECENT: usize = 2;

/// Undo of the newest commits.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct Undo {
    limits: HistoryLimits,
    /// The newest commit that was pushed.
    newest: AtomicU64,
    /// Replaced under `retention`; its runs only under `merges`, too.
    current: ArcSwap<UndoSet>,
    /// The file of the runs on the device, where there are files.
    pub(crate) file: Option<Arc<RunFile>>,
    retention: Mutex<Retention>,
    /// Held while commits are inserted or removed.
    merges: Mutex<Merges>,
}

impl Undo {
    /// The undo of a database whose newest commit is `tip`. `disk` has the runs of its history, which end with that
    /// commit; without runs no past state can be read.
    pub(crate) fn new(
        limits: HistoryLimits,
        tip: u64,
        file: Option<Arc<RunFile>>,
        disk: Vec<Arc<DiskRun>>,
    ) -> Self {
        let floor = disk.first().map_or(tip, |first| first.descriptor.after);
        let retention =
            Retention { window: Window::new(limits, floor, tip), pins: Pins::default() };
        Self {
            limits,
            newest: AtomicU64::new(tip),
            current: ArcSwap::from_pointee(UndoSet::new(disk, tip)),
            file,
            retention: Mutex::new(retention),
            merges: Mutex::default(),
        }
    }

    /// True when there is a history, so that records have undo, nodes included.
    pub(crate) fn has_history(&self) -> bool {
        self.limits.commits > 0
    }

    /// How many past commits should be readable.
    pub(crate) fn history_commits(&self) -> u64 {
        self.limits.commits
    }

    /// Pushes a commit's undo in each namespace that it changes, ascending, before its changes are applied. With a
    /// history, `before` is what the commit follows.
    pub(crate) fn push(&self, number: u64, undo: Vec<NamespaceUndo>, before: Option<PriorCommit>) {
        assert!(undo.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        let commit = RecentCommit { number, namespaces: undo.into() };
        let mut retention = self.retention.lock();
        retention.window.add(number, 0, before);
        self.update(|set| set.recent.push(commit));
        drop(retention);
        self.newest.store(number, Ordering::Release);
    }

    /// Replaces the undo set. The caller holds the lock of window and pins.
    fn update(&self, change: impl FnOnce(&mut UndoSet)) {
        let mut set = UndoSet::clone(&self.current.load());
        change(&mut set);
        set.floor = set.floor.max(set.reach());
        self.replace(set);
    }

    fn replace(&self, set: UndoSet) {
        assert!(self.current.load().floor <= set.floor, "what was too old stays so");
        self.current.store(Arc::new(set));
    }

    /// After a commit's number is published: discards undo that nobody needs, and inserts the rest.
    pub(crate) fn settle(&self) {
        let mut merges = self.merges.lock();
        self.trim(&mut merges);
        let most = if self.has_history() { 0 } else { RECENT };
        // Each turn removes one, and a thread that pushes more settles its own.
        while self.current.load().recent.len() > most {
            self.insert_oldest_recent(&mut merges);
            self.trim(&mut merges);
        }
        let short = self.retention.lock().window.note_shortfall();
        if let Some((kept, wanted)) = short {
            tracing::warn!(
                kept,
                wanted,
                bytes = self.limits.disk_bytes,
                "the history is shorter than the option `history` says: what commits replace takes more than \
                 `history_disk_mib`"
            );
        }
    }

    /// Inserts the oldest recent commit as a run.
    fn insert_oldest_recent(&self, merges: &mut Merges) {
        let set = self.current.load();
        let (mut runs, RecentCommit { number, namespaces: undone }) =
            (set.runs.clone(), &set.recent[0]);
        let keys = undone.iter().map(|one| one.changes.len()).sum();
        let namespaces = undone.iter().map(|one| (one.namespace, &one.nodes, one.changes.priors()));
        let (run, values) = commit_run(&runs, *number, keys, namespaces);
        merges.push(&mut runs, run);
        let mut retention = self.retention.lock();
        retention.window.set_values(*number, values);
        self.update(|set| {
            (set.runs, set.merging) = (runs, merges.memory());
            set.recent.remove(0);
        });
    }

    /// Recovery: inserts the undo of a commit as its record has it, by namespace, and what the commit follows.
    pub(crate) fn restore(&self, number: u64, replaced: &[RecordUndo], before: PriorCommit) {
        let mut merges = self.merges.lock();
        let mut runs = self.current.load().runs.clone();
        let (run, overflow) = record_run(&runs, number, replaced);
        merges.push(&mut runs, run);
        let mut retention = self.retention.lock();
        retention.window.add(number, overflow, Some(before));
        self.update(|set| (set.runs, set.merging) = (runs, merges.memory()));
        drop(retention);
        self.newest.store(number, Ordering::Release);
        self.trim(&mut merges);
    }

    /// No state before this newest commit can be read any more: it is a load, or a commit without history.
    pub(crate) fn set_barrier(&self, number: u64) {
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        retention.window.set_barrier(number);
        *merges = Merges::default();
        self.replace(UndoSet::new(Vec::new(), number));
        drop(retention);
        self.newest.store(number, Ordering::Release);
    }

    /// Recovery: the history begins at `from`, and the newest record has the begin `recorded`: overflow runs named from
    /// there on are kept until a durable record has a later begin. `recorded` is 0 when no record was read.
    pub(crate) fn set_recovered_begin(&self, from: u64, recorded: u64) {
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        retention.window.set_begin(from);
        retention.window.set_recovered_begin(recorded);
        drop(retention);
        self.trim(&mut merges);
    }

    /// Moves the window on, and discards undo that nobody needs then.
    fn trim(&self, merges: &mut Merges) {
        let mut retention = self.retention.lock();
        let (before, oldest) = (self.current.load_full(), retention.oldest_held());
        let memory: Vec<RunSize> = before.runs.sizes().collect();
        let disk: Vec<RunSize> = before.disk.iter().map(|run| run.size()).collect();
        let (memory_from, unneeded) =
            retention.window.advance(oldest, before.bytes(), &memory, &disk);
        merges.cancel_through(memory_from);
        let is_unneeded = |run: &Arc<DiskRun>| run.descriptor.through <= unneeded;
        let has_unneeded = before.disk.first().is_some_and(is_unneeded);
        // Mostly nothing changes: the pin of a commit's own session still holds all that there is.
        if has_unneeded || (before.memory_from, before.merging) != (memory_from, merges.memory()) {
            self.update(|set| {
                (set.memory_from, set.merging) = (memory_from, merges.memory());
                set.runs.remove_through(memory_from);
                set.recent.retain(|commit| commit.number > memory_from);
                if has_unneeded {
                    set.disk = set.disk.iter().filter(|run| !is_unneeded(run)).cloned().collect();
                }
            });
        }
    }

    /// Bytes of undo in memory.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> u64 {
        self.current.load().bytes()
    }

    /// Bytes of memory that undo takes, with pages that were read of runs on the device.
    pub(crate) fn bytes(&self) -> u64 {
        let read = self.file.as_ref().map_or(0, |file| file.bytes());
        self.current.load().bytes() + read + self.retention.lock().window.list_bytes
    }
}

/// Pins and the window.
impl Undo {
    /// Pins the newest commit, or one that another pin holds: the undo of later ones is kept, within the limits.
    pub(in crate::state) fn pin(&self, commit: u64, now: Duration) -> PinId {
        self.retention.lock().pins.add(commit, now)
    }

    /// Pins a past commit of the window; returns the pin with the commit's roots and blob.
    pub(in crate::state) fn pin_past(
        &self,
        commit: u64,
        now: Duration,
    ) -> Result<(PinId, CommitState)> {
        let state = self.commit_state(commit)?;
        let mut retention = self.retention.lock();
        let oldest = retention.window.oldest_commit();
        if commit < oldest {
            return Err(Error::SnapshotTooOld { commit, oldest });
        }
        Ok((retention.pins.add(commit, now), state))
    }

    /// Releases a pin.
    pub(in crate::state) fn unpin(&self, pin: PinId) {
        let mut retention = self.retention.lock();
        retention.pins.remove(pin);
        let idle = retention.oldest_held() <= pin.0 || retention.window.oldest_commit() <= pin.0;
        drop(retention);
        if !idle {
            self.trim(&mut self.merges.lock());
        }
    }

    /// Records what holds a pin.
    pub(in crate::state) fn set_holder(&self, pin: PinId, holder: Holder, label: Option<Arc<str>>) {
        self.retention.lock().pins.set_holder(pin, holder, label);
    }

    /// Refuses while a readable commit is held, or an operation is under way.
    pub(crate) fn check_unheld(&self) -> Result<()> {
        let holder = self.retention.lock().holder();
        holder.map_or(Ok(()), |(_, holder)| Err(Error::InUse(holder)))
    }

    /// All pins, the oldest commits first.
    pub(crate) fn pins(&self, now: Duration) -> Vec<Pin> {
        let retention = self.retention.lock();
        let (set, from) = (self.current.load(), retention.window.oldest_commit());
        let bytes = |commit: u64| {
            let recent = set.recent.iter().map(|commit| (commit.number, commit.bytes()));
            let all = set.runs.sizes().map(|run| (run.through, run.bytes)).chain(recent);
            let is_held = |through: u64| commit < through && through <= from;
            all.filter(|(through, _)| is_held(*through)).map(|(_, bytes)| bytes).sum()
        };
        let pin = |(commit, held): (u64, &super::pins::PinInfo)| Pin {
            holder: held.holder,
            label: held.label.clone(),
            commit,
            age: now.saturating_sub(held.since),
            readable: retention.window.is_readable(commit),
            bytes: bytes(commit),
        };
        retention.pins.iter().map(pin).collect()
    }

    /// How many commits before the newest one can be read, and how many could without the limits in bytes.
    pub(crate) fn kept_and_wanted(&self) -> (u64, u64) {
        self.retention.lock().window.kept_and_wanted()
    }

    /// The oldest commit that can be opened by its number.
    pub fn oldest_commit(&self) -> u64 {
        self.retention.lock().window.oldest_commit()
    }

    /// Roots and blob of a commit before the newest. May read the device.
    pub fn commit_state(&self, commit: u64) -> Result<CommitState> {
        let before = self.prior_commit(commit + 1)?;
        Ok(CommitState { number: commit, roots: before.roots, blob: before.blob })
    }

    /// The commit that `commit`, which is not the first, restores, if it is a rollback. May read the device.
    pub(crate) fn rolled_back_to(&self, commit: u64) -> Result<Option<u64>> {
        self.prior_commit(commit).map(|before| before.back_to)
    }

    /// When a commit that is not the first was made, in seconds since 1970, where that is known. May read the device.
    pub fn committed_at(&self, commit: u64) -> Result<Option<u64>> {
        // Not all later ones can be shown.
        const YEAR_10000: u64 = 253_402_300_800;
        Ok(self.prior_commit(commit)?.time.filter(|time| *time < YEAR_10000))
    }

    /// What a commit of the window follows.
    fn prior_commit(&self, commit: u64) -> Result<PriorCommit> {
        let retention = self.retention.lock();
        let (oldest, before) =
            (retention.window.oldest_commit(), retention.window.prior_commit(commit).cloned());
        drop(retention);
        let too_old = Error::SnapshotTooOld { commit: commit - 1, oldest };
        if commit <= oldest {
            return Err(too_old);
        }
        match before {
            Some(before) => Ok(before),
            None => self.current.load_full().prior_commit(commit)?.ok_or(too_old),
        }
    }

    /// Where the first record begins whose undo is in the window and not on the device; `None` when there is none.
    pub fn log_from(&self) -> Option<LogPos> {
        self.retention.lock().window.first_unwritten().map(|(from, _)| from)
    }

    /// The window's begin once `number` is the newest commit, for that commit's record.
    pub(crate) fn begin_after(&self, number: u64) -> u64 {
        self.retention.lock().window.begin_after(number)
    }

    /// A queued record that ends at `end` has `from` as the begin of the window.
    pub(crate) fn note_recorded_begin(&self, end: LogPos, from: u64) {
        self.retention.lock().window.note_recorded_begin(end, from);
    }

    /// The oldest readable commit that is held; `u64::MAX` when there is none.
    pub(crate) fn oldest_held(&self) -> u64 {
        self.retention.lock().oldest_held()
    }

    /// The last commit whose replaced overflow runs nobody names: no older commit is held, and a durable record (the
    /// log is durable below `durable`) has no earlier begin of the window (rule `runs-after-window`).
    pub(crate) fn unnamed_through(&self, durable: LogPos) -> u64 {
        let mut retention = self.retention.lock();
        let oldest = retention.oldest_held();
        let unnamed = retention.window.durable_from(durable).min(oldest);
        // The window moves on after a commit is published: until then the commits in it can be opened.
        if self.has_history() { unnamed.min(retention.window.oldest_commit()) } else { unnamed }
    }
}
