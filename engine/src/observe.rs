//! Metrics for the recorder of the crate `metrics` (feature `metrics`).
//!
//! `record` gives the recorder all of `Metrics`, when the caller wants: mostly when it is scraped. Histograms are
//! recorded as operations end; without the feature there are none, and without a recorder each costs one check for it.
//!
//! The label `database` is the folder. Counters grow by what has happened since the last record of the same open, and by
//! the rest when its last handle ends: so they go on over opens, and several opens of a folder add up.

#[cfg(feature = "metrics")]
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::time::Duration;

use crate::metrics::Origin;
#[cfg(feature = "metrics")]
use crate::metrics::{MetricKind, MetricUnit, Metrics};

/// The histograms, in seconds, with their texts. Those of phases have the label `phase`.
pub const HISTOGRAMS: [(&str, &str); 4] = [
    ("pleach_finish_seconds", "Time of a finish, all namespaces together."),
    ("pleach_commit_seconds", "Time of a commit, from the call to the acknowledgement."),
    (
        "pleach_phase_seconds",
        "Time of a phase of a finish or a commit, by its label `phase`: `Phase` has the list.",
    ),
    (
        "pleach_stall_seconds",
        "Time that a commit waited for the background, as the buffered changes or the log were full; hardly any where it did not.",
    ),
];

/// Upper bounds of buckets for the histograms, in seconds. Many recorders, such as `metrics-exporter-prometheus`, make
/// summaries of histograms until they are given bounds: `set_buckets_for_metric(Matcher::Prefix("pleach_".into()),
/// &BUCKETS)`.
pub const BUCKETS: [f64; 11] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];

pub(crate) const FINISH: &str = HISTOGRAMS[0].0;
pub(crate) const COMMIT: &str = HISTOGRAMS[1].0;
pub(crate) const STALL: &str = HISTOGRAMS[3].0;

/// Records the duration of a finish, a commit or a stall.
#[cfg(feature = "metrics")]
pub(crate) fn operation(origin: &Origin, name: &'static str, wall: Duration) {
    metrics::histogram!(name, "database" => Arc::clone(&origin.folder)).record(wall);
}

/// Does nothing: there are no histograms.
#[cfg(not(feature = "metrics"))]
pub(crate) fn operation(_: &Origin, _: &'static str, _: Duration) {}

/// Records the duration of a phase.
#[cfg(feature = "metrics")]
pub(crate) fn phase(origin: &Origin, name: &'static str, wall: Duration) {
    let database = Arc::clone(&origin.folder);
    metrics::histogram!(HISTOGRAMS[2].0, "database" => database, "phase" => name).record(wall);
}

/// Does nothing: there are no histograms.
#[cfg(not(feature = "metrics"))]
pub(crate) fn phase(_: &Origin, _: &'static str, _: Duration) {}

/// Tells the recorder the texts and units of all metrics; once, after it is installed.
#[cfg(feature = "metrics")]
pub fn describe() {
    for info in Metrics::ALL {
        let unit = match info.unit {
            MetricUnit::Count => metrics::Unit::Count,
            MetricUnit::Bytes => metrics::Unit::Bytes,
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

/// Gives the recorder the metrics of a database, with the label `database`. Counters of the recorder grow by what has
/// happened since the last call for the same open. The end of an open records the rest.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn record(figures: &Metrics) {
    let Origin { folder, recorded } = &*figures.origin;
    let labels = [("database", Arc::clone(folder))];
    let recorded = recorded.get_or_init(|| Metrics::ALL.iter().map(|_| 0.into()).collect());
    for (info, recorded) in Metrics::ALL.iter().zip(recorded) {
        let value = info.value(figures);
        match info.kind {
            MetricKind::Counter => {
                let more = value.saturating_sub(recorded.fetch_max(value, Relaxed));
                metrics::counter!(info.name, &labels).increment(more);
            }
            MetricKind::Gauge => metrics::gauge!(info.name, &labels).set(value as f64),
        }
    }
}
