//! All keys of a range in order, from both ends: one page a step.
//!
//! A step, under a grace guard of its own:
//! 1. under the lock of the region that covers the next key: the child's prefix, where its page is, the
//!    changes that are buffered below it, and the entries of undo and overlays for the region;
//! 2. the page: read ahead, cached, or read now;
//! 3. the changes over its cells: buffered changes, under undo, under overlays. Each of them knows its cell, so that
//!    pairs are merged one by one as they are given, without a comparison of keys.
//!
//! `docs/architecture.md` ("An iteration") says why all steps together see one commit. Between two steps nothing is
//! held: pages move, and regions are split, merged and retired, as if no iterator were there.
//!
//! Invariant: the front cursor's pairs, the range that is left, and the back cursor's pairs tile the pairs that have
//! not been given yet, in this order.

use std::collections::VecDeque;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use pleach_beatree::cache::{CachedPage, LookupStep};
use pleach_beatree::{PageNo, RegionState, Stored, Value};
use pleach_core::node::precedes;
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::range::{key_after, key_before, key_range};
use pleach_core::{Key, Prefix};

pub(crate) use super::ahead::Direction;
use super::ahead::ReadAhead;
use super::point;
use super::reader_pool::ReaderPool;
use crate::error::{Error, Result};
use crate::state::TrieDb;
use crate::state::pages::index::{PageRef, child_page};
use crate::state::pages::overflow;
use crate::state::pages::run_reader::{RunPage, RunReader};
use crate::state::view::{View, merge_changes};

/// Pages of a range that are cached like those of single reads. A longer scan reads more than is worth keeping, and
/// leaves the cache alone.
const KEPT: usize = 32;

/// A key with its state, which is present.
type StoredPair = (Key, Stored);

/// A scan of a range from both ends, always with the same trie and view.
pub(crate) struct Scan {
    /// First and last key that no step has reached yet.
    rest: Option<(Key, Key)>,
    front: ScanSide,
    back: ScanSide,
    /// The page of the last step, and what is wrong with it.
    current_page: Option<ScannedPage>,
}

/// A step of a scrub: a child of a region.
pub(crate) struct ScannedPage {
    pub(crate) prefix: Prefix,
    /// Its page, if it has one.
    pub(crate) page: Option<PageNo>,
    /// Why the page cannot be used.
    pub(crate) error: Option<Error>,
}

impl ScannedPage {
    /// True when the error is the page's, and not one of reading the log.
    fn has_error(&self, error: &Error) -> bool {
        self.error.as_ref().is_some_and(|own| own.place().is_some() && own.place() == error.place())
    }
}

/// One end of a scan.
struct ScanSide {
    /// The rest of the last step's page.
    cursor: PageCursor,
    ahead: ReadAhead,
    region_changes: Option<RegionChanges>,
    pages: usize,
}

/// The rest of a page: cells, and in key order the changes that lie over them.
#[derive(Default)]
struct PageCursor {
    page: Option<ScanLeaf>,
    cells: Range<usize>,
    changes: VecDeque<CellChange>,
}

/// The change of a key by a buffered change, undo or an overlay.
struct CellChange {
    /// The key's cell, or an empty range where it would be.
    cell: Range<usize>,
    pair: StoredPair,
}

/// A page, and where it lies.
enum ScanLeaf {
    Cached(Arc<CachedPage>),
    /// In the memory that it was read into.
    Uncached(RunPage),
}

impl ScanLeaf {
    #[inline]
    fn view(&self) -> LeafView<'_> {
        match self {
            Self::Cached(page) => page.view(),
            Self::Uncached(page) => LeafView::from_trusted(page.page()),
        }
    }
}

/// Changes of a region by undo and overlays, as of the region's newest commit then.
struct RegionChanges {
    region: Prefix,
    through: u64,
    changes: Vec<StoredPair>,
}

