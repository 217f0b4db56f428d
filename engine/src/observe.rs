//! Metrics for the recorder of the crate `metrics` (feature `metrics`).
//!
//! `record` gives the recorder all of `Metrics`, when the caller wants: mostly when it is scraped. Histograms are
//! recorded as operations end; without the feature there are none, and without a recorder each costs one check for it.
//!
//! All open databases of a process share the names.

use std::time::Duration;

#[cfg(feature = "metrics")]
use crate::metrics::{MetricKind, MetricUnit, Metrics};

/// The histograms, in seconds, with their texts. Those of phases have the label `phase`.
pub const HISTOGRAMS: [(&str, &str); 3] = [
    ("pleach_finish_seconds", "Time of a finish, all namespaces together."),
    ("pleach_commit_seconds", "Time of a commit, from the call to the acknowledgement."),
    (
        "pleach_phase_seconds",
        "Time of a phase of a finish or a commit, by its label `phase`: `Phase` has the list.",
    ),
];

pub(crate) const FINISH: &str = HISTOGRAMS[0].0;
pub(crate) const COMMIT: &str = HISTOGRAMS[1].0;

/// Records the duration of a finish or a commit.
#[cfg(feature = "metrics")]
pub(crate) fn operation(name: &'static str, wall: Duration) {
    metrics::histogram!(name).record(wall);
}

/// Does nothing: there are no histograms.
#[cfg(not(feature = "metrics"))]
pub(crate) fn operation(_: &'static str, _: Duration) {}

/// Records the duration of a phase.
#[cfg(feature = "metrics")]
pub(crate) fn phase(name: &'static str, wall: Duration) {
    metrics::histogram!(HISTOGRAMS[2].0, "phase" => name).record(wall);
}

/// Does nothing: there are no histograms.
#[cfg(not(feature = "metrics"))]
pub(crate) fn phase(_: &'static str, _: Duration) {}

/// Tells the recorder the texts and units of all metrics; once, after it is installed.
#[cfg(feature = "metrics")]
pub fn describe() {
    for info in Metrics::ALL {
        let unit = match info.unit {
            MetricUnit::Count => metrics::Unit::Count,
            MetricUnit::Bytes => metrics::Unit::Bytes,
            MetricUnit::Nanoseconds => metrics::Unit::Nanoseconds,
            MetricUnit::Microseconds => metrics::Unit::Microseconds,
        };
        match info.kind {
            MetricKind::Counter => metrics::describe_counter!(info.name, unit, info.help()),
            MetricKind::Gauge => metrics::describe_gauge!(info.name, unit, info.help()),
        }
    }
    for (name, help) in HISTOGRAMS {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }
}

/// Gives the recorder the metrics of a database.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn record(figures: &Metrics) {
    for info in Metrics::ALL {
        let value = info.value(figures);
        match info.kind {
            MetricKind::Counter => metrics::counter!(info.name).absolute(value),
            MetricKind::Gauge => metrics::gauge!(info.name).set(value as f64),
        }
    }
}
