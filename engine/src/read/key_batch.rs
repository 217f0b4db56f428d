//! Looking up many keys: the memory that one lookup waits for is asked for while others go on.
//!
//! A lookup reads cold memory five times in a row: region, cuts, the cache's table, its entry, the
//! page. One after the other that takes longer than all else. Here each step is taken for a whole
//! group before the next one, so that the waits of a group overlap. Nothing is taken from these
//! looks: whoever comes after them looks again, and finds its memory near.

use pleach_beatree::cache::LookupStep;
use pleach_core::Key;
use pleach_io::{Device, Runtime};

use crate::state::State;

/// Keys that are looked up together.
pub(crate) const KEY_BATCH: usize = 32;

/// Pages ahead of the one that is worked on, whose memory is asked for.
pub(crate) const PAGES_AHEAD: usize = 4;

/// How far a lookup goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To the place of its page, and whether that is cached.
    Page,
    /// To its cell in a cached page.
    Cell,
    /// To what a fold of its page reads of its region, and no further.
    Region,
    /// To all that a fold of its page and its region reads.
    Fold,
}

/// Asks for the memory that lookups of up to [`KEY_BATCH`] keys read. The caller holds a grace guard.
pub(crate) fn cpu_prefetch<'a, D: Device, R: Runtime>(
    db: &State<D, R>,
    keys: impl Iterator<Item = &'a Key> + Clone,
    reach: Reach,
) {
    let top = db.index.load();
    for key in keys.clone() {
        top.region(key).cpu_prefetch();
    }
    for key in keys.clone() {
        top.region(key).read().cpu_prefetch(key);
    }
    let mut places = [None; KEY_BATCH];
    for (key, place) in keys.clone().zip(&mut places) {
        let state = top.region(key).read();
        *place = state.children().page(state.children().find(key));
        if matches!(reach, Reach::Fold | Reach::Region) {
            state.cpu_prefetch_fold(key);
        }
        if let Some(place) = place.filter(|_| reach != Reach::Region) {
            db.store.cache().cpu_prefetch(place, LookupStep::Table);
        }
    }
    if matches!(reach, Reach::Page | Reach::Region) {
        return;
    }
    for place in places.into_iter().flatten() {
        db.store.cache().cpu_prefetch(place, LookupStep::Entry);
    }
    for (key, place) in keys.zip(places) {
        if let Some(place) = place {
            db.store.cache().cpu_prefetch(place, LookupStep::Page(key));
        }
    }
}
