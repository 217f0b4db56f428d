//! Output of results: a table, the JSON, the page, README's tables and the plots.

mod headline;
mod plots;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::engine::EngineKind;
use crate::error::{Error, Result, usage};
use crate::flags::{CACHE_MIB, Flags};
use crate::machine::{Level, Machine, gib};
use crate::measure::{Figure, Unit, rounded};
use crate::results::{Document, EngineRun, SCHEMA, UNKNOWN};
use crate::signals;
use table::{aligned, table};

/// The figures that stand for a workload: its name, what their case begins with, and their name.
const HEADLINES: [(&str, &str, &str); 29] = [
    ("transfer", "", "transfers, drained"),
    ("block", "", "blocks, drained"),
    ("bank", "1 a", "transfers, synced and drained"),
    ("bank", "100 a", "transfers, synced and drained"),
    ("bank", "10,000 a", "transfers, synced and drained"),
    ("overlay", "warm", "root"),
    ("erc20", "", "blocks, drained"),
    ("import", "random", "pairs loaded"),
    ("history", "shards of 2,000", "point query"),
    ("proof", "256 at", "witness, generate"),
    ("auth", "100,000", "commitment"),
    ("bank", "100 a", "a pair scanned"),
    ("history", "shards of 2,000", "append one"),
    ("auth", "100,000", "set"),
    ("transfer", "", "bytes written of a key"),
    ("block", "", "from due to committed"),
    ("bank", "", "transfers, synced and drained"),
    ("bank", "", "a read beside transfers"),
    ("bank", "", "a pair scanned"),
    ("overlay", "", "root"),
    ("threshold", "", "blocks, drained"),
    ("flatten", "", "merged commit"),
    ("import", "", "pairs loaded"),
    ("history", "shards of 2,000", "append one"),
    ("proof", "", "witness, generate"),
    ("auth", "", "commitment"),
    ("soak", "", "transfers, drained"),
    ("soak", "last quarter / second", "a batch"),
    ("recover", "", "open after a kill"),
];
/// What the cells of `compare` say.
const LEGEND: &str = "2× beside an engine's own figure: Pleach is twice as good; below 1× it is behind; none: within \
     noise. Stores without a trie are compared with pleach-plain where that has run, all else with \
     pleach.";
/// Words for names of figures in the JSON that a reader of a table would not understand.
const WORDS: [(&str, &str); 12] = [
    ("all of it", "execute, finish and commit together, ms"),
    ("bytes of a witness", "size of a witness, bytes"),
    ("bytes written of a key", "bytes written, a key"),
    ("bytes written of a transfer", "bytes written, a transfer"),
    ("device reads of a key", "reads of the device, a key"),
    ("finish + commit", "finish and commit together, ms"),
    ("of leaves", "cache misses of leaf pages"),
    ("of upper trie pages", "cache misses of upper trie pages"),
    (
        "processor time / that of its hashes alone",
        "processor time beside that of hashing alone, times",
    ),
    ("processor time of a key, all threads", "processor time of all threads, a key, ns"),
    ("rereads", "pages read by the flush"),
    ("stalled us", "time that commits waited, us"),
];
/// One hue an engine, in the page and in the plots. What is not here is grey in the page.
const HUES: [(&str, u16); 13] = [
    ("pleach", 215),
    ("pleach-plain", 190),
    ("nomt", 28),
    ("sp-trie", 140),
    ("jmt", 275),
    ("qmdb", 245),
    ("redb", 350),
    ("fjall", 165),
    ("sqlite", 50),
    ("mdbx", 310),
    ("rocksdb", 95),
    ("other build", 28),
    ("pleach again", 190),
];
/// Bytes of a name in results, at most: a column is as wide as its names.
const NAME: usize = 200;
/// The marks around the generated part of a Markdown file.
const MARKS: (&str, &str) = ("<!-- figures -->", "<!-- /figures -->");

/// `nomt-bench report`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReportArgs {
    /// Results as JSON, as `--json` or `compare` writes them
    results: PathBuf,
    /// Writes one HTML page (without this and the next two: the tables are printed)
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Writes two short tables into a Markdown file, between `<!-- figures -->` and `<!-- /figures -->`
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
    /// Draws throughput by the size of the state and by the size of the batch into a folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Allows results of several commits, and says so
    #[arg(long)]
    mixed: bool,
}

