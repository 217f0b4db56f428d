//! The crate redb: a copy-on-write B+-tree in one file, one writer, readers by snapshot.
//!
//! * Cache: the whole budget.
//! * A batch is a write transaction; its keys are inserted in order, which costs fewest pages.
//! * Durability: `Immediate` for a batch that is to be durable, else `None`. What was written so reaches the
//!   file with the next durable commit, for which [`Store::sync`] makes an empty one.
//! * A load is one transaction in the order of keys.

use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTableMetadata as _,
    TableDefinition, WriteTransaction,
};

use super::super::engine::{Engine, StoreOptions};
use super::super::store::{Change, Pair, Store, StoreView};
use super::help::{flag, for_empty, in_order, settings};
use crate::error::{BenchError, Result};

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("state");

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("redb")(error)
}

/// A database, and the newest state as opened for single reads.
pub(in super::super) struct RedbStore {
    db: Database,
    /// Opened by the first read after a batch, closed by the next batch: opening one a read would cost more
    /// than the read.
    newest: Mutex<Option<Table>>,
    cache_mib: u64,
    quick_repair: bool,
}

impl RedbStore {
    pub(in super::super) fn open(options: &StoreOptions) -> Result<Self> {
        let mut quick_repair = false;
        for (name, value) in options.peer_args_of(Engine::Redb.name(), &["quick_repair"])? {
            quick_repair = flag("redb", name, value)?;
        }
        let bytes = usize::try_from(options.cache_mib << 20).map_err(wrap)?;
        let file = options.folder.join("state.redb");
        let db = Builder::new().set_cache_size(bytes).create(file).map_err(wrap)?;
        let store =
            Self { db, newest: Mutex::new(None), cache_mib: options.cache_mib, quick_repair };
        // A reader needs a table that is there.
        let made = store.begin(true)?;
        made.open_table(TABLE).map_err(wrap)?;
        made.commit().map_err(wrap)?;
        Ok(store)
    }

    fn newest(&self) -> MutexGuard<'_, Option<Table>> {
        // It holds a table or none, whatever another thread did.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, sync: bool) -> Result<WriteTransaction> {
        let mut batch = self.db.begin_write().map_err(wrap)?;
        let durability = if sync { Durability::Immediate } else { Durability::None };
        batch.set_durability(durability).map_err(wrap)?;
        batch.set_quick_repair(self.quick_repair && sync);
        Ok(batch)
    }

    fn table(&self) -> Result<Table> {
        let reader = self.db.begin_read().map_err(wrap)?;
        reader.open_table(TABLE).map_err(wrap)
    }
}

fn get(table: &Table, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let found = table.get(key).map_err(wrap)?;
    if let Some(found) = &found {
        value.extend_from_slice(found.value());
    }
    Ok(found.is_some())
}

impl Store for RedbStore {
    fn settings(&self) -> Vec<(String, String)> {
        settings([
            ("cache", format!("{} MiB", self.cache_mib)),
            ("durability", "Immediate when asked, else None".to_owned()),
            ("quick_repair", self.quick_repair.to_string()),
        ])
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let mut newest = self.newest();
        let table = match newest.take() {
            Some(table) => table,
            None => self.table()?,
        };
        get(newest.insert(table), key, value)
    }

    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()> {
        *self.newest() = None;
        let batch = self.begin(sync)?;
        {
            let mut table = batch.open_table(TABLE).map_err(wrap)?;
            for (key, value) in in_order(changes) {
                match value {
                    Some(value) => table.insert(key, value).map_err(wrap)?,
                    None => table.remove(key).map_err(wrap)?,
                };
            }
        }
        batch.commit().map_err(wrap)?;
        // A read of another thread may have opened the state before this batch.
        *self.newest() = None;
        Ok(())
    }

    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        Ok(Some(Box::new(RedbView(self.table()?))))
    }

    fn sync(&self) -> Result<()> {
        self.begin(true)?.commit().map_err(wrap)
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        *self.newest() = None;
        let batch = self.begin(true)?;
        {
            let mut table = batch.open_table(TABLE).map_err(wrap)?;
            for_empty(table.is_empty().map_err(wrap)?, "redb")?;
            for (key, value) in pairs {
                table.insert(key.as_slice(), value.as_slice()).map_err(wrap)?;
            }
        }
        batch.commit().map_err(wrap)?;
        *self.newest() = None;
        Ok(())
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.newest);
        self.db.close().map_err(wrap)
    }
}

struct RedbView(Table);

impl StoreView for RedbView {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(&self.0, key, value)
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for pair in self.0.range(from..).map_err(wrap)? {
            let (key, value) = pair.map_err(wrap)?;
            if !each(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }
}
