//! A chunk of a finish: some neighbouring regions with all accesses below them, from gathering to
//! the nodes of the regions.
//!
//! 1. *Gather*, under each region's lock: children, page numbers, pending changes of the accessed pages.
//! 2. Pages: from the cache, else read; the chunk waits until all are there.
//! 3. *Fold* the pages, all in one batch, then the regions, all in one batch.
//!
//! When a region has changed between 1 and 3, the chunk is done again. A chunk belongs to one worker, and
//! its memory is used for the next chunk.

use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::leaf_fold::{
    AccessResult, KeyAccess, PageState, PendingChange, columns_of, fold_known, fold_leaf,
    is_parted_by,
};
use pleach_beatree::region::{NodePage, Nodes, Parts};
use pleach_beatree::treelet::Known;
use pleach_beatree::treelet::capture_levels;
use pleach_beatree::{Region, RegionIndex, RegionState};
use pleach_core::fold::treelets::Proof;
use pleach_core::fold::{NO_HASH, Occupancy};
use pleach_core::page::leaf::LeafView;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::Executor;

use super::captured::BY_KEY;
use super::cut::{Below, Cut, is_much};
use super::emit::{Emit, Fragment, Gives, encode_op};
use super::outcome::ChunkOutcome;
use super::scratch::{FoldSpace, PageFold};
use crate::read::key_batch::{KEY_BATCH, PAGES_AHEAD, Reach, cpu_prefetch};
use crate::state::State;
use crate::state::budget::FlushPolicy;
use crate::state::index::{PageRef, located};
use crate::state::node_versions::NodeThen;
use crate::state::overlays::OverlayNode;
use crate::state::reader::Done;
use crate::state::undo::Changed;
use crate::state::view::{View, put_over};

/// About as many bytes as an encoded operation takes: key, flags and a value's hash.
const OP_BYTES: usize = 72;

/// A leaf page that takes part.
pub(super) struct PageTask {
    pub(super) child: u32,
    pub(super) prefix: Prefix,
    pub(super) at: Option<PageRef>,
    pub(super) page: Option<Arc<CachedPage>>,
    pub(super) accesses: Range<usize>,
    pub(super) pending: Range<usize>,
    /// The node in the view, when it is known without folding (and nothing is accessed).
    pub(super) known: Option<Node>,
    /// Its version in the view, for which its treelet must be valid; `None` where that has none: later commits have changed it.
    pub(super) as_of: Option<u64>,
    /// Commits that have changed it since it was written.
    commits_since_write: u8,
}

pub(super) struct RegionTask {
    pub(super) region: Arc<Region>,
    /// Its layout version when it was gathered.
    pub(super) layout_version: u64,
    /// The last commit that had changed it then.
    pub(super) last_commit: u64,
    pub(super) accesses: Range<usize>,
    pub(super) pages: Range<usize>,
}

/// A page of a chunk that is not in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    /// The leaf page of this task.
    Leaf(usize),
    /// The nodes of a region, by its index among those that are away.
    Nodes(usize),
}

/// Regions with the accesses below them.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) index: usize,
    pub(super) regions: Vec<RegionTask>,
    pub(super) pages: Vec<PageTask>,
    pub(super) pending: Vec<PendingChange>,
    /// What regions have kept of pages below which much pends.
    parts: Vec<(usize, Arc<Parts>)>,
    /// Pages, leaf pages and nodes together, that are not in memory yet.
    pub(super) missing: usize,
    /// Pages before this one have been asked for.
    pub(super) asked: usize,
    /// Pages that somebody else is reading.
    pub(super) elsewhere: Vec<Missing>,
    /// Regions whose nodes are not in memory: region, its first key, where they are.
    pub(super) away: Vec<(Arc<Region>, Key, NodePage)>,
    /// Regions that are away, before this one, have been asked for.
    pub(super) nodes_asked: usize,
}

/// Why a fold of a chunk gave nothing.
pub(super) enum Again {
    /// A region has changed meanwhile: the chunk is gathered again.
    Changed,
    /// The leaf below this key must be known to place a terminal.
    NeedsLeaf(Key),
}

/// Accesses are sparse when there are fewer of them in each region, on average.
const DENSE: usize = 32;

