//! `SQLite` (the crate rusqlite, which brings its own copy): a B-tree with a write-ahead log.
//!
//! * One table of keys and values, both blobs, `WITHOUT ROWID`, so that it is the tree of its keys.
//! * `journal_mode = WAL`: readers and the writer do not wait for each other.
//! * Budget: half for the writer's cache, an eighth for each reader.
//! * Durability: `synchronous = FULL` for a transaction that is to be durable. Of the others, `NORMAL`, which syncs at
//!   checkpoints alone, where commits are asked to be synced, and `OFF`, which syncs nothing, where not: a kill takes
//!   nothing then, a power cut may damage the file. [`Engine::sync`] commits a mark with `FULL`, which syncs the log,
//!   and after `OFF` makes a checkpoint, which syncs the file.

use std::path::PathBuf;

use pleach_core::Key;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};

use super::{Engine, Pair, PlainBlock, Reader, Setup, Tx, TxBody, ValueSink, View, page_cache};
use crate::error::{Error, Result, of_engine};

const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS state(key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS mark(synced INTEGER NOT NULL);
INSERT INTO mark SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM mark);";
const GET: &str = "SELECT value FROM state WHERE key = ?1";
const PUT: &str = "INSERT INTO state(key, value) VALUES(?1, ?2) \
                   ON CONFLICT(key) DO UPDATE SET value = excluded.value";
const DELETE: &str = "DELETE FROM state WHERE key = ?1";
const SCAN: &str = "SELECT key, value FROM state WHERE key >= ?1 ORDER BY key";
const MARK: &str = "UPDATE mark SET synced = synced + 1";

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("sqlite")(error)
}

/// An open database.
pub struct SqliteEngine {
    /// The connection that writes.
    connection: Connection,
    /// The present `synchronous` mode, and that of transactions that are not to be durable.
    mode: &'static str,
    relaxed: &'static str,
    file: PathBuf,
    flat: PlainBlock,
    cache_mib: u64,
}

/// Sets the page cache of a connection; negative numbers are KiB.
fn set_cache(connection: &Connection, kib: u64) -> Result<()> {
    connection.pragma_update(None, "cache_size", -kib.cast_signed()).map_err(wrap)
}

/// Runs `work` between BEGIN and COMMIT, or BEGIN and ROLLBACK where nothing was written.
fn within(
    connection: &Connection,
    begin: &str,
    work: impl FnOnce(&Connection) -> Result<bool>,
) -> Result<()> {
    let run = |text| connection.prepare_cached(text)?.execute([]).map(drop);
    run(begin).map_err(wrap)?;
    let end = |has_put| run(if has_put { "COMMIT" } else { "ROLLBACK" }).map_err(wrap);
    let done = work(connection).and_then(end);
    if done.is_err() {
        // The first error is returned.
        let _ = run("ROLLBACK");
    }
    done
}

impl SqliteEngine {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        setup.args("sqlite", &[])?;
        let file = setup.folder.join("state.sqlite");
        let connection = Connection::open(&file).map_err(wrap)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(wrap)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(wrap)?;
        connection.pragma_update(None, "temp_store", "MEMORY").map_err(wrap)?;
        set_cache(&connection, setup.cache_mib * 512)?;
        connection.execute_batch(SCHEMA).map_err(wrap)?;
        let flat = PlainBlock { durable: setup.durable(), ..PlainBlock::default() };
        let relaxed = if flat.durable { "NORMAL" } else { "OFF" };
        let cache_mib = setup.cache_mib;
        Ok(Self { connection, mode: "FULL", relaxed, file, flat, cache_mib })
    }

    fn set_mode(&mut self, mode: &'static str) -> Result<()> {
        if mode != self.mode {
            self.connection.pragma_update(None, "synchronous", mode).map_err(wrap)?;
            self.mode = mode;
        }
        Ok(())
    }
}

impl Engine for SqliteEngine {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let Self { cache_mib, relaxed, .. } = self;
        vec![
            ("cache", format!("{} MiB, readers {} each", cache_mib / 2, cache_mib / 8)),
            page_cache(),
            ("journal_mode", "WAL".to_owned()),
            ("durability", format!("synchronous FULL when asked, else {relaxed}")),
        ]
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        self.transact(true, &mut |tx| {
            for (key, value) in &mut *pairs {
                tx.put(&key, Some(&value))?;
            }
            Ok(())
        })?;
        self.sync()
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        self.set_mode(if sync { "FULL" } else { self.relaxed })?;
        within(&self.connection, "BEGIN IMMEDIATE", |connection| {
            let mut tx = SqliteTx { connection, has_put: false };
            work(&mut tx).map(|()| tx.has_put)
        })
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.file, flags).map_err(wrap)?;
        set_cache(&connection, self.cache_mib * 128)?;
        Ok(Box::new(SqliteReader(connection)))
    }

    fn sync(&mut self) -> Result<()> {
        self.set_mode("FULL")?;
        self.connection.execute(MARK, []).map_err(wrap)?;
        if self.relaxed == "OFF" {
            // Checkpoints before have written the file without a sync.
            let checkpoint = "PRAGMA wal_checkpoint(FULL)";
            let busy = self.connection.query_row(checkpoint, [], |row| row.get::<_, bool>(0));
            if busy.map_err(wrap)? {
                return Err(wrap("a reader is in the way of a sync"));
            }
        }
        Ok(())
    }

    fn plain_block(&mut self) -> Option<&mut PlainBlock> {
        Some(&mut self.flat)
    }

    /// Reads by the writing connection, whose cache has the writes.
    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let mut value = Vec::new();
        within(&self.connection, "BEGIN", |connection| {
            for (at, key) in keys.iter().enumerate() {
                let found = get(connection, key, &mut value)?;
                see(at, found.then_some(value.as_slice()));
            }
            Ok(false)
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.connection.close().map_err(|(_, error)| wrap(error))
    }
}

fn get(connection: &Connection, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let mut statement = connection.prepare_cached(GET).map_err(wrap)?;
    let take = |row: &Row<'_>| {
        value.extend_from_slice(row.get_ref(0)?.as_blob()?);
        Ok(())
    };
    Ok(statement.query_row(params![key], take).optional().map_err(wrap)?.is_some())
}

struct SqliteTx<'a> {
    connection: &'a Connection,
    has_put: bool,
}

impl Tx for SqliteTx<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.connection, key, value)
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.has_put = true;
        let put = || match value {
            Some(value) => self.connection.prepare_cached(PUT)?.execute(params![key, value]),
            None => self.connection.prepare_cached(DELETE)?.execute(params![key]),
        };
        put().map(drop).map_err(wrap)
    }
}

struct SqliteReader(Connection);

impl Reader for SqliteReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        within(&self.0, "BEGIN", |connection| {
            // The state is that of the first read.
            let first = connection.prepare_cached("SELECT synced FROM mark");
            first.and_then(|mut first| first.query_row([], |_| Ok(()))).map_err(wrap)?;
            work(&SqliteView(connection)).map(|()| false)
        })
    }
}

struct SqliteView<'a>(&'a Connection);

impl View for SqliteView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.0, key, value)
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut statement = self.0.prepare_cached(SCAN).map_err(wrap)?;
        let mut rows = statement.query(params![from]).map_err(wrap)?;
        while let Some(row) = rows.next().map_err(wrap)? {
            let part = |at| row.get_ref(at).map_err(wrap)?.as_blob().map_err(wrap);
            if !each(part(0)?, part(1)?) {
                break;
            }
        }
        Ok(())
    }
}
