//! Steps (d) and (e): the location record is queued and the index follows, in one moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_beatree::cuts::Cut;
use pleach_beatree::leaf_fold::{Patch, fold_leaf};
use pleach_beatree::region::Nodes;
use pleach_beatree::{Cuts, Region, RegionState, Top};
use pleach_core::fold::Folder;
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::leaf::{LeafView, Run};
use pleach_core::prefix::bit;
use pleach_core::{Hasher, Node};
use pleach_io::{Device, Runtime};

use super::Freed;
use super::round::{Piece, Round};
use crate::error::Result;
use crate::log::{LocationCut, LocationEncoder, LogRun, NewPage, RecordBuf};
use crate::metrics::Counters;
use crate::shared::Shared;

impl Round {
    /// Publishes the round; `None` when a commit is in flight and it has to be tried again.
    pub(super) fn publish<H: Hasher, D: Device, R: Runtime>(
        &mut self,
        shared: &Shared<H, D, R>,
        folder: &mut Folder<H>,
    ) -> Result<Option<Freed>> {
        // An upper bound of the record, so that the log has room before anything is decided.
        let pages: usize = self.pieces.iter().map(|piece| piece.new.len() + piece.sources.len()).sum();
        shared.sequencer.make_room(256 + 128 * pages as u64 + self.run_bytes())?;
        let _structure = shared.structure.lock();
        let mut state = shared.sequencer.lock();
        state.check()?;
        if state.in_flight > 0 {
            return Ok(None);
        }
        for piece in &mut self.pieces {
            refresh_nodes(piece, folder);
        }
        let record = self.record(shared.database);
        let end = record.len();
        let position = state.queue(record);
        let mut freed = Freed {
            leaf: Vec::new(),
            overflow: Vec::new(),
            position: position + end,
            commit: shared.published.load(Ordering::Acquire),
            period: shared.grace.start(),
            since: shared.runtime.now(),
        };
        let mut split = Vec::new();
        let mut reshaped = false;
        for pieces in self.pieces.chunk_by_mut(|a, b| Arc::ptr_eq(&a.region, &b.region)) {
            let region = Arc::clone(&pieces[0].region);
            let mut regional = region.write();
            reshaped |= apply(shared, &mut regional, pieces, position, &mut freed);
            if regional.cuts.len() > MAX_ENTRIES {
                split.push(Arc::clone(&region));
            }
        }
        if !split.is_empty() {
            split_regions::<H, D, R>(shared, &split);
            reshaped = true;
        }
        if reshaped {
            state.shapes += 1;
        }
        // Readers that start now find the new places.
        freed.period = shared.grace.start();
        drop(state);
        self.finish();
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
                    place: new.page.as_ref().map(|page| u64::from(page.place)),
                    tag: new.page.as_ref().map_or(0, |page| page.tag),
                    through: piece.through,
                    node: &new.node,
                })
                .collect();
            let freed: Vec<u64> =
                piece.sources.iter().filter_map(|source| source.place.map(u64::from)).collect();
            encoder.push(&LocationCut { range: piece.range, pages: &pages, freed: &freed });
            given_up.extend(piece.freed_runs.iter().map(log_run));
            for source in &piece.sources {
                for (_, cell) in &source.written {
                    let runs = pleach_core::page::leaf::OverflowCell::trusted(cell).runs();
                    allocated.extend(runs.map(|run| log_run(&run)));
                }
            }
        }
        encoder.finish(database, &allocated, &given_up)
    }
}

fn log_run(run: &Run) -> LogRun {
    LogRun { start: run.start, pages: run.pages }
}

/// Makes the new pages' nodes those of page and *all* committed changes: commits may have come
/// since the pages were built.
fn refresh_nodes<H: Hasher>(piece: &mut Piece, folder: &mut Folder<H>) {
    let state = piece.region.read();
    if state.changed == piece.through {
        return;
    }
    assert_eq!(state.shape, piece.shape, "only the flusher changes cuts");
    let moved = piece.new.len() == 1 && piece.sources.len() == 1;
    for new in &mut piece.new {
        if moved {
            // The same cut: its node is the one that the commits left.
            let child = state.cuts.find(new.prefix.first_key());
            new.node = *state.node(child).expect("a changed region's nodes are in memory");
            continue;
        }
        let mut patches: Vec<Patch> = Vec::new();
        state.patches(&new.prefix, &mut patches);
        folder.clear();
        folder.begin(new.prefix.len());
        let view = new.page.as_ref().map(|page| LeafView::trusted(page.buf.page(0)));
        fold_leaf(folder, view.as_ref(), &new.prefix, &patches, &[], &mut Vec::new());
        let fold = folder.end().expect("no terminal is placed here");
        folder.run();
        new.node = folder.node(fold);
    }
}

