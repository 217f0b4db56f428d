//! The figures of a soak over time, one row for each minute, and whether they stay level.

use serde_json::{Value, json};

use crate::child::BatchSample;
use crate::measure::{float, rate, ratio};
use crate::outcome::Outcome;
use crate::report::Grid;
use crate::report::html::Part;
use crate::report::plot::{Line, Plot, Scaling};
use crate::text::number;

/// The batches of one row.
#[derive(Debug)]
pub(crate) struct Row {
    /// End of its last batch since the clock started, pauses included.
    until: f64,
    batches: usize,
    /// Transfers per second on the clock.
    rate: f64,
    commit_p99: f64,
    /// Leaf pages per device write; `None` if nothing was written or the engine does not count it.
    run_length: Option<f64>,
    read: u64,
    written: u64,
    files: u64,
    rss: u64,
}

impl Row {
    fn new(batches: &[BatchSample], before: Option<&BatchSample>) -> Self {
        let sum = |of: fn(&BatchSample) -> u64| batches.iter().map(of).sum::<u64>();
        let seconds: f64 = batches.iter().map(|batch| batch.total_ms() / 1000.0).sum();
        let mut commits: Vec<f64> = batches.iter().map(|batch| batch.commit_ms).collect();
        commits.sort_unstable_by(f64::total_cmp);
        let last = batches.last().copied().unwrap_or_default();
        let grown =
            |of: fn(&BatchSample) -> Option<u64>| Some(of(&last)? - before.map_or(Some(0), of)?);
        let runs = grown(|batch| batch.page_runs_written).filter(|&runs| runs > 0);
        Self {
            until: last.wall_seconds,
            batches: batches.len(),
            rate: rate(sum(|batch| batch.transfers), seconds),
            commit_p99: commits.get((commits.len() * 99).div_ceil(100) - 1).map_or(0.0, |ms| *ms),
            run_length: grown(|batch| batch.pages_written).zip(runs).map(|(a, b)| ratio(a, b)),
            read: sum(|batch| batch.read),
            written: sum(|batch| batch.written),
            files: last.files,
            rss: last.rss,
        }
    }
}

/// One figure, early and late in the soak.
#[derive(Debug)]
pub(crate) struct Level {
    name: &'static str,
    early: f64,
    late: f64,
    /// Is it within its bound?
    pub(crate) holds: bool,
    bound: f64,
}

impl Level {
    /// `name: early -> late (ratio), the bound`.
    pub(crate) fn say(&self) -> String {
        let side = if self.bound < 1.0 { "at least" } else { "at most" };
        format!(
            "{} {} -> {} ({:.2} x, {side} {:.2} x wanted)",
            self.name,
            number(self.early),
            number(self.late),
            self.late / self.early,
            self.bound
        )
    }
}

/// A figure of a row; bounds below 1 say how far it may fall, above 1 how far it may rise.
type Figure = (&'static str, f64, fn(&Row) -> Option<f64>);

const MIB: u64 = 1 << 20;
const FIGURES: [Figure; 5] = [
    ("transfers/s", 0.85, |row| Some(row.rate)),
    ("commit p99, ms", 1.5, |row| Some(row.commit_p99)),
    ("pages a write", 0.85, |row| row.run_length),
    ("files, MiB", 1.1, |row| Some(ratio(row.files, MIB))),
    ("RSS, MiB", 1.1, |row| Some(ratio(row.rss, MIB))),
];

/// All rows of a run.
#[derive(Debug)]
pub(crate) struct Soak {
    rows: Vec<Row>,
    /// Empty when there are too few rows.
    pub(crate) levels: Vec<Level>,
}

impl Soak {
    /// Fewest rows that are compared.
    pub(crate) const FEWEST: f64 = 3.0;

    /// Cuts a series into rows of `row_seconds` of wall time; the last may be longer.
    pub(crate) fn new(series: &[BatchSample], row_seconds: u32) -> Self {
        let row_seconds = f64::from(row_seconds);
        let whole = series.last().map_or(0.0, |last| last.wall_seconds);
        let mut rows = Vec::new();
        let (mut start, mut end) = (0, row_seconds);
        for (index, batch) in series.iter().enumerate() {
            // A rest of less than half a row stays with the last row.
            if batch.wall_seconds > end && index > start && whole - end >= row_seconds / 2.0 {
                rows.push(Row::new(&series[start..index], before(series, start)));
                start = index;
                while end < batch.wall_seconds {
                    end += row_seconds;
                }
            }
        }
        if start < series.len() {
            rows.push(Row::new(&series[start..], before(series, start)));
        }
        let levels = levels(&rows);
        Self { rows, levels }
    }

    /// What the figures say.
    pub(crate) fn verdict(&self) -> String {
        if self.levels.is_empty() {
            return "  level: too short to say\n".to_owned();
        }
        let line = |level: &Level| {
            let word = if level.holds { "level" } else { "NOT level" };
            format!("  {word}: {}\n", level.say())
        };
        self.levels.iter().map(line).collect()
    }

    /// The table.
    pub(crate) fn grid(&self, one: &Outcome) -> Grid {
        let mut grid = Grid::default();
        let head = [
            one.kind.name(),
            "until, s",
            "batches",
            "transfers/s",
            "commit p99, ms",
            "pages a write",
            "read, MiB",
            "written, MiB",
            "files, MiB",
            "RSS, MiB",
        ];
        grid.row(head.map(str::to_owned));
        for (index, row) in self.rows.iter().enumerate() {
            let mib = |bytes: u64| number(ratio(bytes, MIB));
            grid.row([
                (index + 1).to_string(),
                format!("{:.0}", row.until),
                row.batches.to_string(),
                number(row.rate),
                number(row.commit_p99),
                row.run_length.map_or_else(|| "-".to_owned(), number),
                mib(row.read),
                mib(row.written),
                mib(row.files),
                mib(row.rss),
            ]);
        }
        grid
    }

    /// The same as JSON.
    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "until_seconds": row.until,
                "batches": row.batches,
                "transfers_per_second": row.rate,
                "commit_p99_ms": row.commit_p99,
                "pages_per_write": row.run_length,
                "read_bytes": row.read,
                "written_bytes": row.written,
                "files_bytes": row.files,
                "rss_bytes": row.rss,
            })
        };
        let level = |level: &Level| {
            json!({
                "figure": level.name,
                "early": level.early,
                "late": level.late,
                "bound": level.bound,
                "level": level.holds,
            })
        };
        json!({
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "levels": self.levels.iter().map(level).collect::<Vec<_>>(),
        })
    }
}

