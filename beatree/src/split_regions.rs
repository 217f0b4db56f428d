//! An index in which regions that grew too large are replaced by several, and small ones by one.
//!
//! A branch page holds at most [`MAX_ENTRIES`] children. A region that outgrows it is divided
//! ([`RegionState::split`](crate::RegionState::split)) before a checkpoint could see it, and the caller publishes the
//! new index. Two siblings that have become small are joined ([`RegionState::join`](crate::RegionState::join)) in the
//! same way.
//!
//! [`MAX_ENTRIES`]: pleach_core::page::branch::MAX_ENTRIES
//!
//! ```
//! use std::sync::Arc;
//!
//! use pleach_beatree::split_regions::split_regions;
//! use pleach_beatree::{ChildRef, ChildTable, Region, RegionIndex};
//! use pleach_core::prefix::Prefix;
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! // 256 children are more than a branch page holds.
//! let child = |index| ChildRef { prefix: Prefix::ROOT.descendant(8, index), page: None, tag: 0 };
//! let children: Vec<ChildRef> = (0..=255).map(child).collect();
//! let table = ChildTable::new(Prefix::ROOT, &children);
//! let nodes = vec![TERMINATOR; 256];
//! let region = Arc::new(Region::new(Hasher::BLAKE3, 0, table, nodes, 0));
//!
//! let old = RegionIndex::new(vec![Arc::clone(&region)]);
//! let new = split_regions(Hasher::BLAKE3, &old, &[Arc::clone(&region)]);
//! assert!(new.regions().len() > 1);
//! // A reader that holds the old region finds it retired and looks the key up again.
//! assert!(region.read().is_retired());
//! ```

use std::sync::Arc;

use pleach_core::Hasher;
use pleach_core::page::branch::MAX_ENTRIES;

use crate::index::RegionIndex;
use crate::region::{Region, WriteState};

/// A region that is to be split, held for writing until its halves are published.
pub type HeldRegion<'a> = (&'a Arc<Region>, WriteState<'a>);

