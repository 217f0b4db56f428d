//! A bounded pool of page buffers in one slab, so that steady work allocates nothing and rings
//! can register the memory once ([`crate::Queue::register`]).
//!
//! All buffers of a pool have the same number of pages. Parts of the slab are reused last in, first
//! out: memory that was never needed is never touched, unless the slab is registered.

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

    /// Buffers handed out.
    pub fn outstanding(&self) -> usize {
        self.0.outstanding()
    }

    /// Bytes that have been handed out at least once. That is the memory the pool uses, unless it
    /// is registered: then it uses the memory of all buffers.
    pub fn bytes(&self) -> usize {
        self.0.ever_used() * self.0.stride()
    }

    /// A buffer with arbitrary content; `None` when all are taken. Dropping it returns it.
    pub fn take(&self) -> Option<PageBuf> {
        SlabPages::take(&self.0).map(PageBuf::in_slab)
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
