//! Commits a block or an overlay together with the overlays below it that are not committed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use pleach_beatree::leaf_fold::KeyAccess;
use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::trie_kind::TrieKind;

use super::outcomes::recycle_outcomes;
use super::overlay::{Overlay, OverlayInner};
use super::refold::write_access;
use super::ticket::check_parent;
use super::{CommitOptions, CommitTarget, commit, view_of_newest};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::outcome::TrieOutcome;
use crate::finish::{BatchReservation, finish};
use crate::handles::Holder;
use crate::roots::Roots;
use crate::state::commits::Tip;
use crate::state::history::undo::{ChangeList, KeyUpdate};
use crate::state::overlays::{Chain, Layer};
use crate::state::view::View;

/// A batch that is to be committed: a block's or an overlay's.
pub(super) struct Candidate<'a> {
    pub(super) engine: &'a Engine,
    /// The view that the batch was folded on.
    pub(super) view: &'a View,
    pub(super) parent: Option<&'a Overlay>,
    pub(super) prev: &'a Tip,
    pub(super) roots: &'a Roots,
    pub(super) blob: &'a Arc<[u8]>,
    /// The layer of an overlay; `None` of a block.
    pub(super) layer: Option<&'a Layer>,
    pub(super) options: CommitOptions,
    /// As [`CommitTarget::layouts`].
    pub(super) layouts: Option<u64>,
}

