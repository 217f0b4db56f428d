//! Path proofs, multiproofs and witnesses as the crate `nomt-core` has them, and back.
//!
//! Roots are the same, so a proof of one is a proof of the other; only order and form differ. Conversions check form,
//! not truth: a converted proof has to be verified like the original. They work on proofs to be encoded
//! ([`PathProof::decode`] and its like make them from bytes). A proof that the other
//! side cannot express is a [`ConvertError`].
//!
//! * A multiproof without paths has no counterpart: the verifier of `nomt-core` panics on it.
//! * A `nomt-core` witness has a path with all siblings for each terminal; ours has each node once,
//!   and none that follows from others. So [`witness_to`] hashes, and takes memory of up to 32
//!   bytes for each level of each path.
//! * Range and change proofs have no counterpart, and no function here.
//!
//! ```
//! use nomt::proofs::{ConvertError, path_from, path_to};
//! use pleach_core::proof::Terminal;
//! use pleach_core::proof::path::PathProof;
//!
//! let terminal = Terminal::Leaf { depth: 1, key: [2; 32], value_hash: [20; 32].into() };
//! let ours = PathProof { terminal, siblings: vec![[1; 32].into()] };
//! let theirs = path_to(&ours)?;
//! assert_eq!(theirs.siblings, [[1; 32]]);
//! assert_eq!(path_from(&theirs)?, ours);
//! # Ok::<(), ConvertError>(())
//! ```
#![deny(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::BTreeMap;

use nomt_core::proof::{
    MultiPathProof, MultiProof as TheirMulti, PathProof as TheirPath, PathProofTerminal,
};
use nomt_core::trie::LeafData;
use nomt_core::trie_pos::TriePosition;
use nomt_core::witness::{
    Witness as TheirWitness, WitnessedOperations, WitnessedPath, WitnessedRead, WitnessedWrite,
};
use pleach_core::proof::multi::{self, MultiProof};
use pleach_core::proof::path::PathProof;
use pleach_core::proof::witness::DecodedWitness;
use pleach_core::proof::{Access, Op, Terminal};
use pleach_core::{Hasher, Key, Node, Prefix, ValueHash, node, prefix};

/// The deepest terminal, in bits of a key.
const MAX_DEPTH: u16 = 256;

/// Why a proof cannot be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A multiproof without terminals, which the other crate cannot verify.
    #[error("a multiproof without terminals has no counterpart")]
    Empty,
    /// A terminal deeper than any trie.
    #[error("a terminal at depth {depth}")]
    TooDeep {
        /// The terminal's depth.
        depth: usize,
    },
    /// A terminator whose position is not as deep as it has siblings or is said to be.
    #[error("a path of {expected} levels whose position has {found}")]
    Position {
        /// Levels of the path.
        expected: usize,
        /// Depth of the position.
        found: usize,
    },
    /// Terminals that repeat, are unsorted, or one of which lies below another.
    #[error("terminals overlap or are unsorted")]
    TerminalOrder,
    /// More or fewer siblings than the terminals need.
    #[error("{found} siblings where the terminals need {expected}")]
    SiblingCount {
        /// Siblings that the terminals need.
        expected: usize,
        /// Siblings found.
        found: usize,
    },
    /// Two paths that do not agree about the siblings that they share.
    #[error("paths with different siblings at the same place")]
    Inconsistent,
    /// An operation under no terminal, or under another one than it names.
    #[error("an operation outside its path")]
    OpOutOfScope,
    /// A path or terminal without operations.
    #[error("a path that no operation uses")]
    UnusedPath,
    /// Two reads or two writes of the same key.
    #[error("a key is read or written twice")]
    RepeatedKey,
    /// A read of another value than the path has.
    #[error("a read of another value than the path has")]
    ReadValue,
}

