//! QMDB as the crate commonware-storage has it: a log of operations with a Merkle mountain range over it, and an index
//! of the newest operation of each key in memory. The variant that its own benchmark of a node's blocks runs:
//! `any::unordered::fixed` over `mmb`, with that benchmark's settings.
//!
//! * Values have 72 bytes at most, as those of accounts: they are stored with their length, as 73 bytes.
//! * A block stages what it reads, so that its finish finds the operations again, as in that benchmark.
//! * Hash: BLAKE3, as all engines here, where that benchmark has SHA-256.
//! * Budget: all of it for the page cache. The index of keys is beside it, 37 to 43 bytes a key.
//! * Durability: `commit` after each block, which syncs the log; else none, and what waits in its write buffer is lost
//!   with the process. The log is never pruned.
//! * The crate has a runtime of its own, which a thread keeps alive; the calls wait for it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use commonware_cryptography::Blake3;
use commonware_cryptography::blake3::Digest;
use commonware_parallel::Rayon;
use commonware_runtime::buffer::paged::{CacheRef, page_size};
use commonware_runtime::tokio::{Config as RuntimeConfig, Context, Runner};
use commonware_runtime::{BLOB_PAGE_SIZE, Runner as _, Strategizer as _, Supervisor as _};
use commonware_storage::journal::contiguous::fixed::Config as LogConfig;
use commonware_storage::merkle::full::Config as MerkleConfig;
use commonware_storage::merkle::mmb::Family;
use commonware_storage::qmdb::any::FixedConfig;
use commonware_storage::qmdb::any::batch::{MerkleizedBatch, Slot, Staged};
use commonware_storage::qmdb::any::unordered::fixed::{Db, Update};
use commonware_storage::qmdb::floor::Proportional;
use commonware_storage::translator::EightCap;
use commonware_utils::sequence::FixedBytes;
use hashbrown::HashMap;
use pleach_core::Key;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::buffered::{by_block, hashed, in_blocks};
use super::{Engine, EngineWitness, Pair, Root, Setup, StateAccess, TxBody, ValueSink};
use crate::error::{Error, Result, of_engine, usage};

/// Most bytes of a value; its length is behind them.
const LONGEST: usize = 72;

type Stored = FixedBytes<{ LONGEST + 1 }>;
type Newest = Update<FixedBytes<32>, Stored>;
type QmdbState = Db<Family, Context, FixedBytes<32>, Stored, Blake3, EightCap, Rayon>;

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("qmdb")(error)
}

fn stored(value: &[u8]) -> Result<Stored> {
    let mut bytes = [0; LONGEST + 1];
    let Some(place) = bytes[..LONGEST].get_mut(..value.len()) else {
        let length = value.len();
        return usage(format!(
            "qmdb has values of {LONGEST} bytes at most here, not {length}: leave it out"
        ));
    };
    place.copy_from_slice(value);
    bytes[LONGEST] = u8::try_from(value.len()).map_err(wrap)?;
    Ok(Stored::new(bytes))
}

/// The block that was begun.
struct StagedBlock {
    staged: Staged<Family, Blake3, Newest, Rayon>,
    /// The slot of each key that was read.
    slots: HashMap<Key, usize>,
}

/// An open database.
pub struct Qmdb {
    /// `None` after a failure: it is moved out and back.
    db: Option<QmdbState>,
    begun: Option<StagedBlock>,
    made: Option<Arc<MerkleizedBatch<Family, Digest, Newest, Rayon>>>,
    durable: bool,
    settings: Vec<(&'static str, String)>,
    runtime: Handle,
    /// Dropped to end the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Qmdb {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        setup.args("qmdb", &[])?;
        let durable = setup.durable();
        let count = |number: usize| NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN);
        let threads = setup.threads();
        let config =
            RuntimeConfig::new().with_storage_directory(&setup.folder).with_worker_threads(threads);
        let (started, start) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            Runner::new(config).start(|context| async move {
                // The send fails when the opener is gone; then the thread ends at once.
                let _ = started.send((context, Handle::current()));
                let _ = ended.await;
            });
        });
        let (context, runtime) = start.recv().map_err(|_| wrap("its runtime does not start"))?;
        let pages = usize::try_from(setup.cache_mib * 256).map_err(wrap)?;
        let page_cache = CacheRef::new(page_size(BLOB_PAGE_SIZE), count(pages));
        let items_per_blob = NonZeroU64::MIN.saturating_add(10_000_000 - 1);
        let buffer = count(2 << 20);
        let config = FixedConfig {
            merkle_config: MerkleConfig {
                journal_partition: "merkle-journal".to_owned(),
                metadata_partition: "merkle-metadata".to_owned(),
                items_per_blob,
                write_buffer: buffer,
                replay_buffer: buffer,
                strategy: context.strategy(count(threads)),
                page_cache: page_cache.clone(),
            },
            journal_config: LogConfig {
                partition: "log".to_owned(),
                items_per_blob,
                page_cache,
                write_buffer: buffer,
                replay_buffer: buffer,
            },
            translator: EightCap,
            init_cache: Some(count(1 << 18)),
            init_buffer: buffer,
            init_concurrency: (),
        };
        let db =
            runtime.block_on(QmdbState::init(context.child("db"), config, None)).map_err(wrap)?;
        let durability = if durable { "commit after each block" } else { "none" };
        let settings = vec![
            ("variant", "any::unordered::fixed::mmb, blake3, never pruned".to_owned()),
            ("page cache", format!("{} MiB, the index of keys beside it", setup.cache_mib)),
            ("threads", threads.to_string()),
            ("durability", durability.to_owned()),
        ];
        let (db, end, thread) = (Some(db), Some(end), Some(thread));
        Ok(Self { db, begun: None, made: None, durable, settings, runtime, end, thread })
    }

    fn db(&self) -> Result<&QmdbState> {
        self.db.as_ref().ok_or_else(|| wrap("it has failed before"))
    }

    /// Applies the finished block, in memory.
    fn apply(&mut self) -> Result<()> {
        let Some(block) = self.made.take() else { return Ok(()) };
        let db = self.db.take().ok_or_else(|| wrap("it has failed before"))?;
        self.db = Some(self.runtime.block_on(db.apply_batch(block)).map_err(wrap)?);
        Ok(())
    }
}

