//! Nodes: 32 bytes that stand for a subtrie, and the one rule that combines two of them.
//!
//! The top bit of byte 0 is set in a leaf node and clear in an internal node. 32 zero bytes are the
//! terminator, the node of an empty subtrie at any depth (`docs/trie.md`).
//!
//! [`Key`], [`ValueHash`] and [`Node`] all have 32 bytes. Keys are plain bytes, since callers bring
//! them; the other two are types of their own, so that none passes for another.
//!
//! ```
//! use pleach_core::node::{NodeKind, combine, kind, leaf, value_hash};
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! let (low, high) = ([0x00; 32], [0xff; 32]);
//! let left = leaf(Hasher::BLAKE3, &low, &value_hash(Hasher::BLAKE3, b"7"));
//! let right = leaf(Hasher::BLAKE3, &high, &value_hash(Hasher::BLAKE3, b"8"));
//!
//! // Two leaves make an internal node; a leaf beside nothing moves up unchanged.
//! assert_eq!(kind(&combine(Hasher::BLAKE3, &left, &right)), NodeKind::Internal);
//! assert_eq!(combine(Hasher::BLAKE3, &left, &TERMINATOR), left);
//! ```

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{hasher::Hasher, hexadecimal::from_hex};

/// A 32-byte key path; bit 0 is the most significant bit of byte 0.
///
/// Plain bytes, since callers bring them: usually the hash of the name of an entry.
pub type Key = [u8; 32];

/// True when key `a` comes before key `b`. Usually the first eight bytes decide, without a call.
#[doc(hidden)]
#[inline]
pub fn precedes(a: &Key, b: &Key) -> bool {
    let lead = |key: &Key| key.first_chunk().map(|lead| u64::from_be_bytes(*lead));
    let (left, right) = (lead(a), lead(b));
    if left == right { a < b } else { left < right }
}

/// A type for 32 bytes that cannot be confused with another, and is laid out like the bytes.
macro_rules! bytes32 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(
            feature = "serde",
            expect(clippy::unsafe_derive_deserialize, reason = "any 32 bytes are one")
        )]
        #[repr(transparent)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The value with these bytes.
            #[inline]
            pub const fn new(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The bytes.
            #[inline]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The bytes, copied.
            #[inline]
            pub const fn to_bytes(self) -> [u8; 32] {
                self.0
            }

            /// Bytes read as a value, in place.
            #[inline]
            pub fn ref_of(bytes: &[u8; 32]) -> &Self {
                zerocopy::transmute_ref!(bytes)
            }

            /// Bytes read as values, in place.
            #[inline]
            pub fn slice_of(bytes: &[[u8; 32]]) -> &[Self] {
                zerocopy::transmute_ref!(bytes)
            }

            /// The bytes of neighbouring values, in place: 32 for each value.
            #[inline]
            pub fn bytes_of(values: &[Self]) -> &[u8] {
                IntoBytes::as_bytes(values)
            }
        }

        impl From<[u8; 32]> for $name {
            #[inline]
            fn from(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
        }

        impl From<$name> for [u8; 32] {
            #[inline]
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl AsRef<[u8]> for $name {
            #[inline]
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        /// 64 lower-case hexadecimal digits.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        /// The digits of [`fmt::Display`], in either case, with or without `0x` and white space around them.
        impl core::str::FromStr for $name {
            type Err = ParseDigitsError;

            fn from_str(text: &str) -> Result<Self, ParseDigitsError> {
                parse_digits(text).map(Self)
            }
        }

        /// The text of [`fmt::Display`] in the type's name.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

/// A text that is no hash: it has this number of characters behind `0x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("64 hexadecimal digits are wanted, with or without 0x, and not these {0} characters")]
pub struct ParseDigitsError(usize);

fn parse_digits(text: &str) -> Result<[u8; 32], ParseDigitsError> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").or(digits.strip_prefix("0X")).unwrap_or(digits);
    let bytes = from_hex(digits).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| ParseDigitsError(digits.chars().count()))
}

bytes32! {
    /// The hash of a value, all 256 bits of it.
    ValueHash
}

bytes32! {
    /// The value of a subtrie: a leaf node, an internal node or [`TERMINATOR`].
    Node
}

/// The node of an empty subtrie.
pub const TERMINATOR: Node = Node::new([0; 32]);

const _: () = assert!(size_of::<Node>() == 32 && align_of::<Node>() == 1, "32 plain bytes");
const _: () = assert!(size_of::<ValueHash>() == 32 && align_of::<ValueHash>() == 1, "as above");

impl Default for Node {
    /// [`TERMINATOR`].
    fn default() -> Self {
        TERMINATOR
    }
}

/// The hash of a value.
#[inline]
pub fn value_hash(hasher: Hasher, value: &[u8]) -> ValueHash {
    ValueHash(hasher.hash(value))
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// An empty subtrie.
    Terminator,
    /// A subtrie with exactly one key.
    Leaf,
    /// A subtrie with two keys or more.
    Internal,
}

/// The kind that a node's bytes show.
#[inline]
pub fn kind(node: &Node) -> NodeKind {
    if node.0[0] & 0x80 != 0 {
        NodeKind::Leaf
    } else if *node == TERMINATOR {
        NodeKind::Terminator
    } else {
        NodeKind::Internal
    }
}

/// The 64 bytes whose hash, tagged with `tag_leaf`, is the leaf node of a pair.
#[inline]
pub(crate) fn leaf_preimage(key: &Key, value_hash: &ValueHash) -> [u8; 64] {
    concat(key, &value_hash.0)
}

/// The 64 bytes whose hash, tagged with `tag_internal`, is the node above two others.
#[doc(hidden)]
#[inline]
pub fn node_preimage(left: &Node, right: &Node) -> [u8; 64] {
    concat(&left.0, &right.0)
}

/// Two 32-byte strings side by side.
#[inline]
fn concat(left: &[u8; 32], right: &[u8; 32]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..32].copy_from_slice(left);
    block[32..].copy_from_slice(right);
    block
}

