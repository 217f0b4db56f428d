//! The value cache: values of requested keys as of a commit.
//!
//! A lookup waits for cold memory several times in a row. Keys that a session wants prefetched
//! ([`crate::Session::prefetch`]) are looked up in key batches whose waits overlap ([`crate::read::key_batch`]), and
//! their values are kept here, in a slot of two cache lines for each key.
//!
//! Invariants: an entry for a namespace, a key and a commit has the key's value as of that commit, which never changes,
//! so an entry is right or absent, never stale. A slot is reused by a newer commit only; a key without a free slot, or
//! with a longer value, is absent. Any thread may read and write.
//!
//! A slot is a sequence lock without a count: its mark has the commit, which only grows, and the namespace; under one
//! commit a slot is written once. A reader that finds the same mark before and after has read one value.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use pleach_core::Key;
use pleach_core::cpu_prefetch;
use pleach_io::huge_pages;

/// Words of a slot, of a key, and of a value.
const SLOT: usize = 1 + KEY + VALUE;
const KEY: usize = 4;
const VALUE: usize = 11;
/// Bytes of the longest value that has room.
pub(crate) const MAX_VALUE: usize = VALUE * 8;
/// Slots that a key may have.
const WAYS: usize = 2;

/// Mark of a slot that is being written.
const BUSY: u64 = u64::MAX;
/// In place of a length: the key has no value.
const ABSENT: u64 = 0xff;

/// Two cache lines. The first word is the mark: 0 when empty, [`BUSY`], else the commit plus 1 (48 bits), the
/// namespace, and the value's length. Key and value follow.
type ValueSlot = [AtomicU64; SLOT];

/// The cached value of a key.
pub(crate) struct PrefetchedValue {
    bytes: [u8; MAX_VALUE],
    /// `None` when the key has no value.
    len: Option<usize>,
}

impl PrefetchedValue {
    /// The value, if the key has one.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.len.map(|len| &self.bytes[..len])
    }
}

/// The slots of a table that may have a key's value as of a commit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotPair {
    at: usize,
    /// The mark of a slot with the value, without its length.
    mark: u64,
}

/// The value cache, a table of fixed size.
pub(crate) struct ValueCache {
    words: Vec<AtomicU64>,
    /// Number of words before the first slot, which begins a cache line.
    unused: usize,
}

impl ValueCache {
    /// A table of at most `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let slots = (bytes / size_of::<ValueSlot>()).max(WAYS);
        // Rounded down to a power of two. The additional words are fewer than a slot's and make no other pair.
        let words = huge_pages::zeroed((1 << slots.ilog2()) * SLOT + SLOT - 1);
        let unused = words.as_ptr().align_offset(size_of::<ValueSlot>());
        Self { words, unused }
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Prefetches the memory that [`Self::put`] writes.
    #[inline]
    pub(crate) fn cpu_prefetch(&self, pair: SlotPair) {
        cpu_prefetch(&self.pairs()[pair.at][0]);
    }

    /// The slots that may have the value of a namespace's key as of a commit.
    #[inline]
    pub(crate) fn slots_of(&self, namespace: u8, commit: u64, key: &Key) -> SlotPair {
        debug_assert!(commit < (1 << 48) - 2, "a mark has 48 bits for the commit");
        // Namespaces with the same keys do not share their slots.
        let spread = u64::from(namespace).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = twox_hash::XxHash3_64::oneshot(key) ^ spread >> 8;
        let mask = self.pairs().len() as u64 - 1;
        let at = usize::try_from(hash & mask).expect("an index");
        SlotPair { at, mark: (commit + 1) << 16 | u64::from(namespace) << 8 }
    }

    /// Keeps the value of `key`, if one of its slots is free for it.
    pub(crate) fn put(&self, pair: SlotPair, key: &Key, value: Option<&[u8]>) {
        let len = match value {
            Some(value) if value.len() > MAX_VALUE => return,
            Some(value) => value.len() as u64,
            None => ABSENT,
        };
        let SlotPair { at, mark } = pair;
        for slot in &self.pairs()[at] {
            let (own_mark, own_key, own_value) = split_slot(slot);
            let before = own_mark.load(Ordering::Relaxed);
            // The slot is of this commit, of a later one, or being written.
            if before >> 16 >= mark >> 16 {
                if before >> 8 == mark >> 8 && has_key(own_key, key) {
                    return;
                }
                continue;
            }
            let taken =
                own_mark.compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            // The mark that keeps readers out is stored before all that follows.
            fence(Ordering::Release);
            for (to, word) in own_key.iter().zip(words(key)) {
                to.store(word, Ordering::Relaxed);
            }
            for (to, word) in own_value.iter().zip(words(value.unwrap_or_default())) {
                to.store(word, Ordering::Relaxed);
            }
            own_mark.store(mark | len, Ordering::Release);
            return;
        }
    }

    /// The value of a namespace's `key` as of `commit`, if it is cached.
    #[inline]
    pub(crate) fn get(&self, namespace: u8, commit: u64, key: &Key) -> Option<PrefetchedValue> {
        self.get_in(self.slots_of(namespace, commit, key), key)
    }

