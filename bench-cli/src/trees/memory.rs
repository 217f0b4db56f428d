//! How much memory an engine takes when it is open, about, in bytes.

const MIB: u64 = 1 << 20;

/// This project's engine: the budget, and what an allocator and threads add.
pub(crate) const fn pleach(cache_mib: u64) -> u64 {
    cache_mib * MIB * 11 / 10 + 48 * MIB
}

/// The crate nomt: its caches, and what it has of each key beside them.
pub(crate) const fn nomt(caches_mib: u64, keys: u64) -> u64 {
    caches_mib * MIB + 512 * MIB + keys * 12
}

/// An engine with a budget of its own, and blocks in memory.
pub(crate) const fn budgeted(cache_mib: u64) -> u64 {
    cache_mib * MIB * 11 / 10 + 256 * MIB
}

/// Pairs of short keys and values, as a map or a sorted list has them.
pub(crate) const fn pairs(keys: u64) -> u64 {
    keys * 200
}
