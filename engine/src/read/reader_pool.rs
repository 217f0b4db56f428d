//! Readers that are kept for later, since making a ring costs as much as a dozen reads; those with a ring of one
//! issuer for the thread that made them (`docs/decisions/0001-registered-buffers.md`).
//!
//! Invariant: a reader that is kept has nothing in flight.

use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::error::Result;
use crate::state::pages::reader::PageReader;
use crate::state::pages::run_reader::RunReader;

/// Most readers that are used at the same time; their rings take memory that the kernel pins.
const USED: usize = 8;
/// Most readers kept for later.
const KEPT: usize = 4;

/// What reads through a ring.
pub(crate) trait RingReader {
    /// Does it stay on the thread that made it?
    const IS_THREAD_BOUND: bool;

    /// Can it be kept for later?
    fn is_idle(&self) -> bool;
}

impl<T> RingReader for PageReader<T> {
    const IS_THREAD_BOUND: bool = true;

    fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }
}

impl RingReader for RunReader {
    const IS_THREAD_BOUND: bool = false;

    fn is_idle(&self) -> bool {
        self.is_idle()
    }
}

/// Readers for whoever reads many pages, from session to session. Clones are the same.
pub(crate) struct ReaderPool<Q: RingReader>(Arc<Mutex<PoolState<Q>>>);

impl<Q: RingReader> Clone for ReaderPool<Q> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Those for whoever reads many keys.
pub(crate) type PageReaderPool = ReaderPool<PageReader<()>>;

struct PoolState<Q> {
    /// Those that nobody uses, the longest unused first.
    kept: Vec<(ThreadId, Q)>,
    /// How many are in use.
    used: usize,
}

impl<Q: RingReader> Default for ReaderPool<Q> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(PoolState { kept: Vec::new(), used: 0 })))
    }
}

/// The right to use a reader.
pub(super) struct PooledReader<Q: RingReader> {
    readers: ReaderPool<Q>,
    reader: Option<Q>,
}

impl<Q: RingReader> ReaderPool<Q> {
    /// `None` when enough are in use.
    pub(super) fn take(&self) -> Option<PooledReader<Q>> {
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
    /// The reader: one that was kept if there was one, else made now.
    pub(super) fn get_or_make(&mut self, make: impl FnOnce() -> Result<Q>) -> Result<&mut Q> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => make()?,
        };
        Ok(self.reader.insert(reader))
    }

    /// The reader, if it was used.
    pub(super) fn get(&mut self) -> Option<&mut Q> {
        self.reader.as_mut()
    }

    /// After an error the reader goes, and waits for what is in flight.
    pub(super) fn discard(&mut self) {
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
        // Not under the lock: a ring is closed.
        drop(spare);
        drop(surplus);
    }
}
