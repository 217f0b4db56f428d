//! What an engine under test does: the trait that hides which one it is, and what goes in and
//! comes out of it.

use core::time::Duration;

use pleach_core::{Key, ValueHash};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::workload::transfer::Change;

/// A trie root.
pub(crate) type Root = [u8; 32];

/// From balances read to changes, both in the order of a batch's accounts.
pub(crate) type Compute<'a> = dyn FnMut(&[Option<u64>]) -> Result<Vec<Change>> + 'a;

/// One batch to run.
pub(crate) struct Work<'a> {
    /// Its number in the stream.
    pub(crate) number: u64,
    /// Keys of its distinct accounts, in the order of first use.
    pub(crate) keys: &'a [Key],
    /// What the batch does.
    pub(crate) compute: &'a mut Compute<'a>,
    /// To be called with the new root once it is known and before anything is committed.
    pub(crate) before_commit: &'a mut dyn FnMut(&Root) -> Result<()>,
}

/// A batch that has run.
pub(crate) struct Done {
    pub(crate) execute: Duration,
    pub(crate) finish: Duration,
    pub(crate) commit: Duration,
    pub(crate) prev_root: Root,
    pub(crate) root: Root,
    pub(crate) witness: Option<Box<dyn Witness>>,
}

/// What a witness proves, in any order.
#[derive(Debug, Default)]
pub(crate) struct Proven {
    /// The root that the batch leads to.
    pub(crate) new_root: Root,
    /// Keys read, with the hash of the value seen.
    pub(crate) reads: Vec<(Key, Option<ValueHash>)>,
    /// Keys written, with the hash of the new value.
    pub(crate) writes: Vec<(Key, Option<ValueHash>)>,
}

/// A batch's witness in the engine's own form.
pub(crate) trait Witness {
    /// Its size.
    fn bytes(&self) -> u64;
    /// Verifies it statelessly against the previous root and gives all that it proves.
    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String>;
}

/// One state, readable while batches go on.
pub(crate) trait View {
    /// Its root.
    fn root(&self) -> Root;
    /// Values of keys in it.
    fn read(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;
}

/// Counters of an engine; `None` where it keeps none.
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
    /// Device writes that these took.
    pub(crate) page_runs_written: Option<u64>,
    pub(crate) bytes_written_log: Option<u64>,
    /// Nanoseconds that commits and flushes spent one after the other, under one lock.
    pub(crate) sequencer_nanos: Option<u64>,
    /// Microseconds that commits waited for background writes.
    pub(crate) stalled_micros: Option<u64>,
    pub(crate) hashes: Option<u64>,
}

impl Counters {
    /// What was counted since `start`; levels (pending entries, leaf pages) are kept as they are.
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

/// An open engine. Everything is called from one thread.
pub(crate) trait Backend {
    /// Root of the newest state, uncommitted overlays included.
    fn root(&self) -> Root;
    /// Number of batches that the committed state contains.
    fn batches(&self) -> Result<u64>;
    /// Loads accounts `0..accounts` into the empty database; `progress` hears how many are in.
    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()>;
    /// Reads, computes, finishes and commits a batch, and times each phase.
    fn run_batch(&mut self, work: Work<'_>) -> Result<Done>;
    /// Commits what is still held as overlays.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
    /// Waits until at most so many pending entries are left to background writes.
    fn drain(&mut self, _pending_entries: u64) -> Result<()> {
        Ok(())
    }
    /// Stops background work while the clock is stopped.
    fn pause(&mut self) {}
    /// Lets background work go on.
    fn resume(&mut self) {}
    /// Its counters now.
    fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Values of keys in the newest state.
    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;
    /// Keeps the newest state readable; an error where commits would wait for that.
    fn view(&mut self) -> Result<Box<dyn View>>;
    /// What is to be printed with the result: settings, fallbacks, durability.
    fn notes(&self) -> Vec<String>;
    /// Closes it cleanly.
    fn close(self: Box<Self>) -> Result<()>;
}
