//! All keys of a range in order, from both ends: one page a step.
//!
//! A step, under a grace guard of its own:
//! 1. under the lock of the region that covers the next key: the child's prefix, where its page is, the
//!    changes that pend below it, and what undo and overlays say of the region;
//! 2. the page: read ahead, cached, or read now;
//! 3. what lies over its cells: pending changes, under undo, under overlays. Each of them knows its cell, so that
//!    pairs are merged one by one as they are given, without a comparison of keys.
//!
//! `docs/architecture.md` ("An iteration") says why all steps together see one commit. Between two steps nothing
//! is held: pages move, and regions are split, merged and retired, as if no iterator were there.
//!
//! Invariant: the pairs at hand in front, the range that is left, and the pairs at hand at the back tile
//! what has not been given yet, in this order.

use std::collections::VecDeque;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use pleach_beatree::cache::{CachedPage, LookupStep};
use pleach_beatree::{PageNo, RegionState, Stored, Value};
use pleach_core::node::precedes;
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::range::{key_after, key_before, key_range};
use pleach_core::{Key, Prefix};

use super::ahead::ReadAhead;
pub(crate) use super::ahead::Way;
use super::point;
use super::spare::SpareReaders;
use crate::error::{Error, Result};
use crate::state::State;
use crate::state::pages::index::{PageRef, located};
use crate::state::pages::overflow;
use crate::state::pages::run_reader::{RunPage, RunReader};
use crate::state::view::{View, put_over};

/// Pages of a range that are cached like those of single reads. Whoever goes on beyond them reads more than is
/// worth keeping, and leaves the cache alone.
const KEPT: usize = 32;

/// A key with its state, which is present.
type Pair = (Key, Stored);

/// Goes through a range from both ends, always with the same trie and view.
pub(crate) struct Scan {
    /// First and last key of what no step has come to yet.
    rest: Option<(Key, Key)>,
    front: End,
    back: End,
    /// The page that the last step has come to, and what is wrong with it.
    current_page: Option<ScannedPage>,
}

/// What a scrub comes to: a child of a region.
pub(crate) struct ScannedPage {
    pub(crate) prefix: Prefix,
    /// Its page, if it has one.
    pub(crate) page: Option<PageNo>,
    /// Why the page cannot be used.
    pub(crate) error: Option<Error>,
}

impl ScannedPage {
    /// Is this what is wrong with the page, and not with the reading of the log?
    fn is_of(&self, error: &Error) -> bool {
        self.error.as_ref().is_some_and(|own| own.place().is_some() && own.place() == error.place())
    }
}

/// One end.
struct End {
    /// What is left of the page of the last step.
    at_hand: AtHand,
    ahead: ReadAhead,
    over: Option<Over>,
    pages: usize,
}

/// What is left of a page: cells, and in key order the changes that lie over them.
#[derive(Default)]
struct AtHand {
    page: Option<Leaf>,
    cells: Range<usize>,
    changes: VecDeque<Change>,
}

/// What pending changes, undo or overlays say of a key.
struct Change {
    /// The key's cell, or an empty range where it would be.
    cell: Range<usize>,
    pair: Pair,
}

/// A page, where it lies.
enum Leaf {
    Cached(Arc<CachedPage>),
    /// In the memory that it was read into.
    Apart(RunPage),
}

impl Leaf {
    #[inline]
    fn view(&self) -> LeafView<'_> {
        match self {
            Self::Cached(page) => page.view(),
            Self::Apart(page) => LeafView::trusted(page.page()),
        }
    }
}

/// What undo and overlays say of a region, as far as it had commits then.
struct Over {
    region: Prefix,
    through: u64,
    changes: Vec<Pair>,
}

/// What a step finds in the index.
struct Captured {
    prefix: Prefix,
    at: Option<PageRef>,
    pending: Vec<Pair>,
    /// Does undo or an overlay have a say?
    differs: bool,
}

impl Scan {
    pub(crate) fn new(spare: &SpareReaders<RunReader>, range: &impl RangeBounds<Key>) -> Self {
        let end = |way| End {
            at_hand: AtHand::default(),
            ahead: ReadAhead::new(spare, way),
            over: None,
            pages: 0,
        };
        let (front, back) = (end(Way::Forwards), end(Way::Backwards));
        Self { rest: key_range(range), front, back, current_page: None }
    }

    /// From now on every page is read from the device, also one that is cached, and none enters the cache.
    pub(crate) fn read_from_device(&mut self) {
        self.front.ahead.from_device = true;
        self.back.ahead.from_device = true;
    }

