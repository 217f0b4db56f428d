//! The memory budget and its shares, and when pages are flushed and checkpoints made for it.
//!
//! It decides and does nothing: whoever flushes, makes checkpoints or waits asks here whether it is time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_core::Prefix;
use pleach_io::PAGE;

use super::nodes::Limit;
use crate::metrics::Counters;
use crate::options::Options;

/// More room for the value cache than sessions use.
const MAX_VALUES: usize = 64 << 20;

/// The budget of one open database.
pub(crate) struct Budget {
    /// For everything that grows.
    bytes: u64,
    /// A cap on nodes in memory, when the caller named one.
    nodes: Option<u64>,
    /// Commits that change a page before it is rewritten.
    flush_at: u8,
    /// Bytes of log that make a checkpoint due.
    log_limit: u64,
    counters: Arc<Counters>,
}

impl Budget {
    /// The budget that the options give, with the log limit of this database.
    pub(crate) fn new(options: &Options, log_limit: u64, counters: Arc<Counters>) -> Self {
        Self {
            bytes: options.cache_bytes,
            nodes: options.trie_cache,
            flush_at: options.flush_at,
            log_limit,
            counters,
        }
    }

    /// A fraction of the budget: one part in `of`.
    fn part(&self, of: u64) -> usize {
        usize::try_from(self.bytes / of).unwrap_or(usize::MAX / 8)
    }

    /// Budget of the leaf cache: what pending changes, nodes, the parts below and an index of `index`
    /// bytes leave, and never less than an eighth of all.
    pub(crate) fn leaf_cache_bytes(&self, index: usize) -> usize {
        let half = usize::try_from(self.bytes / 2).unwrap_or(usize::MAX);
        let others = [self.values_bytes(), self.outcome_bytes(), self.sorter_bytes()];
        let others = others.iter().sum::<usize>() + self.witness_bytes() + index;
        half.saturating_sub(others).max(half / 4)
    }

    /// Budget of the arrays of a finish that are kept for the next one.
    pub(crate) fn outcome_bytes(&self) -> usize {
        self.part(32)
    }

    /// Budget of the arrays of a sort that are kept for the next one.
    pub(crate) fn sorter_bytes(&self) -> usize {
        self.part(128)
    }

    /// Budget of the memory of a witness that is kept for the next one.
    pub(crate) fn witness_bytes(&self) -> usize {
        self.part(32)
    }

    /// Budget of the value cache: at the default, 2^17 values.
    pub(crate) fn values_bytes(&self) -> usize {
        self.part(64).min(MAX_VALUES)
    }

    /// Pages that an iterator may read ahead, in each direction.
    pub(crate) fn pages_ahead(&self) -> usize {
        (self.part(128) / PAGE).max(1)
    }

    /// What nodes in memory may take.
    pub(crate) fn node_limit(&self) -> Limit {
        Limit { bytes: self.nodes.unwrap_or(self.bytes / 4), named: self.nodes.is_some() }
    }

    /// Bytes that pending changes may take.
    pub(crate) fn pending_limit(&self) -> u64 {
        self.bytes / 4
    }

    /// Are there more pending changes than there is room for?
    pub(crate) fn pending_is_full(&self) -> bool {
        self.pending() > self.pending_limit()
    }

    /// Are pending changes near their limit, so that pages are read again only to be written?
    pub(crate) fn is_pressed(&self) -> bool {
        self.pending() > self.pending_limit() / 8 * 7
    }

    /// When pages are rewritten now. The more changes pend, the sooner: a page that a commit has just
    /// changed is in memory, one chosen later has to be read again.
    pub(crate) fn flush_policy(&self) -> FlushPolicy {
        FlushPolicy::new(self.flush_at, self.pending(), self.pending_limit())
    }

    /// Does so much log make a checkpoint due?
    pub(crate) fn log_is_long(&self, bytes: u64) -> bool {
        bytes > self.log_limit
    }

    /// Is there so much log that commits wait for a checkpoint?
    pub(crate) fn log_is_full(&self, bytes: u64) -> bool {
        bytes > 2 * self.log_limit
    }

    fn pending(&self) -> u64 {
        self.counters.pending_bytes.load(Ordering::Relaxed)
    }
}

/// How many commits change a page before it is rewritten.
///
/// While pending changes grow from a quarter to three quarters of their limit, this falls smoothly from
/// the option to one commit. It falls in fractions: each page has its own share, so that what is written
/// follows what comes in and does not swing around a threshold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushPolicy {
    /// In 256ths of a commit.
    commits: u32,
}

impl FlushPolicy {
    fn new(flush_at: u8, pending: u64, limit: u64) -> Self {
        let most = u32::from(flush_at) * 256;
        let half = (limit / 2).max(1);
        let over = pending.saturating_sub(limit / 4).min(half);
        // At most `most - 256`.
        let sooner = u64::from(most - 256) * over / half;
        Self { commits: most - u32::try_from(sooner).unwrap_or(most - 256) }
    }

    /// Is a page due that `commits` commits have changed since it was written?
    #[inline]
    pub(crate) fn is_due(self, prefix: &Prefix, commits: u8) -> bool {
        let lead = u64::from_be_bytes(*prefix.first_key().first_chunk().expect("32 bytes"));
        // Not the bits by which pages are spread, which neighbours share.
        let share = lead.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        u32::from(commits) * 256 + u32::try_from(share).unwrap_or(0) >= self.commits
    }

    /// A page that fewer commits have changed is not due.
    pub(crate) fn least(self) -> u8 {
        u8::try_from(self.commits / 256).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 1,000 pages that this number of commits have changed, how many are due?
    fn due(policy: FlushPolicy, commits: u8) -> usize {
        let page = |index: u16| {
            let [high, low] = (index * 64).to_be_bytes();
            let mut key = [0; 32];
            (key[0], key[1]) = (high, low);
            Prefix::new(&key, 10)
        };
        (0..1000).filter(|index| policy.is_due(&page(*index), commits)).count()
    }

    #[test]
    fn pages_are_due_sooner_as_changes_pend_and_never_all_at_once() {
        const LIMIT: u64 = 1 << 20;
        let at = |percent: u64| FlushPolicy::new(4, LIMIT * percent / 100, LIMIT);
        assert_eq!((due(at(0), 3), due(at(25), 3), due(at(25), 4)), (0, 0, 1000));
        assert_eq!((due(at(75), 1), due(at(100), 1)), (1000, 1000));
        let mut before = 0;
        for percent in 25..75 {
            let policy = at(percent);
            // A page of each number of commits: the sum is what a batch would write.
            let now: usize = (1..=4).map(|commits| due(policy, commits)).sum();
            assert!(now >= before && now < before + 1250, "{percent} %: {before} to {now}");
            assert!((1..policy.least()).all(|commits| due(policy, commits) == 0));
            before = now;
        }
        let once = FlushPolicy::new(1, 0, LIMIT);
        assert_eq!(due(once, 1), 1000);
    }
}