/// The entry of the index for a child, as a step has read it.
struct CapturedChild {
    prefix: Prefix,
    at: Option<PageRef>,
    buffered: Vec<StoredPair>,
    /// True when undo or an overlay changes the region.
    has_changes: bool,
}

impl Scan {
    pub(crate) fn new(spare: &ReaderPool<RunReader>, range: &impl RangeBounds<Key>) -> Self {
        let end = |direction| ScanSide {
            cursor: PageCursor::default(),
            ahead: ReadAhead::new(spare, direction),
            region_changes: None,
            pages: 0,
        };
        let (front, back) = (end(Direction::Forwards), end(Direction::Backwards));
        Self { rest: key_range(range), front, back, current_page: None }
    }

    /// Reads every page from the device from now on, also a cached one, and puts none into the cache.
    pub(crate) fn read_from_device(&mut self) {
        self.front.ahead.from_device = true;
        self.back.ahead.from_device = true;
    }

    /// Goes on by one page at the front. A page that cannot be used is skipped, and returned with its error.
    /// [`Self::next_in_page`] gives the pairs of the page; call this after the last of them.
    ///
    /// # Errors
    /// Errors of no single page: nothing comes after them.
    pub(crate) fn next_page(&mut self, db: &TrieDb, view: &View) -> Option<Result<ScannedPage>> {
        let rest = self.rest?;
        let step = db.run_read(view.base, || self.step(db, view, Direction::Forwards, rest));
        match (step, self.current_page.take()) {
            (Ok(()), Some(page)) => Some(Ok(page)),
            (Err(error), Some(page)) if page.has_error(&error) => {
                // For a state that cannot be read any more, no result is true.
                let readable = db.run_read(view.base, || view.check_readable());
                Some(readable.map(|()| page).map_err(|_| error))
            }
            (Err(error), _) => {
                self.stop();
                Some(Err(error))
            }
            (Ok(()), None) => None,
        }
    }

    /// The next pair of the current page.
    pub(crate) fn next_in_page(&mut self) -> Option<StoredPair> {
        self.front.cursor.next(Direction::Forwards)
    }

    /// The next pair, if its page is loaded and has its value: as [`Self::next`], without a copy.
    #[inline]
    pub(crate) fn next_inline(
        &mut self,
        direction: Direction,
    ) -> Option<(LeafView<'_>, usize, &[u8])> {
        self.sides(direction).0.cursor.next_inline(direction)
    }

    /// The next pair: forwards the first that is left, backwards the last.
    #[inline]
    pub(crate) fn next(
        &mut self,
        db: &TrieDb,
        view: &View,
        direction: Direction,
    ) -> Option<Result<StoredPair>> {
        loop {
            let rest = self.rest;
            let (end, other) = self.sides(direction);
            if let Some(pair) = end.cursor.next(direction) {
                return Some(Ok(pair));
            }
            let Some(rest) = rest else { return other.cursor.next(direction).map(Ok) };
            if let Err(error) = db.run_read(view.base, || self.step(db, view, direction, rest)) {
                self.stop();
                return Some(Err(error));
            }
        }
    }

    /// The end that moves in this direction, and the other one.
    #[inline]
    fn sides(&mut self, direction: Direction) -> (&mut ScanSide, &mut ScanSide) {
        match direction {
            Direction::Forwards => (&mut self.front, &mut self.back),
            Direction::Backwards => (&mut self.back, &mut self.front),
        }
    }

    /// Goes to another range.
    pub(crate) fn seek(&mut self, range: &impl RangeBounds<Key>) {
        self.stop();
        for end in [&mut self.front, &mut self.back] {
            end.ahead.clear();
            end.pages = 0;
        }
        self.rest = key_range(range);
    }

    /// Ends the scan.
    pub(crate) fn stop(&mut self) {
        self.rest = None;
        for end in [&mut self.front, &mut self.back] {
            end.cursor = PageCursor::default();
        }
    }

