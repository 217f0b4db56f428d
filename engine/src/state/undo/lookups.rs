//! Lookups in undo; `base` is a commit that the caller has pinned.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;
use pleach_beatree::Stored;
use pleach_core::Key;

use super::{Undo, UndoSet};
use crate::error::{Error, Result};
use pleach_history::{AsOf, CommitSearch, Tier, Version};

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

    /// The oldest commit after `base` that changed a key, and the value before it.
    pub fn change_after(&self, namespace: u8, key: &Key, base: u64) -> Result<Option<Version>> {
        Ok(self.current.load().after(base).version(AsOf { namespace, base }, key)?)
    }

    /// Some commits that changed a key, from `first`, or the begin of the window. Empty when no commit changed it.
    pub(crate) fn changing_commits(
        &self,
        namespace: u8,
        key: &Key,
        first: Option<u64>,
        search: CommitSearch,
    ) -> Result<Vec<u64>> {
        let retention = self.retention.lock();
        let (oldest, set) = (self.window_begin(&retention), self.current.load());
        drop(retention);
        let base = first.map_or(oldest, |first| first - 1);
        if base < oldest {
            return Err(self.too_old_error(base));
        }
        Ok(set.after(base).commits(AsOf { namespace, base }, key, search)?)
    }

    /// The states as of `base` of all keys of a namespace in ascending ranges that later commits changed, in order.
    pub fn get_ranges(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Result<Vec<(Key, Stored)>> {
        Ok(self.current.load().after(base).values(AsOf { namespace, base }, ranges)?)
    }
}