    /// Goes on by one page at the front. One that cannot be used is gone over, and said. Its pairs are given by
    /// [`Self::next_at_hand`]; this comes after the last of them.
    ///
    /// # Errors
    /// Those that are of no page: nothing comes after them.
    pub(crate) fn next_page(&mut self, db: &State, view: &View) -> Option<Result<ScannedPage>> {
        let rest = self.rest?;
        let step = db.read(view.base, || self.step(db, view, Way::Forwards, rest));
        match (step, self.current_page.take()) {
            (Ok(()), Some(page)) => Some(Ok(page)),
            (Err(error), Some(page)) if page.is_of(&error) => {
                // Of a state that can be read no longer nothing is known.
                let readable = db.read(view.base, || view.check());
                Some(readable.map(|()| page).map_err(|_| error))
            }
            (Err(error), _) => {
                self.end();
                Some(Err(error))
            }
            (Ok(()), None) => None,
        }
    }

    /// The next pair of the page that was come to.
    pub(crate) fn next_at_hand(&mut self) -> Option<Pair> {
        self.front.at_hand.next(Way::Forwards)
    }

    /// The next pair, if its page is at hand and has its value: what [`Self::next`] gives, without a copy.
    #[inline]
    pub(crate) fn next_inline(&mut self, way: Way) -> Option<(LeafView<'_>, usize, &[u8])> {
        self.ends(way).0.at_hand.next_inline(way)
    }

    /// The next pair: forwards the first of those that are left, backwards the last.
    #[inline]
    pub(crate) fn next(&mut self, db: &State, view: &View, way: Way) -> Option<Result<Pair>> {
        loop {
            let rest = self.rest;
            let (end, other) = self.ends(way);
            if let Some(pair) = end.at_hand.next(way) {
                return Some(Ok(pair));
            }
            let Some(rest) = rest else { return other.at_hand.next(way).map(Ok) };
            if let Err(error) = db.read(view.base, || self.step(db, view, way, rest)) {
                self.end();
                return Some(Err(error));
            }
        }
    }

    /// The end that goes this way, and the other one.
    #[inline]
    fn ends(&mut self, way: Way) -> (&mut End, &mut End) {
        match way {
            Way::Forwards => (&mut self.front, &mut self.back),
            Way::Backwards => (&mut self.back, &mut self.front),
        }
    }

    /// Goes through another range from here on.
    pub(crate) fn seek(&mut self, range: &impl RangeBounds<Key>) {
        self.end();
        for end in [&mut self.front, &mut self.back] {
            end.ahead.forget_all();
            end.pages = 0;
        }
        self.rest = key_range(range);
    }

    /// Nothing comes any more.
    pub(crate) fn end(&mut self) {
        self.rest = None;
        for end in [&mut self.front, &mut self.back] {
            end.at_hand = AtHand::default();
        }
    }

    /// Goes on by one page.
    fn step(&mut self, db: &State, view: &View, way: Way, rest: (Key, Key)) -> Result<()> {
        self.current_page = None;
        let (end, key) = match way {
            Way::Forwards => (&mut self.front, rest.0),
            Way::Backwards => (&mut self.back, rest.1),
        };
        if end.pages > 0 {
            end.ahead.read_on(db, &rest)?;
        }
        let guard = db.store.enter();
        let captured = db
            .index
            .in_region(&key, |region, state| end.capture(view, region.prefix(), state, &key))?;
        let range =
            (rest.0.max(*captured.prefix.first_key()), rest.1.min(captured.prefix.last_key()));
        self.rest = match way {
            Way::Forwards => {
                key_after(&range.1).filter(|_| range.1 < rest.1).map(|key| (key, rest.1))
            }
            Way::Backwards => {
                key_before(&range.0).filter(|_| range.0 > rest.0).map(|key| (rest.0, key))
            }
        };
        let prefix = captured.prefix;
        let page = captured.at.map(|at| end.page(db, &prefix, at, &key)).transpose();
        let (number, error) = (captured.at.map(|at| at.page), page.as_ref().err().cloned());
        self.current_page = Some(ScannedPage { prefix, page: number, error });
        let page = page?;
        drop(guard);
        // A dropped trie may have been given up while it was asked.
        view.check().inspect_err(|_| end.over = None)?;
        end.at_hand = end.within(page, captured, &range);
        Ok(())
    }
}

/// A long value that a scan has given.
pub(crate) fn long_value(
    db: &State,
    view: &View,
    key: &Key,
    stored: Stored,
) -> Result<Option<Value>> {
    let value = overflow::value(db, view.base, stored, false);
    match value {
        // It has moved by now: it is looked up again.
        Err(_) if db.replica.is_some() => db.read(view.base, || point::value(db, view, key)),
        value => value,
    }
}

