//! Appends and unwinds that wait for their commit.

use std::collections::BTreeMap;
use std::ops::Range;

use pleach::{Access, Key, Value};

use crate::error::Error;
use crate::head::{Head, Place};
use crate::source::Source;
use crate::tree::{Tree, node_key, parse};

/// Nodes that are looked for at once before they are deleted.
const AT_ONCE: usize = 256;

/// What a batch does to the index. From [`ChangeIndex::stage`](super::ChangeIndex::stage).
#[derive(Debug)]
pub struct Stage<'a, S: ?Sized> {
    state: Staged<'a, S>,
    /// Heads that were read, and what has become of them.
    heads: BTreeMap<Key, Touched>,
    namespace: u8,
    shard: u32,
}

/// Full nodes as they will be, over a state.
#[derive(Debug)]
struct Staged<'a, S: ?Sized> {
    source: &'a S,
    nodes: BTreeMap<Key, Option<Vec<u8>>>,
}

#[derive(Debug)]
struct Touched {
    head: Option<Head<'static>>,
    is_changed: bool,
}

impl<S: Source + ?Sized> Source for Staged<'_, S> {
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>> {
        if self.nodes.is_empty() {
            return self.source.read_many(keys);
        }
        keys.iter().map(|key| self.read(key)).collect()
    }

    fn read(&self, key: &Key) -> pleach::Result<Option<Value>> {
        match self.nodes.get(key) {
            Some(staged) => Ok(staged.as_deref().map(Value::from)),
            None => self.source.read(key),
        }
    }
}

impl<'a, S: Source + ?Sized> Stage<'a, S> {
    pub(crate) fn new(source: &'a S, namespace: u8, shard: u32) -> Self {
        let state = Staged { source, nodes: BTreeMap::new() };
        Self { state, heads: BTreeMap::new(), namespace, shard }
    }

    /// Brings in the heads of keys.
    fn touch(&mut self, keys: &[Key]) -> Result<(), Error> {
        let missing: Vec<Key> =
            keys.iter().filter(|key| !self.heads.contains_key(*key)).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        for (key, value) in missing.iter().zip(self.state.source.read_many(&missing)?) {
            let parse = |value: Value| Ok::<_, Error>(parse(key, self.shard, &value)?.into_owned());
            let head = value.map(parse).transpose()?;
            self.heads.insert(*key, Touched { head, is_changed: false });
        }
        Ok(())
    }

    /// These keys have changed at this block. A key that is said to have changed at it already stays as it is.
    /// Several blocks may be staged, each after those before it.
    ///
    /// # Errors
    /// [`Error::NotAscending`], [`Error::OtherShards`], [`Error::Damaged`] and those of reading. Keys that came
    /// before the one that failed stay staged; that one is as it was.
    pub fn append(&mut self, block: u64, keys: &[Key]) -> Result<(), Error> {
        self.touch(keys)?;
        for key in keys {
            let Some(touched) = self.heads.get_mut(key) else { continue };
            match &mut touched.head {
                None => touched.head = Some(Head::new(self.shard, block)),
                Some(head) if head.last == block => continue,
                Some(head) if head.last > block => {
                    return Err(Error::NotAscending { block, last: head.last });
                }
                Some(head) => {
                    // A list that turns out to be damaged stays as it is.
                    let (mut next, mut full) = (head.clone(), Vec::new());
                    let store = |place, node| full.push((node_key(key, place), Some(node)));
                    next.append(block, store).map_err(|_| Error::damaged(key))?;
                    self.state.nodes.extend(full);
                    *head = next;
                }
            }
            touched.is_changed = true;
        }
        Ok(())
    }

    /// Forgets all changes of these keys after a block. Which keys have changed since is for the application to
    /// know; one that has not costs a read.
    ///
    /// # Errors
    /// [`Error::OtherShards`], [`Error::Damaged`] and those of reading. Keys that came before the one that
    /// failed stay staged; that one is as it was.
    pub fn unwind(&mut self, keys: &[Key], to: u64) -> Result<(), Error> {
        self.touch(keys)?;
        for key in keys {
            let Some(Touched { head: Some(head), .. }) = self.heads.get(key) else { continue };
            let tree = Tree { source: &self.state, key, head };
            let left = tree.rank(to)?;
            if left == head.count {
                continue;
            }
            let cut = if left == 0 { None } else { Some(tree.cut(left)?) };
            let gone: Vec<(u8, Range<u64>)> = (0_u8..)
                .zip(&head.open)
                .map(|(level, _)| {
                    (level, cut.as_ref().map_or(0, |cut| cut.full(level))..head.full(level))
                })
                .collect();
            let mut deleted = Vec::new();
            for (level, indexes) in gone {
                self.present(key, level, indexes, &mut deleted)?;
            }
            // At once, and with the head: whatever fails leaves the key as it was.
            self.state.nodes.extend(deleted.into_iter().map(|key| (key, None)));
            self.heads.insert(*key, Touched { head: cut, is_changed: true });
        }
        Ok(())
    }

    /// Keys of full nodes, which have to be there: a head alone does not make this run for long.
    fn present(
        &self,
        key: &Key,
        level: u8,
        mut indexes: Range<u64>,
        nodes: &mut Vec<Key>,
    ) -> Result<(), Error> {
        loop {
            let place = |index| node_key(key, Place { level, index });
            let keys: Vec<Key> = indexes.by_ref().take(AT_ONCE).map(place).collect();
            if keys.is_empty() {
                return Ok(());
            }
            for (key, value) in keys.iter().zip(self.state.read_many(&keys)?) {
                value.ok_or(Error::damaged(key))?;
            }
            nodes.extend(keys);
        }
    }

    /// What is staged, as accesses in the index's namespace, each key once: for the batch that the session
    /// finishes.
    pub fn into_accesses(self) -> Vec<Access> {
        let namespace = self.namespace;
        let heads = self.heads.into_iter().filter(|(_, touched)| touched.is_changed).map(
            |(key, touched)| {
                Access::read_write(key, touched.head.map(|head| Value::from(head.encode())))
            },
        );
        let nodes = self.state.nodes.into_iter();
        let nodes = nodes.map(|(key, node)| Access::write(key, node.map(Value::from)));
        heads.chain(nodes).map(|access| access.in_namespace(namespace)).collect()
    }
}
