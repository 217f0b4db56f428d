//! The engines under test, behind one trait ([`Engine`]), so that all do the same operations and are measured by the
//! same code. Each is set up as its own documentation advises; what was chosen is in its file and in
//! [`settings`](Engine::settings), which are printed beside the figures.
//!
//! There are two ways to change an engine. A *transaction* ([`Engine::transact`]) reads and writes keys of any length
//! and is committed at once. A *block* ([`Engine::begin`] to [`Engine::commit`]) has keys of 32 bytes: it reads, is
//! finished, which gives a root and perhaps a witness and persists nothing, and is committed later; further blocks can
//! be finished over it meanwhile. What an engine cannot do, its [`Caps`](kind::Caps) say.

#![cfg_attr(
    not(feature = "peer-nomt"),
    allow(dead_code, reason = "what the adapters need is a matter of the build's features")
)]

pub mod buffered;
#[cfg(feature = "peer-fjall")]
mod fjall;
#[cfg(feature = "peer-jmt")]
mod jmt;
mod kind;
#[cfg(feature = "peer-mdbx")]
mod mdbx;
mod model;
#[cfg(feature = "peer-nomt")]
mod nomt;
pub mod pleach;
#[cfg(feature = "peer-qmdb")]
mod qmdb;
#[cfg(feature = "peer-redb")]
mod redb;
#[cfg(any(feature = "peer-rocksdb", feature = "peer-sp-trie", feature = "peer-jmt"))]
mod rocks;
#[cfg(feature = "peer-sp-trie")]
mod sp_trie;
#[cfg(feature = "peer-sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use ::pleach::Value;
use pleach_core::{Key, ValueHash};

use crate::error::{Error, Result, usage};
use crate::flags::Flags;
pub use kind::EngineKind;

/// A trie root.
pub type Root = [u8; 32];
/// A key of a plain store: 1 to 31 bytes, or 32.
pub type PlainKey = arrayvec::ArrayVec<u8, 32>;
/// A key and its value.
pub type Pair = (PlainKey, Value);
/// Receives a value: the number of its key in the request, and the value, if there is one.
pub type ValueSink<'a> = dyn FnMut(usize, Option<&[u8]>) + 'a;
/// The body of a transaction.
pub type TxBody<'a> = dyn FnMut(&mut dyn Tx) -> Result<()> + 'a;

/// The operation of a block on a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The key was only read.
    Read,
    /// The key gets a value or none, and was not read.
    Write(Option<Value>),
    /// The key was read, and gets a value or none.
    ReadWrite(Option<Value>),
}

impl Op {
    /// The written value, if the key is written.
    pub const fn written(&self) -> Option<Option<&Value>> {
        match self {
            Self::Read => None,
            Self::Write(value) | Self::ReadWrite(value) => Some(value.as_ref()),
        }
    }
}

/// A key of a block, and the block's operation on it.
#[derive(Clone, Debug, PartialEq)]
pub struct StateAccess {
    /// The namespace, for engines that have some: 0 for accounts, 1 for storage.
    pub space: u8,
    pub key: Key,
    pub op: Op,
}

impl StateAccess {
    /// A write of a key that was not read.
    pub fn write(key: Key, value: impl Into<Value>) -> Self {
        Self { space: 0, key, op: Op::Write(Some(value.into())) }
    }
}

/// The setting that is printed for an engine whose files are read through the system's page cache.
#[allow(dead_code, reason = "which engines there are is a matter of the build's features")]
fn page_cache() -> (&'static str, String) {
    ("files", "read through the system's page cache, beside the budget".to_owned())
}

/// An engine that is open. One thread makes all calls.
pub trait Engine {
    /// Settings worth printing beside the figures: names and values.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Loads pairs into an empty database, as the engine's documentation advises; those of plain stores come in the
    /// order of their keys. Durable on return.
    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()>;

    /// Runs `work` in one atomic transaction, which sees its own writes. Durable on return when `sync`.
    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()>;

    /// A reader for another thread.
    fn reader(&self) -> Result<Box<dyn Reader>> {
        usage("this engine has no views beside commits")
    }

    /// Makes all commits durable.
    fn sync(&mut self) -> Result<()>;

    /// Root of the newest finished block, committed or not; none of a plain store.
    fn root(&self) -> Option<Root> {
        None
    }

