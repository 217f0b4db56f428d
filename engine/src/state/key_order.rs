//! The order of a shard's keys, for ranges: sorted lists of numbers of entries.
//!
//! Beside each number are 32 bits of its key, so that a search touches one or two lines of memory where keys are
//! spread evenly, and no key but at its end. Keys that share these bits are compared as a whole. A shard has
//! mostly one list; those that grow long are split, so that what an addition moves is bounded.
//! Used by [`super::versions`] alone, which has the keys.

use pleach_core::search::{guess, lower_bound_near};
use pleach_core::{Key, cpu_prefetch};

/// A key's number, and the bits by which it is found.
#[derive(Clone, Copy)]
struct Item {
    lead: u32,
    entry: u32,
}

/// Numbers of entries, in the order of their keys.
#[derive(Default)]
pub(super) struct KeyOrder {
    first: Vec<Item>,
    /// Further lists, none of them empty.
    more: Vec<Vec<Item>>,
    bytes: usize,
}

/// A list with more is split: an addition moves half of one, at most four KiB.
const LONG: usize = 1024;

/// A key with its lead.
#[derive(Clone, Copy)]
pub(super) struct Sought<'a> {
    pub(super) lead: u32,
    pub(super) key: &'a Key,
}

impl KeyOrder {
    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn list(&self, at: usize) -> Option<&Vec<Item>> {
        if at == 0 { Some(&self.first) } else { self.more.get(at - 1) }
    }

    fn list_bytes(list: &Vec<Item>) -> usize {
        list.capacity() * size_of::<Item>()
    }

    /// Prefetches the memory where a search begins.
    pub(super) fn cpu_prefetch(&self, lead: u32) {
        if self.more.is_empty() && !self.first.is_empty() {
            let at = guess(lead, self.first.len());
            cpu_prefetch(&self.first[at.saturating_sub(4)..(at + 5).min(self.first.len())]);
        }
    }

