//! Looking into a database folder, its files and its structure. All of it recovers into memory as an open would, and writes
//! nothing. Pairs, proofs and history are read through an open with [`Options::read_only`](crate::Options::read_only).
//!
//! * [`stat`]: what is there;
//! * [`check`]: reads everything and lists what does not fit;
//! * [`explain`]: where a key of a namespace lies.
//!
//! [`RootFolder`] gives the root of pairs that come in key order, wherever they come from.
//!
//! Each has a form that ends in `_on`, for any device. They take the folder's lock as readers do. Where a process has the database open
//! for writing, `stat` and `explain` look beside it (`docs/readers.md`), and `check` refuses.
//!
//! ```
//! use pleach::tools::{CheckOptions, check, explain, stat};
//! use pleach::{Access, Options, Pleach, SessionOptions, Value};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let db = Pleach::open(Options::new(folder.path()).create(true))?;
//! let (key, value) = ([7; 32], Value::from(&b"seven"[..]));
//! let session = db.session(SessionOptions::new())?;
//! session.finish(vec![Access::write(key, Some(value))])?.commit()?;
//! db.close()?;
//!
//! assert_eq!(stat(folder.path())?.commit, 1);
//! let report = check(folder.path(), CheckOptions::default())?;
//! assert!(report.findings.is_empty() && report.keys == 1);
//! assert!(explain(folder.path(), 0, &key)?.present);
//! # Ok(())
//! # }
//! ```

mod check;
mod explain;
mod stat;

use std::path::Path;

use pleach_core::{Blake3, Hasher, Sha2};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::{Device, IoError, LockMode, OpenMode};

use crate::error::{Error, Result};
use crate::format::creation::{self, DirectoryState};
use crate::format::superblock::{self, Superblock};
use crate::format::superblock_store::SuperblockStore;
use crate::open::examine::{self, Examined, no_folder};
use crate::open::examine_beside;
use crate::open::recovery::LogEnd;
use crate::options::{Below, HistoryLimits};

pub use check::{CheckOptions, CheckReport, Finding, Severity, Verdict, check, check_on};
pub use explain::{Explanation, explain, explain_on, explain_past};
pub use pleach_core::fold::{FoldValue, NotAscending, RootFolder};
pub use stat::{NamespaceStat, Stat, notice, stat, stat_on};

/// A database, opened for looking.
pub(crate) struct Opened<D: Device> {
    pub(crate) device: D,
    /// The newest superblock, which says what the database is.
    pub(crate) newest: Superblock,
    /// Keeps writers out; else says who writes.
    lock: core::result::Result<Box<dyn Send + Sync>, IoError>,
}

impl<D: Device> Opened<D> {
    pub(crate) fn new(device: &D) -> Result<Self> {
        inspect(device)?;
        let lock = match device.lock(LockMode::Shared) {
            Err(error @ IoError::Locked(_)) => Err(error),
            lock => Ok(lock?),
        };
        let newest = *SuperblockStore::open(device.clone(), OpenMode::Read)?.newest();
        newest.check_features(false)?;
        Ok(Self { device: device.clone(), newest, lock })
    }

    /// Refuses a database that a process may be writing to.
    pub(crate) fn require_lock(&self) -> Result<()> {
        self.lock.as_ref().map(drop).map_err(|error| error.clone().into())
    }

    /// May a process be writing to it?
    pub(crate) fn is_live(&self) -> bool {
        self.lock.is_err()
    }

    /// The database as an open would find it, with the undo of its whole history in memory.
    fn examine_whole<H: Hasher>(&self) -> Result<Examined<D>> {
        self.examine_with::<H>(|commits| limits(commits, Below::Read))
    }

    /// The same with the records left unread that are not replayed.
    fn examine<H: Hasher>(&self) -> Result<Examined<D>> {
        self.examine_with::<H>(|commits| limits(commits, Below::Left))
    }

    /// The same without its history, of which `below` says whether it is read: a device that cannot read that is no reason to
    /// give nothing.
    pub(crate) fn examine_present<H: Hasher>(&self, below: Below) -> Result<Examined<D>> {
        self.examine_with::<H>(|_| limits(0, below))
    }

    /// The same with a log that ends where it is damaged, and whatever files of pages are there.
    pub(crate) fn examine_salvage<H: Hasher>(&self) -> Result<Examined<D>> {
        let superblocks = SuperblockStore::open(self.device.clone(), OpenMode::Read)?;
        let none = |_: &Superblock| limits(0, Below::Left);
        examine::examine::<H, D>(&self.device, superblocks, none, None, LogEnd::Salvage)
    }

    fn examine_with<H: Hasher>(
        &self,
        within: impl Fn(u64) -> HistoryLimits,
    ) -> Result<Examined<D>> {
        let within = |found: &Superblock| within(found.history);
        if self.is_live() {
            return examine_beside::<H, D>(&self.device, within);
        }
        let superblocks = examine::superblocks(&self.device, OpenMode::Read)?;
        examine::examine::<H, D>(&self.device, superblocks, within, None, LogEnd::Proven)
    }
}

/// Is there a database?
pub(crate) fn inspect<D: Device>(device: &D) -> Result<()> {
    match creation::inspect(device)? {
        DirectoryState::Foreign(found) => Err(Error::NotADatabase { found }),
        DirectoryState::Empty | DirectoryState::HalfCreated => Err(Error::Missing),
        DirectoryState::NoSuperblock => {
            Err(Error::MissingFile { file: superblock::FILE.to_owned() })
        }
        DirectoryState::Database => Ok(()),
    }
}

pub(crate) fn device(path: &Path) -> Result<OsDevice> {
    let options = OsOptions { read_only: true, ..OsOptions::default() };
    OsDevice::open(path, options).map_err(no_folder)
}

/// Work that is the same under every hasher.
pub(crate) trait UnderHasher<D: Device> {
    type Output;
    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<Self::Output>;
}

/// Opens a database and does the work under the hasher that it was created with.
pub(crate) fn with_hasher<D: Device, W: UnderHasher<D>>(device: &D, work: W) -> Result<W::Output> {
    let opened = Opened::new(device)?;
    match opened.newest.hasher {
        Blake3::ID => work.run::<Blake3>(&opened),
        Sha2::ID => work.run::<Sha2>(&opened),
        found => Err(Error::WrongHasher { expected: Blake3::ID, found }),
    }
}

/// The number of the folder's database ([`Db::id`](crate::Db::id)). Where no superblock can be used its log tells it.
///
/// # Errors
/// A folder without a database; two superblocks that cannot be used, and a log without a whole record.
pub fn id(path: &Path) -> Result<u64> {
    let device = device(path)?;
    let superblocks = SuperblockStore::open(device.clone(), OpenMode::Read);
    match superblocks {
        Ok(superblocks) => Ok(superblocks.newest().database),
        Err(error) => match crate::log::identity(&device)? {
            Some((database, _)) => Ok(database),
            None => inspect(&device).and(Err(error.into())),
        },
    }
}

/// The number of the hasher that the folder's database was created with ([`Hasher::ID`]).
///
/// # Errors
/// A folder without a database, two superblocks that cannot be used.
pub fn hasher(path: &Path) -> Result<u8> {
    let device = device(path)?;
    inspect(&device)?;
    Ok(SuperblockStore::open(device, OpenMode::Read)?.newest().hasher)
}

/// The history as the database was last opened with it, with all undo that is read in memory.
pub(crate) fn limits(commits: u64, below: Below) -> HistoryLimits {
    HistoryLimits::of_disk(commits, u64::MAX, below)
}
