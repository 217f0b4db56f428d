//! What commits replaced: reverse overlays for sessions on older states.
//!
//! A session, an overlay or a snapshot pins the commit that it reads; the history window keeps the last ones for whoever
//! comes. A commit's undo is *pushed* before its changes are applied, as the commit's own
//! sorted lists, shared, which costs nothing. Mostly it goes as soon as the commit is published.
//! What stays is *put in* ([`AllMaps`]), so that a lookup costs the same however many commits lie between.
//! Window and pins are of commits, whatever namespaces they change; changes and maps are each namespace's own.
//!
//! Whoever reads consults undo last. The newest commit that was pushed tells a reader of the tip that there
//! is nothing to consult. Undo may be dropped under a reader, when it takes more memory than it may: then
//! [`Undo::check`], asked after the lookup, says so. `dropped` rises before anything is taken out, and what was
//! taken out was under a lock that the lookup took, so that no reader misses both.
//!
//! Undo that was dropped from memory and is of the history window is in the log. A reader that needs it has it read
//! back ([`super::logged`]), which stays in memory as long as there are readers of it.
//!
//! Locks, none held over I/O but the first: reading back; tidying, then the lock of window and pins, or recent commits, or
//! a shard.

mod lookups;
mod reading_back;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use pleach_io::Executor;

pub(crate) use super::changes::{ChangeList, Changed, Changes};
use super::logged::LoggedUndo;
use super::pins::{Pin, PinId, Pins};
use super::replaced::{Restored, Undone};
use super::undo_maps::AllMaps;
use super::window::{Before, Unread, Window};
use crate::error::{Error, Result};
use crate::format::position::LogPos;
use crate::handles::Holder;
use crate::opening::LostHistory;
use crate::options::HistoryLimits;
use crate::roots::Roots;

/// A commit that was not put in yet.
#[derive(Clone)]
struct Recent {
    number: u64,
    /// Namespaces that it changes, ascending.
    undone: Arc<[Undone]>,
}

impl Recent {
    /// What it has of a namespace.
    fn of(&self, namespace: u8) -> Option<&Undone> {
        let at = self.undone.binary_search_by_key(&namespace, |one| one.namespace).ok()?;
        Some(&self.undone[at])
    }

    fn bytes(&self) -> u64 {
        self.undone.iter().map(Undone::bytes).sum()
    }
}

/// Roots and blob of a past commit.
type PastState = (Roots, Arc<[u8]>);

struct Guarded {
    window: Window,
    pins: Pins,
}

impl Guarded {
    /// The oldest commit that is held; the largest number when none is.
    fn oldest_held(&self) -> u64 {
        self.holder().map_or(u64::MAX, |(commit, _)| commit)
    }

    /// The same, and what holds it.
    fn holder(&self) -> Option<(u64, Holder)> {
        self.pins.oldest(|commit| self.window.reads(commit))
    }

    /// What the commit after a past one says.
    fn before(&self, commit: u64) -> Result<&Before> {
        let too_old = Error::SnapshotTooOld { commit, oldest: self.window.from() };
        self.window.past(commit).ok_or(too_old)
    }

    fn past(&self, commit: u64) -> Result<PastState> {
        self.before(commit).map(|before| (before.roots.clone(), Arc::clone(&before.blob)))
    }
}

/// Commits that stay as they were pushed while there is no history: those of a finish and a commit under
/// way come and go without being put in.
const RECENT: usize = 2;
/// The undo of a commit of at least this many changes is put in by several workers.
const PARALLEL: usize = 512;
/// Turns of tidying up after one another; what is left is the next commit's.
const TURNS: usize = 8;

