//! Reading ahead of an iterator: its next pages, as many at once as the device takes.
//!
//! Reading ahead is a guess. No grace guard is held: an iterator rests for as long as its caller likes, and page
//! numbers must not wait for that. So a page may have moved, and its number may have been used again, before the
//! iterator reaches it. The iterator then looks the page up, under a guard, and takes the page that
//! was read ahead only if the index names that very number and tag, like a page in the cache. A page that cannot be
//! read, or does not have its tag, is discarded; the iterator reads it once more, and gets the error if there is one.
//!
//! Pages of a window that lie close together in the file are read at once, in whatever order their keys are
//! ([`RunReader`]).
//!
//! Invariants: at most `window` pages are named, so that at most as many are read beyond the iterator's place; pages
//! are named in the iterator's order, and requested in the order of the first page of each run.

use std::collections::VecDeque;

use pleach_core::range::key_before;
use pleach_core::{Key, Prefix};

use super::Tree;
use crate::cache::{LookupStep, NO_BATCH};
use crate::error::Result;
use crate::page_no::PageRef;
use crate::pages::{
    PooledReader, RUN, ReaderPool, RunNo, RunPage, RunReader, WantedPage, group_runs,
};
use crate::region::RegionState;

/// Pages that are read ahead at an iterator's second page; twice as many at the third, and so on.
const FIRST_WINDOW: usize = 4;

/// Pages of the largest window for each read in flight: they are read in runs, and some are here already.
const PAGES_A_READ: usize = 4;

/// The direction of an iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To larger keys.
    Forwards,
    /// To smaller keys.
    Backwards,
}

/// Keys from a first one through a last one.
#[derive(Clone, Copy)]
pub struct KeyRange {
    /// The first key.
    pub first: Key,
    /// The last key.
    pub last: Key,
}

/// What reading ahead may take.
#[derive(Clone, Copy, Debug)]
pub struct AheadLimits {
    /// Reads at once.
    pub depth: usize,
    /// Pages of memory in each direction.
    pub pages: usize,
}

impl AheadLimits {
    /// Pages of the largest window, and pages of memory: a third more, since a run's memory is released with its last
    /// page, and some pages are only read over.
    fn window_and_memory(self) -> (usize, usize) {
        let most = PAGES_A_READ * self.depth + 2 * RUN;
        let memory = (most + most / 3).min(self.pages);
        (memory - memory / 4, memory)
    }
}

/// A page ahead of an iterator.
struct AheadPage {
    prefix: Prefix,
    at: PageRef,
    state: AheadState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AheadState {
    /// To be read when there is room.
    Wanted,
    /// The page of this index in a requested run.
    Submitted(RunNo, usize),
    /// Not read: it was cached, or too many iterators read ahead.
    NotRead,
}

/// The pages ahead of an iterator in one direction.
pub struct ReadAhead {
    spare: ReaderPool<RunReader>,
    direction: Direction,
    reader: Option<PooledReader<RunReader>>,
    /// The pages in the iterator's order.
    pages: VecDeque<AheadPage>,
    /// How many of them are wanted.
    wanted: usize,
    /// The key at which naming goes on; `None` before the first step, and at the end.
    next: Option<Key>,
    window: usize,
    /// True when pages are read from the device even if they are cached.
    pub from_device: bool,
}

impl ReadAhead {
    /// Nothing is ahead yet.
    pub fn new(spare: &ReaderPool<RunReader>, direction: Direction) -> Self {
        Self {
            spare: spare.clone(),
            direction,
            reader: None,
            pages: VecDeque::new(),
            wanted: 0,
            next: None,
            window: 0,
            from_device: false,
        }
    }

    /// Reads on, before the iterator goes to a page; `rest` is what is left of its range.
    pub fn advance(&mut self, tree: &Tree, limits: AheadLimits, rest: &KeyRange) -> Result<()> {
        let result = self.try_advance(tree, limits, rest);
        if result.is_err() {
            self.discard_reader();
        }
        result
    }

