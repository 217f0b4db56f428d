//! Damage: found by a scrub beside the process that writes, and mended by a repair.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;

use pleach::scrub::{self, ScrubOptions, ScrubReport};
use pleach::status::LostHistory;
use pleach::{Advice, BadPage, Db, Key};
use pleach_archive::{Archive, ArchiveError, Follower};
use pleach_ops::repair::{
    self, LostCommits, RepairLoss, RepairOptions, RepairReport, RollForwardReport, SalvageReport,
};
use serde_json::{Value, json};

use crate::archive::restoring;
use crate::args::{RepairArgs, ScrubArgs};
use crate::change::{check_new, write_file};
use crate::database::reading;
use crate::error::{CliError, ErrorKind, Result, kind_of};
use crate::output::{self, bar, counting, waiting};

/// Reads and checks a database, and prints the findings. `wanted` is the root that namespace 0 must have.
pub(crate) fn scrub_folder(
    folder: &Path,
    bytes_per_second: u64,
    wanted: Option<Key>,
    json: bool,
) -> Result<()> {
    let bar = bar("scrub");
    let options =
        ScrubOptions::new().bytes_per_second(bytes_per_second).progress(Some(counting(&bar)));
    let scrub = |db: &Db| {
        let session = db.snapshot()?;
        let root = session.roots().get(0).map(|root| root.to_string());
        // What the open has given up is not in the report.
        let lost = db.opened().lost.as_ref().map(|lost| lost.note().to_string());
        Ok::<_, pleach::Error>((scrub::scrub(&session, &options)?, root, lost))
    };
    let (report, root, lost) = reading(folder, scrub)?;
    bar.finish_and_clear();
    let mut findings: Vec<String> = report.bad.iter().map(ToString::to_string).collect();
    findings.extend(lost);
    let wrong =
        report.roots.iter().filter(|one| one.found.is_some_and(|root| root != one.expected));
    findings.extend(wrong.map(|one| {
        format!("the pairs of namespace {} do not lead to its root {}", one.namespace, one.expected)
    }));
    let wanted = wanted.map(pleach::Node::from).map(|wanted| wanted.to_string());
    if let (Some(root), Some(wanted)) = (&root, wanted)
        && *root != wanted
    {
        findings.push(format!("the root is {root}, not {wanted}"));
    }
    let ScrubReport { commit, pages, pairs, long_values, records, runs, bytes, .. } = &report;
    if json {
        output::json(&json!({
            "schema": 1, "verdict": if findings.is_empty() { "clean" } else { "findings" },
            "commit": commit, "root": root, "pages": pages, "keys": pairs, "long_values": long_values,
            "log_records": records, "history_runs": runs, "bytes": bytes, "findings": findings,
            "bad_pages": report.bad.iter().map(bad_page).collect::<Value>(),
        }))?;
    } else {
        output::write(|to| {
            findings.iter().try_for_each(|what| writeln!(to, "{what}"))?;
            if findings.is_empty() {
                writeln!(
                    to,
                    "nothing found: {pages} pages, {long_values} long values, {records} records of the log, {runs} runs of the history, all roots, at commit {commit}"
                )?;
            }
            Ok(())
        })?;
    }
    match findings.len() {
        0 => Ok(()),
        count => {
            let plural = if count == 1 { "" } else { "s" };
            let text = format!(
                "{count} finding{plural}: `pleach repair` of the closed database says what can be done"
            );
            Err(CliError::new(ErrorKind::Findings, text).after_document())
        }
    }
}

fn bad_page(bad: &BadPage) -> Value {
    json!({
        "file": bad.file, "page": bad.page, "error": bad.error.to_string(),
        "namespace": bad.keys.map(|(namespace, _)| namespace),
        "keys": bad.keys.map(|(_, prefix)| format!("{prefix:?}")),
    })
}

pub(crate) fn scrub(args: &ScrubArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    scrub_folder(folder, args.mib_per_second << 20, None, args.folder.json)
}

pub(crate) fn repair(args: &RepairArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    match (&args.from, &args.to, &args.salvage) {
        (Some(archive), Some(to), _) => from_archive(args, folder, archive, to),
        (_, _, Some(to)) => salvage(args, folder, to),
        _ => in_place(args, folder),
    }
}

