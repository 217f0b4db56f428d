//! The stream of transfers: what is drawn, and what it comes to. No engine and no clock is in it.
//!
//! Invariant: a batch depends on the stream's parameters and its number alone, so that a run goes on where another
//! stopped without replaying anything.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use serde::{Deserialize, Serialize};

use crate::draw::{Distribution, Draws, Sampler};
use crate::error::{Result, wrong};

/// Name and version of the draws: the last 24 bytes of the generator's key.
const DOMAIN: &[u8; 24] = b"pleach-bench transfer v1";
const SOAK: &[u8; 24] = b"pleach-bench soak     v1";

/// All that determines a stream of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    pub seed: u64,
    /// Accounts that are loaded.
    pub initial: u64,
    pub batch: u32,
    pub fresh: u32,
    pub distribution: Distribution,
    /// Of a soak alone.
    pub closing: Option<Closing>,
}

/// How accounts close: each moves its whole balance to another one and is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// Loaded accounts that close in a batch, as a percentage of its transfers.
    pub deletes: u32,
    /// New accounts close this many batches later.
    pub life: u32,
}

impl Stream {
    /// New accounts of a batch.
    pub fn fresh_per_batch(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.fresh) / 100
    }

    /// Account ids given out before batch `number`.
    pub fn accounts_before(&self, number: u64) -> u64 {
        self.initial + number.saturating_mul(self.fresh_per_batch())
    }

    /// The batch whose new accounts close for good in batch `number`.
    pub fn closes_with(&self, number: u64) -> Option<u64> {
        number.checked_sub(u64::from(self.closing?.life))
    }

    /// Draws batch `number`, from 0. Senders and old receivers are of the accounts that were loaded, so that hardly any
    /// transfer is from an empty account; new ones are not used again.
    pub fn batch(&self, number: u64) -> StreamBatch {
        let initial = self.initial;
        let first_new = self.accounts_before(number);
        let sampler = Sampler::new(self.distribution, initial);
        let domain = if self.closing.is_some() { SOAK } else { DOMAIN };
        let mut draws = Draws::new(self.seed, domain, number);
        let count = u64::from(self.batch);
        let old = count - self.fresh_per_batch();
        let mut batch = StreamBatch::default();
        // Nobody pays themselves: the next account is taken, without another draw.
        let other =
            |drawn: u64, than: u64| if drawn == than { (drawn + 1) % initial } else { drawn };
        for index in 0..count {
            let sender = sampler.draw(&mut draws);
            let receiver = if index < old {
                other(sampler.draw(&mut draws), sender)
            } else {
                first_new + (index - old)
            };
            let pair = (batch.slot(sender), batch.slot(receiver));
            batch.transfers.push(pair);
        }
        let mut close = |closed: u64, heir: u64| {
            let pair = (batch.slot(closed), batch.slot(heir));
            batch.closes.push(pair);
        };
        if let Some(closing) = self.closing {
            for _ in 0..count * u64::from(closing.deletes) / 100 {
                let closed = sampler.draw(&mut draws);
                close(closed, other(sampler.draw(&mut draws), closed));
            }
        }
        if let Some(old) = self.closes_with(number) {
            let first = self.accounts_before(old);
            for id in first..first + self.fresh_per_batch() {
                close(id, sampler.draw(&mut draws));
            }
        }
        batch
    }
}

/// A drawn batch: transfers between slots, and the account of each slot.
#[derive(Debug, Default)]
pub struct StreamBatch {
    /// Distinct accounts in the order of their first use.
    pub accounts: Vec<u64>,
    /// Sender's and receiver's index in `accounts`.
    pub transfers: Vec<(usize, usize)>,
    /// In order, after the transfers: an account that closes, and the one that gets its balance.
    pub closes: Vec<(usize, usize)>,
    slots: HashMap<u64, usize>,
}

impl StreamBatch {
    fn slot(&mut self, account: u64) -> usize {
        match self.slots.entry(account) {
            Entry::Occupied(slot) => *slot.get(),
            Entry::Vacant(free) => {
                self.accounts.push(account);
                *free.insert(self.accounts.len() - 1)
            }
        }
    }

