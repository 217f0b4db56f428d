//! An open database, as its owner holds it.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use pleach_beatree::Value;
use pleach_core::{Blake3, Hasher, Key, Node};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::threads::Threads;
use pleach_io::{Device, DeviceInfo, Event, Runtime};

use crate::checkpoint::checkpoint;
use crate::engine::Engine;
use crate::error::{Error, Hex, NoRoom, Result};
use crate::handles::OpenHandles;
use crate::load::{self, LoadOptions, LoadReport};
use crate::metrics::Metrics;
use crate::open::examine::no_folder;
use crate::open::open;
use crate::opening::Opening;
use crate::options::Options;
use crate::rollback::rollback;
use crate::session::{Session, SessionOptions};
use crate::state::beats::TaskState;
use crate::state::commits::Tip;
use crate::state::pins::{Holder, Pin};
use crate::state::quarantine::Quarantined;

/// A commit of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// Its number.
    pub number: u64,
    /// The root of its state.
    pub root: Node,
    /// The application's blob.
    pub blob: Vec<u8>,
}

/// An open database.
pub struct Db<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    engine: Arc<Engine<H, D, R>>,
    tasks: Mutex<Option<Vec<R::Handle>>>,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Db<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (options, tip) = (&self.engine.state.options, self.engine.state.commits.tip());
        f.debug_struct("Db")
            .field("path", &options.path)
            .field("commit", &tip.number)
            .field("root", &Hex(tip.root.as_ref()))
            .finish_non_exhaustive()
    }
}

impl<H: Hasher> Db<H> {
    /// Opens the database in a folder; creates it when the options say so.
    ///
    /// # Errors
    /// A wrong, foreign or newer folder, another hasher, a second process, damage: each has its own
    /// variant, and nothing has been changed.
    pub fn open(options: Options) -> Result<Self> {
        options.check()?;
        let os = OsOptions {
            io: options.io,
            direct: options.direct,
            create_folder: options.create,
            ..OsOptions::default()
        };
        let device = OsDevice::open(&options.path, os).map_err(no_folder)?;
        let runtime = Threads::new(options.threads)?;
        Self::open_on(device, runtime, options)
    }
}

