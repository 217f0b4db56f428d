//! The crate jmt over `RocksDB`, in the layout of sov-db.
//!
//! * Layout: a column family of nodes, under version and path; one of values, under key and version, so that the newest
//!   one at a version is a single seek. A version is a block; all versions stay, as there. Keys are hashes already, so
//!   that there is no column of preimages.
//! * Hash: BLAKE3, as all engines here, where sov-db has SHA-256.
//! * Budget: all of it for `RocksDB`; the crate has no cache of its own.
//! * Durability: the log is synced with each commit. A load writes no log, and flushes at its end.
//! * A block reads on one thread. A witness has a proof for each key that was read, and that of the update.

use std::collections::{HashMap, VecDeque};

use jmt::proof::{SparseMerkleProof, UpdateMerkleProof};
use jmt::storage::{LeafNode, Node, NodeBatch, NodeKey, TreeReader};
use jmt::{JellyfishMerkleTree, KeyHash, OwnedValue, RootHash, SimpleHasher, Version};
use pleach_core::Key;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, Direction, IteratorMode, Options, ReadOptions,
    SliceTransform, WriteBatch,
};

use super::buffered::{by_block, hashed, in_blocks};
use super::{
    Engine, EngineWitness, Pair, Proven, Root, Setup, StateAccess, TxBody, ValueSink, rocks,
};
use crate::error::{Error, Result, of_engine};

const NODES: &str = "jmt_nodes";
const VALUES: &str = "jmt_values";
/// Where the committed version is, in the default family.
const VERSION: &[u8] = b"version";

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("jmt")(error)
}

/// BLAKE3 as the tree wants its hash.
struct JmtHasher(blake3::Hasher);

impl SimpleHasher for JmtHasher {
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
fn value_key(key: &Key, version: Version) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(key);
    bytes[32..].copy_from_slice(&version.to_be_bytes());
    bytes
}

/// Finished blocks that are not committed.
#[derive(Default)]
struct UncommittedNodes {
    nodes: HashMap<NodeKey, Node>,
    /// The oldest first.
    values: HashMap<KeyHash, Vec<(Version, Option<OwnedValue>)>>,
    /// The oldest first.
    blocks: VecDeque<(Version, NodeBatch)>,
}

/// An open database.
pub struct Jmt {
    db: DB,
    settings: Vec<(&'static str, String)>,
    durable: bool,
    /// Of the newest block.
    version: Option<Version>,
    root: Root,
    uncommitted: UncommittedNodes,
    /// True when the open block makes a witness.
    proves: bool,
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

    /// Used only by a restored tree.
    fn get_rightmost_leaf(&self) -> anyhow::Result<Option<(NodeKey, LeafNode)>> {
        anyhow::bail!("trees are not restored here")
    }
}

impl Jmt {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        setup.args("jmt", &[])?;
        let durable = setup.durable();
        let (options, more) = rocks::options(setup.cache_mib, setup.threads(), None);
        let mut settings =
            vec![("state", "blake3, all versions stay".to_owned()), rocks::durability(durable)];
        settings.extend(more);
        let mut values: Options = options.clone();
        values.set_prefix_extractor(SliceTransform::create_fixed_prefix(32));
        let families = [
            ColumnFamilyDescriptor::new(NODES, options.clone()),
            ColumnFamilyDescriptor::new(VALUES, values),
        ];
        let db = DB::open_cf_descriptors(&options, &setup.folder, families).map_err(wrap)?;
        let (root, uncommitted) = (Root::default(), UncommittedNodes::default());
        let mut jmt =
            Self { db, settings, durable, version: None, root, uncommitted, proves: false };
        jmt.discard()?;
        Ok(jmt)
    }

    fn family(&self, name: &'static str) -> anyhow::Result<&ColumnFamily> {
        self.db.cf_handle(name).ok_or_else(|| anyhow::anyhow!("no column family {name}"))
    }

