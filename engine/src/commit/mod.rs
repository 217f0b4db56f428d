//! The commit protocol; `docs/commit-and-recovery.md` has the rules and why.
//!
//! 1. `wait` while the buffered changes, the log or the undo that is not on the device yet are full, unless the caller
//!    forbids it.
//! 2. `check-parent`, before anything is written for the block: its parent's roots and blob are those of the newest
//!    ticketed commit. A rollback, an add and a drop follow one commit, by its number.
//! 3. `write-long-values`: long values go to the overflow file, which is synced.
//! 4. `hold-regions`: from before 3 until `publish` no regions are joined.
//! 5. `refold` where a flush has changed a layout below what the block accessed.
//! 6. `make-room`: encode the record and make room for it in the log. A full disk shows here.
//! 7. `ticket`, under the sequencer's lock: the parent is checked again, the layouts are still those that
//!    `refold` saw, and the record gets its log position; else back to `refold`.
//! 8. `write` and 9. `sync`, as the mode says; a child may have its ticket meanwhile.
//! 10. `publish`, in ticket order: undo, then changes and nodes region by region, then the number.
//! 11. `acknowledge`: return.
//!
//! A commit covers all namespaces that it changes: it has one record, one ticket and one number, and its publication is
//! undo of all, then changes and nodes of all, then the number.
//!
//! A commit that fails up to `ticket` has changed nothing, and can be tried again. A write or sync of the log that
//! fails, or a sync of the overflow file, poisons the database. From `write` on a failure leaves the commit in doubt
//! (`docs/errors.md`), unless its record was still queued. Called by blocks and overlays, from any number of threads.

mod apply;
pub(crate) mod block;
pub(crate) mod changes;
mod merge;
mod outcomes;
pub(crate) mod overlay;
mod refold;
mod target;
mod throttle;
mod ticket;

use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::pages::TentativeExtents;
use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::trie_kind::TrieKind;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::outcome::TrieOutcome;
use crate::metrics::Counters;
use crate::observe::{COMMIT, STALL};
use crate::options::Durability;
use crate::phase::Phase;
use crate::read::point;
use crate::state::tries::Trie;
use crate::state::undo::changes::{ChangeList, Changes};
use crate::state::undo::replaced::NamespaceUndo;
use crate::state::values;
use crate::state::view::View;
use crate::state::{NamespaceDb, PanicGuard};
use apply::{CommitStamp, apply_all};
use refold::join_chunks;
pub use target::CommitOptions;
use target::{CommitPart, parts};
pub(crate) use target::{CommitTarget, StateTransition, wait_for_publication};
#[cfg(test)]
pub(crate) use throttle::ROOM_TIMEOUT;
use throttle::throttle;
use ticket::{QueuedCommit, check_parent, take_ticket};

/// Attempts of a commit, each after other commits left its parent's state, or the history has moved on beyond the commit
/// that its view reads.
const MAX_ATTEMPTS: u32 = 4;

/// Commits the changes of these outcomes and gives the number of the commit. There is at most one outcome of a
/// namespace, in ascending order. Success uses the outcomes up; failure leaves them as they were before.
pub(crate) fn commit(
    engine: &Engine,
    target: &CommitTarget<'_>,
    outcomes: &mut [TrieOutcome],
) -> Result<u64> {
    let _observed = engine.db.timings.begin_operation(COMMIT);
    let _span = tracing::debug_span!("commit", follows = target.follows).entered();
    let mut tries = 0;
    loop {
        tries += 1;
        let mut originals = Vec::new();
        let committed = try_commit(engine, target, outcomes, &mut originals);
        if committed.is_err() {
            // The failed commit has freed its overflow runs: put the values back, so that a retry does not refer to the
            // runs.
            for OriginalChanges { part, chunk, changes } in originals {
                outcomes[part].chunks[chunk].changes = changes;
            }
        }
        let was_left =
            matches!(committed, Err(Error::StaleParent { .. } | Error::SnapshotTooOld { .. }));
        if !was_left || tries == MAX_ATTEMPTS {
            return committed;
        }
        check_parent(&engine.db, target)?;
    }
}

/// The changes of a chunk whose long values were replaced by their overflow cells.
struct OriginalChanges {
    part: usize,
    chunk: usize,
    changes: ChangeList,
}

