//! The binary `pleach`: looks into a database folder and writes nothing to it. An error is one clear
//! line.
//!
//! Exit codes: 0 if all is well; 1 if the database is damaged or in use, or if `check` has findings
//! that an open survives; 2 if the arguments do not fit, or if `check` finds that the database does
//! not open.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use pleach::tools::{self, CheckOptions, CheckReport, NamespaceStat, Severity, Stat, Verdict};
use pleach_core::Key;
use serde_json::{Value, json};

use crate::args;
use crate::error::{BenchError, Result};
use crate::output;
use crate::text::{counted, from_hex, hex};

/// Name of the file that makes a folder a database.
const SUPERBLOCK: &str = "super";

const EXAMPLES: &str = "\
Examples:
  pleach stat /mnt/ssd/state                 what is there
  pleach stat /mnt/ssd/state --json          the same for programs
  pleach check /mnt/ssd/state --root 0x48c0...
  pleach dump /mnt/ssd/state | head
  pleach explain /mnt/ssd/state KEY          where a key lies

Nothing is written to the folder. A database that is open is in use: close it first.
Exit codes: 0 fine; 1 damaged or in use, of `check`: findings that an open survives; 2 arguments that do
not fit, of `check`: the database does not open.";

/// Looks into the folder of a Pleach state database: figures, a check of everything, all pairs,
/// the place of a key.
#[derive(Debug, Parser)]
#[command(name = "pleach", version, after_help = EXAMPLES)]
struct ToolsCli {
    #[command(subcommand)]
    command: ToolsCommand,
}

#[derive(Debug, Subcommand)]
enum ToolsCommand {
    /// What is in the folder: root, counts, sizes; exit code 1 when a file is missing or short
    Stat(StatArgs),
    /// Reads everything and lists what does not fit; exit code 1 with findings, 2 when it does not open
    Check(CheckArgs),
    /// All pairs of a namespace in key order, one a line, in hexadecimal
    Dump(DumpArgs),
    /// Where a key lies, page by page
    Explain(ExplainArgs),
}

#[derive(Debug, Args)]
struct Folder {
    /// The database folder
    folder: PathBuf,
}

#[derive(Debug, Args)]
struct DumpArgs {
    #[command(flatten)]
    folder: Folder,
    /// The namespace, 0 to 255
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    namespace: u8,
}

#[derive(Debug, Args)]
struct StatArgs {
    #[command(flatten)]
    folder: Folder,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    folder: Folder,
    /// The root that namespace 0 must have, 64 hexadecimal digits, with or without 0x
    #[arg(long, value_name = "HEX", value_parser = digits)]
    root: Option<Key>,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    #[command(flatten)]
    folder: Folder,
    /// The key, 64 hexadecimal digits, with or without 0x
    #[arg(value_name = "HEX", value_parser = digits)]
    key: Key,
    /// The namespace, 0 to 255
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    namespace: u8,
}

fn digits(text: &str) -> core::result::Result<Key, String> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").or(digits.strip_prefix("0X")).unwrap_or(digits);
    from_hex(digits).ok_or_else(|| {
        let count = digits.chars().count();
        format!("say 64 hexadecimal digits, with or without 0x; these are {count} characters")
    })
}

/// Wraps an error of the engine about a folder, and adds which of these commands may help.
fn wrap(folder: &Path) -> impl Fn(pleach::Error) -> BenchError + '_ {
    move |error| {
        let at = folder.display();
        let text = match &error {
            pleach::Error::Missing => format!(
                "there is no database in {at}: `nomt-bench init --dir {at}` loads one into {at}/pleach"
            ),
            pleach::Error::Io(pleach::IoError::Locked { .. }) => {
                format!(
                    "{error}: stop that process, or look at a copy that was made while it was stopped"
                )
            }
            pleach::Error::Page { .. } | pleach::Error::StalePage { .. } => {
                format!("{error}; `pleach check {at}` lists all that is damaged")
            }
            _ => error.to_string(),
        };
        BenchError::backend("database")(text)
    }
}

