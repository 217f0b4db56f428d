//! RocksDB (the crate rocksdb): a log-structured merge tree with a write-ahead log.
//!
//! * Budget, blocks and levels: [`crate::rocks`].
//! * Durability: the log is synced for batches that are to be durable.
//! * A load writes a sorted file and hands it over.

use rocksdb::{
    DB, Direction, IngestExternalFileOptions, IteratorMode, Options, Snapshot, SstFileWriter,
    WriteBatch,
};

use super::super::engine::{Engine, StoreOptions};
use super::super::store::{Change, Pair, Store, StoreView};
use super::help::{for_empty, whole};
use crate::error::{BenchError, Result};
use crate::rocks::{Budget, close, writes};

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("rocksdb")(error)
}

pub(in super::super) struct RocksStore {
    db: DB,
    options: Options,
    folder: std::path::PathBuf,
    budget: Budget,
}

impl RocksStore {
    pub(in super::super) fn open(options: &StoreOptions) -> Result<Self> {
        let mut buffer_mib = None;
        for (name, value) in options.peer_args_of(Engine::RocksDb.name(), &["write_buffer_mib"])? {
            buffer_mib = Some(whole("rocksdb", name, value, 1..=4096)?);
        }
        let budget = Budget::of(options.cache_mib, options.threads, buffer_mib);
        let folder = options.folder.clone();
        let settings = budget.options();
        let db = DB::open(&settings, &folder).map_err(wrap)?;
        Ok(Self { db, options: settings, folder, budget })
    }
}

impl Store for RocksStore {
    fn settings(&self) -> Vec<(String, String)> {
        let mut settings = self.budget.settings();
        settings.push(("durability".to_owned(), "log synced when asked".to_owned()));
        settings
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
        self.db.write_opt(batch, &writes(sync)).map_err(wrap)
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
        close(&self.db).map_err(wrap)
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
