//! All keys of a range in order, from both ends: one page a step.
//!
//! A step, under a grace guard of its own:
//! 1. under the lock of the region that covers the next key: the child's prefix, where its page is, the
//!    changes that pend below it, and what undo and overlays say of the region;
//! 2. the page: read ahead, cached, or read now;
//! 3. its pairs, under what pends, under undo, under overlays.
//!
//! `docs/architecture.md` ("An iteration") says why all steps together see one commit. Between two steps nothing
//! is held: pages move, and regions are split, merged and retired, as if no iterator were there.
//!
//! Invariant: the pairs at hand in front, the range that is left, and the pairs at hand at the back tile
//! what has not been given yet, in this order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::{RegionState, Stored};
use pleach_core::page::leaf::LeafView;
use pleach_core::{Key, Prefix};
use pleach_io::{Device, Runtime};

use super::ahead::{ReadAhead, Way, after, before};
use super::spare::SpareReaders;
use crate::error::Result;
use crate::state::State;
use crate::state::index::{Located, located};
use crate::state::view::{View, put_over};

/// Pages of a range that are cached like those of single reads. Whoever goes on beyond them reads more than is
/// worth keeping, and leaves the cache alone.
const KEPT: usize = 32;

/// A key with its state, which is present.
type Pair = (Key, Stored);

/// Goes through a range from both ends.
pub(crate) struct Scan<'a, D: Device, R: Runtime> {
    db: &'a State<D, R>,
    view: &'a View,
    /// First and last key of what no step has come to yet.
    rest: Option<(Key, Key)>,
    front: End<'a, D, R>,
    back: End<'a, D, R>,
}

/// One end.
struct End<'a, D: Device, R: Runtime> {
    /// What is left of the page of the last step.
    at_hand: AtHand,
    ahead: ReadAhead<'a, D, R>,
    over: Option<Over>,
    pages: usize,
}

/// Pairs of one page, in key order.
enum AtHand {
    /// These cells, as they are.
    Cells(Arc<CachedPage>, Range<usize>),
    /// With what lies over them.
    Pairs(VecDeque<Pair>),
}

/// What undo and overlays say of a region, as far as it had commits then.
struct Over {
    region: Prefix,
    through: u64,
    changes: BTreeMap<Key, Stored>,
}

/// What a step finds in the index.
struct Captured {
    prefix: Prefix,
    at: Option<Located>,
    pending: Vec<Pair>,
    /// Does undo or an overlay have a say?
    differs: bool,
}

impl<'a, D: Device, R: Runtime> Scan<'a, D, R> {
    pub(crate) fn new(
        db: &'a State<D, R>,
        view: &'a View,
        spare: &'a SpareReaders<D, R, u64>,
        range: &impl RangeBounds<Key>,
    ) -> Self {
        let end = |way| End {
            at_hand: AtHand::Pairs(VecDeque::new()),
            ahead: ReadAhead::new(db, spare, way),
            over: None,
            pages: 0,
        };
        let (front, back) = (end(Way::Forwards), end(Way::Backwards));
        Self { db, view, rest: inclusive(range), front, back }
    }

    /// The next pair in key order.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Result<Pair>> {
        loop {
            if let Some(pair) = self.front.at_hand.first() {
                return Some(Ok(pair));
            }
            let Some(rest) = self.rest else { return self.back.at_hand.first().map(Ok) };
            if let Err(error) = self.step(Way::Forwards, rest) {
                self.end();
                return Some(Err(error));
            }
        }
    }

    /// The last pair.
    #[inline]
    pub(crate) fn next_back(&mut self) -> Option<Result<Pair>> {
        loop {
            if let Some(pair) = self.back.at_hand.last() {
                return Some(Ok(pair));
            }
            let Some(rest) = self.rest else { return self.front.at_hand.last().map(Ok) };
            if let Err(error) = self.step(Way::Backwards, rest) {
                self.end();
                return Some(Err(error));
            }
        }
    }

    /// Nothing comes any more.
    pub(crate) fn end(&mut self) {
        self.rest = None;
        for end in [&mut self.front, &mut self.back] {
            end.at_hand = AtHand::Pairs(VecDeque::new());
        }
    }

    /// Goes on by one page.
    fn step(&mut self, way: Way, rest: (Key, Key)) -> Result<()> {
        let (db, view) = (self.db, self.view);
        let (end, key) = match way {
            Way::Forwards => (&mut self.front, rest.0),
            Way::Backwards => (&mut self.back, rest.1),
        };
        if end.pages > 0 {
            end.ahead.read_on(&rest)?;
        }
        let guard = db.store.enter();
        let captured = db
            .index
            .in_region(&key, |region, state| end.capture(view, region.prefix(), state, &key));
        let page = match captured.at {
            Some(at) => Some(end.page(db, &captured.prefix, at)?),
            None => None,
        };
        drop(guard);
        // Undo may have gone while it was asked.
        view.check()?;
        let range =
            (rest.0.max(*captured.prefix.first_key()), rest.1.min(captured.prefix.last_key()));
        end.at_hand = end.within(page.as_ref(), captured, &range);
        self.rest = match way {
            Way::Forwards => after(&range.1).filter(|_| range.1 < rest.1).map(|key| (key, rest.1)),
            Way::Backwards => {
                before(&range.0).filter(|_| range.0 > rest.0).map(|key| (rest.0, key))
            }
        };
        Ok(())
    }
}