/// Heals what an open heals, and cuts a damaged log, where that is allowed or loses nothing.
fn in_place(args: &RepairArgs, folder: &Path) -> Result<()> {
    let waiting = waiting("repair");
    let repaired = repair::repair(folder, &RepairOptions::new().cut(args.cut));
    waiting.finish_and_clear();
    let report = match repaired {
        Err(pleach_ops::Error::WouldLose(loss)) => return refused(args, folder, &loss),
        Err(error) => match kind_of(&error) {
            kind @ (ErrorKind::DoesNotOpen | ErrorKind::Damaged) => {
                let text = format!(
                    "{error}; a repair in place does not help: give --from ARCHIVE --to FOLDER, or --salvage FILE"
                );
                return Err(CliError { code: Some(error.code()), ..CliError::new(kind, text) });
            }
            _ => return Err(CliError::engine(folder)(error)),
        },
        Ok(report) => report,
    };
    let RepairReport { commit, roots, opening, cut, check, .. } = &report;
    let root = roots.get(0).map(|root| root.to_string());
    let given_up = opening.lost.as_ref().map(LostHistory::note);
    let healed: Vec<String> = opening
        .fell_back
        .iter()
        .map(ToString::to_string)
        .chain(
            opening
                .notes
                .iter()
                .filter(|note| given_up.as_ref() != Some(*note))
                .map(ToString::to_string),
        )
        .chain(opening.cut.iter().map(|cut| {
            format!(
                "the log ended in a torn record at byte {}: a commit that was under way",
                cut.position
            )
        }))
        .collect();
    let findings: Vec<&str> = check.findings.iter().map(|finding| finding.what.as_str()).collect();
    if args.folder.json {
        output::json(&json!({
            "schema": 1, "changed": true, "commit": commit, "root": root, "healed": healed,
            "history_given_up": given_up.as_ref().map(ToString::to_string), "findings": findings,
            "log_cut": cut.as_ref().map(|cut| json!({
                "because": cut.error.to_string(), "aside": cut.aside,
                "lost_commits": range(&cut.lost), "more_may_be_lost": cut.lost.maybe_more,
            })),
        }))?;
    } else {
        output::write(|to| {
            healed.iter().try_for_each(|what| writeln!(to, "healed: {what}"))?;
            if let Some(cut) = cut {
                writeln!(to, "the log was cut behind commit {commit}: {}", cut.error)?;
                writeln!(to, "lost commits: {}", cut.lost)?;
                writeln!(to, "what was replaced is there as {}", cut.aside.join(", "))?;
            }
            given_up.iter().try_for_each(|what| writeln!(to, "given up: {what}"))?;
            findings.iter().try_for_each(|what| writeln!(to, "left: {what}"))?;
            let is_healthy =
                healed.is_empty() && cut.is_none() && given_up.is_none() && findings.is_empty();
            let head = if is_healthy { "nothing was to be repaired: " } else { "" };
            let root = root.as_deref().unwrap_or("none");
            writeln!(to, "{head}the newest commit is {commit}, root {root}")
        })?;
    }
    let text = if !findings.is_empty() {
        "bad pages are left: give --from ARCHIVE --to FOLDER for a database with all pairs, or --salvage FILE for what is \
         whole"
    } else if cut.as_ref().is_some_and(|cut| !cut.lost.is_none()) {
        "commits are lost: `pleach repair --from ARCHIVE --to FOLDER` may still find them in what was replaced"
    } else if given_up.is_some() {
        "older states are given up: only a copy of the folder from before the damage has them"
    } else {
        return Ok(());
    };
    Err(CliError::new(ErrorKind::Findings, text).after_document())
}

/// Says what a repair in place would lose: nothing was changed.
fn refused(args: &RepairArgs, folder: &Path, loss: &RepairLoss) -> Result<()> {
    let RepairLoss { commit, error, lost, history, .. } = loss;
    if args.folder.json {
        output::json(&json!({
            "schema": 1, "changed": false, "commit": commit, "because": error.to_string(),
            "lost_commits": range(lost), "more_may_be_lost": lost.maybe_more,
            "history_lost_before": history,
        }))?;
    } else {
        output::write(|to| {
            writeln!(to, "{error}")?;
            if !lost.is_none() {
                writeln!(
                    to,
                    "a repair in place would cut the log behind commit {commit}; lost commits: {lost}"
                )?;
            }
            if let Some(before) = history {
                writeln!(to, "a repair in place would give up the states before commit {before}")?;
            }
            Ok(())
        })?;
    }
    let at = folder.display();
    let text = format!(
        "nothing was changed: `pleach repair {at} --from ARCHIVE --to NEW` may keep them; without an archive `pleach repair {at} --cut` \
         gives them up"
    );
    Err(CliError::new(ErrorKind::Findings, text).after_document())
}

/// The first and last known lost commit for a document.
fn range(lost: &LostCommits) -> Value {
    let numbers = &lost.numbers;
    if numbers.is_empty() {
        return Value::Null;
    }
    json!({"from": numbers.start, "to": numbers.end - 1})
}

