//! The page of metrics that a process beside the writing one can give.

use std::fmt::Write as _;

use pleach::{Db, Metrics, Result};

/// Of [`Metrics::ALL`] those that a reader knows of the database; the others are of the process that has it open.
/// All are levels.
const OF_DATABASE: [&str; 9] = [
    "pleach_pending_entries",
    "pleach_pending_bytes",
    "pleach_history_kept",
    "pleach_history_bytes",
    "pleach_history_runs",
    "pleach_history_bad_runs",
    "pleach_leaf_pages",
    "pleach_leaf_pages_with_nodes",
    "pleach_regions",
];

/// What a database that was opened with [`Options::read_only`](pleach::Options::read_only) knows of itself, in the text
/// format of Prometheus: docs/metrics.md lists it. The label `database` is the folder, as it was given.
///
/// # Errors
/// Those of the folder and its lock.
pub fn reader_metrics(db: &Db) -> Result<String> {
    let (figures, history) = (db.metrics(), db.history());
    let mut files = 0;
    let entries = std::fs::read_dir(figures.folder());
    for entry in entries.into_iter().flatten().flatten() {
        // One that is gone meanwhile has none.
        files += entry.metadata().map_or(0, |file| file.len());
    }
    let has_writer = u64::from(crate::has_writer(figures.folder().as_ref())?);
    let folder = figures.folder().replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let mut page = String::new();
    let mut line = |name: &str, help: &str, value: u64| {
        let help = help.replace('\\', r"\\");
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge");
        let _ = writeln!(page, "{name}{{database=\"{folder}\"}} {value}");
    };
    line("pleach_newest_commit", "Number of the newest commit.", *history.end());
    line("pleach_oldest_commit", "Oldest commit that can be read.", *history.start());
    line("pleach_has_writer", "1 while a process has the database open for writing.", has_writer);
    line("pleach_files_bytes", "Bytes of the files in the folder.", files);
    for metric in Metrics::ALL.iter().filter(|metric| OF_DATABASE.contains(&metric.name)) {
        line(metric.name, &metric.help(), metric.value(&figures));
    }
    Ok(page)
}