/// The index with these regions replaced by their halves, divided as often as it takes for each to
/// fit in a branch page. The replaced regions are retired.
///
/// The caller that lets a region grow too large holds its lock until the new index is published, so that no other
/// thread sees it: threads that wait for the lock find the region retired, and its halves in the index.
///
/// # Panics
/// When a region is not in the index.
pub fn split_held(hasher: Hasher, index: &RegionIndex, held: &mut [HeldRegion<'_>]) -> RegionIndex {
    let mut found: Vec<(usize, &mut HeldRegion<'_>)> =
        held.iter_mut().map(|held| (index.find(held.0.prefix().first_key()), held)).collect();
    found.sort_unstable_by_key(|(at, _)| *at);
    let mut regions = Vec::with_capacity(index.regions().len() + 2 * found.len());
    let mut from = 0;
    for (at, (region, state)) in found {
        assert!(Arc::ptr_eq(region, &index.regions()[at]), "a region of the index is split");
        regions.extend_from_slice(&index.regions()[from..at]);
        regions.extend(state.split(hasher).into_iter().map(Arc::new));
        from = at + 1;
    }
    regions.extend_from_slice(&index.regions()[from..]);
    RegionIndex::new(regions)
}

/// Like [`split_held`], for regions that no other thread can see.
pub fn split_regions(hasher: Hasher, index: &RegionIndex, split: &[Arc<Region>]) -> RegionIndex {
    let mut held: Vec<HeldRegion<'_>> =
        split.iter().map(|region| (region, region.write())).collect();
    split_held(hasher, index, &mut held)
}

/// Siblings with at most this many children in all are joined: half of what a region may have, so that many more pages
/// come before the region is divided again.
pub const JOINED_ENTRIES: usize = MAX_ENTRIES / 2;

/// Two siblings that are to be joined, held for writing until the region over both is published.
#[derive(Debug)]
pub struct RegionPair<'a> {
    /// The left region's index.
    pub at: usize,
    /// The left region's state.
    pub left: WriteState<'a>,
    /// The state of the right region, which comes next in the index.
    pub right: WriteState<'a>,
}

/// The index with these pairs, in ascending order, replaced by regions over both, as of the log record that
/// ends at `log_position`. The replaced regions are retired.
pub fn join_held(
    hasher: Hasher,
    index: &RegionIndex,
    pairs: &mut [RegionPair<'_>],
    log_position: u64,
) -> RegionIndex {
    let mut regions = Vec::with_capacity(index.regions().len() - pairs.len());
    let mut from = 0;
    for RegionPair { at, left, right } in pairs {
        regions.extend_from_slice(&index.regions()[from..*at]);
        regions.push(Arc::new(left.join(hasher, right, log_position)));
        from = *at + 2;
    }
    regions.extend_from_slice(&index.regions()[from..]);
    RegionIndex::new(regions)
}

#[cfg(test)]
mod tests {
    use pleach_core::prefix::Prefix;
    use pleach_core::{Hasher, Node, TERMINATOR};

    use super::*;
    use crate::region::{BufferedChange, NewNodes, Relocation};
    use crate::{ChildRef, ChildTable, PageNo, Stored};

    #[test]
    fn regions_that_were_split_and_joined_again_are_what_they_were() {
        let put = |key: u8| BufferedChange {
            key: [key; 32],
            stored: Stored::Inline([key].as_slice().into()),
            commit: u64::from(key),
        };
        let child = |index: u8| ChildRef {
            prefix: Prefix::ROOT.descendant(7, index),
            page: Some(PageNo::new(index.into())),
            tag: u32::from(index),
        };
        let children: Vec<ChildRef> = (0..128).map(child).collect();
        let nodes: Vec<Node> = (0..128).map(|index| Node::new([index | 0x80; 32])).collect();
        let table = ChildTable::new(Prefix::ROOT, &children);
        let whole = Arc::new(Region::new(Hasher::BLAKE3, 0, table, nodes.clone(), 0));
        let own = *whole.read().own_node();
        whole.write().restore_buffered(vec![put(3), put(100), put(200)], Vec::new());
        let index = RegionIndex::new(vec![Arc::clone(&whole)]);
        let halves = split_regions(Hasher::BLAKE3, &index, &[whole]);
        let [left, right] = halves.regions() else { panic!("two halves") };
        // Only one half was flushed: their log positions differ.
        let page = ChildRef { page: Some(PageNo::new(500)), ..child(100) };
        let moved =
            Relocation { range: page.prefix, pages: &[(page, nodes[100])], last_commit: 200 };
        right.write().relocate(&[moved], 40);
        let mut pairs = [RegionPair { at: 0, left: left.write(), right: right.write() }];
        let joined = join_held(Hasher::BLAKE3, &halves, &mut pairs, 48);
        drop(pairs);
        assert!(left.read().is_retired() && right.read().is_retired());
        let [region] = joined.regions() else { panic!("one region") };
        let state = region.read();
        assert_eq!(state.children().len(), 128);
        assert!((0..128).all(|child| *state.node(child) == nodes[child]));
        assert_eq!(state.children().get(100).page, Some(PageNo::new(500)));
        assert_eq!((*state.own_node(), state.log_position(), state.last_commit()), (own, 48, 200));
        let buffered: Vec<u64> = state.buffered().iter().map(|buffered| buffered.commit).collect();
        assert_eq!(buffered, [3, 100]);
        assert!(
            state.buffered_change(&[100; 32]).is_some()
                && state.buffered_change(&[200; 32]).is_none()
        );
        assert_eq!(state.changes_since_write(1), 1);
    }

    #[test]
    fn a_plain_region_has_no_nodes_whatever_becomes_of_it() {
        let child = |index: u8| ChildRef {
            prefix: Prefix::ROOT.descendant(7, index),
            page: Some(PageNo::new(index.into())),
            tag: 0,
        };
        let children: Vec<ChildRef> = (0..128).map(child).collect();
        let table = ChildTable::new(Prefix::ROOT, &children);
        let whole = Arc::new(Region::new(Hasher::BLAKE3, 7, table, Vec::new(), 1));
        let index = RegionIndex::new(vec![Arc::clone(&whole)]);
        let halves = split_regions(Hasher::BLAKE3, &index, &[whole]);
        let [left, right] = halves.regions() else { panic!("two halves") };
        let is_plain = |region: &Region, children: usize| {
            let state = region.read();
            assert!(state.is_plain() && state.lines().is_none());
            assert_eq!((state.children().len(), *state.own_node()), (children, TERMINATOR));
            assert_eq!(state.node(children - 1), &TERMINATOR);
        };
        is_plain(left, 64);
        // Nodes that a caller gives are not kept.
        let put = ([3; 32], Stored::Inline([3].as_slice().into()));
        let node = Node::new([0x81; 32]);
        let mut applied = crate::region::RegionCommit {
            commit: 2,
            version: 2,
            log_position: 20,
            changes: &mut std::iter::once(put),
            nodes: NewNodes::Plain,
        };
        left.write().apply(&mut applied, &mut Vec::new(), |_, _| ());
        let merged = ChildRef { prefix: Prefix::ROOT.descendant(6, 0), ..child(0) };
        let moved = Relocation { range: merged.prefix, pages: &[(merged, node)], last_commit: 2 };
        left.write().relocate(&[moved], 30);
        left.write().recompute_own_node(Hasher::BLAKE3);
        is_plain(left, 63);
        let mut pairs = [RegionPair { at: 0, left: left.write(), right: right.write() }];
        let joined = join_held(Hasher::BLAKE3, &halves, &mut pairs, 48);
        drop(pairs);
        let [region] = joined.regions() else { panic!("one region") };
        is_plain(region, 127);
    }
}
