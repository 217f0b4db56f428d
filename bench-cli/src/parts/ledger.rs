//! Accounts, contracts and their slots, and token transfers between them.

use std::collections::{HashMap, HashSet};

use pleach::{Blake3, Hasher as _, Key, Value};

use crate::draws::Draws;
use crate::error::{BenchError, Result};
use crate::trees::{Change, Pair, Tree};

/// What every balance and slot begins with.
pub(super) const BEGINNING: u64 = 1_000_000;
/// Accounts that send most.
const HOT: u64 = 2000;

/// Numbers of accounts, contracts and slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    pub(super) eoa: u64,
    pub(super) contracts: u64,
    pub(super) slots: u64,
}

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Account(u64),
    Slot { contract: u64, slot: u64 },
}

impl Item {
    pub(super) fn key(self) -> Key {
        match self {
            Self::Account(id) => Blake3::hash(&id.to_be_bytes()),
            Self::Slot { contract, slot } => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&contract.to_be_bytes());
                bytes[8..].copy_from_slice(&slot.to_be_bytes());
                Blake3::hash(&bytes)
            }
        }
    }

    /// The value with this number: an account's nonce, a slot's amount.
    pub(super) fn value(self, number: u64) -> Value {
        match self {
            Self::Account(id) => {
                let mut bytes = [0; 72];
                bytes[..8].copy_from_slice(&number.to_be_bytes());
                bytes[32..40].copy_from_slice(&BEGINNING.to_be_bytes());
                bytes[40..].copy_from_slice(&Blake3::hash(&id.to_le_bytes()));
                Value::from(bytes.as_slice())
            }
            Self::Slot { .. } => {
                let mut bytes = [0; 32];
                bytes[24..].copy_from_slice(&number.to_be_bytes());
                Value::from(bytes.as_slice())
            }
        }
    }

    /// The number in a value.
    pub(super) fn number(self, value: &[u8]) -> Option<u64> {
        let (length, bytes) = match self {
            Self::Account(_) => (72, value.get(..8)?),
            Self::Slot { .. } => (32, value.get(24..)?),
        };
        (value.len() == length).then(|| bytes.try_into().map(u64::from_be_bytes).ok())?
    }

    /// The number that it begins with.
    pub(super) const fn beginning(self) -> u64 {
        match self {
            Self::Account(_) => 0,
            Self::Slot { .. } => BEGINNING,
        }
    }
}

/// A token transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) contract: u64,
}

impl Ledger {
    /// Keys in all.
    pub(super) const fn keys(&self) -> u64 {
        self.eoa + self.contracts * (1 + self.slots)
    }

    /// All of them: accounts, contracts among them, then slots.
    pub(super) fn items(self) -> impl Iterator<Item = Item> {
        let accounts = (0..self.eoa + self.contracts).map(Item::Account);
        let slots = (self.eoa..self.eoa + self.contracts).flat_map(move |contract| {
            (0..self.slots).map(move |slot| Item::Slot { contract, slot })
        });
        accounts.chain(slots)
    }

    /// All keys with what they begin with.
    pub(super) fn genesis(self) -> impl Iterator<Item = Pair> {
        self.items().map(|item| (item.key(), item.value(item.beginning()).to_vec()))
    }

    /// Draws a transfer: who sends (a draw for hot or not, one for whom), who receives, which contract.
    pub(super) fn draw(&self, random: &mut Draws) -> Transfer {
        let hot = random.below(10) < 9;
        let from = random.below(if hot { HOT.min(self.eoa) } else { self.eoa });
        let to = random.below(self.eoa);
        let contract = self.eoa + random.below(self.contracts);
        Transfer { from, to, contract }
    }

    /// What a transfer touches.
    pub(super) fn touched(&self, transfer: &Transfer) -> [Item; 3] {
        let slot =
            |account: u64| Item::Slot { contract: transfer.contract, slot: account % self.slots };
        [Item::Account(transfer.from), slot(transfer.from), slot(transfer.to)]
    }
}

/// What a block's transfers touch, each once, in the order of first use.
pub(super) fn items(ledger: &Ledger, block: &[Transfer]) -> Vec<Item> {
    let mut seen = HashSet::new();
    let all = block.iter().flat_map(|transfer| ledger.touched(transfer));
    all.filter(|item| seen.insert(*item)).collect()
}

/// Executes transfers over numbers: a nonce rises, one slot falls and one rises.
pub(super) fn execute(
    ledger: &Ledger,
    block: &[Transfer],
    numbers: &mut HashMap<Item, u64>,
) -> Result<()> {
    let lost = || BenchError::Wrong("a transfer touches what was not read".to_owned());
    for transfer in block {
        let [account, from, to] = ledger.touched(transfer);
        *numbers.get_mut(&account).ok_or_else(lost)? += 1;
        let amount = numbers.get_mut(&from).ok_or_else(lost)?;
        // Nobody sends what is not there; the nonce has risen all the same.
        if let Some(less) = amount.checked_sub(1) {
            *amount = less;
            *numbers.get_mut(&to).ok_or_else(lost)? += 1;
        }
    }
    Ok(())
}

/// Reads items, and gives their numbers.
pub(super) fn read(tree: &mut dyn Tree, items: &[Item]) -> Result<HashMap<Item, u64>> {
    let keys: Vec<Key> = items.iter().map(|item| item.key()).collect();
    let mut numbers = HashMap::new();
    for (item, value) in items.iter().zip(tree.read(&keys)?) {
        let number = value.as_deref().and_then(|value| item.number(value));
        let Some(number) = number else {
            return Err(BenchError::Wrong(format!("{item:?} has no number")));
        };
        numbers.insert(*item, number);
    }
    Ok(numbers)
}

/// What is written, as a block.
pub(super) fn changes(items: &[Item], numbers: &HashMap<Item, u64>) -> Vec<Change> {
    items.iter().map(|item| (item.key(), Some(item.value(numbers[item]).to_vec()))).collect()
}
