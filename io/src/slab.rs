//! One allocation that is handed out in equal parts, or in runs of neighbouring parts.
//!
//! Invariants:
//! * each part of the slab is free, or belongs to exactly one [`SlabPages`], which gives it back when it is dropped;
//! * the slab is neither freed nor moved nor given other physical pages while a pool, a buffer or
//!   a ring that registered it exists: each of them holds an `Arc` of it;
//! * a part holds whatever its last owner left in it.
#![expect(unsafe_code, reason = "buffers are disjoint parts of one allocation")]

use core::ops::Range;
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
    parts: Mutex<SlabBitmap>,
}

#[derive(Debug)]
struct SlabBitmap {
    /// A bit for each part, set while it is free. Those beyond the last part are not.
    free: Vec<u64>,
    /// All parts in words before this one are taken.
    from: usize,
    /// Parts handed out.
    taken: usize,
    /// Parts from this index on were never handed out.
    fresh: usize,
}

impl SlabBitmap {
    const BITS: usize = u64::BITS as usize;

    fn new(bound: usize) -> Self {
        let mut free = vec![u64::MAX; bound.div_ceil(Self::BITS)];
        if let Some(last) = free.last_mut().filter(|_| !bound.is_multiple_of(Self::BITS)) {
            *last = (1 << (bound % Self::BITS)) - 1;
        }
        Self { free, from: 0, taken: 0, fresh: 0 }
    }

    /// The first part from `at` on that is free (or taken), if there is one.
    fn next(&self, at: usize, free: bool) -> Option<usize> {
        let word = |index: usize| if free { self.free[index] } else { !self.free[index] };
        let mut index = at / Self::BITS;
        if index >= self.free.len() {
            return None;
        }
        let mut bits = word(index) & u64::MAX << (at % Self::BITS);
        while bits == 0 {
            index += 1;
            if index == self.free.len() {
                return None;
            }
            bits = word(index);
        }
        Some(index * Self::BITS + bits.trailing_zeros() as usize)
    }

    /// Takes the lowest `count` neighbouring parts that are free; gives the first of them.
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut first = self.next(self.from * Self::BITS, true)?;
        self.from = first / Self::BITS;
        loop {
            let end = self.next(first, false).unwrap_or(self.free.len() * Self::BITS);
            if end - first >= count {
                break;
            }
            first = self.next(end, true)?;
        }
        self.set(first..first + count, false);
        self.taken += count;
        self.fresh = self.fresh.max(first + count);
        Some(first)
    }

    fn give(&mut self, parts: Range<usize>) {
        self.taken -= parts.len();
        self.from = self.from.min(parts.start / Self::BITS);
        self.set(parts, true);
    }

    fn set(&mut self, parts: Range<usize>, free: bool) {
        for part in parts {
            let bit = 1 << (part % Self::BITS);
            let word = &mut self.free[part / Self::BITS];
            debug_assert_eq!(*word & bit == 0, free, "a part is taken once and given back once");
            *word ^= bit;
        }
    }
}

// SAFETY: a slab owns its memory; `parts`, which is protected by a lock, says who may access which part of it.
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
        let parts = Mutex::new(SlabBitmap::new(bound));
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
        self.parts.lock().taken
    }

    /// One more than the last buffer that has been handed out.
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

/// One part of a slab, or some neighbours, owned.
pub(crate) struct SlabPages {
    slab: Arc<Slab>,
    /// The first part.
    part: usize,
    /// How many.
    parts: usize,
}

impl SlabPages {
    /// This many neighbouring free parts of the slab, with arbitrary content; `None` when no so many are
    /// free side by side.
    pub(crate) fn take(slab: &Arc<Slab>, parts: usize) -> Option<Self> {
        let part = slab.parts.lock().take(parts)?;
        Some(Self { slab: slab.clone(), part, parts })
    }

    /// The slab this is a part of.
    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Which parts of the slab.
    pub(crate) fn parts(&self) -> Range<usize> {
        self.part..self.part + self.parts
    }

    fn start(&self) -> NonNull<AlignedPage> {
        // SAFETY: `part` is below `bound`, so the offset is inside the slab's allocation (or at
        // its end, when buffers have no pages).
        unsafe { self.slab.start.add(self.part * self.slab.pages) }
    }

    /// Pages of all parts.
    fn len(&self) -> usize {
        self.parts * self.slab.pages
    }

    pub(crate) fn get(&self) -> &[AlignedPage] {
        // SAFETY: `start` is aligned and `len` initialised (zeroed, or written since) pages from
        // it are inside the slab, which `self.slab` keeps alive. The parts belong to `self`
        // alone, so while the slice borrows `self`, nobody writes to them.
        unsafe { core::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [AlignedPage] {
        // SAFETY: as in `get`; and `&mut self` is the only access to the parts.
        unsafe { core::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }
}

impl Drop for SlabPages {
    fn drop(&mut self) {
        self.slab.parts.lock().give(self.parts());
    }
}