impl<D: Device, R: Runtime> End<'_, D, R> {
    /// What the index says of the child that covers a key, under its region's lock.
    fn capture(
        &mut self,
        view: &View,
        region: &Prefix,
        state: &RegionState,
        key: &Key,
    ) -> Captured {
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
            self.over = Some(Over { region, through, changes: view.changes(&region, state) });
        }
        Captured { prefix, at: located(state, child), pending, differs }
    }

    /// A page that the index names. The caller has entered the store.
    fn page(&mut self, db: &State<D, R>, prefix: &Prefix, at: Located) -> Result<Arc<CachedPage>> {
        self.pages += 1;
        let keep = self.pages <= KEPT;
        let ahead = self.ahead.come_to(prefix, at)?;
        if ahead.is_none()
            && let Some(page) = db.store.peek(at)
        {
            return Ok(page);
        }
        let page = match ahead {
            Some(page) => page,
            None if keep => return db.store.leaf(at),
            None => db.store.read_apart(at)?,
        };
        db.store.use_apart(at, &page, keep)?;
        Ok(page)
    }

    /// What there is of a page in this range.
    fn within(
        &self,
        page: Option<&Arc<CachedPage>>,
        captured: Captured,
        (first, last): &(Key, Key),
    ) -> AtHand {
        let cells = page.map_or(0..0, |page| cells(&page.view(), &captured, first, last));
        let mut pending = captured.pending;
        pending.retain(|(key, _)| first <= key && key <= last);
        let over = self.over.as_ref().filter(|_| captured.differs);
        let mut over = over.map(|over| over.changes.range(*first..=*last).peekable());
        let changed = over.as_mut().is_some_and(|over| over.peek().is_some());
        if let (Some(page), false, true) = (page, changed, pending.is_empty()) {
            return AtHand::Cells(Arc::clone(page), cells);
        }
        let cell = |cell| pair(page.expect("it has cells"), cell);
        let mut pairs: Vec<Pair> = cells.map(cell).collect();
        put_over(&mut pairs, 0, pending.into_iter());
        if let Some(over) = over {
            put_over(&mut pairs, 0, over.map(|(key, stored)| (*key, stored.clone())));
        }
        pairs.retain(|(_, stored)| stored.is_present());
        AtHand::Pairs(pairs.into())
    }
}

impl AtHand {
    #[inline]
    fn first(&mut self) -> Option<Pair> {
        match self {
            Self::Cells(page, cells) => cells.next().map(|cell| pair(page, cell)),
            Self::Pairs(pairs) => pairs.pop_front(),
        }
    }

    #[inline]
    fn last(&mut self) -> Option<Pair> {
        match self {
            Self::Cells(page, cells) => cells.next_back().map(|cell| pair(page, cell)),
            Self::Pairs(pairs) => pairs.pop_back(),
        }
    }
}

/// A pair of a page.
#[inline]
fn pair(page: &CachedPage, cell: usize) -> Pair {
    let view = page.view();
    (view.key(cell), Stored::from_cell(view.cell(cell)))
}

/// The cells of a page from `first` to `last`.
fn cells(view: &LeafView<'_>, captured: &Captured, first: &Key, last: &Key) -> Range<usize> {
    let to = if captured.prefix.last_key() <= *last {
        view.len()
    } else {
        view.find(last).map_or_else(|after| after, |found| found + 1)
    };
    view.lower_bound(first)..to
}

/// First and last key of a range; `None` when it has none.
fn inclusive(range: &impl RangeBounds<Key>) -> Option<(Key, Key)> {
    let first = match range.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => after(key)?,
        Bound::Unbounded => [0; 32],
    };
    let last = match range.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => before(key)?,
        Bound::Unbounded => [0xff; 32],
    };
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    use super::*;

    #[test]
    fn bounds_of_all_kinds_become_a_first_and_a_last_key() {
        let key = |bytes: [u8; 2]| {
            let mut key = [0; 32];
            key[30..].copy_from_slice(&bytes);
            key
        };
        let (zero, all) = ([0; 32], [0xff; 32]);
        let bounds = |from, to| inclusive(&(from, to));
        assert_eq!(bounds(Unbounded, Unbounded), Some((zero, all)));
        assert_eq!(
            bounds(Excluded(key([0, 0xff])), Excluded(key([2, 0]))),
            Some((key([1, 0]), key([1, 0xff])))
        );
        assert_eq!(bounds(Included(zero), Included(zero)), Some((zero, zero)));
        assert_eq!(bounds(Included(all), Unbounded), Some((all, all)));
        for empty in [
            bounds(Excluded(all), Unbounded),
            bounds(Unbounded, Excluded(zero)),
            bounds(Included(key([1, 0])), Excluded(key([1, 0]))),
            bounds(Excluded(key([1, 0])), Excluded(key([1, 1]))),
            bounds(Included(key([1, 1])), Included(key([1, 0]))),
        ] {
            assert_eq!(empty, None);
        }
    }
}