    /// The present block of a plain store: the functions below then use its transactions, without a root.
    fn plain_block(&mut self) -> Option<&mut PlainBlock> {
        None
    }

    /// Begins a block over the newest one; with `witness` its finish proves what it reads and writes.
    fn begin(&mut self, _witness: bool) -> Result<()> {
        Ok(())
    }

    /// Announces the keys that this block will read, or, once it has read, those of the next one.
    fn announce(&mut self, _space: u8, _keys: &[Key]) -> Result<()> {
        Ok(())
    }

    /// Calls `see` with the values of keys in the state of the block that was begun.
    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let mut value = Vec::new();
        self.reader()?.view(&mut |view| {
            for (at, key) in keys.iter().enumerate() {
                let found = view.get(key, &mut value)?;
                see(at, found.then_some(value.as_slice()));
            }
            Ok(())
        })
    }

    /// Finishes the block with all its reads and writes, each key once, in any order. Persists nothing.
    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        match self.plain_block() {
            Some(flat) => flat.made = accesses,
            None => return usage("this engine has no blocks"),
        }
        Ok(None)
    }

    /// Commits the oldest finished block. Durable on return if the engine was opened so.
    fn commit(&mut self) -> Result<()> {
        let Some(flat) = self.plain_block() else { return usage("this engine has no blocks") };
        let (durable, made) = (flat.durable, std::mem::take(&mut flat.made));
        self.transact(durable, &mut |tx| {
            let written = made.iter().filter_map(|access| Some((access, access.op.written()?)));
            for (access, value) in written {
                tx.put(&access.key, value.map(|value| &**value))?;
            }
            Ok(())
        })
    }

    /// Discards the block that was begun, and all that are finished and not committed.
    fn discard(&mut self) -> Result<()> {
        if let Some(flat) = self.plain_block() {
            flat.made.clear();
        }
        Ok(())
    }

    /// Writes a number into the next commit, for engines that have room for one beside their pairs.
    fn mark(&mut self, _number: u64) {}

    /// The number in the newest commit; none where the engine has no room for one.
    fn marked(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Pauses or resumes background work, for a stopped clock.
    fn pause(&mut self, _pause: bool) {}

    /// Entries that wait for background work.
    fn pending(&self) -> u64 {
        0
    }

    /// Waits until at most this many entries wait for background work.
    fn drain(&mut self, _pending: u64) -> Result<()> {
        Ok(())
    }

    /// The engine's counters since it was opened, by name. `checkpoints` ends a headline run.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// This project's engine, for workloads that run on no other.
    fn as_pleach(&mut self) -> Option<&mut pleach::PleachEngine> {
        None
    }

    /// Ends background work, and closes the files.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The values of keys in the newest state, read in a block of its own.
pub fn values(engine: &mut dyn Engine, keys: &[Key]) -> Result<Vec<Option<Value>>> {
    let mut values = vec![None; keys.len()];
    engine.begin(false)?;
    engine.read(0, keys, &mut |at, value| values[at] = value.map(Value::from))?;
    engine.discard()?;
    Ok(values)
}

/// The present block of a plain store: finished, and written by its commit.
#[derive(Debug, Default)]
pub struct PlainBlock {
    /// Whether commits of blocks are synced.
    pub durable: bool,
    pub made: Vec<StateAccess>,
}

/// A transaction.
pub trait Tx {
    /// The value of a key, in `value`, which is cleared first; false if it has none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
    /// Gives a key a value, or none.
    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()>;
}

/// Reads beside commits, on another thread.
pub trait Reader: Send {
    /// Runs `work` on one consistent state: the newest when it begins.
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()>;
}

/// One consistent state.
pub trait View {
    /// The value of a key, in `value`, which is cleared first; false if it has none.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
    /// Calls `each` with the pairs from `from` on in key order, until it returns false.
    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;
}

/// A block's witness in the engine's own form.
pub trait EngineWitness: Sync {
    /// The witness's size in bytes, in the engine's most compact form.
    fn bytes(&self) -> u64;
    /// Verifies the witness against the root before the block, without a database, and returns all that it proves.
    fn verify(&self, before: &Root) -> core::result::Result<Proven, String>;
}

/// What a witness proves, in any order.
#[derive(Debug, Default)]
pub struct Proven {
    /// The root after the block.
    pub root: Root,
    /// Keys read, with the hash of the value seen.
    pub reads: Vec<(Key, Option<ValueHash>)>,
    /// Keys written, with the hash of the new value.
    pub writes: Vec<(Key, Option<ValueHash>)>,
}

/// Parameters of an open.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub folder: PathBuf,
    pub flags: &'a Flags,
    /// Keys that the database will have, about, for an engine that must know.
    pub keys: u64,
    /// The budget of all its memory.
    pub cache_mib: u64,
}