impl Candidate<'_> {
    /// Commits the batch with these outcomes, and the uncommitted overlays below it. Gives the number of the commit,
    /// and the commit whose state was pinned below it.
    pub(super) fn commit(&self, outcomes: &mut [TrieOutcome]) -> Result<(u64, u64)> {
        self.engine.db.home.check_current()?;
        let untaken =
            || self.parent.map_or_else(|| (Vec::new(), self.view.base), Overlay::uncommitted);
        let (mut below, mut base) = untaken();
        if self.options.exact && !below.is_empty() {
            return Err(Error::ParentNotCommitted);
        }
        loop {
            let ticketed = Cell::new(false);
            let committed = self.commit_chain(base, &below, outcomes, &ticketed);
            // Another thread may have committed this overlay with one above it, whatever the error here.
            if committed.is_err()
                && !ticketed.get()
                && let Some(taken) = self.layer.and_then(Layer::commit)
            {
                self.options.wait_for(&self.engine.db, taken.number)?;
                return Ok((taken.number, self.view.base));
            }
            if !matches!(committed, Err(Error::StaleParent { .. })) {
                let kept = if below.is_empty() { base } else { self.view.base };
                return committed.map(|number| (number, kept));
            }
            // Or an overlay below it.
            let now = untaken();
            if now.0.len() >= below.len() {
                return committed.map(|number| (number, base));
            }
            (below, base) = now;
        }
    }

    /// Commits the batch together with the overlays `below` it, newest first.
    fn commit_chain(
        &self,
        follows: u64,
        below: &[Overlay],
        outcomes: &mut [TrieOutcome],
        ticketed: &Cell<bool>,
    ) -> Result<u64> {
        let Self { engine, view, prev, roots, blob, layer, options, layouts, .. } = *self;
        let own = layer.map(|layer| (layer, true));
        let others = below.iter().map(|overlay| (&*overlay.0.layer, false));
        let layers: Vec<(&Layer, bool)> = own.into_iter().chain(others).collect();
        let (layers, entry_kinds) = (&layers, &[]);
        let target = CommitTarget {
            view,
            parent: follows,
            options,
            prev,
            roots,
            blob,
            entry_kinds,
            layers,
            layouts,
            has_ticket: ticketed,
        };
        let Some(lowest) = below.last() else {
            // All overlays below are committed or about to be: the state that the finish was folded on is published.
            return commit(engine, &target, outcomes);
        };
        let target = CommitTarget { prev: &lowest.0.prev, layouts: None, ..target };
        // Checked before anything is folded for it.
        let parent = check_parent(&engine.db, &target)?;
        // The history may move on beyond the view that the lowest was folded on, but not beyond this one.
        let view = &view_of_newest(&engine.db, &target, parent)?;
        let target = CommitTarget { view, parent, ..target };
        let mut folded = Vec::new();
        let committed =
            self.fold_merged(&target, below, outcomes, &mut folded).and_then(|entry_kinds| {
                let target = CommitTarget { entry_kinds: &entry_kinds, ..target };
                commit(engine, &target, &mut folded)
            });
        recycle_outcomes(engine, folded);
        committed
    }

    /// Folds the changes of all of them together: one fold for each namespace, over its present pages. Its root must be
    /// the newest one's. The digest of a plain namespace is computed from the changes block by block: gives the digests
    /// that differ from one over the merged changes.
    fn fold_merged(
        &self,
        target: &CommitTarget<'_>,
        below: &[Overlay],
        outcomes: &[TrieOutcome],
        folded: &mut Vec<TrieOutcome>,
    ) -> Result<Vec<(u8, EntryKind)>> {
        let of_below = below.iter().flat_map(|one| &one.0.layer.parts).map(|part| part.namespace);
        let own = outcomes.iter().map(|outcome| outcome.namespace);
        let namespaces: BTreeSet<u8> = own.chain(of_below).collect();
        let of_chunks = outcomes.iter().flat_map(|one| &one.chunks).map(|one| one.changes.len());
        let changes = below.iter().map(Overlay::change_count).chain(of_chunks).sum();
        let reservation = BatchReservation::new(&self.engine.db, changes);
        let mut entry_kinds = Vec::new();
        for namespace in namespaces {
            let newest = outcomes.iter().filter(|outcome| outcome.namespace == namespace);
            let newest = newest.flat_map(|outcome| &outcome.chunks).map(|chunk| &chunk.changes);
            let below: Vec<&[ChangeList]> =
                below.iter().map(|one| one.0.layer.changes(namespace)).collect();
            let accesses = merged_accesses(newest, &below);
            let roots = [&target.prev.roots, target.roots].map(|roots| roots.of(namespace));
            let [Some(before), Some(expected)] = roots else {
                return Err(Error::Namespace(namespace));
            };
            let (db, view) = (self.engine.trie(namespace)?, target.view.for_namespace(namespace));
            let finisher = &self.engine.finisher;
            let finished = db.run_read(view.base, || {
                finish(&db, finisher, &reservation, (&view, &before.node), &accesses, false)
            })?;
            folded.push(TrieOutcome { namespace, chunks: finished.chunks });
            let (expected, found) = (expected.node, finished.root);
            if found != expected && db.kind == TrieKind::Merkle {
                return Err(Contradiction::OverlayRoot { expected, found }.into());
            }
            if found != expected {
                entry_kinds.push((namespace, EntryKind::Set));
            }
        }
        Ok(entry_kinds)
    }
}

impl Overlay {
    /// Commits this overlay together with the overlays below it that are not committed, merged, as one commit, and
    /// gives its number; of an overlay that was committed before, the number of the commit that it became part of.
    /// Overlays above it stay valid, siblings become stale.
    ///
    /// An overlay whose parent is the newest commit costs what [`Block::commit`](crate::Block::commit) costs:
    /// nothing is folded again. A parent that another thread is just committing counts as committed.
    ///
    /// Blocks as [`Block::commit`](crate::Block::commit).
    ///
    /// # Errors
    /// As [`Block::commit`](crate::Block::commit); the overlay stays as it was.
    pub fn commit(&self) -> Result<u64> {
        self.commit_with(CommitOptions::new())
    }

