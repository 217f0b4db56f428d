//! Readers that are kept for later, each for the thread that made it: a ring has one issuer, and making one
//! costs as much as a dozen reads (`docs/decisions/0001-registered-buffers.md`).
//!
//! Invariant: a reader that is kept has nothing in flight.

use std::thread::ThreadId;

use parking_lot::Mutex;
use pleach_io::{Device, Runtime};

use crate::error::Result;
use crate::state::reader::PageReader;

/// Most readers that are used at the same time; their rings take memory that the kernel pins.
const USED: usize = 8;
/// Most readers kept for later.
const KEPT: usize = 4;

/// Readers for whoever reads many pages, from session to session. `T` is what they read pages for.
pub(crate) struct SpareReaders<D: Device, R: Runtime, T = ()>(Mutex<Spare<D, R, T>>);

struct Spare<D: Device, R: Runtime, T> {
    /// Those that nobody uses, the longest unused first.
    kept: Vec<(ThreadId, PageReader<D, R, T>)>,
    /// How many are in use.
    used: usize,
}

impl<D: Device, R: Runtime, T> Default for SpareReaders<D, R, T> {
    fn default() -> Self {
        Self(Mutex::new(Spare { kept: Vec::new(), used: 0 }))
    }
}

/// The right to use a reader on this thread.
pub(super) struct InUse<'a, D: Device, R: Runtime, T> {
    readers: &'a SpareReaders<D, R, T>,
    reader: Option<PageReader<D, R, T>>,
}

impl<D: Device, R: Runtime, T> SpareReaders<D, R, T> {
    /// `None` when enough are in use.
    pub(super) fn take(&self) -> Option<InUse<'_, D, R, T>> {
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

impl<D: Device, R: Runtime, T> InUse<'_, D, R, T> {
    /// The reader: one of this thread if there was one, else made now.
    pub(super) fn reader(
        &mut self,
        make: impl FnOnce() -> Result<PageReader<D, R, T>>,
    ) -> Result<&mut PageReader<D, R, T>> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => make()?,
        };
        Ok(self.reader.insert(reader))
    }

    /// The reader, if it was used.
    pub(super) fn made(&mut self) -> Option<&mut PageReader<D, R, T>> {
        self.reader.as_mut()
    }

    /// After an error the reader goes, and waits for what is in flight.
    pub(super) fn forget(&mut self) {
        self.reader = None;
    }
}

impl<D: Device, R: Runtime, T> Drop for InUse<'_, D, R, T> {
    fn drop(&mut self) {
        let reader = self.reader.take().filter(|reader| reader.in_flight() == 0);
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
