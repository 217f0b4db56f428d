//! Reading many keys: the pages that they need are read first, as many at once as the device takes.
//!
//! Nothing is given to the caller but an error: the keys are read one by one afterwards ([`super::point`]),
//! from the cache.

use std::collections::HashSet;
use std::thread::ThreadId;

use parking_lot::Mutex;
use pleach_core::Key;
use pleach_io::{Device, Runtime};

use super::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use super::point::{Found, find};
use crate::error::Result;
use crate::state::State;
use crate::state::in_flight::Reading;
use crate::state::reader::{PageReader, PageRequest};
use crate::state::view::View;

/// Most readers that are used at the same time; their rings take memory that the kernel pins.
const USED: usize = 8;
/// Most readers kept for later.
const KEPT: usize = 4;

/// Readers for whoever reads many keys. One is made on first use and kept for its thread, from session
/// to session: a ring serves the thread that made it, and making it costs as much as a dozen reads
/// (`docs/decisions/0001-registered-buffers.md`).
pub(crate) struct SpareReaders<D: Device, R: Runtime>(Mutex<Spare<D, R>>);

struct Spare<D: Device, R: Runtime> {
    /// Those that nobody uses, the longest unused first.
    kept: Vec<(ThreadId, PageReader<D, R, ()>)>,
    /// How many are in use.
    used: usize,
}

impl<D: Device, R: Runtime> Default for SpareReaders<D, R> {
    fn default() -> Self {
        Self(Mutex::new(Spare { kept: Vec::new(), used: 0 }))
    }
}

/// The right to use a reader, and one of this thread if there was one.
struct InUse<'a, D: Device, R: Runtime> {
    readers: &'a SpareReaders<D, R>,
    reader: Option<PageReader<D, R, ()>>,
}

impl<D: Device, R: Runtime> SpareReaders<D, R> {
    /// `None` when enough are in use.
    fn take(&self) -> Option<InUse<'_, D, R>> {
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

impl<D: Device, R: Runtime> Drop for InUse<'_, D, R> {
    fn drop(&mut self) {
        let mut spare = self.readers.0.lock();
        spare.used -= 1;
        let Some(reader) = self.reader.take() else { return };
        spare.kept.push((std::thread::current().id(), reader));
        let surplus = (spare.kept.len() > KEPT).then(|| spare.kept.remove(0));
        // Not under the lock: a ring is closed.
        drop(spare);
        drop(surplus);
    }
}

/// Brings the pages of many keys into the cache. Where enough others do that at the same time, nothing is
/// done: the keys are read one by one. So are the pages that somebody else reads at the moment.
pub(crate) fn bring<D: Device, R: Runtime>(
    db: &State<D, R>,
    view: &View,
    readers: &SpareReaders<D, R>,
    keys: &[Key],
) -> Result<()> {
    if db.all_is_here() {
        return Ok(());
    }
    let Some(mut used) = readers.take() else { return Ok(()) };
    let mut reader = match used.reader.take() {
        Some(reader) => reader,
        None => PageReader::new(&db.store, db.options.in_flight, Reading::Keys)?,
    };
    let fetched = fetch(db, view, &mut reader, keys);
    if fetched.is_err() {
        // The first error is told; what else is in flight comes back before the reader is used again, or goes.
        while reader.in_flight() > 0 {
            reader.wait(&db.store, &db.nodes, 1)?;
        }
    }
    used.reader = Some(reader);
    fetched
}

fn fetch<D: Device, R: Runtime>(
    db: &State<D, R>,
    view: &View,
    reader: &mut PageReader<D, R, ()>,
    keys: &[Key],
) -> Result<()> {
    let _guard = db.store.enter();
    let batch = db.store.batch();
    let mut asked = HashSet::new();
    for (index, key) in keys.iter().enumerate() {
        if index.is_multiple_of(KEY_BATCH) {
            cpu_prefetch(db, keys[index..].iter().take(KEY_BATCH), Reach::Page);
        }
        if view.overlaid(key).is_some() {
            continue;
        }
        let Found::Page(at) = find(db, key) else { continue };
        if db.store.cache().hold(at.page, at.tag, batch) || !asked.insert(at.page) {
            continue;
        }
        if !reader.has_room() {
            take(db, reader)?;
        }
        // A page that is in flight for somebody else is waited for when its keys are read.
        reader.ask(&db.store, &db.nodes, PageRequest::Leaf(at), ());
    }
    while reader.in_flight() > 0 {
        take(db, reader)?;
    }
    Ok(())
}

/// Waits for one page, and takes in all others that are done.
fn take<D: Device, R: Runtime>(db: &State<D, R>, reader: &mut PageReader<D, R, ()>) -> Result<()> {
    let mut next = reader.wait(&db.store, &db.nodes, 1)?;
    while let Some(((), page)) = next {
        page?;
        next = reader.poll(&db.store, &db.nodes);
    }
    Ok(())
}