    /// [`Self::commit`] with options: directly behind the parent alone, or without waiting.
    ///
    /// # Errors
    /// As [`Block::commit_with`](crate::Block::commit_with); the overlay stays as it was.
    pub fn commit_with(&self, options: CommitOptions) -> Result<u64> {
        let OverlayInner { links, outcomes, layer, prev, roots, blob, engine, .. } = &*self.0;
        let db = &engine.db;
        db.home.check_current()?;
        let held = if options.no_wait { outcomes.try_lock() } else { Some(outcomes.lock()) };
        let mut outcomes = held.ok_or(Error::WouldWait)?;
        if let Some(taken) = layer.commit() {
            drop(outcomes);
            options.wait_for(db, taken.number)?;
            return Ok(taken.number);
        }
        let (view, parent) = {
            let links = links.lock();
            (db.commits.clone_view(&links.view), links.parent.clone())
        };
        let candidate = Candidate {
            engine,
            view: &view,
            parent: parent.as_ref(),
            prev,
            roots,
            blob,
            layer: Some(layer),
            options,
            layouts: None,
        };
        let (number, follows) = candidate.commit(&mut outcomes.list)?;
        outcomes.recycle();
        drop(outcomes);
        // The overlays below are released, so that a long pipeline of overlays does not pile up. The state before this
        // one stays pinned, for its prior values, as long as it can be read.
        let pinned = db.commits.view(follows, &Chain::default());
        pinned.set_holder(Holder::Overlay, None);
        let mut links = links.lock();
        let before = (links.parent.take(), std::mem::replace(&mut links.view, pinned));
        drop(links);
        drop(before);
        Ok(number)
    }
}

/// The newest value of each key in the changes and in those of a chain (newest overlay first), as accesses.
fn merged_accesses<'a>(
    newest: impl Iterator<Item = &'a ChangeList>,
    below: &[&'a [ChangeList]],
) -> Vec<KeyAccess> {
    let each = |age: usize| move |changed: &'a KeyUpdate| (age, changed);
    let mut all: Vec<(usize, &KeyUpdate)> =
        newest.flat_map(|list| list.iter()).map(each(0)).collect();
    for (age, lists) in (1..).zip(below) {
        all.extend(lists.iter().flat_map(|list| list.iter()).map(each(age)));
    }
    all.sort_unstable_by(|a, b| a.1.key.cmp(&b.1.key).then(a.0.cmp(&b.0)));
    all.dedup_by_key(|(_, changed)| changed.key);
    all.into_iter().map(|(_, changed)| write_access(changed)).collect()
}

#[cfg(test)]
mod tests {
    use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

    use super::*;
    use crate::{Access, Db, Geometry, Options, SessionOptions, Value};

    /// Another thread commits an overlay with one above it, while it is being committed, and a rollback brings its
    /// parent's state back. It was committed a second time.
    #[test]
    fn an_overlay_is_committed_once_whatever_state_comes_back() {
        let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).geometry(Geometry::least()).history(5);
        let db = Db::open_on(disk, runtime, options).expect("created");
        let put = |options, key| {
            let access = Access::write([key; 32], Some(Value::from([key].as_slice())));
            let session = db.session(options).expect("a session");
            session.finish(vec![access]).expect("finished").into_overlay()
        };
        let below = put(SessionOptions::new(), 1);
        let above = put(SessionOptions::new().over(&below), 2);
        assert_eq!(above.commit().expect("committed"), 1);
        assert_eq!(db.rollback(1).expect("rolled back"), 2);
        let OverlayInner { layer, prev, roots, blob, engine, .. } = &*below.0;
        let candidate = Candidate {
            engine,
            view: &engine.db.commits.clone_view(&below.0.links.lock().view),
            parent: None,
            prev,
            roots,
            blob,
            layer: Some(layer),
            options: CommitOptions::new(),
            layouts: None,
        };
        let (number, _) = candidate.commit(&mut below.0.outcomes.lock().list).expect("committed");
        assert_eq!((number, db.commit_number()), (1, 2));
    }
}
