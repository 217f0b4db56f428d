//! Retired pages or extents, oldest first.
//!
//! A *stamp* is a number of the caller's that never falls, such as that of the flush that retired the pages. Batches
//! are released in the order of their stamps.

use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(super) struct RetiredBatches<T> {
    batches: VecDeque<(u64, Vec<T>)>,
}

impl<T> Default for RetiredBatches<T> {
    fn default() -> Self {
        Self { batches: VecDeque::new() }
    }
}

impl<T> RetiredBatches<T> {
    /// # Panics
    /// When `stamp` is below an earlier one.
    pub(super) fn add(&mut self, stamp: u64, items: impl IntoIterator<Item = T>) {
        match self.batches.back_mut() {
            Some((last, batch)) if *last == stamp => batch.extend(items),
            last => {
                assert!(last.is_none_or(|(last, _)| *last < stamp), "stamps never fall");
                self.batches.push_back((stamp, items.into_iter().collect()));
            }
        }
    }

    /// Removes the oldest batch if its stamp is at most `up_to`.
    pub(super) fn take(&mut self, up_to: u64) -> Option<Vec<T>> {
        if self.batches.front()?.0 > up_to {
            return None;
        }
        self.batches.pop_front().map(|(_, batch)| batch)
    }

    /// All items with a stamp of at most `up_to`.
    pub(super) fn iter(&self, up_to: u64) -> impl Iterator<Item = &T> {
        self.batches.iter().take_while(move |(stamp, _)| *stamp <= up_to).flat_map(|(_, b)| b)
    }

    pub(super) fn bytes(&self) -> usize {
        self.batches.iter().map(|(_, batch)| batch.capacity() * size_of::<T>()).sum::<usize>()
            + self.batches.capacity() * size_of::<(u64, Vec<T>)>()
    }
}
