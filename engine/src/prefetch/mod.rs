//! Prefetching: reads pages and looks up values while the caller goes on.
//!
//! The caller hands the keys over ([`requests`]) and returns. A task with its own ring looks them up in key batches
//! ([`lookup`]): values in memory go to the value cache ([`value_cache`]), pages that are not cached are read, as far
//! as the ring has room, and the values in them go there too. A reader that finds no value looks a key batch up itself
//! before it looks for its own key, so that it need not wait for a task without a processor. Keys beyond
//! [`requests::WAITING`] are discarded, and read when they are needed.
//!
//! Reads that do not block ([`crate::Session::read_async`]) send the page that they need, and the task reads it.
//!
//! No result depends on prefetching: pages that the task does not read are read when they are needed. A reader that
//! waits for a page learns that the task has abandoned it when its channel is dropped.

pub(crate) mod lookup;
pub(crate) mod requests;
#[cfg(test)]
mod tests;
pub(crate) mod value_cache;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::PageRef;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::pages::{LoadedPage, PageReader, ReadMode, Submission, backoff, overflow};
use pleach_beatree::tree::KEY_BATCH;
use pleach_io::Step;

use crate::error::Result;
use crate::state::NamespaceDb;
use crate::state::pace::beats::{IDLE, Task};
use lookup::{cache_cell, look_up};
use requests::{MissingItem, PageRequestPurpose, PrefetchRequest, PrefetchState, Reply};

/// Time until the task checks again whether there is room for more announced pages.
const ROOM_RETRY: Duration = Duration::from_millis(1);
/// The longest such wait, once a batch: sessions that only read never release their pages.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);

/// Pages taken from a full ring at once: each call costs as much as a page.
const TAKEN: usize = 8;

/// The prefetch task.
pub(crate) struct Prefetcher {
    db: Arc<NamespaceDb>,
    prefetch: Arc<PrefetchState>,
    reader: Option<PageReader<PageRequestPurpose>>,
    /// The request that is being looked up, and the trie of its keys.
    request: Option<(Arc<PrefetchRequest>, Arc<NamespaceDb>)>,
    /// Missing items that are not enqueued yet.
    missing: VecDeque<MissingItem>,
    /// Pages that readers wait for and that another reader is reading.
    elsewhere: Vec<(PageRef, Reply<Arc<CachedPage>>)>,
    /// The batch in which there was no room for more announced pages, and since when.
    full: Option<(u64, Duration)>,
    /// Rings in a row that failed, and when the next is made.
    failures: u32,
    not_before: Duration,
}

impl Prefetcher {
    pub(crate) fn new(db: Arc<NamespaceDb>, prefetch: Arc<PrefetchState>) -> Self {
        Self {
            db,
            prefetch,
            reader: None,
            request: None,
            missing: VecDeque::with_capacity(2 * KEY_BATCH),
            elsewhere: Vec::new(),
            full: None,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// One step: fills the ring and takes pages that are done. Pages that cannot be read are left to the readers that
    /// need them, and so are all pages while there is no ring.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(error) => {
                // Abandons pages in flight: dropping the reader waits for them, and drops the channels of their
                // readers.
                self.reader = None;
                self.failures += 1;
                let wait = backoff(self.failures);
                tracing::warn!(%error, ?wait, "prefetching pauses");
                self.not_before = self.db.pace.now().saturating_add(wait);
                self.db.pace.enter_stage(Task::Prefetch, IDLE);
                Step::Continue
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        let (db, prefetch) = (Arc::clone(&self.db), Arc::clone(&self.prefetch));
        if db.pace.is_closing() {
            // Nothing is read any more: sessions may outlive the task and do not wait for it.
            return Ok(Step::Done);
        }
        let wait = self.not_before.saturating_sub(db.pace.now());
        if !wait.is_zero() {
            // Readers that wait for a page read it themselves while there is no ring.
            self.missing.clear();
            self.elsewhere.clear();
            prefetch.discard_missing();
            return Ok(Step::IdleFor(wait));
        }
        prefetch.stay_awake();
        db.pace.enter_stage(Task::Prefetch, "reading pages");
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => PageReader::new(&db.store, db.options.in_flight, ReadMode::Announced)?,
        };
        for (at, reader) in self.elsewhere.drain(..) {
            self.missing.push_front(MissingItem::Page(at, PageRequestPurpose::Reader(reader)));
        }
        let more = self.enqueue_missing(&mut reader);
        if reader.in_flight() > 0 {
            if more {
                // Readers may be waiting for enqueued pages.
                reader.submit()?;
            } else {
                // `wait` submits, too.
                let count = (reader.in_flight() / 4).clamp(1, TAKEN);
                if let Some((purpose, done)) = reader.wait(&db.store, count)? {
                    self.complete(purpose, done);
                }
            }
            while let Some((purpose, done)) = reader.poll(&db.store) {
                self.complete(purpose, done);
            }
            self.failures = 0;
            if !more {
                // The task has waited for a page and got it.
                db.pace.heartbeat(Task::Prefetch);
            }
            self.reader = Some(reader);
            return Ok(Step::Continue);
        }
        self.reader = Some(reader);
        if more {
            return Ok(Step::Continue);
        }
        Ok(self.idle_step())
    }