/// The whole batch, as a chunk sees it.
pub(super) struct Batch<'a> {
    pub(super) hasher: Hasher,
    pub(super) view: &'a View,
    pub(super) accesses: &'a [KeyAccess],
    pub(super) gives: Gives,
    /// Do pages keep the nodes inside of them that it folds?
    pub(super) learns: bool,
    /// When pages are due for a flush.
    pub(super) policy: FlushPolicy,
    /// Keys whose leaf must be given as a key (rare: see [`Again::NeedsLeaf`]).
    pub(super) needed_leaves: &'a [Key],
}

impl Batch<'_> {
    /// Do few accesses meet in a region?
    fn is_sparse(&self, regions: &RegionIndex) -> bool {
        regions.regions().len() * DENSE > self.accesses.len()
    }
}

impl PageTask {
    /// Does a commit of the batch make the page due for a flush?
    pub(super) fn flush_due(&self, batch: &Batch<'_>) -> bool {
        batch.policy.is_due(&self.prefix, self.commits_since_write.saturating_add(1))
    }

    /// Levels of nodes to capture: for a page that is folded again and again, or that this batch makes
    /// due for a flush, so that the flush has its nodes.
    fn capture(&self, batch: &Batch<'_>) -> u8 {
        let learns = self.as_of.is_some() && batch.learns;
        let Some(page) = self.page.as_ref().filter(|_| learns) else { return 0 };
        let again = page.mark_folded();
        if again || self.flush_due(batch) { capture_levels(&self.prefix) } else { 0 }
    }
}

impl Chunk {
    /// Gathers the regions of `accesses[range]`.
    pub(super) fn gather(&mut self, db: &State, batch: &Batch<'_>, range: Range<usize>) {
        self.reset();
        // Where many accesses meet in a region its memory is near anyway: asking for it cost a tenth of the
        // finish at 78 accesses a region, and saved as much at 2.
        if batch.is_sparse(&db.index.load()) {
            for keys in batch.accesses[range.clone()].chunks(KEY_BATCH) {
                cpu_prefetch(db, keys.iter().map(|access| &access.key), Reach::Fold);
            }
        }
        let mut at = range.start;
        while at < range.end {
            at = db.index.in_region(&batch.accesses[at].key, |region, state| {
                let end = at
                    + batch.accesses[at..range.end]
                        .partition_point(|access| region.prefix().covers(&access.key));
                self.add_region(batch, region, state, at..end);
                end
            });
        }
    }

    /// Gathers one region without accesses, for its node in the view.
    pub(super) fn gather_region(&mut self, db: &State, batch: &Batch<'_>, key: &Key) {
        self.reset();
        db.index.in_region(key, |region, state| self.add_region(batch, region, state, 0..0));
    }

    /// A page that was missing is in memory.
    pub(super) fn complete(&mut self, missing: Missing, done: Done) {
        if let (Missing::Leaf(index), Done::Leaf(_, page)) = (missing, done) {
            self.pages[index].page = Some(page);
        }
        self.missing -= 1;
    }

    /// Forgets all and keeps the memory.
    pub(super) fn reset(&mut self) {
        self.regions.clear();
        self.parts.clear();
        self.pages.clear();
        self.pending.clear();
        self.missing = 0;
        self.asked = 0;
        self.elsewhere.clear();
        self.away.clear();
        self.nodes_asked = 0;
    }

    /// Adds a region as it is now, with the pages that these accesses are in.
    fn add_region(
        &mut self,
        batch: &Batch<'_>,
        region: &Arc<Region>,
        state: &RegionState,
        accesses: Range<usize>,
    ) {
        let first_page = self.pages.len();
        let newest = !batch.view.differs(state);
        let mut at = accesses.start;
        while at < accesses.end {
            let child = state.children().find(&batch.accesses[at].key);
            let prefix = state.children().prefix(child);
            let end = at
                + batch.accesses[at..accesses.end]
                    .partition_point(|access| prefix.covers(&access.key));
            let from = self.pending.len();
            if newest {
                state.copy_pending(&prefix, &mut self.pending);
            }
            self.push_page(state, child, prefix, at..end, from, None);
            let page = self.pages.last_mut().expect("just pushed");
            if newest {
                page.as_of = Some(state.version(child));
                if let Some(parts) = state.parts(child) {
                    self.parts.push((self.pages.len() - 1, parts));
                }
            }
            at = end;
        }
        let needs_leaf = batch.needed_leaves.iter().any(|key| region.prefix().covers(key));
        if needs_leaf || !newest {
            self.add_others(batch, state, first_page, needs_leaf);
        }
        if let Nodes::Paged(page) = state.nodes() {
            self.away.push((Arc::clone(region), *region.prefix().first_key(), *page));
        }
        self.regions.push(RegionTask {
            region: Arc::clone(region),
            layout_version: state.layout_version(),
            last_commit: state.last_commit(),
            accesses,
            pages: first_page..self.pages.len(),
        });
    }

