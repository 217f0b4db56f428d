//! A database folder opened for inspection: recovered into memory as by an open, without a write.

use std::path::Path;

use pleach::internals::open::examine::{self, Examination, missing_folder_error};
use pleach::internals::open::examine_beside;
use pleach::internals::open::recovery::LogEnd;
use pleach::internals::options::HistoryLimits;
use pleach::{Advice, Error, Result};
use pleach_core::Hasher;
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::{Disk, IoError, LockMode, OpenMode};
use pleach_journal::format::creation::DirectoryState;
use pleach_journal::format::superblock::{self, Superblock};
use pleach_journal::format::superblock_store::SuperblockStore;

/// A database opened for inspection.
pub(crate) struct OpenedDatabase {
    pub(crate) device: Disk,
    /// The newest superblock, which describes the database.
    pub(crate) newest: Superblock,
    pub(crate) hasher: Hasher,
    /// Keeps writers out; an error names the writer.
    lock: core::result::Result<Box<dyn Send + Sync>, IoError>,
}

impl OpenedDatabase {
    pub(crate) fn new(device: &Disk, hasher: Option<Hasher>) -> Result<Self> {
        inspect(device)?;
        let lock = match device.lock(LockMode::Shared) {
            Err(error @ IoError::Locked { .. }) => Err(error),
            lock => Ok(lock?),
        };
        let newest = *SuperblockStore::open(device.clone(), OpenMode::Read)?.newest();
        newest.check_features(false)?;
        let found = newest.hasher.hasher(hasher);
        let hasher = found.ok_or_else(|| Error::wrong_hasher(hasher, &newest.hasher))?;
        Ok(Self { device: device.clone(), newest, hasher, lock })
    }

    /// Refuses a database that a process may be writing to.
    pub(crate) fn require_lock(&self) -> Result<()> {
        self.lock.as_ref().map(drop).map_err(|error| error.clone().into())
    }

    /// True when a process may be writing to the database.
    pub(crate) fn is_live(&self) -> bool {
        self.lock.is_err()
    }

    /// The database as an open would find it.
    pub(crate) fn examine(&self) -> Result<Examination> {
        self.examine_with(limits)
    }

    /// The same with all of its history read.
    pub(crate) fn examine_whole(&self) -> Result<Examination> {
        self.examine_with(|commits| {
            let mut limits = limits(commits);
            limits.reads_runs = true;
            limits
        })
    }

    /// The same without its history, so that a history that cannot be read hides nothing else.
    pub(crate) fn examine_present(&self) -> Result<Examination> {
        self.examine_with(|_| limits(0))
    }

    /// The same with a log that ends at its damage, and the files of pages that exist.
    pub(crate) fn examine_salvage(&self) -> Result<Examination> {
        let superblocks = SuperblockStore::open(self.device.clone(), OpenMode::Read)?;
        let none = |_: &Superblock| limits(0);
        examine::examine(
            Some(self.hasher),
            &self.device,
            superblocks,
            none,
            None,
            LogEnd::Salvage,
            false,
        )
    }

    fn examine_with(&self, within: impl Fn(u64) -> HistoryLimits) -> Result<Examination> {
        let within = |found: &Superblock| within(found.history);
        if self.is_live() {
            return examine_beside(Some(self.hasher), &self.device, within, false);
        }
        let superblocks = examine::superblocks(&self.device, OpenMode::Read)?;
        examine::examine(
            Some(self.hasher),
            &self.device,
            superblocks,
            within,
            None,
            LogEnd::Proven,
            false,
        )
    }
}

/// Checks that there is a database.
fn inspect(device: &Disk) -> Result<()> {
    if examine::inspect(device, false, false)? == DirectoryState::NoSuperblock {
        return Err(Error::MissingFile { file: superblock::FILE.to_owned() });
    }
    Ok(())
}

pub(crate) fn device(path: &Path) -> Result<Disk> {
    let options = OsOptions { read_only: true, ..OsOptions::default() };
    Ok(OsDevice::open(path, options).map_err(missing_folder_error)?.into())
}

/// The number of the folder's database ([`Db::id`](pleach::Db::id)). Without a usable superblock the log has it.
///
/// # Errors
/// A folder without a database, one of another version; two superblocks that cannot be used, and a log without a whole
/// record.
pub fn id(path: &Path) -> Result<u64> {
    let device = device(path)?;
    let superblocks = SuperblockStore::open(device.clone(), OpenMode::Read).and_then(|found| {
        found.newest().check_features(false)?;
        Ok(found)
    });
    match superblocks {
        Ok(superblocks) => Ok(superblocks.newest().database),
        Err(error) => match Error::from(error) {
            error if error.advice() == Advice::OtherVersion => Err(error),
            error => match pleach_journal::log::log_identity(&device)? {
                Some((database, _)) => Ok(database),
                None => inspect(&device).and(Err(error)),
            },
        },
    }
}

/// True while a process has the folder's database open for writing.
///
/// # Errors
/// No folder; errors of the lock.
pub fn has_writer(path: &Path) -> Result<bool> {
    match device(path)?.lock(LockMode::Shared) {
        Err(IoError::Locked { .. }) => Ok(true),
        lock => Ok(lock.map(|_| false)?),
    }
}

/// The name of the hasher that the folder's database was created with.
///
/// # Errors
/// A folder without a database, two superblocks that cannot be used.
pub fn hasher(path: &Path) -> Result<String> {
    let device = device(path)?;
    inspect(&device)?;
    Ok(SuperblockStore::open(device, OpenMode::Read)?.newest().hasher.to_string())
}

/// The history's limits as the database was last opened.
pub(crate) fn limits(commits: u64) -> HistoryLimits {
    HistoryLimits::of_disk(commits, u64::MAX)
}
