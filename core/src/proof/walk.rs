//! Subtries completed from left to right: how one flat list of siblings belongs to many terminals.
//!
//! Terminals come in key order. A finished subtrie climbs, one sibling a level, up to the level right below the next
//! fork: the deeper of where its path parts from the left neighbour's and from the right neighbour's. If the fork is
//! with the left, the two combine there and the result climbs on; otherwise it waits on the stack for its right side.
//! So the siblings are in post-order: all of the left subtree, its climb, all of the right subtree, its climb, the
//! climb of both.

use alloc::vec::Vec;

use super::{
    error::{DecodeError, VerifyError},
    terminal::MAX_DEPTH,
};
use crate::{
    hasher::Hasher,
    node::{self, Combination, Key, Node, ValueHash},
    prefix,
};

/// What is known of a subtrie while it climbs.
pub(super) trait WalkSubtrie: Copy {
    /// A subtrie that the proof does not open.
    fn sibling(node: Node) -> Self;

    /// Two siblings at `depth`, combined.
    fn join(hasher: Hasher, left: &Self, right: &Self, depth: u16) -> Result<Self, VerifyError>;
}

/// The node of a trie that exists: everything above a terminal is a hashed internal node.
#[derive(Clone, Copy)]
pub(super) struct ProvenNode(pub(super) Node);

impl WalkSubtrie for ProvenNode {
    fn sibling(node: Node) -> Self {
        Self(node)
    }

    fn join(hasher: Hasher, left: &Self, right: &Self, depth: u16) -> Result<Self, VerifyError> {
        let impossible = Err(VerifyError::Impossible { depth });
        match node::combine_kind(&left.0, &right.0) {
            Combination::Known(_) => return impossible,
            Combination::Hash => {}
        }
        // The whole key has been walked: only a leaf can be there.
        if depth == MAX_DEPTH && !(is_leaf(&left.0) && is_leaf(&right.0)) {
            return impossible;
        }
        Ok(Self(node::tag_internal(hasher.hash64(&node::node_preimage(&left.0, &right.0)))))
    }
}

fn is_leaf(node: &Node) -> bool {
    node::kind(node) == node::NodeKind::Leaf
}

/// A node before and after a batch.
#[derive(Clone, Copy)]
pub(super) struct NodePair {
    pub(super) before: ProvenNode,
    pub(super) after: Node,
}

impl WalkSubtrie for NodePair {
    fn sibling(node: Node) -> Self {
        Self { before: ProvenNode(node), after: node }
    }

    fn join(hasher: Hasher, left: &Self, right: &Self, depth: u16) -> Result<Self, VerifyError> {
        let before = ProvenNode::join(hasher, &left.before, &right.before, depth)?;
        let unchanged = left.after == left.before.0 && right.after == right.before.0;
        let after =
            if unchanged { before.0 } else { node::combine(hasher, &left.after, &right.after) };
        Ok(Self { before, after })
    }
}

/// The walk over finished terminals in order, each with the depth at which the path to the next one leaves its own.
pub(super) struct ProofWalk<'a, S> {
    hasher: Hasher,
    siblings: core::slice::Iter<'a, Node>,
    /// Finished subtries that wait for the right side of the fork at this depth. Forks grow strictly towards the top,
    /// so there are at most 256.
    stack: Vec<(S, u16)>,
}

impl<'a, S: WalkSubtrie> ProofWalk<'a, S> {
    pub(super) fn new(hasher: Hasher, siblings: &'a [Node]) -> Self {
        Self { hasher, siblings: siblings.iter(), stack: Vec::new() }
    }

