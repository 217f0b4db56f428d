//! The crate jmt over RocksDB, in the layout of sov-db.
//!
//! * Layout: a column family of nodes, under version and path; one of values, under key and version, so that the
//!   newest one at a version is a single seek. A version is a block; all versions stay, as there. Keys are hashes
//!   already, so that there is no column of preimages.
//! * Hash: BLAKE3, as all backends here, where sov-db has SHA-256.
//! * Budget: all of it for RocksDB; the crate has no cache of its own.
//! * Durability: the log is synced with each commit. A load writes no log, and flushes at its end.
//! * A block reads on one thread. A witness has a proof for each key that was read, and that of the update.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use jmt::proof::{SparseMerkleProof, UpdateMerkleProof};
use jmt::storage::{LeafNode, Node, NodeBatch, NodeKey, TreeReader};
use jmt::{JellyfishMerkleTree, KeyHash, OwnedValue, RootHash, SimpleHasher, Version};
use pleach_core::Key;
use rocksdb::{
    ColumnFamilyDescriptor, DB, Direction, IteratorMode, Options, ReadOptions, SliceTransform,
    WriteBatch,
};

use super::over_rocks::{bytes, hashed, hashes, settings};
use super::tree::{Change, Finished, Pair, See, Tree, in_blocks};
use super::witness::{Proven, Root, Witness};
use crate::error::{BenchError, Result};
use crate::rocks::{self, Budget};
use crate::stores::StoreOptions;

const NODES: &str = "jmt_nodes";
const VALUES: &str = "jmt_values";
/// Where the committed version is, in the default family.
const VERSION: &[u8] = b"version";

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("jmt")(error)
}

/// BLAKE3 as the tree wants its hash.
struct Blake3(blake3::Hasher);

impl SimpleHasher for Blake3 {
    fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finalize(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// A node's key in the database: its version, big-endian, so that a version's nodes lie together, and its path.
fn node_key(key: &NodeKey) -> anyhow::Result<Vec<u8>> {
    let mut bytes = key.version().to_be_bytes().to_vec();
    borsh::to_writer(&mut bytes, key.nibble_path())?;
    Ok(bytes)
}

/// A value's key in the database: those of a key lie together, the newest last.
fn value_key(key: &[u8; 32], version: Version) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(key);
    bytes[32..].copy_from_slice(&version.to_be_bytes());
    bytes
}

/// Finished blocks that are not committed.
#[derive(Default)]
struct Uncommitted {
    nodes: HashMap<NodeKey, Node>,
    /// The oldest first.
    values: HashMap<KeyHash, Vec<(Version, Option<OwnedValue>)>>,
    /// The oldest first.
    blocks: VecDeque<(Version, NodeBatch)>,
}

pub(super) struct Jmt {
    db: DB,
    budget: Budget,
    durable: bool,
    /// Of the newest block.
    version: Option<Version>,
    root: Root,
    uncommitted: Uncommitted,
    /// Keys that the block has read, if a witness is wanted.
    reads: Option<Vec<Key>>,
}

impl TreeReader for Jmt {
    fn get_node_option(&self, key: &NodeKey) -> anyhow::Result<Option<Node>> {
        if let Some(node) = self.uncommitted.nodes.get(key) {
            return Ok(Some(node.clone()));
        }
        let found = self.db.get_pinned_cf(self.family(NODES)?, node_key(key)?)?;
        Ok(found.map(|bytes| borsh::from_slice(&bytes)).transpose()?)
    }

    fn get_value_option(&self, most: Version, key: KeyHash) -> anyhow::Result<Option<OwnedValue>> {
        let made = self.uncommitted.values.get(&key);
        let made = made.and_then(|all| all.iter().rev().find(|(version, _)| *version <= most));
        if let Some((_, value)) = made {
            return Ok(value.clone());
        }
        let mut options = ReadOptions::default();
        // All versions of a key have the prefix that the filters know.
        options.set_prefix_same_as_start(true);
        let from = value_key(&key.0, most);
        let mode = IteratorMode::From(&from, Direction::Reverse);
        match self.db.iterator_cf_opt(self.family(VALUES)?, options, mode).next().transpose()? {
            Some((at, value)) if at[..32] == key.0 => Ok(borsh::from_slice(&value)?),
            _ => Ok(None),
        }
    }

