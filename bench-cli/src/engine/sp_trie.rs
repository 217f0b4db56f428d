//! The crate sp-trie over `RocksDB`, as a Substrate node has it.
//!
//! * Layout: the nodes of state version 1 (values of more than 32 bytes beside their leaf), each under the path to it
//!   and its hash, in one column. A commit writes the nodes that a block has made and deletes those that it replaced:
//!   no older state is kept.
//! * Finished blocks that are not committed have their nodes in one map, counted, as in a node's non-canonical overlay.
//! * Hash: BLAKE3, as all engines here, where Substrate has `BLAKE2b`.
//! * Budget: half for the trie cache (nodes and values, shared between blocks), half for `RocksDB`.
//! * Durability: the log is synced with each commit. A load writes no log, and flushes at its end.
//! * A block reads on one thread, and records what it reads when a witness is wanted: a storage proof.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::DefaultHasher;
use std::sync::{LazyLock, Mutex, PoisonError};

use hash_db::{AsHashDB, HashDB, HashDBRef, Prefix};
use pleach_core::{Hasher, Key};
use rocksdb::{DB, WriteBatch};
use sp_trie::cache::{CacheSize, SharedTrieCache};
use sp_trie::recorder::Recorder;
use sp_trie::{
    CompactProof, DBValue, LayoutV1, PrefixedMemoryDB, Trie as _, TrieDBBuilder, TrieRecorder,
    delta_trie_root, empty_trie_root, prefixed_key, read_trie_value,
};

use super::buffered::{by_block, hashed, in_blocks};
use super::{
    Engine, EngineWitness, Pair, Proven, Root, Setup, StateAccess, TxBody, ValueSink, rocks,
};
use crate::error::{Error, Result, of_engine};

/// Where the committed root is; nodes have longer keys.
const ROOT: &[u8] = b"root";

type Layout = LayoutV1<SpTrieHasher>;

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("sp-trie")(error)
}

/// A trie's own errors do not print.
fn broken<E: std::fmt::Debug>(error: E) -> Error {
    wrap(format!("{error:?}"))
}

/// BLAKE3 as the trie wants its hash.
#[derive(Debug)]
struct SpTrieHasher;

impl hash_db::Hasher for SpTrieHasher {
    type Out = [u8; 32];
    type StdHasher = DefaultHasher;
    const LENGTH: usize = 32;

    fn hash(bytes: &[u8]) -> [u8; 32] {
        Hasher::BLAKE3.hash(bytes)
    }
}

/// Nodes of blocks that are not committed: the number of blocks that made each, and the node.
type UncommittedValues = HashMap<Vec<u8>, (u32, DBValue)>;

/// The nodes of a state, and those that a block makes over it.
struct Nodes<'a> {
    db: &'a DB,
    uncommitted: &'a UncommittedValues,
    made: PrefixedMemoryDB<SpTrieHasher>,
    /// The device's error: the trie only learns that there is no node.
    failure: Mutex<Option<rocksdb::Error>>,
}

impl Nodes<'_> {
    /// The nodes that the block has made, unless a read of the device has failed.
    fn made(self) -> Result<PrefixedMemoryDB<SpTrieHasher>> {
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(self.made), |error| Err(wrap(error)))
    }
}

impl HashDB<SpTrieHasher, DBValue> for Nodes<'_> {
    fn get(&self, hash: &Root, prefix: Prefix<'_>) -> Option<DBValue> {
        if let Some(made) = HashDB::get(&self.made, hash, prefix) {
            return Some(made);
        }
        let key = prefixed_key::<SpTrieHasher>(hash, prefix);
        if let Some((_, node)) = self.uncommitted.get(&key) {
            return Some(node.clone());
        }
        self.db.get(&key).unwrap_or_else(|error| {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            None
        })
    }

    fn contains(&self, key: &Root, prefix: Prefix<'_>) -> bool {
        HashDB::get(self, key, prefix).is_some()
    }

    fn insert(&mut self, prefix: Prefix<'_>, value: &[u8]) -> Root {
        HashDB::insert(&mut self.made, prefix, value)
    }

    fn emplace(&mut self, key: Root, prefix: Prefix<'_>, value: DBValue) {
        HashDB::emplace(&mut self.made, key, prefix, value);
    }

    fn remove(&mut self, key: &Root, prefix: Prefix<'_>) {
        HashDB::remove(&mut self.made, key, prefix);
    }
}

