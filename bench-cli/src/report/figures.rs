//! Figures that the table, the JSON and the page are made from, and how two of them are compared.

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

/// Which of two values of a figure is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    High,
    Low,
    /// It is no merit, either way.
    Neither,
}

/// Within a twentieth, two values count as level.
const LEVEL: f64 = 1.05;

/// What one value is beside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Better,
    Level,
    Worse,
}

impl Judgement {
    /// As text, and as the class of the page's style.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Level => "level",
            Self::Worse => "worse",
        }
    }
}

impl Better {
    /// Judges the first of two positive values; nothing where it is no merit.
    pub(crate) fn judge(self, first: f64, other: f64) -> Option<Judgement> {
        let gain = match self {
            Self::High => first / other,
            Self::Low => other / first,
            Self::Neither => return None,
        };
        Some(match gain {
            gain if gain >= LEVEL => Judgement::Better,
            gain if gain <= 1.0 / LEVEL => Judgement::Worse,
            _ => Judgement::Level,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_better_depends_on_the_figure() {
        assert_eq!(Better::High.judge(2.0, 1.0), Some(Judgement::Better));
        assert_eq!(Better::Low.judge(2.0, 1.0), Some(Judgement::Worse));
        assert_eq!(Better::High.judge(1.0, 2.0), Some(Judgement::Worse));
        assert_eq!(Better::Low.judge(1.0, 1.02), Some(Judgement::Level));
        assert_eq!(Better::Neither.judge(9.0, 1.0), None);
    }
}
