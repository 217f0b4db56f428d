//! Read buffers of one page between two reads, each an allocation of its own.
//!
//! Whoever reads a leaf page or a branch page takes a buffer here, hands it to the device with the
//! request and gives it back when the page was copied out ([`super::Cache::insert`] copies). The
//! kernel does not know these buffers: memory that is registered with a ring is `pleach_io`'s
//! `PagePool`.

use pleach_io::{PAGE, PageBuf};

use crate::recycle::{Recycle, RecyclePool};

/// What a buffer of one aligned page takes: the allocator finds an aligned page only in twice its size
/// (docs/decisions/0011).
const BUFFER_COST: usize = 2 * PAGE;

/// Read buffers of one page. More may be taken than the pool keeps: they are fresh ones, and what is
/// given back beyond the pool's limit is freed.
#[derive(Debug)]
pub struct Buffers(RecyclePool<Buffer>);

#[derive(Debug)]
struct Buffer(PageBuf);

impl Recycle for Buffer {
    fn bytes(&self) -> usize {
        BUFFER_COST
    }
}

impl Buffers {
    /// A pool that keeps at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Self(RecyclePool::new(budget))
    }

    /// A buffer of one page, with any contents.
    pub fn take(&self) -> PageBuf {
        self.0.take().map_or_else(|| PageBuf::zeroed(1), |Buffer(buf)| buf)
    }

    /// Takes a buffer back. One of another size is freed.
    pub fn put_back(&self, buf: PageBuf) {
        if buf.pages() == 1 {
            self.0.put_back(Buffer(buf));
        }
    }

    /// Bytes that lie unused in the pool.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_keeps_single_pages_up_to_its_limit() {
        let buffers = Buffers::new(2 * BUFFER_COST);
        let taken: Vec<_> = (0..3).map(|_| buffers.take()).collect();
        assert!(taken.iter().all(|buf| buf.pages() == 1));
        for buf in taken {
            buffers.put_back(buf);
        }
        buffers.put_back(PageBuf::zeroed(2));
        assert_eq!(buffers.bytes(), 2 * BUFFER_COST);
        drop((buffers.take(), buffers.take()));
        assert_eq!(buffers.bytes(), 0);
    }
}
