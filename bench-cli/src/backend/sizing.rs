//! What a run of each backend needs on disk and in memory, estimated before it starts.

use crate::backend::options::peer_arg;
use crate::backend::{EngineOptions, Kind};
use crate::trees::memory;

const MIB: u64 = 1 << 20;
/// Bytes of one of our log segments.
const SEGMENT: u64 = 64 * MIB;

/// An estimated need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) disk: u64,
    pub(crate) memory: u64,
}

/// What a run does to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Accounts that exist at its end.
    pub(crate) accounts: u64,
    /// Reads and writes of accounts, summed over all batches.
    pub(crate) accesses: u64,
}

/// Estimates for a database that is sized for `options.expected_accounts`.
pub(crate) fn need(kind: Kind, options: &EngineOptions, demand: &Demand) -> Need {
    let accounts = options.expected_accounts;
    match kind {
        Kind::Pleach => {
            Need { disk: pleach_disk(options, demand), memory: memory::pleach(options.cache_mib) }
        }
        Kind::Nomt => Need {
            disk: nomt_buckets(options) * 4097 + accounts * 90 + 512 * MIB,
            memory: memory::nomt(nomt_caches_mib(options), accounts),
        },
        // Measured from 2^14 to 2^18 accounts: 250 bytes an account after the load, 500 after some batches, until
        // files are compacted.
        Kind::SpTrie => Need {
            disk: accounts * 250 + demand.accesses.min(accounts) * 1000 + 512 * MIB,
            memory: memory::budgeted(options.cache_mib),
        },
        // All versions stay: an access adds the nodes of its path. The most that `--batches auto` may do is far more
        // than what it does, so that many accesses count as one of each account.
        Kind::Jmt => Need {
            disk: accounts * 500 + demand.accesses.min(accounts) * 1500 + 512 * MIB,
            memory: memory::budgeted(options.cache_mib),
        },
        Kind::Model => Need { disk: accounts * 80 + MIB, memory: accounts * 200 + 16 * MIB },
    }
}

/// The parts of one of our databases, each measured from 2^8 to 2^21 accounts, plus a twentieth.
fn pleach_disk(options: &EngineOptions, demand: &Demand) -> u64 {
    let Demand { accounts, accesses } = *demand;
    // Leaf pages, and up to half as many free pages that wait to be reused: an access frees at
    // most the page that it rewrites.
    let leaf = accounts * 72;
    let aged = (leaf / 2).min(accesses.saturating_mul(4096));
    // Two images of the index and of the entries that are not in pages yet.
    let images = 2 * (accounts * 2 + accesses.min(accounts) * 16);
    // The log grows by whole segments until a checkpoint frees them.
    let limit = 2 * options.log_limit_mib * MIB;
    let written = accesses.saturating_mul(90);
    let segments = if written < limit { 1 + written / SEGMENT } else { 2 + limit / SEGMENT };
    let all = leaf + aged + images + segments * SEGMENT + 4 * MIB;
    all + all / 20
}

/// Both caches of nomt: half of the budget each, unless `--peer-arg` says otherwise.
fn nomt_caches_mib(options: &EngineOptions) -> u64 {
    let cache = |name| peer_arg(options, name).and_then(|text| text.parse::<u64>().ok());
    ["nomt.page_cache_mib", "nomt.leaf_cache_mib"]
        .map(|name| cache(name).unwrap_or(options.cache_mib / 2))
        .iter()
        .fold(0u64, |sum, mib| sum.saturating_add(*mib))
        .min(1 << 40)
}

/// Buckets of nomt's hash table: `nomt.buckets` if given.
fn nomt_buckets(options: &EngineOptions) -> u64 {
    let given = peer_arg(options, "nomt.buckets").and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| memory::nomt_buckets(options.expected_accounts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::values::{Durability, IoChoice, Switch};

    fn options(log_limit_mib: u64) -> EngineOptions {
        EngineOptions {
            durability: Durability::Commit,
            witness: Switch(true),
            prefetch: Switch(true),
            cache_mib: 256,
            threads: 1,
            in_flight: 1,
            io: IoChoice::Auto,
            trie_cache_kib: None,
            load_mib: None,
            log_limit_mib,
            history: 0,
            history_mib: None,
            overlay_window: 0,
            ahead: false,
            timed: false,
            peer_args: Vec::new(),
            expected_accounts: 1,
        }
    }

    /// The estimate for the first of these was once 0.56 GiB.
    #[test]
    fn the_disk_of_our_engine_is_about_what_was_measured_and_not_less() {
        // 2^N accounts, transfers a batch, batches and warm-up, log limit, MiB on disk at the end.
        for (log2, batch, batches, limit, measured) in [
            (8, 50, 9, 256, 65),
            (16, 1000, 14, 256, 76),
            (16, 5000, 44, 256, 83),
            (18, 5000, 44, 256, 97),
            (20, 2000, 9, 256, 168),
            (20, 25_000, 44, 256, 315),
            (20, 25_000, 44, 16, 269),
        ] {
            let demand = Demand {
                accounts: (1u64 << log2) + batch / 4 * batches,
                accesses: 2 * batch * batches,
            };
            let need = need(Kind::Pleach, &options(limit), &demand).disk / MIB;
            assert!(
                (measured..=measured * 3 / 2).contains(&need),
                "2^{log2}, {batches} x {batch}: {need} MiB estimated, {measured} measured"
            );
        }
    }
}
