//! `RocksDB` (the crate rocksdb) as its tuning guide advises: a log-structured merge tree with a write-ahead log. As a
//! plain store, and what the Merkle trees over it have in common.
//!
//! * Budget: an eighth for a write buffer (8 to 64 MiB), of which two can be there; the rest for the block cache, which
//!   has index and filter blocks as well, so that the budget bounds those too.
//! * Blocks of 16 KiB, Bloom filters of 10 bits a key, levels sized from the last one, LZ4.
//! * Durability: the log is synced for commits that are to be durable.
//! * A block of the plain store reads many keys at once, by `MultiGet`.
//! * A load of the plain store writes a sorted file and hands it over.

#![allow(dead_code, reason = "which of these are used is a matter of the build's features")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pleach_core::{Hasher, Key, ValueHash};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, Direction,
    IngestExternalFileOptions, IteratorMode, Options, Snapshot, SstFileWriter,
    WaitForCompactOptions, WriteBatch, WriteOptions,
};

use super::buffered::{BufferedTx, filled};
use super::{
    Engine, Pair, PlainBlock, Reader, Setup, StateAccess, TxBody, ValueSink, View, page_cache,
};
use crate::error::{Error, Result, of_engine};

/// The longest wait for compactions.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Keys that are read at once. Their blocks stay in memory meanwhile.
const BATCH: usize = 1024;

type Settings = Vec<(&'static str, String)>;

/// The options of a database with a budget, and those worth printing. Column families share both parts.
pub fn options(mib: u64, threads: usize, buffer_mib: Option<u64>) -> (Options, Settings) {
    let bytes = |mib: u64| usize::try_from(mib << 20).unwrap_or(usize::MAX);
    let buffer_mib = buffer_mib.unwrap_or((mib / 8).clamp(8, 64));
    let cache_mib = mib.saturating_sub(2 * buffer_mib).max(1);
    let jobs = i32::try_from(threads.clamp(2, 6)).unwrap_or(2);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(bytes(cache_mib)));
    blocks.set_block_size(16 << 10);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_block_based_table_factory(&blocks);
    options.set_write_buffer_size(bytes(buffer_mib));
    options.set_db_write_buffer_size(2 * bytes(buffer_mib));
    options.set_max_write_buffer_number(2);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_max_background_jobs(jobs);
    options.set_bytes_per_sync(1 << 20);
    options.set_compression_type(DBCompressionType::Lz4);
    let settings = vec![
        ("block cache", format!("{cache_mib} MiB")),
        ("write buffer", format!("{buffer_mib} MiB, 2 at most")),
        ("blocks", "16 KiB, bloom filter of 10 bits a key, lz4".to_owned()),
        page_cache(),
        ("background jobs", jobs.to_string()),
    ];
    (options, settings)
}

/// When a Merkle tree syncs.
pub fn durability(durable: bool) -> (&'static str, String) {
    ("durability", if durable { "log synced with each commit" } else { "none" }.to_owned())
}

/// Waits until no flush and no compaction is due. Entries of the write buffers stay there, like Pleach's buffered
/// changes.
pub fn drain(db: &DB) -> core::result::Result<(), rocksdb::Error> {
    let mut options = WaitForCompactOptions::default();
    options.set_timeout(u64::try_from(PATIENCE.as_micros()).unwrap_or(u64::MAX));
    db.wait_for_compact(&options)
}

/// Syncs the log, and ends background work.
pub fn close(db: &DB) -> core::result::Result<(), rocksdb::Error> {
    db.flush_wal(true)?;
    db.cancel_all_background_work(true);
    Ok(())
}

/// Writes whose log is synced, or not.
pub fn writes(sync: bool) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(sync);
    options
}

/// Writes a commit of a tree, or a block of a load, which has no log and is flushed at its end.
pub fn write(
    db: &DB,
    batch: WriteBatch,
    durable: bool,
    log: bool,
) -> core::result::Result<(), rocksdb::Error> {
    let mut options = writes(durable && log);
    options.disable_wal(!log);
    db.write_opt(batch, &options)
}

/// The hash of a value, as a witness proves it.
pub fn hashed(value: Option<&[u8]>) -> Option<ValueHash> {
    value.map(|value| Hasher::BLAKE3.hash(value).into())
}

