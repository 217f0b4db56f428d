//! Checkpoints: an image of the index, its nodes, the buffered changes and the overflow map, so that old log can be
//! freed. [`write`] has the steps, [`image`] the files, this file the task that takes the steps.
//!
//! The task also prepares the log before its end is reached, keeps room for the next image, and merges runs of the
//! history while no checkpoint is due. A load and a close call [`checkpoint`] on their own threads: a load while the
//! log is empty and the task has nothing to do, a close when the task has ended. So only one image is in the making at
//! any time.

mod image;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::pages::backoff;
use pleach_io::Step;
use pleach_journal::format::position::LogPos;

use crate::error::{Error, Result};
use crate::state::NamespaceDb;
use crate::state::order::images::NUMBERS_FOR_CLOSE;
use crate::state::pace::beats::{IDLE, Task};
pub(crate) use image::first_image;
use pleach_history::DiskMerge;
pub(crate) use write::{BackupImage, checkpoint, write_backup_image};
use write::{
    ImageBuild, StartOutcome, copy_regions, finish_checkpoint, start_image, write_history,
};

/// Time until the task checks again whether a load, which makes its own images, has ended.
const LOADING_RETRY: Duration = Duration::from_millis(100);

/// Time after a failed merge.
const MERGE_RETRY: Duration = Duration::from_secs(60);

/// Time until the task checks again whether all buffered changes were flushed.
const DRAINING_RETRY: Duration = Duration::from_millis(10);

/// The checkpoint task.
pub(crate) struct Checkpointer {
    db: Arc<NamespaceDb>,
    build: Option<ImageBuild>,
    /// True when the history is written for the next checkpoint.
    has_written: bool,
    /// The merge of runs of the history that is under way, and when the next may begin after a failed one.
    merge: Option<DiskMerge>,
    no_merge_before: Duration,
    /// The log could not be prepared beyond this position.
    refused_at: Option<LogPos>,
    /// Checkpoints in a row that met unreadable nodes, and when the next may begin.
    failures: u32,
    not_before: Duration,
    /// True when the superblock in use has another length of the history than this open: the next open would use that.
    history_differs: bool,
}