impl HashDBRef<SpTrieHasher, DBValue> for Nodes<'_> {
    fn get(&self, key: &Root, prefix: Prefix<'_>) -> Option<DBValue> {
        HashDB::get(self, key, prefix)
    }

    fn contains(&self, key: &Root, prefix: Prefix<'_>) -> bool {
        HashDB::contains(self, key, prefix)
    }
}

impl AsHashDB<SpTrieHasher, DBValue> for Nodes<'_> {
    fn as_hash_db(&self) -> &dyn HashDB<SpTrieHasher, DBValue> {
        self
    }

    fn as_hash_db_mut<'a>(&'a mut self) -> &'a mut (dyn HashDB<SpTrieHasher, DBValue> + 'a) {
        self
    }
}

/// A finished block.
struct FinishedBlock {
    made: Vec<(Vec<u8>, DBValue)>,
    replaced: Vec<Vec<u8>>,
    root: Root,
}

/// An open database.
pub struct SpTrie {
    db: DB,
    settings: Vec<(&'static str, String)>,
    cache: SharedTrieCache<SpTrieHasher>,
    durable: bool,
    /// Of the newest block.
    root: Root,
    committed: Root,
    uncommitted: UncommittedValues,
    /// The oldest first.
    blocks: VecDeque<FinishedBlock>,
    /// Records the reads of the block that was begun, if a witness is wanted.
    recorder: Option<Recorder<SpTrieHasher>>,
}

impl SpTrie {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        setup.args("sp-trie", &[])?;
        let durable = setup.durable();
        let cache_mib = setup.cache_mib / 2;
        let (options, more) = rocks::options(setup.cache_mib - cache_mib, setup.threads(), None);
        let mut settings = vec![
            ("trie cache", format!("{cache_mib} MiB")),
            ("state", "version 1, blake3, the newest only".to_owned()),
            rocks::durability(durable),
        ];
        settings.extend(more);
        let db = DB::open(&options, &setup.folder).map_err(wrap)?;
        let root = match db.get(ROOT).map_err(wrap)? {
            Some(root) => Root::try_from(root).map_err(|_| wrap("its root has another length"))?,
            None => empty_trie_root::<Layout>(),
        };
        let bytes = usize::try_from(cache_mib << 20).map_err(wrap)?;
        Ok(Self {
            db,
            settings,
            cache: SharedTrieCache::new(CacheSize::new(bytes), None),
            durable,
            root,
            committed: root,
            uncommitted: UncommittedValues::new(),
            blocks: VecDeque::new(),
            recorder: None,
        })
    }

    fn nodes(&self) -> Nodes<'_> {
        let made = PrefixedMemoryDB::default();
        Nodes { db: &self.db, uncommitted: &self.uncommitted, made, failure: Mutex::new(None) }
    }

    fn write(&mut self, log: bool) -> Result<()> {
        let Some(block) = self.blocks.pop_front() else { return Ok(()) };
        let mut batch = WriteBatch::default();
        for (key, node) in &block.made {
            batch.put(key, node);
        }
        for key in &block.replaced {
            batch.delete(key);
        }
        batch.put(ROOT, block.root);
        rocks::write(&self.db, batch, self.durable, log).map_err(wrap)?;
        self.committed = block.root;
        for (key, _) in block.made {
            if let Entry::Occupied(mut entry) = self.uncommitted.entry(key) {
                entry.get_mut().0 -= 1;
                if entry.get().0 == 0 {
                    entry.remove();
                }
            }
        }
        Ok(())
    }
}

impl Engine for SpTrie {
    fn settings(&self) -> Vec<(&'static str, String)> {
        self.settings.clone()
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |block| {
            self.finish(block)?;
            self.write(false)
        })?;
        self.db.flush().map_err(wrap)
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        by_block(self, hashed, work)?;
        if sync && !self.durable { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        self.db.flush_wal(true).map_err(wrap)
    }

    fn root(&self) -> Option<Root> {
        Some(self.root)
    }

