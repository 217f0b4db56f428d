//! Why proofs are refused, or cannot be encoded. One variant a rule.

use core::fmt;

crate::debug_is_text!(VerifyError, DecodeError);

/// Why a proof or witness was refused.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The bytes are not a canonical encoding.
    #[error("not an encoding: {0}")]
    Decode(DecodeError),
    /// Two nodes that cannot be siblings: a leaf or nothing beside nothing (the leaf would have moved
    /// up), or anything but two leaves at the last level.
    #[error("no trie has these two nodes as siblings, at depth {depth}")]
    Impossible {
        /// Depth of the two nodes.
        depth: u16,
    },
    /// More than the caller's [`Limits`](super::Limits) allow; nothing was hashed.
    #[error("{needed} {limit}, where {allowed} are allowed: {} too many", needed.saturating_sub(*allowed))]
    OverLimit {
        /// Which limit.
        limit: Limit,
        /// What the encoding needs.
        needed: u64,
        /// The limit.
        allowed: u64,
    },
    /// A subtrie of the range may differ between the two roots, and the proof does not open it.
    #[error("a subtrie of the range may have changed and is not opened, at depth {depth}")]
    Unopened {
        /// Depth of the subtrie's node.
        depth: u16,
    },
    /// The proof is about another root.
    #[error("the proof leads to another root")]
    RootMismatch,
    /// A block's witness in a namespace leads to another root than the block's witness in the trie of roots says.
    #[error("the witness of namespace {ns} leads to another root than the block says")]
    NamespaceRoot {
        /// The namespace.
        ns: u8,
    },
}

impl From<DecodeError> for VerifyError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::bytes`](super::Limits::bytes).
    Bytes,
    /// [`Limits::hashes`](super::Limits::hashes).
    Hashes,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Hashes => "hashes",
        })
    }
}

/// Why bytes are not a canonical encoding.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends inside the header or a record.
    #[error("cut short")]
    Truncated,
    /// Not a Pleach proof.
    #[error("wrong magic")]
    Magic,
    /// A version this code does not know.
    #[error("unknown version {0}")]
    Version(u8),
    /// Another kind of proof than asked for (where several would do, the first of them).
    #[error("this is {}, and {} was asked for", kind(*found), kind(*expected))]
    Kind {
        /// The kind asked for.
        expected: u8,
        /// The kind found.
        found: u8,
    },
    /// A proof under another hash function.
    #[error("made with {}, and verified with {}", hasher(*found), hasher(*expected))]
    HasherId {
        /// The hasher asked for.
        expected: u8,
        /// The hasher found.
        found: u8,
    },
    /// A reserved byte is not zero.
    #[error("a reserved byte is set")]
    Reserved,
    /// The sections do not add up to the input, or records to their section.
    #[error("lengths do not add up")]
    Length,
    /// A number of records that this kind of proof cannot have.
    #[error("impossible count")]
    Count,
    /// Flags that mean nothing.
    #[error("unknown flags")]
    UnknownFlags,
    /// A terminal deeper than any trie.
    #[error("a terminal at depth {depth}")]
    TooDeep {
        /// The depth claimed.
        depth: u16,
    },
    /// A terminator with a bit set beyond its depth.
    #[error("bits beyond a prefix")]
    BitsBehindDepth,
    /// Terminals that repeat, are unsorted, or one of which lies below another.
    #[error("terminals overlap or are unsorted")]
    TerminalOrder,
    /// More or fewer siblings than the terminals need.
    #[error("{found} siblings where the terminals need {expected}")]
    SiblingCount {
        /// Siblings that the terminals need.
        expected: u64,
        /// Siblings in the header.
        found: u32,
    },
    /// Operations that repeat or are unsorted.
    #[error("operations repeat or are unsorted")]
    OpOrder,
    /// An operation that is not below its terminal.
    #[error("an operation outside its terminal")]
    OpOutOfScope,
    /// A key is written out that must be left out, or the other way round.
    #[error("an operation's key is not in its shortest form")]
    OpKeyForm,
    /// A terminal without operations; in a change proof one without a change below it.
    #[error("a terminal that nothing uses")]
    UnusedTerminal,
    /// A range whose first key comes after its last one.
    #[error("the range ends before it begins")]
    EmptyRange,
    /// The first terminal does not cover the first key of the range, or the last one the last.
    #[error("the terminals do not begin and end where the range does")]
    RangeEnds,
    /// A key of the range that no terminal covers.
    #[error("a gap between the terminals of a range")]
    RangeGap,
    /// A sibling that did not change, and is there twice.
    #[error("a sibling that did not change is there twice")]
    RepeatedSibling,
    /// A key of the trie of roots that is no namespace's, or a path that ends elsewhere than the namespace's.
    #[error("not a namespace, or not the one that the proof names")]
    Namespace,
    /// An inner proof is missing, or there is one where nothing is to be proven.
    #[error("an inner proof is missing, or one too many")]
    Inner,
    /// What a block does with a namespace is not in the one form that it has, or cannot be done with it.
    #[error(
        "a block cannot do this with a namespace, or encodes it in another form than the canonical one"
    )]
    NamespaceAccess,
}

fn kind(number: u8) -> &'static str {
    match number {
        1 => "a proof of one key",
        2 => "a proof of several keys",
        3 => "a witness",
        4 => "a proof of a range",
        5 => "a proof of the changes in a range",
        6 => "a proof in a namespace",
        7 => "a proof of changes in a namespace",
        8 => "a witness of several namespaces",
        _ => "an unknown kind of proof",
    }
}

fn hasher(id: u8) -> &'static str {
    match crate::Hasher::of_id(id) {
        Some(own) => own.name(),
        None if id == crate::Hasher::APPLICATION => "an application's hasher",
        None => "an unknown hasher",
    }
}

/// Why something cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A count or a section's length does not fit 32 bits.
    #[error("too large for the format")]
    TooLarge,
    /// An operation lies under no terminal.
    #[error("operation {index} lies under no terminal")]
    OpOutOfScope {
        /// Index of the operation.
        index: usize,
    },
}

/// Why a proof cannot be built from these parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A part is not a canonical encoding, or the range is none.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The proof is too large for the format.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A multiproof of other keys than the range's ends (and, for a change proof, the keys that changed).
    #[error(
        "the multiproof is not of the ends of the range and, in a change proof, the keys that changed"
    )]
    Keys,
    /// A pair that is out of order or outside of the range, or contradicts the multiproof.
    #[error("pair {index} is out of order, outside of the range or not what the multiproof says")]
    Pair {
        /// Index of the pair.
        index: usize,
    },
    /// A pair that the multiproof has at an end of the range is not among the pairs.
    #[error("a pair at an end of the range is missing")]
    MissingPair,
    /// A subtrie of the range differs between the two states, and the multiproofs do not open it.
    #[error("a subtrie of the range changed and is not opened, at depth {depth}")]
    Unopened {
        /// Depth of the subtrie's node.
        depth: u16,
    },
}