/// Puts a region's new pages into its cuts and retires what they contain; says whether cuts were
/// split or merged.
fn apply<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    state: &mut RegionState,
    pieces: &mut [Piece],
    position: u64,
    freed: &mut Freed,
) -> bool {
    let Nodes::Resident(old_nodes) = &state.nodes else { panic!("a changed region's nodes are in memory") };
    let mut cuts: Vec<Cut> = Vec::with_capacity(state.cuts.len() + pieces.len());
    let mut nodes: Vec<Node> = Vec::with_capacity(cuts.capacity());
    let mut replaced = pieces.iter().peekable();
    let mut reshaped = false;
    for child in 0..state.cuts.len() {
        let cut = state.cuts.cut(child);
        let Some(piece) = replaced.peek().filter(|piece| piece.range.contains(&cut.prefix)) else {
            cuts.push(cut);
            nodes.push(old_nodes[child]);
            continue;
        };
        reshaped |= piece.new.len() != 1 || piece.range != cut.prefix;
        if cut.prefix.last_key() == piece.range.last_key() {
            for new in &piece.new {
                cuts.push(Cut {
                    prefix: new.prefix,
                    place: new.page.as_ref().map(|page| page.place),
                    tag: new.page.as_ref().map_or(0, |page| page.tag),
                });
                nodes.push(new.node);
            }
            replaced.next();
        }
    }
    let pages_before = (0..state.cuts.len()).filter(|child| state.cuts.place(*child).is_some()).count();
    let pages_after = cuts.iter().filter(|cut| cut.place.is_some()).count();
    Counters::change(&shared.counters.leaf_pages, pages_after.cast_signed() - pages_before.cast_signed());
    let region = *state.cuts.region();
    state.cuts = Arc::new(Cuts::new(region, &cuts));
    state.nodes = Nodes::Resident(nodes);
    for piece in pieces {
        let (bytes, entries) = state.retire(&piece.range, piece.through);
        Counters::change(&shared.counters.pending_bytes, -bytes.cast_signed());
        Counters::change(&shared.counters.pending_entries, -entries.cast_signed());
        freed.leaf.extend(piece.sources.iter().filter_map(|source| source.place));
        freed.overflow.append(&mut piece.freed_runs);
        for new in &mut piece.new {
            if let Some(page) = new.page.take() {
                shared.cache.insert(page.place, page.tag, page.buf, shared.batch.load(Ordering::Relaxed));
            }
        }
        for source in &piece.sources {
            if let Some(place) = source.place {
                shared.cache.remove(place);
            }
        }
    }
    state.touches = (0..state.cuts.len()).map(|child| touches(state, child)).collect();
    state.position = position;
    state.shape += u64::from(reshaped);
    reshaped
}

/// A page that still has pending changes counts as touched once.
fn touches(state: &RegionState, child: usize) -> u8 {
    u8::from(!state.pending_range(&state.cuts.prefix(child)).is_empty())
}

/// Replaces regions with too many children by their halves, as often as it takes.
fn split_regions<H: Hasher, D: Device, R: Runtime>(shared: &Shared<H, D, R>, split: &[Arc<Region>]) {
    let top = shared.top.load_full();
    let mut regions = Vec::with_capacity(top.regions().len() + split.len());
    for region in top.regions() {
        if split.iter().any(|other| Arc::ptr_eq(other, region)) {
            let mut state = region.write();
            regions.extend(halves::<H>(&mut state).into_iter().map(|state| Arc::new(Region::with_state(state))));
            state.retired = true;
        } else {
            regions.push(Arc::clone(region));
        }
    }
    shared.top.store(Arc::new(Top::new(regions)));
}

/// The states of the regions that replace one; each has at most [`MAX_ENTRIES`] children.
fn halves<H: Hasher>(state: &mut RegionState) -> Vec<RegionState> {
    let mut done = Vec::new();
    let mut todo = vec![take(state)];
    while let Some(whole) = todo.pop() {
        if whole.cuts.len() <= MAX_ENTRIES {
            done.push(whole);
            continue;
        }
        let (left, right) = cut_in_two::<H>(&whole);
        todo.push(right);
        todo.push(left);
    }
    done
}

fn take(state: &mut RegionState) -> RegionState {
    RegionState {
        cuts: Arc::clone(&state.cuts),
        nodes: Nodes::Resident(resident(state).to_vec()),
        pending: std::mem::take(&mut state.pending),
        touches: std::mem::take(&mut state.touches),
        changed: state.changed,
        position: state.position,
        shape: 0,
        own: state.own,
        retired: false,
    }
}

fn resident(state: &RegionState) -> &[Node] {
    match &state.nodes {
        Nodes::Resident(nodes) => nodes,
        Nodes::Paged { .. } => panic!("a changed region's nodes are in memory"),
    }
}

fn cut_in_two<H: Hasher>(whole: &RegionState) -> (RegionState, RegionState) {
    let prefix = *whole.cuts.region();
    let at = (0..whole.cuts.len())
        .position(|child| bit(whole.cuts.prefix(child).first_key(), prefix.len()))
        .expect("a region of many children has some on the right");
    let pending_at = whole.pending.partition_point(|pending| !bit(&pending.key, prefix.len()));
    let half = |range: std::ops::Range<usize>, pending: std::ops::Range<usize>, right: bool| {
        let cuts: Vec<Cut> = range.clone().map(|child| whole.cuts.cut(child)).collect();
        let nodes = resident(whole)[range.clone()].to_vec();
        let cuts = Cuts::new(prefix.child(right), &cuts);
        let own = region_node::<H>(&cuts, &nodes);
        RegionState {
            nodes: Nodes::Resident(nodes),
            pending: whole.pending[pending].to_vec(),
            touches: whole.touches[range].to_vec(),
            cuts: Arc::new(cuts),
            changed: whole.changed,
            position: whole.position,
            shape: 0,
            own,
            retired: false,
        }
    };
    let count = whole.cuts.len();
    (half(0..at, 0..pending_at, false), half(at..count, pending_at..whole.pending.len(), true))
}

/// The node of a region from those of its children.
pub(crate) fn region_node<H: Hasher>(cuts: &Cuts, nodes: &[Node]) -> Node {
    let mut folder = Folder::<H>::new();
    folder.begin(cuts.region().len());
    for (cut, node) in cuts.iter().zip(nodes) {
        folder.subtrie(&cut.prefix, node);
    }
    let fold = folder.end().expect("no terminal is placed here");
    folder.run();
    folder.node(fold)
}
