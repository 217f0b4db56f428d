//! Reading one key: overlays; then its place at present; then undo, for what later commits have replaced; and only if
//! there is none, the page.
//!
//! The present is looked up before undo, so a commit that comes in between has its undo there when undo is looked up.
//! And the result stays true: pages are not overwritten in place, and the guard keeps their numbers.

use pleach_beatree::cache::CachedPage;
use pleach_beatree::grace::GraceGuard;
use pleach_beatree::{Stored, Value};
use pleach_core::Key;

use crate::error::Result;
use crate::state::NamespaceDb;
use crate::state::pages::index::{PageRef, child_page};
use crate::state::pages::overflow;
use crate::state::view::View;

/// The result of a lookup of a key.
pub(crate) enum PointLookup<'a> {
    /// The key's state.
    Stored(Stored),
    /// The page that has the key, if it exists at all. The page is not cached; the guard keeps its number.
    InPage(PageRef, GraceGuard<'a>),
}

/// The value of a key as of a view. A page that is not cached is read on the calling thread.
pub(crate) fn value(db: &NamespaceDb, view: &View, key: &Key) -> Result<Option<Value>> {
    overflow::value(db, view.base, stored(db, view, key)?, true)
}

/// The state of a key as of a view; a long value is not read.
pub(crate) fn stored(db: &NamespaceDb, view: &View, key: &Key) -> Result<Stored> {
    match look_up(db, view, key)? {
        PointLookup::Stored(stored) => Ok(stored),
        PointLookup::InPage(at, _guard) => Ok(stored_in_page(&*db.store.leaf(at)?, key)),
    }
}

/// [`stored`] without reading a leaf page.
#[inline]
pub(crate) fn look_up<'a>(db: &'a NamespaceDb, view: &View, key: &Key) -> Result<PointLookup<'a>> {
    if let Some(stored) = view.overlay_value(key) {
        return Ok(PointLookup::Stored(stored));
    }
    let guard = db.store.grace_guard();
    let located = locate(db, key);
    if let Some(stored) = view.undo_value(key)? {
        return Ok(PointLookup::Stored(stored));
    }
    Ok(match located {
        Err(stored) => PointLookup::Stored(stored),
        Ok(at) => match db.store.read_cached(at, key, |page| stored_in_page(page, key)) {
            Some(stored) => PointLookup::Stored(stored),
            None => PointLookup::InPage(at, guard),
        },
    })
}

/// The state of a key in the page that a lookup has found.
#[inline]
pub(crate) fn stored_in_page(page: &CachedPage, key: &Key) -> Stored {
    page.get(key).map_or(Stored::Absent, Stored::from_cell)
}

/// The page that has a key at present, if it exists at all; or the key's state where no page is needed. The caller
/// holds a grace guard.
pub(super) fn locate(db: &NamespaceDb, key: &Key) -> Result<PageRef, Stored> {
    db.index.with_region(key, |_, state| match state.buffered_change(key) {
        Some(buffered) => Err(buffered.stored.clone()),
        None => child_page(state, state.children().find(key)).ok_or(Stored::Absent),
    })
}
