//! Proofs in a namespace, for whoever knows only the root over all namespaces.
//!
//! [`open`] verifies a path in the [trie of roots](super::roots) and gives the namespace's root with the inner proof,
//! which its own verifier checks against that root. [`open_change`] does the same between two roots over all, with a
//! change proof in the trie of roots and one in the namespace. What a block does is in [`block`](super::block).
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Lookup, namespace, path, roots::NamespaceRoots};
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! let trie = NaiveTrie::from_iter([([1; 32], [10; 32].into()), ([2; 32], [20; 32].into())]);
//! let roots = NamespaceRoots::from_iter([(0, TERMINATOR), (5, trie.root(Hasher::BLAKE3))]);
//! let inner = trie.path(Hasher::BLAKE3, &[2; 32]).encode(Hasher::BLAKE3)?;
//! let bytes = namespace::build(Hasher::BLAKE3, &roots, 5, &inner)?;
//!
//! // A light client keeps 32 bytes for all namespaces.
//! let opened = namespace::open(Hasher::BLAKE3, &bytes, &roots.over_all(Hasher::BLAKE3))?;
//! assert_eq!(opened.ns(), 5);
//! let root = opened.root().expect("the namespace exists");
//! let verified = path::verify(Hasher::BLAKE3, opened.inner(), root)?;
//! assert_eq!(verified.get(&[2; 32]), Lookup::Present([20; 32].into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    change::{self, ChangeLookup},
    error::{BuildError, DecodeError, VerifyError},
    frame::{self, Frame, InnerProofs},
    limits::Limits,
    lookup::Lookup,
    path,
    roots::{self, NamespaceRoots},
    terminal::Terminal,
    wire::ProofKind,
};
use crate::{
    hasher::Hasher,
    node::{Node, TERMINATOR, ValueHash},
};

/// Kinds of proofs against one root.
const SINGLE_ROOT_KINDS: &[ProofKind] =
    &[ProofKind::Path, ProofKind::Multi, ProofKind::Witness, ProofKind::Range];

/// A namespace's root as the root over all has it, and a proof that is still to be verified. Borrows the encoding.
#[derive(Clone, Copy, Debug)]
pub struct OpenedNamespace<'a> {
    ns: u8,
    found: Option<(Node, ProofKind, &'a [u8])>,
}

impl<'a> OpenedNamespace<'a> {
    /// The namespace.
    pub fn ns(&self) -> u8 {
        self.ns
    }

    /// The namespace's root; `None`: it does not exist.
    pub fn root(&self) -> Option<&Node> {
        self.found.as_ref().map(|(root, ..)| root)
    }

    /// Kind of the inner proof: a path proof, multiproof, witness or range proof. `None` where the
    /// namespace does not exist.
    pub fn kind(&self) -> Option<ProofKind> {
        self.found.map(|(_, kind, _)| kind)
    }

    /// The inner proof, **not verified**: to be checked against [`root`](Self::root) by the verifier
    /// of its kind. Empty where the namespace does not exist.
    pub fn inner(&self) -> &'a [u8] {
        self.found.map_or(&[], |(_, _, inner)| inner)
    }
}

/// Checks the outer proof against the root over all, within the default [`Limits`].
pub fn open<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    over_all: &Node,
) -> Result<OpenedNamespace<'a>, VerifyError> {
    open_with(hasher, bytes, over_all, &Limits::DEFAULT)
}

/// The same within these limits. Their bytes are those of the whole encoding; of the hashes it
/// takes at most 9, and the inner proof is not hashed.
pub fn open_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    over_all: &Node,
    limits: &Limits,
) -> Result<OpenedNamespace<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let Frame { ns, outer, inner } = Frame::cut(hasher, ProofKind::Namespace, bytes)?;
    for terminal in path::decode(hasher, outer)?.terminals() {
        check_terminal(&terminal)?;
    }
    let proof = inner.only(SINGLE_ROOT_KINDS)?;
    let key = roots::namespace_key(ns);
    let found = match path::verify_with(hasher, outer, over_all, limits)?.get(&key) {
        Lookup::Present(root) => Some(Node::from(root.to_bytes())),
        Lookup::Absent => None,
        Lookup::OutOfScope => return Err(DecodeError::Namespace.into()),
    };
    match (found, proof) {
        (Some(root), Some((kind, inner))) => {
            Ok(OpenedNamespace { ns, found: Some((root, kind, inner)) })
        }
        (None, None) => Ok(OpenedNamespace { ns, found: None }),
        _ => Err(DecodeError::Inner.into()),
    }
}

/// Makes a proof through the root over `roots`. `inner` is an encoded proof in the namespace: a
/// path proof, multiproof, witness or range proof; empty when the namespace does not exist.
pub fn build(
    hasher: Hasher,
    roots: &NamespaceRoots,
    ns: u8,
    inner: &[u8],
) -> Result<Vec<u8>, BuildError> {
    check_inner(hasher, SINGLE_ROOT_KINDS, roots.get(ns).is_some(), inner)?;
    Ok(frame::assemble(hasher, ProofKind::Namespace, ns, &roots.prove(hasher, ns)?, &[inner])?)
}

