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
use crate::read::scan::{Direction, Scan, StoredRef, long_value};

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

    /// Gives the pairs that are left to a function, in key order, until it returns false: as [`Iterator::next`], without
    /// a copy of a value. The pair for which it returns false counts as given.
    ///
    /// # Errors
    /// As an item of the iterator, which is then at its end.
    pub fn for_each_pair(&mut self, mut each: impl FnMut(&Key, &[u8]) -> bool) -> Result<()> {
        loop {
            while let Some((key, value)) = self.scan.next_clean(Direction::Forwards) {
                if !each(&key, value) {
                    return Ok(());
                }
            }
            let (db, view) = (self.namespace.db(), self.namespace.view());
            let next = self.scan.next(db, view, Direction::Forwards).transpose()?;
            let goes_on = match next {
                None => return Ok(()),
                Some((key, StoredRef::InPage(value))) => each(&key, value),
                Some((key, StoredRef::Short(value))) => each(&key, value),
                Some((key, StoredRef::Long(stored))) => each(&key, &self.read_long(&key, stored)?),
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// The next pair, from the page or with its value read.
    fn next_stored(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let (db, view) = (self.namespace.db(), self.namespace.view());
        let (key, stored) = match self.scan.next(db, view, direction)? {
            Ok((key, StoredRef::InPage(value))) => return Some(Ok((key, Value::from(value)))),
            Ok((key, StoredRef::Short(value))) => return Some(Ok((key, value.clone()))),
            Ok((key, StoredRef::Long(stored))) => (key, stored),
            Err(error) => return Some(Err(error)),
        };
        Some(self.read_long(&key, stored).map(|value| (key, value)))
    }

    /// Reads a long value that the scan has given.
    fn read_long(&mut self, key: &Key, stored: Stored) -> Result<Value> {
        let value = long_value(self.namespace.db(), self.namespace.view(), key, stored);
        let value = value.inspect_err(|_| self.scan.stop())?;
        Ok(value.expect("a scan gives what is present"))
    }
}

impl Iterator for Iter {
    type Item = Result<(Key, Value)>;

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        // Nearly all pairs are made here, inlined, in the caller's memory. Otherwise they are made elsewhere and moved.
        if let Some((key, value)) = self.scan.next_clean(Direction::Forwards) {
            return Some(Ok((key, Value::from(value))));
        }
        self.next_stored(Direction::Forwards)
    }
}

impl DoubleEndedIterator for Iter {
    #[inline(never)]
    fn next_back(&mut self) -> Option<Self::Item> {
        if let Some((key, value)) = self.scan.next_clean(Direction::Backwards) {
            return Some(Ok((key, Value::from(value))));
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
