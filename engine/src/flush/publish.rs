//! Steps (d) and (e): the location record is queued and the index follows, in one moment.

use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::children::ChildRef;
use pleach_beatree::grace::Period;
use pleach_beatree::leaf_fold::{PageState, PendingChange, fold_leaf};
use pleach_beatree::region::Relocation;
use pleach_beatree::split::{Split, split_held};
use pleach_beatree::{PageNo, Region, RegionState};
use pleach_core::fold::BatchFolder;
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::leaf::LeafView;
use pleach_core::page::overflow::PageRun;
use pleach_core::{Hasher, Node};
use pleach_io::{Device, PageBuf, Runtime};

use super::piece::{NewLeaf, Piece, disagree};
use super::round::Round;
use crate::error::Result;
use crate::format::location_body::{LocationEncoder, NewPage, Rewrite, Run as LogRun};
use crate::format::position::LogPos;
use crate::format::record::RecordBuf;
use crate::metrics::Counters;
use crate::state::State;

/// Places given up by one flush.
pub(super) struct Freed {
    /// Position of the location record; the places are retired under it.
    pub(super) stamp: LogPos,
    /// End of the record: the log must be durable through here.
    pub(super) end: LogPos,
    /// The commit that the index stood at: older views may name overflow values.
    pub(super) commit: u64,
    pub(super) period: Period,
    pub(super) since: Duration,
}

impl Round {
    /// Publishes the round; `None` when a commit is in flight and it has to be tried again.
    pub(super) fn publish<H: Hasher, D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        folder: &mut BatchFolder<H>,
    ) -> Result<Option<Freed>> {
        // An upper bound of the record, so that the log has room before anything is decided.
        let pages: usize =
            self.pieces.iter().map(|piece| piece.new.len() + piece.sources.len()).sum();
        let room = 256 + 128 * pages as u64 + self.run_bytes();
        db.commits.sequencer().make_room(room)?;
        let _structure = db.index.hold_structure();
        let mut state = db.commits.sequencer().lock();
        state.check()?;
        if state.in_flight > 0 || !state.has_room(room) {
            return Ok(None);
        }
        for piece in &mut self.pieces {
            refresh_nodes(piece, &self.runs, folder)?;
        }
        let record = self.record(db.store.database());
        let len = record.len();
        let position = state.queue(record) + len;
        let mut freed = Freed {
            stamp: position,
            end: position,
            commit: db.commits.published(),
            period: db.store.grace_period(),
            since: db.pace.now(),
        };
        self.tentative(db).named();
        let (mut leaves, mut runs) = (Vec::new(), Vec::new());
        let mut reshaped = false;
        let changes = self.pieces.chunk_by_mut(|a, b| Arc::ptr_eq(&a.region, &b.region));
        let regions: Vec<Arc<Region>> =
            changes.map(|pieces| Arc::clone(&pieces[0].region)).collect();
        // A region that outgrows its branch page is held until its halves are in the index: a
        // checkpoint that saw it could not write it. This task alone holds several regions, and
        // whoever holds one takes none of the locks that are held here: see the order in
        // [`crate::state`].
        let mut split: Vec<Split<'_>> = Vec::new();
        let changes = self.pieces.chunk_by_mut(|a, b| Arc::ptr_eq(&a.region, &b.region));
        for (region, pieces) in regions.iter().zip(changes) {
            let mut regional = region.write();
            reshaped |= apply(db, &mut regional, pieces, position, &mut runs, &mut leaves);
            if regional.children().len() > MAX_ENTRIES {
                split.push((region, regional));
            }
        }
        if !split.is_empty() {
            db.index.publish(split_held::<H>(&db.index.load_full(), &mut split));
            reshaped = true;
        }
        drop(split);
        if reshaped {
            state.layouts += 1;
        }
        db.space.retire(&leaves, &runs, freed.stamp)?;
        // Readers that start now find the new places.
        freed.period = db.store.grace_period();
        drop(state);
        self.finish(db);
        Ok(Some(freed))
    }

    fn run_bytes(&self) -> u64 {
        let sources = self.pieces.iter().flat_map(|piece| &piece.sources);
        let written: usize = sources.map(|source| source.written.len()).sum();
        let freed: usize = self.pieces.iter().map(|piece| piece.freed_runs.len()).sum();
        8 * (written * 32 + freed) as u64
    }

    fn record(&self, database: u64) -> RecordBuf {
        let mut encoder = LocationEncoder::over(Vec::new(), self.flush, 0);
        let (mut allocated, mut given_up) = (Vec::new(), Vec::new());
        for piece in &self.pieces {
            let pages: Vec<NewPage<'_>> = piece
                .new
                .iter()
                .map(|new| NewPage {
                    prefix: new.prefix,
                    page: Some(u64::from(new.page.place)),
                    tag: new.page.tag,
                    applied_through: piece.through,
                    node: new.node.as_ref().expect("refreshed before"),
                })
                .collect();
            let freed: Vec<u64> =
                piece.sources.iter().filter_map(|source| source.place.map(u64::from)).collect();
            encoder.push(&Rewrite { range: piece.range, pages: &pages, freed: &freed });
            given_up.extend(piece.freed_runs.iter().map(log_run));
            for source in &piece.sources {
                for (_, cell) in &source.written {
                    let runs = pleach_beatree::stored::overflow_cell(cell).runs();
                    allocated.extend(runs.map(|run| log_run(&run)));
                }
            }
        }
        encoder.finish(database, &allocated, &given_up)
    }
}

