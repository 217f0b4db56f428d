//! Entries of a shard and the queues through them.

use std::sync::Arc;

use pleach_core::page::leaf::CellGuess;

use super::CachedPage;
use super::table::{NO_BATCH, NONE};
use crate::page_no::PageNo;

/// The queue of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New pages.
    Small,
    /// Pages that were used again.
    Main,
    /// Pages that came up for eviction while they were held for a batch.
    Held,
}

/// A cached page, or a vacant entry: one cache line.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct CacheEntry {
    pub(super) page: Option<Arc<CachedPage>>,
    /// A copy of the page's, so that its cells are prefetched before the page itself is read.
    pub(super) guess: CellGuess,
    pub(super) page_no: PageNo,
    pub(super) tag: u32,
    /// The last batch that the page is held for; [`NO_BATCH`] for none.
    pub(super) until: u64,
    /// Neighbours in its queue.
    newer: u32,
    older: u32,
    /// Uses since the page entered, up to `MAX_USES`.
    pub(super) uses: u8,
    pub(super) queue: Queue,
    /// In the held queue: true when the page came from main.
    pub(super) from_main: bool,
}

impl CacheEntry {
    pub(super) fn new(
        page_no: PageNo,
        tag: u32,
        page: Option<Arc<CachedPage>>,
        queue: Queue,
    ) -> Self {
        let guess = page.as_ref().map_or_else(CellGuess::default, |page| page.guess());
        Self {
            page,
            guess,
            page_no,
            tag,
            until: NO_BATCH,
            newer: NONE,
            older: NONE,
            uses: 0,
            queue,
            from_main: false,
        }
    }

    /// The entry that comes up for eviction after this one.
    pub(super) fn newer(&self) -> Option<u32> {
        (self.newer != NONE).then_some(self.newer)
    }
}

/// A doubly linked list through the entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryList {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Default for EntryList {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, len: 0 }
    }
}

impl EntryList {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The entry that comes up for eviction next.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn push(&mut self, entries: &mut [CacheEntry], id: u32) {
        let entry = &mut entries[id as usize];
        (entry.newer, entry.older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = id,
            newest => entries[newest as usize].newer = id,
        }
        self.newest = id;
        self.len += 1;
    }

    pub(super) fn unlink(&mut self, entries: &mut [CacheEntry], id: u32) {
        let CacheEntry { newer, older, .. } = entries[id as usize];
        match newer {
            NONE => self.newest = older,
            newer => entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => entries[older as usize].newer = newer,
        }
        self.len -= 1;
    }
}
