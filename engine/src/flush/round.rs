//! One round of the flush: gathering pages, building and writing their successors.

use std::sync::Arc;

use pleach_beatree::build::{
    CellRef, LEVELS, PageNodes, PageStamp, Planned, Unfolded, filled, fold_pages, plan, write_page,
};
use pleach_beatree::cache::NO_BATCH;
use pleach_beatree::region::Nodes;
use pleach_beatree::stored::overflow_cell;
use pleach_beatree::{PageNo, Region, RegionState, Stored};
use pleach_core::fold::BatchFolder;
use pleach_core::page::leaf;
use pleach_core::page::overflow::PageRun;
use pleach_core::{Hasher, Prefix};
use pleach_io::{Completion, Device, PageBuf, Queue, Request, Runtime, Transfer};

use super::agree::contradicting;
use super::cells::{Edit, Edited, Source, known_tiles};
use super::piece::{NewLeaf, Piece, WrittenPage, disagree};
use crate::error::{NoRoom, Result, full_or};
use crate::format::names::LEAF_FILE;
use crate::format::position::LogPos;
use crate::metrics::Counters;
use crate::read::group::{GROUP, Reach, cpu_prefetch};
use crate::state::index::Located;
use crate::state::quarantine::Why;
use crate::state::reader::{Asked, Done, PageReader, PageRequest};
use crate::state::space::Tentative;
use crate::state::{State, overflow};

/// Pages of write buffers that are kept from round to round.
const SPARE_PAGES: usize = 1024;
/// Pieces ahead of the one that is merged, whose memory is asked for.
const AHEAD: usize = 4;
/// Siblings merge when they fill at most this share of a page, in percent.
const MERGE_PERCENT: usize = 60;

/// How a piece's new pages are made.
enum Content {
    Edited(Edited),
    /// Pages to be, and where the piece's cells start.
    Planned(Vec<Planned>, usize),
}

impl Content {
    fn pages(&self) -> usize {
        match self {
            Self::Edited(_) => 1,
            Self::Planned(plans, _) => plans.len(),
        }
    }
}

/// The state of a round.
#[derive(Default)]
pub(super) struct Round {
    pub(super) pieces: Vec<Piece>,
    /// Highest log position that the pages contain.
    position: LogPos,
    /// Places reserved and not yet published.
    reserved: Vec<PageNo>,
    /// The bytes of the new pages, run by run.
    pub(super) runs: Vec<PageBuf>,
    /// Buffers of earlier rounds.
    spare: Vec<PageBuf>,
    overflow_written: bool,
    tentative: Vec<PageRun>,
    pub(super) flush: u64,
}

