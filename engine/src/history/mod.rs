//! What commits replaced, as sorted runs: what a key had as of a commit is what the oldest commit after it that changed the key
//! has replaced.
//!
//! Each commit brings a [`run`], which never changes. Runs are in a list, the oldest first, each with the commits that follow
//! those of the one before. Who looks something up takes the list once and asks the runs with commits after his own, the
//! oldest first; a [`filter`] says of most runs that they do not have a key. Four neighbours of the same length are merged
//! ([`merge`]), a part of it with each commit that comes, and dropped when the longer run is in the list. No run has more
//! than a quarter of the commits, and it is dropped as a whole, so that the list has up to a quarter more commits than are
//! wanted.
//!
//! The list is replaced as a whole, by one thread at a time; any number of threads look up in one that they have taken.

mod filter;
mod find;
mod merge;
mod run;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_beatree::Stored;
use pleach_core::Key;

use self::filter::Secret;
use self::merge::Merge;
use self::run::Run;

/// So many neighbours of a length are merged.
const FAN: usize = 4;
/// A run has at most this part of all commits.
const PART: u64 = 4;

/// A run of one commit in the making: keys in the order of their namespaces.
pub(crate) struct CommitRun<'a> {
    secret: &'a Secret,
    run: Run,
}

impl CommitRun<'_> {
    /// The keys of another namespace follow.
    pub(crate) fn begin(&mut self, namespace: u8) {
        self.run.begin(namespace);
    }

    /// Adds what a key had before.
    pub(crate) fn put(&mut self, key: &Key, prior: &Stored) {
        self.run.put_key(self.secret, key);
        self.run.put_version(self.run.through, prior);
    }
}

/// The runs.
#[derive(Default)]
pub(crate) struct Runs {
    secret: Secret,
    list: ArcSwap<List>,
    /// Of runs of each length, the shortest first, those that are being merged. Held by whoever changes the list.
    merges: Mutex<Vec<Option<Merge>>>,
}

/// Runs with their lengths: how often what they have was merged.
#[derive(Clone, Default)]
struct List {
    /// Oldest first.
    runs: Vec<(usize, Arc<Run>)>,
    /// Bytes of memory, with those of runs in the making.
    bytes: usize,
}

impl List {
    /// The runs with commits after one.
    fn after(&self, base: u64) -> &[(usize, Arc<Run>)] {
        &self.runs[self.runs.partition_point(|(_, run)| run.through <= base)..]
    }

    /// The merge of the oldest neighbours of a length, where there are enough, and no longer run is too long.
    fn to_merge(&self, length: usize) -> Option<Merge> {
        let [(_, first), ..] = &self.runs[..] else { return None };
        let (_, last) = self.runs.last()?;
        let from = self.runs.iter().position(|(one, _)| *one == length)?;
        let own = self.runs[from..].iter().take_while(|(one, _)| *one == length);
        let own: Vec<_> = own.take(FAN).map(|(_, run)| Arc::clone(run)).collect();
        let commits = own.last()?.through - own[0].after;
        let fits = own.len() == FAN && commits * PART <= last.through - first.after;
        // It is ready when half of the commits have come that the next merge of this length needs.
        let steps = usize::try_from(commits / 2).unwrap_or(usize::MAX).max(1);
        if fits { Merge::of(&own, steps) } else { None }
    }

    /// Puts a merged run in the place of those that it was merged of.
    fn replace(&mut self, length: usize, merge: Merge) {
        let from =
            self.runs.iter().position(|(_, run)| merge.runs().any(|one| Arc::ptr_eq(one, run)));
        let from = from.expect("a merge ends when its runs leave the list");
        let count = merge.runs().count();
        self.runs.splice(from..from + count, [(length + 1, Arc::new(merge.into_run()))]);
    }
}

impl Runs {
    /// A run for what commit `number` replaced: up to `keys` keys.
    pub(crate) fn commit_run(&self, number: u64, keys: usize) -> CommitRun<'_> {
        CommitRun { secret: &self.secret, run: Run::new(number - 1..number, keys, keys, keys * 8) }
    }

    /// Puts in what a commit, later than all that are in, replaced, and goes on with merges. Gives the bytes of the run.
    pub(crate) fn push(&self, run: CommitRun<'_>) -> usize {
        let mut run = run.run;
        if run.keys() == 0 {
            return 0;
        }
        run.finish();
        let bytes = run.memory();
        let mut merges = self.merges.lock();
        let mut list = List::clone(&self.list.load());
        debug_assert!(
            list.runs.last().is_none_or(|(_, last)| last.through <= run.after),
            "in order"
        );
        list.runs.push((0, Arc::new(run)));
        for length in 0.. {
            if merges.len() == length {
                merges.push(None);
            }
            let merge = &mut merges[length];
            if merge.is_none() {
                *merge = list.to_merge(length);
            }
            if let Some(mut under_way) = merge.take() {
                if under_way.step(&self.secret) {
                    list.replace(length, under_way);
                } else {
                    *merge = Some(under_way);
                }
            } else if length + 1 == merges.len() {
                break;
            }
        }
        self.publish(list, &merges);
        bytes
    }

    fn publish(&self, mut list: List, merges: &[Option<Merge>]) {
        list.bytes = list.runs.iter().map(|(_, run)| run.memory()).sum::<usize>()
            + merges.iter().flatten().map(Merge::memory).sum::<usize>();
        self.list.store(Arc::new(list));
    }

    /// Drops runs without commits after `floor`.
    pub(crate) fn drop_through(&self, floor: u64) {
        let mut merges = self.merges.lock();
        let list = self.list.load();
        if list.runs.first().is_none_or(|(_, first)| first.through > floor) {
            return;
        }
        for merge in merges.iter_mut() {
            merge.take_if(|merge| merge.runs().any(|run| run.through <= floor));
        }
        let list = List { runs: list.after(floor).to_vec(), bytes: 0 };
        self.publish(list, &merges);
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.list.load().bytes
    }

    /// The last commits of the runs, ascending.
    pub(crate) fn ends(&self) -> Vec<u64> {
        self.list.load().runs.iter().map(|(_, run)| run.through).collect()
    }
}
