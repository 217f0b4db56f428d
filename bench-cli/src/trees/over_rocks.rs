//! What the Merkle trees over RocksDB have in common.

use pleach_core::{Blake3, Hasher as _, Key, ValueHash};

use super::tree::Change;
use crate::rocks::Budget;

/// Settings of a tree: its own, then when it syncs, then those of RocksDB.
pub(super) fn settings(
    own: Vec<(String, String)>,
    durable: bool,
    budget: &Budget,
) -> Vec<(String, String)> {
    let durability = if durable { "log synced with each commit" } else { "none" };
    let durability = ("durability".to_owned(), durability.to_owned());
    own.into_iter().chain([durability]).chain(budget.settings()).collect()
}

/// The hash of a value, as a witness proves it.
pub(super) fn hashed(value: Option<&[u8]>) -> Option<ValueHash> {
    value.map(|value| Blake3::hash(value).into())
}

/// Keys written, with the hashes of their values.
pub(super) fn hashes(writes: &[Change]) -> Vec<(Key, Option<ValueHash>)> {
    writes.iter().map(|(key, value)| (*key, hashed(value.as_deref()))).collect()
}

/// Bytes of writes beside a proof: key, a byte that says whether there is a value, and the value.
pub(super) fn bytes(writes: &[Change]) -> usize {
    writes.iter().map(|(_, value)| 33 + value.as_ref().map_or(0, Vec::len)).sum()
}
