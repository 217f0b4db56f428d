//! Which past commits can be read: the history window, and the limits that move it on.
//!
//! ```text
//!                from           dropped                    tip
//!   ...-----------|----------------|------------------------|
//!     gone        | undo in the    | undo in memory, and in |
//!                 | log            | the log                |
//! ```
//!
//! *From* is the oldest commit that can be asked for by its number: `history` commits before the tip, or
//! fewer where a limit in bytes of disk says so, or where the records with undo begin. *Dropped* is where undo in memory
//! begins. Without a limit it is `from`, or an older commit that is pinned; what takes more than
//! [`HistoryLimits::bytes`] of memory is dropped from there, the oldest first, pinned or not, and is read back from the log
//! when somebody needs it ([`super::logged`]). Both only rise. A commit is *readable* when it is at
//! least the smaller of the two.
//!
//! Invariants: `from <= tip`, `dropped <= tip`; the commits that are kept are all those after the smaller of `from` and
//! `dropped`, in order. Pure bookkeeping, guarded by the lock of [`super::undo`].

use std::collections::VecDeque;
use std::sync::Arc;

use crate::format::position::LogPos;
use crate::format::superblock::Superblock;
use crate::options::HistoryLimits;
use crate::roots::Roots;

/// The commit before one, as that one's record has it.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    /// Where the record begins.
    pub(crate) start: LogPos,
    /// The roots before.
    pub(crate) roots: Roots,
    /// The blob before.
    pub(crate) blob: Arc<[u8]>,
    /// The commit that this one goes back to, if it is a rollback.
    pub(crate) back_to: Option<u64>,
}

/// Commits of the window whose records an open has left unread: those up to the one that its replay started behind.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    /// The superblock that says where these records begin and end.
    pub(crate) superblock: Superblock,
    /// The state before the first of them.
    pub(crate) first: u64,
    /// The roots of that state, and those of the last one.
    pub(crate) roots: Roots,
    pub(crate) at_replay: Roots,
}

/// A commit whose undo is kept, in memory or in the log.
struct Kept {
    number: u64,
    /// Bytes of memory; 0 from when it is dropped from there.
    bytes: u64,
    /// Bytes of the overflow file that the values which it replaced occupy.
    values: u64,
    before: Option<Before>,
}

impl Kept {
    /// Bytes that it takes in the list of those that are kept.
    fn in_list(&self) -> u64 {
        let before = self.before.as_ref();
        let named = before.map_or(0, |Before { roots, blob, .. }| roots.bytes() + blob.len());
        (size_of::<Self>() + named) as u64
    }
}

/// The window.
pub(super) struct Window {
    limits: HistoryLimits,
    tip: u64,
    from: u64,
    /// The history begins here whatever the limits say: nothing before was ever kept, or is known.
    begin: u64,
    /// It was said that less is kept than wanted.
    short: bool,
    dropped: u64,
    /// What comes before `commits`; none where that is nothing of the window.
    unread: Option<Unread>,
    commits: VecDeque<Kept>,
    /// Bytes of `commits`.
    list: u64,
    /// Bytes of the overflow file that only states before them name.
    values: u64,
    /// What queued records say of where the window begins, and where they end.
    stated: VecDeque<(LogPos, u64)>,
    /// What the newest durable record says; the largest number while there never was a history.
    durable_from: u64,
}

impl Window {
    /// The window of a state without past.
    pub(super) fn new(limits: HistoryLimits, tip: u64) -> Self {
        Self {
            limits,
            tip,
            from: tip,
            begin: tip,
            short: false,
            dropped: tip,
            unread: None,
            commits: VecDeque::new(),
            list: 0,
            values: 0,
            stated: VecDeque::new(),
            durable_from: if limits.commits > 0 { tip } else { u64::MAX },
        }
    }

    /// The oldest commit that can be asked for.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// The oldest commit whose undo, and that of all later ones, is in memory.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Can the state of a commit be read: is the undo of all commits after it kept?
    pub(super) fn reads(&self, commit: u64) -> bool {
        commit >= self.dropped.min(self.from)
    }

    /// Is the undo of no commit in memory?
    pub(super) fn is_empty(&self) -> bool {
        self.dropped == self.tip
    }

    /// Bytes of the list of commits.
    pub(super) fn list_bytes(&self) -> u64 {
        self.list
    }

    /// Where the record of a commit begins that is kept.
    pub(super) fn start(&self, number: u64) -> Option<LogPos> {
        Some(self.kept(number)?.before.as_ref()?.start)
    }

