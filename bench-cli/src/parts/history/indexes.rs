//! A change index, of this project and as stores have it.

use pleach::{Key, LoadOptions, Pleach, SessionOptions};
use pleach_change_index::ChangeIndex;
use pleach_change_index::internals::{Numbers, first, last_at_most, push};

use super::super::engine::wrap;
use crate::account;
use crate::error::{BenchError, Result};
use crate::stores::{Pair, Store, StoreView};

/// The namespace of the index.
const NAMESPACE: u8 = 1;

/// An index of blocks at which keys have changed. Keys are numbers here.
pub(super) trait Index {
    /// Keys from `from` on that have changed at block 0 alone, and some with longer lists.
    fn build(&mut self, lists: &[&[u64]], others: u64) -> Result<()>;
    /// A key has changed at these blocks; one commit for each, or one for all.
    fn append(&mut self, key: u64, blocks: &[u64], at_once: bool) -> Result<()>;
    /// The last change at or before each of these blocks.
    fn last_at(&self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>>;
    /// All changes of a key.
    fn scan(&self, key: u64) -> Result<Vec<u64>>;
    /// Forgets the changes of a key after a block.
    fn unwind(&mut self, key: u64, to: u64) -> Result<()>;
    fn close(self: Box<Self>) -> Result<()>;
}

/// The change index in a namespace of a database.
pub(super) struct OfPleach {
    db: Pleach,
    index: ChangeIndex,
}

impl OfPleach {
    pub(super) fn new(db: Pleach, shard: u32) -> Result<Self> {
        db.add_namespace(NAMESPACE).map_err(wrap)?;
        Ok(Self { db, index: ChangeIndex::new(NAMESPACE, shard).map_err(wrap)? })
    }

    fn stage(&self, change: impl FnOnce(&mut Stage<'_, '_>) -> Result<()>) -> Result<()> {
        let session = self.db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let namespace = session.namespace(NAMESPACE).map_err(wrap)?;
        let mut stage = self.index.stage(&namespace);
        change(&mut stage)?;
        let accesses = stage.into_accesses();
        session.finish(accesses).map_err(wrap)?.commit().map_err(wrap)?;
        Ok(())
    }
}

type Stage<'a, 'b> = pleach_change_index::Stage<'a, pleach::Namespace<'b>>;

fn key_of(id: u64) -> Key {
    account::key(id)
}

impl Index for OfPleach {
    fn build(&mut self, lists: &[&[u64]], others: u64) -> Result<()> {
        // What a stage makes of an empty state is loaded at once.
        let accesses = {
            let session = self.db.session(SessionOptions::new()).map_err(wrap)?;
            let namespace = session.namespace(NAMESPACE).map_err(wrap)?;
            let mut stage = self.index.stage(&namespace);
            for (id, list) in (0..).zip(lists) {
                for block in *list {
                    stage.append(*block, &[key_of(id)]).map_err(wrap)?;
                }
            }
            let ids = lists.len() as u64..lists.len() as u64 + others;
            stage.append(0, &ids.map(key_of).collect::<Vec<Key>>()).map_err(wrap)?;
            stage.into_accesses()
        };
        let pairs = accesses.into_iter().filter_map(|access| match access.kind {
            pleach::AccessKind::Read => None,
            pleach::AccessKind::Write(value) | pleach::AccessKind::ReadWrite(value) => {
                Some((access.key, value?))
            }
        });
        let options = LoadOptions::new().namespace(NAMESPACE);
        self.db.bulk_load(pairs, &options).map_err(wrap)?;
        Ok(())
    }

    fn append(&mut self, key: u64, blocks: &[u64], at_once: bool) -> Result<()> {
        let key = [key_of(key)];
        if at_once {
            return self.stage(|stage| {
                blocks.iter().try_for_each(|block| stage.append(*block, &key)).map_err(wrap)
            });
        }
        blocks
            .iter()
            .try_for_each(|block| self.stage(|stage| stage.append(*block, &key).map_err(wrap)))
    }

    fn last_at(&self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>> {
        let session = self.db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let namespace = session.namespace(NAMESPACE).map_err(wrap)?;
        let key = key_of(key);
        let ask = |block: &u64| self.index.last_at(&namespace, &key, *block).map_err(wrap);
        blocks.iter().map(ask).collect()
    }

    fn scan(&self, key: u64) -> Result<Vec<u64>> {
        let session = self.db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let namespace = session.namespace(NAMESPACE).map_err(wrap)?;
        let changes = self.index.changes(&namespace, &key_of(key), ..).map_err(wrap)?;
        changes.collect::<core::result::Result<_, _>>().map_err(wrap)
    }

    fn unwind(&mut self, key: u64, to: u64) -> Result<()> {
        self.stage(|stage| stage.unwind(&[key_of(key)], to).map_err(wrap))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close().map(drop).map_err(wrap)
    }
}

/// A sharded index in an ordered store: each shard under its key and its first number, the newest first, so that
/// one seek finds the shard of a block, and the one that is open.
pub(super) struct OfStore {
    store: Box<dyn Store>,
    shard: usize,
}

/// Where the shard with this first number is.
fn shard_key(key: u64, first: u64) -> Vec<u8> {
    [key.to_be_bytes(), (u64::MAX - first).to_be_bytes()].concat()
}

/// The numbers of a list, as bytes.
fn encoded(numbers: &[u64]) -> Vec<u8> {
    let (mut bytes, mut last) = (Vec::new(), None);
    for number in numbers {
        push(&mut bytes, last, *number);
        last = Some(*number);
    }
    bytes
}

/// A shard of a store: its key and how many numbers it has, the last of these, and the list.
struct Shard {
    key: Vec<u8>,
    count: u64,
    last: u64,
    list: Vec<u8>,
}

const HEAD: usize = 16;

impl Shard {
    fn parse(key: &[u8], value: &[u8]) -> Option<Self> {
        let (head, list) = value.split_at_checked(HEAD)?;
        let number = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        Some(Self { key: key.to_vec(), count: number(0)?, last: number(8)?, list: list.to_vec() })
    }

