//! Blocks: the result of a finish, to be committed, or kept as a state for further sessions.
//!
//! Made by a session's finish, owned by the caller.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pleach_core::{Node, Prefix};
use pleach_journal::format::commit_body::MAX_BLOB;

use super::CommitOptions;
use super::changes::{Change, changes};
use super::merge::commit_with_below;
use super::outcomes::Outcomes;
use super::overlay::{Overlay, OverlayInner, OverlayLinks};
use super::target::{CommitTarget, StateTransition};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::error_forwarding::forward_error;
use crate::finish::outcome::{ChunkOutcome, FinishedBatch, TrieOutcome};
use crate::finish::witness::Witness;
use crate::handles::{CountedHandle, HandleKind, Holder};
use crate::phase::Phase;
use crate::roots::Roots;
use crate::state::commits::CommitState;
use crate::state::overlays::{Layer, LayerPart};
use crate::state::undo::changes::ChangeList;
use crate::state::view::View;

/// The result of a session's finish: new roots, and the changes that lead to them from the parent's. Nothing of it is
/// on disk.
pub struct Block {
    /// Dropped first: dropping the outcomes gives the cache its share back, with that of undo that this view alone
    /// held.
    pub(super) view: View,
    pub(super) outcomes: Outcomes,
    pub(super) parent: Option<Overlay>,
    pub(super) transition: StateTransition,
    pub(super) engine: Arc<Engine>,
    /// By namespace, ascending.
    witnesses: Vec<(u8, Witness)>,
    /// The last field, so that it is dropped last.
    pub(super) counted: CountedHandle,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("base", &self.view.base)
            .field("prev_roots", &self.transition.prev.roots)
            .field("roots", &self.transition.roots)
            .field("changes", &self.change_count())
            .finish_non_exhaustive()
    }
}

impl Block {
    /// A block on a view of a state, and on the overlay that the view reads.
    pub(crate) fn new(
        engine: Arc<Engine>,
        view: View,
        prev: CommitState,
        parent: Option<Overlay>,
        finished: FinishedBatch,
        counted: CountedHandle,
    ) -> Self {
        let FinishedBatch { roots, layouts, outcomes, witnesses } = finished;
        view.set_holder(Holder::Block, None);
        let outcomes = Outcomes::new(&engine, outcomes);
        let transition =
            StateTransition { blob: Arc::clone(&prev.blob), prev, roots, layouts: Some(layouts) };
        Self { view, outcomes, parent, transition, engine, witnesses, counted }
    }

    /// Root of namespace 0 in the block's state.
    pub fn root(&self) -> Node {
        self.transition.roots.first()
    }

    /// Root of namespace 0 in the parent's state.
    pub fn prev_root(&self) -> Node {
        self.transition.prev.roots.first()
    }

    /// Roots of all namespaces in the block's state.
    pub fn roots(&self) -> &Roots {
        &self.transition.roots
    }

    /// Roots of all namespaces in the parent's state.
    pub fn prev_roots(&self) -> &Roots {
        &self.transition.prev.roots
    }

    /// The witness of namespace 0, once: `None` when none was asked for, when it was taken before, or when all accesses
    /// were in other namespaces. [`proof::witness::verify`](pleach_core::proof::witness::verify) takes its bytes.
    pub fn take_witness(&mut self) -> Option<Witness> {
        let at = self.witnesses.iter().position(|(namespace, _)| *namespace == 0)?;
        Some(self.witnesses.remove(at).1)
    }

    /// The witnesses that were not taken yet: one for each Merkle namespace with an access, ascending, each against the
    /// root of its namespace in the parent's state ([`Self::prev_roots`]). A batch without accesses has one of
    /// namespace 0.
    pub fn take_witnesses(&mut self) -> Vec<(u8, Witness)> {
        std::mem::take(&mut self.witnesses)
    }

    /// Number of keys that this block writes.
    pub fn change_count(&self) -> usize {
        self.change_lists().map(|(_, list)| list.len()).sum()
    }

