//! Commit `refold`: adapts a commit's chunks to the regions and layouts that flushes have changed since its finish.
//! Their trie may even be another one by now, with the same pairs.

use std::sync::Arc;

use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::{Region, RegionIndex, RegionState};
use pleach_core::Prefix;
use pleach_core::fold::Occupancy;
use pleach_core::node::{NodeKind, kind};

use super::target::{CommitPart, CommitTarget};
use crate::error::Result;
use crate::finish::outcome::{ChunkOutcome, Fragment, PageNode, RegionOutcome};
use crate::finish::{Finisher, check_refolded, refold};
use crate::metrics::Counters;
use crate::state::NamespaceDb;
use crate::state::undo::changes::KeyUpdate;
use crate::state::view::View;

/// True when the region of an outcome is not in the index any more.
fn is_region_replaced(index: &RegionIndex, outcome: &RegionOutcome) -> bool {
    !Arc::ptr_eq(index.region(outcome.region.prefix().first_key()), &outcome.region)
}

/// Joins chunks whose regions have been joined since they were folded: a region belongs to one chunk. Joined chunks are
/// stale, and folded again before they are used.
pub(super) fn join_chunks(part: &mut CommitPart<'_>) {
    let CommitPart { db, chunks, .. } = part;
    let index = db.tree.load();
    if !chunks
        .iter()
        .flat_map(|chunk| &chunk.regions)
        .any(|outcome| is_region_replaced(&index, outcome))
    {
        return;
    }
    chunks.retain(|chunk| !chunk.regions.is_empty());
    chunks.dedup_by(|next, chunk| {
        let last = chunk.regions.last().expect("retained").region.prefix().last_key();
        let first = next.regions[0].region.prefix().first_key();
        let joined = index.region(&last).prefix().covers(first);
        if joined {
            assert!(last < *first, "chunks come in key order");
            chunk.absorb(next);
        }
        joined
    });
}

/// Commit `refold`: brings chunks to the present layouts, where a flush has split or merged pages since they were
/// folded. It folds on the state that they were folded on, so that they stay true when another commit comes first. The
/// result must have the roots of the finish, or the commit fails.
pub(super) fn refold_stale(
    finisher: &Finisher,
    target: &CommitTarget<'_>,
    part: &mut CommitPart<'_>,
) -> Result<()> {
    let CommitPart { db, view, chunks } = part;
    let mut refolded_some = false;
    let index = db.tree.load_full();
    for chunk in chunks.iter_mut() {
        let stale = chunk.regions.iter().any(|outcome| {
            is_region_replaced(&index, outcome)
                || outcome.region.read().layout_version() != outcome.layout_version
        });
        if !stale {
            continue;
        }
        Counters::add(&db.counters.refolds, 1);
        refolded_some = true;
        if follow_layout(db, finisher, view, target.follows, chunk)? {
            continue;
        }
        let accesses: Vec<KeyAccess> = chunk.changes.iter().map(write_access).collect();
        let mut refolded = refold(db, finisher, view, &accesses)?;
        assert_eq!(refolded.changes.len(), chunk.changes.len(), "the same changes are folded");
        refolded.changes = std::mem::take(&mut chunk.changes);
        *chunk = refolded;
    }
    let roots = [&target.transition.prev.roots, &target.transition.roots]
        .map(|roots| roots.get(db.namespace));
    if let ([Some(before), Some(after)], true) = (roots, refolded_some) {
        check_refolded(db, finisher, view, (&before, &after), chunks)?;
    }
    Ok(())
}

/// The write access that makes a change.
pub(super) fn write_access(changed: &KeyUpdate) -> KeyAccess {
    KeyAccess { key: changed.key, reads: false, writes: Some(changed.new.clone()) }
}

