//! An iterator over the commits that changed a key, from both ends, some at a time.

use std::vec::IntoIter;

use crate::run::CommitOrder;

/// The commits of a range that changed a key, in order; `next` is the oldest, `next_back` the newest. After an error
/// the iterator is at its end.
#[derive(Debug)]
pub struct ChangingCommits<F> {
    /// The commits that are still to be looked up: from this one, or from the begin of the history, through `last`.
    first: Option<u64>,
    last: u64,
    /// Commits that were looked up, from both ends.
    front: IntoIter<u64>,
    back: IntoIter<u64>,
    lookup: F,
}

impl<F> ChangingCommits<F> {
    /// The commits from one, or from the begin of the history, through another. `lookup` gives the first of them in an
    /// order, a limited number; none where there is none.
    pub fn new<E>(first: Option<u64>, last: u64, lookup: F) -> Self
    where
        F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>,
    {
        let (front, back) = (Vec::new().into_iter(), Vec::new().into_iter());
        Self { first, last, front, back, lookup }
    }

    fn is_left(&self, commit: u64) -> bool {
        (self.first.unwrap_or(1)..=self.last).contains(&commit)
    }
}

impl<E, F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>> ChangingCommits<F> {
    /// Looks up the next commits from one end.
    fn some(&mut self, order: CommitOrder) -> Result<IntoIter<u64>, E> {
        if self.first.unwrap_or(1) > self.last {
            return Ok(Vec::new().into_iter());
        }
        let found = (self.lookup)(self.first, self.last, order);
        // After an error the range is empty.
        let found = found.inspect_err(|_| (self.first, self.last) = (Some(1), 0))?;
        Ok(found.into_iter())
    }
}

impl<E, F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>> Iterator
    for ChangingCommits<F>
{
    type Item = Result<u64, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.front.len() == 0 {
            match self.some(CommitOrder::Ascending) {
                Ok(front) => self.front = front,
                Err(error) => return Some(Err(error)),
            }
        }
        let commit = self.front.next().filter(|commit| self.is_left(*commit));
        self.first = Some(commit.unwrap_or(self.last) + 1);
        commit.map(Ok)
    }
}

impl<E, F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>> DoubleEndedIterator
    for ChangingCommits<F>
{
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.back.len() == 0 {
            match self.some(CommitOrder::Descending) {
                Ok(back) => self.back = back,
                Err(error) => return Some(Err(error)),
            }
        }
        let commit = self.back.next().filter(|commit| self.is_left(*commit));
        self.last = commit.map_or(0, |commit| commit - 1);
        commit.map(Ok)
    }
}
