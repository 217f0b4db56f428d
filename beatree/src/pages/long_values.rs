//! Long values that were read from the overflow file, kept in memory: a cached page has only their cells.
//!
//! A value is identified by its hash and the first page of its runs, so a hit is right whatever has become of the runs:
//! other bytes written there have another hash. Nothing has to be removed when runs are freed; values that nobody reads
//! are evicted in time.
//!
//! Eviction is by CLOCK, a queue with second chances: a value that was used since it was last looked at goes to the end
//! once more. Values that are large for the cache are not kept. A hit takes a read lock and no more.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use pleach_core::ValueHash;

use crate::stored::overflow_cell;
use crate::value::Value;

/// A value of more than one part in this many of the limit is not kept.
const LARGE: usize = 16;

/// The first page of a value's runs, and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LongValueId(u64, ValueHash);

impl LongValueId {
    /// The id of the value that a raw overflow cell names.
    pub fn of(raw: &[u8]) -> Self {
        let cell = overflow_cell(raw);
        Self(cell.extents().next().map_or(0, |extent| extent.start), cell.value_hash())
    }
}

struct ClockEntry {
    value: Value,
    /// True when the value was used since CLOCK last looked at it.
    used: AtomicBool,
}

#[derive(Default)]
struct ClockCache {
    values: HashMap<LongValueId, ClockEntry>,
    /// Each value once; the front is looked at next.
    queue: VecDeque<LongValueId>,
    /// Bytes of the values themselves.
    heap: usize,
}

impl ClockCache {
    fn bytes(&self) -> usize {
        // One byte for each slot of the table, of which seven in eight are used.
        let table = self.values.capacity() * 8 / 7 * (size_of::<(LongValueId, ClockEntry)>() + 1);
        self.heap + table + self.queue.capacity() * size_of::<LongValueId>()
    }

    /// Evicts values until they take at most `limit` bytes. Each is looked at twice at most: nobody uses one meanwhile.
    fn evict_to(&mut self, limit: usize) {
        while self.bytes() > limit
            && let Some(id) = self.queue.pop_front()
        {
            if let Some(slot) = self.values.get_mut(&id)
                && std::mem::take(slot.used.get_mut())
            {
                self.queue.push_back(id);
            } else if let Some(slot) = self.values.remove(&id) {
                self.heap -= slot.value.heap_bytes();
            }
        }
    }
}

/// The cache of long values.
pub struct LongValues {
    limit: usize,
    cache: RwLock<ClockCache>,
}

impl LongValues {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, cache: RwLock::default() }
    }

    /// Bytes of the kept values and their table.
    pub fn bytes(&self) -> usize {
        self.cache.read().bytes()
    }

    /// A value, if it is kept.
    pub fn get(&self, id: &LongValueId) -> Option<Value> {
        let kept = self.cache.read();
        let slot = kept.values.get(id)?;
        slot.used.store(true, Ordering::Relaxed);
        Some(slot.value.clone())
    }

    /// Keeps a value that was read and checked, unless it is large. True when it did.
    pub fn insert(&self, id: LongValueId, value: &Value) -> bool {
        let bytes = value.heap_bytes();
        if bytes > self.limit / LARGE {
            return false;
        }
        let mut kept = self.cache.write();
        if kept.values.contains_key(&id) {
            // Another thread has read it, too.
            return false;
        }
        // Otherwise it would be the first to be evicted once all others were used.
        let used = AtomicBool::new(true);
        kept.values.insert(id, ClockEntry { value: value.clone(), used });
        kept.queue.push_back(id);
        kept.heap += bytes;
        kept.evict_to(self.limit);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    fn id(number: u16) -> LongValueId {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&number.to_be_bytes());
        LongValueId(number.into(), hash.into())
    }

    fn value(number: u16, len: usize) -> Value {
        let [high, low] = number.to_be_bytes();
        Value::from([[high, low].as_slice(), &vec![0; len]].concat())
    }

    #[test]
    fn values_stay_within_the_limit_and_used_ones_stay_longest() {
        const HOT: [u16; 4] = [7, 107, 207, 307];
        let (values, mut lost) = (LongValues::new(LIMIT), 0);
        for number in 0..5000 {
            assert!(values.insert(id(number), &value(number, 2000)));
            assert!(values.bytes() <= LIMIT, "{} bytes", values.bytes());
            // Many are evicted at once where the table's capacity grows, which depends on the keys of its hasher: a used one may be
            // among them if it has just had its second chance.
            for hot in HOT.into_iter().filter(|hot| *hot <= number) {
                if values.get(&id(hot)).is_none() {
                    lost += 1;
                    values.insert(id(hot), &value(hot, 2000));
                }
            }
        }
        assert!(lost <= 12, "lost {lost} times: without second chances each is lost ten times");
        let there: Vec<u16> = (0..5000).filter(|at| values.get(&id(*at)).is_some()).collect();
        assert!(there.len() > 350, "{} values", there.len());
        assert!(there.iter().all(|at| HOT.contains(at) || *at > 4000), "the newest, and these");
        for number in there {
            assert_eq!(values.get(&id(number)), Some(value(number, 2000)));
        }
    }

    #[test]
    fn large_values_and_those_that_are_there_are_not_kept() {
        let values = LongValues::new(LIMIT);
        assert!(!values.insert(id(1), &value(1, LIMIT / 16)));
        assert_eq!(values.get(&id(1)), None);
        assert!(values.insert(id(1), &value(1, LIMIT / 20)));
        let bytes = values.bytes();
        assert!(!values.insert(id(1), &value(1, LIMIT / 20)));
        assert_eq!(values.bytes(), bytes);
    }

    /// Runs that are used again have another value.
    #[test]
    fn a_value_is_found_by_its_run_and_its_hash() {
        let values = LongValues::new(LIMIT);
        assert!(values.insert(id(1), &value(1, 2000)));
        let LongValueId(start, hash) = id(1);
        assert!(values.get(&LongValueId(start + 1, hash)).is_none());
        assert!(values.get(&LongValueId(start, id(2).1)).is_none());
        assert!(values.get(&LongValueId(start, hash)).is_some());
    }
}