/// All steps of a commit; the caller undoes a failed one.
fn try_commit(
    engine: &Engine,
    target: &CommitTarget<'_>,
    outcomes: &mut [TrieOutcome],
    originals: &mut Vec<OriginalChanges>,
) -> Result<u64> {
    let db = &*engine.db;
    let stall = db.timings.begin_operation(STALL);
    throttle(db, outcomes, target.options.no_wait)?;
    drop(stall);
    let preparing = db.timings.begin_phase(Phase::Prepare);
    // Checked before anything is written: a block that came back may be committed again and again.
    let follows = check_parent(db, target)?;
    let newer = newer_view(db, target, follows)?;
    let view = newer.as_ref().unwrap_or(target.view);
    let target = &CommitTarget { view, follows, ..*target };
    assert!(outcomes.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
    let mut parts = parts(engine, view, outcomes)?;
    if newer.is_some() {
        renew_priors(&mut parts, view, |prior| matches!(prior, Stored::Overflow(_)))?;
    }
    // From here to publication no regions are joined.
    let _regions = db.tries.hold_regions();
    let layouts = db.commits.sequencer.lock().layouts;
    if target.transition.layouts != Some(layouts) {
        parts.iter_mut().for_each(join_chunks);
    }
    let mut priors = parts
        .iter()
        .flat_map(|part| part.chunks.iter().flat_map(|chunk| chunk.changes.iter()))
        .map(|one| &one.prior);
    if db.commits.undo.has_history() && priors.any(is_written_before_record) {
        // Values of an overlay below that is committed by now: the record names the runs that its commit has written.
        renew_priors(&mut parts, &view_of_newest(db, target, follows)?, is_written_before_record)?;
    }
    let spilled = write_long_values(db, &mut parts, originals)?;
    drop(preparing);
    // Without the guard a panic between ticket and publication would leave everybody waiting.
    let _guard = PanicGuard(db);
    let queued = take_ticket(engine, target, &mut parts, spilled, layouts)?;
    let written = {
        let _timed = db.timings.begin_phase(Phase::Log);
        db.commits.sequencer.write_through(queued.end, db.options.durability == Durability::Commit)
    };
    if let Err(error) = written {
        db.poison(&error);
        // A record that is still queued is never written.
        let never = db.commits.sequencer.lock().is_queued(queued.end);
        return Err(if never { error.to_poisoned() } else { error.to_in_doubt() });
    }
    publish(engine, target, queued, parts).map_err(|error| error.to_in_doubt())
}

/// A view of the newest commit, where the batch was made on another commit, or on one that cannot be read any more: a
/// state that is the newest again, or still, can be read without its undo.
fn newer_view(db: &NamespaceDb, target: &CommitTarget<'_>, follows: u64) -> Result<Option<View>> {
    let moved = follows != target.follows || target.view.check_readable().is_err();
    moved.then(|| view_of_newest(db, target, follows)).transpose()
}

/// A view of the newest commit, which has the parent's state under another number, or when the parent's own commit
/// cannot be read any more: the prior values of the block are as of an older commit, whose long values may be freed
/// once nobody pins it.
fn view_of_newest(db: &NamespaceDb, target: &CommitTarget<'_>, follows: u64) -> Result<View> {
    wait_for_publication(db, follows)?;
    let (view, tip) = db.commits.tip_view();
    if !tip.is_state_of(&target.transition.prev) || view.base != follows {
        return Err(Error::StaleParent { base: target.follows, tip: view.base });
    }
    Ok(view)
}

/// Reads the prior values that `which` selects again, in a view of the same state.
fn renew_priors(
    parts: &mut [CommitPart<'_>],
    view: &View,
    which: impl Fn(&Stored) -> bool,
) -> Result<()> {
    for part in parts {
        let view = view.for_namespace(part.view.namespace);
        for chunk in part.chunks.iter_mut() {
            if chunk.changes.iter().any(|changed| which(&changed.prior)) {
                for changed in Arc::make_mut(&mut chunk.changes).iter_mut() {
                    if which(&changed.prior) {
                        changed.prior = point::stored(&part.db, &view, &changed.key)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// True for a value that is written to the overflow file before the record that names it.
fn is_written_before_record(stored: &Stored) -> bool {
    matches!(stored, Stored::Long(large) if large.bytes.len() > MAX_VALUE_IN_RECORD)
}

/// Commit `publish`: makes a written commit visible, and gives its number. Fails only while the chunks are unchanged.
fn publish(
    engine: &Engine,
    target: &CommitTarget<'_>,
    queued: QueuedCommit,
    parts: Vec<CommitPart<'_>>,
) -> Result<u64> {
    let Engine { db, finisher, .. } = engine;
    let (number, sequencer) = (target.follows + 1, &db.commits.sequencer);
    // The treelets may be as of the overlay that the target's state belongs to.
    let own = target.layers.iter().find(|(_, own)| *own);
    let version = own.map_or(number, |(layer, _)| layer.version());
    let stamp = CommitStamp { number, version, log_position: queued.end };
    // The parent may fail after this record was queued behind its record.
    wait_for_publication(db, number - 1)?;
    assert_eq!(db.commits.published() + 1, number, "commits are published in ticket order");
    let applying = db.timings.begin_phase(Phase::Apply);
    let (nodes, before) = queued.replaced.unzip();
    assert!(nodes.as_ref().is_none_or(|nodes| nodes.len() == parts.len()), "nodes of each part");
    let mut nodes = nodes.into_iter().flatten();
    let (mut undo, mut applied) =
        (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for CommitPart { db, chunks, view } in parts {
        let nodes = nodes.next().unwrap_or_default();
        let mut chunks = std::mem::take(chunks);
        finisher.recycle_outcomes(chunks.extract_if(.., |chunk| chunk.changes.is_empty()));
        if chunks.is_empty() {
            continue;
        }
        let lists = chunks.iter_mut().map(|chunk| std::mem::take(&mut chunk.changes));
        let changes = Changes::new(lists);
        Counters::add(&db.counters.changes, changes.len() as u64);
        undo.push(NamespaceUndo { namespace: view.namespace, changes: changes.clone(), nodes });
        applied.push((db, chunks, changes));
    }
    db.commits.undo.push(number, undo, before);
    for (namespace, entry_kind) in target.entry_kinds {
        match entry_kind {
            EntryKind::Changed | EntryKind::Set => {}
            EntryKind::Added => {
                let root = target.transition.roots.of(*namespace);
                let kind = root.map_or(TrieKind::Merkle, |root| root.kind);
                db.tries.add(Trie::empty(db, *namespace, kind, number));
            }
            EntryKind::Dropped => db.tries.set_dropped(*namespace, Some(number)),
            EntryKind::Restored => db.tries.set_dropped(*namespace, None),
        }
    }
    for (db, chunks, changes) in applied {
        finisher.recycle_outcomes(apply_all(&db, stamp, chunks, &changes));
    }
    drop(applying);
    let publishing = db.timings.begin_phase(Phase::Publish);
    Counters::add(&db.counters.commits, 1);
    let is_awaited = {
        let mut state = sequencer.lock();
        assert!(state.in_flight > 0 && state.newest.number >= number, "it has its ticket");
        db.commits.publish(target.transition.state(number));
        state.in_flight -= 1;
        state.is_awaited()
    };
    db.store.cache.set_batch(number + 1);
    db.pace.notify();
    // A flush or a checkpoint that waits for a moment without commits takes this one.
    let wake = if is_awaited { pleach_io::Event::notify } else { pleach_io::Event::notify_soon };
    wake(&db.pace.work);
    drop(publishing);
    // After the number is published: nobody waits for this.
    let _timed = db.timings.begin_phase(Phase::Settle);
    db.commits.undo.settle();
    tracing::debug!(commit = number, "committed");
    Ok(number)
}

/// Values of more bytes are written and synced before the record that names them.
const MAX_VALUE_IN_RECORD: usize = 64 << 10;

/// Commit `write-long-values`: writes large values to the overflow file and names their runs instead.
fn write_long_values<'a>(
    db: &'a NamespaceDb,
    parts: &mut [CommitPart<'_>],
    originals: &mut Vec<OriginalChanges>,
) -> Result<TentativeExtents<'a>> {
    let mut spilled = db.space.tentative();
    for (part, CommitPart { db, chunks, .. }) in parts.iter_mut().enumerate() {
        for (at, chunk) in chunks.iter_mut().enumerate() {
            if !chunk.changes.iter().any(|changed| is_written_before_record(&changed.new)) {
                continue;
            }
            // An overlay goes on reading the values from memory.
            originals.push(OriginalChanges {
                part,
                chunk: at,
                changes: Arc::clone(&chunk.changes),
            });
            for changed in Arc::make_mut(&mut chunk.changes).iter_mut() {
                if let Stored::Long(large) = &changed.new
                    && is_written_before_record(&changed.new)
                {
                    changed.new = Stored::Overflow(values::write(db, &mut spilled, large, 0)?);
                }
            }
        }
    }
    if !spilled.is_empty() {
        db.store.device.sync(&db.space.overflow).map_err(|error| {
            let error = Error::from(error);
            db.poison(&error);
            error.to_poisoned()
        })?;
    }
    Ok(spilled)
}