    fn kept(&self, number: u64) -> Option<&Kept> {
        let first = self.commits.front()?.number;
        self.commits.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// The next commit's undo is there, or is being put in. `values` are the bytes of the overflow file that the values in it
    /// occupy, as far as they are known by now ([`Self::set_bytes`]).
    pub(super) fn add(&mut self, number: u64, bytes: u64, values: u64, before: Option<Before>) {
        self.tip = number;
        self.values += values;
        let kept = Kept { number, bytes, values, before };
        self.list += kept.in_list();
        self.commits.push_back(kept);
    }

    /// The next commit's undo is in the log only, and that of all before it.
    pub(super) fn add_logged(&mut self, number: u64, values: u64, before: Before) {
        self.drop_memory_through(self.tip);
        self.add(number, 0, values, Some(before));
        self.dropped = number;
    }

    /// Recovery: the records of all commits so far stay unread.
    pub(super) fn leave_unread(&mut self, unread: Unread) {
        (self.from, self.begin) = (unread.first, unread.first);
        self.unread = Some(unread);
    }

    /// What has to be read for the state of a commit.
    pub(super) fn unread(&self, commit: u64) -> Option<&Unread> {
        let unread = self.unread.as_ref()?;
        (self.from..unread.superblock.commit).contains(&commit).then_some(unread)
    }

    /// Do unread records keep the log longer than the history is, by an eighth of it?
    pub(super) fn lags(&self, log_end: LogPos) -> bool {
        let Some(Unread { superblock, first, .. }) = self.unread(self.from) else { return false };
        let log = log_end.saturating_since(superblock.log_from());
        self.from - first > self.limits.commits / 8
            || log > self.limits.log_bytes.saturating_add(self.limits.log_bytes / 8)
    }

    /// The unread records were read; they stay in the log. False where the window has moved past them.
    pub(super) fn adopt(&mut self, older: &mut Self) -> bool {
        if self.unread.take().is_none() {
            return false;
        }
        self.begin_at(older.from);
        let kept = std::mem::take(&mut older.commits);
        for kept in kept.into_iter().rev().filter(|kept| kept.number > self.from) {
            let kept = Kept { bytes: 0, ..kept };
            self.list += kept.in_list();
            self.values += kept.values;
            self.commits.push_front(kept);
        }
        true
    }

    /// What a commit's undo really takes, and bytes of the overflow file that the values in it occupy.
    pub(super) fn set_bytes(&mut self, number: u64, bytes: u64, values: u64) {
        let first = self.commits.front().map_or(0, |first| first.number);
        let at = number.checked_sub(first).and_then(|at| usize::try_from(at).ok());
        if let Some(kept) = at.and_then(|at| self.commits.get_mut(at)) {
            self.values = self.values - kept.values + values;
            kept.values = values;
            if number > self.dropped {
                kept.bytes = bytes;
            }
        }
    }

    /// Nothing before this commit can be read: what came was no commit with undo.
    pub(super) fn barrier(&mut self, number: u64) {
        (self.list, self.values) = (0, 0);
        self.commits.clear();
        self.unread = None;
        (self.tip, self.from, self.begin, self.dropped) = (number, number, number, number);
    }

    /// The window begins here, or later: records say so.
    pub(super) fn begin_at(&mut self, from: u64) {
        self.begin = from.min(self.tip);
        self.from = self.from.max(self.begin);
    }

    /// The log begins at a position: what records before it have replaced can be read back no more.
    pub(super) fn log_begins(&mut self, position: LogPos) {
        let is_gone =
            |kept: &Kept| kept.before.as_ref().is_some_and(|before| before.start < position);
        let gone = self.commits.iter().take_while(|kept| is_gone(kept)).last();
        if let Some(gone) = gone.map(|kept| kept.number).filter(|gone| *gone > self.from) {
            self.begin_at(gone);
        }
    }

    /// How many commits before the newest one can be read, and how many could without the limits in bytes.
    pub(super) fn kept_of(&self) -> (u64, u64) {
        (self.tip - self.from, (self.tip - self.begin).min(self.limits.commits))
    }

    /// Both, when the first has just become smaller than the second.
    pub(super) fn falls_short(&mut self) -> Option<(u64, u64)> {
        let (kept, wanted) = self.kept_of();
        let begins = kept < wanted && !self.short;
        self.short = kept < wanted;
        begins.then_some((kept, wanted))
    }

    /// The window's begin once `number` is the newest commit, for its record.
    pub(super) fn begin_after(&self, number: u64) -> u64 {
        self.from.max(number.saturating_sub(self.limits.commits))
    }

    /// A record that ends at `end` says that the window begins at `from`.
    pub(super) fn state(&mut self, end: LogPos, from: u64) {
        if self.durable_from < u64::MAX {
            self.stated.push_back((end, from));
        }
    }

    /// Recovery has found a record that says that the history begins at `stated`, whatever can be read of it: all
    /// that is named from there on is kept until a durable record says otherwise.
    pub(super) fn was_from(&mut self, stated: u64) {
        self.durable_from = stated;
    }

    /// The commit that the window begins at as a durable record says, with the log durable below `durable`.
    pub(super) fn durable_from(&mut self, durable: LogPos) -> u64 {
        while let Some((_, from)) = self.stated.front().filter(|(end, _)| *end <= durable) {
            self.durable_from = self.durable_from.max(*from);
            self.stated.pop_front();
        }
        self.durable_from
    }

    /// Moves the window on: to its length, to its bytes of log (which ends at `log_end`) and of the overflow file; and drops
    /// from memory, whoever holds it, what takes more than the bytes of memory. `oldest_pin` is the oldest commit that is
    /// held. `in_memory` are the bytes of memory, and `runs` what is in it: of each run, the oldest first, the last commit and
    /// the bytes. Gives the last commit that is dropped from memory.
    pub(super) fn advance(
        &mut self,
        oldest_pin: u64,
        log_end: LogPos,
        in_memory: u64,
        runs: &[(u64, u64)],
    ) -> u64 {
        self.from = self.begin_after(self.tip).min(self.tip);
        let too_much_log = |before: &Before| {
            log_end.checked_since(before.start).unwrap_or(0) > self.limits.log_bytes
        };
        for kept in &self.commits {
            let log = kept.number > self.from && kept.before.as_ref().is_some_and(too_much_log);
            if log {
                self.from = kept.number;
            } else if kept.number > self.from {
                break;
            }
        }
        self.drop_memory_through(self.from.min(oldest_pin));
        self.forget();
        let all = in_memory + self.list;
        if all > self.limits.bytes {
            // Some more than has to be, so that not each commit drops a run, and runs as a whole.
            let mut excess = all - self.limits.bytes / 8 * 7;
            for (end, bytes) in runs {
                if excess > 0 && *end > self.dropped {
                    self.drop_memory_through(*end);
                    excess = excess.saturating_sub(*bytes);
                }
            }
            if excess > 0 {
                self.drop_memory_through(self.tip);
            }
            self.forget();
        }
        while self.values > self.limits.value_bytes
            && let Some(first) = self.commits.front().map(|first| first.number)
        {
            self.from = self.from.max(first);
            self.drop_memory_through(first);
            self.forget();
        }
        self.dropped
    }

    /// The undo of the commits through `number` leaves memory.
    fn drop_memory_through(&mut self, number: u64) {
        let first = self.commits.front().map_or(0, |first| first.number);
        let place = |number: u64| usize::try_from((number + 1).saturating_sub(first)).unwrap_or(0);
        let (from, to) = (place(self.dropped), place(number.min(self.tip)));
        for at in from..to {
            if let Some(kept) = self.commits.get_mut(at) {
                kept.bytes = 0;
            }
        }
        self.dropped = self.dropped.max(number.min(self.tip));
    }

    /// Forgets the commits that nobody can read back to.
    fn forget(&mut self) {
        self.unread.take_if(|unread| unread.superblock.commit <= self.from);
        let needed = self.from.min(self.dropped);
        let gone = self.commits.partition_point(|kept| kept.number <= needed);
        for kept in self.commits.drain(..gone) {
            self.list -= kept.in_list();
            self.values -= kept.values;
        }
    }

    /// Root and blob of a commit that is not the newest one, while it is in the window.
    pub(super) fn past(&self, commit: u64) -> Option<&Before> {
        if commit < self.from {
            return None;
        }
        self.kept(commit + 1)?.before.as_ref()
    }

    /// Where the records of the window begin, and the roots before the first; none when it has no commit but the tip.
    pub(super) fn begins(&self) -> Option<(LogPos, &Roots)> {
        match self.unread(self.from) {
            Some(unread) => Some((unread.superblock.log_from(), &unread.roots)),
            None => self.past(self.from).map(|before| (before.start, &before.roots)),
        }
    }

    /// Bytes of undo after `commit` that the window alone would not keep; none where it cannot be read.
    pub(super) fn bytes_for(&self, commit: u64) -> u64 {
        if !self.reads(commit) {
            return 0;
        }
        let held = self.commits.iter().filter(|kept| kept.number > commit);
        held.take_while(|kept| kept.number <= self.from).map(|kept| kept.bytes).sum()
    }
}
