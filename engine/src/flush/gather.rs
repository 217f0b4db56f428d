//! Flush `gather`: pages that are due, with their buffered changes and, where two fit into one, their siblings.
//!
//! A page's state is copied under its region's lock, region by region in key order; pages are read afterwards, without
//! any lock. Pages that cannot be read are quarantined and left out. The caller is the flush task alone.

use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::page_plan::{STORED_LEVELS, filled};
use pleach_beatree::pages::{LeafName, PageReader, QuarantineReason, ReadMode, overflow};
use pleach_beatree::tree::{KEY_BATCH, LookupDepth};
use pleach_beatree::{PageNo, PageRef, Region, RegionState, Stored};
use pleach_core::Prefix;
use pleach_core::page::leaf;
use pleach_journal::format::position::LogPos;

use super::cells::{NO_NODES, OldPage, PLAIN_NODES, known_nodes, known_subtries};
use super::rewrite::{MERGE_PERCENT, Rewrite};
use super::round::Round;
use crate::error::Result;
use crate::state::NamespaceDb;

/// Pages read, or runs written, at once.
pub(super) const DEPTH: usize = 64;

/// Which of the given pages a round takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum RoundKind {
    /// Pages with at least this many changes since they were written.
    Changed(u8),
    /// Pages that merge with a sibling, which is read for that, and pages at or behind `behind`, with or without
    /// changes.
    Tidied {
        /// Where the file should end.
        behind: Option<PageNo>,
    },
}

impl Round {
    /// Gathers the pages of these prefixes, in key order, that a round of this kind takes.
    ///
    /// # Errors
    /// Of the reader alone: what it has in flight is unknown then.
    pub(super) fn gather(
        &mut self,
        db: &NamespaceDb,
        reader: &mut PageReader<usize>,
        prefixes: &[Prefix],
        kind: RoundKind,
    ) -> Result<()> {
        assert!(self.reserved.is_empty() && self.tentative.is_empty(), "the last round has ended");
        assert!(prefixes.is_sorted(), "pages are gathered in key order");
        self.tidies = matches!(kind, RoundKind::Tidied { .. });
        self.rewrites.clear();
        self.log_position = LogPos::START;
        let _guard = db.store.grace.enter();
        for (index, prefix) in prefixes.iter().enumerate() {
            if index.is_multiple_of(KEY_BATCH) {
                let batch = prefixes[index..].iter().take(KEY_BATCH);
                db.tree.cpu_prefetch(batch.map(Prefix::first_key), LookupDepth::Cell);
            }
            // The page is part of the rewrite that was added last.
            if self.rewrites.last().is_some_and(|last| last.range.covers(prefix.first_key())) {
                continue;
            }
            if let RoundKind::Tidied { behind: None } = kind {
                cache_siblings(db, prefix);
            }
            db.tree.with_region(prefix.first_key(), |region, state| {
                self.add_page(db, region, state, prefix, kind);
            });
        }
        read_missing(db, reader, &mut self.rewrites)
    }

    fn add_page(
        &mut self,
        db: &NamespaceDb,
        region: &Arc<Region>,
        state: &RegionState,
        prefix: &Prefix,
        kind: RoundKind,
    ) {
        let child = state.children().find(prefix.first_key());
        if db.store.is_page_quarantined(state, child) {
            return;
        }
        // A page is rewritten alone, except in a round that only merges.
        let takes_alone = match kind {
            RoundKind::Changed(least) => {
                if state.changes_since_write(child) < least {
                    return;
                }
                true
            }
            RoundKind::Tidied { behind } => behind
                .is_some_and(|behind| state.children().page(child).is_some_and(|at| at >= behind)),
        };
        let own = old_page(db, state, child);
        if own.buffered.is_empty() && matches!(kind, RoundKind::Changed(_)) {
            return;
        }
        let mut range = own.prefix;
        let mut old = vec![own];
        if let Some(sibling) = mergeable_sibling(db, state, child, &old[0]) {
            range = range.parent().expect("a page with a sibling is not the root");
            let left = sibling.prefix < old[0].prefix;
            old.insert(usize::from(!left), sibling);
            if self.rewrites.last().is_some_and(|last| range.covers(last.range.first_key())) {
                // Its sibling was taken before and merges on its own: this page is due again.
                db.tree.make_due([*prefix]);
                return;
            }
        } else if !takes_alone {
            return;
        }
        let last = self.rewrites.last().map(|last| last.range.last_key());
        assert!(last.is_none_or(|last| last < *range.first_key()), "ranges are disjoint");
        assert!(region.prefix().contains(&range), "a range lies in one region");
        self.log_position = self.log_position.max(state.log_position().into());
        let first = self.rewrites.last().is_none_or(|last| !Arc::ptr_eq(&last.region, region));
        let replaced = if first { state.replaced_values() } else { &[] };
        let runs =
            replaced.iter().flat_map(|replaced| overflow::extents(&replaced.buffered.stored));
        self.rewrites.push(Rewrite {
            region: Arc::clone(region),
            range,
            old,
            applied_through: state.last_commit(),
            layout_version: state.layout_version(),
            new: Vec::new(),
            replaced_extents: runs.collect(),
            replaced_values: replaced.len(),
        });
    }
}

