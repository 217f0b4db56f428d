//! The tries of an open database: one for each namespace that exists, and for each that was dropped and
//! can still be read.
//!
//! What depends on keys is a trie's own ([`Trie`]); all else ([`super::Shared`]) goes by page number, log
//! position or commit number, and does not care whose page it is.
//!
//! Which namespaces a state has is said by its [roots](crate::Roots), not here: a trie that was dropped is
//! here, marked, for those who read, or go back to, a state that had it. It is *restored* by a rollback, and
//! *removed* once nobody can reach such a state any more.
//!
//! Invariants: there is one trie for each number; namespace 0 is here, and not dropped. Publications of
//! commits add, drop and restore, in the order of their numbers and before the number of each; so whoever
//! finds a namespace in the roots of a state that is pinned finds its trie here.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_beatree::{ChildRef, ChildTable, Region, RegionIndex};
use pleach_core::tree::Tiling;
use pleach_core::{Prefix, TERMINATOR};
use pleach_journal::format::trie_kind::TrieKind;

use super::pages::index::Index;
use super::pages::nodes::{NodeFiles, NodeStore};

/// What is a namespace's own.
#[derive(Clone)]
pub(crate) struct Trie {
    pub(crate) namespace: u8,
    pub(crate) kind: TrieKind,
    /// The commit that has dropped it, while it is dropped.
    pub(crate) dropped: Option<u64>,
    pub(crate) index: Arc<Index>,
    pub(crate) nodes: Arc<NodeStore>,
}

impl Trie {
    /// A trie that is not dropped.
    pub(crate) fn new(
        (namespace, kind): (u8, TrieKind),
        index: Arc<Index>,
        files: &Arc<NodeFiles>,
    ) -> Self {
        let nodes = NodeStore::new(Arc::clone(files), namespace, Arc::clone(&index));
        Self { namespace, kind, dropped: None, index, nodes: Arc::new(nodes) }
    }

    /// The empty trie that commit `number` adds: one region without pages.
    pub(crate) fn empty(of: (u8, TrieKind), number: u64, files: &Arc<NodeFiles>) -> Self {
        let regions = RegionIndex::new(vec![Arc::new(empty_region(of, number))]);
        let index = Index::new(regions, |_, _| false);
        Self::new(of, Arc::new(index), files)
    }
}

/// The region of an empty trie, of a namespace and a kind, that commit `number` adds.
pub(crate) fn empty_region((namespace, kind): (u8, TrieKind), number: u64) -> Region {
    let child = ChildRef { prefix: Prefix::ROOT, page: None, tag: 0 };
    let children = ChildTable::new(Prefix::ROOT, &[child]);
    match kind {
        TrieKind::Merkle => {
            Region::bulk_loaded(namespace, children, Tiling::single(&TERMINATOR), number)
        }
        TrieKind::Plain => Region::plain(namespace, children, number),
    }
}

/// The tries, by namespace in ascending order.
pub(crate) struct Tries {
    list: ArcSwap<Vec<Trie>>,
    /// Held by whoever makes another list.
    changing: Mutex<()>,
}

impl Tries {
    /// The tries of these namespaces, which ascend.
    pub(crate) fn new(tries: Vec<Trie>) -> Self {
        debug_assert!(tries.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        Self { list: ArcSwap::from_pointee(tries), changing: Mutex::default() }
    }

    /// All of them, as they are now; those that are dropped, too.
    pub(crate) fn list(&self) -> Arc<Vec<Trie>> {
        self.list.load_full()
    }

    /// A namespace's, dropped or not.
    pub(crate) fn get(&self, namespace: u8) -> Option<Trie> {
        let tries = self.list.load();
        Some(tries[find(&tries, namespace).ok()?].clone())
    }

    /// Adds the trie of a namespace that has none.
    pub(crate) fn add(&self, trie: Trie) {
        self.change(|tries| match find(tries, trie.namespace) {
            Ok(_) => debug_assert!(false, "namespace {} has a trie", trie.namespace),
            Err(at) => tries.insert(at, trie),
        });
    }

    /// Takes out the trie of a namespace that is dropped and that nobody reaches any more; gives it, for
    /// what it has on the device.
    pub(crate) fn remove(&self, namespace: u8) -> Option<Trie> {
        self.change(|tries| {
            let at = find(tries, namespace).ok()?;
            tries[at].dropped.is_some().then(|| tries.remove(at))
        })
    }

    /// A namespace's trie is dropped by this commit; by none: it exists again, with what it had.
    pub(crate) fn set_dropped(&self, namespace: u8, dropped: Option<u64>) {
        debug_assert!(namespace > 0, "namespace 0 always exists");
        self.change(|tries| match find(tries, namespace) {
            Ok(at) => tries[at].dropped = dropped,
            Err(_) => debug_assert!(false, "namespace {namespace} has no trie"),
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Trie>) -> T) -> T {
        let _changing = self.changing.lock();
        let mut tries = Vec::clone(&self.list.load());
        let given = change(&mut tries);
        self.list.store(Arc::new(tries));
        given
    }
}

/// Where a namespace's trie is, or would be.
fn find(tries: &[Trie], namespace: u8) -> Result<usize, usize> {
    tries.binary_search_by_key(&namespace, |trie| trie.namespace)
}
