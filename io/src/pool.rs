//! A bounded pool of page buffers, so that steady work allocates nothing.
//!
//! Invariants:
//! * all buffers of a pool have the same number of pages;
//! * buffers at hand plus buffers handed out never exceed the bound; memory is allocated at first
//!   use and kept;
//! * a buffer comes back with whatever was in it.
//!
//! Buffers are plain [`PageBuf`]s: one that is dropped instead of given back is reported with
//! [`PagePool::lost`], or the pool is one smaller from then on. `docs/decisions/0001` says why
//! they are not registered with rings.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffer::{PAGE, PageBuf};

/// A pool; cloning gives another handle.
#[derive(Clone, Debug)]
pub struct PagePool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pages: usize,
    bound: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    idle: Vec<PageBuf>,
    out: usize,
}

impl PagePool {
    /// A pool of at most `bound` buffers of `pages` pages each. Nothing is allocated yet.
    pub fn new(pages: usize, bound: usize) -> Self {
        let state = Mutex::new(State { idle: Vec::new(), out: 0 });
        Self(Arc::new(Inner { pages, bound, state }))
    }

    /// Pages of each buffer.
    pub fn pages(&self) -> usize {
        self.0.pages
    }

    /// Largest number of buffers.
    pub fn bound(&self) -> usize {
        self.0.bound
    }

    /// Buffers handed out.
    pub fn outstanding(&self) -> usize {
        self.0.state.lock().out
    }

    /// Bytes held by buffers, handed out or not.
    pub fn bytes(&self) -> usize {
        let state = self.0.state.lock();
        (state.idle.len() + state.out) * self.0.pages * PAGE
    }

    /// A buffer with arbitrary content; `None` when all are out.
    pub fn take(&self) -> Option<PageBuf> {
        let mut state = self.0.state.lock();
        if state.idle.len() + state.out >= self.0.bound && state.idle.is_empty() {
            return None;
        }
        state.out += 1;
        let idle = state.idle.pop();
        // Allocating clears memory; others need not wait for that.
        drop(state);
        Some(idle.unwrap_or_else(|| PageBuf::zeroed(self.0.pages)))
    }

    /// Gives a buffer back. One that is not of this pool's size, or that nobody took, is freed.
    pub fn give(&self, buf: PageBuf) {
        let mut state = self.0.state.lock();
        if buf.pages() != self.0.pages || state.out == 0 {
            return;
        }
        state.out -= 1;
        state.idle.push(buf);
    }

    /// Says that `count` buffers that were handed out will not come back.
    pub fn lost(&self, count: usize) {
        let mut state = self.0.state.lock();
        state.out = state.out.saturating_sub(count);
    }

    /// Frees buffers at hand until at most `keep` are left.
    pub fn shrink(&self, keep: usize) {
        let freed = {
            let mut state = self.0.state.lock();
            let keep = keep.min(state.idle.len());
            let freed = state.idle.split_off(keep);
            state.idle.shrink_to_fit();
            freed
        };
        // Outside the lock: unmapping takes its time.
        drop(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_holds_and_buffers_come_round() {
        let pool = PagePool::new(2, 3);
        assert_eq!(pool.bytes(), 0);
        let mut bufs: Vec<_> = (0..3).map(|_| pool.take().expect("below the bound")).collect();
        assert!(pool.take().is_none());
        assert_eq!((pool.outstanding(), pool.bytes()), (3, 3 * 2 * PAGE));
        let address = bufs[2].as_ptr();
        pool.give(bufs.pop().expect("three"));
        let again = pool.take().expect("one came back");
        assert_eq!(again.as_ptr(), address, "reused, not allocated");
        pool.give(again);
        pool.shrink(0);
        assert_eq!(pool.bytes(), 2 * 2 * PAGE);
    }

    #[test]
    fn strangers_are_freed_and_losses_are_made_up() {
        let pool = PagePool::new(1, 1);
        pool.give(PageBuf::zeroed(1));
        assert_eq!((pool.outstanding(), pool.bytes()), (0, 0));
        drop(pool.take());
        assert!(pool.take().is_none());
        pool.lost(1);
        let buf = pool.take().expect("the loss was reported");
        pool.give(PageBuf::zeroed(2));
        assert_eq!(pool.outstanding(), 1, "a buffer of another size is not the one");
        pool.give(buf);
        assert_eq!(pool.outstanding(), 0);
    }
}
