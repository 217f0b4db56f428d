//! What keys had before the commits that changed them: an ordered map with versions.
//!
//! The question is always the same: what did a key have as of commit `base`? It is what the oldest
//! commit after `base` that changed the key has replaced. So a key's versions lie in one list, in the
//! order of their commits, and are searched by halving: a lookup costs the same however many commits
//! lie between.
//!
//! The map is cut into shards by the first bits, up to 4,096 by 12 of them, each with a lock of its own, so
//! that workers can put a commit in together, and trees are low: a level of them is a wait for cold memory.
//! Keys that share these bits share a shard: that costs the company, and no more. The shards, 32 bytes each,
//! are made when the first commit is put in.
//!
//! Invariants: a key's versions ascend by commit, without repetition; a key without versions is not in
//! the map. Used by [`super::undo_maps`] alone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

/// A key of a version map.
pub(super) trait Versioned: Ord + Copy {
    /// Its first 16 bits: keys in order have them in order.
    fn leading(&self) -> u16;
}

impl Versioned for Key {
    fn leading(&self) -> u16 {
        u16::from_be_bytes([self[0], self[1]])
    }
}

impl Versioned for Prefix {
    fn leading(&self) -> u16 {
        self.first_key().leading()
    }
}

/// What a version holds.
pub(super) trait Held: Clone {
    /// Bytes beyond its own size.
    fn heap_bytes(&self) -> usize;
}

impl Held for Stored {
    fn heap_bytes(&self) -> usize {
        Self::heap_bytes(self)
    }
}

impl Held for Node {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A version: the commit that replaced it, and what it replaced.
type Version<T> = (u64, T);

/// A key's versions. Most keys of most databases have one.
enum Versions<T> {
    One(Version<T>),
    /// With the commit of the newest: who asks for a later one need not look at the list.
    Many(u64, Vec<Version<T>>),
}

impl<T: Held> Versions<T> {
    fn all(&self) -> &[Version<T>] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(_, many) => many,
        }
    }

    /// The newest commit.
    fn newest(&self) -> u64 {
        match self {
            Self::One(one) => one.0,
            Self::Many(newest, _) => *newest,
        }
    }

    /// The oldest one after `base`.
    fn after(&self, base: u64) -> Option<&Version<T>> {
        if self.newest() <= base {
            return None;
        }
        let all = self.all();
        all.get(all.partition_point(|version| version.0 <= base))
    }

    /// Bytes on the heap.
    fn bytes(&self) -> usize {
        let list = match self {
            Self::One(_) => 0,
            Self::Many(_, many) => many.capacity() * size_of::<Version<T>>(),
        };
        list + self.all().iter().map(|(_, held)| held.heap_bytes()).sum::<usize>()
    }

    /// Adds a version; gives the bytes that it took. One that is there already stays as it is.
    fn push(&mut self, version: Version<T>) -> usize {
        let newest = self.newest();
        if newest >= version.0 {
            debug_assert_eq!(newest, version.0, "commits are put in in their order");
            return 0;
        }
        let held = version.1.heap_bytes();
        match self {
            Self::One(one) => {
                let mut many = Vec::with_capacity(2);
                let number = version.0;
                many.extend([one.clone(), version]);
                *self = Self::Many(number, many);
                held + 2 * size_of::<Version<T>>()
            }
            Self::Many(newest, many) => {
                *newest = version.0;
                let before = many.capacity();
                if many.len() == before {
                    // Doubling would leave a quarter of all memory unused.
                    many.reserve_exact(before / 4 + 2);
                }
                many.push(version);
                held + (many.capacity() - before) * size_of::<Version<T>>()
            }
        }
    }

    /// Drops the versions of commits through `floor`; false when none is left.
    fn drop_through(&mut self, floor: u64) -> bool {
        match self {
            Self::One(one) => one.0 > floor,
            Self::Many(_, many) => {
                let gone = many.partition_point(|version| version.0 <= floor);
                if gone > 0 {
                    many.drain(..gone);
                    many.shrink_to(many.len() + many.len() / 4);
                }
                !many.is_empty()
            }
        }
    }
}

type Shard<K, T> = RwLock<BTreeMap<K, Versions<T>>>;

/// The map.
pub(super) struct VersionMap<K, T> {
    shards: OnceLock<Box<[Shard<K, T>]>>,
    /// Leading bits that a shard is named by.
    bits: u32,
    bytes: AtomicUsize,
}

impl<K: Versioned, T: Held> VersionMap<K, T> {
    /// Bytes of an entry: the nodes of a B-tree are between half and entirely full.
    const ENTRY: usize = size_of::<(K, Versions<T>)>() * 3 / 2;

    /// A map that is cut by the first `bits` bits, at most 16.
    pub(super) fn new(bits: u32) -> Self {
        debug_assert!(bits <= 16, "shards are named by the first 16 bits");
        Self { shards: OnceLock::new(), bits, bytes: AtomicUsize::new(0) }
    }

