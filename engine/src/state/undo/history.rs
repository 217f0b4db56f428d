//! What a history adds to undo: the window, and runs on the device.

use std::sync::Arc;
use std::time::Duration;

use pleach_core::page::overflow::OverflowExtent;
use pleach_history::{DiskMerge, DiskRun};
use pleach_journal::format::position::LogPos;

use super::pins::PinId;
use super::{Retention, Undo};
use crate::error::{Error, Result};
use crate::state::history::{ImageHistory, PriorCommit, RecordedBegins, Window};
use crate::state::order::sequencer::CommitState;

/// Bytes of undo that may be in memory alone, whatever the limit.
const MIN_UNWRITTEN: u64 = 1 << 20;

/// Entries of one step of a merge.
const ENTRIES: usize = 1 << 14;

impl Undo {
    /// How many past commits should be readable.
    pub(crate) fn history_commits(&self) -> u64 {
        self.limits.commits
    }

    /// Recovery: the history begins at `from`, and the newest record has the begin `recorded`: overflow runs named from
    /// there on are kept until a durable record has a later begin. `recorded` is 0 when no record was read.
    pub(crate) fn set_recovered_begin(&self, from: u64, recorded: u64) {
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        if let Some(window) = &mut retention.window {
            window.set_begin(from);
        }
        retention.recorded = Some(RecordedBegins::new(recorded));
        drop(retention);
        self.trim(&mut merges);
    }

    /// The begin of the window; without a history the newest commit.
    pub(super) fn window_begin(&self, retention: &Retention) -> u64 {
        retention.window.as_ref().map_or_else(|| self.newest(), Window::oldest_commit)
    }

    /// The oldest commit that can be opened by its number.
    pub fn oldest_commit(&self) -> u64 {
        self.window_begin(&self.retention.lock())
    }

    /// How many commits before the newest one can be read, and how many could without the limits in bytes.
    pub(crate) fn kept_and_wanted(&self) -> (u64, u64) {
        self.retention.lock().window.as_ref().map_or((0, 0), Window::kept_and_wanted)
    }

    /// Pins a past commit of the window; returns the pin with the commit's roots and blob.
    pub(in crate::state) fn pin_past(
        &self,
        commit: u64,
        now: Duration,
    ) -> Result<(PinId, CommitState)> {
        let state = self.commit_state(commit)?;
        let mut retention = self.retention.lock();
        let oldest = self.window_begin(&retention);
        if commit < oldest {
            return Err(Error::SnapshotTooOld { commit, oldest });
        }
        Ok((retention.pins.add(commit, now), state))
    }

    /// Roots and blob of a commit before the newest. May read the device.
    pub fn commit_state(&self, commit: u64) -> Result<CommitState> {
        let before = self.prior_commit(commit + 1)?;
        Ok(CommitState { number: commit, roots: before.roots, blob: before.blob })
    }

    /// The commit that `commit`, which is not the first, restores, if it is a rollback. May read the device.
    pub(crate) fn rolled_back_to(&self, commit: u64) -> Result<Option<u64>> {
        self.prior_commit(commit).map(|before| before.back_to)
    }

    /// When a commit that is not the first was made, in seconds since 1970, where that is known. May read the device.
    pub fn committed_at(&self, commit: u64) -> Result<Option<u64>> {
        // Not all later ones can be shown.
        const YEAR_10000: u64 = 253_402_300_800;
        Ok(self.prior_commit(commit)?.time.filter(|time| *time < YEAR_10000))
    }

    /// What a commit of the window follows.
    fn prior_commit(&self, commit: u64) -> Result<PriorCommit> {
        let retention = self.retention.lock();
        let oldest = self.window_begin(&retention);
        let before =
            retention.window.as_ref().and_then(|window| window.prior_commit(commit).cloned());
        drop(retention);
        let too_old = Error::SnapshotTooOld { commit: commit - 1, oldest };
        if commit <= oldest {
            return Err(too_old);
        }
        if let Some(before) = before {
            return Ok(before);
        }
        let set = self.current.load_full();
        let run = set.disk.iter().find(|run| commit <= run.descriptor.last_commit);
        let Some(run) = run.filter(|run| commit > run.descriptor.after) else {
            return Err(too_old);
        };
        PriorCommit::decode(&run.commit(commit)?).map_err(|_| run.bad_commit().into())
    }

    /// Where the first record begins whose undo is in the window and not on the device; `None` when there is none.
    pub fn log_from(&self) -> Option<LogPos> {
        let retention = self.retention.lock();
        Some(retention.window.as_ref()?.first_unwritten()?.0)
    }

    /// The window's begin once `number` is the newest commit, for that commit's record.
    pub(crate) fn begin_after(&self, number: u64) -> u64 {
        let retention = self.retention.lock();
        retention.window.as_ref().map_or(number, |window| window.begin_after(number))
    }

    /// A queued record that ends at `end` has `from` as the begin of the window.
    pub(crate) fn note_recorded_begin(&self, end: LogPos, from: u64) {
        if let Some(recorded) = &mut self.retention.lock().recorded {
            recorded.note(end, from);
        }
    }

