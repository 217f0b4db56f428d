//! Accounts with names, and transfers between them.

use crate::account;
use crate::draws::Draws;
use crate::error::Result;

/// What every account begins with, and the largest amount of a transfer.
pub(super) const INITIAL: u64 = 1_000_000;
/// First byte of the keys of accounts, and of those of the log behind them.
const ACCOUNT: u8 = 1;
const LOG: u8 = 2;

/// Bits of a word's number: five syllables of six.
const WORD: u32 = 30;

/// The name of an account: a word for the even ones, 12 bytes of a hash or a decimal number for the others.
fn name(id: u64) -> Vec<u8> {
    match id % 4 {
        0 | 2 => word(id),
        1 => account::key(id)[..12].to_vec(),
        _ => (id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_string().into_bytes(),
    }
}

/// Five syllables, of a number that goes through all of 30 bits as ids do.
fn word(id: u64) -> Vec<u8> {
    let number = id.wrapping_mul(0x2545_f491) % (1 << WORD);
    let syllable = |at: u32| {
        let bits = usize::try_from(number >> (6 * at) & 63).expect("six bits");
        [b"bdfghjklmnprstvz"[bits / 4], b"aeio"[bits % 4]]
    };
    (0..WORD / 6).flat_map(syllable).collect()
}

/// The key of an account.
pub(super) fn key(id: u64) -> Vec<u8> {
    let mut key = vec![ACCOUNT];
    key.extend(name(id));
    key
}

/// The key of an entry of the log: they come in the order of their numbers, behind all accounts.
pub(super) fn log_key(number: u64) -> [u8; 9] {
    let mut key = [LOG; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// All accounts: their keys, and their ids in the order of keys.
#[derive(Debug)]
pub(super) struct Accounts {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) sorted: Vec<u32>,
}

impl Accounts {
    pub(super) fn new(count: u64) -> Self {
        let keys: Vec<Vec<u8>> = (0..count).map(key).collect();
        let mut sorted: Vec<u32> = (0..u32::try_from(count).expect("at most 2^30")).collect();
        sorted.sort_unstable_by(|one, other| keys[*one as usize].cmp(&keys[*other as usize]));
        Self { keys, sorted }
    }
}

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) amount: u64,
}

impl Transfer {
    /// Its value in the log: both accounts and the amount, 8 bytes little-endian each.
    pub(super) fn logged(&self) -> [u8; 24] {
        let mut value = [0; 24];
        value[..8].copy_from_slice(&u64::from(self.from).to_le_bytes());
        value[8..16].copy_from_slice(&u64::from(self.to).to_le_bytes());
        value[16..].copy_from_slice(&self.amount.to_le_bytes());
        value
    }
}

/// Draws the transfers of a run.
#[derive(Debug)]
pub(super) struct Teller {
    random: Draws,
    accounts: u64,
}

impl Teller {
    pub(super) fn new(seed: u64, accounts: u64) -> Self {
        Self { random: draws(seed, 0), accounts }
    }

    fn account(&mut self) -> u64 {
        // The smaller of two: the density falls in a line, and reaches 0 at the last one.
        self.random.below(self.accounts).min(self.random.below(self.accounts))
    }

    pub(super) fn draw(&mut self) -> Transfer {
        let (from, mut to) = (self.account(), self.account());
        if to == from {
            to = (to + 1) % self.accounts;
        }
        let amount = 1 + self.random.below(INITIAL);
        let id = |id| u32::try_from(id).expect("at most 2^30");
        Transfer { from: id(from), to: id(to), amount }
    }
}

/// The generator of a run: stream 0 is of the transfers, those behind it of the readers.
pub(super) fn draws(seed: u64, stream: u64) -> Draws {
    Draws::new(seed, b"pleach-bench bank     v1", stream)
}

/// The same transfers on plain numbers: those that succeed, one after the other.
#[derive(Debug)]
pub(super) struct Replay {
    teller: Teller,
    left: u64,
    pub(super) balances: Vec<u64>,
}

impl Replay {
    pub(super) fn new(seed: u64, accounts: &Accounts, transfers: u64) -> Self {
        let count = accounts.keys.len();
        let teller = Teller::new(seed, count as u64);
        Self { teller, left: transfers, balances: vec![INITIAL; count] }
    }
}

impl Iterator for Replay {
    type Item = Transfer;

    fn next(&mut self) -> Option<Transfer> {
        while self.left > 0 {
            self.left -= 1;
            let transfer = self.teller.draw();
            let Transfer { from, to, amount } = transfer;
            if let Some(less) = self.balances[from as usize].checked_sub(amount) {
                self.balances[from as usize] = less;
                self.balances[to as usize] += amount;
                return Some(transfer);
            }
        }
        None
    }
}

/// A stored balance.
pub(super) fn balance(value: &[u8]) -> Result<u64> {
    account::decode(value)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_differ_and_fit_every_store() {
        let accounts = Accounts::new(200_000);
        let distinct: HashSet<&Vec<u8>> = accounts.keys.iter().collect();
        assert_eq!(distinct.len(), accounts.keys.len());
        assert!(accounts.keys.iter().all(|key| (2..=31).contains(&key.len())));
        assert!(
            accounts
                .sorted
                .is_sorted_by(|a, b| accounts.keys[*a as usize] < accounts.keys[*b as usize])
        );
        let last = accounts.keys.iter().max().expect("some");
        assert!(last.as_slice() < log_key(0).as_slice() && log_key(255) < log_key(256));
        assert!(
            accounts.keys[4][1..].is_ascii()
                && accounts.keys[3][1..].iter().all(u8::is_ascii_digit)
        );
    }

    #[test]
    fn transfers_are_skewed_and_replays_conserve_the_sum() {
        let accounts = Accounts::new(1000);
        let mut replay = Replay::new(1, &accounts, 20_000);
        let moved: Vec<Transfer> = replay.by_ref().collect();
        assert_eq!(replay.balances.iter().sum::<u64>(), 1000 * INITIAL);
        assert!(moved.iter().all(|one| one.from != one.to && one.amount > 0));
        assert!((8_000..20_000).contains(&moved.len()), "{} of 20,000 succeed", moved.len());
        let mut teller = Teller::new(1, 1000);
        let popular = (0..20_000).filter(|_| teller.draw().from < 500).count();
        // Three quarters of the draws fall in the first half.
        assert!((14_500..15_500).contains(&popular), "{popular}");
    }
}
