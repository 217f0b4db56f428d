//! Reading ahead of an iterator: the pages that it will come to, as many at once as the device takes.
//!
//! What is read ahead is a guess. No grace guard is held: an iterator rests for as long as its caller likes,
//! and nobody's page numbers wait for that. So a page may have moved, and its number may have been used
//! again, before the iterator comes to it. It then looks the page up ([`super::scan`]), under a guard, and takes
//! what was read ahead only if the index names that very number and tag: as it would take a page from the cache.
//! What cannot be read, or does not have its tag, is forgotten; who comes to it reads it once more, and gets
//! the error if there is one.
//!
//! Invariants: at most `window` pages are named, so that no more are read than that beyond where the
//! iterator is; pages are named in the order in which it comes to them.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use pleach_beatree::RegionState;
use pleach_beatree::cache::{CachedPage, NO_BATCH};
use pleach_core::{Key, Prefix};
use pleach_io::{Device, Runtime};

use super::spare::{InUse, SpareReaders};
use crate::error::Result;
use crate::state::State;
use crate::state::in_flight::Reading;
use crate::state::index::{Located, located};
use crate::state::reader::{Done, PageReader, PageRequest};

/// Pages that are read ahead when an iterator comes to its second page; twice as many at the third, and so on.
const FIRST_WINDOW: usize = 4;

/// Which way an iterator goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To larger keys.
    Forwards,
    /// To smaller ones.
    Backwards,
}

/// A page ahead.
struct Ahead {
    prefix: Prefix,
    at: Located,
    page: Page,
}

enum Page {
    /// It is being read.
    Coming,
    /// It was read, and is what it should be.
    Here(Arc<CachedPage>),
    /// It was cached, or could not be read.
    NotRead,
}

/// The pages ahead of an iterator in one direction.
pub(super) struct ReadAhead<'a, D: Device, R: Runtime> {
    db: &'a State<D, R>,
    spare: &'a SpareReaders<D, R, u64>,
    way: Way,
    reader: Option<InUse<'a, D, R, u64>>,
    /// In the order in which they are come to.
    named: VecDeque<Ahead>,
    /// Number of the first of them; a page's number is what its read is for.
    first: u64,
    /// Where to go on naming; `None` before the first step, and at the end.
    next: Option<Key>,
    window: usize,
    /// A ring has one issuer: whoever has one stays on its thread.
    _stays: PhantomData<*const ()>,
}

impl<'a, D: Device, R: Runtime> ReadAhead<'a, D, R> {
    pub(super) fn new(db: &'a State<D, R>, spare: &'a SpareReaders<D, R, u64>, way: Way) -> Self {
        Self {
            db,
            spare,
            way,
            reader: None,
            named: VecDeque::new(),
            first: 0,
            next: None,
            window: 0,
            _stays: PhantomData,
        }
    }

    /// Reads on, before the iterator goes to a page; `rest` is what it has before it, first and last key.
    pub(super) fn read_on(&mut self, rest: &(Key, Key)) -> Result<()> {
        let result = self.try_read_on(rest);
        if result.is_err() {
            self.give_up();
        }
        result
    }

    fn try_read_on(&mut self, rest: &(Key, Key)) -> Result<()> {
        let db = self.db;
        if let Some(reader) = self.reader.as_mut().and_then(InUse::made) {
            while let Some((number, done)) = reader.poll(&db.store, &db.nodes) {
                arrive(&mut self.named, self.first, number, done);
            }
        }
        // Half a window at once: a system call costs as much as some pages.
        if self.named.len() > self.window / 2 {
            return Ok(());
        }
        let most = db.options.in_flight.min(db.budget.pages_ahead());
        self.window = (2 * self.window).clamp(FIRST_WINDOW.min(most), most);
        let from = self.named.len();
        self.name(rest, from);
        self.ask(from)
    }

    /// Names pages until there is a window of them; `from` are named already.
    fn name(&mut self, rest: &(Key, Key), from: usize) {
        let start = match self.way {
            Way::Forwards => rest.0,
            Way::Backwards => rest.1,
        };
        if self.named.is_empty() {
            self.next = Some(start);
        }
        while self.named.len() < self.window
            && let Some(key) = self.next.filter(|key| (rest.0..=rest.1).contains(key))
        {
            let (named, window, way) = (&mut self.named, self.window, self.way);
            self.next = self.db.index.in_region(&key, |_, state| {
                let mut child = state.children().find(&key);
                loop {
                    let prefix = state.children().prefix(child);
                    if let Some(at) = located(state, child) {
                        named.push_back(Ahead { prefix, at, page: Page::NotRead });
                    }
                    let after = match way {
                        Way::Forwards => prefix.next().map(|next| *next.first_key()),
                        Way::Backwards => before(prefix.first_key()),
                    };
                    match neighbour(state, child, way) {
                        Some(next) if named.len() < window => child = next,
                        _ => return after,
                    }
                }
            });
        }
        let beyond = |ahead: &Ahead| match self.way {
            Way::Forwards => *ahead.prefix.first_key() > rest.1,
            Way::Backwards => ahead.prefix.last_key() < rest.0,
        };
        // Not those of earlier: numbers of what was asked for are not used again.
        while self.named.len() > from && self.named.back().is_some_and(beyond) {
            self.named.pop_back();
        }
    }

