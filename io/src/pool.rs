//! A bounded pool of page buffers in one slab, so that steady work allocates nothing and rings
//! can register the memory once ([`crate::Queue::register`]).
//!
//! All buffers of a pool have the same number of pages, or a multiple of it ([`PagePool::take_run`]). The
//! lowest parts of the slab that are free are used first: memory that was never needed is never touched,
//! unless the slab is registered.

use std::sync::Arc;

use crate::buffer::PageBuf;
use crate::slab::{Slab, SlabPages};

/// A pool of page buffers in one slab of memory; cloning gives another handle.
///
/// ```
/// use pleach_io::PagePool;
///
/// // Two buffers of one page each.
/// let pool = PagePool::new(1, 2);
/// let (first, second) = (pool.take().expect("free"), pool.take().expect("free"));
/// assert!(pool.take().is_none(), "all are out");
/// drop(first);
/// assert!(pool.take().is_some());
/// # drop(second);
/// ```
#[derive(Clone, Debug)]
pub struct PagePool(Arc<Slab>);

impl PagePool {
    /// A pool of `bound` buffers of `pages` pages each. Address space is reserved now; memory is
    /// used when a buffer is first written.
    ///
    /// # Panics
    /// When memory is exhausted.
    pub fn new(pages: usize, bound: usize) -> Self {
        Self(Arc::new(Slab::new(pages, bound)))
    }

    /// Pages of each buffer.
    pub fn pages(&self) -> usize {
        self.0.pages()
    }

    /// Number of buffers.
    pub fn bound(&self) -> usize {
        self.0.bound()
    }

    /// Buffers handed out; a run counts as all its buffers.
    pub fn outstanding(&self) -> usize {
        self.0.outstanding()
    }

    /// Bytes up to the last buffer that has been handed out: the memory that the pool uses, unless it is registered;
    /// then it uses the memory of all buffers.
    pub fn bytes(&self) -> usize {
        self.0.ever_used() * self.0.stride()
    }

    /// A buffer with arbitrary content; `None` when all are taken. Dropping it returns it.
    pub fn take(&self) -> Option<PageBuf> {
        self.take_run(1)
    }

    /// One buffer as large as `count` of them, with arbitrary content; `None` when so many neighbours are not free.
    /// Dropping it returns them all.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn take_run(&self, count: usize) -> Option<PageBuf> {
        assert!(count > 0, "a run has a buffer");
        SlabPages::take(&self.0, count).map(PageBuf::in_slab)
    }

    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE;

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

    /// Runs of all lengths against a model, a flag for each buffer: a taken run was free, is the lowest free place, and
    /// none is refused for which there is room.
    #[test]
    fn runs_are_the_lowest_neighbours_that_are_free() {
        for bound in [1, 63, 64, 65, 200] {
            let pool = PagePool::new(1, bound);
            let start = pool.take().expect("free").as_ptr() as usize;
            let mut model = vec![false; bound];
            let mut held: Vec<(usize, PageBuf)> = Vec::new();
            let mut random = 7_usize;
            for round in 0..3000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let draw = random >> 33;
                if draw.is_multiple_of(5) && !held.is_empty() {
                    let (at, mut buf) = held.swap_remove(draw / 5 % held.len());
                    buf.fill(0);
                    model[at..at + buf.pages()].fill(false);
                    continue;
                }
                let count = 1 + draw / 8 % if round % 200 < 100 { 16 } else { 2 };
                let room = model.windows(count).position(|place| place.iter().all(|taken| !taken));
                let buf = pool.take_run(count);
                assert_eq!(buf.is_some(), room.is_some(), "{count} of {bound}, round {round}");
                let (Some(buf), Some(at)) = (buf, room) else { continue };
                assert_eq!(((buf.as_ptr() as usize - start) / PAGE, buf.pages()), (at, count));
                model[at..at + count].fill(true);
                held.push((at, buf));
                assert_eq!(pool.outstanding(), model.iter().filter(|taken| **taken).count());
            }
            drop(held);
            assert_eq!(pool.outstanding(), 0);
            assert_eq!(pool.take_run(bound).expect("all are free").pages(), bound);
        }
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