/// A namespace's roots under two roots over all, and a change proof that is still to be verified. Borrows the encoding.
#[derive(Clone, Copy, Debug)]
pub struct OpenedNamespaceChange<'a> {
    ns: u8,
    /// The roots before and after, where they differ.
    roots: Option<[Option<Node>; 2]>,
    inner: &'a [u8],
}

impl<'a> OpenedNamespaceChange<'a> {
    /// The namespace.
    pub fn ns(&self) -> u8 {
        self.ns
    }

    /// True when nothing in the namespace changed: it has the same root before and after, or does not exist in both
    /// states.
    pub fn is_same(&self) -> bool {
        self.roots.is_none()
    }

    /// The namespace's roots before and after (`None`: it does not exist then), where they differ.
    pub fn roots(&self) -> Option<[Option<Node>; 2]> {
        self.roots
    }

    /// The two roots that the inner proof is between: a namespace that does not exist counts as an
    /// empty one. `None` when no key of the namespace changed, and there is no inner proof.
    pub fn inner_roots(&self) -> Option<[Node; 2]> {
        inner_roots(self.roots)
    }

    /// The inner change proof, **not verified**: to be checked by [`change::verify`] against
    /// [`inner_roots`](Self::inner_roots) and the caller's range. Empty when no key changed.
    pub fn inner(&self) -> &'a [u8] {
        self.inner
    }
}

fn inner_roots(roots: Option<[Option<Node>; 2]>) -> Option<[Node; 2]> {
    let [from, to] = roots?.map(|root| root.unwrap_or(TERMINATOR));
    (from != to).then_some([from, to])
}

/// Checks the outer proof against the two roots over all, within the default [`Limits`].
pub fn open_change<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    from: &Node,
    to: &Node,
) -> Result<OpenedNamespaceChange<'a>, VerifyError> {
    open_change_with(hasher, bytes, from, to, &Limits::DEFAULT)
}

/// The same within these limits. Their bytes are those of the whole encoding; of the hashes it
/// takes at most 18, and the inner proof is not hashed.
pub fn open_change_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    from: &Node,
    to: &Node,
    limits: &Limits,
) -> Result<OpenedNamespaceChange<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let Frame { ns, outer, inner } = Frame::cut(hasher, ProofKind::NamespaceChange, bytes)?;
    let key = roots::namespace_key(ns);
    let outer_claim = change::decode(hasher, outer, &key, &key)?;
    for terminal in outer_claim.terminals_before().chain(outer_claim.terminals_after()) {
        check_terminal(&terminal)?;
    }
    let proof = inner.only(&[ProofKind::Change])?;
    let verified = change::verify_with(hasher, outer, from, to, &key, &key, limits)?;
    let node = |root: ValueHash| Node::from(root.to_bytes());
    let roots = match verified.get(&key) {
        ChangeLookup::Changed { before, after } => Some([before.map(node), after.map(node)]),
        ChangeLookup::Same | ChangeLookup::OutOfScope => None,
    };
    if inner_roots(roots).is_some() != proof.is_some() {
        return Err(DecodeError::Inner.into());
    }
    Ok(OpenedNamespaceChange { ns, roots, inner: proof.map_or(&[], |(_, inner)| inner) })
}

/// Encodes the change of a namespace from the roots `from` to the roots `to`. `inner` is an encoded change proof
/// between the namespace's two roots, that of an empty trie where it does not exist; empty when these are the same.
pub fn build_change(
    hasher: Hasher,
    from: &NamespaceRoots,
    to: &NamespaceRoots,
    ns: u8,
    inner: &[u8],
) -> Result<Vec<u8>, BuildError> {
    let roots = [from, to].map(|roots| roots.get(ns).copied());
    check_inner(hasher, &[ProofKind::Change], inner_roots(Some(roots)).is_some(), inner)?;
    let outer = from.prove_change(hasher, to, ns)?;
    Ok(frame::assemble(hasher, ProofKind::NamespaceChange, ns, &outer, &[inner])?)
}

/// Checks that `inner` is one encoding of one of these kinds, or empty, as `namespace` requires.
fn check_inner(
    hasher: Hasher,
    kinds: &[ProofKind],
    wanted: bool,
    inner: &[u8],
) -> Result<(), DecodeError> {
    let found = InnerProofs::of(hasher, inner).only(kinds)?;
    if found.is_some() == wanted { Ok(()) } else { Err(DecodeError::Inner) }
}

/// Checks that this is a terminal of a trie of roots.
pub(super) fn check_terminal(terminal: &Terminal) -> Result<(), DecodeError> {
    let depth = terminal.depth();
    if depth > roots::MAX_DEPTH {
        return Err(DecodeError::TooDeep { depth });
    }
    match terminal {
        Terminal::Leaf { key, .. } if roots::namespace_of(key).is_none() => {
            Err(DecodeError::Namespace)
        }
        _ => Ok(()),
    }
}
