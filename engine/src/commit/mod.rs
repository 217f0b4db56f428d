//! The commit protocol; `docs/commit-and-recovery.md` has the rules and why.
//!
//! 1. `wait` while the pending changes or the log are full, unless the caller forbids it.
//! 2. `check-parent`, before anything is written for the block: its parent's roots and blob are those of the newest
//!    ticketed commit. A rollback, an add and a drop follow one commit, by its number.
//! 3. `spill-values`: long values go to the overflow file, which is synced.
//! 4. `hold-nodes`: the nodes of the regions that change stay in memory, or come back, until `publish`; from before
//!    3 on none leave, and no regions are joined.
//! 5. `refold` where a flush has changed a layout below what the block accessed.
//! 6. `make-room`: encode the record and make room for it in the log. A full disk shows here.
//! 7. `ticket`, under the sequencer's lock: the parent is checked again, the layouts are still those that
//!    `refold` saw, and the record gets its log position; else back to `refold`.
//! 8. `write` and 9. `sync`, as the mode says; a child may have its ticket meanwhile.
//! 10. `publish`, in ticket order: undo, then changes and nodes region by region, then the number.
//! 11. `acknowledge`: return.
//!
//! A commit is of all namespaces that it changes: it has one record, one ticket and one number, and its
//! publication is undo of all, then changes and nodes of all, then the number.
//!
//! A commit that fails up to `ticket` has changed nothing, and can be tried again. A write or sync of the log
//! that fails, or a sync of the overflow file, poisons the database. From `write` on a failure leaves the
//! commit in doubt (`docs/errors.md`), unless its record was still queued. Called by blocks and overlays,
//! from any number of threads.

mod apply;
pub(crate) mod block;
mod candidate;
pub(crate) mod changes;
mod outcomes;
pub(crate) mod overlay;
mod refold;
mod target;
mod throttle;
mod ticket;

use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::position::LogPos;
use pleach_journal::format::trie_kind::TrieKind;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::outcome::TrieOutcome;
use crate::metrics::Counters;
use crate::observe::COMMIT;
use crate::options::Durability;
use crate::read::point;
use crate::state::commits::Tip;
use crate::state::history::replaced::{ReplacedNodes, Undone};
use crate::state::history::undo::{ChangeList, Changes};
use crate::state::history::window::Before;
use crate::state::pages::overflow;
use crate::state::pages::space::Tentative;
use crate::state::tries::Trie;
use crate::state::view::View;
use crate::state::{PoisonOnPanic, State};
use crate::timings::Phase;
use apply::apply_all;
use refold::join_chunks;
pub use target::CommitOptions;
use target::{Part, parts};
pub(crate) use target::{Target, wait_for_publication};
#[cfg(test)]
pub(crate) use throttle::FOR_ROOM;
use throttle::throttle;
use ticket::{Ticketed, check_parent, ticket};

/// How often a commit begins again because others came in between and left its parent's state.
const OVERTAKEN: u32 = 4;

/// Commits what these outcomes change and gives the number of the commit. They are of each namespace one at
/// most, ascending. They are used up when it succeeds, and as they were before when it fails.
pub(crate) fn commit(
    engine: &Engine,
    target: &Target<'_>,
    outcomes: &mut [TrieOutcome],
) -> Result<u64> {
    let _observed = engine.state.timings.observe(COMMIT);
    let _span = tracing::debug_span!("commit", follows = target.follows).entered();
    let mut tries = 0;
    loop {
        tries += 1;
        let mut taken = Vec::new();
        let committed = attempt(engine, target, outcomes, &mut taken);
        if committed.is_err() {
            // The failed commit has freed its overflow runs: put the values back, so that a retry does not refer to the runs.
            for TakenValues { part, chunk, changes } in taken {
                outcomes[part].chunks[chunk].changes = changes;
            }
        }
        let overtaken = matches!(committed, Err(Error::StaleParent { .. })) && tries < OVERTAKEN;
        if !overtaken {
            return committed;
        }
        check_parent(&engine.state, target)?;
    }
}

/// The changes of a chunk whose long values were replaced by their overflow cells.
struct TakenValues {
    part: usize,
    chunk: usize,
    changes: ChangeList,
}

