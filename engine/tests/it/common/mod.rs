//! What several tests share: a naive model beside the engine, and batches from a seed.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod held_device;

use std::collections::BTreeMap;
use std::path::Path;

use pleach::{Access, AccessKind, Db, Options, SessionOptions, Value};
use pleach_core::naive::NaiveTrie;
use pleach_core::proof::{self, Op};
use pleach_core::{Hasher, Key};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

/// Seeded randomness.
pub struct Rng(ChaCha8Rng);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    Uniform,
    Sequential,
    SharedPrefix,
}

pub fn key(kind: Keys, id: u64) -> Key {
    match kind {
        Keys::Uniform => Hasher::BLAKE3.hash(&id.to_be_bytes()),
        Keys::Sequential => {
            let mut key = [0; 32];
            key[24..].copy_from_slice(&id.to_be_bytes());
            key
        }
        Keys::SharedPrefix => {
            let mut key = [0xa5; 32];
            let hash = Hasher::BLAKE3.hash(&id.to_be_bytes());
            key[7] = 0xa0 | hash[0] & 0x0f;
            key[8..].copy_from_slice(&hash[..24]);
            key
        }
    }
}

/// A key like any other.
pub fn uniform(id: u64) -> Key {
    key(Keys::Uniform, id)
}

/// A database in a folder of the system, created if it is not there, with two workers and a few reads in
/// flight. Old sessions are never told that they are too old.
pub fn open(folder: &Path, cache_mib: u64) -> Db {
    let options = Options::new(folder).create(true).cache_mib(cache_mib).threads(2).in_flight(16);
    Db::open(options.undo_memory_bytes(1 << 30)).expect("opened")
}

/// Commits a batch on the newest state, and gives its number.
pub fn commit(db: &Db, accesses: Vec<Access>) -> u64 {
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(accesses).expect("finished").commit().expect("committed")
}

pub fn value(rng: &mut Rng) -> Value {
    let len = match rng.below(200) {
        0 => 0,
        1..=4 => 1000,
        5 => 5000,
        _ => 8,
    };
    bytes(rng, len)
}

pub fn bytes(rng: &mut Rng, len: usize) -> Value {
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        let word = rng.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    Value::from(bytes)
}

/// The oracle: values in a map, nodes by plain recursion.
#[derive(Clone, Default)]
pub struct Model {
    pub values: BTreeMap<Key, Value>,
}

impl Model {
    pub fn naive(&self, hasher: Hasher) -> NaiveTrie {
        self.values.iter().map(|(key, value)| (*key, hasher.hash(value).into())).collect()
    }

    pub fn apply(&mut self, accesses: &[Access]) {
        for access in accesses {
            if let AccessKind::Write(value) | AccessKind::ReadWrite(value) = &access.kind {
                match value {
                    Some(value) => self.values.insert(access.key, value.clone()),
                    None => self.values.remove(&access.key),
                };
            }
        }
    }
}

/// The same batch as the naive trie takes it.
pub fn ops(hasher: Hasher, accesses: &[Access]) -> Vec<Op> {
    let mut ops: Vec<Op> = accesses
        .iter()
        .map(|access| {
            let hash = |value: &Option<Value>| {
                value.as_ref().map(|value| pleach_core::node::value_hash(hasher, value))
            };
            let kind = match &access.kind {
                AccessKind::Read => proof::Access::Read,
                AccessKind::Write(value) => proof::Access::Write(hash(value)),
                AccessKind::ReadWrite(value) => proof::Access::ReadWrite(hash(value)),
                _ => unreachable!("not made here"),
            };
            Op { key: access.key, access: kind }
        })
        .collect();
    ops.sort_by_key(|op| op.key);
    ops
}

/// A batch of up to `size` accesses to ids below `ids`, each key once.
pub fn batch(rng: &mut Rng, kind: Keys, ids: u64, size: u64) -> Vec<Access> {
    let mut seen = std::collections::HashSet::new();
    let count = rng.below(size + 1);
    let deletes = rng.below(4) * 30;
    (0..count)
        .filter_map(|_| {
            let id = rng.below(ids);
            if !seen.insert(id) {
                return None;
            }
            let new = if rng.below(100) < deletes { None } else { Some(value(rng)) };
            let kind_of = match rng.below(4) {
                0 => AccessKind::Read,
                1 => AccessKind::Write(new),
                _ => AccessKind::ReadWrite(new),
            };
            Some(Access { namespace: 0, key: key(kind, id), kind: kind_of })
        })
        .collect()
}

pub fn cases(default: u64) -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}
