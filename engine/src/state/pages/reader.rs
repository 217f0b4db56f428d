//! The one way in which many pages are read at once: a ring, its slots, and the table of pages in flight.
//!
//! A caller enqueues a request ([`PageReader::enqueue`]), does other work, and takes pages that are done
//! ([`PageReader::poll`], [`PageReader::wait`]): checked, and in the cache or in their region, each with the purpose
//! that the caller gave. A page that somebody else is reading is not enqueued; the caller gets
//! [`Submission::ReadElsewhere`], and waits for the page with [`Store::leaf`](super::store::Store::leaf) or
//! [`NodeStore::make_resident`](super::nodes::NodeStore::make_resident), when it has nothing in flight itself, so that
//! no two readers wait for each other.
//!
//! Reads go into registered memory, a page for each slot, which the kernel pins once (`docs/decisions/history.md`, 0001). A page is
//! copied into the cache, so the slot is free again at once.

use std::sync::Arc;

use pleach_beatree::Region;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::page_no::page_offset;
use pleach_beatree::region::NodePage;
use pleach_io::{Completion, PAGE, PageBuf, PagePool, Queue, Request, RequestKind};

use super::in_flight::{Claim, InFlight, PageId, ReadMode};
use super::index::PageRef;
use super::nodes::NodeStore;
use super::store::Store;
use crate::error::{Error, Result};
use crate::metrics::Counters;

/// Number of pages after which waiters are woken: a wake-up costs more than a page.
const NOTIFY_EVERY: usize = 32;

/// A page to be read.
#[derive(Clone, Debug)]
pub(crate) enum PageRequest {
    /// A leaf page.
    Leaf(PageRef),
    /// The branch page with a region's nodes.
    Nodes(Arc<Region>, NodePage),
}

/// The result of enqueuing a page.
#[derive(Debug)]
pub(crate) enum Submission<T> {
    /// The page is in flight.
    InFlight,
    /// Another reader has finished it since the caller looked.
    Loaded(T, LoadedPage),
    /// Somebody else is reading it. The caller's purpose is returned.
    ReadElsewhere(T),
}

/// A page that was read.
#[derive(Debug)]
pub(crate) enum LoadedPage {
    /// A leaf page, in the cache.
    Leaf(PageRef, Arc<CachedPage>),
    /// Nodes, in their region if they are still its own.
    Nodes,
}

/// Reads pages through a ring. One thread uses it: a ring has a single issuer.
pub(crate) struct PageReader<T> {
    /// The first field, so that nothing is in flight any more when the claims are dropped.
    queue: Box<dyn Queue>,
    slots: Vec<Option<ReadSlot<T>>>,
    free: Vec<usize>,
    memory: PagePool,
    mode: ReadMode,
    in_flight: Arc<InFlight>,
    counters: Arc<Counters>,
    /// Pages done since waiters were last woken.
    unnotified: usize,
    /// True when somebody waits for one of these pages.
    awaited: bool,
}

struct ReadSlot<T> {
    request: PageRequest,
    purpose: T,
    claim: Claim,
}

impl<T> PageReader<T> {
    /// A reader of up to `depth` pages at once.
    pub(crate) fn new(store: &Store, depth: usize, mode: ReadMode) -> Result<Self> {
        let mut queue = store.device.queue(depth)?;
        let memory = PagePool::new(1, depth);
        queue.register(&memory);
        let counters = Arc::clone(&store.counters);
        Counters::add(&counters.buffer_bytes, (depth * PAGE) as u64);
        Ok(Self {
            queue,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            memory,
            mode,
            in_flight: Arc::clone(&store.in_flight),
            counters,
            unnotified: 0,
            awaited: false,
        })
    }