    /// Goes on by one page.
    fn step(
        &mut self,
        db: &TrieDb,
        view: &View,
        direction: Direction,
        rest: (Key, Key),
    ) -> Result<()> {
        self.current_page = None;
        let (end, key) = match direction {
            Direction::Forwards => (&mut self.front, rest.0),
            Direction::Backwards => (&mut self.back, rest.1),
        };
        if end.pages > 0 {
            end.ahead.advance(db, &rest)?;
        }
        let guard = db.store.grace_guard();
        let captured = db
            .index
            .with_region(&key, |region, state| end.capture(view, region.prefix(), state, &key))?;
        let range =
            (rest.0.max(*captured.prefix.first_key()), rest.1.min(captured.prefix.last_key()));
        self.rest = match direction {
            Direction::Forwards => {
                key_after(&range.1).filter(|_| range.1 < rest.1).map(|key| (key, rest.1))
            }
            Direction::Backwards => {
                key_before(&range.0).filter(|_| range.0 > rest.0).map(|key| (rest.0, key))
            }
        };
        let prefix = captured.prefix;
        let page = captured.at.map(|at| end.load_page(db, &prefix, at, &key)).transpose();
        let (number, error) = (captured.at.map(|at| at.page), page.as_ref().err().cloned());
        self.current_page = Some(ScannedPage { prefix, page: number, error });
        let page = page?;
        drop(guard);
        // A dropped trie may have been reclaimed while it was read.
        view.check_readable().inspect_err(|_| end.region_changes = None)?;
        end.cursor = end.cursor_over(page, captured, &range);
        Ok(())
    }
}

/// Reads a long value that a scan has given.
pub(crate) fn long_value(
    db: &TrieDb,
    view: &View,
    key: &Key,
    stored: Stored,
) -> Result<Option<Value>> {
    let value = overflow::value(db, view.base, stored, false);
    match value {
        // The value has moved by now: it is looked up again.
        Err(_) if db.replica.is_some() => db.run_read(view.base, || point::value(db, view, key)),
        value => value,
    }
}

impl ScanSide {
    /// Reads the index's entry for the child that covers a key, under its region's lock.
    fn capture(
        &mut self,
        view: &View,
        region: &Prefix,
        state: &RegionState,
        key: &Key,
    ) -> Result<CapturedChild> {
        let child = state.children().find(key);
        let prefix = state.children().prefix(child);
        let mut buffered = Vec::new();
        state.copy_buffered(&prefix, &mut buffered);
        let differs = view.has_changes(state);
        // No commit was applied here since then, so no undo is missing.
        let knows = |over: &RegionChanges| {
            over.region.contains(&prefix) && state.last_commit() <= over.through
        };
        if differs && !self.region_changes.as_ref().is_some_and(knows) {
            let (region, through) = (*region, state.last_commit());
            self.region_changes = Some(RegionChanges {
                region,
                through,
                changes: view.changes_below(&region, state)?,
            });
        }
        Ok(CapturedChild { prefix, at: child_page(state, child), buffered, has_changes: differs })
    }

    /// Loads a page that the index names. The caller holds a grace guard.
    fn load_page(
        &mut self,
        db: &TrieDb,
        prefix: &Prefix,
        at: PageRef,
        key: &Key,
    ) -> Result<ScanLeaf> {
        if self.pages == 0 {
            // The page's memory has not been prefetched ([`ReadAhead::take_page`]).
            db.store.cache.cpu_prefetch(at.page, LookupStep::Page(key));
        }
        self.pages += 1;
        let keep = self.pages <= KEPT && !self.ahead.from_device;
        if let Some(page) = self.ahead.take_page(db, prefix, at)? {
            db.store.accept_uncached(at, page.page(), keep)?;
            return Ok(ScanLeaf::Uncached(page));
        }
        if !self.ahead.from_device
            && let Some(page) = db.store.peek(at)
        {
            return Ok(ScanLeaf::Cached(page));
        }
        if keep {
            return db.store.leaf(at).map(ScanLeaf::Cached);
        }
        let page = db.store.read_uncached(at)?;
        db.store.accept_uncached(at, page.page(), keep)?;
        Ok(ScanLeaf::Cached(page))
    }

