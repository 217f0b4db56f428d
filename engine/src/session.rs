//! Sessions: reading a state, prefetching it, and finishing a batch over it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pleach_beatree::Value;
use pleach_core::{Blake3, Hasher, Key, Node};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::access::Access;
use crate::commit::block::{Block, Overlay};
use crate::engine::Engine;
use crate::error::{Error, Hex, Result};
use crate::finish::finish;
use crate::given_back::speaks_as_its_reason;
use crate::handles::{Counted, Kind};
use crate::metrics::Counters;
use crate::prefetch::lookup;
use crate::prefetch::requests::PrefetchRequests;
use crate::prefetch::values::LookedUp;
use crate::read::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use crate::read::many;
use crate::read::point;
use crate::state::pins::Holder;
use crate::state::view::View;

/// How a session is opened.
pub struct SessionOptions<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    pub(crate) witness: bool,
    pub(crate) over: Option<Overlay<H, D, R>>,
    label: Option<Arc<str>>,
}

impl<H: Hasher, D: Device, R: Runtime> Default for SessionOptions<H, D, R> {
    fn default() -> Self {
        Self { witness: true, over: None, label: None }
    }
}

impl<H: Hasher, D: Device, R: Runtime> SessionOptions<H, D, R> {
    /// A session on the newest commit, with a witness.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does the finish build a witness?
    #[must_use]
    pub fn witness(mut self, witness: bool) -> Self {
        self.witness = witness;
        self
    }

    /// The session reads an overlay rather than the newest commit.
    #[must_use]
    pub fn over(mut self, overlay: &Overlay<H, D, R>) -> Self {
        self.over = Some(overlay.clone());
        self
    }

    /// A name for the session, and for the blocks and overlays that come of it, in [`crate::Db::pins`].
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }
}

impl<H: Hasher, D: Device, R: Runtime> Clone for SessionOptions<H, D, R> {
    fn clone(&self) -> Self {
        Self { witness: self.witness, over: self.over.clone(), label: self.label.clone() }
    }
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for SessionOptions<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions")
            .field("witness", &self.witness)
            .field("over", &self.over)
            .field("label", &self.label)
            .finish()
    }
}