/// The batch before a row.
fn before(series: &[BatchSample], start: usize) -> Option<&BatchSample> {
    start.checked_sub(1).and_then(|index| series.get(index))
}

/// Compares the means of the first and of the second half of the rows. The very first row is left
/// out, because caches and files still fill up then.
fn levels(rows: &[Row]) -> Vec<Level> {
    if float(rows.len() as u64) < Soak::FEWEST {
        return Vec::new();
    }
    let rows = &rows[1..];
    let half = rows.len() / 2;
    let (early, late) = (&rows[..half], &rows[rows.len() - half..]);
    FIGURES
        .iter()
        .filter_map(|&(name, bound, of)| {
            let (early, late) = (mean(early, of)?, mean(late, of)?);
            let holds = if bound < 1.0 { late >= bound * early } else { late <= bound * early };
            Some(Level { name, early, late, holds, bound })
        })
        .collect()
}

fn mean(rows: &[Row], of: fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.iter().filter_map(of).collect();
    let sum: f64 = values.iter().sum();
    (!values.is_empty()).then(|| sum / float(values.len() as u64))
}

/// The rows on the page: tables and plots.
pub(crate) fn parts(outcomes: &[Outcome], soaks: &[Soak], tables: Vec<Grid>) -> Vec<Part> {
    let line = |one: &Outcome, soak: &Soak, of: fn(&Row) -> Option<f64>| Line {
        name: one.kind.name().to_owned(),
        points: soak.rows.iter().filter_map(|row| Some((row.until / 60.0, of(row)?))).collect(),
    };
    let plots = FIGURES.iter().map(|&(name, _, of)| Plot {
        title: name.to_owned(),
        x: "minutes",
        lines: outcomes.iter().zip(soaks).map(|(one, soak)| line(one, soak, of)).collect(),
        level: None,
        scale: Scaling::Linear,
    });
    let mut parts = vec![Part { name: "Level", table: Grid::default(), plots: plots.collect() }];
    let rows = |table| Part { name: "Rows", table, plots: Vec::new() };
    parts.extend(tables.into_iter().map(rows));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One batch per second: 100 ms each on the clock, 10 pages in `runs` writes.
    fn series(count: u32, runs: impl Fn(u32) -> u64) -> Vec<BatchSample> {
        let mut written = 0;
        (0..count)
            .map(|index| {
                written += runs(index);
                BatchSample {
                    wall_seconds: f64::from(index + 1),
                    execute_ms: 60.0,
                    finish_ms: 30.0,
                    commit_ms: 10.0,
                    transfers: 100,
                    files: 5 << 20,
                    rss: 7 << 20,
                    pages_written: Some(10 * u64::from(index + 1)),
                    page_runs_written: Some(written),
                    ..BatchSample::default()
                }
            })
            .collect()
    }

    #[test]
    fn rows_cover_the_series_and_level_is_level() {
        for count in [1, 9, 10, 11, 14, 15, 16, 50, 53, 57] {
            let soak = Soak::new(&series(count, |_| 2), 10);
            let batches: usize = soak.rows.iter().map(|row| row.batches).sum();
            assert_eq!(batches, count as usize, "{count}");
            assert!(soak.rows.iter().all(|row| (5..=15).contains(&row.batches) || count < 5));
            assert!(soak.rows.iter().all(|row| (row.rate - 1000.0).abs() < 1e-6));
            assert!(soak.rows.iter().all(|row| row.run_length == Some(5.0)));
            assert!(soak.levels.iter().all(|level| level.holds), "{}", soak.verdict());
            assert_eq!(soak.levels.is_empty(), soak.rows.len() < 3);
        }
    }

    #[test]
    fn a_figure_that_drifts_is_told() {
        // Runs get shorter and shorter: 10 pages in more and more writes.
        let soak = Soak::new(&series(60, |index| u64::from(1 + index / 10)), 10);
        let drifted: Vec<_> = soak.levels.iter().filter(|level| !level.holds).collect();
        assert_eq!(drifted.len(), 1);
        assert_eq!(drifted[0].name, "pages a write");
        assert!(soak.verdict().contains("NOT level: pages a write"));
    }
}