/// Undo of the newest commits.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct Undo {
    limits: HistoryLimits,
    /// The newest commit that was pushed.
    newest: AtomicU64,
    /// Undo of the commits through this one is gone from memory, or going.
    dropped: AtomicU64,
    /// Undo of the commits through this one is gone, unless it is in memory; it changes with the window.
    gone: AtomicU64,
    /// What was read back last.
    logged: Mutex<Weak<LoggedUndo>>,
    /// Bytes of all that was read back and is in use.
    logged_bytes: Arc<AtomicU64>,
    /// Oldest first, all after those that were put in.
    recent: RwLock<VecDeque<Recent>>,
    recents: AtomicUsize,
    maps: AllMaps,
    guarded: Mutex<Guarded>,
    /// Held by whoever puts commits in, or takes them out.
    tidying: Mutex<()>,
    untidy: AtomicBool,
    log_end: AtomicU64,
    lost: OnceLock<LostHistory>,
}

impl Undo {
    /// The undo of a database whose newest commit is `tip`, without past.
    pub(crate) fn new(limits: HistoryLimits, tip: u64) -> Self {
        let guarded = Guarded { window: Window::new(limits, tip), pins: Pins::default() };
        Self {
            limits,
            newest: AtomicU64::new(tip),
            dropped: AtomicU64::new(tip),
            gone: AtomicU64::new(tip),
            logged: Mutex::default(),
            logged_bytes: Arc::default(),
            recent: RwLock::default(),
            recents: AtomicUsize::new(0),
            maps: AllMaps::default(),
            guarded: Mutex::new(guarded),
            tidying: Mutex::default(),
            untidy: AtomicBool::new(false),
            log_end: AtomicU64::new(0),
            lost: OnceLock::new(),
        }
    }

    /// Is there a history, so that commits say what they replace, nodes included?
    pub(crate) fn keeps_history(&self) -> bool {
        self.limits.commits > 0
    }

    /// How many past commits are to be readable.
    pub(crate) fn history(&self) -> u64 {
        self.limits.commits
    }

    /// Keeps what a commit replaces in each namespace that it changes, ascending; before its changes are
    /// applied. With a history it says what was before.
    pub(crate) fn push(&self, number: u64, undone: Vec<Undone>, before: Option<Before>) {
        debug_assert!(undone.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        let commit = Recent { number, undone: undone.into() };
        self.guarded.lock().window.add(number, commit.bytes(), 0, before);
        let mut recent = self.recent.write();
        recent.push_back(commit);
        self.recents.store(recent.len(), Ordering::Release);
        drop(recent);
        self.newest.store(number, Ordering::Release);
    }

    /// After a commit's number is published: drops what nobody needs, and puts in what stays. The log ends
    /// at `log_end`.
    pub(crate) fn settle(&self, runtime: &Executor, log_end: LogPos) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let tidying = self.tidying.lock();
        self.trim(&tidying);
        let most = if self.keeps_history() { 0 } else { RECENT };
        // Each turn takes one out, and whoever pushes more settles them.
        while let Some(oldest) = self.oldest_recent(most) {
            let (bytes, values) = self.put_in(runtime, &oldest);
            self.guarded.lock().window.set_bytes(oldest.number, bytes, values);
            let mut recent = self.recent.write();
            recent.pop_front();
            self.recents.store(recent.len(), Ordering::Release);
        }
        drop(tidying);
        self.tidy();
        let short = self.guarded.lock().window.falls_short();
        if let Some((kept, wanted)) = short {
            tracing::warn!(
                kept,
                wanted,
                history_log_bytes = self.limits.log_bytes,
                "the history is shorter than the option `history` says: what commits replace takes more than \
                 `history_log_bytes`"
            );
        }
    }

    /// The oldest of more than `most` recent commits.
    fn oldest_recent(&self, most: usize) -> Option<Recent> {
        let recent = self.recent.read();
        if recent.len() > most { recent.front().cloned() } else { None }
    }

