//! A bounded pool of page buffers in one slab, so that steady work allocates nothing and rings
//! can register the memory once ([`crate::Queue::register`]).
//!
//! Invariants:
//! * all buffers of a pool have the same number of pages;
//! * each of the slab's places is free, or belongs to exactly one buffer, which gives it back when
//!   it is dropped;
//! * the slab is neither freed nor moved nor given other physical pages while the pool, a buffer
//!   or a ring that registered it exists;
//! * places are reused last in, first out: memory that never was needed is never touched, unless
//!   the slab is registered;
//! * a buffer holds whatever its last owner left in it.
#![expect(unsafe_code, reason = "buffers are disjoint parts of one allocation")]

use core::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffer::{AlignedPage, PAGE, PageBuf, zeroed};

/// A pool; cloning gives another handle.
#[derive(Clone, Debug)]
pub struct PagePool(Arc<Slab>);

/// The memory of a pool.
#[derive(Debug)]
pub(crate) struct Slab {
    start: NonNull<AlignedPage>,
    /// Pages of each buffer.
    pages: usize,
    /// Number of buffers.
    bound: usize,
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    /// Given back.
    free: Vec<usize>,
    /// This one and all above were never handed out.
    fresh: usize,
}

// SAFETY: a slab owns its memory; which part of it may be touched by whom is settled by `places`,
// which is behind a lock.
unsafe impl Send for Slab {}
// SAFETY: as above; `&Slab` alone gives no access to the memory.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(pages: usize, bound: usize) -> Self {
        let total = pages.saturating_mul(bound);
        let memory = Box::into_raw(zeroed(total));
        // A box's pointer is never null.
        let start = NonNull::new(memory.cast::<AlignedPage>()).unwrap_or(NonNull::dangling());
        let places = Mutex::new(Places { free: Vec::with_capacity(bound), fresh: 0 });
        Self { start, pages, bound, places }
    }

    /// The whole memory: first byte and length.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.start.as_ptr().cast(), self.pages * self.bound * PAGE)
    }

    /// Bytes of each buffer.
    pub(crate) fn stride(&self) -> usize {
        self.pages * PAGE
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let memory =
            core::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.pages * self.bound);
        // SAFETY: `start` came from `Box::into_raw` of a slice of this length, in `new`, and is
        // freed nowhere else. Buffers and rings hold an `Arc` of the slab: there are none left.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl PagePool {
    /// A pool of `bound` buffers of `pages` pages each. Memory is reserved now and used when
    /// touched.
    ///
    /// # Panics
    /// When memory is exhausted.
    pub fn new(pages: usize, bound: usize) -> Self {
        Self(Arc::new(Slab::new(pages, bound)))
    }

    /// Pages of each buffer.
    pub fn pages(&self) -> usize {
        self.0.pages
    }

    /// Number of buffers.
    pub fn bound(&self) -> usize {
        self.0.bound
    }

    /// Buffers handed out.
    pub fn outstanding(&self) -> usize {
        let places = self.0.places.lock();
        places.fresh - places.free.len()
    }

    /// Bytes that have been handed out at least once: what the pool costs, unless it is
    /// registered, when it costs all of [`PagePool::bound`].
    pub fn bytes(&self) -> usize {
        self.0.places.lock().fresh * self.0.stride()
    }

    /// A buffer with arbitrary content; `None` when all are out. Dropping it gives it back.
    pub fn take(&self) -> Option<PageBuf> {
        let mut places = self.0.places.lock();
        let place = match places.free.pop() {
            Some(place) => place,
            None if places.fresh < self.0.bound => {
                places.fresh += 1;
                places.fresh - 1
            }
            None => return None,
        };
        drop(places);
        Some(PageBuf::in_slab(SlabPages { slab: self.0.clone(), place }))
    }

    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.0
    }
}

/// One place of a slab, owned.
pub(crate) struct SlabPages {
    slab: Arc<Slab>,
    place: usize,
}

impl SlabPages {
    /// The slab this is a part of.
    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Which part of the slab.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    fn start(&self) -> NonNull<AlignedPage> {
        // SAFETY: `place` is below `bound`, so the offset is inside the slab's allocation (or at
        // its end, when buffers have no pages).
        unsafe { self.slab.start.add(self.place * self.slab.pages) }
    }

    pub(crate) fn get(&self) -> &[AlignedPage] {
        // SAFETY: `start` is aligned and `pages` initialised (zeroed, or written since) pages from
        // it are inside the slab, which `self.slab` keeps alive. The place belongs to `self`
        // alone, so while the slice borrows `self`, nobody writes to it.
        unsafe { core::slice::from_raw_parts(self.start().as_ptr(), self.slab.pages) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [AlignedPage] {
        // SAFETY: as in `get`; and `&mut self` is the only access to the place.
        unsafe { core::slice::from_raw_parts_mut(self.start().as_ptr(), self.slab.pages) }
    }
}

impl Drop for SlabPages {
    fn drop(&mut self) {
        // Room was reserved for every place.
        self.slab.places.lock().free.push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_holds_and_buffers_come_round() {
        let pool = PagePool::new(2, 3);
        assert_eq!((pool.bytes(), pool.outstanding()), (0, 0));
        let mut bufs: Vec<_> = (0..3).map(|_| pool.take().expect("below the bound")).collect();
        assert!(pool.take().is_none());
        assert_eq!((pool.outstanding(), pool.bytes()), (3, 3 * 2 * PAGE));
        for (index, buf) in (0u8..).zip(&mut bufs) {
            assert_eq!((buf.pages(), buf.as_ptr().align_offset(PAGE)), (2, 0));
            buf.fill(index);
        }
        for (index, buf) in (0u8..).zip(&bufs) {
            assert!(buf.iter().all(|byte| *byte == index), "buffers do not overlap");
        }
        let address = bufs[1].as_ptr();
        bufs.remove(1);
        assert_eq!(pool.outstanding(), 2);
        assert_eq!(pool.take().expect("one came back").as_ptr(), address);
    }

    #[test]
    fn untouched_memory_is_not_counted() {
        let pool = PagePool::new(1, 1000);
        for _ in 0..10 {
            drop((pool.take(), pool.take()));
        }
        assert_eq!(pool.bytes(), 2 * PAGE);
    }

    #[test]
    fn buffers_outlive_the_pool_and_threads_share_it() {
        let pool = PagePool::new(1, 64);
        let buf = pool.take().expect("free");
        std::thread::scope(|scope| {
            for number in 0..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let mut buf = pool.take().expect("4 at most are out");
                        buf.fill(number);
                        assert!(buf.iter().all(|byte| *byte == number));
                    }
                });
            }
        });
        drop(pool);
        assert_eq!(buf.len(), PAGE);
    }

    #[test]
    fn pools_without_memory_work() {
        let empty = PagePool::new(4, 0);
        assert!(empty.take().is_none());
        let pageless = PagePool::new(0, 2);
        assert_eq!(pageless.take().expect("free").len(), 0);
    }
}
