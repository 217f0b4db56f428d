//! The database.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::RwLock;
use pleach::scrub::{ScrubOptions, scrub};
use pleach::{
    CommitOptions, Db, Error, Hasher, SessionOptions, errors::IoError, load::LoadOptions,
};

use crate::hashing::{HashAlgorithm, hasher_of};
use crate::{Root, Value, import, metrics::Metrics, options::Options, trie::KeyPath};

/// State shared by sessions, overlays and the database: equal for handles of one open database.
pub(crate) struct Shared {
    pub(crate) hasher: Hasher,
    pub(crate) times_reads: bool,
    /// Reads by sessions, and their nanoseconds.
    pub(crate) reads: [AtomicU64; 2],
}

/// A state database with the interface of the crate `nomt`.
///
/// Dropping it writes nothing: commits are durable. The folder stays locked until all of its sessions, finished
/// sessions and overlays are dropped, too.
pub struct Nomt<T> {
    pub(crate) db: Db,
    pub(crate) shared: Arc<Shared>,
    rollback: bool,
    /// A rollback counts the commits back from the newest, so none may come between. Commits hold it shared.
    turns: RwLock<()>,
    hasher: PhantomData<T>,
}

impl<T: HashAlgorithm> Nomt<T> {
    /// Opens the database in the folder of the options, and creates one where the folder is missing or empty.
    ///
    /// # Errors
    /// Without a commit worker; with a hasher that [`HashAlgorithm`] excludes, or another one than that of
    /// the database; in a folder of the crate `nomt` itself, which [`Self::import`] takes over; those of the engine.
    pub fn open(options: Options) -> Result<Self> {
        let Options { metrics: times_reads, rollback, .. } = options;
        let folder = options.path.clone();
        let hasher = hasher_of::<T>()?;
        let db = Db::open(options.engine().hasher(hasher));
        let db = db.map_err(|error| refused(&folder, error))?;
        let shared = Arc::new(Shared { hasher, times_reads, reads: Default::default() });
        Ok(Self { db, shared, rollback, turns: RwLock::default(), hasher: PhantomData })
    }

    /// The database under this interface: history, ordered iteration, proofs of ranges, namespaces, backup. What is
    /// committed through it is committed here, too.
    pub fn engine(&self) -> &Db {
        &self.db
    }

    /// The root of the newest commit.
    pub fn root(&self) -> Root {
        self.db.root().to_bytes().into()
    }

    /// True when the newest commit has no key.
    pub fn is_empty(&self) -> bool {
        self.root().is_empty()
    }

    /// True when a write has failed. Then nothing is committed until the database is opened again.
    pub fn is_poisoned(&self) -> bool {
        self.db.is_poisoned()
    }

    /// Loads all pairs of a folder that the crate `nomt` 1.0 has written, which no process has open, into this
    /// database, which is empty. No rollback goes back before it. `root` is the root that the folder must have: its
    /// files have no checksums, so without it not all damage is found. The root of this database is that of the folder
    /// then.
    ///
    /// # Errors
    /// When this database is not empty, or a session or an overlay is there; when the folder is open, of another
    /// version or damaged; when its pairs lead to another root. Nothing is loaded then.
    pub fn import(&self, folder: impl AsRef<Path>, root: Option<Root>) -> Result<()> {
        let pairs = import::pairs(folder.as_ref(), self.shared.hasher)?;
        let pairs = pairs.map(|pair| pair.map(|(key, value)| (key, value.into())));
        let options = root
            .into_iter()
            .fold(LoadOptions::new(), |options, root| options.root(root.into_inner().into()));
        let loaded: Result<_> = self.db.try_bulk_load(pairs, &options);
        let with_source = |error: anyhow::Error| match error.downcast() {
            Ok(engines) => with_source(engines),
            Err(other) => other,
        };
        loaded.map(drop).map_err(with_source)
    }

    /// Undoes the newest `n` commits. Commits that were rolled back are not counted again, nor are rollbacks.
    ///
    /// # Errors
    /// Without [`Options::rollback`], and when so many commits are not kept ([`Options::max_rollback_log_len`]), an error
    /// that is none of the engine's; when the values that come back take more than 1 GiB (go back in steps); those of the
    /// engine. Where its [`outcome`](pleach::Error::outcome) is `Unknown`, the next open shows whether the rollback took
    /// place.
    pub fn rollback(&self, n: usize) -> Result<()> {
        ensure!(n == 0 || self.rollback, "rollback is not enabled: set `Options::rollback`");
        let _alone = self.turns.write();
        let text = || format!("cannot go back {n} commits: see `Options::max_rollback_log_len`");
        let failed = |error| match error {
            // Its text names options that there are not here.
            Error::SnapshotTooOld { .. } => anyhow::Error::msg(text()),
            other => with_source(other),
        };
        let mut commit = self.db.commit_number();
        for _ in 0..n {
            while let Some(older) = self.db.rolled_back_to(commit).map_err(failed)? {
                commit = older;
            }
            commit = commit.checked_sub(1).with_context(text)?;
        }
        self.db.rollback_to(commit).map(drop).map_err(failed)
    }

