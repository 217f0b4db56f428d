//! Accounts, contracts with slots, and blocks of token transfers between them.

use hashbrown::HashMap;
use pleach::Value;
use pleach_core::{Hasher, Key};

use super::load_keys;
use crate::draw::Draws;
use crate::engine::{Engine, EngineKind, Op, StateAccess, values};
use crate::error::{Result, wrong};
use crate::job_context::JobContext;

/// What every balance and slot begins with.
const BEGINNING: u64 = 1_000_000;
/// Accounts that send most.
const HOT: u64 = 2000;
/// Up to this many keys all are read back, and the root is that of a load of them.
const REPLAYED: u64 = 1 << 20;
/// Keys that are read at a time when many are read back.
const CHUNK: usize = 16_384;

/// Numbers of accounts, contracts and slots.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    pub eoa: u64,
    pub contracts: u64,
    /// Of each contract.
    pub slots: u64,
    /// Whether there is a token: one contract more, with a slot for each hot account. Then all transfers are of the
    /// token and between these accounts; else of any contract and to any account.
    pub token: bool,
}

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    Account(u64),
    Slot { contract: u64, slot: u64 },
}

/// The numbers of items that blocks have touched.
pub type KnownItems = HashMap<Item, u64>;

impl Item {
    pub fn key(self) -> Key {
        match self {
            Self::Account(id) => Hasher::BLAKE3.hash(&id.to_be_bytes()),
            Self::Slot { contract, slot } => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&contract.to_be_bytes());
                bytes[8..].copy_from_slice(&slot.to_be_bytes());
                Hasher::BLAKE3.hash(&bytes)
            }
        }
    }

    /// The value with this number: an account's nonce, a slot's amount.
    pub fn value(self, number: u64) -> Value {
        match self {
            Self::Account(id) => {
                let mut bytes = [0; 72];
                bytes[..8].copy_from_slice(&number.to_be_bytes());
                bytes[32..40].copy_from_slice(&BEGINNING.to_be_bytes());
                bytes[40..].copy_from_slice(&Hasher::BLAKE3.hash(&id.to_le_bytes()));
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
    pub fn number(self, value: &[u8]) -> Option<u64> {
        let (length, bytes) = match self {
            Self::Account(_) => (72, value.get(..8)?),
            Self::Slot { .. } => (32, value.get(24..)?),
        };
        (value.len() == length).then(|| bytes.try_into().map(u64::from_be_bytes).ok())?
    }

    /// The number after some blocks.
    fn known(self, known: &KnownItems) -> u64 {
        let beginning = if matches!(self, Self::Account(_)) { 0 } else { BEGINNING };
        known.get(&self).copied().unwrap_or(beginning)
    }
}

impl Ledger {
    fn hot(&self) -> u64 {
        HOT.min(self.eoa)
    }

    /// Keys in all.
    pub fn keys(&self) -> u64 {
        let token = if self.token { 1 + self.hot() } else { 0 };
        self.eoa + self.contracts * (1 + self.slots) + token
    }

    /// All of them: accounts, contracts among them, then slots; the token is the last.
    pub fn items(self) -> impl Iterator<Item = Item> {
        let contracts = self.eoa..self.eoa + self.contracts;
        let (token, accounts) = (contracts.end, contracts.end + u64::from(self.token));
        let slots_of = |contract, slots| (0..slots).map(move |slot| Item::Slot { contract, slot });
        let slots = contracts.flat_map(move |contract| slots_of(contract, self.slots));
        let of_token = slots_of(token, if self.token { self.hot() } else { 0 });
        (0..accounts).map(Item::Account).chain(slots).chain(of_token)
    }

    /// Loads what is there after some blocks; none are known before the first.
    pub fn load(
        &self,
        engine: &mut dyn Engine,
        kind: EngineKind,
        known: &KnownItems,
    ) -> Result<()> {
        let keys = self.items().map(|item| (item.key(), item));
        load_keys(engine, kind, keys, |item| item.value(item.known(known)))
    }

    /// Draws a block of transfers.
    pub fn block(&self, transfers: u64, random: &mut Draws) -> LedgerBlock {
        let mut block = LedgerBlock::default();
        let mut places: HashMap<Item, usize> = HashMap::new();
        for _ in 0..transfers {
            let touched = self.transfer(random).map(|item| {
                *places.entry(item).or_insert_with(|| {
                    block.items.push(item);
                    block.keys.push(item.key());
                    block.items.len() - 1
                })
            });
            block.transfers.push(touched);
        }
        block
    }

    /// Draws a transfer. Of the token: who sends, and who receives. Else: whether a hot account sends, which one, who
    /// receives, which contract.
    fn transfer(&self, random: &mut Draws) -> [Item; 3] {
        let hot = self.hot();
        if self.token {
            let (from, to) = (random.below(hot), random.below(hot));
            // Nobody pays themselves: the next one is taken, without another draw.
            let to = if from == to { (to + 1) % hot } else { to };
            let slot = |slot| Item::Slot { contract: self.eoa + self.contracts, slot };
            return [Item::Account(from), slot(from), slot(to)];
        }
        let from = if random.below(10) < 9 { random.below(hot) } else { random.below(self.eoa) };
        let to = random.below(self.eoa);
        let contract = self.eoa + random.below(self.contracts);
        let slot = |account| Item::Slot { contract, slot: account % self.slots };
        [Item::Account(from), slot(from), slot(to)]
    }

    /// Checks what is there after some blocks: all, and the root of a load of it, or, of large ledgers, all that was
    /// touched. Engines must have the same.
    pub fn check(
        &self,
        engine: &mut dyn Engine,
        side: &JobContext,
        known: &KnownItems,
        blocks: u64,
    ) -> Result<()> {
        let all = self.keys() <= REPLAYED;
        let mut items: Vec<Item> =
            if all { self.items().collect() } else { known.keys().copied().collect() };
        items.sort_unstable();
        let mut expected = blake3::Hasher::new();
        for item in &items {
            digest(&mut expected, Some(&item.value(item.known(known))));
        }
        let found = contents(engine, &items)?;
        if found != expected.finalize() {
            return wrong(format!("the contents after {blocks} blocks are not the replay's"));
        }
        side.check(format!("contents after {blocks} blocks"), found.to_string())?;
        if all && side.kind.caps().our_root {
            let folder = side.scratch()?;
            let mut other = side.open_other(EngineKind::Pleach, folder.path().to_owned())?;
            self.load(&mut *other, EngineKind::Pleach, known)?;
            let root = other.root();
            other.close()?;
            if root != engine.root() {
                return wrong(format!("the root after {blocks} blocks is not that of a load"));
            }
        }
        Ok(())
    }
}

/// A block of transfers.
#[derive(Debug, Default)]
pub struct LedgerBlock {
    /// What it touches, each once, in the order of first use.
    pub items: Vec<Item>,
    keys: Vec<Key>,
    /// Of each transfer, where in `items` are the sender, its slot and the receiver's.
    transfers: Vec<[usize; 3]>,
}

impl LedgerBlock {
    /// Begins it over the newest one, reads all that it touches, and executes it: the numbers before and after.
    pub fn execute(&self, engine: &mut dyn Engine) -> Result<[Vec<u64>; 2]> {
        engine.begin(false)?;
        engine.announce(0, &self.keys)?;
        let before = read(engine, &self.items, &self.keys)?;
        let mut after = before.clone();
        for [account, from, to] in &self.transfers {
            after[*account] += 1;
            // Nobody sends what is not there; the nonce has risen all the same.
            if let Some(less) = after[*from].checked_sub(1) {
                after[*from] = less;
                after[*to] += 1;
            }
        }
        Ok([before, after])
    }

    /// What it does to each key.
    pub fn accesses(&self, after: &[u64]) -> Vec<StateAccess> {
        let each = self.items.iter().zip(&self.keys).zip(after);
        let access = |((item, key), number): ((&Item, &Key), &u64)| StateAccess {
            space: 0,
            key: *key,
            op: Op::ReadWrite(Some(item.value(*number))),
        };
        each.map(access).collect()
    }

    /// What it has read must be what the blocks before have left; what it has left is known from now on.
    pub fn check(&self, [before, after]: &[Vec<u64>; 2], known: &mut KnownItems) -> Result<()> {
        for ((item, before), after) in self.items.iter().zip(before).zip(after) {
            let expected = item.known(known);
            if *before != expected {
                return wrong(format!("a block read {before} of {item:?}, not {expected}"));
            }
            known.insert(*item, *after);
        }
        Ok(())
    }
}

/// Reads items, as the block that was begun sees them.
pub fn read(engine: &mut dyn Engine, items: &[Item], keys: &[Key]) -> Result<Vec<u64>> {
    let mut numbers = vec![None; items.len()];
    engine.read(0, keys, &mut |at, value| {
        numbers[at] = value.and_then(|value| items[at].number(value));
    })?;
    match numbers.iter().position(Option::is_none) {
        Some(at) => wrong(format!("{:?} has no number", items[at])),
        None => Ok(numbers.into_iter().flatten().collect()),
    }
}

/// The digest of the values of items in the newest state.
pub fn contents(engine: &mut dyn Engine, items: &[Item]) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    for chunk in items.chunks(CHUNK) {
        let keys: Vec<Key> = chunk.iter().map(|item| item.key()).collect();
        for value in values(engine, &keys)? {
            digest(&mut hasher, value.as_deref());
        }
    }
    Ok(hasher.finalize())
}

fn digest(hasher: &mut blake3::Hasher, value: Option<&[u8]>) {
    // A value that is absent is none of any length.
    let length = value.map_or(u64::MAX, |value| value.len() as u64);
    hasher.update(&length.to_be_bytes());
    hasher.update(value.unwrap_or_default());
}