impl<'a> Setup<'a> {
    /// True when each commit is synced.
    #[allow(dead_code, reason = "a build with few peers does not ask")]
    pub fn durable(&self) -> bool {
        self.flags.durability == crate::flags::Durability::Commit
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.flags.threads.map_or_else(crate::machine::cores, usize::from)
    }

    /// The engine's own settings, from `--peer-arg ENGINE.NAME=VALUE`. Unknown ones are refused.
    pub fn args(&self, engine: &str, known: &[&str]) -> Result<Args<'a>> {
        let mut own = Vec::new();
        for text in &self.flags.peer_arg {
            let parts = text.split_once('=').and_then(|(name, value)| {
                name.split_once('.').map(|(peer, name)| (peer, name, value))
            });
            let Some((peer, name, value)) = parts else {
                return usage(format!("--peer-arg {text}: say ENGINE.NAME=VALUE"));
            };
            if peer == engine {
                if !known.contains(&name) {
                    let known = known.join(", ");
                    let text = format!("--peer-arg {text}: {engine} has these settings: {known}");
                    return usage(text.trim_end_matches(": ").to_owned());
                }
                own.push((name, value));
            }
        }
        Ok(Args(own))
    }
}

/// An engine's own settings.
#[derive(Debug)]
pub struct Args<'a>(Vec<(&'a str, &'a str)>);

impl Args<'_> {
    /// A setting, or its default.
    pub fn of<T: core::str::FromStr>(&self, name: &str, without: T) -> Result<T> {
        match self.0.iter().rev().find(|arg| arg.0 == name) {
            None => Ok(without),
            Some((_, value)) => value
                .parse()
                .map_err(|_| Error::Usage(format!("--peer-arg …{name}={value}: no such value"))),
        }
    }
}

/// Opens or creates a database in a folder.
pub fn open(kind: EngineKind, setup: &Setup<'_>) -> Result<Box<dyn Engine>> {
    let at = &setup.folder;
    std::fs::create_dir_all(at).map_err(Error::file(at))?;
    Ok(match kind {
        EngineKind::Model => Box::new(model::Model::open(setup)?),
        EngineKind::Pleach => Box::new(pleach::PleachEngine::open(setup, false)?),
        EngineKind::PleachPlain => Box::new(pleach::PleachEngine::open(setup, true)?),
        #[cfg(feature = "peer-nomt")]
        EngineKind::Nomt => Box::new(nomt::NomtEngine::open(setup)?),
        #[cfg(feature = "peer-sp-trie")]
        EngineKind::SpTrie => Box::new(sp_trie::SpTrie::open(setup)?),
        #[cfg(feature = "peer-jmt")]
        EngineKind::Jmt => Box::new(jmt::Jmt::open(setup)?),
        #[cfg(feature = "peer-qmdb")]
        EngineKind::Qmdb => Box::new(qmdb::Qmdb::open(setup)?),
        #[cfg(feature = "peer-redb")]
        EngineKind::Redb => Box::new(redb::RedbEngine::open(setup)?),
        #[cfg(feature = "peer-fjall")]
        EngineKind::Fjall => Box::new(fjall::FjallEngine::open(setup)?),
        #[cfg(feature = "peer-sqlite")]
        EngineKind::Sqlite => Box::new(sqlite::SqliteEngine::open(setup)?),
        #[cfg(feature = "peer-mdbx")]
        EngineKind::Mdbx => Box::new(mdbx::MdbxEngine::open(setup)?),
        #[cfg(feature = "peer-rocksdb")]
        EngineKind::RocksDb => Box::new(rocks::RocksEngine::open(setup)?),
        #[allow(unreachable_patterns, reason = "which kinds are missing is a matter of features")]
        other => return usage(other.missing()),
    })
}
