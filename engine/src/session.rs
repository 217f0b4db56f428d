//! Sessions: reading a state, prefetching it, and finishing a batch over it. What is read of each namespace
//! is in [`crate::reading`].

use std::fmt;
use std::ops::{RangeBounds, RangeInclusive};
use std::sync::{Arc, OnceLock};

use pleach_beatree::Value;
use pleach_core::{Blake3, Hasher, Key, Node};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::access::Access;
use crate::commit::block::Block;
use crate::commit::overlay::Overlay;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::outcome::{Finished, FinishedBatch, TrieOutcome};
use crate::finish::sort::Sorted;
use crate::finish::{UnderWay, finish, sort};
use crate::format::trie_kind::TrieKind;
use crate::given_back::speaks_as_its_reason;
use crate::handles::Holder;
use crate::handles::{Counted, Kind};
use crate::iter::Iter;
use crate::namespace::Namespace;
use crate::observe::FINISH;
use crate::read::past;
use crate::reading::Reading;
use crate::roots::{Roots, TrieRoot};
use crate::state::commits::Tip;
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

/// A namespace that may be asked for.
type Asked<D, R> = OnceLock<Box<Reading<D, R>>>;

/// A session on one fixed state. Reads take `&self` and may come from any number of threads.
///
/// Its own methods read namespace 0; [`Session::namespace`] gives any of the state's. A session sees the
/// namespaces of its state for as long as it lives: none that was added after it began, and those that were
/// dropped since.
///
/// A session that outlives the close of its database goes on reading, and keeps the folder locked for
/// that; what it finishes cannot be committed ([`Error::Closed`](crate::Error::Closed)).
pub struct Session<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    engine: Arc<Engine<H, D, R>>,
    /// The state that it reads; the number is that of the commit below overlays.
    says: Tip,
    /// Namespace 0, whose view has the pin of all.
    first: Reading<D, R>,
    /// Those after it, in the order of the roots, each from when it is first asked for.
    others: Box<[Asked<D, R>]>,
    parent: Option<Overlay<H, D, R>>,
    witness: bool,
    /// The last field, so that it goes last.
    counted: Counted,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Session<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("base", &self.number())
            .field("roots", &self.says.roots)
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Session<H, D, R> {
    /// A session on a view of this state.
    pub(crate) fn new(
        engine: &Arc<Engine<H, D, R>>,
        (view, says): (View, Tip),
        options: SessionOptions<H, D, R>,
        holder: Holder,
    ) -> Self {
        tracing::trace!(commit = view.base, ?holder, "a session begins");
        view.held_by(holder, options.label);
        let first = TrieRoot { kind: TrieKind::Merkle, node: says.roots.first() };
        let others = says.roots.all().skip(1).map(|_| OnceLock::new()).collect();
        Self {
            engine: Arc::clone(engine),
            first: Reading::new(Arc::clone(&engine.state), view, first),
            others,
            says,
            parent: options.over,
            witness: options.witness,
            counted: engine.count(Kind::Session),
        }
    }

    /// The database.
    pub(crate) fn engine(&self) -> &Engine<H, D, R> {
        &self.engine
    }

    /// Root of namespace 0 in the state that this session reads.
    pub fn root(&self) -> Node {
        self.first.root().node
    }

    /// Roots of all namespaces of the state that this session reads.
    pub fn roots(&self) -> &Roots {
        &self.says.roots
    }

    /// The application's blob of the state that this session reads; empty when none was ever set.
    pub fn blob(&self) -> &[u8] {
        &self.says.blob
    }

    /// Number of the commit that this session reads, under overlays where it reads one.
    pub fn number(&self) -> u64 {
        self.first.view().base
    }

    /// A namespace of the state that this session reads. It is cheap to ask for, and can be asked for again.
    ///
    /// # Errors
    /// [`Namespace`](crate::Error::Namespace): the state has none of this number.
    pub fn namespace(&self, namespace: u8) -> Result<Namespace<'_, H, D, R>> {
        Ok(Namespace::new(&self.engine, self.reading(namespace)?))
    }

    pub(crate) fn reading(&self, namespace: u8) -> Result<&Reading<D, R>> {
        if namespace == 0 {
            return Ok(&self.first);
        }
        let missing = Error::Namespace(namespace);
        let Some((at, root)) = self.says.roots.find(namespace) else { return Err(missing) };
        self.engine.state.home.check()?;
        let other = &self.others[at - 1];
        if let Some(reading) = other.get() {
            return Ok(reading);
        }
        let state = self.engine.trie(namespace);
        // Its trie is there as long as the state can be read. Then another one may have the number.
        self.first.with::<H, _>(View::check)?;
        let state = state?;
        let reading = || Box::new(Reading::new(state, self.first.view().of(namespace), root));
        Ok(other.get_or_init(reading))
    }

    /// A second session on the same state, whatever has been committed since.
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld): this one cannot read any more, either.
    pub fn fork(&self) -> Result<Self> {
        self.engine.state.home.check()?;
        let view = self.engine.state.commits.view_like(self.first.view());
        past::with::<H, D, R, _>(&self.engine.state, &view, View::check)?;
        let options =
            SessionOptions { witness: self.witness, over: self.parent.clone(), label: None };
        Ok(Self::new(&self.engine, (view, self.says.clone()), options, Holder::Session))
    }

    /// The value of a key in namespace 0; `None` when it has none. A key whose page is not cached costs
    /// one read of 4 KiB, on the calling thread; a long value is read on top of that.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) and [`Corrupt`](crate::Error::Corrupt), of the page that the key is in;
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld) when later commits have replaced more than undo may
    /// take.
    pub fn read(&self, key: &Key) -> Result<Option<Value>> {
        self.first.read(&self.engine, key)
    }

    /// The values of many keys in namespace 0: one for each key, in their order. Pages that are not
    /// cached are read together, as many at once as the options allow.
    ///
    /// # Errors
    /// As [`Self::read`]; the values that could be read are lost with it.
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.first.read_many(&self.engine, keys)
    }

    /// Starts to bring in the values and pages of these keys, with the trie above them, and returns at
    /// once. Call it as soon as keys are known, with many of them together: a call costs about a microsecond,
    /// whatever the number of keys. Nothing fails here: what could not be prefetched is read when it is needed. Beyond
    /// 2^18 keys that wait in all sessions together, keys are left out. Pages go on to be read after the session has been
    /// finished: announce the next block's keys, too, before you finish this one.
    pub fn prefetch(&self, keys: &[Key]) {
        self.first.prefetch(&self.engine, keys);
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
        Iter::new(self.first.scan(&self.engine, &range))
    }

    /// Proves what the state says of a key, present or absent: a path proof, which
    /// [`proof::path::verify`](pleach_core::proof::path::verify) checks against [`Self::root`]. The session
    /// goes on; proofs, reads and finishes may come at the same time, from any threads.
    ///
    /// # Errors
    /// As [`Self::read`], of any page that the path needs.
    pub fn prove(&self, key: &Key) -> Result<Vec<u8>> {
        self.first.prove(&self.engine, key)
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
        self.first.prove_many(&self.engine, keys)
    }

    /// Proves all pairs of a range of keys, both ends included, and that there is no other:
    /// [`proof::range::verify`](pleach_core::proof::range::verify) checks it against [`Self::root`] and the same
    /// ends. The proof has 66 bytes for each pair, in memory, and reads the range like [`Self::iter`], but no long
    /// values.
    ///
    /// # Errors
    /// [`EmptyRange`](crate::Error::EmptyRange), and those of [`Self::prove_many`].
    pub fn prove_range(&self, range: &RangeInclusive<Key>) -> Result<Vec<u8>> {
        self.first.prove_range(&self.engine, range)
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
        self.first.prove_change(&self.engine, &to.first, range)
    }

    /// Is a namespace the same trie in this state and in another one? It is not, when it was dropped and added again between
    /// them.
    pub(crate) fn same_namespace(&self, to: &Self, namespace: u8) -> Result<()> {
        self.reading(namespace)?.same_trie(to.reading(namespace)?)
    }

    /// The keys of a namespace that differ between this state and another one, in order; all of them in memory.
    pub(crate) fn changed_keys(&self, to: &Self, namespace: u8) -> Result<Vec<Key>> {
        self.reading(namespace)?.changed_keys(&self.engine, to.reading(namespace)?)
    }

    /// Proves which root a namespace has in this state, or that there is none (a plain one has none), in the one root over all
    /// ([`Roots::over_all`]): a path proof of [`proof::roots::key`](pleach_core::proof::roots::key), at most 354
    /// bytes. Put together with a proof in the namespace
    /// ([`proof::through`](pleach_core::proof::through)) it proves what that says, to whoever keeps the root
    /// over all alone.
    pub fn prove_namespace(&self, namespace: u8) -> Vec<u8> {
        self.says.roots.prove::<H>(namespace)
    }

    /// Finishes a batch: its accesses in any order and of any namespaces of the state, each key of a namespace
    /// once. The engine itself finds out which values the accesses saw. Nothing is written.
    ///
    /// # Errors
    /// [`RepeatedKey`](crate::Error::RepeatedKey), [`ValueTooLarge`](crate::Error::ValueTooLarge),
    /// [`Namespace`](crate::Error::Namespace) for an access in a namespace that the state does not have, and
    /// those of reading. The session and the accesses come back with the error.
    pub fn finish(self, accesses: Vec<Access>) -> Result<Block<H, D, R>, FinishError<H, D, R>> {
        if let Err(forked) = self.engine.state.home.check() {
            return Err(FinishError::new(self, accesses, forked.into()));
        }
        let finisher = &self.engine.finisher;
        if let Some(parent) = &self.parent {
            parent.advance_treelets();
        }
        let mut sorter = finisher.take_sorter();
        let sorted = sort::<H, _, _>(&self.engine.state, &mut sorter, &accesses);
        let finished = sorted.and_then(|sorted| self.finish_sorted(&sorted));
        finisher.give_sorter_back(sorter);
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => return Err(FinishError::new(self, accesses, error)),
        };
        Ok(Block::new(
            self.engine,
            (self.first.into_view(), self.says),
            self.parent,
            finished,
            self.counted.into_kind(Kind::Block),
        ))
    }

    /// One finish for each namespace, on the same workers.
    fn finish_sorted(&self, sorted: &Sorted<'_>) -> Result<FinishedBatch> {
        // All of them exist, before the first is folded.
        for (namespace, _) in sorted.namespaces() {
            self.reading(namespace)?;
        }
        let _observed = self.engine.state.timings.observe(FINISH);
        let finisher = &self.engine.finisher;
        // Before anything is gathered: what changes from here on is seen by the commit.
        let layouts = self.engine.state.commits.sequencer().lock().layouts;
        let accesses = sorted.namespaces().map(|(_, accesses)| accesses.len()).sum();
        let _span = tracing::debug_span!("finish", commit = self.number(), accesses).entered();
        let under_way = UnderWay::new(&self.engine.state, accesses);
        let count = sorted.namespaces().len();
        let mut roots = Vec::with_capacity(count);
        let mut outcomes: Vec<TrieOutcome> = Vec::with_capacity(count);
        let mut witnesses = Vec::new();
        for (namespace, accesses) in sorted.namespaces() {
            let reading = self.reading(namespace)?;
            let (db, before) = (reading.state(), reading.root());
            let finished = reading.with::<H, _>(|view| {
                finish(db, finisher, &under_way, (view, &before.node), accesses, self.witness)
            });
            match finished {
                Ok(Finished { root: node, chunks, witness }) => {
                    roots.push((namespace, Some(TrieRoot { node, ..*before })));
                    outcomes.push(TrieOutcome { namespace, chunks });
                    witnesses.extend(witness.map(|witness| (namespace, witness)));
                }
                Err(error) => {
                    let done = outcomes.into_iter().flat_map(|outcome| outcome.chunks);
                    finisher.give_outcomes_back(done);
                    return Err(error);
                }
            }
        }
        Ok(FinishedBatch { roots: self.says.roots.with(roots), layouts, outcomes, witnesses })
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
