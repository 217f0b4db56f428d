//! What a session reads: a commit, and the overlays over it.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_beatree::leaf_fold::PendingChange;
use pleach_beatree::{RegionState, Stored};
use pleach_core::{Key, Prefix};

use super::overlays::{Chain, OverlayNode};
use super::undo::Undo;

/// A state: the commit `base` (pinned while this lives) under a chain of overlays.
pub(crate) struct View {
    pub(crate) base: u64,
    overlays: Chain,
    undo: Arc<Undo>,
}

impl View {
    /// A view of a commit, pinned from now until the view goes.
    pub(super) fn new(base: u64, overlays: Chain, undo: Arc<Undo>) -> Self {
        undo.pin(base);
        overlays.make_readable();
        Self { base, overlays, undo }
    }

    /// A second view of the same state.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.base, self.overlays.clone(), Arc::clone(&self.undo))
    }

    /// The overlays over the commit.
    pub(crate) fn overlays(&self) -> &Chain {
        &self.overlays
    }

    /// Is the view that of a commit alone, without overlays?
    pub(crate) fn is_committed(&self) -> bool {
        self.overlays.is_empty()
    }

    /// The state of a key in the overlays; they are asked first.
    pub(crate) fn overlaid(&self, key: &Key) -> Option<Stored> {
        self.overlays.get(key).cloned()
    }

    /// What the overlays have recorded as the node of a prefix.
    pub(crate) fn node(&self, prefix: &Prefix) -> OverlayNode {
        self.overlays.node(prefix)
    }

    /// The state of a key that a later commit changed; asked last, after pending changes and page.
    pub(crate) fn undone(&self, key: &Key) -> Option<Stored> {
        if self.undo.is_empty() { None } else { self.undo.get(key, self.base) }
    }

    /// Has anything below the region changed against the pages and pending changes in it?
    pub(crate) fn differs(&self, state: &RegionState) -> bool {
        state.last_commit() > self.base || self.overlays.changes_below(state.children().region())
    }

    /// All that the view says below `prefix` beyond pages and pending changes, whatever these are by now.
    pub(crate) fn over_the_present(&self, prefix: &Prefix) -> BTreeMap<Key, Stored> {
        let mut changes = self.undo.range(prefix, self.base);
        self.overlays.visit_below(prefix, |key, stored| {
            changes.insert(*key, stored.clone());
        });
        changes
    }

    /// What commits after the view's have replaced below a prefix. Sorted.
    pub(crate) fn undone_below(
        &self,
        prefix: &Prefix,
        state: &RegionState,
    ) -> BTreeMap<Key, Stored> {
        if state.last_commit() > self.base {
            self.undo.range(prefix, self.base)
        } else {
            BTreeMap::new()
        }
    }

    /// What the view says below a prefix beyond pages and pending changes: undo of later commits, then
    /// overlays over it. Sorted.
    pub(crate) fn changes(&self, prefix: &Prefix, state: &RegionState) -> BTreeMap<Key, Stored> {
        let mut changes = self.undone_below(prefix, state);
        self.overlays.visit_below(prefix, |key, stored| {
            changes.insert(*key, stored.clone());
        });
        changes
    }

    /// Puts what the overlays say below a prefix over the changes that are there from `from` on.
    pub(crate) fn put_overlays(
        &self,
        prefix: &Prefix,
        below: &mut Vec<PendingChange>,
        from: usize,
    ) {
        let mut changes = Vec::new();
        self.overlays.visit_below(prefix, |key, stored| changes.push((*key, stored.clone())));
        if !changes.is_empty() {
            put_over(below, from, changes.into_iter());
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.undo.unpin(self.base);
    }
}

/// Puts `changes` over those that are there from `from` on, both sorted; of two for one key the newer wins.
pub(crate) fn put_over(
    below: &mut Vec<PendingChange>,
    from: usize,
    changes: impl Iterator<Item = (Key, Stored)>,
) {
    let older: Vec<PendingChange> = below.drain(from..).collect();
    let mut older = older.into_iter().peekable();
    for (key, stored) in changes {
        while let Some(smaller) = older.next_if(|change| change.0 < key) {
            below.push(smaller);
        }
        older.next_if(|change| change.0 == key);
        below.push((key, stored));
    }
    below.extend(older);
}
