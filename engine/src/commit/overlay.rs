//! Overlays: blocks that are kept in memory. [`merge`](super::merge) commits them.
//!
//! Made of blocks, owned by the caller. Invariants:
//! * a chain of overlays leads to one commit, its base, which stays pinned as long as the chain lives;
//! * an overlay is committed once at most, by itself or with one above it, together with all uncommitted overlays
//!   below it.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pleach_core::Node;

use super::changes::{Change, changes};
use super::outcomes::Outcomes;
use super::target::StateTransition;
use crate::engine::Engine;
use crate::handles::CountedHandle;
use crate::roots::Roots;
use crate::state::commits::CommitState;
use crate::state::overlays::{Chain, Layer, LayerCommit};
use crate::state::undo::changes::ChangeList;
use crate::state::view::View;

/// What an overlay's handles share.
pub(super) struct OverlayInner {
    pub(super) links: Mutex<OverlayLinks>,
    /// The overlay that this one was made on; released when this one is committed.
    pub(super) parent: Weak<OverlayInner>,
    pub(super) layer: Arc<Layer>,
    /// The overlays that its session read, and this one.
    pub(super) chain: Chain,
    /// Locked by whoever commits this overlay by itself; empty after that. Dropped after the fields above: dropping
    /// them gives the cache its share back.
    pub(super) outcomes: Mutex<Outcomes>,
    pub(super) transition: StateTransition,
    pub(super) engine: Arc<Engine>,
    /// The last field, so that it is dropped last.
    pub(super) _counted: CountedHandle,
}

/// The state below an overlay. A commit replaces all of it at once.
pub(super) struct OverlayLinks {
    pub(super) parent: Option<Overlay>,
    /// The view that the overlay was folded on; once committed, a view that pins the state before.
    pub(super) view: View,
}

/// A block that is kept in memory as a readable state. Clones are the same overlay.
#[derive(Clone)]
pub struct Overlay(pub(super) Arc<OverlayInner>);

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("prev_roots", &self.0.transition.prev.roots)
            .field("roots", &self.0.transition.roots)
            .field("changes", &self.change_count())
            .field("committed", &self.commit_number())
            .finish_non_exhaustive()
    }
}

impl Overlay {
    /// Root of namespace 0 in this state.
    pub fn root(&self) -> Node {
        self.0.transition.roots.first()
    }

    /// Root of namespace 0 in the parent's state.
    pub fn prev_root(&self) -> Node {
        self.0.transition.prev.roots.first()
    }

    /// Roots of all namespaces of this state.
    pub fn roots(&self) -> &Roots {
        &self.0.transition.roots
    }

    /// Roots of all namespaces in the parent's state.
    pub fn prev_roots(&self) -> &Roots {
        &self.0.transition.prev.roots
    }

    /// The application's blob in the overlay's state.
    pub fn blob(&self) -> &[u8] {
        &self.0.transition.blob
    }

    /// True when both are the same overlay, rather than two with the same state.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The overlay that this one was made on, committed or not; `None` when it was made on a commit. A committed
    /// overlay keeps no overlay below alive: then `None`, too, when nobody else has the parent.
    pub fn parent(&self) -> Option<Self> {
        self.0.parent.upgrade().map(Self)
    }

    /// True when the overlay is committed, by itself or with one above it.
    pub fn is_committed(&self) -> bool {
        self.commit_number().is_some()
    }

    /// The number of the commit that the overlay became part of: its own, or that of the overlay or block above it with
    /// which it was committed. In the latter case the commit has the state of the upper one, and this overlay is still
    /// read as it was.
    pub fn commit_number(&self) -> Option<u64> {
        let published = self.0.engine.db.commits.published();
        self.0.layer.commit().map(|taken| taken.number).filter(|commit| *commit <= published)
    }

    /// Number of keys that the overlay writes.
    pub fn change_count(&self) -> usize {
        self.change_lists().map(|(_, list)| list.len()).sum()
    }

    /// Bytes of memory that the overlay takes: its changes, their lookup tables, and what its commit needs. Undo that
    /// it holds is not counted, nor are overlays below: those that were uncommitted when it was made live as long as it
    /// does. While another thread commits it, or finishes a batch over it, what its commit needs is not counted either.
    pub fn memory(&self) -> usize {
        let for_commit = self.0.outcomes.try_lock().map_or(0, |outcomes| outcomes.bytes);
        self.0.layer.bytes() + for_commit
    }

    /// The changes of the overlay, in the order of namespaces and keys, with the values before.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        changes(&self.0.engine.db, self.0.links.lock().view.base, self.change_lists())
    }

    fn change_lists(&self) -> impl Iterator<Item = (u8, &ChangeList)> {
        let parts = self.0.layer.parts.iter();
        parts.flat_map(|part| part.changes.iter().map(|list| (part.namespace, list)))
    }

    /// The uncommitted overlays from this one down, newest first; and the commit below them.
    pub(super) fn uncommitted(&self) -> (Vec<Self>, u64) {
        let mut untaken = Vec::new();
        let mut at = self.clone();
        loop {
            let (parent, base) = {
                let links = at.0.links.lock();
                match at.0.layer.commit() {
                    Some(LayerCommit { number: commit, is_own_state: true }) => {
                        return (untaken, commit);
                    }
                    Some(LayerCommit { is_own_state: false, .. }) => {
                        return (untaken, links.view.base);
                    }
                    None => (links.parent.clone(), links.view.base),
                }
            };
            untaken.push(at);
            match parent {
                Some(parent) => at = parent,
                None => return (untaken, base),
            }
        }
    }

    /// Advances the treelets of the pages that the overlay changes, once, before a batch is finished over it.
    pub(crate) fn advance_treelets(&self) {
        // A thread that holds the lock commits the overlay, which has the same effect, or advances the treelets.
        if let Some(mut outcomes) = self.0.outcomes.try_lock() {
            outcomes.advance_treelets(self.0.layer.version());
        }
    }

    /// True when the overlay was made through this open of the database.
    pub(crate) fn is_of(&self, engine: &Arc<Engine>) -> bool {
        Arc::ptr_eq(&self.0.engine, engine)
    }

    /// A view of this overlay; its state, under the number of the commit below.
    pub(crate) fn view(&self) -> (View, CommitState) {
        let OverlayInner { links, chain, engine, transition, .. } = &*self.0;
        let commits = &engine.db.commits;
        // Under this lock the base stays pinned: it is the view's commit, or one after it.
        let links = links.lock();
        let (commit, chain) = chain.above_commit(commits.published());
        let number = commit.unwrap_or(links.view.base);
        let state = transition.state(number);
        (commits.view(number, &chain), state)
    }
}

impl Drop for OverlayInner {
    fn drop(&mut self) {
        // A long chain must not unwind by recursion.
        let mut parent = self.links.get_mut().parent.take();
        while let Some(overlay) = parent {
            parent = match Arc::try_unwrap(overlay.0) {
                Ok(mut inner) => inner.links.get_mut().parent.take(),
                Err(_) => None,
            };
        }
    }
}