    /// The changes of this block, in the order of namespaces and keys, with the values before.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        changes(&self.engine.db, self.view.base, self.change_lists())
    }

    fn change_lists(&self) -> impl Iterator<Item = (u8, &ChangeList)> {
        self.outcomes.list.iter().flat_map(|TrieOutcome { namespace, chunks }| {
            chunks.iter().map(|chunk| (*namespace, &chunk.changes))
        })
    }

    /// The application's blob in the block's state: the parent's, unless [`Self::set_blob`] gave another.
    pub fn blob(&self) -> &[u8] {
        &self.transition.blob
    }

    /// Gives the commit a blob, bytes that mean something to the application alone; without a call the commit has the
    /// parent's blob.
    ///
    /// # Errors
    /// [`Error::BlobTooLarge`].
    pub fn set_blob(&mut self, blob: Vec<u8>) -> Result<()> {
        let limit = MAX_BLOB as usize;
        if blob.len() > limit {
            return Err(Error::BlobTooLarge { bytes: blob.len(), limit });
        }
        self.transition.blob = blob.into();
        Ok(())
    }

    /// Commits the block, merged with the overlays below it that are not committed, and gives the commit's number.
    /// Durable when it returns, if the database's durability says so. A block whose parent is just being committed by
    /// another thread is committed after it, with the same sync where that is possible.
    ///
    /// Blocks for the commits before it, for room where the background is behind, and for its own write; with
    /// [`Durability::Commit`](crate::Durability::Commit) for a sync.
    ///
    /// # Errors
    /// [`Error::StaleParent`] when the newest commit has other roots than the block's parent, or another blob;
    /// [`Error::InUse`] while a bulk load runs; [`Error::Full`] when the device has no room (nothing has happened, and
    /// the block can be tried again); [`Error::Poisoned`] after a failed write or sync; [`Error::Closed`] after the
    /// database was closed or dropped. The block comes back with each of them.
    pub fn commit(self) -> Result<u64, CommitError> {
        self.commit_with(CommitOptions::new())
    }

    /// [`Self::commit`] with options: directly behind the parent alone, or without waiting.
    ///
    /// # Errors
    /// As [`Self::commit`]. With [`CommitOptions::exact`] [`Error::StaleParent`] when the newest commit is not the
    /// parent, and [`Error::ParentNotCommitted`] when the parent is an overlay that is not committed;
    /// [`Error::WouldWait`] without [`CommitOptions::wait`].
    pub fn commit_with(mut self, options: CommitOptions) -> Result<u64, CommitError> {
        let has_ticket = Cell::new(false);
        let target = CommitTarget::new(&self.transition, &self.view, options, &has_ticket);
        let outcomes = &mut self.outcomes.list;
        match commit_with_below(&self.engine, &target, self.parent.as_ref(), outcomes) {
            Ok((number, _)) => {
                let engine = Arc::clone(&self.engine);
                // Dropping its view releases the undo that it alone held.
                let _timed = engine.db.timings.begin_phase(Phase::Settle);
                drop(self);
                Ok(number)
            }
            Err(error) => Err(CommitError::new(self, error)),
        }
    }

    /// Keeps the block in memory, as a state that further sessions can read.
    pub fn into_overlay(self) -> Overlay {
        let Block { mut outcomes, view, parent, transition, engine, counted, .. } = self;
        outcomes.shrink_for_overlay();
        let parts = outcomes.list.iter().map(|TrieOutcome { namespace, chunks }| {
            let changes = chunks.iter().map(|chunk| Arc::clone(&chunk.changes)).collect();
            LayerPart::new(*namespace, changes, changed_nodes(chunks))
        });
        view.set_holder(Holder::Overlay, None);
        let below = view.overlays();
        let layer = Layer::new(&engine.db.commits.overlays, below, parts);
        let made_on = parent.as_ref().map_or_else(Weak::new, |parent| Arc::downgrade(&parent.0));
        Overlay(Arc::new(OverlayInner {
            chain: below.with_layer(&layer),
            layer,
            links: Mutex::new(OverlayLinks { parent, view }),
            parent: made_on,
            outcomes: Mutex::new(outcomes),
            // Flushes may have changed layouts before the overlay is committed.
            transition: StateTransition { layouts: None, ..transition },
            engine,
            _counted: counted.into_kind(HandleKind::Overlay),
        }))
    }
}

/// Prefixes of the changed pages and of the changed regions, with their nodes.
fn changed_nodes(chunks: &[ChunkOutcome]) -> [Vec<(Prefix, Node)>; 2] {
    let pages = chunks.iter().flat_map(|chunk| &chunk.nodes).map(|page| (page.prefix, page.node));
    let regions = chunks.iter().flat_map(|chunk| &chunk.regions);
    let regions = regions.map(|region| (*region.region.prefix(), region.node));
    [pages.collect(), regions.collect()]
}

/// A failed commit: the reason, and the block as it was before.
///
/// After [`Error::Full`] nothing has happened, and the block can be committed when there is room. A block that is
/// stale, or whose database is closed or poisoned, comes back too: its root and its witness may still be of use.
pub struct CommitError(Box<(Block, Error)>);

impl CommitError {
    pub(crate) fn new(block: Block, error: Error) -> Self {
        Self(Box::new((block, error)))
    }

    /// The reason why the block is not committed.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The block.
    pub fn block(&self) -> &Block {
        &self.0.0
    }

    /// The reason alone.
    pub fn into_error(self) -> Error {
        self.0.1
    }

    /// The block alone.
    pub fn into_block(self) -> Block {
        self.0.0
    }

    /// Block and reason.
    pub fn into_parts(self) -> (Block, Error) {
        *self.0
    }
}

forward_error!(CommitError);
