//! Reading one key: overlays; where the present has it; then whether later commits have replaced it, and only if
//! none has, the page.
//!
//! What the present has is found before undo is asked, so a commit that comes in between has its undo there when it is
//! asked. And what was found stays true: pages are not written where they lie, and the guard keeps their numbers.

use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::{Stored, Value};
use pleach_core::Key;

use crate::error::Result;
use crate::state::State;
use crate::state::pages::index::{PageRef, located};
use crate::state::pages::overflow;
use crate::state::view::View;

/// Where the value of a key is.
pub(super) enum Source {
    /// Among the pending changes.
    Pending(Stored),
    /// In this page, if it is there at all.
    Page(PageRef),
    /// There is no page for it.
    Nothing,
}

/// The value of a key as of a view. A page that is not cached is read on the calling thread.
pub(crate) fn value(db: &State, view: &View, key: &Key) -> Result<Option<Value>> {
    overflow::value(db, view.base, stored(db, view, key)?, true)
}

/// The state of a key as of a view; a long value is not read.
pub(crate) fn stored(db: &State, view: &View, key: &Key) -> Result<Stored> {
    stored_with(db, view, key, |at| db.store.leaf(at))
}

/// The same by a caller who says where a page that is not cached comes from.
pub(crate) fn stored_with(
    db: &State,
    view: &View,
    key: &Key,
    page: impl FnOnce(PageRef) -> Result<Arc<CachedPage>>,
) -> Result<Stored> {
    if let Some(stored) = view.overlaid(key) {
        return Ok(stored);
    }
    let _guard = db.store.enter();
    let found = find(db, key);
    if let Some(stored) = view.undone(key)? {
        return Ok(stored);
    }
    match found {
        Source::Pending(stored) => Ok(stored),
        Source::Nothing => Ok(Stored::Absent),
        Source::Page(at) => {
            let find = |page: &CachedPage| page.get(key).map_or(Stored::Absent, Stored::from_cell);
            match db.store.read_cached(at, key, find) {
                Some(stored) => Ok(stored),
                None => Ok(find(&*page(at)?)),
            }
        }
    }
}

/// Looks a key up in the index. The caller has entered the store.
pub(super) fn find(db: &State, key: &Key) -> Source {
    db.index.in_region(key, |_, state| match state.pending_of(key) {
        Some(pending) => Source::Pending(pending.stored.clone()),
        None => located(state, state.children().find(key)).map_or(Source::Nothing, Source::Page),
    })
}