    /// Only a restored tree is asked for it.
    fn get_rightmost_leaf(&self) -> anyhow::Result<Option<(NodeKey, LeafNode)>> {
        anyhow::bail!("trees are not restored here")
    }
}

impl Jmt {
    pub(super) fn open(options: &StoreOptions, durable: bool) -> Result<Self> {
        options.peer_args_of("jmt", &[])?;
        let budget = Budget::of(options.cache_mib, options.threads, None);
        let settings = budget.options();
        let mut values: Options = settings.clone();
        values.set_prefix_extractor(SliceTransform::create_fixed_prefix(32));
        let families = [
            ColumnFamilyDescriptor::new(NODES, settings.clone()),
            ColumnFamilyDescriptor::new(VALUES, values),
        ];
        let db = DB::open_cf_descriptors(&settings, &options.folder, families).map_err(wrap)?;
        let mut jmt = Self {
            db,
            budget,
            durable,
            version: None,
            root: Root::default(),
            uncommitted: Uncommitted::default(),
            reads: None,
        };
        jmt.newest()?;
        Ok(jmt)
    }

    fn family(&self, name: &'static str) -> anyhow::Result<&rocksdb::ColumnFamily> {
        self.db.cf_handle(name).ok_or_else(|| anyhow::anyhow!("no column family {name}"))
    }

    fn tree(&self) -> JellyfishMerkleTree<'_, Self, Blake3> {
        JellyfishMerkleTree::new(self)
    }

    /// Takes the committed state for the newest.
    fn newest(&mut self) -> Result<()> {
        self.version = match self.db.get(VERSION).map_err(wrap)? {
            None => None,
            Some(bytes) => {
                let bytes = bytes.try_into().map_err(|_| wrap("its version has another length"))?;
                Some(Version::from_be_bytes(bytes))
            }
        };
        self.root = match self.version {
            None => JellyfishMerkleTree::<Self, Blake3>::EMPTY_ROOT.0,
            Some(version) => self.tree().get_root_hash(version).map_err(wrap)?.0,
        };
        Ok(())
    }

    fn write(&mut self, log: bool) -> Result<()> {
        let Some((version, block)) = self.uncommitted.blocks.pop_front() else { return Ok(()) };
        let (nodes, values) =
            (self.family(NODES).map_err(wrap)?, self.family(VALUES).map_err(wrap)?);
        let mut batch = WriteBatch::default();
        for (key, node) in block.nodes() {
            batch.put_cf(nodes, node_key(key).map_err(wrap)?, borsh::to_vec(node).map_err(wrap)?);
        }
        for ((version, key), value) in block.values() {
            batch.put_cf(values, value_key(&key.0, *version), borsh::to_vec(value).map_err(wrap)?);
        }
        batch.put(VERSION, version.to_be_bytes());
        let mut options = rocks::writes(self.durable && log);
        options.disable_wal(!log);
        self.db.write_opt(batch, &options).map_err(wrap)?;
        for key in block.nodes().keys() {
            self.uncommitted.nodes.remove(key);
        }
        for (version, key) in block.values().keys() {
            if let Some(all) = self.uncommitted.values.get_mut(key) {
                all.retain(|(made, _)| made > version);
                if all.is_empty() {
                    self.uncommitted.values.remove(key);
                }
            }
        }
        Ok(())
    }

    /// A proof for each key, in the newest state.
    fn prove(&self, keys: Vec<Key>) -> anyhow::Result<Vec<Read>> {
        let version = self.version.ok_or_else(|| anyhow::anyhow!("nothing to be read"))?;
        let tree = self.tree();
        let prove = |key: Key| {
            let (value, proof) = tree.get_with_proof(KeyHash(key), version)?;
            Ok((key, value, borsh::to_vec(&proof)?))
        };
        keys.into_iter().map(prove).collect()
    }
}

impl Tree for Jmt {
    fn settings(&self) -> Vec<(String, String)> {
        let own = vec![("state".to_owned(), "blake3, all versions stay".to_owned())];
        settings(own, self.durable, &self.budget)
    }

    fn root(&self) -> Option<Root> {
        Some(self.root)
    }

    fn begin(&mut self) -> Result<()> {
        self.reads = None;
        Ok(())
    }

