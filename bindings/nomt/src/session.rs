//! Sessions, finished sessions, and overlays.

use std::marker::PhantomData;
use std::sync::{Arc, atomic::Ordering};
use std::time::Instant;

use anyhow::Result;
use pleach::{Access, SessionOptions};
use pleach_core::proof::{path, witness::DecodedWitness};

use crate::database::{Nomt, Shared, with_source};
use crate::{
    HashAlgorithm, KeyReadWrite, Root, Value, Witness, proof::PathProof, proofs, trie::KeyPath,
};

/// Whether a session makes a witness.
pub struct WitnessMode(bool);

impl WitnessMode {
    /// A witness of all reads and writes.
    pub fn read_write() -> Self {
        Self(true)
    }

    /// No witness.
    pub fn disabled() -> Self {
        Self(false)
    }
}

/// Why overlays are no chain that a session can stand on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InvalidAncestors {
    /// One of them is not the parent of the one before it.
    NotAncestor,
    /// The last overlay's parent is missing and not committed. A dropped parent never will be.
    Incomplete,
}

/// Parameters of a session.
#[derive(Default)]
pub struct SessionParams {
    witness: bool,
    over: Option<pleach::Overlay>,
}

impl SessionParams {
    /// Whether the session makes a witness (default: no).
    #[must_use]
    pub fn witness_mode(self, WitnessMode(witness): WitnessMode) -> Self {
        Self { witness, ..self }
    }

    /// The overlays that the session stands on, newest first: all that are not committed. Without any it reads the
    /// newest commit.
    ///
    /// # Errors
    /// [`InvalidAncestors`], when each is not the parent of the one before it, or one is missing.
    pub fn overlay<'a>(
        self,
        ancestors: impl IntoIterator<Item = &'a Overlay>,
    ) -> Result<Self, InvalidAncestors> {
        let mut ancestors = ancestors.into_iter().map(|overlay| &overlay.overlay);
        let over = ancestors.next().cloned();
        let mut below = over.as_ref().and_then(pleach::Overlay::parent);
        for ancestor in ancestors {
            if !below.is_some_and(|below| below.is(ancestor)) {
                return Err(InvalidAncestors::NotAncestor);
            }
            below = ancestor.parent();
        }
        if below.is_some_and(|below| !below.is_committed()) {
            return Err(InvalidAncestors::Incomplete);
        }
        Ok(Self { over, ..self })
    }
}

impl<T: HashAlgorithm> Nomt<T> {
    /// Begins a session. It waits for no commit.
    ///
    /// # Panics
    /// Over overlays of another open database, and in a process that was forked since the open.
    pub fn begin_session(&self, SessionParams { witness, over }: SessionParams) -> Session<T> {
        let options = SessionOptions::new().witness(witness);
        let options = over.iter().fold(options, SessionOptions::over);
        let begun = self.db.session(options);
        let reading = begun.unwrap_or_else(|error| panic!("the session cannot begin: {error}"));
        Session { reading, over, shared: Arc::clone(&self.shared), hasher: PhantomData }
    }
}

/// A session on one state, which stays readable during commits. Unlike in the crate `nomt` it keeps no commit waiting.
pub struct Session<T> {
    reading: pleach::Session,
    over: Option<pleach::Overlay>,
    shared: Arc<Shared>,
    hasher: PhantomData<T>,
}

impl<T> Session<T> {
    /// Begins to read the value and the pages of a key, and returns at once.
    pub fn warm_up(&self, path: KeyPath) {
        self.reading.prefetch(&[path]);
    }

    /// The value of a key; `None` when it has none.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(&self, path: KeyPath) -> Result<Option<Value>> {
        let began = self.shared.times_reads.then(Instant::now);
        let value = self.reading.read(&path).map_err(with_source)?;
        if let Some(nanos) = began.and_then(|began| began.elapsed().as_nanos().try_into().ok()) {
            let [count, sum] = &self.shared.reads;
            count.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(nanos, Ordering::Relaxed);
        }
        Ok(value.map(|value| value.to_vec()))
    }

    /// The root of the session's state.
    pub fn prev_root(&self) -> Root {
        self.reading.root().to_bytes().into()
    }

    /// Has no meaning here: the engine always keeps the values that a commit replaces.
    pub fn preserve_prior_value(&self, _path: KeyPath) {}
}

impl<T: HashAlgorithm> Session<T> {
    /// Proves the value or absence of a key in the session's state.
    ///
    /// # Errors
    /// Those of reading.
    pub fn prove(&self, path: KeyPath) -> Result<PathProof> {
        let bytes = Vec::from(self.reading.prove(&path).map_err(with_source)?);
        let proof = path::PathProof::decode(self.shared.hasher, &bytes)?;
        Ok(proofs::path_to(&proof)?)
    }