/// All steps but what undoes a failed one.
fn attempt(
    engine: &Engine,
    target: &Target<'_>,
    outcomes: &mut [TrieOutcome],
    taken: &mut Vec<TakenValues>,
) -> Result<u64> {
    let db = &*engine.state;
    throttle(db, outcomes, target.options.at_once)?;
    let preparing = db.timings.begin(Phase::Prepare);
    // Before anything is written for it: a block that was given back may be committed again and again.
    let parent = check_parent(db, target)?;
    let newer = newer_view(db, target, parent)?;
    let view = newer.as_ref().unwrap_or(target.view);
    let target = &Target { view, follows: parent, ..*target };
    let mut parts = parts(engine, view, outcomes)?;
    if newer.is_some() {
        renew_priors(&mut parts, view, |prior| matches!(prior, Stored::Overflow(_)))?;
    }
    // From here to publication the nodes of the accessed regions stay in memory, and no regions are joined.
    let _nodes = db.nodes.keep_nodes();
    let layouts = db.commits.sequencer.lock().layouts;
    if target.layouts != Some(layouts) {
        parts.iter_mut().for_each(join_chunks);
    }
    let mut priors = parts
        .iter()
        .flat_map(|part| part.chunks.iter().flat_map(|chunk| chunk.changes.iter()))
        .map(|one| &one.prior);
    if db.commits.undo.keeps_history() && priors.any(is_long) {
        // Values of an overlay below, which is committed by now: the record names what its commit has written.
        renew_priors(&mut parts, &rebase(db, target, parent)?, is_long)?;
    }
    let spilled = spill_values(db, &mut parts, taken)?;
    let number = parent + 1;
    for part in &parts {
        for outcome in part.chunks.iter().flat_map(|chunk| &chunk.regions) {
            part.db.nodes.make_resident(outcome.region.prefix().first_key())?;
        }
    }
    drop(preparing);
    // Between ticket and publication a panic would leave everybody waiting.
    let _guard = PoisonOnPanic(db);
    let Ticketed { end, replaced } = ticket(engine, target, &mut parts, (spilled, layouts))?;
    let written = {
        let _timed = db.timings.begin(Phase::Log);
        db.commits.sequencer.write_through(end, db.options.durability == Durability::Commit)
    };
    if let Err(error) = written {
        db.poison(&error);
        // What was not handed to the device by now never is.
        let never = db.commits.sequencer.lock().is_queued(end);
        return Err(if never { error.poisoning() } else { error.in_doubt() });
    }
    let tip = Tip { number, roots: target.roots.clone(), blob: Arc::clone(target.blob) };
    // Treelets may have followed the overlay whose state this is.
    let own = target.layers.iter().find(|(_, own)| *own);
    let version = own.map_or(number, |(layer, _)| layer.version());
    publish(engine, end, (tip, version), target.fates, replaced, parts)
        .map_err(|error| error.in_doubt())?;
    tracing::debug!(commit = number, "committed");
    Ok(number)
}

/// A view of the newest commit, where the batch was made on another commit, or on one that cannot be read any more: undo of a
/// state that is the newest again, or still, is not needed to read it.
fn newer_view(db: &State, target: &Target<'_>, parent: u64) -> Result<Option<View>> {
    let moved = parent != target.follows || target.view.check().is_err();
    moved.then(|| rebase(db, target, parent)).transpose()
}

/// The parent's state came back under another number, or its own cannot be read any more: what the block
/// says of the state before is as of an older commit, whose long values may be gone once nobody pins it.
/// Gives a view of the newest commit, which has the same state.
fn rebase(db: &State, target: &Target<'_>, parent: u64) -> Result<View> {
    wait_for_publication(db, parent)?;
    let (view, tip) = db.commits.tip_view();
    if !tip.is_state_of(target.prev) || view.base != parent {
        return Err(Error::StaleParent { base: target.follows, tip: view.base });
    }
    Ok(view)
}

