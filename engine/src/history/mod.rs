//! What commits replaced, as sorted runs: what a key had as of a commit is what the oldest commit after it that changed the key
//! has replaced. See `docs/history-runs.md`.
//!
//! Each commit brings a [`run`], which never changes. Runs are in a list, the oldest first, each with the commits that follow
//! those of the one before. Who looks something up takes the list once and asks the runs with commits after his own, the
//! oldest first; a [`filter`] says of most runs that they do not have a key. Four neighbours of the same length are merged
//! ([`merge`]), a part of it with each commit that comes, and leave when the longer run is in the list. No run has more
//! than a quarter of the commits, and it is dropped as a whole, so that the list has up to a quarter more commits than are
//! wanted.

mod filter;
mod find;
mod merge;
mod run;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::filter::Secret;
use self::merge::Merge;
use self::run::Run;
pub(crate) use self::run::{CommitRun, NodesOf, ReplacedNode};

/// So many neighbours of a length are merged.
const FAN: usize = 4;
/// A run that was merged has at most this part of all commits.
const PART: u64 = 4;

/// The runs of some commits. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Runs {
    secret: Secret,
    /// Oldest first, each with its length: how often what it has was merged.
    runs: Vec<(usize, Arc<Run>)>,
}

impl Runs {
    /// A run in the making for what commit `number` replaced: about `keys` keys.
    pub(crate) fn commit_run(&self, number: u64, keys: usize) -> CommitRun {
        CommitRun::new(self.secret, number, keys)
    }

    /// The runs with commits after one.
    fn after(&self, base: u64) -> &[(usize, Arc<Run>)] {
        &self.runs[self.runs.partition_point(|(_, run)| run.through <= base)..]
    }

    /// Drops runs without commits after `floor`.
    pub(crate) fn drop_through(&mut self, floor: u64) {
        let gone = self.runs.len() - self.after(floor).len();
        self.runs.drain(..gone);
    }

    /// Of each run, the oldest first, its last commit and its bytes of memory.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|(_, run)| (run.through, run.memory() as u64))
    }

    /// The merge of the oldest neighbours of a length, where there are enough, and the run would not be too long.
    fn to_merge(&self, length: usize) -> Option<Merge> {
        let (first, last) = (self.runs.first()?, self.runs.last()?);
        let from = self.runs.iter().position(|(one, _)| *one == length)?;
        let own = self.runs[from..].iter().take_while(|(one, _)| *one == length);
        let own: Vec<_> = own.take(FAN).map(|(_, run)| Arc::clone(run)).collect();
        let commits = own.last()?.through - own[0].after;
        if own.len() < FAN || commits * PART > last.1.through - first.1.after {
            return None;
        }
        // It is ready when half of the commits have come that the next merge of this length needs.
        let steps = usize::try_from(commits / 2).unwrap_or(usize::MAX).max(1);
        Merge::of(own, steps)
    }

    /// Puts a merged run in the place of those that it was merged of.
    fn replace(&mut self, length: usize, merge: Merge) {
        let from = self.runs.iter().position(|(_, run)| Arc::ptr_eq(run, &merge.runs[0]));
        let from = from.expect("a merge ends when its runs leave");
        let until = from + merge.runs.len();
        self.runs.splice(from..until, [(length + 1, Arc::new(merge.into_run()))]);
    }
}

/// Merges under way: of runs of each length, the shortest first, one.
#[derive(Default)]
pub(crate) struct Merges(Vec<Option<Merge>>);

impl Merges {
    /// Puts in what a commit, later than all that are in, replaced, and goes on with the merges. Gives the bytes of memory of
    /// the commit's run.
    pub(crate) fn push(&mut self, runs: &mut Runs, commit: CommitRun) -> u64 {
        let mut run = commit.run;
        if run.versions() == 0 {
            return 0;
        }
        run.finish();
        let bytes = run.memory();
        debug_assert!(runs.after(run.after).is_empty(), "commits are put in in their order");
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

    /// Ends merges of runs that are dropped: those without commits after `floor`.
    pub(crate) fn drop_through(&mut self, floor: u64) {
        for merge in &mut self.0 {
            merge.take_if(|merge| merge.runs[0].through <= floor);
        }
    }

    /// Bytes of memory of the runs in the making.
    pub(crate) fn memory(&self) -> u64 {
        self.0.iter().flatten().map(Merge::memory).sum::<usize>() as u64
    }
}