/// Keys that a block reads.
pub fn reads(accesses: &[StateAccess]) -> impl Iterator<Item = Key> {
    accesses
        .iter()
        .filter(|access| !matches!(access.op, super::Op::Write(_)))
        .map(|access| access.key)
}

/// Keys that a block writes, with their values.
pub fn writes_of(accesses: &[StateAccess]) -> impl Iterator<Item = (Key, Option<&pleach::Value>)> {
    accesses.iter().filter_map(|access| Some((access.key, access.op.written()?)))
}

/// The same with hashes.
pub fn hashes(accesses: &[StateAccess]) -> Vec<(Key, Option<ValueHash>)> {
    writes_of(accesses).map(|(key, new)| (key, hashed(new.map(|value| &**value)))).collect()
}

/// Bytes of accesses beside a proof: of each its key, a byte that says what was done, and the value that it wrote.
pub fn bytes(accesses: &[StateAccess]) -> usize {
    let written =
        |access: &StateAccess| access.op.written().flatten().map_or(0, |value| value.len());
    accesses.iter().map(|access| 33 + written(access)).sum()
}

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("rocksdb")(error)
}

/// The plain store.
pub struct RocksEngine {
    db: Arc<DB>,
    flat: PlainBlock,
    options: Options,
    settings: Settings,
    folder: PathBuf,
}

impl RocksEngine {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        let args = setup.args("rocksdb", &["write_buffer_mib"])?;
        let buffer_mib = args.of("write_buffer_mib", 0)?;
        let buffer_mib = (buffer_mib > 0).then_some(buffer_mib);
        let (options, mut settings) = options(setup.cache_mib, setup.threads(), buffer_mib);
        settings.push(("durability", "log synced when asked".to_owned()));
        // Reads of many keys ask for the column family by name, which exists only where it is opened by name.
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        let db = DB::open_cf_with_opts(&options, &setup.folder, families).map_err(wrap)?;
        let db = Arc::new(db);
        let flat = PlainBlock { durable: setup.durable(), ..PlainBlock::default() };
        Ok(Self { db, flat, options, settings, folder: setup.folder.clone() })
    }
}

impl Engine for RocksEngine {
    fn settings(&self) -> Settings {
        self.settings.clone()
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let file = self.folder.join("load.sst");
        let mut writer = SstFileWriter::create(&self.options);
        writer.open(&file).map_err(wrap)?;
        let mut is_empty = true;
        for (key, value) in pairs {
            writer.put(key, value).map_err(wrap)?;
            is_empty = false;
        }
        // An empty file cannot be made.
        if is_empty {
            return Ok(());
        }
        writer.finish().map_err(wrap)?;
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        self.db.ingest_external_file_opts(&how, vec![&file]).map_err(wrap)
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        let mut before = |key: &[u8], value: &mut Vec<u8>| {
            let found = self.db.get_pinned(key).map_err(wrap)?;
            Ok(filled(value, found.as_deref()))
        };
        let mut tx = BufferedTx::new(&mut before);
        work(&mut tx)?;
        let written = tx.written();
        if written.is_empty() {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        for (key, value) in written {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        self.db.write_opt(batch, &writes(sync)).map_err(wrap)
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(RocksReader(self.db.clone())))
    }

    fn sync(&mut self) -> Result<()> {
        self.db.flush_wal(true).map_err(wrap)
    }

    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let family = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME);
        let family = family.ok_or_else(|| wrap("it has no default column family"))?;
        let some = keys.chunks(BATCH);
        let found = some.flat_map(|keys| self.db.batched_multi_get_cf(family, keys, false));
        for (at, value) in found.enumerate() {
            see(at, value.map_err(wrap)?.as_deref());
        }
        Ok(())
    }

    fn plain_block(&mut self) -> Option<&mut PlainBlock> {
        Some(&mut self.flat)
    }

    fn drain(&mut self, _pending: u64) -> Result<()> {
        drain(&self.db).map_err(wrap)
    }

    fn close(self: Box<Self>) -> Result<()> {
        close(&self.db).map_err(wrap)
    }
}

struct RocksReader(Arc<DB>);

impl Reader for RocksReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        work(&RocksView(self.0.snapshot()))
    }
}

struct RocksView<'a>(Snapshot<'a>);

impl View for RocksView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get_pinned(key).map_err(wrap)?;
        Ok(filled(value, found.as_deref()))
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
