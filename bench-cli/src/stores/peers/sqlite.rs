//! SQLite (the crate rusqlite, which brings its own copy): a B-tree with a write-ahead log.
//!
//! * One table of keys and values, both blobs, `WITHOUT ROWID`, so that it is the tree of its keys.
//! * `journal_mode = WAL`: readers and the writer do not wait for each other.
//! * Budget: half for the writer's cache, an eighth for each of up to four readers that stay open.
//! * Durability: `synchronous = FULL` for a batch that is to be durable. Of the others, `NORMAL`, which syncs at
//!   checkpoints alone, where some are, and `OFF`, which syncs nothing, where none is: a kill takes nothing then, a
//!   power failure may damage the file. [`Store::sync`] commits a mark with `FULL`, which syncs the log, and after
//!   `OFF` makes a checkpoint, which syncs the file.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use super::super::engine::{Engine, StoreOptions};
use super::super::store::{Change, Pair, Store, StoreView};
use super::help::{for_empty, in_order, settings};
use crate::error::{BenchError, Result};

/// Connections of readers that stay open.
const READERS: usize = 4;
const GET: &str = "SELECT value FROM state WHERE key = ?1";
const PUT: &str = "INSERT INTO state(key, value) VALUES(?1, ?2) \
                   ON CONFLICT(key) DO UPDATE SET value = excluded.value";
const DELETE: &str = "DELETE FROM state WHERE key = ?1";
const SCAN: &str = "SELECT key, value FROM state WHERE key >= ?1 ORDER BY key";

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("sqlite")(error)
}

/// The connection that writes.
struct Writer {
    connection: Connection,
    /// What `synchronous` is set to.
    mode: &'static str,
}

impl Writer {
    fn set(&mut self, mode: &'static str) -> Result<()> {
        if mode != self.mode {
            self.connection.pragma_update(None, "synchronous", mode).map_err(wrap)?;
            self.mode = mode;
        }
        Ok(())
    }
}

pub(in super::super) struct SqliteStore {
    writer: Mutex<Writer>,
    /// Readers that nobody has.
    idle: Mutex<Vec<Connection>>,
    file: std::path::PathBuf,
    cache_mib: u64,
    /// What `synchronous` is for batches that are not to be durable.
    relaxed: &'static str,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A transaction that a panic has left is rolled back with its guard.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the page cache of a connection; negative numbers are KiB.
fn set_cache(connection: &Connection, kib: u64) -> Result<()> {
    let kib = i64::try_from(kib.max(64)).map_err(wrap)?;
    connection.pragma_update(None, "cache_size", -kib).map_err(wrap)
}

impl SqliteStore {
    pub(in super::super) fn open(options: &StoreOptions) -> Result<Self> {
        options.peer_args_of(Engine::Sqlite.name(), &[])?;
        let file = options.folder.join("state.sqlite");
        let connection = Connection::open(&file).map_err(wrap)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(wrap)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(wrap)?;
        connection.pragma_update(None, "temp_store", "MEMORY").map_err(wrap)?;
        set_cache(&connection, options.cache_mib * 512)?;
        let schema = "CREATE TABLE IF NOT EXISTS state(key BLOB PRIMARY KEY, value BLOB NOT NULL) \
                      WITHOUT ROWID; \
                      CREATE TABLE IF NOT EXISTS mark(synced INTEGER NOT NULL); \
                      INSERT INTO mark SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM mark);";
        connection.execute_batch(schema).map_err(wrap)?;
        let writer = Mutex::new(Writer { connection, mode: "FULL" });
        let (idle, cache_mib) = (Mutex::new(Vec::new()), options.cache_mib);
        let relaxed = if options.durable { "NORMAL" } else { "OFF" };
        Ok(Self { writer, idle, file, cache_mib, relaxed })
    }

