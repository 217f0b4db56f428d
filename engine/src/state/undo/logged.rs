//! Undo that is not in memory any more, read back from the log.
//!
//! Undo of the commits of a stretch, in maps of its own, which never change. A view that has some of these, one after the
//! other, looks there first, since their commits are older than those in memory, and in memory for what came after them.
//! When memory has moved on another stretch is read, for a new view of the same state: what a view has never changes, so
//! that [`Undo::check`] after a lookup says whether the lookup missed anything. Views of commits of one stretch share it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;
use pleach_beatree::{Stored, Value};
use pleach_core::Hasher;
use pleach_core::page::overflow::OverflowCell;

use super::{ReplacedNodes, Restored, Undo};
use crate::error::{Contradiction, Result};
use crate::format::bytes::BodyError;
use crate::format::commit_body::{NamespaceView, Replaced, Value as LogValue};
use crate::format::position::LogPos;
use crate::format::record::Header;
use crate::state::undo_maps::{AllMaps, Maps};

/// The undo of some commits, read from their records.
pub(crate) struct LoggedUndo {
    stretch: Stretch,
    maps: AllMaps,
    /// Its bytes, counted among those of all.
    bytes: u64,
    all_bytes: Arc<AtomicU64>,
}

impl Drop for LoggedUndo {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Commits whose undo is to be read back: those after one through another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) after: u64,
    pub(crate) through: u64,
    /// Where the first record begins.
    pub(crate) start: LogPos,
}

impl LoggedUndo {
    /// What it has of a namespace.
    pub(in crate::state) fn of(&self, namespace: u8) -> Option<&Maps> {
        self.maps.get(namespace)
    }

    /// The last of its commits.
    pub(in crate::state) fn through(&self) -> u64 {
        self.stretch.through
    }
}

/// Reading back: one at a time.
pub(crate) struct ReadingBack<'a> {
    undo: &'a Undo,
    last: MutexGuard<'a, Weak<LoggedUndo>>,
}

impl Undo {
    /// Begins to read undo back, when nobody else does.
    pub(crate) fn reading_back(&self) -> ReadingBack<'_> {
        ReadingBack { undo: self, last: self.logged.lock() }
    }
}

impl ReadingBack<'_> {
    /// What was read last, if it has the undo after commit `after`, and ends where memory begins, or later.
    pub(in crate::state) fn last(&self, after: u64) -> Option<Arc<LoggedUndo>> {
        let last = self.last.upgrade()?;
        let fits = (last.stretch.after..=last.stretch.through).contains(&after);
        (fits && self.undo.is_in_memory_after(last.stretch.through)).then_some(last)
    }

    /// The commits after `after` that are to be read, so that a view of the commit `base` has all undo: some more than has
    /// to be, so that commits which come meanwhile do not drop from memory what follows.
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub(in crate::state) fn stretch(&self, base: u64, after: u64) -> Result<Stretch> {
        let guarded = self.undo.guarded.lock();
        let (from, dropped) = (guarded.window.from(), guarded.window.dropped());
        let through = dropped + (self.undo.newest() - dropped) / 2;
        let start = guarded.window.start(after + 1);
        drop(guarded);
        match start {
            Some(start) if from <= base && after < through => Ok(Stretch { after, through, start }),
            _ => Err(self.undo.too_old(base)),
        }
    }

    /// Keeps what was read of a stretch for others.
    pub(in crate::state) fn keep(&mut self, stretch: Stretch, maps: AllMaps) -> Arc<LoggedUndo> {
        let (bytes, all_bytes) = (maps.bytes(), Arc::clone(&self.undo.logged_bytes));
        all_bytes.fetch_add(bytes, Ordering::Relaxed);
        let read = Arc::new(LoggedUndo { stretch, maps, bytes, all_bytes });
        *self.last = Arc::downgrade(&read);
        read
    }
}

/// What a commit replaced in a namespace, as its record has it.
pub(crate) fn restored<H: Hasher>(
    namespace: &NamespaceView<'_>,
    header: &Header,
) -> Result<Restored> {
    let bad = |error| Contradiction::Record { position: header.position, error };
    let mut undo = namespace.undo();
    let mut values = Vec::with_capacity(namespace.change_bound());
    let mut nodes = ReplacedNodes::default();
    for change in namespace.changes() {
        let (key, _) = change.map_err(bad)?;
        let Some(Replaced::Value(value)) = undo.next().transpose().map_err(bad)? else {
            return Err(bad(BodyError::Truncated).into());
        };
        values.push((*key, stored::<H>(header.number, value)?));
    }
    for node in namespace.nodes() {
        let (prefix, _) = node.map_err(bad)?;
        let Some(Replaced::Node(before)) = undo.next().transpose().map_err(bad)? else {
            return Err(bad(BodyError::Truncated).into());
        };
        nodes.pages.push((prefix, *before));
    }
    for region in undo {
        let Replaced::Region(prefix, before) = region.map_err(bad)? else {
            return Err(bad(BodyError::Trailing).into());
        };
        nodes.regions.push((prefix, *before));
    }
    Ok(Restored { namespace: namespace.ns, values, nodes })
}

/// A value as the log has it.
pub(crate) fn stored<H: Hasher>(commit: u64, value: LogValue<'_>) -> Result<Stored> {
    Ok(match value {
        LogValue::Absent => Stored::Absent,
        LogValue::Inline(bytes) => Stored::put::<H>(Value::from(bytes)),
        LogValue::Overflow(cell) => {
            OverflowCell::parse(cell)
                .map_err(|error| Contradiction::OverflowCell { commit, error })?;
            Stored::Overflow(cell.into())
        }
    })
}
