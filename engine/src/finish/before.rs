//! What the positions on the ways that a batch changes had before it, for a history.
//!
//! A commit with a history says of each page that it changes which nodes lay on the ways to the buckets that it
//! changes ([`pleach_beatree::older`]). The page's treelet knows most of them, and the page itself those that it
//! stores; what neither knows, mostly since the page or a part of it is used for the first time, is folded here: the
//! page as it was, where only the unknown ways are gone down key by key. So a proof of that state has these nodes the
//! first time, too.
//!
//! A worker owns one of these. They stay unknown (a proof finds them out) where a batch is too large for the budget to
//! learn from, in pages that are cut or whose treelet parts their keys elsewhere, and in pages that later commits than the
//! batch's state have changed: what memory knows is of those, and the batch may be committed all the same, when another
//! commit has brought its state back.

use std::ops::Range;

use pleach_beatree::leaf_fold::{AccessResult, KeyAccess, PageState, fold_leaf};
use pleach_beatree::older::{UNKNOWN, bucket_of, has_buckets, ways_to};
use pleach_beatree::treelet::capture_levels;
use pleach_core::fold::{BatchFolder, above, each_position, heap_position, way};
use pleach_core::{Hasher, Node};

use super::captured::{BY_KEY, sort_captured};

/// What is known of a chunk's pages.
#[derive(Default)]
pub(super) struct Before<H: Hasher> {
    pages: Vec<Page>,
    /// The nodes of all of them.
    nodes: Vec<Node>,
    folder: BatchFolder<H>,
    /// Memory that is used again.
    accesses: Vec<KeyAccess>,
    results: Vec<AccessResult>,
    captured: Vec<(u8, Node)>,
    ends: Vec<usize>,
}

/// A page that the batch changes.
struct Page {
    /// Its place among those of the chunk.
    task: usize,
    /// Buckets that it changes.
    changed: u32,
    /// Where the nodes on the way to these begin, without that of the page.
    start: usize,
    /// The fold that finds out what is unknown.
    fold: Option<usize>,
}

/// The positions of which a page says something.
fn positions(changed: u32) -> u64 {
    ways_to(changed) & !1
}

impl<H: Hasher> Before<H> {
    /// Forgets all pages and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.nodes.clear();
        self.folder.clear();
        self.results.clear();
    }

    /// Adds a page, if it is changed: its state before the batch and what the batch accesses of it. Where that is not the
    /// state, or is not to be learnt from, it `says` nothing but which buckets change.
    pub(super) fn add(
        &mut self,
        task: usize,
        state: &PageState<'_>,
        accesses: &[KeyAccess],
        says: bool,
    ) {
        let bucket = |access: &KeyAccess| bucket_of(state.at, &access.key);
        let writes = || accesses.iter().filter(|access| access.writes.is_some());
        if !has_buckets(state.at) {
            return;
        }
        let changed = writes().fold(0, |mask, access| mask | 1 << bucket(access));
        if changed == 0 {
            return;
        }
        let start = self.nodes.len();
        if !says {
            let count = positions(changed).count_ones() as usize;
            self.nodes.resize(start + count, UNKNOWN);
            self.pages.push(Page { task, changed, start, fold: None });
            return;
        }
        let known = state.treelet.filter(|known| known.columns().is_none());
        let mut unknown = 0;
        each_position(positions(changed), |at| {
            let inside = known.and_then(|known| known.below_internal(at));
            let node = inside.or_else(|| stored(state, at));
            unknown |= u64::from(node.is_none()) << at;
            self.nodes.push(node.copied().unwrap_or(UNKNOWN));
        });
        if let Some(known) = known {
            // Below a leaf node or a terminator there is nothing to be known.
            let ends = known.positions() & !known.internal();
            each_position(unknown, |at| unknown &= !(u64::from(above(at) & ends != 0) << at));
        }
        let is_parted_elsewhere = state.treelet.is_some() && known.is_none();
        let fold = (unknown != 0 && !is_parted_elsewhere).then(|| {
            let asked = writes().filter(|access| way(bucket(access)) & unknown != 0);
            let read =
                |access: &KeyAccess| KeyAccess { key: access.key, reads: true, writes: None };
            self.accesses.clear();
            self.accesses.extend(asked.map(read));
            let capture = capture_levels(state.at);
            self.folder.begin_capturing(state.at.len(), capture);
            fold_leaf(&mut self.folder, state, capture, &self.accesses, &mut self.results);
            self.folder.end().expect(BY_KEY)
        });
        self.pages.push(Page { task, changed, start, fold });
    }

    /// Folds what is unknown.
    pub(super) fn run(&mut self) {
        let Self { pages, nodes, folder, captured, ends, .. } = self;
        folder.run();
        sort_captured(folder, folder.folds(), ends, captured);
        for (page, fold) in pages.iter().filter_map(|page| Some((page, page.fold?))) {
            let from = fold.checked_sub(1).map_or(0, |before| ends[before]);
            let positions = positions(page.changed);
            for (at, node) in &captured[from..ends[fold]] {
                if positions >> at & 1 == 1 {
                    let place = (positions & ((1 << at) - 1)).count_ones() as usize;
                    let own = &mut nodes[page.start + place];
                    debug_assert!(*own == UNKNOWN || own == node, "what was known is so");
                    *own = *node;
                }
            }
        }
    }

    /// Hashes that it has computed.
    pub(super) fn hashed(&self) -> u64 {
        self.folder.hashed()
    }

    /// The nodes of all pages.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The buckets of a page that the batch changes, and where its nodes are among all.
    pub(super) fn of(&self, task: usize) -> (u32, Range<usize>) {
        let Ok(at) = self.pages.binary_search_by_key(&task, |page| page.task) else {
            return (0, 0..0);
        };
        let Page { changed, start, .. } = self.pages[at];
        (changed, start..start + positions(changed).count_ones() as usize)
    }
}

/// The node that a page stores for a position, if nothing pends below it.
fn stored<'a>(state: &PageState<'a>, at: u8) -> Option<&'a Node> {
    let (level, bits) = heap_position(at);
    let leaf = state.leaf.filter(|leaf| leaf.levels() == level)?;
    let prefix = state.at.descendant(level, bits);
    let from = state.pending.partition_point(|pending| pending.0 < *prefix.first_key());
    let pends = state.pending.get(from).is_some_and(|pending| prefix.covers(&pending.0));
    (!pends).then(|| &leaf.nodes()[usize::from(bits)])
}
