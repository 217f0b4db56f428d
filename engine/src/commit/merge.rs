//! Commits a block or an overlay together with the overlays below it that are not committed.

use std::cell::Cell;
use std::collections::BTreeSet;

use pleach_beatree::leaf_fold::KeyAccess;
use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::trie_kind::TrieKind;

use super::outcomes::recycle_outcomes;
use super::overlay::{Overlay, OverlayInner};
use super::refold::write_access;
use super::target::StateTransition;
use super::ticket::check_parent;
use super::{CommitOptions, CommitTarget, commit, view_of_newest};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::outcome::TrieOutcome;
use crate::finish::{BatchReservation, finish};
use crate::handles::Holder;
use crate::state::overlays::{Chain, Layer};
use crate::state::undo::changes::{ChangeList, KeyUpdate};

/// Commits a batch with these outcomes, which was made on `parent`, and the uncommitted overlays below it. Gives the
/// number of the commit, and the commit whose state was pinned below it.
pub(super) fn commit_with_below(
    engine: &Engine,
    target: &CommitTarget<'_>,
    parent: Option<&Overlay>,
    outcomes: &mut [TrieOutcome],
) -> Result<(u64, u64)> {
    engine.db.home.check_current()?;
    let (options, pinned) = (target.options, target.view.base);
    let untaken = || parent.map_or_else(|| (Vec::new(), pinned), Overlay::uncommitted);
    let (mut below, mut follows) = untaken();
    if options.exact && !below.is_empty() {
        return Err(Error::ParentNotCommitted);
    }
    loop {
        let committed = commit_chain(engine, CommitTarget { follows, ..*target }, &below, outcomes);
        // Another thread may have committed this overlay with one above it, whatever the error here.
        if committed.is_err()
            && !target.has_ticket.get()
            && let Some(taken) = target.layers.first().and_then(|(layer, _)| layer.commit())
        {
            options.wait_for(&engine.db, taken.number)?;
            return Ok((taken.number, pinned));
        }
        if !matches!(committed, Err(Error::StaleParent { .. })) {
            let kept = if below.is_empty() { follows } else { pinned };
            return committed.map(|number| (number, kept));
        }
        // Or an overlay below it.
        let now = untaken();
        if now.0.len() >= below.len() {
            return committed.map(|number| (number, follows));
        }
        (below, follows) = now;
    }
}

/// Commits a batch together with the overlays `below` it, newest first.
fn commit_chain(
    engine: &Engine,
    target: CommitTarget<'_>,
    below: &[Overlay],
    outcomes: &mut [TrieOutcome],
) -> Result<u64> {
    let Some(lowest) = below.last() else {
        // All overlays below are committed or about to be: the state that the finish was folded on is published.
        return commit(engine, &target, outcomes);
    };
    let others = below.iter().map(|overlay| (&*overlay.0.layer, false));
    let layers: Vec<(&Layer, bool)> = target.layers.iter().copied().chain(others).collect();
    let prev = lowest.0.transition.prev.clone();
    let transition = &StateTransition { prev, layouts: None, ..target.transition.clone() };
    let target = CommitTarget { transition, layers: &layers, ..target };
    // Checked before anything is folded for it.
    let follows = check_parent(&engine.db, &target)?;
    // The history may move on beyond the view that the lowest was folded on, but not beyond this one.
    let view = &view_of_newest(&engine.db, &target, follows)?;
    let target = CommitTarget { view, follows, ..target };
    let mut folded = Vec::new();
    let committed =
        fold_merged(engine, &target, below, outcomes, &mut folded).and_then(|entry_kinds| {
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
    engine: &Engine,
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
    let reservation = BatchReservation::new(&engine.db, changes);
    let mut entry_kinds = Vec::new();
    for namespace in namespaces {
        let newest = outcomes.iter().filter(|outcome| outcome.namespace == namespace);
        let newest = newest.flat_map(|outcome| &outcome.chunks).map(|chunk| &chunk.changes);
        let below: Vec<&[ChangeList]> =
            below.iter().map(|one| one.0.layer.changes(namespace)).collect();
        let accesses = merged_accesses(newest, &below);
        let roots = [&target.transition.prev.roots, &target.transition.roots]
            .map(|roots| roots.of(namespace));
        let [Some(before), Some(expected)] = roots else {
            return Err(Error::Namespace(namespace));
        };
        let (db, view) = (engine.trie(namespace)?, target.view.for_namespace(namespace));
        let finisher = &engine.finisher;
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
        let OverlayInner { links, outcomes, layer, transition, engine, .. } = &*self.0;
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
        let (has_ticket, layers) = (Cell::new(false), &[(&**layer, true)]);
        let target = CommitTarget::new(transition, &view, options, &has_ticket);
        let target = CommitTarget { layers, ..target };
        let (number, follows) =
            commit_with_below(engine, &target, parent.as_ref(), &mut outcomes.list)?;
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
        let OverlayInner { layer, transition, engine, .. } = &*below.0;
        let view = engine.db.commits.clone_view(&below.0.links.lock().view);
        let (has_ticket, layers) = (Cell::new(false), &[(&**layer, true)]);
        let target = CommitTarget::new(transition, &view, CommitOptions::new(), &has_ticket);
        let target = CommitTarget { layers, ..target };
        let mut outcomes = below.0.outcomes.lock();
        let committed = commit_with_below(engine, &target, None, &mut outcomes.list);
        let (number, _) = committed.expect("committed");
        assert_eq!((number, db.commit_number()), (1, 2));
    }
}
