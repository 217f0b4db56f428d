//! The transfers of a batch: from the balances read to the accesses that are committed.

use pleach_core::Key;

use crate::account;
use crate::draws::Batch;
use crate::error::{BenchError, Result};

/// What a batch does to one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Read only: each transfer that names it came from an empty account.
    Read,
    /// Read, and written with this balance.
    Write(u64),
}

/// Outcome of a batch.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// One change an account, in the order of [`Batch::accounts`].
    pub(crate) changes: Vec<Change>,
    /// Transfers that moved 1.
    pub(crate) moved: u64,
    /// Transfers from an empty account: nothing moved.
    pub(crate) empty: u64,
}

/// A batch ready to be run: keys beside the draws.
pub(crate) struct Prepared {
    pub(crate) batch: Batch,
    pub(crate) keys: Vec<Key>,
}

impl Prepared {
    /// Adds the accounts' keys to a batch.
    pub(crate) fn new(batch: Batch) -> Self {
        let keys = batch.accounts.iter().map(|&id| account::key(id)).collect();
        Self { batch, keys }
    }
}

/// Runs a batch's transfers on the balances that were read, one for each account; an absent
/// account has nothing.
pub(crate) fn apply(batch: &Batch, seen: &[Option<u64>]) -> Result<Applied> {
    assert_eq!(seen.len(), batch.accounts.len(), "one balance an account");
    let mut balances: Vec<u64> = seen.iter().map(|balance| balance.unwrap_or(0)).collect();
    let mut changes = vec![Change::Read; seen.len()];
    let (mut moved, mut empty) = (0, 0);
    for &(sender, receiver) in &batch.transfers {
        let (from, to) = (sender as usize, receiver as usize);
        if balances[from] == 0 {
            empty += 1;
            continue;
        }
        balances[from] -= 1;
        balances[to] = balances[to].checked_add(1).ok_or_else(|| {
            BenchError::Wrong(format!("account {} holds 2^64-1", batch.accounts[to]))
        })?;
        changes[from] = Change::Write(0);
        changes[to] = Change::Write(0);
        moved += 1;
    }
    for (change, balance) in changes.iter_mut().zip(&balances) {
        if let Change::Write(new) = change {
            *new = *balance;
        }
    }
    Ok(Applied { changes, moved, empty })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Stream;

    #[test]
    fn transfers_conserve_the_sum_and_touch_nothing_from_empty_accounts() {
        let stream =
            Stream { seed: 5, batch: 64, fresh: 25, distribution: "uniform".parse().unwrap() };
        let batch = stream.batch(8, 0);
        let seen: Vec<_> = (0..batch.accounts.len()).map(|i| (i % 3 == 0).then_some(2)).collect();
        let applied = apply(&batch, &seen).unwrap();
        assert_eq!(applied.moved + applied.empty, 64);
        assert!(applied.empty > 0);
        let before: u64 = seen.iter().flatten().sum();
        let after: u64 = seen
            .iter()
            .zip(&applied.changes)
            .map(|(seen, change)| match change {
                Change::Read => seen.unwrap_or(0),
                Change::Write(new) => *new,
            })
            .sum();
        assert_eq!(before, after);
    }
}
