//! The page that `--report` writes: one file that contains its style and its plots, loads nothing and
//! has no scripts. It can be read on a phone and printed, in light and dark.

use core::fmt::Write as _;
use std::path::Path;

use crate::child::{BatchSample, RunResult};
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::outcome::Outcome;
use crate::report::Grid;
use crate::report::about::About;
use crate::report::plot::{Line, Plot, Scaling, escape};
use crate::report::table::Summary;

/// Colours by the position of the backend, on a light and on a dark background.
const STYLE: &str = "\
:root{color-scheme:light dark;--p:#fff;--t:#1c2024;--m:#596069;--g:#dde1e6;--c0:#1f62c4;--c1:#b04f08;--c2:#1f7540;--c3:#7a48b8;--c4:#a01d55;--c5:#0b7285;--c6:#6b6100;--c7:#5a5f66;--ok:#14703a;--no:#b3261e}
@media(prefers-color-scheme:dark){:root{--p:#14171a;--t:#e4e7ea;--m:#9aa2ab;--g:#2c3238;--c0:#6ba4f5;--c1:#f0924c;--c2:#5fc486;--c3:#b491ec;--c4:#f08cb4;--c5:#5cc8d9;--c6:#cfc25a;--c7:#aab1b9;--ok:#6fd397;--no:#ff8f86}}
@media print{:root{color-scheme:light;--p:#fff;--t:#000;--m:#444;--g:#ccc;--c0:#1f62c4;--c1:#b04f08;--c2:#1f7540;--c3:#7a48b8;--ok:#14703a;--no:#b3261e}figure,tr,.r{break-inside:avoid}h2,h3{break-after:avoid}details>*{display:block}}
body{background:var(--p);color:var(--t);font:15px/1.5 system-ui,sans-serif;max-width:1360px;margin:24px auto;padding:0 16px;overflow-wrap:anywhere}
h1{font-size:22px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 8px;border-top:1px solid var(--g);padding-top:16px}h3{font-size:15px;margin:18px 0 4px}
.first{font-size:22px;line-height:1.3;font-weight:600;margin:12px 0 4px}.n{color:var(--m)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px}
.w{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:3px 14px 3px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--g);font-weight:400}
tr:first-child th{font-weight:600}td:first-child,th:first-child{text-align:left}
.x td,.x th{text-align:left;white-space:normal;overflow-wrap:anywhere}.x tr th{color:var(--m);font-weight:400;min-width:5em}
.better{color:var(--ok);font-weight:600}.worse{color:var(--no);font-weight:600}
.r{display:grid;grid-template-columns:minmax(8em,16em) minmax(4em,1fr) 8em 9em;gap:2px 10px;align-items:center;margin:3px 0}
.r svg{height:14px}.r .v{text-align:right;font-variant-numeric:tabular-nums}
.f{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:12px 24px}
figure{margin:0}figcaption{margin-bottom:2px}svg{width:100%;height:auto}
svg text{fill:var(--m);font:11px system-ui,sans-serif}
.g{stroke:var(--g);fill:none}.a{stroke:var(--m);fill:none}.l{stroke:var(--m);fill:none;stroke-dasharray:4 4}
polyline{fill:none;stroke-width:1.5;stroke-linejoin:round}
.k{margin-left:10px}.k:before{content:'';display:inline-block;width:10px;height:10px;margin-right:4px;border-radius:2px;background:currentColor;print-color-adjust:exact}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}
polyline{stroke:currentColor}circle,rect{fill:currentColor}
@media(max-width:900px){td,th{white-space:normal;overflow-wrap:normal;padding-right:8px;font-size:13px}}
@media(max-width:640px){body{font-size:16px;margin:12px auto}svg text{font-size:20px}.r{grid-template-columns:1fr auto}.r svg{grid-column:1/3;grid-row:2}.r em{grid-column:1/3;grid-row:3}}
";

/// A part of the page under a heading.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) table: Grid,
    pub(crate) plots: Vec<Plot>,
}

/// A figure of a batch.
type Figure = fn(&BatchSample) -> f64;

const PHASES: [(&str, Figure); 4] = [
    ("execute", |batch| batch.execute_ms),
    ("finish + witness", |batch| batch.finish_ms),
    ("commit", |batch| batch.commit_ms),
    ("batch total", BatchSample::total_ms),
];

/// Writes the page of a run.
pub(crate) fn write(
    path: &Path,
    title: &str,
    (about, machine): (&About, &Machine),
    summary: &Summary,
    parts: &[Part],
) -> Result<()> {
    let mut text = String::new();
    if let Some(first) = &summary.headline {
        let _ = writeln!(text, "<p class=\"first\">{}</p>", escape(first));
    }
    text.push_str(&facts(&about.rows(machine)));
    let _ = writeln!(text, "<pre>{}</pre>", escape(&summary.head));
    text.push_str(&table(&summary.grid));
    let _ = writeln!(text, "<pre>{}</pre>", escape(&summary.verdict));
    for part in parts {
        let _ = writeln!(text, "<h2>{}</h2>\n{}", escape(part.name), table(&part.table));
        text.push_str("<div class=\"f\">\n");
        text.extend(part.plots.iter().map(Plot::render));
        text.push_str("</div>\n");
    }
    write_page(path, title, &text)
}

/// Writes a page with this title and body.
pub(crate) fn write_page(path: &Path, title: &str, body: &str) -> Result<()> {
    let title = escape(title);
    let text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title>\n<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{body}</body></html>\n"
    );
    std::fs::write(path, text).map_err(BenchError::file(path))
}

