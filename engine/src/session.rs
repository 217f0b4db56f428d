//! Sessions: reading a state, prefetching, and finishing a batch over it. [`crate::namespace`] has the reads of each
//! namespace.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use pleach_core::proof::KeyProof;
use pleach_core::range::with_prefix;
use pleach_core::{Hasher, Key, Node};
use pleach_journal::format::trie_kind::TrieKind;

use crate::access::{Access, AccessKind};
use crate::commit::block::Block;
use crate::commit::overlay::Overlay;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::error_forwarding::forward_error;
use crate::finish::outcome::{FinishedBatch, FinishedTrie, TrieOutcome};
use crate::finish::sort::SortedAccesses;
use crate::finish::{BatchReservation, finish, sort};
use crate::handles::{CountedHandle, HandleKind, Holder};
use crate::namespace::Namespace;
use crate::observe::FINISH;
use crate::roots::{Roots, TrieRoot};
use crate::state::commits::CommitState;
use crate::state::view::View;

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    pub(crate) witness: bool,
    pub(crate) over: Option<Overlay>,
    label: Option<Arc<str>>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { witness: true, over: None, label: None }
    }
}

impl SessionOptions {
    /// Options of a session on the newest commit, with a witness.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the finish builds a witness.
    #[must_use]
    pub fn witness(mut self, witness: bool) -> Self {
        self.witness = witness;
        self
    }

    /// The session reads an overlay rather than the newest commit.
    #[must_use]
    pub fn over(mut self, overlay: &Overlay) -> Self {
        self.over = Some(overlay.clone());
        self
    }

    /// A name for the session, and for the blocks and overlays that are made from it, in [`crate::Db::pins`].
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }
}

/// A namespace that is made when it is first asked for.
type LazyNamespace = OnceLock<Namespace>;

/// A session on one fixed state. Reads take `&self` and may come from any number of threads.
///
/// A session dereferences to namespace 0, as a [`Namespace`]; [`Session::namespace`] gives any namespace of its state.
/// As long as it lives it has exactly the namespaces of its state: none that was added later, and those that were
/// dropped since.
///
/// A session that outlives the close of its database goes on reading, and keeps the folder locked for that; what it
/// finishes cannot be committed ([`Error::Closed`](crate::Error::Closed)).
pub struct Session {
    engine: Arc<Engine>,
    /// The state that the session reads; under overlays the number is that of the commit below them.
    tip: CommitState,
    /// Namespace 0, whose view pins the state for all namespaces.
    first: Namespace,
    /// The other namespaces, in the order of the roots, each made when it is first asked for.
    others: Box<[LazyNamespace]>,
    parent: Option<Overlay>,
    witness: bool,
    /// The last field, so that it is dropped last.
    counted: CountedHandle,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("base", &self.commit_number())
            .field("roots", &self.tip.roots)
            .finish_non_exhaustive()
    }
}

impl Deref for Session {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.first
    }
}

