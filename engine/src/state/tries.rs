//! The tries of an open database: of each namespace that exists, or was dropped and can still be read.
//!
//! A [`Trie`] has what depends on keys; all else ([`super::Database`]) goes by page number, log position or commit
//! number, whatever the trie.
//!
//! The [roots](crate::Roots) of a state say which namespaces it has. A dropped trie stays in this list, marked, for
//! sessions that read a state with it, and for rollbacks to such a state. A rollback *restores* it; it is *removed*
//! once nobody can reach such a state any more.
//!
//! Invariants: there is one trie for each number; namespace 0 has one that is never dropped. Publications of commits
//! add, drop and restore tries, in the order of commit numbers and each before its number is published; so a namespace
//! in the roots of a pinned state has its trie in this list.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_beatree::lock_order::{RankedReadGuard, RankedRwLock, RankedWriteGuard};
use pleach_beatree::{ChildRef, ChildTable, Region, RegionIndex, Tree};
use pleach_core::{Hasher, Prefix, TERMINATOR};
use pleach_journal::format::trie_kind::TrieKind;

use super::Database;
use super::lock_ranks::BATCH_GATE;

/// What is one namespace's own.
#[derive(Clone)]
pub(crate) struct Trie {
    pub(crate) namespace: u8,
    pub(crate) kind: TrieKind,
    /// The commit that dropped the namespace, while it is dropped.
    pub(crate) dropped: Option<u64>,
    pub(crate) tree: Arc<Tree>,
}

impl Trie {
    /// A trie that is not dropped.
    pub(crate) fn new(namespace: u8, kind: TrieKind, tree: Arc<Tree>) -> Self {
        Self { namespace, kind, dropped: None, tree }
    }

    /// The empty trie that commit `number` adds: one region without pages.
    pub(crate) fn empty(db: &Database, namespace: u8, kind: TrieKind, number: u64) -> Self {
        let region = empty_region(db.hasher, namespace, kind, number);
        let tree = Tree::new(&db.store, RegionIndex::new(vec![Arc::new(region)]), |_| false);
        Self::new(namespace, kind, Arc::new(tree))
    }
}

/// The region of an empty trie that commit `number` adds, by namespace and kind.
pub(crate) fn empty_region(hasher: Hasher, namespace: u8, kind: TrieKind, number: u64) -> Region {
    let child = ChildRef { prefix: Prefix::ROOT, page: None, tag: 0 };
    let children = ChildTable::new(Prefix::ROOT, &[child]);
    let nodes = if kind == TrieKind::Merkle { vec![TERMINATOR] } else { Vec::new() };
    Region::new(hasher, namespace, children, nodes, number)
}

/// The tries, by namespace in ascending order.
pub(crate) struct Tries {
    list: ArcSwap<Vec<Trie>>,
    /// Held by whoever replaces the list.
    changing: Mutex<()>,
    /// Read by batches under way, written while regions are joined.
    batch_gate: RankedRwLock<()>,
}

impl Tries {
    /// The tries of these namespaces, which ascend.
    pub(crate) fn new(tries: Vec<Trie>) -> Self {
        assert!(tries.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        let list = ArcSwap::from_pointee(tries);
        Self { list, changing: Mutex::default(), batch_gate: BATCH_GATE.rw_lock(()) }
    }

    /// Keeps regions from being joined while the guard lives.
    pub(crate) fn hold_regions(&self) -> RankedReadGuard<'_, ()> {
        self.batch_gate.read_recursive()
    }

    /// Keeps finishes and commits out while the guard lives; `None` when one is under way, without waiting.
    pub(crate) fn try_exclude_batches(&self) -> Option<RankedWriteGuard<'_, ()>> {
        self.batch_gate.try_write()
    }

    /// All tries as they are now, dropped ones too.
    pub(crate) fn list(&self) -> Arc<Vec<Trie>> {
        self.list.load_full()
    }

    /// The trie of a namespace, dropped or not.
    pub(crate) fn get(&self, namespace: u8) -> Option<Trie> {
        let tries = self.list.load();
        Some(tries[find(&tries, namespace).ok()?].clone())
    }

    /// Adds the trie of a namespace that has none.
    pub(crate) fn add(&self, trie: Trie) {
        self.change(|tries| {
            let at = find(tries, trie.namespace).expect_err("the namespace has no trie");
            tries.insert(at, trie);
        });
    }

    /// Removes the trie of a dropped namespace that nobody can reach any more.
    pub(crate) fn remove(&self, namespace: u8) {
        self.change(|tries| {
            tries.retain(|trie| trie.namespace != namespace || trie.dropped.is_none());
        });
    }

    /// Marks a trie as dropped by commit `dropped`; `None` restores it with all it had.
    pub(crate) fn set_dropped(&self, namespace: u8, dropped: Option<u64>) {
        assert!(namespace > 0, "namespace 0 always exists");
        self.change(|tries| {
            let at = find(tries, namespace).expect("the namespace has a trie");
            tries[at].dropped = dropped;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Trie>)) {
        let _changing = self.changing.lock();
        let mut tries = Vec::clone(&self.list.load());
        change(&mut tries);
        self.list.store(Arc::new(tries));
    }
}

/// The index of a namespace's trie in the list, or where it would be inserted.
fn find(tries: &[Trie], namespace: u8) -> Result<usize, usize> {
    tries.binary_search_by_key(&namespace, |trie| trie.namespace)
}
