//! A key with its versions.
//!
//! Invariant: versions ascend by commit, without repetition, and there is one at least.

use pleach_beatree::Stored;
use pleach_core::search::lower_bound_near;
use pleach_core::{Key, cpu_prefetch};

/// A version: the commit that replaced it, and what it replaced.
pub(super) type Version = (u64, Stored);

/// Steps of a search before they grow.
const NEAR: usize = 4;

/// A key of the map, in two lines of memory with its two newest versions: most keys of most databases have no
/// more, and who looks a few commits back mostly asks for one of these.
#[repr(align(128))]
pub(super) struct Entry {
    pub(super) key: Key,
    /// The newest commit that changed it, and the one before; 0 for none.
    numbers: [u64; 2],
    /// What these have replaced.
    held: [Stored; 2],
    /// The newest commit in `older`, or one that has been dropped from there; 0 for none.
    before: u64,
    /// The versions before these.
    older: Vec<Version>,
}

const _: () = assert!(size_of::<Entry>() == 128, "two lines");

impl Entry {
    pub(super) fn new(key: Key, (newest, held): Version) -> Self {
        let (numbers, held) = ([newest, 0], [held, Stored::Absent]);
        Self { key, numbers, held, before: 0, older: Vec::new() }
    }

    pub(super) fn newest(&self) -> u64 {
        self.numbers[0]
    }

    /// Where the first older version after `base` is expected, with none before `oldest`: commits change a key about
    /// as often as each other.
    fn guess(&self, base: u64, oldest: u64) -> usize {
        let count = self.older.len();
        let since = (base + 1).saturating_sub(oldest);
        let all = self.before.saturating_sub(oldest).max(1);
        let at = since.saturating_mul(count as u64) / all;
        usize::try_from(at).map_or(count, |at| at.min(count))
    }

    /// Prefetches the memory that a search for the first version after `base` begins with, mostly one or two lines:
    /// who waits for many waits for each that it asks for.
    pub(super) fn cpu_prefetch(&self, base: u64, oldest: u64) {
        if self.before > base {
            let guess = self.guess(base, oldest);
            cpu_prefetch(&self.older[guess.saturating_sub(1)..(guess + 1).min(self.older.len())]);
        }
    }

    /// Prefetches the memory that a version moves to when others follow it.
    pub(super) fn cpu_prefetch_end(&self) {
        cpu_prefetch(&self.older[self.older.len().saturating_sub(1)..]);
    }

    /// The oldest version after `base`.
    pub(super) fn after(&self, base: u64, oldest: u64) -> Option<(u64, &Stored)> {
        if self.before <= base {
            let at = usize::from(self.numbers[1] > base);
            return (self.numbers[at] > base).then_some((self.numbers[at], &self.held[at]));
        }
        let all = &*self.older;
        let less = |at: usize| all[at].0 <= base;
        let mut at = self.guess(base, oldest);
        // Mostly it is there or beside.
        for _ in 0..NEAR {
            if at < all.len() && less(at) {
                at += 1;
            } else if at > 0 && !less(at - 1) {
                at -= 1;
            } else {
                return all.get(at).map(|(number, held)| (*number, held));
            }
        }
        let (number, held) = all.get(lower_bound_near(at, all.len(), less))?;
        Some((*number, held))
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        let held = self.older.iter().map(|(_, held)| held).chain(&self.held);
        self.older.capacity() * size_of::<Version>() + held.map(Stored::heap_bytes).sum::<usize>()
    }

    /// Adds a version, newer than all; gives the bytes that it took.
    pub(super) fn push(&mut self, (number, held): Version) -> usize {
        let (bytes, capacity) = (held.heap_bytes(), self.older.capacity());
        let [newest, second] = self.numbers;
        self.numbers = [number, newest];
        debug_assert!(newest < number, "commits are put in in their order");
        self.held.swap(0, 1);
        let held = std::mem::replace(&mut self.held[0], held);
        if second > 0 {
            if self.older.len() == capacity {
                // Doubling would leave a quarter of all memory unused.
                self.older.reserve_exact(capacity / 4 + 1 + usize::from(capacity > 0));
            }
            self.older.push((second, held));
            self.before = second;
        }
        bytes + (self.older.capacity() - capacity) * size_of::<Version>()
    }

    /// Drops the versions of commits through `floor`; false when none is left.
    pub(super) fn drop_through(&mut self, floor: u64) -> bool {
        let gone = self.older.partition_point(|version| version.0 <= floor);
        if gone > 0 {
            self.older.drain(..gone);
            self.older.shrink_to(self.older.len() + self.older.len() / 4);
        }
        if self.numbers[1] <= floor {
            (self.numbers[1], self.held[1]) = (0, Stored::Absent);
        }
        self.newest() > floor
    }
}
