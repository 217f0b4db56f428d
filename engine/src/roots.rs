//! The roots of the namespaces of one state, and a commit with its roots.

use std::fmt;
use std::sync::Arc;

use pleach_core::proof::{
    KeyProof,
    roots::{self as trie_of_roots, NamespaceRoots},
};
use pleach_core::{Hasher, Node, TERMINATOR};
use pleach_journal::format::trie_kind::TrieKind;

use crate::error::Hex;

/// The roots of all namespaces of one state, in the order of their numbers. A namespace that exists and is empty has
/// the root [`TERMINATOR`]; one that does not exist has none. Namespace 0 always exists. A plain namespace
/// ([`Db::add_plain_namespace`](crate::Db::add_plain_namespace)) has a *digest* in place of a root, which depends on
/// how the state came about, and which no proof leads to.
///
/// Two states with the same roots, digests and blob are interchangeable. Roots do not cover namespaces that were
/// dropped and can still be restored ([`Db::rollback`](crate::Db::rollback)).
#[derive(Clone, PartialEq, Eq)]
pub struct Roots(Arc<[(u8, TrieRoot)]>);

/// A commit of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// The commit's number.
    pub number: u64,
    /// The root of namespace 0.
    pub root: Node,
    /// The roots of all namespaces.
    pub roots: Roots,
    /// The application's blob of the commit.
    pub blob: Vec<u8>,
}

/// The root or digest of one namespace's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrieRoot {
    /// The kind of the trie: Merkle, or plain and without nodes.
    pub kind: TrieKind,
    /// The root, or the digest of a plain trie.
    pub node: Node,
}

impl TrieRoot {
    /// The root or digest of an empty trie that was just added.
    pub(crate) fn empty(kind: TrieKind) -> Self {
        Self { kind, node: TERMINATOR }
    }

    /// The root; `None` of a plain trie.
    pub fn merkle(self) -> Option<Node> {
        (self.kind == TrieKind::Merkle).then_some(self.node)
    }

    /// The digest; `None` of a Merkle trie.
    pub fn digest(self) -> Option<[u8; 32]> {
        (self.kind == TrieKind::Plain).then(|| self.node.to_bytes())
    }
}

impl Roots {
    /// Roots by namespace, ascending; namespace 0 is the first.
    #[doc(hidden)]
    pub fn new(roots: impl IntoIterator<Item = (u8, TrieRoot)>) -> Self {
        let roots: Arc<[(u8, TrieRoot)]> = roots.into_iter().collect();
        assert!(roots.is_sorted_by(|a, b| a.0 < b.0), "namespaces ascend");
        assert!(roots.first().is_some_and(|first| first.0 == 0), "namespace 0 exists");
        Self(roots)
    }

    /// These roots with some entries replaced, for namespaces that exist; `others` may add a namespace with a root, and
    /// drop one with `None`.
    #[doc(hidden)]
    #[must_use]
    pub fn with(&self, others: impl IntoIterator<Item = (u8, Option<TrieRoot>)>) -> Self {
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

    /// Bytes of heap memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// The root of namespace 0.
    pub fn first(&self) -> Node {
        self.0.first().map_or(TERMINATOR, |first| first.1.node)
    }

    /// The root of a namespace; none when it does not exist, or is plain.
    pub fn get(&self, namespace: u8) -> Option<Node> {
        self.of(namespace)?.merkle()
    }

    /// The digest of a plain namespace; none when there is no such one. A namespace that was just added has a digest of
    /// zeros.
    pub fn digest(&self, namespace: u8) -> Option<[u8; 32]> {
        self.of(namespace)?.digest()
    }

    /// The root or digest of a namespace; none when it does not exist.
    #[doc(hidden)]
    pub fn of(&self, namespace: u8) -> Option<TrieRoot> {
        self.find(namespace).map(|(_, root)| root)
    }

    /// How many namespaces come before one, and its root or digest.
    pub(crate) fn find(&self, namespace: u8) -> Option<(usize, TrieRoot)> {
        let at = self.0.binary_search_by_key(&namespace, |entry| entry.0).ok()?;
        Some((at, self.0[at].1))
    }

    /// The one root over all namespaces: the root of the trie of roots ([`pleach_core::proof::roots`]), in which
    /// [`Session::prove_namespace`](crate::Session::prove_namespace) proves. Plain namespaces have no place in it.
    pub fn over_all(&self, hasher: Hasher) -> Node {
        let merkle = self.0.iter().filter(|(_, root)| root.kind == TrieKind::Merkle);
        trie_of_roots::over_all(hasher, merkle.map(|(namespace, root)| (*namespace, &root.node)))
    }

    /// Proves the root of a namespace, or that there is none, in the root over all.
    pub(crate) fn prove(&self, hasher: Hasher, namespace: u8) -> KeyProof {
        let proof = NamespaceRoots::from(self).prove(hasher, namespace);
        proof.expect("a path of eight siblings at most has an encoding").into()
    }

    /// Namespaces and their roots, ascending, without the plain ones.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u8, Node)> + '_ {
        self.all().filter_map(|(namespace, root)| Some((namespace, root.merkle()?)))
    }

    /// Plain namespaces and their digests, ascending.
    pub fn digests(&self) -> impl DoubleEndedIterator<Item = (u8, [u8; 32])> + '_ {
        self.all().filter_map(|(namespace, root)| Some((namespace, root.digest()?)))
    }

    /// All namespaces, ascending.
    #[doc(hidden)]
    pub fn all(&self) -> impl ExactSizeIterator<Item = (u8, TrieRoot)> + DoubleEndedIterator + '_ {
        self.0.iter().copied()
    }
}

/// The Merkle namespaces alone: what a light client keeps.
impl From<&Roots> for NamespaceRoots {
    fn from(roots: &Roots) -> Self {
        roots.iter().collect()
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (namespace, root) in self.iter() {
            map.entry(&namespace, &Hex(root.as_ref()));
        }
        for (namespace, digest) in self.digests() {
            map.entry(&format_args!("plain {namespace}"), &Hex(&digest));
        }
        map.finish()
    }
}