    fn try_advance(&mut self, tree: &Tree, limits: AheadLimits, rest: &KeyRange) -> Result<()> {
        // Half a window at once: a system call costs as much as some pages, and neighbours are found.
        if self.pages.len() <= self.window / 2 {
            let (most, _) = limits.window_and_memory();
            self.window = (2 * self.window).clamp(FIRST_WINDOW.min(most), most);
            let from = self.pages.len();
            self.name_pages(tree, rest, from);
            self.mark_wanted(tree, from);
            if let Some(reader) = self.reader.as_mut().and_then(PooledReader::get) {
                reader.poll_arrived();
            }
            return self.enqueue_wanted(tree, limits);
        }
        // Pages that had no room are tried now and again. Arrived runs are noticed when the iterator waits for one.
        if self.wanted > 0 && self.pages.len().is_multiple_of(RUN.min(self.window / 4).max(1)) {
            return self.enqueue_wanted(tree, limits);
        }
        Ok(())
    }

    /// Names pages until there is a window of them; the first `from` are named already.
    fn name_pages(&mut self, tree: &Tree, rest: &KeyRange, from: usize) {
        let start = match self.direction {
            Direction::Forwards => rest.first,
            Direction::Backwards => rest.last,
        };
        if self.pages.is_empty() {
            self.next = Some(start);
        }
        while self.pages.len() < self.window
            && let Some(key) = self.next.filter(|key| (rest.first..=rest.last).contains(key))
        {
            let (pages, window, direction) = (&mut self.pages, self.window, self.direction);
            self.next = tree.with_region(&key, |_, state| {
                let mut child = state.children().find(&key);
                loop {
                    let prefix = state.children().prefix(child);
                    if let Some(at) = state.page_ref(child) {
                        pages.push_back(AheadPage { prefix, at, state: AheadState::NotRead });
                    }
                    let after = match direction {
                        Direction::Forwards => prefix.next().map(|next| *next.first_key()),
                        Direction::Backwards => key_before(prefix.first_key()),
                    };
                    match neighbour(state, child, direction) {
                        Some(next) if pages.len() < window => child = next,
                        _ => return after,
                    }
                }
            });
        }
        let beyond = |ahead: &AheadPage| match self.direction {
            Direction::Forwards => *ahead.prefix.first_key() > rest.last,
            Direction::Backwards => ahead.prefix.last_key() < rest.first,
        };
        // Only pages named here: earlier ones may have been requested.
        while self.pages.len() > from && self.pages.back().is_some_and(beyond) {
            self.pages.pop_back();
        }
    }

    /// Marks the pages from `from` on that are not cached as wanted.
    fn mark_wanted(&mut self, tree: &Tree, from: usize) {
        let cache = &tree.store.cache;
        // One step for all pages at a time, so that cache misses overlap.
        for step in [LookupStep::Table, LookupStep::Entry] {
            self.pages.iter().skip(from).for_each(|ahead| cache.cpu_prefetch(ahead.at.page, step));
        }
        for ahead in self.pages.iter_mut().skip(from) {
            if !self.from_device && cache.hold(ahead.at.page, ahead.at.tag, NO_BATCH) {
                continue;
            }
            if self.reader.is_none() {
                self.reader = self.spare.take();
            }
            // Enough other iterators read ahead: pages are read one by one.
            if self.reader.is_none() {
                return;
            }
            ahead.state = AheadState::Wanted;
            self.wanted += 1;
        }
    }

