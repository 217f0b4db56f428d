//! Which commits of the history changed a key: what runs have of it, some commits at a time.

use std::ops::RangeInclusive;
use std::vec::IntoIter;

use pleach_core::Key;
use pleach_history::Order;

use super::Db;
use crate::error::Result;

/// The commits that changed a key, ascending, or from the newest on: see [`Db::changes_of`]. After an error it is at its end.
pub(crate) struct KeyChanges<'a> {
    db: &'a Db,
    namespace: u8,
    key: Key,
    /// Commits that are not given yet are in this range. None: it begins with the history.
    first: Option<u64>,
    last: u64,
    /// Commits that are ready, from both ends.
    front: IntoIter<u64>,
    back: IntoIter<u64>,
}

impl<'a> KeyChanges<'a> {
    pub(super) fn new(
        db: &'a Db,
        (namespace, key): (u8, &Key),
        (first, last): (Option<u64>, u64),
    ) -> Self {
        let (front, back) = (Vec::new().into_iter(), Vec::new().into_iter());
        Self { db, namespace, key: *key, first, last, front, back }
    }

    /// Commits that are not given yet, from one end.
    fn some(&mut self, order: Order) -> Result<IntoIter<u64>> {
        let (first, last) = (self.first, self.last);
        let found = self.db.some_changes((self.namespace, &self.key), (first, last), order);
        // The range is empty then.
        let found = found.inspect_err(|_| (self.first, self.last) = (Some(1), 0))?;
        Ok(found.into_iter())
    }

    fn left(&self) -> RangeInclusive<u64> {
        self.first.unwrap_or(1)..=self.last
    }
}

impl Iterator for KeyChanges<'_> {
    type Item = Result<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.front.len() == 0 && !self.left().is_empty() {
            match self.some(Order::Ascending) {
                Ok(front) => self.front = front,
                Err(error) => return Some(Err(error)),
            }
        }
        let commit = self.front.next().filter(|commit| self.left().contains(commit));
        self.first = Some(commit.unwrap_or(self.last) + 1);
        commit.map(Ok)
    }
}

impl DoubleEndedIterator for KeyChanges<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.back.len() == 0 && !self.left().is_empty() {
            match self.some(Order::Descending) {
                Ok(back) => self.back = back,
                Err(error) => return Some(Err(error)),
            }
        }
        let commit = self.back.next().filter(|commit| self.left().contains(commit));
        self.last = commit.map_or(0, |commit| commit - 1);
        commit.map(Ok)
    }
}
