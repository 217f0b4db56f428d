//! The effects of a block on several namespaces, and the root over all after it: a witness in the [trie of
//! roots](super::roots), and for each accessed namespace a witness in it.
//!
//! The operation of the outer witness on a namespace says what the block did with it, and whether an inner witness
//! follows:
//!
//! | namespace | before | operation | inner witness |
//! |---|---|---|---|
//! | looked into, same root after | there | read | from its root to the same |
//! | changed | there | read and write: the new root | from its root to the new one |
//! | added | absent | read and write: its root | from the terminator to its root |
//! | added, empty and not looked into | absent | write: the terminator | none |
//! | dropped | there | write: delete | none |
//! | dropped, and looked into before | there | read and write: delete | from its root to the same |
//! | found not to exist | absent | read | none |
//!
//! Anything else is refused, and so is an inner witness without operations: there is one encoding.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Access, Op, block, roots::NamespaceRoots};
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! let mut trie = NaiveTrie::from_iter([([1; 32], [10; 32].into())]);
//! let mut roots = NamespaceRoots::from_iter([(0, trie.root(Hasher::BLAKE3)), (7, TERMINATOR)]);
//! let before = roots.over_all(Hasher::BLAKE3);
//!
//! // A block changes a key in namespace 0 and drops namespace 7.
//! let ops = [Op { key: [1; 32], access: Access::ReadWrite(Some([11; 32].into())) }];
//! let witness = trie.witness(Hasher::BLAKE3, &ops).encode(Hasher::BLAKE3)?;
//! trie.apply(&ops);
//! let changed = block::NamespaceClaim { ns: 0, after: Some(trie.root(Hasher::BLAKE3)), witness: Some(&witness) };
//! let dropped = block::NamespaceClaim { ns: 7, after: None, witness: None };
//! let bytes = block::build(Hasher::BLAKE3, &roots, &[changed, dropped])?;
//!
//! // Whoever knows the root over all before learns the one after.
//! let verified = block::verify(Hasher::BLAKE3, &bytes, &before)?;
//! roots.set(0, Some(trie.root(Hasher::BLAKE3)));
//! roots.set(7, None);
//! assert_eq!(*verified.new_root(), roots.over_all(Hasher::BLAKE3));
//! assert_eq!(verified.get(0).and_then(|ns| ns.witness()).map(|ops| ops.op_count()), Some(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{BuildError, DecodeError, VerifyError},
    frame::{self, Frame},
    limits::Limits,
    namespace::check_terminal,
    op::{Access, Op},
    roots::{self, NamespaceRoots},
    terminal::Terminal,
    wire::{ParsedProof, ProofKind},
    witness,
};
use crate::{
    hasher::Hasher,
    node::{Node, TERMINATOR},
};

/// The effects of a verified block on one namespace.
#[derive(Clone, Debug)]
pub struct VerifiedNamespace<'a> {
    fate: OuterClaim,
    witness: Option<witness::VerifiedWitness<'a>>,
}

impl<'a> VerifiedNamespace<'a> {
    /// The namespace.
    pub fn ns(&self) -> u8 {
        self.fate.ns
    }

    /// The namespace's root before the block; `None`: it did not exist.
    pub fn before(&self) -> Option<&Node> {
        self.fate.before.as_ref()
    }

    /// The namespace's root after the block; `None`: it does not exist.
    pub fn after(&self) -> Option<&Node> {
        self.fate.after.as_ref()
    }

    /// The verified reads and writes in the namespace; `None` when the block did not access it.
    pub fn witness(&self) -> Option<&witness::VerifiedWitness<'a>> {
        self.witness.as_ref()
    }
}

/// A block that leads from the root over all that it was checked against to a new one. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct VerifiedBlock<'a> {
    namespaces: Vec<VerifiedNamespace<'a>>,
    prev_root: Node,
    new_root: Node,
}

impl<'a> VerifiedBlock<'a> {
    /// The root over all before the block.
    pub fn prev_root(&self) -> &Node {
        &self.prev_root
    }

    /// The root over all after the block.
    pub fn new_root(&self) -> &Node {
        &self.new_root
    }

    /// The namespaces that the block accessed, changed, added or dropped, ascending.
    pub fn namespaces(&self) -> &[VerifiedNamespace<'a>] {
        &self.namespaces
    }

    /// The effects of the block on this namespace; `None`: nothing.
    pub fn get(&self, ns: u8) -> Option<&VerifiedNamespace<'a>> {
        let at = self.namespaces.binary_search_by_key(&ns, VerifiedNamespace::ns).ok()?;
        self.namespaces.get(at)
    }
}

/// Checks a block against the root over all before it and computes the one after it, within the default [`Limits`].
pub fn verify<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    over_all: &Node,
) -> Result<VerifiedBlock<'a>, VerifyError> {
    verify_with(hasher, bytes, over_all, &Limits::DEFAULT)
}

