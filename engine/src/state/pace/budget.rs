//! The memory budget and its shares, and when pages are flushed and checkpoints made.
//!
//! It decides and does nothing: the tasks that flush, make checkpoints or wait ask here whether it is time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pleach_beatree::region::LineBudget;
use pleach_core::{Node, Prefix};
use pleach_io::PAGE;

use crate::metrics::Counters;
use crate::options::Options;

/// Most bytes of the value cache: sessions use no more.
const MAX_VALUES: usize = 64 << 20;

/// Most pages of a round of the flush.
const MAX_ROUND: usize = 1024;
/// Fewest pages of a round: it costs two syncs.
const MIN_ROUND: usize = 64;
/// Bytes that a page of a round takes until it is written: its cells while its node is computed, and its bytes.
const ROUND_PAGE: usize = 40 << 10;
/// Most chunks that a worker of a finish has ahead.
const MAX_AHEAD: usize = 8;
/// Most bytes of read buffers that are kept.
const MAX_BUFFERS: usize = 8 << 20;

/// Bytes that an access takes in the arrays of a finish: results, changes and what its witness is made of.
const ACCESS: usize = 512;
/// The same where pages learn nodes, with those nodes; the pages held for it come on top.
const LEARNING_ACCESS: usize = 1024;

/// The budget of one open database.
pub(crate) struct Budget {
    /// Bytes for everything that grows.
    bytes: u64,
    /// Most bytes of lines, if the caller set it.
    most_lines: Option<u64>,
    /// Room for the lines of regions.
    pub(crate) lines: Arc<LineBudget>,
    /// Changes of a page before it is rewritten.
    flush_at: u8,
    /// Bytes of log that make a checkpoint due.
    log_limit: u64,
    /// Bytes of the index without the nodes of pages, as of the last measurement.
    index: AtomicUsize,
    /// Bytes that the leaf cache has; locked while that changes.
    leaf_cache: Mutex<usize>,
    /// Bytes of blocks, witnesses and overlays when the cache was last fitted.
    fitted: AtomicUsize,
    counters: Arc<Counters>,
}

impl Budget {
    /// The budget by the options, with the log limit of this database and an index of `index` bytes.
    pub(crate) fn new(
        options: &Options,
        log_limit: u64,
        index: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let budget = Self {
            bytes: options.cache_bytes,
            most_lines: options.tuning.trie_cache,
            lines: Arc::default(),
            flush_at: options.tuning.flush_at,
            log_limit,
            index: AtomicUsize::new(0),
            leaf_cache: Mutex::default(),
            fitted: AtomicUsize::new(0),
            counters,
        };
        budget.set_index(index);
        *budget.leaf_cache.lock() = budget.leaf_cache_share(0);
        budget
    }

    /// One part in `of` of the budget, in bytes.
    fn fraction(&self, of: u64) -> usize {
        usize::try_from(self.bytes / of).unwrap_or(usize::MAX / 8)
    }

    /// Bytes that the leaf cache may take.
    pub(crate) fn leaf_cache_bytes(&self) -> usize {
        *self.leaf_cache.lock()
    }

    /// Bytes that buffered changes, nodes, the index, the fixed parts below and `more` bytes leave to the leaf cache, at
    /// least an eighth of the budget.
    fn leaf_cache_share(&self, more: usize) -> usize {
        let half = usize::try_from(self.bytes / 2).unwrap_or(usize::MAX);
        let others = self.values_bytes() + self.batch_bytes() + self.index.load(Ordering::Relaxed);
        half.saturating_sub(others.saturating_add(more)).max(half / 4)
    }

    /// Bytes that batches have outside the leaf cache's budget, under way and kept.
    fn batch_bytes(&self) -> usize {
        self.outcome_bytes() + self.sorter_bytes() + self.witness_bytes()
    }

    /// Sets the bytes of the index. The nodes of pages have a share of their own, and lines what they leave of it.
    pub(crate) fn set_index(&self, bytes: usize) {
        let pages = self.counters.leaf_pages_with_nodes.load(Ordering::Relaxed);
        let (share, nodes) = (self.bytes / 4, pages * size_of::<Node>() as u64);
        self.lines.set_limit(self.most_lines.unwrap_or(share.saturating_sub(nodes)));
        let within = usize::try_from(nodes.min(share)).unwrap_or(usize::MAX);
        self.index.store(bytes.saturating_sub(within), Ordering::Relaxed);
    }

