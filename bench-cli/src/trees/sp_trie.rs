//! The crate sp-trie over RocksDB, as a Substrate node has it.
//!
//! * Layout: the nodes of state version 1 (values of more than 32 bytes beside their leaf), each under the path to
//!   it and its hash, in one column. A commit writes the nodes that a block has made and deletes those that it
//!   replaced: no older state is kept.
//! * Finished blocks that are not committed have their nodes in one map, counted, as in a node's non-canonical
//!   overlay.
//! * Hash: BLAKE3, as all backends here, where Substrate has `BLAKE2b`.
//! * Budget: half for the trie cache (nodes and values, shared between blocks), half for RocksDB.
//! * Durability: the log is synced with each commit. A load writes no log, and flushes at its end.
//! * A block reads on one thread, and records what it reads when a witness is wanted: a storage proof.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::hash::DefaultHasher;
use std::sync::{Mutex, PoisonError};

use hash_db::{AsHashDB, HashDB, HashDBRef, Prefix};
use pleach_core::{Hasher as _, Key};
use rocksdb::{DB, WriteBatch};
use sp_trie::cache::{CacheSize, SharedTrieCache};
use sp_trie::recorder::Recorder;
use sp_trie::{
    DBValue, LayoutV1, PrefixedMemoryDB, StorageProof, Trie as _, TrieDBBuilder, delta_trie_root,
    empty_trie_root, prefixed_key, read_trie_value,
};

use super::over_rocks::{bytes, hashed, hashes, settings};
use super::tree::{Change, Finished, Pair, See, Tree, in_blocks};
use super::witness::{Proven, Root, Witness};
use crate::error::{BenchError, Result};
use crate::rocks::{self, Budget};
use crate::stores::StoreOptions;

/// Where the committed root is; nodes have longer keys.
const ROOT: &[u8] = b"root";

type Layout = LayoutV1<Blake3>;

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("sp-trie")(error)
}

/// A trie's own errors do not print.
fn broken<E: std::fmt::Debug>(error: E) -> BenchError {
    wrap(format!("{error:?}"))
}

/// BLAKE3 as the trie wants its hash.
#[derive(Debug)]
struct Blake3;

impl hash_db::Hasher for Blake3 {
    type Out = [u8; 32];
    type StdHasher = DefaultHasher;
    const LENGTH: usize = 32;

    fn hash(bytes: &[u8]) -> [u8; 32] {
        pleach_core::Blake3::hash(bytes)
    }
}

/// Nodes of blocks that are not committed: how many of those have made it, and what it is.
type Uncommitted = HashMap<Vec<u8>, (u32, DBValue)>;

/// The nodes of a state, and those that a block makes over it.
struct Nodes<'a> {
    db: &'a DB,
    uncommitted: &'a Uncommitted,
    made: PrefixedMemoryDB<Blake3>,
    /// What the device said: the trie only learns that there is no node.
    failure: Mutex<Option<rocksdb::Error>>,
}

impl Nodes<'_> {
    fn find(&self, hash: &Root, prefix: Prefix<'_>) -> Option<DBValue> {
        if let Some(made) = HashDB::get(&self.made, hash, prefix) {
            return Some(made);
        }
        let key = prefixed_key::<Blake3>(hash, prefix);
        if let Some((_, node)) = self.uncommitted.get(&key) {
            return Some(node.clone());
        }
        self.db.get(&key).unwrap_or_else(|error| {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            None
        })
    }

    /// What the block has made, unless a read of the device has failed.
    fn made(self) -> Result<PrefixedMemoryDB<Blake3>> {
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(self.made), |error| Err(wrap(error)))
    }
}

impl HashDBRef<Blake3, DBValue> for Nodes<'_> {
    fn get(&self, key: &Root, prefix: Prefix<'_>) -> Option<DBValue> {
        self.find(key, prefix)
    }

    fn contains(&self, key: &Root, prefix: Prefix<'_>) -> bool {
        self.find(key, prefix).is_some()
    }
}

impl HashDB<Blake3, DBValue> for Nodes<'_> {
    fn get(&self, key: &Root, prefix: Prefix<'_>) -> Option<DBValue> {
        self.find(key, prefix)
    }

    fn contains(&self, key: &Root, prefix: Prefix<'_>) -> bool {
        self.find(key, prefix).is_some()
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

impl AsHashDB<Blake3, DBValue> for Nodes<'_> {
    fn as_hash_db(&self) -> &dyn HashDB<Blake3, DBValue> {
        self
    }

    fn as_hash_db_mut<'a>(&'a mut self) -> &'a mut (dyn HashDB<Blake3, DBValue> + 'a) {
        self
    }
}

/// A finished block.
struct Block {
    made: Vec<(Vec<u8>, DBValue)>,
    replaced: Vec<Vec<u8>>,
    root: Root,
}

/// What a block has read, to be proven.
struct Recording {
    recorder: Recorder<Blake3>,
    reads: Vec<Key>,
}

pub(super) struct SpTrie {
    db: DB,
    budget: Budget,
    cache: SharedTrieCache<Blake3>,
    cache_mib: u64,
    durable: bool,
    /// Of the newest block.
    root: Root,
    committed: Root,
    uncommitted: Uncommitted,
    /// The oldest first.
    blocks: VecDeque<Block>,
    recording: Option<Recording>,
}

