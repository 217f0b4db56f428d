//! RocksDB (the crate rocksdb): a log-structured merge tree with a write-ahead log, set up as its tuning guide
//! advises.
//!
//! * Budget: an eighth for a write buffer (8 to 64 MiB), of which two can be there; the rest for the block cache,
//!   which has index and filter blocks as well, so that the budget bounds those too.
//! * Blocks of 16 KiB, Bloom filters of 10 bits a key, levels sized from the last one, LZ4.
//! * Durability: the log is synced for batches that are to be durable.
//! * A load writes a sorted file and hands it over.

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IngestExternalFileOptions,
    IteratorMode, Options, Snapshot, SstFileWriter, WriteBatch, WriteOptions,
};

use super::super::engine::{Engine, StoreOptions};
use super::super::store::{Change, Pair, Store, StoreView};
use super::help::{for_empty, settings, whole};
use crate::error::{BenchError, Result};

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("rocksdb")(error)
}

pub(in super::super) struct RocksStore {
    db: DB,
    options: Options,
    folder: std::path::PathBuf,
    buffer_mib: u64,
    cache_mib: u64,
    jobs: i32,
}

impl RocksStore {
    pub(in super::super) fn open(options: &StoreOptions) -> Result<Self> {
        let mut buffer_mib = (options.cache_mib / 8).clamp(8, 64);
        for (name, value) in options.peer_args_of(Engine::RocksDb, &["write_buffer_mib"])? {
            buffer_mib = whole("rocksdb", name, value, 1..=4096)?;
        }
        let cache_mib = options.cache_mib.saturating_sub(2 * buffer_mib).max(1);
        let bytes = |mib: u64| usize::try_from(mib << 20).map_err(wrap);
        let jobs = i32::try_from(options.threads.clamp(2, 6)).map_err(wrap)?;

        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&Cache::new_lru_cache(bytes(cache_mib)?));
        blocks.set_block_size(16 << 10);
        blocks.set_bloom_filter(10.0, false);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut settings = Options::default();
        settings.create_if_missing(true);
        settings.set_block_based_table_factory(&blocks);
        settings.set_write_buffer_size(bytes(buffer_mib)?);
        settings.set_max_write_buffer_number(2);
        settings.set_level_compaction_dynamic_level_bytes(true);
        settings.set_max_background_jobs(jobs);
        settings.set_bytes_per_sync(1 << 20);
        settings.set_compression_type(DBCompressionType::Lz4);
        let folder = options.folder.clone();
        let db = DB::open(&settings, &folder).map_err(wrap)?;
        Ok(Self { db, options: settings, folder, buffer_mib, cache_mib, jobs })
    }
}

impl Store for RocksStore {
    fn settings(&self) -> Vec<(String, String)> {
        settings([
            ("block cache", format!("{} MiB", self.cache_mib)),
            ("write buffer", format!("{} MiB, 2 at most", self.buffer_mib)),
            ("blocks", "16 KiB, bloom filter of 10 bits a key, lz4".to_owned()),
            ("background jobs", self.jobs.to_string()),
            ("durability", "log synced when asked".to_owned()),
        ])
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.db.get_pinned(key).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.db.write_opt(batch, &options).map_err(wrap)
    }

    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        Ok(Some(Box::new(RocksView(self.db.snapshot()))))
    }

    fn sync(&self) -> Result<()> {
        self.db.flush_wal(true).map_err(wrap)
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        for_empty(self.db.iterator(IteratorMode::Start).next().is_none(), "rocksdb")?;
        let file = self.folder.join("load.sst");
        let mut writer = SstFileWriter::create(&self.options);
        writer.open(&file).map_err(wrap)?;
        let mut count = 0_u64;
        for (key, value) in pairs {
            writer.put(key, value).map_err(wrap)?;
            count += 1;
        }
        // An empty file cannot be made.
        if count == 0 {
            return Ok(());
        }
        writer.finish().map_err(wrap)?;
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        self.db.ingest_external_file_opts(&how, vec![&file]).map_err(wrap)
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()?;
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

struct RocksView<'a>(Snapshot<'a>);

impl StoreView for RocksView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.0.get_pinned(key).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for pair in self.0.iterator(IteratorMode::From(from, Direction::Forward)) {
            let (key, value) = pair.map_err(wrap)?;
            if !each(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
