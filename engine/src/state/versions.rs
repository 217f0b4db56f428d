//! What keys had before the commits that changed them: a map with versions.
//!
//! The question is always the same: what did a key have as of commit `base`? It is what the oldest
//! commit after `base` that changed the key has replaced. So a key's versions lie in one list, in the
//! order of their commits, and are searched by halving: a lookup costs the same however many commits
//! lie between.
//!
//! The map is cut into shards by the first bits, up to 4,096 by 12 of them, each with a lock of its own, so
//! that workers can put a commit in together, and trees are low: a level of them is a wait for memory. Keys that
//! share these bits share a shard: that costs the company, and no more. The shards, 128 bytes each, are made
//! when the first commit is put in. Keys are there twice:
//!
//! * hashed, for lookups ([`super::last_changes`], one for the whole map): each step of a search in the order is a wait
//!   for cold memory, while the hash's cell says at once, and without a lock, that nobody has changed the key since, and
//!   else mostly leads to its versions;
//! * in order, for ranges ([`super::key_order`]), and for lookups of keys that met another. What ranges come to is asked
//!   for some at a time, so that the waits overlap.
//!
//! Locked instructions cost a lookup more than they seem to: loads behind one do not begin before it ends, so waits for
//! memory that would overlap come one after the other.
//!
//! The hash is keyed ([`super::keyed_hash`]), so that nobody can choose keys that meet in it.
//!
//! Invariants: a key's versions ascend by commit, without repetition; a key without versions is not in
//! the map. Used by [`super::undo_maps`] alone.

mod entry;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use pleach_beatree::Stored;
use pleach_core::{Key, cpu_prefetch};

use self::entry::{Entry, Version};
use super::key_order::{KeyOrder, Sought};
use super::keyed_hash::KeyedHash;
use super::last_changes::{LastChanges, LastSeen};

/// The shard of a key, by its first `bits` bits, at most 16: keys in order have shards in order.
#[inline]
pub(super) fn shard(bits: u32, key: &Key) -> usize {
    usize::from(u16::from_be_bytes([key[0], key[1]])) >> (16 - bits)
}

/// The 32 bits of a key after the first `bits`, at most 16.
#[inline]
fn lead(bits: u32, key: &Key) -> u32 {
    let [a, b, c, d, e, f, ..] = *key;
    let [_, _, low @ ..] = (u64::from_be_bytes([0, 0, a, b, c, d, e, f]) << bits).to_be_bytes();
    u32::from_be_bytes([low[0], low[1], low[2], low[3]])
}

/// A part of the map under its lock, in two lines of memory; lookups read the first one.
#[derive(Default)]
#[repr(align(64))]
struct Locked(RwLock<Shard>);

const _: () = assert!(size_of::<Locked>() == 128, "two lines");

/// A part of the map.
#[derive(Default)]
#[repr(C)]
struct Shard {
    entries: Vec<Entry>,
    /// The numbers of the entries, from 0 on, in the order of their keys. A lookup reads it only where the table of last
    /// changes does not lead to its entry.
    order: KeyOrder,
}

/// Keys, or parts of ranges, that are looked up together, so that their waits for memory overlap.
const TOGETHER: usize = 16;

/// What is put in.
struct Put {
    key: Key,
    hash: u32,
    shard: usize,
    held: Stored,
}

impl Shard {
    /// Bytes, but for what the entries have on the heap.
    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.order.bytes()
    }

    /// The number of a key's entry, which may be this one.
    fn find(&self, sought: Sought<'_>, guess: u32) -> Option<u32> {
        if self.entries.get(guess as usize).is_some_and(|entry| entry.key == *sought.key) {
            return Some(guess);
        }
        self.order.get(sought, |entry| &self.entries[entry as usize].key)
    }

    /// Adds a version, unless the key has one of this commit; gives the number of its entry, and the bytes that it
    /// takes on the heap.
    fn insert(&mut self, sought: Sought<'_>, guess: u32, version: Version) -> (u32, usize) {
        let number = version.0;
        if let Some(at) = self.find(sought, guess) {
            let entry = &mut self.entries[at as usize];
            if entry.newest >= number {
                debug_assert_eq!(entry.newest, number, "commits are put in in their order");
                return (at, 0);
            }
            return (at, entry.push(version));
        }
        let held = version.1.heap_bytes();
        let count = self.entries.len();
        if count == self.entries.capacity() {
            self.entries.reserve_exact(count / 4 + 1);
        }
        let at = u32::try_from(count).expect("a shard has fewer than 2^32 keys");
        let entries = &self.entries;
        self.order.insert(sought, at, |entry| &entries[entry as usize].key);
        self.entries.push(Entry::new(*sought.key, version));
        (at, held)
    }

    /// Drops what the commits through `floor` have replaced; gives the numbers that entries have afterwards, of those
    /// that stay.
    fn drop_through(&mut self, floor: u64) -> Vec<Option<u32>> {
        let mut left = 0;
        let mut numbers = Vec::with_capacity(self.entries.len());
        self.entries.retain_mut(|entry| {
            let stays = entry.drop_through(floor);
            numbers.push(stays.then_some(left));
            left += u32::from(stays);
            stays
        });
        let count = self.entries.len();
        if count < numbers.len() {
            self.entries.shrink_to(count + count / 4);
            self.order.renumber(|entry| numbers[entry as usize]);
        }
        numbers
    }
}

