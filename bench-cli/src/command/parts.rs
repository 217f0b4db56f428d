//! `nomt-bench hash` and the other workloads of single parts: measures and prints.

use std::path::Path;

use serde_json::json;

use crate::args::parts::{
    AuthArgs, Erc20Args, FlattenArgs, GrindArgs, HashArgs, OverlayArgs, PartsArgs, ProofArgs,
    ThresholdArgs,
};
use crate::args::results::ResultArgs;
use crate::args::stores::{BankArgs, HistoryArgs, ImportArgs};
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::parts::{self, Row, Sheet};
use crate::progress::Progress;
use crate::report::about::About;
use crate::report::{Grid, json, sections};
use crate::text::{grouped, number};
use crate::{home, interrupt, output};

/// A folder of its own inside `--dir` or the one for temporary files: removed at the end.
fn scratch(dir: Option<&Path>) -> Result<tempfile::TempDir> {
    let at = dir.map_or_else(std::env::temp_dir, Path::to_owned);
    home::make_usable(&at)?;
    let made = tempfile::Builder::new().prefix("nomt-bench-").tempdir_in(&at);
    let made = made.map_err(BenchError::file(&at))?;
    interrupt::remove_at_end(made.path().to_owned());
    Ok(made)
}

/// The flags of a workload that has rounds.
fn of<const ROUNDS: u64>(args: &PartsArgs<ROUNDS>) -> (&ResultArgs, Option<u64>) {
    (&args.results, Some(args.rounds()))
}

/// Runs a workload, and prints what it has measured, whether or not a signal cut it short.
fn measure(
    workload: &'static str,
    (results, rounds): (&ResultArgs, Option<u64>),
    at: &Path,
    run: impl FnOnce(&Progress, &mut Sheet) -> Result<()>,
) -> Result<()> {
    output::check_file(results.json.as_deref())?;
    output::check_file(results.report.as_deref())?;
    let machine = Machine::describe(at);
    let bar = Progress::new(results.quiet, workload, "rounds");
    let mut sheet = Sheet::default();
    let outcome = run(&bar, &mut sheet);
    drop(bar);
    interrupt::left_out(outcome, !sheet.rows.is_empty())?;
    let printed = output::print(&table((results, rounds), &machine, &sheet));
    let document = document(workload, (results, rounds), &machine, &sheet);
    if let Some(path) = &results.json {
        json::write(path, &document)?;
    }
    if let Some(path) = &results.report {
        sections::write(path, workload, (&About::now(at), &machine), &document)?;
    }
    printed?;
    interrupt::after_printing()
}

/// `nomt-bench hash`.
pub(crate) fn hash(args: &HashArgs) -> Result<()> {
    measure("hash", of(&args.parts), Path::new("."), |bar, sheet| {
        parts::hash::run(args, bar, sheet)
    })
}

/// `nomt-bench proof`.
pub(crate) fn proof(args: &ProofArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::proof::run(args, at.path(), bar, sheet);
    measure("proof", of(&args.parts), at.path(), run)
}

/// `nomt-bench auth`.
pub(crate) fn auth(args: &AuthArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::auth::run(args, at.path(), bar, sheet);
    measure("auth", of(&args.parts), at.path(), run)
}

/// `nomt-bench grind`.
pub(crate) fn grind(args: &GrindArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::grind::run(args, at.path(), bar, sheet);
    measure("grind", (&args.results, None), at.path(), run)
}

/// `nomt-bench overlay`.
pub(crate) fn overlay(args: &OverlayArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::overlay::run(args, at.path(), bar, sheet);
    measure("overlay", of(&args.parts), at.path(), run)
}

/// `nomt-bench threshold`.
pub(crate) fn threshold(args: &ThresholdArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run =
        |bar: &Progress, sheet: &mut Sheet| parts::threshold::run(args, at.path(), bar, sheet);
    measure("threshold", of(&args.parts), at.path(), run)
}

/// `nomt-bench flatten`.
pub(crate) fn flatten(args: &FlattenArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::flatten::run(args, at.path(), bar, sheet);
    measure("flatten", of(&args.parts), at.path(), run)
}

/// `nomt-bench erc20`.
pub(crate) fn erc20(args: &Erc20Args) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::erc20::run(args, at.path(), bar, sheet);
    measure("erc20", (&args.results, None), at.path(), run)
}

/// `nomt-bench bank`.
pub(crate) fn bank(args: &BankArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::bank::run(args, at.path(), bar, sheet);
    measure("bank", of(&args.parts), at.path(), run)
}

/// `nomt-bench import`.
pub(crate) fn import(args: &ImportArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::import::run(args, at.path(), bar, sheet);
    measure("import", of(&args.parts), at.path(), run)
}

/// `nomt-bench history`.
pub(crate) fn history(args: &HistoryArgs) -> Result<()> {
    let at = scratch(args.storage.dir.as_deref())?;
    let run = |bar: &Progress, sheet: &mut Sheet| parts::history::run(args, at.path(), bar, sheet);
    measure("history", of(&args.parts), at.path(), run)
}

fn table(
    (results, rounds): (&ResultArgs, Option<u64>),
    machine: &Machine,
    sheet: &Sheet,
) -> String {
    let mut grid = Grid::default();
    let head = ["", "", "p50, ms", "p90, ms", "max, ms", "ns each", "a second", "bytes", "times"];
    grid.row(head.map(str::to_owned));
    let mut last = "";
    for row in &sheet.rows {
        let Row { case, subject, round_ms, bytes, count, ratio, .. } = row;
        let name = if case == last { String::new() } else { case.clone() };
        last = case;
        let times = number(*ratio);
        if let Some((_, count)) = count {
            let none = || String::new();
            grid.row([
                name,
                subject.clone(),
                none(),
                none(),
                none(),
                none(),
                none(),
                number(*count),
                times,
            ]);
            continue;
        }
        grid.row([
            name,
            subject.clone(),
            number(round_ms.p50),
            number(round_ms.p90),
            number(round_ms.max),
            number(row.nanos()),
            number(1e9 / row.nanos().max(1e-9)),
            bytes.map(grouped).unwrap_or_default(),
            times,
        ]);
    }
    let mut text = format!(
        "kernel {}, {}, {} cores, folder on {}, {}seed {}\n\n{}",
        machine.kernel,
        machine.cpu,
        machine.cores,
        machine.file_system,
        rounds.map(|rounds| format!("{rounds} rounds, ")).unwrap_or_default(),
        results.seed,
        grid.render()
    );
    for note in &sheet.notes {
        text.extend(["note: ", note, "\n"]);
    }
    text
}

fn document(
    workload: &str,
    (results, rounds): (&ResultArgs, Option<u64>),
    machine: &Machine,
    sheet: &Sheet,
) -> serde_json::Value {
    json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "workload": workload,
        "machine": machine,
        "seed": results.seed,
        "rounds": rounds,
        "rows": sheet.rows,
        "notes": sheet.notes,
    })
}
