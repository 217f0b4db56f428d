//! An iterator over the commits that changed a key, from both ends, some at a time.

use std::vec::IntoIter;

use crate::tier::{CommitOrder, CommitSearch};

/// Most commits that one search gives.
const MOST: usize = 4096;

/// The commits of a range that changed a key, in order; `next` is the oldest, `next_back` the newest. After an error
/// the iterator is at its end.
#[derive(Debug)]
pub struct ChangingCommits<F> {
    /// The commits that are still to be looked up: from this one, or from the begin of the history, through `last`.
    first: Option<u64>,
    last: u64,
    /// Commits that were looked up, from both ends: the oldest first, and the newest first.
    found: [IntoIter<u64>; 2],
    /// How many the next search may give: one, which many callers want, then ever more.
    most: usize,
    lookup: F,
}

impl<E, F: FnMut(Option<u64>, CommitSearch) -> Result<Vec<u64>, E>> ChangingCommits<F> {
    /// The commits from one, or from the begin of the history, through another. `lookup` searches them from such a
    /// begin on, and gives none where there is none.
    pub fn new(first: Option<u64>, last: u64, lookup: F) -> Self {
        Self { first, last, found: Default::default(), most: 1, lookup }
    }

    /// The next commit from one end.
    fn step(&mut self, order: CommitOrder) -> Option<Result<u64, E>> {
        let found = &mut self.found[order as usize];
        let left = self.first.unwrap_or(1)..=self.last;
        if found.len() == 0 && !left.is_empty() {
            let search = CommitSearch { last: self.last, order, most: self.most };
            self.most = MOST.min(16 * self.most);
            match (self.lookup)(self.first, search) {
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

impl<E, F: FnMut(Option<u64>, CommitSearch) -> Result<Vec<u64>, E>> Iterator
    for ChangingCommits<F>
{
    type Item = Result<u64, E>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(CommitOrder::Ascending)
    }
}

impl<E, F: FnMut(Option<u64>, CommitSearch) -> Result<Vec<u64>, E>> DoubleEndedIterator
    for ChangingCommits<F>
{
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(CommitOrder::Descending)
    }
}
