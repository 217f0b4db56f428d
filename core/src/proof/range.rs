//! Range proofs: all pairs of a range of keys, both ends included, and that there is no other.
//!
//! The terminals tile the range: each key from its first to its last lies below one of them. What
//! is present is a leaf among them, so what is not a leaf is absent. Siblings are outside of the
//! range, all of them; nothing inside is left to be believed.
//!
//! [`build`] makes one from the multiproof of the two ends and the pairs between them.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Lookup, range};
//! use pleach_core::Hasher;
//!
//! let trie: NaiveTrie = (0..9).map(|byte| ([byte; 32], [byte + 1; 32].into())).collect();
//! let (first, last) = ([2; 32], [4; 32]);
//! let bounds = trie.multi(Hasher::BLAKE3, &[first, last]).encode(Hasher::BLAKE3)?;
//! let pairs = trie.pairs().range(first..=last).map(|(key, hash)| (*key, *hash));
//! let bytes = range::build(Hasher::BLAKE3, &bounds, &first, &last, pairs)?;
//!
//! let verified = range::verify(Hasher::BLAKE3, &bytes, &trie.root(Hasher::BLAKE3), &first, &last)?;
//! assert_eq!(verified.pairs().count(), 3);
//! assert_eq!(verified.get(&[3; 32]), Lookup::Present([4; 32].into()));
//! assert_eq!(verified.get(&[5; 32]), Lookup::OutOfScope);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::vec::Vec;

use super::{
    error::{BuildError, DecodeError, VerifyError},
    limits::Limits,
    lookup::{Lookup, lookup},
    slots::slots,
    span::KeySpan,
    terminal::{Terminal, terminal_encode},
    unverified::Unverified,
    wire::{self, ParsedProof, ProofKind},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node, ValueHash},
    prefix::{self, Prefix},
};

/// All pairs of a range, as the root that was checked against has them. Borrows the encoding.
#[derive(Clone, Debug)]
pub struct VerifiedRange<'a> {
    parts: ParsedProof<'a>,
    root: Node,
    span: KeySpan,
}

impl VerifiedRange<'_> {
    /// The root that was proven against.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// First key of the range.
    pub fn first(&self) -> &Key {
        self.span.first()
    }

    /// Last key of the range, which belongs to it.
    pub fn last(&self) -> &Key {
        self.span.last()
    }

    /// The pairs of the range, in key order: these, and no others.
    pub fn pairs(&self) -> impl Iterator<Item = (Key, ValueHash)> + '_ {
        self.parts.terminals().leaves().filter(|(key, _)| self.span.contains(key))
    }

    /// What the root says about `key`: present or absent inside of the range.
    pub fn get(&self, key: &Key) -> Lookup {
        let terminals = self.parts.terminals();
        lookup(self.span.contains(key).then(|| terminals.find(key)).flatten(), key)
    }

    /// Whether the root says that `key` has this value, or, for `None`, that it is absent. `None` for a key outside of
    /// the range.
    pub fn proves(&self, key: &Key, value: Option<&[u8]>) -> Option<bool> {
        self.get(key).proves(self.parts.hasher, value)
    }

    /// The terminals that tile the range, in key order. The first and the last one may be leaves
    /// whose keys are outside of it.
    pub fn terminals(&self) -> impl Iterator<Item = Terminal> + '_ {
        self.parts.terminals().iter()
    }
}

/// Checks a proof of the range from `first` to `last` against a root, within the default [`Limits`].
pub fn verify<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    root: &Node,
    first: &Key,
    last: &Key,
) -> Result<VerifiedRange<'a>, VerifyError> {
    verify_with(hasher, bytes, root, first, last, &Limits::DEFAULT)
}

/// The same within these limits.
pub fn verify_with<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    root: &Node,
    first: &Key,
    last: &Key,
    limits: &Limits,
) -> Result<VerifiedRange<'a>, VerifyError> {
    limits.check_bytes(bytes)?;
    let (parts, span) = parse(hasher, bytes, first, last)?;
    let terminals = parts.terminals();
    limits.check_hashes(terminals.hashes())?;
    terminals.check_root(hasher, parts.siblings(), &terminals.leaf_nodes(hasher), root)?;
    Ok(VerifiedRange { parts, root: *root, span })
}

/// What an encoding *claims*: well-formed, a tiling of the range from `first` to `last`, and checked against no root.
pub fn decode<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    first: &Key,
    last: &Key,
) -> Result<Unverified<'a>, DecodeError> {
    Ok(Unverified::new(parse(hasher, bytes, first, last)?.0))
}

fn parse<'a>(
    hasher: Hasher,
    bytes: &'a [u8],
    first: &Key,
    last: &Key,
) -> Result<(ParsedProof<'a>, KeySpan), DecodeError> {
    let span = KeySpan::new(first, last)?;
    let parts = ParsedProof::parse(hasher, ProofKind::Range, bytes)?;
    span.check_tiling(parts.terminals())?;
    Ok((parts, span))
}

