//! All keys of a range in order, from both ends: one page a step.
//!
//! A step, under a grace guard of its own:
//! 1. under the lock of the region that covers the next key: the child's prefix, where its page is, the
//!    changes that are buffered below it, and the entries of undo and overlays for the region;
//! 2. the page: read ahead, cached, or read now;
//! 3. the changes over its cells: buffered changes, under undo, under overlays. The cell of the next change is looked up
//!    when the pairs come there: the cells before it are given without a comparison of keys.
//!
//! `docs/architecture.md` ("An iteration") says why all steps together see one commit. Between two steps nothing is
//! held: pages move, and regions are split, merged and retired, as if no iterator were there.
//!
//! Invariant: the front cursor's pairs, the range that is left, and the back cursor's pairs tile the pairs that have
//! not been given yet, in this order.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use pleach_beatree::cache::{CachedPage, LookupStep};
use pleach_beatree::pages::{ReaderPool, RunPage, RunReader};
pub(crate) use pleach_beatree::tree::ahead::Direction;
use pleach_beatree::tree::ahead::{AheadLimits, KeyRange, ReadAhead};
use pleach_beatree::{PageNo, PageRef, RegionState, Stored, Value};
use pleach_core::fold::FoldValue;
use pleach_core::node::precedes;
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::range::{key_after, key_before, key_range};
use pleach_core::{Key, Prefix};

use super::point;
use crate::error::{Error, Result};
use crate::state::NamespaceDb;
use crate::state::values;
use crate::state::view::{View, merge_changes};

/// Pages of a range that are cached like those of single reads. A longer scan reads more than is worth keeping, and
/// leaves the cache alone.
const KEPT: usize = 32;

/// A key with its state, which is present.
type StoredPair = (Key, Stored);

/// A scan of a range from both ends, always with the same trie and view.
pub(crate) struct Scan {
    /// The keys that no step has reached yet.
    rest: Option<KeyRange>,
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

/// The rest of a page: cells, and the changes that lie over them.
///
/// Invariant: the cells before `clean_until` come before all changes that are left, those from `clean_from` on after them.
#[derive(Default)]
struct PageCursor {
    page: Option<ScanLeaf>,
    cells: Range<usize>,
    /// Where the cells of the next changes are looked up, forwards and backwards.
    clean_until: usize,
    clean_from: usize,
    /// In key order; those outside of `left` were given.
    changes: Vec<StoredPair>,
    left: Range<usize>,
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
    last_commit: u64,
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
        Self { rest: rest_of(range), front, back, current_page: None }
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
    pub(crate) fn next_page(
        &mut self,
        db: &NamespaceDb,
        view: &View,
    ) -> Option<Result<ScannedPage>> {
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
    pub(crate) fn next_in_page(&mut self) -> Option<PairRef<'_>> {
        let next = self.front.cursor.take(Direction::Forwards)?;
        self.front.cursor.pair(next)
    }

    /// The next pair, if it is a cell that comes before the next change, and has its value.
    #[inline]
    pub(crate) fn next_clean(&mut self, direction: Direction) -> Option<(Key, &[u8])> {
        let PageCursor { page, cells, clean_until, clean_from, .. } =
            &mut self.sides(direction).0.cursor;
        let page = page.as_ref()?.view();
        let cell = match direction {
            Direction::Forwards if cells.start < cells.end.min(*clean_until) => cells.start,
            Direction::Backwards if cells.start.max(*clean_from) < cells.end => cells.end - 1,
            _ => return None,
        };
        let (key, Cell::Inline(value)) = (page.key(cell), page.cell(cell)) else { return None };
        match direction {
            Direction::Forwards => cells.start = cell + 1,
            Direction::Backwards => cells.end = cell,
        }
        Some((key, value))
    }

    /// The next pair, where it lies: forwards the first that is left, backwards the last.
    pub(crate) fn next(
        &mut self,
        db: &NamespaceDb,
        view: &View,
        direction: Direction,
    ) -> Option<Result<PairRef<'_>>> {
        let (is_own, next) = loop {
            let rest = self.rest;
            let (end, other) = self.sides(direction);
            if let Some(next) = end.cursor.take(direction) {
                break (true, next);
            }
            let Some(rest) = rest else { break (false, other.cursor.take(direction)?) };
            if let Err(error) = db.run_read(view.base, || self.step(db, view, direction, rest)) {
                self.stop();
                return Some(Err(error));
            }
        };
        let (end, other) = self.sides(direction);
        let cursor = if is_own { &end.cursor } else { &other.cursor };
        cursor.pair(next).map(Ok)
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
        self.rest = rest_of(range);
    }

