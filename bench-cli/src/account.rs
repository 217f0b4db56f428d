//! Accounts: keys and balances as bytes.

use pleach_core::{Blake3, Hasher as _, Key};

use crate::error::{BenchError, Result};

/// The balance that each account is loaded with.
pub(crate) const INITIAL_BALANCE: u64 = 1000;

/// Key of an account: BLAKE3 of its id, 8 bytes big-endian.
pub(crate) fn key(id: u64) -> Key {
    Blake3::hash(&id.to_be_bytes())
}

/// A balance as the value that is stored: 8 bytes, little-endian.
pub(crate) const fn encode(balance: u64) -> [u8; 8] {
    balance.to_le_bytes()
}

/// A stored value as a balance.
pub(crate) fn decode(value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| {
        BenchError::Wrong(format!("a balance has 8 bytes, this value has {}", value.len()))
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// The sum of all balances, which transfers conserve.
pub(crate) const fn total(initial: u64) -> u64 {
    initial * INITIAL_BALANCE
}