impl Engine for Qmdb {
    fn settings(&self) -> Vec<(&'static str, String)> {
        self.settings.clone()
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |block| {
            self.begin(false)?;
            self.finish(block)?;
            self.apply()
        })?;
        self.sync()
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        by_block(self, hashed, work)?;
        if sync && !self.durable { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        let db = self.db.take().ok_or_else(|| wrap("it has failed before"))?;
        self.db = Some(self.runtime.block_on(db.commit()).map_err(wrap)?);
        Ok(())
    }

    fn root(&self) -> Option<Root> {
        let made = self.made.as_ref().map(|block| block.root().0);
        made.or_else(|| self.db.as_ref().map(|db| db.root().0))
    }

    fn begin(&mut self, _witness: bool) -> Result<()> {
        if self.made.is_some() {
            return usage("qmdb has one block at a time here");
        }
        let db = self.db()?;
        let staged = self.runtime.block_on(db.new_batch().stage(&[], db)).map_err(wrap)?.1;
        self.begun = Some(StagedBlock { staged, slots: HashMap::new() });
        Ok(())
    }

    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let StagedBlock { staged, mut slots } =
            self.begun.take().ok_or_else(|| wrap("no block was begun"))?;
        let db = self.db()?;
        let own: Vec<_> = keys.iter().map(|key| FixedBytes::new(*key)).collect();
        let own: Vec<_> = own.iter().collect();
        let read = self.runtime.block_on(staged.expand(&own, db)).map_err(wrap)?;
        let (range, values, staged) = read;
        slots.extend(keys.iter().copied().zip(range));
        for (at, value) in values.iter().enumerate() {
            see(at, value.as_ref().map(|value| &value[..usize::from(value[LONGEST])]));
        }
        self.begun = Some(StagedBlock { staged, slots });
        Ok(())
    }

    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        let StagedBlock { staged, slots } =
            self.begun.take().ok_or_else(|| wrap("no block was begun"))?;
        let (mut changes, mut unread) = (vec![Slot::Keep; staged.len()], Vec::new());
        for access in &accesses {
            let Some(new) = access.op.written() else { continue };
            let new = new.map(|value| stored(value)).transpose()?;
            match slots.get(&access.key) {
                Some(at) => changes[*at] = new.map_or(Slot::Delete, Slot::Put),
                None => unread.push((FixedBytes::new(access.key), new)),
            }
        }
        let db = self.db()?;
        let mut floor = Proportional;
        let made = staged.merkleize(changes, unread, None, db, &mut floor);
        self.made = Some(self.runtime.block_on(made).map_err(wrap)?);
        Ok(None)
    }

    fn commit(&mut self) -> Result<()> {
        self.apply()?;
        if self.durable { self.sync() } else { Ok(()) }
    }

    fn discard(&mut self) -> Result<()> {
        self.begun = None;
        self.made = None;
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.discard()?;
        let db = self.db.take().ok_or_else(|| wrap("it has failed before"))?;
        self.runtime.block_on(db.sync()).map(drop).map_err(wrap)?;
        drop(self.end.take());
        let joined = self.thread.take().map_or(Ok(()), JoinHandle::join);
        joined.map_err(|_| wrap("its runtime panicked"))
    }
}
