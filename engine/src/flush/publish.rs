//! Flush `publish`: the location record is queued and the index is updated, under one lock (rules
//! `location-before-index`, `location-nodes-at-record`, `index-before-removal`).
//!
//! Called by the flush task with nothing locked. It takes the structure, the sequencer, and then the
//! regions of the round; no commit is between ticket and publication meanwhile.

use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::children::ChildRef;
use pleach_beatree::grace::GracePeriod;
use pleach_beatree::leaf_fold::{KeyState, PageState, fold_page};
use pleach_beatree::region::Relocation;
use pleach_beatree::split_regions::{HeldRegion, split_held};
use pleach_beatree::{Error as TreeError, PageNo, Region, RegionState};
use pleach_core::Node;
use pleach_core::fold::Folder;
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::leaf::LeafView;
use pleach_core::page::overflow::OverflowExtent;
use pleach_io::PageBuf;
use pleach_journal::format::location_body::{LocationEncoder, NewPage, Rewrite as LogRewrite};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::record::RecordBuf;

use super::rewrite::{NewLeaf, Rewrite};
use super::round::Round;
use crate::error::Result;
use crate::metrics::Counters;
use crate::state::NamespaceDb;

/// What one flush has retired, and when it is free.
pub(super) struct RetiredBatch {
    /// Where the location record ends: the log must be durable through it, and it is the stamp of the retired pages.
    pub(super) end: LogPos,
    /// The newest commit then: older views may name overflow values.
    pub(super) commit: u64,
    pub(super) period: GracePeriod,
    pub(super) since: Duration,
}

impl Round {
    /// Publishes the round; `None` when a commit is in flight and the caller has to try again.
    pub(super) fn publish(
        &mut self,
        db: &NamespaceDb,
        folder: &mut Folder,
    ) -> Result<Option<RetiredBatch>> {
        // An upper bound of the record, so that the log has room before anything is decided.
        let pages: usize =
            self.rewrites.iter().map(|rewrite| rewrite.new.len() + rewrite.old.len()).sum();
        let room = 256 + 128 * pages as u64 + self.run_bytes();
        db.commits.sequencer.make_room(room)?;
        let _structure = db.tree.hold_structure();
        let mut state = db.commits.sequencer.lock();
        state.check_writable()?;
        if !state.is_quiet() || !state.has_room(room) {
            return Ok(None);
        }
        for rewrite in &mut self.rewrites {
            refresh_nodes(rewrite, &self.runs, folder)?;
        }
        let record = self.record(db.store.database, db.namespace);
        let len = record.len();
        assert!(len <= room, "the record fits into the room that was made");
        let end = state.queue(record) + len;
        assert!(end > self.log_position, "the record follows all that its pages contain");
        self.take_tentative_runs(db).mark_named();
        let replaced = move_pages(db, &mut self.rewrites, end);
        if replaced.layout_changed {
            state.layouts += 1;
        }
        db.space.retire(&replaced.leaves, &replaced.runs, end.get())?;
        // A put that waits for room sees buffered changes or retired pages until these are free.
        Counters::change(&db.counters.pending_bytes, -replaced.buffered_bytes.cast_signed());
        Counters::change(&db.counters.pending_entries, -replaced.buffered_entries.cast_signed());
        let commit = db.commits.published();
        // Readers that start now find the new pages.
        let period = db.store.grace.start_period();
        drop(state);
        tracing::debug!(namespace = db.namespace, pages, commit, "pages are written");
        self.finish_published(db);
        Ok(Some(RetiredBatch { end, commit, period, since: db.pace.now() }))
    }

    /// Most bytes of the record that name overflow runs.
    fn run_bytes(&self) -> u64 {
        let old = self.rewrites.iter().flat_map(|rewrite| &rewrite.old);
        let written: usize = old.map(|old| old.written.len()).sum();
        let replaced: usize =
            self.rewrites.iter().map(|rewrite| rewrite.replaced_extents.len()).sum();
        8 * (written * 32 + replaced) as u64
    }

    /// The location record of the round.
    fn record(&self, database: u64, namespace: u8) -> RecordBuf {
        let mut encoder = LocationEncoder::with_buffer(Vec::new(), self.flush, namespace);
        let (mut allocated, mut replaced) = (Vec::new(), Vec::new());
        for rewrite in &self.rewrites {
            let pages: Vec<NewPage<'_>> = rewrite
                .new
                .iter()
                .map(|new| NewPage {
                    prefix: new.prefix,
                    page: Some(u64::from(new.page.number)),
                    tag: new.page.tag,
                    applied_through: rewrite.applied_through,
                    node: &new.node,
                })
                .collect();
            let old_pages: Vec<u64> =
                rewrite.old.iter().filter_map(|old| old.number.map(u64::from)).collect();
            encoder.push(&LogRewrite { range: rewrite.range, pages: &pages, replaced: &old_pages });
            replaced.extend(&rewrite.replaced_extents);
            for old in &rewrite.old {
                for (_, cell) in &old.written {
                    allocated.extend(pleach_beatree::stored::overflow_cell(cell).extents());
                }
            }
        }
        encoder.finish(database, &allocated, &replaced)
    }
}