impl SpTrie {
    pub(super) fn open(options: &StoreOptions, durable: bool) -> Result<Self> {
        options.peer_args_of("sp-trie", &[])?;
        let cache_mib = options.cache_mib / 2;
        let budget = Budget::of(options.cache_mib - cache_mib, options.threads, None);
        let db = DB::open(&budget.options(), &options.folder).map_err(wrap)?;
        let root = match db.get(ROOT).map_err(wrap)? {
            Some(root) => Root::try_from(root).map_err(|_| wrap("its root has another length"))?,
            None => empty_trie_root::<Layout>(),
        };
        let bytes = usize::try_from(cache_mib << 20).map_err(wrap)?;
        let cache = SharedTrieCache::new(CacheSize::new(bytes), None);
        Ok(Self {
            db,
            budget,
            cache,
            cache_mib,
            durable,
            root,
            committed: root,
            uncommitted: Uncommitted::new(),
            blocks: VecDeque::new(),
            recording: None,
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
        let mut options = rocks::writes(self.durable && log);
        options.disable_wal(!log);
        self.db.write_opt(batch, &options).map_err(wrap)?;
        self.committed = block.root;
        for (key, _) in block.made {
            if let std::collections::hash_map::Entry::Occupied(mut entry) =
                self.uncommitted.entry(key)
            {
                entry.get_mut().0 -= 1;
                if entry.get().0 == 0 {
                    entry.remove();
                }
            }
        }
        Ok(())
    }
}

impl Tree for SpTrie {
    fn settings(&self) -> Vec<(String, String)> {
        let own = vec![
            ("trie cache".to_owned(), format!("{} MiB", self.cache_mib)),
            ("state".to_owned(), "version 1, blake3, the newest only".to_owned()),
        ];
        settings(own, self.durable, &self.budget)
    }

    fn root(&self) -> Option<Root> {
        Some(self.root)
    }

    fn begin(&mut self) -> Result<()> {
        self.recording = None;
        Ok(())
    }

    fn begin_witnessed(&mut self) -> Result<()> {
        self.recording = Some(Recording { recorder: Recorder::default(), reads: Vec::new() });
        Ok(())
    }

    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()> {
        let nodes = self.nodes();
        let local = self.cache.local_cache_trusted();
        let seen: Result<()> = {
            let mut cache = local.as_trie_db_cache(self.root);
            let recording = self.recording.as_ref();
            let mut recorder = recording.map(|one| one.recorder.as_trie_recorder(self.root));
            let recorder = recorder.as_mut().map(|one| one as &mut dyn sp_trie::TrieRecorder<Root>);
            let trie = TrieDBBuilder::<Layout>::new(&nodes, &self.root).with_cache(&mut cache);
            let trie = trie.with_optional_recorder(recorder).build();
            keys.iter().try_for_each(|key| {
                see(trie.get(key).map_err(broken)?.map(Cow::Owned));
                Ok(())
            })
        };
        // If the device has failed, that is why the trie had no node.
        nodes.made()?;
        seen?;
        if let Some(recording) = &mut self.recording {
            recording.reads.extend_from_slice(keys);
        }
        Ok(())
    }

    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished> {
        let before = self.root;
        let recording = self.recording.take();
        let mut nodes = self.nodes();
        let root = {
            let local = self.cache.local_cache_trusted();
            let mut cache = local.as_trie_db_mut_cache();
            let recording = recording.as_ref();
            let mut recorder = recording.map(|one| one.recorder.as_trie_recorder(before));
            let recorder = recorder.as_mut().map(|one| one as &mut dyn sp_trie::TrieRecorder<Root>);
            let delta = changes.iter().map(|(key, value)| (*key, value));
            let root = delta_trie_root::<Layout, _, _, _, _, _>(
                &mut nodes,
                before,
                delta,
                recorder,
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
        let mut block = Block { made: Vec::new(), replaced: Vec::new(), root };
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
        let witness = recording.map(|recording| -> Box<dyn Witness> {
            let nodes = recording.recorder.drain_storage_proof();
            Box::new(Proof { nodes, reads: recording.reads, writes: changes })
        });
        Ok(Finished { root: Some(root), witness })
    }

    fn commit(&mut self) -> Result<()> {
        self.write(true)
    }

    fn discard(&mut self) -> Result<()> {
        self.recording = None;
        self.blocks.clear();
        self.uncommitted.clear();
        self.root = self.committed;
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        rocks::drain(&self.db).map_err(wrap)
    }

    fn works_on(&self) -> bool {
        true
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |block| {
            self.finish(block)?;
            self.write(false)
        })?;
        self.db.flush().map_err(wrap)
    }

    fn close(self: Box<Self>) -> Result<()> {
        rocks::close(&self.db).map_err(wrap)
    }
}

/// A storage proof, and what was done with it.
#[derive(Debug)]
struct Proof {
    nodes: StorageProof,
    reads: Vec<Key>,
    writes: Vec<Change>,
}

impl Witness for Proof {
    fn bytes(&self) -> u64 {
        let nodes: usize = self.nodes.iter_nodes().map(|node| 4 + node.len()).sum();
        (nodes + 32 * self.reads.len() + bytes(&self.writes)) as u64
    }

    /// Does the block again on the nodes of the proof alone.
    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String> {
        let failed = |error: String| format!("the storage proof: {error}");
        let mut nodes = self.nodes.to_memory_db::<Blake3>();
        let mut reads = Vec::with_capacity(self.reads.len());
        for key in &self.reads {
            let value = read_trie_value::<Layout, _>(&nodes, prev_root, key, None, None)
                .map_err(|error| failed(format!("{error:?}")))?;
            reads.push((*key, hashed(value.as_deref())));
        }
        let delta = self.writes.iter().map(|(key, value)| (*key, value));
        let new_root =
            delta_trie_root::<Layout, _, _, _, _, _>(&mut nodes, *prev_root, delta, None, None)
                .map_err(|error| failed(format!("{error:?}")))?;
        Ok(Proven { new_root, reads, writes: hashes(&self.writes) })
    }
}