    /// Adds a page, whose pending changes were added from `pending_from` on.
    fn push_page(
        &mut self,
        state: &RegionState,
        child: usize,
        prefix: Prefix,
        accesses: Range<usize>,
        pending_from: usize,
        known: Option<Node>,
    ) {
        let at = located(state, child);
        self.pages.push(PageTask {
            child: u32::try_from(child).expect("a region has fewer than 2^32 children"),
            prefix,
            at: at.filter(|_| known.is_none()),
            page: None,
            accesses,
            pending: pending_from..self.pending.len(),
            known,
            as_of: None,
            commits_since_write: state.commits_since_write(child),
        });
    }

    /// The view is not what pages and pending changes say: puts undo and overlays over the pending
    /// changes of accessed pages, and adds the pages that only they change; with `needs_leaf`, all pages.
    /// What is known of a page's nodes stays true where neither says anything of it.
    fn add_others(
        &mut self,
        batch: &Batch<'_>,
        state: &RegionState,
        first_page: usize,
        needs_leaf: bool,
    ) {
        let accessed: Vec<PageTask> = self.pages.drain(first_page..).collect();
        self.parts.retain(|(page, _)| *page < first_page);
        let is_accessed = |child: usize| {
            accessed.binary_search_by_key(&child, |page| page.child as usize).is_ok()
        };
        let region = batch.view.region(state, |child, prefix| {
            needs_leaf || is_accessed(child) || batch.view.node(prefix) == OverlayNode::Unrecorded
        });
        let mut accessed = accessed.into_iter().peekable();
        self.pending
            .truncate(accessed.peek().map_or(self.pending.len(), |page| page.pending.start));
        for child in 0..state.children().len() {
            let prefix = state.children().prefix(child);
            let task = accessed.next_if(|page| page.child as usize == child);
            let said = batch.view.node(&prefix);
            let then = region.node(child);
            let same = then == NodeThen::Unchanged && said == OverlayNode::Unchanged;
            if task.is_none() && same && !needs_leaf {
                continue;
            }
            let known = match said {
                _ if task.is_some() || needs_leaf => None,
                // A node that an overlay has recorded stays the node in that overlay, whatever is committed.
                OverlayNode::Recorded(node) => Some(node),
                OverlayNode::Unrecorded => None,
                OverlayNode::Unchanged => then.recorded(),
            };
            let accesses = task.map_or(0..0, |task| task.accesses);
            let from = self.pending.len();
            if known.is_none() {
                state.copy_pending(&prefix, &mut self.pending);
                if !same {
                    put_over(&mut self.pending, from, region.undone(&prefix));
                    batch.view.put_overlays(&prefix, &mut self.pending, from);
                }
            }
            self.push_page(state, child, prefix, accesses, from, known);
            let page = self.pages.last_mut().expect("just pushed");
            page.as_of = match said {
                _ if needs_leaf => None,
                OverlayNode::Unchanged => same.then(|| state.version(child)),
                // Whatever is committed since, in this view the overlay was the last to change the page.
                OverlayNode::Recorded(_) | OverlayNode::Unrecorded => batch.view.version(&prefix),
            };
        }
    }

