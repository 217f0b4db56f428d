//! Reclaims a namespace that was dropped and that no state reaches any more: frees its leaf pages and its runs of the
//! overflow file, a part at a time, each with a location record of its own (rules `kept-through-window`,
//! `given-up-by-record`, `location-before-index`, `free-after-durable`).
//!
//! Such a record replaces all pages of a region by one prefix without a page. A trie with nothing left is removed from
//! the list, while no image is in the making; a recovery that finds it in an older image reclaims it by the same
//! records, and continues from there if it has to.
//!
//! Pages are read only for the runs that they name: none while the overflow file is empty. Pages that cannot be read
//! are quarantined, and the trie waits for them.
//!
//! Only the flush task does this. Nobody else changes such a trie: no commit and no rollback comes to it.

use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::pages::{LeafName, PageReader, QuarantineReason, ReadMode, overflow};
use pleach_beatree::region::Relocation;
use pleach_beatree::{ChildRef, PageNo, PageRef, Region};
use pleach_core::page::leaf::Cell;
use pleach_core::page::overflow::OverflowExtent;
use pleach_core::{Key, Prefix, TERMINATOR};
use pleach_journal::format::location_body::{LocationEncoder, NewPage, Rewrite};

use super::gather::DEPTH;
use super::publish::RetiredBatch;
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::state::NamespaceDb;
use crate::state::order::images::NUMBERS_FOR_CLOSE;

/// Most regions that one record reclaims, and most leaf pages, unless the first region has more.
const REGIONS: usize = 256;
const PAGES: usize = 1024;

/// The result of one step.
pub(super) enum ReclaimOutcome {
    /// A part was reclaimed; there may be more.
    Part(RetiredBatch),
    /// The trie had nothing left, and was removed from the list.
    Removed,
    /// A commit or an image is under way, or there is no room in the log or no ring to read with: later.
    Busy,
    /// The rest cannot be read, for now.
    Unreadable,
}

/// A region's pages and runs on the device.
struct DroppedRegion {
    region: Arc<Region>,
    pages: Vec<PageNo>,
    runs: Vec<OverflowExtent>,
    /// The region's last commit and record; none follows.
    last_commit: u64,
    log_position: u64,
}

/// A page that is read for the runs that it names; `region` is the index of its region.
struct DroppedPage {
    region: usize,
    at: PageRef,
    prefix: Prefix,
}

/// A part of a dropped trie that is still there.
struct DroppedPart {
    /// The first regions with something left, and their pages.
    regions: Vec<DroppedRegion>,
    pages: Vec<DroppedPage>,
    /// True when other regions have to wait for pages or nodes that cannot be read.
    aside: bool,
}

/// Reclaims a part of a trie that commit `by` has dropped and that no state reaches any more.
pub(super) fn reclaim(trie: &NamespaceDb, by: u64) -> Result<ReclaimOutcome> {
    if !trie.commits.sequencer.lock().is_quiet() {
        // Before anything is read. For this task, the sequencer now keeps children behind their parents' publication.
        return Ok(ReclaimOutcome::Busy);
    }
    let reads = trie.space.overflow_stats().live > 0;
    let mut part = gather_regions(trie, reads);
    if reads
        && !part.pages.is_empty()
        && let Err(error) = read_overflow_runs(trie, &mut part)
    {
        tracing::warn!(%error, "a dropped namespace cannot be read; it is tried again");
        return Ok(ReclaimOutcome::Busy);
    }
    if part.regions.is_empty() {
        return Ok(if part.aside { ReclaimOutcome::Unreadable } else { remove_trie(trie) });
    }
    publish_reclaim(trie, by, &part.regions)
}

fn gather_regions(trie: &NamespaceDb, reads: bool) -> DroppedPart {
    let (mut all, mut named, mut aside) = (Vec::new(), Vec::new(), false);
    let mut key: Option<Key> = Some([0; 32]);
    while let Some(at) = key.filter(|_| all.len() < REGIONS && named.len() < PAGES) {
        key = trie.tree.with_region(&at, |region, state| {
            let next = region.prefix().next().map(|next| *next.first_key());
            let children = state.children();
            if state.is_bare() {
                return next;
            }
            let is_aside = |child| trie.store.is_page_quarantined(state, child);
            let is_lost = children.page(0).is_some_and(PageNo::is_lost);
            let waits = is_lost || reads && (0..children.len()).any(is_aside);
            if waits {
                aside = true;
                return next;
            }
            let left = all.len();
            named.extend((0..children.len()).filter_map(|child| {
                let prefix = children.prefix(child);
                Some(DroppedPage { region: left, at: state.page_ref(child)?, prefix })
            }));
            let buffered = state.buffered().iter().map(|buffered| &buffered.stored);
            let dropped = state.replaced_values().iter().map(|dropped| &dropped.buffered.stored);
            all.push(DroppedRegion {
                region: Arc::clone(region),
                pages: (0..children.len()).filter_map(|child| children.page(child)).collect(),
                runs: buffered.chain(dropped).flat_map(overflow::extents).collect(),
                last_commit: state.last_commit(),
                log_position: state.log_position(),
            });
            next
        });
    }
    DroppedPart { regions: all, pages: named, aside }
}

