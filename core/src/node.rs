//! Nodes: 32 bytes that stand for a subtrie, and the one rule that combines two of them.
//!
//! The top bit of byte 0 is set in a leaf node and clear in an internal node; 32 zero bytes are
//! the terminator, an empty subtrie at any depth (`docs/trie.md`).

use crate::hasher::Hasher;

/// A 32-byte key path; bit 0 is the most significant bit of byte 0.
pub type Key = [u8; 32];
/// Does key `a` come before key `b`? The first eight bytes mostly decide, without a call.
#[inline]
pub fn precedes(a: &Key, b: &Key) -> bool {
    let lead = |key: &Key| key.first_chunk().map(|lead| u64::from_be_bytes(*lead));
    let (left, right) = (lead(a), lead(b));
    if left == right { a < b } else { left < right }
}

/// `H(value)`, all 256 bits kept.
pub type ValueHash = [u8; 32];
/// The value of a subtrie: a leaf node, an internal node or [`TERMINATOR`].
pub type Node = [u8; 32];

/// The node of an empty subtrie.
pub const TERMINATOR: Node = [0; 32];

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
    if node[0] & 0x80 != 0 {
        NodeKind::Leaf
    } else if *node == TERMINATOR {
        NodeKind::Terminator
    } else {
        NodeKind::Internal
    }
}

/// The 64 bytes whose hash, tagged with [`tag_leaf`], is the leaf node of a pair.
#[inline]
pub fn leaf_preimage(key: &Key, value_hash: &ValueHash) -> [u8; 64] {
    concat(key, value_hash)
}

/// Two 32-byte strings side by side.
#[inline]
pub fn concat(left: &[u8; 32], right: &[u8; 32]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..32].copy_from_slice(left);
    block[32..].copy_from_slice(right);
    block
}

/// Marks a hash as a leaf node.
#[inline]
pub fn tag_leaf(mut hash: [u8; 32]) -> Node {
    hash[0] |= 0x80;
    hash
}

/// Marks a hash as an internal node.
#[inline]
pub fn tag_internal(mut hash: [u8; 32]) -> Node {
    hash[0] &= 0x7f;
    hash
}

/// The leaf node of a key and the hash of its value.
pub fn leaf<H: Hasher>(key: &Key, value_hash: &ValueHash) -> Node {
    tag_leaf(H::hash64(&leaf_preimage(key, value_hash)))
}

/// What combining two finished subtries gives, before any hashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// The result is already known: both empty, or a leaf that moves up.
    Known(Node),
    /// The result is `tag_internal(H(left ++ right))`.
    Hash,
}

/// Decides whether combining two subtries needs a hash; batch callers collect those that do.
#[inline]
pub fn combine_kind(left: &Node, right: &Node) -> Combined {
    match (kind(left), kind(right)) {
        (NodeKind::Terminator, NodeKind::Terminator) => Combined::Known(TERMINATOR),
        (NodeKind::Leaf, NodeKind::Terminator) => Combined::Known(*left),
        (NodeKind::Terminator, NodeKind::Leaf) => Combined::Known(*right),
        _ => Combined::Hash,
    }
}

/// The node above two finished subtries: two terminators give a terminator, a leaf beside a
/// terminator moves up unchanged, everything else is hashed.
pub fn combine<H: Hasher>(left: &Node, right: &Node) -> Node {
    match combine_kind(left, right) {
        Combined::Known(node) => node,
        Combined::Hash => tag_internal(H::hash64(&concat(left, right))),
    }
}
