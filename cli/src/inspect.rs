//! Commands that write nothing to the folder, and read it beside a writing process.

use std::io::Write;
use std::time::SystemTime;

use pleach::internals::hexadecimal::hex;
use pleach::{Commit, Db, Error};
use pleach_ops::{self, CheckOptions, CheckReport, NamespaceStat, Severity, Stat, Verdict};
use serde_json::{Value, json};

use crate::args::{AtArgs, CheckArgs, DumpArgs, ExplainArgs, FolderArgs, HistoryArgs, MetricsArgs};
use crate::database::{open_reading, reading, session};
use crate::error::{CliError, ErrorKind, Result};
use crate::output::{self, bar, counting};
use crate::repair::scrub_folder;

pub(crate) fn stat(args: &FolderArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let stat = pleach_ops::stat(folder).map_err(CliError::engine(folder))?;
    if args.json {
        return output::json(&stat_json(&stat));
    }
    output::print(&format!("{stat}\n"))
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
        "history_bytes": stat.history_bytes,
        "history_bytes_a_commit": stat.history_bytes_per_commit(),
        "history_since": stat.history_since.and_then(|since| {
            Some(since.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
        }),
        "blob_bytes": stat.blob_bytes,
        "hasher": stat.hasher,
        "leaf_pages": stat.pages,
        "empty_prefixes": stat.empty_prefixes,
        "regions": stat.regions,
        "pending_entries": stat.buffered_entries,
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
        "in_use": stat.in_use,
        "notes": stat.opening.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn namespace_json(namespace: &NamespaceStat) -> Value {
    json!({
        "number": namespace.number,
        "root": namespace.root.map(|root| root.to_string()),
        "digest": namespace.digest.map(hex),
        "dropped_by": namespace.dropped,
        "leaf_pages": namespace.pages,
        "regions": namespace.regions,
        "pending_entries": namespace.buffered_entries,
    })
}

pub(crate) fn namespaces(args: &FolderArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let stat = pleach_ops::stat(folder).map_err(CliError::engine(folder))?;
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
                (_, Some(digest), _) => format!("plain, digest {}", hex(digest)),
                _ => "unknown".to_owned(),
            };
            writeln!(to, "{:<4} {state}, {} leaf pages", one.number, one.pages)?;
        }
        Ok(())
    })
}

/// A commit of the history.
struct PastCommit {
    commit: Commit,
    /// When it was made, where that is known.
    time: Option<SystemTime>,
    /// The commit that it goes back to, if it is a rollback.
    back_to: Option<u64>,
}

fn past_commit(db: &Db, number: u64) -> pleach::Result<PastCommit> {
    let commit = db.commit_at(number)?;
    // Of the oldest commit only the state is kept.
    if number == *db.history().start() {
        return Ok(PastCommit { commit, time: None, back_to: None });
    }
    let (time, back_to) = (db.committed_at(number)?, db.rolled_back_to(number)?);
    Ok(PastCommit { commit, time, back_to })
}

pub(crate) fn history(HistoryArgs { folder: args, last }: &HistoryArgs) -> Result<()> {
    let folder = args.folder.path()?;
    let db = open_reading(folder)?;
    // Lost commits show when the oldest is requested.
    match db.commit_at(*db.history().start()) {
        Ok(_) | Err(Error::HistoryLost { .. }) => {}
        Err(error) => return Err(CliError::engine(folder)(error)),
    }
    let (oldest, newest) = db.history().into_inner();
    let first = last.map_or(oldest, |last| (newest + 1).saturating_sub(last).max(oldest));
    let commits = (first..=newest).map(|number| past_commit(&db, number));
    if args.json {
        let commits = commits.map(|past| past.map(|past| commit_json(&past)));
        let commits =
            commits.collect::<pleach::Result<Value>>().map_err(CliError::engine(folder))?;
        return output::json(&json!({"schema": 1, "commits": commits}));
    }
    let mut failed = None;
    output::write(|to| {
        for commit in commits {
            let PastCommit { commit: Commit { number, root, blob, .. }, time, back_to } =
                match commit {
                    Ok(past) => past,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                };
            let time = time.map(|time| humantime::format_rfc3339_seconds(time).to_string());
            let time = time.as_deref().unwrap_or("at an unknown time");
            let back = back_to.map_or(String::new(), |to| format!(", goes back to commit {to}"));
            writeln!(
                to,
                "{number:<10} {time:<20} root {root}, blob of {} bytes{back}",
                blob.len()
            )?;
        }
        Ok(())
    })?;
    failed.map_or(Ok(()), |error| Err(CliError::engine(folder)(error)))
}

fn commit_json(PastCommit { commit, time, back_to }: &PastCommit) -> Value {
    let seconds = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!({
        "number": commit.number,
        "time": seconds.map(|seconds| seconds.as_secs()),
        "rolled_back_to": back_to,
        "root": commit.root.to_string(),
        "roots": output::roots(&commit.roots),
        "blob": hex(&commit.blob),
    })
}

pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let path = args.folder.folder.path()?;
    let bar = bar("check");
    let options = CheckOptions::default().past(!args.newest).progress(Some(counting(&bar)));
    let checked = pleach_ops::check(path, options);
    bar.finish_and_clear();
    let report = match checked {
        // The part of the check that is possible beside the writing process.
        Err(pleach::Error::Io(pleach::errors::IoError::Locked { .. })) => {
            return scrub_folder(path, 0, args.root, args.folder.json);
        }
        report => report.map_err(CliError::engine(path))?,
    };
    let mut verdict = report.verdict();
    let mut findings: Vec<(Severity, String)> =
        report.findings.iter().map(|it| (it.severity, it.what.clone())).collect();
    if let Some(wanted) = args.root.filter(|_| verdict != Verdict::DoesNotOpen)
        && report.root.to_bytes() != wanted
    {
        findings.push((
            Severity::Survived,
            format!("the root is {}, not {}", report.root, pleach::Node::from(wanted)),
        ));
        verdict = Verdict::Findings;
    }
    if args.folder.json {
        output::json(&check_json(&report, verdict, &findings))?;
    } else {
        output::write(|to| {
            findings.iter().try_for_each(|(_, what)| writeln!(to, "{what}"))?;
            report.notes.iter().try_for_each(|what| {
                writeln!(to, "note: {what}; the next open for writing makes it again")
            })?;
            if report.older_serves == Some(false) {
                writeln!(
                    to,
                    "note: the older checkpoint could not serve in place of the newest one"
                )?;
            }
            if !findings.is_empty() {
                return Ok(());
            }
            let CheckReport { commit, root, pages, keys, long_values, namespaces, .. } = &report;
            let past = if args.newest { "" } else { ", and the history" };
            writeln!(
                to,
                "nothing found: {keys} keys in {pages} pages, {long_values} long values, {namespaces} namespaces, their nodes{past}, at \
                 commit {commit} with root {root}"
            )
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
            let at = path.display();
            let text = format!(
                "{count}; the database does not open: `pleach repair {at}` says what can be done"
            );
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
        "notes": report.notes,
        // A database that does not open has no commit to trust.
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

pub(crate) fn get(AtArgs { key: args, at }: &AtArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let read = |db: &Db| -> pleach::Result<_> {
        let session = session(db, *at)?;
        Ok((session.commit_number(), session.namespace(args.namespace)?.read(&args.key)?))
    };
    let (commit, value) = reading(folder, read)?;
    let value = value.as_deref().map(hex);
    if args.folder.json {
        output::json(&json!({
            "schema": 1, "commit": commit, "namespace": args.namespace, "key": hex(args.key),
            "value": value,
        }))?;
    } else if let Some(value) = &value {
        output::print(&format!("{value}\n"))?;
    }
    match value {
        Some(_) => Ok(()),
        None => Err(CliError::new(ErrorKind::Findings, "the key has no value").after_document()),
    }
}

pub(crate) fn explain(ExplainArgs { key: args, history }: &ExplainArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let explain = if *history { pleach_ops::explain_past } else { pleach_ops::explain };
    let told = explain(folder, args.namespace, &args.key).map_err(CliError::engine(folder))?;
    if args.folder.json {
        return output::json(&json!({
            "schema": 1, "namespace": args.namespace, "key": hex(args.key),
            "commit": told.commit, "present": told.present,
            "region": told.region, "page": told.page, "pending_since": told.buffered,
            "depth": told.depth, "lines": told.lines,
        }));
    }
    output::print(&format!("{told}\n"))
}

/// Prints pairs as they are read; returns the result of writing them.
fn print_pairs(
    db: &Db,
    args: &DumpArgs,
    to: &mut impl Write,
    printed: &mut u64,
) -> pleach::Result<std::io::Result<()>> {
    let session = db.snapshot()?;
    let (first, last) = args.range();
    for pair in session.namespace(args.namespace)?.iter(first..=last) {
        if args.limit.is_some_and(|limit| *printed == limit) {
            break;
        }
        let (key, value) = pair.map(|(key, value)| (hex(key), hex(&value)))?;
        let written = if args.folder.json {
            let before = if *printed == 0 { dump_head(args) } else { ",".to_owned() };
            write!(to, "{before}\n{{\"key\": \"{key}\", \"value\": \"{value}\"}}")
        } else {
            writeln!(to, "{key} {value}")
        };
        if written.is_err() {
            return Ok(written);
        }
        *printed += 1;
    }
    Ok(Ok(()))
}

fn dump_head(args: &DumpArgs) -> String {
    format!("{{\"schema\": 1, \"namespace\": {}, \"pairs\": [", args.namespace)
}

pub(crate) fn dump(args: &DumpArgs) -> Result<()> {
    let path = args.folder.folder.path()?;
    let (mut failed, mut printed) = (None, 0);
    output::write(|to| {
        match reading(path, |db| print_pairs(db, args, to, &mut printed)) {
            Ok(written) => written?,
            Err(error) => {
                failed = Some(error);
                return Ok(());
            }
        }
        match printed {
            _ if !args.folder.json => Ok(()),
            0 => writeln!(to, "{}]}}", dump_head(args)),
            _ => writeln!(to, "\n]}}"),
        }
    })?;
    failed.map_or(Ok(()), |error| {
        let at = path.display();
        let error = match error.kind {
            ErrorKind::Damaged => CliError {
                text: format!(
                    "{}; {printed} pairs before that were printed: `pleach scrub {at}` names the keys of bad pages, and --prefix \
                     prints those beside them",
                    error.text
                ),
                ..error
            },
            _ => error,
        };
        Err(if printed == 0 { error } else { error.after_document() })
    })
}

/// The page of metrics, once.
pub(crate) fn metrics(args: &MetricsArgs) -> Result<()> {
    let page = reading(args.folder.path()?, pleach_ops::reader_metrics)?;
    output::print(&page)
}
