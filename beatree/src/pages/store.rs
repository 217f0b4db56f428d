//! Leaf pages: read, checked, cached, and quarantined when they cannot be used.
//!
//! A lookup of a page holds a grace guard ([`Grace::enter`]): pages that the index named at its start stay where
//! they are until the guard is dropped.
//!
//! Invariants:
//! * a page enters the cache only when its checksum, its identity and its tag are what the index expects, and never
//!   while it is known to contradict the index;
//! * a page is read by one reader at a time, unless that takes too long: see [`super::in_flight`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pleach_core::page::leaf::LeafView;
use pleach_core::page::{FileKind, Identity, Page, header};
use pleach_core::{Key, Prefix};
use pleach_io::{Disk, File, IoError, PageBuf};

use super::in_flight::{InFlight, ReadMode};
use super::quarantine::{LeafName, Quarantine, QuarantineReason};
use crate::cache::{Buffers, Cache, CachedPage, NO_BATCH};
use crate::error::{Error, Result};
use crate::files::LEAF_FILE;
use crate::grace::Grace;
use crate::page_no::{PageNo, PageRef};
use crate::region::RegionState;
use crate::stored::Stored;

/// The leaf pages of one open database.
pub struct Store {
    /// The folder.
    pub device: Disk,
    /// Random id of the database.
    pub database: u64,
    /// The file of leaf pages.
    pub leaf_file: File,
    /// The cached leaf pages.
    pub cache: Cache,
    /// Memory of pages that are being read.
    pub buffers: Buffers,
    /// Keeps pages that the index names from a guard's start on where they are until it is dropped.
    pub grace: Grace,
    /// Pages that are being read.
    pub in_flight: Arc<InFlight>,
    /// Quarantined pages.
    pub quarantine: Arc<Quarantine>,
    /// Told when a quarantined page can be used again.
    pub waiters: Arc<dyn PageWaiters>,
    /// Counters of its pages.
    pub counters: PageCounters,
}

/// Running counters of pages; relaxed, they order nothing.
#[derive(Debug, Default)]
pub struct PageCounters {
    /// Found in the cache.
    pub hits: AtomicU64,
    /// Read because they were not cached.
    pub misses: AtomicU64,
    /// Read by the flush, since the cache had evicted them.
    pub rereads: AtomicU64,
    /// Read by iterators, past the cache.
    pub scanned: AtomicU64,
    /// Read because they lie between wanted pages.
    pub read_over: AtomicU64,
}

/// Who waits for quarantined pages.
pub trait PageWaiters: Send + Sync {
    /// A page can be used again, or is not needed any more.
    fn page_released(&self);
}

impl Store {
    /// Identity that the leaf page of this number must have.
    pub fn leaf_identity(&self, page: PageNo) -> Identity {
        Identity { kind: FileKind::Leaf, page_no: u64::from(page), db_id: self.database }
    }

    /// A page from the cache, or else read on the calling thread.
    pub fn page(&self, at: PageRef) -> Result<Arc<CachedPage>> {
        self.read_page(at, ReadMode::Keys)
    }

    /// The same for another purpose: see [`Self::admit`].
    pub fn read_page(&self, at: PageRef, mode: ReadMode) -> Result<Arc<CachedPage>> {
        if let Some(page) = self.cached(at, mode) {
            return Ok(page);
        }
        let mut claim = self.in_flight.claim(at.page);
        if claim.is_none() {
            // Another reader has claimed it. Afterwards the page is in the cache, or that reader has failed.
            self.in_flight.wait(at.page);
            claim = self.in_flight.claim(at.page);
        }
        // Checked again: another reader may have finished before the claim.
        if let Some(page) = self.cached(at, mode) {
            return Ok(page);
        }
        self.count_miss(mode);
        let mut buf = self.buffers.take();
        let read = self.device.read_at(&self.leaf_file, &mut buf, at.page.offset());
        read.map_err(|error| self.read_error(at.page, error))?;
        let page = self.admit(at, &buf, mode);
        self.buffers.put_back(buf);
        // Waiters find the page in the cache.
        drop(claim);
        page
    }

    /// The error of a failed read of a page: of a lost region's page that of its branch page.
    pub(crate) fn read_error(&self, page: PageNo, error: IoError) -> Error {
        self.quarantine.lost_error(page).unwrap_or_else(|| error.into())
    }

