//! An iterator over the commits that changed a key, from both ends, some at a time.

use std::vec::IntoIter;

use crate::tier::CommitOrder;

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
}

impl<E, F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>> ChangingCommits<F> {
    /// The next commit from one end.
    fn step(&mut self, order: CommitOrder) -> Option<Result<u64, E>> {
        let found = match order {
            CommitOrder::Ascending => &mut self.front,
            CommitOrder::Descending => &mut self.back,
        };
        let left = self.first.unwrap_or(1)..=self.last;
        if found.len() == 0 && !left.is_empty() {
            match (self.lookup)(self.first, self.last, order) {
                Ok(some) => *found = some.into_iter(),
                Err(error) => {
                    (self.first, self.last) = (Some(1), 0);
                    return Some(Err(error));
                }
            }
        }
        let commit = found.next().filter(|commit| left.contains(commit));
        match order {
            CommitOrder::Ascending => self.first = Some(commit.unwrap_or(self.last) + 1),
            CommitOrder::Descending => self.last = commit.map_or(0, |commit| commit - 1),
        }
        commit.map(Ok)
    }
}

impl<E, F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>> Iterator
    for ChangingCommits<F>
{
    type Item = Result<u64, E>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(CommitOrder::Ascending)
    }
}

impl<E, F: FnMut(Option<u64>, u64, CommitOrder) -> Result<Vec<u64>, E>> DoubleEndedIterator
    for ChangingCommits<F>
{
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(CommitOrder::Descending)
    }
}
