//! Which past commits can be read: the history window, and the limits that move it on.
//!
//! ```text
//!               oldest        written     memory from          tip
//!   ...-----------|--------------|-------------|----------------|
//!     not kept    | runs on      | runs in memory               |
//!                 | the device   | and the log                  |
//! ```
//!
//! *Oldest* is the oldest commit that can be opened by its number: `history` commits before the tip, or a later one
//! because of a limit in bytes of disk, or because the runs and records with undo begin there. The undo of commits up
//! to *written* is in runs on the device; that of later ones is in memory, and in their records. Undo in memory begins
//! at *memory from*: without a limit at `oldest`, or at an older commit that is pinned. Beyond [`HistoryLimits::bytes`] of
//! memory the oldest undo is evicted once it is on the device; without a history in any case, pinned or not. A commit is
//! *readable* when all undo after it is kept; the first such commit is the *floor*. All of these only rise: where a run
//! on the device reaches further back, long values of older states may be free by then.
//!
//! Pure bookkeeping, guarded by the lock of [`super::undo`].

use std::collections::VecDeque;
use std::sync::Arc;

use pleach_core::Node;
use pleach_history::RunSize;
use pleach_journal::format::bytes::{BodyCursor, BodyError};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::trie_kind::TrieKind;

use crate::options::HistoryLimits;
use crate::roots::{Roots, TrieRoot};

/// What a commit follows: its predecessor's roots and blob, as its own record has them.
#[derive(Clone, Debug)]
pub(crate) struct PriorCommit {
    /// Where the commit's record begins.
    pub(crate) start: LogPos,
    /// The roots before.
    pub(crate) roots: Roots,
    /// The blob before.
    pub(crate) blob: Arc<[u8]>,
    /// The commit that this one restores, if it is a rollback.
    pub(crate) back_to: Option<u64>,
    /// When this commit was made, in seconds since 1970; `None` where the clock did not say it.
    pub(crate) time: Option<u64>,
}

/// Flag in the number of roots: the time follows.
const TIMED: u16 = 1 << 15;

impl PriorCommit {
    /// The form in a run on the device: the restored commit plus 1, or 0, 8 bytes; the number of roots, 2 bytes; with
    /// [`TIMED`] in that, the time, 8 bytes; of each root the namespace, the kind of trie, and the root; the blob.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.back_to.map_or(0, |commit| commit + 1).to_le_bytes().to_vec();
        let count = u16::try_from(self.roots.all().count()).expect("at most 256 namespaces");
        bytes.extend_from_slice(&(count | self.time.map_or(0, |_| TIMED)).to_le_bytes());
        bytes.extend(self.time.into_iter().flat_map(u64::to_le_bytes));
        for (namespace, TrieRoot { kind, node }) in self.roots.all() {
            bytes.extend_from_slice(&[namespace, kind as u8]);
            bytes.extend_from_slice(node.as_ref());
        }
        bytes.extend_from_slice(&self.blob);
        bytes
    }

    /// Parses the form that [`Self::encode`] makes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let mut bytes = BodyCursor::new(bytes);
        let (back_to, count) = (bytes.u64()?.checked_sub(1), bytes.u16()?);
        let time = if count & TIMED == 0 { None } else { Some(bytes.u64()?) };
        let mut roots = Vec::new();
        for _ in 0..count & !TIMED {
            let (namespace, kind) = (bytes.u8()?, bytes.u8()?);
            let kind = TrieKind::of_byte(kind).ok_or(BodyError::Trie(kind))?;
            roots.push((namespace, TrieRoot { kind, node: Node::new(*bytes.array()?) }));
        }
        if roots.first().is_none_or(|first| first.0 > 0) || !roots.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(BodyError::Unsorted);
        }
        let blob = bytes.take(bytes.len() as u64)?.into();
        Ok(Self { start: LogPos::START, roots: Roots::new(roots), blob, back_to, time })
    }
}

/// A commit whose undo is kept in memory.
struct WindowCommit {
    number: u64,
    /// Bytes of the overflow file that the replaced values occupy.
    values: u64,
    before: Option<PriorCommit>,
}

impl WindowCommit {
    /// Bytes that the entry takes in the list of commits.
    fn bytes(&self) -> u64 {
        let before = self.before.as_ref();
        let named = before.map_or(0, |PriorCommit { roots, blob, .. }| roots.bytes() + blob.len());
        (size_of::<Self>() + named) as u64
    }
}

