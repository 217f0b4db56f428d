//! What a round makes of a range of keys: the old pages, and the new ones that replace them.
//!
//! Owned by the round; the steps fill it in one after the other (`gather`, [`build`](super::build),
//! [`publish`](super::publish)). Ranges of one round are disjoint and in key order.

use std::sync::Arc;

use pleach_beatree::{PageNo, Region};
use pleach_core::page::overflow::OverflowExtent;
use pleach_core::{Node, Prefix};

use super::cells::OldPage;

/// Siblings merge when they fill at most this share of a page, in percent.
pub(super) const MERGE_PERCENT: usize = 60;

/// A range whose pages a round replaces: one old page, or two siblings that merge.
pub(super) struct Rewrite {
    pub(super) region: Arc<Region>,
    pub(super) range: Prefix,
    pub(super) old: Vec<OldPage>,
    /// The last commit that was applied to the region when this was gathered; the new pages contain it.
    pub(super) applied_through: u64,
    /// The region's layout version when this was gathered.
    pub(super) layout_version: u64,
    pub(super) new: Vec<NewLeaf>,
    pub(super) replaced_extents: Vec<OverflowExtent>,
    /// How many of the region's replaced values this rewrite retires.
    pub(super) replaced_values: usize,
}

/// A page as it was written.
pub(super) struct NewLeaf {
    pub(super) prefix: Prefix,
    pub(super) page: WrittenPage,
    /// Node of the page with all buffered changes.
    pub(super) node: Node,
}

/// A page and the place of its bytes: a run of the round and a page in it.
pub(super) struct WrittenPage {
    pub(super) number: PageNo,
    pub(super) tag: u32,
    pub(super) run: usize,
    pub(super) at: usize,
}

impl Rewrite {
    /// True when one page becomes one page of the same prefix.
    pub(super) fn is_moved(&self) -> bool {
        self.new.len() == 1 && self.old.len() == 1
    }
}
