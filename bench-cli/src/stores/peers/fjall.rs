//! The crate fjall: a log-structured merge tree with a journal, written by batches, read by snapshots.
//!
//! * Budget: an eighth for a memtable (8 to 64 MiB, as its documentation recommends), of which two can be
//!   there; the rest for the block cache.
//! * Durability: the journal goes to the operating system with each batch, and is synced for those that are to
//!   be durable.
//! * A load is an ingestion of sorted pairs.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Snapshot};

use super::super::engine::{Engine, StoreOptions};
use super::super::store::{Change, Pair, Store, StoreView};
use super::help::{for_empty, settings, whole};
use crate::error::{BenchError, Result};

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("fjall")(error)
}

pub(in super::super) struct FjallStore {
    db: Database,
    state: Keyspace,
    memtable_mib: u64,
    cache_mib: u64,
    workers: usize,
}

impl FjallStore {
    pub(in super::super) fn open(options: &StoreOptions) -> Result<Self> {
        let mut memtable_mib = (options.cache_mib / 8).clamp(8, 64);
        for (name, value) in options.peer_args_of(Engine::Fjall.name(), &["memtable_mib"])? {
            memtable_mib = whole("fjall", name, value, 1..=4096)?;
        }
        let cache_mib = options.cache_mib.saturating_sub(2 * memtable_mib).max(1);
        let workers = options.threads.clamp(1, 4);
        let builder = Database::builder(&options.folder).cache_size(cache_mib << 20);
        let db = builder.worker_threads(workers).open().map_err(wrap)?;
        let settings = || KeyspaceCreateOptions::default().max_memtable_size(memtable_mib << 20);
        let state = db.keyspace("state", settings).map_err(wrap)?;
        Ok(Self { db, state, memtable_mib, cache_mib, workers })
    }
}

impl Store for FjallStore {
    fn settings(&self) -> Vec<(String, String)> {
        settings([
            ("block cache", format!("{} MiB", self.cache_mib)),
            ("memtable", format!("{} MiB", self.memtable_mib)),
            ("workers", self.workers.to_string()),
            ("durability", "journal synced (SyncData) when asked".to_owned()),
        ])
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.state.get(key).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(if sync {
            PersistMode::SyncData
        } else {
            PersistMode::Buffer
        }));
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.state, *key, *value),
                None => batch.remove(&self.state, *key),
            }
        }
        batch.commit().map_err(wrap)
    }

    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        Ok(Some(Box::new(FjallView { state: &self.state, snapshot: self.db.snapshot() })))
    }

    fn sync(&self) -> Result<()> {
        self.db.persist(PersistMode::SyncAll).map_err(wrap)
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        for_empty(self.state.is_empty().map_err(wrap)?, "fjall")?;
        let mut load = self.state.start_ingestion().map_err(wrap)?;
        for (key, value) in pairs {
            load.write(key, value).map_err(wrap)?;
        }
        load.finish().map_err(wrap)?;
        self.sync()
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct FjallView<'a> {
    state: &'a Keyspace,
    snapshot: Snapshot,
}

impl StoreView for FjallView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.snapshot.get(self.state, key).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for pair in self.snapshot.range(self.state, from..) {
            let (key, value) = pair.into_inner().map_err(wrap)?;
            if !each(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
