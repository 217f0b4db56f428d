//! The table that is printed: the result, a row for each figure of each engine, and what is to be known of the engines.

use super::{Comparison, base, compared, digits, label, machine, names, of, shown};
use crate::measure::{Figure, Unit, rounded};
use crate::results::{Document, EngineRun};

/// The table.
pub fn table(document: &Document) -> String {
    let Document { workload, runs, notes, .. } = document;
    let mut lines = front(document);
    if runs.is_empty() {
        return lines.join("\n");
    }
    lines.push(aligned(&rows(document), 1));
    for EngineRun { backend, version, survives, settings, notes, .. } in runs {
        let settings: Vec<String> =
            settings.iter().map(|(name, value)| format!("; {name}: {value}")).collect();
        let settings = settings.concat();
        lines.push(format!("{backend} ({version}): a commit survives {survives}{settings}"));
        lines.extend(notes.iter().map(|note| format!("  {note}")));
    }
    lines.extend(notes.iter().filter(|note| !is_warning(note)).cloned());
    lines.push(format!(
        "docs/workloads.md says what was run and what the rows mean: `How a workload runs`, `{workload}`"
    ));
    lines.join("\n") + "\n"
}

fn is_warning(note: &str) -> bool {
    note.starts_with("WARNING")
}

/// What stands before the rows: warnings, and the result before all else.
fn front(document: &Document) -> Vec<String> {
    let Document { workload, seed, cache_mib, durability, runs, notes, .. } = document;
    let mut lines: Vec<String> = notes.iter().filter(|note| is_warning(note)).cloned().collect();
    if document.interrupted {
        lines.push("INTERRUPTED: these are the figures until then".to_owned());
    }
    for run in runs {
        let nothing = run.notes.iter().filter(|note| note.starts_with("NOTHING"));
        lines.extend(nothing.map(|note| format!("{}: {note}", run.backend)));
    }
    if cfg!(debug_assertions) {
        lines.push("NOT A RELEASE BUILD: these are no measurements".to_owned());
    }
    lines.extend(runs.iter().flat_map(results));
    lines.push(format!(
        "{workload}: {}; seed {seed}, {cache_mib} MiB each, durability {durability}\n",
        machine(document)
    ));
    lines
}

/// The rate that lasts, in a line for all cases that differ in their first word alone.
fn results(run: &EngineRun) -> Vec<String> {
    let is_drained =
        |figure: &&Figure| figure.unit == Unit::PerSecond && figure.name.ends_with("drained");
    let name = run.figures.iter().find(is_drained).map(|figure| &figure.name);
    let drained = run.figures.iter().filter(|figure| Some(&figure.name) == name);
    let drained: Vec<_> = drained
        .map(|figure| {
            let first = figure.case.find(' ').unwrap_or(0);
            let (first, rest) = figure.case.split_at(first);
            (first, rest, shown(figure.p50, figure.unit))
        })
        .collect();
    let root = if run.root.is_some() { "with a root each, " } else { "" };
    let line = |alike: &[(&str, &str, String)]| {
        let cases: Vec<_> = alike.iter().map(|one| one.0).collect();
        let rates: Vec<_> = alike.iter().map(|one| &one.2[..]).collect();
        let case = [cases.join(" / "), alike[0].1.to_owned()].concat();
        let case = if case.is_empty() { case } else { format!(", {}", case.trim_start()) };
        format!(
            "{}: {} {}, a second{case}; {root}a commit survives {}",
            run.backend,
            rates.join(" / "),
            name.map_or("", String::as_str),
            run.survives
        )
    };
    drained.chunk_by(|one, two| one.1 == two.1).map(line).collect()
}

/// The rows. A case has a line, and so has a figure that several engines may have: terminals are narrow.
fn rows(document: &Document) -> Vec<Vec<String>> {
    let alone = document.runs.len() == 1;
    let head = ["", "median", "p90", "p99", "worst", "spread", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut last = (None, None);
    for (_, case, name) in names(document) {
        for run in &document.runs {
            let Some(figure) = of(run, case, name) else { continue };
            let spreads = figure.samples > 1 && figure.unit != Unit::Count && figure.p50 > 0.0;
            let spread = 100.0 * (figure.high - figure.low) / figure.p50;
            let tail = figure.tail.map(|tail| [tail.p90, tail.p99, tail.max].map(rounded));
            let [p90, p99, worst] = tail.unwrap_or_default();
            if last.0.replace(case) != Some(case) && !case.is_empty() {
                rows.push(vec![format!("\n{case}")]);
            }
            let what = label("", name, Some(figure.unit));
            if last.1.replace((case, name)) != Some((case, name)) && !alone {
                rows.push(vec![what.clone()]);
            }
            rows.push(vec![
                if alone { what } else { format!("  {}", run.backend) },
                shown(figure.p50, figure.unit),
                p90,
                p99,
                worst,
                if spreads { format!("{spread:.0} %") } else { String::new() },
                beside(document, run, figure),
            ]);
        }
    }
    rows
}

/// How the base of the comparison stands beside an engine's figure.
fn beside(document: &Document, run: &EngineRun, figure: &Figure) -> String {
    let (Some(comparison), Some(base)) = (compared(document, run, figure), base(document, run))
    else {
        return String::new();
    };
    match comparison {
        Comparison::Times(times) => {
            let (times, word) =
                if times < 1.0 { (1.0 / times, "worse") } else { (times, "better") };
            format!("{} is {} times {word}", base.backend, digits(times))
        }
        Comparison::Same => format!("{} is the same", base.backend),
        Comparison::Survives(level) => format!("not compared: this survives {level}"),
    }
}

/// Rows below each other: the first columns to the left, the others to the right. One cell alone is a heading.
pub fn aligned(rows: &[Vec<String>], left: usize) -> String {
    let width = |at: usize| {
        let cells = rows.iter().filter(|row| row.len() > 1).map(|row| row[at].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0);
        let cells = cells.map(|(at, (cell, width))| match at < left {
            true if row.len() == 1 => cell.clone(),
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
