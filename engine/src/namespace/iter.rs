//! Iterators over the pairs of a session's state.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::RangeBounds;
use std::sync::Arc;

use pleach_beatree::{Stored, Value};
use pleach_core::Key;
use pleach_io::ProcessBound;

use super::Namespace;
use crate::error::Result;
use crate::handles::{CountedHandle, HandleKind};
use crate::read::scan::{Direction, Scan, long_value};

/// The pairs of a range, in key order from the front and against it from the back, made by
/// [`Namespace::iter`](crate::Namespace::iter).
///
/// After an error the iterator is at its end, from both sides: all pairs before the failure were given, and none after
/// it, so that no gap goes unnoticed. Another iterator can go on behind the last key that was given.
///
/// It owns its state: it may go to another thread, and outlive the session. [`Db::close`](crate::Db::close) reports it
/// as an open handle.
pub struct Iter {
    scan: ProcessBound<Scan>,
    namespace: Namespace,
    _counted: CountedHandle,
}

impl Iter {
    /// An iterator, counted as a handle of its own.
    pub(super) fn new(namespace: &Namespace, range: &impl RangeBounds<Key>) -> Self {
        let engine = &namespace.0.engine;
        Self {
            scan: ProcessBound::new(Scan::new(&engine.scanners, range)),
            namespace: Namespace(Arc::clone(&namespace.0)),
            _counted: engine.count_handle(HandleKind::Iterator),
        }
    }

    /// Goes to another range, which need not lie in the first one: the next pairs are those of a new iterator over this
    /// range, for less. So `seek(key..)` and [`Iterator::next`] give the first pair from a key on, and `seek(..key)`
    /// and [`DoubleEndedIterator::next_back`] the last pair before it.
    pub fn seek(&mut self, range: impl RangeBounds<Key>) {
        self.scan.seek(&range);
    }

    /// The next pair, from the page or with its value read.
    fn next_stored(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let (db, view) = (self.namespace.db(), self.namespace.view());
        let (key, stored) = match self.scan.next(db, view, direction)? {
            Ok((key, Stored::Inline(value))) => return Some(Ok((key, value))),
            Ok(pair) => pair,
            Err(error) => return Some(Err(error)),
        };
        let value = long_value(db, view, &key, stored).inspect_err(|_| self.scan.stop());
        Some(value.map(|value| (key, value.expect("a scan gives what is present"))))
    }
}

impl Iterator for Iter {
    type Item = Result<(Key, Value)>;

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        // Nearly all pairs are made here, inlined, in the caller's memory. Otherwise they are made elsewhere and moved.
        if let Some((page, cell, value)) = self.scan.next_inline(Direction::Forwards) {
            return Some(Ok((page.key(cell), Value::from(value))));
        }
        self.next_stored(Direction::Forwards)
    }
}

impl DoubleEndedIterator for Iter {
    #[inline(never)]
    fn next_back(&mut self) -> Option<Self::Item> {
        if let Some((page, cell, value)) = self.scan.next_inline(Direction::Backwards) {
            return Some(Ok((page.key(cell), Value::from(value))));
        }
        self.next_stored(Direction::Backwards)
    }
}

impl FusedIterator for Iter {}

impl fmt::Debug for Iter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}