    /// A cursor over the part of a page in this range.
    fn cursor_over(
        &self,
        page: Option<ScanLeaf>,
        captured: CapturedChild,
        (first, last): &(Key, Key),
    ) -> PageCursor {
        let mut changes = captured.buffered;
        changes.retain(|(key, _)| !precedes(key, first) && !precedes(last, key));
        if let Some(over) = self.region_changes.as_ref().filter(|_| captured.has_changes) {
            let from = over.changes.partition_point(|(key, _)| precedes(key, first));
            let over = over.changes[from..].iter().take_while(|(key, _)| !precedes(last, key));
            merge_changes(&mut changes, 0, over.cloned());
        }
        let (view, prefix) = (page.as_ref().map(ScanLeaf::view), captured.prefix);
        // The cell of a key, or an empty range where it would be.
        let cell = |key: &Key| match view.map_or(Err(0), |page| page.find(key)) {
            Ok(cell) => cell..cell + 1,
            Err(after) => after..after,
        };
        let from = if first <= prefix.first_key() { 0 } else { cell(first).start };
        let whole = view.filter(|_| prefix.last_key() <= *last);
        let cells = from..whole.map_or_else(|| cell(last).end, |page| page.len());
        let change = |pair: StoredPair| CellChange { cell: cell(&pair.0), pair };
        PageCursor { changes: changes.into_iter().map(change).collect(), page, cells }
    }
}

impl PageCursor {
    /// The next cell, if no change is for its key or comes before it.
    #[inline]
    fn next_cell(&self, direction: Direction) -> Option<usize> {
        let Self { cells, changes, .. } = self;
        let until = match direction {
            Direction::Forwards => {
                cells.start..changes.front().map_or(cells.end, |next| next.cell.start)
            }
            Direction::Backwards => {
                changes.back().map_or(cells.start, |next| next.cell.end)..cells.end
            }
        };
        let cell =
            if direction == Direction::Forwards { until.start } else { until.end.wrapping_sub(1) };
        (!until.is_empty()).then_some(cell)
    }

    /// The next pair, if it is a cell with its value: the page, the cell's index, and the value.
    #[inline]
    fn next_inline(&mut self, direction: Direction) -> Option<(LeafView<'_>, usize, &[u8])> {
        let cell = self.next_cell(direction)?;
        let page = self.page.as_ref()?.view();
        let Cell::Inline(value) = page.cell(cell) else { return None };
        skip_cells(&mut self.cells, direction, &(cell..cell + 1));
        Some((page, cell, value))
    }

    /// The next pair: a cell, or the change that comes before it.
    fn next(&mut self, direction: Direction) -> Option<StoredPair> {
        loop {
            if let Some((cell, page)) = self.next_cell(direction).zip(self.page.as_ref()) {
                let pair = (page.view().key(cell), Stored::from_cell(page.view().cell(cell)));
                skip_cells(&mut self.cells, direction, &(cell..cell + 1));
                return Some(pair);
            }
            let CellChange { cell, pair } = match direction {
                Direction::Forwards => self.changes.pop_front()?,
                Direction::Backwards => self.changes.pop_back()?,
            };
            skip_cells(&mut self.cells, direction, &cell);
            if pair.1.is_present() {
                return Some(pair);
            }
        }
    }
}

/// Leaves the cells beyond these.
#[inline]
fn skip_cells(cells: &mut Range<usize>, direction: Direction, beyond: &Range<usize>) {
    match direction {
        Direction::Forwards => cells.start = beyond.end,
        Direction::Backwards => cells.end = beyond.start,
    }
}