    fn tree(&self) -> JellyfishMerkleTree<'_, Self, JmtHasher> {
        JellyfishMerkleTree::new(self)
    }

    fn write(&mut self, log: bool) -> anyhow::Result<()> {
        let Some((version, block)) = self.uncommitted.blocks.pop_front() else { return Ok(()) };
        let (nodes, values) = (self.family(NODES)?, self.family(VALUES)?);
        let mut batch = WriteBatch::default();
        for (key, node) in block.nodes() {
            batch.put_cf(nodes, node_key(key)?, borsh::to_vec(node)?);
        }
        for ((version, key), value) in block.values() {
            batch.put_cf(values, value_key(&key.0, *version), borsh::to_vec(value)?);
        }
        batch.put(VERSION, version.to_be_bytes());
        rocks::write(&self.db, batch, self.durable, log)?;
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

    /// Makes a block, and if it is to be proven a proof of each key that it reads, and of the update.
    fn make(
        &mut self,
        mut accesses: Vec<StateAccess>,
    ) -> anyhow::Result<Option<Box<dyn EngineWitness>>> {
        accesses.sort_unstable_by_key(|access| access.key);
        let version = self.version.map_or(0, |version| version + 1);
        let prove = |key: Key| {
            let before = self.version.ok_or_else(|| anyhow::anyhow!("nothing to be read"))?;
            let (value, proof) = self.tree().get_with_proof(KeyHash(key), before)?;
            Ok((key, value, borsh::to_vec(&proof)?))
        };
        let writes = rocks::writes_of(&accesses);
        let writes = writes.map(|(key, value)| (KeyHash(key), value.map(|value| value.to_vec())));
        let (root, proofs, batch) = if self.proves {
            let reads = rocks::reads(&accesses).map(prove).collect::<anyhow::Result<_>>()?;
            let (root, proof, batch) = self.tree().put_value_set_with_proof(writes, version)?;
            (root, Some((reads, borsh::to_vec(&proof)?)), batch)
        } else {
            let (root, batch) = self.tree().put_value_set(writes, version)?;
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
        (self.version, self.root, self.proves) = (Some(version), root.0, false);
        Ok(proofs.map(|(reads, update)| -> Box<dyn EngineWitness> {
            Box::new(Proofs { root: root.0, reads, update, accesses })
        }))
    }
}

impl Engine for Jmt {
    fn settings(&self) -> Vec<(&'static str, String)> {
        self.settings.clone()
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |version| {
            self.finish(version)?;
            self.write(false).map_err(wrap)
        })?;
        for family in [NODES, VALUES] {
            self.db.flush_cf(self.family(family).map_err(wrap)?).map_err(wrap)?;
        }
        // The version, last.
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
        self.proves = witness;
        Ok(())
    }

    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            let value = match self.version {
                None => None,
                Some(version) => self.get_value_option(version, KeyHash(*key)).map_err(wrap)?,
            };
            see(at, value.as_deref());
        }
        Ok(())
    }

    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        self.make(accesses).map_err(wrap)
    }

    fn commit(&mut self) -> Result<()> {
        self.write(true).map_err(wrap)
    }

    fn discard(&mut self) -> Result<()> {
        self.proves = false;
        self.uncommitted = UncommittedNodes::default();
        let bytes = self.db.get(VERSION).map_err(wrap)?;
        let version = bytes.map(|bytes| bytes.try_into().map(Version::from_be_bytes)).transpose();
        self.version = version.map_err(|_| wrap("its version has another length"))?;
        self.root = match self.version {
            None => JellyfishMerkleTree::<Self, JmtHasher>::EMPTY_ROOT.0,
            Some(version) => self.tree().get_root_hash(version).map_err(wrap)?.0,
        };
        Ok(())
    }

    fn drain(&mut self, _pending: u64) -> Result<()> {
        rocks::drain(&self.db).map_err(wrap)
    }

    fn close(self: Box<Self>) -> Result<()> {
        rocks::close(&self.db).map_err(wrap)
    }
}

/// A key that was read, its value, and the proof as bytes.
type JmtRead = (Key, Option<OwnedValue>, Vec<u8>);

/// Proofs of the reads, and of the update.
struct Proofs {
    root: Root,
    reads: Vec<JmtRead>,
    update: Vec<u8>,
    /// In the order of their keys.
    accesses: Vec<StateAccess>,
}

impl Proofs {
    fn verified(&self, before: &Root) -> anyhow::Result<Proven> {
        let mut reads = Vec::with_capacity(self.reads.len());
        for (key, value, proof) in &self.reads {
            let proof: SparseMerkleProof<JmtHasher> = borsh::from_slice(proof)?;
            proof.verify(RootHash(*before), KeyHash(*key), value.as_ref())?;
            reads.push((*key, rocks::hashed(value.as_deref())));
        }
        let update: UpdateMerkleProof<JmtHasher> = borsh::from_slice(&self.update)?;
        let writes = rocks::writes_of(&self.accesses);
        let writes = writes.map(|(key, value)| (KeyHash(key), value.map(|value| &**value)));
        let writes: Vec<_> = writes.collect();
        update.verify_update(RootHash(*before), RootHash(self.root), &writes)?;
        Ok(Proven { root: self.root, reads, writes: rocks::hashes(&self.accesses) })
    }
}

impl EngineWitness for Proofs {
    fn bytes(&self) -> u64 {
        let read = |(_, value, proof): &JmtRead| value.as_ref().map_or(0, Vec::len) + proof.len();
        let reads: usize = self.reads.iter().map(read).sum();
        (reads + rocks::bytes(&self.accesses) + self.update.len()) as u64
    }

    fn verify(&self, before: &Root) -> core::result::Result<Proven, String> {
        self.verified(before).map_err(|error| format!("{error:#}"))
    }
}
