//! A key with its versions.
//!
//! Invariant: versions ascend by commit, without repetition, and there is one at least.

use pleach_beatree::Stored;
use pleach_core::search::lower_bound_near;
use pleach_core::{Key, cpu_prefetch};

/// A version: the commit that replaced it, and what it replaced.
pub(super) type Version = (u64, Stored);

/// A key of the map, in two lines of memory: most keys of most databases have no more versions than are in it.
/// Who looks far back reads the first line and the list, who looks a few commits back the second line.
#[repr(C, align(128))]
pub(super) struct Entry {
    pub(super) key: Key,
    /// The newest commit that changed it.
    pub(super) newest: u64,
    /// The versions before the two newest ones.
    older: Vec<Version>,
    /// The newest commit in `older`, or one that has been dropped from there; 0 for none.
    before: u64,
    /// The commit before the newest one; 0 for none.
    second: u64,
    /// What the newest one replaced, and the second.
    held: [Stored; 2],
}

const _: () = assert!(size_of::<Entry>() == 128, "two lines");

impl Entry {
    pub(super) fn new(key: Key, (newest, held): Version) -> Self {
        let held = [held, Stored::Absent];
        Self { key, newest, older: Vec::new(), before: 0, second: 0, held }
    }

    /// Where the first version after `base` is expected, with none before `oldest`: commits change a key about as often
    /// as each other. From the length of `older` on it is one of the two newest.
    fn guess(&self, base: u64, oldest: u64) -> usize {
        let count = self.older.len() + 2;
        let since = (base + 1).saturating_sub(oldest);
        let all = self.newest.saturating_sub(oldest).max(1);
        let at = since.saturating_mul(count as u64) / all;
        usize::try_from(at).map_or(count, |at| at.min(count))
    }

    /// Prefetches the memory that a search begins with, where the first line is there: who waits for many waits for each
    /// line that it asks for.
    pub(super) fn cpu_prefetch_after(&self, base: u64, oldest: u64) {
        let guess = self.guess(base, oldest);
        if guess < self.older.len() {
            cpu_prefetch(&self.older[guess.saturating_sub(1)..=guess]);
        } else {
            cpu_prefetch(&self.held);
        }
    }

    /// Prefetches the memory that a version moves to when others follow it.
    pub(super) fn cpu_prefetch_end(&self) {
        cpu_prefetch(&self.older[self.older.len().saturating_sub(1)..]);
    }

    /// The oldest version after `base`.
    pub(super) fn after(&self, base: u64, oldest: u64) -> Option<(u64, &Stored)> {
        if self.newest <= base {
            return None;
        }
        let guess = self.guess(base, oldest);
        if guess < self.older.len() || self.before > base {
            let all = &*self.older;
            let first = lower_bound_near(guess, all.len(), |at| all[at].0 <= base);
            if let Some((number, held)) = all.get(first) {
                return Some((*number, held));
            }
        }
        let at = usize::from(self.second > base);
        Some(([self.newest, self.second][at], &self.held[at]))
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        let held = self.older.iter().map(|(_, held)| held).chain(&self.held);
        self.older.capacity() * size_of::<Version>() + held.map(Stored::heap_bytes).sum::<usize>()
    }

    /// Adds a version, newer than all; gives the bytes that it took.
    pub(super) fn push(&mut self, (number, held): Version) -> usize {
        let (bytes, capacity) = (held.heap_bytes(), self.older.capacity());
        debug_assert!(self.newest < number, "commits are put in in their order");
        let second = std::mem::replace(&mut self.second, self.newest);
        self.newest = number;
        self.held.swap(0, 1);
        let held = std::mem::replace(&mut self.held[0], held);
        if second > 0 {
            if self.older.len() == capacity {
                // Doubling would leave a quarter of all memory unused, and one at a time a search of the heap for each.
                self.older.reserve_exact(capacity / 4 + 3);
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
            self.older.shrink_to(2 * self.older.len());
        }
        if self.second <= floor {
            (self.second, self.held[1]) = (0, Stored::Absent);
        }
        self.newest > floor
    }
}