/// A path proof as `nomt-core` has it.
pub fn path_to(ours: &PathProof) -> Result<TheirPath, ConvertError> {
    let terminal = terminal_to(&ours.terminal)?;
    let (expected, found) = (usize::from(ours.terminal.depth()), ours.siblings.len());
    if expected != found {
        return Err(ConvertError::SiblingCount { expected, found });
    }
    Ok(TheirPath { terminal, siblings: ours.siblings.iter().map(|node| node.to_bytes()).collect() })
}

/// A path proof of `nomt-core` as ours.
pub fn path_from(theirs: &TheirPath) -> Result<PathProof, ConvertError> {
    Ok(PathProof {
        terminal: terminal_from(&theirs.terminal, theirs.siblings.len())?,
        siblings: Node::slice_of(&theirs.siblings).to_vec(),
    })
}

/// A multiproof as `nomt-core` has it.
pub fn multi_to(ours: &MultiProof) -> Result<TheirMulti, ConvertError> {
    let mut siblings = placed(ours)?;
    let paths = ours.terminals.iter().map(|terminal| {
        let depth = usize::from(terminal.depth());
        Ok(MultiPathProof { terminal: terminal_to(terminal)?, depth })
    });
    let paths = paths.collect::<Result<Vec<_>, ConvertError>>()?;
    if paths.is_empty() {
        return Err(ConvertError::Empty);
    }
    // Theirs are in pre-order of the paths beside them: the order of prefixes.
    siblings.sort_by_key(|(climbing, _)| *climbing);
    Ok(TheirMulti { paths, siblings: siblings.iter().map(|(_, node)| node.to_bytes()).collect() })
}

/// A multiproof of `nomt-core` as ours.
pub fn multi_from(theirs: &TheirMulti) -> Result<MultiProof, ConvertError> {
    let terminals = theirs.paths.iter().map(|path| terminal_from(&path.terminal, path.depth));
    let terminals = terminals.collect::<Result<Vec<_>, ConvertError>>()?;
    if terminals.is_empty() {
        return Err(ConvertError::Empty);
    }
    let mut places: Vec<(usize, Prefix)> = climbing(&terminals)?.into_iter().enumerate().collect();
    let (expected, found) = (places.len(), theirs.siblings.len());
    if expected != found {
        return Err(ConvertError::SiblingCount { expected, found });
    }
    places.sort_by_key(|(_, climbing)| *climbing);
    let theirs = Node::slice_of(&theirs.siblings);
    let mut siblings: Vec<(usize, Node)> =
        places.iter().zip(theirs).map(|((index, _), node)| (*index, *node)).collect();
    siblings.sort_by_key(|(index, _)| *index);
    Ok(MultiProof { terminals, siblings: siblings.into_iter().map(|(_, node)| node).collect() })
}

/// A witness as `nomt-core` has it: the paths in key order. `hasher` is that of its root.
pub fn witness_to(hasher: Hasher, ours: &DecodedWitness) -> Result<TheirWitness, ConvertError> {
    let nodes = nodes(hasher, &ours.proof)?;
    let mut path_proofs = Vec::with_capacity(ours.proof.terminals.len());
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut ops = ours.ops.iter().peekable();
    let mut last: Option<Key> = None;
    for (path_index, terminal) in ours.proof.terminals.iter().enumerate() {
        let siblings = (1..=terminal.depth()).map(|depth| {
            let place = Prefix::new(terminal.bits(), depth).sibling();
            place.and_then(|place| nodes.get(&place)).ok_or(ConvertError::Inconsistent)
        });
        let siblings = siblings.map(|node| node.map(|node| node.to_bytes()));
        let inner = TheirPath {
            terminal: terminal_to(terminal)?,
            siblings: siblings.collect::<Result<_, ConvertError>>()?,
        };
        path_proofs.push(WitnessedPath { inner, path: position(&terminal.prefix()) });
        let mut used = false;
        while let Some(Op { key, access }) = ops.next_if(|op| terminal.covers(&op.key)) {
            if last.is_some_and(|last| last >= *key) {
                return Err(ConvertError::RepeatedKey);
            }
            (last, used) = (Some(*key), true);
            if access.reads() {
                let value = terminal.value_of(key).map(|hash| hash.to_bytes());
                reads.push(WitnessedRead { key: *key, value, path_index });
            }
            if let Some(value) = access.written() {
                let value = value.map(|hash| hash.to_bytes());
                writes.push(WitnessedWrite { key: *key, value, path_index });
            }
        }
        if !used {
            return Err(ConvertError::UnusedPath);
        }
    }
    if ops.next().is_some() {
        return Err(ConvertError::OpOutOfScope);
    }
    Ok(TheirWitness { path_proofs, operations: WitnessedOperations { reads, writes } })
}