/// Reads the page of a prefix and its sibling into the cache. Pages that cannot be read are not merged.
fn cache_siblings(db: &NamespaceDb, prefix: &Prefix) {
    for at in [Some(*prefix), prefix.sibling()].into_iter().flatten() {
        let found = db.tree.with_region(at.first_key(), |_, state| {
            let child = state.children().find(at.first_key());
            let is_it = state.children().prefix(child) == at;
            state.page_ref(child).filter(|_| is_it && !db.store.is_page_quarantined(state, child))
        });
        if let Some(Err(error)) = found.map(|at| db.store.read_page(at, ReadMode::Flush)) {
            tracing::debug!(%error, prefix = ?at, "a small page stays as it is");
        }
    }
}

fn old_page(db: &NamespaceDb, state: &RegionState, child: usize) -> OldPage {
    let prefix = state.children().prefix(child);
    let number = state.children().page(child);
    let buffered = state.buffered_below(&prefix).to_vec();
    let page = number.and_then(|number| db.store.cache.get(number, state.children().tag(child)));
    let is_plain = state.is_plain();
    let known = |page: &Arc<CachedPage>| known_nodes(state, child, page, &prefix, &buffered);
    let nodes = if is_plain { PLAIN_NODES } else { page.as_ref().map_or(NO_NODES, known) };
    let subtries = |page: &Arc<CachedPage>| known_subtries(state, child, page, &prefix);
    let subtries = page.as_ref().filter(|_| !is_plain).map_or_else(Vec::new, subtries);
    let own = *state.node(child);
    let written = Vec::new();
    OldPage { prefix, page, number, buffered, written, nodes, subtries, is_plain, own }
}

/// The sibling, if it is in memory and one page of the parent's prefix can hold both, with room left.
fn mergeable_sibling(
    db: &NamespaceDb,
    state: &RegionState,
    child: usize,
    own: &OldPage,
) -> Option<OldPage> {
    let at = own.prefix.sibling()?;
    let parent = own.prefix.parent()?;
    // A quarantined page does not merge, so that it takes no good page with it.
    let suspect =
        |number: Option<PageNo>| number.is_some_and(|number| db.store.quarantine.contains(number));
    if suspect(own.number) || !state.children().region().contains(&parent) || own.is_missing() {
        return None;
    }
    let other = if own.prefix.is_right() { child.checked_sub(1)? } else { child + 1 };
    if other >= state.children().len() || state.children().prefix(other) != at {
        return None;
    }
    let limit = leaf::capacity(STORED_LEVELS) * MERGE_PERCENT / 100;
    if !can_shrink_below(own, limit) || has_large(own) {
        return None;
    }
    let filled = |page: &OldPage| {
        let mut cells = Vec::new();
        page.push_merged_cells(&mut cells, &mut Vec::new());
        filled(&parent, &cells)
    };
    let own_filled = filled(own);
    if own_filled > limit {
        return None;
    }
    let sibling = old_page(db, state, other);
    if sibling.is_missing() || suspect(sibling.number) || has_large(&sibling) {
        return None;
    }
    (own_filled + filled(&sibling) <= limit).then_some(sibling)
}

/// True when a buffered change has a long value without a cell.
fn has_large(page: &OldPage) -> bool {
    page.buffered.iter().any(|buffered| matches!(buffered.stored, Stored::Long(_)))
}

/// True when the page could fill less than `limit` bytes once its buffered deletes are applied. A quick estimate, so
/// that full pages are not merged only to be measured.
fn can_shrink_below(own: &OldPage, limit: usize) -> bool {
    let used = own.page.as_ref().map_or(0, |page| page.view().used());
    let deletes = own.buffered.iter().filter(|buffered| !buffered.stored.is_present()).count();
    let largest = leaf::cell_size(own.prefix.len(), leaf::MAX_INLINE);
    used <= limit + deletes * largest
}

/// Reads old pages that are not cached. An unreadable page is quarantined; an error is one of the ring.
fn read_missing(
    db: &NamespaceDb,
    reader: &mut PageReader<usize>,
    rewrites: &mut Vec<Rewrite>,
) -> Result<()> {
    let mut missing = missing_pages(rewrites);
    let pages: Vec<PageRef> = missing.iter().map(|(at, _)| *at).collect();
    reader.read_each(&db.store, &pages, |index, read| {
        let (at, old) = &mut missing[index];
        match read {
            Ok(page) => old.set_page(page),
            Err(error) => {
                let page = LeafName { page: at.page, namespace: at.namespace, prefix: old.prefix };
                db.store.quarantine_page(page, error, QuarantineReason::Unreadable);
            }
        }
    })?;
    rewrites.retain(|rewrite| !rewrite.old.iter().any(OldPage::is_missing));
    Ok(())
}

/// The old pages that are not cached, with their places.
fn missing_pages(rewrites: &mut [Rewrite]) -> Vec<(PageRef, &mut OldPage)> {
    let mut missing = Vec::new();
    for rewrite in rewrites {
        let state = rewrite.region.read();
        for old in &mut rewrite.old {
            let child = state.children().find(old.prefix.first_key());
            if let (Some(page), None) = (old.number, &old.page) {
                let (tag, namespace) = (state.children().tag(child), state.namespace());
                missing.push((PageRef { page, tag, namespace }, old));
            }
        }
    }
    missing
}
