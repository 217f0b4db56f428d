//! What commits replaced, for sessions on older states.
//!
//! A session, an overlay or a snapshot pins the commit that it reads ([`pins`]); the history window keeps the last
//! commits readable for anyone. A commit's undo is *pushed* before its changes are applied, as the commit's own sorted
//! lists, shared, at no cost ([`recent`]). Mostly it is freed as soon as the commit is published. Otherwise it is
//! *inserted*: it becomes a run ([`pleach_history`]), so that a lookup costs about the same however many commits lie
//! between. Window and pins are of commits, whatever namespaces they change.
//!
//! Without a history there is no window, and nothing is inserted before a session is held over several commits
//! ([`super::history`]).
//!
//! All undo is one value, [`UndoSet`], which has the commit where it begins. It is replaced as a whole, under the lock
//! of window and pins. A reader looks in it last, and loads it once: when it reaches back to the reader's commit it has
//! the answer, otherwise the read is an error. A reader of the newest pushed commit need not look.
//!
//! With a history, each checkpoint writes the undo since the checkpoint before to the device, as a run
//! ([`Undo::write_run`]), and merges the runs there ([`Undo::merge_disk_runs`]). Undo on the device may leave memory.
//!
//! Locks, none held over I/O: merges, then the lock of window and pins.

pub(crate) mod changes;
mod history;
mod lookups;
pub(crate) mod past_node;
pub(crate) mod pins;
mod recent;
pub(crate) mod replaced;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_journal::format::position::LogPos;

use self::pins::{Pin, PinId, PinInfo, Pins};
use self::recent::RecentCommit;
use self::replaced::{NamespaceUndo, commit_run};
use super::history::{PriorCommit, RecordedBegins, Window};
use crate::error::{Error, Result};
use crate::handles::Holder;
use crate::options::HistoryLimits;
use pleach_history::{DiskRun, Merges, RunFile, RunSize, Runs, Tier, Tiers};

/// All undo that is kept.
#[derive(Clone)]
pub(in crate::state) struct UndoSet {
    /// The undo of all commits after this one is kept. It only rises: what older states name may be free, even where a
    /// run on the device has their undo.
    floor: u64,
    /// Runs on the device, oldest first; each begins with the commit after the last of the run before.
    disk: Arc<[Arc<DiskRun>]>,
    /// Memory has the undo of all commits after this one; the runs on the device end here, or later.
    memory_from: u64,
    /// Inserted commits, if there are any.
    runs: Option<Runs>,
    /// Bytes of runs in the making.
    merging: u64,
    /// Commits not inserted yet, oldest first; all are newer than the inserted ones.
    recent: Vec<RecentCommit>,
}

impl UndoSet {
    /// The undo that is on the device, all of it through `tip`.
    fn new(disk: Vec<Arc<DiskRun>>, tip: u64) -> Self {
        let floor = disk.first().map_or(tip, |first| first.descriptor.after);
        let (runs, recent) = (None, Vec::new());
        Self { floor, disk: disk.into(), memory_from: tip, runs, merging: 0, recent }
    }

    /// The runs in memory, with their sizes, the oldest first.
    fn run_sizes(&self) -> impl Iterator<Item = RunSize> {
        self.runs.iter().flat_map(Runs::sizes)
    }

    /// Bytes of memory of the undo of commits after one.
    fn bytes_after(&self, from: u64) -> u64 {
        let runs = self.run_sizes().filter(|run| run.last_commit > from).map(|run| run.bytes);
        let recent = self.recent.iter().filter(|commit| commit.number > from);
        let recent = recent.map(RecentCommit::bytes);
        self.merging + runs.chain(recent).sum::<u64>()
    }

    /// What has the undo of commits after `base`, the oldest first: runs on the device with commits that are not in
    /// memory, runs in memory, recent commits.
    #[inline]
    pub(in crate::state) fn after(
        &self,
        base: u64,
    ) -> Tiers<impl DoubleEndedIterator<Item = &dyn Tier> + Clone> {
        let mut disk = &self.disk[..0];
        if self.memory_from > base {
            let first = self.disk.partition_point(|run| run.descriptor.last_commit <= base);
            let end = self.disk.partition_point(|run| run.descriptor.after < self.memory_from);
            disk = &self.disk[first..end.max(first)];
        }
        let disk = disk.iter().map(|run| &**run as &dyn Tier);
        let runs = self.runs.iter().map(|runs| runs as &dyn Tier);
        let recent = self.recent.iter().map(|commit| commit as &dyn Tier);
        Tiers(disk.chain(runs).chain(recent))
    }
}

struct Retention {
    pins: Pins,
    /// Of inserted commits that are not on the device: the number, and bytes of the overflow file that undo names.
    values: VecDeque<(u64, u64)>,
    /// The window of the history, if there is one.
    window: Option<Window>,
    /// The begin of the window in records; none while there never was a history.
    recorded: Option<RecordedBegins>,
}

