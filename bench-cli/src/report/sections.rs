//! A result as a part of a page: what is compared in words, then bars and percentiles case by case. Made from
//! the result's JSON, so that `--report` and `compare` show the same.

use core::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::error::Result;
use crate::machine::Machine;
use crate::report::Grid;
use crate::report::about::About;
use crate::report::claims::{Claim, Figure, claims, figures, tally};
use crate::report::figures::Judgement;
use crate::report::plot::{escape, share};
use crate::report::{html, over_time, published};
use crate::text::number;

/// Bars whose ends are further apart than this have a logarithmic length.
const APART: f64 = 20.0;

/// Writes the page of one result.
pub(crate) fn write(
    path: &Path,
    workload: &str,
    (about, machine): (&About, &Machine),
    document: &Value,
) -> Result<()> {
    let found = figures(document);
    let claims = claims(workload, &found);
    let mut body = String::new();
    if !claims.is_empty() {
        let _ = writeln!(body, "<p class=\"first\">{}</p>", escape(&tally(&claims)));
    }
    body.push_str(&html::facts(&about.rows(machine)));
    body.push_str(&section(workload, document));
    html::write_page(path, &format!("nomt-bench {workload}"), &body)
}

/// The part of a page that a result becomes, without its heading.
pub(crate) fn section(workload: &str, document: &Value) -> String {
    let figures = figures(document);
    let claims = claims(workload, &figures);
    let mut text = in_words(&claims);
    let mut alone = Grid::default();
    alone.row(["", "", ""].map(str::to_owned));
    let mut rest = figures.as_slice();
    while let Some(first) = rest.first() {
        let same = |one: &&Figure| one.case == first.case && one.unit == first.unit;
        let count = rest.iter().take_while(same).count();
        let (case, others) = rest.split_at(count);
        rest = others;
        // A bar beside nothing says nothing.
        if count == 1 {
            alone.row([first.case.clone(), first.subject.clone(), first.text()]);
            continue;
        }
        let of_case = |claim: &&Claim| claim.case == first.case && claim.unit == first.unit;
        let of_case: Vec<&Claim> = claims.iter().filter(of_case).collect();
        text.push_str(&bars(case, &of_case));
    }
    if !alone.is_head() {
        let _ = writeln!(text, "<h3>Alone</h3>\n{}", html::table(&alone));
    }
    text.push_str(&over_time::table(document));
    text.push_str(&percentiles(&figures));
    text.push_str(&published::table(workload));
    let notes = document["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for note in notes {
        let _ = writeln!(text, "<p class=\"n\">{}</p>", escape(note));
    }
    text
}

/// A row for each comparison.
fn in_words(claims: &[Claim]) -> String {
    let mut grid = Grid::default();
    grid.row(["", "Pleach", "beside", "", "Pleach is"].map(str::to_owned));
    for claim in claims {
        let (ours, theirs) = claim.both();
        grid.row([claim.case.clone(), ours, claim.other.clone(), theirs, claim.words()]);
    }
    if claims.is_empty() { String::new() } else { html::table(&grid) }
}

/// A bar for each subject of a case.
fn bars(case: &[Figure], claims: &[&Claim]) -> String {
    let Some(first) = case.first() else { return String::new() };
    let values = || case.iter().map(|figure| figure.value);
    let most = values().fold(0.0, f64::max);
    let least = values().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
    let log = least.is_finite() && most > APART * least;
    let how = if log { ", logarithmic" } else { "" };
    let what = if first.unit == "ns" { "time of one" } else { first.unit.as_str() };
    let mut text = format!(
        "<h3>{} <span class=\"n\">({}{how})</span></h3>\n",
        escape(&first.case),
        escape(what)
    );
    for (place, figure) in case.iter().enumerate() {
        let part = if log {
            share(figure.value, least / 2.0, most)
        } else {
            figure.value / most.max(f64::MIN_POSITIVE)
        };
        // The same subject has the same colour in each case: ours is the first.
        let colour = if figure.subject == "pleach" { 0 } else { 1 + place % 7 };
        let claim = claims.iter().find(|claim| claim.other == figure.subject);
        // Seen from the other: it is what we are not.
        let (class, words) = match claim {
            Some(claim) => (claim.judgement().word(), format!("Pleach: {}", claim.words())),
            None => (Judgement::Level.word(), String::new()),
        };
        let _ = writeln!(
            text,
            "<div class=\"r\"><span>{}</span><svg class=\"c{colour}\" viewBox=\"0 0 100 8\" \
             preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect width=\"{:.1}\" height=\"8\"/></svg>\
             <span class=\"v\">{}</span><em class=\"{class}\">{}</em></div>",
            escape(&figure.subject),
            (100.0 * part).clamp(0.5, 100.0),
            escape(&figure.text()),
            escape(&words)
        );
    }
    text
}

/// Percentiles of all times, behind a click.
fn percentiles(figures: &[Figure]) -> String {
    let mut grid = Grid::default();
    let head = ["", "", "p50, ms", "p90, ms", "p99, ms", "max, ms", "bytes"];
    grid.row(head.map(str::to_owned));
    let mut some = false;
    for figure in figures {
        let Some(quantiles) = figure.quantiles else { continue };
        some = true;
        let bytes = figure.bytes.map(crate::text::grouped).unwrap_or_default();
        let cells = [figure.case.clone(), figure.subject.clone()];
        grid.row(cells.into_iter().chain(quantiles.map(number)).chain([bytes]));
    }
    if !some {
        return String::new();
    }
    let table = html::table(&grid);
    format!("<details><summary>Percentiles of the rounds</summary>{table}</details>\n")
}