    /// Ends the scan.
    pub(crate) fn stop(&mut self) {
        self.rest = None;
        for end in [&mut self.front, &mut self.back] {
            end.cursor = PageCursor::default();
        }
    }

    /// Goes on by one page, at an end of what was left: `rest`, also when it is tried again.
    fn step(
        &mut self,
        db: &NamespaceDb,
        view: &View,
        direction: Direction,
        rest: KeyRange,
    ) -> Result<()> {
        self.current_page = None;
        let (end, key) = match direction {
            Direction::Forwards => (&mut self.front, rest.first),
            Direction::Backwards => (&mut self.back, rest.last),
        };
        if end.pages > 0 {
            let limits =
                AheadLimits { depth: db.options.in_flight, pages: db.budget.pages_ahead() };
            end.ahead.advance(&db.tree, limits, &rest)?;
        }
        // The cursor is at its end; its memory is used again.
        let mut spare = std::mem::take(&mut end.cursor).changes;
        spare.clear();
        let guard = db.store.grace.enter();
        let captured = db.tree.with_region(&key, |region, state| {
            let spare = std::mem::take(&mut spare);
            end.capture(view, region.prefix(), state, &key, spare)
        })?;
        let first = rest.first.max(*captured.prefix.first_key());
        let last = rest.last.min(captured.prefix.last_key());
        self.rest = match direction {
            Direction::Forwards => key_after(&last)
                .filter(|_| last < rest.last)
                .map(|first| KeyRange { first, last: rest.last }),
            Direction::Backwards => key_before(&first)
                .filter(|_| first > rest.first)
                .map(|last| KeyRange { first: rest.first, last }),
        };
        let prefix = captured.prefix;
        let page = captured.at.map(|at| end.load_page(db, &prefix, at, &key)).transpose();
        let (number, error) = (captured.at.map(|at| at.page), page.as_ref().err().cloned());
        self.current_page = Some(ScannedPage { prefix, page: number, error });
        let page = page?;
        drop(guard);
        // A dropped trie may have been reclaimed while it was read.
        view.check_readable().inspect_err(|_| end.region_changes = None)?;
        end.cursor = end.cursor_over(page, captured, &KeyRange { first, last });
        Ok(())
    }
}

fn rest_of(range: &impl RangeBounds<Key>) -> Option<KeyRange> {
    key_range(range).map(|(first, last)| KeyRange { first, last })
}

/// Reads a long value that a scan has given.
pub(crate) fn long_value(
    db: &NamespaceDb,
    view: &View,
    key: &Key,
    stored: Stored,
) -> Result<Option<Value>> {
    let value = values::value(db, view.base, stored, false);
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
        mut buffered: Vec<StoredPair>,
    ) -> Result<CapturedChild> {
        let child = state.children().find(key);
        let prefix = state.children().prefix(child);
        state.copy_buffered(&prefix, &mut buffered);
        let differs = view.has_changes(state);
        // No commit was applied here since then, so no undo is missing.
        let knows = |over: &RegionChanges| {
            over.region.contains(&prefix) && state.last_commit() <= over.last_commit
        };
        if differs && !self.region_changes.as_ref().is_some_and(knows) {
            let (region, last_commit) = (*region, state.last_commit());
            self.region_changes = Some(RegionChanges {
                region,
                last_commit,
                changes: view.changes_below(&region, state)?,
            });
        }
        Ok(CapturedChild { prefix, at: state.page_ref(child), buffered, has_changes: differs })
    }

    /// Loads a page that the index names. The caller holds a grace guard.
    fn load_page(
        &mut self,
        db: &NamespaceDb,
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
        if let Some(page) = self.ahead.take_page(&db.tree, prefix, at)? {
            db.store.accept_uncached(at, page.page(), keep)?;
            return Ok(ScanLeaf::Uncached(page));
        }
        if !self.ahead.from_device
            && let Some(page) = db.store.peek(at)
        {
            return Ok(ScanLeaf::Cached(page));
        }
        if keep {
            return Ok(ScanLeaf::Cached(db.store.page(at)?));
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
        KeyRange { first, last }: &KeyRange,
    ) -> PageCursor {
        let mut changes = captured.buffered;
        if first > captured.prefix.first_key() || *last < captured.prefix.last_key() {
            changes.retain(|(key, _)| !precedes(key, first) && !precedes(last, key));
        }
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
        let (clean_until, clean_from) = (cells.start, cells.end);
        PageCursor { page, cells, clean_until, clean_from, left: 0..changes.len(), changes }
    }
}

