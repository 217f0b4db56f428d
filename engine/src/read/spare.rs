//! Readers that are kept for later, each for the thread that made it: a ring has one issuer, and making one
//! costs as much as a dozen reads (`docs/decisions/0001-registered-buffers.md`).
//!
//! Invariant: a reader that is kept has nothing in flight.

use std::thread::ThreadId;

use parking_lot::Mutex;
use pleach_io::{Device, Runtime};

use crate::error::Result;
use crate::state::reader::PageReader;
use crate::state::run_reader::RunReader;

/// Most readers that are used at the same time; their rings take memory that the kernel pins.
const USED: usize = 8;
/// Most readers kept for later.
const KEPT: usize = 4;

/// What reads through a ring.
pub(crate) trait RingReader {
    /// Can it be kept for later?
    fn is_idle(&self) -> bool;
}

impl<D: Device, R: Runtime, T> RingReader for PageReader<D, R, T> {
    fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }
}

impl<D: Device> RingReader for RunReader<D> {
    fn is_idle(&self) -> bool {
        self.is_idle()
    }
}

/// Readers for whoever reads many pages, from session to session.
pub(crate) struct SpareReaders<Q: RingReader>(Mutex<Spare<Q>>);

/// Those for whoever reads many keys.
pub(crate) type PageReaders<D, R> = SpareReaders<PageReader<D, R, ()>>;

struct Spare<Q> {
    /// Those that nobody uses, the longest unused first.
    kept: Vec<(ThreadId, Q)>,
    /// How many are in use.
    used: usize,
}

impl<Q: RingReader> Default for SpareReaders<Q> {
    fn default() -> Self {
        Self(Mutex::new(Spare { kept: Vec::new(), used: 0 }))
    }
}

/// The right to use a reader on this thread.
pub(super) struct InUse<'a, Q: RingReader> {
    readers: &'a SpareReaders<Q>,
    reader: Option<Q>,
}

impl<Q: RingReader> SpareReaders<Q> {
    /// `None` when enough are in use.
    pub(super) fn take(&self) -> Option<InUse<'_, Q>> {
        let spare = &mut *self.0.lock();
        if spare.used == USED {
            return None;
        }
        spare.used += 1;
        let here = std::thread::current().id();
        let own = spare.kept.iter().position(|(thread, _)| *thread == here);
        Some(InUse { readers: self, reader: own.map(|own| spare.kept.remove(own).1) })
    }
}

impl<Q: RingReader> InUse<'_, Q> {
    /// The reader: one of this thread if there was one, else made now.
    pub(super) fn reader(&mut self, make: impl FnOnce() -> Result<Q>) -> Result<&mut Q> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => make()?,
        };
        Ok(self.reader.insert(reader))
    }

    /// The reader, if it was used.
    pub(super) fn made(&mut self) -> Option<&mut Q> {
        self.reader.as_mut()
    }

    /// After an error the reader goes, and waits for what is in flight.
    pub(super) fn forget(&mut self) {
        self.reader = None;
    }
}

impl<Q: RingReader> Drop for InUse<'_, Q> {
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