impl Round {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Ranges that it replaces.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Step 1: pages and pending changes of the wanted prefixes.
    pub(super) fn gather<H: Hasher, D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        reader: &mut PageReader<D, R, usize>,
        wanted: &[Prefix],
        any: bool,
    ) -> Result<()> {
        self.pieces.clear();
        self.position = LogPos::START;
        let least = if any { 1 } else { db.budget.flush_policy().least() };
        let _guard = db.store.enter();
        for (index, prefix) in wanted.iter().enumerate() {
            if index.is_multiple_of(GROUP) {
                let group = wanted[index..].iter().take(GROUP);
                cpu_prefetch(db, group.map(Prefix::first_key), Reach::Cell);
            }
            if self.pieces.last().is_some_and(|piece| piece.range.covers(prefix.first_key())) {
                continue;
            }
            let mut add = || {
                db.index.in_region(prefix.first_key(), |region, state| {
                    let here = matches!(state.nodes(), Nodes::Resident(_));
                    if here {
                        self.add(db, region, state, prefix, least);
                    }
                    here
                })
            };
            // The flusher is the one that lets nodes leave: what it brings in here stays until the
            // round is published. Nodes that cannot be had are aside from then on.
            if !add() && db.nodes.bring_nodes::<H>(prefix.first_key()).is_ok() {
                add();
            }
        }
        read_missing(db, reader, &mut self.pieces)
    }

    fn add<D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        region: &Arc<Region>,
        state: &RegionState,
        wanted: &Prefix,
        least: u8,
    ) {
        let child = state.children().find(wanted.first_key());
        if state.commits_since_write(child) < least || db.store.page_is_aside(state, child) {
            return;
        }
        let own = source(db, state, child);
        if own.pending.is_empty() {
            return;
        }
        let mut range = own.prefix;
        let mut sources = vec![own];
        if let Some(sibling) = mergeable_sibling(db, state, child, &sources[0]) {
            range = range.parent().expect("a page with a sibling is not the root");
            let left = sibling.prefix < sources[0].prefix;
            sources.insert(usize::from(!left), sibling);
            if self.pieces.last().is_some_and(|piece| range.covers(piece.range.first_key())) {
                // Its sibling was taken before and merges on its own: this page's turn comes again.
                db.index.make_due([*wanted]);
                return;
            }
        }
        self.position = self.position.max(state.log_position().into());
        let first = self.pieces.last().is_none_or(|piece| !Arc::ptr_eq(&piece.region, region));
        let dropped = if first { state.dropped() } else { &[] };
        self.pieces.push(Piece {
            region: Arc::clone(region),
            range,
            sources,
            through: state.last_commit(),
            shape: state.layout_version(),
            new: Vec::new(),
            freed_runs: dropped
                .iter()
                .flat_map(|dropped| overflow::runs(&dropped.pending.stored))
                .collect(),
            dropped: dropped.len(),
        });
    }

    /// Step 2: (a), then building and (b) writing.
    pub(super) fn write<H: Hasher, D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        queue: &mut D::Queue,
        folder: &mut BatchFolder<H>,
        flush: u64,
    ) -> Result<()> {
        self.flush = flush;
        if db.commits.sequencer().durable() < self.position {
            db.commits.sequencer().write_through(self.position, true)?;
        }
        self.write_long_values(db, flush)?;
        // Three turns at most: one finds known nodes that are wrong, which are hashed from the cells in
        // the second; what is wrong even then is set aside, and the third is about the others.
        while !self.pieces.is_empty() {
            let mut pieces = std::mem::take(&mut self.pieces);
            let result = self.write_pages(db, queue, folder, &mut pieces);
            self.pieces = pieces;
            let bad = result?;
            if bad.is_empty() {
                break;
            }
            for index in bad.into_iter().rev() {
                self.distrust(db, index)?;
            }
        }
        Ok(())
    }

    /// A piece's nodes contradict the index: its known nodes are forgotten, or, when it was hashed from
    /// its cells, its pages are set aside.
    fn distrust<D: Device, R: Runtime>(&mut self, db: &State<D, R>, index: usize) -> Result<()> {
        let sources = &mut self.pieces[index].sources;
        if sources.iter().any(|source| source.tiles.1 != 0) {
            tracing::error!(prefix = ?sources[0].prefix, "known nodes do not fold to the page's");
            for source in sources {
                source.tiles.1 = 0;
                // A finish shall not fold with them either.
                source.place.iter().for_each(|place| db.store.cache().remove(*place));
            }
            return Ok(());
        }
        let piece = self.pieces.remove(index);
        if piece.sources.iter().all(|source| source.place.is_none()) {
            // No page is to blame.
            return Err(disagree(&piece.range));
        }
        for source in &piece.sources {
            if let Some(place) = source.place {
                let page = (LEAF_FILE, u64::from(place));
                db.store.set_aside(page, source.prefix, disagree(&piece.range), Why::Contradicts);
                // No session shall have it either, see `Store::admit`.
                db.store.cache().remove(place);
            }
        }
        let written = piece.sources.iter().flat_map(|source| &source.written);
        let runs: Vec<PageRun> = written.flat_map(|(_, cell)| overflow_cell(cell).runs()).collect();
        self.tentative.retain(|run| !runs.contains(run));
        drop(db.space.tentative_again(runs));
        Ok(())
    }

    fn write_long_values<D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        flush: u64,
    ) -> Result<()> {
        let mut written = db.space.tentative();
        for source in self.pieces.iter_mut().flat_map(|piece| &mut piece.sources) {
            for (index, pending) in source.pending.iter().enumerate() {
                if let Stored::Large(large) = &pending.stored {
                    source.written.push((index, overflow::write(db, &mut written, large, flush)?));
                    self.overflow_written = true;
                }
            }
        }
        // From here on the round answers for them.
        self.tentative = written.keep();
        Ok(())
    }

    /// Builds and writes the pages; instead gives the pieces whose nodes contradict the index, and
    /// nothing has happened.
    fn write_pages<H: Hasher, D: Device, R: Runtime>(
        &mut self,
        db: &State<D, R>,
        queue: &mut D::Queue,
        folder: &mut BatchFolder<H>,
        pieces: &mut [Piece],
    ) -> Result<Vec<usize>> {
        let mut edits: Vec<Edit> = Vec::new();
        let mut cells: Vec<CellRef<'_>> = Vec::new();
        let mut contents: Vec<Content> = Vec::with_capacity(pieces.len());
        let mut freed: Vec<Vec<PageRun>> = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter().enumerate() {
            prefetch_behind(&pieces[index..]);
            let mut runs = Vec::new();
            let only = (piece.sources.len() == 1).then(|| &piece.sources[0]);
            let edited = only.and_then(|source| source.edits(&mut edits, &mut runs));
            contents.push(edited.map_or_else(
                || {
                    let from = cells.len();
                    for source in &piece.sources {
                        source.cells(&mut cells, &mut runs);
                    }
                    Content::Planned(plan(&piece.range, &cells[from..]), from)
                },
                Content::Edited,
            ));
            freed.push(runs);
        }
        let mut unfolded = Vec::new();
        let (mut edited, mut planned) = (Vec::new(), Vec::new());
        for (index, (piece, content)) in pieces.iter().zip(&contents).enumerate() {
            let Content::Planned(plans, from) = content else {
                edited.push(index);
                continue;
            };
            planned.push((index, unfolded.len()..unfolded.len() + plans.len()));
            let same = plans.len() == 1 && piece.sources.len() == 1;
            for page in plans {
                let cells = &cells[from + page.cells.start..from + page.cells.end];
                let known = same.then(|| &piece.sources[0].tiles);
                unfolded.push(Unfolded { prefix: page.prefix, cells, known });
            }
        }
        let nodes = fold_pages(folder, &unfolded);
        let folded: Vec<(Unfolded<'_>, PageNodes)> = unfolded.into_iter().zip(nodes).collect();
        let planned: Vec<_> =
            planned.into_iter().map(|(index, pages)| (index, &folded[pages])).collect();
        let bad = contradicting::<H>(pieces, &edited, &planned);
        if !bad.is_empty() {
            return Ok(bad);
        }
        let mut folded = folded.iter();
        // A prefix that has lost its last key gets a page without cells: what an older page under
        // it says is dead (rule 9).
        let places = db.space.allocate_leaves(contents.iter().map(Content::pages).sum())?;
        self.reserved.clone_from(&places);
        let mut runs: Vec<PageBuf> =
            places.chunk_by(|a, b| a.is_before(*b)).map(|run| self.buffer(run.len())).collect();
        let mut slots = slots(&places);
        let mut built: Vec<Vec<NewLeaf>> = Vec::with_capacity(pieces.len());
        for (piece, content) in pieces.iter().zip(&contents) {
            let stamp = |place| PageStamp {
                identity: db.store.leaf_identity(place),
                flush: self.flush,
                namespace: 0,
                through: piece.through,
            };
            let mut new = Vec::with_capacity(content.pages());
            match content {
                Content::Edited(edited) => {
                    let (place, run, at) = slots.next().expect("as many places as pages");
                    let source = &piece.sources[0];
                    let page = runs[run].page_mut(at);
                    let header = stamp(place).header(&source.prefix);
                    let tag = source.write_edited(page, header, edited, &edits);
                    let page = WrittenPage { place, tag, run, at };
                    new.push(NewLeaf { prefix: source.prefix, page, node: source.own });
                }
                Content::Planned(plans, _) => {
                    for (page, nodes) in folded.by_ref().take(plans.len()) {
                        let (place, run, at) = slots.next().expect("as many places as pages");
                        let into = runs[run].page_mut(at);
                        let stamp = stamp(place);
                        let tag = write_page(into, &stamp, &page.prefix, page.cells, &nodes.stored);
                        let written = WrittenPage { place, tag, run, at };
                        let node = Some(nodes.own);
                        new.push(NewLeaf { prefix: page.prefix, page: written, node });
                    }
                }
            }
            built.push(new);
        }
        for ((piece, new), freed) in pieces.iter_mut().zip(built).zip(freed) {
            piece.new = new;
            piece.freed_runs.extend(freed);
        }
        self.runs = write_runs(db, queue, &places, runs)?;
        Ok(Vec::new())
    }

    /// A buffer of an earlier round, or a new one: fresh memory costs more than what is put into it.
    fn buffer(&mut self, pages: usize) -> PageBuf {
        let kept = self.spare.iter().position(|buf| buf.pages() == pages);
        kept.map_or_else(|| PageBuf::zeroed(pages), |at| self.spare.swap_remove(at))
    }

    /// Step 3 (c).
    pub(super) fn sync<D: Device, R: Runtime>(&mut self, db: &State<D, R>) -> Result<()> {
        if std::mem::take(&mut self.overflow_written) {
            db.store.device().sync(db.space.overflow_file())?;
        }
        db.store.device().sync(db.store.leaf_file())?;
        // Into the cache before anybody can look for them, and outside any lock.
        for page in self.pieces.iter().flat_map(|piece| &piece.new).map(|new| &new.page) {
            let bytes = self.runs[page.run].page(page.at);
            db.store.cache().insert(page.place, page.tag, bytes, NO_BATCH);
        }
        Ok(())
    }

    /// The round could not be written: its reserved places go back and its pages stay ripe.
    pub(super) fn abandon<D: Device, R: Runtime>(&mut self, db: &State<D, R>) {
        db.space.give_leaves_back(std::mem::take(&mut self.reserved));
        db.index.make_due(self.pieces.iter().map(|piece| piece.range));
        drop(self.tentative(db));
        self.runs.clear();
        self.pieces.clear();
    }

    /// The overflow runs that this round has written: dropping them gives them back.
    pub(super) fn tentative<'a, D: Device, R: Runtime>(
        &mut self,
        db: &'a State<D, R>,
    ) -> Tentative<'a, D> {
        db.space.tentative_again(std::mem::take(&mut self.tentative))
    }

    /// The round is published: its places belong to the index, the old pages to nobody.
    pub(super) fn finish<D: Device, R: Runtime>(&mut self, db: &State<D, R>) {
        self.reserved.clear();
        let kept: usize = self.spare.iter().map(PageBuf::pages).sum();
        let room = SPARE_PAGES.saturating_sub(kept);
        let mut pages = 0;
        self.spare.extend(self.runs.drain(..).take_while(|buf| {
            pages += buf.pages();
            pages <= room
        }));
        for mut piece in self.pieces.drain(..) {
            // Whoever is the last to hold a page keeps its memory: let that be the cache.
            piece.sources.iter_mut().for_each(|source| source.page = None);
            if let (true, Some(from)) = (piece.is_moved(), piece.sources[0].place) {
                let page = &piece.new[0].page;
                db.store.cache().move_treelet(from, page.place, page.tag);
            }
            for place in piece.sources.iter().filter_map(|source| source.place) {
                db.store.quarantine().forget(LEAF_FILE, u64::from(place));
                db.store.cache().remove(place);
            }
        }
    }
}

