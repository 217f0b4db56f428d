//! What commits replaced and was put in: the values of all namespaces, and maps of the nodes of each.
//!
//! A namespace's maps are made when the first commit that replaces nodes of it is put in, so that a namespace that nobody
//! changes costs a pointer. Used by [`super::undo`] alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use pleach_beatree::Stored;
use pleach_core::Key;

use super::node_versions::NodeVersions;
use super::replaced::{ReplacedNodes, Restored};
use crate::history::Runs;

/// Leading bits of a prefix by which nodes are cut into shards: the pages of a region are looked up together.
const NODES: u32 = 6;

/// The nodes that commits replaced in one namespace.
pub(in crate::state) struct Maps {
    pub(super) pages: NodeVersions,
    pub(super) regions: NodeVersions,
}

impl Maps {
    fn bytes(&self) -> usize {
        self.pages.bytes() + self.regions.bytes()
    }
}

/// What commits replaced: values of all namespaces, and the nodes of each.
pub(crate) struct AllMaps {
    pub(super) values: Runs,
    each: Box<[OnceLock<Box<Maps>>]>,
    /// A bit for each namespace that has maps.
    made: [AtomicU64; 4],
}

impl Default for AllMaps {
    fn default() -> Self {
        let each = (0..=u8::MAX).map(|_| OnceLock::new()).collect();
        Self { values: Runs::default(), each, made: Default::default() }
    }
}

impl AllMaps {
    /// The nodes of a namespace; none when none of it were ever put in.
    #[inline]
    pub(super) fn nodes(&self, namespace: u8) -> Option<&Maps> {
        self.each[usize::from(namespace)].get().map(|maps| &**maps)
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

    /// Puts in the nodes that a commit, later than all that are in, has replaced in a namespace.
    pub(super) fn put_nodes(&self, number: u64, namespace: u8, nodes: &ReplacedNodes) {
        if nodes.pages.is_empty() && nodes.regions.is_empty() {
            return;
        }
        let make = || {
            Box::new(Maps { pages: NodeVersions::new(NODES), regions: NodeVersions::new(NODES) })
        };
        let maps = self.each[usize::from(namespace)].get_or_init(make);
        self.made[usize::from(namespace / 64)].fetch_or(1 << (namespace % 64), Ordering::Relaxed);
        maps.pages.insert(number, &nodes.pages);
        maps.regions.insert(number, &nodes.regions);
    }

    /// Puts in up to `keys` values that a commit, later than all that are in, has replaced, those of each namespace in order.
    /// Gives the bytes of memory that they take, and those that they occupy in the overflow file.
    pub(super) fn put_values<'a, V: Iterator<Item = (&'a Key, &'a Stored)>>(
        &self,
        number: u64,
        keys: usize,
        namespaces: impl Iterator<Item = (u8, V)>,
    ) -> (u64, u64) {
        let (mut run, mut overflow) = (self.values.commit_run(number, keys), 0);
        for (namespace, values) in namespaces {
            run.begin(namespace);
            for (key, prior) in values {
                run.put(key, prior);
                overflow += prior.overflow_bytes();
            }
        }
        (self.values.push(run) as u64, overflow)
    }

    /// Puts in what a commit, later than all that are in, has replaced, as its record has it. Gives the same.
    pub(crate) fn restore(&self, number: u64, restored: &[Restored]) -> (u64, u64) {
        let before = self.node_bytes();
        for one in restored {
            self.put_nodes(number, one.namespace, &one.nodes);
        }
        let keys = restored.iter().map(|one| one.values.len()).sum();
        let values = restored
            .iter()
            .map(|one| (one.namespace, one.values.iter().map(|(key, prior)| (key, prior))));
        let (bytes, overflow) = self.put_values(number, keys, values);
        (bytes + self.node_bytes() - before, overflow)
    }

    /// Bytes that the nodes take.
    pub(super) fn node_bytes(&self) -> u64 {
        self.iter().map(|maps| maps.bytes() as u64).sum()
    }

    /// Bytes that all of it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.node_bytes() + self.values.bytes() as u64
    }

    /// Drops the nodes that the commits through `floor` have replaced.
    pub(super) fn drop_nodes_through(&self, floor: u64) {
        for maps in self.iter() {
            maps.pages.drop_through(floor);
            maps.regions.drop_through(floor);
        }
    }

    /// Drops all nodes.
    pub(super) fn clear_nodes(&self) {
        for maps in self.iter() {
            maps.pages.clear();
            maps.regions.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::{Node, Prefix};

    use super::*;

    #[test]
    fn each_namespace_has_nodes_of_its_own_once_some_are_put_in() {
        let maps = AllMaps::default();
        let namespaces = [0_u8, 1, 63, 64, 127, 128, 255];
        for (number, namespace) in (1..).zip(namespaces) {
            assert!(maps.nodes(namespace).is_none());
            let pages = vec![(Prefix::ROOT, Node::new([namespace; 32]))];
            maps.put_nodes(number, namespace, &ReplacedNodes { pages, regions: Vec::new() });
            assert_eq!(maps.iter().count() as u64, number);
        }
        let found = |namespace: u8| {
            let mut found = Vec::new();
            let maps = maps.nodes(namespace).expect("put in");
            maps.pages.below(&Prefix::ROOT, 0, &mut found);
            found.first().map(|one| (one.number, one.node))
        };
        for (number, namespace) in (1..).zip(namespaces) {
            assert_eq!(found(namespace), Some((number, Node::new([namespace; 32]))));
        }
        let before = maps.node_bytes();
        maps.drop_nodes_through(3);
        assert_eq!((maps.node_bytes(), found(1)), (before / 7 * 4, None));
        maps.clear_nodes();
        assert_eq!(maps.node_bytes(), 0);
    }
}
