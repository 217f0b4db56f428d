//! Prefetching: pages start to arrive, and values are looked up, while the caller goes on.
//!
//! The caller hands the keys over ([`requests`]) and is done. A task with a ring of its own looks them up
//! in batches ([`lookup`]): values at hand go to the value cache ([`values`]), and pages that are not
//! cached are asked for, as far as the ring has room; what they bring goes there too. A reader that finds
//! no value takes a key batch upon itself before it looks for its own key, so that it need not wait
//! for a task that has no processor. Keys beyond [`requests::WAITING`] are dropped, and read when they are
//! needed. Pages that have come are folded before the finish needs that ([`prefold`]).

pub(crate) mod lookup;
pub(crate) mod prefold;
pub(crate) mod requests;
pub(crate) mod values;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::region::{NodePage, Nodes};
use pleach_io::{Device, Runtime, Step};

use crate::error::Result;
use crate::read::group::GROUP;
use crate::state::State;
use crate::state::beats::{IDLE, Task};
use crate::state::in_flight::Reading;
use crate::state::quarantine::backoff;
use crate::state::reader::{Asked, Done, PageReader, PageRequest};
use lookup::{keep_cell, look_up};
use requests::{Announced, Arrived, Prefetching, Purpose, Request};

/// The ring is asked for so many pages at once when it has many: each call costs as much as a page.
const TAKEN: usize = 8;

/// The prefetch task.
pub(crate) struct Prefetcher<D: Device, R: Runtime> {
    db: Arc<State<D, R>>,
    prefetching: Arc<Prefetching<R>>,
    reader: Option<PageReader<D, R, Purpose>>,
    /// Keys at hand.
    keys: Option<Arc<Announced>>,
    /// Found missing and not asked for yet.
    missing: VecDeque<Request>,
    /// Nodes that were missing last: neighbouring keys share them.
    nodes: Option<NodePage>,
    /// Rings in a row that failed, and when the next is made.
    failures: u32,
    not_before: Duration,
}

impl<D: Device, R: Runtime> Prefetcher<D, R> {
    pub(crate) fn new(db: Arc<State<D, R>>, prefetching: Arc<Prefetching<R>>) -> Self {
        Self {
            db,
            prefetching,
            reader: None,
            keys: None,
            missing: VecDeque::with_capacity(2 * GROUP),
            nodes: None,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// One step: fills the ring and takes in what has landed. A page that cannot be read is left
    /// to whoever needs it, and so is everything while there is no ring.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(error) => {
                // What was asked for is given up; dropping the reader waits for it and tells of it.
                self.reader = None;
                self.failures += 1;
                let wait = backoff(self.failures);
                tracing::warn!(%error, ?wait, "prefetching pauses");
                self.not_before = self.db.pace.now().saturating_add(wait);
                self.db.pace.enters(Task::Prefetch, IDLE);
                Step::IdleFor(wait)
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        let (db, prefetching) = (Arc::clone(&self.db), Arc::clone(&self.prefetching));
        if db.pace.is_closing() {
            // Nothing will land any more: sessions may outlive the task and must not wait for it.
            self.reader = None;
            return Ok(Step::Done);
        }
        let wait = self.not_before.saturating_sub(db.pace.now());
        if !wait.is_zero() {
            return Ok(Step::IdleFor(wait));
        }
        db.pace.enters(Task::Prefetch, "reading pages");
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => PageReader::new(&db.store, db.options.in_flight, Reading::Keys)?,
        };
        let more = self.ask(&mut reader);
        if reader.in_flight() > 0 {
            if more {
                // Readers may wait already for what was asked for.
                reader.submit()?;
            } else {
                // Submits, too.
                let count = (reader.in_flight() / 4).clamp(1, TAKEN);
                if let Some((purpose, landed)) = reader.wait(&db.store, &db.nodes, count)? {
                    self.take(purpose, landed);
                }
            }
            while let Some((purpose, landed)) = reader.poll(&db.store, &db.nodes) {
                self.take(purpose, landed);
            }
            self.failures = 0;
            if !more {
                // It has waited for a page, and got it.
                db.pace.comes_further(Task::Prefetch);
            }
            self.reader = Some(reader);
            return Ok(Step::Again);
        }
        self.reader = Some(reader);
        if more {
            return Ok(Step::Again);
        }
        prefetching.arrivals().wake();
        if self.missing.is_empty() && prefetching.sleeps() {
            return Ok(Step::Idle);
        }
        Ok(Step::Again)
    }

    /// Asks for pages as far as the ring has room and key batches miss some. True when it has
    /// room and there may be more keys: who waits for what was asked for comes first.
    fn ask(&mut self, reader: &mut PageReader<D, R, Purpose>) -> bool {
        while reader.has_room() {
            if self.missing.is_empty() && !self.look_up() {
                return false;
            }
            let Some(Request { wanted, purpose }) = self.missing.pop_front() else { return true };
            if let PageRequest::Nodes(region, place) = &wanted {
                let away = matches!(region.read().nodes(), Nodes::Paged(at) if at == place);
                if !away || reader.reads_nodes(place) {
                    continue;
                }
            }
            match reader.ask(&self.db.store, &self.db.nodes, wanted, purpose) {
                // A page that is on its way for another key: this one has no value, and finds the page.
                Asked::InFlight | Asked::Elsewhere(_) => {}
                Asked::Done(purpose, landed) => self.take(purpose, Ok(landed)),
            }
        }
        false
    }

    /// Takes what readers found missing, or looks up the next key batch. False when there is
    /// none.
    fn look_up(&mut self) -> bool {
        let (db, prefetching) = (&*self.db, &*self.prefetching);
        if let Some(request) = prefetching.next_missing() {
            self.missing.push_back(request);
            return true;
        }
        // Each turn claims a key batch or is done with one announcement; callers can add no more than
        // [`requests::WAITING`] keys before it comes to an end.
        loop {
            let Some(announced) = &self.keys else {
                let Some(announced) = prefetching.next() else { return false };
                self.keys = Some(announced);
                continue;
            };
            let Some(group) = announced.claim() else {
                prefetching.is_done(announced);
                (self.keys, self.nodes) = (None, None);
                continue;
            };
            let _guard = db.store.enter();
            let (missing, last) = (&mut self.missing, &mut self.nodes);
            let mut add = |request| missing.push_back(request);
            look_up(db, prefetching, announced, group, true, last, &mut add);
            return true;
        }
    }

    /// Takes in a page that has landed, for the key that it was wanted for.
    fn take(&self, purpose: Purpose, landed: Result<Done>) {
        let (values, pace) = (self.prefetching.values(), &self.db.pace);
        match (landed, purpose) {
            (Ok(Done::Leaf(at, page)), Purpose::Key { key, value_as_of, folds }) => {
                if let Some(base) = value_as_of {
                    keep_cell(values, values.pair(&key), base, &key, page.get(&key));
                }
                if folds {
                    let arrivals = self.prefetching.arrivals();
                    arrivals.push(pace.foreground(), Arrived { page, at, key });
                }
            }
            (Ok(_), _) => {}
            (Err(error), _) => tracing::debug!(%error, "a prefetched page was dropped"),
        }
    }
}
