//! What commits replaced: reverse overlays for sessions on older states.
//!
//! A session, an overlay or a snapshot pins the commit that it reads. A commit's undo is pushed
//! before its changes are applied and dropped when nothing pins an older commit; it is the
//! commit's own sorted lists of changes, shared, so that keeping it costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use pleach_beatree::Stored;
use pleach_core::{Key, Prefix};

/// One changed key of a commit.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) key: Key,
    /// State afterwards.
    pub(crate) new: Stored,
    /// State before.
    pub(crate) prior: Stored,
}

/// Changes in key order, shared by the block that they are of, its overlay, and undo.
pub(crate) type ChangeList = Arc<Vec<Changed>>;

/// The changes of a commit, as its finish made them: lists of which none is empty, each sorted by
/// key and after the one before.
#[derive(Clone)]
pub(crate) struct Changes(Arc<[ChangeList]>);

impl Changes {
    pub(crate) fn new(lists: Vec<ChangeList>) -> Self {
        let all = || lists.iter().flat_map(|list| list.iter());
        debug_assert!(all().is_sorted_by(|a, b| a.key < b.key));
        debug_assert!(lists.iter().all(|list| !list.is_empty()));
        Self(lists.into())
    }

    /// Number of changed keys.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|list| list.len()).sum()
    }

    pub(crate) fn list(&self, index: usize) -> &[Changed] {
        &self.0[index]
    }

    fn find(&self, key: &Key) -> Option<&Changed> {
        let list = self.lists_from(key).first()?;
        let at = list.binary_search_by(|changed| changed.key.cmp(key)).ok()?;
        Some(&list[at])
    }

    /// Those below a prefix.
    fn within(&self, prefix: &Prefix) -> impl Iterator<Item = &Changed> {
        let first = prefix.first_key();
        let lists = self.lists_from(first);
        let from = lists.first().map_or(0, |list| list.partition_point(|one| one.key < *first));
        lists
            .iter()
            .flat_map(|list| list.iter())
            .skip(from)
            .take_while(move |one| prefix.covers(&one.key))
    }

    /// The lists that may have this key or later ones.
    fn lists_from(&self, key: &Key) -> &[ChangeList] {
        let before = |list: &ChangeList| list.last().is_some_and(|last| last.key < *key);
        &self.0[self.0.partition_point(before)..]
    }
}

struct CommitUndo {
    number: u64,
    changes: Changes,
}

/// Undo of the newest commits, oldest first.
#[derive(Default)]
pub(crate) struct Undo {
    commits: RwLock<VecDeque<CommitUndo>>,
    kept: AtomicUsize,
    pins: Mutex<BTreeMap<u64, usize>>,
}

impl Undo {
    /// Keeps a commit's prior values; before its changes are applied.
    pub(crate) fn push(&self, number: u64, changes: Changes) {
        let mut commits = self.commits.write();
        commits.push_back(CommitUndo { number, changes });
        self.kept.store(commits.len(), Ordering::SeqCst);
    }

    /// Pins a commit: what later ones replace stays.
    pub(crate) fn pin(&self, commit: u64) {
        *self.pins.lock().entry(commit).or_insert(0) += 1;
    }

    /// Takes a pin back.
    pub(crate) fn unpin(&self, commit: u64) {
        let mut pins = self.pins.lock();
        let count = pins.get_mut(&commit).expect("pinned before");
        *count -= 1;
        if *count == 0 {
            pins.remove(&commit);
        }
        self.trim_under(&pins);
    }

    /// The oldest commit that is pinned; the largest number when none is.
    pub(crate) fn oldest_pin(&self) -> u64 {
        self.pins.lock().keys().next().copied().unwrap_or(u64::MAX)
    }

    /// Drops what nothing pins; after a commit's number is published.
    pub(crate) fn trim(&self) {
        self.trim_under(&self.pins.lock());
    }

    fn trim_under(&self, pins: &BTreeMap<u64, usize>) {
        let oldest = pins.keys().next().copied().unwrap_or(u64::MAX);
        let mut commits = self.commits.write();
        while commits.front().is_some_and(|commit| commit.number <= oldest) {
            commits.pop_front();
        }
        self.kept.store(commits.len(), Ordering::SeqCst);
    }

    /// Is there anything to consult? Cheap, for the read path.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.load(Ordering::SeqCst) == 0
    }

    /// State of a key as of commit `base`, when a later commit changed it: what the oldest such
    /// commit replaced.
    pub(crate) fn get(&self, key: &Key, base: u64) -> Option<Stored> {
        let commits = self.commits.read();
        let from = commits.partition_point(|commit| commit.number <= base);
        commits.iter().skip(from).find_map(|commit| Some(commit.changes.find(key)?.prior.clone()))
    }

    /// States as of `base` of all keys below `prefix` that later commits changed, sorted.
    pub(crate) fn range(&self, prefix: &Prefix, base: u64) -> BTreeMap<Key, Stored> {
        let commits = self.commits.read();
        let from = commits.partition_point(|commit| commit.number <= base);
        let mut states = BTreeMap::new();
        // Newest first, so that the oldest commit has the last word.
        for commit in commits.iter().skip(from).rev() {
            for changed in commit.changes.within(prefix) {
                states.insert(changed.key, changed.prior.clone());
            }
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(first: u8) -> Changed {
        let mut key = [0; 32];
        key[0] = first;
        Changed { key, new: Stored::Absent, prior: Stored::Absent }
    }

    #[test]
    fn lists_are_searched_as_one() {
        let lists: [&[u8]; 3] = [&[1, 3], &[5, 7], &[9]];
        let list = |keys: &[u8]| Arc::new(keys.iter().map(|key| changed(*key)).collect());
        let changes = Changes::new(lists.iter().map(|keys| list(keys)).collect());
        assert_eq!((changes.len(), changes.list(1).len()), (5, 2));
        for first in 0..=10 {
            let key = changed(first).key;
            let found = changes.find(&key).map(|found| found.key);
            assert_eq!(found, (first % 2 == 1 && first < 10).then_some(key), "{first}");
        }
        for depth in 0..=8_u16 {
            for first in 0..16_u8 {
                let prefix = Prefix::new(&changed(first).key, depth);
                let found: Vec<u8> = changes.within(&prefix).map(|one| one.key[0]).collect();
                let all = lists.concat().into_iter();
                let expected: Vec<u8> =
                    all.filter(|key| prefix.covers(&changed(*key).key)).collect();
                assert_eq!(found, expected, "{prefix:?}");
            }
        }
        let none = Changes::new(Vec::new());
        assert!(none.find(&[7; 32]).is_none() && none.within(&Prefix::ROOT).next().is_none());
    }
}