    /// Computes the root of the state after these accesses, each key once, in any order. Nothing is written.
    ///
    /// # Errors
    /// A key that comes twice, a value of more than 64 MiB, and those of reading.
    pub fn finish(self, actuals: Vec<(KeyPath, KeyReadWrite)>) -> Result<FinishedSession> {
        let Self { reading, over, shared, .. } = self;
        let value = |new: Option<Value>| new.map(pleach::Value::from);
        let finished = reading.finish(actuals.into_iter().map(|(key, done)| match done {
            KeyReadWrite::Read(_) => Access::read(key),
            KeyReadWrite::Write(new) => Access::write(key, value(new)),
            KeyReadWrite::ReadThenWrite(_, new) => Access::read_write(key, value(new)),
        }));
        let block = finished.map_err(|failed| with_source(failed.into_error()))?;
        Ok(FinishedSession { block, over, shared })
    }
}

/// A finished session: a root, and the changes that lead to it.
pub struct FinishedSession {
    block: pleach::Block,
    over: Option<pleach::Overlay>,
    shared: Arc<Shared>,
}

impl FinishedSession {
    /// The root of the state after the changes.
    pub fn root(&self) -> Root {
        self.block.root().to_bytes().into()
    }

    /// The root of the state before the changes.
    pub fn prev_root(&self) -> Root {
        self.block.prev_root().to_bytes().into()
    }

    /// The witness, once, if the session was begun with one.
    ///
    /// # Panics
    /// When the engine has made an invalid witness, which is a bug.
    pub fn take_witness(&mut self) -> Option<Witness> {
        let (bytes, hasher) = (self.block.take_witness()?, self.shared.hasher);
        let witness = DecodedWitness::decode(hasher, &bytes).expect("the engine's own bytes");
        Some(proofs::witness_to(hasher, &witness).expect("it has a path for each access"))
    }

    /// Keeps the state in memory, for further sessions.
    pub fn into_overlay(self) -> Overlay {
        Overlay { overlay: self.block.into_overlay(), shared: self.shared }
    }

    /// Commits the changes. They are durable when this returns.
    ///
    /// # Errors
    /// When the newest root is not the one that it was made on, or the overlay that it was made on is not committed;
    /// when it is of another open database; when its log record takes more than 1 GiB; those of the engine, to be found
    /// by `downcast_ref::<pleach::Error>()`. Where its [`outcome`](pleach::Error::outcome) is `Unknown`, the next open
    /// shows whether the commit took place: its root is then [`Self::root`] or [`Self::prev_root`].
    pub fn commit<T: HashAlgorithm>(self, nomt: &Nomt<T>) -> Result<()> {
        self.commit_with(nomt, true).map(drop)
    }

    /// Commits the changes, unless that would have to wait for another commit, or for the background to make room: then
    /// `self` is returned. Sessions keep no commit waiting.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn try_commit_nonblocking<T: HashAlgorithm>(self, nomt: &Nomt<T>) -> Result<Option<Self>> {
        self.commit_with(nomt, false)
    }

    fn commit_with<T: HashAlgorithm>(self, nomt: &Nomt<T>, wait: bool) -> Result<Option<Self>> {
        let Self { block, over, shared } = self;
        // An equal root is enough, but overlays are not merged.
        let merges = over.as_ref().is_some_and(|below| !below.is_committed());
        let back = nomt.commit(&shared, (block, merges, wait), |block, options| {
            block.commit_with(options).map_err(|failed| Box::new(failed.into_parts()))
        })?;
        Ok(back.map(|block| Self { block, over, shared }))
    }
}

/// A finished session kept in memory.
pub struct Overlay {
    overlay: pleach::Overlay,
    shared: Arc<Shared>,
}

impl Overlay {
    /// The root of the overlay's state.
    pub fn root(&self) -> Root {
        self.overlay.root().to_bytes().into()
    }

    /// Commits the overlay. It is durable when this returns.
    ///
    /// # Errors
    /// When the newest commit is not that of the overlay that it was made on; where it was made on none, when the
    /// newest root is not the one that it was made on; when it is of another open database; those of the engine. An
    /// [`outcome`](pleach::Error::outcome) may be `Unknown`, as of [`FinishedSession::commit`].
    pub fn commit<T: HashAlgorithm>(self, nomt: &Nomt<T>) -> Result<()> {
        self.commit_with(nomt, true).map(drop)
    }

    /// Commits the overlay, unless that would have to wait, like [`FinishedSession::try_commit_nonblocking`].
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn try_commit_nonblocking<T: HashAlgorithm>(self, nomt: &Nomt<T>) -> Result<Option<Self>> {
        self.commit_with(nomt, false)
    }

    fn commit_with<T: HashAlgorithm>(self, nomt: &Nomt<T>, wait: bool) -> Result<Option<Self>> {
        let Self { overlay, shared } = self;
        let is_stacked = overlay.parent().is_some();
        let back = nomt.commit(&shared, (overlay, is_stacked, wait), |overlay, options| {
            overlay.commit_with(options).map_err(|error| Box::new((overlay, error)))
        })?;
        Ok(back.map(|overlay| Self { overlay, shared }))
    }
}