/// Makes a database from an archive and from the later commits of the damaged log.
fn from_archive(args: &RepairArgs, folder: &Path, archive: &OsStr, to: &Path) -> Result<()> {
    check_new(to)?;
    let archive = Archive::open(archive)?;
    // Where neither superblocks nor log have its id, no commits can be made again.
    match (archive.list()?.database(), pleach_ops::id(folder)) {
        (Some(archived), Ok(database)) if archived != database => {
            return Err(ArchiveError::OtherDatabase { archived, database }.into());
        }
        (_, Err(error)) if error.advice() == Advice::OtherVersion => {
            return Err(CliError::engine(folder)(error));
        }
        _ => {}
    }
    let (archived, report) = rolled_forward(args, folder, &archive, to)?;
    let RollForwardReport { through, commit, roots, lost, superblocks, error, .. } = &report;
    let root = roots.get(0).map(|root| root.to_string());
    let is_whole = lost.is_none() && superblocks.is_none() && error.is_none();
    let [superblocks, error] =
        [superblocks, error].map(|error| error.as_ref().map(ToString::to_string));
    if args.folder.json {
        output::json(&json!({
            "schema": 1, "archived_commit": archived, "through": through, "commit": commit,
            "root": root, "lost_commits": range(lost),
            "more_may_be_lost": lost.maybe_more, "superblocks": superblocks, "error": error,
        }))?;
    } else {
        output::write(|out| {
            let root = root.as_deref().unwrap_or("none");
            if *through == archived {
                writeln!(out, "archived commit {archived}; the log adds none: root {root}")?;
            } else {
                writeln!(
                    out,
                    "archived commit {archived}, and the log's commits through {through}, each with its roots: root {root}"
                )?;
            }
            superblocks.iter().try_for_each(|error| {
                writeln!(out, "{error}: the log alone tells which commits there were, and a bulk load is not in it")
            })?;
            error.iter().try_for_each(|error| writeln!(out, "ended there: {error}"))?;
            if *through == archived && !lost.is_none() {
                writeln!(
                    out,
                    "the log has no whole record of commit {}: give an archive with a later commit, if there is one",
                    archived + 1
                )?;
            }
            if is_whole {
                writeln!(out, "no commit is lost")?;
            }
            writeln!(out, "put {} in the place of {}", to.display(), folder.display())
        })?;
    }
    if is_whole {
        return Ok(());
    }
    let text = if lost.is_none() && error.is_none() {
        "no superblock can be used: a bulk load behind the last commit would leave no trace"
            .to_owned()
    } else {
        format!("commits that are lost: {lost}")
    };
    Err(CliError::new(ErrorKind::Findings, text).after_document())
}

fn rolled_forward(
    args: &RepairArgs,
    folder: &Path,
    archive: &Archive,
    to: &Path,
) -> Result<(u64, RollForwardReport)> {
    let bar = bar("repair");
    let options = restoring(args.memory_mib, Some(args.history), &bar).unfinished(true);
    let mut follower = Follower::open(archive, to, &options)?;
    // Each step has one object of the archive.
    while follower.step()?.is_some() {}
    bar.finish_and_clear();
    let waiting = waiting("commits of the log");
    let at = follower.at();
    let report =
        repair::roll_forward(follower.db(), folder, Some(at)).map_err(CliError::engine(folder))?;
    follower.db().close().and_then(|_| pleach_ops::finish(to)).map_err(CliError::engine(to))?;
    waiting.finish_and_clear();
    Ok((at, report))
}

/// Writes an export stream of the readable part.
fn salvage(args: &RepairArgs, folder: &Path, to: &Path) -> Result<()> {
    let waiting = waiting("salvage");
    let report = write_file(to, |file| {
        repair::salvage(folder, file).map_err(|error| match kind_of(&error) {
            kind @ ErrorKind::DoesNotOpen => {
                let text =
                    format!("{error}; nothing can be salvaged: give --from ARCHIVE --to FOLDER");
                CliError { code: Some(error.code()), ..CliError::new(kind, text) }
            }
            _ => CliError::engine(folder)(error),
        })
    })?;
    waiting.finish_and_clear();
    let SalvageReport { export, roots, expected, error, lost_commits, torn, lost, .. } = &report;
    let error = error.as_ref().map(ToString::to_string);
    let text = |roots: &pleach::Roots| roots.get(0).map(|root| root.to_string());
    if args.folder.json {
        output::json(&json!({
            "schema": 1, "commit": export.commit, "pairs": export.pairs, "root": text(roots),
            "expected_root": text(expected), "error": error,
            "lost_commits": range(lost_commits), "more_may_be_lost": lost_commits.maybe_more,
            "torn_record": torn.map(|torn| torn.position.get()), "lost": lost.iter().map(bad_page).collect::<Value>(),
        }))?;
    } else {
        output::write(|out| {
            lost.iter().try_for_each(|bad| writeln!(out, "lost: {bad}"))?;
            error.iter().try_for_each(|error| writeln!(out, "it does not open: {error}"))?;
            if !lost_commits.is_none() {
                writeln!(out, "lost commits: {lost_commits}")?;
            }
            if torn.is_some() {
                writeln!(
                    out,
                    "the log ends in a torn record: commit {} was under way, or its record was damaged since",
                    export.commit + 1
                )?;
            }
            writeln!(
                out,
                "{} pairs are in {}, commit {}",
                export.pairs,
                to.display(),
                export.commit
            )
        })?;
    }
    if lost.is_empty() && lost_commits.is_none() && torn.is_none() {
        return Ok(());
    }
    let text = if lost.is_empty() && lost_commits.is_none() {
        "a commit may be lost: the log ends in a torn record"
    } else if lost.is_empty() {
        "commits are lost: what was written is the state of an older one"
    } else {
        "pairs are lost: what was written is the state of no commit"
    };
    Err(CliError::new(ErrorKind::Findings, text).after_document())
}
