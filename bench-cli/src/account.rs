//! Accounts: keys and balances as bytes.

use pleach_core::{Blake3, Hasher as _, Key};

use crate::error::{BenchError, Result};

/// Balance of each loaded account.
pub(crate) const INITIAL_BALANCE: u64 = 1000;

/// Key of an account: BLAKE3 of its id, 8 bytes big-endian.
pub(crate) fn key(id: u64) -> Key {
    Blake3::hash(&id.to_be_bytes())
}

/// A balance as a value: 8 bytes little-endian.
pub(crate) const fn encode(balance: u64) -> [u8; 8] {
    balance.to_le_bytes()
}

/// A value as a balance.
pub(crate) fn decode(value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| {
        BenchError::Wrong(format!("a balance has 8 bytes, this value has {}", value.len()))
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// 32 bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The reverse of [`hex`] for 32 bytes.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Sum of all balances at any time.
pub(crate) const fn total(initial: u64) -> u64 {
    initial * INITIAL_BALANCE
}