/// The window.
pub(super) struct Window {
    limits: HistoryLimits,
    tip: u64,
    oldest: u64,
    /// The history begins here whatever the limits say: earlier undo was never kept, or is unknown.
    begin: u64,
    /// True when a history shorter than wanted was reported.
    is_short: bool,
    /// The undo of commits through this one is on the device, or is not kept.
    written: u64,
    /// The undo of commits through this one is not in memory.
    memory_from: u64,
    /// The undo of all commits after this one is kept.
    floor: u64,
    /// Commits whose undo is not on the device.
    commits: VecDeque<WindowCommit>,
    /// Bytes of `commits`.
    pub(super) list_bytes: u64,
    /// Bytes of the overflow file that the undo of `commits` names.
    values: u64,
    /// Of queued records: where each ends, and the begin of the window that it records.
    recorded: VecDeque<(LogPos, u64)>,
    /// The begin that the newest durable record has; `u64::MAX` while there never was a history.
    durable_from: u64,
}

impl Window {
    /// The window of a state whose undo is kept after `floor`, all of it on the device.
    pub(super) fn new(limits: HistoryLimits, floor: u64, tip: u64) -> Self {
        Self {
            limits,
            tip,
            oldest: floor,
            begin: floor,
            is_short: false,
            written: tip,
            memory_from: tip,
            floor,
            commits: VecDeque::new(),
            list_bytes: 0,
            values: 0,
            recorded: VecDeque::new(),
            durable_from: if limits.commits > 0 { floor } else { u64::MAX },
        }
    }

    /// The oldest commit that can be opened by its number.
    pub(super) fn oldest_commit(&self) -> u64 {
        self.oldest
    }

    /// The undo of commits through this one is on the device, or is not kept.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// True when the state of a commit can be read: the undo of all commits after it is kept.
    pub(super) fn is_readable(&self, commit: u64) -> bool {
        commit >= self.floor
    }

    fn position(&self, number: u64) -> Option<usize> {
        let first = self.commits.front()?.number;
        usize::try_from(number.checked_sub(first)?).ok().filter(|at| *at < self.commits.len())
    }

    /// Adds the next commit. `values` are the bytes of the overflow file that the values in its undo occupy, as far as
    /// they are known by now ([`Self::set_values`]).
    pub(super) fn add(&mut self, number: u64, values: u64, before: Option<PriorCommit>) {
        assert!(number > self.tip, "commits come in order");
        self.tip = number;
        self.values += values;
        let kept = WindowCommit { number, values, before };
        self.list_bytes += kept.bytes();
        self.commits.push_back(kept);
    }

    /// Sets the bytes of the overflow file that the values in a commit's undo occupy.
    pub(super) fn set_values(&mut self, number: u64, values: u64) {
        if let Some(at) = self.position(number) {
            self.values = self.values - self.commits[at].values + values;
            self.commits[at].values = values;
        }
    }

    /// What each commit through `through` that is not on the device follows, in order; `None` if one is unknown.
    pub(super) fn unwritten(&self, through: u64) -> Option<Vec<(u64, PriorCommit)>> {
        let commits = self.commits.iter().take_while(|kept| kept.number <= through);
        commits.map(|kept| Some((kept.number, kept.before.clone()?))).collect()
    }

    /// Records that the undo of commits through `through` is on the device.
    pub(super) fn set_written(&mut self, through: u64) {
        self.written = self.written.max(through);
        self.forget(through);
    }

    /// No state before this commit can be read any more, since it was made without undo.
    pub(super) fn set_barrier(&mut self, number: u64) {
        (self.tip, self.oldest, self.begin) = (number, number, number);
        (self.written, self.memory_from, self.floor) = (number, number, number);
        self.forget(number);
    }

    /// The window begins at `from` or later: records say so, or earlier undo does not exist any more.
    pub(super) fn set_begin(&mut self, from: u64) {
        self.begin = from.min(self.tip);
        self.oldest = self.oldest.max(self.begin);
    }

    /// How many commits before the newest one can be read, and how many could without the limits in bytes.
    pub(super) fn kept_and_wanted(&self) -> (u64, u64) {
        (self.tip - self.oldest, (self.tip - self.begin).min(self.limits.commits))
    }

    /// The same two numbers, when the first has just become smaller than the second.
    pub(super) fn note_shortfall(&mut self) -> Option<(u64, u64)> {
        let (kept, wanted) = self.kept_and_wanted();
        let begins = kept < wanted && !self.is_short;
        self.is_short = kept < wanted;
        begins.then_some((kept, wanted))
    }

    /// The window's begin once `number` is the newest commit, for that commit's record.
    pub(super) fn begin_after(&self, number: u64) -> u64 {
        self.oldest.max(number.saturating_sub(self.limits.commits))
    }

