//! The transfers of a batch: from the balances read to the accesses that are committed.

use pleach_core::Key;

use crate::account;
use crate::draws::Batch;
use crate::error::{BenchError, Result};

/// What a batch does to one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Read only: each transfer that names it came from an empty account, possibly itself.
    Read,
    /// Read and written, with this balance.
    Write(u64),
    /// Read and deleted: it was closed, and its balance moved to another account.
    Delete,
}

/// Outcome of a batch.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// One change an account, in the order of [`Batch::accounts`].
    pub(crate) changes: Vec<Change>,
    /// Transfers that moved 1.
    pub(crate) moved: u64,
    /// Transfers from an empty account, which moved nothing.
    pub(crate) empty: u64,
    /// Accounts that existed and were closed.
    pub(crate) closed: u64,
}

/// A batch that is ready to run: the draws and the keys of their accounts.
#[derive(Debug)]
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
    assert_eq!(seen.len(), batch.accounts.len(), "one balance per account");
    let mut balances = seen.to_vec();
    let mut touched = vec![false; seen.len()];
    let mut add = |balances: &mut [Option<u64>], to: usize, amount: u64| {
        let sum = balances[to].unwrap_or(0).checked_add(amount).ok_or_else(|| {
            BenchError::Wrong(format!("account {} would hold 2^64", batch.accounts[to]))
        })?;
        balances[to] = Some(sum);
        touched[to] = true;
        Ok(())
    };
    let (mut moved, mut empty, mut closed) = (0, 0, 0);
    for &(sender, receiver) in &batch.transfers {
        let (from, to) = (sender as usize, receiver as usize);
        let Some(left) = balances[from].and_then(|balance| balance.checked_sub(1)) else {
            empty += 1;
            continue;
        };
        balances[from] = Some(left);
        add(&mut balances, from, 0)?;
        add(&mut balances, to, 1)?;
        moved += 1;
    }
    for &(account, heir) in &batch.closes {
        // Closing an account that does not exist, or no longer exists, does nothing.
        let Some(left) = balances[account as usize] else { continue };
        add(&mut balances, account as usize, 0)?;
        balances[account as usize] = None;
        closed += 1;
        if left > 0 {
            add(&mut balances, heir as usize, left)?;
        }
    }
    let change = |(balance, touched): (&Option<u64>, &bool)| match (balance, touched) {
        (_, false) => Change::Read,
        (Some(balance), true) => Change::Write(*balance),
        (None, true) => Change::Delete,
    };
    let changes = balances.iter().zip(&touched).map(change).collect();
    Ok(Applied { changes, moved, empty, closed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Stream;

    #[test]
    fn transfers_conserve_the_sum_and_touch_nothing_from_empty_accounts() {
        let stream = Stream {
            closing: None,
            seed: 5,
            batch: 64,
            fresh: 25,
            distribution: "uniform".parse().unwrap(),
        };
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
                Change::Delete => 0,
            })
            .sum();
        assert_eq!(before, after);
    }
    #[test]
    fn closing_moves_all_and_a_later_credit_brings_the_account_back() {
        // Slots: 0 pays 1, which closes in favour of 2; 2 closes in favour of 3, which was
        // absent; 4 is absent and closes; 3 closes in favour of 1: it is there again.
        let mut batch = Batch::default();
        batch.accounts = vec![10, 11, 12, 13, 14];
        batch.transfers = vec![(0, 1)];
        batch.closes = vec![(1, 2), (2, 3), (4, 0), (3, 1)];
        let seen = [Some(5), Some(7), Some(0), None, None];
        let applied = apply(&batch, &seen).unwrap();
        let expected =
            [Change::Write(4), Change::Write(8), Change::Delete, Change::Delete, Change::Read];
        assert_eq!(applied.changes, expected);
        assert_eq!((applied.moved, applied.empty, applied.closed), (1, 0, 3));
    }
}
