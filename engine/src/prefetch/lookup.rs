//! Looking announced keys up, a key batch at a time, by the prefetch task or by a reader that is ahead of
//! it.

use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::cache::{CachedPage, LookupStep};
use pleach_beatree::region::{NodePage, Nodes};
use pleach_core::Key;
use pleach_core::page::leaf::Cell;
use pleach_io::{Device, Runtime};

use super::requests::{Announced, Arrived, Prefetching, Purpose, Request};
use super::values::{SlotPair, ValueCache};
use crate::read::group::GROUP;
use crate::state::State;
use crate::state::index::{Located, located};
use crate::state::reader::PageRequest;

/// How far the lookup of a key has come.
#[derive(Default)]
struct Found {
    /// Where its value goes.
    pair: SlotPair,
    /// Where its page is.
    at: Option<Located>,
    /// The last commit that changed its page.
    as_of: u64,
    /// Does the page have the value?
    has_value: bool,
    page: Option<Arc<CachedPage>>,
    /// The cell that is probably its.
    cell: Option<usize>,
}

/// Looks up the next batch of announced keys, on a reader's thread. False when there is none
/// left. The caller has entered the store.
pub(crate) fn help<D: Device, R: Runtime>(
    db: &State<D, R>,
    prefetching: &Prefetching<R>,
    announced: &Announced,
) -> bool {
    let Some(group) = announced.claim() else { return false };
    let mut missing = false;
    // To see what is known of a page's nodes is not worth the reader's time.
    look_up(db, prefetching, announced, group, false, &mut None, &mut |request| {
        missing = true;
        prefetching.miss(request);
    });
    if missing {
        prefetching.wake();
    }
    true
}

/// Looks up a batch of keys: values at hand go to the value cache, what is not here is given to
/// `missing`. With `folds_cached` pages that are here and of which nothing is known are folded
/// ahead. `last` are the nodes that were missing last.
///
/// Each step is taken for the whole batch, and asks for the memory that the next one reads.
pub(super) fn look_up<D: Device, R: Runtime>(
    db: &State<D, R>,
    prefetching: &Prefetching<R>,
    announced: &Announced,
    group: &[Key],
    folds_cached: bool,
    last: &mut Option<NodePage>,
    missing: &mut impl FnMut(Request),
) {
    let (base, folds) = (announced.base(), announced.folds());
    let (values, cache) = (prefetching.values(), db.store.cache());
    let mut found: [Found; GROUP] = std::array::from_fn(|_| Found::default());
    {
        let top = db.index.load();
        for (key, found) in group.iter().zip(&mut found) {
            found.pair = values.pair(key);
            values.ask_ahead(found.pair);
            top.region(key).cpu_prefetch();
        }
        for key in group {
            top.region(key).read().cpu_prefetch(key);
        }
    }
    for (key, found) in group.iter().zip(&mut found) {
        find(db, values, base, key, folds_cached, found, last, missing);
        if let Some(at) = &found.at {
            cache.cpu_prefetch(at.page, LookupStep::Table);
        }
    }
    for step in [LookupStep::Entry, LookupStep::Front] {
        let places = found.iter().filter_map(|found| found.at.as_ref());
        places.for_each(|at| cache.cpu_prefetch(at.page, step));
    }
    let batch = db.store.batch();
    for (key, found) in group.iter().zip(&mut found) {
        let Some(at) = found.at.take() else { continue };
        found.page = cache.get_in(at.page, at.tag, batch);
        let Some(page) = &found.page else {
            let value_as_of = found.has_value.then_some(base);
            let purpose = Purpose::Key { key: *key, value_as_of, folds };
            missing(Request { wanted: PageRequest::Leaf(at), purpose });
            continue;
        };
        if found.has_value {
            found.cell = page.cpu_prefetch_cell(key);
        }
        if folds_cached && folds && !page.knows(found.as_of) {
            let arrived = Arrived { page: Arc::clone(page), at, key: *key };
            prefetching.arrivals().push(db.pace.foreground(), arrived);
        }
    }
    for (key, found) in group.iter().zip(&found) {
        if let Some(page) = found.page.as_ref().filter(|_| found.has_value) {
            keep_cell(values, found.pair, base, key, page.get_near(key, found.cell));
        }
    }
}

/// The first half of a lookup: in the index and among the pending changes.
#[expect(clippy::too_many_arguments, reason = "one step of `look_up`, with what that has at hand")]
fn find<D: Device, R: Runtime>(
    db: &State<D, R>,
    values: &ValueCache,
    base: u64,
    key: &Key,
    folds_cached: bool,
    found: &mut Found,
    last: &mut Option<NodePage>,
    missing: &mut impl FnMut(Request),
) {
    let mut nodes = None;
    db.index.in_region(key, |region, state| {
        if let Nodes::Paged(place) = state.nodes()
            && *last != Some(*place)
        {
            nodes = Some((Arc::clone(region), *place));
        }
        let child = state.children().find(key);
        if folds_cached {
            found.as_of = state.changed_at(child);
        }
        found.at = located(state, child);
        // Only what the session's commit left is a value of it.
        let same = state.last_commit() <= base;
        match (state.pending_of(key), &found.at) {
            (Some(pending), _) if same => keep(values, found.pair, base, key, &pending.stored),
            (None, None) if same => values.put(found.pair, base, key, None),
            (pending, _) => found.has_value = same && pending.is_none(),
        }
    });
    if let Some((region, place)) = nodes {
        *last = Some(place);
        missing(Request { wanted: PageRequest::Nodes(region, place), purpose: Purpose::Nodes });
    }
}

/// Keeps what a page says of a key that has no newer change.
pub(super) fn keep_cell(
    values: &ValueCache,
    pair: SlotPair,
    base: u64,
    key: &Key,
    cell: Option<Cell<'_>>,
) {
    match cell {
        None => values.put(pair, base, key, None),
        Some(Cell::Inline(value)) => values.put(pair, base, key, Some(value)),
        Some(Cell::Overflow(_)) => {}
    }
}

fn keep(values: &ValueCache, pair: SlotPair, base: u64, key: &Key, stored: &Stored) {
    match stored {
        Stored::Absent => values.put(pair, base, key, None),
        Stored::Inline(value) => values.put(pair, base, key, Some(value)),
        Stored::Large(_) | Stored::Overflow(_) => {}
    }
}