    fn begin(&mut self, witness: bool) -> Result<()> {
        self.recorder = witness.then(Recorder::default);
        Ok(())
    }

    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let nodes = self.nodes();
        let local = self.cache.local_cache_trusted();
        let seen: Result<()> = {
            let mut cache = local.as_trie_db_cache(self.root);
            let mut recorder = self.recorder.as_ref().map(|one| one.as_trie_recorder(self.root));
            let recorder = recorder.as_mut().map(|one| one as &mut dyn TrieRecorder<Root>);
            let trie = TrieDBBuilder::<Layout>::new(&nodes, &self.root).with_cache(&mut cache);
            let trie = trie.with_optional_recorder(recorder).build();
            keys.iter().enumerate().try_for_each(|(at, key)| {
                see(at, trie.get(key).map_err(broken)?.as_deref());
                Ok(())
            })
        };
        // If the device has failed, that is why the trie had no node.
        nodes.made()?;
        seen
    }

    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        let before = self.root;
        let recorder = self.recorder.take();
        let mut nodes = self.nodes();
        let root = {
            let local = self.cache.local_cache_trusted();
            let mut cache = local.as_trie_db_mut_cache();
            let mut recording = recorder.as_ref().map(|one| one.as_trie_recorder(before));
            let recording = recording.as_mut().map(|one| one as &mut dyn TrieRecorder<Root>);
            let delta = rocks::writes_of(&accesses).map(|(key, value)| (key, value.cloned()));
            let root = delta_trie_root::<Layout, _, _, _, _, _>(
                &mut nodes,
                before,
                delta,
                recording,
                Some(&mut cache),
            );
            if let Ok(root) = &root {
                cache.merge_into(&local, *root);
            }
            root.map_err(broken)
        };
        // As in a read.
        let made = nodes.made();
        let (mut made, root) = (made?, root?);
        let mut block = FinishedBlock { made: Vec::new(), replaced: Vec::new(), root };
        for (key, (node, count)) in made.drain() {
            match count {
                1.. => block.made.push((key, node)),
                0 => {}
                ..0 => block.replaced.push(key),
            }
        }
        for (key, node) in &block.made {
            self.uncommitted.entry(key.clone()).or_insert_with(|| (0, node.clone())).0 += 1;
        }
        self.blocks.push_back(block);
        self.root = root;
        Ok(recorder.map(|recorder| -> Box<dyn EngineWitness> {
            let nodes = recorder.drain_storage_proof();
            let compact =
                move || nodes.into_compact_proof::<SpTrieHasher>(before).map_err(unproven);
            Box::new(Proof { nodes: LazyLock::new(Box::new(compact)), accesses })
        }))
    }

    fn commit(&mut self) -> Result<()> {
        self.write(true)
    }

    fn discard(&mut self) -> Result<()> {
        self.recorder = None;
        self.blocks.clear();
        self.uncommitted.clear();
        self.root = self.committed;
        Ok(())
    }

    fn drain(&mut self, _pending: u64) -> Result<()> {
        rocks::drain(&self.db).map_err(wrap)
    }

    fn close(self: Box<Self>) -> Result<()> {
        rocks::close(&self.db).map_err(wrap)
    }
}

type Compact = core::result::Result<CompactProof, String>;

/// A compact storage proof, which a collator makes of the recorded nodes before it sends them, and the block's
/// operations. It is made on first use, outside of the clock of a finish.
struct Proof {
    nodes: LazyLock<Compact, Box<dyn FnOnce() -> Compact + Send>>,
    accesses: Vec<StateAccess>,
}

fn unproven<E: std::fmt::Debug>(error: E) -> String {
    format!("the storage proof: {error:?}")
}

impl EngineWitness for Proof {
    /// Its nodes, each with its length in one or two bytes as SCALE has it, the keys and what was written.
    fn bytes(&self) -> u64 {
        let nodes = self.nodes.iter().flat_map(CompactProof::iter_compact_encoded_nodes);
        let nodes: usize = nodes.map(|node| if node.len() < 64 { 1 } else { 2 } + node.len()).sum();
        (nodes + rocks::bytes(&self.accesses)) as u64
    }

    /// Repeats the block on the nodes of the proof only.
    fn verify(&self, before: &Root) -> core::result::Result<Proven, String> {
        let nodes = self.nodes.as_ref().map_err(Clone::clone)?;
        let (mut nodes, _) = nodes.to_memory_db::<SpTrieHasher>(before).map_err(unproven)?;
        let mut reads = Vec::new();
        for key in rocks::reads(&self.accesses) {
            let value = read_trie_value::<Layout, _>(&nodes, before, &key, None, None);
            reads.push((key, rocks::hashed(value.map_err(unproven)?.as_deref())));
        }
        let delta = rocks::writes_of(&self.accesses).map(|(key, value)| (key, value.cloned()));
        let root = delta_trie_root::<Layout, _, _, _, _, _>(&mut nodes, *before, delta, None, None)
            .map_err(unproven)?;
        Ok(Proven { root, reads, writes: rocks::hashes(&self.accesses) })
    }
}