    /// True when blocks, witnesses and overlays have changed so much since the cache was last fitted that it is worth
    /// doing again. Small ones come and go by the thousand.
    pub(crate) fn is_worth_refitting(&self, overlays: usize) -> bool {
        let level = self.batch_level() + overlays;
        level.abs_diff(self.fitted.load(Ordering::Relaxed)) > self.fraction(256)
    }

    /// Bytes of batches and witnesses, including their own share.
    fn batch_level(&self) -> usize {
        let level = |counter: &AtomicU64| {
            usize::try_from(counter.load(Ordering::Relaxed)).unwrap_or(usize::MAX / 8)
        };
        level(&self.counters.batch_bytes) + level(&self.counters.witness_bytes)
    }

    /// Takes from the leaf cache's budget undo and long values (`kept`), overlays, and what batches and witnesses take
    /// beyond their share, in bytes. Calls `resize` when that makes a difference.
    pub(crate) fn fit_leaf_cache(&self, kept: usize, overlays: usize, resize: impl FnOnce(usize)) {
        // Locked before the levels are read, so that the last size set is of the last levels read.
        let mut now = self.leaf_cache.lock();
        let batches = self.batch_level();
        self.fitted.store(batches + overlays, Ordering::Relaxed);
        let beyond = batches.saturating_sub(self.batch_bytes());
        let bytes = self.leaf_cache_share(beyond + kept + overlays);
        // Each resize goes through all shards, and pages evicted for a small difference come back with the next batch.
        if bytes.abs_diff(*now) > self.fraction(64) {
            *now = bytes;
            resize(bytes);
        }
    }

    /// About how many bytes the arrays of a finish take.
    pub(crate) fn finish_bytes(&self, accesses: usize) -> usize {
        accesses * if self.can_learn(accesses) { LEARNING_ACCESS } else { ACCESS }
    }

    /// True when there is room for the nodes that pages and regions learn from a batch of this many accesses. The pages
    /// are held until it is committed.
    pub(crate) fn can_learn(&self, accesses: usize) -> bool {
        accesses * LEARNING_ACCESS <= self.fraction(4)
    }

    /// Bytes of arrays up to which a block keeps what its witness was made of, for the next finish.
    pub(crate) fn kept_block_bytes(&self) -> usize {
        4 * self.outcome_bytes()
    }

    /// Workers that a finish may use, each with some MiB of its own: all of up to 64 at the default.
    pub(crate) fn workers(&self) -> usize {
        usize::try_from(self.bytes >> 24).unwrap_or(usize::MAX).max(2)
    }

    /// Chunks that a worker of a finish gathers ahead, with their pages: eight from 256 MiB on.
    pub(crate) fn chunks_ahead(&self) -> usize {
        self.fraction(1 << 25).clamp(2, MAX_AHEAD)
    }

    /// Pages of a round of the flush: at most an eighth of the budget, and 1,024 from 320 MiB on.
    pub(crate) fn round_pages(&self) -> usize {
        (self.fraction(8) / ROUND_PAGE).clamp(MIN_ROUND, MAX_ROUND)
    }