pub fn run(args: &ReportArgs) -> Result<()> {
    let ReportArgs { results, page, readme, plots, mixed } = args;
    let documents = read(results)?;
    if page.is_none() && readme.is_none() && plots.is_none() {
        return crate::output::print(&documents.iter().map(table).collect::<Vec<_>>().join("\n"));
    }
    let origin = origin(&documents, *mixed)?;
    if let Some(path) = page {
        write_page(path, &documents, &[])?;
    }
    if let Some(path) = readme {
        replace(path, &format!("{}\n{origin}", headline::markdown(&documents)))?;
    }
    if let Some(folder) = plots {
        plots::draw(folder, &documents)?;
    }
    Ok(())
}

/// Prints results, and writes them where the flags say.
pub fn publish(
    workload: &str,
    at: &Path,
    flags: &Flags,
    runs: Vec<EngineRun>,
    notes: Vec<String>,
) -> Result<()> {
    let document = Document {
        schema: SCHEMA,
        workload: workload.to_owned(),
        arguments: deciding(&std::env::args().skip(1).collect::<Vec<_>>()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: COMMIT.to_owned(),
        date: today(),
        machine: Machine::describe(at),
        seed: flags.seed,
        cache_mib: flags.cache_mib,
        durability: flags.durability.to_string(),
        interrupted: signals::caught().is_some(),
        runs,
        notes,
    };
    let printed = crate::output::print(&table(&document));
    if let Some(path) = &flags.json {
        write_json(path, &document)?;
    }
    if let Some(path) = &flags.report {
        write_page(path, std::slice::from_ref(&document), &[])?;
    }
    printed
}

/// Reads one document, or several.
pub fn read(path: &Path) -> Result<Vec<Document>> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let file = path.display();
    let why = |error| Error::Usage(format!("{file} has no results of this version: {error}"));
    let all = match serde_json::from_str(&text).map_err(why)? {
        Value::Array(all) => all,
        one => vec![one],
    };
    let mut schemas = all.iter().map(|one| &one["schema"]).filter(|schema| !schema.is_null());
    if let Some(schema) = schemas.find(|schema| **schema != SCHEMA) {
        return usage(format!(
            "{file} has results of schema {schema}, and this program reads {SCHEMA}: take the nomt-bench that wrote \
             them, or measure again"
        ));
    }
    let documents = all.into_iter().map(|one| serde_json::from_value(one).map_err(why));
    let documents = documents.collect::<Result<Vec<Document>>>()?;
    let long = documents.iter().flat_map(texts).map(str::len).find(|length| *length > NAME);
    match long {
        Some(length) => {
            usage(format!("{file} has a name of {length} bytes, and {NAME} are the most"))
        }
        None => Ok(documents),
    }
}

/// The names that are printed into columns.
fn texts(document: &Document) -> impl Iterator<Item = &str> {
    let figures = document.runs.iter().flat_map(|run| &run.figures);
    let names = figures.flat_map(|figure| [&figure.case, &figure.name]);
    let engines = document.runs.iter().map(|run| &run.backend);
    names.chain(engines).chain([&document.workload, &document.durability]).map(String::as_str)
}

/// Machines, commit and dates of documents; refuses different commits, and unknown ones, unless they may be mixed.
fn origin(documents: &[Document], mixed: bool) -> Result<String> {
    let machines = distinct(documents.iter().map(machine));
    let commits = distinct(documents.iter().map(|one| one.commit.as_str()));
    let dates = distinct(documents.iter().map(|one| one.date.clone())).join(", ");
    let machines = match &machines[..] {
        [one] => one.clone(),
        several => {
            let named = several.iter().enumerate();
            let named: Vec<_> = named.map(|(at, one)| format!("{}: {one}", letters(at))).collect();
            format!("Machine {}", named.join("; machine "))
        }
    };
    let all = commits.join(", ");
    let is_unknown = documents.len() > 1 && commits.contains(&UNKNOWN);
    match commits.len() {
        0 => usage("there are no results"),
        1 if !is_unknown => Ok(format!("{machines}; commit {all}; {dates}.")),
        _ if mixed => Ok(format!(
            "MIXED: figures of different commits, so that no row stands beside another: {machines}; commits {all}; \
             {dates}."
        )),
        _ if is_unknown => usage(
            "the results are of unknown commits, which may be different ones: measure with builds of a checkout, or say \
             --mixed",
        ),
        _ => usage(format!(
            "the results are of different commits ({all}): measure again, or say --mixed"
        )),
    }
}