fn source<D: Device, R: Runtime>(db: &State<D, R>, state: &RegionState, child: usize) -> Source {
    let prefix = state.children().prefix(child);
    let place = state.children().page(child);
    let pending = state.pending_below(&prefix).to_vec();
    let page = place.and_then(|place| db.store.cache().get(place, state.children().tag(child)));
    let tiles = page.as_ref().map_or(([[0; 32].into(); 1 << LEVELS], 0), |page| {
        known_tiles(state, child, page, &prefix, &pending)
    });
    let own = state.node(child).copied();
    Source { prefix, page, place, pending, written: Vec::new(), tiles, own }
}

/// Asks for the memory of pieces that are merged next.
fn prefetch_behind(pieces: &[Piece]) {
    let page = |ahead: usize| {
        let source = pieces.get(ahead)?.sources.first()?;
        Some((source, source.page.as_ref()?))
    };
    if let Some((_, page)) = page(2 * AHEAD) {
        page.cpu_prefetch_head();
    }
    if let Some((source, page)) = page(AHEAD) {
        source.pending.iter().for_each(|pending| page.cpu_prefetch_key(&pending.key));
    }
}

/// The sibling, when it is at hand and both together leave a page of the parent's prefix with
/// room.
fn mergeable_sibling<D: Device, R: Runtime>(
    db: &State<D, R>,
    state: &RegionState,
    child: usize,
    own: &Source,
) -> Option<Source> {
    let at = own.prefix.sibling()?;
    let parent = own.prefix.parent()?;
    // A page that may be bad shall not take another one with it.
    let suspect = |place: Option<PageNo>| {
        place.is_some_and(|place| db.store.quarantine().suspects(LEAF_FILE, u64::from(place)))
    };
    if suspect(own.place) {
        return None;
    }
    if !state.children().region().contains(&parent) || (own.page.is_none() && own.place.is_some()) {
        return None;
    }
    let other = if own.prefix.is_right() { child.checked_sub(1)? } else { child + 1 };
    if other >= state.children().len() || state.children().prefix(other) != at {
        return None;
    }
    let limit = leaf::capacity(LEVELS) * MERGE_PERCENT / 100;
    if !may_shrink_below(own, limit) {
        return None;
    }
    let mut cells = Vec::new();
    if own.pending.iter().any(|pending| matches!(pending.stored, Stored::Large(_))) {
        return None;
    }
    own.cells(&mut cells, &mut Vec::new());
    if filled(&parent, &cells) > limit {
        return None;
    }
    let sibling = source(db, state, other);
    let missing = sibling.page.is_none() && sibling.place.is_some();
    if missing
        || suspect(sibling.place)
        || sibling.pending.iter().any(|pending| matches!(pending.stored, Stored::Large(_)))
    {
        return None;
    }
    let mut both = Vec::new();
    sibling.cells(&mut both, &mut Vec::new());
    (filled(&parent, &cells) + filled(&parent, &both) <= limit).then_some(sibling)
}

