//! Backup: a copy of an open database, verified (`docs/commit-and-recovery.md`).

use std::fmt;
use std::path::Path;

use pleach::internals::error::Contradiction;
use pleach::{Db, Progress, Result};
use pleach_core::Hasher;
use pleach_io::Disk;
use pleach_io::os::{OsDevice, OsOptions};

use crate::unfinished::refuse;
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
/// Those of [`Db::copy_to`]; [`Contradiction::Backup`] when the copy is not right: nothing opens it then.
pub fn backup(db: &Db, folder: &Path, options: &BackupOptions) -> Result<BackupReport> {
    // A close during the backup waits for its end.
    let hasher = db.hasher()?;
    let report = db.copy_to(folder, options.progress.as_ref())?;
    if options.verify {
        let target = OsDevice::open(folder, OsOptions::default())?;
        verify(&target.into(), hasher, &report)?;
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
            refuse(target)?;
            let what = found.unwrap_or_else(|| format!("its newest commit is {}", report.commit));
            Err(Contradiction::Backup { what }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt as _;
    use std::sync::Arc;

    use pleach::{Access, Error, Options, SessionOptions, Value};

    use super::*;

    /// The device takes something else than it was given: nothing opens the copy, which looked like a database.
    #[test]
    fn a_copy_that_is_not_right_is_no_database() {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, copy) = (folder.path().join("state"), folder.path().join("copy"));
        let db = Db::open(Options::new(state).create(true).small()).expect("opened");
        let put = |id: u16| {
            let key = Hasher::BLAKE3.hash(&id.to_be_bytes());
            Access::write(key, Some(Value::from(&[7; 99][..])))
        };
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish((0..400).map(put)).expect("finished").commit().expect("committed");
        db.drain(0).expect("in pages");
        let leaf = copy.join("leaf");
        let spoil: Progress = Arc::new(move |_, _| {
            let file = OpenOptions::new().write(true).open(&leaf).expect("copied");
            let pages = file.metadata().expect("a length").len() / 4096;
            for page in 0..pages {
                file.write_all_at(&[0xee; 8], page * 4096 + 2000).expect("written");
            }
        });
        let wrong = backup(&db, &copy, &BackupOptions::new().progress(Some(spoil)));
        let wrong = wrong.expect_err("other pages");
        assert!(matches!(&wrong, Error::Corrupt(Contradiction::Backup { .. })), "{wrong}");
        let refused = Db::open(Options::new(&copy).create(true)).expect_err("not right");
        assert!(matches!(refused, Error::Creation(_)), "{refused}");
    }
}
