//! One allocation that is handed out in equal parts.
//!
//! Invariants:
//! * each part of the slab is free, or belongs to exactly one [`SlabPages`], which gives it back
//!   when it is dropped;
//! * the slab is neither freed nor moved nor given other physical pages while a pool, a buffer or
//!   a ring that registered it exists: each of them holds an `Arc` of it;
//! * a part holds whatever its last owner left in it.
#![expect(unsafe_code, reason = "buffers are disjoint parts of one allocation")]

use core::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::page::{AlignedPage, PAGE, zeroed};

/// The memory of a pool.
#[derive(Debug)]
pub(crate) struct Slab {
    start: NonNull<AlignedPage>,
    /// Pages of each buffer.
    pages: usize,
    /// Number of buffers.
    bound: usize,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// Given back.
    free: Vec<usize>,
    /// This one and all after it were never handed out.
    fresh: usize,
}

// SAFETY: a slab owns its memory; `parts`, which is protected by a lock, says who may access which
// part of it.
unsafe impl Send for Slab {}
// SAFETY: as above; `&Slab` alone gives no access to the memory.
unsafe impl Sync for Slab {}

impl Slab {
    /// Room for `bound` buffers of `pages` pages each, reserved now and used when touched.
    pub(crate) fn new(pages: usize, bound: usize) -> Self {
        let total = pages.saturating_mul(bound);
        let memory = Box::into_raw(zeroed(total));
        // A box's pointer is never null.
        let start = NonNull::new(memory.cast::<AlignedPage>()).unwrap_or(NonNull::dangling());
        let parts = Mutex::new(Parts { free: Vec::with_capacity(bound), fresh: 0 });
        Self { start, pages, bound, parts }
    }

    /// The whole memory: first byte and length.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.start.as_ptr().cast(), self.pages * self.bound * PAGE)
    }

    /// Pages of each buffer.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Number of buffers.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    /// Buffers handed out.
    pub(crate) fn outstanding(&self) -> usize {
        let parts = self.parts.lock();
        parts.fresh - parts.free.len()
    }

    /// Buffers that have been handed out at least once.
    pub(crate) fn ever_used(&self) -> usize {
        self.parts.lock().fresh
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

/// One part of a slab, owned.
pub(crate) struct SlabPages {
    slab: Arc<Slab>,
    part: usize,
}

impl SlabPages {
    /// A free part of the slab, with arbitrary content; `None` when all are taken.
    pub(crate) fn take(slab: &Arc<Slab>) -> Option<Self> {
        let mut parts = slab.parts.lock();
        let part = match parts.free.pop() {
            Some(part) => part,
            None if parts.fresh < slab.bound => {
                parts.fresh += 1;
                parts.fresh - 1
            }
            None => return None,
        };
        drop(parts);
        Some(Self { slab: slab.clone(), part })
    }

    /// The slab this is a part of.
    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Which part of the slab.
    pub(crate) fn part(&self) -> usize {
        self.part
    }

    fn start(&self) -> NonNull<AlignedPage> {
        // SAFETY: `part` is below `bound`, so the offset is inside the slab's allocation (or at
        // its end, when buffers have no pages).
        unsafe { self.slab.start.add(self.part * self.slab.pages) }
    }

    pub(crate) fn get(&self) -> &[AlignedPage] {
        // SAFETY: `start` is aligned and `pages` initialised (zeroed, or written since) pages from
        // it are inside the slab, which `self.slab` keeps alive. The part belongs to `self`
        // alone, so while the slice borrows `self`, nobody writes to it.
        unsafe { core::slice::from_raw_parts(self.start().as_ptr(), self.slab.pages) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [AlignedPage] {
        // SAFETY: as in `get`; and `&mut self` is the only access to the part.
        unsafe { core::slice::from_raw_parts_mut(self.start().as_ptr(), self.slab.pages) }
    }
}

impl Drop for SlabPages {
    fn drop(&mut self) {
        // Room was reserved for every part.
        self.slab.parts.lock().free.push(self.part);
    }
}