/// The map.
pub(super) struct VersionMap {
    /// When keys have changed last: asked first. Replaced only while nothing is put in.
    last: Mutex<Arc<LastChanges>>,
    /// Keys that it has.
    keys: AtomicUsize,
    shards: OnceLock<Box<[Locked]>>,
    /// Leading bits that a shard is named by.
    bits: u32,
    hash: KeyedHash,
    bytes: AtomicUsize,
    /// No version is of an older commit, as far as is known: searches begin where versions are expected.
    oldest: AtomicU64,
}

impl VersionMap {
    /// A map that is cut by the first `bits` bits, at most 16.
    pub(super) fn new(bits: u32) -> Self {
        debug_assert!(bits <= 16, "shards are named by the first 16 bits");
        Self {
            last: Mutex::new(Arc::new(LastChanges::none())),
            keys: AtomicUsize::new(0),
            shards: OnceLock::new(),
            bits,
            hash: KeyedHash::default(),
            bytes: AtomicUsize::new(0),
            oldest: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: &Key) -> usize {
        shard(self.bits, key)
    }

    fn sought<'k>(&self, key: &'k Key) -> Sought<'k> {
        Sought { lead: lead(self.bits, key), key }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Relaxed)
    }

    fn last(&self) -> Arc<LastChanges> {
        Arc::clone(&self.last.lock())
    }

    /// Puts another table in the place of the present one. Nothing is put in meanwhile.
    fn replace_last(&self, next: LastChanges) {
        let next = Arc::new(next);
        self.bytes.fetch_add(next.bytes(), Ordering::Relaxed);
        let before = std::mem::replace(&mut *self.last.lock(), next);
        self.bytes.fetch_sub(before.bytes(), Ordering::Relaxed);
        before.replace();
    }

    /// Makes room for up to `more` keys of commit `number`, which is put in next, by one or by many at once. Nothing is put in
    /// meanwhile.
    pub(super) fn reserve(&self, number: u64, more: usize) {
        let (last, keys) = (self.last(), self.keys.load(Ordering::Relaxed));
        if more == 0 {
            // Nothing is put in.
        } else if keys == 0 {
            self.replace_last(LastChanges::new(more, number - 1));
        } else if !last.suits(keys + more) {
            let larger = LastChanges::new(keys + more, last.origin);
            for map in self.shards.get().into_iter().flatten() {
                for (at, entry) in (0..).zip(&map.0.read().entries) {
                    larger.set(self.hash.of(&entry.key), entry.newest, at);
                }
            }
            self.replace_last(larger);
        }
    }

    /// Puts in what commit `number`, later than all that are in, has replaced: keys in order. Room was made for them
    /// ([`Self::reserve`]).
    pub(super) fn insert(&self, number: u64, mut replaced: impl Iterator<Item = (Key, Stored)>) {
        let (mut bytes, mut keys) = (0, 0);
        let last = self.last();
        let all = || (0..1_usize << self.bits).map(|_| Locked::default()).collect();
        let shards = self.shards.get_or_init(all);
        if self.keys.load(Ordering::Relaxed) == 0 {
            self.oldest.store(number, Ordering::Relaxed);
        }
        let mut some: Vec<Put> = Vec::with_capacity(TOGETHER);
        let mut locked: Vec<RwLockWriteGuard<'_, Shard>> = Vec::with_capacity(TOGETHER);
        loop {
            some.extend(replaced.by_ref().take(TOGETHER).map(|(key, held)| {
                let (hash, shard) = (self.hash.of(&key), self.shard(&key));
                cpu_prefetch(&shards[shard..=shard]);
                last.cpu_prefetch(hash);
                Put { key, hash, shard, held }
            }));
            if some.is_empty() {
                break;
            }
            // Several at once, in order, as in `ranges`.
            let same = |one: &Put, next: &Put| one.shard == next.shard;
            locked.extend(some.chunk_by(same).map(|own| shards[own[0].shard].0.write()));
            let steps: [fn(&Entry); 2] =
                [|entry| cpu_prefetch(std::slice::from_ref(entry)), Entry::cpu_prefetch_end];
            for step in steps {
                for (map, own) in locked.iter().zip(some.chunk_by(same)) {
                    let guesses = own.iter().map(|one| last.guess(one.hash) as usize);
                    guesses.filter_map(|at| map.entries.get(at)).for_each(step);
                }
            }
            for (map, own) in locked.iter_mut().zip(some.chunk_by_mut(same)) {
                let before = (map.bytes(), map.entries.len());
                for Put { key, hash, held, .. } in own {
                    let (sought, guess) = (self.sought(key), last.guess(*hash));
                    let (entry, on_heap) =
                        map.insert(sought, guess, (number, std::mem::take(held)));
                    last.set(*hash, number, entry);
                    bytes += on_heap;
                }
                bytes += map.bytes() - before.0;
                keys += map.entries.len() - before.1;
            }
            locked.clear();
            some.clear();
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.keys.fetch_add(keys, Ordering::Relaxed);
    }

    /// Prefetches the memory that a lookup begins with.
    pub(super) fn cpu_prefetch_key(&self, key: &Key, seen: &LastSeen) {
        let Some(shards) = self.shards.get() else { return };
        let (hash, at) = (self.hash.of(key), self.shard(key));
        cpu_prefetch(&shards[at..=at]);
        seen.ask(|| self.last(), |table| table.cpu_prefetch(hash));
    }

    /// What a key had as of `base`, and the commit that replaced it.
    pub(super) fn get(&self, key: &Key, base: u64, seen: &LastSeen) -> Option<Version> {
        let (hash, shards, at) = (self.hash.of(key), self.shards.get()?, self.shard(key));
        // On its way while the table is waited for.
        cpu_prefetch(&shards[at..=at]);
        let guess = seen.ask(|| self.last(), |table| table.after(hash, base))?;
        let map = shards[at].0.read();
        let entry = map.find(self.sought(key), guess)?;
        let (number, held) = map.entries[entry as usize].after(base, self.oldest())?;
        Some((number, held.clone()))
    }

    /// Shows what the keys of some ranges, which ascend, had as of `base` where a later commit changed
    /// it, in order, with the number of the range and that commit.
    pub(super) fn ranges(
        &self,
        ranges: &[RangeInclusive<Key>],
        base: u64,
        mut see: impl FnMut(&Key, u64, &Stored),
    ) {
        let Some(shards) = self.shards.get() else { return };
        let parts = ranges.iter().enumerate().flat_map(|(range, keys)| {
            (self.shard(keys.start())..=self.shard(keys.end())).map(move |shard| (range, shard))
        });
        let (mut parts, oldest) = (parts.peekable(), self.oldest());
        let mut some = Vec::with_capacity(TOGETHER);
        let mut entries = Vec::with_capacity(8 * TOGETHER);
        let mut locked: Vec<(usize, RwLockReadGuard<'_, Shard>)> = Vec::with_capacity(TOGETHER);
        while parts.peek().is_some() {
            some.clear();
            some.extend(parts.by_ref().take(TOGETHER));
            for (_, shard) in &some {
                cpu_prefetch(&shards[*shard..=*shard]);
            }
            // Several at once, and whoever holds several takes them in order: who waits for one holds none after it.
            locked.clear();
            for (_, shard) in &some {
                if locked.last().is_none_or(|(last, _)| last != shard) {
                    let map = shards[*shard].0.read();
                    locked.push((*shard, map));
                }
            }
            let place = |shard: usize| locked.partition_point(|(one, _)| *one < shard);
            for (range, shard) in &some {
                let sought = self.sought(ranges[*range].start());
                locked[place(*shard)].1.order.cpu_prefetch(sought.lead);
            }
            entries.clear();
            for (range, shard) in &some {
                let at = place(*shard);
                let map = &*locked[at].1;
                // Of keys before the shard, or behind it, the leads say nothing.
                let keys = self.within(&ranges[*range], *shard);
                let (first, last) = (self.sought(keys.start()), self.sought(keys.end()));
                let key = |entry: u32| &map.entries[entry as usize].key;
                map.order.range(first, last, key, |entry| {
                    let entry = entry as usize;
                    cpu_prefetch(std::slice::from_ref(&map.entries[entry].key));
                    entries.push((at, entry));
                });
            }
            let later = entries.iter().map(|(at, entry)| &locked[*at].1.entries[*entry]);
            let later = later.filter(|entry| entry.newest > base);
            later.clone().for_each(|entry| entry.cpu_prefetch_after(base, oldest));
            for entry in later {
                if let Some((number, held)) = entry.after(base, oldest) {
                    see(&entry.key, number, held);
                }
            }
        }
    }

    /// The part of a range that is in a shard.
    fn within(&self, keys: &RangeInclusive<Key>, shard: usize) -> RangeInclusive<Key> {
        let (mut first, mut last) = (*keys.start(), *keys.end());
        if self.shard(&first) < shard {
            first = [0; 32];
            let lead = u16::try_from(shard << (16 - self.bits)).expect("16 bits");
            first[..2].copy_from_slice(&lead.to_be_bytes());
        }
        if self.shard(&last) > shard {
            last = [0xff; 32];
            let lead = u16::try_from(((shard + 1) << (16 - self.bits)) - 1).unwrap_or(u16::MAX);
            last[..2].copy_from_slice(&lead.to_be_bytes());
        }
        first..=last
    }

    /// Drops what the commits through `floor` have replaced.
    pub(super) fn drop_through(&self, floor: u64) {
        self.oldest.fetch_max(floor + 1, Ordering::Relaxed);
        // Nobody puts a commit in meanwhile.
        let (last, before) = (self.last(), self.keys.load(Ordering::Relaxed));
        let anew = last.needs_rebuild(before, floor).then(|| LastChanges::new(before, floor));
        let (mut left, mut keys) = (anew.as_ref().unwrap_or(&last).bytes(), 0);
        for map in self.shards.get().into_iter().flatten() {
            let mut map = map.0.write();
            let numbers = map.drop_through(floor);
            left += map.bytes() + map.entries.iter().map(Entry::bytes).sum::<usize>();
            keys += map.entries.len();
            for (was, number) in (0..).zip(numbers).filter_map(|(was, number)| Some((was, number?)))
            {
                let entry = &map.entries[number as usize];
                let hash = self.hash.of(&entry.key);
                match &anew {
                    Some(table) => table.set(hash, entry.newest, number),
                    None if was != number => last.renumber(hash, was, number),
                    None => {}
                }
            }
        }
        if keys == 0 {
            self.clear();
            return;
        }
        if let Some(table) = anew {
            self.replace_last(table);
        }
        self.keys.store(keys, Ordering::Relaxed);
        self.bytes.store(left, Ordering::Relaxed);
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        if self.keys.swap(0, Ordering::Relaxed) > 0 {
            self.replace_last(LastChanges::none());
        }
        for map in self.shards.get().into_iter().flatten() {
            let mut shard = map.0.write();
            // Most have nothing where few keys have changed: a new shard is an allocation.
            let gone = (!shard.entries.is_empty()).then(|| std::mem::take(&mut *shard));
            drop(shard);
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
        [0, 6, 9, 16].into_iter().for_each(versions_are_those_of_a_plain_list);
    }

    fn versions_are_those_of_a_plain_list(bits: u32) {
        let (map, seen) = (VersionMap::new(bits), LastSeen::default());
        let mut list: Vec<(Key, u64, Stored)> = Vec::new();
        let mut floor = 0;
        for number in 1..=60_u64 {
            let mut batch: Vec<(Key, Stored)> =
                (0..20).map(|at| (key(at * number % 31), stored(at + number))).collect();
            batch.sort_by_key(|one| one.0);
            batch.dedup_by_key(|one| one.0);
            list.extend(batch.iter().map(|(key, held)| (*key, number, held.clone())));
            map.reserve(number, batch.len());
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
                map.ranges(&[[0; 32]..=[255; 32]], base, |key, number, held| {
                    all.push((*key, (number, held.clone())));
                });
                assert!(all.is_sorted_by(|a, b| a.0 < b.0));
                let mut keys: Vec<Key> = (0..31).map(key).collect();
                keys.sort_unstable();
                let expected: Vec<_> =
                    keys.iter().filter_map(|key| Some((*key, then(key)?))).collect();
                assert_eq!(all, expected, "as of {base} of {number}");
                for key in keys {
                    assert_eq!(map.get(&key, base, &seen), then(&key), "as of {base} of {number}");
                }
            }
        }
        assert!(map.bytes() > list.len() * 32);
        map.drop_through(60);
        assert_eq!(map.bytes(), 0);
        map.reserve(61, 1);
        map.insert(61, std::iter::once((key(1), stored(2))));
        map.clear();
        assert_eq!((map.bytes(), map.get(&key(1), 0, &seen)), (0, None));
    }
}
