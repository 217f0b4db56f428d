//! What commits replaced and was put in: the maps of each namespace.
//!
//! A namespace's maps are made when the first commit that replaces something of it is put in, so that a
//! namespace that nobody changes costs a pointer. Those of namespace 0 are cut finely, for many workers and
//! many keys; a database can have 255 others, whose maps are smaller. Used by [`super::undo`] alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::node_versions::NodeVersions;
use super::replaced::Restored;
use super::versions::VersionMap;

/// Leading bits of a key by which the values of namespace 0 are cut into shards: trees of many shards are low, and
/// each of their levels is a wait for memory.
const FIRST: u32 = 12;
/// The same for other namespaces.
const OTHERS: u32 = 6;
/// The same for the nodes of any, of which the pages of a region are looked up together.
const NODES: u32 = 6;

/// What commits replaced in one namespace.
pub(in crate::state) struct Maps {
    pub(super) values: VersionMap,
    pub(super) pages: NodeVersions,
    pub(super) regions: NodeVersions,
}

impl Maps {
    fn new(namespace: u8) -> Self {
        let bits = if namespace == 0 { FIRST } else { OTHERS };
        Self {
            values: VersionMap::new(bits),
            pages: NodeVersions::new(NODES),
            regions: NodeVersions::new(NODES),
        }
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.pages.bytes() + self.regions.bytes()
    }
}

/// The maps of all namespaces.
pub(crate) struct AllMaps {
    each: Box<[OnceLock<Box<Maps>>]>,
    /// A bit for each namespace that has maps.
    made: [AtomicU64; 4],
}

impl Default for AllMaps {
    fn default() -> Self {
        let each = (0..=u8::MAX).map(|_| OnceLock::new()).collect();
        Self { each, made: Default::default() }
    }
}

impl AllMaps {
    /// Those of a namespace; none when nothing of it was ever put in.
    #[inline]
    pub(super) fn get(&self, namespace: u8) -> Option<&Maps> {
        self.each[usize::from(namespace)].get().map(|maps| &**maps)
    }

    /// Those of a namespace, to put something in.
    pub(super) fn make(&self, namespace: u8) -> &Maps {
        let maps = self.each[usize::from(namespace)].get_or_init(|| Box::new(Maps::new(namespace)));
        self.made[usize::from(namespace / 64)].fetch_or(1 << (namespace % 64), Ordering::Relaxed);
        maps
    }

    fn iter(&self) -> impl Iterator<Item = &Maps> {
        let namespaces = (0_usize..).step_by(64).zip(&self.made).flat_map(|(first, made)| {
            let made = made.load(Ordering::Relaxed);
            // Mostly the first or none.
            let end = 64 - made.leading_zeros() as usize;
            (0..end).filter(move |bit| made >> bit & 1 == 1).map(move |bit| first + bit)
        });
        namespaces.filter_map(|namespace| self.each[namespace].get().map(|maps| &**maps))
    }

    /// Puts in what a commit, later than all that are in, has replaced in a namespace.
    pub(crate) fn restore(&self, number: u64, restored: Restored) {
        let Restored { namespace, values, nodes } = restored;
        let maps = self.make(namespace);
        maps.values.reserve(number, values.len());
        maps.values.insert(number, values.into_iter());
        maps.pages.insert(number, &nodes.pages);
        maps.regions.insert(number, &nodes.regions);
    }

    /// Bytes that all of them take.
    pub(super) fn bytes(&self) -> u64 {
        self.iter().map(|maps| maps.bytes() as u64).sum()
    }

    /// Drops what the commits through `floor` have replaced.
    pub(super) fn drop_through(&self, floor: u64) {
        for maps in self.iter() {
            maps.values.drop_through(floor);
            maps.pages.drop_through(floor);
            maps.regions.drop_through(floor);
        }
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        for maps in self.iter() {
            maps.values.clear();
            maps.pages.clear();
            maps.regions.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_beatree::Stored;

    use super::*;
    use crate::state::last_changes::LastSeen;

    #[test]
    fn each_namespace_has_maps_of_its_own_once_something_is_put_in() {
        let maps = AllMaps::default();
        let namespaces = [0_u8, 1, 63, 64, 127, 128, 255];
        for (number, namespace) in (1..).zip(namespaces) {
            assert!(maps.get(namespace).is_none());
            let prior = Stored::Inline(vec![namespace; 8].as_slice().into());
            let values = &maps.make(namespace).values;
            values.reserve(number, 1);
            values.insert(number, std::iter::once(([9; 32], prior)));
            assert_eq!(maps.iter().count() as u64, number);
        }
        for (number, namespace) in (1..).zip(namespaces) {
            let prior = Stored::Inline(vec![namespace; 8].as_slice().into());
            let get = |maps: &Maps| maps.values.get(&[9; 32], 0, &LastSeen::default());
            let found = maps.get(namespace).and_then(get);
            assert_eq!(found, Some((number, prior)));
        }
        let before = maps.bytes();
        maps.drop_through(3);
        assert_eq!(maps.bytes(), before / 7 * 4);
        let get = |maps: &Maps| maps.values.get(&[9; 32], 0, &LastSeen::default());
        assert!(maps.get(1).is_some_and(|maps| get(maps).is_none()));
        maps.clear();
        assert_eq!(maps.bytes(), 0);
    }
}