/// A witness of `nomt-core` as ours. Its paths may be in any order.
pub fn witness_from(theirs: &TheirWitness) -> Result<DecodedWitness, ConvertError> {
    let mut paths = Vec::with_capacity(theirs.path_proofs.len());
    for WitnessedPath { inner, path } in &theirs.path_proofs {
        let ours = path_from(inner)?;
        let (expected, found) = (usize::from(ours.terminal.depth()), usize::from(path.depth()));
        if position(&ours.terminal.prefix()) != *path {
            return Err(ConvertError::Position { expected, found });
        }
        paths.push(ours);
    }
    let terminal = |index: usize, key: &Key| {
        let terminal = paths.get(index).map(|path| path.terminal);
        terminal.filter(|terminal| terminal.covers(key)).ok_or(ConvertError::OpOutOfScope)
    };
    // Of each key, whether it was read, and what was written.
    let mut ops: BTreeMap<Key, (bool, Option<Option<ValueHash>>)> = BTreeMap::new();
    for WitnessedRead { key, value, path_index } in &theirs.operations.reads {
        let terminal = terminal(*path_index, key)?;
        if terminal.value_of(key).map(|hash| hash.to_bytes()) != *value {
            return Err(ConvertError::ReadValue);
        }
        if ops.insert(*key, (true, None)).is_some() {
            return Err(ConvertError::RepeatedKey);
        }
    }
    for WitnessedWrite { key, value, path_index } in &theirs.operations.writes {
        terminal(*path_index, key)?;
        let (_, written) = ops.entry(*key).or_default();
        if written.replace(value.map(ValueHash::new)).is_some() {
            return Err(ConvertError::RepeatedKey);
        }
    }
    paths.sort_by_key(|path| path.terminal.prefix());
    let ops: Vec<Op> = ops
        .into_iter()
        .map(|(key, (read, written))| {
            let access = match (read, written) {
                (_, None) => Access::Read,
                (false, Some(value)) => Access::Write(value),
                (true, Some(value)) => Access::ReadWrite(value),
            };
            Op { key, access }
        })
        .collect();
    let proof = join(&paths)?;
    let mut left = ops.iter().peekable();
    for terminal in &proof.terminals {
        left.next_if(|op| terminal.covers(&op.key)).ok_or(ConvertError::UnusedPath)?;
        while left.next_if(|op| terminal.covers(&op.key)).is_some() {}
    }
    Ok(DecodedWitness { proof, ops })
}

/// The multiproof of these paths, which are in key order.
fn join(paths: &[PathProof]) -> Result<MultiProof, ConvertError> {
    let terminals: Vec<Terminal> = paths.iter().map(|path| path.terminal).collect();
    let places = climbing(&terminals)?;
    for (left, right) in paths.iter().zip(paths.iter().skip(1)) {
        let shared = prefix::common_len(left.terminal.bits(), right.terminal.bits()).into();
        if left.siblings.get(..shared) != right.siblings.get(..shared) {
            return Err(ConvertError::Inconsistent);
        }
    }
    let siblings = places.iter().map(|climbing| {
        // Any path below the place has the sibling.
        let at = terminals.partition_point(|terminal| terminal.prefix() < *climbing);
        let depth = usize::from(climbing.len()).saturating_sub(1);
        let sibling = paths.get(at).and_then(|path| path.siblings.get(depth));
        sibling.copied().ok_or(ConvertError::Inconsistent)
    });
    let siblings = siblings.collect::<Result<_, ConvertError>>()?;
    Ok(MultiProof { terminals, siblings })
}

