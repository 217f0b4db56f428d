//! The crate redb: a copy-on-write B+-tree in one file, one writer, readers by snapshot.
//!
//! * Cache: the whole budget.
//! * Durability: `Immediate` for a transaction that is to be durable, else `None`. What was written so reaches the file
//!   with the next durable commit, for which [`Engine::sync`] makes an empty one.
//! * A load is one transaction in the order of keys. One that puts nothing is taken back: a commit would sync.

use std::sync::Arc;

use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase as _, ReadableTable,
    TableDefinition, WriteTransaction,
};

use super::buffered::filled;
use super::{Engine, Pair, PlainBlock, Reader, Setup, Tx, TxBody, View, page_cache};
use crate::error::{Error, Result, of_engine};

type Bytes = &'static [u8];

const TABLE: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("state");

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("redb")(error)
}

/// An open database.
pub struct RedbEngine {
    db: Arc<Database>,
    flat: PlainBlock,
    cache_mib: u64,
    quick_repair: bool,
}

impl RedbEngine {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        let quick_repair = setup.args("redb", &["quick_repair"])?.of("quick_repair", false)?;
        let cache_mib = setup.cache_mib;
        let bytes = usize::try_from(cache_mib << 20).map_err(wrap)?;
        let file = setup.folder.join("state.redb");
        let db = Arc::new(Builder::new().set_cache_size(bytes).create(file).map_err(wrap)?);
        let flat = PlainBlock { durable: setup.durable(), ..PlainBlock::default() };
        let engine = Self { db, flat, cache_mib, quick_repair };
        // A reader needs an existing table.
        let made = engine.begin_write(true)?;
        made.open_table(TABLE).map_err(wrap)?;
        made.commit().map_err(wrap)?;
        Ok(engine)
    }

    fn begin_write(&self, sync: bool) -> Result<WriteTransaction> {
        let mut begun = self.db.begin_write().map_err(wrap)?;
        let durability = if sync { Durability::Immediate } else { Durability::None };
        begun.set_durability(durability).map_err(wrap)?;
        begun.set_quick_repair(self.quick_repair && sync);
        Ok(begun)
    }
}

impl Engine for RedbEngine {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("cache", format!("{} MiB", self.cache_mib)),
            page_cache(),
            ("durability", "Immediate when asked, else None".to_owned()),
            ("quick_repair", self.quick_repair.to_string()),
        ]
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        self.transact(true, &mut |tx| {
            for (key, value) in &mut *pairs {
                tx.put(&key, Some(&value))?;
            }
            Ok(())
        })
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        let begun = self.begin_write(sync)?;
        let mut tx = RedbTx { table: begun.open_table(TABLE).map_err(wrap)?, has_put: false };
        work(&mut tx)?;
        let has_put = tx.has_put;
        drop(tx);
        if has_put { begun.commit().map_err(wrap) } else { begun.abort().map_err(wrap) }
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(RedbReader(self.db.clone())))
    }

    fn sync(&mut self) -> Result<()> {
        self.begin_write(true)?.commit().map_err(wrap)
    }

    fn plain_block(&mut self) -> Option<&mut PlainBlock> {
        Some(&mut self.flat)
    }

    fn close(self: Box<Self>) -> Result<()> {
        // A reader's files close with the reader.
        Arc::into_inner(self.db).map_or(Ok(()), |db| db.close().map_err(wrap))
    }
}

fn get(table: &impl ReadableTable<Bytes, Bytes>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    let found = table.get(key).map_err(wrap)?;
    Ok(filled(value, found.as_ref().map(redb::AccessGuard::value)))
}

struct RedbTx<'a> {
    table: redb::Table<'a, Bytes, Bytes>,
    has_put: bool,
}

impl Tx for RedbTx<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(&self.table, key, value)
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.has_put = true;
        match value {
            Some(value) => self.table.insert(key, value).map(drop),
            None => self.table.remove(key).map(drop),
        }
        .map_err(wrap)
    }
}

struct RedbReader(Arc<Database>);

impl Reader for RedbReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        let begun = self.0.begin_read().map_err(wrap)?;
        work(&RedbView(begun.open_table(TABLE).map_err(wrap)?))
    }
}

struct RedbView(ReadOnlyTable<Bytes, Bytes>);

impl View for RedbView {
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
