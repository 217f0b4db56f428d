//! Counters of an open database.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::phase::Phase;

/// Whether a metric is a counter or a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// Counts from the open on, and never falls.
    Counter,
    /// The level at present.
    Gauge,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricUnit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
}

/// A metric, for exporters: one for each field of [`Metrics`] that is no time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MetricInfo {
    /// Name where metrics are exported: lower case, underscores, `_total` at the end of a counter.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: MetricUnit,
    /// The lines of its documentation.
    doc: &'static [&'static str],
    get: fn(&Metrics) -> u64,
}

impl MetricInfo {
    /// What the metric counts, as one line of plain text.
    pub fn help(&self) -> String {
        let text = self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        // Links are for the documentation of the crate: `[`Name`](path)` becomes `Name`.
        let mut plain = String::new();
        let mut rest = text.as_str();
        while let Some((before, link)) = rest.split_once("[`") {
            let Some((name, after)) = link.split_once("`](") else { break };
            plain += before;
            plain += name;
            rest = after.split_once(')').map_or("", |(_, after)| after);
        }
        plain + rest
    }

    /// The metric's value.
    pub fn value(&self, metrics: &Metrics) -> u64 {
        (self.get)(metrics)
    }
}

/// An open of a database, to which figures belong.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub(crate) folder: Arc<str>,
    /// How much of each of [`Metrics::ALL`](crate::Metrics::ALL) was recorded.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "nothing records it"))]
    pub(crate) recorded: OnceLock<Vec<AtomicU64>>,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $kind:ident $unit:ident $export:literal $name:ident),* $(,)?) => {
        /// Running counters; relaxed, they order nothing.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) stalled_micros: AtomicU64,
            pub(crate) phase_nanos: [AtomicU64; Phase::ALL.len()],
            pub(crate) origin: Arc<Origin>,
        }

        /// Counts and levels of an open database. [`Metrics::ALL`] has names, kinds and units for exporters. Times are
        /// exported as histograms ([`observe::HISTOGRAMS`](crate::observe::HISTOGRAMS)), their sums are here.
        #[derive(Clone, Debug, Default)]
        #[non_exhaustive]
        pub struct Metrics {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Microseconds that commits waited because the buffered changes or the log were full.
            pub stalled_micros: u64,
            phase_nanos: [u64; Phase::ALL.len()],
            pub(crate) origin: Arc<Origin>,
        }

        impl Metrics {
            /// All metrics, in the order of the fields, as in docs/metrics.md.
            pub const ALL: &[MetricInfo] = &[$(MetricInfo {
                name: $export,
                kind: MetricKind::$kind,
                unit: MetricUnit::$unit,
                doc: &[$($doc),*],
                get: |metrics| metrics.$name,
            }),*];

            /// The folder of the database, as it was given: the label `database` where metrics are exported.
            pub fn folder(&self) -> &str {
                &self.origin.folder
            }

            /// The time of all finishes or commits in a phase.
            pub fn time_of(&self, phase: Phase) -> Duration {
                Duration::from_nanos(self.phase_nanos[phase as usize])
            }
        }

        impl Counters {
            /// The counters; metrics that are counted elsewhere are zero.
            pub(crate) fn snapshot(&self) -> Metrics {
                let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                Metrics {
                    $($name: read(&self.$name),)*
                    stalled_micros: read(&self.stalled_micros),
                    phase_nanos: self.phase_nanos.each_ref().map(read),
                    origin: Arc::clone(&self.origin),
                }
            }
        }
    };
}

