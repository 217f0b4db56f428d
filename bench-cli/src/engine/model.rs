//! The oracle: a sorted map in memory, whose root is computed from scratch with each block. For small sizes, and for
//! golden roots; it has no witness, and no commit is durable. In a folder it is a file that a close writes.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use pleach::Value;
use pleach_core::hexadecimal::{from_hex, hex};
use pleach_core::node::{combine, leaf};
use pleach_core::{Hasher, Key, Node, TERMINATOR, ValueHash, prefix};

use super::buffered::{BufferedTx, filled, name, padded};
use super::{
    Engine, EngineWitness, Pair, PlainKey, Reader, Root, Setup, StateAccess, TxBody, ValueSink,
    View,
};
use crate::error::{Error, Result, wrong};

type Map = BTreeMap<PlainKey, Value>;

/// The state in memory, and its file.
pub struct Model {
    /// The newest block.
    newest: Arc<Map>,
    /// Finished blocks, the oldest first, with their roots.
    made: VecDeque<(Arc<Map>, Root)>,
    committed: Arc<Map>,
    root: Root,
    committed_root: Root,
    file: PathBuf,
}

impl Model {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        setup.args("model", &[])?;
        let file = setup.folder.join("state");
        let mut map = Map::new();
        if file.exists() {
            let text = std::fs::read_to_string(&file).map_err(Error::file(&file))?;
            for line in text.lines() {
                let pair = line.split_once(' ');
                let pair = pair.and_then(|(key, value)| Some((from_hex(key)?, from_hex(value)?)));
                let Some((key, value)) = pair else {
                    return wrong(format!("{} is damaged", file.display()));
                };
                map.insert(name(&key)?, Value::from(value));
            }
        }
        let root = root_of(&map)?;
        let newest = Arc::new(map);
        let (made, committed) = (VecDeque::new(), newest.clone());
        Ok(Self { newest, made, committed, root, committed_root: root, file })
    }
}

impl Engine for Model {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("durability", "none: in memory".to_owned())]
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let map: Map = pairs.collect();
        self.root = root_of(&map)?;
        self.committed_root = self.root;
        self.newest = Arc::new(map);
        self.committed = self.newest.clone();
        Ok(())
    }

    fn transact(&mut self, _sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        let before = self.newest.clone();
        let mut read = |key: &[u8], value: &mut Vec<u8>| {
            Ok(filled(value, before.get(key).map(|found| &**found)))
        };
        let mut tx = BufferedTx::new(&mut read);
        work(&mut tx)?;
        let written = tx.written();
        drop(before);
        // Without a block there is no root; and without another reader, no copy.
        self.committed = Arc::default();
        apply(Arc::make_mut(&mut self.newest), written);
        self.committed = self.newest.clone();
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(ModelReader(self.newest.clone())))
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn root(&self) -> Option<Root> {
        Some(self.root)
    }

    fn begin(&mut self, _witness: bool) -> Result<()> {
        Ok(())
    }

    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            see(at, self.newest.get(&key[..]).map(|value| &**value));
        }
        Ok(())
    }

    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        let written = accesses.iter().filter_map(|access| {
            access.op.written().map(|value| (PlainKey::from(access.key), value.cloned()))
        });
        apply(Arc::make_mut(&mut self.newest), written);
        self.root = root_of(&self.newest)?;
        self.made.push_back((self.newest.clone(), self.root));
        Ok(None)
    }

    fn commit(&mut self) -> Result<()> {
        if let Some((map, root)) = self.made.pop_front() {
            self.committed = map;
            self.committed_root = root;
        }
        Ok(())
    }

    fn discard(&mut self) -> Result<()> {
        self.made.clear();
        self.newest = self.committed.clone();
        self.root = self.committed_root;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let line = |(key, value): (&PlainKey, &Value)| format!("{} {}\n", hex(key), hex(&**value));
        let text: String = self.committed.iter().map(line).collect();
        std::fs::write(&self.file, text).map_err(Error::file(&self.file))
    }
}

fn apply(map: &mut Map, written: impl IntoIterator<Item = (PlainKey, Option<Value>)>) {
    for (key, value) in written {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
}

struct ModelReader(Arc<Map>);

impl Reader for ModelReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        work(self)
    }
}

impl View for ModelReader {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(filled(value, self.0.get(key).map(|found| &**found)))
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let from = PlainKey::try_from(from).unwrap_or_default();
        for (key, value) in self.0.range(from..) {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }
}

/// The root of a set of pairs, by the definition.
fn root_of(pairs: &Map) -> Result<Root> {
    let hashed =
        pairs.iter().map(|(name, value)| Ok((padded(name)?, Hasher::BLAKE3.hash(value).into())));
    let mut hashed = hashed.collect::<Result<Vec<_>>>()?;
    hashed.sort_unstable_by_key(|pair| pair.0);
    Ok(node_of(&hashed, 0).to_bytes())
}

fn node_of(pairs: &[(Key, ValueHash)], depth: u16) -> Node {
    match pairs {
        [] => TERMINATOR,
        [(key, hash)] => leaf(Hasher::BLAKE3, key, hash),
        _ => {
            let middle = pairs.partition_point(|(key, _)| !prefix::bit(key, depth));
            let (left, right) = pairs.split_at(middle);
            combine(Hasher::BLAKE3, &node_of(left, depth + 1), &node_of(right, depth + 1))
        }
    }
}