/// Names and values.
pub(crate) fn facts(rows: &[(&str, String)]) -> String {
    let mut text = String::from("<div class=\"w\"><table class=\"x\">\n");
    for (name, value) in rows {
        let _ = writeln!(text, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    text.push_str("</table></div>\n");
    text
}

/// A table; cells that end in a judgement have its colour.
pub(crate) fn table(grid: &Grid) -> String {
    if grid.0.is_empty() {
        return String::new();
    }
    let mut text = String::from("<div class=\"w\"><table>\n");
    for (index, row) in grid.0.iter().enumerate() {
        let kind = if index == 0 { "th" } else { "td" };
        text.push_str("<tr>");
        for cell in row {
            let judged = ["better", "faster", "less", "worse", "slower", "more"];
            let class = judged.iter().position(|word| cell.ends_with(&format!(" {word}")));
            let class = match class {
                Some(0..3) => " class=\"better\"",
                Some(_) => " class=\"worse\"",
                None => "",
            };
            let _ = write!(text, "<{kind}{class}>{}</{kind}>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div>\n");
    text
}

/// The plots of one run per backend.
pub(crate) fn plots(outcomes: &[Outcome]) -> Vec<Part> {
    let part = |name, plots| Part { name, table: Grid::default(), plots };
    let mut parts = vec![
        part("Latency of each phase", latencies(outcomes)),
        part("Over time, one point per batch", over_time(outcomes)),
    ];
    if outcomes.len() > 1 {
        parts.push(part("Ratios of speed, batch by batch", ratios(outcomes)));
    }
    parts
}

fn lines(outcomes: &[Outcome], points: impl Fn(&RunResult) -> Vec<(f64, f64)>) -> Vec<Line> {
    outcomes
        .iter()
        .map(|one| Line { name: one.kind.name().to_owned(), points: points(&one.run) })
        .collect()
}

fn latencies(outcomes: &[Outcome]) -> Vec<Plot> {
    PHASES
        .into_iter()
        .map(|(name, of)| Plot {
            title: format!("{name}, ms"),
            x: "percentile of the batches",
            lines: lines(outcomes, |run| {
                let mut values: Vec<f64> = run.series.iter().map(of).collect();
                values.sort_unstable_by(f64::total_cmp);
                let count = values.len() as u64;
                let at = |index: u64| crate::measure::ratio(100 * index, count);
                (1..).map(at).zip(values).collect()
            }),
            level: None,
            scale: Scaling::Fitting,
        })
        .collect()
}

fn over_time(outcomes: &[Outcome]) -> Vec<Plot> {
    let mib = |bytes: u64| crate::measure::ratio(bytes, 1 << 20);
    let plot = |title: &str, of: &dyn Fn(&BatchSample) -> f64| Plot {
        title: title.to_owned(),
        x: "batch",
        lines: lines(outcomes, |run| {
            (1..).map(crate::measure::float).zip(run.series.iter().map(of)).collect()
        }),
        level: None,
        scale: Scaling::Fitting,
    };
    vec![
        plot("transfers/s", &BatchSample::rate),
        plot("batch total, ms", &BatchSample::total_ms),
        plot("read in a batch, MiB", &|batch| mib(batch.read)),
        plot("written in a batch, MiB", &|batch| mib(batch.written)),
        plot("RSS, MiB", &|batch| mib(batch.rss)),
        plot("files, MiB", &|batch| mib(batch.files)),
    ]
}

/// The speed of the first backend divided by that of each other one: above 1, the first is faster.
fn ratios(outcomes: &[Outcome]) -> Vec<Plot> {
    let Some((first, others)) = outcomes.split_first() else { return Vec::new() };
    let line = |other: &Outcome, of: Figure| {
        let pairs = first.run.series.iter().zip(&other.run.series);
        let ratios = pairs.map(|(ours, theirs)| (of(theirs) / of(ours).max(1e-6)).min(1e6));
        let points = (1..).map(crate::measure::float).zip(ratios).collect();
        Line { name: format!("{} / {}", first.kind.name(), other.kind.name()), points }
    };
    PHASES
        .into_iter()
        .map(|(name, of)| Plot {
            title: format!("speed of {name}"),
            x: "batch",
            lines: others.iter().map(|other| line(other, of)).collect(),
            level: Some(1.0),
            scale: Scaling::Linear,
        })
        .collect()
}
