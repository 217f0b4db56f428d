//! A commit's changes as its finish made them, shared by the publication, which applies them, and by undo.

use std::ops::RangeInclusive;
use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_core::Key;

/// One changed key of a commit.
#[derive(Clone, Debug)]
pub(crate) struct KeyUpdate {
    pub(crate) key: Key,
    /// State after the commit.
    pub(crate) new: Stored,
    /// State before the commit.
    pub(crate) prior: Stored,
}

/// Changes in key order, shared by their block, its overlay, and undo.
pub(crate) type ChangeList = Arc<[KeyUpdate]>;

/// The changes of a commit, as its finish made them: lists in key order, none of them empty.
#[derive(Clone)]
pub(crate) struct Changes(Arc<[ChangeList]>);

impl Changes {
    pub(crate) fn new(lists: impl IntoIterator<Item = ChangeList>) -> Self {
        let lists: Arc<[ChangeList]> = lists.into_iter().collect();
        let all = || lists.iter().flat_map(|list| list.iter());
        debug_assert!(all().is_sorted_by(|a, b| a.key < b.key));
        assert!(lists.iter().all(|list| !list.is_empty()));
        Self(lists)
    }

    /// Number of changed keys.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|list| list.len()).sum()
    }

    /// The changed keys with their states before.
    pub(crate) fn priors(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.0.iter().flat_map(|list| list.iter()).map(|one| (&one.key, &one.prior))
    }

    pub(crate) fn list(&self, index: usize) -> &[KeyUpdate] {
        &self.0[index]
    }

    /// The changes of all lists after one.
    pub(crate) fn after_list(&self, index: usize) -> impl Iterator<Item = &KeyUpdate> {
        self.0[index + 1..].iter().flat_map(|list| list.iter())
    }

    /// The change of a key.
    pub(super) fn find(&self, key: &Key) -> Option<&KeyUpdate> {
        let list = self.lists_from(key).first()?;
        let at = list.binary_search_by(|changed| changed.key.cmp(key)).ok()?;
        Some(&list[at])
    }

    /// Bytes of the lists. Longer values are left out: counting them means a look at each change.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.0.iter().map(|list| list.len() * size_of::<KeyUpdate>());
        all.sum::<usize>() as u64
    }

    /// The changes of keys in a range.
    pub(super) fn in_range(&self, keys: &RangeInclusive<Key>) -> impl Iterator<Item = &KeyUpdate> {
        let (first, last) = (keys.start(), *keys.end());
        let lists = self.lists_from(first);
        let from = lists.first().map_or(0, |list| list.partition_point(|one| one.key < *first));
        let all = lists.iter().flat_map(|list| list.iter());
        all.skip(from).take_while(move |one| one.key <= last)
    }

    /// The lists that may have this key or later ones.
    fn lists_from(&self, key: &Key) -> &[ChangeList] {
        let before = |list: &ChangeList| list.last().is_some_and(|last| last.key < *key);
        &self.0[self.0.partition_point(before)..]
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::Prefix;

    use super::*;

    fn changed(first: u8) -> KeyUpdate {
        let mut key = [0; 32];
        key[0] = first;
        KeyUpdate { key, new: Stored::Absent, prior: Stored::Absent }
    }

    #[test]
    fn lists_are_searched_as_one() {
        let lists: [&[u8]; 3] = [&[1, 3], &[5, 7], &[9]];
        let list = |keys: &[u8]| keys.iter().map(|key| changed(*key)).collect();
        let changes = Changes::new(lists.iter().map(|keys| list(keys)));
        assert_eq!((changes.len(), changes.list(1).len()), (5, 2));
        for first in 0..=10 {
            let key = changed(first).key;
            let found = changes.find(&key).map(|found| found.key);
            assert_eq!(found, (first % 2 == 1 && first < 10).then_some(key), "{first}");
        }
        for depth in 0..=8_u16 {
            for first in 0..16_u8 {
                let prefix = Prefix::new(&changed(first).key, depth);
                let keys = *prefix.first_key()..=prefix.last_key();
                let found: Vec<u8> = changes.in_range(&keys).map(|one| one.key[0]).collect();
                let all = lists.concat().into_iter();
                let expected: Vec<u8> =
                    all.filter(|key| prefix.covers(&changed(*key).key)).collect();
                assert_eq!(found, expected, "{prefix:?}");
            }
        }
        let none = Changes::new(Vec::new());
        assert!(
            none.find(&[7; 32]).is_none() && none.in_range(&([0; 32]..=[255; 32])).next().is_none()
        );
    }
}