impl Retention {
    /// Forgets commits up to `last_commit`, whose undo is on the device, or is not kept.
    fn forget(&mut self, last_commit: u64) {
        self.values.retain(|(number, _)| *number > last_commit);
        if let Some(window) = &mut self.window {
            window.forget(last_commit);
        }
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
        let set = UndoSet::new(disk, tip);
        let has_history = limits.commits > 0;
        let retention = Retention {
            pins: Pins::default(),
            values: VecDeque::new(),
            window: has_history.then(|| Window::new(limits, set.floor, tip)),
            recorded: has_history.then(|| RecordedBegins::new(set.floor)),
        };
        Self {
            limits,
            newest: AtomicU64::new(tip),
            current: ArcSwap::from_pointee(set),
            file,
            retention: Mutex::new(retention),
            merges: Mutex::default(),
        }
    }

    /// True when there is a history, so that records have undo, nodes included.
    pub(crate) fn has_history(&self) -> bool {
        self.limits.commits > 0
    }

    /// Pushes a commit's undo in each namespace that it changes, ascending, before its changes are applied. With a
    /// history, `before` is what the commit follows.
    pub(crate) fn push(&self, number: u64, undo: Vec<NamespaceUndo>, before: Option<PriorCommit>) {
        assert!(undo.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        let commit = RecentCommit { number, namespaces: undo.into() };
        let mut retention = self.retention.lock();
        if let Some(window) = &mut retention.window {
            window.add(number, before.expect("a commit of a history says what it follows"));
        }
        self.update(|set| set.recent.push(commit));
        self.newest.store(number, Ordering::Release);
    }

    /// Changes the undo set. The caller holds the lock of window and pins.
    fn update(&self, change: impl FnOnce(&mut UndoSet)) {
        let mut set = UndoSet::clone(&self.current.load());
        change(&mut set);
        let first = set.disk.first().map_or(u64::MAX, |first| first.descriptor.after);
        set.floor = set.floor.max(set.memory_from.min(first));
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
        drop(merges);
        let short = self.retention.lock().window.as_mut().and_then(Window::note_shortfall);
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
        let RecentCommit { number, namespaces } = &set.recent[0];
        let mut runs = set.runs.clone().unwrap_or_default();
        let (run, values) = commit_run(&runs, *number, namespaces);
        merges.push(&mut runs, run);
        let mut retention = self.retention.lock();
        if values > 0 {
            retention.values.push_back((*number, values));
        }
        self.update(|set| {
            (set.runs, set.merging) = (Some(runs), merges.memory());
            set.recent.remove(0);
        });
    }

    /// No state before this newest commit can be read any more: it is a load, or a commit without history.
    pub(crate) fn set_barrier(&self, number: u64) {
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        if let Some(window) = &mut retention.window {
            window.set_barrier(number);
        }
        retention.forget(number);
        *merges = Merges::default();
        self.replace(UndoSet::new(Vec::new(), number));
        self.newest.store(number, Ordering::Release);
    }

    /// Moves the window on, and discards undo that nobody needs then.
    fn trim(&self, merges: &mut Merges) {
        let mut retention = self.retention.lock();
        let (before, newest) = (self.current.load_full(), self.newest());
        let held = self.oldest_pinned(&retention);
        let limited = self.limited_through(&before, &retention);
        let oldest = match &mut retention.window {
            Some(window) => window.advance(limited),
            None => newest,
        };
        // A pin keeps undo in memory only: the device is for the window.
        let unneeded = oldest.min(held).max(limited);
        let memory_from = self.evict(&before, retention.window.as_ref(), unneeded);
        let mut merging = 0;
        if before.runs.is_some() {
            merges.cancel_through(memory_from);
            merging = merges.memory();
        }
        let is_unneeded = |run: &Arc<DiskRun>| run.descriptor.last_commit <= oldest;
        let has_unneeded = before.disk.first().is_some_and(is_unneeded);
        // Mostly nothing changes: the pin of a commit's own session still holds all that there is.
        if !has_unneeded && (before.memory_from, before.merging) == (memory_from, merging) {
            return;
        }
        self.update(|set| {
            (set.memory_from, set.merging) = (memory_from, merging);
            set.recent.retain(|commit| commit.number > memory_from);
            set.runs.take_if(|runs| {
                runs.remove_through(memory_from);
                runs.sizes().next().is_none()
            });
            if has_unneeded {
                set.disk = set.disk.iter().filter(|run| !is_unneeded(run)).cloned().collect();
            }
        });
        retention.forget(self.current.load().floor);
    }

    /// The last commit whose undo goes since runs and values take more of the device than they may; 0 where none goes.
    fn limited_through(&self, set: &UndoSet, retention: &Retention) -> u64 {
        let runs = set.disk.iter().map(|run| run.size());
        let runs = runs.map(|run| (run.last_commit, run.bytes + run.value_bytes));
        let all = runs.chain(retention.values.iter().copied());
        let mut taken: u64 = all.clone().map(|(_, bytes)| bytes).sum();
        let mut limited = 0;
        for (last_commit, bytes) in all {
            if taken <= self.limits.disk_bytes {
                break;
            }
            taken -= bytes;
            limited = last_commit;
        }
        limited
    }

    /// The last commit whose undo memory discards: `unneeded`, or a later one where undo takes more than its limit.
    fn evict(&self, set: &UndoSet, window: Option<&Window>, unneeded: u64) -> u64 {
        let mut from = set.memory_from.max(unneeded);
        let left = set.bytes_after(from) + window.map_or(0, |window| window.list_bytes);
        if left <= self.limits.bytes {
            return from;
        }
        // Evicts whole runs, and some more than necessary, so that not each commit evicts one.
        let mut excess = left - self.limits.bytes / 8 * 7;
        let evictable = window.map_or(u64::MAX, Window::written);
        for run in set.run_sizes().filter(|run| run.last_commit <= evictable) {
            if excess > 0 && run.last_commit > from {
                from = run.last_commit;
                excess = excess.saturating_sub(run.bytes);
            }
        }
        // Without a history recent commits are evicted, too.
        if excess > 0 && window.is_none() { self.newest() } else { from }
    }

    /// Bytes of undo in memory.
    #[cfg(test)]
    fn resident_bytes(&self) -> u64 {
        self.current.load().bytes_after(0)
    }

    /// Bytes of memory that undo takes, with pages that were read of runs on the device.
    pub(crate) fn bytes(&self) -> u64 {
        let file = self.file.as_ref().filter(|_| self.has_history());
        let listed = self.retention.lock().window.as_ref().map_or(0, |window| window.list_bytes);
        self.current.load().bytes_after(0) + file.map_or(0, |file| file.bytes()) + listed
    }
}

/// Pins.
impl Undo {
    /// Pins the newest commit, or one that another pin holds: the undo of later ones is kept, within the limits.
    pub(in crate::state) fn pin(&self, commit: u64, now: Duration) -> PinId {
        self.retention.lock().pins.add(commit, now)
    }

