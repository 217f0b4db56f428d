//! Blocks: the result of a finish, to be committed, or kept as a state for further sessions.
//!
//! Made by a session's finish, owned by the caller.

use std::fmt;
use std::sync::Arc;

use pleach_core::{Blake3, Hasher, Node};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use super::changes::{Change, changes};
use super::overlay::{Candidate, Chunks, Overlay, Parts};
use crate::engine::Engine;
use crate::error::{Error, Hex, Result};
use crate::finish::outcome::Finished;
use crate::finish::witness::Witness;
use crate::format::commit_body::MAX_BLOB;
use crate::given_back::speaks_as_its_reason;
use crate::handles::Counted;
use crate::state::pins::Holder;
use crate::state::undo::ChangeList;
use crate::state::view::View;

/// What a session has made: a new root, and the changes that lead to it from the parent's. Nothing of it
/// is on disk.
pub struct Block<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    parts: Parts<H, D, R>,
    witness: Option<Witness>,
    /// The last field, so that it goes last.
    counted: Counted,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Block<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("base", &self.parts.view.base)
            .field("prev_root", &Hex(self.parts.prev_root.as_ref()))
            .field("root", &Hex(self.parts.root.as_ref()))
            .field("changes", &self.change_count())
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Block<H, D, R> {
    /// A block on a view whose root is `prev_root`, and on the overlay that the view is of.
    pub(crate) fn new(
        engine: Arc<Engine<H, D, R>>,
        (view, prev_root): (View, Node),
        parent: Option<Overlay<H, D, R>>,
        finished: Finished,
        counted: Counted,
    ) -> Self {
        let Finished { root, chunks, witness } = finished;
        view.held_by(Holder::Block, None);
        let chunks = Chunks::new(&engine, chunks);
        let parts = Parts { chunks, view, parent, prev_root, root, blob: None, engine };
        Self { parts, witness, counted }
    }

    /// Root of the state that this block makes.
    pub fn root(&self) -> Node {
        self.parts.root
    }

    /// Root of the state that it was made on.
    pub fn prev_root(&self) -> Node {
        self.parts.prev_root
    }

    /// The witness, once: `None` when none was asked for, or when it was taken before. Its bytes
    /// are what `pleach_core::witness::verify` takes.
    pub fn take_witness(&mut self) -> Option<Witness> {
        self.witness.take()
    }

    /// Number of keys that this block writes.
    pub fn change_count(&self) -> usize {
        self.lists().map(|list| list.len()).sum()
    }

    /// What this block writes, in key order, with the values before.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_, H, D, R>> {
        changes(&self.parts.engine.state, self.lists())
    }

    fn lists(&self) -> impl Iterator<Item = &ChangeList> {
        self.parts.chunks.list().iter().map(|chunk| &chunk.changes)
    }

    /// Gives the commit a blob, bytes that mean something to the application alone; without one it has
    /// its parent's.
    ///
    /// # Errors
    /// [`Error::BlobTooLarge`].
    pub fn set_blob(&mut self, blob: Vec<u8>) -> Result<()> {
        let limit = MAX_BLOB as usize;
        if blob.len() > limit {
            return Err(Error::BlobTooLarge { bytes: blob.len(), limit });
        }
        self.parts.blob = Some(blob);
        Ok(())
    }

    /// Commits the block, merged with the overlays below it that are not committed, and gives the
    /// commit's number. Durable when it returns, if the database's durability says so. A block whose
    /// parent is just being committed by another thread is committed after it, with the same sync where
    /// that is possible.
    ///
    /// # Errors
    /// [`Error::StaleParent`] when the newest commit has another root than the block's parent; [`Error::Full`]
    /// when the device has no room (nothing has happened, and the block can be tried again);
    /// [`Error::Poisoned`] after a failed write or sync; [`Error::Closed`] once the database was closed
    /// or dropped. The block comes back with each of them.
    pub fn commit(mut self) -> Result<u64, CommitError<H, D, R>> {
        let Parts { engine, view, parent, prev_root, root, blob, chunks } = &mut self.parts;
        let candidate = Candidate {
            engine,
            view,
            parent: parent.as_ref(),
            prev_root,
            root,
            blob: blob.as_deref(),
            layer: None,
        };
        let committed = candidate.commit(chunks.list_mut());
        committed.map(|(number, _)| number).map_err(|error| CommitError::new(self, error))
    }

    /// Keeps the block in memory, as a state that further sessions can read.
    pub fn into_overlay(self) -> Overlay<H, D, R> {
        Overlay::new(self.parts, self.counted)
    }
}

/// A commit that failed: why, and the block, as it was before.
///
/// After [`Error::Full`] nothing has happened, and the block can be committed when there is room. A
/// block that is stale, or whose database is closed or poisoned, comes back too: its root and its
/// witness may still be of use.
pub struct CommitError<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Box<(Block<H, D, R>, Error)>,
);

impl<H: Hasher, D: Device, R: Runtime> CommitError<H, D, R> {
    pub(crate) fn new(block: Block<H, D, R>, error: Error) -> Self {
        Self(Box::new((block, error)))
    }

    /// Why it is not committed.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The block.
    pub fn block(&self) -> &Block<H, D, R> {
        &self.0.0
    }

    /// The reason alone.
    pub fn into_error(self) -> Error {
        self.0.1
    }

    /// The block alone.
    pub fn into_block(self) -> Block<H, D, R> {
        self.0.0
    }

    /// Block and reason.
    pub fn into_parts(self) -> (Block<H, D, R>, Error) {
        *self.0
    }
}

speaks_as_its_reason!(CommitError, "block", block);
