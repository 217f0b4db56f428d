//! Figures: measurements of an engine, with their spread.

use core::time::Duration;
use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Longest time that can be recorded: ten hours, in nanoseconds.
const LONGEST: u64 = 36_000_000_000_000;

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "for reports, and counts are below 2^53")]
pub const fn float(count: u64) -> f64 {
    count as f64
}

/// One count divided by another; 0 if the second is 0.
pub fn ratio(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { float(count) / float(of) }
}

/// The unit of a figure's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Milliseconds: fewer are better.
    Ms,
    /// Nanoseconds of one operation: fewer are better.
    Nanos,
    /// Operations a second: more are better.
    PerSecond,
    /// Bytes: fewer are better.
    Bytes,
    /// A number of which neither more nor less is better.
    Count,
    /// A quotient: less is better.
    Ratio,
}

impl Unit {
    /// True when a larger figure is better. `None` where the ratio of two engines means nothing.
    pub const fn more_is_better(self) -> Option<bool> {
        match self {
            Self::PerSecond => Some(true),
            Self::Count => None,
            Self::Ms | Self::Nanos | Self::Bytes | Self::Ratio => Some(false),
        }
    }

    /// The unit's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::Nanos => "ns",
            Self::PerSecond => "a second",
            Self::Bytes => "bytes",
            Self::Count => "",
            Self::Ratio => "times",
        }
    }
}

/// One figure of one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Which of the workload's cases, such as a batch size. Engines are compared within one.
    pub case: String,
    /// The name of the measurement.
    pub name: String,
    pub unit: Unit,
    /// The median of the samples.
    pub p50: f64,
    /// Quartiles: the spread of the median. Equal to it where there is one sample.
    pub low: f64,
    pub high: f64,
    /// The tail of latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// Number of samples.
    pub samples: u64,
    /// True when the figure depends on when a commit is durable: engines of other durability have no ratio to it.
    #[serde(default)]
    pub commits: bool,
}

/// The upper end of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Figure {
    /// A single number.
    pub fn one(case: &str, name: &str, unit: Unit, value: f64) -> Self {
        Self {
            case: case.to_owned(),
            name: name.to_owned(),
            unit,
            p50: value,
            low: value,
            high: value,
            tail: None,
            samples: 1,
            commits: false,
        }
    }

    /// Marks the figure: it depends on when a commit is durable.
    pub fn committed(mut self) -> Self {
        self.commits = true;
        self
    }
}

/// Times of a repeated operation.
#[derive(Debug)]
pub struct Times {
    histogram: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_max(LONGEST, 3).expect("a valid range") }
    }
}

impl Times {
    /// Adds one.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LONGEST);
        self.histogram.saturating_record(nanos.max(1));
    }

    /// Adds the times of another.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("the same range");
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Latencies, in milliseconds, with their tail.
    pub fn latencies(&self, case: &str, name: &str) -> Figure {
        self.scaled(case, name, Unit::Ms, 1e-6, true)
    }

    /// Nanoseconds of each of `operations` that one time has.
    pub fn each(&self, case: &str, name: &str, operations: u64) -> Figure {
        self.scaled(case, name, Unit::Nanos, 1.0 / float(operations.max(1)), false)
    }

    /// Latencies of single operations in nanoseconds, with their tail.
    pub fn nanos(&self, case: &str, name: &str) -> Figure {
        self.scaled(case, name, Unit::Nanos, 1.0, true)
    }

    /// How many of `operations` that one time has are done in a second.
    pub fn per_second(&self, case: &str, name: &str, operations: u64) -> Figure {
        let rate = |quantile| match self.histogram.value_at_quantile(quantile) {
            0 => 0.0,
            nanos => float(operations) * 1e9 / float(nanos),
        };
        Figure {
            low: rate(0.75),
            high: rate(0.25),
            samples: self.count(),
            ..Figure::one(case, name, Unit::PerSecond, rate(0.5))
        }
    }

    /// A rate of the whole, with the spread of its parts, each of `operations`.
    pub fn rate(&self, case: &str, name: &str, operations: u64, rate: f64) -> Figure {
        let parts = self.per_second(case, name, operations);
        Figure { p50: rate, low: parts.low.min(rate), high: parts.high.max(rate), ..parts }
    }

    fn scaled(&self, case: &str, name: &str, unit: Unit, times: f64, tail: bool) -> Figure {
        let at = |quantile| float(self.histogram.value_at_quantile(quantile)) * times;
        let tail = tail.then(|| Tail {
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: float(self.histogram.max()) * times,
        });
        Figure {
            low: at(0.25),
            high: at(0.75),
            tail,
            samples: self.count(),
            ..Figure::one(case, name, unit, at(0.5))
        }
    }
}

/// The time that some work takes, and what it gives.
pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let from = Instant::now();
    let made = work();
    (from.elapsed(), made)
}

/// The same of work that may fail.
pub fn tried<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let (took, made) = timed(work);
    Ok((took, made?))
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number, rounded to the digits that are worth reading.
pub fn rounded(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if size >= 100.0 {
        let digits = format!("{size:.0}");
        let text = digits.parse().map_or(digits, grouped);
        if value < 0.0 { format!("-{text}") } else { text }
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else if size >= 0.01 {
        format!("{value:.3}")
    } else {
        // Two digits, wherever they begin: three places would be 0.000.
        let text = format!("{value:.1e}");
        let places = text.split_once("e-").and_then(|(_, power)| power.parse().ok());
        format!("{value:.*}", places.map_or(3, |power: usize| power + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        for (value, text) in [
            (0.0, "0"),
            (0.0625, "0.062"),
            (0.000_412, "0.00041"),
            (-0.000_000_099_9, "-0.00000010"),
            (12.345, "12.35"),
            (999.6, "1,000"),
            (1_234_567.8, "1,234,568"),
        ] {
            assert_eq!(rounded(value), text);
        }
    }

    #[test]
    fn a_rate_is_that_of_the_median_time_and_its_quartiles_are_in_order() {
        let mut times = Times::default();
        for millis in [10, 20, 40] {
            times.record(Duration::from_millis(millis));
        }
        let rate = times.per_second("", "", 1000);
        assert!((rate.p50 / 50_000.0 - 1.0).abs() < 0.01, "{}", rate.p50);
        assert!(rate.low < rate.p50 && rate.p50 < rate.high);
        let each = times.each("", "", 1000);
        assert!((each.p50 / 20_000.0 - 1.0).abs() < 0.01, "{}", each.p50);
    }
}
