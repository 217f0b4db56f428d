//! The tries of an open database: one for each namespace that exists.
//!
//! What depends on keys is a trie's own ([`Trie`]); all else ([`super::Shared`]) goes by page number, log
//! position or commit number, and does not care whose page it is.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pleach_io::{Device, Runtime};

use super::index::Index;
use super::nodes::{NodeFiles, NodeStore};

/// What is a namespace's own.
pub(crate) struct Trie<D: Device, R: Runtime> {
    pub(crate) namespace: u8,
    pub(crate) index: Arc<Index>,
    pub(crate) nodes: Arc<NodeStore<D, R>>,
}

impl<D: Device, R: Runtime> Trie<D, R> {
    pub(crate) fn new(namespace: u8, index: Arc<Index>, files: &Arc<NodeFiles<D, R>>) -> Self {
        let nodes = NodeStore::new(Arc::clone(files), namespace, Arc::clone(&index));
        Self { namespace, index, nodes: Arc::new(nodes) }
    }
}

impl<D: Device, R: Runtime> Clone for Trie<D, R> {
    fn clone(&self) -> Self {
        Self {
            namespace: self.namespace,
            index: Arc::clone(&self.index),
            nodes: Arc::clone(&self.nodes),
        }
    }
}

/// The tries, by namespace in ascending order.
pub(crate) struct Tries<D: Device, R: Runtime>(ArcSwap<Vec<Trie<D, R>>>);

impl<D: Device, R: Runtime> Tries<D, R> {
    /// The tries of these namespaces, which ascend.
    pub(crate) fn new(tries: Vec<Trie<D, R>>) -> Self {
        debug_assert!(tries.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        Self(ArcSwap::from_pointee(tries))
    }

    /// All of them, as they are now.
    pub(crate) fn list(&self) -> Arc<Vec<Trie<D, R>>> {
        self.0.load_full()
    }

    /// A namespace's.
    pub(crate) fn get(&self, namespace: u8) -> Option<Trie<D, R>> {
        let tries = self.0.load();
        let at = tries.binary_search_by_key(&namespace, |trie| trie.namespace).ok()?;
        Some(tries[at].clone())
    }
}