impl End {
    /// What the index says of the child that covers a key, under its region's lock.
    fn capture(
        &mut self,
        view: &View,
        region: &Prefix,
        state: &RegionState,
        key: &Key,
    ) -> Result<Captured> {
        let child = state.children().find(key);
        let prefix = state.children().prefix(child);
        let mut pending = Vec::new();
        state.copy_pending(&prefix, &mut pending);
        let differs = view.differs(state);
        // No commit that was applied here since then: so none whose undo is missing.
        let knows =
            |over: &Over| over.region.contains(&prefix) && state.last_commit() <= over.through;
        if differs && !self.over.as_ref().is_some_and(knows) {
            let (region, through) = (*region, state.last_commit());
            self.over = Some(Over { region, through, changes: view.changes(&region, state)? });
        }
        Ok(Captured { prefix, at: located(state, child), pending, differs })
    }

    /// A page that the index names. The caller has entered the store.
    fn page(&mut self, db: &State, prefix: &Prefix, at: PageRef, key: &Key) -> Result<Leaf> {
        if self.pages == 0 {
            // Nobody has asked for its memory ([`ReadAhead::come_to`]).
            db.store.cache.cpu_prefetch(at.page, LookupStep::Page(key));
        }
        self.pages += 1;
        let keep = self.pages <= KEPT && !self.ahead.from_device;
        if let Some(page) = self.ahead.come_to(db, prefix, at)? {
            db.store.use_apart(at, page.page(), keep)?;
            return Ok(Leaf::Apart(page));
        }
        if !self.ahead.from_device
            && let Some(page) = db.store.peek(at)
        {
            return Ok(Leaf::Cached(page));
        }
        if keep {
            return db.store.leaf(at).map(Leaf::Cached);
        }
        let page = db.store.read_apart(at)?;
        db.store.use_apart(at, page.page(), keep)?;
        Ok(Leaf::Cached(page))
    }

    /// What there is of a page in this range.
    fn within(&self, page: Option<Leaf>, captured: Captured, (first, last): &(Key, Key)) -> AtHand {
        let mut changes = captured.pending;
        changes.retain(|(key, _)| !precedes(key, first) && !precedes(last, key));
        if let Some(over) = self.over.as_ref().filter(|_| captured.differs) {
            let from = over.changes.partition_point(|(key, _)| precedes(key, first));
            let over = over.changes[from..].iter().take_while(|(key, _)| !precedes(last, key));
            put_over(&mut changes, 0, over.cloned());
        }
        let (view, prefix) = (page.as_ref().map(Leaf::view), captured.prefix);
        // The cell of a key, or an empty range where it would be.
        let cell = |key: &Key| match view.map_or(Err(0), |page| page.find(key)) {
            Ok(cell) => cell..cell + 1,
            Err(after) => after..after,
        };
        let from = if first <= prefix.first_key() { 0 } else { cell(first).start };
        let whole = view.filter(|_| prefix.last_key() <= *last);
        let cells = from..whole.map_or_else(|| cell(last).end, |page| page.len());
        let change = |pair: Pair| Change { cell: cell(&pair.0), pair };
        AtHand { changes: changes.into_iter().map(change).collect(), page, cells }
    }
}

impl AtHand {
    /// The next cell, if no change is for its key or comes before it.
    #[inline]
    fn cell(&self, way: Way) -> Option<usize> {
        let Self { cells, changes, .. } = self;
        let until = match way {
            Way::Forwards => cells.start..changes.front().map_or(cells.end, |next| next.cell.start),
            Way::Backwards => changes.back().map_or(cells.start, |next| next.cell.end)..cells.end,
        };
        let cell = if way == Way::Forwards { until.start } else { until.end.wrapping_sub(1) };
        (!until.is_empty()).then_some(cell)
    }

    /// The next pair, if it is a cell with its value: its page, which cell, and the value.
    #[inline]
    fn next_inline(&mut self, way: Way) -> Option<(LeafView<'_>, usize, &[u8])> {
        let cell = self.cell(way)?;
        let page = self.page.as_ref()?.view();
        let Cell::Inline(value) = page.cell(cell) else { return None };
        go_on(&mut self.cells, way, &(cell..cell + 1));
        Some((page, cell, value))
    }

    /// The next pair: a cell, or the change that comes before it.
    fn next(&mut self, way: Way) -> Option<Pair> {
        loop {
            if let Some((cell, page)) = self.cell(way).zip(self.page.as_ref()) {
                let pair = (page.view().key(cell), Stored::from_cell(page.view().cell(cell)));
                go_on(&mut self.cells, way, &(cell..cell + 1));
                return Some(pair);
            }
            let Change { cell, pair } = match way {
                Way::Forwards => self.changes.pop_front()?,
                Way::Backwards => self.changes.pop_back()?,
            };
            go_on(&mut self.cells, way, &cell);
            if pair.1.is_present() {
                return Some(pair);
            }
        }
    }
}

/// Leaves of `cells` those beyond these.
#[inline]
fn go_on(cells: &mut Range<usize>, way: Way, beyond: &Range<usize>) {
    match way {
        Way::Forwards => cells.start = beyond.end,
        Way::Backwards => cells.end = beyond.start,
    }
}
