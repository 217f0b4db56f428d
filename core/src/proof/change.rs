//! Change proofs: which keys of a range differ between two roots, with the hash of the value
//! before and after, and that no other key of the range differs.
//!
//! One is made of two multiproofs of the same keys, those that changed and the two ends of the
//! range: one on the state before, one on the state after. Siblings that are the same on both
//! sides stand in it once; inside of the range all of them are.
//!
//! A [witness](super::witness) of the writes proves a change of the *whole* space of keys as well, in fewer bytes: the
//! new root that it leads to is the root after. A change proof is for a part of the keys, for roots that many commits
//! lie between, and for readers that were not told what was written.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::change::{self, ChangeLookup};
//! use pleach_core::Hasher;
//!
//! let before: NaiveTrie = (0..9).map(|byte| ([byte; 32], [1; 32].into())).collect();
//! let mut after = before.clone();
//! after.set([3; 32], Some([2; 32].into()));
//! after.set([8; 32], None);
//!
//! // What changed from key 2 to key 7: key 3, and nothing else.
//! let (first, last) = ([2; 32], [7; 32]);
//! let keys = [first, [3; 32], last];
//! let bytes = change::build(
//!     Hasher::BLAKE3,
//!     &before.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3)?,
//!     &after.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3)?,
//!     &first,
//!     &last,
//! )?;
//! let roots = (before.root(Hasher::BLAKE3), after.root(Hasher::BLAKE3));
//! let verified = change::verify(Hasher::BLAKE3, &bytes, &roots.0, &roots.1, &first, &last)?;
//! let changes: Vec<_> = verified.changes().collect();
//! assert_eq!(changes, [([3; 32], Some([1; 32].into()), Some([2; 32].into()))]);
//! assert_eq!(verified.get(&[4; 32]), ChangeLookup::Same);
//! assert_eq!(verified.get(&[8; 32]), ChangeLookup::OutOfScope);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{BuildError, DecodeError, VerifyError},
    limits::Limits,
    list::TerminalList,
    sides::{MergedSiblings, SideSiblings, Sides},
    slots::SlotSide,
    span::KeySpan,
    terminal::Terminal,
    wire::{self, ParsedProof, ProofKind, SectionSizes, Sections},
};
use crate::{
    hasher::Hasher,
    node::{self, Key, Node, TERMINATOR, ValueHash},
};

/// What a verified change proof says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeLookup {
    /// The key has another value after than before, or is in one of the two sets only.
    Changed {
        /// The hash of the value before; `None`: the key was absent.
        before: Option<ValueHash>,
        /// The hash of the value after; `None`: the key is absent.
        after: Option<ValueHash>,
    },
    /// The key has the same value in both, or is in neither.
    Same,
    /// The key is outside of the range.
    OutOfScope,
}

/// All changes of a range between two roots. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct VerifiedChange<'a> {
    sides: Sides<'a>,
    roots: [Node; 2],
}

impl VerifiedChange<'_> {
    /// The root before.
    pub fn from_root(&self) -> &Node {
        let [from, _] = &self.roots;
        from
    }

    /// The root after.
    pub fn to_root(&self) -> &Node {
        let [_, to] = &self.roots;
        to
    }

    /// First key of the range.
    pub fn first(&self) -> &Key {
        self.sides.span.first()
    }

    /// Last key of the range, which belongs to it.
    pub fn last(&self) -> &Key {
        self.sides.span.last()
    }

    /// The keys of the range that changed, in order, each with the hashes of its value before and
    /// after (`None`: absent): these, and no others.
    pub fn changes(
        &self,
    ) -> impl Iterator<Item = (Key, Option<ValueHash>, Option<ValueHash>)> + '_ {
        self.sides.changes()
    }

    /// What became of `key`.
    pub fn get(&self, key: &Key) -> ChangeLookup {
        if !self.sides.span.contains(key) {
            return ChangeLookup::OutOfScope;
        }
        match self.sides.values(key) {
            Some((before, after)) if before != after => ChangeLookup::Changed { before, after },
            _ => ChangeLookup::Same,
        }
    }
}

/// Checks a proof of what changed from `first` to `last` between two roots, within the default [`Limits`].
pub fn verify<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    from_root: &Node,
    to_root: &Node,
    first: &Key,
    last: &Key,
) -> Result<VerifiedChange<'a>, VerifyError> {
    verify_with(hasher, bytes, from_root, to_root, first, last, &Limits::DEFAULT)
}