/// The whole of `pleach`.
pub(crate) fn main() -> ExitCode {
    let cli = match args::parse::<ToolsCli>() {
        Ok(cli) => cli,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(error)) => return output::report("pleach", &error),
    };
    let outcome = match cli.command {
        ToolsCommand::Stat(args) => stat(&args),
        ToolsCommand::Check(args) => check(&args),
        ToolsCommand::Dump(args) => dump(&args),
        ToolsCommand::Explain(args) => explain(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report("pleach", &error),
    }
}

impl Folder {
    /// The folder, if it can be that of a database: a mistyped name is the caller's mistake, not
    /// damage.
    fn path(&self) -> Result<&Path> {
        let folder = &self.folder;
        let at = folder.display();
        let wrong = if folder.is_dir() {
            let inside = databases_in(folder);
            if inside.is_empty() {
                return Ok(folder);
            }
            format!("{at} is no database itself: give {}, which it holds", inside.join(" or "))
        } else if folder.exists() {
            format!("{at} is a file: give the folder of the database, with all its files")
        } else {
            format!(
                "there is no folder {at}: give that of a database (nomt-bench keeps its own in \
                 DIR/pleach)"
            )
        };
        Err(BenchError::Usage(wrong))
    }
}

/// Subfolders that hold a database, of a folder that does not.
fn databases_in(folder: &Path) -> Vec<String> {
    let has = |folder: &Path, name: &str| folder.join(name).is_file();
    if has(folder, SUPERBLOCK) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inside = entries.map(|entry| entry.path()).filter(|path| has(path, SUPERBLOCK));
    let mut names: Vec<_> = inside.map(|path| path.display().to_string()).collect();
    names.sort();
    names
}

fn stat(args: &StatArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let stat = tools::stat(folder);
    if let Err(pleach::Error::Io(pleach::IoError::Locked { .. })) = &stat
        && let Ok(Some(notice)) = tools::notice(folder)
    {
        // The figures belong to the process that has it open. Its notice says what is wrong there.
        output::print(&notice)?;
    }
    let stat = stat.map_err(wrap(folder))?;
    let text = if args.json { format!("{:#}", json(&stat)) } else { stat.to_string() };
    output::print(&format!("{text}\n"))
}

