//! The past states of Pleach: the values that commits replaced, as sorted runs. The value of a key as of a commit is
//! the one that the oldest later commit which changed the key has replaced. See `docs/history-runs.md`.
//!
//! Each commit adds a *run*, which never changes ([`Runs`], [`Merges`]). Runs are in a list, the oldest first, each
//! with the commits that follow those of the one before. A lookup takes the list once and searches the runs with
//! commits after its own, the oldest first; a filter shows of most runs that they do not have a key. Four neighbours of
//! the same length are merged, in steps, one with each commit, and are removed when the longer run is in the list. No
//! merged run has more than a quarter of the commits, and a run is removed as a whole, so that the list has up to a
//! quarter more commits than are wanted.
//!
//! Runs in memory are written to the device as one ([`Runs::write_after`]), and merged there ([`DiskMerge`]). A
//! [`DiskRun`] is found by its [`RunDescriptor`], which the caller stores.

mod changing_commits;
mod disk;
mod error;
mod filter;
mod find;
mod merge;
mod run;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use pleach_core::page::overflow::OverflowRun;

pub use self::changing_commits::ChangingCommits;
#[doc(hidden)]
pub use self::disk::entries_of;
pub use self::disk::{DiskMerge, DiskRun, RunDescriptor, RunFile};
pub use self::error::Error;
use self::filter::Secret;
use self::merge::Merge;
use self::run::Run;
pub use self::run::{CommitOrder, CommitRun, NodeScope, ReplacedNode, Version};

/// Number of neighbours of a length that are merged.
const FAN: usize = 4;
/// A merged run has at most this part of all commits.
const PART: u64 = 4;

/// The runs of some commits. Clones share them.
#[derive(Clone, Default)]
pub struct Runs {
    secret: Secret,
    /// Oldest first, each with its length: how often its contents were merged.
    runs: Vec<(usize, Arc<Run>)>,
}

impl Runs {
    /// An unfinished run of the values that commit `number` replaced: about `keys` keys.
    pub fn commit_run(&self, number: u64, keys: usize) -> CommitRun {
        CommitRun::new(self.secret, number, keys)
    }

    /// The runs with commits after one.
    fn after(&self, base: u64) -> &[(usize, Arc<Run>)] {
        &self.runs[self.runs.partition_point(|(_, run)| run.through <= base)..]
    }

    /// Removes runs without commits after `floor`.
    pub fn remove_through(&mut self, floor: u64) {
        let gone = self.runs.len() - self.after(floor).len();
        self.runs.drain(..gone);
    }

    /// For each run, the oldest first: the commit that it begins after, its last one, and its bytes of memory.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.runs.iter().map(|(_, run)| (run.after, run.through, run.memory() as u64))
    }

    /// The merge of the oldest neighbours of a length, where there are enough, and the merged run would not be too
    /// long.
    fn to_merge(&self, length: usize) -> Option<Merge> {
        let all = self.runs.iter().map(|(own, run)| (*own, run.after, run.through));
        let own = neighbours(all, length)?;
        let own: Vec<_> = self.runs[own].iter().map(|(_, run)| Arc::clone(run)).collect();
        let commits = own[FAN - 1].through - own[0].after;
        // The merge ends when half of the commits have come that the next merge of this length needs.
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
        before: impl FnOnce(u64) -> Option<Vec<(u64, Vec<u8>)>>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowRun>, E>,
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
        let commits = before(run.through).unwrap_or_default();
        // Undo of commits between may have been discarded before it was written (rule `run-says-its-begin`).
        let Some(after) = commits.first().map(|(first, _)| first - 1) else { return Ok(None) };
        let names = disk::write_run(file, number()?, &run, after, &commits, allocate)?;
        Ok(Some(DiskRun::new(names, file)))
    }

    /// Replaces the runs of a merge by the merged run.
    fn replace(&mut self, length: usize, merge: Merge) {
        let from = self.runs.iter().position(|(_, run)| Arc::ptr_eq(run, &merge.runs[0]));
        let from = from.expect("a merge ends when its runs leave");
        let until = from + merge.runs.len();
        self.runs.splice(from..until, [(length + 1, Arc::new(merge.into_run()))]);
    }
}

/// The places of the oldest neighbours of a length to be merged, among runs that each have a length and the commits
/// after one through another; `None` where there are too few, or the merged run would be too long.
fn neighbours(all: impl Iterator<Item = (usize, u64, u64)>, length: usize) -> Option<Range<usize>> {
    let all: Vec<_> = all.collect();
    let commits = |of: &[(usize, u64, u64)]| Some(of.last()?.2 - of.first()?.1);
    let whole = commits(&all)?;
    // A run may be far longer than others of its length: those behind it are merged without it.
    (0..(all.len() + 1).saturating_sub(FAN)).map(|from| from..from + FAN).find(|own| {
        let own = &all[own.clone()];
        let fits = commits(own).is_some_and(|commits| commits * PART <= whole);
        fits && own.iter().all(|one| one.0 == length)
    })
}

/// Merges in progress: one of runs of each length, the shortest first.
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
        for length in 0.. {
            if self.0.len() == length {
                self.0.push(None);
            }
            let longest = length + 1 == self.0.len();
            let merge = &mut self.0[length];
            if merge.is_none() {
                *merge = runs.to_merge(length);
            }
            if let Some(done) = merge.take_if(|merge| merge.step(runs.secret)) {
                runs.replace(length, done);
            } else if merge.is_none() && longest {
                break;
            }
        }
        bytes as u64
    }

    /// Cancels merges of runs without commits after `floor`, which are removed.
    pub fn cancel_through(&mut self, floor: u64) {
        for merge in &mut self.0 {
            merge.take_if(|merge| merge.runs[0].through <= floor);
        }
    }

    /// Bytes of memory of the unfinished runs.
    pub fn memory(&self) -> u64 {
        self.0.iter().flatten().map(Merge::memory).sum::<usize>() as u64
    }
}
