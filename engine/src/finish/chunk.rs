//! A chunk of a finish: neighbouring regions with all accesses below them, from gathering to the regions' nodes.
//!
//! 1. *Gather*, under each region's lock: children, page numbers, buffered changes of the accessed pages.
//! 2. Pages: from the cache, else read; the chunk waits until all are in memory.
//! 3. *Fold* pages and regions ([`super::regions`]).
//!
//! When a region has changed between 1 and 3, the chunk is gathered again. A chunk belongs to one worker, and its
//! memory is reused for the next chunk.

use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::leaf_fold::{KeyAccess, KeyState};
use pleach_beatree::region::{PartNodes, count_change, count_commit};
use pleach_beatree::tree::{KEY_BATCH, LookupDepth};
use pleach_beatree::{PageRef, Region, RegionState};
use pleach_core::{Key, Node, Prefix};

use super::emit::FinishOutput;
use crate::error::{Error, Result};
use crate::state::NamespaceDb;
use crate::state::pace::budget::FlushPolicy;
use crate::state::undo::past_node::PastNode;
use crate::state::view::{View, merge_changes};

/// A leaf page of a chunk.
pub(super) struct PageTask {
    pub(super) child: u32,
    pub(super) prefix: Prefix,
    pub(super) at: Option<PageRef>,
    pub(super) page: Option<Arc<CachedPage>>,
    pub(super) accesses: Range<usize>,
    pub(super) buffered: Range<usize>,
    pub(super) in_view: PageInView,
    /// The changes of the page since it was written, as flushes count them ([`count_change`]).
    changes_since_write: u8,
}

/// A page in the view of a batch.
pub(super) struct PageInView {
    /// True when overlays have changes beyond the buffered ones.
    pub(super) is_overlaid: bool,
    /// The node, when it is known without folding and nothing is accessed.
    pub(super) known: Option<Node>,
    /// The page's version, for which its treelet must be valid; `None` after a change by later commits.
    pub(super) as_of: Option<u64>,
}

/// A child of a region, with the accesses below it.
struct AccessedChild {
    child: usize,
    accesses: Range<usize>,
}

pub(super) struct RegionTask {
    pub(super) region: Arc<Region>,
    /// The region's layout version when it was gathered.
    pub(super) layout_version: u64,
    /// The last commit that had changed the region then.
    pub(super) last_commit: u64,
    pub(super) accesses: Range<usize>,
    pub(super) pages: Range<usize>,
}

/// Regions with the accesses below them.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) index: usize,
    pub(super) regions: Vec<RegionTask>,
    pub(super) pages: Vec<PageTask>,
    pub(super) buffered: Vec<KeyState>,
    /// Nodes of parts that regions keep for pages with many buffered changes, by page.
    pub(super) parts: Vec<(usize, Arc<PartNodes>)>,
    /// Number of pages that are not in memory yet.
    pub(super) missing: usize,
    /// Pages before this one were enqueued.
    pub(super) asked: usize,
    /// Pages that somebody else is reading.
    pub(super) elsewhere: Vec<usize>,
}

/// Why the fold of a chunk has no result.
pub(super) enum FoldError {
    /// A region has changed meanwhile: the chunk is gathered again.
    Changed,
    /// A pair that a terminal needs could not be read.
    Failed(Error),
}

/// Accesses are sparse when a region has fewer of them on average.
const DENSE: usize = 32;

/// The whole batch.
pub(super) struct Batch<'a> {
    pub(super) db: &'a NamespaceDb,
    pub(super) view: &'a View,
    pub(super) accesses: &'a [KeyAccess],
    pub(super) output: FinishOutput,
    /// True when pages keep the nodes inside of them that the batch folds.
    pub(super) learns: bool,
    /// When pages are due for a flush.
    pub(super) policy: FlushPolicy,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        db: &'a NamespaceDb,
        view: &'a View,
        accesses: &'a [KeyAccess],
        output: FinishOutput,
        learns: bool,
    ) -> Self {
        Self { db, view, accesses, output, learns, policy: db.budget.flush_policy() }
    }
}

impl PageTask {
    /// True when a commit of the batch makes the page due for a flush.
    pub(super) fn is_flush_due(&self, batch: &Batch<'_>) -> bool {
        let writes =
            batch.accesses[self.accesses.clone()].iter().filter_map(|one| one.writes.as_ref());
        let counted = count_commit(writes.fold(0, count_change));
        batch.policy.is_due(&self.prefix, self.changes_since_write.saturating_add(counted))
    }

    /// True when the page's treelet keeps nodes inside of the page: it was folded before, or this batch makes it due
    /// for a flush, which then has its nodes.
    pub(super) fn should_keep_nodes(&self, batch: &Batch<'_>) -> bool {
        let learns = self.in_view.as_of.is_some() && batch.learns;
        let Some(page) = self.page.as_ref().filter(|_| learns) else { return false };
        let again = page.mark_folded();
        again || self.is_flush_due(batch)
    }
}

