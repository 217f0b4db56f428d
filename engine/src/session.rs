//! Sessions: reading a state, prefetching it, and finishing a batch over it.

use std::fmt;
use std::ops::{RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pleach_beatree::Value;
use pleach_core::{Blake3, Hasher, Key, Node};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::access::Access;
use crate::commit::block::Block;
use crate::commit::overlay::Overlay;
use crate::engine::Engine;
use crate::error::{Error, Hex, Result};
use crate::finish::{Claim, finish, prove};
use crate::given_back::speaks_as_its_reason;
use crate::handles::{Counted, Kind};
use crate::iter::Iter;
use crate::metrics::Counters;
use crate::prefetch::lookup;
use crate::prefetch::requests::PrefetchRequests;
use crate::prefetch::values::LookedUp;
use crate::prove::{prove_change, prove_range};
use crate::read::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use crate::read::many::{self, For};
use crate::read::point;
use crate::read::scan::Scan;
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
        many::bring(db, &self.engine.readers, For::Values(&self.view), keys)?;
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
    /// once. To be called as soon as keys are known, with all of them or one by one: fewer than 32 are
    /// gathered with those that come within 50 microseconds, which costs each key about as much as in one
    /// call. Nothing fails here: what could not be prefetched is read when it is needed. Beyond
    /// 2^18 keys that wait in all sessions together, keys are left out.
    pub fn prefetch(&self, keys: &[Key]) {
        let Engine { state, prefetching, .. } = &*self.engine;
        let of = (self.view.base, self.view.is_committed());
        if self.requests.lock().announce(state, prefetching, of, keys) {
            self.prefetches.store(true, Ordering::Relaxed);
        }
    }

    /// The pairs of a range of keys, in key order from the front and against it from the back
    /// ([`Iterator::rev`], or both ends at once). An empty or inverted range has none.
    ///
    /// Like reads, it sees the state of this session, whatever is committed and flushed meanwhile, and blocks
    /// nobody, however long it rests. From the second page on, pages are read ahead: first four, then more and
    /// more, up to four times the reads in flight that the options allow and a 128th of the memory budget;
    /// neighbours in the file are one read. Pages that are
    /// cached are read there; of the others only the first 32 of a range enter the cache. A long value is
    /// read when its key is given. Eight iterators read ahead at the same time; more read page by page.
    ///
    /// An iterator stays on the thread that made it, as its ring does. After an error it ends: see [`Iter`].
    ///
    /// ```
    /// # use pleach::{Access, Options, Pleach, SessionOptions, Value};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = Pleach::open(Options::new(folder.path()).create(true).cache_mib(64))?;
    /// # let session = db.session(SessionOptions::new())?;
    /// # let put = |id| Access::write([id; 32], Some(Value::from(&[id])));
    /// # session.finish((1..=9).map(put).collect())?.commit()?;
    /// let session = db.session(SessionOptions::new())?;
    /// for pair in session.iter([2; 32]..[4; 32]) {
    ///     let (key, value) = pair?;
    ///     assert_eq!(key[0], value[0]);
    /// }
    /// let (last, _) = session.iter(..).next_back().expect("nine keys")?;
    /// assert_eq!(last, [9; 32]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self, range: impl RangeBounds<Key>) -> Iter<'_, H, D, R> {
        Iter::new(&self.engine, self.scan(&range))
    }

    fn scan(&self, range: &impl RangeBounds<Key>) -> Scan<'_, D, R> {
        let Engine { state, scanners, .. } = &*self.engine;
        Scan::new(state, &self.view, scanners, range)
    }

    /// Proves what the state says of a key, present or absent: a path proof, which
    /// [`proof::path::verify`](pleach_core::proof::path::verify) checks against [`Self::root`]. The session
    /// goes on; proofs, reads and finishes may come at the same time, from any threads.
    ///
    /// # Errors
    /// As [`Self::read`], of any page that the path needs.
    pub fn prove(&self, key: &Key) -> Result<Vec<u8>> {
        self.proof(Claim::Key(key))
    }

    /// Proves what the state says of these keys, present or absent, in any order and as often as they come:
    /// one multiproof, which [`proof::multi::verify`](pleach_core::proof::multi::verify) checks against
    /// [`Self::root`]. Pages that are not cached are read together, as many at once as the options allow; up
    /// to 128 keys are folded on the calling thread, more by all workers.
    ///
    /// No keys give the multiproof without terminals. It is the right one, and verifies against any root:
    /// it answers for no key.
    ///
    /// # Errors
    /// As [`Self::read`], of any page that the proof needs, and [`BatchTooLarge`](crate::Error::BatchTooLarge)
    /// for a proof of which a part would have 4 GiB.
    pub fn prove_many(&self, keys: &[Key]) -> Result<Vec<u8>> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        self.proof(Claim::Keys(&keys))
    }

    /// Proves all pairs of a range of keys, both ends included, and that there is no other:
    /// [`proof::range::verify`](pleach_core::proof::range::verify) checks it against [`Self::root`] and the same
    /// ends. The proof has 66 bytes for each pair, in memory, and reads the range like [`Self::iter`], but no long
    /// values.
    ///
    /// # Errors
    /// [`EmptyRange`](crate::Error::EmptyRange), and those of [`Self::prove_many`].
    pub fn prove_range(&self, range: &RangeInclusive<Key>) -> Result<Vec<u8>> {
        prove_range(&self.engine, (&self.view, &self.root), range)
    }

    /// Proves which keys of a range, both ends included, differ between this state and another one, with the
    /// hashes of both values, and that no other key does:
    /// [`proof::change::verify`](pleach_core::proof::change::verify) checks it against the roots of both and
    /// the same ends. The other state may be newer or older, of a commit or an overlay. What differs is known
    /// from undo and overlays: the range itself is not read.
    ///
    /// # Errors
    /// [`EmptyRange`](crate::Error::EmptyRange), [`ForeignSession`](crate::Error::ForeignSession) for a session
    /// of another open, and those of [`Self::prove_many`].
    pub fn prove_change(&self, to: &Self, range: &RangeInclusive<Key>) -> Result<Vec<u8>> {
        if !Arc::ptr_eq(&self.engine, &to.engine) {
            return Err(Error::ForeignSession);
        }
        let (from, to) = ((&self.view, &self.root), (&to.view, &to.root));
        prove_change(&self.engine, from, to, range)
    }

    fn proof(&self, claim: Claim<'_>) -> Result<Vec<u8>> {
        let Engine { state, finisher, readers, .. } = &*self.engine;
        prove(state, (finisher, readers), (&self.view, &self.root), claim)
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