    /// Puts in what a commit has replaced; gives the bytes of memory and of the overflow file that this takes.
    fn put_in(&self, runtime: &Executor, commit: &Recent) -> (u64, u64) {
        let (number, undone, before) = (commit.number, &*commit.undone, self.maps.node_bytes());
        let keys = undone.iter().map(|one| one.changes.len()).sum();
        let (next, taken) = (AtomicUsize::new(0), Mutex::new((0, 0)));
        let put = |_: usize| {
            loop {
                match next.fetch_add(1, Ordering::Relaxed).checked_sub(1) {
                    None => {
                        let values = undone.iter().map(|one| (one.namespace, one.changes.priors()));
                        *taken.lock() = self.maps.put_values(number, keys, values);
                    }
                    Some(at) => {
                        let Some(one) = undone.get(at) else { return };
                        self.maps.put_nodes(number, one.namespace, &one.nodes);
                    }
                }
            }
        };
        let most = if keys < PARALLEL { 1 } else { runtime.workers() };
        runtime.here_or_fork_join(most.min(undone.len() + 1), &put);
        let (bytes, values) = taken.into_inner();
        (bytes + self.maps.node_bytes() - before, values)
    }

    /// Does a commit's undo leave memory before recovery is through, with so much log after it? Undo takes more than
    /// half of the bytes of memory that its record takes of the log.
    pub(crate) fn is_beyond_memory(&self, log_after: u64) -> bool {
        log_after / 2 > self.limits.bytes
    }