    /// Requests wanted pages, as far as there is room.
    fn enqueue_wanted(&mut self, tree: &Tree, limits: AheadLimits) -> Result<()> {
        let (_, memory) = limits.window_and_memory();
        let Some(used) = self.reader.as_mut().filter(|_| self.wanted > 0) else { return Ok(()) };
        let reader = used.get_or_make(|| RunReader::new(&tree.store, limits.depth, memory))?;
        let wanted =
            self.pages.iter().enumerate().filter(|(_, one)| one.state == AheadState::Wanted);
        let mut wanted: Vec<WantedPage> =
            wanted.map(|(index, ahead)| (ahead.at.page, index)).collect();
        wanted.sort_unstable();
        let mut runs = group_runs(&wanted);
        runs.sort_unstable_by_key(|run| run.iter().map(|(_, index)| *index).min());
        'runs: for mut run in runs {
            while let Some((first, _)) = run.first() {
                if reader.free_slots() == 0 {
                    break 'runs;
                }
                let Some((number, count)) = reader.enqueue(&tree.store, run) else {
                    break 'runs;
                };
                for (page, index) in &run[..count] {
                    self.pages[*index].state = AheadState::Submitted(number, first.pages_to(*page));
                }
                self.wanted -= count;
                run = &run[count..];
            }
        }
        reader.submit()
    }

    /// The iterator reaches the page below `prefix`, which is at `at`: gives the page if it was read ahead. Pages
    /// before it are discarded.
    pub fn take_page(
        &mut self,
        tree: &Tree,
        prefix: &Prefix,
        at: PageRef,
    ) -> Result<Option<RunPage>> {
        let mut found = None;
        while let Some(front) = self.pages.front() {
            let later = match self.direction {
                Direction::Forwards => *front.prefix.first_key() > prefix.last_key(),
                Direction::Backwards => front.prefix.last_key() < *prefix.first_key(),
            };
            if later {
                break;
            }
            if let AheadState::Submitted(run, index) = front.state
                && front.at == at
            {
                found = self.wait(run, index).inspect_err(|_| self.discard_reader())?;
            }
            self.forget_first();
        }
        // Prefetches the next page's memory, if that is cached: it arrives while pairs of this one are given.
        if let Some(next) = self.pages.front() {
            tree.store.cache.cpu_prefetch(next.at.page, LookupStep::Cells);
        }
        // Checked now: the page is in the processor's cache when its pairs are given.
        let is_right = |page: &RunPage| tree.store.check_leaf(at, page.page()).is_ok();
        Ok(found.filter(is_right))
    }

    /// Waits for a page of a run; `None` when it could not be read.
    fn wait(&mut self, run: RunNo, index: usize) -> Result<Option<RunPage>> {
        let reader = self.reader.as_mut().and_then(PooledReader::get).expect("it was asked");
        reader.wait(run)?;
        Ok(reader.page(run, index))
    }

    fn forget_first(&mut self) {
        match self.pages.pop_front().map(|ahead| ahead.state) {
            Some(AheadState::Submitted(run, _)) => {
                let reader =
                    self.reader.as_mut().and_then(PooledReader::get).expect("it was asked");
                reader.release(run);
            }
            Some(AheadState::Wanted) => self.wanted -= 1,
            Some(AheadState::NotRead) | None => {}
        }
    }

    /// Discards the pages ahead: the iterator goes elsewhere.
    pub fn clear(&mut self) {
        while !self.pages.is_empty() {
            self.forget_first();
        }
        (self.next, self.window) = (None, 0);
    }

    /// After an error of the ring the state of the requests in flight is unknown.
    fn discard_reader(&mut self) {
        if let Some(mut used) = self.reader.take() {
            used.discard();
        }
        self.pages.clear();
        self.wanted = 0;
    }
}

impl Drop for ReadAhead {
    /// A pooled reader has nothing in flight.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Some(reader) = self.reader.as_mut().and_then(PooledReader::get)
            && reader.reset().is_err()
        {
            self.discard_reader();
        }
    }
}

/// The region's next child in this direction.
fn neighbour(state: &RegionState, child: usize, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Forwards => Some(child + 1).filter(|next| *next < state.children().len()),
        Direction::Backwards => child.checked_sub(1),
    }
}
