//! Repair of a closed database whose files are damaged (`docs/repair.md`).
//!
//! * [`roll_forward`] brings a backup to the newest commit that the log of the damaged folder has: it cures every kind
//!   of damage, lost files too. Where there is a backup, it comes first;
//! * [`repair()`] makes a database open again whose log is damaged, and heals what an open heals by itself. Where that
//!   loses commits, it changes nothing unless [`RepairOptions::cut`] allows it;
//! * [`salvage`] writes what is whole to an export stream, where there is no backup.
//!
//! Nothing is destroyed: each file that a repair replaces stays in the folder under another name, where a later roll
//! forward finds it. The others change nothing.
//!
//! ```
//! use pleach_ops::BackupOptions;
//! use pleach::{Access, Db, Options, SessionOptions, Value};
//! use pleach_ops::repair;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let (folder, backup) = (folder.path().join("db"), folder.path().join("backup"));
//! # let put = |db: &Db, value: &[u8]| -> Result<(), Box<dyn std::error::Error>> {
//! #     let put = Access::write([7; 32], Some(Value::from(value)));
//! #     db.session(SessionOptions::new())?.finish(vec![put])?.commit()?;
//! #     Ok(())
//! # };
//! # let db = Db::open(Options::new(&folder).create(true).small().history(10))?;
//! # put(&db, b"one")?;
//! pleach_ops::backup(&db, &backup, &BackupOptions::new())?;
//! # put(&db, b"two")?;
//! # let root = db.root();
//! db.close()?;
//! std::fs::remove_file(folder.join("leaf"))?;
//!
//! let restored = Db::open(Options::new(&backup))?;
//! let report = repair::roll_forward(&restored, &folder, None)?;
//! assert!(report.through == 2 && report.lost.is_none() && restored.root() == root);
//! # Ok(())
//! # }
//! ```

mod cut;
mod lost;
mod originals;
mod roll_forward;
mod salvage;

use std::path::Path;

use pleach::internals::open::examine::missing_folder_error;
use pleach::status::{LostHistory, Opening};
use pleach::{Advice, Db, Error, Options, Roots};
use pleach_core::Hasher;
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::threads::Threads;
use pleach_io::{Disk, Executor};
use pleach_journal::log::ScanError;

use crate::error::Result;
use crate::opened::OpenedDatabase;
use crate::{CheckOptions, CheckReport, check_on};
use cut::cut_log;

pub use crate::losses::{LostCommits, RepairLoss};
pub use cut::CutLog;
pub use roll_forward::{RollForwardReport, roll_forward, roll_forward_on};
pub use salvage::{SalvageReport, salvage, salvage_on};

/// What a repair may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepairOptions {
    cut: bool,
    hasher: Option<Hasher>,
}

impl RepairOptions {
    /// Nothing is given up.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether commits may be lost: those behind the damage of the log, and older states that cannot be read (default:
    /// false). A roll forward of a backup may keep them: do that first.
    #[must_use]
    pub fn cut(mut self, cut: bool) -> Self {
        self.cut = cut;
        self
    }

    /// The hasher of a database whose application has made it. Without this, that is BLAKE3 or SHA-256.
    #[must_use]
    pub fn hasher(mut self, hasher: Hasher) -> Self {
        self.hasher = Some(hasher);
        self
    }
}

/// The result of a repair.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairReport {
    /// Number of the newest commit.
    pub commit: u64,
    /// The commit's roots and digests.
    pub roots: Roots,
    /// What the open has found and healed: bad copies of superblock and incarnation, a bad image. Older states that were
    /// given up are in [`Opening::lost`].
    pub opening: Opening,
    /// The cut of a damaged log.
    pub cut: Option<CutLog>,
    /// A check of the repaired database. Bad leaf pages and long values are among its findings: this does not mend
    /// them.
    pub check: CheckReport,
}

/// Makes the folder's database open again at its newest commit whose log is whole. Nobody has it open.
///
/// What an open heals by itself is healed: one bad superblock, one bad copy of the incarnation, one bad image. A log
/// that is damaged between replay start and end is cut there: commits behind the damage are lost ([`CutLog::lost`]),
/// which [`RepairOptions::cut`] must allow. Before anything is changed the state in front of the damage is made in
/// memory, and its roots are those that its commit has recorded. Files that are replaced stay in the folder, as
/// `damaged-1.log-0000000000000003` say (or `damaged-2.`, …). A repair that was cut off leaves a database that is damaged
/// as before, or one that is repaired: then do it again.
///
/// # Errors
/// [`WouldLose`](crate::Error::WouldLose) where commits would be lost and that is not allowed: nothing has changed. What
/// the open has said, where this does not help: [`roll_forward`] over a backup does. [`Error::Full`], and those of the
/// device.
pub fn repair(path: &Path, options: &RepairOptions) -> Result<RepairReport> {
    let device = OsDevice::open(path, OsOptions::default()).map_err(missing_folder_error)?;
    let runtime = Threads::new(2)?;
    repair_on(device, options, runtime)
}

/// The same on any device.
///
/// # Errors
/// As [`repair()`].
pub fn repair_on(
    device: impl Into<Disk>,
    options: &RepairOptions,
    runtime: impl Into<Executor>,
) -> Result<RepairReport> {
    let (device, runtime) = (&device.into(), &runtime.into());
    let hasher = may_open(&OpenedDatabase::new(device, options.hasher)?, options.cut)?;
    let opening =
        || Options::new("").hasher(hasher).cache_mib(64).tune(|tuning| tuning.reads_history = true);
    let open = || Db::open_on(device.clone(), runtime.clone(), opening());
    let (db, cut) = match open() {
        Ok(db) => (db, None),
        Err(error) if can_be_log_damage(&error) => {
            let cut = cut_log(hasher, device, &error, options.cut)?;
            (open()?, Some(cut))
        }
        Err(error) => return Err(error.into()),
    };
    let (commit, roots, opening) = (db.commit_number(), db.roots(), db.opened().clone());
    // The close writes an image, so that both are good again.
    db.close()?;
    let check = check_on(device.clone(), CheckOptions::default().hasher(hasher))?;
    Ok(RepairReport { commit, roots, opening, cut, check })
}

/// Returns the hasher, unless an open for writing gives up older states that cannot be read, and that is not allowed.
fn may_open(opened: &OpenedDatabase, may_lose: bool) -> Result<Hasher> {
    opened.require_lock()?;
    match opened.examine_whole().map(|examined| examined.opening) {
        Ok(Opening { commit, lost: Some(LostHistory { before, error, .. }), .. }) if !may_lose => {
            let (lost, history) = (LostCommits::default(), Some(before));
            Err(RepairLoss { commit, error, lost, history }.into())
        }
        _ => Ok(opened.hasher),
    }
}

/// True when the log's damage can cause this error of an open. With a bad image, too, the open returns the image's
/// error.
fn can_be_log_damage(error: &Error) -> bool {
    matches!(error, Error::Scan(ScanError::Io(_))) || error.advice() == Advice::Restore
}