    /// The same for a key whose slots are known.
    #[inline]
    pub(crate) fn get_in(&self, pair: SlotPair, key: &Key) -> Option<PrefetchedValue> {
        let wanted = pair.mark >> 8;
        for slot in &self.pairs()[pair.at] {
            let (own_mark, own_key, own_value) = split_slot(slot);
            let mark = own_mark.load(Ordering::Acquire);
            if mark >> 8 != wanted || !has_key(own_key, key) {
                continue;
            }
            let mut value = PrefetchedValue { bytes: [0; MAX_VALUE], len: None };
            if mark & 0xff != ABSENT {
                let len = usize::try_from(mark & 0xff).expect("a byte").min(MAX_VALUE);
                let (bytes, _) = value.bytes.as_chunks_mut::<8>();
                for (to, word) in bytes[..len.div_ceil(8)].iter_mut().zip(own_value) {
                    *to = word.load(Ordering::Relaxed).to_le_bytes();
                }
                value.len = Some(len);
            }
            // All words are read before the mark is read again.
            fence(Ordering::Acquire);
            if own_mark.load(Ordering::Relaxed) == mark {
                return Some(value);
            }
        }
        None
    }

    /// The slots of all pairs.
    #[inline]
    fn pairs(&self) -> &[[ValueSlot; WAYS]] {
        let (slots, _) = self.words[self.unused..].as_chunks();
        slots.as_chunks().0
    }
}

/// Mark, key and value of a slot.
#[inline]
fn split_slot(slot: &ValueSlot) -> (&AtomicU64, &[AtomicU64], &[AtomicU64]) {
    let (key, value) = slot[1..].split_at(KEY);
    (&slot[0], key, value)
}

#[inline]
fn has_key(own: &[AtomicU64], key: &Key) -> bool {
    own.iter().zip(words(key)).all(|(own, word)| own.load(Ordering::Relaxed) == word)
}

/// The bytes as words, the last one filled up with zeros.
#[inline]
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn key(number: u64) -> Key {
        let mut key = [0; 32];
        for (word, chunk) in (1_u64..).zip(key.as_chunks_mut::<8>().0) {
            *chunk = number.wrapping_mul(word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
        }
        key
    }

    fn value(commit: u64, number: u64) -> Vec<u8> {
        let len = usize::try_from((commit + number) % 89).expect("small");
        commit.wrapping_mul(31).wrapping_add(number).to_le_bytes().repeat(11)[..len].to_vec()
    }

    #[test]
    fn a_value_is_that_of_its_commit_or_none() {
        let values = ValueCache::new(1 << 16);
        let put = |commit, key: &Key, value: Option<&[u8]>| {
            values.put(values.slots_of(0, commit, key), key, value);
        };
        let got = |commit, number| {
            values.get(0, commit, &key(number)).map(|found| found.value().map(<[u8]>::to_vec))
        };
        let mut found = 0;
        for commit in [0, 1, 7, 8] {
            for number in 0..200 {
                let value = value(commit, number);
                put(commit, &key(number), (number % 5 > 0).then_some(&value));
                // A second value of the same commit changes nothing.
                put(commit, &key(number), Some(b"other"));
            }
            for number in 0..200 {
                let expected = (number % 5 > 0).then(|| value(commit, number));
                if let Some(got) = got(commit, number) {
                    assert_eq!(got, expected, "commit {commit}, key {number}");
                    found += 1;
                }
                assert_eq!(got(commit + 20, number), None);
            }
        }
        assert!(found > 4 * 190, "most keys have a slot: {found}");
        for number in 0..200 {
            let before = got(8, number);
            put(3, &key(number), Some(b"older"));
            assert_eq!(got(8, number), before, "an older commit takes no newer one's slot");
        }
        put(9, &key(777), Some(&[1; MAX_VALUE + 1]));
        assert_eq!(got(9, 777), None, "no room for so long a value");
    }

    #[test]
    fn a_value_is_that_of_its_namespace_or_none() {
        let values = ValueCache::new(1 << 16);
        let mut found = 0;
        for number in 0..50 {
            let key = key(number);
            for namespace in [0, 1, 255] {
                let value = value(7, number + u64::from(namespace));
                values.put(values.slots_of(namespace, 7, &key), &key, Some(&value));
            }
            for namespace in [0, 1, 255] {
                let expected = value(7, number + u64::from(namespace));
                if let Some(got) = values.get(namespace, 7, &key) {
                    assert_eq!(got.value(), Some(expected.as_slice()), "{namespace}: {number}");
                    found += 1;
                }
            }
            assert!(values.get(2, 7, &key).is_none() && values.get(1, 6, &key).is_none());
        }
        assert!(found > 140, "most keys have a slot in each namespace: {found}");
    }

    #[test]
    fn readers_never_see_half_a_value() {
        let values = ValueCache::new(4 * size_of::<ValueSlot>());
        let done = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut seen, mut commit) = (0_u64, 0);
                while !done.load(Ordering::Relaxed) || seen == 0 {
                    commit = (commit + 1) % 20_000;
                    for number in 0..8 {
                        if let Some(found) = values.get(3, commit, &key(number)) {
                            assert_eq!(found.value(), Some(value(commit, number).as_slice()));
                            seen += 1;
                        }
                    }
                }
                seen
            });
            for commit in 0..20_000 {
                for number in 0..8 {
                    let key = key(number);
                    let (pair, value) = (values.slots_of(3, commit, &key), value(commit, number));
                    values.put(pair, &key, Some(&value));
                }
            }
            done.store(true, Ordering::Relaxed);
            // The last commit's values stay: the reader finds them now at the latest.
            reader.join().expect("no torn value")
        });
        assert!(seen > 0);
    }
}