    /// Takes the terminal at the first `depth` bits of `bits`. `fork` is the depth at which the next terminal's path
    /// leaves this one's, `None` for the last. Returns the root's subtrie after the last terminal.
    pub(super) fn push(
        &mut self,
        terminal: S,
        bits: &Key,
        mut depth: u16,
        fork: Option<u16>,
    ) -> Result<Option<S>, VerifyError> {
        let mut subtrie = terminal;
        loop {
            let left = self.stack.last().map(|(_, fork)| *fork);
            let deepest = left.max(fork);
            let stop = deepest.map_or(0, |fork| fork.saturating_add(1));
            while depth > stop {
                let sibling = S::sibling(*self.siblings.next().ok_or(DecodeError::Count)?);
                let above = depth.saturating_sub(1);
                let (l, r) = if prefix::bit(bits, above) {
                    (&sibling, &subtrie)
                } else {
                    (&subtrie, &sibling)
                };
                subtrie = S::join(self.hasher, l, r, depth)?;
                depth = above;
            }
            match (left, fork) {
                (Some(at), _) if deepest == left => {
                    let Some((waiting, _)) = self.stack.pop() else { return Ok(None) };
                    subtrie = S::join(self.hasher, &waiting, &subtrie, depth)?;
                    depth = at;
                }
                (_, Some(fork)) => {
                    self.stack.push((subtrie, fork));
                    return Ok(None);
                }
                _ => return Ok(Some(subtrie)),
            }
        }
    }
}

/// The node at `depth` over leaf nodes in key order, all below one prefix of that length.
///
/// The same walk with only terminators beside it: a leaf alone moves up to `depth`, two or more meet at their forks.
/// `stack` is scratch.
pub(super) fn fold_leaves(
    hasher: Hasher,
    leaves: &[(Key, Node)],
    depth: u16,
    stack: &mut Vec<(Node, u16)>,
) -> Node {
    stack.clear();
    let mut keys = leaves.iter().peekable();
    while let Some((key, node)) = keys.next() {
        let fork = keys.peek().map(|(next, _)| prefix::common_len(key, next));
        let mut node = *node;
        // A leaf fits at any depth; `at` matters once it is part of an internal node.
        let mut at = None;
        loop {
            let left = stack.last().map(|(_, fork)| *fork);
            let deepest = left.max(fork);
            if let Some(from) = at {
                let stop = deepest.map_or(depth, |fork| fork.saturating_add(1));
                node = lift(hasher, node, key, from, stop);
            }
            match (left, fork) {
                (Some(fork), _) if deepest == left => {
                    let Some((waiting, _)) = stack.pop() else { return node };
                    node = node::combine(hasher, &waiting, &node);
                    at = Some(fork);
                }
                (_, Some(fork)) => {
                    stack.push((node, fork));
                    break;
                }
                _ => return node,
            }
        }
    }
    node::TERMINATOR
}

/// An internal node at depth `from` on the path to `key`, lifted to depth `to` beside terminators.
fn lift(hasher: Hasher, mut node: Node, key: &Key, from: u16, to: u16) -> Node {
    for depth in (to..from).rev() {
        node = if prefix::bit(key, depth) {
            node::combine(hasher, &node::TERMINATOR, &node)
        } else {
            node::combine(hasher, &node, &node::TERMINATOR)
        };
    }
    node
}

/// Leaf nodes are hashed this many at a time.
const BATCH: usize = 32;

/// Leaves whose value hashes become leaf nodes in the same memory.
pub(super) struct LeafBatch {
    /// The second of a pair holds the value hash's bytes until it is hashed.
    pairs: Vec<(Key, Node)>,
}

impl LeafBatch {
    /// An empty list with room for `count` leaves.
    pub(super) fn with_room(count: usize) -> Self {
        let mut pairs = Vec::new();
        pairs.reserve_exact(count);
        Self { pairs }
    }

    pub(super) fn push(&mut self, key: Key, value_hash: ValueHash) {
        self.pairs.push((key, value_hash.to_bytes().into()));
    }

    /// The leaf nodes, each with its key.
    pub(super) fn hash(mut self, hasher: Hasher) -> Vec<(Key, Node)> {
        let mut blocks = [[0; 64]; BATCH];
        let mut hashes = [[0; 32]; BATCH];
        for chunk in self.pairs.chunks_mut(BATCH) {
            for (block, (key, value_hash)) in blocks.iter_mut().zip(chunk.iter()) {
                *block = node::leaf_preimage(key, &value_hash.to_bytes().into());
            }
            if let (Some(blocks), Some(hashes)) =
                (blocks.get(..chunk.len()), hashes.get_mut(..chunk.len()))
            {
                hasher.hash64_many(blocks, hashes);
            }
            for ((_, node), hash) in chunk.iter_mut().zip(&hashes) {
                *node = node::tag_leaf(*hash);
            }
        }
        self.pairs
    }
}
