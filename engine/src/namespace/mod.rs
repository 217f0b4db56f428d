//! A namespace of a session's state: reads, prefetches, iterations and proofs.
//!
//! A session has one for namespace 0 and makes others when they are asked for; all of them share its one pin.

mod iter;
mod prove;

use std::fmt;
use std::ops::{RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::pages::overflow;
use pleach_beatree::tree::{KEY_BATCH, LookupDepth};
use pleach_beatree::{PageRef, Value};
use pleach_core::prefix::common_len;
use pleach_core::proof::{ChangeProof, KeyProof, KeysProof, RangeProof};
use pleach_core::range::key_before;
use pleach_core::{Key, Node, Prefix};
use pleach_journal::format::trie_kind::TrieKind;

use self::prove::{differing_keys, keys_of, part_end, prove_change, prove_range};
use crate::engine::Engine;
use crate::error::{Error, Hex, Result};
use crate::finish::{ProofRequest, prove};
use crate::metrics::Counters;
use crate::prefetch::lookup;
use crate::prefetch::requests::{MissingItem, PageRequestPurpose, PrefetchRequests};
use crate::prefetch::value_cache::{PrefetchedValue, SlotPair};
use crate::read::many::{self, FetchPurpose};
use crate::read::point::{self, PointLookup};
use crate::roots::TrieRoot;
use crate::state::NamespaceDb;
use crate::state::values;
use crate::state::view::{RootedView, View};

pub use iter::Iter;

/// Pages that are read for a key which moves from one to the other meanwhile, before the thread itself reads the key.
const PAGES_OF_A_KEY: u32 = 4;
/// Keys whose pages are read together and then looked up: the pages are to stay in a small cache until then.
const KEYS_AT_ONCE: usize = 1024;
/// Keys of a part in a replica, for lookups of many keys.
const REPLICA_KEYS: usize = 256;
/// Two states are compared in 2 to the power of this many parts of a range.
const PART_BITS: u16 = 8;

/// A namespace of the state that a session reads, made by [`Session::namespace`](crate::Session::namespace); a session
/// itself is its namespace 0. Any number of threads may use one.
pub struct Namespace(Arc<NamespaceInner>);

struct NamespaceInner {
    engine: Arc<Engine>,
    db: Arc<NamespaceDb>,
    view: View,
    root: TrieRoot,
    /// True when keys have been prefetched.
    is_prefetching: AtomicBool,
    /// Prefetched keys that readers can still look up.
    requests: Mutex<PrefetchRequests>,
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("number", &self.0.view.namespace)
            .field("root", &Hex(self.0.root.node.as_ref()))
            .finish_non_exhaustive()
    }
}

