//! Looking up what commits replaced; `base` is a commit that the caller has pinned.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use super::{Recent, Undo};
use crate::error::{Error, Result};
use crate::state::node_versions::{NodeVersions, ReplacedNode, replaced_below};
use crate::state::replaced::ReplacedNodes;
use crate::state::undo_maps::Maps;

impl Undo {
    /// The newest commit that was pushed. Cheap, for the read path.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Is the undo of all commits after this one in memory?
    #[inline]
    pub(in crate::state) fn is_in_memory_after(&self, commit: u64) -> bool {
        self.dropped.load(Ordering::SeqCst) <= commit
    }

    /// Is the undo of all commits after this one kept, in memory or in the log?
    pub(in crate::state) fn is_kept_after(&self, commit: u64) -> bool {
        self.is_in_memory_after(commit) || self.gone.load(Ordering::SeqCst) <= commit
    }

    /// The error for a state that is not kept any more.
    pub(crate) fn too_old(&self, commit: u64) -> Error {
        Error::SnapshotTooOld { commit, oldest: self.from() }
    }

    /// Is a commit in the history, or the newest one?
    pub(in crate::state) fn check_window(&self, commit: u64) -> Result<()> {
        if self.gone.load(Ordering::SeqCst) <= commit { Ok(()) } else { Err(self.too_old(commit)) }
    }

    /// Can the state of a commit be read? To be asked after the lookup.
    pub(crate) fn check(&self, commit: u64) -> Result<()> {
        if self.is_kept_after(commit) { Ok(()) } else { Err(self.too_old(commit)) }
    }

    /// Recent commits after `base`, in order. Looked at before the maps: what is put in meanwhile is seen
    /// there or here.
    fn recent_after(&self, base: u64) -> Vec<Recent> {
        if self.recents.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.recent.read().iter().filter(|commit| commit.number > base).cloned().collect()
    }

    /// State of a namespace's key as of commit `base`, when a later commit changed it: what the oldest such
    /// commit replaced.
    pub(crate) fn get(&self, namespace: u8, key: &Key, base: u64) -> Option<Stored> {
        let recent = if self.recents.load(Ordering::Acquire) == 0 {
            None
        } else {
            let commits = self.recent.read();
            let from = commits.partition_point(|commit| commit.number <= base);
            let mut later = commits.iter().skip(from);
            later.find_map(|commit| Some(commit.of(namespace)?.changes.find(key)?.prior.clone()))
        };
        // Commits that were put in are older.
        self.change_after(namespace, key, base).map(|(_, prior)| prior).or(recent)
    }

    /// The oldest commit after `base` that changed a key, and what it replaced; of commits that are put in.
    pub fn change_after(&self, namespace: u8, key: &Key, base: u64) -> Option<(u64, Stored)> {
        self.maps.values.get(namespace, key, base)
    }

    /// The states as of `base` of all of a namespace's keys in some ranges, which ascend, that later commits changed:
    /// in order.
    pub fn within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Vec<(Key, Stored)> {
        let recent = self.recent_after(base);
        let found = self.maps.values.within(namespace, ranges, base);
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

    /// Nodes below, and above, `prefix` that commits after `base` replaced: those of pages or of regions, whichever the two
    /// functions give.
    pub(in crate::state) fn nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
        versions: fn(&Maps) -> &NodeVersions,
        of: fn(&ReplacedNodes) -> &[(Prefix, Node)],
    ) -> Vec<ReplacedNode> {
        let mut found = Vec::new();
        for commit in self.recent_after(base) {
            if let Some(undone) = commit.of(namespace) {
                replaced_below(of(&undone.nodes), commit.number, prefix, &mut found);
            }
        }
        if let Some(maps) = self.maps.nodes(namespace) {
            versions(maps).below(prefix, base, &mut found);
        }
        found
    }
}
