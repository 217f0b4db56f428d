//! What every engine under test can do: the trait [`Backend`], what goes into it and what comes out.

use core::time::Duration;

use pleach_core::Key;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::trees::{Root, Witness};
use crate::workload::transfer::Change;

/// Turns the balances that were read into changes, both in the order of the batch's accounts.
pub(crate) type Compute<'a> = dyn FnMut(&[Option<u64>]) -> Result<Vec<Change>> + 'a;

/// One batch to run.
pub(crate) struct Work<'a> {
    /// Its number in the stream.
    pub(crate) number: u64,
    /// Keys of its distinct accounts, in the order of first use.
    pub(crate) keys: &'a [Key],
    /// Those of the batch after it, where they are announced ahead.
    pub(crate) next: Option<&'a [Key]>,
    /// What the batch does.
    pub(crate) compute: &'a mut Compute<'a>,
    /// Must be called with the new root as soon as it is known, before anything is committed.
    pub(crate) before_commit: &'a mut dyn FnMut(&Root) -> Result<()>,
}

/// A batch that has run.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) execute: Duration,
    pub(crate) finish: Duration,
    pub(crate) commit: Duration,
    pub(crate) prev_root: Root,
    pub(crate) root: Root,
    pub(crate) witness: Option<Box<dyn Witness>>,
}

/// One state that stays readable while further batches run.
pub(crate) trait View: core::fmt::Debug {
    /// Its root.
    fn root(&self) -> Root;
    /// Values of keys in it.
    fn read(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;
}

/// Counters of an engine; `None` for those that it does not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) cache_hits: Option<u64>,
    pub(crate) cache_misses: Option<u64>,
    pub(crate) page_rereads: Option<u64>,
    pub(crate) upper_trie_pages_read: Option<u64>,
    pub(crate) pending_entries: Option<u64>,
    pub(crate) pending_bytes: Option<u64>,
    pub(crate) checkpoints: Option<u64>,
    pub(crate) leaf_pages: Option<u64>,
    pub(crate) pages_written: Option<u64>,
    /// Device writes that those pages took.
    pub(crate) page_runs_written: Option<u64>,
    pub(crate) bytes_written_log: Option<u64>,
    /// Nanoseconds that commits and flushes spent under the lock that serializes them.
    pub(crate) sequencer_nanos: Option<u64>,
    /// Microseconds that commits waited for background writes.
    pub(crate) stalled_micros: Option<u64>,
    pub(crate) hashes: Option<u64>,
}

impl Counters {
    /// What was counted since `start`. Levels (pending entries, leaf pages) stay as they are now.
    pub(crate) fn since(&self, start: &Self) -> Self {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            cache_hits: less(self.cache_hits, start.cache_hits),
            cache_misses: less(self.cache_misses, start.cache_misses),
            page_rereads: less(self.page_rereads, start.page_rereads),
            upper_trie_pages_read: less(self.upper_trie_pages_read, start.upper_trie_pages_read),
            checkpoints: less(self.checkpoints, start.checkpoints),
            pages_written: less(self.pages_written, start.pages_written),
            page_runs_written: less(self.page_runs_written, start.page_runs_written),
            bytes_written_log: less(self.bytes_written_log, start.bytes_written_log),
            sequencer_nanos: less(self.sequencer_nanos, start.sequencer_nanos),
            stalled_micros: less(self.stalled_micros, start.stalled_micros),
            hashes: less(self.hashes, start.hashes),
            ..*self
        }
    }
}

/// A phase of a batch, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) phase: String,
    /// How long the caller was in it.
    pub(crate) wall_us: f64,
    /// What each of its tasks took, in the order in which workers claim them; none where it has only the caller.
    pub(crate) tasks_us: Vec<f64>,
}

/// An open engine. One thread makes all calls.
pub(crate) trait Backend: core::fmt::Debug {
    /// Root of the newest state, including uncommitted overlays.
    fn root(&self) -> Root;
    /// Number of batches that the committed state contains.
    fn batches(&self) -> Result<u64>;
    /// Loads accounts `0..accounts` into the empty database; `progress` is told how many are loaded so far.
    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()>;
    /// Reads, computes, finishes and commits a batch, and times each phase.
    fn run_batch(&mut self, work: Work<'_>) -> Result<Done>;
    /// Commits all overlays that are still uncommitted.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
    /// Waits until background writes have left at most this many pending entries.
    fn drain(&mut self, _pending_entries: u64) -> Result<()> {
        Ok(())
    }
    /// Does background work go on while the clock is stopped? Then a drain before the clock starts and one at
    /// the end of each turn have to count what a pause would have kept for later.
    fn works_on(&self) -> bool {
        false
    }
    /// Stops background work, for as long as the clock is stopped.
    fn pause(&mut self) {}
    /// Lets background work continue.
    fn resume(&mut self) {}
    /// Its counters now.
    fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Phases of the batches since the last call, in order, where the engine records them.
    fn timings(&mut self) -> Vec<Timing> {
        Vec::new()
    }
    /// Values of keys in the newest state.
    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;
    /// Opens a view of the newest state; an error if the engine's commits would wait for it.
    fn view(&mut self) -> Result<Box<dyn View>>;
    /// Notes to print with the result: settings, fallbacks, durability.
    fn notes(&self) -> Vec<String>;
    /// Closes it cleanly.
    fn close(self: Box<Self>) -> Result<()>;
}
