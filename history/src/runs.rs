//! The runs in memory, and their merges.

use std::sync::Arc;

use pleach_beatree::Error;
use pleach_core::page::overflow::OverflowExtent;

use crate::disk::{DiskRun, RunFile, write_run};
use crate::filter::Secret;
use crate::merge::Merge;
use crate::neighbours::{FAN, neighbours};
use crate::run::{CommitRun, Run, RunSize};

/// The runs of some commits. Clones share them.
#[derive(Clone, Default)]
pub struct Runs {
    pub(super) secret: Secret,
    /// Oldest first, each with its merge level: how often its contents were merged.
    pub(super) runs: Vec<(usize, Arc<Run>)>,
}

impl Runs {
    /// An unfinished run of the values that commit `number` replaced: about `keys` keys.
    pub fn commit_run(&self, number: u64, keys: usize) -> CommitRun {
        CommitRun::new(self.secret, number, keys)
    }

    /// The runs with commits after one.
    pub(super) fn after(&self, base: u64) -> &[(usize, Arc<Run>)] {
        &self.runs[self.runs.partition_point(|(_, run)| run.last_commit <= base)..]
    }

    /// Removes runs without commits after `floor`.
    pub fn remove_through(&mut self, floor: u64) {
        let gone = self.runs.len() - self.after(floor).len();
        self.runs.drain(..gone);
    }

    /// The sizes in memory, the oldest run first.
    pub fn sizes(&self) -> impl Iterator<Item = RunSize> {
        self.runs.iter().map(|(_, run)| RunSize {
            after: run.after,
            last_commit: run.last_commit,
            bytes: run.memory() as u64,
            value_bytes: 0,
        })
    }

    /// The merge of the oldest neighbours of a level, where there are enough, and the merged run would not be too
    /// long.
    fn to_merge(&self, merge_level: usize) -> Option<Merge> {
        let all = self.runs.iter().map(|(own, run)| (*own, run.after, run.last_commit));
        let own = neighbours(all, merge_level)?;
        let own: Vec<_> = self.runs[own].iter().map(|(_, run)| Arc::clone(run)).collect();
        let commits = own[FAN - 1].last_commit - own[0].after;
        // The merge ends when half of the commits have come that the next merge of this level needs.
        let steps = usize::try_from(commits / 2).unwrap_or(usize::MAX).max(1);
        Merge::of(own, steps)
    }

    /// Writes the values that commits after one replaced as a run on the device, as many commits as fit in one, with
    /// the commits' records, which `before` gives through a commit: without gaps, from the first that is kept. `None`:
    /// there is nothing.
    ///
    /// # Errors
    /// Errors of the device and of the closures.
    pub fn write_after<E: From<Error>>(
        &self,
        after: u64,
        file: &Arc<RunFile>,
        number: impl FnOnce() -> Result<u64, E>,
        before: impl FnOnce(u64) -> Vec<(u64, Vec<u8>)>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<Option<DiskRun>, E> {
        let mut runs: Vec<_> = self.after(after).iter().map(|(_, run)| Arc::clone(run)).collect();
        let run = loop {
            match &runs[..] {
                [] => return Ok(None),
                [one] => break Arc::clone(one),
                _ => {}
            }
            if let Some(mut merge) = Merge::of(runs.clone(), 1) {
                while !merge.step(self.secret) {}
                break Arc::new(merge.into_run());
            }
            runs.pop();
        };
        let commits = before(run.last_commit);
        // Undo of commits between may have been discarded before it was written (rule `run-says-its-begin`).
        let Some(after) = commits.first().map(|(first, _)| first - 1) else { return Ok(None) };
        let names = write_run(file, number()?, &run, after, &commits, allocate)?;
        Ok(Some(DiskRun::new(names, file)))
    }

    /// Replaces the runs of a merge by the merged run.
    fn replace(&mut self, merge_level: usize, merge: Merge) {
        let from = self.runs.iter().position(|(_, run)| Arc::ptr_eq(run, &merge.runs[0]));
        let from = from.expect("a merge ends when its runs leave");
        let until = from + merge.runs.len();
        self.runs.splice(from..until, [(merge_level + 1, Arc::new(merge.into_run()))]);
    }
}

/// Merges in progress: one of runs of each level, the lowest first.
#[derive(Default)]
pub struct Merges(Vec<Option<Merge>>);

impl Merges {
    /// Inserts the run of a commit, later than all inserted ones, and continues the merges. Gives the bytes of memory
    /// of the commit's run.
    ///
    /// # Panics
    /// When it is not later.
    pub fn push(&mut self, runs: &mut Runs, commit: CommitRun) -> u64 {
        let mut run = commit.run;
        run.finish();
        let bytes = run.memory();
        assert!(runs.after(run.after).is_empty(), "commits are put in in their order");
        runs.runs.push((0, Arc::new(run)));
        for merge_level in 0.. {
            if self.0.len() == merge_level {
                self.0.push(None);
            }
            let longest = merge_level + 1 == self.0.len();
            let merge = &mut self.0[merge_level];
            if merge.is_none() {
                *merge = runs.to_merge(merge_level);
            }
            if let Some(done) = merge.take_if(|merge| merge.step(runs.secret)) {
                runs.replace(merge_level, done);
            } else if merge.is_none() && longest {
                break;
            }
        }
        bytes as u64
    }

    /// Cancels merges of runs without commits after `floor`, which are removed.
    pub fn cancel_through(&mut self, floor: u64) {
        for merge in &mut self.0 {
            merge.take_if(|merge| merge.runs[0].last_commit <= floor);
        }
    }

    /// Bytes of memory of the unfinished runs.
    pub fn memory(&self) -> u64 {
        self.0.iter().flatten().map(Merge::memory).sum::<usize>() as u64
    }
}