    /// Runs it on the balances that were read, one for each account; an absent one has nothing.
    pub fn apply(&self, seen: &[Option<u64>]) -> Result<BatchEffect> {
        let mut balances = seen.to_vec();
        let mut touched = vec![false; seen.len()];
        let mut add = |balances: &mut [Option<u64>], to: usize, amount: u64| {
            let Some(sum) = balances[to].unwrap_or(0).checked_add(amount) else {
                return wrong(format!("account {} would hold 2^64", self.accounts[to]));
            };
            balances[to] = Some(sum);
            touched[to] = true;
            Ok(())
        };
        let mut applied = BatchEffect::default();
        for &(from, to) in &self.transfers {
            let Some(left) = balances[from].and_then(|balance| balance.checked_sub(1)) else {
                applied.empty += 1;
                continue;
            };
            balances[from] = Some(left);
            add(&mut balances, from, 0)?;
            add(&mut balances, to, 1)?;
            applied.moved += 1;
        }
        for &(account, heir) in &self.closes {
            // Closing an account that is not there does nothing.
            let Some(left) = balances[account] else { continue };
            add(&mut balances, account, 0)?;
            balances[account] = None;
            applied.closed += 1;
            if left > 0 {
                add(&mut balances, heir, left)?;
            }
        }
        applied.changes = balances
            .into_iter()
            .zip(touched)
            .map(|(balance, touched)| touched.then_some(balance))
            .collect();
        Ok(applied)
    }
}

/// What was moved is not lost: the sum of the balances is what it was.
pub fn conserved(seen: &[Option<u64>], changes: &[Option<Option<u64>>]) -> Result<()> {
    let (mut before, mut after) = (0_u128, 0_u128);
    for (seen, change) in seen.iter().zip(changes) {
        before += u128::from(seen.unwrap_or(0));
        after += u128::from(change.unwrap_or(*seen).unwrap_or(0));
    }
    if before == after {
        return Ok(());
    }
    wrong(format!("a batch turned a sum of {before} into {after}"))
}

/// What a batch comes to.
#[derive(Debug, Default)]
pub struct BatchEffect {
    /// Of each account: nothing if it was only read, else its new balance, or none if it was closed.
    pub changes: Vec<Option<Option<u64>>>,
    /// Transfers that moved 1.
    pub moved: u64,
    /// Transfers from an empty account, which moved nothing.
    pub empty: u64,
    /// Accounts that were there and were closed.
    pub closed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(batch: u32, fresh: u32, distribution: &str, closing: Option<Closing>) -> Stream {
        let distribution = distribution.parse().expect("a distribution");
        Stream { seed: 1, initial: 64, batch, fresh, distribution, closing }
    }

    #[test]
    fn batches_have_new_receivers_last_and_no_transfer_to_oneself() {
        let stream = Stream { initial: 2, ..stream(101, 25, "pareto", None) };
        for number in 0..5 {
            let batch = stream.batch(number);
            assert_eq!(batch.transfers.len(), 101);
            for (index, &(sender, receiver)) in batch.transfers.iter().enumerate() {
                assert_ne!(sender, receiver);
                assert!(batch.accounts[sender] < 2);
                match index.checked_sub(76) {
                    Some(new) => assert_eq!(batch.accounts[receiver], 2 + number * 25 + new as u64),
                    None => assert!(batch.accounts[receiver] < 2),
                }
            }
        }
    }

    #[test]
    fn new_accounts_close_once_after_their_life() {
        let stream = stream(100, 20, "uniform", Some(Closing { deletes: 10, life: 3 }));
        for number in 0..8 {
            let batch = stream.batch(number);
            let closed: Vec<u64> = batch.closes.iter().map(|pair| batch.accounts[pair.0]).collect();
            assert!(
                batch.closes.iter().all(|pair| pair.0 != pair.1 && batch.accounts[pair.1] < 64)
            );
            let (loaded, new): (Vec<u64>, Vec<u64>) = closed.into_iter().partition(|id| *id < 64);
            assert_eq!(loaded.len(), 10);
            let first = 64 + number.saturating_sub(3) * 20;
            let expected = if number < 3 { first..first } else { first..first + 20 };
            assert_eq!(new, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn closing_moves_all_and_a_later_credit_brings_the_account_back() {
        // 0 pays 1, which closes in favour of 2; 2 closes in favour of 3, which was absent; 4 is absent and closes; 3
        // closes in favour of 1, which is there again.
        let batch = StreamBatch {
            accounts: vec![10, 11, 12, 13, 14],
            transfers: vec![(0, 1)],
            closes: vec![(1, 2), (2, 3), (4, 0), (3, 1)],
            ..StreamBatch::default()
        };
        let applied = batch.apply(&[Some(5), Some(7), Some(0), None, None]).expect("conserved");
        assert_eq!(applied.changes, [Some(Some(4)), Some(Some(8)), Some(None), Some(None), None]);
        assert_eq!((applied.moved, applied.empty, applied.closed), (1, 0, 3));
    }
}