    /// The value of a key in the newest state; `None` when it has none.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(&self, path: KeyPath) -> Result<Option<Value>> {
        let read = self.db.get(&path).map_err(with_source)?;
        Ok(read.map(|value| value.to_vec()))
    }

    /// The present figures.
    #[doc(hidden)]
    pub fn metrics(&self) -> Metrics {
        let [count, nanos] = self.shared.reads.each_ref().map(|sum| sum.load(Ordering::Relaxed));
        Metrics(self.db.metrics(), nanos.checked_div(count))
    }

    /// How full the largest file is. There is no hash table: pages take the place of buckets.
    pub fn hash_table_utilization(&self) -> HashTableUtilization {
        utilization(&self.db)
    }

    /// Commits a change made through the same open database; a commit that would have to wait, and may not, is
    /// returned.
    pub(crate) fn commit<M>(
        &self,
        shared: &Arc<Shared>,
        (made, exact, wait): (M, bool, bool),
        commit: impl FnOnce(M, CommitOptions) -> Result<u64, Box<(M, Error)>>,
    ) -> Result<Option<M>> {
        ensure!(Arc::ptr_eq(shared, &self.shared), "it was made through another open database");
        let turn = if wait { Some(self.turns.read()) } else { self.turns.try_read() };
        if turn.is_none() {
            return Ok(Some(made));
        }
        match commit(made, CommitOptions::new().exact(exact).wait(wait)).map_err(|failed| *failed) {
            Ok(_) => Ok(None),
            Err((made, Error::WouldWait)) => Ok(Some(made)),
            Err((_, error)) => Err(with_source(error)),
        }
    }
}

/// An error of the engine over the system's error that caused it. Programs look for an [`std::io::Error`] in the chain
/// of causes, which the engine's own errors do not have; `downcast_ref` finds either.
pub(crate) fn with_source(error: Error) -> anyhow::Error {
    match error.device().and_then(IoError::code) {
        Some(number) => {
            anyhow::Error::new(std::io::Error::from_raw_os_error(number)).context(error)
        }
        None => error.into(),
    }
}

/// The error of an open. Programs print its text alone, without causes.
fn refused(folder: &Path, error: Error) -> anyhow::Error {
    if !matches!(error, Error::NotADatabase { .. }) || !folder.join("bbn").is_file() {
        return with_source(error);
    }
    let cure = "is of the crate `nomt`: open a new folder and take it over by `Nomt::import`";
    anyhow::Error::new(error).context(format!("{} {cure}", folder.display()))
}

/// Pages in use ([`Nomt::hash_table_utilization`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HashTableUtilization {
    /// Pages that the file can have: 16 TiB.
    pub capacity: usize,
    /// Pages that are in use.
    pub occupied: usize,
}

impl HashTableUtilization {
    /// The part of the pages that is in use, between 0 and 1.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn occupancy_rate(&self) -> f64 {
        self.occupied as f64 / self.capacity as f64
    }
}

/// Has no meaning here: files grow by themselves. It does not look at the folder.
///
/// # Errors
/// None.
pub fn grow_hashtable(_options: &Options) -> Result<()> {
    Ok(())
}

/// Reads and checks all that a database has on the device, and computes its root from its pairs ([`scrub`]). The folder
/// may be open. It looks at the folder of the options alone, and returns the pages in use.
///
/// # Errors
/// The first page that cannot be used, with the number of all; another root than the database's; a hasher that is none
/// of `nomt`'s own; those of an open for reading.
pub fn validate_hashtable(options: &Options) -> Result<HashTableUtilization> {
    let folder = &options.path;
    let db = Db::open(pleach::Options::new(folder).read_only(true));
    let db = db.map_err(|error| refused(folder, error))?;
    let session = db.session(SessionOptions::new()).map_err(with_source)?;
    let report = scrub(&session, &ScrubOptions::new()).map_err(with_source)?;
    if let Some(first) = report.bad.first() {
        bail!("{}: {} bad pages, the first: {first}", folder.display(), report.bad.len());
    }
    ensure!(report.is_clean(), "{}: the root is not that of the pairs", folder.display());
    Ok(utilization(&db))
}

fn utilization(db: &Db) -> HashTableUtilization {
    let occupied = usize::try_from(db.metrics().leaf_pages).unwrap_or(usize::MAX);
    HashTableUtilization { capacity: u32::MAX as usize, occupied }
}
