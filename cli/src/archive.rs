//! Backups to an archive, restores and followers.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use pleach::Options;
use pleach_archive::{
    Archive, ArchiveError, BackupOptions, BackupReport, Follower, FullReason, Listing, Piece,
    Progress, RestoreOptions, RestoreReport, Transfer, prune,
};
use serde_json::{Value, json};

use crate::args::{BackupArgs, FollowArgs, RestoreArgs};
use crate::change::{check_new, check_outside};
use crate::database::open_reading;
use crate::error::{CliError, ErrorKind, Result};
use crate::output::{self, bar};

/// Reports the progress of a transfer to a bar.
fn telling(bar: &ProgressBar) -> Progress {
    let bar = bar.clone();
    Arc::new(move |transfer: Transfer<'_>| {
        bar.set_message(transfer.object.to_owned());
        if let Some(of) = transfer.of {
            bar.set_length(of);
            bar.set_position(transfer.bytes);
        }
    })
}

pub(crate) fn backup(args: &BackupArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    if let Some(archive) = Archive::folder_of(&args.to)? {
        check_outside(folder, &archive)?;
    }
    let db = open_reading(folder)?;
    let archive = Archive::create(&args.to)?;
    let bar = bar("backup");
    let mut done = 0;
    loop {
        let full = args.full && done == 0;
        let options = BackupOptions::new().full(full).progress(Some(telling(&bar)));
        let report = pleach_archive::backup(&archive, &db, &options)
            .map_err(|error| CliError { is_after_document: done > 0, ..failed(folder, error) })?;
        bar.suspend(|| print_backup(args, &report))?;
        if let Some(keep) = args.keep {
            prune(&archive, keep).map_err(|error| CliError::from(error).after_document())?;
        }
        done += 1;
        match args.every.filter(|_| args.count.is_none_or(|count| done < count)) {
            Some(every) => std::thread::sleep(Duration::from_secs(every)),
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The error of a backup of the folder's database.
fn failed(folder: &Path, error: ArchiveError) -> CliError {
    match error {
        ArchiveError::Database(error) => CliError::engine(folder)(error),
        error => error.into(),
    }
}

fn print_backup(args: &BackupArgs, report: &BackupReport) -> Result<()> {
    let BackupReport { commit, written, bytes, records, full, .. } = report;
    let why = full.as_ref().map(|why| match why {
        FullReason::Asked => "it was asked for".to_owned(),
        FullReason::First => "the archive had none".to_owned(),
        FullReason::NotInHistory { archived, oldest } => format!(
            "commit {archived} of the archive is not in the history any more, which begins at {oldest}: give the database more \
             history, or back up more often"
        ),
        FullReason::NewestDamaged { object, why } => {
            format!("{object}, the newest of the archive, is damaged: {why}")
        }
        _ => "unknown".to_owned(),
    });
    if args.folder.json {
        let document = json!({
            "schema": 1, "commit": commit, "written": names(written), "bytes": bytes,
            "records": records, "full_because": why,
        });
        return match args.every {
            Some(_) => output::print(&format!("{document}\n")),
            None => output::json(&document),
        };
    }
    if written.is_empty() {
        return output::print(&format!("commit {commit} is in the archive already\n"));
    }
    let why = why.map_or_else(String::new, |why| format!("; a full, since {why}"));
    output::print(&format!(
        "commit {commit}: {}, {records} records, {bytes} bytes, verified{why}\n",
        written.iter().map(Piece::to_string).collect::<Vec<_>>().join(", ")
    ))
}

fn names(pieces: &[Piece]) -> Vec<String> {
    pieces.iter().map(|piece| piece.name()).collect()
}

/// The options of a restored database.
pub(crate) fn restoring(
    memory_mib: u64,
    history: Option<u64>,
    bar: &ProgressBar,
) -> RestoreOptions {
    let with = move |options: Options| {
        let options = options.cache_mib(memory_mib / 2);
        match history {
            Some(commits) => options.history(commits),
            None => options,
        }
    };
    RestoreOptions::new().memory_mib(memory_mib / 2).database(with).progress(Some(telling(bar)))
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<()> {
    let archive = Archive::open(&args.archive)?;
    let Some(to) = &args.to else { return list(&archive, args.check, args.json) };
    check_new(to)?;
    let bar = bar("restore");
    let options = restoring(args.memory_mib, None, &bar).commit(args.at);
    let report = pleach_archive::restore(&archive, to, &options)?;
    bar.finish_and_clear();
    let RestoreReport { archived_commit, commit, roots, applied, .. } = &report;
    if args.json {
        return output::json(&json!({
            "schema": 1, "archived_commit": archived_commit, "commit": commit,
            "applied": names(applied), "roots": output::roots(roots),
        }));
    }
    let root = roots.get(0).map_or_else(String::new, |root| root.to_string());
    output::print(&format!(
        "archived commit {archived_commit} is restored, root {root}; it is commit {commit} of the new database\n"
    ))
}

/// Lists what can be restored, and, on request, the damaged objects.
fn list(archive: &Archive, check: bool, json: bool) -> Result<()> {
    let bar = bar("check");
    let found = if check {
        pleach_archive::check(archive, Some(&telling(&bar)))?
    } else {
        pleach_archive::check_heads(archive)?
    };
    bar.finish_and_clear();
    let findings: Vec<String> =
        found.iter().map(|one| format!("{}: {}", one.piece, one.what)).collect();
    print_list(&archive.list()?, &findings, json)?;
    if findings.is_empty() {
        return Ok(());
    }
    let text = "objects are damaged, of another database, or contradict each other: put good copies of them there, or write a full (`pleach backup --full`)";
    Err(CliError::new(ErrorKind::Damaged, text).after_document())
}

fn print_list(listing: &Listing, findings: &[String], json: bool) -> Result<()> {
    let restorable: Vec<u64> = listing.restorable().collect();
    let gaps: Vec<String> = listing.gaps().iter().map(ToString::to_string).collect();
    let pieces = listing.pieces();
    if json {
        let objects = pieces.map(|(piece, bytes)| {
            let from = match piece {
                Piece::Full { .. } => None,
                Piece::Changes { from, .. } => Some(from),
            };
            json!({"name": piece.name(), "from": from, "to": piece.to(), "bytes": bytes})
        });
        return output::json(&json!({
            "schema": 1, "restorable": restorable, "objects": objects.collect::<Value>(),
            "gaps": gaps, "of_no_use": names(&listing.useless()), "findings": findings,
        }));
    }
    output::write(|to| {
        for (piece, bytes) in pieces {
            writeln!(to, "{piece}, {bytes} bytes")?;
        }
        let numbers: Vec<String> = restorable.iter().map(ToString::to_string).collect();
        let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(" ") };
        writeln!(to, "commits that can be restored: {numbers}")?;
        gaps.iter().chain(findings).try_for_each(|what| writeln!(to, "{what}"))
    })
}

pub(crate) fn follow(args: &FollowArgs) -> Result<()> {
    let archive = Archive::open(&args.archive)?;
    check_new(&args.to)?;
    let bar = bar("follow");
    let options = restoring(args.memory_mib, Some(args.history), &bar);
    let mut follower = Follower::open(&archive, &args.to, &options)?;
    bar.suspend(|| print_follower(args, &follower, None))?;
    loop {
        match follower.step()? {
            Some(piece) => bar.suspend(|| print_follower(args, &follower, Some(piece)))?,
            None if args.once => break,
            None => std::thread::sleep(Duration::from_secs(args.every)),
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn print_follower(args: &FollowArgs, follower: &Follower, applied: Option<Piece>) -> Result<()> {
    let (at, root) = (follower.at(), follower.db().root().to_string());
    let applied = applied.map(Piece::name);
    if args.json {
        let line = json!({"schema": 1, "archived_commit": at, "root": root, "applied": applied});
        return output::print(&format!("{line}\n"));
    }
    let what = applied.unwrap_or_else(|| "opened".to_owned());
    output::print(&format!("archived commit {at}, root {root}: {what}\n"))
}