impl Namespace {
    /// A namespace on a view of a trie, with the root `root` there.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        db: Arc<NamespaceDb>,
        view: View,
        root: TrieRoot,
    ) -> Self {
        assert_eq!(db.namespace, view.namespace, "one namespace");
        let (prefetches, requests) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(NamespaceInner {
            engine: Arc::clone(engine),
            db,
            view,
            root,
            is_prefetching: prefetches,
            requests,
        }))
    }

    pub(crate) fn db(&self) -> &Arc<NamespaceDb> {
        &self.0.db
    }

    pub(crate) fn view(&self) -> &View {
        &self.0.view
    }

    /// The view; a copy of it where iterators go on with this one.
    pub(crate) fn into_view(self) -> View {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => inner.view,
            Err(inner) => inner.db.commits.clone_view(&inner.view),
        }
    }

    pub(crate) fn trie_root(&self) -> &TrieRoot {
        &self.0.root
    }

    /// The namespace's number.
    pub fn number(&self) -> u8 {
        self.0.view.namespace
    }

    /// The namespace's root in the session's state; `None` of a plain one.
    pub fn root(&self) -> Option<Node> {
        self.0.root.merkle()
    }

    /// The digest of a plain namespace in the session's state; see [`Roots::digest`](crate::Roots::digest).
    pub fn digest(&self) -> Option<[u8; 32]> {
        self.0.root.digest()
    }

    /// The value of a key; `None` when it has none. A key whose page is not cached costs one read of 4 KiB, on the
    /// calling thread; a long value costs another read.
    ///
    /// Blocks for one read of the device when the page is not in memory, for two with a long value.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) and [`Corrupt`](crate::Error::Corrupt), of the key's page;
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld) when later commits have replaced more than undo may take.
    pub fn read(&self, key: &Key) -> Result<Option<Value>> {
        let NamespaceInner { db, view, .. } = &*self.0;
        if self.has_prefetched() {
            if let Some(stored) = view.overlay_value(key) {
                return values::value(db, view.base, stored, true);
            }
            if let Some(found) = self.prefetched_value(key) {
                return Ok(found.value().map(Value::from));
            }
        }
        self.run_read(|| point::value(db, view, key))
    }

    /// As [`Self::read`] without blocking the thread that polls it: for executors that run many tasks at a time. The
    /// page of a key is read through the ring of the prefetch task, up to
    /// [`Options::in_flight`](crate::Options::in_flight) pages for all waiting reads; the task reads long values
    /// itself, a mebibyte at a time, with other reads between. Nothing is requested before the first poll, and dropping the
    /// future cancels the read. Any executor may poll it.
    ///
    /// It does block where the history has to be read from the device (an old state), in a replica, when the database
    /// was closed meanwhile, and where the ring or a piece of a long value fails: then the thread reads as [`Self::read`]
    /// does.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_async(&self, key: Key) -> Result<Option<Value>> {
        let key = &key;
        let NamespaceInner { engine, db: state, view, .. } = &*self.0;
        if state.replica.is_some() {
            return self.read(key);
        }
        if self.has_prefetched()
            && view.overlay_value(key).is_none()
            && let Some(found) = self.prefetched_value(key)
        {
            return Ok(found.value().map(Value::from));
        }
        let region = Arc::clone(state.tree.load().region(key));
        if region.row().is_away() {
            // Where nobody answers, the lookup loads it.
            let load = |reader| MissingItem::Region(region, reader);
            let _ = engine.prefetch.request_missing(load).await;
        }
        let mut read: Option<(PageRef, Arc<CachedPage>)> = None;
        for _ in 0..PAGES_OF_A_KEY {
            // The key's state, or the page that has to be read.
            let found = self.run_read(|| {
                Ok(match point::look_up(state, view, key)? {
                    PointLookup::Stored(stored) => Ok(stored),
                    PointLookup::InPage(at, _guard) => match &read {
                        Some((known, page)) if *known == at => Ok(page.stored(key)),
                        _ => Err(at),
                    },
                })
            })?;
            let stored = match found {
                Ok(stored) => stored,
                Err(at) => {
                    let page = |reader| MissingItem::Page(at, PageRequestPurpose::Reader(reader));
                    let Ok(page) = engine.prefetch.request_missing(page).await else { break };
                    read = Some((at, page));
                    continue;
                }
            };
            let Some(raw) = values::unread_cell(state, &stored) else {
                return values::value(state, view.base, stored, true);
            };
            // Piece by piece, so that the task reads for others between two.
            let mut pieces = Vec::new();
            for (at, count) in overflow::pieces_of(raw) {
                let piece = |reader| MissingItem::Piece(at, count, reader);
                let Ok(Ok(piece)) = engine.prefetch.request_missing(piece).await else {
                    return self.read(key);
                };
                pieces.push(Ok(piece));
            }
            return values::value_of_pieces(state, view.base, raw, true, pieces.into_iter());
        }
        self.read(key)
    }

    /// True when keys were prefetched in this process.
    pub(crate) fn has_prefetched(&self) -> bool {
        self.0.is_prefetching.load(Ordering::Relaxed) && self.0.db.home.is_current()
    }

    /// Reads of the view, in a replica again when a page has moved: see [`Database::run_read`].
    ///
    /// [`Database::run_read`]: crate::state::Database::run_read
    #[inline]
    pub(crate) fn run_read<T>(&self, read: impl FnMut() -> Result<T>) -> Result<T> {
        self.0.db.run_read(self.0.view.base, read)
    }

    /// The prefetched value of a key that no overlay has. Where the lookup is not done yet, a key batch is looked up
    /// here, which costs less than its keys one by one.
    fn prefetched_value(&self, key: &Key) -> Option<PrefetchedValue> {
        let (db, prefetch) = (&self.0.db, &self.0.engine.prefetch);
        let get = || prefetch.values.get(self.0.view.namespace, self.0.view.base, key);
        let found = get().or_else(|| {
            let request = self.0.requests.lock().first()?;
            let _guard = db.store.grace.enter();
            if lookup::look_up_for_reader(db, prefetch, &self.0.view, &request) {
                get()
            } else {
                None
            }
        })?;
        // A dropped trie may have been reclaimed during the lookup.
        self.0.view.check_readable().ok()?;
        Counters::add(&db.counters.value_cache_hits, 1);
        Some(found)
    }

    /// The values of many keys: one for each key, in their order. Pages that are not cached are read together.
    ///
    /// Blocks until all pages are read, as many at once as [`Options::in_flight`](crate::Options::in_flight) says.
    ///
    /// # Errors
    /// As [`Self::read`]; no value is returned with an error.
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        if !self.has_prefetched() {
            return self.look_up_many(keys);
        }
        let mut values = vec![None; keys.len()];
        let mut missing = Vec::new();
        for (from, batch) in (0..).step_by(KEY_BATCH).zip(keys.chunks(KEY_BATCH)) {
            self.visit_prefetched(batch, |at, found| match found {
                Some(found) => values[from + at] = found.value().map(Value::from),
                None => missing.push(from + at),
            });
        }
        Counters::add(&self.0.db.counters.value_cache_hits, (keys.len() - missing.len()) as u64);
        // Lookups that are not done yet are done together here, rather than waited for.
        let late: Vec<Key> = missing.iter().map(|at| keys[*at]).collect();
        for (at, value) in missing.into_iter().zip(self.look_up_many(&late)?) {
            values[at] = value;
        }
        Ok(values)
    }

    /// Gives the prefetched values of up to [`KEY_BATCH`] keys, each with its index. Their waits for memory overlap.
    fn visit_prefetched(&self, keys: &[Key], mut give: impl FnMut(usize, Option<PrefetchedValue>)) {
        let (prefetched, view) = (&self.0.engine.prefetch.values, &self.0.view);
        let mut pairs = [SlotPair::default(); KEY_BATCH];
        for (key, pair) in keys.iter().zip(&mut pairs) {
            *pair = prefetched.slots_of(view.namespace, view.base, key);
            prefetched.cpu_prefetch(*pair);
        }
        for (at, (key, pair)) in keys.iter().zip(pairs).enumerate() {
            let found = || prefetched.get_in(pair, key);
            let found = if view.overlay_value(key).is_some() { None } else { found() };
            give(at, found.filter(|_| view.check_readable().is_ok()));
        }
    }

    /// The values of many keys that were not prefetched.
    fn look_up_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let most = if self.0.db.replica.is_some() { REPLICA_KEYS } else { KEYS_AT_ONCE };
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(most) {
            values.extend(self.run_read(|| self.look_up_batch(keys))?);
        }
        Ok(values)
    }

    fn look_up_batch(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let NamespaceInner { engine, db, view, .. } = &*self.0;
        // One key does not justify a ring.
        if let [] | [_] = keys {
            let read = |key| point::value(db, view, key);
            return keys.iter().map(read).collect();
        }
        many::fetch_pages(db, &engine.readers, FetchPurpose::Values(view), keys)?;
        let mut values = Vec::with_capacity(keys.len());
        for batch in keys.chunks(KEY_BATCH) {
            {
                let _guard = db.store.grace.enter();
                db.tree.cpu_prefetch(batch.iter(), LookupDepth::Cell);
            }
            for key in batch {
                values.push(point::value(db, view, key)?);
            }
        }
        Ok(values)
    }

    /// Starts to read the values and pages of these keys, with the trie above them, and returns at once. Call it as
    /// soon as keys are known, with many of them together: a call costs about a microsecond, whatever the number of
    /// keys, and nearly nothing for a few keys where all pages are in memory. The call cannot fail: what could not be prefetched is read when it is needed. Beyond 2^18 waiting keys in
    /// all sessions together, keys are ignored. While the leaf cache has no room for more prefetched pages, keys wait
    /// until a finish has used some, two seconds at most; where the block's own pages take all room, keys that are
    /// prefetched after them are ignored. Pages go on to be read after the session has been finished:
    /// prefetch the next block's keys, too, before you finish this one.
    pub fn prefetch(&self, keys: &[Key]) {
        // The prefetch task looks keys up itself, and would not wait while a replica catches up.
        if self.0.db.replica.is_some() || !self.0.db.home.is_current() {
            return;
        }
        if let Some(request) = self.0.engine.prefetch.request(&self.0.db, self.0.view.base, keys) {
            self.0.requests.lock().push(request);
            self.0.is_prefetching.store(true, Ordering::Relaxed);
        }
    }

    /// The pairs of a range of keys, in key order from the front and against it from the back
    /// ([`Iterator::rev`], or both ends at once). An empty or inverted range has none.
    ///
    /// Like reads, it sees the state of this session, whatever is committed and flushed meanwhile, and blocks nobody,
    /// however long it rests. From the second page on, pages are read ahead: first four, then more and more, up to four
    /// times the reads in flight that the options allow and a 128th of the memory budget; neighbours in the file are
    /// one read. Cached pages are read from the cache; of the others only the first 32 of a range enter it. A long
    /// value is read when its key is given. Eight iterators read ahead at the same time; more read page by page.
    ///
    /// An iterator owns its state, and may go to other threads and outlive the session. After an error it ends: see
    /// [`Iter`].
    ///
    /// ```
    /// # use pleach::{Access, Options, Db, SessionOptions, Value};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = Db::open(Options::new(folder.path()).create(true).cache_mib(64))?;
    /// # let session = db.session(SessionOptions::new())?;
    /// # let put = |id| Access::write([id; 32], Some(Value::from(&[id])));
    /// # session.finish((1..=9).map(put))?.commit()?;
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
    ///
    /// Does not block; a step blocks when its page has not been read ahead.
    pub fn iter(&self, range: impl RangeBounds<Key>) -> Iter {
        Iter::new(self, &range)
    }

    /// True when the state has no pair in this namespace. Reads one pair at most.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.iter(..).next().transpose()?.is_none())
    }

    /// Proves what the state says of a key, present or absent: [`KeyProof::verify`] checks it against [`Self::root`].
    /// The session goes on; proofs, reads and finishes may come at the same time, from any threads.
    ///
    /// Blocks while it reads the pages of the path that are not in memory.
    ///
    /// # Errors
    /// As [`Self::read`], of any page that the path needs.
    pub fn prove(&self, key: &Key) -> Result<KeyProof> {
        Ok(self.proof(ProofRequest::Key(key))?.into())
    }

    /// Proves what the state says of these keys, present or absent, in any order, repeated or not: one multiproof,
    /// which [`KeysProof::verify`] checks against [`Self::root`]. Pages that are not cached are read together, as many
    /// at once as the options allow; up to 128 keys are folded on the calling thread, more by all workers.
    ///
    /// Without keys the result is the multiproof without terminals. It verifies against any root: it proves nothing of
    /// any key.
    ///
    /// Blocks as [`Self::prove`], for all keys at once.
    ///
    /// # Errors
    /// As [`Self::read`], of any page that the proof needs, and [`BatchTooLarge`](crate::Error::BatchTooLarge)
    /// when a part of the proof would have 4 GiB.
    pub fn prove_many(&self, keys: &[Key]) -> Result<KeysProof> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        Ok(self.proof(ProofRequest::Keys(&keys))?.into())
    }

    fn proof(&self, request: ProofRequest) -> Result<Vec<u8>> {
        let Engine { finisher, readers, .. } = &*self.0.engine;
        self.with_root(|state| prove(&self.0.db, finisher, readers, state, request))
    }

    /// Proves all pairs of a range of keys, and that there is no other: [`RangeProof::verify`] checks it against
    /// [`Self::root`] and the same range. The proof takes 66 bytes of memory for each pair. It reads the range like
    /// [`Self::iter`], but no long values.
    ///
    /// Blocks while it reads the range.
    ///
    /// # Errors
    /// [`EmptyRange`](crate::Error::EmptyRange), and errors of [`Self::prove_many`].
    pub fn prove_range(&self, range: impl RangeBounds<Key>) -> Result<RangeProof> {
        self.prove_keys(&keys_of(&range)?)
    }

    /// [`Self::prove_range`] of the beginning of a range, with at most so many pairs (one at least), and the proven
    /// range of keys: its end is the end of the range, or lies before the first pair that is left out. The rest of the
    /// range is for the next call.
    ///
    /// # Errors
    /// As [`Self::prove_range`].
    pub fn prove_range_part(
        &self,
        range: impl RangeBounds<Key>,
        pairs: usize,
    ) -> Result<(RangeProof, RangeInclusive<Key>)> {
        let keys = keys_of(&range)?;
        let NamespaceInner { engine, db, view, .. } = &*self.0;
        let last = self.run_read(|| part_end(engine, db, view, &keys, pairs))?;
        let keys = *keys.start()..=last;
        Ok((self.prove_keys(&keys)?, keys))
    }

    fn prove_keys(&self, keys: &RangeInclusive<Key>) -> Result<RangeProof> {
        self.with_root(|state| prove_range(&self.0.engine, &self.0.db, state, keys))
    }

    /// Proves which keys of a range differ between this state and another one, with the hashes of both values, and that
    /// no other key does: [`ChangeProof::verify`] checks it against the roots of both and the same range. The other
    /// state may be newer or older, of a commit or an overlay. The keys are found in undo and overlays: the range
    /// itself is not read.
    ///
    /// # Errors
    /// [`EmptyRange`](crate::Error::EmptyRange), [`ForeignSession`](crate::Error::ForeignSession) for a
    /// session of another open, and errors of [`Self::prove_many`].
    pub fn prove_change(&self, to: &Self, range: impl RangeBounds<Key>) -> Result<ChangeProof> {
        let keys = keys_of(&range)?;
        self.check_same_trie(to)?;
        self.with_root(|from| {
            to.with_root(|to| prove_change(&self.0.engine, &self.0.db, from, to, &keys))
        })
    }

    /// [`Self::prove_change`] of the beginning of a range, with at most so many changed keys (one at least), and the
    /// proven range of keys: its end is the end of the range, or lies before the first change that is left out. The rest
    /// of the range is for the next call.
    ///
    /// # Errors
    /// As [`Self::prove_change`].
    pub fn prove_change_part(
        &self,
        to: &Self,
        range: impl RangeBounds<Key>,
        changes: usize,
    ) -> Result<(ChangeProof, RangeInclusive<Key>)> {
        let (_, keys) = self.changed_keys(to, range, changes)?;
        Ok((self.prove_change(to, keys.clone())?, keys))
    }

    /// The keys of a range that differ between this state and another one, in order: the first ones, at most so many
    /// (one at least), and the range of keys of which these are all; its end is as in [`Self::prove_change_part`]. They
    /// are found in undo and overlays, of which up to a 256th of the range is in memory at a time.
    ///
    /// Blocks while it reads undo that is on the device.
    ///
    /// # Errors
    /// As [`Self::prove_change`]; a plain namespace has changed keys, too.
    pub fn changed_keys(
        &self,
        to: &Self,
        range: impl RangeBounds<Key>,
        most: usize,
    ) -> Result<(Vec<Key>, RangeInclusive<Key>)> {
        let range = keys_of(&range)?;
        self.check_same_trie(to)?;
        let (first, last, most) = (*range.start(), *range.end(), most.max(1));
        // In parts, so that little more than what is asked for is in memory. In a replica a part is read again when its
        // pages move.
        let whole = most == usize::MAX && self.0.db.replica.is_none();
        let bits = if whole { 0 } else { PART_BITS };
        let depth = (common_len(&first, &last) + bits).min(256);
        let (mut keys, mut part) = (Vec::new(), Some(Prefix::new(&first, depth)));
        while let Some(at) = part.filter(|at| *at.first_key() <= last) {
            let within = first.max(*at.first_key())..=last.min(at.last_key());
            let (from, to_view) = (self.view(), to.view());
            keys.extend(self.run_read(|| {
                to.run_read(|| differing_keys(&self.0.engine, &self.0.db, from, to_view, &within))
            })?);
            if let Some(end) = keys.get(most).and_then(key_before) {
                keys.truncate(most);
                return Ok((keys, first..=end));
            }
            part = at.next();
        }
        Ok((keys, range))
    }

    /// Checks that another state is one of the same trie, which it is not when the namespace was dropped and added
    /// again between them.
    #[doc(hidden)]
    pub fn check_same_trie(&self, to: &Self) -> Result<()> {
        let is_same = Arc::ptr_eq(&self.0.db.tree, &to.0.db.tree);
        if is_same { Ok(()) } else { Err(Error::ForeignSession) }
    }

    /// Calls a function with the view and its root, for proofs; an error in a plain namespace.
    fn with_root<T>(&self, mut prove: impl FnMut(RootedView<'_>) -> Result<T>) -> Result<T> {
        if self.0.root.kind == TrieKind::Plain {
            return Err(Error::Plain(self.0.view.namespace));
        }
        let state = RootedView { view: &self.0.view, root: &self.0.root.node };
        self.run_read(|| prove(state))
    }
}
