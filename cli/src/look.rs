//! Commands that write nothing to the folder: they look at a closed database.

use std::io::Write as _;

use pleach::tools::{self, CheckOptions, CheckReport, NamespaceStat, Severity, Stat, Verdict};
use pleach::{Commit, Key};
use serde_json::{Value, json};

use crate::args::{CheckArgs, DumpArgs, FolderArgs, KeyArgs};
use crate::error::{CliError, ErrorKind, Result};
use crate::output::{self, hex};

pub(crate) fn stat(args: &FolderArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let stat = tools::stat(folder);
    if let Err(pleach::Error::Io(pleach::IoError::Locked { .. })) = &stat
        && !args.json
        && let Ok(Some(notice)) = tools::notice(folder)
    {
        // The figures belong to the process that has it open. Its notice says what is wrong there.
        output::print(&notice)?;
    }
    let stat = stat.map_err(CliError::engine(folder))?;
    if args.json { output::json(&stat_json(&stat)) } else { output::print(&format!("{stat}\n")) }
}

/// Figures as JSON, schema 1. Fields may be added under the same number.
fn stat_json(stat: &Stat) -> Value {
    let block = &stat.superblock;
    let slot = |generation: u64, commit: u64| json!({"generation": generation, "commit": commit});
    json!({
        "schema": 1,
        "root": stat.root.to_string(),
        "namespaces": stat.namespaces.iter().map(namespace_json).collect::<Value>(),
        "commit": stat.commit,
        "oldest_commit": stat.oldest_commit,
        "history": block.history,
        "history_log_bytes": stat.history_log_bytes,
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

pub(crate) fn namespaces(args: &FolderArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let stat = tools::stat(folder).map_err(CliError::engine(folder))?;
    if args.json {
        let namespaces = stat.namespaces.iter().map(namespace_json).collect::<Value>();
        return output::json(&json!({
            "schema": 1, "commit": stat.commit, "namespaces": namespaces
        }));
    }
    output::write(|to| {
        for one in &stat.namespaces {
            let state = match (one.root, one.digest, one.dropped) {
                (_, _, Some(commit)) => format!("dropped by commit {commit}"),
                (Some(root), ..) => format!("root {root}"),
                (_, Some(digest), _) => format!("plain, digest {}", hex(&digest)),
                _ => "unknown".to_owned(),
            };
            writeln!(to, "{:<4} {state}, {} leaf pages", one.number, one.pages)?;
        }
        Ok(())
    })
}

pub(crate) fn history(args: &FolderArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let commits = tools::history(folder).map_err(CliError::engine(folder))?;
    if args.json {
        let commits = commits.iter().map(commit_json).collect::<Value>();
        return output::json(&json!({"schema": 1, "commits": commits}));
    }
    output::write(|to| {
        for commit in &commits {
            writeln!(
                to,
                "{:<10} root {}, blob of {} bytes",
                commit.number,
                commit.root,
                commit.blob.len()
            )?;
        }
        Ok(())
    })
}

fn commit_json(commit: &Commit) -> Value {
    let roots = commit
        .roots
        .iter()
        .map(|(number, root)| json!({"namespace": number, "root": root.to_string()}));
    json!({
        "number": commit.number,
        "root": commit.root.to_string(),
        "roots": roots.collect::<Value>(),
        "blob": hex(&commit.blob),
    })
}

pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let path = args.folder.folder.path()?;
    let options = CheckOptions::default().past(!args.newest);
    let report = tools::check(path, options).map_err(CliError::engine(path))?;
    let mut verdict = report.verdict();
    let mut findings: Vec<(Severity, String)> =
        report.findings.iter().map(|it| (it.severity, it.what.clone())).collect();
    if let Some(wanted) = args.root.filter(|_| verdict != Verdict::DoesNotOpen)
        && report.root.to_bytes() != wanted
    {
        findings.push((Severity::Survived, format!("the root is {}", report.root)));
        verdict = Verdict::Findings;
    }
    if args.folder.json {
        output::json(&check_json(&report, verdict, &findings))?;
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
    let plural = if findings.len() == 1 { "" } else { "s" };
    let count = format!("{} finding{plural}", findings.len());
    match verdict {
        Verdict::Clean => Ok(()),
        Verdict::Findings => {
            let text = format!("{count}; the database opens");
            Err(CliError::new(ErrorKind::Findings, text).after_document())
        }
        Verdict::DoesNotOpen => {
            let cure = "put back a copy of the folder, import an export stream, or make a new database from the blocks of the chain";
            let text = format!("{count}; the database does not open: {cure}");
            Err(CliError::new(ErrorKind::DoesNotOpen, text).after_document())
        }
    }
}

/// The report as JSON, schema 1. Fields may be added under the same number.
fn check_json(report: &CheckReport, verdict: Verdict, findings: &[(Severity, String)]) -> Value {
    let findings = findings
        .iter()
        .map(|(severity, what)| json!({"fatal": *severity == Severity::Fatal, "what": what}));
    let opens = verdict != Verdict::DoesNotOpen;
    json!({
        "schema": 1,
        "verdict": match verdict {
            Verdict::Clean => "clean",
            Verdict::Findings => "findings",
            Verdict::DoesNotOpen => "does not open",
        },
        "findings": findings.collect::<Value>(),
        // What does not open has none that could be believed.
        "commit": opens.then_some(report.commit),
        "root": opens.then(|| report.root.to_string()),
        "pages": report.pages,
        "keys": report.keys,
        "regions": report.regions,
        "namespaces": report.namespaces,
        "long_values": report.long_values,
        "overflow_pages": report.overflow_pages,
        "older_checkpoint_serves": report.older_serves,
    })
}

pub(crate) fn get(args: &KeyArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let found = tools::get(folder, args.namespace, &args.key).map_err(CliError::engine(folder))?;
    let value = found.as_deref().map(hex);
    if args.folder.json {
        output::json(&json!({
            "schema": 1, "namespace": args.namespace, "key": hex(&args.key), "value": value
        }))?;
    } else if let Some(value) = &value {
        output::print(&format!("{value}\n"))?;
    }
    match value {
        Some(_) => Ok(()),
        None => Err(CliError::new(ErrorKind::Findings, "the key has no value").after_document()),
    }
}

pub(crate) fn explain(args: &KeyArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let told =
        tools::explain(folder, args.namespace, &args.key).map_err(CliError::engine(folder))?;
    if args.folder.json {
        return output::json(&json!({
            "schema": 1, "namespace": args.namespace, "key": hex(&args.key),
            "present": told.present, "depth": told.depth, "lines": told.lines,
        }));
    }
    output::print(&format!("{told}\n"))
}

pub(crate) fn dump(args: &DumpArgs) -> Result<()> {
    let path = args.folder.folder.path()?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let (mut failed, mut is_first) = (Ok(()), true);
    let head = format!("{{\"schema\": 1, \"namespace\": {}, \"pairs\": [", args.namespace);
    output::write(|to| {
        let mut broken = Ok(());
        let mut each = |key: &Key, value: &[u8]| {
            let digits = hex(key);
            if !digits.starts_with(&args.prefix) {
                // Keys ascend.
                return digits < args.prefix;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            broken = if args.folder.json {
                let before = if is_first { &*head } else { "," };
                let (key, value) = (digits, hex(value));
                write!(to, "{before}\n{{\"key\": \"{key}\", \"value\": \"{value}\"}}")
            } else {
                writeln!(to, "{digits} {}", hex(value))
            };
            is_first = false;
            broken.is_ok()
        };
        failed = tools::dump(path, args.namespace, &mut each).map_err(CliError::engine(path));
        broken?;
        if !args.folder.json || failed.is_err() {
            return Ok(());
        }
        if is_first { writeln!(to, "{head}]}}") } else { writeln!(to, "\n]}}") }
    })?;
    failed.map_err(|error| if is_first { error } else { error.after_document() })
}
