//! The histograms of all databases of the process, as the recorder of the crate `metrics` that the engine gives them to.
//!
//! Each belongs to a folder, so it goes on when a process opens a database again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use pleach::observe::{BUCKETS, HISTOGRAMS};

type ByKey = BTreeMap<Key, Arc<Histogram>>;

/// The histograms of a process, by name and labels. The child of a fork has its own: a thread of its parent, which it has
/// not, may have held the lock.
struct ProcessHistograms {
    id: u32,
    histograms: Mutex<ByKey>,
    child: OnceLock<Box<Self>>,
}

impl ProcessHistograms {
    fn new(id: u32) -> Self {
        Self { id, histograms: Mutex::default(), child: OnceLock::new() }
    }
}

/// Those of this process.
fn histograms() -> MutexGuard<'static, ByKey> {
    static FIRST: OnceLock<ProcessHistograms> = OnceLock::new();
    let id = std::process::id();
    let mut process = FIRST.get_or_init(|| ProcessHistograms::new(id));
    while process.id != id {
        process = process.child.get_or_init(|| Box::new(ProcessHistograms::new(id)));
    }
    process.histograms.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of the buckets, each without those below it, the last one without a bound; and the sum.
#[derive(Default)]
struct Histogram {
    counts: [AtomicU64; BUCKETS.len() + 1],
    nanos: AtomicU64,
}

impl HistogramFn for Histogram {
    fn record(&self, seconds: f64) {
        let bucket = BUCKETS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        let nanos = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_nanos();
        self.nanos.fetch_add(u64::try_from(nanos).unwrap_or(u64::MAX), Relaxed);
    }
}

/// The recorder of the process. Counters and gauges are asked of each database.
struct Histograms;

impl Recorder for Histograms {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
        let mut all = histograms();
        if let Some(found) = all.get(key) {
            return Arc::clone(found).into();
        }
        Arc::clone(all.entry(key.clone()).or_default()).into()
    }
}

/// Histograms are kept from now on. A Rust program that links this package and has a recorder of its own keeps that.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(metrics::set_global_recorder(Histograms)));
}

/// A value of a label in the text format of Prometheus.
pub(crate) fn label_value(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// Writes the histograms of a folder.
pub(crate) fn write(text: &mut String, folder: &str) {
    let is_own =
        |key: &Key| key.labels().any(|label| label.key() == "database" && label.value() == folder);
    // Taken out, since each phase of a commit takes the lock.
    let own = |(key, histogram): (&Key, &Arc<Histogram>)| (key.clone(), Arc::clone(histogram));
    let all: Vec<_> = histograms().iter().filter(|one| is_own(one.0)).map(own).collect();
    for (name, help) in HISTOGRAMS {
        text.extend(["# HELP ", name, " ", help, "\n# TYPE ", name, " histogram\n"]);
        for (key, histogram) in all.iter().filter(|(key, _)| key.name() == name) {
            let labels = key
                .labels()
                .map(|label| format!("{}=\"{}\"", label.key(), label_value(label.value())));
            let labels = labels.collect::<Vec<_>>().join(",");
            let mut count = 0;
            let bounds = BUCKETS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            for (bound, more) in bounds.zip(&histogram.counts) {
                count += more.load(Relaxed);
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let sum = Duration::from_nanos(histogram.nanos.load(Relaxed)).as_secs_f64();
            let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}");
            let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
        }
    }
}