impl Chunk {
    /// Gathers the regions of `accesses[range]`.
    pub(super) fn gather(&mut self, batch: &Batch<'_>, range: Range<usize>) -> Result<()> {
        self.clear();
        // With many accesses in a region its memory is cached anyway: prefetching cost a tenth of the finish at 78
        // accesses a region, and saved as much at 2.
        if batch.db.tree.load().regions().len() * DENSE > batch.accesses.len() {
            for keys in batch.accesses[range.clone()].chunks(KEY_BATCH) {
                batch
                    .db
                    .tree
                    .cpu_prefetch(keys.iter().map(|access| &access.key), LookupDepth::Fold);
            }
        }
        let mut at = range.start;
        while at < range.end {
            at = batch.db.tree.with_region(&batch.accesses[at].key, |region, state| {
                let end = at
                    + batch.accesses[at..range.end]
                        .partition_point(|access| region.prefix().covers(&access.key));
                self.add_region(batch, region, state, at..end).map(|()| end)
            })?;
        }
        Ok(())
    }

    /// Gathers one region without accesses, for its node in the view.
    pub(super) fn gather_region(&mut self, batch: &Batch<'_>, key: &Key) -> Result<()> {
        self.clear();
        batch.db.tree.with_region(key, |region, state| self.add_region(batch, region, state, 0..0))
    }

    /// Takes a missing page that is in memory now.
    pub(super) fn complete(&mut self, index: usize, page: Arc<CachedPage>) {
        self.pages[index].page = Some(page);
        self.missing -= 1;
    }

    /// Empties the chunk and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.regions.clear();
        self.parts.clear();
        self.pages.clear();
        self.buffered.clear();
        self.missing = 0;
        self.asked = 0;
        self.elsewhere.clear();
    }

    /// Adds a region as it is now, with the pages of these accesses.
    fn add_region(
        &mut self,
        batch: &Batch<'_>,
        region: &Arc<Region>,
        state: &RegionState,
        accesses: Range<usize>,
    ) -> Result<()> {
        let first_page = self.pages.len();
        let newest = !batch.view.has_changes(state);
        let (mut at, mut accessed) = (accesses.start, Vec::new());
        while at < accesses.end {
            let child = state.children().find(&batch.accesses[at].key);
            let prefix = state.children().prefix(child);
            let end = at
                + batch.accesses[at..accesses.end]
                    .partition_point(|access| prefix.covers(&access.key));
            if newest {
                if let Some(parts) = state.parts(child) {
                    self.parts.push((self.pages.len(), parts));
                }
                let from = self.buffered.len();
                state.copy_buffered(&prefix, &mut self.buffered);
                let version = Some(state.version(child));
                let in_view = PageInView { is_overlaid: false, known: None, as_of: version };
                self.push_page(state, child, at..end, from, in_view);
            } else {
                accessed.push(AccessedChild { child, accesses: at..end });
            }
            at = end;
        }
        if !newest {
            self.add_past_pages(batch, state, accessed)?;
        }
        self.regions.push(RegionTask {
            region: Arc::clone(region),
            layout_version: state.layout_version(),
            last_commit: state.last_commit(),
            accesses,
            pages: first_page..self.pages.len(),
        });
        Ok(())
    }

    /// Adds a page, whose buffered changes begin at `buffered_from`.
    fn push_page(
        &mut self,
        state: &RegionState,
        child: usize,
        accesses: Range<usize>,
        buffered_from: usize,
        in_view: PageInView,
    ) {
        let at = state.page_ref(child);
        self.pages.push(PageTask {
            child: u32::try_from(child).expect("a region has fewer than 2^32 children"),
            prefix: state.children().prefix(child),
            at: at.filter(|_| in_view.known.is_none()),
            page: None,
            accesses,
            buffered: buffered_from..self.buffered.len(),
            in_view,
            changes_since_write: state.changes_since_write(child),
        });
    }

    /// For a view that differs from pages and buffered changes: puts undo over the buffered changes of accessed pages,
    /// and adds the pages that only undo and overlays change. Known nodes stay valid where neither changes anything.
    fn add_past_pages(
        &mut self,
        batch: &Batch<'_>,
        state: &RegionState,
        accessed: Vec<AccessedChild>,
    ) -> Result<()> {
        let is_accessed =
            |child: usize| accessed.binary_search_by_key(&child, |one| one.child).is_ok();
        let region = batch.view.past_region(state, |child, prefix| {
            is_accessed(child) || batch.view.overlay_node(prefix) == PastNode::Unrecorded
        })?;
        let mut accessed = accessed.into_iter().peekable();
        for child in 0..state.children().len() {
            let prefix = state.children().prefix(child);
            let task = accessed.next_if(|one| one.child == child);
            let said = batch.view.overlay_node(&prefix);
            let then = said.or_else(|| region.node(child));
            let same = then == PastNode::Unchanged;
            if task.is_none() && same {
                continue;
            }
            let known = match then {
                PastNode::Recorded(node) if task.is_none() => Some(node),
                _ => None,
            };
            let accesses = task.map_or(0..0, |task| task.accesses);
            let from = self.buffered.len();
            if known.is_none() {
                state.copy_buffered(&prefix, &mut self.buffered);
                if !same {
                    merge_changes(&mut self.buffered, from, region.undo_below(&prefix));
                }
            }
            let is_overlaid = said != PastNode::Unchanged;
            let as_of = if is_overlaid {
                // Whatever was committed since, in this view the overlay was the last to change the page.
                batch.view.overlay_version(&prefix)
            } else {
                same.then(|| state.version(child))
            };
            self.push_page(state, child, accesses, from, PageInView { is_overlaid, known, as_of });
        }
        Ok(())
    }
}
