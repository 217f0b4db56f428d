//! An open table from page numbers to entry numbers: linear probing, deletion by shifting back.
//!
//! It stores entry numbers only; the owner of the entries says which page an entry has. It grows only by
//! [`HashTable::resize`] and must be kept at most half full.

use pleach_core::cpu_prefetch;

use crate::page_no::PageNo;

/// The number of no entry.
pub(super) const NONE: u32 = u32::MAX;

/// The number that belongs to no batch.
pub const NO_BATCH: u64 = 0;

/// The hash of a page number. Neighbouring pages go to different shards and slots.
#[inline]
pub(super) fn hash(page_no: PageNo) -> u64 {
    (u64::from(page_no) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The shard of a hash: from its top bits.
#[inline]
pub(super) fn shard_of(hash: u64, shards: usize) -> usize {
    assert!(shards.is_power_of_two() && shards <= 256);
    (hash >> 56) as usize & (shards - 1)
}

/// The slot of a hash among a power of two of them: from its middle bits.
#[inline]
pub(super) fn slot_of(hash: u64, slots: usize) -> usize {
    assert!(slots.is_power_of_two());
    (hash >> 24) as usize & (slots - 1)
}

#[derive(Debug, Default)]
pub(super) struct HashTable(Vec<u32>);

impl HashTable {
    pub(super) fn slots(&self) -> usize {
        self.0.len()
    }

    /// The number under this hash that `is_it` accepts.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.0.is_empty() {
            return None;
        }
        let mut slot = slot_of(hash, self.0.len());
        loop {
            match self.0[slot] {
                NONE => return None,
                id if is_it(id) => return Some(id),
                _ => slot = self.after(slot),
            }
        }
    }

    /// Prefetches the memory where [`HashTable::find`] looks first.
    #[inline]
    pub(super) fn cpu_prefetch(&self, hash: u64) {
        if !self.0.is_empty() {
            let slot = slot_of(hash, self.0.len());
            cpu_prefetch(&self.0[slot..=slot]);
        }
    }

    /// Adds a number that is not in the table.
    pub(super) fn insert(&mut self, hash: u64, id: u32) {
        let mut slot = slot_of(hash, self.0.len());
        while self.0[slot] != NONE {
            slot = self.after(slot);
        }
        self.0[slot] = id;
    }

    /// Removes a number that is in the table. `hash_of` gives the hash that a number was added under.
    pub(super) fn remove(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let mut hole = slot_of(hash, self.0.len());
        while self.0[hole] != id {
            assert!(self.0[hole] != NONE, "the table lost an entry");
            hole = self.after(hole);
        }
        let mask = self.0.len() - 1;
        let mut slot = self.after(hole);
        while self.0[slot] != NONE {
            // It may move into the hole unless its home comes after that.
            let home = slot_of(hash_of(self.0[slot]), self.0.len());
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(hole) & mask {
                self.0[hole] = self.0[slot];
                hole = slot;
            }
            slot = self.after(slot);
        }
        self.0[hole] = NONE;
    }

    /// Rehashes into `slots` slots, a power of two.
    pub(super) fn resize(&mut self, slots: usize, hash_of: impl Fn(u32) -> u64) {
        let old = core::mem::replace(&mut self.0, vec![NONE; slots]);
        for id in old.into_iter().filter(|id| *id != NONE) {
            self.insert(hash_of(id), id);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.0.len() - 1)
    }
}