/// The machine of a document among those of all: A, B, and so on; none where there is a single one.
fn machine_name(documents: &[Document], document: &Document) -> Option<String> {
    let machines = distinct(documents.iter().map(machine));
    let place = machines.iter().position(|one| *one == machine(document))?;
    (machines.len() > 1).then(|| letters(place))
}

/// A to Z, then AA.
fn letters(place: usize) -> String {
    let last = char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place % 26]);
    let before = (place / 26).checked_sub(1).map(letters).unwrap_or_default();
    format!("{before}{last}")
}

/// Each of some items once, in their order.
fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut found, one| {
        if !found.contains(&one) {
            found.push(one);
        }
        found
    })
}

/// Replaces the text between the marks of a file.
fn replace(path: &Path, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let found = old
        .split_once(MARKS.0)
        .and_then(|(before, rest)| Some((before, rest.split_once(MARKS.1)?.1)));
    let Some((before, after)) = found else {
        return usage(format!(
            "{} has no `{}` with a `{}` behind it",
            path.display(),
            MARKS.0,
            MARKS.1
        ));
    };
    let new = format!("{before}{}\n{}\n{}{after}", MARKS.0, text.trim(), MARKS.1);
    std::fs::write(path, new).map_err(Error::file(path))
}

/// A figure of a document: its case and its name.
type FigureRef<'a> = (&'a Document, &'a str, &'a str);

/// Cells of a table: a row a figure, a column an engine that has one of them.
fn cells(rows: &[FigureRef]) -> Vec<Vec<String>> {
    let has = |run: &&EngineRun| rows.iter().any(|(_, case, name)| of(run, case, name).is_some());
    let runs = rows.iter().flat_map(|row| &row.0.runs).filter(has);
    let engines = distinct(runs.map(|run| run.backend.as_str()));
    let mut cells = vec![vec![String::new()]];
    cells[0].extend(engines.iter().map(|engine| (*engine).to_owned()));
    for (document, case, name) in rows {
        let cell = |engine: &&str| {
            let run = document.runs.iter().find(|run| run.backend == *engine)?;
            let figure = of(run, case, name)?;
            let value = shown(figure.p50, figure.unit);
            let Some(beside) = compared(document, run, figure) else { return Some(value) };
            let survives = figure.commits && run.survives != own(document)?.survives;
            let survives = survives.then(|| format!("survives {}", run.survives));
            let times = match beside {
                Comparison::Times(times) => Some(digits(times) + "×"),
                Comparison::Same => Some("none".to_owned()),
                Comparison::Survives(_) => None,
            };
            let words = times.into_iter().chain(survives).collect::<Vec<_>>().join(", ");
            Some(format!("{value} ({words})"))
        };
        let known = document.runs.iter().find_map(|run| of(run, case, name));
        let survives = own(document).filter(|_| known.is_some_and(|known| known.commits));
        let survives = survives.map(|own| format!("; survives {}", own.survives));
        let what = label(case, name, known.map(|known| known.unit));
        let row = engines.iter().map(|engine| cell(engine).unwrap_or_default());
        cells.push([what + &survives.unwrap_or_default()].into_iter().chain(row).collect());
    }
    cells
}

/// A table in Markdown.
fn markdown(cells: &[Vec<String>]) -> String {
    let mut lines: Vec<String> =
        cells.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect();
    lines.insert(1, format!("|{}\n", "---|".repeat(cells[0].len())));
    lines.concat()
}

/// A short table of several documents: the headlines of each below its command.
pub fn matrix(documents: &[Document]) -> String {
    let rows: Vec<FigureRef> = documents.iter().flat_map(headlines).map(|row| row.1).collect();
    let mut all = cells(&rows);
    for at in (0..rows.len()).rev() {
        if at == 0 || !std::ptr::eq(rows[at - 1].0, rows[at].0) {
            all.insert(at + 1, vec![format!("\n{}", command(rows[at].0))]);
        }
    }
    format!("{LEGEND}\n\n{}", aligned(&all, 1))
}