impl Session {
    /// A session on a view of this state.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        view: View,
        tip: CommitState,
        options: SessionOptions,
        holder: Holder,
    ) -> Self {
        tracing::trace!(commit = view.base, ?holder, "a session begins");
        view.set_holder(holder, options.label);
        let first = TrieRoot { kind: TrieKind::Merkle, node: tip.roots.first() };
        let others = tip.roots.all().skip(1).map(|_| OnceLock::new()).collect();
        Self {
            engine: Arc::clone(engine),
            first: Namespace::new(engine, Arc::clone(&engine.db), view, first),
            others,
            tip,
            parent: options.over,
            witness: options.witness,
            counted: engine.count_handle(HandleKind::Session),
        }
    }

    /// The database.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Root of namespace 0 in the state that this session reads.
    pub fn root(&self) -> Node {
        self.first.trie_root().node
    }

    /// Roots of all namespaces of the state that this session reads.
    pub fn roots(&self) -> &Roots {
        &self.tip.roots
    }

    /// The application's blob of the state that this session reads; empty when none was ever set.
    pub fn blob(&self) -> &[u8] {
        &self.tip.blob
    }

    /// The hash function of the database.
    pub fn hasher(&self) -> Hasher {
        self.engine.db.hasher
    }

    /// Number of the commit that this session reads; under overlays, of the commit below them.
    pub fn commit_number(&self) -> u64 {
        self.first.view().base
    }

    /// A namespace of the state that this session reads. The call is cheap and can be repeated.
    ///
    /// # Errors
    /// [`Namespace`](crate::Error::Namespace): the state has none of this number.
    pub fn namespace(&self, namespace: u8) -> Result<&Namespace> {
        if namespace == 0 {
            return Ok(&self.first);
        }
        let missing = Error::Namespace(namespace);
        let Some((at, root)) = self.tip.roots.find(namespace) else { return Err(missing) };
        self.engine.db.home.check_current()?;
        let other = &self.others[at - 1];
        if let Some(reading) = other.get() {
            return Ok(reading);
        }
        let state = self.engine.trie(namespace);
        // The trie exists as long as the state can be read. Later another one may have the number.
        self.first.run_read(|| self.first.view().check_readable())?;
        let state = state?;
        let reading = || {
            Namespace::new(&self.engine, state, self.first.view().for_namespace(namespace), root)
        };
        Ok(other.get_or_init(reading))
    }

    /// A second session on the same state, whatever has been committed since.
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld): this session cannot read any more, either.
    pub fn fork(&self) -> Result<Self> {
        self.engine.db.home.check_current()?;
        let view = self.engine.db.commits.clone_view(self.first.view());
        self.engine.db.run_read(view.base, || view.check_readable())?;
        let options =
            SessionOptions { witness: self.witness, over: self.parent.clone(), label: None };
        Ok(Self::new(&self.engine, view, self.tip.clone(), options, Holder::Session))
    }

    /// The number that the database was created with ([`Db::id`](crate::Db::id)).
    #[doc(hidden)]
    pub fn database(&self) -> u64 {
        self.engine.db.store.database
    }

    /// Proves which root a namespace has in this state, or that there is none (a plain one has none), in the one root
    /// over all ([`Roots::over_all`]): a path proof of [`proof::roots::namespace_key`](pleach_core::proof::roots::namespace_key), at most
    /// 354 bytes. Together with a proof in the namespace ([`proof::namespace`](pleach_core::proof::namespace)) it is a
    /// proof against the root over all.
    pub fn prove_namespace(&self, namespace: u8) -> KeyProof {
        self.tip.roots.prove(self.hasher(), namespace)
    }

    /// Finishes a batch: its accesses in any order and of any namespaces of the state, each key of a namespace once.
    /// The engine itself looks up the values before. Nothing is written.
    ///
    /// Blocks while it reads the pages that are not in memory, and hashes: all workers take part.
    ///
    /// # Errors
    /// [`RepeatedKey`](crate::Error::RepeatedKey), [`ValueTooLarge`](crate::Error::ValueTooLarge),
    /// [`Namespace`](crate::Error::Namespace) for an access in a namespace that the state does not have, and errors of
    /// reading. The session and the accesses come back with the error.
    pub fn finish(self, accesses: impl IntoIterator<Item = Access>) -> Result<Block, FinishError> {
        self.finish_list(accesses.into_iter().collect())
    }

    fn finish_list(self, accesses: Vec<Access>) -> Result<Block, FinishError> {
        if let Err(forked) = self.engine.db.home.check_current() {
            return Err(FinishError::new(self, accesses, forked.into()));
        }
        let finisher = &self.engine.finisher;
        if let Some(parent) = &self.parent {
            parent.advance_treelets();
        }
        let mut sorter = finisher.sorters.take().unwrap_or_default();
        let finished = self.expand(&accesses).and_then(|expanded| {
            let accesses = expanded.as_ref().unwrap_or(&accesses);
            self.finish_sorted(&sort(&self.engine.db, &mut sorter, accesses)?)
        });
        finisher.sorters.put_back(sorter);
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => return Err(FinishError::new(self, accesses, error)),
        };
        Ok(Block::new(
            self.engine,
            self.first.into_view(),
            self.tip,
            self.parent,
            finished,
            self.counted.into_kind(HandleKind::Block),
        ))
    }

    /// The accesses with each delete of a prefix expanded to deletes of keys; `None` where there is none.
    fn expand(&self, accesses: &[Access]) -> Result<Option<Vec<Access>>> {
        let is_prefix = |access: &Access| matches!(access.kind, AccessKind::DeletePrefix(_));
        if !accesses.iter().any(is_prefix) {
            return Ok(None);
        }
        let (prefixes, mut all): (Vec<Access>, Vec<Access>) =
            accesses.iter().cloned().partition(is_prefix);
        let own = all.iter().enumerate().map(|(at, one)| ((one.namespace, one.key), at));
        let mut known: HashMap<(u8, Key), usize> = own.collect();
        for Access { namespace, key, kind } in prefixes {
            let AccessKind::DeletePrefix(bytes) = kind else { continue };
            let prefix = &key[..usize::from(bytes).min(32)];
            for pair in self.namespace(namespace)?.iter(with_prefix(prefix)) {
                let (key, _) = pair?;
                let at = *known.entry((namespace, key)).or_insert(all.len());
                match all.get_mut(at).map(|access| &mut access.kind) {
                    None => all.push(Access::write(key, None).in_namespace(namespace)),
                    Some(kind @ AccessKind::Read) => *kind = AccessKind::ReadWrite(None),
                    // The batch writes the key, after the delete.
                    Some(_) => {}
                }
            }
        }
        Ok(Some(all))
    }

    /// Finishes each namespace, on the same workers.
    fn finish_sorted(&self, sorted: &SortedAccesses<'_>) -> Result<FinishedBatch> {
        // Checked for all of them before the first is folded.
        for (namespace, _) in sorted.namespaces() {
            self.namespace(namespace)?;
        }
        let _observed = self.engine.db.timings.begin_operation(FINISH);
        let finisher = &self.engine.finisher;
        // Read before anything is gathered: the commit notices any later change.
        let layouts = self.engine.db.commits.sequencer.lock().layouts;
        let accesses = sorted.namespaces().map(|(_, accesses)| accesses.len()).sum();
        let _span =
            tracing::debug_span!("finish", commit = self.commit_number(), accesses).entered();
        let reservation = BatchReservation::new(&self.engine.db, accesses);
        let count = sorted.namespaces().len();
        let mut roots = Vec::with_capacity(count);
        let mut outcomes: Vec<TrieOutcome> = Vec::with_capacity(count);
        let mut witnesses = Vec::new();
        for (namespace, accesses) in sorted.namespaces() {
            let reading = self.namespace(namespace)?;
            let (db, before) = (reading.db(), reading.trie_root());
            let finished = reading.run_read(|| {
                let state = (reading.view(), &before.node);
                finish(db, finisher, &reservation, state, accesses, self.witness)
            });
            match finished {
                Ok(FinishedTrie { root: node, chunks, witness }) => {
                    roots.push((namespace, Some(TrieRoot { node, ..*before })));
                    outcomes.push(TrieOutcome { namespace, chunks });
                    witnesses.extend(witness.map(|witness| (namespace, witness)));
                }
                Err(error) => {
                    let done = outcomes.into_iter().flat_map(|outcome| outcome.chunks);
                    finisher.recycle_outcomes(done);
                    return Err(error);
                }
            }
        }
        Ok(FinishedBatch { roots: self.tip.roots.with(roots), layouts, outcomes, witnesses })
    }
}

/// A finish that gave no block: the reason, the session as it was before, and the accesses.
///
/// The session reads the same state as before, with its prefetched values, and can read, prefetch and finish again. As
/// long as the error lives, so does the session, which keeps its state's undo in memory.
pub struct FinishError(Box<FailedFinish>);

/// Boxed, so that a result is as small as its good case.
struct FailedFinish {
    session: Session,
    accesses: Vec<Access>,
    error: Error,
}

impl FinishError {
    pub(crate) fn new(session: Session, accesses: Vec<Access>, error: Error) -> Self {
        Self(Box::new(FailedFinish { session, accesses, error }))
    }

    /// The reason why there is no block.
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// The session.
    pub fn session(&self) -> &Session {
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

    /// Session, accesses and reason.
    pub fn into_parts(self) -> (Session, Vec<Access>, Error) {
        let FailedFinish { session, accesses, error } = *self.0;
        (session, accesses, error)
    }
}

forward_error!(FinishError);
