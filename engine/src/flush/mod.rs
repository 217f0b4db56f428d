//! Flush: writes buffered changes into leaf pages, beside execution and never in a commit's way.
//!
//! One round, by the names of `docs/commit-and-recovery.md`; each line is a call of the background task:
//! 1. `gather` pages that are due with their buffered changes; read those that are not cached;
//! 2. `sync-log` through every commit that the pages will contain; `write-long-values`; let the nodes `agree` with the
//!    index; `write-pages` in runs, under reserved page numbers;
//! 3. `sync-pages`;
//! 4. `publish`, under the sequencer's lock, when no commit is in flight: queue the location record, publish the new
//!    page numbers, remove the buffered changes that the pages contain;
//! 5. `free`, later, when the location record is durable and no reader can be at the old pages.
//!
//! | file | has |
//! |---|---|
//! | this one | the task: its next step, its waits, its errors |
//! | [`due`] | pages that are due: which of them a round takes, and how they stay cached until then |
//! | [`choose`], [`trials`] | which pages a round takes beside those that are due |
//! | [`rounds`] | the rounds under way, and their threads |
//! | [`round`] | what a round has reserved and written |
//! | [`gather`] | `gather` |
//! | [`rewrite`], [`cells`] | old pages, new pages, and how the ones become the others |
//! | [`build`], [`agree`] | `agree`, and the bytes of the new pages |
//! | [`publish`] | `publish` |
//! | [`free`] | `free` |
//! | [`tidy`] | what is made smaller when nothing is due |
//! | [`reclaim`] | pages and runs of a dropped namespace |
//! | [`trim`] | unused memory that goes back to the system |
//!
//! A round is of one namespace, as its location record is. Namespaces take turns: after each round the next one with
//! due pages follows, in the order of their numbers. A namespace without due pages costs one load.
//!
//! Only the task flushes: nobody else changes which pages a region has.

mod agree;
mod build;
mod cells;
mod choose;
mod due;
mod free;
mod gather;
mod publish;
mod reclaim;
#[cfg(test)]
mod reclaim_tests;
mod rewrite;
mod round;
mod rounds;
#[cfg(test)]
mod tests;
mod tidy;
mod trials;
mod trim;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::pages::backoff;
use pleach_core::Prefix;
use pleach_io::Step;

use crate::error::{Error, Result};
use crate::options::Durability;
use crate::state::NamespaceDb;
use crate::state::order::images::NUMBERS_FOR_CLOSE;
use crate::state::pace::beats::{IDLE, Task};
use crate::state::pace::foreground::Patience;
use crate::state::tries::Trie;
use choose::fullest_pages;
use due::{sorted_prefixes, take_still_due};
use free::{RetiredQueue, SYNC_AFTER, sync_log};
use gather::RoundKind;
use reclaim::{ReclaimOutcome, reclaim};
use rounds::Rounds;
use tidy::{JoinOutcome, Tidy};
use trials::try_quarantined;
use trim::TrimTrigger;

/// Rounds of pages that are chosen at once under pressure: choosing looks at all buffered changes.
const CHOSEN: usize = 32;
/// Time between two moves into a huge page: a move takes up to 10 ms of a processor, and readers wait for it.
const BETWEEN_MOVES: Duration = Duration::from_millis(100);
/// Time until a round that found no room is tried again.
const FULL_RETRY: Duration = Duration::from_millis(200);
/// Time until the flush checks again whether a dropped namespace is still held.
const DROPPED_RETRY: Duration = Duration::from_millis(500);
enum FlushStage {
    Idle,
    Gathered,
    Written,
    Synced,
}

/// The flush task.
pub(crate) struct Flusher {
    /// The database, with namespace 0's trie.
    db: Arc<NamespaceDb>,
    /// The trie of the round that is under way, or of the last one.
    trie: Arc<NamespaceDb>,
    rounds: Rounds,
    /// Most pages of the next round: fewer after one that found no room.
    limit: usize,
    stage: FlushStage,
    retired: RetiredQueue,
    /// Pages to be written although they are not due, by namespace and in key order.
    chosen: VecDeque<(u8, Prefix)>,
    /// Work of [`tidy`], by namespace.
    tidy: BTreeMap<u8, Tidy>,
    /// True when the last step reclaimed a part of a dropped namespace.
    has_reclaimed: bool,
    trim: TrimTrigger,
    /// When cached pages may be moved into a huge page again.
    next_move: Duration,
    /// When the log was last synced for durability `Periodic`.
    synced: Duration,
    patience: Patience,
    /// Rounds in a row that could not be gathered, and when the next may be.
    failures: u32,
    not_before: Duration,
    deferred_error: Option<Error>,
}