    /// The list and the place in it of the first key that is not less than this one.
    fn find<'k>(&self, sought: Sought<'_>, key: impl Fn(u32) -> &'k Key) -> (usize, usize) {
        let less = |item: &Item| {
            item.lead < sought.lead || item.lead == sought.lead && key(item.entry) < sought.key
        };
        let at = self.more.partition_point(|list| less(&list[0]));
        let list = if at == 0 { &self.first } else { &self.more[at - 1] };
        let guessed = match (list.first(), list.last()) {
            (Some(first), Some(last)) if !self.more.is_empty() => {
                let all = u64::from(last.lead - first.lead).max(1);
                let since = u64::from(sought.lead.saturating_sub(first.lead)).min(all);
                usize::try_from(since * list.len() as u64 / all).unwrap_or(0)
            }
            _ => guess(sought.lead, list.len()),
        };
        (at, lower_bound_near(guessed, list.len(), |at| less(&list[at])))
    }

    /// Adds a key that is not in, with the number of its entry; `key` gives the keys of others.
    pub(super) fn insert<'k>(
        &mut self,
        sought: Sought<'_>,
        entry: u32,
        key: impl Fn(u32) -> &'k Key,
    ) {
        let (at, place) = self.find(sought, key);
        let list = if at == 0 { &mut self.first } else { &mut self.more[at - 1] };
        let had = Self::list_bytes(list);
        if list.len() == list.capacity() {
            list.reserve_exact(list.len() / 4 + 2);
        }
        list.insert(place, Item { lead: sought.lead, entry });
        self.bytes = self.bytes + Self::list_bytes(list) - had;
        if list.len() > LONG {
            let upper = list.split_off(LONG / 2);
            let room = self.more.capacity();
            self.bytes += Self::list_bytes(&upper);
            self.more.insert(at, upper);
            self.bytes += (self.more.capacity() - room) * size_of::<Vec<Item>>();
        }
    }

    /// The number of a key's entry.
    pub(super) fn get<'k>(&self, sought: Sought<'_>, key: impl Fn(u32) -> &'k Key) -> Option<u32> {
        let (at, place) = self.find(sought, &key);
        // The first key of a list is looked for at the end of the one before.
        let item = self.list(at)?.get(place).or_else(|| self.list(at + 1)?.first())?;
        (item.lead == sought.lead && key(item.entry) == sought.key).then_some(item.entry)
    }

    /// Shows the numbers of the entries from `first` to `last`, in order.
    pub(super) fn range<'k>(
        &self,
        first: Sought<'_>,
        last: Sought<'_>,
        key: impl Fn(u32) -> &'k Key,
        mut see: impl FnMut(u32),
    ) {
        let (mut at, mut place) = self.find(first, &key);
        while let Some(list) = self.list(at) {
            for item in &list[place..] {
                if item.lead > last.lead || item.lead == last.lead && key(item.entry) > last.key {
                    return;
                }
                see(item.entry);
            }
            (at, place) = (at + 1, 0);
        }
    }

    /// Keeps the entries that have a number afterwards.
    pub(super) fn renumber(&mut self, number: impl Fn(u32) -> Option<u32>) {
        let lists = std::iter::once(&mut self.first).chain(&mut self.more);
        for list in lists {
            list.retain_mut(|item| {
                let number = number(item.entry);
                item.entry = number.unwrap_or_default();
                number.is_some()
            });
            list.shrink_to(list.len() + list.len() / 4);
        }
        self.more.retain(|list| !list.is_empty());
        self.more.shrink_to(self.more.len() + self.more.len() / 4);
        let lists = std::iter::once(&self.first).chain(&self.more);
        self.bytes = lists.map(Self::list_bytes).sum::<usize>()
            + self.more.capacity() * size_of::<Vec<Item>>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys whose leads are spread, and keys whose leads are all the same.
    fn key(number: u64, spread: bool) -> Key {
        let mut key = [7; 32];
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let at = if spread { 0 } else { 24 };
        key[at..at + 8].copy_from_slice(&hash);
        key
    }

    fn sought(key: &Key) -> Sought<'_> {
        Sought { lead: u32::from_be_bytes([key[0], key[1], key[2], key[3]]), key }
    }

    fn follows_a_sorted_list(count: u64, spread: bool) {
        let keys: Vec<Key> = (0..count).map(|number| key(number, spread)).collect();
        let mut order = KeyOrder::default();
        let of = |keys: &[Key], order: &KeyOrder, first: &Key, last: &Key| {
            let mut found = Vec::new();
            let key = |entry: u32| &keys[entry as usize];
            order.range(sought(first), sought(last), key, |entry| found.push(*key(entry)));
            found
        };
        for (entry, key) in (0..).zip(&keys) {
            order.insert(sought(key), entry, |entry| &keys[entry as usize]);
        }
        let check = |keys: &[Key], order: &KeyOrder| {
            let mut sorted = keys.to_vec();
            sorted.sort_unstable();
            for (entry, key) in (0..).zip(keys) {
                let get = |key: &Key| order.get(sought(key), |entry| &keys[entry as usize]);
                assert_eq!(get(key), Some(entry));
                let mut other = *key;
                other[16] ^= 1;
                assert_eq!(get(&other), None);
            }
            assert_eq!(of(keys, order, &[0; 32], &[255; 32]), sorted);
            for at in (0..sorted.len()).step_by(37) {
                let end = (at * 3 / 2 + 1).min(sorted.len() - 1);
                let found = of(keys, order, &sorted[at], &sorted[end]);
                assert_eq!(found, sorted[at..=end.max(at)], "{at} to {end} of {count}");
                let mut after = sorted[at];
                after[31] = after[31].wrapping_add(1).max(1);
                let slow: Vec<Key> = sorted.iter().filter(|key| **key >= after).copied().collect();
                assert_eq!(of(keys, order, &after, &[255; 32]), slow);
            }
        };
        check(&keys, &order);
        let (full, lists) = (order.bytes(), order.more.len());
        assert!(full >= keys.len() * size_of::<Item>());
        assert_eq!(lists > 0, keys.len() > LONG);
        // Every third one stays.
        order.renumber(|entry| entry.is_multiple_of(3).then_some(entry / 3));
        let left: Vec<Key> = keys.iter().step_by(3).copied().collect();
        check(&left, &order);
        assert!(order.bytes() <= full / 2);
        order.renumber(|_| None);
        assert_eq!((order.bytes(), of(&[], &order, &[0; 32], &[255; 32]).len()), (0, 0));
    }

    #[test]
    fn ranges_are_those_of_a_sorted_list() {
        for (count, spread) in [(1, true), (60, true), (5000, true), (60, false), (3000, false)] {
            follows_a_sorted_list(count, spread);
        }
    }
}
