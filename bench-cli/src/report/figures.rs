//! Figures that both the table and the JSON are made from.

use crate::child::RunResult;
use crate::measure::rate;

/// The rates that a run is quoted with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) drained: f64,
    pub(crate) acknowledged: f64,
    pub(crate) accounts: f64,
}

impl Rates {
    /// Rates of a run.
    pub(crate) fn of(run: &RunResult) -> Self {
        Self {
            drained: rate(run.transfers, run.seconds_drained),
            acknowledged: rate(run.transfers, run.seconds_acknowledged),
            accounts: rate(run.accounts, run.seconds_drained),
        }
    }
}

/// SSD reads: 4096-byte pages that the kernel read for the process.
pub(crate) const fn ssd_reads(run: &RunResult) -> u64 {
    run.disk.read / 4096
}

/// Pages that were not in a cache: leaf misses, upper pages, rereads.
pub(crate) fn misses(run: &RunResult) -> Option<u64> {
    let counters = &run.counters;
    Some(counters.cache_misses? + counters.upper_trie_pages_read? + counters.page_rereads?)
}
