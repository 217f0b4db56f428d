//! Lookups of the keys of prefetch requests, a key batch at a time, in the trie of the request's namespace.
//!
//! Called by the prefetch task, and by readers that need a key before the task has looked it up. Nothing is read from
//! the device here: the caller gets the missing pages.

use std::sync::Arc;

use pleach_beatree::cache::{CachedPage, LookupStep};
use pleach_beatree::tree::KEY_BATCH;
use pleach_beatree::{PageRef, Stored};
use pleach_core::Key;
use pleach_core::page::leaf::Cell;

use super::requests::{MissingItem, PageRequestPurpose, PrefetchRequest, PrefetchState};
use super::value_cache::{SlotPair, ValueCache};
use crate::state::NamespaceDb;
use crate::state::view::View;

/// The progress of a key's lookup.
#[derive(Default)]
struct KeyLookup {
    /// The value cache's slots for the key.
    pair: SlotPair,
    /// The place of the key's page.
    at: Option<PageRef>,
    /// True when the page has the value.
    has_value: bool,
    page: Option<Arc<CachedPage>>,
    /// The cell that probably has the key.
    cell: Option<usize>,
}

/// Looks up the next key batch of a request on a reader's thread, without keys in overlays, which the reader finds
/// there. False when no batch is left. The caller holds a grace guard.
pub(crate) fn look_up_for_reader(
    db: &NamespaceDb,
    prefetch: &PrefetchState,
    view: &View,
    request: &PrefetchRequest,
) -> bool {
    let Some(keys) = request.claim() else { return false };
    let mut below = [Key::default(); KEY_BATCH];
    let mut count = 0;
    for key in keys.iter().filter(|key| view.overlay_value(key).is_none()) {
        below[count] = *key;
        count += 1;
    }
    let mut missed = |missing| prefetch.push_missing(missing);
    look_up(db, prefetch, request, &below[..count], &mut missed);
    true
}

/// Looks up a key batch: puts values from memory into the value cache, and passes pages that are not cached to
/// `missing`.
///
/// Each step is taken for the whole batch, and prefetches the memory that the next one reads.
pub(super) fn look_up(
    db: &NamespaceDb,
    prefetch: &PrefetchState,
    request: &PrefetchRequest,
    keys: &[Key],
    missing: &mut impl FnMut(MissingItem),
) {
    let (namespace, base) = (request.namespace, request.base);
    debug_assert_eq!(namespace, db.namespace, "keys are looked up in their trie");
    let (values, cache) = (&prefetch.values, &db.store.cache);
    let mut found: [KeyLookup; KEY_BATCH] = std::array::from_fn(|_| KeyLookup::default());
    {
        let regions = db.tree.load();
        for (key, found) in keys.iter().zip(&mut found) {
            found.pair = values.slots_of(namespace, base, key);
            values.cpu_prefetch(found.pair);
            regions.region(key).cpu_prefetch();
        }
        for key in keys {
            regions.region(key).read().cpu_prefetch(key);
        }
    }
    for (key, found) in keys.iter().zip(&mut found) {
        look_up_in_index(db, values, base, key, found);
        if let Some(at) = &found.at {
            cache.cpu_prefetch(at.page, LookupStep::Table);
        }
    }
    for step in [LookupStep::Entry, LookupStep::Front] {
        let pages = found.iter().filter_map(|found| found.at.as_ref());
        pages.for_each(|at| cache.cpu_prefetch(at.page, step));
    }
    // One batch longer, since the batch under way may be finished before they are read.
    let until = db.store.cache.batch() + 1;
    for (key, found) in keys.iter().zip(&mut found) {
        let Some(at) = found.at.take() else { continue };
        found.page = cache.get_for_batch(at.page, at.tag, until);
        let Some(page) = &found.page else {
            let value_as_of = found.has_value.then_some(base);
            let purpose = PageRequestPurpose::Key { namespace, key: *key, value_as_of };
            missing(MissingItem::Page(at, purpose));
            continue;
        };
        if found.has_value {
            found.cell = page.cpu_prefetch_cell(key);
        }
    }
    for (key, found) in keys.iter().zip(&found) {
        if let Some(page) = found.page.as_ref().filter(|_| found.has_value) {
            cache_cell(values, found.pair, key, page.get_near(key, found.cell));
        }
    }
}

/// The first half of a lookup: in the index and in the buffered changes.
fn look_up_in_index(
    db: &NamespaceDb,
    values: &ValueCache,
    base: u64,
    key: &Key,
    found: &mut KeyLookup,
) {
    db.tree.with_region(key, |_, state| {
        let child = state.children().find(key);
        found.at = state.page_ref(child);
        // No later commit has changed the region, so this is the value as of the session's commit.
        let same = state.last_commit() <= base;
        match (state.buffered_change(key), &found.at) {
            (Some(buffered), _) if same => {
                cache_stored(values, found.pair, key, &buffered.stored);
            }
            (None, None) if same => values.put(found.pair, key, None),
            (buffered, _) => found.has_value = same && buffered.is_none(),
        }
    });
}

/// Keeps the value of a key as its page has it; the key has no buffered change.
pub(super) fn cache_cell(values: &ValueCache, pair: SlotPair, key: &Key, cell: Option<Cell<'_>>) {
    match cell {
        None => values.put(pair, key, None),
        Some(Cell::Inline(value)) => values.put(pair, key, Some(value)),
        Some(Cell::Overflow(_)) => {}
    }
}

fn cache_stored(values: &ValueCache, pair: SlotPair, key: &Key, stored: &Stored) {
    match stored {
        Stored::Absent => values.put(pair, key, None),
        Stored::Inline(value) => values.put(pair, key, Some(value)),
        Stored::Long(_) | Stored::Overflow(_) => {}
    }
}
