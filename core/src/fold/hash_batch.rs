//! Hashes collected until they are many: of nodes, and of values.

use alloc::vec::Vec;

use super::HashId;
use super::item::index32;
use crate::hasher::Hasher;
use crate::node::{Combined, Node, combine_kind, tag_internal};

/// Batch of 64-byte hashes with their destinations.
#[derive(Default)]
pub(super) struct Batch {
    /// Blocks, back to back. Halves are appended, so that no block is first put together on the
    /// stack.
    bytes: Vec<u8>,
    dest: Vec<u32>,
    out: Vec<[u8; 32]>,
}

impl Batch {
    pub(super) fn push(&mut self, left: &[u8; 32], right: &[u8; 32], dest: u32) {
        self.bytes.extend_from_slice(left);
        self.bytes.extend_from_slice(right);
        self.dest.push(dest);
    }

    pub(super) fn push_nodes(&mut self, left: &Node, right: &Node, dest: u32) {
        self.push(left.as_bytes(), right.as_bytes(), dest);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.dest.clear();
    }

    pub(super) fn run<H: Hasher>(&mut self, mut each: impl FnMut(u32, &[u8; 32])) -> u64 {
        let (blocks, _) = self.bytes.as_chunks::<64>();
        let count = blocks.len();
        if count == 0 {
            return 0;
        }
        self.out.resize(count.max(self.out.len()), [0; 32]);
        H::hash64_many(blocks, &mut self.out[..count]);
        for (dest, hash) in self.dest.iter().zip(&self.out) {
            each(*dest, hash);
        }
        self.clear();
        count as u64
    }
}

/// Values to hash, of at most one block each.
#[derive(Default)]
pub(super) struct Values {
    pub(super) blocks: Vec<[u8; 64]>,
    pub(super) lens: Vec<u8>,
    pub(super) dest: Vec<HashId>,
    pub(super) out: Vec<[u8; 32]>,
}

/// Combines each chunk of `width` neighbouring nodes of one depth into the node above them all;
/// `nodes` shrinks to one node for each chunk.
///
/// # Panics
/// When `width` is not a power of two or does not divide the number of nodes.
pub fn combine_chunks<H: Hasher>(nodes: &mut Vec<Node>, width: usize) {
    assert!(width.is_power_of_two() && nodes.len().is_multiple_of(width), "whole chunks");
    let mut batch = Batch::default();
    let mut width = width;
    while width > 1 {
        let count = nodes.len() / 2;
        for at in 0..count {
            let (left, right) = (nodes[2 * at], nodes[2 * at + 1]);
            match combine_kind(&left, &right) {
                Combined::Known(node) => nodes[at] = node,
                Combined::Hash => batch.push_nodes(&left, &right, index32(at)),
            }
        }
        nodes.truncate(count);
        batch.run::<H>(|at, hash| nodes[at as usize] = tag_internal(*hash));
        width /= 2;
    }
}
