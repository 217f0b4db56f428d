//! How much memory an engine takes when it is open, about, in bytes, and the size of the one structure that must be
//! known in advance: nomt's hash table.

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

/// Buckets of nomt's hash table: the number of pages expected for uniform keys, at an occupancy of two thirds, but at
/// least the crate's own default of 64,000.
pub(crate) fn nomt_buckets(keys: u64) -> u64 {
    (expected_pages(keys) * 3 / 2).max(64_000)
}

/// Six trie levels make a page, which is stored if at least 20 leaves lie below it. At level
/// `k` the leaves below a page are Poisson-distributed with mean `accounts / 64^k`.
fn expected_pages(accounts: u64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let accounts = accounts as f64;
    let mut pages = 0.0;
    let mut places = 1.0;
    for _ in 0..10 {
        pages += places * at_least(20, accounts / places);
        places *= 64.0;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    let rounded = pages as u64;
    rounded + 1
}

/// P(X >= k) for X Poisson-distributed with this mean.
fn at_least(k: u32, mean: f64) -> f64 {
    if mean > 200.0 {
        return 1.0;
    }
    let mut term = libm::exp(-mean);
    let mut below = 0.0;
    for i in 0..k {
        below += term;
        term *= mean / f64::from(i + 1);
    }
    (1.0 - below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_pages_jump_where_the_keys_fill_another_level() {
        // Published: a table of about 1 GiB at 2^27 and 13 GiB at 2^28.
        let pages = |log2: u32| expected_pages(1 << log2);
        assert!((260_000..300_000).contains(&pages(27)), "{}", pages(27));
        assert!((2_500_000..4_500_000).contains(&pages(28)), "{}", pages(28));
    }
}
