//! The oracle of a run: all balances after some batches, recomputed from the draws alone.

use std::collections::VecDeque;

use crate::account::{self, INITIAL_BALANCE};
use crate::draws::Stream;
use crate::error::{BenchError, Result};
use crate::workload::transfer::{self, Change};

/// Marks an account that was never written.
const ABSENT: u32 = u32::MAX;

/// Balances by account id, 4 bytes each. New accounts that have been closed for good take no room.
#[derive(Debug)]
pub(crate) struct Replay {
    loaded: Vec<u32>,
    /// New accounts in order, without the first `closed`.
    new: VecDeque<u32>,
    closed: u64,
}

impl Replay {
    /// Memory that a replay of `accounts` takes.
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
        let ids = usize::try_from(initial).map_err(too_large)?;
        let start = u32::try_from(INITIAL_BALANCE).unwrap_or(0);
        let mut replay = Self { loaded: vec![start; ids], new: VecDeque::new(), closed: 0 };
        for number in 0..batches {
            replay.step(stream, initial, number)?;
            progress(number + 1);
        }
        Ok(replay)
    }

    fn step(&mut self, stream: &Stream, initial: u64, number: u64) -> Result<()> {
        let batch = stream.batch(initial, number);
        self.new.extend((0..stream.fresh_per_batch()).map(|_| ABSENT));
        let seen: Vec<_> = batch.accounts.iter().map(|&id| self.balance(id)).collect();
        let applied = transfer::apply(&batch, &seen)?;
        for (&id, change) in batch.accounts.iter().zip(&applied.changes) {
            let new = match change {
                Change::Read => continue,
                Change::Delete => ABSENT,
                Change::Write(new) => {
                    u32::try_from(*new).ok().filter(|&new| new != ABSENT).ok_or_else(|| {
                        BenchError::Wrong(format!(
                            "account {id} would hold {new}, more than can be"
                        ))
                    })?
                }
            };
            if let Some(balance) = self.slot(id) {
                *balance = new;
            }
        }
        if stream.closes_with(number).is_some() {
            let count = stream.fresh_per_batch();
            let gone = self.new.drain(..usize::try_from(count).unwrap_or(usize::MAX));
            if gone.into_iter().any(|balance| balance != ABSENT) {
                let text = format!("an account outlived batch {number}, which closes it");
                return Err(BenchError::Wrong(text));
            }
            self.closed += count;
        }
        Ok(())
    }

    /// Balance of an account; `None` if it must be absent.
    pub(crate) fn balance(&self, id: u64) -> Option<u64> {
        let initial = self.loaded.len() as u64;
        let balance = match id.checked_sub(initial) {
            None => self.loaded.get(usize::try_from(id).ok()?),
            Some(new) => self.new.get(usize::try_from(new.checked_sub(self.closed)?).ok()?),
        };
        balance.copied().filter(|&balance| balance != ABSENT).map(u64::from)
    }

    fn slot(&mut self, id: u64) -> Option<&mut u32> {
        match id.checked_sub(self.loaded.len() as u64) {
            None => self.loaded.get_mut(usize::try_from(id).ok()?),
            Some(new) => self.new.get_mut(usize::try_from(new.checked_sub(self.closed)?).ok()?),
        }
    }

    /// Sum of all balances; an error if the oracle itself does not conserve it.
    pub(crate) fn sum(&self, initial: u64) -> Result<u64> {
        let held = self.loaded.iter().chain(&self.new).filter(|&&balance| balance != ABSENT);
        let sum: u64 = held.map(|&balance| u64::from(balance)).sum();
        if sum == account::total(initial) {
            Ok(sum)
        } else {
            Err(BenchError::Wrong(format!("the replay sums to {sum}")))
        }
    }
}
