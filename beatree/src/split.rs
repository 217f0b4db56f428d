//! Splitting a region that has more children than a branch page holds.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use pleach_core::fold::Folder;
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::prefix::bit;
use pleach_core::{Hasher, Node};

use crate::cuts::{Cut, Cuts};
use crate::region::{Nodes, Region, RegionState};
use crate::top::Top;

/// The node of a region from those of its children.
///
/// # Panics
/// Never for one node a child.
pub fn region_node<H: Hasher>(cuts: &Cuts, nodes: &[Node]) -> Node {
    let mut folder = Folder::<H>::new();
    folder.begin(cuts.region().len());
    for (cut, node) in cuts.iter().zip(nodes) {
        folder.subtrie(&cut.prefix, node);
    }
    let fold = folder.end().expect("no terminal is placed here");
    folder.run();
    folder.node(fold)
}

/// A region that is to be split, held for writing until its halves are published.
pub type Split<'a> = (&'a Arc<Region>, RwLockWriteGuard<'a, RegionState>);

/// The index with these regions replaced by their halves, as often as it takes for each to fit
/// in a branch page. The replaced regions are retired.
///
/// Whoever lets a region grow too large holds it from then until the new index is published, so that
/// nobody ever sees it: those who wait for its lock find it retired, and its halves in the index.
///
/// # Panics
/// When a region is not in the index.
pub fn split_held<H: Hasher>(top: &Top, split: &mut [Split<'_>]) -> Top {
    let mut places: Vec<(usize, &mut Split<'_>)> =
        split.iter_mut().map(|split| (top.find(split.0.prefix().first_key()), split)).collect();
    places.sort_unstable_by_key(|(place, _)| *place);
    let mut regions = Vec::with_capacity(top.regions().len() + 2 * places.len());
    let mut from = 0;
    for (place, (region, state)) in places {
        assert!(Arc::ptr_eq(region, &top.regions()[place]), "a region of the index is split");
        regions.extend_from_slice(&top.regions()[from..place]);
        regions
            .extend(parts::<H>(state).into_iter().map(|state| Arc::new(Region::with_state(state))));
        state.retired = true;
        from = place + 1;
    }
    regions.extend_from_slice(&top.regions()[from..]);
    Top::new(regions)
}

/// The same for regions that nobody else can see.
pub fn split_regions<H: Hasher>(top: &Top, split: &[Arc<Region>]) -> Top {
    let mut held: Vec<Split<'_>> = split.iter().map(|region| (region, region.write())).collect();
    split_held::<H>(top, &mut held)
}

/// States with at most [`MAX_ENTRIES`] children each, in place of one.
fn parts<H: Hasher>(state: &mut RegionState) -> Vec<RegionState> {
    let mut done = Vec::new();
    let mut todo = vec![take(state)];
    while let Some(whole) = todo.pop() {
        if whole.cuts.len() <= MAX_ENTRIES {
            done.push(whole);
            continue;
        }
        let depth = whole.cuts.region().len();
        let at = (0..whole.cuts.len())
            .position(|child| bit(whole.cuts.prefix(child).first_key(), depth))
            .expect("a region of many children has some on the right");
        let pending_at = whole.pending.partition_point(|pending| !bit(&pending.key, depth));
        todo.push(half::<H>(&whole, at..whole.cuts.len(), pending_at..whole.pending.len(), true));
        todo.push(half::<H>(&whole, 0..at, 0..pending_at, false));
    }
    done
}

fn take(state: &mut RegionState) -> RegionState {
    RegionState {
        cuts: state.cuts.clone(),
        nodes: Nodes::Resident(resident(state).to_vec()),
        treelet: None,
        paged_at: None,
        spill_page: None,
        pending: std::mem::take(&mut state.pending),
        leads: Vec::new(),
        dropped: std::mem::take(&mut state.dropped),
        touches: std::mem::take(&mut state.touches),
        changed_at: std::mem::take(&mut state.changed_at),
        changed: state.changed,
        position: state.position,
        shape: 0,
        own: state.own,
        retired: false,
    }
}

fn half<H: Hasher>(
    whole: &RegionState,
    children: Range<usize>,
    pending: Range<usize>,
    right: bool,
) -> RegionState {
    let cuts: Vec<Cut> = children.clone().map(|child| whole.cuts.cut(child)).collect();
    let region = whole.cuts.region().child(right);
    let cuts = Cuts::new(region, &cuts);
    let nodes = resident(whole)[children.clone()].to_vec();
    RegionState {
        own: region_node::<H>(&cuts, &nodes),
        nodes: Nodes::Resident(nodes),
        treelet: None,
        paged_at: None,
        spill_page: None,
        pending: whole.pending[pending].to_vec(),
        leads: Vec::new(),
        dropped: whole
            .dropped
            .iter()
            .filter(|dropped| region.covers(&dropped.pending.key))
            .cloned()
            .collect(),
        touches: whole.touches[children.clone()].to_vec(),
        changed_at: whole.changed_at[children].to_vec(),
        cuts,
        changed: whole.changed,
        position: whole.position,
        shape: 0,
        retired: false,
    }
}

fn resident(state: &RegionState) -> &[Node] {
    match &state.nodes {
        Nodes::Resident(nodes) => nodes,
        Nodes::Paged(_) => panic!("a changed region's nodes are in memory"),
    }
}
