//! The crate fjall: a log-structured merge tree with a journal, written by batches, read by snapshots.
//!
//! * Budget: an eighth for a memtable (8 to 64 MiB, as its documentation recommends), of which two can be there; the
//!   rest for the block cache.
//! * Durability: the journal goes to the operating system with each batch, and is synced for those that are to be
//!   durable.
//! * A transaction reads a snapshot and is written as one batch.
//! * A load is an ingestion of sorted pairs.

use std::time::Duration;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Snapshot};

use super::buffered::{BufferedTx, filled};
use super::{Engine, Pair, PlainBlock, Reader, Setup, TxBody, View, page_cache};
use crate::error::{Error, Result, of_engine};

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("fjall")(error)
}

/// An open database.
pub struct FjallEngine {
    db: Database,
    state: Keyspace,
    flat: PlainBlock,
    memtable_mib: u64,
    cache_mib: u64,
    workers: usize,
    /// Tables, and finished compactions, when it was last idle.
    drained: (usize, usize),
}

impl FjallEngine {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        let args = setup.args("fjall", &["memtable_mib"])?;
        let memtable_mib = args.of("memtable_mib", (setup.cache_mib / 8).clamp(8, 64))?;
        let cache_mib = setup.cache_mib.saturating_sub(2 * memtable_mib).max(1);
        let workers = setup.threads().clamp(1, 4);
        let builder = Database::builder(&setup.folder).cache_size(cache_mib << 20);
        let db = builder.worker_threads(workers).open().map_err(wrap)?;
        let settings = || KeyspaceCreateOptions::default().max_memtable_size(memtable_mib << 20);
        let state = db.keyspace("state", settings).map_err(wrap)?;
        let flat = PlainBlock { durable: setup.durable(), ..PlainBlock::default() };
        Ok(Self { db, state, flat, memtable_mib, cache_mib, workers, drained: (0, 0) })
    }

    fn view(&self) -> FjallView<'_> {
        FjallView { state: &self.state, snapshot: self.db.snapshot() }
    }
}

impl Engine for FjallEngine {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("block cache", format!("{} MiB", self.cache_mib)),
            ("memtable", format!("{} MiB, 2 at most", self.memtable_mib)),
            page_cache(),
            ("workers", self.workers.to_string()),
            ("durability", "journal synced (SyncData) when asked".to_owned()),
        ]
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let mut load = self.state.start_ingestion().map_err(wrap)?;
        for (key, value) in pairs {
            load.write(&key[..], &value[..]).map_err(wrap)?;
        }
        load.finish().map_err(wrap)?;
        self.sync()
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        let view = self.view();
        let mut before = |key: &[u8], value: &mut Vec<u8>| view.get(key, value);
        let mut tx = BufferedTx::new(&mut before);
        work(&mut tx)?;
        let written = tx.written();
        if written.is_empty() {
            return Ok(());
        }
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.db.batch().durability(Some(mode));
        for (key, value) in written {
            match value {
                Some(value) => batch.insert(&self.state, &key[..], &value[..]),
                None => batch.remove(&self.state, &key[..]),
            }
        }
        batch.commit().map_err(wrap)
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(FjallReader { db: self.db.clone(), state: self.state.clone() }))
    }

    fn sync(&mut self) -> Result<()> {
        self.db.persist(PersistMode::SyncAll).map_err(wrap)
    }

    fn plain_block(&mut self) -> Option<&mut PlainBlock> {
        Some(&mut self.flat)
    }

    /// The crate reports no end of its work: it counts as idle when it was seen idle three times. Without new work the
    /// check costs no time.
    fn drain(&mut self, _pending: u64) -> Result<()> {
        let busy = |one: &Self| {
            let (sealed, active) = (one.state.sealed_memtable_count(), one.db.active_compactions());
            sealed + one.db.outstanding_flushes() + active > 0
        };
        let now = |one: &Self| (one.state.table_count(), one.db.compactions_completed());
        if !busy(self) && now(self) == self.drained {
            return Ok(());
        }
        let mut idle = 0;
        while idle < 3 {
            std::thread::sleep(Duration::from_millis(1));
            idle = if busy(self) { 0 } else { idle + 1 };
        }
        self.drained = now(self);
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct FjallReader {
    db: Database,
    state: Keyspace,
}

impl Reader for FjallReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        work(&FjallView { state: &self.state, snapshot: self.db.snapshot() })
    }
}

struct FjallView<'a> {
    state: &'a Keyspace,
    snapshot: Snapshot,
}

impl View for FjallView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.snapshot.get(self.state, key).map_err(wrap)?;
        Ok(filled(value, found.as_deref()))
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
