//! An index in which regions that grew too large are replaced by several.
//!
//! A branch page holds at most [`MAX_ENTRIES`] children. A region that outgrows it is taken apart
//! ([`RegionState::take_apart`](crate::RegionState::take_apart)) before a checkpoint could see it, and a new index is made, which the
//! caller publishes.
//!
//! [`MAX_ENTRIES`]: pleach_core::page::branch::MAX_ENTRIES
//!
//! ```
//! use std::sync::Arc;
//!
//! use pleach_beatree::split::split_regions;
//! use pleach_beatree::{ChildRef, ChildTable, Region, RegionIndex};
//! use pleach_core::Blake3;
//! use pleach_core::prefix::Prefix;
//! use pleach_core::TERMINATOR;
//!
//! // 256 children are more than a branch page holds.
//! let child = |index| ChildRef { prefix: Prefix::ROOT.descendant(8, index), page: None, tag: 0 };
//! let children: Vec<ChildRef> = (0..=255).map(child).collect();
//! let table = ChildTable::new(Prefix::ROOT, &children);
//! let region = Arc::new(Region::bulk_loaded(table, vec![TERMINATOR; 256], TERMINATOR, 0));
//!
//! let old = RegionIndex::new(vec![Arc::clone(&region)]);
//! let new = split_regions::<Blake3>(&old, &[Arc::clone(&region)]);
//! assert!(new.regions().len() > 1);
//! // Whoever still holds the old region finds it retired and looks the key up again.
//! assert!(region.read().is_retired());
//! ```

use std::sync::Arc;

use pleach_core::Hasher;

use crate::index::RegionIndex;
use crate::region::{Region, WriteState};

/// A region that is to be split, held for writing until its halves are published.
pub type Split<'a> = (&'a Arc<Region>, WriteState<'a>);

/// The index with these regions replaced by their halves, divided as often as it takes for each to
/// fit in a branch page. The replaced regions are retired.
///
/// Whoever lets a region grow too large holds its lock until the new index is published, so that nobody
/// ever sees it: those who wait for the lock find the region retired, and its halves in the index.
///
/// # Panics
/// When a region is not in the index.
pub fn split_held<H: Hasher>(index: &RegionIndex, split: &mut [Split<'_>]) -> RegionIndex {
    let mut found: Vec<(usize, &mut Split<'_>)> =
        split.iter_mut().map(|split| (index.find(split.0.prefix().first_key()), split)).collect();
    found.sort_unstable_by_key(|(at, _)| *at);
    let mut regions = Vec::with_capacity(index.regions().len() + 2 * found.len());
    let mut from = 0;
    for (at, (region, state)) in found {
        assert!(Arc::ptr_eq(region, &index.regions()[at]), "a region of the index is split");
        regions.extend_from_slice(&index.regions()[from..at]);
        regions.extend(state.take_apart::<H>().into_iter().map(Arc::new));
        from = at + 1;
    }
    regions.extend_from_slice(&index.regions()[from..]);
    RegionIndex::new(regions)
}

/// The same for regions that nobody else can see.
pub fn split_regions<H: Hasher>(index: &RegionIndex, split: &[Arc<Region>]) -> RegionIndex {
    let mut held: Vec<Split<'_>> = split.iter().map(|region| (region, region.write())).collect();
    split_held::<H>(index, &mut held)
}
