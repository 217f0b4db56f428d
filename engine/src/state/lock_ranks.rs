//! The ranks of locks, 1 and 3 to 6 of the table in [`crate::state`]; the tree has 2 and 7.

use pleach_beatree::lock_order::Rank;

/// Read while regions must not be joined: by a batch in its finish, and in a commit
/// until it is published.
pub(in crate::state) const BATCH_GATE: Rank = Rank::new(1, "the batch gate").repeatable();
/// Held while the log is synced. Other threads may write meanwhile.
pub(in crate::state) const SYNC: Rank = Rank::new(3, "a sync of the log");
/// The log's writer.
pub(in crate::state) const WRITER: Rank = Rank::new(4, "the log writer");
/// The sequencer's state.
pub(in crate::state) const SEQUENCER: Rank = Rank::new(5, "the sequencer");
/// The newest published commit.
pub(in crate::state) const TIP: Rank = Rank::new(6, "the tip");

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use pleach_beatree::lock_order::{REGION, STRUCTURE};

    use super::*;

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "asserted in debug builds only")]
    fn each_lock_is_taken_after_those_above_it_and_never_before() {
        let table = [BATCH_GATE, STRUCTURE, SYNC, WRITER, SEQUENCER, TIP, REGION];
        let locks = table.map(|rank| (rank, rank.mutex(())));
        let in_order: Vec<_> = locks.iter().map(|(_, lock)| lock.lock()).collect();
        drop(in_order);
        for (at, (lower, below)) in locks.iter().enumerate().skip(1) {
            for (upper, above) in &locks[..at] {
                let wrong = catch_unwind(AssertUnwindSafe(|| {
                    let _lower = below.lock();
                    let _upper = above.lock();
                }));
                assert!(wrong.is_err(), "{upper:?} under {lower:?}");
            }
        }
    }
}