/// Figures as JSON, schema 1. Fields may be added under the same number.
fn json(stat: &Stat) -> Value {
    let block = &stat.superblock;
    let slot = |generation: u64, commit: u64| json!({"generation": generation, "commit": commit});
    json!({
        "schema": 1,
        "root": stat.root.to_string(),
        "namespaces": stat.namespaces.iter().map(namespace_json).collect::<Value>(),
        "commit": stat.commit,
        "blob_bytes": stat.blob_bytes,
        "hasher": stat.hasher,
        "leaf_pages": stat.pages,
        "empty_prefixes": stat.empty_prefixes,
        "regions": stat.regions,
        "pending_entries": stat.pending_entries,
        "pending_bytes": stat.pending_bytes,
        "overflow_pages_used": stat.overflow_pages.0,
        "overflow_pages": stat.overflow_pages.1,
        "log_replay_bytes": stat.log_replay_bytes,
        "superblock": slot(block.generation, block.commit),
        "other_slot": match &stat.other_slot {
            Ok(other) => slot(other.generation, other.commit),
            Err(error) => json!({"error": error.to_string()}),
        },
        "incarnation": stat.incarnation,
        "closed": stat.opening.closed,
        "geometry": {
            "leaf_segment": block.geometry.leaf_segment,
            "overflow_segment": block.geometry.overflow_segment,
            "log_segment": block.geometry.log_segment,
            "size_factor_percent": block.geometry.size_factor_percent,
        },
        "files_bytes": stat.files.iter().map(|file| file.1).sum::<u64>(),
        "files": stat.files.iter().map(|file| json!({"name": file.0, "bytes": file.1})).collect::<Value>(),
        "log_cut_bytes": stat.opening.cut.map(|cut| cut.bytes),
        "fell_back": stat.opening.fell_back.as_ref().map(ToString::to_string),
        "notes": stat.opening.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn namespace_json(namespace: &NamespaceStat) -> Value {
    json!({
        "number": namespace.number,
        "root": namespace.root.map(|root| root.to_string()),
        "digest": namespace.digest.map(|digest| hex(&digest)),
        "dropped_by": namespace.dropped,
        "leaf_pages": namespace.pages,
        "regions": namespace.regions,
        "pending_entries": namespace.pending_entries,
    })
}

fn check(args: &CheckArgs) -> Result<()> {
    let path = args.folder.path()?;
    let report = tools::check(path, CheckOptions::default()).map_err(wrap(path))?;
    let mut verdict = report.verdict();
    let mut findings: Vec<(Severity, String)> =
        report.findings.iter().map(|it| (it.severity, it.what.clone())).collect();
    if let Some(wanted) = args.root.filter(|_| verdict != Verdict::DoesNotOpen)
        && report.root.to_bytes() != wanted
    {
        findings.push((Severity::Survived, format!("the root is {}", report.root)));
        verdict = Verdict::Findings;
    }
    if args.json {
        output::print(&format!("{:#}\n", check_json(&report, verdict, &findings)))?;
    } else {
        output::write(|to| {
            findings.iter().try_for_each(|(_, what)| writeln!(to, "{what}"))?;
            if report.older_serves == Some(false) {
                writeln!(
                    to,
                    "note: the older checkpoint could not serve in place of the newest one"
                )?;
            }
            if findings.is_empty() { writeln!(to, "nothing found") } else { Ok(()) }
        })?;
    }
    let count = counted(findings.len(), "finding");
    match verdict {
        Verdict::Clean => Ok(()),
        Verdict::Findings => Err(BenchError::Wrong(format!("{count}; the database opens"))),
        Verdict::DoesNotOpen => {
            let cure = "put back a copy of the folder, or make a new database from the blocks of the chain";
            Err(BenchError::Unusable(format!("{count}; the database does not open: {cure}")))
        }
    }
}

/// The report as JSON, schema 1. Fields may be added under the same number.
fn check_json(report: &CheckReport, verdict: Verdict, findings: &[(Severity, String)]) -> Value {
    let findings = findings
        .iter()
        .map(|(severity, what)| json!({"fatal": *severity == Severity::Fatal, "what": what}));
    json!({
        "schema": 1,
        "verdict": match verdict {
            Verdict::Clean => "clean",
            Verdict::Findings => "findings",
            Verdict::DoesNotOpen => "does not open",
        },
        "findings": findings.collect::<Value>(),
        "commit": report.commit,
        "root": report.root.to_string(),
        "pages": report.pages,
        "keys": report.keys,
        "regions": report.regions,
        "namespaces": report.namespaces,
        "long_values": report.long_values,
        "overflow_pages": report.overflow_pages,
        "older_checkpoint_serves": report.older_serves,
    })
}

fn dump(args: &DumpArgs) -> Result<()> {
    let path = args.folder.path()?;
    let mut failed = Ok(());
    output::write(|to| {
        let mut broken = Ok(());
        failed = tools::dump(path, args.namespace, &mut |key: &Key, value: &[u8]| {
            broken = writeln!(to, "{} {}", hex(key), hex(value));
            broken.is_ok()
        })
        .map_err(wrap(path));
        broken
    })?;
    failed
}

fn explain(args: &ExplainArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let explanation = tools::explain(folder, args.namespace, &args.key).map_err(wrap(folder))?;
    output::print(&format!("{explanation}\n"))
}
