//! The oracle of a run of transfers: all balances after some batches, from the draws alone.

use std::collections::VecDeque;

use super::stream::Stream;
use crate::draw::BALANCE;
use crate::error::{Error, Result, wrong};

/// Marks an account that is not there.
const ABSENT: u32 = u32::MAX;

/// Balances by account id, 4 bytes each. New accounts that were closed for good take no room.
pub struct Replay {
    loaded: Vec<u32>,
    /// New accounts in order, without the first `closed`.
    new: VecDeque<u32>,
    closed: u64,
}

impl Replay {
    /// The state after the load.
    pub fn new(initial: u64) -> Result<Self> {
        let ids = usize::try_from(initial)
            .map_err(|_| Error::Usage("too many accounts: lower --log2".to_owned()))?;
        let start = u32::try_from(BALANCE).unwrap_or(0);
        Ok(Self { loaded: vec![start; ids], new: VecDeque::new(), closed: 0 })
    }

    /// Commits the next batch.
    pub fn step(&mut self, stream: &Stream, number: u64) -> Result<()> {
        let batch = stream.batch(number);
        self.new.extend((0..stream.fresh_per_batch()).map(|_| ABSENT));
        let seen: Vec<_> = batch.accounts.iter().map(|id| self.balance(*id)).collect();
        let applied = batch.apply(&seen)?;
        for (id, change) in batch.accounts.iter().zip(applied.changes) {
            let Some(new) = change else { continue };
            let new = match new.map(u32::try_from) {
                None => ABSENT,
                Some(Ok(new)) if new != ABSENT => new,
                _ => return wrong(format!("account {id} would hold more than can be")),
            };
            if let Some(balance) = self.slot(*id) {
                *balance = new;
            }
        }
        if stream.closes_with(number).is_some() {
            let count = stream.fresh_per_batch();
            let mut gone = self.new.drain(..usize::try_from(count).unwrap_or(usize::MAX));
            if gone.any(|balance| balance != ABSENT) {
                return wrong(format!("an account outlived batch {number}, which closes it"));
            }
            drop(gone);
            self.closed += count;
        }
        Ok(())
    }

    fn slot(&mut self, id: u64) -> Option<&mut u32> {
        match id.checked_sub(self.loaded.len() as u64) {
            None => self.loaded.get_mut(usize::try_from(id).ok()?),
            Some(new) => self.new.get_mut(usize::try_from(new.checked_sub(self.closed)?).ok()?),
        }
    }

    /// Balance of an account; none if it must be absent.
    pub fn balance(&self, id: u64) -> Option<u64> {
        let balance = match id.checked_sub(self.loaded.len() as u64) {
            None => self.loaded.get(usize::try_from(id).ok()?),
            Some(new) => self.new.get(usize::try_from(new.checked_sub(self.closed)?).ok()?),
        };
        balance.copied().filter(|balance| *balance != ABSENT).map(u64::from)
    }

    /// Sum of all balances; an error if the oracle itself does not conserve it.
    pub fn sum(&self) -> Result<u64> {
        let there = self.loaded.iter().chain(&self.new).filter(|balance| **balance != ABSENT);
        let sum: u64 = there.map(|balance| u64::from(*balance)).sum();
        if sum == self.loaded.len() as u64 * BALANCE {
            Ok(sum)
        } else {
            wrong(format!("the replay sums to {sum}"))
        }
    }
}