    /// Releases a pin.
    pub(in crate::state) fn unpin(&self, pin: PinId) {
        let mut retention = self.retention.lock();
        retention.pins.remove(pin);
        let oldest = self.oldest_pinned(&retention).min(self.window_begin(&retention));
        drop(retention);
        if pin.0 < oldest {
            self.trim(&mut self.merges.lock());
        }
    }

    /// Records what holds a pin.
    pub(in crate::state) fn set_holder(&self, pin: PinId, holder: Holder, label: Option<Arc<str>>) {
        self.retention.lock().pins.set_holder(pin, holder, label);
    }

    /// The oldest readable commit that is held, and what holds it.
    fn holder(&self, retention: &Retention) -> Option<(u64, Holder)> {
        let floor = self.current.load().floor;
        retention.pins.oldest(|commit| commit >= floor)
    }

    /// The oldest readable commit that is held; `u64::MAX` when there is none.
    fn oldest_pinned(&self, retention: &Retention) -> u64 {
        self.holder(retention).map_or(u64::MAX, |(commit, _)| commit)
    }

    /// As [`Self::oldest_pinned`].
    pub(crate) fn oldest_held(&self) -> u64 {
        self.oldest_pinned(&self.retention.lock())
    }

    /// Refuses while a readable commit is held, or an operation is under way.
    pub(crate) fn check_unheld(&self) -> Result<()> {
        let holder = self.holder(&self.retention.lock());
        holder.map_or(Ok(()), |(_, holder)| Err(Error::InUse(holder)))
    }

    /// All pins, the oldest commits first.
    pub(crate) fn pins(&self, now: Duration) -> Vec<Pin> {
        let retention = self.retention.lock();
        let (set, from) = (self.current.load(), self.window_begin(&retention));
        let pin = |(commit, held): (u64, &PinInfo)| Pin {
            holder: held.holder,
            label: held.label.clone(),
            commit,
            age: now.saturating_sub(held.since),
            readable: commit >= set.floor,
            bytes: set.bytes_after(commit) - set.bytes_after(commit.max(from)),
        };
        retention.pins.iter().map(pin).collect()
    }

    /// The last commit whose replaced overflow runs nobody names: no older commit is held, and a durable record (the
    /// log is durable below `durable`) has no earlier begin of the window (rule `runs-after-window`).
    pub(crate) fn unnamed_through(&self, durable: LogPos) -> u64 {
        let mut retention = self.retention.lock();
        let recorded = retention.recorded.as_mut().map_or(u64::MAX, |begin| begin.durable(durable));
        // The window moves on after a commit is published: until then the commits in it can be opened.
        let begin = retention.window.as_ref().map_or(u64::MAX, Window::oldest_commit);
        recorded.min(begin).min(self.oldest_pinned(&retention))
    }
}
