//! Lookups in undo; `base` is a commit that the caller has pinned.

use std::collections::BTreeMap;
use std::iter;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;
use pleach_beatree::Stored;
use pleach_core::{Key, Prefix};

use super::{DiskRun, RecentCommit, Undo, UndoSet};
use crate::error::{Error, Result};
use pleach_history::{CommitOrder, NodeScope, ReplacedNode, Version};

impl Undo {
    /// The newest commit that was pushed. Cheap, for the read path.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// The undo set, if it has the undo of all commits after `base`.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    #[inline]
    pub(in crate::state) fn load_since(&self, base: u64) -> Result<Guard<Arc<UndoSet>>> {
        let set = self.current.load();
        if set.floor <= base { Ok(set) } else { Err(self.too_old_error(base)) }
    }

    /// The error for a state that is not kept any more.
    pub(crate) fn too_old_error(&self, commit: u64) -> Error {
        Error::SnapshotTooOld { commit, oldest: self.oldest_commit() }
    }

    /// Refuses a commit before the begin of the window.
    pub(in crate::state) fn check_in_window(&self, commit: u64) -> Result<()> {
        if self.oldest_commit() <= commit { Ok(()) } else { Err(self.too_old_error(commit)) }
    }

    /// Refuses a commit whose state cannot be read any more.
    pub(crate) fn check_readable(&self, commit: u64) -> Result<()> {
        self.load_since(commit).map(drop)
    }

    /// The oldest commit after `base` that changed a key, and the value before it; of inserted commits only.
    pub fn change_after(&self, namespace: u8, key: &Key, base: u64) -> Result<Option<Version>> {
        self.current.load().version(namespace, key, base)
    }

    /// Some commits that changed a key, from `first`, or the begin of the window, through `last`: the first ones in the
    /// given order. Empty when no commit changed it.
    pub(crate) fn changing_commits(
        &self,
        namespace: u8,
        key: &Key,
        first: Option<u64>,
        last: u64,
        order: CommitOrder,
    ) -> Result<Vec<u64>> {
        let retention = self.retention.lock();
        let (oldest, set) = (retention.window.oldest_commit(), self.current.load_full());
        drop(retention);
        let base = first.map_or(oldest, |first| first - 1);
        if base < oldest {
            return Err(self.too_old_error(base));
        }
        let (disk, through) = set.disk_runs_after(base);
        let (all, later) = (base + 1..=last, through + 1..=last);
        let disk = &disk[..disk.partition_point(|run| run.descriptor.after < last)];
        let disk = disk.iter().map(|run| Ok(run.changing_commits(namespace, key, &all, order)?));
        let memory = || Ok(set.runs.changing_commits(namespace, key, &later, order));
        let recent = set.recent_after(through).iter().filter_map(|commit| {
            let is_changed = commit.number <= last
                && commit
                    .in_namespace(namespace)
                    .is_some_and(|one| one.changes.find(key).is_some());
            is_changed.then(|| Ok(vec![commit.number]))
        });
        let mut found = disk.chain(iter::once_with(memory)).chain(recent);
        let any = |found: &Result<Vec<u64>>| !matches!(found, Ok(all) if all.is_empty());
        let first = match order {
            CommitOrder::Ascending => found.find(any),
            CommitOrder::Descending => found.rfind(any),
        };
        first.unwrap_or(Ok(Vec::new()))
    }

    /// The states as of `base` of all keys of a namespace in ascending ranges that later commits changed, in order.
    pub fn get_ranges(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Result<Vec<(Key, Stored)>> {
        self.current.load().get_ranges(namespace, ranges, base)
    }
}

impl UndoSet {
    /// The runs on the device with commits after `base` that are not in memory, and after which commit memory goes on.
    #[inline]
    fn disk_runs_after(&self, base: u64) -> (&[Arc<DiskRun>], u64) {
        if self.memory_from <= base {
            return (&[], base);
        }
        let first = self.disk.partition_point(|run| run.descriptor.through <= base);
        let end = self.disk.partition_point(|run| run.descriptor.after < self.memory_from);
        let runs = &self.disk[first..end.max(first)];
        (runs, runs.last().map_or(base, |last| last.descriptor.through.max(base)))
    }

    /// Recent commits after `base`, in order.
    fn recent_after(&self, base: u64) -> &[RecentCommit] {
        &self.recent[self.recent.partition_point(|commit| commit.number <= base)..]
    }

    /// The state of a key as of `base`, and the commit that replaced it; of inserted commits only.
    #[inline]
    fn version(&self, namespace: u8, key: &Key, base: u64) -> Result<Option<Version>> {
        let (disk, through) = self.disk_runs_after(base);
        for run in disk {
            if let Some(found) = run.get(namespace, key, base)? {
                return Ok(Some(found));
            }
        }
        Ok(self.runs.get(namespace, key, through))
    }

    /// State of a namespace's key as of commit `base`, if later commits changed it: its prior state in the oldest one.
    #[inline]
    pub(in crate::state) fn get(
        &self,
        namespace: u8,
        key: &Key,
        base: u64,
    ) -> Result<Option<Stored>> {
        // Inserted commits are older than recent ones.
        if let Some((_, prior)) = self.version(namespace, key, base)? {
            return Ok(Some(prior));
        }
        let mut recent = self.recent_after(base).iter();
        Ok(recent.find_map(|commit| {
            Some(commit.in_namespace(namespace)?.changes.find(key)?.prior.clone())
        }))
    }

    /// See [`Undo::get_ranges`].
    pub(in crate::state) fn get_ranges(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Result<Vec<(Key, Stored)>> {
        let ((disk, through), recent) = (self.disk_runs_after(base), self.recent_after(base));
        let found = self.runs.values_within(namespace, ranges, through);
        if recent.is_empty() && disk.is_empty() {
            return Ok(found);
        }
        let mut states = BTreeMap::new();
        // Newest first, so that the oldest commit after `base` overwrites later ones.
        for undone in recent.iter().rev().filter_map(|commit| commit.in_namespace(namespace)) {
            for changed in ranges.iter().flat_map(|keys| undone.changes.in_range(keys)) {
                states.insert(changed.key, changed.prior.clone());
            }
        }
        states.extend(found);
        for run in disk.iter().rev() {
            run.for_each_within(namespace, ranges, base, |key, prior| {
                drop(states.insert(key, prior));
            })?;
        }
        Ok(states.into_iter().collect())
    }

    /// The nodes in and around a prefix that commits after `base` replaced: one list of each run or recent commit that
    /// has any, oldest first; a list has the oldest node of each prefix.
    pub(in crate::state) fn nodes_around(
        &self,
        of: NodeScope,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> impl Iterator<Item = Result<Vec<ReplacedNode>>> {
        let (disk, through) = self.disk_runs_after(base);
        let disk = disk.iter().map(move |run| Ok(run.nodes_around(of, namespace, prefix, base)?));
        let recent = self.recent_after(base).iter().filter_map(move |commit| {
            Some(commit.in_namespace(namespace)?.nodes.nodes_around(of, commit.number, prefix))
        });
        let memory = self.runs.nodes_around(of, namespace, prefix, through).chain(recent);
        let any =
            |found: &Result<Vec<ReplacedNode>>| found.as_ref().map_or(true, |all| !all.is_empty());
        disk.chain(memory.map(Ok)).filter(any)
    }
}
