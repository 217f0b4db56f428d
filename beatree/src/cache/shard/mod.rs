//! One shard: a table from page numbers to entries, and the queues that decide which page is evicted.
//!
//! Eviction is S3-FIFO (docs/decisions/0012). New pages enter the *small* queue. When the oldest page there was used
//! more than once it moves to the *main* queue, else it is evicted and its number is remembered in the *ghost*. A page
//! whose number is found there enters main at once. Main's oldest page goes round once more for each use, at most three
//! times, and is then evicted. So a scan passes through small only.
//!
//! A page is held through a batch, the current one or the next. It moves to the *held* queue when it comes up for
//! eviction. Each eviction looks at the oldest page there. While that is held it goes round; later, if it came from
//! small, the rule of small decides, and if it came from main it goes back there. So a held page costs one look a
//! batch, and small and main never have held pages only: an eviction takes a few steps on average, and at most
//! `MAX_LOOKS` for each page. At most seven eighths of the shard of what treelets leave are held, and small is emptied
//! down to a tenth first.
//!
//! Invariants: each entry with a page is in the table and in exactly one queue; entries without are in the list of
//! vacant ones, which has at least one for each reservation; `page_bytes` is the sum over the pages with their
//! treelets; `held_now` counts the held entries, `held_on` those of them that are still held in the next batch. Debug
//! builds recount all of them when a batch begins and when the budget changes.

mod evict;
mod treelets;

use std::sync::Arc;

use pleach_core::Key;
use pleach_core::cpu_prefetch;

use super::page;
use super::page::CachedPage;
use super::queue::{CacheEntry, EntryList, Queue};
use super::table::{HashTable, NO_BATCH, hash, slot_of};
use crate::page_no::PageNo;
use crate::stored::Stored;
use crate::treelet::Treelet;

/// What a lookup reads, step by step, for [`Cache::cpu_prefetch`](super::Cache::cpu_prefetch).
#[derive(Clone, Copy, Debug)]
pub enum LookupStep<'a> {
    /// The table of page numbers.
    Table,
    /// The page's entry.
    Entry,
    /// The front of the page, before a search for any key.
    Front,
    /// The page around a key's expected cell.
    Page(&'a Key),
    /// All cells of the page.
    Cells,
}

/// Figures of a [`Cache`](super::Cache).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found their page.
    pub hits: u64,
    /// Lookups that did not find their page.
    pub misses: u64,
    /// Pages copied in.
    pub insertions: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Pages present.
    pub pages: u64,
    /// Pages held for the current batch or the next.
    pub held: u64,
    /// Pages that can be held at most.
    pub max_held: u64,
    /// Bytes counted against the budget.
    pub bytes: u64,
}

/// Uses that are counted at most.
const MAX_USES: u8 = 3;
/// Evicted pages and detached treelets whose memory a shard keeps.
const MAX_SPARE: usize = 16;
/// Entries that are added at a time, at least.
const MIN_STEP: usize = 8;

/// The answer of [`Shard::make_room`].
pub(super) struct Reservation {
    /// An evicted page to be overwritten, if nobody else holds it.
    pub(super) carrier: Option<Arc<CachedPage>>,
    /// True when there is room; [`Shard::insert`] must follow.
    pub(super) reserved: bool,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    budget: usize,
    table: HashTable,
    entries: Vec<CacheEntry>,
    vacant: Vec<u32>,
    small: EntryList,
    main: EntryList,
    held: EntryList,
    /// Pages of the held queue that came from main.
    parked: usize,
    /// Numbers of pages that were evicted from small, each at its hash, plus one; 0 is none.
    ghost: Vec<u32>,
    page_bytes: usize,
    /// Pages with a treelet.
    treelets: usize,
    /// Memory of evicted pages and detached treelets, to be reused.
    spare_pages: Vec<Arc<CachedPage>>,
    #[expect(clippy::vec_box, reason = "the boxes go on to other pages as they are")]
    spare_treelets: Vec<Box<Treelet>>,
    /// Reservations whose insertion has not followed yet.
    reserved: usize,
    batch: u64,
    held_now: usize,
    held_on: usize,
    hits: u64,
    misses: u64,
    insertions: u64,
    evictions: u64,
}