fn log_run(run: &PageRun) -> LogRun {
    LogRun { start: run.start, pages: run.pages }
}

/// Makes the new pages' nodes those of page and *all* committed changes: commits may have come
/// since the pages were built.
fn refresh_nodes<H: Hasher>(
    piece: &mut Piece,
    runs: &[PageBuf],
    folder: &mut BatchFolder<H>,
) -> Result<()> {
    let state = piece.region.read();
    assert_eq!(state.layout_version(), piece.shape, "only the flusher changes cuts");
    if piece.is_moved() {
        // The same cut: its node is the one that the commits left.
        let new = &mut piece.new[0];
        let child = state.children().find(new.prefix.first_key());
        let node = *state.node(child).expect("a changed region's nodes are in memory");
        if state.last_commit() == piece.through && new.node.is_some_and(|own| own != node) {
            return Err(disagree(&new.prefix));
        }
        new.node = Some(node);
        return Ok(());
    }
    if state.last_commit() == piece.through {
        return Ok(());
    }
    for new in &mut piece.new {
        let mut patches: Vec<PendingChange> = Vec::new();
        state.copy_pending(&new.prefix, &mut patches);
        folder.clear();
        folder.begin(new.prefix.len());
        let view = LeafView::trusted(runs[new.page.run].page(new.page.at));
        let page =
            PageState { at: &new.prefix, leaf: Some(&view), pending: &patches, treelet: None };
        fold_leaf(folder, &page, 0, &[], &mut Vec::new());
        let fold = folder.end().expect("no terminal is placed here");
        folder.run();
        new.node = Some(folder.node(fold));
    }
    Ok(())
}

/// Puts a region's new pages into its cuts; says whether cuts were split or merged.
fn apply<D: Device, R: Runtime>(
    db: &State<D, R>,
    state: &mut RegionState,
    pieces: &mut [Piece],
    position: LogPos,
    runs: &mut Vec<PageRun>,
    leaves: &mut Vec<PageNo>,
) -> bool {
    let pages: Vec<Vec<(ChildRef, Node)>> =
        pieces.iter().map(|piece| piece.new.iter().map(cut_of).collect()).collect();
    let moves: Vec<Relocation<'_>> = pieces
        .iter()
        .zip(&pages)
        .map(|(piece, pages)| Relocation { range: piece.range, pages, through: piece.through })
        .collect();
    state.release_dropped(pieces[0].dropped);
    let done = state.relocate(&moves, position.get());
    // A page that commits have changed since it was gathered may be ripe again.
    let new = pages.iter().flatten().map(|(cut, _)| cut.prefix);
    let policy = db.budget.flush_policy();
    let due = new.filter(|prefix| {
        policy.is_due(prefix, state.commits_since_write(state.children().find(prefix.first_key())))
    });
    db.index.make_due(due);
    Counters::change(&db.counters.leaf_pages, done.pages);
    Counters::change(&db.counters.pending_bytes, -done.bytes.cast_signed());
    Counters::change(&db.counters.pending_entries, -done.entries.cast_signed());
    for piece in pieces {
        runs.append(&mut piece.freed_runs);
        leaves.extend(piece.sources.iter().filter_map(|source| source.place));
    }
    done.layout_changed
}

fn cut_of(new: &NewLeaf) -> (ChildRef, Node) {
    let cut = ChildRef { prefix: new.prefix, page: Some(new.page.place), tag: new.page.tag };
    (cut, new.node.expect("refreshed before"))
}
