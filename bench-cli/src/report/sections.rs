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
    let mut cases: Vec<Vec<&Figure>> = Vec::new();
    let mut subjects: Vec<&str> = vec!["pleach"];
    for figure in &figures {
        let same = |one: &Figure| one.case == figure.case && one.unit == figure.unit;
        match cases.iter_mut().find(|case| same(case[0])) {
            Some(case) => case.push(figure),
            None => cases.push(vec![figure]),
        }
        if !subjects.contains(&figure.subject.as_str()) {
            subjects.push(&figure.subject);
        }
    }
    for case in cases {
        let first = case[0];
        // A bar beside nothing says nothing.
        if case.len() == 1 {
            alone.row([first.case.clone(), first.subject.clone(), first.text()]);
            continue;
        }
        let of_case = |claim: &&Claim| claim.case == first.case && claim.unit == first.unit;
        let of_case: Vec<&Claim> = claims.iter().filter(of_case).collect();
        text.push_str(&bars(&case, &of_case, &subjects));
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
    grid.row(["", "", "", "beside", "", "it is"].map(str::to_owned));
    for claim in claims {
        let (ours, theirs) = claim.both();
        let Claim { case, subject, other, .. } = claim;
        grid.row([case.clone(), subject.clone(), ours, other.clone(), theirs, claim.words()]);
    }
    if claims.is_empty() { String::new() } else { html::table(&grid) }
}

/// A bar for each subject of a case.
fn bars(case: &[&Figure], claims: &[&Claim], subjects: &[&str]) -> String {
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
    for figure in case {
        let part = if log {
            share(figure.value, least / 2.0, most)
        } else {
            figure.value / most.max(f64::MIN_POSITIVE)
        };
        // The same subject has the same colour in each case: ours is the first.
        let place = subjects.iter().position(|subject| *subject == figure.subject).unwrap_or(0);
        let colour = if place == 0 { 0 } else { 1 + (place - 1) % 7 };
        let mut beside = claims.iter().filter(|claim| claim.other == figure.subject).peekable();
        // Seen from the other: it is what we are not.
        let class = beside.peek().map_or(Judgement::Level, |claim| claim.judgement()).word();
        let words = beside.map(|claim| format!("{}: {}", claim.subject, claim.words()));
        let words = words.collect::<Vec<_>>().join("; ");
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rows of a plain namespace once left Pleach's own without a bar, and peers changed their colours.
    #[test]
    fn each_subject_of_a_case_has_a_bar_of_its_own_colour() {
        let row = |what: &str, subject: &str, p50: f64| {
            let round = json!({"p50": p50, "p90": p50, "p99": p50, "max": p50});
            let subject = format!("{what}, {subject}");
            json!({"case": "10 a commit", "subject": subject, "operations": 1, "round_ms": round})
        };
        let all = |what| {
            let of = [("pleach", 4.0), ("pleach-plain", 2.0), ("btreemap", 1.0)];
            of.map(|(subject, p50)| row(what, subject, p50))
        };
        let scan = [row("scan", "btreemap", 1.0), row("scan", "pleach", 1.0)];
        let rows = [&all("write-only")[..], &scan, &[row("load", "pleach", 3.0)]].concat();
        let page = section("bank", &json!({ "rows": rows }));
        let bars: Vec<(&str, &str)> = page
            .lines()
            .filter_map(|line| line.strip_prefix("<div class=\"r\"><span>"))
            .filter_map(|line| {
                let (subject, rest) = line.split_once("</span><svg class=\"")?;
                Some((subject, rest.split_once('"')?.0))
            })
            .collect();
        let (ours, plain, map) = (("pleach", "c0"), ("pleach-plain", "c1"), ("btreemap", "c2"));
        assert_eq!(bars, [ours, plain, map, map, ours], "{page}");
        assert!(page.contains("pleach: 4.0 x slower; pleach-plain: 2.0 x slower"), "{page}");
        let alone = page.split_once("<h3>Alone</h3>").expect("the load").1;
        assert!(alone.contains("10 a commit, load"), "{page}");
    }
}
