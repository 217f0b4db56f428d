//! The commit protocol; `docs/commit-and-recovery.md` has the rules and why.
//!
//! 1. `wait` while the pending changes or the log are full.
//! 2. `check-parent`, before anything is written for the block: its parent's root is that of the newest
//!    ticketed commit.
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
//! A commit that fails up to `ticket` has changed nothing, and can be tried again. A write or sync of the log
//! that fails, or a sync of the overflow file, poisons the database. From `write` on a failure leaves the
//! commit in doubt (`docs/errors.md`), unless its record was still queued. Called by blocks and overlays,
//! from any number of threads.

mod apply;
pub(crate) mod block;
pub(crate) mod changes;
pub(crate) mod overlay;
mod throttle;

use std::cell::Cell;
use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::{Hasher, Node};
use pleach_io::{Device, Runtime};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::outcome::{ChunkOutcome, RegionOutcome};
use crate::finish::refold;
use crate::format::commit_body::{
    Before as RecordBefore, ChangeSection, NamespacePart, NodeSection, Value as LogValue,
    commit_record,
};
use crate::format::position::LogPos;
use crate::format::record::{MAX_RECORD, RecordBuf};
use crate::metrics::Counters;
use crate::options::Durability;
use crate::read::point;
use crate::roots::Roots;
use crate::state::commits::Tip;
use crate::state::overlays::{Layer, TakenBy};
use crate::state::sequencer::Ordered;
use crate::state::space::Tentative;
use crate::state::undo::{ChangeList, Changes, Replaced, ReplacedNodes};
use crate::state::view::View;
use crate::state::window::Before;
use crate::state::{PoisonOnPanic, State, overflow};
use apply::apply_all;
use throttle::throttle;

/// Tries to get a ticket before flushes that change a layout are held off.
const TRIES: u32 = 3;
/// How often a commit begins again because others came in between and left its parent's state.
const OVERTAKEN: u32 = 4;

/// What a commit leads from and to.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The state that the changes were folded on, pinned.
    pub(crate) view: &'a View,
    /// The commit that has this state, as far as the caller knows.
    pub(crate) follows: u64,
    pub(crate) prev_root: &'a Node,
    pub(crate) root: &'a Node,
    /// The overlays that become part of the commit, and whether its state is theirs.
    pub(crate) layers: &'a [(&'a Layer, bool)],
    /// Set when the commit has its ticket, and with it these overlays.
    pub(crate) ticketed: &'a Cell<bool>,
}

/// Commits the changes in these chunks and gives the number of the commit. The chunks are used up when it
/// succeeds, and as they were before when it fails.
pub(crate) fn commit<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    target: &Target<'_>,
    chunks: &mut Vec<ChunkOutcome>,
    blob: Option<&[u8]>,
) -> Result<u64> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut taken = Vec::new();
        let committed = attempt(engine, target, chunks, &mut taken, blob);
        if committed.is_err() {
            // Their cells name runs that are free again unless a record was queued; a second commit must
            // not name them.
            for (chunk, changes) in taken {
                chunks[chunk].changes = changes;
            }
        }
        let overtaken = matches!(committed, Err(Error::StaleParent { .. })) && tries < OVERTAKEN;
        if !overtaken || check_parent(&engine.state, target).is_err() {
            return committed;
        }
    }
}

/// The changes of a chunk whose long values were replaced by their overflow cells.
type Taken = (usize, ChangeList);

/// All steps but what undoes a failed one.
fn attempt<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    target: &Target<'_>,
    chunks: &mut Vec<ChunkOutcome>,
    taken: &mut Vec<Taken>,
    blob: Option<&[u8]>,
) -> Result<u64> {
    let db = &*engine.state;
    throttle(db)?;
    // Before anything is written for it: a block that was given back may be committed again and again.
    let parent = check_parent(db, target)?;
    // Undo of a state that is the newest again, or still, is not needed to read it.
    let moved = parent != target.follows || target.view.check().is_err();
    let newer = moved.then(|| stand_on(db, target, parent)).transpose()?;
    if let Some(view) = &newer {
        renew_priors(db, view, chunks, |prior| matches!(prior, Stored::Overflow(_)))?;
    }
    let target =
        &Target { view: newer.as_ref().unwrap_or(target.view), follows: parent, ..*target };
    // From here to publication the nodes of the accessed regions stay in memory, and no regions are joined.
    let _nodes = db.nodes.keep_nodes();
    join_chunks(db, chunks);
    let mut priors = chunks.iter().flat_map(|chunk| chunk.changes.iter()).map(|one| &one.prior);
    if db.commits.undo().keeps_history() && priors.any(is_long) {
        // Values of an overlay below, which is committed by now: the record names what its commit has written.
        renew_priors(db, &stand_on(db, target, parent)?, chunks, is_long)?;
    }
    let spilled = spill_values(db, chunks, taken)?;
    let number = parent + 1;
    let blob: Arc<[u8]> =
        blob.map_or_else(|| Arc::clone(&db.commits.sequencer().lock().newest.blob), Into::into);
    for outcome in chunks.iter().flat_map(|chunk| &chunk.regions) {
        db.nodes.make_resident::<H>(outcome.region.prefix().first_key())?;
    }
    // Between ticket and publication a panic would leave everybody waiting.
    let _guard = PoisonOnPanic(db);
    let Ticketed { end, replaced } = ticket(engine, target, chunks, &blob, spilled)?;
    let written =
        db.commits.sequencer().write_through(end, db.options.durability == Durability::Commit);
    if let Err(error) = written {
        db.poison(&error);
        // What was not handed to the device by now never is.
        let never = db.commits.sequencer().lock().is_queued(end);
        return Err(if never { error.poisoning() } else { error.in_doubt() });
    }
    let tip = Tip { number, roots: Roots::of_first(*target.root), blob };
    publish(engine, end, tip, replaced, chunks).map_err(|error| error.in_doubt())?;
    Ok(number)
}