/// Pages and runs that the round has replaced.
#[derive(Default)]
struct ReplacedPages {
    leaves: Vec<PageNo>,
    runs: Vec<OverflowExtent>,
    /// Buffered changes that the new pages have, and their bytes.
    buffered_entries: usize,
    buffered_bytes: usize,
    /// True when a region's prefixes have changed, or it was split.
    layout_changed: bool,
}

/// Puts the new pages into the index, as of the location record that ends at `log_position`.
fn move_pages(db: &NamespaceDb, rewrites: &mut [Rewrite], log_position: LogPos) -> ReplacedPages {
    let mut replaced = ReplacedPages::default();
    let by_region = rewrites.chunk_by(|a, b| Arc::ptr_eq(&a.region, &b.region));
    let regions: Vec<Arc<Region>> =
        by_region.map(|rewrites| Arc::clone(&rewrites[0].region)).collect();
    // A region that outgrows its branch page stays locked until its halves are in the index: a checkpoint that saw it
    // could not write it. Only this task holds several regions, and a holder of one takes none of the locks that are
    // held here: see the order in [`crate::state`].
    let mut split: Vec<HeldRegion<'_>> = Vec::new();
    let by_region = rewrites.chunk_by_mut(|a, b| Arc::ptr_eq(&a.region, &b.region));
    for (region, rewrites) in regions.iter().zip(by_region) {
        let mut state = region.write();
        apply(db, &mut state, rewrites, log_position, &mut replaced);
        if state.children().len() > MAX_ENTRIES {
            split.push((region, state));
        }
    }
    if !split.is_empty() {
        db.tree.publish(split_held(db.hasher, &db.tree.load_full(), &mut split));
        replaced.layout_changed = true;
    }
    replaced
}

/// Computes the new pages' nodes from the pages and *all* committed changes: some may be newer than the pages.
fn refresh_nodes(rewrite: &mut Rewrite, runs: &[PageBuf], folder: &mut Folder) -> Result<()> {
    let state = rewrite.region.read();
    assert_eq!(
        state.layout_version(),
        rewrite.layout_version,
        "only the flush changes which pages a region has"
    );
    if state.is_plain() {
        return Ok(());
    }
    if rewrite.is_moved() {
        // The prefix is the same: its node is the one in the index.
        let new = &mut rewrite.new[0];
        let child = state.children().find(new.prefix.first_key());
        let node = *state.node(child);
        if state.last_commit() == rewrite.applied_through && new.node != node {
            return Err(TreeError::Fold { prefix: new.prefix }.into());
        }
        new.node = node;
        return Ok(());
    }
    if state.last_commit() == rewrite.applied_through {
        return Ok(());
    }
    for new in &mut rewrite.new {
        let mut buffered: Vec<KeyState> = Vec::new();
        state.copy_buffered(&new.prefix, &mut buffered);
        folder.clear();
        let view = LeafView::from_trusted(runs[new.page.run].page(new.page.at));
        let page =
            PageState { at: &new.prefix, leaf: Some(&view), buffered: &buffered, treelet: None };
        let folded = fold_page(folder, &page, false, &[], &mut Vec::new());
        let fold = folder.end_fold(folded.subtrie, false);
        folder.run();
        new.node = *folder.node(fold);
    }
    Ok(())
}

/// Puts a region's new pages into its child table.
fn apply(
    db: &NamespaceDb,
    state: &mut RegionState,
    rewrites: &mut [Rewrite],
    log_position: LogPos,
    replaced: &mut ReplacedPages,
) {
    let pages: Vec<Vec<(ChildRef, Node)>> =
        rewrites.iter().map(|rewrite| rewrite.new.iter().map(child_of).collect()).collect();
    let moves: Vec<Relocation<'_>> = rewrites
        .iter()
        .zip(&pages)
        .map(|(rewrite, pages)| Relocation {
            range: rewrite.range,
            pages,
            last_commit: rewrite.applied_through,
        })
        .collect();
    state.release_replaced(rewrites[0].replaced_values);
    assert!(moves.iter().all(|one| one.last_commit <= state.last_commit()), "only what is applied");
    let done = state.relocate(&moves, log_position.get());
    // A page that commits have changed since it was gathered may be due again.
    let new = pages.iter().flatten().map(|(child, _)| child.prefix);
    let policy = db.budget.flush_policy();
    let due = new.filter(|prefix| {
        policy.is_due(prefix, state.changes_since_write(state.children().find(prefix.first_key())))
    });
    db.tree.make_due(due);
    db.count_leaf_pages(db.kind, done.pages);
    replaced.buffered_bytes += done.bytes;
    replaced.buffered_entries += done.entries;
    for rewrite in rewrites {
        replaced.runs.append(&mut rewrite.replaced_extents);
        replaced.leaves.extend(rewrite.old.iter().filter_map(|old| old.number));
    }
    replaced.layout_changed |= done.layout_changed;
}

fn child_of(new: &NewLeaf) -> (ChildRef, Node) {
    let child = ChildRef { prefix: new.prefix, page: Some(new.page.number), tag: new.page.tag };
    (child, new.node)
}