    /// Asks for the pages named from `from` on that are not cached.
    fn ask(&mut self, from: usize) -> Result<()> {
        let db = self.db;
        let cached = |at: Located| db.store.cache().hold(at.page, at.tag, NO_BATCH);
        for index in from..self.named.len() {
            if cached(self.named[index].at) {
                continue;
            }
            if self.reader.is_none() {
                self.reader = self.spare.take();
            }
            // Enough others read ahead: pages are read one by one.
            let Some(used) = &mut self.reader else { return Ok(()) };
            let depth = db.options.in_flight.min(db.budget.pages_ahead());
            let reader = used.reader(|| PageReader::new(&db.store, depth, Reading::Scan))?;
            if !reader.has_room() {
                break;
            }
            let request = PageRequest::Leaf(self.named[index].at);
            reader.ask(&db.store, &db.nodes, request, self.first + index as u64);
            self.named[index].page = Page::Coming;
        }
        match self.reader.as_mut().and_then(InUse::made) {
            Some(reader) => reader.submit(),
            None => Ok(()),
        }
    }

    /// The iterator comes to the page below `prefix`, which is at `at`: what was read ahead, if it is that.
    /// Pages before it are forgotten.
    pub(super) fn come_to(
        &mut self,
        prefix: &Prefix,
        at: Located,
    ) -> Result<Option<Arc<CachedPage>>> {
        let mut found = None;
        while let Some(front) = self.named.front() {
            let later = match self.way {
                Way::Forwards => *front.prefix.first_key() > prefix.last_key(),
                Way::Backwards => front.prefix.last_key() < *prefix.first_key(),
            };
            if later {
                break;
            }
            let same = front.at == at;
            if same && matches!(front.page, Page::Coming) {
                self.wait().inspect_err(|_| self.give_up())?;
                continue;
            }
            self.first += 1;
            if let Some(Ahead { page: Page::Here(page), .. }) =
                self.named.pop_front().filter(|_| same)
            {
                found = Some(page);
            }
        }
        Ok(found)
    }

    /// Waits for a page, and takes in all others that are done.
    fn wait(&mut self) -> Result<()> {
        let db = self.db;
        let reader = self.reader.as_mut().and_then(InUse::made).expect("a page is coming");
        let mut next = reader.wait(&db.store, &db.nodes, 1)?;
        assert!(next.is_some(), "a page that is coming is in flight");
        while let Some((number, done)) = next {
            arrive(&mut self.named, self.first, number, done);
            next = reader.poll(&db.store, &db.nodes);
        }
        Ok(())
    }

    /// After an error of the ring nothing is known of what is in flight.
    fn give_up(&mut self) {
        if let Some(mut used) = self.reader.take() {
            used.forget();
        }
        self.named.clear();
    }
}

impl<D: Device, R: Runtime> Drop for ReadAhead<'_, D, R> {
    /// A reader that is kept has nothing in flight.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        while let Some(reader) = self.reader.as_mut().and_then(InUse::made) {
            match reader.wait(&self.db.store, &self.db.nodes, usize::MAX) {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => self.give_up(),
            }
        }
    }
}

/// A page has arrived, or cannot be read. Those that were forgotten meanwhile are not there any more.
fn arrive(named: &mut VecDeque<Ahead>, first: u64, number: u64, done: Result<Done>) {
    let Some(index) = number.checked_sub(first) else { return };
    let index = usize::try_from(index).expect("as many as a window");
    let Some(ahead) = named.get_mut(index) else { return };
    ahead.page = match done {
        Ok(Done::Leaf(at, page)) => {
            debug_assert!(at == ahead.at, "a page's number is its own");
            Page::Here(page)
        }
        Ok(Done::Nodes) | Err(_) => Page::NotRead,
    };
}

/// The child of a region beside this one.
fn neighbour(state: &RegionState, child: usize, way: Way) -> Option<usize> {
    match way {
        Way::Forwards => Some(child + 1).filter(|next| *next < state.children().len()),
        Way::Backwards => child.checked_sub(1),
    }
}

/// The key before this one.
pub(super) fn before(key: &Key) -> Option<Key> {
    let mut before = *key;
    for byte in before.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            return Some(before);
        }
    }
    None
}

/// The key after this one.
pub(super) fn after(key: &Key) -> Option<Key> {
    let mut after = *key;
    for byte in after.iter_mut().rev() {
        let (more, carries) = byte.overflowing_add(1);
        *byte = more;
        if !carries {
            return Some(after);
        }
    }
    None
}
