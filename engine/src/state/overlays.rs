//! The live overlays: one ordered multi-version map for all of them.
//!
//! A chain of hundreds of overlays costs a lookup no more than one does: each key and each prefix
//! has the list of overlays that changed it, and a session knows the set of its
//! ancestors. Ids grow, so the newest version that is an ancestor's is the one that counts.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use super::undo::Changed;

/// Number of an overlay; a child's is larger than its parent's.
pub(crate) type OverlayId = u64;

/// The overlays that a session reads, newest and oldest alike; its own block is none of them.
pub(crate) type Ancestry = Arc<HashSet<OverlayId>>;

#[derive(Default)]
struct Maps {
    next: OverlayId,
    keys: BTreeMap<Key, Vec<(OverlayId, Stored)>>,
    nodes: BTreeMap<Prefix, Vec<(OverlayId, Node)>>,
}

/// All live overlays' changes and nodes.
#[derive(Default)]
pub(crate) struct Overlays {
    maps: RwLock<Maps>,
}

impl Overlays {
    /// Adds an overlay and gives its number.
    pub(crate) fn insert(&self, changes: &[Changed], nodes: &[(Prefix, Node)]) -> OverlayId {
        let mut maps = self.maps.write();
        maps.next += 1;
        let id = maps.next;
        for changed in changes {
            maps.keys.entry(changed.key).or_default().push((id, changed.new.clone()));
        }
        for (prefix, node) in nodes {
            maps.nodes.entry(*prefix).or_default().push((id, *node));
        }
        id
    }

    /// Takes an overlay out.
    pub(crate) fn remove(&self, id: OverlayId, changes: &[Changed], nodes: &[(Prefix, Node)]) {
        let mut maps = self.maps.write();
        for changed in changes {
            drop_version(&mut maps.keys, &changed.key, id);
        }
        for (prefix, _) in nodes {
            drop_version(&mut maps.nodes, prefix, id);
        }
    }

    /// State of a key in the newest ancestor that changed it.
    pub(crate) fn get(&self, key: &Key, ancestry: &HashSet<OverlayId>) -> Option<Stored> {
        let maps = self.maps.read();
        newest(maps.keys.get(key)?, ancestry).cloned()
    }

    /// States of all keys below `prefix` that ancestors changed, sorted.
    pub(crate) fn range(
        &self,
        prefix: &Prefix,
        ancestry: &HashSet<OverlayId>,
    ) -> Vec<(Key, Stored)> {
        let maps = self.maps.read();
        maps.keys
            .range(*prefix.first_key()..=prefix.last_key())
            .filter_map(|(key, versions)| Some((*key, newest(versions, ancestry)?.clone())))
            .collect()
    }

    /// The node of a prefix as the newest ancestor that changed anything below it has recorded it.
    pub(crate) fn node(&self, prefix: &Prefix, ancestry: &HashSet<OverlayId>) -> OverlayNode {
        let maps = self.maps.read();
        let changed_by = maps
            .keys
            .range(*prefix.first_key()..=prefix.last_key())
            .filter_map(|(_, versions)| {
                versions.iter().rev().map(|version| version.0).find(|id| ancestry.contains(id))
            })
            .max();
        let Some(changed_by) = changed_by else { return OverlayNode::Unchanged };
        let recorded = maps.nodes.get(prefix).and_then(|versions| {
            let at = versions.binary_search_by_key(&changed_by, |version| version.0).ok()?;
            Some(versions[at].1)
        });
        recorded.map_or(OverlayNode::Unrecorded, OverlayNode::Recorded)
    }
}

/// What overlays say of a prefix's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlayNode {
    /// None of them changed anything below it.
    Unchanged,
    /// The node after the newest of them that did.
    Recorded(Node),
    /// One of them did, and no page or region had this prefix then.
    Unrecorded,
}

fn newest<'a, T>(versions: &'a [(OverlayId, T)], ancestry: &HashSet<OverlayId>) -> Option<&'a T> {
    versions.iter().rev().find(|version| ancestry.contains(&version.0)).map(|version| &version.1)
}

fn drop_version<K: Ord, T>(map: &mut BTreeMap<K, Vec<(OverlayId, T)>>, key: &K, id: OverlayId) {
    if let Some(versions) = map.get_mut(key) {
        versions.retain(|version| version.0 != id);
        if versions.is_empty() {
            map.remove(key);
        }
    }
}