    /// The step when nothing is in flight, and nothing can be enqueued.
    fn idle_step(&self) -> Step {
        if self.request.is_some() {
            // There is no room for more pages of the request.
            self.db.pace.enter_stage(Task::Prefetch, IDLE);
            return if self.prefetch.try_pause() {
                Step::IdleFor(ROOM_RETRY)
            } else {
                Step::Continue
            };
        }
        if let Some((at, _)) = self.elsewhere.first() {
            self.db.store.in_flight.wait(at.page);
            return Step::Continue;
        }
        let is_done = self.missing.is_empty() && self.prefetch.try_sleep();
        if is_done { Step::Idle } else { Step::Continue }
    }

    /// Enqueues pages as far as the ring has room and key batches miss some. True when the ring has room and there may
    /// be more keys: enqueued pages are submitted first.
    fn enqueue_missing(&mut self, reader: &mut PageReader<PageRequestPurpose>) -> bool {
        while reader.has_room() {
            if self.missing.is_empty() && !self.find_missing() {
                return false;
            }
            let (at, purpose) = match self.missing.pop_front() {
                None => return true,
                Some(MissingItem::Page(_, PageRequestPurpose::Reader(answer)))
                    if answer.is_canceled() =>
                {
                    continue;
                }
                Some(MissingItem::Page(at, purpose)) => (at, purpose),
                Some(MissingItem::Piece(at, count, answer)) => {
                    if !answer.is_canceled() {
                        let (device, file) = (&self.db.store.device, &self.db.space.overflow);
                        answer.send(overflow::read_piece(device, file, at, count));
                    }
                    // Enqueued pages are submitted between two pieces.
                    self.db.pace.heartbeat(Task::Prefetch);
                    return true;
                }
                Some(MissingItem::Region(region, answer)) => {
                    region.load(false);
                    answer.send(());
                    return true;
                }
            };
            match reader.enqueue(&self.db.store, at, purpose) {
                Submission::ReadElsewhere(PageRequestPurpose::Reader(answer)) => {
                    self.elsewhere.push((at, answer));
                }
                // A page in flight for another key: this key's value is not cached, but its page is.
                Submission::InFlight | Submission::ReadElsewhere(_) => {}
                Submission::Loaded(purpose, done) => self.complete(purpose, Ok(done)),
            }
        }
        false
    }

    /// Takes items that readers found missing, or looks up the next key batch. False when there is none, or no room for
    /// its pages: pages announced before stay until they are used.
    fn find_missing(&mut self) -> bool {
        if let Some(page) = self.prefetch.next_missing() {
            self.missing.push_back(page);
            return true;
        }
        // Each turn claims a key batch or ends a request; at most [`requests::WAITING`] keys are added before this
        // ends.
        loop {
            let Some((request, db)) = &self.request else {
                let Some(request) = self.prefetch.next_request() else { return false };
                match self.db.trie(request.namespace) {
                    Some(db) => self.request = Some((request, db)),
                    // The session was dropped, and its trie was removed since.
                    None => self.prefetch.release_request(&request),
                }
                continue;
            };
            let prefetch = &*self.prefetch;
            let is_late = db.store.cache.batch() > request.batch + 1;
            if !is_late && !prefetch.note_room(request, has_room(db, &mut self.full)) {
                return false;
            }
            let Some(keys) = request.claim().filter(|_| !is_late) else {
                prefetch.release_request(request);
                self.request = None;
                continue;
            };
            let _guard = db.store.grace.enter();
            let missing = &mut self.missing;
            let mut add = |page| missing.push_back(page);
            look_up(db, prefetch, request, keys, &mut add);
            return true;
        }
    }

    /// Takes a page that is done, for its purpose.
    fn complete(&self, purpose: PageRequestPurpose, done: pleach_beatree::Result<LoadedPage>) {
        let values = &self.prefetch.values;
        match (done, purpose) {
            (Ok(done), PageRequestPurpose::Key { namespace, key, value_as_of }) => {
                if let Some(base) = value_as_of {
                    let pair = values.slots_of(namespace, base, &key);
                    cache_cell(values, pair, &key, done.page.get(&key));
                }
            }
            (Ok(done), PageRequestPurpose::Reader(answer)) => answer.send(done.page),
            (Err(error), _) => tracing::debug!(%error, "a prefetched page could not be read"),
        }
    }
}

/// True when there is room for more announced pages, or the task has waited long enough.
fn has_room(db: &NamespaceDb, full: &mut Option<(u64, Duration)>) -> bool {
    let (batch, now) = (db.store.cache.batch(), db.pace.now());
    let (_, since) = full.take_if(|(of, _)| *of == batch).unwrap_or((batch, now));
    let waited = now.saturating_sub(since) >= ROOM_TIMEOUT;
    let can_hold = db.store.cache.can_hold();
    // After a full wait, one released page does not begin another wait.
    *full = (waited || !can_hold).then_some((batch, since));
    waited || can_hold
}

impl Drop for Prefetcher {
    /// Ends the hand-over, whether the task has ended or panicked.
    fn drop(&mut self) {
        self.prefetch.end();
    }
}
