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
use crate::prefetch::requests::Announcements;
use crate::prefetch::values::LookedUp;
use crate::read::group::{GROUP, Reach, cpu_prefetch};
use crate::read::many;
use crate::read::point;
use crate::state::view::View;

/// How a session is opened.
pub struct SessionOptions<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    pub(crate) witness: bool,
    pub(crate) over: Option<Overlay<H, D, R>>,
}

impl<H: Hasher, D: Device, R: Runtime> Default for SessionOptions<H, D, R> {
    fn default() -> Self {
        Self { witness: true, over: None }
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

    /// Stands on an overlay rather than on the newest commit.
    #[must_use]
    pub fn over(mut self, overlay: &Overlay<H, D, R>) -> Self {
        self.over = Some(overlay.clone());
        self
    }
}

impl<H: Hasher, D: Device, R: Runtime> Clone for SessionOptions<H, D, R> {
    fn clone(&self) -> Self {
        Self { witness: self.witness, over: self.over.clone() }
    }
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for SessionOptions<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions")
            .field("witness", &self.witness)
            .field("over", &self.over)
            .finish()
    }
}

/// A session on one fixed state. Reads take `&self` and may come from any number of threads.
///
/// A session that outlives its database's close reads on, and keeps the folder locked for that; what
/// it finishes cannot be committed ([`Error::Closed`](crate::Error::Closed)).
pub struct Session<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    engine: Arc<Engine<H, D, R>>,
    view: View,
    root: Node,
    parent: Option<Overlay<H, D, R>>,
    witness: bool,
    /// Have keys been announced, and those that readers can still look up.
    announces: AtomicBool,
    announced: Mutex<Announcements>,
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
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            view,
            root,
            parent: options.over,
            witness: options.witness,
            announces: AtomicBool::new(false),
            announced: Mutex::default(),
            counted: engine.count(Kind::Session),
        }
    }

    /// Root of the state that this session reads.
    pub fn root(&self) -> Node {
        self.root
    }

    /// The value of a key in namespace 0. A miss is one read of the device, on the calling
    /// thread.
    pub fn read(&self, key: &Key) -> Result<Option<Value>> {
        if self.announces.load(Ordering::Relaxed)
            && let Some(found) = self.looked_up(key)
        {
            return Ok(found.value().map(Value::from));
        }
        point::value::<H, D, R>(&self.engine.state, &self.view, key)
    }

    /// What was looked up ahead. Where that is late, a key batch is looked up here, which costs less
    /// than its keys one by one.
    fn looked_up(&self, key: &Key) -> Option<LookedUp> {
        if self.view.overlaid(key).is_some() {
            return None;
        }
        let (db, prefetching) = (&self.engine.state, &self.engine.prefetching);
        let get = || prefetching.values().get(self.view.base, key);
        let found = get().or_else(|| {
            let announced = self.announced.lock().first()?;
            let _guard = db.store.enter();
            if lookup::help(db, prefetching, &announced) { get() } else { None }
        })?;
        Counters::add(&db.counters.cache_hits, 1);
        Some(found)
    }

    /// The values of many keys in namespace 0, in their order; misses are read at the device's
    /// full depth.
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let db = &self.engine.state;
        many::bring(db, &self.view, &self.engine.readers, keys)?;
        let mut values = Vec::with_capacity(keys.len());
        for group in keys.chunks(GROUP) {
            {
                let _guard = db.store.enter();
                cpu_prefetch(db, group.iter(), Reach::Cell);
            }
            for key in group {
                values.push(self.read(key)?);
            }
        }
        Ok(values)
    }

    /// Starts to bring in the values and pages of these keys, with the trie in them, and returns at
    /// once.
    pub fn prefetch(&self, keys: &[Key]) {
        let Engine { state, prefetching, .. } = &*self.engine;
        let folds = self.view.is_committed();
        if let Some(announced) = prefetching.announce(state, self.view.base, folds, keys) {
            self.announced.lock().push(announced);
            self.announces.store(true, Ordering::Relaxed);
        }
    }

    /// Finishes a batch: its accesses in any order, each key once. The engine itself fills in
    /// the values seen. Nothing is written.
    ///
    /// # Errors
    /// [`RepeatedKey`](crate::Error::RepeatedKey), [`ValueTooLarge`](crate::Error::ValueTooLarge),
    /// [`Namespace`](crate::Error::Namespace), and what reading can bring. The session and the
    /// accesses come back with them.
    pub fn finish(self, mut accesses: Vec<Access>) -> Result<Block<H, D, R>, FinishError<H, D, R>> {
        let Engine { state, finisher, .. } = &*self.engine;
        let mut sorter = finisher.take_sorter();
        let finished = sorter.sort::<H>(&mut accesses).and_then(|touches| {
            finish(state, finisher, &self.view, &self.root, touches, self.witness)
        });
        if finished.is_err() {
            sorter.give_back(&mut accesses);
        }
        finisher.keep_sorter(sorter);
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
/// The session stands on the state that it stood on, with what it announced, and can read, announce
/// and finish. As long as this lives, so does the session, which keeps its state's undo.
pub struct FinishError<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Box<Unfinished<H, D, R>>,
);

/// Apart, so that a result is as small as its good case.
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