/// The same within these limits.
pub fn verify_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    from_root: &Node,
    to_root: &Node,
    first: &Key,
    last: &Key,
    limits: &Limits,
) -> Result<VerifiedChange<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let UnverifiedChange { sides, siblings } = decode(hasher, bytes, first, last)?;
    limits.check_hashes(sides.before.hashes().saturating_add(sides.after.hashes()))?;
    let before = sides.before.leaf_nodes(hasher);
    let after = sides.after.leaf_nodes(hasher);
    sides.before.check_root(hasher, &siblings.before, &before, from_root)?;
    sides.after.check_root(hasher, &siblings.after, &after, to_root)?;
    let leaf = |of, key: &Key, _: &ValueHash| {
        let leaves = if of == SlotSide::Before { &before } else { &after };
        let found = leaves.binary_search_by_key(key, |(key, _)| *key).ok();
        found.and_then(|at| leaves.get(at)).map_or(TERMINATOR, |(_, node)| *node)
    };
    match sides.first_unopened(&siblings.before, &siblings.after, leaf) {
        Some(depth) => Err(VerifyError::Unopened { depth }),
        None => Ok(VerifiedChange { sides, roots: [*from_root, *to_root] }),
    }
}

/// The contents of a change proof that was checked against **no roots**: well-formed, and perhaps
/// false. It answers no queries.
#[derive(Clone, Debug)]
pub struct UnverifiedChange<'a> {
    sides: Sides<'a>,
    siblings: SideSiblings,
}

impl<'a> UnverifiedChange<'a> {
    /// The terminals before, in key order.
    pub fn terminals_before(&self) -> impl Iterator<Item = Terminal> + use<'a> {
        self.sides.before.iter()
    }

    /// The terminals after, in key order.
    pub fn terminals_after(&self) -> impl Iterator<Item = Terminal> + use<'a> {
        self.sides.after.iter()
    }

    /// The siblings of the terminals before, in the order of a multiproof.
    pub fn siblings_before(&self) -> &[Node] {
        &self.siblings.before
    }

    /// The siblings of the terminals after, in the order of a multiproof.
    pub fn siblings_after(&self) -> &[Node] {
        &self.siblings.after
    }
}

/// What an encoding *claims*: well-formed, about the range from `first` to `last`, and checked against no roots.
pub fn decode<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    first: &Key,
    last: &Key,
) -> Result<UnverifiedChange<'a>, DecodeError> {
    let span = KeySpan::new(first, last)?;
    let (sizes, Sections { terminals, ops, siblings }) =
        Sections::cut(hasher, ProofKind::Change, bytes)?;
    let siblings = Node::slice_of(siblings.as_chunks().0);
    let (before, rest) = TerminalList::read(sizes.terminals, terminals)?;
    if !rest.is_empty() {
        return Err(DecodeError::Length);
    }
    let (after, flags) = TerminalList::read(sizes.ops, ops)?;
    let sides = Sides::new(before, after, span)?;
    let siblings = SideSiblings::split(&sides, flags, siblings)?;
    sides.check_used()?;
    Ok(UnverifiedChange { sides, siblings })
}

/// Makes the proof of what changed from `first` to `last`.
///
/// `from` and `to` are encoded [multiproofs](super::multi), on the state before and on the state
/// after, of the same keys: all that changed in the range, `first` and `last`, and no others.
pub fn build(
    hasher: Hasher,
    from: &[u8],
    to: &[u8],
    first: &Key,
    last: &Key,
) -> Result<Vec<u8>, BuildError> {
    let span = KeySpan::new(first, last)?;
    let from = ParsedProof::parse(hasher, ProofKind::Multi, from)?;
    let to = ParsedProof::parse(hasher, ProofKind::Multi, to)?;
    let sides = Sides::new(from.terminals().clone(), to.terminals().clone(), span)?;
    sides.check_used().map_err(|_| BuildError::Keys)?;
    let leaf = |_, key: &Key, value_hash: &ValueHash| node::leaf(hasher, key, value_hash);
    if let Some(depth) = sides.first_unopened(from.siblings(), to.siblings(), leaf) {
        return Err(BuildError::Unopened { depth });
    }
    let MergedSiblings { flags, nodes } =
        MergedSiblings::merge(&sides, from.siblings(), to.siblings());
    let mut after = Vec::from(sides.after.records());
    after.extend_from_slice(&flags);
    let sizes = SectionSizes {
        terminals: wire::count(sides.before.len())?,
        ops: wire::count(sides.after.len())?,
        siblings: wire::count(nodes.len())?,
        terminal_bytes: wire::count(sides.before.records().len())?,
        op_bytes: wire::count(after.len())?,
    };
    let siblings = Node::bytes_of(&nodes);
    let sections = Sections { terminals: sides.before.records(), ops: &after, siblings };
    Ok(wire::assemble(hasher, ProofKind::Change, &sizes, sections)?)
}
