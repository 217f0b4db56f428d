//! Latencies of phases, and small calculations for reports.

use core::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency that can be recorded: ten hours, in nanoseconds.
const LONGEST: u64 = 36_000_000_000_000;

/// Latencies of one phase, in nanoseconds, three significant digits.
#[derive(Debug)]
pub(crate) struct Phase(Histogram<u64>);

impl Phase {
    /// No latencies yet.
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_max(LONGEST, 3).expect("a valid range"))
    }

    /// Adds one.
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LONGEST);
        self.0.saturating_record(nanos.max(1));
    }

    /// Percentiles in milliseconds.
    pub(crate) fn quantiles(&self) -> Quantiles {
        let at = |quantile| ratio(self.0.value_at_quantile(quantile), 1_000_000);
        Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: ratio(self.0.max(), 1_000_000) }
    }
}

/// Percentiles of a phase in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "for reports")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// One count divided by another; 0 if the second is 0.
pub(crate) fn ratio(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { float(count) / float(of) }
}

/// A count per second; 0 if no time has passed.
pub(crate) fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { float(count) / seconds } else { 0.0 }
}

/// Milliseconds of a duration.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
