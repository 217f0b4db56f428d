//! MDBX (the crate signet-libmdbx): a copy-on-write B+-tree in a memory map, one writer, readers by snapshot.
//!
//! * It has no cache of its own: the system's page cache is, and no budget limits it.
//! * Without read-ahead, as is advised for random reads; with a writable map, as its largest users set it.
//! * Durability: where batches are to be durable, `SafeNoSync`, which keeps the last synced state whole, and a forced
//!   sync after each of these. Where none is, `UtterlyNoSync`: `SafeNoSync` syncs by itself each time that it wants
//!   pages back, which is at nearly every small commit. A kill takes nothing then, a power failure may take everything.
//! * A load appends in the order of keys, in one transaction.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use signet_libmdbx::sys::EnvironmentKind;
use signet_libmdbx::tx::aliases::{RoTxSync, RoTxUnsync};
use signet_libmdbx::{
    Database, DatabaseFlags, Environment, EnvironmentFlags, Geometry, Mode, SyncMode, WriteFlags,
};

use super::super::engine::{Engine, StoreOptions};
use super::super::store::{Change, Pair, Store, StoreView};
use super::help::{flag, for_empty, in_order, settings, whole};
use crate::error::{BenchError, Result};

type Item<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The file grows by this much at a time.
const STEP: isize = 64 << 20;

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("mdbx")(error)
}

pub(in super::super) struct MdbxStore {
    environment: Environment,
    state: Database,
    /// Opened by the first read after a batch, closed by the next batch, which can then reuse its pages.
    newest: Mutex<Option<RoTxSync>>,
    write_map: bool,
    size_gib: u64,
    durable: bool,
}

impl MdbxStore {
    pub(in super::super) fn open(options: &StoreOptions) -> Result<Self> {
        let (mut write_map, mut size_gib) = (true, 64);
        for (name, value) in
            options.peer_args_of(Engine::Mdbx.name(), &["write_map", "size_gib"])?
        {
            match name {
                "write_map" => write_map = flag("mdbx", name, value)?,
                _ => size_gib = whole("mdbx", name, value, 1..=65_536)?,
            }
        }
        let durable = options.durable;
        let sync_mode = if durable { SyncMode::SafeNoSync } else { SyncMode::UtterlyNoSync };
        let most = usize::try_from(size_gib << 30).map_err(wrap)?;
        let mut builder = Environment::builder();
        // As many as `--readers` may ask for, and the writer's.
        builder.set_max_readers(300);
        builder
            .set_geometry(Geometry {
                size: Some(0..most),
                growth_step: Some(STEP),
                ..Geometry::default()
            })
            .set_flags(EnvironmentFlags {
                mode: Mode::ReadWrite { sync_mode },
                no_rdahead: true,
                ..EnvironmentFlags::default()
            });
        if write_map {
            builder.set_kind(EnvironmentKind::WriteMap);
        }
        let environment = builder.open(&options.folder).map_err(wrap)?;
        let begun = environment.begin_rw_unsync().map_err(wrap)?;
        let state = begun.create_db(None, DatabaseFlags::empty()).map_err(wrap)?;
        begun.commit().map_err(wrap)?;
        Ok(Self { environment, state, newest: Mutex::new(None), write_map, size_gib, durable })
    }

    fn newest(&self) -> MutexGuard<'_, Option<RoTxSync>> {
        // It holds a transaction or none, whatever another thread did.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MdbxStore {
    fn settings(&self) -> Vec<(String, String)> {
        let mode = if self.durable { "SafeNoSync" } else { "UtterlyNoSync" };
        settings([
            ("cache", "the system's page cache, without a limit".to_owned()),
            ("write_map", self.write_map.to_string()),
            ("size limit", format!("{} GiB", self.size_gib)),
            ("durability", format!("{mode}, and a forced sync when asked")),
        ])
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut newest = self.newest();
        let reader = match newest.take() {
            Some(reader) => reader,
            None => self.environment.begin_ro_sync().map_err(wrap)?,
        };
        let reader = newest.insert(reader);
        let found: Option<Cow<'_, [u8]>> = reader.get(self.state.dbi(), key).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()> {
        *self.newest() = None;
        let batch = self.environment.begin_rw_unsync().map_err(wrap)?;
        for (key, value) in in_order(changes) {
            match value {
                Some(value) => {
                    batch.put(self.state, key, value, WriteFlags::UPSERT).map_err(wrap)?;
                }
                None => {
                    batch.del(self.state, key, None).map_err(wrap)?;
                }
            }
        }
        batch.commit().map_err(wrap)?;
        // A read of another thread may have opened the state before this batch.
        *self.newest() = None;
        if sync { self.sync() } else { Ok(()) }
    }

    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        let reader = self.environment.begin_ro_unsync().map_err(wrap)?;
        Ok(Some(Box::new(MdbxView { reader, state: self.state })))
    }

    fn sync(&self) -> Result<()> {
        self.environment.sync(true).map(|_| ()).map_err(wrap)
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        *self.newest() = None;
        let batch = self.environment.begin_rw_unsync().map_err(wrap)?;
        let entries = batch.db_stat(&self.state).map_err(wrap)?.entries();
        for_empty(entries == 0, "mdbx")?;
        for (key, value) in pairs {
            batch.append(self.state, key, value).map_err(wrap)?;
        }
        batch.commit().map_err(wrap)?;
        self.sync()
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<()> {
        *self.newest() = None;
        self.sync()
    }
}

struct MdbxView {
    reader: RoTxUnsync,
    state: Database,
}

impl StoreView for MdbxView {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found: Option<Cow<'_, [u8]>> = self.reader.get(self.state.dbi(), key).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut cursor = self.reader.cursor(self.state).map_err(wrap)?;
        let mut at: Option<Item<'_>> = if from.is_empty() {
            cursor.first().map_err(wrap)?
        } else {
            cursor.set_range(from).map_err(wrap)?
        };
        while let Some((key, value)) = at {
            if !each(&key, &value) {
                break;
            }
            at = cursor.next().map_err(wrap)?;
        }
        Ok(())
    }
}