/// Looks values before the block up again in a view of the same state: those that `which` names.
fn renew_priors(
    parts: &mut [Part<'_>],
    view: &View,
    which: impl Fn(&Stored) -> bool,
) -> Result<()> {
    for part in parts {
        let view = view.of(part.view.namespace);
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

/// A value that is written to the overflow file before the record that names it.
fn is_long(stored: &Stored) -> bool {
    matches!(stored, Stored::Large(large) if large.bytes.len() > LOG_VALUE)
}

/// Commit `publish`: makes a written commit, whose record ends at `log_position`, visible. Fails only while
/// the chunks are still as they were.
fn publish(
    engine: &Engine,
    log_position: LogPos,
    (tip, version): (Tip, u64),
    fates: &[(u8, EntryKind)],
    replaced: Option<(Vec<ReplacedNodes>, Before)>,
    parts: Vec<Part<'_>>,
) -> Result<()> {
    let Engine { state: db, finisher, .. } = engine;
    let (number, sequencer) = (tip.number, &db.commits.sequencer);
    // The parent may fail after this record has been queued behind its own.
    wait_for_publication(db, number - 1)?;
    let applying = db.timings.begin(Phase::Apply);
    let (nodes, before) = replaced.unzip();
    let mut nodes = nodes.into_iter().flatten();
    let (mut undone, mut applied) =
        (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for Part { db, chunks, view } in parts {
        let nodes = nodes.next().unwrap_or_default();
        let mut chunks = std::mem::take(chunks);
        finisher.give_outcomes_back(chunks.extract_if(.., |chunk| chunk.changes.is_empty()));
        if chunks.is_empty() {
            continue;
        }
        let lists = chunks.iter_mut().map(|chunk| std::mem::take(&mut chunk.changes));
        let changes = Changes::new(lists);
        Counters::add(&db.counters.changes, changes.len() as u64);
        undone.push(Undone { namespace: view.namespace, changes: changes.clone(), nodes });
        applied.push((db, chunks, changes));
    }
    db.commits.undo.push(number, undone, before);
    for (namespace, fate) in fates {
        match fate {
            EntryKind::Changed | EntryKind::Set => {}
            EntryKind::Added => {
                let kind = tip.roots.of(*namespace).map_or(TrieKind::Merkle, |root| root.kind);
                db.tries.add(Trie::empty((*namespace, kind), number, &db.node_files));
            }
            EntryKind::Dropped => db.tries.set_dropped(*namespace, Some(number)),
            EntryKind::Restored => db.tries.set_dropped(*namespace, None),
        }
    }
    for (db, chunks, changes) in applied {
        finisher.give_outcomes_back(apply_all(
            &db,
            (number, version),
            log_position,
            chunks,
            &changes,
        ));
    }
    drop(applying);
    let publishing = db.timings.begin(Phase::Publish);
    Counters::add(&db.counters.commits, 1);
    let is_awaited = {
        let mut state = sequencer.lock();
        db.commits.publish(tip);
        state.in_flight -= 1;
        state.is_awaited()
    };
    db.store.begin_batch(number + 1);
    db.pace.notify();
    // A flush or a checkpoint that waits for a moment without commits takes this one.
    let wake = if is_awaited { pleach_io::Event::notify } else { pleach_io::Event::notify_soon };
    wake(&db.pace.work);
    drop(publishing);
    // Behind the number: nobody waits for it.
    let _timed = db.timings.begin(Phase::Settle);
    db.commits.undo.settle();
    Ok(())
}

/// Values of more bytes than this are written and synced before the record that names them.
const LOG_VALUE: usize = 64 << 10;

/// Commit `spill-values`: writes large values to the overflow file and names their runs instead.
fn spill_values<'a>(
    db: &'a State,
    parts: &mut [Part<'_>],
    taken: &mut Vec<TakenValues>,
) -> Result<Tentative<'a>> {
    let mut spilled = db.space.tentative();
    for (part, Part { db, chunks, .. }) in parts.iter_mut().enumerate() {
        for (at, chunk) in chunks.iter_mut().enumerate() {
            if !chunk.changes.iter().any(|changed| is_long(&changed.new)) {
                continue;
            }
            // An overlay goes on reading the values from memory.
            taken.push(TakenValues { part, chunk: at, changes: Arc::clone(&chunk.changes) });
            for changed in Arc::make_mut(&mut chunk.changes).iter_mut() {
                if let Stored::Large(large) = &changed.new
                    && is_long(&changed.new)
                {
                    changed.new = Stored::Overflow(overflow::write(db, &mut spilled, large, 0)?);
                }
            }
        }
    }
    if !spilled.is_empty() {
        db.store.device.sync(&db.space.overflow).map_err(|error| {
            let error = Error::from(error);
            db.poison(&error);
            error.poisoning()
        })?;
    }
    Ok(spilled)
}
