//! Leaf pages in memory, by page number and tag.
//!
//! A page is read into a buffer ([`Buffers`]) and validated by the caller. [`Cache::insert`] then copies it into an
//! allocation together with an array of key fingerprints ([`CachedPage`]). A lookup returns an `Arc`: eviction never
//! waits for readers, and a reader keeps its page as long as it likes.
//!
//! * **Copied, not adopted**: an allocation of one aligned page takes twice its size
//!   (docs/decisions/history.md, 0011), and the read buffer goes back to its pool at once.
//! * Pages are spread over **shards** by their numbers. Each shard is a mutex, an open table and the
//!   S3-FIFO queues (`shard`). No lock is held while a page is copied or hashed, or during I/O.
//! * **Budget**: pages, their fingerprints, tables and the shards themselves, counted at allocated size. An insertion
//!   makes room first, so [`Cache::bytes`] never exceeds the budget. Evicted pages that a reader still holds do not
//!   count.
//! * **Treelets** are attached to pages that are folded again and again, partial ones to pages of the current batch;
//!   both count with their pages.
//! * **Batches**: pages inserted or found for a batch, the current one or the next, are held until the batch after it
//!   begins, up to seven eighths of the budget ([`Cache::set_batch`]).
//! * In a steady state nothing is allocated: an evicted page that nobody holds is overwritten with the next one.
//! * Pages are read at random, so their memory is moved into **huge pages** ([`Cache::move_into_huge_page`]).
//!
//! The caller names the tag, too: an older page of the same number is never found.
//!
//! ```
//! use pleach_beatree::PageNo;
//! use pleach_beatree::cache::{Cache, NO_BATCH};
//! use pleach_core::page::leaf::{LeafBuilder, LeafHeader, RawCell};
//! use pleach_core::page::{FileKind, Identity, PAGE_SIZE};
//! use pleach_core::prefix::Prefix;
//!
//! let number = PageNo::new(3);
//! let mut page = [0; PAGE_SIZE];
//! let header = LeafHeader {
//!     identity: Identity { kind: FileKind::Leaf, page_no: number.into(), db_id: 1 },
//!     flush: 1,
//!     namespace: 0,
//!     prefix: Prefix::ROOT,
//!     applied_through: 1,
//!     levels: 0,
//!     count: 1,
//! };
//! let mut builder = LeafBuilder::new(&mut page, &header);
//! builder.push(&[7; 32], RawCell { bytes: b"seven", overflow: false });
//! let tag = builder.seal();
//!
//! let cache = Cache::new(1 << 20);
//! cache.insert(number, tag, &page, NO_BATCH);
//! let cached = cache.get(number, tag).expect("there is room");
//! assert!(cached.get(&[7; 32]).is_some());
//! assert!(cache.get(number, tag ^ 1).is_none(), "another page of this number");
//! ```

mod buffers;
mod page;
mod queue;
mod shard;
mod table;

pub use buffers::Buffers;
pub use page::CachedPage;

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_core::Key;
use pleach_core::page::Page;
use pleach_io::huge_pages::{self, HUGE_PAGE};

use crate::lock_order::{CACHE_SHARD, RankedMutex, RankedMutexGuard};
use crate::page_no::PageNo;
use crate::stored::Stored;
use crate::treelet::Treelet;
use shard::Shard;
pub use shard::{CacheStats, LookupStep};
pub use table::NO_BATCH;
use table::{hash, shard_of};

/// Many more shards than threads, so that two threads rarely meet in one.
const MAX_SHARDS: usize = 64;
/// Pages of a shard at least: S3-FIFO needs queues of some length.
const MIN_SHARD_PAGES: usize = 32;

/// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Debug)]
struct ShardSlot(RankedMutex<Shard>);