    /// Writes undo that is in memory alone as a run on the device; `number` gives the run's number. Nothing is synced.
    pub(crate) fn write_run(
        &self,
        number: impl FnOnce() -> Result<u64>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>>,
    ) -> Result<()> {
        let written = self.retention.lock().window.as_ref().map(Window::written);
        let (Some(file), Some(written)) = (&self.file, written) else { return Ok(()) };
        let before = |last_commit| {
            let retention = self.retention.lock();
            retention.window.as_ref().map_or(Vec::new(), |window| window.unwritten(last_commit))
        };
        let runs = self.current.load().runs.clone().unwrap_or_default();
        let run = runs.write_after(written, file, number, before, allocate)?;
        let Some(run) = run.map(Arc::new) else { return Ok(()) };
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        retention.forget(run.descriptor.last_commit);
        let Some(window) = &mut retention.window else { return Ok(()) };
        window.set_written(run.descriptor.last_commit);
        self.update(|set| set.disk = set.disk.iter().cloned().chain([run]).collect());
        drop(retention);
        // Removes runs that the window has left meanwhile; no state before `UndoSet::floor` can be read until then.
        self.trim(&mut merges);
        Ok(())
    }

    /// True when undo in memory alone takes more than one part in `of` of the limit.
    pub(crate) fn needs_writing(&self, of: u64) -> bool {
        if self.file.is_none() || !self.has_history() {
            return false;
        }
        let written = self.retention.lock().window.as_ref().map_or(u64::MAX, Window::written);
        let set = self.current.load();
        let unwritten = set.run_sizes().filter(|run| run.last_commit > written);
        unwritten.map(|run| run.bytes).sum::<u64>() > self.limits.bytes.max(MIN_UNWRITTEN) / of
    }

    /// Bytes of the runs on the device.
    pub fn disk_bytes(&self) -> u64 {
        self.current.load().disk.iter().map(|run| run.descriptor.bytes()).sum()
    }

    /// Numbers of runs on the device, and of bad ones among them.
    pub(crate) fn disk_runs(&self) -> (u64, u64) {
        let disk = &self.current.load().disk;
        (disk.len() as u64, disk.iter().filter(|run| run.is_bad()).count() as u64)
    }

    /// Number of commits whose undo is on the device.
    pub fn disk_commits(&self) -> u64 {
        let set = self.current.load();
        set.disk.iter().map(|run| run.descriptor.last_commit - run.descriptor.after).sum()
    }

    /// Does a step of a merge of runs on the device; begins one, with a number from `number`, when one is due and none
    /// is under way. The merged run replaces its sources, unless they were discarded meanwhile. False when there is
    /// nothing to merge.
    pub(crate) fn merge_disk_runs(
        &self,
        under_way: &mut Option<DiskMerge>,
        number: impl FnOnce() -> Result<u64>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>>,
    ) -> Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        if under_way.is_none() {
            *under_way = DiskMerge::of(&self.current.load().disk, file, number)?;
        }
        let Some(merge) = under_way else { return Ok(false) };
        let is_done = merge.step(ENTRIES, allocate)?;
        let Some(merge) = under_way.take_if(|_| is_done) else { return Ok(true) };
        let merged = merge.runs.clone();
        let run = Arc::new(DiskRun::new(merge.finish(allocate)?, file));
        let _guarded = self.retention.lock();
        self.update(|set| {
            let mut disk = set.disk.to_vec();
            if let Some(at) = disk.iter().position(|run| Arc::ptr_eq(run, &merged[0])) {
                disk.splice(at..at + merged.len(), [run]);
                set.disk = disk.into();
            }
        });
        Ok(true)
    }

    /// The history as of now, for an image whose replay starts at `replay` (rules `log-for-history`, `history-at-cut`).
    pub(crate) fn image_history(&self, replay: LogPos) -> ImageHistory {
        let retention = self.retention.lock();
        let (Some(window), Some(recorded)) = (&retention.window, &retention.recorded) else {
            return ImageHistory { runs: Vec::new(), records: replay, past: None, kept_from: 0 };
        };
        let (set, from) = (self.current.load(), window.oldest_commit());
        let named = set.disk.iter().filter(|run| run.descriptor.last_commit > from);
        let (records, past) = match window.first_unwritten() {
            Some((records, roots)) if records < replay => (records, Some(roots.clone())),
            _ => (replay, None),
        };
        let (runs, kept_from) = (named.cloned().collect(), recorded.newest());
        ImageHistory { runs, records, past, kept_from }
    }

    /// In a replica: sets the runs that the writing process has by now, and the begin of its window.
    pub(crate) fn replace_disk_runs(&self, disk: Vec<Arc<DiskRun>>, from: u64) {
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        let Some(window) = &mut retention.window else { return };
        window.set_begin(from);
        let from = window.oldest_commit();
        let named: Vec<_> =
            disk.into_iter().filter(|run| run.descriptor.last_commit > from).collect();
        if let Some(last) = named.last() {
            let last_commit = last.descriptor.last_commit.min(self.newest());
            window.set_written(last_commit);
            retention.forget(last_commit);
        }
        self.update(|set| set.disk = named.into());
        drop(retention);
        self.trim(&mut merges);
    }
}
