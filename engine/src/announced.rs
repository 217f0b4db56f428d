//! Announced keys: looked up in groups, by the prefetch task or by a reader that is ahead of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pleach_beatree::Stored;
use pleach_beatree::cache::{CachedPage, LookupStep};
use pleach_beatree::region::{NodePage, Nodes};
use pleach_core::page::leaf::Cell;
use pleach_core::{Hasher, Key};
use pleach_io::{Device, Runtime};

use crate::ahead::Arrived;
use crate::answers::Place;
use crate::prefetch::{WAITING, Wanted, Wish};
use crate::shared::{Located, Shared};
use crate::warm::GROUP;

/// Keys that a session has announced, looked up group by group by whoever has time.
pub(crate) struct Announced {
    base: u64,
    /// Are its pages folded ahead?
    folds: bool,
    keys: Vec<Key>,
    next: AtomicUsize,
}

impl Announced {
    pub(crate) fn new(base: u64, folds: bool, keys: Vec<Key>) -> Self {
        Self { base, folds, keys, next: AtomicUsize::new(0) }
    }

    /// Are all groups claimed?
    pub(crate) fn is_done(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.keys.len()
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The next group, for the caller alone.
    pub(crate) fn claim(&self) -> Option<&[Key]> {
        if self.is_done() {
            return None;
        }
        let from = self.next.fetch_add(GROUP, Ordering::Relaxed);
        let end = self.keys.len().min(from.saturating_add(GROUP));
        self.keys.get(from..end).filter(|group| !group.is_empty())
    }
}

/// What a session has announced, oldest first.
#[derive(Default)]
pub(crate) struct Announcements {
    waiting: VecDeque<Arc<Announced>>,
    /// Keys of these.
    keys: usize,
}

impl Announcements {
    /// Keeps the newest, up to as many keys as may wait.
    pub(crate) fn push(&mut self, announced: Arc<Announced>) {
        self.keys += announced.len();
        self.waiting.push_back(announced);
        let keep = |one: &Announced, keys: usize| !one.is_done() && keys <= WAITING;
        while let Some(one) = self.waiting.front()
            && !keep(one, self.keys)
        {
            self.keys -= one.len();
            self.waiting.pop_front();
        }
    }

    /// The first that has keys left to look up.
    pub(crate) fn first(&mut self) -> Option<Arc<Announced>> {
        while let Some(one) = self.waiting.front()
            && one.is_done()
        {
            self.keys -= one.len();
            self.waiting.pop_front();
        }
        self.waiting.front().cloned()
    }
}

/// How far the lookup of a key has come.
#[derive(Default)]
struct Found {
    /// Where its answer goes.
    place: Place,
    /// Where its page is.
    at: Option<Located>,
    /// The last commit that changed its page.
    stands_at: u64,
    /// Does the page have the answer?
    answers: bool,
    page: Option<Arc<CachedPage>>,
    /// The cell that is probably its.
    cell: Option<usize>,
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Looks up the next group of announced keys, on a reader's thread. False when there is none
    /// left. The caller holds a grace guard.
    pub(crate) fn help(&self, announced: &Announced) -> bool {
        let Some(group) = announced.claim() else { return false };
        let mut missing = false;
        // To see what is known of a page's nodes is not worth the reader's time.
        self.look_up(announced, group, false, &mut None, &mut |wanted| {
            missing |= self.prefetches.missing.0.send(wanted).is_ok();
        });
        if missing {
            self.wake_prefetcher();
        }
        true
    }

