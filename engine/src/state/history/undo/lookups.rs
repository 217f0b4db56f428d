//! Looking up what commits replaced; `base` is a commit that the caller has pinned.

use std::collections::BTreeMap;
use std::iter;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;
use pleach_beatree::Stored;
use pleach_core::{Key, Prefix};

use super::{DiskRun, Past, Recent, Undo};
use crate::error::{Error, Result};
use pleach_history::{NodesOf, Order, ReplacedNode, Version};

impl Undo {
    /// The newest commit that was pushed. Cheap, for the read path.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// All undo, where that of all commits after `base` is kept.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    #[inline]
    pub(in crate::state) fn reaching(&self, base: u64) -> Result<Guard<Arc<Past>>> {
        let past = self.past.load();
        if past.floor() <= base { Ok(past) } else { Err(self.too_old(base)) }
    }

    /// The error for a state that is not kept any more.
    pub(crate) fn too_old(&self, commit: u64) -> Error {
        Error::SnapshotTooOld { commit, oldest: self.from() }
    }

    /// Is a commit in the history, or the newest one?
    pub(in crate::state) fn check_window(&self, commit: u64) -> Result<()> {
        if self.past.load().from <= commit { Ok(()) } else { Err(self.too_old(commit)) }
    }

    /// Can the state of a commit be read?
    pub(crate) fn check(&self, commit: u64) -> Result<()> {
        self.reaching(commit).map(drop)
    }

    /// The oldest commit after `base` that changed a key, and what it replaced; of commits that are put in.
    pub fn change_after(&self, namespace: u8, key: &Key, base: u64) -> Result<Option<Version>> {
        self.past.load().version(namespace, key, base)
    }

    /// Commits from one, or from the begin of the window, through another that changed a key: the first of them in an order,
    /// some at most; none where there is none.
    pub(crate) fn changes(
        &self,
        (namespace, key): (u8, &Key),
        (first, last): (Option<u64>, u64),
        order: Order,
    ) -> Result<Vec<u64>> {
        let past = self.past.load_full();
        let base = first.map_or(past.from, |first| first - 1);
        if base < past.from {
            return Err(self.too_old(base));
        }
        let (disk, through) = past.on_disk(base);
        let (all, later) = (base + 1..=last, through + 1..=last);
        let disk = &disk[..disk.partition_point(|run| run.names.after < last)];
        let disk = disk.iter().map(|run| Ok(run.changes(namespace, key, &all, order)?));
        let memory = || Ok(past.runs.changes(namespace, key, &later, order));
        let recent = past.recent_after(through).iter().filter_map(|commit| {
            let is_changed = commit.number <= last
                && commit.of(namespace).is_some_and(|one| one.changes.find(key).is_some());
            is_changed.then(|| Ok(vec![commit.number]))
        });
        let mut found = disk.chain(iter::once_with(memory)).chain(recent);
        let any = |found: &Result<Vec<u64>>| !matches!(found, Ok(all) if all.is_empty());
        let first = match order {
            Order::Ascending => found.find(any),
            Order::Descending => found.rfind(any),
        };
        first.unwrap_or(Ok(Vec::new()))
    }

    /// The states as of `base` of all of a namespace's keys in some ranges, which ascend, that later commits changed:
    /// in order.
    pub fn within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Result<Vec<(Key, Stored)>> {
        self.past.load().within(namespace, ranges, base)
    }
}

impl Past {
    /// Runs on the device with commits after `base` that memory does not have, and the commit after which memory goes on.
    #[inline]
    fn on_disk(&self, base: u64) -> (&[Arc<DiskRun>], u64) {
        if self.begins <= base {
            return (&[], base);
        }
        let first = self.disk.partition_point(|run| run.names.through <= base);
        let end = self.disk.partition_point(|run| run.names.after < self.begins);
        let runs = &self.disk[first..end.max(first)];
        (runs, runs.last().map_or(base, |last| last.names.through.max(base)))
    }

    /// Recent commits after `base`, in order.
    fn recent_after(&self, base: u64) -> &[Recent] {
        &self.recent[self.recent.partition_point(|commit| commit.number <= base)..]
    }

    /// What a key had as of `base`, and the commit that replaced it; of commits that are put in.
    #[inline]
    fn version(&self, namespace: u8, key: &Key, base: u64) -> Result<Option<Version>> {
        let (disk, through) = self.on_disk(base);
        for run in disk {
            if let Some(found) = run.get(namespace, key, base)? {
                return Ok(Some(found));
            }
        }
        Ok(self.runs.get(namespace, key, through))
    }

    /// State of a namespace's key as of commit `base`, when a later commit changed it: what the oldest such
    /// commit replaced.
    #[inline]
    pub(in crate::state) fn get(
        &self,
        namespace: u8,
        key: &Key,
        base: u64,
    ) -> Result<Option<Stored>> {
        // Commits that were put in are older.
        if let Some((_, prior)) = self.version(namespace, key, base)? {
            return Ok(Some(prior));
        }
        let mut recent = self.recent_after(base).iter();
        Ok(recent.find_map(|commit| Some(commit.of(namespace)?.changes.find(key)?.prior.clone())))
    }

    /// See [`Undo::within`].
    pub(in crate::state) fn within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Result<Vec<(Key, Stored)>> {
        let ((disk, through), recent) = (self.on_disk(base), self.recent_after(base));
        let found = self.runs.within(namespace, ranges, through);
        if recent.is_empty() && disk.is_empty() {
            return Ok(found);
        }
        let mut states = BTreeMap::new();
        // Newest first, so that the oldest commit has the last word.
        for undone in recent.iter().rev().filter_map(|commit| commit.of(namespace)) {
            for changed in ranges.iter().flat_map(|keys| undone.changes.within(keys)) {
                states.insert(changed.key, changed.prior.clone());
            }
        }
        states.extend(found);
        for run in disk.iter().rev() {
            run.within(namespace, ranges, base, |key, prior| drop(states.insert(key, prior)))?;
        }
        Ok(states.into_iter().collect())
    }

    /// The nodes in and around a prefix that commits after `base` have replaced: of each run, or recent commit, that has any,
    /// the oldest first, and of each prefix the oldest.
    pub(in crate::state) fn nodes_around(
        &self,
        of: NodesOf,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> impl Iterator<Item = Result<Vec<ReplacedNode>>> {
        let (disk, through) = self.on_disk(base);
        let disk = disk.iter().map(move |run| Ok(run.nodes_around(of, namespace, prefix, base)?));
        let recent = self.recent_after(base).iter().filter_map(move |commit| {
            Some(commit.of(namespace)?.nodes.around(of, commit.number, prefix))
        });
        let memory = self.runs.nodes_around(of, namespace, prefix, through).chain(recent);
        let any =
            |found: &Result<Vec<ReplacedNode>>| found.as_ref().map_or(true, |all| !all.is_empty());
        disk.chain(memory.map(Ok)).filter(any)
    }
}