impl Shard {
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, batch: NO_BATCH, ..Self::default() }
    }

    /// Begins this batch.
    #[inline]
    pub(super) fn begin(&mut self, batch: u64) {
        if batch > self.batch {
            #[cfg(debug_assertions)]
            self.recount();
            self.held_now = if batch == self.batch + 1 { self.held_on } else { 0 };
            self.held_on = 0;
            self.batch = batch;
        }
    }

    #[inline]
    pub(super) fn get(&mut self, page_no: PageNo, tag: u32, until: u64) -> Option<Arc<CachedPage>> {
        let id = self.use_entry(page_no, tag, until)?;
        self.entries[id as usize].page.clone()
    }

    #[inline]
    pub(super) fn get_for_last_use(
        &mut self,
        page_no: PageNo,
        tag: u32,
        until: u64,
    ) -> Option<Arc<CachedPage>> {
        let id = self.use_entry(page_no, tag, NO_BATCH)?;
        self.set_hold(id, until);
        self.entries[id as usize].page.clone()
    }

    #[inline]
    pub(super) fn stored(
        &mut self,
        page_no: PageNo,
        tag: u32,
        until: u64,
        key: &Key,
    ) -> Option<Stored> {
        let id = self.use_entry(page_no, tag, until)?;
        let entry = &self.entries[id as usize];
        let page = entry.page.as_deref()?;
        page.cpu_prefetch_lookup(entry.guess, key);
        Some(page.stored(key))
    }

    /// Counts a use of the entry of a page number and tag, and holds it through a batch.
    #[inline]
    fn use_entry(&mut self, page_no: PageNo, tag: u32, until: u64) -> Option<u32> {
        let Some(id) = self.find_tagged(page_no, tag) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let holds = self.is_held(until);
        let entry = &mut self.entries[id as usize];
        if !holds || entry.until < until {
            entry.uses = MAX_USES.min(entry.uses + 1);
            self.hold(id, until);
        }
        Some(id)
    }

    #[inline]
    pub(super) fn hold_page(&mut self, page_no: PageNo, tag: u32, until: u64) -> bool {
        let Some(id) = self.find_tagged(page_no, tag) else { return false };
        self.hold(id, until);
        true
    }

    /// First half of an insertion: evicts until one more page fits, tables included.
    pub(super) fn make_room(&mut self) -> Reservation {
        let mut carrier = None;
        self.reserved += 1;
        loop {
            let (entries, slots) = self.wanted();
            let spare = if carrier.is_none() { self.spare_pages.pop() } else { None };
            carrier = carrier.or(spare);
            if self.bytes() + self.growth(entries, slots) <= self.budget {
                self.grow(entries, slots);
                return Reservation { carrier, reserved: true };
            }
            let Some(page) = self.evict() else { break };
            carrier = Some(page);
        }
        self.reserved -= 1;
        Reservation { carrier, reserved: false }
    }

    /// True when further pages fit without an eviction. A sixteenth is left to tables and to the next pages.
    pub(super) fn has_room(&self) -> bool {
        self.bytes() + self.budget / 16 + 2 * page::COST <= self.budget
    }

    /// Second half. Returns the page that is cached now, or `page` itself if there is no room after all.
    pub(super) fn insert(
        &mut self,
        page_no: PageNo,
        tag: u32,
        page: Arc<CachedPage>,
        until: u64,
    ) -> Arc<CachedPage> {
        assert!(self.reserved > 0, "room was made");
        if let Some(id) = self.find(page_no) {
            let entry = &self.entries[id as usize];
            if let Some(present) = entry.page.as_ref().filter(|_| entry.tag == tag) {
                let present = Arc::clone(present);
                self.reserved -= 1;
                self.hold(id, until);
                return present;
            }
            self.take_out(id);
        }
        // More than the reserved size only with very many cells.
        while self.bytes() + page.bytes() - page::COST > self.budget {
            if self.evict().is_none() {
                self.reserved -= 1;
                return page;
            }
        }
        self.reserved -= 1;
        self.put(
            CacheEntry::new(page_no, tag, Some(Arc::clone(&page)), self.entrance(page_no)),
            until,
        );
        self.page_bytes += page.bytes();
        self.insertions += 1;
        page
    }

    /// The page of a number and tag, without counting a use.
    pub(super) fn peek(&self, page_no: PageNo, tag: u32) -> Option<Arc<CachedPage>> {
        self.entries[self.find_tagged(page_no, tag)? as usize].page.clone()
    }

    /// Removes a page and returns it to be freed, unless its memory is kept for the next one.
    pub(super) fn remove(&mut self, page_no: PageNo) -> Option<Arc<CachedPage>> {
        let id = self.find(page_no)?;
        let page = self.take_out(id)?;
        let room = self.bytes() + page::COST <= self.budget && self.spare_pages.len() < MAX_SPARE;
        if room && page.bytes() == page::COST && Arc::strong_count(&page) == 1 {
            self.spare_pages.push(page);
            return None;
        }
        Some(page)
    }

    pub(super) fn set_budget(&mut self, budget: usize) {
        #[cfg(debug_assertions)]
        self.recount();
        self.budget = budget;
        while self.bytes() > self.budget {
            if self.evict().is_some() {
                continue;
            }
            if self.reserved == 0 {
                let figures = (self.hits, self.misses, self.insertions, self.evictions);
                let batch = self.batch;
                *self = Self::new(budget);
                self.batch = batch;
                (self.hits, self.misses, self.insertions, self.evictions) = figures;
            }
            break;
        }
    }

    /// Asserts that each counter is the sum over the pages.
    #[cfg(any(test, debug_assertions))]
    fn recount(&self) {
        let mut seen = [0; 7];
        for entry in &self.entries {
            let Some(page) = &entry.page else { continue };
            let own = [
                1,
                usize::from(entry.queue == Queue::Held),
                usize::from(entry.from_main),
                page.bytes(),
                usize::from(page.has_treelet()),
                usize::from(self.is_held(entry.until)),
                usize::from(entry.until > self.batch),
            ];
            seen.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let Self { page_bytes, treelets, parked, held_now, held_on, .. } = *self;
        let (pages, held) = (self.pages(), self.held.len());
        let counted = [pages, held, parked, page_bytes, treelets, held_now, held_on];
        assert_eq!(counted, seen, "pages, in held, of main, bytes, treelets, held, held on");
        assert!(self.vacant.len() >= self.reserved, "an entry for each reservation");
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.page_bytes
            + (self.reserved + self.spare_pages.len()) * page::COST
            + self.spare_treelets.len() * page::TREELET_COST
            + self.table.bytes()
            + (self.vacant.capacity() + self.ghost.capacity()) * size_of::<u32>()
            + self.entries.capacity() * size_of::<CacheEntry>()
    }

    pub(super) fn add_to(&self, sum: &mut CacheStats) {
        sum.hits += self.hits;
        sum.misses += self.misses;
        sum.insertions += self.insertions;
        sum.evictions += self.evictions;
        sum.pages += self.pages() as u64;
        sum.held += self.held_now as u64;
        sum.max_held += self.max_held() as u64;
        sum.bytes += self.bytes() as u64;
    }

    pub(super) fn pages(&self) -> usize {
        self.small.len() + self.main.len() + self.held.len()
    }

    #[inline]
    pub(super) fn cpu_prefetch(&self, page_no: PageNo, step: LookupStep<'_>) {
        match step {
            LookupStep::Table => self.table.cpu_prefetch(hash(page_no)),
            LookupStep::Entry => {
                // Only the entry's number: comparing the page number would read the entry.
                if let Some(id) = self.table.find(hash(page_no), |_| true) {
                    cpu_prefetch(core::slice::from_ref(&self.entries[id as usize]));
                }
            }
            LookupStep::Front | LookupStep::Page(_) | LookupStep::Cells => {
                let entry = self.find(page_no).map(|id| &self.entries[id as usize]);
                let Some(CacheEntry { page: Some(page), guess, .. }) = entry else { return };
                match step {
                    LookupStep::Page(key) => page.cpu_prefetch_lookup(*guess, key),
                    LookupStep::Cells => page.cpu_prefetch_cells(*guess),
                    _ => page.cpu_prefetch_prints(),
                }
            }
        }
    }

    #[inline]
    fn find(&self, page_no: PageNo) -> Option<u32> {
        self.table.find(hash(page_no), |id| self.entries[id as usize].page_no == page_no)
    }

    /// The entry of a page number, if the page has this tag.
    #[inline]
    fn find_tagged(&self, page_no: PageNo, tag: u32) -> Option<u32> {
        let id = self.find(page_no)?;
        (self.entries[id as usize].tag == tag).then_some(id)
    }

    fn list(&mut self, queue: Queue) -> (&mut EntryList, &mut [CacheEntry]) {
        let list = match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
            Queue::Held => &mut self.held,
        };
        (list, &mut self.entries)
    }

    /// Holds an entry through a batch, unless it is held for longer or there is no room.
    #[inline]
    fn hold(&mut self, id: u32, until: u64) {
        if until > self.entries[id as usize].until {
            self.set_hold(id, until);
        }
    }

    /// Holds an entry through this batch and no longer, as far as there is room.
    fn set_hold(&mut self, id: u32, until: u64) {
        let until = until.min(self.batch + 1);
        let was = self.entries[id as usize].until;
        if self.is_held(until) && !self.is_held(was) && self.held_now >= self.max_held() {
            return;
        }
        self.forget_hold(was);
        if self.is_held(until) {
            self.held_now += 1;
            self.held_on += usize::from(until > self.batch);
        }
        self.entries[id as usize].until = until;
    }

    /// Counts an entry that was held through this batch as held no longer.
    fn forget_hold(&mut self, until: u64) {
        if self.is_held(until) {
            self.held_now -= 1;
            self.held_on -= usize::from(until > self.batch);
        }
    }

    /// True when a page that is held through this batch is held now.
    #[inline]
    fn is_held(&self, until: u64) -> bool {
        until != NO_BATCH && until >= self.batch
    }

    /// Pages that can be held: an eighth of what treelets leave is for pages that are not.
    fn max_held(&self) -> usize {
        self.budget.saturating_sub(self.treelets * page::TREELET_COST) / 8 * 7 / page::COST
    }

    /// The queue that a new page enters.
    fn entrance(&self, page_no: PageNo) -> Queue {
        let seen =
            self.ghost[slot_of(hash(page_no), self.ghost.len())] == page_no.get().wrapping_add(1);
        if seen { Queue::Main } else { Queue::Small }
    }

    /// Adds an entry for a page that has none.
    fn put(&mut self, entry: CacheEntry, until: u64) {
        let (page_no, queue) = (entry.page_no, entry.queue);
        let id = self.vacant.pop().expect("room was made for an entry");
        self.entries[id as usize] = entry;
        let (list, entries) = self.list(queue);
        list.push(entries, id);
        self.table.insert(hash(page_no), id);
        self.hold(id, until);
    }

    /// Empties an entry that has a page.
    fn take_out(&mut self, id: u32) -> Option<Arc<CachedPage>> {
        let CacheEntry { page_no, until, queue, .. } = self.entries[id as usize];
        let (list, entries) = self.list(queue);
        list.unlink(entries, id);
        self.unpark(id);
        let entries = &self.entries;
        self.table.remove(hash(page_no), id, |id| hash(entries[id as usize].page_no));
        self.forget_hold(until);
        self.vacant.push(id);
        let page = self.entries[id as usize].page.take();
        if let Some(page) = &page {
            let bytes = page.bytes();
            self.page_bytes -= bytes;
            if let Some(treelet) = page.replace_treelet(None) {
                self.treelets -= 1;
                self.keep_treelet(treelet);
            }
        }
        page
    }

    /// Entries and table slots that the reservations need.
    fn wanted(&self) -> (usize, usize) {
        let missing = self.reserved.saturating_sub(self.vacant.len());
        if missing == 0 {
            return (self.entries.len(), self.table.slots());
        }
        let entries = self.entries.len() + missing.max(MIN_STEP).max(self.entries.len() / 8);
        (entries, (2 * entries).next_power_of_two())
    }

    /// Bytes that [`Shard::grow`] would add.
    fn growth(&self, entries: usize, slots: usize) -> usize {
        let more_entries = entries - self.entries.len();
        let more_slots = slots - self.table.slots();
        let ghosts = slots / 2 - self.ghost.len();
        more_entries * (size_of::<CacheEntry>() + size_of::<u32>())
            + (more_slots + ghosts) * size_of::<u32>()
    }

    fn grow(&mut self, entries: usize, slots: usize) {
        let old = self.entries.len();
        if entries == old {
            return;
        }
        self.entries.reserve_exact(entries - old);
        // All entries may be vacant at once.
        self.vacant.reserve_exact(entries - self.vacant.len());
        for id in old..entries {
            self.entries.push(CacheEntry::new(PageNo::new(0), 0, None, Queue::Small));
            self.vacant.push(u32::try_from(id).expect("fewer entries than page numbers"));
        }
        if slots > self.table.slots() {
            let entries = &self.entries;
            self.table.resize(slots, |id| hash(entries[id as usize].page_no));
            // The ghost is cleared: the table grows only while the cache still fills.
            self.ghost = vec![0; slots / 2];
        }
    }
}

#[cfg(test)]
mod tests;
