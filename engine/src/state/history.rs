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
//! at *memory from*: without a limit at `oldest`, or at an older commit that is pinned. All
//! three only rise.
//!
//! Pure bookkeeping, guarded by the lock of [`super::undo`]. Without a history there is none of it.

use std::collections::VecDeque;
use std::sync::Arc;

use pleach_core::Node;
use pleach_history::DiskRun;
use pleach_journal::format::bytes::{BodyCursor, BodyError};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::trie_kind::TrieKind;

use crate::options::HistoryLimits;
use crate::roots::{Roots, TrieRoot};

/// The history as an image has it.
pub(crate) struct ImageHistory {
    /// Runs on the device, oldest first.
    pub(crate) runs: Vec<Arc<DiskRun>>,
    /// Where the records after the runs begin, and the roots before them, if that is before the replay start.
    pub(crate) records: LogPos,
    pub(crate) past: Option<Roots>,
    /// The window's begin as the newest record has it.
    pub(crate) kept_from: u64,
}

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
    fn encode(&self) -> Vec<u8> {
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
    before: PriorCommit,
}

impl WindowCommit {
    /// Bytes that the entry takes in the list of commits.
    fn bytes(&self) -> u64 {
        let PriorCommit { roots, blob, .. } = &self.before;
        (size_of::<Self>() + roots.bytes() + blob.len()) as u64
    }
}

/// The window's begin as records state it.
pub(super) struct RecordedBegins {
    /// Of queued records: where each ends, and the begin of the window that it states.
    queued: VecDeque<(LogPos, u64)>,
    /// The begin in the newest durable record.
    durable: u64,
}

impl RecordedBegins {
    /// The newest durable record has this begin.
    pub(super) fn new(durable: u64) -> Self {
        Self { queued: VecDeque::new(), durable }
    }

    /// A record that ends at `end` states the begin `from`.
    pub(super) fn note(&mut self, end: LogPos, from: u64) {
        self.queued.push_back((end, from));
    }

    /// The begin in the newest record.
    pub(super) fn newest(&self) -> u64 {
        self.queued.back().map_or(self.durable, |(_, from)| *from)
    }

    /// The begin in durable records, with the log durable below `durable`.
    pub(super) fn durable(&mut self, durable: LogPos) -> u64 {
        while let Some((_, from)) = self.queued.front().filter(|(end, _)| *end <= durable) {
            self.durable = self.durable.max(*from);
            self.queued.pop_front();
        }
        self.durable
    }
}

/// The window of a history.
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
    /// Commits whose undo is not on the device.
    commits: VecDeque<WindowCommit>,
    /// Bytes of `commits`.
    pub(super) list_bytes: u64,
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
            commits: VecDeque::new(),
            list_bytes: 0,
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

    fn position(&self, number: u64) -> Option<usize> {
        let first = self.commits.front()?.number;
        usize::try_from(number.checked_sub(first)?).ok().filter(|at| *at < self.commits.len())
    }

    /// Adds the next commit.
    pub(super) fn add(&mut self, number: u64, before: PriorCommit) {
        assert!(number > self.tip, "commits come in order");
        self.tip = number;
        let kept = WindowCommit { number, before };
        self.list_bytes += kept.bytes();
        self.commits.push_back(kept);
    }

    /// Of each commit up to `last_commit` that is not on the device, in order: its number and what it follows, encoded.
    pub(super) fn unwritten(&self, last_commit: u64) -> Vec<(u64, Vec<u8>)> {
        let commits = self.commits.iter().take_while(|kept| kept.number <= last_commit);
        commits.map(|kept| (kept.number, kept.before.encode())).collect()
    }

    /// Records that the undo of commits up to `last_commit` is on the device.
    pub(super) fn set_written(&mut self, last_commit: u64) {
        self.written = self.written.max(last_commit);
    }

    /// No state before this commit can be read any more, since it was made without undo.
    pub(super) fn set_barrier(&mut self, number: u64) {
        (self.tip, self.oldest, self.begin, self.written) = (number, number, number, number);
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

    /// Moves the window on, to its limit in commits, and beyond the commits through `limited`. Returns the oldest commit.
    pub(super) fn advance(&mut self, limited: u64) -> u64 {
        let oldest = self.begin_after(self.tip).min(self.tip).max(limited);
        assert!(
            self.oldest <= oldest && oldest <= self.tip,
            "the window moves on, to the newest commit"
        );
        self.oldest = oldest;
        oldest
    }

    /// Removes the entries of commits up to `last_commit`.
    pub(super) fn forget(&mut self, last_commit: u64) {
        let gone = self.commits.partition_point(|kept| kept.number <= last_commit);
        for kept in self.commits.drain(..gone) {
            self.list_bytes -= kept.bytes();
        }
    }

    /// What a commit follows whose undo is not on the device.
    pub(super) fn prior_commit(&self, commit: u64) -> Option<&PriorCommit> {
        Some(&self.commits[self.position(commit)?].before)
    }

    /// Where the first record begins whose undo is in the window and not on the device, and the roots before it; `None`
    /// when there is none.
    pub(super) fn first_unwritten(&self) -> Option<(LogPos, &Roots)> {
        let first = self.commits.iter().find(|kept| kept.number > self.oldest)?;
        Some((first.before.start, &first.before.roots))
    }
}
