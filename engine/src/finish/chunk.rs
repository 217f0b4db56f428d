//! A chunk of a finish: some neighbouring regions with all accesses below them, from gathering to
//! the nodes of the regions.
//!
//! 1. *Gather*, under each region's lock: cuts, places, pending changes of the touched pages.
//! 2. Pages: from the cache, else read; the chunk waits until all are there.
//! 3. *Fold* the pages, all in one batch, then the regions, all in one batch.
//!
//! When a region has changed between 1 and 3, the chunk is done again.

use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::leaf_fold::{
    KeyAccess, PageState, PendingChange, capture_levels, fold_leaf, fold_path_block,
};
use pleach_beatree::region::{NodePage, Nodes};
use pleach_beatree::treelet::Known;
use pleach_beatree::{Region, RegionIndex, RegionState};
use pleach_core::fold::{NO_HASH, Occupancy};
use pleach_core::page::leaf::LeafView;
use pleach_core::proof::op::op_encode_placed;
use pleach_core::proof::{Access, Op};
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::{Device, Runtime};

use super::emit::{Emit, Fragment};
use super::outcome::ChunkOutcome;
use super::scratch::{FoldSpace, PageFold};
use crate::read::group::{GROUP, PAGES_AHEAD, Reach, cpu_prefetch};
use crate::state::State;
use crate::state::budget::FlushPolicy;
use crate::state::index::{Located, located};
use crate::state::overlays::OverlayNode;
use crate::state::reader::Done;
use crate::state::undo::Changed;
use crate::state::view::{View, put_over};

/// About what an encoded operation takes: key, flags and a value's hash.
const OP_BYTES: usize = 72;
/// A leaf page that takes part.
pub(super) struct PageTask {
    pub(super) child: u32,
    pub(super) prefix: Prefix,
    pub(super) at: Option<Located>,
    pub(super) page: Option<Arc<CachedPage>>,
    pub(super) touches: Range<usize>,
    patches: Range<usize>,
    /// The node in the view, when it is known without folding (and nothing is touched).
    pub(super) known: Option<Node>,
    /// The commit that its treelet must stand at; `None` when the view is not the newest state.
    pub(super) stands_at: Option<u64>,
    /// Commits that changed it since it was written.
    changes: u8,
}

pub(super) struct RegionTask {
    pub(super) region: Arc<Region>,
    pub(super) shape: u64,
    pub(super) changed: u64,
    /// Is the view the newest state of this region?
    pub(super) newest: bool,
    pub(super) touches: Range<usize>,
    pub(super) pages: Range<usize>,
}

/// A page of a chunk that is not here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    /// The leaf page of this task.
    Leaf(usize),
    /// The nodes of this one of the regions that are away.
    Nodes(usize),
}

/// Regions with the accesses below them.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) index: usize,
    pub(super) regions: Vec<RegionTask>,
    pub(super) pages: Vec<PageTask>,
    patches: Vec<PendingChange>,
    /// Pages that are not here yet.
    pub(super) missing: usize,
    /// Pages before this one have been asked for.
    pub(super) asked: usize,
    /// Pages that somebody else reads.
    pub(super) elsewhere: Vec<Missing>,
    /// Regions whose nodes are not in memory: region, its first key, where they are.
    pub(super) away: Vec<(Arc<Region>, Key, NodePage)>,
    /// Nodes before this one have been asked for.
    pub(super) nodes_asked: usize,
}

/// Why a chunk gave nothing.
pub(super) enum Again {
    /// A region changed meanwhile: gather anew.
    Changed,
    /// The leaf below this key must be known to place a terminal.
    NeedsLeaf(Key),
}

/// Accesses a region below which they are sparse.
const DENSE: usize = 32;

/// The whole batch, as a chunk sees it.
pub(super) struct Batch<'a> {
    pub(super) view: &'a View,
    pub(super) touches: &'a [KeyAccess],
    pub(super) witness: bool,
    /// When pages are rewritten.
    pub(super) policy: FlushPolicy,
    /// Keys whose leaf must be given as a key (rare: see [`Again::NeedsLeaf`]).
    pub(super) needed_leaves: &'a [Key],
}

