//! Splitting a region that has more children than a branch page holds.

use std::ops::Range;
use std::sync::Arc;

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

/// The index with these regions replaced by their halves, as often as it takes for each to fit
/// in a branch page. The replaced regions are retired.
pub fn split_regions<H: Hasher>(top: &Top, split: &[Arc<Region>]) -> Top {
    let mut regions = Vec::with_capacity(top.regions().len() + 2 * split.len());
    for region in top.regions() {
        if split.iter().any(|other| Arc::ptr_eq(other, region)) {
            let mut state = region.write();
            regions.extend(
                parts::<H>(&mut state).into_iter().map(|state| Arc::new(Region::with_state(state))),
            );
            state.retired = true;
        } else {
            regions.push(Arc::clone(region));
        }
    }
    Top::new(regions)
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