    /// Recovery: a commit whose undo is to stay in the log. All before it are such.
    pub(crate) fn leave_in_log(&self, number: u64, overflow: u64, before: Before, log_end: LogPos) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let tidying = self.tidying.lock();
        self.guarded.lock().window.add_logged(number, overflow, before);
        self.newest.store(number, Ordering::Release);
        self.trim(&tidying);
    }

    /// Recovery: the records of all commits up to the newest stay unread.
    pub(crate) fn leave_unread(&self, unread: Unread) {
        self.guarded.lock().window.leave_unread(unread);
    }

    /// What has to be read of the log before the state of a commit can be asked for.
    pub(crate) fn unread(&self, commit: u64) -> Option<Unread> {
        self.guarded.lock().window.unread(commit).cloned()
    }

    /// The oldest commit, where records that were left unread keep far more of the log than the history needs.
    pub(crate) fn lags(&self) -> Option<u64> {
        let guarded = self.guarded.lock();
        let log_end = self.log_end.load(Ordering::Relaxed).into();
        guarded.window.lags(log_end).then(|| guarded.window.from())
    }

    /// What was left unread was read: `older` has it, but for what is `lost`.
    pub(crate) fn adopt(&self, older: &Self, lost: Option<LostHistory>) {
        let tidying = self.tidying.lock();
        let adopted = self.guarded.lock().window.adopt(&mut older.guarded.lock().window);
        if let Some(lost) = lost.filter(|_| adopted) {
            let LostHistory { from, before, error } = &lost;
            tracing::warn!(from, before, %error, "commits of the history are lost");
            self.lost.get_or_init(|| lost);
        }
        self.trim(&tidying);
    }

    /// Commits of the history that are lost, as was found when they were read.
    pub(crate) fn lost(&self) -> Option<&LostHistory> {
        self.lost.get()
    }

    /// Recovery: a commit whose record has what it replaced, in each namespace that it changed, and what was
    /// before.
    pub(crate) fn restore(
        &self,
        number: u64,
        replaced: &[Restored],
        before: Before,
        log_end: LogPos,
    ) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let tidying = self.tidying.lock();
        let (bytes, overflow) = self.maps.restore(number, replaced);
        self.guarded.lock().window.add(number, bytes, overflow, Some(before));
        self.newest.store(number, Ordering::Release);
        self.trim(&tidying);
    }

    /// Nothing before this commit, which is the newest, can be read: a load, or a commit without history.
    pub(crate) fn barrier(&self, number: u64) {
        let tidying = self.tidying.lock();
        let mut guarded = self.guarded.lock();
        guarded.window.barrier(number);
        self.gone.store(number, Ordering::SeqCst);
        self.dropped.store(number, Ordering::SeqCst);
        drop(guarded);
        self.newest.store(number, Ordering::Release);
        self.maps.values.drop_through(number);
        self.sweep(&tidying, true);
    }

    /// Recovery: the history begins at `from`, and the newest record says that it begins at `stated`: all that is
    /// named from there on is kept until a durable record says otherwise. `stated` is 0 when no record was read.
    pub(crate) fn was_from(&self, from: u64, stated: u64) {
        let tidying = self.tidying.lock();
        let mut guarded = self.guarded.lock();
        guarded.window.begin_at(from);
        guarded.window.was_from(stated);
        drop(guarded);
        self.trim(&tidying);
    }

    /// The log begins at a position by now, since the process that writes has moved the history on.
    pub(crate) fn log_begins(&self, position: LogPos) {
        let tidying = self.tidying.lock();
        self.guarded.lock().window.log_begins(position);
        self.trim(&tidying);
    }

    /// Drops what nobody needs, unless somebody is at it, who then does it.
    fn tidy(&self) {
        self.untidy.store(true, Ordering::SeqCst);
        for _ in 0..TURNS {
            let Some(tidying) = self.tidying.try_lock() else { return };
            if self.untidy.swap(false, Ordering::SeqCst) {
                self.trim(&tidying);
            }
            drop(tidying);
            if !self.untidy.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn trim(&self, tidying: &MutexGuard<'_, ()>) {
        let (in_memory, ends) = (self.in_memory(), self.maps.values.ends());
        let mut guarded = self.guarded.lock();
        let (oldest, log_end) = (guarded.oldest_held(), self.log_end.load(Ordering::Relaxed));
        let floor = guarded.window.advance(oldest, log_end.into(), in_memory, &ends);
        // Before anything goes: a reader that misses it finds this.
        self.gone.store(guarded.window.from(), Ordering::SeqCst);
        self.dropped.store(floor, Ordering::SeqCst);
        let (empty, sweep) = (guarded.window.is_empty(), guarded.window.wants_sweep());
        drop(guarded);
        let mut recent = self.recent.write();
        while recent.front().is_some_and(|commit| commit.number <= floor) {
            recent.pop_front();
        }
        self.recents.store(recent.len(), Ordering::Release);
        drop(recent);
        self.maps.values.drop_through(floor);
        if empty || sweep {
            self.sweep(tidying, empty);
        }
    }

    /// Takes nodes out of memory that are dropped.
    fn sweep(&self, _tidying: &MutexGuard<'_, ()>, empty: bool) {
        if self.maps.node_bytes() > 0 {
            let floor = self.dropped.load(Ordering::SeqCst);
            if empty {
                self.maps.clear_nodes();
            } else {
                self.maps.drop_nodes_through(floor);
            }
        }
        self.guarded.lock().window.swept();
    }

    /// Bytes that commits which were pushed, and those that were put in, take in memory.
    fn in_memory(&self) -> u64 {
        let recent = match self.recents.load(Ordering::Acquire) {
            0 => 0,
            _ => self.recent.read().iter().map(Recent::bytes).sum(),
        };
        recent + self.maps.bytes()
    }

    /// Bytes of what is put in.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> u64 {
        self.maps.bytes()
    }

    /// Bytes of memory that undo takes, with what was read back.
    pub(crate) fn bytes(&self) -> u64 {
        let in_memory = self.in_memory() + self.logged_bytes.load(Ordering::Relaxed);
        in_memory + self.guarded.lock().window.list_bytes()
    }
}

/// Pins and the window.
impl Undo {
    /// Pins a commit: what later ones replace stays, as long as the budget bears it. The commit is the
    /// newest one, or pinned by somebody else.
    pub(super) fn pin(&self, commit: u64, now: Duration) -> PinId {
        self.guarded.lock().pins.add(commit, now)
    }

    /// Pins a past commit of the window, and gives its roots and blob.
    pub(super) fn pin_past(&self, commit: u64, now: Duration) -> Result<(PinId, PastState)> {
        let mut guarded = self.guarded.lock();
        let said = guarded.past(commit)?;
        Ok((guarded.pins.add(commit, now), said))
    }