counters! {
    /// Leaf pages found in the cache.
    Counter Count "pleach_cache_hits_total" cache_hits,
    /// Values of prefetched keys that were looked up before they were read.
    Counter Count "pleach_value_cache_hits_total" value_cache_hits,
    /// Leaf pages that were read from the device because they were not cached.
    Counter Count "pleach_cache_misses_total" cache_misses,
    /// Long values that were read from the device because they were not in memory.
    Counter Count "pleach_long_values_read_total" long_values_read,
    /// Bytes of memory that long values take which were read from the device.
    Gauge Bytes "pleach_long_value_bytes" long_value_bytes,
    /// Leaf pages that iterators have read past the cache, used or not.
    Counter Count "pleach_pages_scanned_total" pages_scanned,
    /// Pages of the leaf file that were read because they lie between wanted pages, since one request costs less than
    /// two.
    Counter Count "pleach_pages_read_over_total" pages_read_over,
    /// Leaf pages that the flush has read, since the cache had evicted them.
    Counter Count "pleach_page_rereads_total" page_rereads,
    /// Buffered changes: committed, and not in a page yet.
    Gauge Count "pleach_pending_entries" pending_entries,
    /// Bytes of memory that buffered changes take.
    Gauge Bytes "pleach_pending_bytes" pending_bytes,
    /// Bytes that live overlays take: changes with their values, nodes, and lookup tables.
    Gauge Bytes "pleach_overlay_bytes" overlay_bytes,
    /// Bytes that cached leaf pages take, with their treelets and tables.
    Gauge Bytes "pleach_leaf_cache_bytes" leaf_cache_bytes,
    /// Bytes that cached leaf pages may take at present: the memory budget less all other parts.
    Gauge Bytes "pleach_leaf_cache_budget_bytes" leaf_cache_budget,
    /// Bytes that the index takes: child tables, nodes and counts of leaf pages, and
    /// the list of pages that are due for a flush.
    Gauge Bytes "pleach_index_bytes" index_bytes,
    /// Bytes of the nodes above pages that regions keep in lines.
    Gauge Bytes "pleach_node_bytes" node_bytes,
    /// Bytes that the arrays of finishes, blocks and overlays take, without the lookup tables of overlays.
    Gauge Bytes "pleach_batch_bytes" batch_bytes,
    /// Bytes of arrays that are kept for the next batch: of finishes, sorts and witnesses.
    Gauge Bytes "pleach_kept_bytes" kept_bytes,
    /// Bytes of witnesses that the caller holds.
    Gauge Bytes "pleach_witness_bytes" witness_bytes,
    /// Bytes of the table of prefetched keys' values, used or not.
    Gauge Bytes "pleach_value_cache_bytes" value_cache_bytes,
    /// Bytes of buffers: memory that rings read into, read buffers that are kept, the log's buffers.
    Gauge Bytes "pleach_buffer_bytes" buffer_bytes,
    /// Bytes of the flush's write buffers.
    Gauge Bytes "pleach_flush_buffer_bytes" flush_buffer_bytes,
    /// Bytes that trims of the allocator's free memory have returned to the system.
    Counter Bytes "pleach_trimmed_bytes_total" trimmed_bytes,
    /// Trims of the allocator's free memory.
    Counter Count "pleach_trims_total" trims,
    /// Commits that have their place in the log and are not published yet, a parent and its child at the same time
    /// among them.
    Gauge Count "pleach_commits_in_flight" commits_in_flight,
    /// Bytes of memory that undo takes: of the history, and of pinned commits.
    Gauge Bytes "pleach_undo_bytes" undo_bytes,
    /// Commits before the newest one that can be read.
    Gauge Count "pleach_history_kept" history_kept,
    /// Commits that could be read if [`Options::history`](crate::Options::history) were the only limit. When more than
    /// are kept, the replaced values take more than [`Options::history_disk_mib`](crate::Options::history_disk_mib).
    Gauge Count "pleach_history_wanted" history_wanted,
    /// Bytes of the device that runs of the history take.
    Gauge Bytes "pleach_history_bytes" history_bytes,
    /// Runs of the history on the device.
    Gauge Count "pleach_history_runs" history_runs,
    /// Runs of the history with a page that could not be used: merges go round them.
    Gauge Count "pleach_history_bad_runs" history_bad_runs,
    /// Bytes of runs of the history that were written, by merges too.
    Counter Bytes "pleach_history_written_bytes_total" history_written_bytes,
    /// Checkpoints made.
    Counter Count "pleach_checkpoints_total" checkpoints,
    /// Checkpoints during which commits or flushes changed a region: their image is not of one moment.
    Counter Count "pleach_checkpoints_overtaken_total" checkpoints_overtaken,
    /// Leaf pages at present.
    Gauge Count "pleach_leaf_pages" leaf_pages,
    /// Leaf pages at present that have nodes: plain namespaces have none.
    Gauge Count "pleach_leaf_pages_with_nodes" leaf_pages_with_nodes,
    /// Regions of the index at present: lowest branch pages.
    Gauge Count "pleach_regions" regions,
    /// Pairs of regions that were joined into one.
    Counter Count "pleach_regions_joined_total" regions_joined,
    /// Leaf pages that were rewritten to merge small pages or to shorten the file.
    Counter Count "pleach_pages_tidied_total" pages_tidied,
    /// Leaf pages written by flushes.
    Counter Count "pleach_pages_written_total" pages_written,
    /// Device writes of leaf pages by flushes: each is a run of neighbouring pages.
    Counter Count "pleach_page_runs_written_total" page_runs_written,
    /// Bytes appended to the log.
    Counter Bytes "pleach_log_bytes_total" log_bytes,
    /// Bytes written to checkpoint images.
    Counter Bytes "pleach_image_bytes_total" image_bytes,
    /// Hash calls of finishes, those for values included.
    Counter Count "pleach_hashes_total" hashes,
    /// Leaf pages that finishes and proofs have folded.
    Counter Count "pleach_pages_folded_total" pages_folded,
    /// Distinct keys that commits changed.
    Counter Count "pleach_changes_total" changes,
    /// Commits.
    Counter Count "pleach_commits_total" commits,
    /// Refolds because a flush had changed a layout between finish and commit.
    Counter Count "pleach_refolds_total" refolds,
    /// Quarantined pages at present: the background could not read them.
    Gauge Count "pleach_quarantined_pages" quarantined_pages,
    /// Background tasks that have made no progress for 10 s.
    Gauge Count "pleach_stalled_tasks" stalled_tasks,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds a signed change to a level.
    pub(crate) fn change(counter: &AtomicU64, by: isize) {
        counter.fetch_add((by as i64).cast_unsigned(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    /// The page that operators read, generated from the table.
    fn page() -> String {
        let mut page = String::from(
            "# Metrics\n\nWhat exporters give of `Metrics::ALL`, and histograms of times, in seconds:\n\n\
             * *Rust*, feature `metrics`: `observe::record` gives `Db::metrics()` to whatever recorder of the crate [metrics](https://docs.rs/metrics) is installed, \
             and what was not recorded of an open when its last handle ends;\n  histograms are recorded as things happen. `observe::describe` gives the texts. \
             **Dashboard and alerts need histograms; without bounds the usual exporter of Prometheus makes summaries**:\n  \
             `PrometheusBuilder::new().set_buckets_for_metric(Matcher::Prefix(\"pleach_\".into()), &observe::BUCKETS)`. \
             `cargo run --release -p pleach --features metrics --example prometheus` is a program.\n\
             * *C, Python, Go*: `pleach_metrics`, `Db.metrics`, `DB.Metrics` are all of it as text that Prometheus reads.\n\n\
             The label `database` is the folder, as it was given. Counters of a recorder go on when a process opens a database again, and several\nopens of a folder add up; \
             gauges are those of the last record. [grafana.json](data/grafana.json) is a dashboard, [alerts.yml](data/alerts.yml) has alerts.\n\n| name | kind | unit | what |\n|---|---|---|---|\n",
        );
        for info in Metrics::ALL {
            let kind = format!("{:?}", info.kind).to_lowercase();
            let unit = format!("{:?}", info.unit).to_lowercase();
            let _ = writeln!(page, "| `{}` | {kind} | {unit} | {} |", info.name, info.help());
        }
        for (name, help) in crate::observe::HISTOGRAMS {
            let _ = writeln!(page, "| `{name}` | histogram | seconds | {help} |");
        }
        page
    }

    #[test]
    fn names_are_unique_and_say_kind_and_unit() {
        let names: BTreeSet<_> = Metrics::ALL.iter().map(|info| info.name).collect();
        assert_eq!(names.len(), Metrics::ALL.len());
        for info in Metrics::ALL {
            let plain = info.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(plain && info.name.starts_with("pleach_"), "{}", info.name);
            assert_eq!(info.name.ends_with("_total"), info.kind == MetricKind::Counter);
            assert_eq!(
                info.name.contains("_bytes"),
                info.unit == MetricUnit::Bytes,
                "{}",
                info.name
            );
            let help = info.help();
            assert!(help.ends_with(['.', '`']) && !help.contains("]("), "{}: {help}", info.name);
        }
        let metrics = Metrics { regions: 7, ..Metrics::default() };
        let set = Metrics::ALL.iter().filter(|info| info.value(&metrics) == 7);
        assert_eq!(set.map(|info| info.name).collect::<Vec<_>>(), ["pleach_regions"]);
    }

    /// `PLEACH_WRITE=1 cargo test -p pleach --lib metrics` writes the page.
    #[test]
    fn the_page_is_the_table() {
        if std::env::var_os("PLEACH_WRITE").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
            std::fs::write(path, page()).expect("written");
        }
        if let Some(found) = read("metrics.md") {
            assert_eq!(found, page(), "run with PLEACH_WRITE=1 to write docs/metrics.md anew");
        }
    }

    /// A file of docs; a package without the repository has none.
    fn read(name: &str) -> Option<String> {
        std::fs::read_to_string(format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"))).ok()
    }

    #[test]
    fn dashboard_and_alerts_name_metrics() {
        for (file, least) in [("data/grafana.json", 20), ("data/alerts.yml", 7)] {
            let Some(text) = read(file) else { return };
            let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
            let words = text.split(|letter: char| !is_part(letter));
            let names: BTreeSet<_> = words.filter(|word| word.starts_with("pleach_")).collect();
            assert!(names.len() >= least, "{names:?}");
            for name in names {
                let exists = Metrics::ALL.iter().any(|info| info.name == name)
                    || crate::observe::HISTOGRAMS.iter().any(|(histogram, _)| {
                        name.strip_prefix(histogram)
                            .is_some_and(|part| ["_bucket", "_sum"].contains(&part))
                    });
                assert!(exists, "{file}: {name}");
            }
        }
    }

    /// `promtool` says more, where it is installed (`.ci/run`).
    #[test]
    fn each_alert_has_a_rule_and_a_text() {
        let Some(text) = read("data/alerts.yml") else { return };
        let (head, rules) =
            text.split_once("groups:\n- name: pleach\n  rules:\n").expect("a group");
        assert!(head.lines().all(|line| line.starts_with('#')), "{head}");
        let mut names = BTreeSet::new();
        for rule in rules.split("  - alert: ").skip(1) {
            let lines: Vec<_> = rule.lines().collect();
            let &[name, expr, duration, labels, "    annotations:", summary] = &*lines else {
                panic!("{rule}")
            };
            assert!(names.insert(name) && name.starts_with("Pleach"), "{name}");
            let expr = expr.strip_prefix("    expr: ").expect(name);
            assert!(expr.contains(" > ") || expr.contains(" < "), "{name}: {expr}");
            let minutes =
                duration.strip_prefix("    for: ").and_then(|text| text.strip_suffix('m'));
            assert!(minutes.expect(name).parse::<u32>().is_ok(), "{name}: {duration}");
            let severities =
                ["critical", "warning"].map(|one| format!("    labels: {{severity: {one}}}"));
            assert!(severities.iter().any(|one| one == labels), "{name}: {labels}");
            let summary =
                summary.strip_prefix("      summary: \"{{ $labels.database }}: ").expect(name);
            assert!(summary.find('"') == Some(summary.len() - 1), "{name}: {summary}");
        }
        assert_eq!(names.len(), 7);
    }
}
