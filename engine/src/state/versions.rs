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
//! when the first commit is put in. A shard has its keys twice:
//!
//! * hashed, for lookups: each step of a search in the order is a wait for cold memory, while the hash's slot
//!   says at once that nobody has changed the key since, and else leads to its versions;
//! * in order, for ranges ([`super::key_order`]). What ranges come to is asked for some at a time, so that the waits
//!   overlap.
//!
//! The hash is keyed ([`super::keyed_hash`]), so that nobody can choose keys that meet in it.
//!
//! Invariants: a key's versions ascend by commit, without repetition; a key without versions is not in
//! the map. Used by [`super::undo_maps`] alone.

use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use pleach_beatree::Stored;
use pleach_core::search::lower_bound_near;
use pleach_core::{Key, cpu_prefetch};

use super::key_order::{KeyOrder, Sought};
use super::keyed_hash::KeyedHash;

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

/// A version: the commit that replaced it, and what it replaced.
type Version = (u64, Stored);

/// A key's versions. Most keys of most databases have one.
enum Versions {
    One(Version),
    Many(Vec<Version>),
}

impl Versions {
    fn all(&self) -> &[Version] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// Prefetches the memory that the next version is written to.
    fn cpu_prefetch_end(&self) {
        if let Self::Many(many) = self {
            cpu_prefetch(&many[many.len() - 1..]);
        }
    }

    /// Bytes on the heap.
    fn bytes(&self) -> usize {
        let list = match self {
            Self::One(_) => 0,
            Self::Many(many) => many.capacity() * size_of::<Version>(),
        };
        list + self.all().iter().map(|(_, held)| held.heap_bytes()).sum::<usize>()
    }

    /// Adds a version, newer than all; gives the bytes that it took.
    fn push(&mut self, version: Version) -> usize {
        let held = version.1.heap_bytes();
        match self {
            Self::One(one) => {
                let mut many = Vec::with_capacity(2);
                many.extend([std::mem::take(one), version]);
                *self = Self::Many(many);
                held + 2 * size_of::<Version>()
            }
            Self::Many(many) => {
                let before = many.capacity();
                if many.len() == before {
                    // Doubling would leave a quarter of all memory unused.
                    many.reserve_exact(before / 4 + 2);
                }
                many.push(version);
                held + (many.capacity() - before) * size_of::<Version>()
            }
        }
    }

