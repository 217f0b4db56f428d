//! A bounded pool of one-page read buffers for blocking reads, each an allocation of its own.
//!
//! Rings read into `pleach_io`'s `PagePool`, one slab that the kernel knows.

use parking_lot::Mutex;
use pleach_io::{PAGE, PageBuf};

/// What a buffer of one aligned page takes: the allocator finds an aligned page only in twice its size
/// (docs/decisions/0011).
const BUFFER_COST: usize = 2 * PAGE;

/// Read buffers between two uses. The pool keeps at most so many as it was made for; who takes more
/// gets fresh ones, and what is given back beyond is freed.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Vec<PageBuf>>,
    keep: usize,
}

impl Buffers {
    /// A pool that keeps at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Self { free: Mutex::new(Vec::new()), keep: budget / BUFFER_COST }
    }

    /// A buffer of one page, with any contents.
    pub fn take(&self) -> PageBuf {
        let kept = self.free.lock().pop();
        kept.unwrap_or_else(|| PageBuf::zeroed(1))
    }

    /// Takes a buffer back. One of another size is freed.
    pub fn give(&self, buf: PageBuf) {
        if buf.pages() != 1 {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push(buf);
        }
    }

    /// Bytes that lie unused in the pool.
    pub fn bytes(&self) -> usize {
        self.free.lock().len() * BUFFER_COST
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
            buffers.give(buf);
        }
        buffers.give(PageBuf::zeroed(2));
        assert_eq!(buffers.bytes(), 2 * BUFFER_COST);
        drop((buffers.take(), buffers.take()));
        assert_eq!(buffers.bytes(), 0);
    }
}
