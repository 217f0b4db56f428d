//! The batches of a stream, drawn.
//!
//! Invariant: a batch depends on the stream's parameters and its number alone, so that a run can
//! continue where another stopped without replaying anything.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde::{Deserialize, Serialize};

use crate::draws::distribution::{Distribution, Sampler};
use crate::draws::generator::Draws;

/// Name and version of the transfer workload's draws: the last 24 bytes of the generator's key.
const DOMAIN: &[u8; 24] = b"pleach-bench transfer v1";

/// The same for the draws of a soak.
const SOAK: &[u8; 24] = b"pleach-bench soak     v1";

/// Everything that determines a stream of transfers, apart from the number of accounts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stream {
    pub(crate) seed: u64,
    pub(crate) batch: u32,
    pub(crate) fresh: u32,
    pub(crate) distribution: Distribution,
    /// Present in a soak only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) closing: Option<Closing>,
}

/// How accounts close: each moves its whole balance to another account and is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closing {
    /// Loaded accounts that close in a batch, as a percentage of its transfers.
    pub(crate) deletes: u32,
    /// New accounts close this many batches later.
    pub(crate) life: u32,
}

impl Stream {
    /// New accounts per batch.
    pub(crate) fn fresh_per_batch(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.fresh) / 100
    }

    /// Account ids given out before batch `number`, when `initial` were loaded.
    pub(crate) fn accounts_before(&self, initial: u64, number: u64) -> u64 {
        initial + number * self.fresh_per_batch()
    }

    /// Ids that can have an account at the same time, of those given out before batch `number`.
    pub(crate) fn live_before(&self, initial: u64, number: u64) -> u64 {
        let recent = match self.closing {
            Some(closing) => number.min(u64::from(closing.life) + 1),
            None => number,
        };
        initial + recent * self.fresh_per_batch()
    }

    /// The batch whose new accounts close for good in batch `number`.
    pub(crate) fn closes_with(&self, number: u64) -> Option<u64> {
        number.checked_sub(u64::from(self.closing?.life))
    }

    /// Draws batch `number` (from 0). Senders and old receivers come from the accounts that were
    /// loaded, so that hardly any transfer is from an empty account; new ones are not used again.
    pub(crate) fn batch(&self, initial: u64, number: u64) -> Batch {
        let first_new = self.accounts_before(initial, number);
        let sampler = Sampler::new(self.distribution, initial);
        let domain = if self.closing.is_some() { SOAK } else { DOMAIN };
        let mut draws = Draws::new(self.seed, domain, number);
        let count = u64::from(self.batch);
        let old = count - self.fresh_per_batch();
        let mut batch = Batch::with_capacity(self.batch as usize);
        for index in 0..count {
            let sender = sampler.draw(&mut draws);
            let receiver = if index < old {
                let drawn = sampler.draw(&mut draws);
                // Nobody pays themselves: take the next account, without another draw.
                if drawn == sender { (drawn + 1) % initial } else { drawn }
            } else {
                first_new + (index - old)
            };
            batch.push(sender, receiver);
        }
        if let Some(closing) = self.closing {
            for _ in 0..count * u64::from(closing.deletes) / 100 {
                let closed = sampler.draw(&mut draws);
                let drawn = sampler.draw(&mut draws);
                batch.close(closed, if drawn == closed { (drawn + 1) % initial } else { drawn });
            }
        }
        if let Some(old) = self.closes_with(number) {
            let first = self.accounts_before(initial, old);
            for id in first..first + self.fresh_per_batch() {
                batch.close(id, sampler.draw(&mut draws));
            }
        }
        batch
    }
}

/// A drawn batch: transfers between slots, and the account id of each slot.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Distinct account ids in the order of their first use.
    pub(crate) accounts: Vec<u64>,
    /// Sender's and receiver's index in `accounts`.
    pub(crate) transfers: Vec<(u32, u32)>,
    /// In order, after the transfers: an account that closes, and the one that gets its balance.
    pub(crate) closes: Vec<(u32, u32)>,
    slots: HashMap<u64, u32>,
}

impl Batch {
    fn with_capacity(transfers: usize) -> Self {
        Self {
            accounts: Vec::with_capacity(2 * transfers),
            transfers: Vec::with_capacity(transfers),
            closes: Vec::new(),
            slots: HashMap::with_capacity(2 * transfers),
        }
    }

    fn push(&mut self, sender: u64, receiver: u64) {
        let pair = (self.slot(sender), self.slot(receiver));
        self.transfers.push(pair);
    }

    fn close(&mut self, closed: u64, heir: u64) {
        let pair = (self.slot(closed), self.slot(heir));
        self.closes.push(pair);
    }

    fn slot(&mut self, account: u64) -> u32 {
        match self.slots.entry(account) {
            Entry::Occupied(slot) => *slot.get(),
            Entry::Vacant(free) => {
                let slot = u32::try_from(self.accounts.len()).expect("a batch has < 2^32 accounts");
                self.accounts.push(account);
                *free.insert(slot)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_new_receivers_last_and_no_transfer_to_oneself() {
        let stream = Stream {
            closing: None,
            seed: 1,
            batch: 101,
            fresh: 25,
            distribution: "pareto".parse().unwrap(),
        };
        for number in 0..5 {
            let batch = stream.batch(2, number);
            let existing = 2 + number * 25;
            assert_eq!(batch.transfers.len(), 101);
            for (index, &(sender, receiver)) in batch.transfers.iter().enumerate() {
                assert_ne!(sender, receiver);
                assert!(batch.accounts[sender as usize] < 2);
                let to = batch.accounts[receiver as usize];
                match index.checked_sub(76) {
                    Some(new) => assert_eq!(to, existing + new as u64),
                    None => assert!(to < 2),
                }
            }
        }
    }

    #[test]
    fn new_accounts_close_once_after_their_life() {
        let closing = Some(Closing { deletes: 10, life: 3 });
        let distribution = "uniform".parse().unwrap();
        let stream = Stream { seed: 1, batch: 100, fresh: 20, distribution, closing };
        for number in 0..8 {
            let batch = stream.batch(64, number);
            let closed: Vec<u64> =
                batch.closes.iter().map(|pair| batch.accounts[pair.0 as usize]).collect();
            assert!(batch.closes.iter().all(|pair| pair.0 != pair.1));
            assert!(batch.closes.iter().all(|pair| batch.accounts[pair.1 as usize] < 64));
            let (loaded, new): (Vec<u64>, Vec<u64>) = closed.into_iter().partition(|&id| id < 64);
            assert_eq!(loaded.len(), 10);
            let first = 64 + number.saturating_sub(3) * 20;
            let expected = if number < 3 { first..first } else { first..first + 20 };
            assert_eq!(new, expected.collect::<Vec<_>>());
        }
        assert_eq!(stream.live_before(64, 2), 64 + 40);
        assert_eq!(stream.live_before(64, 100), 64 + 80);
    }

    #[test]
    fn a_batch_does_not_depend_on_those_before_it() {
        let stream = Stream {
            closing: None,
            seed: 7,
            batch: 50,
            fresh: 10,
            distribution: "zipf:1".parse().unwrap(),
        };
        let forwards: Vec<_> = (0..4).map(|number| stream.batch(1000, number).accounts).collect();
        for number in (0..4).rev() {
            assert_eq!(
                stream.batch(1000, number).accounts,
                forwards[usize::try_from(number).unwrap()]
            );
        }
    }
}
