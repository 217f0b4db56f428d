//! What all clones of a [`Db`](crate::Db) share: the open database until a close, and the close itself.
//!
//! Invariants: `engine` is here until a close has ended; after that only sessions, blocks and overlays hold it, so that
//! clones which nobody has dropped keep neither memory nor the folder's lock. The background tasks have ended when a
//! close returns, or the last clone is dropped. Of two closes one waits for the other.
//!
//! Locks, before all others: `closing`, then `engine`. A close takes `engine` for writing at its very end, so nobody
//! holds it while a caller's code runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use pleach_beatree::pages::Quarantined;
use pleach_io::{DeviceInfo, ProcessTag, TaskHandle};

use crate::checkpoint::checkpoint;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::handles::{Handles, OpenHandles};
use crate::metrics::Metrics;
use crate::open::{OpenedEngine, open_replica};
use crate::opening::Opening;
use crate::state::commits::CommitState;
use crate::state::pace::beats::TaskState;

/// The database of all clones.
pub(crate) struct Owner {
    engine: RwLock<Option<Arc<Engine>>>,
    /// True when a close has begun: nothing else begins any more.
    closed: AtomicBool,
    /// The background tasks, until a close takes them; held during a close.
    closing: Mutex<Option<Vec<TaskHandle>>>,
    handles: Arc<Handles>,
    /// How the open found the database.
    pub(crate) opening: Opening,
    home: ProcessTag,
    last_status: OnceLock<LastStatus>,
}

/// What clones report of a database, open or closed.
#[derive(Clone, Debug)]
pub(crate) struct LastStatus {
    pub(crate) path: PathBuf,
    pub(crate) tip: CommitState,
    pub(crate) device: DeviceInfo,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Vec<TaskState>,
    pub(crate) quarantined: Vec<Quarantined>,
    pub(crate) poisoned: bool,
}

impl LastStatus {
    fn of(engine: &Engine) -> Self {
        let state = &engine.db;
        Self {
            path: state.options.path.clone(),
            tip: state.commits.tip(),
            device: state.store.device.info(),
            metrics: engine.metrics(),
            tasks: state.pace.tasks(),
            quarantined: state.store.quarantine.list(),
            poisoned: state.commits.sequencer.lock().is_poisoned(),
        }
    }
}

impl Owner {
    pub(crate) fn new(opened: OpenedEngine) -> Self {
        let OpenedEngine { engine, tasks, opening } = opened;
        Self {
            handles: Arc::clone(&engine.handles),
            engine: RwLock::new(Some(engine)),
            closed: AtomicBool::new(false),
            closing: Mutex::new(Some(tasks)),
            opening,
            home: ProcessTag::current(),
            last_status: OnceLock::new(),
        }
    }

    /// The open database, for an operation that begins now.
    ///
    /// # Errors
    /// [`Error::Closed`] from the beginning of a close on; [`IoError::Forked`](pleach_io::IoError::Forked) in a
    /// process that was forked since.
    pub(crate) fn open_engine(&self) -> Result<MappedRwLockReadGuard<'_, Arc<Engine>>> {
        self.home.check_current()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        RwLockReadGuard::try_map(self.engine.read(), Option::as_ref).map_err(|_| Error::Closed)
    }

    /// Brings a replica to the newest commit. A replica that the log does not reach back to is opened anew.
    pub(crate) fn refresh(&self) -> Result<()> {
        let engine = Arc::clone(&*self.open_engine()?);
        let state = &engine.db;
        let Some(replica) = &state.replica else { return Ok(()) };
        match replica.catch_up(state) {
            Err(Error::SnapshotTooOld { .. }) => {}
            caught_up => return caught_up.map(drop),
        }
        let (device, runtime) = (state.store.device.clone(), state.runtime.clone());
        let mut opened = open_replica(device, runtime, state.options.clone())?;
        if let Some(again) = Arc::get_mut(&mut opened.engine) {
            // Handles of the old and the new engine are counted together.
            again.handles = Arc::clone(&engine.handles);
        }
        let mut place = self.engine.write();
        if let Some(place) = place.as_mut().filter(|place| Arc::ptr_eq(place, &engine)) {
            *place = opened.engine;
        }
        Ok(())
    }

    /// A fact about the open database, or its last value after a close.
    pub(crate) fn inspect<T>(
        &self,
        now: impl FnOnce(&Engine) -> T,
        then: impl FnOnce(&LastStatus) -> T,
    ) -> T {
        match &*self.engine.read() {
            Some(engine) => now(engine),
            None => {
                then(self.last_status.get().expect("whoever takes the engine away puts them here"))
            }
        }
    }

    /// The numbers of live handles, without clones.
    pub(crate) fn open_handles(&self) -> OpenHandles {
        self.handles.open_handles()
    }

    /// See [`Db::close`](crate::Db::close). A close that found no room, or could not read what it needs, can be tried
    /// again; after a failed write or sync the database is closed.
    pub(crate) fn close(&self) -> Result<OpenHandles> {
        self.home.check_current()?;
        let mut tasks = self.closing.lock();
        let Some(engine) = self.engine.read().clone() else { return Err(Error::Closed) };
        self.closed.store(true, Ordering::Release);
        engine.refuse_commits();
        engine.end_tasks(tasks.take());
        let written = {
            // A load that began before has ended here; a later one finds the database closed.
            let _alone = engine.db.images.lock_maker();
            let sound = engine.db.commits.sequencer.lock().check_writable();
            match sound {
                // A replica has nothing to write.
                Err(Error::ReadOnly) => Ok(()),
                sound => sound.and_then(|()| checkpoint(&engine.db, true)),
            }
        };
        if let Err(error) = &written
            && !error.is_poisoned()
        {
            return Err(error.clone());
        }
        self.last_status.get_or_init(|| LastStatus::of(&engine));
        tracing::info!(commit = engine.db.commits.published(), "closed");
        // Waits for everybody who reads `engine`.
        drop(self.engine.write().take());
        let open = self.open_handles();
        drop(engine);
        written.map(|()| open)
    }
}

impl Drop for Owner {
    /// Drops the last clone: sessions and overlays may live on and read, but not commit. In a process that was forked
    /// since, nothing else happens: the database belongs to the other process.
    fn drop(&mut self) {
        if self.home.is_current()
            && let Some(engine) = self.engine.get_mut()
        {
            engine.refuse_commits();
            engine.end_tasks(self.closing.get_mut().take());
        }
    }
}