/// A quick look, so that full pages are not merged only to be measured: could the page fill less
/// than `limit` once its pending deletes are applied?
fn may_shrink_below(own: &Source, limit: usize) -> bool {
    let used = own.page.as_ref().map_or(0, |page| page.view().used());
    let deletes = own.pending.iter().filter(|pending| !pending.stored.is_present()).count();
    let largest = leaf::cell_size(own.prefix.len(), leaf::MAX_INLINE);
    used <= limit + deletes * largest
}

/// Reads the old pages that are not cached. A page that cannot be read is set aside and its piece left
/// out; an error is one of the ring.
fn read_missing<D: Device, R: Runtime>(
    db: &State<D, R>,
    reader: &mut PageReader<D, R, usize>,
    pieces: &mut Vec<Piece>,
) -> Result<()> {
    let mut sources: Vec<(Located, &mut Source)> = Vec::new();
    for piece in pieces.iter_mut() {
        let state = piece.region.read();
        for source in &mut piece.sources {
            let child = state.children().find(source.prefix.first_key());
            if let (Some(place), None) = (source.place, &source.page) {
                sources.push((Located { page: place, tag: state.children().tag(child) }, source));
            }
        }
    }
    let mut elsewhere = Vec::new();
    let mut next = 0;
    while next < sources.len() || reader.in_flight() > 0 {
        while next < sources.len() && reader.has_room() {
            let wanted = PageRequest::Leaf(sources[next].0);
            match reader.ask(&db.store, &db.nodes, wanted, next) {
                Asked::InFlight => {}
                Asked::Done(index, Done::Leaf(_, page)) => sources[index].1.read(page),
                Asked::Done(_, Done::Nodes) => unreachable!("leaf pages were asked for"),
                Asked::Elsewhere(index) => elsewhere.push(index),
            }
            next += 1;
        }
        if let Some((index, landed)) = reader.wait(&db.store, &db.nodes, 1)? {
            take(db, &mut sources[index], landed);
        }
    }
    for index in elsewhere {
        let at = sources[index].0;
        let landed = db.store.leaf_for_flush(&at).map(|page| Done::Leaf(at, page));
        take(db, &mut sources[index], landed);
    }
    let unread = |piece: &Piece| {
        piece.sources.iter().any(|source| source.place.is_some() && source.page.is_none())
    };
    pieces.retain(|piece| !unread(piece));
    Ok(())
}

