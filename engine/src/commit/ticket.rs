//! Commit `check-parent`, `make-room` and `ticket`: the record, and its place in the order of commits.

use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::Stored;
use pleach_beatree::pages::TentativeExtents;
use pleach_core::TERMINATOR;
use pleach_journal::format::commit_body::{
    EntryKind, LoggedValue, NamespacePart, Section, UndoHeader, commit_record,
};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::record::{MAX_RECORD, RecordBuf};
use pleach_journal::format::trie_kind::TrieKind;

use super::refold::refold_stale;
use super::target::{CommitPart, CommitTarget, wait_for_publication};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::finish::outcome::ChunkOutcome;
use crate::options::Durability;
use crate::phase::Phase;
use crate::roots::TrieRoot;
use crate::state::NamespaceDb;
use crate::state::history::PriorCommit;
use crate::state::order::sequencer::SequencerState;
use crate::state::overlays::LayerCommit;
use crate::state::undo::replaced::ReplacedNodes;

/// Attempts to get a ticket before flushes that change a layout are held off.
const TRIES: u32 = 3;

/// Sections of fewer changes are encoded by one thread: waking workers takes as long.
const PARALLEL_SECTIONS: usize = 4096;

/// A commit whose record is queued.
pub(super) struct QueuedCommit {
    /// The log position at which the record ends.
    pub(super) end: LogPos,
    /// The nodes that each part replaces, and the commit before, where there is a history.
    pub(super) replaced: Option<(Vec<ReplacedNodes>, PriorCommit)>,
}