/// The parent's state came back under another number, or its own cannot be read any more: what the block
/// says of the state before is as of an older commit, whose long values may be gone once nobody pins it.
/// Gives a view of the newest commit, which has the same state.
fn stand_on<D: Device, R: Runtime>(
    db: &State<D, R>,
    target: &Target<'_>,
    parent: u64,
) -> Result<View> {
    wait_for_publication(db, parent)?;
    let (view, root) = db.commits.tip_view();
    if root != *target.prev_root || view.base != parent {
        return Err(Error::StaleParent { base: target.follows, tip: view.base });
    }
    Ok(view)
}

/// Looks values before the block up again in a view of the same state: those that `which` names.
fn renew_priors<D: Device, R: Runtime>(
    db: &State<D, R>,
    view: &View,
    chunks: &mut [ChunkOutcome],
    which: impl Fn(&Stored) -> bool,
) -> Result<()> {
    for chunk in chunks {
        if chunk.changes.iter().any(|changed| which(&changed.prior)) {
            for changed in Arc::make_mut(&mut chunk.changes).iter_mut() {
                if which(&changed.prior) {
                    changed.prior = point::stored(db, view, &changed.key)?;
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

/// Waits until a commit that has its ticket is published.
pub(crate) fn wait_for_publication<D: Device, R: Runtime>(
    db: &State<D, R>,
    number: u64,
) -> Result<()> {
    let published = || db.commits.published() >= number;
    if published() {
        return Ok(());
    }
    let mut poisoned = Ok(());
    db.pace.wait(None, &mut || {
        poisoned = db.commits.sequencer().lock().check();
        poisoned.is_err() || published()
    });
    if published() { Ok(()) } else { poisoned }
}

/// A commit whose record is queued.
struct Ticketed {
    /// The log position at which the record ends.
    end: LogPos,
    /// What the commit replaces, where there is a history.
    replaced: Option<Replaced>,
}

/// Commit `refold`, `make-room` and `ticket`.
fn ticket<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    target: &Target<'_>,
    chunks: &mut [ChunkOutcome],
    blob: &Arc<[u8]>,
    spilled: Tentative<'_, D>,
) -> Result<Ticketed> {
    let Target { view, follows, root, layers, .. } = *target;
    let (db, number) = (&*engine.state, follows + 1);
    let undo = db.commits.undo();
    let mut tries = 0;
    loop {
        tries += 1;
        let hold = (tries > TRIES).then(|| db.index.hold_structure());
        let layouts = {
            let state = db.commits.sequencer().lock();
            check_follows(&state, target)?;
            state.layouts
        };
        refold_stale(engine, view, chunks)?;
        let past = if undo.keeps_history() { Some(past(db, target, chunks)?) } else { None };
        let kept_from = if past.is_some() { undo.begin_after(number) } else { number };
        let mut record =
            encode(db.store.database(), blob, target, chunks, past.as_ref(), kept_from);
        let bytes = record.len();
        if bytes > MAX_RECORD {
            return Err(Error::BatchTooLarge { bytes, limit: MAX_RECORD });
        }
        if db.options.durability == Durability::Commit {
            record.set_synced();
        }
        db.make_room(bytes)?;
        let mut state = db.commits.sequencer().lock();
        check_follows(&state, target)?;
        if state.in_flight > 0 && state.is_awaited() {
            drop(state);
            drop(hold);
            // A flush or a checkpoint waits for the parent's publication: it comes before the child.
            wait_for_publication(db, follows)?;
            continue;
        }
        if state.layouts != layouts || !state.has_room(bytes) {
            drop(state);
            drop(hold);
            continue;
        }
        let start = state.queue(record);
        spilled.named();
        state.newest = Tip { number, roots: Roots::of_first(*root), blob: Arc::clone(blob) };
        state.in_flight += 1;
        target.ticketed.set(true);
        for (layer, own) in layers {
            layer.take(TakenBy { commit: number, own: *own });
        }
        undo.state(start + bytes, kept_from);
        let replaced = past.map(|Past { nodes, blob }| Replaced {
            nodes,
            before: Before { start, roots: Roots::of_first(*target.prev_root), blob },
        });
        return Ok(Ticketed { end: start + bytes, replaced });
    }
}

/// What a commit replaces beside values.
struct Past {
    nodes: ReplacedNodes,
    blob: Arc<[u8]>,
}

/// The nodes of the commit's pages and regions, and the blob, as they are before it. The caller sees to it
/// that the layouts are those of the chunks.
fn past<D: Device, R: Runtime>(
    db: &State<D, R>,
    target: &Target<'_>,
    chunks: &[ChunkOutcome],
) -> Result<Past> {
    let base = target.follows;
    // Nodes in memory are those of the parent once that is published.
    wait_for_publication(db, base)?;
    let tip = db.commits.tip();
    if tip.number != base {
        return Err(Error::StaleParent { base, tip: tip.number });
    }
    let mut nodes = ReplacedNodes::default();
    for chunk in chunks {
        for outcome in chunk.regions.iter().filter(|outcome| !outcome.nodes.is_empty()) {
            let state = outcome.region.read();
            nodes.regions.push((*outcome.region.prefix(), *state.own()));
            // A layout that has changed since is noticed before the ticket: whatever is said here is not written.
            let same = state.layout_version() == outcome.layout_version && !state.is_retired();
            for page in &chunk.nodes[outcome.nodes.clone()] {
                let node = if same { state.node(page.child as usize) } else { None };
                nodes.pages.push((page.prefix, node.copied().unwrap_or_default()));
            }
        }
    }
    Ok(Past { nodes, blob: tip.blob })
}

/// May a commit on this parent take the next ticket? Gives the commit that it follows: states count, not
/// their numbers.
fn check_parent<D: Device, R: Runtime>(db: &State<D, R>, target: &Target<'_>) -> Result<u64> {
    let state = db.commits.sequencer().lock();
    state.check_open()?;
    if !state.loading && state.newest.roots.first() == *target.prev_root {
        return Ok(state.newest.number);
    }
    Err(stale(&state, target))
}

/// Is the commit that this one follows still the newest?
fn check_follows(state: &Ordered, target: &Target<'_>) -> Result<()> {
    state.check_open()?;
    let follows = !state.loading && state.newest.number == target.follows;
    if follows { Ok(()) } else { Err(stale(state, target)) }
}

fn stale(state: &Ordered, target: &Target<'_>) -> Error {
    // The next number is a load's, if one is under way.
    let tip = state.newest.number.max(u64::from(state.loading));
    Error::StaleParent { base: target.follows, tip }
}

/// Chunks below which regions have been joined since they were folded become one: a region is of one chunk.
/// They are stale, and folded again before they are used.
fn join_chunks<D: Device, R: Runtime>(db: &State<D, R>, chunks: &mut Vec<ChunkOutcome>) {
    let retired = |outcome: &RegionOutcome| outcome.region.read().is_retired();
    if !chunks.iter().flat_map(|chunk| &chunk.regions).any(retired) {
        return;
    }
    chunks.retain(|chunk| !chunk.regions.is_empty());
    let index = db.index.load();
    chunks.dedup_by(|next, chunk| {
        let last = chunk.regions.last().expect("retained").region.prefix().last_key();
        let first = next.regions[0].region.prefix().first_key();
        let joined = index.region(&last).prefix().covers(first);
        if joined {
            chunk.absorb(next);
        }
        joined
    });
}

/// Commit `refold`: folds the chunks again below which a flush has split or merged pages since they were
/// folded. It folds on the state that they were folded on, so that they stay true when another commit
/// comes first.
fn refold_stale<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    view: &View,
    chunks: &mut [ChunkOutcome],
) -> Result<()> {
    for chunk in chunks {
        let stale = chunk.regions.iter().any(|outcome| {
            let state = outcome.region.read();
            state.is_retired() || state.layout_version() != outcome.layout_version
        });
        if !stale {
            continue;
        }
        Counters::add(&engine.state.counters.refolds, 1);
        let accesses: Vec<KeyAccess> = chunk
            .changes
            .iter()
            .map(|changed| KeyAccess {
                key: changed.key,
                reads: false,
                writes: Some(changed.new.clone()),
            })
            .collect();
        let mut refolded = refold(&engine.state, &engine.finisher, view, &accesses)?;
        refolded.changes = std::mem::take(&mut chunk.changes);
        *chunk = refolded;
    }
    Ok(())
}

fn log_value(stored: &Stored) -> LogValue<'_> {
    match stored {
        Stored::Absent => LogValue::Absent,
        Stored::Inline(value) => LogValue::Inline(value),
        Stored::Large(large) => LogValue::Inline(&large.bytes),
        Stored::Overflow(cell) => LogValue::Overflow(cell),
    }
}

/// The record of a commit; with `past`, it has what it replaces, and says that the history begins at
/// `kept_from`.
fn encode(
    database: u64,
    blob: &[u8],
    target: &Target<'_>,
    chunks: &[ChunkOutcome],
    past: Option<&Past>,
    kept_from: u64,
) -> RecordBuf {
    let mut changes = ChangeSection::default();
    let mut nodes = NodeSection::default();
    let mut replaced = past.map(|past| past.nodes.pages.iter());
    for chunk in chunks {
        for changed in chunk.changes.iter() {
            let new = log_value(&changed.new);
            if past.is_some() {
                changes.push_with_undo(&changed.key, new, log_value(&changed.prior));
            } else {
                changes.push(&changed.key, new);
            }
        }
        for page in &chunk.nodes {
            match replaced.as_mut().and_then(Iterator::next) {
                Some((_, before)) => nodes.push_with_undo(&page.prefix, &page.node, before),
                None => nodes.push(&page.prefix, &page.node),
            }
        }
    }
    for (prefix, before) in past.iter().flat_map(|past| &past.nodes.regions) {
        nodes.push_region(prefix, before);
    }
    let part = NamespacePart {
        ns: 0,
        previous_root: *target.prev_root,
        new_root: *target.root,
        changes: vec![changes],
        nodes: vec![nodes],
    };
    let before = past.map(|past| RecordBefore { kept_from, blob: &past.blob });
    commit_record(database, target.follows + 1, blob, before, vec![part])
}

/// Commit `publish`: makes a written commit, whose record ends at `log_position`, visible. Fails only while
/// the chunks are still as they were.
fn publish<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    log_position: LogPos,
    tip: Tip,
    replaced: Option<Replaced>,
    chunks: &mut Vec<ChunkOutcome>,
) -> Result<()> {
    let Engine { state: db, finisher, .. } = engine;
    let (number, sequencer) = (tip.number, db.commits.sequencer());
    // The parent may fail after this record has been queued behind its own.
    wait_for_publication(db, number - 1)?;
    let (mut chunks, unchanged): (Vec<_>, Vec<_>) =
        std::mem::take(chunks).into_iter().partition(|chunk| !chunk.changes.is_empty());
    finisher.give_outcomes_back(unchanged);
    let lists = chunks.iter_mut().map(|chunk| std::mem::take(&mut chunk.changes));
    let changes = Changes::new(lists.collect());
    db.commits.undo().push(number, changes.clone(), replaced);
    finisher.give_outcomes_back(apply_all(db, number, log_position, chunks, &changes));
    Counters::add(&db.counters.changes, changes.len() as u64);
    Counters::add(&db.counters.commits, 1);
    {
        let mut state = sequencer.lock();
        db.commits.publish(tip);
        state.in_flight -= 1;
    }
    db.store.begin_batch(number + 1);
    db.pace.tell();
    db.pace.wake();
    // Behind the number: nobody waits for it.
    db.commits.undo().settle(&db.runtime, log_position);
    Ok(())
}

/// Values of more bytes than this are written and synced before the record that names them.
const LOG_VALUE: usize = 64 << 10;

/// Commit `spill-values`: writes large values to the overflow file and names their runs instead.
fn spill_values<'a, D: Device, R: Runtime>(
    db: &'a State<D, R>,
    chunks: &mut [ChunkOutcome],
    taken: &mut Vec<Taken>,
) -> Result<Tentative<'a, D>> {
    let mut spilled = db.space.tentative();
    for (at, chunk) in chunks.iter_mut().enumerate() {
        if !chunk.changes.iter().any(|changed| is_long(&changed.new)) {
            continue;
        }
        // An overlay goes on reading the values from memory.
        taken.push((at, Arc::clone(&chunk.changes)));
        for changed in Arc::make_mut(&mut chunk.changes).iter_mut() {
            if let Stored::Large(large) = &changed.new
                && is_long(&changed.new)
            {
                changed.new = Stored::Overflow(overflow::write(db, &mut spilled, large, 0)?);
            }
        }
    }
    if !spilled.is_empty() {
        db.store.device().sync(db.space.overflow_file()).map_err(|error| {
            let error = Error::from(error);
            db.poison(&error);
            error.poisoning()
        })?;
    }
    Ok(spilled)
}
