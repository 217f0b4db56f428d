//! An open database, as its owner holds it.

pub(crate) mod backup;
mod owner;

use std::fmt;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pleach_beatree::Value;
use pleach_beatree::pages::Quarantined;
use pleach_core::proof::ChangeProof;
use pleach_core::{Hasher, Key, Node};
use pleach_history::ChangingCommits;
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::threads::Threads;
use pleach_io::{DeviceInfo, Disk, Executor};
use pleach_journal::format::trie_kind::TrieKind;

use self::backup::{CopyReport, backup};
use self::owner::Owner;
use crate::engine::Engine;
use crate::error::{Error, Hex, Result};
use crate::handles::{HandleKind, Holder, OpenHandles};
use crate::load::{self, LoadOptions, LoadReport, Progress};
use crate::memory_limit;
use crate::metrics::Metrics;
use crate::namespaces;
use crate::open::examine::missing_folder_error;
use crate::open::open;
use crate::opening::Opening;
use crate::options::Options;
use crate::rollback::{rollback, rollback_to};
use crate::roots::{Commit, Roots};
use crate::session::{Session, SessionOptions};
use crate::state::commits::CommitState;
use crate::state::pace::beats::TaskState;
use crate::state::undo::Undo;
use crate::state::undo::pins::Pin;

/// An open database. Clones are cheap and stand for the same database: closing one closes it for all. Dropping the last
/// clone ends it without a checkpoint.
///
/// It belongs to the process that opened it. In a child that was forked since, every call that can fail gives
/// [`IoError::Forked`](pleach_io::IoError::Forked), as do calls of its sessions, blocks and overlays; dropping these
/// there does nothing. A child opens the database itself, after the fork.
#[derive(Clone)]
pub struct Db(Arc<Owner>);

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, tip) = self.0.inspect(
            |engine| (engine.db.options.path.clone(), engine.db.commits.tip()),
            |facts| (facts.path.clone(), facts.tip.clone()),
        );
        f.debug_struct("Db")
            .field("path", &path)
            .field("commit", &tip.number)
            .field("root", &Hex(tip.roots.first().as_ref()))
            .finish_non_exhaustive()
    }
}

impl Db {
    /// Opens the database in a folder; creates it when the options say so.
    ///
    /// Blocks while it reads the newest image and replays the log behind it: seconds after a kill.
    ///
    /// # Errors
    /// A wrong, foreign or newer folder, another hasher, a second process, damage: each has its own variant,
    /// and nothing has been changed.
    pub fn open(options: Options) -> Result<Self> {
        options.check()?;
        memory_limit::check_address_space(options.cache_bytes, options.threads)?;
        let warning =
            memory_limit::budget_warning(options.cache_bytes, &memory_limit::memory_limit());
        let os = OsOptions {
            io: options.io,
            direct: options.direct,
            create_folder: options.create,
            read_only: options.read_only,
            ..OsOptions::default()
        };
        let device = OsDevice::open(&options.path, os).map_err(missing_folder_error)?;
        let runtime = Threads::new(options.threads)?;
        let mut opened = open(device.into(), runtime.into(), options)?;
        opened.opening.notes.extend(warning.inspect(|note| tracing::warn!("{note}")));
        Ok(Self(Arc::new(Owner::new(opened))))
    }