/// The prefix that climbs past each sibling, in our order.
fn climbing(terminals: &[Terminal]) -> Result<Vec<Prefix>, ConvertError> {
    for terminal in terminals {
        if terminal.depth() > MAX_DEPTH {
            return Err(ConvertError::TooDeep { depth: terminal.depth().into() });
        }
    }
    let places = multi::sibling_places(terminals).ok_or(ConvertError::TerminalOrder)?;
    Ok(places.iter().filter_map(Prefix::sibling).collect())
}

/// Our siblings, each with the prefix that climbs past it.
fn placed(ours: &MultiProof) -> Result<Vec<(Prefix, Node)>, ConvertError> {
    let places = climbing(&ours.terminals)?;
    let (expected, found) = (places.len(), ours.siblings.len());
    if expected != found {
        return Err(ConvertError::SiblingCount { expected, found });
    }
    Ok(places.into_iter().zip(ours.siblings.iter().copied()).collect())
}

/// All nodes that a multiproof has or leads to, by their places.
fn nodes(hasher: Hasher, ours: &MultiProof) -> Result<BTreeMap<Prefix, Node>, ConvertError> {
    let mut nodes = BTreeMap::new();
    for (climbing, node) in placed(ours)? {
        nodes.extend(climbing.sibling().map(|place| (place, node)));
    }
    nodes.extend(ours.terminals.iter().map(|t| (t.prefix(), t.node(hasher))));
    let mut levels: BTreeMap<u16, Vec<Prefix>> = BTreeMap::new();
    for place in nodes.keys() {
        levels.entry(place.len()).or_default().push(*place);
    }
    while let Some((_, places)) = levels.pop_last() {
        for left in places.iter().filter(|place| !place.is_right()) {
            let (Some(parent), Some(right)) = (left.parent(), left.sibling()) else { continue };
            if let (Some(left), Some(right)) = (nodes.get(left), nodes.get(&right)) {
                let node = node::tag_internal(hasher.hash64(&node::node_preimage(left, right)));
                nodes.insert(parent, node);
                levels.entry(parent.len()).or_default().push(parent);
            }
        }
    }
    Ok(nodes)
}

fn terminal_to(ours: &Terminal) -> Result<PathProofTerminal, ConvertError> {
    Ok(match ours {
        Terminal::Leaf { depth, .. } if *depth > MAX_DEPTH => {
            return Err(ConvertError::TooDeep { depth: usize::from(*depth) });
        }
        Terminal::Leaf { key, value_hash, .. } => {
            PathProofTerminal::Leaf(LeafData { key_path: *key, value_hash: value_hash.to_bytes() })
        }
        Terminal::Terminator { prefix } => PathProofTerminal::Terminator(position(prefix)),
    })
}

fn terminal_from(theirs: &PathProofTerminal, depth: usize) -> Result<Terminal, ConvertError> {
    let too_deep = ConvertError::TooDeep { depth };
    let levels = u16::try_from(depth).ok().filter(|levels| *levels <= MAX_DEPTH).ok_or(too_deep)?;
    match theirs {
        PathProofTerminal::Leaf(leaf) => Ok(Terminal::Leaf {
            depth: levels,
            key: leaf.key_path,
            value_hash: leaf.value_hash.into(),
        }),
        PathProofTerminal::Terminator(position) if position.depth() == levels => {
            Ok(Terminal::Terminator { prefix: Prefix::new(&position.raw_path(), levels) })
        }
        PathProofTerminal::Terminator(position) => {
            Err(ConvertError::Position { expected: depth, found: position.depth().into() })
        }
    }
}

fn position(prefix: &Prefix) -> TriePosition {
    if prefix.len() == 0 {
        TriePosition::new()
    } else {
        TriePosition::from_path_and_depth(*prefix.first_key(), prefix.len())
    }
}