/// The same within these limits. They are for the whole block: its bytes, and the hashes of the
/// outer witness and all inner ones together.
pub fn verify_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    over_all: &Node,
    limits: &Limits,
) -> Result<VerifiedBlock<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let Frame { outer, mut inner, .. } = Frame::cut(hasher, ProofKind::Block, bytes)?;
    let outer = ParsedProof::parse(hasher, ProofKind::Witness, outer)?;
    outer.terminals().iter().try_for_each(|terminal| check_terminal(&terminal))?;
    // Operations are in key order and each of a namespace of its own, so there are at most 256.
    let mut parsed = Vec::new();
    for (op, terminal) in outer.ops() {
        let fate = OuterClaim::read(&op, &terminal)?;
        let mut parts = None;
        if fate.has_witness {
            let (_, bytes) = inner.take(&[ProofKind::Witness])?;
            parts = Some(parse_inner(hasher, bytes)?);
        }
        parsed.push((fate, parts));
    }
    inner.end()?;
    check_hashes(&outer, &parsed, limits)?;

    let outer = witness::walk(outer, over_all)?;
    let mut namespaces = Vec::new();
    namespaces.reserve_exact(parsed.len());
    for (fate, parts) in parsed {
        let witness = parts.map(|parts| fate.verify_inner(parts)).transpose()?;
        namespaces.push(VerifiedNamespace { fate, witness });
    }
    Ok(VerifiedBlock { namespaces, prev_root: *over_all, new_root: *outer.new_root() })
}

/// An inner witness, which has operations.
fn parse_inner(hasher: Hasher, bytes: &[u8]) -> Result<ParsedProof<'_>, DecodeError> {
    let parts = ParsedProof::parse(hasher, ProofKind::Witness, bytes)?;
    if parts.op_count() == 0 { Err(DecodeError::Inner) } else { Ok(parts) }
}

/// Refuses a block that takes more hashes than the limit, before the first.
fn check_hashes(
    outer: &ParsedProof<'_>,
    parsed: &[(OuterClaim, Option<ParsedProof<'_>>)],
    limits: &Limits,
) -> Result<(), VerifyError> {
    let all = || parsed.iter().filter_map(|(_, parts)| parts.as_ref()).chain([outer]);
    let sum = |of: fn(&ParsedProof<'_>) -> u64| all().map(of).fold(0, u64::saturating_add);
    if sum(witness::max_hashes) <= limits.hashes {
        return Ok(());
    }
    limits.check_hashes(sum(witness::hashes))
}

/// The outer witness's claim about one namespace.
#[derive(Clone, Copy, Debug)]
struct OuterClaim {
    ns: u8,
    before: Option<Node>,
    after: Option<Node>,
    /// True when there is an inner witness.
    has_witness: bool,
}

impl OuterClaim {
    fn read(op: &Op, terminal: &Terminal) -> Result<Self, DecodeError> {
        let ns = roots::namespace_of(&op.key).ok_or(DecodeError::Namespace)?;
        let before = terminal.value_of(&op.key).map(|root| Node::from(root.to_bytes()));
        let after = match op.access.written() {
            None => before,
            Some(written) => written.map(|root| Node::from(root.to_bytes())),
        };
        let opened = op.access.reads() && (before.is_some() || after.is_some());
        let fate = Self { ns, before, after, has_witness: opened };
        if fate.access() == Some(op.access) { Ok(fate) } else { Err(DecodeError::NamespaceAccess) }
    }

    /// The operation with this claim; `None` when no block can have it.
    fn access(&self) -> Option<Access> {
        let after = self.after.map(|root| root.to_bytes().into());
        match (self.before, self.after, self.has_witness) {
            (None, None, false) => Some(Access::Read),
            (Some(before), Some(after), true) if before == after => Some(Access::Read),
            (None, None, true) | (Some(_), Some(_), false) => None,
            (_, _, true) => Some(Access::ReadWrite(after)),
            (None, Some(root), false) if root != TERMINATOR => None,
            (_, _, false) => Some(Access::Write(after)),
        }
    }

    /// Verifies the inner witness against the roots that the outer one has.
    fn verify_inner<'a>(
        &self,
        parts: ParsedProof<'a>,
    ) -> Result<witness::VerifiedWitness<'a>, VerifyError> {
        let elsewhere = VerifyError::NamespaceRoot { ns: self.ns };
        let before = self.before.unwrap_or(TERMINATOR);
        let verified = witness::walk(parts, &before).map_err(|error| match error {
            VerifyError::RootMismatch => elsewhere,
            error => error,
        })?;
        // A dropped namespace is not changed before.
        let after = self.after.unwrap_or(before);
        if *verified.new_root() == after { Ok(verified) } else { Err(elsewhere) }
    }
}

/// The effects of a block on one namespace, to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceClaim<'a> {
    /// The namespace.
    pub ns: u8,
    /// The namespace's root after the block; `None`: it does not exist then.
    pub after: Option<Node>,
    /// The encoded witness in the namespace, with one operation at least; `None`: it was not accessed.
    pub witness: Option<&'a [u8]>,
}

/// Encodes a block on these roots from its effects on each namespace: ascending, each once. The witnesses are not
/// verified.
pub fn build(
    hasher: Hasher,
    before: &NamespaceRoots,
    parts: &[NamespaceClaim<'_>],
) -> Result<Vec<u8>, BuildError> {
    if !parts.is_sorted_by(|one, next| one.ns < next.ns) {
        return Err(DecodeError::OpOrder.into());
    }
    let (mut accesses, mut inner) = (Vec::new(), Vec::new());
    for part in parts {
        let (ns, before) = (part.ns, before.get(part.ns).copied());
        let fate =
            OuterClaim { ns, before, after: part.after, has_witness: part.witness.is_some() };
        accesses.push((ns, fate.access().ok_or(DecodeError::NamespaceAccess)?));
        if let Some(bytes) = part.witness {
            parse_inner(hasher, bytes)?;
            inner.push(bytes);
        }
    }
    let outer = before.witness(hasher, &accesses)?;
    Ok(frame::assemble(hasher, ProofKind::Block, 0, &outer, &inner)?)
}