    /// Opens a database on any device and runtime, such as a simulated disk for crash tests.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_on(
        device: impl Into<Disk>,
        runtime: impl Into<Executor>,
        options: Options,
    ) -> Result<Self> {
        options.check()?;
        Ok(Self(Arc::new(Owner::new(open(device.into(), runtime.into(), options)?))))
    }

    /// Copies the database to a folder, which is missing or empty, while sessions and commits go on: the state of one
    /// commit, the newest at some moment of the call, with its history. The copy opens like a database after a power
    /// failure behind that commit. `progress` gets the numbers of bytes of pages that are copied, and to be copied.
    /// Nothing is verified: `pleach_ops::backup` makes a copy, reads every page of it again and hashes it up to the
    /// roots.
    ///
    /// Meanwhile checkpoints wait until the log is copied, and pages that flushes replace are not used again, so the
    /// files of the database grow. A copy that was interrupted, or failed, does not open: remove it.
    ///
    /// Blocks until the copy is durable.
    ///
    /// # Errors
    /// [`Error::Creation`] when the folder is not empty; [`Error::Full`]; errors of reading, and of the device.
    pub fn copy_to(&self, folder: &Path, progress: Option<&Progress>) -> Result<CopyReport> {
        // Checked before a folder is made.
        drop(self.0.open_engine()?);
        let os = OsOptions { create_folder: true, ..OsOptions::default() };
        self.copy_on(OsDevice::open(folder, os).map_err(missing_folder_error)?, progress)
    }

    /// [`Self::copy_to`] another device of the same kind.
    ///
    /// # Errors
    /// As [`Self::copy_to`].
    pub fn copy_on(
        &self,
        target: impl Into<Disk>,
        progress: Option<&Progress>,
    ) -> Result<CopyReport> {
        // A close that comes meanwhile lets the copy finish.
        let (_counted, engine) = {
            let engine = self.0.open_engine()?;
            (engine.count_handle(HandleKind::Backup), Arc::clone(&engine))
        };
        backup(&engine, &target.into(), progress)
    }

    /// How the open found the database: what was cut off, whether it had been closed, which damage it worked around.
    pub fn opened(&self) -> &Opening {
        &self.0.opening
    }

    /// A session on the newest commit, or on the overlay that the options name.
    ///
    /// # Errors
    /// [`Error::ForeignOverlay`] when the overlay was not made through this open of the database; [`Error::Closed`].
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        let engine = self.0.open_engine()?;
        let (view, tip) = match &options.over {
            // The open is compared, not the database's number, which copies of a folder share. Blocks and further
            // overlays come from a session, so this is the only place to check.
            Some(overlay) if !overlay.is_of(&engine) => return Err(Error::ForeignOverlay),
            Some(overlay) => overlay.view(),
            None => {
                let _stay = engine.db.hold_replica();
                engine.db.commits.tip_view()
            }
        };
        Ok(Session::new(&engine, view, tip, options, Holder::Session))
    }

    /// Goes on to the newest commit in a database that was opened with [`Options::read_only`], and gives its number.
    /// Sessions that began before keep their states. Where the writing process's log no longer reaches back to this
    /// open's newest commit, image and log are read anew, and sessions that began before give
    /// [`Error::SnapshotTooOld`].
    ///
    /// A database that was opened for writing is always at its newest commit.
    ///
    /// Blocks while it reads what the writing process has added to the log.
    ///
    /// # Errors
    /// Errors of reading; errors of opening, where image and log are read anew.
    pub fn refresh(&self) -> Result<u64> {
        self.0.refresh()?;
        Ok(self.commit_number())
    }

    /// A session on a past commit of the history, or on the newest one: it reads, prefetches, iterates and proves, and
    /// a finish of reads gives the same witness as at that time. What it finishes cannot be committed, unless its state
    /// is the newest.
    ///
    /// What later commits replaced is read from the device where memory has no room for it
    /// ([`Options::undo_memory_mib`](crate::Options::undo_memory_mib)).
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] before the history, [`Error::HistoryLost`] where it is damaged;
    /// [`Error::NoSuchCommit`] after the newest commit; [`Error::Closed`]; errors of reading.
    pub fn at(&self, commit: u64) -> Result<Session> {
        let engine = self.0.open_engine()?;
        check_exists(&engine, commit)?;
        let found = engine.db.run_read(commit, || engine.db.commits.view_at(commit));
        let (view, tip) = found.map_err(|error| self.explain_if_lost(&engine, error))?;
        engine.db.run_read(view.base, || view.check_readable())?;
        Ok(Session::new(&engine, view, tip, SessionOptions::new(), Holder::Snapshot))
    }

    /// A session on the newest commit. It reads this state whatever is committed later: as long as the commit is in the
    /// history, and beyond that as long as what later commits replace fits into the memory for undo.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn snapshot(&self) -> Result<Session> {
        let engine = self.0.open_engine()?;
        let _stay = engine.db.hold_replica();
        let (view, tip) = engine.db.commits.tip_view();
        Ok(Session::new(&engine, view, tip, SessionOptions::new(), Holder::Snapshot))
    }

    /// The numbers of the commits that can be read: the history, and the newest one; after a close only the last one.
    /// Where limits in bytes make the history shorter than [`Options::history`], [`Metrics::history_wanted`] is more
    /// than [`Metrics::history_kept`], and a warning is logged by the first commit for which that is so.
    pub fn history(&self) -> RangeInclusive<u64> {
        self.0.inspect(
            |engine| {
                // The newest is read first: the history may move on meanwhile, but never beyond it.
                let commits = &engine.db.commits;
                let newest = commits.published();
                commits.undo.oldest_commit().min(newest)..=newest
            },
            |facts| facts.tip.number..=facts.tip.number,
        )
    }

    /// Roots and blob of a commit of the history.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn commit_at(&self, commit: u64) -> Result<Commit> {
        let engine = self.0.open_engine()?;
        check_exists(&engine, commit)?;
        let found = engine.db.run_read(commit, || engine.db.commits.commit_at(commit));
        let found = found.map_err(|error| self.explain_if_lost(&engine, error))?;
        let CommitState { number, roots, blob } = found;
        Ok(Commit { number, root: roots.first(), roots, blob: blob.to_vec() })
    }

    /// The newest commit of the history with this root: that of namespace 0 or of another one, or the root over all
    /// ([`Roots::over_all`]). `None` where no commit has it. Looks at one commit after the other, from the newest on.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn commit_of_root(&self, root: &Node) -> Result<Option<u64>> {
        let hasher = self.hasher()?;
        for commit in self.history().rev() {
            let roots = match self.commit_at(commit) {
                Ok(found) => found.roots,
                // The history has moved on meanwhile.
                Err(Error::SnapshotTooOld { .. }) => break,
                Err(error) => return Err(error),
            };
            if roots.iter().any(|(_, of)| of == *root) || roots.over_all(hasher) == *root {
                return Ok(Some(commit));
            }
        }
        Ok(None)
    }

    /// The commit that a rollback went back to; `None` for a commit that is no rollback. A rollback has the state of
    /// this older commit; the commits in between are still in the history. Commits that a restore, a follower or a
    /// repair has made again are no rollbacks.
    ///
    /// # Errors
    /// As [`Self::at`], for the commit before it: the oldest commit of the history has no record of this, unless it is commit 0.
    pub fn rolled_back_to(&self, commit: u64) -> Result<Option<u64>> {
        self.commit_fact(commit, Undo::rolled_back_to)
    }

    /// When a commit was made, by the system's clock, in whole seconds; `None` where that is not known: for commit 0, and
    /// where the clock stood before 1970 or after 9999. The clock may be set back, so that a later commit has an earlier time.
    ///
    /// # Errors
    /// As [`Self::rolled_back_to`].
    pub fn committed_at(&self, commit: u64) -> Result<Option<SystemTime>> {
        let seconds = self.commit_fact(commit, Undo::committed_at)?;
        Ok(seconds.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    /// A fact that the history has about a commit beside its state; `None` for commit 0.
    fn commit_fact<T>(
        &self,
        commit: u64,
        said: impl Fn(&Undo, u64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let engine = self.0.open_engine()?;
        check_exists(&engine, commit)?;
        if commit == 0 {
            return self.commit_at(0).map(|_| None);
        }
        let undo = &engine.db.commits.undo;
        let said = engine.db.run_read(commit - 1, || said(undo, commit));
        said.map_err(|error| self.explain_if_lost(&engine, error))
    }

    /// The commits of a range that changed a key of a namespace, ascending, or from the newest on with
    /// [`rev`](Iterator::rev): `next` is the first change after a commit, `next_back` the last one at or before it. A
    /// range without a begin begins with the history, and is empty where it ends before that. Of the oldest commit of
    /// the history ([`Self::history`]) only the state is known: a range that begins with it begins behind it, as one
    /// without a begin does. A commit that wrote the
    /// same value again counts; one that drops or restores the namespace does not. Values are those of the states
    /// before and after ([`Self::at`]).
    ///
    /// # Errors
    /// The iterator gives them: [`Error::SnapshotTooOld`] where the rest of the range begins before the
    /// history, [`Error::HistoryLost`] where the history is damaged there, [`Error::Closed`], errors of reading.
    pub fn changes_of<'a, R: RangeBounds<u64>>(
        &'a self,
        namespace: u8,
        key: &Key,
        commits: R,
    ) -> impl DoubleEndedIterator<Item = Result<u64>> + use<'a, R> {
        let first = match commits.start_bound() {
            Bound::Included(first) => Some((*first).max(1)),
            Bound::Excluded(before) => Some(before.saturating_add(1)),
            Bound::Unbounded => None,
        }
        .filter(|first| first != self.history().start());
        let last = match commits.end_bound() {
            Bound::Included(last) => *last,
            Bound::Excluded(behind) => behind.saturating_sub(1),
            Bound::Unbounded => u64::MAX,
        };
        let key = *key;
        let newest = self.0.inspect(|open| open.db.commits.published(), |facts| facts.tip.number);
        ChangingCommits::new(first, last.min(newest), move |first, search| {
            let engine = self.0.open_engine()?;
            let (db, undo) = (&engine.db, &engine.db.commits.undo);
            let read = || undo.changing_commits(namespace, &key, first, search);
            db.run_read(undo.newest(), read).map_err(|error| self.explain_if_lost(&engine, error))
        })
    }

    /// Proves which keys of a range differ between two commits of the history, with the hashes of their values before
    /// and after, and that no other key of the range does: what
    /// [`Namespace::prove_change`](crate::Namespace::prove_change) gives for sessions on the two commits.
    /// [`proof::change::verify`](pleach_core::proof::change::verify) checks it against their two roots.
    ///
    /// # Errors
    /// As [`Self::at`] and [`Namespace::prove_change`](crate::Namespace::prove_change).
    pub fn prove_change(
        &self,
        from: u64,
        to: u64,
        range: impl RangeBounds<Key>,
    ) -> Result<ChangeProof> {
        let (from, to) = (self.at(from)?, self.at(to)?);
        from.prove_change(&to, range)
    }

    /// Who holds which commit, the oldest commits first: sessions, snapshots, blocks and overlays, also those that
    /// cannot be read any more, which hold nothing ([`Pin::readable`]). Empty after a close.
    pub fn pins(&self) -> Vec<Pin> {
        self.0.inspect(|engine| engine.db.commits.pins(), |_| Vec::new())
    }

    /// Undoes exactly the newest `commits` commits: [`Self::rollback_to`] the commit before them, with
    /// [`Error::StaleParent`] when another commit comes between. With 0 nothing changes.
    ///
    /// # Errors
    /// [`Error::TooFarBack`] when there are fewer commits; [`Error::StaleParent`]; errors of
    /// [`Self::rollback_to`].
    pub fn rollback(&self, commits: u64) -> Result<u64> {
        // A close that comes meanwhile waits for the rollback.
        let engine = self.0.open_engine()?;
        rollback(&engine, commits).map_err(|error| self.explain_if_lost(&engine, error))
    }

    /// Gives [`Error::HistoryLost`] for a commit that should be in the history, but was found lost, as long as the
    /// history has not moved on beyond it.
    fn explain_if_lost(&self, engine: &Engine, error: Error) -> Error {
        let lost = self.opened().lost.as_ref();
        match (&error, lost) {
            (&Error::SnapshotTooOld { commit, oldest }, Some(lost))
                if (lost.from..lost.before).contains(&commit) && oldest <= lost.before =>
            {
                let cause = Box::new(lost.error.clone());
                let newest = engine.db.commits.published();
                Error::HistoryLost { commit, oldest, newest, cause }
            }
            _ => error,
        }
    }

    /// Goes back to a commit of the history, whatever was committed since, and gives the number of the commit that does
    /// so. State, roots and blob are those of the old commit, in all namespaces: namespaces that were added since are
    /// dropped, and namespaces that were dropped since are there again. It is durable when this returns, whatever the
    /// durability mode, and can be rolled back itself. Blocks and overlays on the newest commit become stale.
    ///
    /// With the newest commit nothing is committed: gives that commit's number, once it is durable.
    ///
    /// Blocks as a commit does ([`Block::commit`](crate::Block::commit)).
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] before the history, [`Error::HistoryLost`] where it is damaged,
    /// [`Error::NoSuchCommit`] after the newest commit; [`Error::StaleParent`] when other commits came between at each
    /// of several tries; [`Error::BatchTooLarge`] when more was changed since than fits a record; errors of a commit.
    pub fn rollback_to(&self, commit: u64) -> Result<u64> {
        let engine = self.0.open_engine()?;
        rollback_to(&engine, commit).map_err(|error| self.explain_if_lost(&engine, error))
    }

    /// The newest state with namespace 0's trie, for tests.
    #[cfg(test)]
    pub(crate) fn state(&self) -> Arc<crate::state::NamespaceDb> {
        Arc::clone(&self.0.open_engine().expect("open").db)
    }

    /// The engine, for tests.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> Arc<crate::engine::Engine> {
        Arc::clone(&self.0.open_engine().expect("open"))
    }

    /// The newest commit; after a close the last one.
    fn tip(&self) -> CommitState {
        self.0.inspect(|engine| engine.db.commits.tip(), |facts| facts.tip.clone())
    }

    /// Root of namespace 0 in the newest commit.
    pub fn root(&self) -> Node {
        self.tip().roots.first()
    }

    /// Roots of all namespaces in the newest commit.
    pub fn roots(&self) -> Roots {
        self.tip().roots
    }

    /// Adds an empty namespace, and gives the number of the commit that does so. Blocks and overlays on the newest
    /// commit become stale, since their states are without it. Where a namespace of this number was dropped and nobody
    /// can read it any more, the call waits until its pages are free, ten seconds at most.
    ///
    /// Blocks as a commit does ([`Block::commit`](crate::Block::commit)).
    ///
    /// # Errors
    /// [`Error::NamespaceExists`]; [`Error::NamespaceInUse`] while a dropped namespace of this number can
    /// still be read ([`Pin::readable`]), or when ten seconds were not enough; [`Error::StaleParent`] when other
    /// commits came between at each of many tries; errors of a commit.
    pub fn add_namespace(&self, namespace: u8) -> Result<u64> {
        // A close that comes meanwhile waits for the commit.
        let engine = self.0.open_engine()?;
        namespaces::add(&engine, namespace, TrieKind::Merkle)
    }

    /// Adds an empty *plain* namespace, for data that needs no root: logs, receipts, indexes, balances. It has values,
    /// history, iteration and overlays, and commits together with all other namespaces; it has no trie over its pairs,
    /// so it costs no hashing of pages and no memory for nodes. A digest takes the place of its root
    /// ([`Roots::digest`]). It gives no proofs ([`Error::Plain`]) and no witness.
    ///
    /// # Errors
    /// As [`Self::add_namespace`].
    pub fn add_plain_namespace(&self, namespace: u8) -> Result<u64> {
        let engine = self.0.open_engine()?;
        namespaces::add(&engine, namespace, TrieKind::Plain)
    }

    /// Drops a namespace with all its pairs, and gives the number of the commit that does so. Sessions that began
    /// before go on reading it, as do [`Self::at`] and [`Self::rollback`] within the history; when no readable state
    /// has it any more, its pages become free and its number can be added again. Blocks and overlays on the newest
    /// commit become stale.
    ///
    /// Blocks as a commit does ([`Block::commit`](crate::Block::commit)).
    ///
    /// # Errors
    /// [`Error::Namespace`] where there is none; [`Error::NamespaceExists`] for namespace 0, which cannot be dropped;
    /// [`Error::StaleParent`] when other commits came between at each of many tries; errors of a commit.
    pub fn drop_namespace(&self, namespace: u8) -> Result<u64> {
        let engine = self.0.open_engine()?;
        namespaces::drop(&engine, namespace)
    }

    /// Fills an empty namespace with pairs in any order, each key once, as the next commit. It is far faster than
    /// commits: no log, no witness, pages written in file order. The result is durable when the call returns, whatever
    /// the durability mode. Nothing is committed meanwhile, and no earlier commit can be read afterwards. A load that
    /// fails leaves the database as it was.
    ///
    /// Blocks until the load is durable.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] when the namespace has pairs, or pages left by deleted pairs; [`Error::Namespace`] when
    /// there is none of that number; [`Error::InUse`] while a readable session or overlay is open, and while a backup
    /// or another load runs; [`Error::RepeatedKey`]; [`Error::ValueTooLarge`]; [`Error::Full`]; [`Error::Closed`], also
    /// when the database is closed meanwhile; [`Error::InDoubt`] after a failed write or sync of its checkpoints, also
    /// where a copy-on-write file system has no room for reserved blocks. `NotEmpty`, `Poisoned`, and an `InUse` or
    /// `Closed` at the beginning have taken nothing from the items; a load that failed later needs them from their
    /// beginning.
    pub fn bulk_load(
        &self,
        pairs: impl IntoIterator<Item = (Key, Value)>,
        options: &LoadOptions,
    ) -> Result<LoadReport> {
        self.try_bulk_load(pairs.into_iter().map(Ok), options)
    }

    /// [`Self::bulk_load`] of pairs that may be errors. The first error ends the load, which then changes nothing.
    ///
    /// # Errors
    /// The first error among the pairs; errors of [`Self::bulk_load`].
    pub fn try_bulk_load<E: From<Error>>(
        &self,
        pairs: impl IntoIterator<Item = core::result::Result<(Key, Value), E>>,
        options: &LoadOptions,
    ) -> core::result::Result<LoadReport, E> {
        // The caller's iterator may do anything with the database, even close it.
        let (_counted, engine) = {
            let engine = self.0.open_engine()?;
            (engine.count_handle(HandleKind::Load), Arc::clone(&engine))
        };
        let (mut pairs, mut failed) = (pairs.into_iter(), None);
        let mut next = || match pairs.next().transpose() {
            Ok(pair) => Ok(pair),
            Err(error) => {
                failed = Some(error);
                Err(Error::Closed) // Ends the load, and is replaced below.
            }
        };
        let loaded =
            load::bulk_load(&engine.db, &mut |chunk| load::fill_chunk(chunk, &mut next), options);
        match failed {
            Some(error) => Err(error),
            None => loaded.map_err(E::from),
        }
    }

    /// The number that the database was created with. Copies of its files have the same number; imports and databases
    /// restored from an archive have another one.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn id(&self) -> Result<u64> {
        Ok(self.0.open_engine()?.db.store.database)
    }

    /// The options that the database was opened with.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn options(&self) -> Result<Options> {
        Ok(self.0.open_engine()?.db.options.clone())
    }

    /// The hash function that the database was created with.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn hasher(&self) -> Result<Hasher> {
        Ok(self.0.open_engine()?.db.hasher)
    }

    /// The value of a key of namespace 0 in the newest commit; `None` when it has none. To read several keys of one
    /// state, begin a session ([`Self::session`]).
    ///
    /// # Errors
    /// As [`Namespace::read`](crate::Namespace::read); [`Error::Closed`].
    pub fn get(&self, key: &Key) -> Result<Option<Value>> {
        self.session(SessionOptions::new())?.read(key)
    }

    /// Number of the newest commit; 0 in a new database.
    pub fn commit_number(&self) -> u64 {
        self.tip().number
    }

    /// The application's blob of the newest commit; empty when none was ever set.
    pub fn blob(&self) -> Vec<u8> {
        self.tip().blob.to_vec()
    }

    /// How the folder's device is read and written.
    pub fn device_info(&self) -> DeviceInfo {
        self.0.inspect(|engine| engine.db.store.device.info(), |facts| facts.device.clone())
    }

    /// Counters and levels; after a close their last values.
    pub fn metrics(&self) -> Metrics {
        self.0.inspect(Engine::metrics, |facts| facts.metrics.clone())
    }

    /// The work of the background tasks, and which of them make no progress.
    pub fn tasks(&self) -> Vec<TaskState> {
        self.0.inspect(|engine| engine.db.pace.tasks(), |facts| facts.tasks.clone())
    }

    /// Quarantined pages, by file and page: the background cannot read them, or they contradict the index. The changes
    /// that are buffered for them stay in the log and in images; sessions that need such a page get the error.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.0
            .inspect(|engine| engine.db.store.quarantine.list(), |facts| facts.quarantined.clone())
    }

    /// Waits until the background has reduced the buffered changes to `max_buffered_entries` keys, or cannot reduce
    /// them any further.
    ///
    /// # Errors
    /// [`Full`](Error::Full) when there is no room for pages, [`Quarantined`](Error::Quarantined) when the
    /// remaining changes belong to quarantined pages, [`Poisoned`](Error::Poisoned), [`Closed`](Error::Closed).
    pub fn drain(&self, max_buffered_entries: u64) -> Result<()> {
        // A close that comes meanwhile ends this wait, and waits for it.
        self.0.open_engine()?.drain(max_buffered_entries)
    }

    /// Makes all commits durable that were acknowledged before the call, whatever the durability mode: for
    /// [`Durability::None`](crate::Durability::None) and [`Durability::Periodic`](crate::Durability::Periodic), where
    /// commits do not wait for their sync.
    ///
    /// Blocks for one write and one sync.
    ///
    /// # Errors
    /// [`InDoubt`](Error::InDoubt) after a failed write or sync: some of the commits may be lost in a crash.
    /// [`Poisoned`](Error::Poisoned), [`Closed`](Error::Closed).
    pub fn sync(&self) -> Result<()> {
        let engine = self.0.open_engine()?;
        engine.db.commits.sequencer.lock().check_open()?;
        engine.sync()
    }

    /// Stops background work until [`Self::resume_background`], for measurements between batches.
    pub fn pause_background(&self) {
        self.0.inspect(|engine| engine.db.pace.pause(), |_| ());
    }

    /// Lets background work go on.
    pub fn resume_background(&self) {
        self.0.inspect(|engine| engine.db.pace.resume(), |_| ());
    }

    /// The numbers of live sessions, blocks and overlays, and of running loads, each of which keeps the folder locked.
    /// Clones of the database do not count: a close takes the folder from them.
    pub fn open_handles(&self) -> OpenHandles {
        self.0.open_handles()
    }

    /// True when a write or a sync has failed: reads go on, nothing is committed any more, and the database has to be
    /// closed and opened again.
    pub fn is_poisoned(&self) -> bool {
        self.0.inspect(
            |engine| engine.db.commits.sequencer.lock().is_poisoned(),
            |facts| facts.poisoned,
        )
    }

    /// Writes a checkpoint and closes, for all clones. From here on nothing begins and no handle can commit
    /// ([`Error::Closed`]); commits that other threads have begun are completed. Values that clones give without an
    /// error (root, metrics) stay at their last state. Dropping the last clone without a close is safe too: the next
    /// open replays the log.
    ///
    /// Gives the numbers of sessions, blocks and overlays that live on, and of loads and backups that run. They go on
    /// reading, and the folder stays locked until the last of them is dropped. Of two closes at the same time one waits
    /// for the other, and gives `Closed` when that has succeeded.
    ///
    /// Blocks while it writes a checkpoint. Dropping the last clone blocks until the background tasks have ended.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed write or sync, and [`Error::InDoubt`] when one failed in the close
    /// itself: the database is closed, and the next open replays the log. With any other error ([`Error::Full`] first
    /// of all) no checkpoint could be written: the folder stays locked, and close can be called again; or drop all
    /// clones, and the next open replays the log. None of these errors affects commits.
    pub fn close(&self) -> Result<OpenHandles> {
        self.0.close()
    }
}

fn check_exists(engine: &Engine, commit: u64) -> Result<()> {
    let tip = engine.db.commits.published();
    if commit > tip { Err(Error::NoSuchCommit { commit, tip }) } else { Ok(()) }
}