/// Makes the proof of the range from `first` to `last`.
///
/// `bounds` is the encoded [multiproof](super::multi) of these two keys (of one, if they are
/// equal), and `pairs` are all pairs of the range on the same state, in key order. Pairs that
/// contradict the multiproof or each other are an error; pairs of another state that do not
/// are not found out, since nothing is hashed here: their proof is refused by every verifier.
pub fn build(
    hasher: Hasher,
    bounds: &[u8],
    first: &Key,
    last: &Key,
    pairs: impl IntoIterator<Item = (Key, ValueHash)>,
) -> Result<Vec<u8>, BuildError> {
    let span = KeySpan::new(first, last)?;
    let parts = ParsedProof::parse(hasher, ProofKind::Multi, bounds)?;
    let list = parts.terminals();
    span.check_ends(list)?;
    let (Some(left), Some(right)) = (list.first(), list.last()) else {
        return Err(DecodeError::RangeEnds.into());
    };
    if !list.iter().all(|terminal| span.has_end_in(&terminal)) {
        return Err(BuildError::Keys);
    }
    let mut tiles = TileWriter::new();
    tiles.put(&left);
    // Keys of the ends' own leaves, which have to be among the pairs.
    let own = |end: &Terminal| match end {
        Terminal::Leaf { key, .. } => Some(*key).filter(|key| span.contains(key)),
        Terminal::Terminator { .. } => None,
    };
    let mut missing = [own(&left), own(&right).filter(|_| left != right)];
    let mut before: Option<Key> = None;
    for (index, (key, value_hash)) in pairs.into_iter().enumerate() {
        let wrong = Err(BuildError::Pair { index });
        if !span.contains(&key) || before.is_some_and(|before| before >= key) {
            return wrong;
        }
        before = Some(key);
        match [left, right].iter().find(|end| end.covers(&key)) {
            Some(end) if end.value_of(&key) == Some(&value_hash) => {
                for own in &mut missing {
                    own.take_if(|own| *own == key);
                }
            }
            Some(_) => return wrong,
            None => tiles.leaf(key, value_hash),
        }
    }
    if missing.iter().any(Option::is_some) {
        return Err(BuildError::MissingPair);
    }
    if left != right {
        tiles.end(&right);
    }
    let siblings: Vec<Node> = slots(list.iter().with_forks())
        .zip(parts.siblings())
        .filter(|(slot, _)| !span.contains_all(&slot.place()))
        .map(|(_, node)| *node)
        .collect();
    Ok(wire::assemble_terminals(hasher, ProofKind::Range, tiles.count, &tiles.bytes, &siblings)?)
}

/// Terminals that tile what is between two others: the leaves are given, all else is empty.
struct TileWriter {
    bytes: Vec<u8>,
    count: usize,
    /// Key and depth of the last terminal written.
    last: (Key, u16),
    /// A leaf whose depth the next key decides, and the depth at which its path leaves that of `last`.
    waiting: Option<(Key, ValueHash, u16)>,
}

impl TileWriter {
    fn new() -> Self {
        Self { bytes: Vec::new(), count: 0, last: ([0; 32], 0), waiting: None }
    }

    fn put(&mut self, terminal: &Terminal) {
        terminal_encode(&mut self.bytes, terminal);
        self.count = self.count.saturating_add(1);
        self.last = (*terminal.bits(), terminal.depth());
    }

    /// Adds the next leaf.
    fn leaf(&mut self, key: Key, value_hash: ValueHash) {
        self.settle(&key);
        let fork = prefix::common_len(&self.last.0, &key);
        self.waiting = Some((key, value_hash, fork));
    }

    /// Adds the last terminal, at the range's other end.
    fn end(&mut self, terminal: &Terminal) {
        self.settle(terminal.bits());
        self.fill(terminal);
    }

    /// Writes the waiting leaf, which is alone below the forks with both its neighbours.
    fn settle(&mut self, next: &Key) {
        if let Some((key, value_hash, fork)) = self.waiting.take() {
            let depth = prefix::common_len(&key, next).max(fork).saturating_add(1);
            self.fill(&Terminal::Leaf { depth, key, value_hash });
        }
    }

    /// Writes the terminators between the last terminal and the next, and the next.
    fn fill(&mut self, next: &Terminal) {
        let (left, depth) = self.last;
        let fork = prefix::common_len(&left, next.bits());
        let below = fork.saturating_add(2);
        for depth in (below..=depth).rev() {
            self.empty_beside(&left, depth, false);
        }
        for depth in below..=next.depth() {
            self.empty_beside(next.bits(), depth, true);
        }
        self.put(next);
    }

    /// The sibling at `depth` of the path to `key`, if the path goes to the right (or left) there.
    fn empty_beside(&mut self, key: &Key, depth: u16, right: bool) {
        let path = Prefix::new(key, depth);
        if let Some(prefix) = path.sibling().filter(|_| path.is_right() == right) {
            self.put(&Terminal::Terminator { prefix });
        }
    }
}
