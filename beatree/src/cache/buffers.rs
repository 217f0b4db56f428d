//! Read buffers of one page between two reads, each an allocation of its own.
//!
//! A reader of a leaf page or a branch page takes a buffer here, hands it to the device with the request and puts it
//! back when the page was copied out ([`super::Cache::insert`] copies). The kernel does not know these buffers: memory
//! that is registered with a ring is `pleach_io`'s `PagePool`.

use pleach_io::{PAGE, PageBuf};

use crate::recycle::{Recycle, RecyclePool};

/// Bytes of a one-page buffer: the allocator finds an aligned page only in twice its size (docs/decisions/history.md, 0011).
const BUFFER_COST: usize = 2 * PAGE;

/// Read buffers of one page. The pool allocates when it is empty, and frees what is put back beyond its limit.
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

    /// Puts a buffer back. One of another size is freed.
    pub fn put_back(&self, buf: PageBuf) {
        if buf.pages() == 1 {
            self.0.put_back(Buffer(buf));
        }
    }

    /// Bytes of unused buffers in the pool.
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
