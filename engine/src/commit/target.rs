//! The states that a commit leads from and to, and its part in each namespace.

use std::cell::Cell;
use std::sync::Arc;

use pleach_journal::format::commit_body::EntryKind;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::outcome::{ChunkOutcome, TrieOutcome};
use crate::roots::Roots;
use crate::state::NamespaceDb;
use crate::state::commits::CommitState;
use crate::state::overlays::Layer;
use crate::state::view::View;

/// How a block or an overlay is committed: [`Block::commit_with`](crate::Block::commit_with),
/// [`Overlay::commit_with`](crate::Overlay::commit_with).
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitOptions {
    pub(crate) exact: bool,
    pub(crate) no_wait: bool,
    /// The commit that a rollback goes back to, for its record.
    pub(crate) back_to: Option<u64>,
}

impl CommitOptions {
    /// The defaults of `commit`: on any state that is equal to the parent's, together with the overlays below, and
    /// waiting.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only directly behind the parent: the newest commit must be the one that the block was made on, or the own commit
    /// of the overlay that it was made on (default: false). Otherwise equal roots and blob are enough.
    #[must_use]
    pub fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    /// Whether the commit may wait for other commits, for a finish over the same overlay, and for the background to
    /// make room (default: true). Without that it gives [`Error::WouldWait`]. It waits for its own write and sync in
    /// any case.
    #[must_use]
    pub fn wait(self, wait: bool) -> Self {
        Self { no_wait: !wait, ..self }
    }

    /// Waits for the commit of another thread, if waiting is allowed.
    pub(super) fn wait_for(self, db: &NamespaceDb, number: u64) -> Result<()> {
        if self.no_wait && db.commits.published() < number {
            return Err(Error::WouldWait);
        }
        wait_for_publication(db, number).map_err(|error| error.to_in_doubt())
    }
}

/// The states that a batch leads from and to, without its changes.
#[derive(Clone)]
pub(crate) struct StateTransition {
    /// The state that it was made on.
    pub(crate) prev: CommitState,
    /// Roots of its own state.
    pub(crate) roots: Roots,
    /// Blob of its own state.
    pub(crate) blob: Arc<[u8]>,
    /// The counter of layout changes before the first chunk was folded; `None` where that is not known.
    pub(crate) layouts: Option<u64>,
}

impl StateTransition {
    /// Its state, under the number of a commit.
    pub(super) fn state(&self, number: u64) -> CommitState {
        CommitState { number, roots: self.roots.clone(), blob: Arc::clone(&self.blob) }
    }
}

/// A batch on its way to be committed.
#[derive(Clone, Copy)]
pub(crate) struct CommitTarget<'a> {
    pub(crate) transition: &'a StateTransition,
    /// The state that the changes were folded on, pinned.
    pub(crate) view: &'a View,
    /// The commit that the batch follows: the one that has the state before it, as far as the caller knows.
    pub(crate) follows: u64,
    /// Roots and blob do not cover dropped tries: a commit that adds, drops or restores namespaces is exact.
    pub(crate) options: CommitOptions,
    /// Entry kinds of namespaces that exist on one side only, ascending; a namespace that is added or dropped has no
    /// changes here. And of plain ones whose digest is not made of their changes.
    pub(crate) entry_kinds: &'a [(u8, EntryKind)],
    /// The overlays that become part of the commit, and whether its state is theirs.
    pub(crate) layers: &'a [(&'a Layer, bool)],
    /// Set when the commit, and with it these overlays, has its ticket.
    pub(crate) has_ticket: &'a Cell<bool>,
}

impl<'a> CommitTarget<'a> {
    /// A batch that was folded on this view, and is no part of an overlay.
    pub(crate) fn new(
        transition: &'a StateTransition,
        view: &'a View,
        options: CommitOptions,
        has_ticket: &'a Cell<bool>,
    ) -> Self {
        let (entry_kinds, layers) = (&[], &[]);
        Self { transition, view, follows: view.base, options, entry_kinds, layers, has_ticket }
    }
}

/// A namespace that a commit changes.
pub(super) struct CommitPart<'a> {
    pub(super) db: Arc<NamespaceDb>,
    /// A view of the state that the changes were folded on.
    pub(super) view: View,
    pub(super) chunks: &'a mut Vec<ChunkOutcome>,
}

/// The parts of a commit of these outcomes, which were folded on `view`.
pub(super) fn parts<'a>(
    engine: &Engine,
    view: &View,
    outcomes: &'a mut [TrieOutcome],
) -> Result<Vec<CommitPart<'a>>> {
    let part = |TrieOutcome { namespace, chunks }: &'a mut TrieOutcome| {
        Ok(CommitPart {
            db: engine.trie(*namespace)?,
            view: view.for_namespace(*namespace),
            chunks,
        })
    };
    outcomes.iter_mut().map(part).collect()
}

/// Waits until a commit with a ticket is published.
pub(crate) fn wait_for_publication(db: &NamespaceDb, number: u64) -> Result<()> {
    let published = || db.commits.published() >= number;
    if published() {
        return Ok(());
    }
    let mut poisoned = Ok(());
    db.pace.wait(None, &mut || {
        poisoned = db.commits.sequencer.lock().check_writable();
        poisoned.is_err() || published()
    });
    if published() { Ok(()) } else { poisoned }
}