impl Checkpointer {
    pub(crate) fn new(db: Arc<NamespaceDb>) -> Self {
        let history_differs = db.images.newest().history != db.commits.undo.history_commits();
        Self {
            db,
            history_differs,
            build: None,
            has_written: false,
            merge: None,
            no_merge_before: Duration::ZERO,
            refused_at: None,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// One step of the task.
    pub(crate) fn step(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(Error::Full(why)) => {
                tracing::warn!(%why, "no room for a checkpoint; it is tried again");
                self.build = None;
                self.db.pace.is_checkpoint_full.set(true);
                self.db.pace.notify();
                self.db.pace.enter_stage(Task::Checkpoint, IDLE);
                Step::IdleFor(Duration::from_millis(500))
            }
            Err(error) => {
                tracing::error!(%error, "the checkpoint failed");
                self.db.poison(&error);
                Step::Done
            }
        }
    }

    fn advance(&mut self) -> Result<Step> {
        if self.build.is_none() {
            if self.db.pace.is_closing() {
                return Ok(Step::Done);
            }
            if self.db.pace.is_paused() {
                return Ok(Step::Idle);
            }
        }
        if let Some(file) = &self.db.commits.undo.file {
            self.db.space.free_history(file.take_unused())?;
        }
        self.prepare_log();
        if self.build.is_none() && !self.db.images.is_image_in_progress() {
            self.db.images.reserve_image_room(&self.db.space, self.db.image_pages(0));
        }
        let Some(build) = &mut self.build else {
            let db = &self.db;
            let is_short = db.pace.is_room_short.get();
            if is_short && db.is_being_drained() {
                // Without buffered changes the image is smaller.
                return Ok(Step::IdleFor(DRAINING_RETRY));
            }
            let history_is_full = db.pace.is_history_full.get();
            let is_due = db.budget.is_log_long(db.log_length())
                || self.history_differs
                || db.commits.undo.needs_writing(if history_is_full { 1 } else { 2 })
                || is_short && db.can_checkpoint_free_room();
            if !is_due {
                return Ok(self.merge_runs());
            }
            let wait = self.not_before.saturating_sub(self.db.pace.now());
            // A released page may be the one that failed the last checkpoint.
            if !wait.is_zero() && self.db.pace.checkpoint_error().is_some() {
                self.db.pace.enter_stage(Task::Checkpoint, IDLE);
                return Ok(Step::IdleFor(wait));
            }
            if self.db.commits.sequencer.lock().loading {
                return Ok(Step::IdleFor(LOADING_RETRY));
            }
            let overfull = db.commits.undo.needs_writing(2);
            if !std::mem::replace(&mut self.has_written, true) || overfull {
                write_history(&self.db).inspect_err(|_| self.has_written = false)?;
            }
            self.db.pace.enter_stage(Task::Checkpoint, "waiting for a moment without commits");
            return Ok(match start_image(&self.db, NUMBERS_FOR_CLOSE, false)? {
                StartOutcome::Begun(build) => {
                    self.build = Some(*build);
                    self.has_written = false;
                    // There may be room now, and unreadable pages may be readable: commits wait for the result.
                    self.db.pace.is_checkpoint_full.set(false);
                    self.db.pace.set_checkpoint_error(None);
                    Step::Continue
                }
                StartOutcome::Busy => Step::IdleFor(Duration::from_millis(1)),
                StartOutcome::Deferred(error) => self.defer(error),
            });
        };
        self.db.pace.enter_stage(Task::Checkpoint, "copying regions");
        if !copy_regions(build, self.db.options.tuning.checkpoint_regions)? {
            self.db.pace.heartbeat(Task::Checkpoint);
            return Ok(Step::Continue);
        }
        if let Some(build) = self.build.take() {
            finish_checkpoint(&self.db, build, None)?;
        }
        self.history_differs = false;
        self.failures = 0;
        self.db.pace.set_checkpoint_error(None);
        self.db.pace.notify();
        Ok(Step::Continue)
    }

    /// Merges runs of the history on the device, a step at a time. A failed merge loses nothing; later ones go round a
    /// run that cannot be read.
    fn merge_runs(&mut self) -> Step {
        let db = &self.db;
        if db.pace.now() < self.no_merge_before {
            return Step::Idle;
        }
        let merged = db.pace.run_as_stage(Task::Checkpoint, "merging the history", || {
            let number = || db.images.next_number(NUMBERS_FOR_CLOSE);
            let allocate = &mut |pages| Ok(db.space.allocate_history(pages)?);
            db.commits.undo.merge_disk_runs(&mut self.merge, number, allocate)
        });
        match merged {
            Ok(true) => Step::Continue,
            Ok(false) => Step::Idle,
            Err(error) => {
                tracing::warn!(%error, "runs of the history are not merged");
                self.merge = None;
                self.no_merge_before = db.pace.now().saturating_add(MERGE_RETRY);
                Step::IdleFor(MERGE_RETRY)
            }
        }
    }

    /// Defers an image. Nothing names it yet, and the log keeps what the image in use lacks.
    fn defer(&mut self, error: Error) -> Step {
        self.build = None;
        self.db.pace.enter_stage(Task::Checkpoint, IDLE);
        self.failures += 1;
        let wait = backoff(self.failures);
        tracing::error!(%error, ?wait, "no checkpoint can be made; it is tried again");
        self.not_before = self.db.pace.now().saturating_add(wait);
        self.db.pace.set_checkpoint_error(Some(error));
        self.db.pace.notify();
        if self.db.pace.is_closing() { Step::Done } else { Step::IdleFor(wait) }
    }

    /// Keeps the log prepared for the next commits. A failure loses nothing: the commit that needs the segment
    /// tries again, and reports it.
    fn prepare_log(&mut self) {
        let sequencer = &self.db.commits.sequencer;
        let Some(up_to) = sequencer.prepare_target() else { return };
        let prepared = sequencer.segments.prepared_through();
        if self.refused_at == Some(prepared) {
            return;
        }
        let prepare = || {
            let missing = up_to.saturating_since(prepared);
            self.db.space.check_room(missing.next_multiple_of(sequencer.segments.size()))?;
            self.db.prepare_log(up_to)
        };
        if let Err(error) =
            self.db.pace.run_as_stage(Task::Checkpoint, "making a segment of the log", prepare)
        {
            tracing::warn!(%error, "the log's next segment could not be made in advance");
            self.refused_at = Some(prepared);
        }
    }
}
