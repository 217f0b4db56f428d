//! Reading one key: overlays; then its place at present; then undo, for what later commits have replaced; and only if
//! there is none, the page.
//!
//! The present is looked up before undo, so a commit that comes in between has its undo there when undo is looked up.
//! And the result stays true: pages are not overwritten in place, and the guard keeps their numbers.

use pleach_beatree::grace::GraceGuard;
use pleach_beatree::tree::KeyPlace;
use pleach_beatree::{PageRef, Stored, Value};
use pleach_core::Key;

use crate::error::Result;
use crate::state::NamespaceDb;
use crate::state::values;
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
    values::value(db, view.base, stored(db, view, key)?, true)
}

/// The state of a key as of a view; a long value is not read.
pub(crate) fn stored(db: &NamespaceDb, view: &View, key: &Key) -> Result<Stored> {
    match look_up(db, view, key)? {
        PointLookup::Stored(stored) => Ok(stored),
        PointLookup::InPage(at, _guard) => Ok(db.store.page(at)?.stored(key)),
    }
}

/// [`stored`] without reading a leaf page.
#[inline]
pub(crate) fn look_up<'a>(db: &'a NamespaceDb, view: &View, key: &Key) -> Result<PointLookup<'a>> {
    if let Some(stored) = view.overlay_value(key) {
        return Ok(PointLookup::Stored(stored));
    }
    let guard = db.store.grace.enter();
    let place = db.tree.place_of(key);
    if let Some(stored) = view.undo_value(key)? {
        return Ok(PointLookup::Stored(stored));
    }
    Ok(match place {
        KeyPlace::Memory(stored) => PointLookup::Stored(stored),
        KeyPlace::Page(at) => match db.store.cached_state(at, key) {
            Some(stored) => PointLookup::Stored(stored),
            None => PointLookup::InPage(at, guard),
        },
    })
}
