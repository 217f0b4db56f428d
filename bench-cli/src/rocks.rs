//! RocksDB as its tuning guide advises, for the plain store and the Merkle trees over it.
//!
//! * Budget: an eighth for a write buffer (8 to 64 MiB), of which two can be there; the rest for the block cache,
//!   which has index and filter blocks as well, so that the budget bounds those too.
//! * Blocks of 16 KiB, Bloom filters of 10 bits a key, levels sized from the last one, LZ4.

use std::time::Duration;

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, WaitForCompactOptions, WriteOptions,
};

/// The longest that compactions are waited for.
const PATIENCE: Duration = Duration::from_secs(1800);

/// How a budget is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Of the block cache, at least 1.
    pub(crate) cache_mib: u64,
    /// Of each of two write buffers.
    pub(crate) buffer_mib: u64,
    /// Flushes and compactions at a time.
    pub(crate) jobs: i32,
}

fn bytes(mib: u64) -> usize {
    usize::try_from(mib << 20).unwrap_or(usize::MAX)
}

impl Budget {
    /// Of so many MiB, with so many threads; write buffers of another size if that is given.
    pub(crate) fn of(mib: u64, threads: usize, buffer_mib: Option<u64>) -> Self {
        let buffer_mib = buffer_mib.unwrap_or_else(|| (mib / 8).clamp(8, 64));
        let cache_mib = mib.saturating_sub(2 * buffer_mib).max(1);
        let jobs = i32::try_from(threads.clamp(2, 6)).unwrap_or(2);
        Self { cache_mib, buffer_mib, jobs }
    }

    /// The options of a database; column families share both parts.
    pub(crate) fn options(&self) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&Cache::new_lru_cache(bytes(self.cache_mib)));
        blocks.set_block_size(16 << 10);
        blocks.set_bloom_filter(10.0, false);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_block_based_table_factory(&blocks);
        options.set_write_buffer_size(bytes(self.buffer_mib));
        options.set_db_write_buffer_size(2 * bytes(self.buffer_mib));
        options.set_max_write_buffer_number(2);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.set_max_background_jobs(self.jobs);
        options.set_bytes_per_sync(1 << 20);
        options.set_compression_type(DBCompressionType::Lz4);
        options
    }

    /// All of it, to be printed with the result.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        [
            ("block cache", format!("{} MiB", self.cache_mib)),
            ("write buffer", format!("{} MiB, 2 at most", self.buffer_mib)),
            ("blocks", "16 KiB, bloom filter of 10 bits a key, lz4".to_owned()),
            ("files", "read through the system's page cache, beside the budget".to_owned()),
            ("background jobs", self.jobs.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Waits until no flush and no compaction is due. What is in the write buffers stays there, as the entries that are
/// pending do in Pleach.
pub(crate) fn drain(db: &DB) -> Result<(), rocksdb::Error> {
    let mut options = WaitForCompactOptions::default();
    options.set_timeout(u64::try_from(PATIENCE.as_micros()).unwrap_or(u64::MAX));
    db.wait_for_compact(&options)
}

/// Syncs the log, and ends what runs in the background.
pub(crate) fn close(db: &DB) -> Result<(), rocksdb::Error> {
    db.flush_wal(true)?;
    db.cancel_all_background_work(true);
    Ok(())
}

/// Writes whose log is synced, or not.
pub(crate) fn writes(sync: bool) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(sync);
    options
}