    fn value(&self) -> Vec<u8> {
        [&self.count.to_le_bytes()[..], &self.last.to_le_bytes(), &self.list].concat()
    }
}

fn damaged<E: core::fmt::Debug>(error: E) -> BenchError {
    BenchError::Wrong(format!("a shard: {error:?}"))
}

impl OfStore {
    pub(super) fn new(store: Box<dyn Store>, shard: u32) -> Self {
        Self { store, shard: shard as usize }
    }

    /// What all lookups of a call read.
    fn view(&self) -> Result<Box<dyn StoreView + '_>> {
        self.store.view()?.ok_or_else(|| damaged("no view"))
    }

    /// Shows the shards of a key, the newest first, from the one that has `block` on.
    fn shards(
        view: &dyn StoreView,
        key: u64,
        block: u64,
        mut each: impl FnMut(Shard) -> bool,
    ) -> Result<()> {
        let mut broken = false;
        view.scan(&shard_key(key, block), &mut |at, value| {
            if at[..8] != key.to_be_bytes() {
                return false;
            }
            let shard = Shard::parse(at, value);
            broken = shard.is_none();
            shard.is_some_and(&mut each)
        })?;
        if broken { Err(damaged("too short")) } else { Ok(()) }
    }

    fn newest(view: &dyn StoreView, key: u64, block: u64) -> Result<Option<Shard>> {
        let mut found = None;
        Self::shards(view, key, block, |shard| {
            found = Some(shard);
            false
        })?;
        Ok(found)
    }

    fn write(&self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<()> {
        let changes: Vec<_> =
            changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
        self.store.write(&changes, false)
    }

    fn extend(&self, key: u64, blocks: &[u64]) -> Result<()> {
        let mut changes = Vec::new();
        let mut open = Self::newest(&*self.view()?, key, u64::MAX)?;
        for &block in blocks {
            match &mut open {
                Some(shard) if shard.count < self.shard as u64 => {
                    push(&mut shard.list, Some(shard.last), block);
                    (shard.count, shard.last) = (shard.count + 1, block);
                }
                full => {
                    changes
                        .extend(full.take().map(|shard| (shard.key.clone(), Some(shard.value()))));
                    let (key, list) = (shard_key(key, block), encoded(&[block]));
                    *full = Some(Shard { key, count: 1, last: block, list });
                }
            }
        }
        changes.extend(open.map(|shard| (shard.key.clone(), Some(shard.value()))));
        self.write(&changes)
    }
}

impl Index for OfStore {
    fn build(&mut self, lists: &[&[u64]], others: u64) -> Result<()> {
        let mut pairs: Vec<Pair> = Vec::new();
        let mut shard = |id: u64, numbers: &[u64]| {
            let (Some(from), Some(last)) = (numbers.first(), numbers.last()) else { return };
            let key = shard_key(id, *from);
            let list = encoded(numbers);
            let shard = Shard { key, count: numbers.len() as u64, last: *last, list };
            pairs.push((shard.key.clone(), shard.value()));
        };
        for (id, list) in (0..).zip(lists) {
            list.chunks(self.shard).for_each(|numbers| shard(id, numbers));
        }
        let from = lists.len() as u64;
        (from..from + others).for_each(|id| shard(id, &[0]));
        pairs.sort_unstable();
        self.store.load(&mut pairs.into_iter())
    }

    fn append(&mut self, key: u64, blocks: &[u64], at_once: bool) -> Result<()> {
        if at_once {
            return self.extend(key, blocks);
        }
        blocks.iter().try_for_each(|block| self.extend(key, std::slice::from_ref(block)))
    }

    fn last_at(&self, key: u64, blocks: &[u64]) -> Result<Vec<Option<u64>>> {
        let view = self.view()?;
        let ask = |block: &u64| match Self::newest(&*view, key, *block)? {
            Some(shard) if shard.last <= *block => Ok(Some(shard.last)),
            Some(shard) => {
                let found = last_at_most(&shard.list, *block).map_err(damaged)?;
                Ok(found.map(|(_, number)| number))
            }
            None => Ok(None),
        };
        blocks.iter().map(ask).collect()
    }

    fn scan(&self, key: u64) -> Result<Vec<u64>> {
        let mut shards = Vec::new();
        Self::shards(&*self.view()?, key, u64::MAX, |shard| {
            shards.push(shard.list);
            true
        })?;
        let numbers = shards.iter().rev().flat_map(|list| Numbers::new(list));
        numbers.collect::<core::result::Result<_, _>>().map_err(damaged)
    }

    fn unwind(&mut self, key: u64, to: u64) -> Result<()> {
        let (mut changes, mut cut, mut broken) = (Vec::new(), None, None);
        Self::shards(&*self.view()?, key, u64::MAX, |shard| {
            let kept = match last_at_most(&shard.list, to) {
                Ok(kept) => kept,
                Err(error) => {
                    broken = Some(damaged(error));
                    return false;
                }
            };
            match kept {
                None => changes.push((shard.key, None)),
                Some((before, last)) => cut = Some((shard, before + 1, last)),
            }
            cut.is_none()
        })?;
        broken.map_or(Ok(()), Err)?;
        if let Some((shard, count, last)) = cut {
            let list = first(&shard.list, count).map_err(damaged)?.0.to_vec();
            let shard = Shard { count, last, list, ..shard };
            changes.push((shard.key.clone(), Some(shard.value())));
        }
        self.write(&changes)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.store.close()
    }
}
