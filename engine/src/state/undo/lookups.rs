//! Looking up what commits replaced; `base` is a commit that the caller has pinned.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;
use pleach_beatree::Stored;
use pleach_core::{Key, Prefix};

use super::{Past, Recent, Undo};
use crate::error::{Error, Result};
use crate::history::{NodesOf, ReplacedNode};

impl Undo {
    /// The newest commit that was pushed. Cheap, for the read path.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Undo in memory, where it has that of all commits after `through`, and that of those after `base` is kept.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    #[inline]
    pub(in crate::state) fn reaching(&self, base: u64, through: u64) -> Result<Guard<Arc<Past>>> {
        let past = self.past.load();
        let reaches = past.begins <= through && (through == base || past.keeps_after(base));
        if reaches { Ok(past) } else { Err(self.too_old(base)) }
    }

    /// Is the undo of all commits after this one kept, in memory or in the log?
    pub(in crate::state) fn is_kept_after(&self, commit: u64) -> bool {
        self.past.load().keeps_after(commit)
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
        if self.is_kept_after(commit) { Ok(()) } else { Err(self.too_old(commit)) }
    }

    /// The oldest commit after `base` that changed a key, and what it replaced; of commits that are put in.
    pub fn change_after(&self, namespace: u8, key: &Key, base: u64) -> Option<(u64, Stored)> {
        self.past.load().runs.get(namespace, key, base)
    }

    /// The states as of `base` of all of a namespace's keys in some ranges, which ascend, that later commits changed:
    /// in order.
    pub fn within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Vec<(Key, Stored)> {
        self.past.load().within(namespace, ranges, base)
    }
}

impl Past {
    /// Recent commits after `base`, in order.
    fn recent_after(&self, base: u64) -> &[Recent] {
        &self.recent[self.recent.partition_point(|commit| commit.number <= base)..]
    }

    /// State of a namespace's key as of commit `base`, when a later commit changed it: what the oldest such
    /// commit replaced.
    #[inline]
    pub(in crate::state) fn get(&self, namespace: u8, key: &Key, base: u64) -> Option<Stored> {
        // Commits that were put in are older.
        if let Some((_, prior)) = self.runs.get(namespace, key, base) {
            return Some(prior);
        }
        let mut recent = self.recent_after(base).iter();
        recent.find_map(|commit| Some(commit.of(namespace)?.changes.find(key)?.prior.clone()))
    }

    /// See [`Undo::within`].
    pub(in crate::state) fn within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Vec<(Key, Stored)> {
        let (found, recent) = (self.runs.within(namespace, ranges, base), self.recent_after(base));
        if recent.is_empty() {
            return found;
        }
        let mut states = BTreeMap::new();
        // Newest first, so that the oldest commit has the last word.
        for undone in recent.iter().rev().filter_map(|commit| commit.of(namespace)) {
            for changed in ranges.iter().flat_map(|keys| undone.changes.within(keys)) {
                states.insert(changed.key, changed.prior.clone());
            }
        }
        states.extend(found);
        states.into_iter().collect()
    }

    /// The nodes in and around a prefix that commits after `base` have replaced: of each run, or recent commit, that has any,
    /// the oldest first, and of each prefix the oldest.
    pub(in crate::state) fn nodes_around(
        &self,
        of: NodesOf,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> impl Iterator<Item = Vec<ReplacedNode>> {
        let recent = self.recent_after(base).iter().filter_map(move |commit| {
            let found = commit.of(namespace)?.nodes.around(of, commit.number, prefix);
            (!found.is_empty()).then_some(found)
        });
        self.runs.nodes_around(of, namespace, prefix, base).chain(recent)
    }
}