    /// Takes a pin back.
    pub(super) fn unpin(&self, pin: PinId) {
        let mut guarded = self.guarded.lock();
        guarded.pins.remove(pin);
        let idle = guarded.window.is_empty()
            || guarded.oldest_held() <= pin.0
            || guarded.window.from() <= pin.0;
        drop(guarded);
        if !idle {
            self.tidy();
        }
    }

    /// Says what holds a pin.
    pub(super) fn set_holder(&self, pin: PinId, holder: Holder, label: Option<Arc<str>>) {
        self.guarded.lock().pins.set_holder(pin, holder, label);
    }

    /// Refuses while somebody holds a commit that can be read, or an operation is under way.
    pub(crate) fn check_unheld(&self) -> Result<()> {
        let holder = self.guarded.lock().holder();
        holder.map_or(Ok(()), |(_, holder)| Err(Error::InUse(holder)))
    }

    /// All pins, the oldest commits first.
    pub(crate) fn pins(&self, now: Duration) -> Vec<Pin> {
        let guarded = self.guarded.lock();
        let pin = |(commit, held): (u64, &super::pins::Held)| Pin {
            holder: held.holder,
            label: held.label.clone(),
            commit,
            age: now.saturating_sub(held.since),
            readable: guarded.window.reads(commit),
            bytes: guarded.window.bytes_for(commit),
        };
        guarded.pins.iter().map(pin).collect()
    }

    /// How many commits before the newest one can be read, and how many could without the limits in bytes.
    pub(crate) fn kept_of(&self) -> (u64, u64) {
        self.guarded.lock().window.kept_of()
    }

    /// The oldest commit that can be asked for.
    pub fn from(&self) -> u64 {
        self.guarded.lock().window.from()
    }

    /// Roots and blob of a commit that is not the newest one.
    pub fn past(&self, commit: u64) -> Result<PastState> {
        self.guarded.lock().past(commit)
    }

    /// What a commit that is not the first goes back to, if it is a rollback.
    pub(crate) fn rolled_back_to(&self, commit: u64) -> Result<Option<u64>> {
        self.guarded.lock().before(commit - 1).map(|before| before.back_to)
    }

    /// Where the log begins that the window needs; none when the window has no past.
    pub fn log_from(&self) -> Option<LogPos> {
        self.guarded.lock().window.begins().map(|(from, _)| from)
    }

    /// Where the log begins that the window needs, and the roots before its first record.
    pub(crate) fn begins(&self) -> Option<(LogPos, Roots)> {
        self.guarded.lock().window.begins().map(|(from, roots)| (from, roots.clone()))
    }

    /// Where the window begins once `number` is the newest commit, for its record.
    pub(crate) fn begin_after(&self, number: u64) -> u64 {
        self.guarded.lock().window.begin_after(number)
    }

    /// A record was queued that ends at `end` and says that the window begins at `from`.
    pub(crate) fn state(&self, end: LogPos, from: u64) {
        self.guarded.lock().window.state(end, from);
    }

    /// The oldest commit that somebody holds and can read; the largest number when there is none.
    pub(crate) fn oldest_held(&self) -> u64 {
        self.guarded.lock().oldest_held()
    }

    /// Overflow runs that commits through this one have replaced are named by nobody: no older commit is held, and
    /// a durable record (the log is durable below `durable`) says that no window begins before (rule
    /// `runs-after-window`).
    pub(crate) fn unnamed_through(&self, durable: LogPos) -> u64 {
        let mut guarded = self.guarded.lock();
        let oldest = guarded.oldest_held();
        let unnamed = guarded.window.durable_from(durable).min(oldest);
        // The window moves on behind a commit's publication: until then its commits can be asked for.
        if self.keeps_history() { unnamed.min(guarded.window.from()) } else { unnamed }
    }
}