impl<H: Hasher, D: Device, R: Runtime> Db<H, D, R> {
    /// Opens a database on any device and runtime, such as a simulated disk for crash tests.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_on(device: D, runtime: R, options: Options) -> Result<Self> {
        options.check()?;
        let (engine, tasks) = open(device, runtime, options)?;
        Ok(Self { engine, tasks: Mutex::new(Some(tasks)) })
    }

    /// How the open found the database: what was cut off, whether it had been closed, what it had to
    /// go around.
    pub fn opened(&self) -> &Opening {
        &self.engine.opening
    }

    /// A session on the newest commit, or on the overlay that the options name.
    ///
    /// # Errors
    /// [`Error::ForeignOverlay`] when the overlay was not made through this handle.
    pub fn session(&self, options: SessionOptions<H, D, R>) -> Result<Session<H, D, R>> {
        let view = match &options.over {
            // The open is compared, not the database's number, which copies of a folder share. Blocks and
            // further overlays come from a session, so this is the only place to check.
            Some(overlay) if !overlay.is_of(&self.engine) => return Err(Error::ForeignOverlay),
            Some(overlay) => overlay.view(),
            None => self.engine.state.commits.tip_view(),
        };
        Ok(Session::new(&self.engine, view, options, Holder::Session))
    }

    /// A session on a past commit of the history, or on the newest one: it reads, prefetches, and a finish of
    /// reads gives the witness that it would have given then. What it finishes cannot be committed, unless
    /// the commit is the newest.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] before the history, [`Error::NoSuchCommit`] after the newest commit.
    pub fn at(&self, commit: u64) -> Result<Session<H, D, R>> {
        self.check_exists(commit)?;
        let view = self.engine.state.commits.view_at(commit)?;
        Ok(Session::new(&self.engine, view, SessionOptions::new(), Holder::Snapshot))
    }

    /// A session on the newest commit. It reads this state whatever is committed later, as long as what
    /// later commits replace takes no more memory than undo may.
    pub fn snapshot(&self) -> Session<H, D, R> {
        let view = self.engine.state.commits.tip_view();
        Session::new(&self.engine, view, SessionOptions::new(), Holder::Snapshot)
    }

    /// The numbers of the commits that can be read: the history, and the newest one.
    pub fn history(&self) -> RangeInclusive<u64> {
        // The newest is asked for first: the history may move on meanwhile, and never beyond it.
        let commits = &self.engine.state.commits;
        let newest = commits.published();
        commits.undo().from().min(newest)..=newest
    }

    /// Root and blob of a commit of the history.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn commit_at(&self, commit: u64) -> Result<Commit> {
        self.check_exists(commit)?;
        let Tip { number, root, blob } = self.engine.state.commits.commit_at(commit)?;
        Ok(Commit { number, root, blob: blob.to_vec() })
    }

    fn check_exists(&self, commit: u64) -> Result<()> {
        let tip = self.engine.state.commits.published();
        if commit > tip { Err(Error::NoSuchCommit { commit, tip }) } else { Ok(()) }
    }

    /// Who holds which commit, the oldest commits first: sessions, snapshots, blocks and overlays.
    pub fn pins(&self) -> Vec<Pin> {
        self.engine.state.commits.pins()
    }

    /// Goes back by `commits` commits, and gives the number of the commit that does so: its state, root and
    /// blob are those of the commit back then. It is durable when this returns, whatever the durability
    /// mode, and can be rolled back itself. Blocks and overlays on the newest commit become stale.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] beyond the history; [`Error::StaleParent`] when other commits came between
    /// at each of several tries; [`Error::BatchTooLarge`] when more was changed since than fits a record;
    /// and those of a commit.
    pub fn rollback(&self, commits: u64) -> Result<u64> {
        rollback(&self.engine, commits)
    }

    /// The parts of the state, for tests of them.
    #[cfg(test)]
    pub(crate) fn state(&self) -> &Arc<crate::state::State<D, R>> {
        &self.engine.state
    }

    /// Root of the newest commit.
    pub fn root(&self) -> Node {
        self.engine.state.commits.tip().root
    }

    /// Fills an empty database with pairs in any order, each key once, as commit number 1. It is far
    /// faster than commits: no log, no witness, pages written in file order. The result is durable when
    /// this returns, whatever the durability mode. A load that fails leaves the database empty.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] after the first commit; [`Error::InUse`] while a session or an overlay
    /// is open; [`Error::RepeatedKey`]; [`Error::ValueTooLarge`]; [`Error::Full`].
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one load")]
    pub fn bulk_load(
        &self,
        items: impl Iterator<Item = (Key, Value)>,
        options: LoadOptions,
    ) -> Result<LoadReport> {
        load::bulk_load::<H, D, R>(&self.engine.state, items, &options)
    }

    /// Number of the newest commit; 0 in a new database.
    pub fn commit_number(&self) -> u64 {
        self.engine.state.commits.tip().number
    }

    /// The application's blob of the newest commit; empty when it never set one.
    pub fn blob(&self) -> Vec<u8> {
        self.engine.state.commits.tip().blob.to_vec()
    }

    /// How the device that has the folder is read and written.
    pub fn device_info(&self) -> DeviceInfo {
        self.engine.state.store.device().info()
    }

    /// Counters and levels.
    pub fn metrics(&self) -> Metrics {
        self.engine.state.metrics()
    }

    /// What the background tasks are doing, and which of them make no progress.
    pub fn tasks(&self) -> Vec<TaskState> {
        self.engine.state.pace.tasks()
    }

    /// Pages that the background has set aside because they cannot be read, or contradict the index, by
    /// file and page. What pends on them stays in the log and in images; sessions that need them get the
    /// error.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.engine.state.store.quarantine().list()
    }

    /// Waits until the background has reduced the pending changes to `max_pending_entries` keys, or cannot
    /// reduce them any further.
    ///
    /// # Errors
    /// [`Full`](Error::Full) when there is no room for pages, [`Quarantined`](Error::Quarantined) when
    /// the changes that are left belong to pages that are set aside, [`Poisoned`](Error::Poisoned).
    pub fn drain(&self, max_pending_entries: u64) -> Result<()> {
        let db = &self.engine.state;
        let level = || db.counters.pending_entries.load(Ordering::Relaxed);
        let mut failed = None;
        let mut stuck = None;
        let draining = db.pace.drain();
        db.pace.wait(None, &mut || {
            failed = db.commits.sequencer().lock().check_open().err();
            stuck = db.pace.flush_error(db.commits.published());
            failed.is_some()
                || db.pace.flush_is_full()
                || level() <= max_pending_entries
                || stuck.is_some()
        });
        drop(draining);
        match failed {
            Some(error) => Err(error),
            None if level() > max_pending_entries => {
                Err(stuck.unwrap_or_else(|| NoRoom::PendingChanges.into()))
            }
            None => Ok(()),
        }
    }

    /// Stops background work until [`Self::resume_background`], for measurements between batches.
    pub fn pause_background(&self) {
        self.engine.state.pace.pause();
    }

    /// Lets background work go on.
    pub fn resume_background(&self) {
        self.engine.state.pace.resume();
    }

    /// The numbers of sessions, blocks and overlays that live, each of which keeps the folder locked.
    pub fn open_handles(&self) -> OpenHandles {
        self.engine.open_handles()
    }

    /// Has a write or a sync failed? Then reads go on, nothing is committed any more, and the
    /// database has to be closed and opened again.
    pub fn is_poisoned(&self) -> bool {
        self.engine.state.commits.sequencer().lock().check().is_err()
    }

    /// Writes a checkpoint and closes. From here on no handle can commit ([`Error::Closed`]); commits that
    /// other threads have begun are completed. Dropping the database without this is safe too: the next
    /// open replays the log.
    ///
    /// # Errors
    /// [`Error::StillOpen`] when sessions, blocks or overlays live on, with how many of each. The database
    /// is closed and its checkpoint written all the same; those handles go on reading, and the folder
    /// stays locked until the last of them is dropped. [`Error::Poisoned`] and [`Error::Full`] when no
    /// checkpoint could be written: the next open replays the log.
    pub fn close(self) -> Result<()> {
        self.refuse_commits();
        self.stop();
        self.engine.state.commits.sequencer().lock().check()?;
        checkpoint::<H, D, R>(&self.engine.state, true)?;
        let open = self.open_handles();
        if open.is_empty() { Ok(()) } else { Err(Error::StillOpen(open)) }
    }

    /// No commit takes a ticket from here on; commits that wait for room fail.
    fn refuse_commits(&self) {
        self.engine.state.commits.sequencer().close();
        self.engine.state.pace.tell();
    }

    fn stop(&self) {
        if let Some(tasks) = self.tasks.lock().take() {
            self.engine.state.pace.close();
            self.engine.prefetching.events().into_iter().for_each(Event::notify);
            drop(tasks);
        }
    }
}

impl<H: Hasher, D: Device, R: Runtime> Drop for Db<H, D, R> {
    fn drop(&mut self) {
        // Sessions and overlays may live on: they can read, but not commit.
        self.refuse_commits();
        self.stop();
    }
}
