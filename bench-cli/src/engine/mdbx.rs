//! MDBX (the crate signet-libmdbx): a copy-on-write B+-tree in a memory map, one writer, readers by snapshot.
//!
//! * It has no cache of its own: the system's page cache is, and no budget limits it.
//! * Without read-ahead, as is advised for random reads; with a writable map, as its largest users set it.
//! * Durability: `Durable`, its default, where commits are to be synced. Where not, `UtterlyNoSync`: `SafeNoSync` syncs
//!   by itself each time that it wants pages back, which is at nearly every small commit. A kill takes nothing then, a
//!   power cut may take everything. Freed pages are taken back newest first (`LIFORECLAIM`), as is advised for synced
//!   commits.
//! * A load appends in the order of keys, in one transaction.

use std::borrow::Cow;

use signet_libmdbx::sys::EnvironmentKind;
use signet_libmdbx::tx::aliases::{RoTxUnsync, RwTxUnsync};
use signet_libmdbx::{
    Database, DatabaseFlags, Environment, EnvironmentFlags, Geometry, Mode, SyncMode, WriteFlags,
};

use super::buffered::filled;
use super::{Engine, Pair, PlainBlock, Reader, Setup, Tx, TxBody, View};
use crate::error::{Error, Result, of_engine};

type CowPair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The file grows by this much at a time.
const STEP: isize = 64 << 20;

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("mdbx")(error)
}

/// An open database.
pub struct MdbxEngine {
    environment: Environment,
    state: Database,
    flat: PlainBlock,
    write_map: bool,
    size_gib: usize,
}

impl MdbxEngine {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        let args = setup.args("mdbx", &["write_map", "size_gib"])?;
        let (write_map, size_gib) = (args.of("write_map", true)?, args.of("size_gib", 64_usize)?);
        let flat = PlainBlock { durable: setup.durable(), ..PlainBlock::default() };
        let sync_mode = if flat.durable { SyncMode::Durable } else { SyncMode::UtterlyNoSync };
        let size = Some(0..size_gib.saturating_mul(1 << 30));
        let mut builder = Environment::builder();
        // As many as `--readers` may ask for, and the writer's.
        builder.set_max_readers(300);
        builder.set_geometry(Geometry { size, growth_step: Some(STEP), ..Geometry::default() });
        builder.set_flags(EnvironmentFlags {
            mode: Mode::ReadWrite { sync_mode },
            no_rdahead: true,
            liforeclaim: true,
            ..EnvironmentFlags::default()
        });
        if write_map {
            builder.set_kind(EnvironmentKind::WriteMap);
        }
        let environment = builder.open(&setup.folder).map_err(wrap)?;
        let begun = environment.begin_rw_unsync().map_err(wrap)?;
        let state = begun.create_db(None, DatabaseFlags::empty()).map_err(wrap)?;
        begun.commit().map_err(wrap)?;
        Ok(Self { environment, state, flat, write_map, size_gib })
    }
}

impl Engine for MdbxEngine {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mode = if self.flat.durable { "Durable" } else { "UtterlyNoSync" };
        vec![
            ("cache", "the system's page cache, without a limit".to_owned()),
            ("write_map", self.write_map.to_string()),
            ("size limit", format!("{} GiB", self.size_gib)),
            ("durability", format!("{mode}, and a forced sync when asked")),
        ]
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let begun = self.environment.begin_rw_unsync().map_err(wrap)?;
        for (key, value) in pairs {
            begun.append(self.state, &key, &value).map_err(wrap)?;
        }
        begun.commit().map_err(wrap)?;
        self.sync()
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        let begun = self.environment.begin_rw_unsync().map_err(wrap)?;
        let mut tx = MdbxTx { begun: &begun, state: self.state, has_put: false };
        work(&mut tx)?;
        if !tx.has_put {
            // Dropped, it is aborted.
            return Ok(());
        }
        begun.commit().map_err(wrap)?;
        if sync && !self.flat.durable { self.sync() } else { Ok(()) }
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(MdbxReader { environment: self.environment.clone(), state: self.state }))
    }

    fn sync(&mut self) -> Result<()> {
        self.environment.sync(true).map(drop).map_err(wrap)
    }

    fn plain_block(&mut self) -> Option<&mut PlainBlock> {
        Some(&mut self.flat)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct MdbxTx<'a> {
    begun: &'a RwTxUnsync,
    state: Database,
    has_put: bool,
}

impl Tx for MdbxTx<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found: Option<Cow<'_, [u8]>> = self.begun.get(self.state.dbi(), key).map_err(wrap)?;
        Ok(filled(value, found.as_deref()))
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.has_put = true;
        match value {
            Some(value) => self.begun.put(self.state, key, value, WriteFlags::UPSERT),
            None => self.begun.del(self.state, key, None).map(drop),
        }
        .map_err(wrap)
    }
}

struct MdbxReader {
    environment: Environment,
    state: Database,
}

impl Reader for MdbxReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        let begun = self.environment.begin_ro_unsync().map_err(wrap)?;
        work(&MdbxView { begun, state: self.state })
    }
}

struct MdbxView {
    begun: RoTxUnsync,
    state: Database,
}

impl View for MdbxView {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found: Option<Cow<'_, [u8]>> = self.begun.get(self.state.dbi(), key).map_err(wrap)?;
        Ok(filled(value, found.as_deref()))
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut cursor = self.begun.cursor(self.state).map_err(wrap)?;
        let mut at: Option<CowPair<'_>> =
            if from.is_empty() { cursor.first() } else { cursor.set_range(from) }.map_err(wrap)?;
        while let Some((key, value)) = at {
            if !each(&key, &value) {
                break;
            }
            at = cursor.next().map_err(wrap)?;
        }
        Ok(())
    }
}