    /// A record that ends at `end` has `from` as the begin of the window.
    pub(super) fn note_recorded_begin(&mut self, end: LogPos, from: u64) {
        if self.durable_from < u64::MAX {
            self.recorded.push_back((end, from));
        }
    }

    /// The window's begin as the newest record has it.
    pub(super) fn recorded_begin(&self) -> u64 {
        self.recorded.back().map_or(self.durable_from, |(_, from)| *from)
    }

    /// Recovery has found a record with the begin `recorded`, whatever can be read of the history: overflow runs named
    /// from there on are kept until a durable record has a later begin.
    pub(super) fn set_recovered_begin(&mut self, recorded: u64) {
        self.durable_from = recorded;
    }

    /// The window's begin as durable records have it, with the log durable below `durable`.
    pub(super) fn durable_from(&mut self, durable: LogPos) -> u64 {
        while let Some((_, from)) = self.recorded.front().filter(|(end, _)| *end <= durable) {
            self.durable_from = self.durable_from.max(*from);
            self.recorded.pop_front();
        }
        self.durable_from
    }

    /// Moves the window on, to its limits in commits and in bytes of disk; discards undo that nobody needs, and evicts
    /// undo beyond the limit of memory. `oldest_pin` is the oldest commit that is held, `in_memory` the bytes of undo
    /// in memory. The runs come oldest first. Returns the last commit whose undo is not in memory any more, and the
    /// last one whose undo the device need not keep.
    pub(super) fn advance(
        &mut self,
        oldest_pin: u64,
        in_memory: u64,
        memory: &[RunSize],
        disk: &[RunSize],
    ) -> (u64, u64) {
        let before = [self.oldest, self.memory_from, self.floor];
        self.oldest = self.begin_after(self.tip).min(self.tip);
        let mut limited = 0;
        let mut taken =
            self.values + disk.iter().map(|run| run.bytes + run.value_bytes).sum::<u64>();
        let kept = self.commits.iter().map(|kept| (kept.number, kept.values));
        let oldest = disk.iter().map(|run| (run.through, run.bytes + run.value_bytes)).chain(kept);
        for (through, bytes) in oldest {
            if taken <= self.limits.disk_bytes {
                break;
            }
            taken -= bytes;
            self.oldest = self.oldest.max(through);
            limited = through;
        }
        // A pin keeps undo in memory only: the device is for the window.
        let unneeded = self.oldest.min(oldest_pin).max(limited);
        self.memory_from = self.memory_from.max(unneeded.min(self.tip));
        let gone = memory.iter().take_while(|run| run.through <= self.memory_from);
        let left = in_memory - gone.map(|run| run.bytes).sum::<u64>() + self.list_bytes;
        if left > self.limits.bytes {
            // Evicts whole runs, and some more than necessary, so that not each commit evicts one.
            let mut excess = left - self.limits.bytes / 8 * 7;
            let droppable = if self.limits.commits > 0 { self.written } else { self.tip };
            for run in memory.iter().filter(|run| run.through <= droppable) {
                if excess > 0 && run.through > self.memory_from {
                    self.memory_from = run.through;
                    excess = excess.saturating_sub(run.bytes);
                }
            }
            if excess > 0 && self.limits.commits == 0 {
                self.memory_from = self.tip;
            }
        }
        let first = disk.iter().find(|run| run.through > self.oldest);
        let reach = first.map_or(self.memory_from, |run| run.after.min(self.memory_from));
        self.floor = self.floor.max(reach);
        let after = [self.oldest, self.memory_from, self.floor];
        assert!(
            before.iter().zip(&after).all(|(before, after)| before <= after),
            "marks only rise"
        );
        assert!(after.iter().all(|mark| *mark <= self.tip), "no mark passes the newest commit");
        self.forget(self.floor);
        (self.memory_from, self.oldest)
    }

    /// Removes the entries of commits through `through`.
    fn forget(&mut self, through: u64) {
        let gone = self.commits.partition_point(|kept| kept.number <= through);
        for kept in self.commits.drain(..gone) {
            self.list_bytes -= kept.bytes();
            self.values -= kept.values;
        }
    }

    /// What a commit follows whose undo is not on the device.
    pub(super) fn prior_commit(&self, commit: u64) -> Option<&PriorCommit> {
        self.commits[self.position(commit)?].before.as_ref()
    }

    /// Where the first record begins whose undo is in the window and not on the device, and the roots before it; `None`
    /// when there is none.
    pub(super) fn first_unwritten(&self) -> Option<(LogPos, &Roots)> {
        let first = self.commits.iter().find(|kept| kept.number > self.oldest)?.before.as_ref()?;
        Some((first.start, &first.roots))
    }
}