/// Commit `refold`, `make-room` and `ticket`. `seen`: the count of layouts, read after
/// joins were held off.
pub(super) fn take_ticket(
    engine: &Engine,
    target: &CommitTarget<'_>,
    parts: &mut [CommitPart<'_>],
    spilled: TentativeExtents<'_>,
    seen: u64,
) -> Result<QueuedCommit> {
    let CommitTarget { transition, follows, layers, .. } = *target;
    let (db, number, back_to) = (&*engine.db, follows + 1, target.options.back_to);
    assert!(back_to.is_none_or(|back| back < number), "a rollback goes back");
    let undo = &db.commits.undo;
    let (mut tries, mut folded_at) = (0, transition.layouts);
    loop {
        tries += 1;
        let tries_now = db.tries.list();
        // Holds off flushes that change layouts, in all namespaces: the sequencer counts them together. Whoever holds
        // several indexes takes them in the order of namespaces; all others hold one.
        let held = || tries_now.iter().map(|trie| trie.tree.hold_structure()).collect::<Vec<_>>();
        let hold = (tries > TRIES).then(held);
        let layouts = if tries == 1 {
            seen
        } else {
            let state = db.commits.sequencer.lock();
            check_still_newest(&state, target)?;
            state.layouts
        };
        if folded_at != Some(layouts) {
            let _timed = db.timings.begin_phase(Phase::Prepare);
            for part in parts.iter_mut() {
                refold_stale(&engine.finisher, target, part)?;
            }
            folded_at = Some(layouts);
        }
        let past = if undo.has_history() { Some(parent_blob(db, target)?) } else { None };
        let kept_from = if past.is_some() { undo.begin_after(number) } else { number };
        let recording = db.timings.begin_phase(Phase::Record);
        let (encoded, nodes): (Vec<Vec<Section>>, Vec<ReplacedNodes>) =
            parts.iter().map(|part| encode_sections(db, part.chunks, past.is_some())).unzip();
        let time = db.pace.unix_time();
        let before = past.as_deref().map(|blob| UndoHeader { kept_from, blob, back_to, time });
        let mut record = encode_record(db, target, parts, encoded, before);
        drop(recording);
        let bytes = record.len();
        if bytes > MAX_RECORD {
            return Err(Error::BatchTooLarge { bytes, limit: MAX_RECORD });
        }
        if db.options.durability == Durability::Commit {
            record.set_synced();
        }
        let mut state = db.commits.sequencer.lock();
        if !state.has_room(bytes) {
            drop(state);
            db.make_room(bytes)?;
            state = db.commits.sequencer.lock();
        }
        check_still_newest(&state, target)?;
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
        assert_eq!(state.newest.number + 1, number, "a ticket follows the newest one");
        assert!(!target.has_ticket.get(), "a commit takes one ticket");
        assert!(kept_from <= number, "the history begins before what follows");
        let start = state.queue(record);
        spilled.mark_named();
        state.newest = transition.state(number);
        state.in_flight += 1;
        target.has_ticket.set(true);
        for (layer, own) in layers {
            layer.set_commit(LayerCommit { number, is_own_state: *own });
        }
        undo.note_recorded_begin(start + bytes, kept_from);
        let roots = transition.prev.roots.clone();
        let replaced = past.map(|blob| (nodes, PriorCommit { start, roots, blob, back_to, time }));
        return Ok(QueuedCommit { end: start + bytes, replaced });
    }
}

/// The blob before the commit. The nodes in memory are as of that state, too: its parent is the newest one.
fn parent_blob(db: &NamespaceDb, target: &CommitTarget<'_>) -> Result<Arc<[u8]>> {
    let base = target.follows;
    // Nodes in memory are the parent's once that is published.
    wait_for_publication(db, base)?;
    let tip = db.commits.tip();
    if tip.number != base {
        return Err(Error::StaleParent { base, tip: tip.number });
    }
    Ok(tip.blob)
}

/// Encodes the sections of a part; with a history also the replaced items; returns the replaced nodes. The caller makes
/// sure that the layouts are those of the chunks.
fn encode_sections(
    db: &NamespaceDb,
    chunks: &[ChunkOutcome],
    history: bool,
) -> (Vec<Section>, ReplacedNodes) {
    let changes: usize = chunks.iter().map(|chunk| chunk.changes.len()).sum();
    // While another session's fold is running, the workers would wait for it, and the log's write with them.
    let alone = changes < PARALLEL_SECTIONS || db.pace.foreground.is_busy();
    let most = if alone { 1 } else { db.runtime.workers() };
    let workers = most.min(chunks.len()).max(1);
    let made: Vec<Mutex<(Section, ReplacedNodes)>> =
        chunks.iter().map(|_| Mutex::default()).collect();
    let tasks = db.timings.begin_tasks(None, chunks.len());
    let make =
        |_: usize| tasks.run_tasks(|at| *made[at].lock() = encode_section(&chunks[at], history));
    let _own_processors = (workers > 1).then(|| db.pace.foreground.begin_publish());
    db.runtime.inline_or_fork_join(workers, &make);
    let (mut sections, mut all) = (Vec::with_capacity(made.len()), ReplacedNodes::default());
    for (section, mut replaced) in made.into_iter().map(Mutex::into_inner) {
        sections.push(section);
        all.pages.append(&mut replaced.pages);
        all.regions.append(&mut replaced.regions);
    }
    (sections, all)
}

/// Bytes that a change of a value of 32 bytes takes in the record, more than a page's node takes.
const ENTRY_BYTES: usize = 72;

/// The record's section of a chunk, and the nodes that the chunk replaces.
fn encode_section(chunk: &ChunkOutcome, history: bool) -> (Section, ReplacedNodes) {
    let [changes, nodes] =
        [chunk.changes.len(), chunk.nodes.len()].map(|count| count * ENTRY_BYTES);
    let mut section = Section::with_room(changes, nodes);
    let mut replaced = ReplacedNodes::default();
    if history {
        for changed in chunk.changes.iter() {
            let (new, prior) = (log_value(&changed.new), log_value(&changed.prior));
            section.push_with_undo(&changed.key, new, prior);
        }
        replaced = replaced_nodes(chunk);
        assert_eq!(replaced.pages.len(), chunk.nodes.len(), "a node for each changed page");
        for (page, (_, before)) in chunk.nodes.iter().zip(&replaced.pages) {
            section.push_node_with_undo(&page.prefix, &page.node, before);
        }
        for (prefix, before) in &replaced.regions {
            section.push_region(prefix, before);
        }
    } else {
        for changed in chunk.changes.iter() {
            section.push(&changed.key, log_value(&changed.new));
        }
        for page in &chunk.nodes {
            section.push_node(&page.prefix, &page.node);
        }
    }
    (section, replaced)
}

/// The nodes that a chunk replaces.
fn replaced_nodes(chunk: &ChunkOutcome) -> ReplacedNodes {
    let mut nodes = ReplacedNodes::default();
    nodes.pages.reserve_exact(chunk.nodes.len());
    for outcome in chunk.regions.iter().filter(|outcome| !outcome.nodes.is_empty()) {
        let state = outcome.region.read();
        nodes.regions.push((*outcome.region.prefix(), *state.own_node()));
        // A layout that has changed since is noticed before the ticket: this result is then not written.
        let same = state.layout_version() == outcome.layout_version && !state.is_retired();
        for page in &chunk.nodes[outcome.nodes.clone()] {
            let own = same.then(|| state.node(page.child as usize));
            nodes.pages.push((page.prefix, own.copied().unwrap_or_default()));
        }
    }
    nodes
}

/// Checks that a commit on this parent may take the next ticket. Gives the commit that it follows, which may be another
/// one with the same roots and blob, unless the target is exact.
pub(super) fn check_parent(db: &NamespaceDb, target: &CommitTarget<'_>) -> Result<u64> {
    let state = db.commits.sequencer.lock();
    state.check_open()?;
    if target.options.no_wait && state.in_flight > 0 {
        return Err(Error::WouldWait);
    }
    let same = if target.options.exact {
        state.newest.number == target.follows
    } else {
        state.newest.is_state_of(&target.transition.prev)
    };
    if !same || has_committed_layer(target) {
        return Err(stale_parent_error(&state, target));
    }
    state.check_not_loading()?;
    Ok(state.newest.number)
}

/// Checks that the followed commit is still the newest.
fn check_still_newest(state: &SequencerState, target: &CommitTarget<'_>) -> Result<()> {
    state.check_open()?;
    if state.newest.number != target.follows || has_committed_layer(target) {
        return Err(stale_parent_error(state, target));
    }
    state.check_not_loading()
}

/// True when another commit has taken one of the overlays. Their parent's state may have come back since.
fn has_committed_layer(target: &CommitTarget<'_>) -> bool {
    target.layers.iter().any(|(layer, _)| layer.commit().is_some())
}

fn stale_parent_error(state: &SequencerState, target: &CommitTarget<'_>) -> Error {
    Error::StaleParent { base: target.follows, tip: state.newest.number }
}

fn log_value(stored: &Stored) -> LoggedValue<'_> {
    match stored {
        Stored::Absent => LoggedValue::Absent,
        Stored::Inline(value) => LoggedValue::Inline(value),
        Stored::Long(large) => LoggedValue::Inline(&large.bytes),
        Stored::Overflow(cell) => LoggedValue::Overflow(cell),
    }
}