    /// Counts a read of a page.
    pub(crate) fn count_miss(&self, mode: ReadMode) {
        let counter = match mode {
            ReadMode::Keys | ReadMode::Announced => &self.counters.misses,
            ReadMode::Flush => &self.counters.rereads,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pages that were found in the cache.
    #[inline]
    pub fn count_hits(&self, pages: u64) {
        self.counters.hits.fetch_add(pages, Ordering::Relaxed);
    }

    /// Counts pages read for an iterator alone, and pages read in the gaps between them.
    pub(crate) fn count_scanned(&self, pages: u64, between: u64) {
        self.counters.scanned.fetch_add(pages, Ordering::Relaxed);
        self.counters.read_over.fetch_add(between, Ordering::Relaxed);
    }

    fn cached(&self, at: PageRef, mode: ReadMode) -> Option<Arc<CachedPage>> {
        let page = self.cache.get(at.page, at.tag)?;
        if mode == ReadMode::Keys {
            self.count_hits(1);
        }
        Some(page)
    }

    /// The state of a key in a page, if the page is cached.
    #[inline]
    pub fn cached_state(&self, at: PageRef, key: &Key) -> Option<Stored> {
        let found = self.cache.stored(at.page, at.tag, self.cache.batch(), key);
        if found.is_some() {
            self.count_hits(1);
        }
        found
    }

    /// Checks a page that was read and puts it into the cache. A page that contradicts the index is refused, since the
    /// next commit on it would fold its content into the root; only the flush gets it, uncached, and checks it itself.
    pub fn admit(&self, at: PageRef, buf: &PageBuf, mode: ReadMode) -> Result<Arc<CachedPage>> {
        self.check_leaf(at, buf.page(0))?;
        match self.refuse_contradicting(at.page) {
            Err(_) if mode == ReadMode::Flush => return Ok(Cache::uncached(buf.page(0))),
            refused => refused?,
        }
        let until = match mode {
            ReadMode::Announced => self.cache.batch() + 1,
            ReadMode::Keys => self.cache.batch(),
            ReadMode::Flush => NO_BATCH,
        };
        let page = self.cache.insert(at.page, at.tag, buf.page(0), until);
        // The flush quarantines the page before it removes it from the cache, so one of the two sees the other.
        self.refuse_contradicting(at.page).inspect_err(|_| self.cache.remove(at.page))?;
        self.note_good_read(at.page);
        Ok(page)
    }

    /// Reads a page for an iterator alone, on the calling thread.
    pub fn read_uncached(&self, at: PageRef) -> Result<Arc<CachedPage>> {
        self.count_scanned(1, 0);
        let mut buf = self.buffers.take();
        let read = self.device.read_at(&self.leaf_file, &mut buf, at.page.offset());
        read.map_err(|error| self.read_error(at.page, error))?;
        let page = self.check_leaf(at, buf.page(0)).map(|()| Cache::uncached(buf.page(0)));
        self.buffers.put_back(buf);
        page
    }

    /// Accepts a page that an iterator has read outside the cache and that the index names under its present guard.
    /// With `keep`, the page enters the cache.
    pub fn accept_uncached(&self, at: PageRef, page: &Page, keep: bool) -> Result<()> {
        self.refuse_contradicting(at.page)?;
        if keep {
            self.cache.insert(at.page, at.tag, page, NO_BATCH);
            self.refuse_contradicting(at.page).inspect_err(|_| self.cache.remove(at.page))?;
        }
        self.note_good_read(at.page);
        Ok(())
    }

    /// A page, if it is cached. Does not count as a use.
    pub fn peek(&self, at: PageRef) -> Option<Arc<CachedPage>> {
        let page = self.cache.peek(at.page, at.tag)?;
        self.count_hits(1);
        Some(page)
    }

    fn refuse_contradicting(&self, page: PageNo) -> Result<()> {
        self.quarantine.contradicting(page).map_or(Ok(()), Err)
    }

    /// Checks a page that was read.
    pub(crate) fn check_leaf(&self, at: PageRef, page: &Page) -> Result<()> {
        let number = u64::from(at.page);
        let bad = |error| Error::Page { file: LEAF_FILE, page: number, error };
        LeafView::parse(page, &self.leaf_identity(at.page)).map_err(bad)?;
        let found = header::tag(page);
        if found != at.tag {
            let (page, expected) = (number, at.tag);
            return Err(Error::StalePage { file: LEAF_FILE, page, expected, found });
        }
        header::check_namespace(page, at.namespace).map_err(bad)
    }

    /// Quarantines a page that the background could not use.
    pub fn quarantine_page(&self, page: LeafName, error: Error, reason: QuarantineReason) {
        self.quarantine.insert(page, error, reason, self.in_flight.runtime.now());
    }

    /// Notes a good read of a page: if it was quarantined, it is released, and flushed with the next round.
    pub fn note_good_read(&self, page: PageNo) {
        if let Some((namespace, prefix)) = self.quarantine.note_good_read(page) {
            self.release_from_quarantine(namespace, prefix);
        }
    }

    /// Releases a quarantined page, which can be tried again or is not needed any more.
    pub fn release_from_quarantine(&self, namespace: u8, prefix: Prefix) {
        self.quarantine.release(namespace, prefix);
        self.waiters.page_released();
    }

    /// True when a region's leaf page is quarantined.
    pub fn is_page_quarantined(&self, state: &RegionState, child: usize) -> bool {
        let Some(at) = state.page_ref(child) else { return false };
        let keeps = |at_hand| self.quarantine.is_barred(at.page, at_hand);
        at.page.is_lost() || keeps(false) && keeps(self.cache.get(at.page, at.tag).is_some())
    }
}