/// The next pair, in the page or among its changes.
#[derive(Clone, Copy)]
enum Next {
    Cell(usize),
    Change(usize),
}

/// A key, and its value where that lies.
pub(crate) type PairRef<'a> = (Key, StoredRef<'a>);

/// A value that a scan gives.
pub(crate) enum StoredRef<'a> {
    InPage(&'a [u8]),
    Short(&'a Value),
    Long(Stored),
}

impl StoredRef<'_> {
    /// The value as a fold takes it; `None` when it is absent, which no scan gives.
    pub(crate) fn fold_value(&self) -> Option<FoldValue<'_>> {
        match self {
            Self::InPage(value) => Some(FoldValue::Bytes(value)),
            Self::Short(value) => Some(FoldValue::Bytes(value)),
            Self::Long(stored) => stored.fold_value(),
        }
    }
}

impl PageCursor {
    /// The cell of a key among those that are left, or an empty range where it would be.
    #[inline]
    fn find(&self, key: &Key, direction: Direction) -> Range<usize> {
        let Range { start, end } = self.cells;
        let Some(page) = &self.page else { return start..start };
        // Where many keys have changes, it is the next cell.
        let near = match direction {
            Direction::Forwards => start,
            Direction::Backwards => end.wrapping_sub(1),
        };
        if self.cells.contains(&near) {
            let own = page.view().key(near);
            match direction {
                _ if own == *key => return near..near + 1,
                Direction::Forwards if precedes(key, &own) => return near..near,
                Direction::Backwards if precedes(&own, key) => return near + 1..near + 1,
                _ => {}
            }
        }
        match page.view().find(key) {
            Ok(cell) if self.cells.contains(&cell) => cell..cell + 1,
            Ok(cell) | Err(cell) => {
                let cell = cell.clamp(start, end);
                cell..cell
            }
        }
    }

    /// Takes the next pair: a cell, or the change that comes before it.
    #[inline]
    fn take(&mut self, direction: Direction) -> Option<Next> {
        loop {
            let change = match direction {
                Direction::Forwards => self.changes[self.left.clone()].first(),
                Direction::Backwards => self.changes[self.left.clone()].last(),
            };
            let Some((key, _)) = change else {
                (self.clean_until, self.clean_from) = (self.cells.end, self.cells.start);
                return self.take_cell(direction);
            };
            let cell = self.find(key, direction);
            let at = match direction {
                Direction::Forwards => {
                    self.clean_until = cell.start;
                    if self.cells.start < cell.start {
                        return self.take_cell(direction);
                    }
                    self.cells.start = cell.end;
                    self.left.next()?
                }
                Direction::Backwards => {
                    self.clean_from = cell.end;
                    if cell.end < self.cells.end {
                        return self.take_cell(direction);
                    }
                    self.cells.end = cell.start;
                    self.left.next_back()?
                }
            };
            if self.changes[at].1.is_present() {
                return Some(Next::Change(at));
            }
        }
    }

    /// Takes the next cell.
    fn take_cell(&mut self, direction: Direction) -> Option<Next> {
        let cell = match direction {
            Direction::Forwards => self.cells.next(),
            Direction::Backwards => self.cells.next_back(),
        };
        cell.map(Next::Cell)
    }

    /// The pair that was taken.
    #[inline]
    fn pair(&self, next: Next) -> Option<PairRef<'_>> {
        Some(match next {
            Next::Cell(at) => {
                let page = self.page.as_ref()?.view();
                let value = match page.cell(at) {
                    Cell::Inline(value) => StoredRef::InPage(value),
                    long @ Cell::Overflow(_) => StoredRef::Long(Stored::from_cell(long)),
                };
                (page.key(at), value)
            }
            Next::Change(at) => match &self.changes[at] {
                (key, Stored::Inline(value)) => (*key, StoredRef::Short(value)),
                (key, long) => (*key, StoredRef::Long(long.clone())),
            },
        })
    }
}