impl Batch<'_> {
    /// Do few accesses meet in a region?
    fn is_sparse(&self, top: &RegionIndex) -> bool {
        top.regions().len() * DENSE > self.touches.len()
    }
}

impl PageTask {
    /// Does a commit of the batch make the page ripe for its flush?
    pub(super) fn ripens(&self, batch: &Batch<'_>) -> bool {
        batch.policy.is_due(&self.prefix, self.changes.saturating_add(1))
    }

    /// Levels of nodes to capture: for a page that is folded again and again, or that this batch
    /// makes ripe, so that the flush has its nodes.
    fn capture(&self, batch: &Batch<'_>) -> u8 {
        let Some(page) = self.page.as_ref().filter(|_| self.stands_at.is_some()) else { return 0 };
        let again = page.mark_folded();
        if again || self.ripens(batch) { capture_levels(&self.prefix) } else { 0 }
    }
}

impl Chunk {
    /// Gathers the regions of `touches[range]`.
    pub(super) fn gather<D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        batch: &Batch<'_>,
        range: Range<usize>,
    ) {
        self.reset();
        // Where many accesses meet in a region its memory is near as it is: at 78 asking cost a tenth
        // of the finish, at 2 it saved as much.
        if batch.is_sparse(&db.index.load()) {
            for group in batch.touches[range.clone()].chunks(GROUP) {
                cpu_prefetch(db, group.iter().map(|touch| &touch.key), Reach::Fold);
            }
        }
        let mut at = range.start;
        while at < range.end {
            at = db.index.in_region(&batch.touches[at].key, |region, state| {
                let behind = at
                    + batch.touches[at..range.end]
                        .partition_point(|touch| region.prefix().covers(&touch.key));
                self.add_region(batch, region, state, at..behind);
                behind
            });
        }
    }

    /// Gathers one region without accesses: its node in the view is wanted.
    pub(super) fn gather_region<D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        batch: &Batch<'_>,
        key: &Key,
    ) {
        self.reset();
        db.index.in_region(key, |region, state| self.add_region(batch, region, state, 0..0));
    }

    /// A page that was missing is here.
    pub(super) fn land(&mut self, missing: Missing, landed: Done) {
        if let (Missing::Leaf(index), Done::Leaf(_, page)) = (missing, landed) {
            self.pages[index].page = Some(page);
        }
        self.missing -= 1;
    }

    /// Forgets all and keeps the memory.
    pub(super) fn reset(&mut self) {
        self.regions.clear();
        self.pages.clear();
        self.patches.clear();
        self.missing = 0;
        self.asked = 0;
        self.elsewhere.clear();
        self.away.clear();
        self.nodes_asked = 0;
    }

    fn add_region(
        &mut self,
        batch: &Batch<'_>,
        region: &Arc<Region>,
        state: &RegionState,
        touches: Range<usize>,
    ) {
        let first_page = self.pages.len();
        let newest = !batch.view.differs(state);
        let mut at = touches.start;
        while at < touches.end {
            let child = state.children().find(&batch.touches[at].key);
            let prefix = state.children().prefix(child);
            let behind = at
                + batch.touches[at..touches.end].partition_point(|touch| prefix.covers(&touch.key));
            let from = self.patches.len();
            state.copy_pending(&prefix, &mut self.patches);
            self.push_page(state, child, prefix, at..behind, from, None);
            let page = self.pages.last_mut().expect("just pushed");
            page.stands_at = newest.then(|| state.changed_at(child));
            at = behind;
        }
        let exposed = batch.needed_leaves.iter().any(|key| region.prefix().covers(key));
        if exposed || !newest {
            self.add_untouched(batch, state, first_page, exposed);
        }
        if let Nodes::Paged(place) = state.nodes() {
            self.away.push((Arc::clone(region), *region.prefix().first_key(), *place));
        }
        self.regions.push(RegionTask {
            region: Arc::clone(region),
            shape: state.layout_version(),
            changed: state.last_commit(),
            newest,
            touches,
            pages: first_page..self.pages.len(),
        });
    }

    fn push_page(
        &mut self,
        state: &RegionState,
        child: usize,
        prefix: Prefix,
        touches: Range<usize>,
        patches_from: usize,
        known: Option<Node>,
    ) {
        let at = located(state, child);
        self.pages.push(PageTask {
            child: u32::try_from(child).expect("a region has fewer than 2^32 children"),
            prefix,
            at: at.filter(|_| known.is_none()),
            page: None,
            touches,
            patches: patches_from..self.patches.len(),
            known,
            stands_at: None,
            changes: state.commits_since_write(child),
        });
    }

    /// The view is not what pages and pending changes say: puts undo and overlays over the
    /// patches of touched pages, and adds the pages that only they change; with `exposed`, all
    /// pages.
    fn add_untouched(
        &mut self,
        batch: &Batch<'_>,
        state: &RegionState,
        first_page: usize,
        exposed: bool,
    ) {
        let touched: Vec<PageTask> = self.pages.drain(first_page..).collect();
        let mut touched = touched.into_iter().peekable();
        let changes = batch.view.changes(state.children().region(), state);
        self.patches.truncate(touched.peek().map_or(self.patches.len(), |page| page.patches.start));
        for child in 0..state.children().len() {
            let prefix = state.children().prefix(child);
            let task = touched.next_if(|page| page.child as usize == child);
            let mut over = changes.range(*prefix.first_key()..=prefix.last_key()).peekable();
            if task.is_none() && over.peek().is_none() && !exposed {
                continue;
            }
            // A node that an overlay recorded stays that overlay's node, whatever is committed.
            let known = match batch.view.node(&prefix) {
                OverlayNode::Recorded(node) if task.is_none() && !exposed => Some(node),
                _ => None,
            };
            let from = self.patches.len();
            if known.is_none() {
                state.copy_pending(&prefix, &mut self.patches);
                put_over(&mut self.patches, from, over.map(|(key, stored)| (*key, stored.clone())));
            }
            self.push_page(
                state,
                child,
                prefix,
                task.map_or(0..0, |task| task.touches),
                from,
                known,
            );
        }
    }

    /// Folds the chunk, whose pages are all here. An `outcome` that has been used lends its memory.
    pub(super) fn fold<H: Hasher>(
        &mut self,
        batch: &Batch<'_>,
        space: &mut FoldSpace<H>,
        mut outcome: ChunkOutcome,
    ) -> Result<ChunkOutcome, Again> {
        self.fold_pages(batch, space);
        let touches = || self.pages.iter().flat_map(|page| &batch.touches[page.touches.clone()]);
        outcome.clear();
        outcome.regions.reserve(self.regions.len());
        outcome.nodes.reserve(self.pages.len());
        // These may be kept for older views: no more than is needed.
        outcome.changes.reserve_exact(touches().filter(|touch| touch.writes.is_some()).count());
        outcome.ops.reserve(if batch.witness { touches().count() * OP_BYTES } else { 0 });
        space.gather_captured(&mut outcome.treelets);
        self.emit_pages(batch, space, &mut outcome);
        self.fold_regions(batch, space, &mut outcome)?;
        for (node, at) in outcome.nodes.iter_mut().zip(&space.node_pages) {
            let task = &mut self.pages[*at];
            let page = task.page.take().filter(|_| !node.treelet.is_empty());
            node.page = task.at.as_ref().map(|at| at.page).zip(page);
        }
        for page in &mut self.pages {
            page.page = None;
        }
        Ok(outcome)
    }

    fn fold_pages<H: Hasher>(&self, batch: &Batch<'_>, space: &mut FoldSpace<H>) {
        space.pages.clear();
        space.tiles.clear();
        space.seen.clear();
        space.folds.clear();
        for (index, page) in self.pages.iter().enumerate() {
            self.prefetch_behind(batch, index);
            if page.known.is_some() {
                space.folds.push(PageFold::Known);
                continue;
            }
            let fold = match (&page.page, page.stands_at) {
                (Some(cached), Some(at)) => cached.treelet(at, |treelet| {
                    self.fold_page(batch, page, Some(&cached.view()), treelet, space)
                }),
                (Some(cached), None) => {
                    self.fold_page(batch, page, Some(&cached.view()), None, space)
                }
                (None, _) => self.fold_page(batch, page, None, None, space),
            };
            space.folds.push(fold);
        }
        space.pages.run();
        space.tiles.run(&space.pages);
    }

    fn fold_page<H: Hasher>(
        &self,
        batch: &Batch<'_>,
        page: &PageTask,
        leaf: Option<&LeafView<'_>>,
        treelet: Option<Known<'_>>,
        space: &mut FoldSpace<H>,
    ) -> PageFold {
        let capture = page.capture(batch);
        let touches = &batch.touches[page.touches.clone()];
        let patches = &self.patches[page.patches.clone()];
        let standing = PageState { at: &page.prefix, leaf, pending: patches, treelet };
        let FoldSpace { pages, tiles, seen, .. } = space;
        if let Some(tile) = fold_path_block(pages, tiles, &standing, touches, seen) {
            return PageFold::Tile { tile, learns: capture > 0 };
        }
        pages.begin_capturing(page.prefix.len(), capture);
        fold_leaf(pages, &standing, capture, touches, seen);
        PageFold::Whole(pages.end().expect("a page's groups of one key are given by key"))
    }

    /// Asks for the memory of pages that are folded next: they are cold, and waiting for them one
    /// by one would take longer than the fold.
    fn prefetch_behind(&self, batch: &Batch<'_>, index: usize) {
        let page = |ahead| self.pages.get(index + ahead);
        if let Some(page) = page(2 * PAGES_AHEAD).and_then(|task| task.page.as_ref()) {
            page.cpu_prefetch_head();
        }
        if let Some(task) = page(PAGES_AHEAD)
            && let Some(page) = &task.page
        {
            for touch in &batch.touches[task.touches.clone()] {
                page.cpu_prefetch_key(&touch.key);
            }
        }
    }

    /// Takes down what was seen and changed, and the pages' parts of the witness.
    fn emit_pages<H: Hasher>(
        &self,
        batch: &Batch<'_>,
        space: &mut FoldSpace<H>,
        outcome: &mut ChunkOutcome,
    ) {
        space.terminals.clear();
        space.siblings.clear();
        space.fragments.clear();
        space.op_starts.clear();
        let mut all_seen = std::mem::take(&mut space.seen);
        let mut seen = all_seen.drain(..);
        for (page, fold) in self.pages.iter().zip(&space.folds) {
            let touches = &batch.touches[page.touches.clone()];
            space.op_starts.push(outcome.ops.len());
            if batch.witness && !touches.is_empty() {
                let mut accesses = touches.iter().zip(seen.as_slice());
                let ops = &mut outcome.ops;
                space.firsts(*fold, |first| {
                    let (touch, seen) = accesses.next().expect("one for each access");
                    let put = (seen.put != NO_HASH).then(|| *space.pages.value_hash(seen.put));
                    let access = match (touch.reads, touch.writes.is_some()) {
                        (_, false) => Access::Read,
                        (false, true) => Access::Write(put),
                        (true, true) => Access::ReadWrite(put),
                    };
                    let op = Op { key: touch.key, access };
                    op_encode_placed(ops, &op, seen.prior.is_present(), first);
                });
            }
            for (touch, seen) in touches.iter().zip(&mut seen) {
                if let Some(new) = &touch.writes {
                    outcome.changes.push(Changed {
                        key: touch.key,
                        new: new.clone(),
                        prior: seen.prior,
                    });
                }
            }
            let mut fragment = Fragment::default();
            if batch.witness
                && !page.touches.is_empty()
                && space.occupancy(*fold) == Occupancy::Many
            {
                let mut emit = Emit::new(&mut space.terminals, &mut space.siblings, &[], &[], &[]);
                match *fold {
                    PageFold::Known => {}
                    PageFold::Whole(fold) => space.pages.emit(fold, &mut emit),
                    PageFold::Tile { tile, .. } => {
                        space.tiles.emit(tile, page.prefix.len(), &mut space.pages, &mut emit);
                    }
                }
                fragment = emit.done();
            }
            space.fragments.push(fragment);
        }
        drop(seen);
        space.seen = all_seen;
    }
}