/// Marks a hash as a leaf node.
#[doc(hidden)]
#[inline]
pub fn tag_leaf(mut hash: [u8; 32]) -> Node {
    hash[0] |= 0x80;
    Node(hash)
}

/// Marks a hash as an internal node.
#[doc(hidden)]
#[inline]
pub fn tag_internal(mut hash: [u8; 32]) -> Node {
    hash[0] &= 0x7f;
    Node(hash)
}

/// The leaf node of a key and the hash of its value.
pub fn leaf(hasher: Hasher, key: &Key, value_hash: &ValueHash) -> Node {
    tag_leaf(hasher.hash64(&leaf_preimage(key, value_hash)))
}

/// The result of combining two finished subtries, before any hashing.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combination {
    /// The result is already known: both empty, or a leaf that moves up.
    Known(Node),
    /// The result is `tag_internal(H(left ++ right))`.
    Hash,
}

/// Decides whether combining two subtries needs a hash; batch callers collect those that do.
#[doc(hidden)]
#[inline]
pub fn combine_kind(left: &Node, right: &Node) -> Combination {
    if *left != TERMINATOR && *right != TERMINATOR {
        // Nearly always.
        return Combination::Hash;
    }
    match (kind(left), kind(right)) {
        (NodeKind::Terminator, NodeKind::Terminator) => Combination::Known(TERMINATOR),
        (NodeKind::Leaf, NodeKind::Terminator) => Combination::Known(*left),
        (NodeKind::Terminator, NodeKind::Leaf) => Combination::Known(*right),
        _ => Combination::Hash,
    }
}

/// The node above two finished subtries: two terminators give a terminator, a leaf beside a
/// terminator moves up unchanged, everything else is hashed.
pub fn combine(hasher: Hasher, left: &Node, right: &Node) -> Node {
    match combine_kind(left, right) {
        Combination::Known(node) => node,
        Combination::Hash => tag_internal(hasher.hash64(&node_preimage(left, right))),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn nodes_are_written_as_their_bytes() {
        let node = Node::new(core::array::from_fn(|index| u8::try_from(index).unwrap() ^ 0xa0));
        assert!(node.to_string().starts_with("a0a1a2a3"));
        assert_eq!(node.to_string().len(), 64);
        assert_eq!(alloc::format!("{node:?}"), alloc::format!("Node({node})"));
    }

    #[test]
    fn slices_are_read_in_place_and_back() {
        let bytes = [[1; 32], [2; 32], [3; 32]];
        let nodes = Node::slice_of(&bytes);
        assert_eq!(nodes[1].to_bytes(), [2; 32]);
        assert_eq!(Node::bytes_of(nodes), bytes.as_flattened());
        assert_eq!(Node::bytes_of(nodes).as_ptr(), bytes.as_ptr().cast());
    }

    #[test]
    fn the_order_is_that_of_the_bytes() {
        let (low, high) = (Node::new([1; 32]), Node::new([2; 32]));
        assert!(low < high && TERMINATOR < low && Node::default() == TERMINATOR);
    }
}
