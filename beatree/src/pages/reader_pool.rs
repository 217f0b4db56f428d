//! Readers that are kept for later, since making a ring costs as much as a dozen reads; readers whose ring has a single
//! issuer, for the thread that made them (`docs/decisions/history.md`, 0001).
//!
//! Invariant: a pooled reader has nothing in flight.

use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::error::Result;

/// Most readers in use at the same time; the kernel pins the memory of their rings.
const USED: usize = 8;
/// Most readers kept for later.
const KEPT: usize = 4;

/// A reader of pages through a ring.
pub trait RingReader {
    /// True when the reader stays on the thread that made it.
    const IS_THREAD_BOUND: bool;

    /// True when nothing is in flight, so that the reader can be kept for later.
    fn is_idle(&self) -> bool;
}

/// Readers for sessions that read many pages. Clones are the same pool.
pub struct ReaderPool<Q: RingReader>(Arc<Mutex<PoolState<Q>>>);

impl<Q: RingReader> Clone for ReaderPool<Q> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct PoolState<Q> {
    /// The unused readers, the longest unused first.
    kept: Vec<(ThreadId, Q)>,
    /// The number of readers in use.
    used: usize,
}

impl<Q: RingReader> Default for ReaderPool<Q> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(PoolState { kept: Vec::new(), used: 0 })))
    }
}

/// The right to use a reader.
pub struct PooledReader<Q: RingReader> {
    readers: ReaderPool<Q>,
    reader: Option<Q>,
}

impl<Q: RingReader> ReaderPool<Q> {
    /// The right to use a reader; `None` when enough are in use.
    pub fn take(&self) -> Option<PooledReader<Q>> {
        let spare = &mut *self.0.lock();
        if spare.used == USED {
            return None;
        }
        spare.used += 1;
        let here = std::thread::current().id();
        let own = spare.kept.iter().position(|(thread, _)| !Q::IS_THREAD_BOUND || *thread == here);
        let reader = own.map(|own| spare.kept.remove(own).1);
        Some(PooledReader { readers: self.clone(), reader })
    }
}

impl<Q: RingReader> PooledReader<Q> {
    /// The reader: a kept one if there was one, else one made now.
    pub fn get_or_make(&mut self, make: impl FnOnce() -> Result<Q>) -> Result<&mut Q> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => make()?,
        };
        Ok(self.reader.insert(reader))
    }

    /// The reader, if it was used.
    pub fn get(&mut self) -> Option<&mut Q> {
        self.reader.as_mut()
    }

    /// Discards the reader after an error: that waits for its requests in flight.
    pub fn discard(&mut self) {
        self.reader = None;
    }
}

impl<Q: RingReader> Drop for PooledReader<Q> {
    fn drop(&mut self) {
        let reader = self.reader.take().filter(RingReader::is_idle);
        let mut spare = self.readers.0.lock();
        spare.used -= 1;
        let Some(reader) = reader else { return };
        spare.kept.push((std::thread::current().id(), reader));
        let surplus = (spare.kept.len() > KEPT).then(|| spare.kept.remove(0));
        // Not under the lock: dropping closes a ring.
        drop(spare);
        drop(surplus);
    }
}