impl Flusher {
    pub(crate) fn new(db: Arc<NamespaceDb>) -> Self {
        let (retired, limit) =
            (RetiredQueue::new(db.space.take_retired_extents()), db.budget.round_pages());
        Self {
            rounds: Rounds::new(&db),
            trie: Arc::clone(&db),
            db,
            limit,
            stage: FlushStage::Idle,
            retired,
            chosen: VecDeque::new(),
            tidy: BTreeMap::new(),
            has_reclaimed: false,
            trim: TrimTrigger::default(),
            next_move: Duration::ZERO,
            synced: Duration::ZERO,
            patience: Patience::default(),
            failures: 0,
            not_before: Duration::ZERO,
            deferred_error: None,
        }
    }

    /// One step of the task. A failure poisons the database and ends the task.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(Error::Full(_)) => {
                // Nothing was lost: the changes stay buffered and are tried again.
                let (tried, tidied) = (self.rounds.ranges(), self.rounds.is_tidying());
                self.rounds.abandon(&self.trie);
                self.stage = FlushStage::Idle;
                let closing = self.db.pace.is_closing();
                if tried > 1 && !closing {
                    // The room may suffice for fewer pages, which then free their old ones.
                    self.limit = tried / 4 + 1;
                    return Step::Continue;
                }
                if !self.retired.is_empty() && !closing {
                    return Step::IdleFor(SYNC_AFTER / 2);
                }
                if !tidied {
                    self.db.pace.is_flush_full.set(true);
                }
                self.db.pace.notify();
                self.db.pace.enter_stage(Task::Flush, IDLE);
                if self.db.pace.is_closing() {
                    // The changes stay in the log; a close does not wait for room.
                    return Step::Done;
                }
                Step::IdleFor(
                    self.sync_period().map_or(FULL_RETRY, |period| period.min(FULL_RETRY)),
                )
            }
            Err(error) => {
                tracing::error!(%error, "the flush failed");
                self.db.poison(&error);
                Step::Done
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        self.retired.free_matured(&self.db)?;
        self.sync_periodically()?;
        self.trim.trim_if_due(&self.db);
        let closing = self.db.pace.is_closing();
        // A round with written pages needs little more work, and holds page numbers and buffers.
        if matches!(self.stage, FlushStage::Idle | FlushStage::Gathered) && self.should_yield() {
            self.db.pace.enter_stage(Task::Flush, IDLE);
            return Ok(Step::IdleFor(Patience::LOOK));
        }
        let now = self.db.pace.now();
        if now >= self.next_move {
            self.db.store.cache.move_into_huge_page();
            self.next_move = now + BETWEEN_MOVES;
        }
        match self.stage {
            FlushStage::Idle => self.choose_work(closing),
            FlushStage::Gathered => {
                self.db.pace.enter_stage(Task::Flush, "writing pages");
                let number = |_| self.db.images.next_number(NUMBERS_FOR_CLOSE);
                let flushes = match (0..self.rounds.count()).map(number).collect::<Result<Vec<_>>>()
                {
                    Ok(flushes) => flushes,
                    Err(error) => {
                        let published = self.db.commits.published();
                        self.stage = FlushStage::Idle;
                        return Ok(self.defer(published, &[], error));
                    }
                };
                assert!(self.rounds.ranges() > 0, "a gathered round has pages");
                self.rounds.write(&self.trie, &flushes)?;
                // All of its pages may have been quarantined.
                self.stage =
                    if self.rounds.ranges() == 0 { FlushStage::Idle } else { FlushStage::Written };
                Ok(Step::Continue)
            }
            FlushStage::Written => {
                self.db.pace.enter_stage(Task::Flush, "syncing pages");
                self.rounds.sync_pages(&self.trie)?;
                self.stage = FlushStage::Synced;
                Ok(Step::Continue)
            }
            FlushStage::Synced => {
                // This includes waiting for commits in flight, which should not take long.
                self.db.pace.enter_stage(Task::Flush, "publishing");
                let tidy = self.tidy.entry(self.trie.namespace).or_insert_with(Tidy::new);
                let Some(batch) = self.rounds.publish_next(&self.trie, tidy)? else {
                    // A commit is between ticket and publication.
                    return Ok(Step::IdleFor(Duration::from_millis(1)));
                };
                self.retired.push(batch);
                if self.rounds.ranges() == 0 {
                    self.stage = FlushStage::Idle;
                }
                self.limit = self.db.budget.round_pages().min(self.limit * 2);
                self.db.pace.is_flush_full.set(false);
                self.db.pace.notify();
                // The record may make a checkpoint due, which a commit that waits does not wake.
                self.db.pace.wake();
                Ok(Step::Continue)
            }
        }
    }

    /// True when the next step would take processors from callers that wait, and can wait itself.
    fn should_yield(&mut self) -> bool {
        let must = self.db.pace.is_draining()
            || self.db.pace.is_closing()
            || self.db.pace.is_paused()
            || self.db.budget.is_pressed();
        !must && self.patience.should_wait(&self.db.pace.foreground, self.db.pace.now())
    }

    fn choose_work(&mut self, closing: bool) -> Result<Step> {
        if closing {
            // Buffered changes are in the log, and in the image of a clean close.
            return Ok(Step::Done);
        }
        let drain = self.db.pace.is_draining();
        if self.db.pace.is_paused() && !drain {
            return Ok(self.idle_step());
        }
        self.db.pace.enter_stage(Task::Flush, "gathering pages");
        // Read first: all changes buffered as of this commit are seen below.
        let published = self.db.commits.published();
        if self.db.pace.now() < self.not_before {
            self.report_stuck(published, self.deferred_error.clone());
            return Ok(self.idle_step());
        }
        try_quarantined(&self.db);
        self.make_released_due();
        self.forget_dropped();
        // In turns with rounds, so that neither waits for long.
        if !std::mem::take(&mut self.has_reclaimed) && self.reclaim_dropped()? {
            self.has_reclaimed = true;
            return Ok(Step::Continue);
        }
        let round = self.db.budget.round_pages();
        let is_pressed = self.tidy.values().any(|tidy| tidy.is_pressed(round));
        if !is_pressed
            && let Some(prefixes) = self.due_pages(drain).or_else(|| self.chosen_pages(drain))
        {
            let kind = RoundKind::Changed(self.least_changes(drain));
            return Ok(self.begin_round(published, &prefixes, kind));
        }
        self.tidy_up(published, drain)
    }

    /// Makes pages that were released from quarantine due.
    fn make_released_due(&self) {
        for (namespace, prefix) in self.db.store.quarantine.take_released() {
            if let Some(trie) = self.db.tries.get(namespace) {
                trie.tree.make_due([prefix]);
            }
        }
    }

    /// Stops tidying dropped namespaces.
    fn forget_dropped(&mut self) {
        let tries = self.db.tries.list();
        for trie in tries.iter().filter(|trie| trie.dropped.is_some()) {
            self.tidy.remove(&trie.namespace);
        }
    }

    /// Makes the trie of this namespace that of the next round; false when there is none.
    fn select_trie(&mut self, namespace: u8) -> bool {
        // Only this task removes a trie from the list, and then selects another one.
        if self.trie.namespace == namespace {
            return true;
        }
        let Some(trie) = self.db.trie(namespace) else { return false };
        self.trie = trie;
        true
    }

    /// Reclaims a part of a dropped trie that no state reaches any more. True when there was one.
    fn reclaim_dropped(&mut self) -> Result<bool> {
        let tries = self.db.tries.list();
        if tries.iter().all(|trie| trie.dropped.is_none()) {
            return Ok(false);
        }
        let durable = self.db.commits.sequencer.durable();
        let unnamed = self.db.commits.undo.unnamed_through(durable);
        let dropped = tries.iter().filter_map(|trie| Some((trie, trie.dropped?)));
        for (trie, by) in dropped.filter(|(_, by)| *by <= unnamed) {
            let Some(trie) = self.db.other_trie(trie.namespace) else { continue };
            self.db.pace.enter_stage(Task::Flush, "freeing a dropped namespace");
            match reclaim(&trie, by)? {
                ReclaimOutcome::Part(batch) => self.retired.push(batch),
                ReclaimOutcome::Removed => {
                    self.chosen.retain(|(of, _)| *of != trie.namespace);
                    self.select_trie(0);
                }
                ReclaimOutcome::Busy | ReclaimOutcome::Unreadable => continue,
            }
            self.db.pace.notify();
            self.db.pace.wake();
            return Ok(true);
        }
        Ok(false)
    }

    /// Nothing is due: makes smaller what is too large.
    fn tidy_up(&mut self, published: u64, drain: bool) -> Result<Step> {
        if self.reclaim_dropped()? {
            return Ok(Step::Continue);
        }
        let (tries, goal) = (self.db.tries.list(), self.db.space.leaf_goal());
        let here = || tries.iter().filter(|trie| trie.dropped.is_none());
        for trie in here() {
            let tidy = self.tidy.entry(trie.namespace).or_insert_with(Tidy::new);
            let (prefixes, behind) = tidy.take_pages(goal, trie, self.limit);
            if !prefixes.is_empty() && self.select_trie(trie.namespace) {
                if self.db.commits.sequencer.lock().loading {
                    // What a load has published is in no image and in no record yet: a record that moves its pages
                    // would have no effect. Checked after the pages were chosen, so that they are none of a later load.
                    return Ok(self.idle_step());
                }
                return Ok(self.begin_round(published, &prefixes, RoundKind::Tidied { behind }));
            }
        }
        if drain || self.db.budget.is_pressed() {
            let aside = self.db.store.quarantine.list();
            let error = aside.first().map(|first| Error::Quarantined {
                pages: aside.len() as u64,
                first: Box::new(first.error.clone().into()),
            });
            self.report_stuck(published, error);
        }
        for trie in here() {
            let Some(tidy) = self.tidy.get_mut(&trie.namespace).filter(|tidy| tidy.can_join) else {
                continue;
            };
            let Some(state) = self.db.other_trie(trie.namespace) else { continue };
            match tidy.join(&state)? {
                JoinOutcome::Joined => return Ok(Step::Continue),
                JoinOutcome::NothingToJoin => {}
                JoinOutcome::Busy => {
                    self.db.pace.enter_stage(Task::Flush, IDLE);
                    return Ok(Step::IdleFor(SYNC_AFTER));
                }
            }
        }
        Ok(self.idle_step())
    }

    /// Begins a round of these pages.
    fn begin_round(&mut self, published: u64, prefixes: &[Prefix], kind: RoundKind) -> Step {
        // Rounds beside each other take more pages before they free any.
        let waits = matches!(kind, RoundKind::Changed(_))
            && (self.db.pace.is_draining() || self.db.budget.is_pressed())
            && !self.db.pace.is_room_short.get();
        if let Err(error) = self.rounds.gather(&self.trie, prefixes, kind, waits) {
            return self.defer(published, prefixes, error);
        }
        (self.failures, self.deferred_error) = (0, None);
        // The error of an earlier round of this commit no longer holds.
        self.db.pace.clear_flush_stuck();
        if self.rounds.ranges() > 0 {
            self.stage = FlushStage::Gathered;
        }
        Step::Continue
    }

    /// Defers a round whose pages could not be read, or for which there is no flush number. Nothing was written; it is
    /// tried again, with a new ring.
    fn defer(&mut self, published: u64, prefixes: &[Prefix], error: Error) -> Step {
        tracing::warn!(%error, "the flush cannot go on; it is tried again");
        self.rounds.abandon(&self.trie);
        self.trie.tree.make_due(prefixes.iter().copied());
        self.failures += 1;
        self.not_before = self.db.pace.now().saturating_add(backoff(self.failures));
        self.deferred_error = Some(error);
        self.report_stuck(published, self.deferred_error.clone());
        self.idle_step()
    }

    /// Records why none of the changes buffered at this commit can be flushed for now, and wakes the waiters.
    fn report_stuck(&self, published: u64, error: Option<Error>) {
        if let Some(error) = error {
            self.db.pace.set_flush_stuck(published, error);
            self.db.pace.notify();
        }
    }

    /// Prefixes of pages that are due and were not written since they became so, in key order, of the next namespace
    /// that has any. A round without such pages would write nothing, and cost as many syncs as a full one.
    fn due_pages(&mut self, drain: bool) -> Option<Vec<Prefix>> {
        let least = self.least_changes(drain);
        let tries = self.db.tries.list();
        let (behind, after) =
            tries.split_at(tries.partition_point(|trie| trie.namespace <= self.trie.namespace));
        // A dropped trie is flushed only when room is short: it may be reclaimed before.
        let has_due = |trie: &&Trie| trie.dropped.is_none() && trie.tree.has_due();
        for trie in after.iter().chain(behind).filter(has_due) {
            if !self.select_trie(trie.namespace) {
                continue;
            }
            let prefixes = take_still_due(&self.trie, self.limit, least);
            if !prefixes.is_empty() {
                return Some(sorted_prefixes(prefixes));
            }
        }
        None
    }

    /// The fewest changes of a page that a round takes.
    fn least_changes(&self, drain: bool) -> u8 {
        let any = drain || self.db.budget.is_pressed();
        if any { 1 } else { self.db.budget.flush_policy().min_changes() }
    }

    /// Under pressure: prefixes of the pages with the most buffered changes, of one namespace, in key order.
    fn chosen_pages(&mut self, drain: bool) -> Option<Vec<Prefix>> {
        if !drain && !self.db.budget.is_pressed() {
            return None;
        }
        if self.chosen.is_empty() {
            let mut chosen = fullest_pages(&self.db, CHOSEN * self.db.budget.round_pages());
            chosen.sort_unstable();
            self.chosen = chosen.into();
        }
        let (namespace, _) = *self.chosen.front()?;
        let of_it = self.chosen.iter().take_while(|(of, _)| *of == namespace);
        let count = of_it.take(self.limit).count();
        let prefixes =
            sorted_prefixes(self.chosen.drain(..count).map(|(_, prefix)| prefix).collect());
        self.select_trie(namespace).then_some(prefixes)
    }

    /// Durability `Periodic`: the log is synced about this often.
    fn sync_periodically(&mut self) -> Result<()> {
        let Durability::Periodic(period) = self.db.options.durability else { return Ok(()) };
        let now = self.db.pace.now();
        if now.saturating_sub(self.synced) >= period {
            self.synced = now;
            let end = self.db.commits.sequencer.lock().log_end();
            if self.db.commits.sequencer.durable() < end {
                sync_log(&self.db, end)?;
            }
        }
        Ok(())
    }

    /// How often the log is synced, whatever else there is to do.
    fn sync_period(&self) -> Option<Duration> {
        match self.db.options.durability {
            Durability::Periodic(period) => Some(period),
            _ => None,
        }
    }

    /// The step when there is nothing to do: how long to sleep at most.
    fn idle_step(&self) -> Step {
        self.db.pace.enter_stage(Task::Flush, IDLE);
        let now = self.db.pace.now();
        let period = self.sync_period();
        let frees = (!self.retired.is_empty()).then_some(SYNC_AFTER / 2);
        // Not at once: while the database is paused a due trial is not made.
        let later = |due: Duration| due.saturating_sub(now).max(SYNC_AFTER);
        let trial = self.db.store.quarantine.next_due().map(later);
        let round = (now < self.not_before).then(|| later(self.not_before));
        // Nothing notifies the task when a dropped namespace is not held any more.
        let kept = self.db.tries.list().iter().any(|trie| trie.dropped.is_some());
        let dropped = kept.then_some(DROPPED_RETRY);
        let next = [period, frees, trial, round, dropped].into_iter().flatten().min();
        next.map_or(Step::Idle, Step::IdleFor)
    }
}
