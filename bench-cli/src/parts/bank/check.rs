//! What a bank must say of itself in the end.

use super::accounts::{Accounts, INITIAL, Replay, balance, log_key};
use crate::error::{BenchError, Result};
use crate::stores::{Pair, Store, StoreView};

/// Up to so many pairs the root is compared with that of a load of the same.
pub(super) const RELOADED: u64 = 1 << 20;

fn wrong(text: String) -> BenchError {
    BenchError::Wrong(text)
}

/// The sum of all accounts is what it was in the beginning.
pub(super) fn conserved(view: &dyn StoreView, accounts: &Accounts) -> Result<()> {
    let (mut sum, mut count, mut failed) = (0_u64, 0_u64, None);
    let mut add = |key: &[u8], value: &[u8]| {
        if key >= log_key(0).as_slice() {
            return false;
        }
        count += 1;
        match balance(value) {
            Ok(balance) => sum = sum.wrapping_add(balance),
            Err(error) => failed = Some(error),
        }
        failed.is_none()
    };
    view.scan(&[], &mut add)?;
    failed.map_or(Ok(()), Err)?;
    let expected = accounts.keys.len() as u64;
    if (count, sum) != (expected, expected * INITIAL) {
        return Err(wrong(format!("a view has {count} accounts with {sum} in all")));
    }
    Ok(())
}

/// Everything is there, in order, and nothing else: accounts with the balances of the replay, then the log. Gives the
/// number of pairs.
pub(super) fn everything(
    view: &dyn StoreView,
    accounts: &Accounts,
    replay: impl Fn() -> Replay,
) -> Result<u64> {
    let mut expected = pairs(accounts, replay);
    let (mut seen, mut odd) = (0_u64, None);
    let mut compare = |key: &[u8], value: &[u8]| {
        match expected.next() {
            Some((k, v)) if k == key && v == value => seen += 1,
            other => odd = Some((key.to_vec(), value.to_vec(), other)),
        }
        odd.is_none()
    };
    view.scan(&[], &mut compare)?;
    if let Some((key, value, other)) = odd {
        let text = format!("pair {seen} is {key:02x?} {value:02x?}, and not {other:02x?}");
        return Err(wrong(text));
    }
    match expected.next() {
        None => Ok(seen),
        Some(missing) => Err(wrong(format!("only {seen} pairs are there, {missing:02x?} is not"))),
    }
}

/// All pairs in the order of keys, of the accounts and then of the log.
pub(super) fn pairs(
    accounts: &Accounts,
    replay: impl Fn() -> Replay,
) -> impl Iterator<Item = Pair> {
    let mut last = replay();
    last.by_ref().for_each(drop);
    let balances = last.balances;
    let balance = move |id: &u32| {
        let key = accounts.keys[*id as usize].clone();
        (key, balances[*id as usize].to_le_bytes().to_vec())
    };
    let log = (0..).zip(replay());
    let log = log.map(|(number, one)| (log_key(number).to_vec(), one.logged().to_vec()));
    accounts.sorted.iter().map(balance).chain(log)
}

/// The root is that of a load of the same pairs into another store of the engine.
pub(super) fn root(
    store: &dyn Store,
    other: &dyn Store,
    accounts: &Accounts,
    replay: impl Fn() -> Replay,
) -> Result<()> {
    other.load(&mut pairs(accounts, replay))?;
    if other.root()? == store.root()? {
        return Ok(());
    }
    Err(wrong("the root is not that of a load of the same pairs".to_owned()))
}