/// Brings a chunk to the present layout where its regions are as of the commit that it follows, which has the state
/// that it was folded on: remaining pages keep their nodes, new pages are folded, and the nodes above are computed.
/// False, and nothing is changed, where the regions are not so, or change meanwhile.
fn follow_layout(
    db: &NamespaceDb,
    finisher: &Finisher,
    view: &View,
    follows: u64,
    chunk: &mut ChunkOutcome,
) -> Result<bool> {
    if db.commits.published() < follows {
        return Ok(false);
    }
    let index = db.tree.load_full();
    let find = |nodes: &[PageNode], prefix: &Prefix| {
        nodes.binary_search_by_key(prefix, |node| node.prefix).ok()
    };
    // Both passes must see one layout: a page that appears in between may share changes with a page of the first pass.
    let (mut came, mut layouts) = (Vec::new(), Vec::new());
    let known = visit_regions(&index, follows, &chunk.changes, |_, state, changes| {
        layouts.push(state.layout_version());
        visit_pages(state, changes, |_, prefix, changes| {
            if find(&chunk.nodes, prefix).is_none() {
                came.extend(changes.iter().map(write_access));
            }
            true
        })
    });
    if !known {
        return Ok(false);
    }
    let folded =
        if came.is_empty() { ChunkOutcome::default() } else { refold(db, finisher, view, &came)? };
    let (mut regions, mut nodes, mut lines) = (Vec::new(), Vec::<PageNode>::new(), Vec::new());
    let (mut first_change, mut layouts) = (0, layouts.into_iter());
    let known = visit_regions(&index, follows, &chunk.changes, |region, state, changes| {
        if layouts.next() != Some(state.layout_version()) {
            return false;
        }
        let from = nodes.len();
        let whole = visit_pages(state, changes, |child, prefix, _| {
            let node = if let Some(at) = find(&chunk.nodes, prefix) {
                chunk.nodes[at].clone()
            } else {
                let Some(at) = find(&folded.nodes, prefix) else { return false };
                let mut node = folded.nodes[at].clone();
                node.discard_treelet();
                node
            };
            let child = u32::try_from(child).expect("a region has fewer than 2^32 children");
            nodes.push(PageNode { child, ..node });
            true
        });
        let old = match kind(state.own_node()) {
            NodeKind::Terminator => Occupancy::Empty,
            // The leaf's key is not known.
            NodeKind::Leaf => return false,
            NodeKind::Internal => Occupancy::Many,
        };
        let changed = nodes[from..].iter().map(|node| (node.child as usize, node.node));
        let (own_lines, node) = state.computed_lines(db.hasher).preview_update(db.hasher, changed);
        let lines_from = lines.len();
        lines.extend(own_lines);
        regions.push(RegionOutcome {
            region: Arc::clone(region),
            layout_version: state.layout_version(),
            node,
            old,
            before: Some(*state.own_node()),
            fragment: Fragment::default(),
            first_op: 0,
            nodes: from..nodes.len(),
            changes: first_change..first_change + changes.len(),
            lines: lines_from..lines.len(),
        });
        first_change += changes.len();
        whole
    });
    if known {
        assert_eq!(first_change, chunk.changes.len(), "each change is in a region");
        (chunk.regions, chunk.nodes, chunk.lines) = (regions, nodes, lines);
        chunk.parts = Vec::new();
    }
    Ok(known)
}

/// Visits each region with changes, as of a published commit. False when the region is newer, or `each` returns false.
fn visit_regions(
    index: &RegionIndex,
    commit: u64,
    mut rest: &[KeyUpdate],
    mut each: impl FnMut(&Arc<Region>, &RegionState, &[KeyUpdate]) -> bool,
) -> bool {
    while let Some(first) = rest.first() {
        let region = index.region(&first.key);
        let (own, behind) = split_below(rest, region.prefix());
        rest = behind;
        let state = region.read();
        let is_newest = !state.is_retired() && state.last_commit() <= commit;
        if !is_newest || !each(region, &state, own) {
            return false;
        }
    }
    true
}

/// Visits each page with changes, with its number in the region and its prefix, until `each` returns false.
fn visit_pages(
    state: &RegionState,
    mut rest: &[KeyUpdate],
    mut each: impl FnMut(usize, &Prefix, &[KeyUpdate]) -> bool,
) -> bool {
    while let Some(first) = rest.first() {
        let child = state.children().find(&first.key);
        let prefix = state.children().prefix(child);
        let (own, behind) = split_below(rest, &prefix);
        rest = behind;
        if !each(child, &prefix, own) {
            return false;
        }
    }
    true
}

/// Splits changes, of which the first is below a prefix: those below it, and the rest.
fn split_below<'a>(
    changes: &'a [KeyUpdate],
    prefix: &Prefix,
) -> (&'a [KeyUpdate], &'a [KeyUpdate]) {
    changes.split_at(changes.partition_point(|changed| prefix.covers(&changed.key)))
}
