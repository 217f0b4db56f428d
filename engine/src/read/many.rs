//! Reading many keys: the pages that they need are read first, as many at once as the device takes.
//!
//! Nothing is given to the caller but an error: the keys are read one by one afterwards ([`super::point`]),
//! from the cache.

use std::collections::HashSet;
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_core::Key;

use super::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use super::point::locate;
use super::spare::PageReaders;
use crate::error::Result;
use crate::state::State;
use crate::state::pages::in_flight::Reading;
use crate::state::pages::index::PageRef;
use crate::state::pages::reader::{Done, PageReader, PageRequest};
use crate::state::view::View;

/// What pages are brought for.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// The keys' values as of this view.
    Values(&'a View),
    /// Their proof, which needs the page also where the value lies over it.
    Proof,
}

impl For<'_> {
    /// The page that a key needs. The caller has entered the store.
    fn page(self, db: &State, key: &Key) -> Option<PageRef> {
        match self {
            Self::Values(view) if view.overlaid(key).is_some() => None,
            // Whoever reads the key later is told if that undo is gone by then.
            Self::Values(view) if matches!(view.undone(key), Ok(Some(_))) => None,
            Self::Values(_) => locate(db, key).ok(),
            Self::Proof => db.index.locate(key),
        }
    }
}

/// Brings the pages of many keys into the cache. Where enough others do that at the same time, nothing is
/// done: the keys are read one by one. So are the pages that somebody else reads at the moment.
pub(crate) fn bring(
    db: &State,
    readers: &PageReaders,
    purpose: For<'_>,
    keys: &[Key],
) -> Result<()> {
    bring_each(db, readers, purpose, keys, &mut |_, _| {})
}

/// The same, and shows those that were read: the cache may have no room for them beside what the batch has brought
/// before.
pub(crate) fn bring_each(
    db: &State,
    readers: &PageReaders,
    purpose: For<'_>,
    keys: &[Key],
    each: &mut dyn FnMut(PageRef, Arc<CachedPage>),
) -> Result<()> {
    if db.all_is_here() {
        return Ok(());
    }
    let Some(mut used) = readers.take() else { return Ok(()) };
    let reader = used.reader(|| PageReader::new(&db.store, db.options.in_flight, Reading::Keys))?;
    let fetched = fetch(db, purpose, reader, keys, each);
    if fetched.is_err() {
        // The first error is told; what else is in flight comes back before the reader is used again, or goes.
        while reader.in_flight() > 0 {
            reader.wait(&db.store, &db.nodes, 1)?;
        }
    }
    fetched
}

fn fetch(
    db: &State,
    purpose: For<'_>,
    reader: &mut PageReader<()>,
    keys: &[Key],
    each: &mut dyn FnMut(PageRef, Arc<CachedPage>),
) -> Result<()> {
    let _guard = db.store.enter();
    let batch = db.store.batch();
    let mut asked = HashSet::new();
    for (index, key) in keys.iter().enumerate() {
        if index.is_multiple_of(KEY_BATCH) {
            cpu_prefetch(db, keys[index..].iter().take(KEY_BATCH), Reach::Page);
        }
        let Some(at) = purpose.page(db, key) else { continue };
        if db.store.cache.hold(at.page, at.tag, batch) || !asked.insert(at.page) {
            continue;
        }
        if !reader.has_room() {
            take(db, reader, each)?;
        }
        // A page that is in flight for somebody else is waited for when its keys are read.
        reader.ask(&db.store, &db.nodes, PageRequest::Leaf(at), ());
    }
    while reader.in_flight() > 0 {
        take(db, reader, each)?;
    }
    Ok(())
}

/// Waits for one page, and takes in all others that are done.
fn take(
    db: &State,
    reader: &mut PageReader<()>,
    each: &mut dyn FnMut(PageRef, Arc<CachedPage>),
) -> Result<()> {
    let mut next = reader.wait(&db.store, &db.nodes, 1)?;
    while let Some(((), done)) = next {
        if let Done::Leaf(at, page) = done? {
            each(at, page);
        }
        next = reader.poll(&db.store, &db.nodes);
    }
    Ok(())
}