    /// Folds the chunk, whose pages are all in memory, into an empty `outcome`. At most so many of the runtime's workers
    /// share what it cuts.
    pub(super) fn fold(
        &mut self,
        batch: &Batch<'_>,
        space: &mut FoldSpace,
        workers: (&Executor, usize),
        mut outcome: ChunkOutcome,
    ) -> Result<ChunkOutcome, Again> {
        self.fold_pages(batch, space, workers);
        let accesses = || self.pages.iter().flat_map(|page| &batch.accesses[page.accesses.clone()]);
        outcome.regions.reserve(self.regions.len());
        outcome.nodes.reserve(self.pages.len());
        // These may be kept for older views and overlays: no more memory than is needed.
        let writes = accesses().filter(|access| access.writes.is_some()).count();
        let mut changes = Vec::with_capacity(writes);
        let ops = if batch.gives.has_ops() { accesses().count() } else { 0 };
        outcome.ops.reserve(ops * OP_BYTES);
        space.gather_captured(&mut outcome.treelets);
        self.emit_pages(batch, space, &mut outcome, &mut changes);
        outcome.changes = changes.into();
        self.fold_regions(batch, space, &mut outcome)?;
        // No more pages are held than those that learn.
        for (node, at) in outcome.nodes.iter_mut().zip(&space.node_pages) {
            let task = &mut self.pages[*at];
            let page = task.page.take().filter(|_| !node.treelet.is_empty());
            node.page = task.at.zip(page);
        }
        if space.cut > 0 {
            for (node, at) in space.node_pages.iter().enumerate() {
                if let PageFold::Cut { number, learns: true } = space.folds[*at] {
                    outcome.parts.push((node, Arc::new(space.cuts[number].nodes())));
                }
            }
        }
        for page in &mut self.pages {
            page.page = None;
        }
        space.cuts[..space.cut].iter_mut().for_each(Cut::slim);
        Ok(outcome)
    }

