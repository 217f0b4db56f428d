//! The one way in which many pages are read at once: a ring, its slots, and the table of pages in flight.
//!
//! A caller enqueues a request ([`PageReader::enqueue`]), does other work, and takes pages that are done
//! ([`PageReader::poll`], [`PageReader::wait`]): checked, and in the cache, each with the purpose that the caller gave. A page that somebody else is reading is not enqueued; the caller gets
//! [`Submission::ReadElsewhere`], and waits for the page with [`Store::page`], when it has nothing in flight itself, so
//! that no two readers wait for each other.
//!
//! Reads go into registered memory, a page for each slot, which the kernel pins once (`docs/decisions/history.md`, 0001). A page is
//! copied into the cache, so the slot is free again at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_io::{Completion, PAGE, PagePool, Queue, Request, RequestKind};

use super::in_flight::{Claim, InFlight, ReadMode};
use super::reader_pool::{ReaderPool, RingReader};
use super::store::Store;
use crate::cache::CachedPage;
use crate::error::Result;
use crate::page_no::PageRef;
use crate::page_no::page_offset;

/// Number of pages after which waiters are woken: a wake-up costs more than a page.
const NOTIFY_EVERY: usize = 32;

/// The result of enqueuing a page.
#[derive(Debug)]
pub enum Submission<T> {
    /// The page is in flight.
    InFlight,
    /// Another reader has finished it since the caller looked.
    Loaded(T, LoadedPage),
    /// Somebody else is reading it. The caller's purpose is returned.
    ReadElsewhere(T),
}

/// A leaf page that was read, in the cache.
#[derive(Debug)]
pub struct LoadedPage {
    /// Its place.
    pub at: PageRef,
    /// The page.
    pub page: Arc<CachedPage>,
}

/// Reads pages through a ring. One thread uses it: a ring has a single issuer.
pub struct PageReader<T> {
    /// The first field, so that nothing is in flight any more when the claims are dropped.
    queue: Box<dyn Queue>,
    slots: Vec<Option<ReadSlot<T>>>,
    free: Vec<usize>,
    memory: PagePool,
    mode: ReadMode,
    in_flight: Arc<InFlight>,
    /// Pages done since waiters were last woken.
    unnotified: usize,
    /// True when somebody waits for one of these pages.
    awaited: bool,
}

struct ReadSlot<T> {
    at: PageRef,
    purpose: T,
    claim: Claim,
}

impl<T> PageReader<T> {
    /// A reader of up to `depth` pages at once.
    pub fn new(store: &Store, depth: usize, mode: ReadMode) -> Result<Self> {
        let mut queue = store.device.queue(depth)?;
        let memory = PagePool::new(1, depth);
        queue.register(&memory);
        store.in_flight.ring_bytes.fetch_add((depth * PAGE) as u64, Ordering::Relaxed);
        Ok(Self {
            queue,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            memory,
            mode,
            in_flight: Arc::clone(&store.in_flight),
            unnotified: 0,
            awaited: false,
        })
    }

    /// Number of pages in flight.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// True when another page can be enqueued.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Enqueues a page, unless somebody else reads it. [`Self::submit`] or [`Self::wait`] passes it to the device.
    ///
    /// # Panics
    /// When there is no room.
    pub fn enqueue(&mut self, store: &Store, at: PageRef, purpose: T) -> Submission<T> {
        let Some(claim) = self.in_flight.claim(at.page) else {
            return Submission::ReadElsewhere(purpose);
        };
        // Checked again: another reader may have finished just now.
        if let Some(page) = store.cache.get(at.page, at.tag) {
            return Submission::Loaded(purpose, LoadedPage { at, page });
        }
        let slot = self.free.pop().expect("the caller has seen that there is room");
        store.count_miss(self.mode);
        self.queue.push(Request {
            file: store.leaf_file.clone(),
            kind: RequestKind::Read,
            offset: page_offset(u64::from(at.page)),
            buf: self.memory.take().expect("as many pages as slots"),
            token: slot as u64,
        });
        self.slots[slot] = Some(ReadSlot { at, purpose, claim });
        Submission::InFlight
    }

    /// Passes enqueued requests to the device, without waiting.
    pub fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    /// Returns a page that is done, without waiting.
    pub fn poll(&mut self, store: &Store) -> Option<(T, Result<LoadedPage>)> {
        let completion = self.queue.poll()?;
        Some(self.complete(store, completion))
    }

    /// Waits until `count` pages are done, or all that are in flight, and returns one of them; the rest are polled.
    /// `None` when nothing is in flight.
    ///
    /// # Errors
    /// Of the ring: what is in flight is unknown then, and the caller drops the reader.
    pub fn wait(&mut self, store: &Store, count: usize) -> Result<Option<(T, Result<LoadedPage>)>> {
        let completion = self.queue.wait_for(count)?;
        Ok(completion.map(|completion| self.complete(store, completion)))
    }

    fn complete(&mut self, store: &Store, completion: Completion) -> (T, Result<LoadedPage>) {
        let slot = usize::try_from(completion.token).expect("a slot's number");
        let ReadSlot { at, purpose, claim } = self.slots[slot].take().expect("asked for before");
        self.free.push(slot);
        let read = completion.result.map_err(|error| store.read_error(at.page, error));
        let admitted = read.and_then(|()| store.admit(at, &completion.buf, self.mode));
        let done = admitted.map(|page| LoadedPage { at, page });
        self.awaited |= claim.complete();
        self.unnotified += 1;
        if self.unnotified >= NOTIFY_EVERY || self.in_flight() < NOTIFY_EVERY {
            self.notify_waiters();
        }
        (purpose, done)
    }

    /// Wakes the waiters of pages that are done.
    fn notify_waiters(&mut self) {
        self.unnotified = 0;
        if std::mem::take(&mut self.awaited) {
            self.in_flight.notify();
        }
    }
}

impl<T> RingReader for PageReader<T> {
    const IS_THREAD_BOUND: bool = true;

    fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }
}

/// Readers for lookups of many keys.
pub type PageReaderPool = ReaderPool<PageReader<()>>;

impl PageReader<usize> {
    /// Reads leaf pages and passes each of them, by its place in the list, to the closure as it comes.
    ///
    /// # Errors
    /// Of the ring alone: what the reader has in flight is unknown then.
    pub fn read_each(
        &mut self,
        store: &Store,
        pages: &[PageRef],
        mut take: impl FnMut(usize, Result<Arc<CachedPage>>),
    ) -> Result<()> {
        let leaf = |done: LoadedPage| done.page;
        let (mut next, mut elsewhere) = (0, Vec::new());
        while next < pages.len() || self.in_flight() > 0 {
            while next < pages.len() && self.has_room() {
                match self.enqueue(store, pages[next], next) {
                    Submission::InFlight => {}
                    Submission::Loaded(index, done) => take(index, Ok(leaf(done))),
                    Submission::ReadElsewhere(index) => elsewhere.push(index),
                }
                next += 1;
            }
            if let Some((index, done)) = self.wait(store, 1)? {
                take(index, done.map(leaf));
            }
        }
        for index in elsewhere {
            take(index, store.read_page(pages[index], self.mode));
        }
        Ok(())
    }
}

impl<T> Drop for PageReader<T> {
    fn drop(&mut self) {
        // The caller is gone, so that the results do not matter: a page is read again when it is needed.
        while let Ok(Some(_)) = self.queue.wait() {}
        let bytes = (self.slots.len() * PAGE) as u64;
        self.in_flight.ring_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.notify_waiters();
    }
}
