//! What a session reads of one namespace: reads, prefetches, iterations and proofs.
//!
//! Owned by a session, which has one for namespace 0 and makes others when they are asked for; all of
//! them stand on its one pin. Any number of threads may use one.

use std::ops::{RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pleach_beatree::Value;
use pleach_core::{Hasher, Key, Node};
use pleach_io::{Device, Runtime};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::{Claim, prove};
use crate::format::trie_kind::TrieKind;
use crate::metrics::Counters;
use crate::prefetch::lookup;
use crate::prefetch::requests::PrefetchRequests;
use crate::prefetch::values::{LookedUp, SlotPair};
use crate::prove::{differing, prove_change, prove_range};
use crate::read::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use crate::read::many::{self, For};
use crate::read::past;
use crate::read::point;
use crate::read::scan::Scan;
use crate::roots::TrieRoot;
use crate::state::State;
use crate::state::view::View;

/// So many keys are looked up at once in a replica, and in so many parts two states are compared.
const REPLICA_KEYS: usize = 256;

/// A namespace of a session's state.
pub(crate) struct Reading<D: Device, R: Runtime> {
    state: Arc<State<D, R>>,
    view: View,
    root: TrieRoot,
    /// Has anything been prefetched?
    prefetches: AtomicBool,
    /// What readers can still look up of it.
    requests: Mutex<PrefetchRequests>,
}

impl<D: Device, R: Runtime> Reading<D, R> {
    /// A view of a trie, whose root there is `root`.
    pub(crate) fn new(state: Arc<State<D, R>>, view: View, root: TrieRoot) -> Self {
        debug_assert_eq!(state.namespace, view.namespace, "one namespace");
        let (prefetches, requests) = (AtomicBool::new(false), Mutex::default());
        Self { state, view, root, prefetches, requests }
    }

    pub(crate) fn state(&self) -> &Arc<State<D, R>> {
        &self.state
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn into_view(self) -> View {
        self.view
    }

    pub(crate) fn root(&self) -> &TrieRoot {
        &self.root
    }

    pub(crate) fn read<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        key: &Key,
    ) -> Result<Option<Value>> {
        if self.has_prefetched()
            && let Some(found) = self.looked_up(engine, key)
        {
            return Ok(found.value().map(Value::from));
        }
        self.with::<H, _>(|view| point::value::<H, D, R>(&self.state, view, key))
    }

    /// Is there anything that was prefetched, in this process?
    fn has_prefetched(&self) -> bool {
        self.prefetches.load(Ordering::Relaxed) && self.state.home.is_here()
    }

    /// Does something with the view, all undo that it needs at hand.
    #[inline]
    pub(crate) fn with<H: Hasher, T>(&self, what: impl FnMut(&View) -> Result<T>) -> Result<T> {
        past::with::<H, D, R, T>(&self.state, &self.view, what)
    }

    /// The prefetched value of a key. Where that is late, a key batch is looked up here, which costs less
    /// than its keys one by one.
    fn looked_up<H: Hasher>(&self, engine: &Engine<H, D, R>, key: &Key) -> Option<LookedUp> {
        if self.view.overlaid(key).is_some() {
            return None;
        }
        let (db, prefetching) = (&self.state, &engine.prefetching);
        let get = || prefetching.values().get(self.view.namespace, self.view.base, key);
        let found = get().or_else(|| {
            let request = self.requests.lock().first()?;
            let _guard = db.store.enter();
            if lookup::help(db, prefetching, &request) { get() } else { None }
        })?;
        // A dropped trie that was looked up may have been given up by then.
        self.view.check().ok()?;
        Counters::add(&db.counters.value_cache_hits, 1);
        Some(found)
    }

    pub(crate) fn read_many<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        keys: &[Key],
    ) -> Result<Vec<Option<Value>>> {
        if !self.has_prefetched() {
            return self.look_up_many(engine, keys);
        }
        let mut values = vec![None; keys.len()];
        let mut missing = Vec::new();
        for (from, batch) in (0..).step_by(KEY_BATCH).zip(keys.chunks(KEY_BATCH)) {
            self.looked_up_before(engine, batch, |at, found| match found {
                Some(found) => values[from + at] = found.value().map(Value::from),
                None => missing.push(from + at),
            });
        }
        Counters::add(&self.state.counters.value_cache_hits, (keys.len() - missing.len()) as u64);
        // What is late is looked up together here, rather than waited for.
        let late: Vec<Key> = missing.iter().map(|at| keys[*at]).collect();
        for (at, value) in missing.into_iter().zip(self.look_up_many(engine, &late)?) {
            values[at] = value;
        }
        Ok(values)
    }

    /// Gives what was prefetched of up to [`KEY_BATCH`] keys, each with its index. Their waits for memory overlap.
    fn looked_up_before<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        keys: &[Key],
        mut give: impl FnMut(usize, Option<LookedUp>),
    ) {
        let (prefetched, view) = (engine.prefetching.values(), &self.view);
        let mut pairs = [SlotPair::default(); KEY_BATCH];
        for (key, pair) in keys.iter().zip(&mut pairs) {
            *pair = prefetched.pair(view.namespace, key);
            prefetched.cpu_prefetch(*pair);
        }
        for (at, (key, pair)) in keys.iter().zip(pairs).enumerate() {
            let found = || prefetched.get_in(pair, (view.namespace, view.base), key);
            let found = if view.overlaid(key).is_some() { None } else { found() };
            give(at, found.filter(|_| view.check().is_ok()));
        }
    }

    /// The values of many keys that were not prefetched.
    fn look_up_many<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        keys: &[Key],
    ) -> Result<Vec<Option<Value>>> {
        let most = if self.state.replica.is_some() { REPLICA_KEYS } else { keys.len().max(1) };
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(most) {
            values.extend(self.with::<H, _>(|view| self.try_many(engine, view, keys))?);
        }
        Ok(values)
    }

    fn try_many<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        view: &View,
        keys: &[Key],
    ) -> Result<Vec<Option<Value>>> {
        let db = &self.state;
        // One key is not worth a ring.
        if let [] | [_] = keys {
            let read = |key| point::value::<H, D, R>(db, view, key);
            return keys.iter().map(read).collect();
        }
        many::bring(db, &engine.readers, For::Values(view), keys)?;
        let mut values = Vec::with_capacity(keys.len());
        for batch in keys.chunks(KEY_BATCH) {
            {
                let _guard = db.store.enter();
                cpu_prefetch(db, batch.iter(), Reach::Cell);
            }
            for key in batch {
                values.push(point::value::<H, D, R>(db, view, key)?);
            }
        }
        Ok(values)
    }

    pub(crate) fn prefetch<H: Hasher>(&self, engine: &Engine<H, D, R>, keys: &[Key]) {
        // It looks up beside those who read, and would not wait while a replica catches up.
        if self.state.replica.is_some() || !self.state.home.is_here() {
            return;
        }
        if let Some(request) = engine.prefetching.request(&self.state, self.view.base, keys) {
            self.requests.lock().push(request);
            self.prefetches.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn scan<'a, H: Hasher>(
        &'a self,
        engine: &'a Engine<H, D, R>,
        range: &impl RangeBounds<Key>,
    ) -> Scan<'a, D, R> {
        Scan::new(&self.state, &self.view, &engine.scanners, range)
    }

    pub(crate) fn prove<H: Hasher>(&self, engine: &Engine<H, D, R>, key: &Key) -> Result<Vec<u8>> {
        self.proof(engine, Claim::Key(key))
    }

    pub(crate) fn prove_many<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        keys: &[Key],
    ) -> Result<Vec<u8>> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        self.proof(engine, Claim::Keys(&keys))
    }

    fn proof<H: Hasher>(&self, engine: &Engine<H, D, R>, claim: Claim<'_>) -> Result<Vec<u8>> {
        let Engine { finisher, readers, .. } = engine;
        let root = self.proven()?;
        self.with::<H, _>(|view| prove(&self.state, (finisher, readers), (view, root), claim))
    }

    pub(crate) fn prove_range<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        range: &RangeInclusive<Key>,
    ) -> Result<Vec<u8>> {
        let root = self.proven()?;
        self.with::<H, _>(|view| prove_range(engine, &self.state, (view, root), range))
    }

    /// Proves what changed from this state to another one of the same trie.
    pub(crate) fn prove_change<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        to: &Self,
        range: &RangeInclusive<Key>,
    ) -> Result<Vec<u8>> {
        self.same_trie(to)?;
        let (before, after) = (self.proven()?, to.proven()?);
        self.with::<H, _>(|from| {
            let prove =
                |to: &View| prove_change(engine, &self.state, (from, before), (to, after), range);
            to.with::<H, _>(prove)
        })
    }

    /// The keys that differ between this state and another one of the same trie, in order.
    pub(crate) fn changed_keys<H: Hasher>(
        &self,
        engine: &Engine<H, D, R>,
        to: &Self,
    ) -> Result<Vec<Key>> {
        // In a replica part by part: pages move while they are read, and then all of it is read again.
        let parts = if self.state.replica.is_some() { REPLICA_KEYS } else { 1 };
        let step = 256 / parts;
        let mut keys = Vec::new();
        for part in 0..parts {
            let (mut first, mut last): (Key, Key) = ([0; 32], [0xff; 32]);
            first[0] = u8::try_from(part * step).expect("a byte");
            last[0] = u8::try_from(part * step + step - 1).expect("a byte");
            keys.extend(self.with::<H, _>(|from| {
                to.with::<H, _>(|to| differing(engine, &self.state, from, to, (first, last)))
            })?);
        }
        Ok(keys)
    }

    /// Is another state one of the same trie?
    pub(crate) fn same_trie(&self, to: &Self) -> Result<()> {
        let is_same = Arc::ptr_eq(&self.state.index, &to.state.index);
        if is_same { Ok(()) } else { Err(Error::ForeignSession) }
    }

    /// The root that proofs lead to; a plain namespace has none.
    fn proven(&self) -> Result<&Node> {
        match self.root.kind {
            TrieKind::Merkle => Ok(&self.root.node),
            TrieKind::Plain => Err(Error::Plain(self.view.namespace)),
        }
    }
}
