//! The hashing of a fold: values, leaf nodes, then the merges from the deepest boundary up.

use alloc::vec::Vec;

use super::{END, Folder, HashId, Merge, index32};
use crate::hasher::Hasher;
use crate::node::{
    Combined, Node, NodeKind, TERMINATOR, combine_kind, concat, kind, leaf_preimage, tag_internal,
    tag_leaf,
};
use crate::prefix::bit;

/// Batch of 64-byte hashes with their destinations.
#[derive(Default)]
pub(super) struct Batch {
    blocks: Vec<[u8; 64]>,
    dest: Vec<u32>,
    out: Vec<[u8; 32]>,
}

impl Batch {
    fn push(&mut self, block: [u8; 64], dest: u32) {
        self.blocks.push(block);
        self.dest.push(dest);
    }

    fn run<H: Hasher>(&mut self, mut each: impl FnMut(u32, [u8; 32])) -> u64 {
        let count = self.blocks.len();
        if count == 0 {
            return 0;
        }
        self.out.resize(count.max(self.out.len()), [0; 32]);
        H::hash64_many(&self.blocks, &mut self.out[..count]);
        for (dest, hash) in self.dest.iter().zip(&self.out) {
            each(*dest, *hash);
        }
        self.blocks.clear();
        self.dest.clear();
        count as u64
    }
}

/// Values to hash, at most one block each.
#[derive(Default)]
pub(super) struct Values {
    pub(super) blocks: Vec<[u8; 64]>,
    pub(super) lens: Vec<u8>,
    pub(super) dest: Vec<HashId>,
    pub(super) out: Vec<[u8; 32]>,
}

impl<H: Hasher> Folder<H> {
    /// Hashes everything that was added.
    ///
    /// # Panics
    /// When a fold is open.
    pub fn run(&mut self) {
        assert!(self.open.is_none(), "all folds are closed");
        self.hash_values();
        self.hash_leaves();
        self.merge_all();
        self.lift_to_floors();
    }

    fn hash_values(&mut self) {
        let count = self.values.blocks.len();
        let out = &mut self.values.out;
        out.resize(count.max(out.len()), [0; 32]);
        H::hash_short_many(&self.values.blocks, &self.values.lens, &mut out[..count]);
        for (dest, hash) in self.values.dest.iter().zip(&*out) {
            self.hashes[*dest as usize] = *hash;
        }
        self.hashed += count as u64;
        self.values.blocks.clear();
        self.values.lens.clear();
        self.values.dest.clear();
    }

    fn hash_leaves(&mut self) {
        for (item, hash) in self.leaves.drain(..) {
            self.batch.push(
                leaf_preimage(&self.items[item as usize].key, &self.hashes[hash as usize]),
                item,
            );
        }
        let groups = &mut self.groups;
        self.hashed +=
            self.batch.run::<H>(|item, hash| groups[item as usize].node = tag_leaf(hash));
    }

    /// Merges every boundary, deepest first.
    fn merge_all(&mut self) {
        self.merges.clear();
        self.merges.resize(
            self.items.len(),
            Merge { left_touched: false, right_touched: false, sibling: TERMINATOR },
        );
        self.sort_boundaries();
        let mut at = 0;
        while at < self.order.len() {
            let depth = self.cpl[self.order[at] as usize];
            let mut to = at;
            while to < self.order.len() && self.cpl[self.order[to] as usize] == depth {
                to += 1;
            }
            self.merge_at(depth, at, to);
            at = to;
        }
    }

    /// Counting sort of the boundaries, deepest first.
    fn sort_boundaries(&mut self) {
        let mut starts = [0u32; 257];
        for cpl in self.cpl.iter().filter(|cpl| **cpl != END) {
            starts[usize::from(*cpl)] += 1;
        }
        let mut sum = 0;
        for start in starts.iter_mut().rev() {
            let count = *start;
            *start = sum;
            sum += count;
        }
        self.order.clear();
        self.order.resize(sum as usize, 0);
        for (boundary, cpl) in self.cpl.iter().enumerate().filter(|(_, cpl)| **cpl != END) {
            let slot = &mut starts[usize::from(*cpl)];
            self.order[*slot as usize] = index32(boundary);
            *slot += 1;
        }
    }

    fn merge_at(&mut self, depth: u16, from: usize, to: usize) {
        loop {
            for at in from..to {
                let boundary = self.order[at];
                let left = self.groups[boundary as usize].head;
                self.lift_once(left, depth + 1);
                self.lift_once(boundary + 1, depth + 1);
            }
            if self.finish_lifts() == 0 {
                break;
            }
        }
        for at in from..to {
            let boundary = self.order[at];
            let (head, right) = (self.groups[boundary as usize].head, boundary + 1);
            let (a, b) = (self.groups[head as usize], self.groups[right as usize]);
            self.merges[boundary as usize] = Merge {
                left_touched: a.touched,
                right_touched: b.touched,
                sibling: if a.touched { b.node } else { a.node },
            };
            let group = &mut self.groups[head as usize];
            group.touched |= b.touched;
            group.depth = depth;
            group.tail = b.tail;
            match combine_kind(&a.node, &b.node) {
                Combined::Known(node) => group.node = node,
                Combined::Hash => self.batch.push(concat(&a.node, &b.node), head),
            }
            self.groups[b.tail as usize].head = head;
        }
        let groups = &mut self.groups;
        self.hashed +=
            self.batch.run::<H>(|head, hash| groups[head as usize].node = tag_internal(hash));
    }

    /// Queues one step up beside a terminator when the group's node is internal and deeper than
    /// `to`; leaves and terminators need no hash to move.
    fn lift_once(&mut self, head: u32, to: u16) {
        let group = &mut self.groups[head as usize];
        if group.depth <= to {
            return;
        }
        if kind(&group.node) != NodeKind::Internal {
            group.depth = to;
            return;
        }
        group.depth -= 1;
        let right = bit(&self.items[head as usize].key, group.depth);
        let block =
            if right { concat(&TERMINATOR, &group.node) } else { concat(&group.node, &TERMINATOR) };
        self.batch.push(block, head);
    }

    fn finish_lifts(&mut self) -> u64 {
        let groups = &mut self.groups;
        let count =
            self.batch.run::<H>(|head, hash| groups[head as usize].node = tag_internal(hash));
        self.hashed += count;
        count
    }

    fn lift_to_floors(&mut self) {
        loop {
            for at in 0..self.spans.len() {
                let span = self.spans[at];
                if span.start < span.end {
                    self.lift_once(span.start, span.floor);
                }
            }
            if self.finish_lifts() == 0 {
                break;
            }
        }
    }
}

/// Combines each run of `width` neighbouring nodes of one depth into the node above them all;
/// `nodes` shrinks to one node a run.
///
/// # Panics
/// When `width` is not a power of two or does not divide the number of nodes.
pub fn combine_tiles<H: Hasher>(nodes: &mut Vec<Node>, width: usize) {
    assert!(width.is_power_of_two() && nodes.len().is_multiple_of(width), "whole runs");
    let mut batch = Batch::default();
    let mut width = width;
    while width > 1 {
        let count = nodes.len() / 2;
        for at in 0..count {
            let (left, right) = (nodes[2 * at], nodes[2 * at + 1]);
            match combine_kind(&left, &right) {
                Combined::Known(node) => nodes[at] = node,
                Combined::Hash => batch.push(concat(&left, &right), index32(at)),
            }
        }
        nodes.truncate(count);
        batch.run::<H>(|at, hash| nodes[at as usize] = tag_internal(hash));
        width /= 2;
    }
}
