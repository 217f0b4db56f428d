//! The hashing of a fold: values, leaf nodes, then the merges from the deepest boundary up.

use alloc::vec::Vec;

use super::batch_folder::BatchFolder;
use super::item::{END, Merge, Span, Subtrie, index32};
use super::{Captured, heap_index};
use crate::node::{
    Combined, Key, NodeKind, TERMINATOR, combine_kind, kind, tag_internal, tag_leaf,
};
use crate::prefix::bit;

impl BatchFolder {
    /// Hashes everything that was added.
    ///
    /// # Panics
    /// When a fold is open.
    #[inline]
    pub fn run(&mut self) {
        assert!(self.open.is_none(), "all folds are closed");
        self.hashed += self.values.run();
        self.hash_leaves();
        self.merge_all();
        self.lift_to_floors();
    }

    fn hash_leaves(&mut self) {
        for (item, hash) in self.leaves.drain(..) {
            // The halves of `node::leaf_preimage`.
            self.batch.push(
                &self.items[item as usize].key,
                self.values.hash(hash).as_bytes(),
                item,
            );
        }
        let (hasher, subtries) = (self.values.hasher, &mut self.subtries);
        self.hashed +=
            self.batch.run(hasher, |item, hash| subtries[item as usize].node = tag_leaf(*hash));
    }

    /// Merges every boundary, deepest first.
    fn merge_all(&mut self) {
        // What an earlier use left is overwritten: each boundary merges once.
        self.merges.resize(
            self.items.len(),
            Merge { left_opened: false, right_opened: false, sibling: TERMINATOR },
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

    /// Merges the subtries on both sides of `order[from..to]`, all boundaries at `depth`.
    fn merge_at(&mut self, depth: u16, from: usize, to: usize) {
        for at in from..to {
            let boundary = self.order[at];
            for head in [self.subtries[boundary as usize].head, boundary + 1] {
                if self.subtries[head as usize].depth > depth + 1 {
                    self.lift(head, depth + 1);
                }
            }
        }
        self.finish_lifts();
        for at in from..to {
            self.merge(self.order[at], depth);
        }
        let (hasher, subtries) = (self.values.hasher, &mut self.subtries);
        self.hashed +=
            self.batch.run(hasher, |head, hash| subtries[head as usize].node = tag_internal(*hash));
    }

    fn merge(&mut self, boundary: u32, depth: u16) {
        let (head, right) = (self.subtries[boundary as usize].head, boundary + 1);
        let (a, b) = (&self.subtries[head as usize], &self.subtries[right as usize]);
        let merge = &mut self.merges[boundary as usize];
        (merge.left_opened, merge.right_opened) = (a.opened, b.opened);
        if a.opened != b.opened {
            merge.sibling = if a.opened { b.node } else { a.node };
        }
        let known = match combine_kind(&a.node, &b.node) {
            Combined::Known(node) => Some(node),
            Combined::Hash => {
                self.batch.push_nodes(&a.node, &b.node, head);
                None
            }
        };
        let (opened, tail) = (a.opened || b.opened, b.tail);
        for (side, first) in [(a, head), (b, right)] {
            if side.computed {
                let key = &self.items[first as usize].key;
                capture(&mut self.captured, &self.spans, side, key, depth + 1);
            }
        }
        let group = &mut self.subtries[head as usize];
        group.opened = opened;
        group.computed = true;
        group.depth = depth;
        group.tail = tail;
        if let Some(node) = known {
            group.node = node;
        }
        self.subtries[tail as usize].head = head;
    }

    /// Takes a subtrie's node up to depth `to`: at once when it is a leaf or a terminator, which
    /// need no hash to move, otherwise with the next [`Self::finish_lifts`].
    fn lift(&mut self, head: u32, to: u16) {
        let group = &mut self.subtries[head as usize];
        if group.depth <= to {
            return;
        }
        if kind(&group.node) == NodeKind::Internal {
            if group.computed {
                let key = &self.items[head as usize].key;
                capture(&mut self.captured, &self.spans, group, key, group.depth);
            }
            self.lifts.push((head, to));
        } else {
            group.depth = to;
        }
    }

    /// Lifts all nodes that wait, each beside terminators, one level in each round.
    fn finish_lifts(&mut self) {
        while !self.lifts.is_empty() {
            let (subtries, items, batch) = (&mut self.subtries, &self.items, &mut self.batch);
            let (spans, captured) = (&self.spans, &mut self.captured);
            self.lifts.retain(|(head, to)| {
                let group = &mut subtries[*head as usize];
                let key = &items[*head as usize].key;
                capture_beside(captured, spans, group, key);
                group.depth -= 1;
                group.computed = true;
                if bit(key, group.depth) {
                    batch.push_nodes(&TERMINATOR, &group.node, *head);
                } else {
                    batch.push_nodes(&group.node, &TERMINATOR, *head);
                }
                group.depth > *to
            });
            self.hashed += self.batch.run(self.values.hasher, |head, hash| {
                let group = &mut subtries[head as usize];
                group.node = tag_internal(*hash);
                capture(captured, spans, group, &items[head as usize].key, group.depth);
            });
        }
    }

    fn lift_to_floors(&mut self) {
        for at in 0..self.spans.len() {
            let span = self.spans[at];
            if span.start < span.end {
                self.lift(span.start, span.floor);
            }
        }
        self.finish_lifts();
    }
}

/// [`heap_index`] of the prefix at `depth` on the way to `key`, when a fold captures there.
#[inline]
fn captured_index(span: &Span, key: &Key, depth: u16) -> Option<u8> {
    if let Some(columns) = span.columns.filter(|_| span.capture > 0) {
        // A position ends with the bit at which those above it part.
        let index = 2 * columns.parting_at(key, depth.checked_sub(1)?)? + 1;
        return Some(index + u8::from(bit(key, depth - 1)));
    }
    if depth <= span.floor || depth > span.floor + u16::from(span.capture) {
        return None;
    }
    // At most seven bits before them and five of them.
    let byte = usize::from(span.floor / 8);
    let window = u16::from_be_bytes([key[byte], key.get(byte + 1).copied().unwrap_or(0)]);
    let levels = depth - span.floor;
    let bits = (window << (span.floor % 8)) >> (16 - levels);
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_CAPTURE bits")]
    Some(heap_index(levels as u8, bits as u8))
}

/// Captures a subtrie's node at `depth`.
#[inline]
fn capture(to: &mut Vec<Captured>, spans: &[Span], group: &Subtrie, key: &Key, depth: u16) {
    if let Some(index) = captured_index(&spans[group.fold as usize], key, depth) {
        to.push(Captured { fold: group.fold, index, node: group.node });
    }
}

/// Captures that nothing is beside a subtrie, which is about to be lifted.
#[inline]
fn capture_beside(to: &mut Vec<Captured>, spans: &[Span], group: &Subtrie, key: &Key) {
    if let Some(index) = captured_index(&spans[group.fold as usize], key, group.depth) {
        // Of two siblings, the left one has the odd number.
        let index = if index % 2 == 1 { index + 1 } else { index - 1 };
        to.push(Captured { fold: group.fold, index, node: TERMINATOR });
    }
}
