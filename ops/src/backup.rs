//! Backup: a copy of an open database, verified (`docs/backup.md`).

use std::fmt;
use std::path::Path;

use pleach::internals::error::Contradiction;
use pleach::{Db, Progress, Result};
use pleach_core::Hasher;
use pleach_io::Disk;

use crate::{CheckOptions, Verdict, check_on};

pub use pleach::status::CopyReport as BackupReport;

/// Options of [`backup`].
#[derive(Clone)]
pub struct BackupOptions {
    verify: bool,
    progress: Option<Progress>,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self { verify: true, progress: None }
    }
}

impl fmt::Debug for BackupOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupOptions").field("verify", &self.verify).finish_non_exhaustive()
    }
}

impl BackupOptions {
    /// A verified backup, without progress.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether every page of the backup is read again, and hashed up to the roots of its newest commit.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// A function that is told how many of how many bytes of pages are copied.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }
}

/// Copies a database to a folder, which is missing or empty, while sessions and commits go on ([`Db::copy_to`]). Unless
/// the options say otherwise, every page of the copy is read again and hashed up to the roots.
///
/// # Errors
/// Those of [`Db::copy_to`]; [`Contradiction::Backup`] when the copy is not right.
pub fn backup(db: &Db, folder: &Path, options: &BackupOptions) -> Result<BackupReport> {
    // A close during the backup waits for its end.
    let hasher = db.hasher()?;
    let report = db.copy_to(folder, options.progress.as_ref())?;
    if options.verify {
        verify(&crate::opened::device(folder)?, hasher, &report)?;
    }
    Ok(report)
}

/// [`backup`] to another device of the same kind.
///
/// # Errors
/// As there.
pub fn backup_on(
    db: &Db,
    target: impl Into<Disk>,
    options: &BackupOptions,
) -> Result<BackupReport> {
    let (target, hasher) = (target.into(), db.hasher()?);
    let report = db.copy_on(target.clone(), options.progress.as_ref())?;
    if options.verify {
        verify(&target, hasher, &report)?;
    }
    Ok(report)
}

/// Checks the backup as a whole.
fn verify(target: &Disk, hasher: Hasher, copied: &BackupReport) -> Result<()> {
    // Without the history, which takes memory for all of its undo.
    let report = check_on(target.clone(), CheckOptions::default().hasher(hasher).past(false))?;
    let finding = report.findings.first().map(|finding| finding.what.clone());
    let is_right = report.commit == copied.commit && report.root == copied.roots.first();
    match finding {
        None if report.verdict() == Verdict::Clean && is_right => Ok(()),
        found => {
            let what = found.unwrap_or_else(|| format!("its newest commit is {}", report.commit));
            Err(Contradiction::Backup { what }.into())
        }
    }
}
