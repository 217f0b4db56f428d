//! All balances after some batches, recomputed from the draws alone: the oracle of a run.

use crate::account::{self, INITIAL_BALANCE};
use crate::draws::Stream;
use crate::error::{BenchError, Result};
use crate::workload::transfer::{self, Change};

/// Marks an account that was never written.
const ABSENT: u32 = u32::MAX;

/// Balances by account id, 4 bytes each.
pub(crate) struct Replay {
    balances: Vec<u32>,
}

impl Replay {
    /// Memory that a replay of `accounts` ids takes.
    pub(crate) const fn memory(accounts: u64) -> u64 {
        accounts * 4
    }

    /// The state after batches `0..batches`.
    pub(crate) fn new(
        stream: &Stream,
        initial: u64,
        batches: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let too_large =
            |_| BenchError::Usage("too many accounts to check; lower --log2".to_owned());
        let ids = usize::try_from(stream.accounts_before(initial, batches)).map_err(too_large)?;
        let mut balances = vec![ABSENT; ids];
        let start = u32::try_from(INITIAL_BALANCE).unwrap_or(0);
        balances[..usize::try_from(initial).map_err(too_large)?].fill(start);
        let mut replay = Self { balances };
        for number in 0..batches {
            replay.step(stream, initial, number)?;
            progress(number + 1);
        }
        Ok(replay)
    }

    fn step(&mut self, stream: &Stream, initial: u64, number: u64) -> Result<()> {
        let batch = stream.batch(initial, number);
        let seen: Vec<_> = batch.accounts.iter().map(|&id| self.balance(id)).collect();
        let applied = transfer::apply(&batch, &seen)?;
        for (&id, change) in batch.accounts.iter().zip(&applied.changes) {
            if let Change::Write(new) = change {
                let new =
                    u32::try_from(*new).ok().filter(|&new| new != ABSENT).ok_or_else(|| {
                        BenchError::Wrong(format!(
                            "account {id} would hold {new}, out of all there is"
                        ))
                    })?;
                self.balances[Self::index(id)] = new;
            }
        }
        Ok(())
    }

    /// Balance of an account, `None` when it must be absent.
    pub(crate) fn balance(&self, id: u64) -> Option<u64> {
        match self.balances[Self::index(id)] {
            ABSENT => None,
            balance => Some(u64::from(balance)),
        }
    }

    /// Sum of all balances; an error when the oracle itself does not conserve it.
    pub(crate) fn sum(&self, initial: u64) -> Result<u64> {
        let held = self.balances.iter().filter(|&&balance| balance != ABSENT);
        let sum: u64 = held.map(|&balance| u64::from(balance)).sum();
        if sum == account::total(initial) {
            Ok(sum)
        } else {
            Err(BenchError::Wrong(format!("the replay sums to {sum}")))
        }
    }

    fn index(id: u64) -> usize {
        usize::try_from(id).unwrap_or(usize::MAX)
    }
}