    fn shard(&self, key: &K) -> usize {
        usize::from(key.leading()) >> (16 - self.bits)
    }

    /// Bytes that it takes: lists and values exactly, the tree's nodes as they are on average.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Puts in what commit `number`, later than all that are in, has replaced: keys in order.
    pub(super) fn insert(&self, number: u64, replaced: impl Iterator<Item = (K, T)>) {
        let mut replaced = replaced.peekable();
        let mut bytes = 0;
        let all = || (0..1_usize << self.bits).map(|_| RwLock::default()).collect();
        let shards = self.shards.get_or_init(all);
        while let Some(shard) = replaced.peek().map(|(key, _)| self.shard(key)) {
            let mut map = shards[shard].write();
            while let Some((key, held)) = replaced.next_if(|(key, _)| self.shard(key) == shard) {
                let version = (number, held);
                match map.entry(key) {
                    Entry::Occupied(mut versions) => bytes += versions.get_mut().push(version),
                    Entry::Vacant(place) => {
                        bytes += Self::ENTRY + version.1.heap_bytes();
                        place.insert(Versions::One(version));
                    }
                }
            }
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What a key had as of `base`, and the commit that replaced it.
    pub(super) fn get(&self, key: &K, base: u64) -> Option<Version<T>> {
        self.shards.get()?[self.shard(key)].read().get(key)?.after(base).cloned()
    }

    /// Shows what the keys from `first` to `last` had as of `base` where a later commit changed it, in
    /// order, with that commit.
    pub(super) fn range(&self, first: &K, last: &K, base: u64, mut see: impl FnMut(&K, u64, &T)) {
        let Some(shards) = self.shards.get() else { return };
        for shard in &shards[self.shard(first)..=self.shard(last)] {
            for (key, versions) in shard.read().range(*first..=*last) {
                if let Some((number, held)) = versions.after(base) {
                    see(key, *number, held);
                }
            }
        }
    }

    /// Drops what the commits through `floor` have replaced.
    pub(super) fn drop_through(&self, floor: u64) {
        let mut left = 0;
        for shard in self.shards.get().into_iter().flatten() {
            let mut map = shard.write();
            map.retain(|_, versions| versions.drop_through(floor));
            left += map.values().map(|versions| Self::ENTRY + versions.bytes()).sum::<usize>();
        }
        // Nobody puts a commit in meanwhile.
        self.bytes.store(left, Ordering::Relaxed);
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        for shard in self.shards.get().into_iter().flatten() {
            let gone = std::mem::take(&mut *shard.write());
            drop(gone);
        }
        self.bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        key
    }

    fn stored(number: u64) -> Stored {
        match number % 3 {
            0 => Stored::Absent,
            1 => Stored::Inline(number.to_be_bytes().as_slice().into()),
            _ => Stored::Inline(vec![7; 40].into()),
        }
    }

    /// The slow twin: all versions in a list.
    #[test]
    fn versions_are_those_of_a_plain_list_whatever_is_dropped() {
        [0, 6, 12, 16].into_iter().for_each(versions_are_those_of_a_plain_list);
    }

    fn versions_are_those_of_a_plain_list(bits: u32) {
        let map = VersionMap::<Key, Stored>::new(bits);
        let mut list: Vec<(Key, u64, Stored)> = Vec::new();
        let mut floor = 0;
        for number in 1..=60_u64 {
            let mut batch: Vec<(Key, Stored)> =
                (0..20).map(|at| (key(at * number % 31), stored(at + number))).collect();
            batch.sort_by_key(|one| one.0);
            batch.dedup_by_key(|one| one.0);
            list.extend(batch.iter().map(|(key, held)| (*key, number, held.clone())));
            map.insert(number, batch.into_iter());
            if number % 7 == 0 {
                floor = number - 5;
                list.retain(|one| one.1 > floor);
                map.drop_through(floor);
            }
            for base in floor..=number {
                let then = |key: &Key| {
                    let later = list.iter().filter(|one| one.0 == *key && one.1 > base);
                    later.min_by_key(|one| one.1).map(|one| (one.1, one.2.clone()))
                };
                let mut all = Vec::new();
                map.range(&[0; 32], &[255; 32], base, |key, number, held| {
                    all.push((*key, (number, held.clone())));
                });
                assert!(all.is_sorted_by(|a, b| a.0 < b.0));
                let mut keys: Vec<Key> = (0..31).map(key).collect();
                keys.sort_unstable();
                let expected: Vec<_> =
                    keys.iter().filter_map(|key| Some((*key, then(key)?))).collect();
                assert_eq!(all, expected, "as of {base} of {number}");
                for key in keys {
                    assert_eq!(map.get(&key, base), then(&key), "as of {base} of {number}");
                }
            }
        }
        assert!(map.bytes() > list.len() * 32);
        map.drop_through(60);
        assert_eq!(map.bytes(), 0);
        map.insert(61, std::iter::once((key(1), stored(2))));
        map.clear();
        assert_eq!((map.bytes(), map.get(&key(1), 0)), (0, None));
    }
}