/// Adds the runs that the pages name. Regions with a page that cannot be read are left out.
///
/// # Errors
/// Of the ring alone.
fn read_overflow_runs(trie: &NamespaceDb, part: &mut DroppedPart) -> Result<()> {
    let DroppedPart { regions: all, pages: named, aside } = part;
    // Pages that enter the cache are removed with the trie.
    let mut reader = PageReader::new(&trie.store, DEPTH, ReadMode::Flush)?;
    let mut bad = vec![false; all.len()];
    let mut take = |index: usize, read: pleach_beatree::Result<Arc<CachedPage>>| {
        let DroppedPage { region: left, at, prefix } = &named[index];
        match read {
            Ok(page) => {
                for (_, cell) in page.view().iter() {
                    if let Cell::Overflow(cell) = cell {
                        all[*left].runs.extend(cell.extents());
                    }
                }
            }
            Err(error) => {
                let page = LeafName { page: at.page, namespace: at.namespace, prefix: *prefix };
                trie.store.quarantine_page(page, error, QuarantineReason::Unreadable);
                bad[*left] = true;
            }
        }
    };
    let (mut missing, mut pages) = (Vec::new(), Vec::new());
    for (index, DroppedPage { at, .. }) in named.iter().enumerate() {
        if let Some(page) = trie.store.peek(*at) {
            take(index, Ok(page));
        } else {
            missing.push(index);
            pages.push(*at);
        }
    }
    reader.read_each(&trie.store, &pages, |at, read| take(missing[at], read))?;
    *aside |= bad.contains(&true);
    let mut bad = bad.into_iter();
    all.retain(|_| !bad.next().unwrap_or(false));
    Ok(())
}

/// Queues the location record and applies it, under one lock, as every flush does.
fn publish_reclaim(trie: &NamespaceDb, by: u64, all: &[DroppedRegion]) -> Result<ReclaimOutcome> {
    let Ok(flush) = trie.images.next_number(NUMBERS_FOR_CLOSE) else {
        return Ok(ReclaimOutcome::Busy);
    };
    let mut encoder = LocationEncoder::with_buffer(Vec::new(), flush, trie.namespace);
    for DroppedRegion { region, pages, last_commit, .. } in all {
        let range = *region.prefix();
        let nothing = NewPage {
            prefix: range,
            page: None,
            tag: 0,
            applied_through: *last_commit,
            node: &TERMINATOR,
        };
        let freed: Vec<u64> = pages.iter().map(|page| u64::from(*page)).collect();
        encoder.push(&Rewrite { range, pages: &[nothing], replaced: &freed });
    }
    let runs: Vec<OverflowExtent> = all.iter().flat_map(|left| left.runs.iter().copied()).collect();
    let record = encoder.finish(trie.store.database, &[], &runs);
    let len = record.len();
    match trie.commits.sequencer.make_room(len) {
        // The flush must not report to commits that it has no room.
        Err(Error::Full(_)) => return Ok(ReclaimOutcome::Busy),
        made => made?,
    }
    let _structure = trie.tree.hold_structure();
    let mut sequencer = trie.commits.sequencer.lock();
    sequencer.check_writable()?;
    if !sequencer.is_quiet() || !sequencer.has_room(len) {
        return Ok(ReclaimOutcome::Busy);
    }
    let end = sequencer.queue(record) + len;
    let mut pages = Vec::new();
    for left in all {
        let mut state = left.region.write();
        assert_eq!(
            state.log_position(),
            left.log_position,
            "the flush alone comes to a dropped trie"
        );
        let range = *left.region.prefix();
        let nothing = [(ChildRef { prefix: range, page: None, tag: 0 }, TERMINATOR)];
        let moved = Relocation { range, pages: &nothing, last_commit: left.last_commit };
        let dropped = state.replaced_values().len();
        state.release_replaced(dropped);
        let done = state.relocate(&[moved], end.get());
        // The pairs are others: an image names a region by its node.
        state.recompute_own_node(trie.hasher);
        trie.count_leaf_pages(trie.kind, done.pages);
        Counters::change(&trie.counters.pending_bytes, -done.bytes.cast_signed());
        Counters::change(&trie.counters.pending_entries, -done.entries.cast_signed());
        pages.extend_from_slice(&left.pages);
    }
    sequencer.layouts += 1;
    trie.space.retire(&pages, &runs, end.get())?;
    let freed = RetiredBatch {
        end,
        // No view names the trie's values since then.
        commit: by,
        period: trie.store.grace.start_period(),
        since: trie.pace.now(),
    };
    drop(sequencer);
    for page in pages {
        trie.store.quarantine.forget(page);
        trie.store.cache.remove(page);
    }
    Ok(ReclaimOutcome::Part(freed))
}

/// Removes a trie without pages from the list.
fn remove_trie(trie: &NamespaceDb) -> ReclaimOutcome {
    let mut sequencer = trie.commits.sequencer.lock();
    if !sequencer.is_quiet() || trie.images.is_image_in_progress() {
        return ReclaimOutcome::Busy;
    }
    assert!(trie.tree.load().is_bare(), "a trie that leaves has nothing left");
    // Blocks on states that cannot be read any more may have regions of the trie: the count tells them from those of a
    // later trie of this number.
    sequencer.layouts += 1;
    trie.tries.remove(trie.namespace);
    ReclaimOutcome::Removed
}