    /// Most bytes of read buffers that are kept.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.fraction(64).min(MAX_BUFFERS)
    }

    /// Resident bytes of the process above which free memory of the allocator goes back to the system: the budget and
    /// half of what is promised beside it.
    pub(crate) fn trim_threshold(&self) -> u64 {
        self.bytes + u64::midpoint(self.bytes / 10, 48 << 20)
    }

    /// Bytes below which another trim is not worth it.
    pub(crate) fn min_trim_bytes(&self) -> u64 {
        self.bytes / 64
    }

    /// Most bytes of a finish's arrays that are kept for the next one.
    pub(crate) fn outcome_bytes(&self) -> usize {
        self.fraction(32)
    }

    /// Most bytes of a sort's arrays that are kept for the next one.
    pub(crate) fn sorter_bytes(&self) -> usize {
        self.fraction(128)
    }

    /// Most bytes of a witness's memory that are kept for the next one.
    pub(crate) fn witness_bytes(&self) -> usize {
        self.fraction(32)
    }

    /// Bytes of the value cache: at the default, 2^17 values.
    pub(crate) fn values_bytes(&self) -> usize {
        self.fraction(64).min(MAX_VALUES)
    }

    /// Most bytes of long values that were read.
    pub(crate) fn long_value_bytes(&self) -> usize {
        self.fraction(8)
    }

    /// Pages that an iterator may read ahead, in each direction.
    pub(crate) fn pages_ahead(&self) -> usize {
        (self.fraction(128) / PAGE).max(1)
    }

    /// Bytes that buffered changes may take.
    pub(crate) fn buffered_limit(&self) -> u64 {
        self.bytes / 4
    }

    /// True when buffered changes take more than their limit.
    pub(crate) fn is_buffered_over_limit(&self) -> bool {
        self.buffered() > self.buffered_limit()
    }

    /// True when buffered changes are so near their limit that pages are read again only to be written.
    pub(crate) fn is_pressed(&self) -> bool {
        self.buffered() > self.buffered_limit() / 8 * 7
    }

    /// When pages are rewritten now. The more changes are buffered, the sooner: a page that a commit has just changed
    /// is in memory, one chosen later has to be read again.
    pub(crate) fn flush_policy(&self) -> FlushPolicy {
        FlushPolicy::new(self.flush_at, self.buffered(), self.buffered_limit())
    }

    /// True when `bytes` bytes of log make a checkpoint due.
    pub(crate) fn is_log_long(&self, bytes: u64) -> bool {
        bytes > self.log_limit
    }

    /// True when there is so much log that commits wait for a checkpoint.
    pub(crate) fn is_log_full(&self, bytes: u64) -> bool {
        bytes > 2 * self.log_limit
    }

    fn buffered(&self) -> u64 {
        self.counters.pending_bytes.load(Ordering::Relaxed)
    }
}

/// How many changes a page waits for before it is rewritten.
///
/// While buffered changes grow from a quarter to three quarters of their limit, this falls smoothly from the option to
/// one change. It falls in fractions: each page has its own share, so that the flush writes at the rate at which
/// changes come, and does not swing around a threshold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushPolicy {
    /// In 256ths of a change.
    changes: u32,
}

impl FlushPolicy {
    fn new(flush_at: u8, buffered: u64, limit: u64) -> Self {
        let most = u32::from(flush_at) * 256;
        let half = (limit / 2).max(1);
        let over = buffered.saturating_sub(limit / 4).min(half);
        // At most `most - 256`.
        let sooner = u64::from(most - 256) * over / half;
        Self { changes: most - u32::try_from(sooner).unwrap_or(most - 256) }
    }

    /// True when a page that was changed this often since it was written is due.
    #[inline]
    pub(crate) fn is_due(self, prefix: &Prefix, changes: u8) -> bool {
        let lead = u64::from_be_bytes(*prefix.first_key().first_chunk().expect("32 bytes"));
        // Not the leading bits themselves, which neighbours share.
        let share = lead.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        u32::from(changes) * 256 + u32::try_from(share).unwrap_or(0) >= self.changes
    }

    /// The fewest changes of a page that can be due.
    pub(crate) fn min_changes(self) -> u8 {
        u8::try_from(self.changes / 256).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::tree::Tiling;

    use super::*;

    /// The number of due pages among 1,000 with this number of changes.
    fn due(policy: FlushPolicy, changes: u8) -> usize {
        let page = |index: u16| {
            let [high, low] = (index * 64).to_be_bytes();
            let mut key = [0; 32];
            (key[0], key[1]) = (high, low);
            Prefix::new(&key, 10)
        };
        (0..1000).filter(|index| policy.is_due(&page(*index), changes)).count()
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
            // A page of each number of changes: the sum is what a batch would write.
            let now: usize = (1..=4).map(|changes| due(policy, changes)).sum();
            assert!(now >= before && now < before + 1250, "{percent} %: {before} to {now}");
            assert!((1..policy.min_changes()).all(|changes| due(policy, changes) == 0));
            before = now;
        }
        let once = FlushPolicy::new(1, 0, LIMIT);
        assert_eq!(due(once, 1), 1000);
    }