    /// Looks up a group of keys: values at hand become answers, what is not here is given to
    /// `wanted`. With `folds_cached` pages that are here and of which nothing is known are folded
    /// ahead. `last` are the nodes that were wanted last.
    ///
    /// Each step is taken for the whole group, and asks for the memory that the next one reads.
    pub(crate) fn look_up(
        &self,
        announced: &Announced,
        group: &[Key],
        folds_cached: bool,
        last: &mut Option<NodePage>,
        wanted: &mut impl FnMut(Wanted),
    ) {
        let (base, folds) = (announced.base, announced.folds);
        let mut found: [Found; GROUP] = std::array::from_fn(|_| Found::default());
        {
            let top = self.top.load();
            for (key, found) in group.iter().zip(&mut found) {
                found.place = self.answers.place(key);
                self.answers.ask_ahead(found.place);
                top.region(key).cpu_prefetch();
            }
            for key in group {
                top.region(key).read().cpu_prefetch(key);
            }
        }
        for (key, found) in group.iter().zip(&mut found) {
            self.find(base, key, folds_cached, found, last, wanted);
            if let Some(at) = &found.at {
                self.cache.cpu_prefetch(at.place, LookupStep::Table);
            }
        }
        for step in [LookupStep::Entry, LookupStep::Front] {
            let places = found.iter().filter_map(|found| found.at.as_ref());
            places.for_each(|at| self.cache.cpu_prefetch(at.place, step));
        }
        let batch = self.batch.load(Ordering::Relaxed);
        for (key, found) in group.iter().zip(&mut found) {
            let Some(at) = found.at.take() else { continue };
            found.page = self.cache.get_in(at.place, at.tag, batch);
            let Some(page) = &found.page else {
                let answers = found.answers.then_some(base);
                wanted(Wanted::Leaf(Wish { at, key: *key, answers, folds }));
                continue;
            };
            if found.answers {
                found.cell = page.cpu_prefetch_cell(key);
            }
            if folds_cached && folds && !page.knows(found.stands_at) {
                self.arrived(Arrived { page: Arc::clone(page), at, key: *key });
            }
        }
        for (key, found) in group.iter().zip(&found) {
            if let Some(page) = found.page.as_ref().filter(|_| found.answers) {
                self.answer_from(found.place, base, key, page.get_near(key, found.cell));
            }
        }
    }

    /// The first half of a lookup: in the index and among the pending changes.
    fn find(
        &self,
        base: u64,
        key: &Key,
        folds_cached: bool,
        found: &mut Found,
        last: &mut Option<NodePage>,
        wanted: &mut impl FnMut(Wanted),
    ) {
        let mut nodes = None;
        self.in_region(key, |region, state| {
            if let Nodes::Paged(place) = state.nodes()
                && *last != Some(*place)
            {
                nodes = Some((Arc::clone(region), *place));
            }
            let child = state.children().find(key);
            let tag = state.children().tag(child);
            if folds_cached {
                found.stands_at = state.changed_at(child);
            }
            found.at = state.children().page(child).map(|place| Located { place, tag });
            // Only what the session's commit left is an answer.
            let stands = state.last_commit() <= base;
            match (state.pending_of(key), &found.at) {
                (Some(pending), _) if stands => {
                    self.answer(found.place, base, key, &pending.stored);
                }
                (None, None) if stands => self.answers.put(found.place, base, key, None),
                (pending, _) => found.answers = stands && pending.is_none(),
            }
        });
        if let Some((region, place)) = nodes {
            *last = Some(place);
            wanted(Wanted::Nodes(region, place));
        }
    }

    /// What a page says of a key that has no newer change.
    pub(crate) fn answer_from(&self, place: Place, base: u64, key: &Key, cell: Option<Cell<'_>>) {
        match cell {
            None => self.answers.put(place, base, key, None),
            Some(Cell::Inline(value)) => self.answers.put(place, base, key, Some(value)),
            Some(Cell::Overflow(_)) => {}
        }
    }

    fn answer(&self, place: Place, base: u64, key: &Key, stored: &Stored) {
        match stored {
            Stored::Absent => self.answers.put(place, base, key, None),
            Stored::Inline(value) => self.answers.put(place, base, key, Some(value)),
            Stored::Large(_) | Stored::Overflow(_) => {}
        }
    }
}