/// The cache of leaf pages.
#[derive(Debug)]
pub struct Cache {
    shards: Box<[ShardSlot]>,
    /// The current batch.
    batch: AtomicU64,
    /// Addresses of blocks that huge pages can back, each full of cached pages.
    full_blocks: Mutex<BTreeSet<usize>>,
}

impl Cache {
    /// Bytes that a page takes, without its share of the tables.
    pub const PAGE_COST: usize = page::COST;

    /// A cache of at most `budget` bytes. Where the budget has no room for a page, only the shards take memory.
    pub fn new(budget: usize) -> Self {
        let pages = budget / page::COST;
        let wanted = (pages / MIN_SHARD_PAGES).clamp(1, MAX_SHARDS);
        // Rounded down to a power of two.
        let count = 1_usize << wanted.ilog2();
        let shards =
            (0..count).map(|_| ShardSlot(CACHE_SHARD.mutex(Shard::new(budget / count)))).collect();
        Self { shards, batch: AtomicU64::new(NO_BATCH), full_blocks: Mutex::default() }
    }

    /// The page of this number and tag.
    #[inline]
    pub fn get(&self, page_no: PageNo, tag: u32) -> Option<Arc<CachedPage>> {
        self.get_for_batch(page_no, tag, NO_BATCH)
    }

    /// Like [`Cache::get`], for a batch, the current one or the next: the page is held through that batch, within seven
    /// eighths of the budget. Several uses by one batch count as one for eviction.
    #[inline]
    pub fn get_for_batch(&self, page_no: PageNo, tag: u32, until: u64) -> Option<Arc<CachedPage>> {
        self.lock(page_no).get(page_no, tag, until)
    }

    /// Like [`Cache::get`], for the last use by a batch: from now on the page is held through that batch and no longer.
    #[inline]
    pub fn get_for_last_use(
        &self,
        page_no: PageNo,
        tag: u32,
        until: u64,
    ) -> Option<Arc<CachedPage>> {
        self.lock(page_no).get_for_last_use(page_no, tag, until)
    }

    /// True when more pages can be held.
    pub fn can_hold(&self) -> bool {
        let stats = self.stats();
        // Where no page can be held at all, nobody waits for room.
        stats.held < stats.max_held.max(1)
    }

    /// The state of `key` in the page of this number and tag, if it is cached: as [`Cache::get_for_batch`] without
    /// counting a reference. Other threads wait for the shard meanwhile.
    #[inline]
    pub fn stored(&self, page_no: PageNo, tag: u32, until: u64, key: &Key) -> Option<Stored> {
        self.lock(page_no).stored(page_no, tag, until, key)
    }

    /// Holds the page of this number and tag through a batch. True when the page is cached. Counts as no use.
    #[inline]
    pub fn hold(&self, page_no: PageNo, tag: u32, until: u64) -> bool {
        self.lock(page_no).hold_page(page_no, tag, until)
    }

    /// The page of this number and tag for a single pass, such as a scan's. Counts as no use.
    pub fn peek(&self, page_no: PageNo, tag: u32) -> Option<Arc<CachedPage>> {
        self.lock(page_no).peek(page_no, tag)
    }

    /// Prefetches the memory that a step of a lookup reads. Reads the memory of the steps before, which should have
    /// been prefetched some time ago.
    #[inline]
    pub fn cpu_prefetch(&self, page_no: PageNo, step: LookupStep<'_>) {
        self.lock(page_no).cpu_prefetch(page_no, step);
    }

    /// Number of cached pages.
    pub fn pages(&self) -> usize {
        self.shards.iter().map(|slot| slot.0.lock().pages()).sum()
    }

    /// Copies a validated leaf page in and returns it. It replaces another page of the same number; a page of the same
    /// number and tag stays.
    pub fn insert(&self, page_no: PageNo, tag: u32, page: &Page, until: u64) -> Arc<CachedPage> {
        let room = self.lock(page_no).make_room();
        let is_new = room.carrier.is_none();
        let page = CachedPage::fill(room.carrier, page);
        if !room.reserved {
            return page;
        }
        if is_new {
            self.note_full_block(&page);
        }
        self.lock(page_no).insert(page_no, tag, page, until)
    }