/// A figure in words, with its unit.
fn label(case: &str, name: &str, unit: Option<Unit>) -> String {
    let words = WORDS.iter().find(|words| words.0 == name).map(|words| words.1);
    let parts = match words {
        Some(words) => [case, words, ""],
        None => [case, name, unit.map_or("", Unit::name)],
    };
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A value: counts are whole.
fn shown(value: f64, unit: Unit) -> String {
    let whole = unit == Unit::Count && value < 100.0 && value.fract() == 0.0;
    if whole { format!("{value:.0}") } else { rounded(value) }
}

/// Arguments without those for results and databases.
pub fn deciding(arguments: &[String]) -> Vec<String> {
    without(arguments, &["--quiet", "--reset", "--keep"], &["--json", "--report", "--dir"])
}

/// The command in one line.
pub fn command(document: &Document) -> String {
    // The result names engines and seed beside it. No engine has the budget where that is 0.
    let hidden = ["--backend", "--seed", "--cache-mib"];
    let hidden =
        if matches!(document.cache_mib, 0 | CACHE_MIB) { &hidden[..] } else { &hidden[..2] };
    without(&document.arguments, &[], hidden).join(" ")
}

/// Arguments without these flags, and without these with their values.
fn without(arguments: &[String], flags: &[&str], valued: &[&str]) -> Vec<String> {
    let mut words = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(word) = arguments.next() {
        let name = word.split('=').next().unwrap_or(word);
        if valued.contains(&name) {
            if name == word {
                arguments.next();
            }
        } else if !flags.contains(&name) {
            words.push(word.clone());
        }
    }
    words
}

/// A ratio: digits that are worth reading.
fn digits(times: f64) -> String {
    let places = if times >= 100.0 { 0 } else { usize::from(times < 10.0) + 1 };
    format!("{times:.places$}")
}

/// An engine's figure compared with pleach's.
enum Comparison {
    /// Pleach is so many times better.
    Times(f64),
    /// The figures differ by less than their spread, or by less than a twentieth.
    Same,
    /// The engine's commits survive something else than pleach's, so that a ratio has no meaning.
    Survives(Level),
}

fn beside(own: (&EngineRun, &Figure), other: (&EngineRun, &Figure)) -> Option<Comparison> {
    let ((run, one), (rival, two)) = (own, other);
    let more = one.unit.more_is_better()?;
    if run.backend == rival.backend || one.p50 <= 0.0 || two.p50 <= 0.0 {
        return None;
    }
    let times = if more { one.p50 / two.p50 } else { two.p50 / one.p50 };
    // An engine that is faster and survives more is ahead all the same.
    let faster =
        if times > 1.0 { run.survives > rival.survives } else { rival.survives > run.survives };
    if one.commits && run.survives != rival.survives && !faster {
        return Some(Comparison::Survives(rival.survives));
    }
    let spreads = one.samples.max(two.samples) > 1 && one.low <= two.high && two.low <= one.high;
    // Spreads that overlap excuse a quarter at most: those of few rounds are wide.
    let close = |by: f64| (1.0 / by..by).contains(&times);
    Some(if close(1.05) || (spreads && close(1.25)) {
        Comparison::Same
    } else {
        Comparison::Times(times)
    })
}

/// The base of the comparison: pleach, where it has run.
fn own(document: &Document) -> Option<&EngineRun> {
    let named = |name| document.runs.iter().find(|run| run.backend == name);
    named("pleach").or(named("pleach-plain")).or(document.runs.first())
}

/// The base for this engine, like with like: pleach-plain for a store without a trie, where that has run.
fn base<'a>(document: &'a Document, run: &EngineRun) -> Option<&'a EngineRun> {
    // Results may have engines that this build has not.
    let kind = serde_json::from_value::<EngineKind>(json!(run.backend));
    let store = kind.is_ok_and(|kind| !kind.caps().merkle && kind != EngineKind::PleachPlain);
    let plain = document.runs.iter().find(|run| store && run.backend == "pleach-plain");
    plain.or(own(document))
}

fn compared(document: &Document, run: &EngineRun, figure: &Figure) -> Option<Comparison> {
    let own = base(document, run)?;
    beside((own, of(own, &figure.case, &figure.name)?), (run, figure))
}

