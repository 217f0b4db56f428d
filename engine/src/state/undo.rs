//! What commits replaced: reverse overlays for sessions on older states.
//!
//! A session, an overlay or a snapshot pins the commit that it reads; the history window keeps the last ones for whoever
//! comes. A commit's undo is *pushed* before its changes are applied, as the commit's own
//! sorted lists, shared, which costs nothing. Mostly it goes as soon as the commit is published.
//! What stays is *put in*: it becomes a run ([`crate::history`]), so that a lookup costs about the same however many commits lie
//! between. Window and pins are of commits, whatever namespaces they change.
//!
//! All that is in memory is one value, [`Past`], which says where it begins. It is replaced as a whole, under the lock of
//! window and pins. Whoever reads consults it last, and takes it once: one that reaches back to his commit has the answer, and
//! one that does not is an error. The newest commit that was pushed tells a reader of the tip that there is nothing to consult.
//!
//! Undo that was dropped from memory and is of the history window is in the log. A reader that needs it has it read
//! back ([`super::logged`]), which stays in memory as long as there are readers of it.
//!
//! Locks, none held over I/O but the first: reading back; merges, then the lock of window and pins.

mod lookups;
mod reading_back;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub(crate) use super::changes::{ChangeList, Changed, Changes};
use super::logged::LoggedUndo;
use super::pins::{Pin, PinId, Pins};
use super::replaced::{Restored, Undone, commit_run, restored_run};
use super::window::{Before, Unread, Window};
use crate::error::{Error, Result};
use crate::format::position::LogPos;
use crate::handles::Holder;
use crate::history::{Merges, Runs};
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

/// Undo in memory: that of all commits after `begins`.
#[derive(Clone)]
pub(super) struct Past {
    /// The oldest commit that can be asked for.
    from: u64,
    begins: u64,
    /// Commits that were put in.
    runs: Runs,
    /// Oldest first, all after those that were put in.
    recent: Vec<Recent>,
    /// Bytes of runs in the making.
    merging: u64,
}

impl Past {
    fn new(from: u64) -> Self {
        let (runs, recent) = (Runs::default(), Vec::new());
        Self { from, begins: from, runs, recent, merging: 0 }
    }

    /// Is the undo of all commits after this one kept, in memory or in the log?
    fn keeps_after(&self, commit: u64) -> bool {
        self.begins <= commit || self.from <= commit
    }

    /// Bytes of memory.
    fn bytes(&self) -> u64 {
        let runs: u64 = self.runs.sizes().map(|(_, bytes)| bytes).sum();
        runs + self.merging + self.recent.iter().map(Recent::bytes).sum::<u64>()
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
/// Turns of tidying up after one another; what is left is the next commit's.
const TURNS: usize = 8;

/// Undo of the newest commits.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct Undo {
    limits: HistoryLimits,
    /// The newest commit that was pushed.
    newest: AtomicU64,
    /// Replaced by whoever holds `guarded`; what was put in, by whoever holds `merges`, too.
    past: ArcSwap<Past>,
    /// What was read back last.
    logged: Mutex<Weak<LoggedUndo>>,
    /// Bytes of all that was read back and is in use.
    logged_bytes: Arc<AtomicU64>,
    guarded: Mutex<Guarded>,
    /// Held by whoever puts commits in, or takes them out.
    merges: Mutex<Merges>,
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
            past: ArcSwap::from_pointee(Past::new(tip)),
            logged: Mutex::default(),
            logged_bytes: Arc::default(),
            guarded: Mutex::new(guarded),
            merges: Mutex::default(),
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
        let mut guarded = self.guarded.lock();
        guarded.window.add(number, commit.bytes(), 0, before);
        self.change(|past| past.recent.push(commit));
        drop(guarded);
        self.newest.store(number, Ordering::Release);
    }

    /// Puts another past in the place of the present one. The caller holds the lock of window and pins.
    fn change(&self, change: impl FnOnce(&mut Past)) {
        let mut past = Past::clone(&self.past.load());
        change(&mut past);
        self.past.store(Arc::new(past));
    }

    /// After a commit's number is published: drops what nobody needs, and puts in what stays. The log ends
    /// at `log_end`.
    pub(crate) fn settle(&self, log_end: LogPos) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let mut merges = self.merges.lock();
        self.trim(&mut merges);
        let most = if self.keeps_history() { 0 } else { RECENT };
        // Each turn takes one out, and whoever pushes more settles them.
        while self.past.load().recent.len() > most {
            self.put_in(&mut merges);
        }
        drop(merges);
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

