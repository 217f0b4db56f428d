//! The oracle: a sorted map, its root recomputed from scratch after each batch, and all of it
//! written to a file at each commit. It is for small sizes and for golden roots, and has no witness.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pleach_core::node::{combine, leaf};
use pleach_core::{Blake3, Hasher as _, Key, Node, TERMINATOR, ValueHash, prefix};

use crate::account;
use crate::backend::{Backend, Done, Place, Root, View, Work};
use crate::error::{BenchError, Result};
use crate::workload::transfer::Change;

/// Bytes of a pair in the state file.
const PAIR: usize = 40;

/// The state in memory and the file that holds it.
#[derive(Debug)]
pub(crate) struct Model {
    pairs: BTreeMap<Key, [u8; 8]>,
    batches: u64,
    root: Root,
    folder: PathBuf,
}

impl Model {
    /// Opens or creates the model's folder.
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let folder = place.folder.clone();
        std::fs::create_dir_all(&folder).map_err(BenchError::file(&folder))?;
        let path = state_path(&folder);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => vec![0; 8],
            Err(error) => return Err(BenchError::file(&path)(error)),
        };
        let damaged = || BenchError::Wrong(format!("{} is damaged", path.display()));
        let (head, tail) = bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
        let (chunks, rest) = tail.as_chunks::<PAIR>();
        if !rest.is_empty() {
            return Err(damaged());
        }
        let pairs: BTreeMap<Key, [u8; 8]> = chunks.iter().map(split).collect();
        let root = root_of(&pairs);
        Ok(Self { pairs, batches: u64::from_be_bytes(*head), root, folder })
    }

    fn save(&self) -> Result<()> {
        let mut bytes = Vec::with_capacity(8 + PAIR * self.pairs.len());
        bytes.extend_from_slice(&self.batches.to_be_bytes());
        for (key, value) in &self.pairs {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        let path = state_path(&self.folder);
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, bytes).map_err(BenchError::file(&fresh))?;
        std::fs::rename(&fresh, &path).map_err(BenchError::file(&path))
    }
}

impl Backend for Model {
    fn root(&self) -> Root {
        self.root
    }

    fn batches(&self) -> Result<u64> {
        Ok(self.batches)
    }

    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()> {
        let value = account::encode(account::INITIAL_BALANCE);
        self.pairs = (0..accounts).map(|id| (account::key(id), value)).collect();
        self.root = root_of(&self.pairs);
        progress(accounts);
        self.save()
    }

    fn run_batch(&mut self, work: Work<'_>) -> Result<Done> {
        let start = Instant::now();
        let mut seen = Vec::with_capacity(work.keys.len());
        for key in work.keys {
            seen.push(self.pairs.get(key).map(|value| account::decode(value)).transpose()?);
        }
        let changes = (work.compute)(&seen)?;
        let executed = Instant::now();
        for (key, change) in work.keys.iter().zip(changes) {
            match change {
                Change::Read => {}
                Change::Write(balance) => {
                    self.pairs.insert(*key, account::encode(balance));
                }
                Change::Delete => {
                    self.pairs.remove(key);
                }
            }
        }
        let prev_root = core::mem::replace(&mut self.root, root_of(&self.pairs));
        (work.before_commit)(&self.root)?;
        let finished = Instant::now();
        self.batches = work.number + 1;
        self.save()?;
        Ok(Done {
            execute: executed - start,
            finish: finished - executed,
            commit: finished.elapsed(),
            prev_root,
            root: self.root,
            witness: None,
        })
    }

    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        Ok(values(&self.pairs, keys))
    }

    fn view(&mut self) -> Result<Box<dyn View>> {
        Ok(Box::new(Copy { pairs: self.pairs.clone(), root: self.root }))
    }

    fn notes(&self) -> Vec<String> {
        vec!["model: the oracle; no witness, nothing synced, nothing announced".to_owned()]
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A copy of a state, with its root.
#[derive(Debug)]
struct Copy {
    pairs: BTreeMap<Key, [u8; 8]>,
    root: Root,
}

impl View for Copy {
    fn root(&self) -> Root {
        self.root
    }

    fn read(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        Ok(values(&self.pairs, keys))
    }
}

fn values(pairs: &BTreeMap<Key, [u8; 8]>, keys: &[Key]) -> Vec<Option<Vec<u8>>> {
    keys.iter().map(|key| pairs.get(key).map(|value| value.to_vec())).collect()
}

fn state_path(folder: &Path) -> PathBuf {
    folder.join("state")
}

fn split(pair: &[u8; PAIR]) -> (Key, [u8; 8]) {
    let (mut key, mut value) = ([0; 32], [0; 8]);
    key.copy_from_slice(&pair[..32]);
    value.copy_from_slice(&pair[32..]);
    (key, value)
}

/// The root of a set of pairs, by the definition.
fn root_of(pairs: &BTreeMap<Key, [u8; 8]>) -> Root {
    let hashed: Vec<_> =
        pairs.iter().map(|(key, value)| (*key, Blake3::hash(value).into())).collect();
    node_of(&hashed, 0).to_bytes()
}

fn node_of(pairs: &[(Key, ValueHash)], depth: u16) -> Node {
    match pairs {
        [] => TERMINATOR,
        [(key, hash)] => leaf::<Blake3>(key, hash),
        _ => {
            let middle = pairs.partition_point(|(key, _)| !prefix::bit(key, depth));
            let (left, right) = pairs.split_at(middle);
            combine::<Blake3>(&node_of(left, depth + 1), &node_of(right, depth + 1))
        }
    }
}