fn of<'a>(run: &'a EngineRun, case: &str, name: &str) -> Option<&'a Figure> {
    run.figures.iter().find(|figure| figure.case == case && figure.name == name)
}

/// All figures: first those without a case, then the cases in their order.
fn names(document: &Document) -> Vec<FigureRef<'_>> {
    let figures = document.runs.iter().flat_map(|run| &run.figures);
    let mut rows = distinct(figures.map(|figure| (figure.case.as_str(), figure.name.as_str())));
    let cases: Vec<&str> = rows.iter().map(|row| row.0).collect();
    rows.sort_by_key(|row| (!row.0.is_empty(), cases.iter().position(|case| *case == row.0)));
    rows.into_iter().map(|(case, name)| (document, case, name)).collect()
}

/// The figures that stand for a document, with their place in [`HEADLINES`]. Where none is named there: the first one
/// of which more or less is better.
fn headlines(document: &Document) -> Vec<(usize, FigureRef<'_>)> {
    let names = names(document);
    let place = |(_, case, name): &FigureRef| {
        HEADLINES.iter().position(|(workload, start, headline)| {
            document.workload == *workload && case.starts_with(start) && name == headline
        })
    };
    let found: Vec<_> = names.iter().filter_map(|row| Some((place(row)?, *row))).collect();
    if !found.is_empty() {
        return found;
    }
    let judged = |(_, case, name): &&FigureRef| {
        let figure = own(document).and_then(|run| of(run, case, name));
        figure.is_some_and(|figure| figure.unit.more_is_better().is_some())
    };
    names.iter().find(judged).map(|row| (HEADLINES.len(), *row)).into_iter().collect()
}

fn hue(engine: &str) -> u16 {
    HUES.iter().find(|hue| hue.0 == engine).map_or(0, |hue| hue.1)
}

/// The machine that a document is from.
fn machine(document: &Document) -> String {
    let machine = &document.machine;
    format!(
        "kernel {}, {}, {} cores, {}, folder on {}",
        machine.kernel,
        machine.cpu,
        machine.cores,
        gib(machine.memory_bytes),
        machine.file_system,
    )
}

/// Writes a document, or several, as JSON.
pub fn write_json(path: &Path, documents: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(documents)
        .map_err(|error| Error::Failed(error.to_string()))?;
    std::fs::write(path, text + "\n").map_err(Error::file(path))
}

/// Writes documents as one page, which draws what it has as JSON. What is missing in it, it says first.
pub fn write_page(path: &Path, documents: &[Document], missing: &[String]) -> Result<()> {
    let each = documents.iter().map(|one| {
        let rows: Vec<_> = headlines(one).into_iter().map(|row| [row.1.1, row.1.2]).collect();
        let bases =
            one.runs.iter().filter_map(|run| Some((&run.backend, &base(one, run)?.backend)));
        let bases: BTreeMap<_, _> = bases.collect();
        json!({
            "document": one, "command": command(one), "headlines": rows, "bases": bases,
            "machine": machine_name(documents, one),
        })
    });
    // Where the workloads are described, if that lies beside the page.
    let text = "workloads.md";
    let text = path.with_file_name(text).exists().then_some(text);
    let json = json!({
        "missing": missing, "tables": headline::json(documents), "hues": HUES, "words": WORDS, "text": text,
        "results": each.collect::<Vec<_>>(),
    });
    let json = json.to_string();
    // Nothing in it may end the script that it stands in.
    let page = include_str!("page.html").replace("DOCUMENTS", &json.replace('<', "\\u003c"));
    std::fs::write(path, page).map_err(Error::file(path))
}

/// The commit that this was built of, with `-dirty` if its sources were changed; `build.rs` asks for it.
pub const COMMIT: &str = env!("NOMT_BENCH_COMMIT");

/// The date in UTC, as year, month and day.
pub fn today() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now())
        .to_string()
        .chars()
        .take(10)
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_engine_has_a_hue() {
        let manifest = include_str!("../../Cargo.toml").lines();
        let peers =
            manifest.filter_map(|line| Some(line.strip_prefix("peer-")?.split_once(" =")?.0));
        for name in ["pleach", "pleach-plain"].into_iter().chain(peers) {
            assert!(super::hue(name) > 0, "{name}");
        }
    }
}
