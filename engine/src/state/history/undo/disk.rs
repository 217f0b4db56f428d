//! Runs on the device: how they are written and merged.

use std::sync::Arc;

use pleach_core::page::overflow::OverflowRun;
use pleach_journal::format::position::LogPos;

use super::{Undo, UndoSet};
use crate::error::Result;
use crate::roots::Roots;
use pleach_history::{DiskMerge, DiskRun};

/// Bytes of undo that may be in memory alone, whatever the limit.
const MIN_UNWRITTEN: u64 = 1 << 20;

/// Entries of one step of a merge.
const ENTRIES: usize = 1 << 14;

/// The history as an image has it.
pub(crate) struct ImageHistory {
    /// Runs on the device, oldest first.
    pub(crate) runs: Vec<Arc<DiskRun>>,
    /// Where the records after the runs begin, and the roots before them, if that is before the replay start.
    pub(crate) records: LogPos,
    pub(crate) past: Option<Roots>,
    /// The window's begin as the newest record has it.
    pub(crate) kept_from: u64,
}

impl Undo {
    /// Writes undo that is in memory alone as a run on the device; `number` gives the run's number. Nothing is synced.
    pub(crate) fn write_run(
        &self,
        number: impl FnOnce() -> Result<u64>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowRun>>,
    ) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.has_history()) else {
            return Ok(());
        };
        let (written, past) = (self.retention.lock().window.written(), self.current.load_full());
        let before = |through| {
            let commits = self.retention.lock().window.unwritten(through)?;
            Some(commits.iter().map(|(number, before)| (*number, before.encode())).collect())
        };
        let run = past.runs.write_after(written, file, number, before, allocate)?;
        let Some(run) = run.map(Arc::new) else { return Ok(()) };
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        retention.window.set_written(run.descriptor.through);
        // Commits or a load meanwhile may have moved the window on beyond runs.
        let from = retention.window.oldest_commit();
        self.update(|past| {
            let runs = past.disk.iter().cloned().chain([run]);
            past.disk = runs.filter(|run| run.descriptor.through > from).collect();
        });
        drop(retention);
        self.trim(&mut merges);
        Ok(())
    }

    /// True when undo in memory alone takes more than one part in `of` of the limit.
    pub(crate) fn needs_writing(&self, of: u64) -> bool {
        let unwritten = || {
            let (written, past) = (self.retention.lock().window.written(), self.current.load());
            let unwritten = past.runs.sizes().filter(|run| run.through > written);
            unwritten.map(|run| run.bytes).sum::<u64>()
        };
        self.file.is_some()
            && self.has_history()
            && unwritten() > self.limits.bytes.max(MIN_UNWRITTEN) / of
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
        let past = self.current.load();
        past.disk.iter().map(|run| run.descriptor.through - run.descriptor.after).sum()
    }

    /// Does a step of a merge of runs on the device; begins one, with a number from `number`, when one is due and none
    /// is under way. The merged run replaces its sources, unless they were discarded meanwhile. False when there is
    /// nothing to merge.
    pub(crate) fn merge_disk_runs(
        &self,
        under_way: &mut Option<DiskMerge>,
        number: impl FnOnce() -> Result<u64>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowRun>>,
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
        self.update(|past| {
            let mut disk = past.disk.to_vec();
            if let Some(at) = disk.iter().position(|run| Arc::ptr_eq(run, &merged[0])) {
                disk.splice(at..at + merged.len(), [run]);
                past.disk = disk.into();
            }
        });
        Ok(true)
    }

    /// The history as of now, for an image whose replay starts at `replay` (rules `log-for-history`, `history-at-cut`).
    pub(crate) fn image_history(&self, replay: LogPos) -> ImageHistory {
        let retention = self.retention.lock();
        let (past, from) = (self.current.load(), retention.window.oldest_commit());
        if !self.has_history() {
            return ImageHistory { runs: Vec::new(), records: replay, past: None, kept_from: 0 };
        }
        let named = past.disk.iter().filter(|run| run.descriptor.through > from);
        let (records, roots) = match retention.window.first_unwritten() {
            Some((records, roots)) if records < replay => (records, Some(roots.clone())),
            _ => (replay, None),
        };
        let (runs, kept_from) = (named.cloned().collect(), retention.window.recorded_begin());
        ImageHistory { runs, records, past: roots, kept_from }
    }

    /// In a replica: sets the runs that the writing process has by now, and the begin of its window.
    pub(crate) fn replace_disk_runs(&self, disk: Vec<Arc<DiskRun>>, from: u64) {
        let mut merges = self.merges.lock();
        let mut retention = self.retention.lock();
        retention.window.set_begin(from);
        let from = retention.window.oldest_commit();
        let named: Vec<_> = disk.into_iter().filter(|run| run.descriptor.through > from).collect();
        if let Some(last) = named.last() {
            retention.window.set_written(last.descriptor.through.min(self.newest()));
        }
        self.update(|past| past.disk = named.into());
        drop(retention);
        self.trim(&mut merges);
    }
}

impl UndoSet {
    /// What a commit follows, if a run on the device has the commit.
    pub(super) fn prior_commit(&self, commit: u64) -> Result<Option<super::PriorCommit>> {
        let run = self.disk.iter().find(|run| commit <= run.descriptor.through);
        let Some(run) = run.filter(|run| commit > run.descriptor.after) else { return Ok(None) };
        let bytes = run.commit(commit)?;
        super::PriorCommit::decode(&bytes).map(Some).map_err(|_| run.bad_commit().into())
    }
}
