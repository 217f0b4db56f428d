//! Pools of memory for reuse.
//!
//! Memory fresh from the system is cleared page by page when it is first touched, and large pieces go back to the
//! system when they are freed. So memory of one kind that is needed again and again (read buffers, witnesses, the
//! results of folds) is put back into a pool and taken from there.
//!
//! Invariants: the pool holds at most its limit in bytes; when it is full the oldest pieces are freed, because the
//! newest are as large as what is needed now; no piece is freed under its lock.
//!
//! ```
//! use pleach_beatree::recycle::RecyclePool;
//!
//! let pool: RecyclePool<Vec<u8>> = RecyclePool::new(1 << 20);
//! let mut bytes = pool.take().unwrap_or_default();
//! bytes.extend_from_slice(b"a result");
//! pool.put_back(bytes);
//! assert!(pool.bytes() >= 8);
//! // Contents are gone, memory is not.
//! let again = pool.take().expect("just given");
//! assert!(again.is_empty() && again.capacity() >= 8);
//! ```

use std::collections::VecDeque;

use parking_lot::Mutex;

/// What a [`RecyclePool`] keeps.
pub trait Recycle {
    /// Bytes of the value, as the pool's limit counts them. They do not change while it is in the pool. A value of 0
    /// bytes is not kept.
    fn bytes(&self) -> usize;

    /// Clears the contents and keeps the memory. Called by [`RecyclePool::put_back`].
    fn clear(&mut self) {}
}

/// A vector comes back empty. To get its bytes back as they were, wrap the vector in a type whose [`Recycle::clear`]
/// does nothing.
impl<T> Recycle for Vec<T> {
    fn bytes(&self) -> usize {
        self.capacity() * size_of::<T>()
    }

    fn clear(&mut self) {
        self.clear();
    }
}

/// A bounded pool of memory for reuse.
#[derive(Debug)]
pub struct RecyclePool<T> {
    state: Mutex<RecycleState<T>>,
    limit: usize,
}

#[derive(Debug)]
struct RecycleState<T> {
    /// Oldest first, each with its bytes.
    pieces: VecDeque<(T, usize)>,
    bytes: usize,
}

impl<T: Recycle> RecyclePool<T> {
    /// An empty pool that never keeps more than `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { state: Mutex::new(RecycleState { pieces: VecDeque::new(), bytes: 0 }), limit }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Takes the newest piece.
    pub fn take(&self) -> Option<T> {
        self.take_if(|_| true)
    }

    /// Takes the newest piece for which `fits` is true. `fits` runs under the pool's lock: it should look at a length
    /// and no more.
    pub fn take_if(&self, fits: impl Fn(&T) -> bool) -> Option<T> {
        let mut kept = self.state.lock();
        let at = kept.pieces.iter().rposition(|(piece, _)| fits(piece))?;
        let (piece, bytes) = kept.pieces.remove(at)?;
        kept.bytes -= bytes;
        Some(piece)
    }

    /// Puts a piece back. One larger than the limit is freed, and so are the oldest ones that no longer fit.
    pub fn put_back(&self, mut piece: T) {
        piece.clear();
        let bytes = piece.bytes();
        if bytes == 0 || bytes > self.limit {
            return;
        }
        loop {
            let mut kept = self.state.lock();
            if kept.bytes + bytes <= self.limit {
                kept.bytes += bytes;
                kept.pieces.push_back((piece, bytes));
                return;
            }
            let Some((oldest, freed)) = kept.pieces.pop_front() else { return };
            kept.bytes -= freed;
            drop(kept);
            // Freed outside of the lock.
            drop(oldest);
        }
    }

    /// Bytes of unused pieces in the pool.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece of some bytes, with a number.
    #[derive(Debug, PartialEq, Eq)]
    struct Piece(usize, u8);

    impl Recycle for Piece {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn the_newest_stay_within_the_limit() {
        let pool = RecyclePool::new(100);
        for number in 0..5 {
            pool.put_back(Piece(30, number));
            assert!(pool.bytes() <= 100);
        }
        assert_eq!(pool.bytes(), 90);
        // Too large, and of no bytes: not kept, and no piece is freed for them.
        pool.put_back(Piece(101, 9));
        pool.put_back(Piece(0, 9));
        let numbers: Vec<u8> =
            std::iter::from_fn(|| pool.take()).map(|Piece(_, number)| number).collect();
        assert_eq!((numbers, pool.bytes()), (vec![4, 3, 2], 0));
        // A piece of the whole limit replaces all.
        pool.put_back(Piece(1, 0));
        pool.put_back(Piece(100, 1));
        assert_eq!((pool.take(), pool.take()), (Some(Piece(100, 1)), None));
    }

    #[test]
    fn the_newest_that_fits_is_taken() {
        let pool = RecyclePool::new(1000);
        for (bytes, number) in [(10, 0), (200, 1), (20, 2), (300, 3)] {
            pool.put_back(Piece(bytes, number));
        }
        assert_eq!(pool.take_if(|piece| piece.0 < 100), Some(Piece(20, 2)));
        assert_eq!(pool.take_if(|piece| piece.0 > 500), None);
        assert_eq!(pool.bytes(), 510);
    }

    #[test]
    fn contents_do_not_stay() {
        let pool = RecyclePool::new(1 << 10);
        pool.put_back(vec![std::sync::Arc::new(7)]);
        let kept = pool.take().expect("given");
        assert!(kept.is_empty() && kept.capacity() > 0);
    }
}
