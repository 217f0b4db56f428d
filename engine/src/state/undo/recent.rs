//! The undo of a commit as its finish made it: lists in key order, searched as they are.

use std::ops::RangeInclusive;
use std::sync::Arc;

use pleach_beatree::Result;
use pleach_beatree::leaf_fold::KeyState;
use pleach_core::{Key, Prefix};
use pleach_history::{AsOf, CommitSearch, NodeScope, NodesAround, Tier, Version};

use super::replaced::NamespaceUndo;

/// The undo of a commit that is in no run yet.
#[derive(Clone)]
pub(super) struct RecentCommit {
    pub(super) number: u64,
    /// Namespaces that it changes, ascending.
    pub(super) namespaces: Arc<[NamespaceUndo]>,
}

impl RecentCommit {
    /// The commit's undo in a namespace, if it is after the state's.
    fn undo(&self, at: AsOf) -> Option<&NamespaceUndo> {
        let found = self.namespaces.binary_search_by_key(&at.namespace, |one| one.namespace).ok();
        found.filter(|_| self.number > at.base).map(|place| &self.namespaces[place])
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        self.namespaces.iter().map(NamespaceUndo::bytes).sum()
    }
}

impl Tier for RecentCommit {
    fn version(&self, at: AsOf, key: &Key) -> Result<Option<Version>> {
        let changed = self.undo(at).and_then(|own| own.changes.find(key));
        Ok(changed.map(|changed| (self.number, changed.prior.clone())))
    }

    fn values(&self, at: AsOf, ranges: &[RangeInclusive<Key>]) -> Result<Vec<KeyState>> {
        let Some(own) = self.undo(at) else { return Ok(Vec::new()) };
        let changed = ranges.iter().flat_map(|keys| own.changes.in_range(keys));
        Ok(changed.map(|changed| (changed.key, changed.prior.clone())).collect())
    }

    fn nodes(&self, at: AsOf, of: NodeScope, prefix: &Prefix) -> Result<Option<NodesAround>> {
        let Some(own) = self.undo(at) else { return Ok(None) };
        Ok(NodesAround::of(own.nodes.nodes_around(of, self.number, prefix), self.number))
    }

    fn commits(&self, at: AsOf, key: &Key, search: CommitSearch) -> Result<Vec<u64>> {
        let changed = self.version(at, key)?.filter(|_| self.number <= search.last);
        Ok(changed.map(|(number, _)| number).into_iter().collect())
    }
}
