//! Values too long for a page, as commits name them and sessions read them. One that was read by its key stays in memory
//! ([`pleach_beatree::pages::LongValues`]).

use std::sync::Arc;

use pleach_beatree::pages::{LongValueId, TentativeExtents, overflow};
use pleach_beatree::stored::LongValue;
use pleach_beatree::{Stored, Value};
use pleach_core::page::stream;
use pleach_io::PageBuf;

use super::NamespaceDb;
use crate::error::{Error, Result};
use crate::metrics::Counters;

/// Writes a value (unsynced) and returns the cell that names it.
pub(crate) fn write(
    db: &NamespaceDb,
    tentative: &mut TentativeExtents<'_>,
    large: &LongValue,
    flush: u64,
) -> Result<Arc<[u8]>> {
    let pages = large.bytes.len().div_ceil(stream::PAYLOAD);
    let extents = db.space.allocate_overflow(pages, tentative)?;
    let (file, namespace) = (&db.space.overflow, db.namespace);
    overflow::write(&db.store, file, &extents, large, namespace, flush).map_err(|error| {
        match error.into() {
            // A file system that copies on writing may have no room. Nothing names the extents yet: they are freed.
            full @ Error::Full(_) => full,
            error => {
                db.poison(&error);
                error.to_poisoned()
            }
        }
    })
}

/// The value of a stored state, which was found in a state of commit `base`. Its extents may be freed and written again
/// once that commit cannot be read any more. With `keep` the value stays in memory.
pub(crate) fn value(
    db: &NamespaceDb,
    base: u64,
    stored: Stored,
    keep: bool,
) -> Result<Option<Value>> {
    match stored {
        Stored::Absent => Ok(None),
        Stored::Inline(value) => Ok(Some(value)),
        Stored::Long(large) => Ok(Some(large.bytes.clone())),
        Stored::Overflow(raw) => {
            db.home.check_current()?;
            if let Some(value) = db.long_values.get(&LongValueId::of(&raw)) {
                return Ok(Some(value));
            }
            let pieces = overflow::read_pieces(&db.store.device, &db.space.overflow, &raw);
            value_of_pieces(db, base, &raw, keep, pieces)
        }
    }
}

/// As [`value`], from the pieces of a value that is not in memory.
pub(crate) fn value_of_pieces(
    db: &NamespaceDb,
    base: u64,
    raw: &[u8],
    keep: bool,
    pieces: impl Iterator<Item = pleach_beatree::Result<PageBuf>>,
) -> Result<Option<Value>> {
    Counters::add(&db.counters.long_values_read, 1);
    let value = overflow::assemble_value(db.hasher, db.store.database, raw, pieces)
        .or_else(|error| db.commits.undo.check_readable(base).and(Err(error.into())))?;
    if keep && db.long_values.insert(LongValueId::of(raw), &value) {
        db.fit_cache();
    }
    Ok(Some(value))
}

/// The cell of a value that must be read from the device.
pub(crate) fn unread_cell<'a>(db: &NamespaceDb, stored: &'a Stored) -> Option<&'a [u8]> {
    let Stored::Overflow(raw) = stored else { return None };
    db.long_values.get(&LongValueId::of(raw)).is_none().then_some(raw)
}