/// A session on one fixed state. Reads take `&self` and may come from any number of threads.
///
/// A session that outlives the close of its database goes on reading, and keeps the folder locked for
/// that; what it finishes cannot be committed ([`Error::Closed`](crate::Error::Closed)).
pub struct Session<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    engine: Arc<Engine<H, D, R>>,
    view: View,
    root: Node,
    parent: Option<Overlay<H, D, R>>,
    witness: bool,
    /// Has anything been prefetched?
    prefetches: AtomicBool,
    /// What readers can still look up of it.
    requests: Mutex<PrefetchRequests>,
    /// The last field, so that it goes last.
    counted: Counted,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Session<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("base", &self.view.base)
            .field("root", &Hex(self.root.as_ref()))
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Session<H, D, R> {
    /// A session on a view whose root is `root`.
    pub(crate) fn new(
        engine: &Arc<Engine<H, D, R>>,
        (view, root): (View, Node),
        options: SessionOptions<H, D, R>,
        holder: Holder,
    ) -> Self {
        view.held_by(holder, options.label);
        Self {
            engine: Arc::clone(engine),
            view,
            root,
            parent: options.over,
            witness: options.witness,
            prefetches: AtomicBool::new(false),
            requests: Mutex::default(),
            counted: engine.count(Kind::Session),
        }
    }

    /// Root of the state that this session reads.
    pub fn root(&self) -> Node {
        self.root
    }

    /// Number of the commit that this session reads, under overlays where it reads one.
    pub fn number(&self) -> u64 {
        self.view.base
    }

    /// A second session on the same state, whatever has been committed since.
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld): this one cannot read any more, either.
    pub fn fork(&self) -> Result<Self> {
        let view = self.engine.state.commits.view_again(&self.view)?;
        let options =
            SessionOptions { witness: self.witness, over: self.parent.clone(), label: None };
        Ok(Self::new(&self.engine, (view, self.root), options, Holder::Session))
    }

    /// The value of a key in namespace 0; `None` when it has none. A key whose page is not cached costs
    /// one read of 4 KiB, on the calling thread; a long value is read on top of that.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) and [`Corrupt`](crate::Error::Corrupt), of the page that the key is in;
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld) when later commits have replaced more than undo may
    /// take.
    pub fn read(&self, key: &Key) -> Result<Option<Value>> {
        if self.prefetches.load(Ordering::Relaxed)
            && let Some(found) = self.looked_up(key)
        {
            return Ok(found.value().map(Value::from));
        }
        point::value::<H, D, R>(&self.engine.state, &self.view, key)
    }

    /// The prefetched value of a key. Where that is late, a key batch is looked up here, which costs less
    /// than its keys one by one.
    fn looked_up(&self, key: &Key) -> Option<LookedUp> {
        if self.view.overlaid(key).is_some() {
            return None;
        }
        let (db, prefetching) = (&self.engine.state, &self.engine.prefetching);
        let get = || prefetching.values().get(self.view.base, key);
        let found = get().or_else(|| {
            let request = self.requests.lock().first()?;
            let _guard = db.store.enter();
            if lookup::help(db, prefetching, &request) { get() } else { None }
        })?;
        Counters::add(&db.counters.value_cache_hits, 1);
        Some(found)
    }

    /// The values of many keys in namespace 0: one for each key, in their order. Pages that are not
    /// cached are read together, as many at once as the options allow.
    ///
    /// # Errors
    /// As [`Self::read`]; the values that could be read are lost with it.
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let db = &self.engine.state;
        many::bring(db, &self.view, &self.engine.readers, keys)?;
        let mut values = Vec::with_capacity(keys.len());
        for batch in keys.chunks(KEY_BATCH) {
            {
                let _guard = db.store.enter();
                cpu_prefetch(db, batch.iter(), Reach::Cell);
            }
            for key in batch {
                values.push(self.read(key)?);
            }
        }
        Ok(values)
    }

    /// Starts to bring in the values and pages of these keys, with the trie above them, and returns at
    /// once. Nothing fails here: what could not be prefetched is read when it is needed. Beyond 2^18
    /// keys that wait in all sessions together, keys are left out.
    pub fn prefetch(&self, keys: &[Key]) {
        let Engine { state, prefetching, .. } = &*self.engine;
        let prefolds = self.view.is_committed();
        if let Some(request) = prefetching.request(state, self.view.base, prefolds, keys) {
            self.requests.lock().push(request);
            self.prefetches.store(true, Ordering::Relaxed);
        }
    }

    /// Finishes a batch: its accesses in any order, each key once. The engine itself finds out which
    /// values the accesses saw. Nothing is written.
    ///
    /// # Errors
    /// [`RepeatedKey`](crate::Error::RepeatedKey), [`ValueTooLarge`](crate::Error::ValueTooLarge),
    /// [`Namespace`](crate::Error::Namespace), and those of reading. The session and the accesses come
    /// back with the error.
    pub fn finish(self, mut accesses: Vec<Access>) -> Result<Block<H, D, R>, FinishError<H, D, R>> {
        let Engine { state, finisher, .. } = &*self.engine;
        let mut sorter = finisher.take_sorter();
        let finished = sorter.sort::<H>(&mut accesses).and_then(|accesses| {
            finish(state, finisher, &self.view, &self.root, accesses, self.witness)
        });
        if finished.is_err() {
            sorter.give_back(&mut accesses);
        }
        finisher.give_sorter_back(sorter);
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => return Err(FinishError::new(self, accesses, error)),
        };
        Ok(Block::new(
            self.engine,
            (self.view, self.root),
            self.parent,
            finished,
            self.counted.into_kind(Kind::Block),
        ))
    }
}

/// A finish that gave no block: why, the session as it was before, and the accesses.
///
/// The session reads the state that it read before, with what it has prefetched, and can read, prefetch
/// and finish again. As long as this lives, so does the session, which keeps its state's undo in memory.
pub struct FinishError<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Box<Unfinished<H, D, R>>,
);

/// Boxed, so that a result is as small as its good case.
struct Unfinished<H: Hasher, D: Device, R: Runtime> {
    session: Session<H, D, R>,
    accesses: Vec<Access>,
    error: Error,
}

impl<H: Hasher, D: Device, R: Runtime> FinishError<H, D, R> {
    pub(crate) fn new(session: Session<H, D, R>, accesses: Vec<Access>, error: Error) -> Self {
        Self(Box::new(Unfinished { session, accesses, error }))
    }

    /// Why there is no block.
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// The session.
    pub fn session(&self) -> &Session<H, D, R> {
        &self.0.session
    }

    /// The accesses, as they were given.
    pub fn accesses(&self) -> &[Access] {
        &self.0.accesses
    }

    /// The reason alone.
    pub fn into_error(self) -> Error {
        self.0.error
    }

    /// The session alone.
    pub fn into_session(self) -> Session<H, D, R> {
        self.0.session
    }

    /// Session, accesses and reason.
    pub fn into_parts(self) -> (Session<H, D, R>, Vec<Access>, Error) {
        let Unfinished { session, accesses, error } = *self.0;
        (session, accesses, error)
    }
}

speaks_as_its_reason!(FinishError, "session", session);