fn take<D: Device, R: Runtime>(
    db: &State<D, R>,
    (at, source): &mut (Located, &mut Source),
    landed: Result<Done>,
) {
    match landed {
        Ok(Done::Leaf(_, page)) => source.read(page),
        Ok(Done::Nodes) => unreachable!("leaf pages were asked for"),
        Err(error) => {
            let page = (LEAF_FILE, u64::from(at.page));
            db.store.set_aside(page, source.prefix, error, Why::Unreadable);
        }
    }
}

/// For each place, in order: the place, its run and the page in it.
fn slots(places: &[PageNo]) -> impl Iterator<Item = (PageNo, usize, usize)> + '_ {
    places.chunk_by(|a, b| a.is_before(*b)).enumerate().flat_map(|(number, run)| {
        run.iter().enumerate().map(move |(at, place)| (*place, number, at))
    })
}

/// Step (b): neighbouring places are one write. Gives the buffers back, in order.
fn write_runs<D: Device, R: Runtime>(
    db: &State<D, R>,
    queue: &mut D::Queue,
    places: &[PageNo],
    runs: Vec<PageBuf>,
) -> Result<Vec<PageBuf>> {
    let count = runs.len();
    let mut written: Vec<Option<PageBuf>> = (0..count).map(|_| None).collect();
    let mut failed = None;
    let mut take = |completion: Completion| {
        failed = failed.take().or(completion.result.err());
        written[usize::try_from(completion.token).expect("an index")] = Some(completion.buf);
    };
    let starts = places.chunk_by(|a, b| a.is_before(*b)).map(|run| run[0]);
    for (number, (start, buf)) in starts.zip(runs).enumerate() {
        while queue.in_flight() == queue.depth() {
            queue.wait()?.into_iter().for_each(&mut take);
        }
        queue.push(Request {
            file: db.store.leaf_file().clone(),
            transfer: Transfer::Write,
            offset: start.offset(),
            buf,
            token: number as u64,
        });
    }
    while let Some(completion) = queue.wait()? {
        take(completion);
    }
    Counters::add(&db.counters.page_runs_written, count as u64);
    Counters::add(&db.counters.pages_written, places.len() as u64);
    // Without room the pages are given up: nothing names them yet.
    failed.map_or(Ok(()), |error| Err(full_or(NoRoom::LeafPages)(error)))?;
    Ok(written.into_iter().map(|buf| buf.expect("every run was written")).collect())
}
