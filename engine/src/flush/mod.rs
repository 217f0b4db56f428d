//! Flush: pending changes become leaf pages, beside execution and never in a commit's way.
//!
//! One round, each step a call of the background task (the letters are those of rule 2 in
//! `docs/commit-and-recovery.md`):
//! 1. gather ripe pages with their pending changes; read those that left the cache;
//! 2. (a) sync the log through every commit that the pages will contain; reserve places; (b)
//!    write the pages in runs;
//! 3. (c) sync the file;
//! 4. (d, e) under the sequencer's lock, when no commit is in flight: queue the location record,
//!    publish the new places, retire the pending changes that the pages cover;
//! 5. (f) later, when the location record is durable and no reader can be at the old places: free
//!    them.

mod agree;
mod cells;
mod publish;
mod round;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pleach_beatree::cache::NO_BATCH;
use pleach_beatree::grace::Period;
use pleach_core::fold::Folder;
use pleach_core::{Hasher, Prefix};
use pleach_io::{Device, Event, Runtime, Step};

use crate::error::{Error, Result};
use crate::foreground::Patience;
use crate::options::Durability;
use crate::quarantine::backoff;
use crate::shared::{LAST_NUMBERS, Shared};
use crate::warm::{GROUP, Reach};
use crate::watchdog::{IDLE, Task};
use round::Round;

/// Pages that a round takes.
const ROUND: usize = 1024;
/// Pages that are chosen at once under pressure: choosing looks at everything that pends.
const CHOSEN: usize = 32 * ROUND;
/// How soon a round is tried again that found no room.
const FULL_AGAIN: Duration = Duration::from_millis(200);
/// A location record waits this long for a commit to sync it.
const SYNC_AFTER: Duration = Duration::from_millis(100);

/// Places given up by one flush.
struct Freed {
    /// Position of the location record; the places are retired under it.
    stamp: u64,
    /// End of the record: the log must be durable through here.
    end: u64,
    /// The commit that the index stood at: older views may name overflow values.
    commit: u64,
    period: Period,
    since: Duration,
}

enum Stage {
    Idle,
    Gathered,
    Written,
    Synced,
}

/// The flush task.
pub(crate) struct Flusher<H: Hasher, D: Device, R: Runtime> {
    shared: Arc<Shared<H, D, R>>,
    queue: Option<D::Queue>,
    folder: Folder<H>,
    round: Round,
    /// Pages that a round takes: fewer where there was no room for more.
    limit: usize,
    stage: Stage,
    freed: VecDeque<Freed>,
    /// Pages to be written although they are not ripe, in key order.
    chosen: VecDeque<Prefix>,
    /// Overflow runs that only older views still name: stamp and commit.
    values: VecDeque<(u64, u64)>,
    /// The commit after which nodes last left.
    evicted_at: u64,
    /// The batch that ripe pages are held for.
    held_for: u64,
    /// When the log was last synced for durability `Periodic`.
    synced: Duration,
    patience: Patience,
    /// Rounds in a row that could not be gathered, and when the next may be.
    failures: u32,
    not_before: Duration,
    put_off: Option<Error>,
}

impl<H: Hasher, D: Device, R: Runtime> Flusher<H, D, R> {
    pub(crate) fn new(shared: Arc<Shared<H, D, R>>) -> Self {
        Self {
            shared,
            queue: None,
            folder: Folder::new(),
            round: Round::default(),
            limit: ROUND,
            stage: Stage::Idle,
            freed: VecDeque::new(),
            chosen: VecDeque::new(),
            values: VecDeque::new(),
            evicted_at: u64::MAX,
            held_for: NO_BATCH,
            synced: Duration::ZERO,
            patience: Patience::default(),
            failures: 0,
            not_before: Duration::ZERO,
            put_off: None,
        }
    }