    /// The oldest recent commit becomes a run.
    fn put_in(&self, merges: &mut Merges) {
        let past = self.past.load();
        let (mut runs, Recent { number, undone }) = (past.runs.clone(), &past.recent[0]);
        let keys = undone.iter().map(|one| one.changes.len()).sum();
        let namespaces = undone.iter().map(|one| (one.namespace, &one.nodes, one.changes.priors()));
        let (run, values) = commit_run(&runs, (*number, keys), namespaces);
        let bytes = merges.push(&mut runs, run);
        let mut guarded = self.guarded.lock();
        guarded.window.set_bytes(*number, bytes, values);
        self.change(|past| {
            (past.runs, past.merging) = (runs, merges.memory());
            past.recent.remove(0);
        });
    }

    /// Does a commit's undo leave memory before recovery is through, with so much log after it? Undo takes more than
    /// half of the bytes of memory that its record takes of the log.
    pub(crate) fn is_beyond_memory(&self, log_after: u64) -> bool {
        log_after / 2 > self.limits.bytes
    }

    /// Recovery: a commit whose undo is to stay in the log. All before it are such.
    pub(crate) fn leave_in_log(&self, number: u64, overflow: u64, before: Before, log_end: LogPos) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let mut merges = self.merges.lock();
        self.guarded.lock().window.add_logged(number, overflow, before);
        self.newest.store(number, Ordering::Release);
        self.trim(&mut merges);
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
        let mut merges = self.merges.lock();
        let adopted = self.guarded.lock().window.adopt(&mut older.guarded.lock().window);
        if let Some(lost) = lost.filter(|_| adopted) {
            let LostHistory { from, before, error } = &lost;
            tracing::warn!(from, before, %error, "commits of the history are lost");
            self.lost.get_or_init(|| lost);
        }
        self.trim(&mut merges);
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
        let mut merges = self.merges.lock();
        let mut runs = self.past.load().runs.clone();
        let (run, overflow) = restored_run(&runs, number, replaced);
        let bytes = merges.push(&mut runs, run);
        let mut guarded = self.guarded.lock();
        guarded.window.add(number, bytes, overflow, Some(before));
        self.change(|past| (past.runs, past.merging) = (runs, merges.memory()));
        drop(guarded);
        self.newest.store(number, Ordering::Release);
        self.trim(&mut merges);
    }

    /// Nothing before this commit, which is the newest, can be read: a load, or a commit without history.
    pub(crate) fn barrier(&self, number: u64) {
        let mut merges = self.merges.lock();
        let mut guarded = self.guarded.lock();
        guarded.window.barrier(number);
        *merges = Merges::default();
        self.past.store(Arc::new(Past::new(number)));
        drop(guarded);
        self.newest.store(number, Ordering::Release);
    }

    /// Recovery: the history begins at `from`, and the newest record says that it begins at `stated`: all that is
    /// named from there on is kept until a durable record says otherwise. `stated` is 0 when no record was read.
    pub(crate) fn was_from(&self, from: u64, stated: u64) {
        let mut merges = self.merges.lock();
        let mut guarded = self.guarded.lock();
        guarded.window.begin_at(from);
        guarded.window.was_from(stated);
        drop(guarded);
        self.trim(&mut merges);
    }

    /// The log begins at a position by now, since the process that writes has moved the history on.
    pub(crate) fn log_begins(&self, position: LogPos) {
        let mut merges = self.merges.lock();
        self.guarded.lock().window.log_begins(position);
        self.trim(&mut merges);
    }

    /// Drops what nobody needs, unless somebody is at it, who then does it.
    fn tidy(&self) {
        self.untidy.store(true, Ordering::SeqCst);
        for _ in 0..TURNS {
            let Some(mut merges) = self.merges.try_lock() else { return };
            if self.untidy.swap(false, Ordering::SeqCst) {
                self.trim(&mut merges);
            }
            drop(merges);
            if !self.untidy.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Moves the window on, and drops what nobody needs then.
    fn trim(&self, merges: &mut Merges) {
        let mut guarded = self.guarded.lock();
        let before = self.past.load_full();
        let (oldest, log_end) = (guarded.oldest_held(), self.log_end.load(Ordering::Relaxed));
        let runs: Vec<(u64, u64)> = before.runs.sizes().collect();
        let floor = guarded.window.advance(oldest, log_end.into(), before.bytes(), &runs);
        merges.drop_through(floor);
        self.change(|past| {
            (past.from, past.begins, past.merging) =
                (guarded.window.from(), floor, merges.memory());
            past.runs.drop_through(floor);
            past.recent.retain(|commit| commit.number > floor);
        });
        drop(guarded);
    }

    /// Bytes of what is put in.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> u64 {
        self.past.load().bytes()
    }

    /// Bytes of memory that undo takes, with what was read back.
    pub(crate) fn bytes(&self) -> u64 {
        let in_memory = self.past.load().bytes() + self.logged_bytes.load(Ordering::Relaxed);
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