    /// Number of pages in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// True when another page can be enqueued.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Enqueues a page, unless somebody else reads it. [`Self::submit`] or [`Self::wait`] passes it to the device.
    ///
    /// # Panics
    /// When there is no room.
    pub(crate) fn enqueue(
        &mut self,
        nodes: &NodeStore,
        request: PageRequest,
        purpose: T,
    ) -> Submission<T> {
        let store = &nodes.files.store;
        let (id, file, page) = match &request {
            PageRequest::Leaf(at) => (PageId::Leaf(at.page), &store.leaf, u64::from(at.page)),
            PageRequest::Nodes(_, node_page) => {
                (PageId::Nodes(*node_page), nodes.files.file(node_page), node_page.page)
            }
        };
        let Some(claim) = self.in_flight.claim(id) else {
            return Submission::ReadElsewhere(purpose);
        };
        // Checked again: another reader may have finished just now.
        match &request {
            PageRequest::Leaf(at) => {
                if let Some(page) = store.cache.get(at.page, at.tag) {
                    return Submission::Loaded(purpose, LoadedPage::Leaf(*at, page));
                }
            }
            PageRequest::Nodes(region, node_page) => {
                if region.read().paged_nodes() != Some(*node_page) {
                    return Submission::Loaded(purpose, LoadedPage::Nodes);
                }
            }
        }
        let slot = self.free.pop().expect("the caller has seen that there is room");
        if let PageRequest::Leaf(_) = request {
            store.count_miss(self.mode);
        }
        self.queue.push(Request {
            file: file.clone(),
            kind: RequestKind::Read,
            offset: page_offset(page),
            buf: self.memory.take().expect("as many pages as slots"),
            token: slot as u64,
        });
        self.slots[slot] = Some(ReadSlot { request, purpose, claim });
        Submission::InFlight
    }

    /// True when this page of nodes is being read through this reader.
    pub(crate) fn is_reading_nodes(&self, node_page: &NodePage) -> bool {
        let same = |slot: &ReadSlot<T>| matches!(&slot.request, PageRequest::Nodes(_, at) if at == node_page);
        self.slots.iter().flatten().any(same)
    }

    /// Passes enqueued requests to the device, without waiting.
    pub(crate) fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    /// Returns a page that is done, without waiting.
    pub(crate) fn poll(&mut self, nodes: &NodeStore) -> Option<(T, Result<LoadedPage>)> {
        let completion = self.queue.poll()?;
        Some(self.complete(nodes, completion))
    }

    /// Waits until `count` pages are done, or all that are in flight, and returns one of them; the rest are polled.
    /// `None` when nothing is in flight.
    ///
    /// # Errors
    /// Of the ring: what is in flight is unknown then, and the caller drops the reader.
    pub(crate) fn wait(
        &mut self,
        nodes: &NodeStore,
        count: usize,
    ) -> Result<Option<(T, Result<LoadedPage>)>> {
        let completion = self.queue.wait_for(count)?;
        Ok(completion.map(|completion| self.complete(nodes, completion)))
    }

    fn complete(&mut self, nodes: &NodeStore, completion: Completion) -> (T, Result<LoadedPage>) {
        let slot = usize::try_from(completion.token).expect("a slot's number");
        let ReadSlot { request, purpose, claim } =
            self.slots[slot].take().expect("asked for before");
        self.free.push(slot);
        let read = completion.result.map_err(Error::from);
        let done = read.and_then(|()| self.install_page(nodes, &request, &completion.buf));
        self.awaited |= claim.complete();
        self.unnotified += 1;
        if self.unnotified >= NOTIFY_EVERY || self.in_flight() < NOTIFY_EVERY {
            self.notify_waiters();
        }
        (purpose, done)
    }

    fn install_page(
        &self,
        nodes: &NodeStore,
        request: &PageRequest,
        buf: &PageBuf,
    ) -> Result<LoadedPage> {
        match request {
            PageRequest::Leaf(at) => {
                nodes.files.store.admit(*at, buf, self.mode).map(|page| LoadedPage::Leaf(*at, page))
            }
            PageRequest::Nodes(region, node_page) => {
                nodes.install_nodes(region, node_page, buf).map(|()| LoadedPage::Nodes)
            }
        }
    }

    /// Wakes the waiters of pages that are done.
    fn notify_waiters(&mut self) {
        self.unnotified = 0;
        if std::mem::take(&mut self.awaited) {
            self.in_flight.notify();
        }
    }
}

impl<T> Drop for PageReader<T> {
    fn drop(&mut self) {
        // The caller is gone, so that the results do not matter: a page is read again when it is needed.
        while let Ok(Some(_)) = self.queue.wait() {}
        let bytes = (self.slots.len() * PAGE).cast_signed();
        Counters::change(&self.counters.buffer_bytes, -bytes);
        self.notify_waiters();
    }
}
