//! Which page is evicted, by the rules of the queues.

use std::sync::Arc;

use pleach_core::cpu_prefetch;

use super::{MAX_USES, Shard};
use crate::cache::page::CachedPage;
use crate::cache::queue::{CacheEntry, Queue};
use crate::cache::table::{hash, slot_of};

/// Uses that move a page from small to main.
const PROMOTED: u8 = 2;
/// One page in this many is in small.
const SMALL_PART: usize = 10;
/// Looks of an eviction at a page at most: to hold it, to find it no longer held and promote it, for each of its uses,
/// and to evict it. With each look the oldest page of the held queue may go round.
const MAX_LOOKS: usize = 2 * (MAX_USES as usize + 3);

impl Shard {
    /// Evicts the page that is worth least; `None` when there is no page. Bounded: a page that is looked at is evicted,
    /// loses a use, or changes its queue, each a limited number of times before the next batch. Beyond the bound the
    /// page that is looked at last is evicted, held or not.
    pub(super) fn evict(&mut self) -> Option<Arc<CachedPage>> {
        if let Some(page) = self.spare_pages.pop() {
            return Some(page);
        }
        // Spare memory is freed before a page is evicted.
        self.spare_treelets.clear();
        // After the budget shrank, or when reservations and treelets fill it, there may be held pages only.
        let hold = self.held_now < self.pages();
        let bound = MAX_LOOKS * self.pages();
        for look in 0..=bound {
            let id = self.candidate()?;
            if look == bound || self.requeue_unless_evictable(id, hold) {
                debug_assert!(look < bound, "{look} looks at {} pages", self.pages());
                return self.evict_entry(id);
            }
        }
        None
    }

    /// True when the rules of its queue let this page be evicted. If not, the page moves to the next queue.
    fn requeue_unless_evictable(&mut self, id: u32, hold: bool) -> bool {
        let CacheEntry { until, uses, queue, from_main, .. } = self.entries[id as usize];
        if hold && self.is_held(until) {
            if queue == Queue::Main {
                self.entries[id as usize].from_main = true;
                self.parked += 1;
            }
            self.move_to(id, Queue::Held);
            return false;
        }
        let (stays, left) = match queue {
            Queue::Main => (uses > 0, uses.saturating_sub(1)),
            // The rule of the queue that it came from decides.
            Queue::Held if from_main => (true, uses),
            Queue::Small | Queue::Held => (uses >= PROMOTED, 0),
        };
        if stays {
            self.unpark(id);
            self.entries[id as usize].uses = left;
            self.move_to(id, Queue::Main);
        }
        !stays
    }

    pub(super) fn unpark(&mut self, id: u32) {
        if std::mem::take(&mut self.entries[id as usize].from_main) {
            self.parked -= 1;
        }
    }

    /// Evicts an entry's page and remembers its number in the ghost, if it was in small.
    fn evict_entry(&mut self, id: u32) -> Option<Arc<CachedPage>> {
        let CacheEntry { page_no, queue, from_main, .. } = self.entries[id as usize];
        if queue != Queue::Main && !from_main {
            let slot = slot_of(hash(page_no), self.ghost.len());
            self.ghost[slot] = page_no.get().wrapping_add(1);
        }
        self.evictions += 1;
        self.cpu_prefetch_after(id);
        self.take_out(id)
    }

    /// Prefetches the memory of the pages that are evicted after this one.
    fn cpu_prefetch_after(&self, id: u32) {
        let Some(next) = self.entries[id as usize].newer() else { return };
        let next = &self.entries[next as usize];
        if let Some(page) = &next.page {
            page.cpu_prefetch_front();
        }
        if let Some(third) = next.newer() {
            cpu_prefetch(core::slice::from_ref(&self.entries[third as usize]));
        }
    }

    /// The page that is looked at next.
    fn candidate(&mut self) -> Option<u32> {
        if let Some(id) = self.held.oldest() {
            let only = self.held.len() == self.pages();
            if only || !self.is_held(self.entries[id as usize].until) {
                return Some(id);
            }
            self.move_to(id, Queue::Held);
        }
        let main = self.main.len() + self.parked;
        let from_small = self.small.len() * SMALL_PART > self.small.len() + main;
        match (self.small.oldest(), self.main.oldest()) {
            (Some(id), _) if from_small => Some(id),
            (_, Some(id)) | (Some(id), None) => Some(id),
            (None, None) => None,
        }
    }

    /// Moves an entry to the new end of a queue.
    pub(super) fn move_to(&mut self, id: u32, queue: Queue) {
        let (list, entries) = self.list(self.entries[id as usize].queue);
        list.unlink(entries, id);
        let (list, entries) = self.list(queue);
        list.push(entries, id);
        entries[id as usize].queue = queue;
    }
}