    /// Like [`Cache::insert`], only where no page and no treelet must be evicted. The page's first fold begins its
    /// treelet.
    pub fn insert_if_room(&self, page_no: PageNo, tag: u32, page: &Page) {
        if self.lock(page_no).has_room() {
            self.insert(page_no, tag, page, NO_BATCH).mark_folded();
        }
    }

    /// A page outside of the cache: it belongs to the caller alone.
    pub fn uncached(page: &Page) -> Arc<CachedPage> {
        CachedPage::fill(None, page)
    }

    /// Notes the block of addresses that a page is in when the page is the last of its block: mostly the whole block is
    /// full then.
    fn note_full_block(&self, page: &Arc<CachedPage>) {
        let address = Arc::as_ptr(page).addr();
        if address % HUGE_PAGE > HUGE_PAGE - 2 * page::COST {
            self.full_blocks.lock().insert(address / HUGE_PAGE * HUGE_PAGE);
        }
    }

    /// Moves the memory of inserted pages into a huge page, one at a call.
    pub fn move_into_huge_page(&self) {
        let block = self.full_blocks.lock().pop_first();
        block.map(huge_pages::collapse_around);
    }

    /// Attaches a treelet to a page that has none, if the page is cached and there is room. Treelets get what no page
    /// needs, up to a third of the budget. With `soon` (a flush will use it) pages are evicted for it, as long as
    /// treelets take less than a sixteenth.
    pub fn attach_treelet(
        &self,
        page_no: PageNo,
        page: &Arc<CachedPage>,
        soon: bool,
        fill: impl FnOnce(&mut Treelet),
    ) {
        self.lock(page_no).attach(page_no, page, None, soon, fill);
    }

    /// A flush has moved a page: its treelet and its announced uses follow it to the new number.
    pub fn move_page(&self, from: PageNo, to: PageNo, tag: u32) {
        let (until, treelet) = self.lock(from).detach(from);
        if until != NO_BATCH {
            self.hold(to, tag, until);
        }
        let Some(treelet) = treelet else { return };
        if let Some(page) = self.peek(to, tag) {
            page.mark_folded();
            self.lock(to).attach(to, &page, Some(treelet), false, |_| {});
        }
    }

    /// Removes the page of this number.
    pub fn remove(&self, page_no: PageNo) {
        let removed = self.lock(page_no).remove(page_no);
        // Freed outside of the lock.
        drop(removed);
    }

    /// The current batch: the commit that it will make.
    #[inline]
    pub fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }

    /// Begins a batch: pages held for an earlier one can be evicted. Numbers ascend by one; when a number is left out,
    /// no page is held any more.
    pub fn set_batch(&self, batch: u64) {
        self.batch.fetch_max(batch, Ordering::Relaxed);
    }

    /// Changes the budget; pages beyond it are evicted at once.
    pub fn set_budget(&self, budget: usize) {
        for slot in &self.shards {
            slot.0.lock().set_budget(budget / self.shards.len());
        }
    }

    /// Bytes counted against the budget.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|slot| slot.0.lock().bytes()).sum()
    }

    /// Figures. While other threads use the cache they are not all of one moment.
    pub fn stats(&self) -> CacheStats {
        let batch = self.batch();
        let mut sum = CacheStats::default();
        for slot in &self.shards {
            let mut shard = slot.0.lock();
            shard.begin(batch);
            shard.add_to(&mut sum);
        }
        sum
    }

    #[inline]
    fn lock(&self, page_no: PageNo) -> RankedMutexGuard<'_, Shard> {
        let mut shard = self.shards[shard_of(hash(page_no), self.shards.len())].0.lock();
        shard.begin(self.batch());
        shard
    }
}