    /// One step of the task. A failure poisons the database and ends the task.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(Error::Full(_)) => {
                // Nothing was lost: the changes stay pending and are tried again.
                let tried = self.round.len();
                self.round.abandon(&self.shared);
                self.stage = Stage::Idle;
                let closing = self.shared.closing.load(Ordering::Acquire);
                if tried > 1 && !closing {
                    // The places that are left may do for fewer pages, which give theirs back.
                    self.limit = tried / 4 + 1;
                    return Step::Again;
                }
                if !self.freed.is_empty() && !closing {
                    return Step::IdleFor(SYNC_AFTER / 2);
                }
                self.shared.full.store(true, Ordering::Release);
                self.shared.progress.notify();
                self.shared.enters(Task::Flush, IDLE);
                if self.shared.closing.load(Ordering::Acquire) {
                    // They stay in the log; whoever closes does not wait for room.
                    return Step::Done;
                }
                Step::IdleFor(self.period().map_or(FULL_AGAIN, |period| period.min(FULL_AGAIN)))
            }
            Err(error) => {
                tracing::error!(%error, "the flush failed");
                self.shared.poison(&error);
                Step::Done
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        self.free_matured()?;
        self.sync_periodically()?;
        let closing = self.shared.closing.load(Ordering::Acquire);
        // What is written already takes little more, and its places and buffers are taken.
        if matches!(self.stage, Stage::Idle | Stage::Gathered) && self.gives_way() {
            self.shared.enters(Task::Flush, IDLE);
            return Ok(Step::IdleFor(Patience::LOOK));
        }
        match self.stage {
            Stage::Idle => self.begin(closing),
            Stage::Gathered => {
                self.shared.enters(Task::Flush, "writing pages");
                let flush = match self.shared.flush_number(LAST_NUMBERS) {
                    Ok(flush) => flush,
                    Err(error) => {
                        let published = self.shared.published.load(Ordering::Acquire);
                        self.stage = Stage::Idle;
                        return Ok(self.puts_off(published, &[], error));
                    }
                };
                let queue = self.queue.as_mut().expect("made when gathering");
                self.round.write(&self.shared, queue, &mut self.folder, flush)?;
                // All of it may have been set aside.
                self.stage = if self.round.is_empty() { Stage::Idle } else { Stage::Written };
                Ok(Step::Again)
            }
            Stage::Written => {
                self.shared.enters(Task::Flush, "syncing pages");
                self.round.sync(&self.shared)?;
                self.stage = Stage::Synced;
                Ok(Step::Again)
            }
            Stage::Synced => {
                // Waiting for commits in flight is part of it: for ever it should not take.
                self.shared.enters(Task::Flush, "publishing");
                let Some(freed) = self.round.publish(&self.shared, &mut self.folder)? else {
                    // A commit is between ticket and publication.
                    return Ok(Step::IdleFor(Duration::from_millis(1)));
                };
                self.freed.push_back(freed);
                self.stage = Stage::Idle;
                self.limit = ROUND.min(self.limit * 2);
                self.shared.full.store(false, Ordering::Release);
                self.shared.progress.notify();
                Ok(Step::Again)
            }
        }
    }

    /// Would the next step take processors from somebody who waits, and can it be put off?
    fn gives_way(&mut self) -> bool {
        let must = self.shared.draining.load(Ordering::Acquire) > 0
            || self.shared.closing.load(Ordering::Acquire)
            || self.shared.paused.load(Ordering::Acquire)
            || self.shared.is_pressed();
        !must && self.patience.waits(&self.shared.foreground, self.shared.runtime.now())
    }

    fn begin(&mut self, closing: bool) -> Result<Step> {
        if closing {
            // What pends is in the log, and in the image of a clean close.
            return Ok(Step::Done);
        }
        let drain = self.shared.draining.load(Ordering::Acquire) > 0;
        if self.shared.paused.load(Ordering::Acquire) && !drain {
            return Ok(self.idle());
        }
        self.shared.enters(Task::Flush, "gathering pages");
        // Looked at first: what pends as of this commit is all seen below.
        let published = self.shared.published.load(Ordering::Acquire);
        if self.shared.runtime.now() < self.not_before {
            self.says_why(published, self.put_off.clone());
            return Ok(self.idle());
        }
        self.shared.try_quarantined();
        self.hold_ripe();
        let wanted = self.wanted(drain);
        if wanted.is_empty() {
            if drain || self.shared.is_pressed() {
                self.says_why(published, self.shared.quarantine.error());
            }
            self.let_nodes_leave()?;
            return Ok(self.idle());
        }
        let any = drain || self.shared.is_pressed();
        if let Err(error) = self.gather(&wanted, any) {
            return Ok(self.puts_off(published, &wanted, error));
        }
        (self.failures, self.put_off) = (0, None);
        // What was said of an earlier round of this commit holds no longer.
        self.shared.stuck.flush_goes_on();
        if self.round.is_empty() {
            return Ok(Step::Again);
        }
        self.stage = Stage::Gathered;
        Ok(Step::Again)
    }

    fn gather(&mut self, wanted: &[Prefix], any: bool) -> Result<()> {
        if self.queue.is_none() {
            self.queue = Some(self.shared.device.queue(64)?);
        }
        let queue = self.queue.as_mut().expect("just made");
        self.round.gather(&self.shared, queue, wanted, any)
    }

    /// The pages of a round could not even be asked for, or have no number. Nothing was written: it is
    /// tried again, with another queue.
    fn puts_off(&mut self, published: u64, wanted: &[Prefix], error: Error) -> Step {
        tracing::warn!(%error, "the flush cannot go on; it is tried again");
        self.round.abandon(&self.shared);
        self.shared.ripe.lock().extend(wanted);
        self.queue = None;
        self.failures += 1;
        self.not_before = self.shared.runtime.now().saturating_add(backoff(self.failures));
        self.put_off = Some(error);
        self.says_why(published, self.put_off.clone());
        self.idle()
    }

    /// Tells those who wait that nothing of what pends at this commit can be flushed for now.
    fn says_why(&self, published: u64, error: Option<Error>) {
        if let Some(error) = error {
            self.shared.stuck.flush_at(published, error);
            self.shared.progress.notify();
        }
    }

    /// Once a batch: what the last commit has made ripe stays cached until it is written, though
    /// the batch that begins now brings other pages.
    fn hold_ripe(&mut self) {
        let batch = self.shared.batch.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.held_for, batch) == batch || self.shared.all_is_here() {
            return;
        }
        let ripe: Vec<Prefix> = self.shared.ripe.lock().iter().copied().collect();
        for group in ripe.chunks(GROUP) {
            self.shared.warm(group.iter().map(Prefix::first_key), Reach::Place);
            for prefix in group {
                let at = self.shared.in_region(prefix.first_key(), |_, state| {
                    let child = state.children().find(prefix.first_key());
                    state.children().page(child).map(|place| (place, state.children().tag(child)))
                });
                if let Some((place, tag)) = at {
                    self.shared.cache.hold(place, tag, batch);
                }
            }
        }
    }

    /// Prefixes of the pages that the next round takes: ripe ones, or, under pressure, those with
    /// the most pending changes.
    fn wanted(&mut self, drain: bool) -> Vec<Prefix> {
        let mut ripe = self.shared.ripe.lock();
        let count = ripe.len().min(self.limit);
        let mut wanted: Vec<Prefix> = ripe.drain(..count).collect();
        drop(ripe);
        if wanted.is_empty() && (drain || self.shared.is_pressed()) {
            if self.chosen.is_empty() {
                let mut chosen = self.shared.fullest(CHOSEN);
                chosen.sort_unstable();
                self.chosen = chosen.into();
            }
            let count = self.chosen.len().min(self.limit);
            wanted.extend(self.chosen.drain(..count));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Durability `Periodic`: the log is synced about this often.
    fn sync_periodically(&mut self) -> Result<()> {
        let Durability::Periodic(period) = self.shared.options.durability else { return Ok(()) };
        let now = self.shared.runtime.now();
        if now.saturating_sub(self.synced) >= period {
            self.synced = now;
            let end = self.shared.sequencer.lock().end();
            if self.shared.sequencer.durable() < end {
                self.sync_log(end)?;
            }
        }
        Ok(())
    }

    fn sync_log(&self, end: u64) -> Result<()> {
        let sync = || self.shared.sequencer.write_through(end, true);
        self.shared.within(Task::Flush, "syncing the log", sync)
    }

    /// Once a commit, so that nodes which were brought in for the next batch stay for it.
    fn let_nodes_leave(&mut self) -> Result<()> {
        let published = self.shared.published.load(Ordering::Acquire);
        let due = published != self.evicted_at && self.shared.may_evict();
        if due && self.shared.evict_nodes()? {
            self.evicted_at = published;
        }
        Ok(())
    }

    /// How often the log is to be synced, whatever else there is to do or not.
    fn period(&self) -> Option<Duration> {
        match self.shared.options.durability {
            Durability::Periodic(period) => Some(period),
            _ => None,
        }
    }

    /// Nothing to do: how long at most?
    fn idle(&self) -> Step {
        self.shared.enters(Task::Flush, IDLE);
        let now = self.shared.runtime.now();
        let period = self.period();
        let frees = (!self.freed.is_empty()).then_some(SYNC_AFTER / 2);
        // Not at once again, should a page be due that is not tried while the database is paused.
        let later = |due: Duration| due.saturating_sub(now).max(SYNC_AFTER);
        let trial = self.shared.quarantine.next_due().map(later);
        let round = (now < self.not_before).then(|| later(self.not_before));
        let next = [period, frees, trial, round].into_iter().flatten().min();
        next.map_or(Step::Idle, Step::IdleFor)
    }

    /// Step (f).
    fn free_matured(&mut self) -> Result<()> {
        let now = self.shared.runtime.now();
        // Each turn takes one off, or ends; nobody else puts any there.
        while let Some(first) = self.freed.front() {
            if self.shared.sequencer.durable() < first.end {
                if now.saturating_sub(first.since) < SYNC_AFTER
                    && !self.shared.closing.load(Ordering::Acquire)
                {
                    break;
                }
                // No commit came by to sync the record.
                self.sync_log(first.end)?;
            }
            if !first.period.poll() {
                break;
            }
            let freed = self.freed.pop_front().expect("just seen");
            self.shared.space.lock().release(freed.stamp);
            self.values.push_back((freed.stamp, freed.commit));
            self.shared.progress.notify();
        }
        // Long values are named by the undo of views that are older than the flush.
        let oldest = self.shared.undo.oldest_pin();
        while self.values.front().is_some_and(|(_, commit)| oldest >= *commit) {
            let (stamp, _) = self.values.pop_front().expect("just seen");
            self.shared.extents.lock().release(stamp);
        }
        Ok(())
    }
}
