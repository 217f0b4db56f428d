//! Runs over their batches, as rows: throughput, bytes read and written, and memory. From a result's JSON.

use serde_json::Value;

use crate::measure::float;
use crate::report::{Grid, html};
use crate::text::number;

/// Stretches that a run is cut into.
const STRETCHES: usize = 10;
const MIB: f64 = 1024.0 * 1024.0;

/// Sums and levels of some batches of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    /// Batches before it, and at its end.
    from: usize,
    to: usize,
    transfers_per_second: f64,
    /// Of a batch, in MiB.
    read: f64,
    written: f64,
    /// At its end, in MiB.
    rss: f64,
}

fn series(run: &Value, name: &str) -> Vec<f64> {
    let values = run[name].as_array().into_iter().flatten();
    values.map(|value| value.as_f64().unwrap_or_default()).collect()
}

/// The stretches of a run, of equal numbers of batches but for the last; none without a series.
fn stretches(run: &Value) -> Vec<Stretch> {
    let [times, read, written, rss] =
        ["batch_ms", "batch_read_bytes", "batch_written_bytes", "batch_rss_bytes"]
            .map(|name| series(run, name));
    let batches = times.len();
    if batches == 0 || [&read, &written, &rss].iter().any(|one| one.len() != batches) {
        return Vec::new();
    }
    let transfers = run["batch"].as_f64().unwrap_or_default();
    let step = batches.div_ceil(STRETCHES);
    let mean = |of: &[f64], count: f64| of.iter().sum::<f64>() / MIB / count;
    let stretch = |from: usize| {
        let to = (from + step).min(batches);
        let count = float((to - from) as u64);
        let seconds = times[from..to].iter().sum::<f64>() / 1e3;
        Stretch {
            from,
            to,
            transfers_per_second: transfers * count / seconds.max(1e-9),
            read: mean(&read[from..to], count),
            written: mean(&written[from..to], count),
            rss: rss[to - 1] / MIB,
        }
    };
    (0..batches).step_by(step).map(stretch).collect()
}

/// The runs of a document as a table; empty if it has none with series.
pub(crate) fn table(document: &Value) -> String {
    let mut grid = Grid::default();
    let head =
        ["", "batches", "transfers/s", "MiB read a batch", "MiB written a batch", "RSS, MiB"];
    grid.row(head.map(str::to_owned));
    for run in document["runs"].as_array().into_iter().flatten() {
        let name = run["backend"].as_str().unwrap_or_default();
        for (place, one) in stretches(run).into_iter().enumerate() {
            grid.row([
                if place == 0 { name.to_owned() } else { String::new() },
                format!("{} to {}", one.from + 1, one.to),
                number(one.transfers_per_second),
                number(one.read),
                number(one.written),
                number(one.rss),
            ]);
        }
    }
    if grid.is_head() {
        return String::new();
    }
    format!("<h3>Over the batches</h3>\n{}", html::table(&grid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_is_cut_into_stretches_of_its_batches() {
        let batches = 25;
        let each = |value: f64| vec![value; batches];
        let mut rss = each(10.0 * MIB);
        rss[24] = 20.0 * MIB;
        let run = json!({
            "backend": "pleach", "batch": 100, "batch_ms": each(10.0), "batch_read_bytes": each(0.0),
            "batch_written_bytes": each(2.0 * MIB), "batch_rss_bytes": rss,
        });
        let found = stretches(&run);
        let bounds: Vec<_> = found.iter().map(|one| (one.from, one.to)).collect();
        assert_eq!(bounds.len(), 9);
        assert_eq!((bounds[0], bounds[8]), ((0, 3), (24, 25)));
        for one in &found {
            assert!((one.transfers_per_second - 10_000.0).abs() < 1e-6, "{one:?}");
            assert!((one.written - 2.0).abs() < 1e-9 && one.read == 0.0, "{one:?}");
        }
        assert!((found[8].rss - 20.0).abs() < 1e-9 && (found[7].rss - 10.0).abs() < 1e-9);
        let page = table(&json!({"runs": [run]}));
        assert_eq!(page.matches("<tr>").count(), 10, "{page}");
        assert_eq!(table(&json!({"rows": []})), "");
        assert_eq!(table(&json!({"runs": [{"backend": "x", "batch_ms": [1.0]}]})), "");
    }
}