    /// Folds all pages, in one batch.
    fn fold_pages(&self, batch: &Batch<'_>, space: &mut FoldSpace, workers: (&Executor, usize)) {
        space.pages.clear();
        space.joins.clear();
        space.cut = 0;
        space.treelets.clear();
        space.results.clear();
        space.folds.clear();
        for (index, page) in self.pages.iter().enumerate() {
            self.prefetch_ahead(batch, index);
            if page.known.is_some() {
                space.folds.push(PageFold::Known);
                continue;
            }
            if let Some(fold) = self.cut_page(batch, index, space, workers) {
                space.folds.push(fold);
                continue;
            }
            let fold = match (&page.page, page.as_of) {
                (Some(cached), Some(as_of)) => cached.treelet(as_of, |treelet| {
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
        space.treelets.run();
        space.joins.run();
        for fold in &space.folds {
            space.folded += u64::from(!matches!(fold, PageFold::Known));
        }
        #[cfg(debug_assertions)]
        self.check_folds(batch, space);
    }

    /// Folds the parts of a page, if much of it changes.
    fn cut_page(
        &self,
        batch: &Batch<'_>,
        index: usize,
        space: &mut FoldSpace,
        workers: (&Executor, usize),
    ) -> Option<PageFold> {
        let page = &self.pages[index];
        if !is_much(page.pending.len() + page.accesses.len()) {
            return None;
        }
        let leaf = page.page.as_ref().map(|page| page.view());
        let kept = self.parts.binary_search_by_key(&index, |(page, _)| *page);
        let below = Below {
            at: &page.prefix,
            leaf: leaf.as_ref(),
            pending: &self.pending[page.pending.clone()],
            accesses: &batch.accesses[page.accesses.clone()],
            gives: batch.gives,
            known: kept.ok().map(|at| &*self.parts[at].1),
        };
        if let (Some(cached), Some(as_of)) = (page.page.as_deref(), page.as_of)
            && let Some(columns) = cached.treelet(as_of, |known| known.map(|known| known.columns()))
            && columns.is_none_or(|own| is_parted_by(&below.state(), own, below.accesses))
            && below.is_little_a_bucket(|key| cached.bucket(key, columns))
        {
            return None;
        }
        let number = space.cut;
        space.cut += 1;
        space.cuts.resize_with(space.cut.max(space.cuts.len()), Cut::default);
        space.cuts[number].fold(workers, &below, &mut space.joins, &mut space.results);
        // However large the batch is: it is little beside what pends.
        Some(PageFold::Cut { number, learns: page.as_of.is_some() })
    }

    /// Begins the fold of a page.
    fn fold_page(
        &self,
        batch: &Batch<'_>,
        page: &PageTask,
        leaf: Option<&LeafView<'_>>,
        treelet: Option<Known<'_>>,
        space: &mut FoldSpace,
    ) -> PageFold {
        let capture = page.capture(batch);
        let accesses = &batch.accesses[page.accesses.clone()];
        let pending = &self.pending[page.pending.clone()];
        let state = PageState { at: &page.prefix, leaf, pending, treelet };
        let FoldSpace { pages, treelets, results, .. } = space;
        if let Some(number) = fold_known(treelets, &state, accesses, results) {
            return PageFold::Treelet { number, learns: capture > 0 };
        }
        let columns = if capture > 0 { columns_of(&state, accesses) } else { None };
        pages.begin_with_columns(page.prefix.len(), capture, columns);
        fold_leaf(pages, &state, capture, accesses, results);
        PageFold::Whole(pages.end().expect(BY_KEY))
    }

    /// Asks for the memory of pages that are folded next: it is cold, and waiting for one after the
    /// other would take longer than the fold.
    fn prefetch_ahead(&self, batch: &Batch<'_>, index: usize) {
        let page = |ahead| self.pages.get(index + ahead);
        if let Some(page) = page(2 * PAGES_AHEAD).and_then(|task| task.page.as_ref()) {
            page.cpu_prefetch_head();
        }
        if let Some(task) = page(PAGES_AHEAD)
            && let Some(page) = &task.page
        {
            for access in &batch.accesses[task.accesses.clone()] {
                page.cpu_prefetch_key(&access.key);
            }
        }
    }

    /// Adds to the outcome what the pages' folds found and changed, and their operations; their parts of
    /// the multiproof stay in `space` for the folds of the regions.
    fn emit_pages(
        &self,
        batch: &Batch<'_>,
        space: &mut FoldSpace,
        outcome: &mut ChunkOutcome,
        changes: &mut Vec<Changed>,
    ) {
        space.fragments.clear();
        space.op_starts.clear();
        let mut all = std::mem::take(&mut space.results);
        let mut results = all.drain(..);
        for (page, fold) in self.pages.iter().zip(&space.folds) {
            let accesses = &batch.accesses[page.accesses.clone()];
            space.op_starts.push(outcome.ops.len());
            let proves = !accesses.is_empty();
            if proves && batch.gives.has_ops() {
                if let PageFold::Cut { number, .. } = *fold {
                    let cut = &space.cuts[number];
                    let firsts = space.joins.first_of_terminal(cut.joined());
                    cut.append_ops(firsts, &mut outcome.ops);
                } else {
                    emit_ops(accesses, results.as_slice(), *fold, space, &mut outcome.ops);
                }
            }
            for (access, found) in accesses.iter().zip(&mut results) {
                if let Some(new) = &access.writes {
                    let (key, new) = (access.key, new.clone());
                    changes.push(Changed { key, new, prior: found.prior });
                }
            }
            let fragment = match *fold {
                PageFold::Treelet { number, .. } => {
                    Fragment::of_treelet(space.treelets.proof_part(number))
                }
                PageFold::Whole(whole) if proves && space.occupancy(*fold) == Occupancy::Many => {
                    let Proof { terminals, siblings } = space.treelets.proof_mut();
                    let mut emit = Emit::new(terminals, siblings, &[], &[], &[]);
                    space.pages.emit(whole, &mut emit);
                    emit.done()
                }
                PageFold::Cut { number, .. }
                    if proves && space.occupancy(*fold) == Occupancy::Many =>
                {
                    let Proof { terminals, siblings } = space.treelets.proof_mut();
                    let emit = Emit::new(terminals, siblings, &[], &[], &[]);
                    space.cuts[number].emit(&mut space.joins, emit)
                }
                _ => Fragment::default(),
            };
            space.fragments.push(fragment);
        }
        drop(results);
        space.results = all;
    }
}

/// Encodes the operations of a page's accesses.
fn emit_ops(
    accesses: &[KeyAccess],
    results: &[AccessResult],
    fold: PageFold,
    space: &FoldSpace,
    ops: &mut Vec<u8>,
) {
    let mut found = accesses.iter().zip(results);
    space.firsts(fold, |first| {
        let (access, found) = found.next().expect("one for each access");
        let put = (found.put != NO_HASH).then(|| *space.value_hash(fold, found.put));
        encode_op(access, (found, put), first, ops);
    });
}
