//! Counters of an open database.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Running counters; relaxed, they order nothing.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        /// What an open database has done and holds now.
        #[derive(Clone, Debug, Default)]
        #[non_exhaustive]
        pub struct Metrics { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// The counters, with what is counted elsewhere put in by `others`.
            pub(crate) fn snapshot(&self, others: impl FnOnce(&mut Metrics)) -> Metrics {
                let mut metrics = Metrics { $($name: self.$name.load(Ordering::Relaxed)),* };
                others(&mut metrics);
                metrics
            }
        }
    };
}

counters! {
    /// Leaf pages found in the cache.
    cache_hits,
    /// Values of prefetched keys that were looked up before they were read.
    value_cache_hits,
    /// Leaf pages that were read from the device because they were not cached.
    cache_misses,
    /// Long values that were read from the device because they were not in memory.
    long_values_read,
    /// Bytes that long values take which were read and stay in memory.
    long_value_bytes,
    /// Leaf pages that iterators have read past the cache, whether or not they came to them.
    pages_scanned,
    /// Pages of the leaf file between those that were read with them, since one request costs less than two.
    pages_read_over,
    /// Leaf pages read again within one batch, having left the cache.
    page_rereads,
    /// Branch pages read to bring nodes back into memory.
    upper_trie_pages_read,
    /// Committed changes that are not in a page yet.
    pending_entries,
    /// Bytes of memory that those take.
    pending_bytes,
    /// Bytes that live overlays take: changes with their values, nodes, and what finds them.
    overlay_bytes,
    /// Bytes that cached leaf pages take, with their treelets and tables.
    leaf_cache_bytes,
    /// Bytes that they may take at present: what all other parts leave.
    leaf_cache_budget,
    /// Bytes that the index takes: child tables of regions, with counts, and
    /// the list of pages that are due for a flush.
    index_bytes,
    /// Bytes that nodes in memory take.
    node_bytes,
    /// Bytes that the arrays of finishes, blocks and overlays take, beside what an overlay is read by.
    batch_bytes,
    /// Bytes that arrays take which are kept for the next batch: of finishes, sorts and witnesses.
    kept_bytes,
    /// Bytes that witnesses take which the caller has.
    witness_bytes,
    /// Bytes of the table of announced keys' values, whether it is used or not.
    value_cache_bytes,
    /// Bytes of buffers: memory that rings read into, read buffers that are kept, the log's.
    buffer_bytes,
    /// Bytes of the flush's write buffers.
    flush_buffer_bytes,
    /// Bytes that trimming the allocator's free memory has given back to the system.
    trimmed_bytes,
    /// How often that was done.
    trims,
    /// Commits that have their place in the log and are not published yet; a child's may be among them
    /// while its parent's is.
    commits_in_flight,
    /// Bytes of memory that the undo of past commits takes: the history, and what pinned commits need.
    undo_bytes,
    /// Commits before the newest one that can be read.
    history_kept,
    /// Those that could be read if [`Options::history`](crate::Options::history) alone said how many. More than are kept:
    /// their records take more than [`Options::history_log_bytes`](crate::Options::history_log_bytes).
    history_wanted,
    /// Checkpoints made.
    checkpoints,
    /// Those of them that commits or flushes changed a region under: their image is not of one moment.
    checkpoints_overtaken,
    /// Leaf pages at present.
    leaf_pages,
    /// Those of them that have nodes: plain namespaces have none.
    leaf_pages_with_nodes,
    /// Regions of the index at present: lowest branch pages.
    regions,
    /// Pairs of regions that have become one.
    regions_joined,
    /// Leaf pages that were written again to merge small ones or to shorten the file.
    pages_tidied,
    /// Leaf pages written by flushes.
    pages_written,
    /// Device writes that these took: runs of neighbouring pages.
    page_runs_written,
    /// Bytes appended to the log.
    log_bytes,
    /// Bytes written to checkpoint images and the spill file.
    image_bytes,
    /// Hash calls of finishes, values included.
    hashes,
    /// Leaf pages that finishes and proofs have folded.
    pages_folded,
    /// Distinct keys that commits changed.
    changes,
    /// Commits.
    commits,
    /// Nanoseconds that the sequencer's lock was held.
    sequencer_nanos,
    /// Nanoseconds of finishes in [`Phase::Sort`](crate::Phase::Sort).
    sort_nanos,
    /// Nanoseconds of finishes in [`Phase::Fold`](crate::Phase::Fold).
    fold_nanos,
    /// Nanoseconds of finishes in [`Phase::Root`](crate::Phase::Root).
    root_nanos,
    /// Nanoseconds of finishes in [`Phase::Witness`](crate::Phase::Witness).
    witness_nanos,
    /// Nanoseconds of commits in [`Phase::Prepare`](crate::Phase::Prepare).
    prepare_nanos,
    /// Nanoseconds of commits in [`Phase::Record`](crate::Phase::Record).
    record_nanos,
    /// Nanoseconds of commits in [`Phase::Log`](crate::Phase::Log).
    log_nanos,
    /// Nanoseconds of commits in [`Phase::Apply`](crate::Phase::Apply).
    apply_nanos,
    /// Nanoseconds of commits in [`Phase::Publish`](crate::Phase::Publish).
    publish_nanos,
    /// Nanoseconds of commits in [`Phase::Settle`](crate::Phase::Settle).
    settle_nanos,
    /// Refolds because a flush had changed a layout between finish and commit.
    refolds,
    /// Pages that the background has set aside at present because they cannot be read.
    quarantined_pages,
    /// Background tasks that have not come further for 10 s.
    stalled_tasks,
    /// Microseconds that commits waited because the pending changes or the log were full.
    stalled_micros,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds a signed change to a level.
    pub(crate) fn change(counter: &AtomicU64, by: isize) {
        counter.fetch_add((by as i64).cast_unsigned(), Ordering::Relaxed);
    }
}