    fn budget(mib: u64, index: usize) -> Budget {
        let options = Options::new("unused").cache_mib(mib);
        Budget::new(&options, 0, index, Arc::default())
    }

    #[test]
    fn what_comes_and_goes_is_the_leaf_caches_until_an_eighth_is_left() {
        let budget = budget(64, 1 << 20);
        let alone = budget.leaf_cache_bytes();
        let fit = |kept: usize, overlays: usize| {
            let before = budget.leaf_cache_bytes();
            let mut given = None;
            budget.fit_leaf_cache(kept, overlays, |bytes| given = Some(bytes));
            assert_eq!(given.unwrap_or(before), budget.leaf_cache_bytes());
            given
        };
        assert_eq!(fit(0, 0), None);
        assert_eq!(fit(1 << 20, 0), None, "too little to go through all shards for");
        assert_eq!(fit(2 << 20, 3 << 20), Some(alone - (5 << 20)));
        // Batches have a share of their own; the cache gives what they need beyond it.
        let shares = budget.batch_bytes() as u64;
        budget.counters.batch_bytes.store(shares, Ordering::Relaxed);
        assert_eq!(fit(2 << 20, 3 << 20), None);
        budget.counters.witness_bytes.store(4 << 20, Ordering::Relaxed);
        assert_eq!(fit(2 << 20, 3 << 20), Some(alone - (9 << 20)));
        assert_eq!(fit(1 << 40, 0), Some(8 << 20));
        for counter in [&budget.counters.batch_bytes, &budget.counters.witness_bytes] {
            counter.store(0, Ordering::Relaxed);
        }
        assert_eq!(fit(0, 0), Some(alone));
        budget.set_index(4 << 20);
        assert_eq!(fit(0, 0), Some(alone - (3 << 20)));
    }

    #[test]
    fn lines_have_what_the_nodes_of_pages_leave_of_a_quarter() {
        let pages = |mib: u64| (mib << 20) / size_of::<Node>() as u64;
        let shares = |nodes_mib, index_mib: usize| {
            let counters = Counters {
                leaf_pages_with_nodes: AtomicU64::new(pages(nodes_mib)),
                ..Counters::default()
            };
            let options = Options::new("unused").cache_mib(1024);
            let budget = Budget::new(&options, 0, index_mib << 20, Arc::new(counters));
            let room =
                (1..).take_while(|_| budget.lines.take(1 << 16).map(std::mem::forget).is_some());
            ((room.count() * Tiling::bytes_of(1 << 16)) >> 20, budget.leaf_cache_bytes() >> 20)
        };
        let (lines, leaf) = shares(0, 0);
        assert!((250..=256).contains(&lines), "{lines}");
        // 2^27 accounts: the leaf cache pays for the rest of the index.
        assert_eq!(shares(67, 127).1, leaf - 60);
        assert!((184..=189).contains(&shares(67, 127).0));
        // 2^29: nodes beyond their share, too.
        assert_eq!(shares(268, 510), (0, leaf - 254));
    }

    #[test]
    fn fixed_parts_are_as_they_were_at_the_default_and_small_where_the_budget_is() {
        let of = |mib| {
            let budget = budget(mib, 0);
            (budget.round_pages(), budget.buffer_bytes(), budget.chunks_ahead())
        };
        assert_eq!(of(1024), (1024, 8 << 20, 8));
        assert_eq!(of(64), (204, 1 << 20, 2));
        assert_eq!(of(8), (64, 1 << 17, 2));
        let (large, small) = (budget(1024, 0), budget(64, 0));
        assert!(large.can_learn(262_144) && !large.can_learn(262_145));
        assert!(small.can_learn(16_384) && !small.can_learn(16_385));
        assert_eq!((large.workers(), small.workers(), budget(8, 0).workers()), (64, 4, 2));
    }
}
