//! Reading many keys: their pages are read into the cache first, as many at once as the device takes.
//!
//! The caller gets nothing but an error: the keys are read one by one afterwards ([`super::point`]), from the cache.

use std::collections::HashSet;
use std::sync::Arc;

use pleach_beatree::PageRef;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::pages::{LoadedPage, PageReader, PageReaderPool, ReadMode};
use pleach_beatree::tree::KeyPlace;
use pleach_beatree::tree::{KEY_BATCH, LookupDepth};
use pleach_core::Key;

use crate::error::Result;
use crate::state::NamespaceDb;
use crate::state::view::View;

/// The purpose for which pages are read.
#[derive(Clone, Copy)]
pub(crate) enum FetchPurpose<'a> {
    /// The keys' values as of this view.
    Values(&'a View),
    /// A proof of the keys, which needs the page also where a value lies over it.
    Proof,
}

impl FetchPurpose<'_> {
    /// The page that a key needs. The caller holds a grace guard.
    fn page(self, db: &NamespaceDb, key: &Key) -> Option<PageRef> {
        match self {
            Self::Values(view) if view.overlay_value(key).is_some() => None,
            // A later read of the key gets the error if that undo is discarded by then.
            Self::Values(view) if matches!(view.undo_value(key), Ok(Some(_))) => None,
            Self::Values(_) => match db.tree.place_of(key) {
                KeyPlace::Page(at) => Some(at),
                KeyPlace::Memory(_) => None,
            },
            Self::Proof => db.tree.page_of(key),
        }
    }
}

/// Reads the pages of many keys into the cache. Does nothing where enough threads do so at the same time: the keys are
/// read one by one. So are pages that another thread is reading.
pub(crate) fn fetch_pages(
    db: &NamespaceDb,
    readers: &PageReaderPool,
    purpose: FetchPurpose<'_>,
    keys: &[Key],
) -> Result<()> {
    fetch_pages_with(db, readers, purpose, keys, &mut |_, _| {})
}

/// [`fetch_pages`] that shows each page as it is read: the cache may have no room for it beside the batch's earlier
/// pages.
pub(crate) fn fetch_pages_with(
    db: &NamespaceDb,
    readers: &PageReaderPool,
    purpose: FetchPurpose<'_>,
    keys: &[Key],
    each: &mut dyn FnMut(PageRef, Arc<CachedPage>),
) -> Result<()> {
    if db.is_all_cached() {
        return Ok(());
    }
    let Some(mut used) = readers.take() else { return Ok(()) };
    let reader =
        used.get_or_make(|| PageReader::new(&db.store, db.options.in_flight, ReadMode::Keys))?;
    let fetched = fetch_with_reader(db, purpose, reader, keys, each);
    if fetched.is_err() {
        // The first error is returned; the other requests arrive before the reader is used again, or is discarded.
        while reader.in_flight() > 0 {
            reader.wait(&db.store, 1)?;
        }
    }
    fetched
}

fn fetch_with_reader(
    db: &NamespaceDb,
    purpose: FetchPurpose<'_>,
    reader: &mut PageReader<()>,
    keys: &[Key],
    each: &mut dyn FnMut(PageRef, Arc<CachedPage>),
) -> Result<()> {
    let _guard = db.store.grace.enter();
    let batch = db.store.cache.batch();
    let mut asked = HashSet::new();
    // Waits for one page, and completes all others that have arrived.
    let mut complete = |reader: &mut PageReader<()>| -> Result<()> {
        let mut next = reader.wait(&db.store, 1)?;
        while let Some(((), done)) = next {
            let LoadedPage { at, page } = done?;
            each(at, page);
            next = reader.poll(&db.store);
        }
        Ok(())
    };
    for (index, key) in keys.iter().enumerate() {
        if index.is_multiple_of(KEY_BATCH) {
            db.tree.cpu_prefetch(keys[index..].iter().take(KEY_BATCH), LookupDepth::Page);
        }
        let Some(at) = purpose.page(db, key) else { continue };
        if db.store.cache.hold(at.page, at.tag, batch) || !asked.insert(at.page) {
            continue;
        }
        if !reader.has_room() {
            complete(reader)?;
        }
        // A page that is in flight for another thread is waited for when its keys are read.
        reader.enqueue(&db.store, at, ());
    }
    while reader.in_flight() > 0 {
        complete(reader)?;
    }
    Ok(())
}