    /// Drops the versions of commits through `floor`; false when none is left.
    fn drop_through(&mut self, floor: u64) -> bool {
        match self {
            Self::One(one) => one.0 > floor,
            Self::Many(many) => {
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

/// A key of the map.
struct Entry {
    key: Key,
    /// The newest commit that changed it: who asks for a later one need not look at the versions.
    newest: u64,
    versions: Versions,
}

impl Entry {
    /// Where the first version after `base` is expected, with none before `oldest`: commits change a key about as
    /// often as each other.
    fn guess(&self, base: u64, oldest: u64) -> usize {
        let count = self.versions.all().len();
        let since = u128::from((base + 1).saturating_sub(oldest));
        let all = u128::from(self.newest.saturating_sub(oldest)).max(1);
        usize::try_from(since * count as u128 / all).map_or(count, |at| at.min(count))
    }

    /// Prefetches the memory that a search for the first version after `base` begins with, mostly one or two lines:
    /// who waits for many waits for each that it asks for.
    fn cpu_prefetch(&self, base: u64, oldest: u64) {
        if let Versions::Many(many) = &self.versions {
            let guess = self.guess(base, oldest);
            cpu_prefetch(&many[guess.saturating_sub(1)..(guess + 1).min(many.len())]);
        }
    }

    /// The oldest version after `base`.
    fn after(&self, base: u64, oldest: u64) -> Option<&Version> {
        if self.newest <= base {
            return None;
        }
        let all = self.versions.all();
        let less = |at: usize| all[at].0 <= base;
        let mut at = self.guess(base, oldest);
        // Mostly it is there or beside.
        for _ in 0..NEAR {
            if at < all.len() && less(at) {
                at += 1;
            } else if at > 0 && !less(at - 1) {
                at -= 1;
            } else {
                return all.get(at);
            }
        }
        all.get(lower_bound_near(at, all.len(), less))
    }
}

/// Steps of a search before they grow.
const NEAR: usize = 4;

/// Where the hash table has an entry.
#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u32,
    /// The number of the entry, from 1 on; 0 for a free slot.
    entry: u32,
    /// The entry's newest commit: most lookups of the near past end here.
    newest: u64,
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
    /// As many as a power of two, a quarter of them free. An entry is behind the place that its hash names, in
    /// the first slot that was free.
    slots: Box<[Slot]>,
    entries: Vec<Entry>,
    /// The numbers of the entries, from 0 on, in the order of their keys. Lookups do not read it.
    order: KeyOrder,
}

/// Fewest slots.
const FEWEST: usize = 2;
/// Keys, or parts of ranges, that are looked up together, so that their waits for memory overlap.
const TOGETHER: usize = 16;

impl Shard {
    /// Bytes, but for what the versions have on the heap.
    fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.order.bytes()
    }

    /// The slot of a key, and its entry, if it has been changed by a commit after `base`.
    fn find(&self, key: &Key, hash: u32, base: u64) -> Option<(usize, usize)> {
        let last = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & last;
        // A quarter is free, so this ends.
        loop {
            let slot = &self.slots[at];
            let entry = slot.entry.checked_sub(1)? as usize;
            if slot.hash == hash && slot.newest > base && self.entries[entry].key == *key {
                return Some((at, entry));
            }
            at = (at + 1) & last;
        }
    }

    /// Prefetches the slot of a key.
    fn cpu_prefetch_slot(&self, hash: u32) {
        if let Some(last) = self.slots.len().checked_sub(1) {
            let at = hash as usize & last;
            cpu_prefetch(&self.slots[at..=at]);
        }
    }

    /// The entry of the first slot where a key may be: mostly its own.
    fn near(&self, hash: u32) -> Option<&Entry> {
        let slot = self.slots.get(hash as usize & self.slots.len().checked_sub(1)?)?;
        self.entries.get(slot.entry.checked_sub(1)? as usize)
    }

    /// Adds a version, unless the key has one of this commit; gives the bytes that it takes on the heap.
    fn insert(&mut self, key: Sought<'_>, hash: u32, version: Version) -> usize {
        let (sought, key) = (key, key.key);
        let number = version.0;
        if let Some((slot, entry)) = self.find(key, hash, 0) {
            let entry = &mut self.entries[entry];
            if entry.newest >= number {
                debug_assert_eq!(entry.newest, number, "commits are put in in their order");
                return 0;
            }
            entry.newest = number;
            self.slots[slot].newest = number;
            return entry.versions.push(version);
        }
        let held = version.1.heap_bytes();
        let count = self.entries.len();
        if (count + 1) * 4 > self.slots.len() * 3 {
            self.place_anew((self.slots.len() * 2).max(FEWEST), Some);
        }
        if count == self.entries.capacity() {
            self.entries.reserve_exact(count / 4 + 1);
        }
        let entry = u32::try_from(count + 1).expect("a shard has fewer than 2^32 - 1 keys");
        let versions = Versions::One(version);
        let entries = &self.entries;
        self.order.insert(sought, entry - 1, |entry| &entries[entry as usize].key);
        self.entries.push(Entry { key: *key, newest: number, versions });
        self.place(Slot { hash, entry, newest: number });
        held
    }

    /// Puts a slot where a search finds it.
    fn place(&mut self, slot: Slot) {
        let last = self.slots.len() - 1;
        let mut at = slot.hash as usize & last;
        while self.slots[at].entry != 0 {
            at = (at + 1) & last;
        }
        self.slots[at] = slot;
    }

    /// Makes a table of `count` slots, with the entries that have a number after a change of them.
    fn place_anew(&mut self, count: usize, number: impl Fn(u32) -> Option<u32>) {
        let slots = std::mem::replace(&mut self.slots, vec![Slot::default(); count].into());
        for slot in slots.iter().filter(|slot| slot.entry != 0) {
            if let Some(entry) = number(slot.entry - 1) {
                self.place(Slot { entry: entry + 1, ..*slot });
            }
        }
    }

    /// Drops what the commits through `floor` have replaced.
    fn drop_through(&mut self, floor: u64) {
        // The numbers that entries have afterwards.
        let mut left = 0;
        let mut numbers = Vec::with_capacity(self.entries.len());
        self.entries.retain_mut(|entry| {
            let stays = entry.versions.drop_through(floor);
            numbers.push(stays.then_some(left));
            left += u32::from(stays);
            stays
        });
        let count = self.entries.len();
        if count == numbers.len() {
            return;
        }
        self.entries.shrink_to(count + count / 4);
        self.order.renumber(|entry| numbers[entry as usize]);
        let least = (count * 4).div_ceil(3).next_power_of_two().max(FEWEST);
        self.place_anew(if count == 0 { 0 } else { least }, |entry| numbers[entry as usize]);
    }
}

/// The map.
pub(super) struct VersionMap {
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
        let (shards, hash) = (OnceLock::new(), KeyedHash::default());
        Self { shards, bits, hash, bytes: AtomicUsize::new(0), oldest: AtomicU64::new(0) }
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

    /// Puts in what commit `number`, later than all that are in, has replaced: keys in order.
    pub(super) fn insert(&self, number: u64, mut replaced: impl Iterator<Item = (Key, Stored)>) {
        let mut bytes = 0;
        let all = || (0..1_usize << self.bits).map(|_| Locked::default()).collect();
        let shards = self.shards.get_or_init(all);
        if self.bytes() == 0 {
            self.oldest.store(number, Ordering::Relaxed);
        }
        let mut some: Vec<(Key, u32, Stored)> = Vec::with_capacity(TOGETHER);
        loop {
            let hashed = replaced.by_ref().map(|(key, held)| (key, self.hash.of(&key), held));
            some.extend(hashed.take(TOGETHER));
            if some.is_empty() {
                break;
            }
            self.cpu_prefetch(shards, &some);
            let mut left = some.drain(..).peekable();
            while let Some(at) = left.peek().map(|one| self.shard(&one.0)) {
                let mut map = shards[at].0.write();
                let before = map.bytes();
                while let Some((key, hash, held)) = left.next_if(|one| self.shard(&one.0) == at) {
                    bytes += map.insert(self.sought(&key), hash, (number, held));
                }
                bytes += map.bytes() - before;
            }
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Prefetches the memory where versions of these keys are put in, step by step.
    fn cpu_prefetch(&self, shards: &[Locked], some: &[(Key, u32, Stored)]) {
        for (key, ..) in some {
            let at = self.shard(key);
            cpu_prefetch(&shards[at..=at]);
        }
        let steps: [fn(&Shard, u32); 3] = [
            Shard::cpu_prefetch_slot,
            |shard, hash| {
                cpu_prefetch(shard.near(hash).map_or(&[], std::slice::from_ref));
            },
            |shard, hash| {
                shard.near(hash).into_iter().for_each(|entry| entry.versions.cpu_prefetch_end());
            },
        ];
        for step in steps {
            for (key, hash, _) in some {
                if let Some(shard) = shards[self.shard(key)].0.try_read() {
                    step(&shard, *hash);
                }
            }
        }
    }

    /// What a key had as of `base`, and the commit that replaced it.
    pub(super) fn get(&self, key: &Key, base: u64) -> Option<Version> {
        let hash = self.hash.of(key);
        let map = self.shards.get()?[self.shard(key)].0.read();
        let (_, entry) = map.find(key, hash, base)?;
        map.entries[entry].after(base, self.oldest()).cloned()
    }

    /// Shows what the keys of some ranges, which ascend, had as of `base` where a later commit changed
    /// it, in order, with the number of the range and that commit.
    pub(super) fn ranges(
        &self,
        ranges: &[RangeInclusive<Key>],
        base: u64,
        mut see: impl FnMut(usize, &Key, u64, &Stored),
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
                    cpu_prefetch(&map.entries[entry..=entry]);
                    entries.push((*range, at, entry));
                });
            }
            let later =
                entries.iter().map(|(range, at, entry)| (range, &locked[*at].1.entries[*entry]));
            let later = later.filter(|(_, entry)| entry.newest > base);
            later.clone().for_each(|(_, entry)| entry.cpu_prefetch(base, oldest));
            for (range, entry) in later {
                if let Some((number, held)) = entry.after(base, oldest) {
                    see(*range, &entry.key, *number, held);
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
        let mut left = 0;
        for map in self.shards.get().into_iter().flatten() {
            let mut map = map.0.write();
            map.drop_through(floor);
            let versions = map.entries.iter().map(|entry| entry.versions.bytes());
            left += map.bytes() + versions.sum::<usize>();
        }
        // Nobody puts a commit in meanwhile.
        self.bytes.store(left, Ordering::Relaxed);
    }

    /// Drops all.
    pub(super) fn clear(&self) {
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
        let map = VersionMap::new(bits);
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
                map.ranges(&[[0; 32]..=[255; 32]], base, |_, key, number, held| {
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
