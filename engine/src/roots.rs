//! The roots of the namespaces of one state.

use std::fmt;
use std::sync::Arc;

use pleach_core::proof::roots as trie_of_roots;
use pleach_core::{Hasher, Node, TERMINATOR};

use crate::error::Hex;

/// The roots of all namespaces of one state, in the order of their numbers. A namespace that exists and is
/// empty has [`TERMINATOR`] for its root; one that does not exist has none. Namespace 0 always exists.
#[derive(Clone, PartialEq, Eq)]
pub struct Roots(Arc<[(u8, Node)]>);

impl Roots {
    /// Roots by namespace, ascending; namespace 0 is the first.
    pub(crate) fn new(roots: impl IntoIterator<Item = (u8, Node)>) -> Self {
        let roots: Arc<[(u8, Node)]> = roots.into_iter().collect();
        debug_assert!(roots.is_sorted_by(|a, b| a.0 < b.0), "namespaces ascend");
        debug_assert!(roots.first().is_some_and(|first| first.0 == 0), "namespace 0 exists");
        Self(roots)
    }

    /// These roots with some others in their places: those of namespaces that are there, or that are added by
    /// a root and dropped by none.
    pub(crate) fn with(&self, others: impl IntoIterator<Item = (u8, Option<Node>)>) -> Self {
        let mut roots = self.0.to_vec();
        for (namespace, root) in others {
            match (roots.binary_search_by_key(&namespace, |entry| entry.0), root) {
                (Ok(at), Some(root)) => roots[at].1 = root,
                (Ok(at), None) => drop(roots.remove(at)),
                (Err(at), Some(root)) => roots.insert(at, (namespace, root)),
                (Err(_), None) => {}
            }
        }
        Self::new(roots)
    }

    /// The root of namespace 0.
    pub(crate) fn first(&self) -> Node {
        self.0.first().map_or(TERMINATOR, |first| first.1)
    }

    /// The root of a namespace; none when it does not exist.
    pub fn get(&self, namespace: u8) -> Option<Node> {
        self.find(namespace).map(|(_, root)| root)
    }

    /// How many namespaces come before one, and its root.
    pub(crate) fn find(&self, namespace: u8) -> Option<(usize, Node)> {
        let at = self.0.binary_search_by_key(&namespace, |entry| entry.0).ok()?;
        Some((at, self.0[at].1))
    }

    /// The one root over all namespaces: that of the trie of roots ([`pleach_core::proof::roots`]), of which
    /// [`Session::prove_namespace`](crate::Session::prove_namespace) gives the proofs.
    pub fn over_all<H: Hasher>(&self) -> Node {
        trie_of_roots::over_all::<H>(self.0.iter().map(|(namespace, root)| (*namespace, root)))
    }

    /// Proves the root of a namespace, or that there is none, in the root over all.
    pub(crate) fn prove<H: Hasher>(&self, namespace: u8) -> Vec<u8> {
        let roots: trie_of_roots::Roots = self.iter().collect();
        roots.prove::<H>(namespace).expect("a path of eight siblings at most has an encoding")
    }

    /// Namespaces and their roots, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u8, Node)> + DoubleEndedIterator + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (namespace, root) in self.iter() {
            map.entry(&namespace, &Hex(root.as_ref()));
        }
        map.finish()
    }
}