    /// A connection that reads.
    fn reader(&self) -> Result<Connection> {
        if let Some(reader) = lock(&self.idle).pop() {
            return Ok(reader);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(&self.file, flags).map_err(wrap)?;
        set_cache(&reader, self.cache_mib * 128)?;
        Ok(reader)
    }
}

fn get(connection: &Connection, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let mut statement = connection.prepare_cached(GET).map_err(wrap)?;
    let take = |row: &rusqlite::Row<'_>| {
        let found = row.get_ref(0)?.as_blob().unwrap_or_default();
        value.extend_from_slice(found);
        Ok(())
    };
    Ok(statement.query_row(params![key], take).optional().map_err(wrap)?.is_some())
}

impl Store for SqliteStore {
    fn settings(&self) -> Vec<(String, String)> {
        let caches = format!("{} MiB, readers {} each", self.cache_mib / 2, self.cache_mib / 8);
        settings([
            ("cache", caches),
            ("journal_mode", "WAL".to_owned()),
            ("durability", format!("synchronous FULL when asked, else {}", self.relaxed)),
        ])
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(&lock(&self.writer).connection, key, value)
    }

    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()> {
        let mut writer = lock(&self.writer);
        writer.set(if sync { "FULL" } else { self.relaxed })?;
        let batch = writer.connection.transaction().map_err(wrap)?;
        {
            let mut put = batch.prepare_cached(PUT).map_err(wrap)?;
            let mut delete = batch.prepare_cached(DELETE).map_err(wrap)?;
            for (key, value) in in_order(changes) {
                match value {
                    Some(value) => put.execute(params![key, value]).map_err(wrap)?,
                    None => delete.execute(params![key]).map_err(wrap)?,
                };
            }
        }
        batch.commit().map_err(wrap)
    }

    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        let reader = self.reader()?;
        // A transaction sees what was there at its first read.
        reader.execute_batch("BEGIN").map_err(wrap)?;
        let mark = "SELECT synced FROM mark";
        reader.query_row(mark, [], |_| Ok(())).map_err(wrap)?;
        Ok(Some(Box::new(SqliteView { store: self, reader: Some(reader) })))
    }

    fn sync(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        writer.set("FULL")?;
        let mark = "UPDATE mark SET synced = synced + 1";
        writer.connection.execute(mark, []).map_err(wrap)?;
        if self.relaxed == "OFF" {
            // Checkpoints before have written the file without a sync.
            let checkpoint = "PRAGMA wal_checkpoint(FULL)";
            let busy = writer.connection.query_row(checkpoint, [], |row| row.get::<_, bool>(0));
            if busy.map_err(wrap)? {
                return Err(wrap("a reader is in the way of a sync"));
            }
        }
        Ok(())
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let mut writer = lock(&self.writer);
        writer.set("FULL")?;
        let batch = writer.connection.transaction().map_err(wrap)?;
        let some = "SELECT EXISTS (SELECT 1 FROM state)";
        let some: bool = batch.query_row(some, [], |row| row.get(0)).map_err(wrap)?;
        for_empty(!some, "sqlite")?;
        {
            let mut put = batch.prepare_cached(PUT).map_err(wrap)?;
            for (key, value) in pairs {
                put.execute(params![key, value]).map_err(wrap)?;
            }
        }
        batch.commit().map_err(wrap)
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { writer, idle, .. } = *self;
        let idle = idle.into_inner().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        for connection in idle.into_iter().chain([writer.connection]) {
            connection.close().map_err(|(_, error)| wrap(error))?;
        }
        Ok(())
    }
}

/// A transaction that only reads.
struct SqliteView<'a> {
    store: &'a SqliteStore,
    /// Taken when it ends.
    reader: Option<Connection>,
}

impl SqliteView<'_> {
    fn reader(&self) -> Result<&Connection> {
        self.reader.as_ref().ok_or_else(|| wrap("the view has ended"))
    }
}

impl StoreView for SqliteView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.reader()?, key, value)
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut statement = self.reader()?.prepare_cached(SCAN).map_err(wrap)?;
        let mut rows = statement.query(params![from]).map_err(wrap)?;
        while let Some(row) = rows.next().map_err(wrap)? {
            let key = row.get_ref(0).map_err(wrap)?.as_blob().map_err(wrap)?;
            if !each(key, row.get_ref(1).map_err(wrap)?.as_blob().map_err(wrap)?) {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for SqliteView<'_> {
    fn drop(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        let ended = reader.execute_batch("COMMIT").is_ok();
        let mut idle = lock(&self.store.idle);
        if ended && idle.len() < READERS {
            idle.push(reader);
        }
    }
}