    fn begin_witnessed(&mut self) -> Result<()> {
        self.reads = Some(Vec::new());
        Ok(())
    }

    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()> {
        if let Some(reads) = &mut self.reads {
            reads.extend_from_slice(keys);
        }
        for key in keys {
            let value = match self.version {
                None => None,
                Some(version) => self.get_value_option(version, KeyHash(*key)).map_err(wrap)?,
            };
            see(value.map(Cow::Owned));
        }
        Ok(())
    }

    fn finish(&mut self, mut changes: Vec<Change>) -> Result<Finished> {
        let version = self.version.map_or(0, |version| version + 1);
        let reads = self.reads.take().map(|keys| self.prove(keys)).transpose().map_err(wrap)?;
        changes.sort_unstable_by_key(|change| change.0);
        let set = changes.iter().map(|(key, value)| (KeyHash(*key), value.clone()));
        let (root, proof, batch) = if reads.is_some() {
            let (root, proof, batch) =
                self.tree().put_value_set_with_proof(set, version).map_err(wrap)?;
            (root, Some(borsh::to_vec(&proof).map_err(wrap)?), batch)
        } else {
            let (root, batch) = self.tree().put_value_set(set, version).map_err(wrap)?;
            (root, None, batch)
        };
        let batch = batch.node_batch;
        for (key, node) in batch.nodes() {
            self.uncommitted.nodes.insert(key.clone(), node.clone());
        }
        for ((version, key), value) in batch.values() {
            let all = self.uncommitted.values.entry(*key).or_default();
            all.push((*version, value.clone()));
        }
        self.uncommitted.blocks.push_back((version, batch));
        self.version = Some(version);
        self.root = root.0;
        let witness = reads.zip(proof).map(|(reads, update)| -> Box<dyn Witness> {
            Box::new(Proofs { new_root: root.0, reads, update, writes: changes })
        });
        Ok(Finished { root: Some(root.0), witness })
    }

    fn commit(&mut self) -> Result<()> {
        self.write(true)
    }

    fn discard(&mut self) -> Result<()> {
        self.reads = None;
        self.uncommitted = Uncommitted::default();
        self.newest()
    }

    fn drain(&mut self) -> Result<()> {
        rocks::drain(&self.db).map_err(wrap)
    }

    fn works_on(&self) -> bool {
        true
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |version| {
            self.finish(version)?;
            self.write(false)
        })?;
        for family in [NODES, VALUES] {
            self.db.flush_cf(self.family(family).map_err(wrap)?).map_err(wrap)?;
        }
        // The version, last.
        self.db.flush().map_err(wrap)
    }

    fn close(self: Box<Self>) -> Result<()> {
        rocks::close(&self.db).map_err(wrap)
    }
}

/// A key that was read, its value, and the proof as bytes.
type Read = (Key, Option<OwnedValue>, Vec<u8>);

/// Proofs of what was read, and of the update.
#[derive(Debug)]
struct Proofs {
    new_root: Root,
    reads: Vec<Read>,
    update: Vec<u8>,
    writes: Vec<Change>,
}

impl Proofs {
    fn verified(&self, prev_root: &Root) -> anyhow::Result<Proven> {
        let mut reads = Vec::with_capacity(self.reads.len());
        for (key, value, proof) in &self.reads {
            let proof: SparseMerkleProof<Blake3> = borsh::from_slice(proof)?;
            proof.verify(RootHash(*prev_root), KeyHash(*key), value.as_ref())?;
            reads.push((*key, hashed(value.as_deref())));
        }
        let update: UpdateMerkleProof<Blake3> = borsh::from_slice(&self.update)?;
        let writes: Vec<_> =
            self.writes.iter().map(|(key, value)| (KeyHash(*key), value.as_deref())).collect();
        update.verify_update(RootHash(*prev_root), RootHash(self.new_root), &writes)?;
        Ok(Proven { new_root: self.new_root, reads, writes: hashes(&self.writes) })
    }
}

impl Witness for Proofs {
    fn bytes(&self) -> u64 {
        let read = |(_, value, proof): &Read| 33 + value.as_ref().map_or(0, Vec::len) + proof.len();
        let reads: usize = self.reads.iter().map(read).sum();
        (reads + bytes(&self.writes) + self.update.len()) as u64
    }

    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String> {
        self.verified(prev_root).map_err(|error| format!("{error:#}"))
    }
}