/// The record of a commit of these parts, each with its sections.
fn encode_record(
    db: &NamespaceDb,
    target: &CommitTarget<'_>,
    parts: &[CommitPart<'_>],
    encoded: Vec<Vec<Section>>,
    before: Option<UndoHeader<'_>>,
) -> RecordBuf {
    let entry = |ns: u8, kind, sections| {
        let [before, after] =
            [&target.transition.prev.roots, &target.transition.roots].map(|roots| roots.of(ns));
        let trie = after.or(before).map_or(TrieKind::Merkle, |root| root.kind);
        let node = |root: Option<TrieRoot>| root.map_or(TERMINATOR, |root| root.node);
        let (previous_root, new_root) = (node(before), node(after));
        NamespacePart { ns, kind, trie, previous_root, new_root, sections }
    };
    let mut entries = Vec::with_capacity(parts.len() + target.entry_kinds.len());
    for (part, sections) in parts.iter().zip(encoded) {
        if part.chunks.iter().all(|chunk| chunk.changes.is_empty()) {
            continue;
        }
        let ns = part.view.namespace;
        let entry_kind = target.entry_kinds.iter().find(|(namespace, _)| *namespace == ns);
        let kind = entry_kind.map_or(EntryKind::Changed, |(_, kind)| *kind);
        entries.push(entry(ns, kind, sections));
    }
    for (ns, kind) in target.entry_kinds {
        if !entries.iter().any(|entry| entry.ns == *ns) {
            entries.push(entry(*ns, *kind, Vec::new()));
        }
    }
    if entries.is_empty() {
        // A commit that changes nothing has an entry, too.
        entries.push(entry(0, EntryKind::Changed, Vec::new()));
    }
    entries.sort_unstable_by_key(|entry| entry.ns);
    assert!(entries.is_sorted_by(|a, b| a.ns < b.ns), "one entry for each namespace");
    let (database, number) = (db.store.database, target.follows + 1);
    commit_record(database, number, &target.transition.blob, before, entries)
}
