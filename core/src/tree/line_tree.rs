//! The keys of a page in order, and a line for each boundary between neighbours.
//!
//! Invariants: keys are strictly increasing and share the first `floor` bits; there are at most [`LineTree::MAX`]; the
//! slots of keys are `0..len`, those of lines `0..len - 1`; `parent` follows from `shared`. A line whose bit in `known` is
//! set has the nodes of the two children of its boundary.

use alloc::vec::Vec;

use super::Line;
use super::numbers::link;
use crate::cpu_prefetch::cpu_prefetch;
use crate::node::{Key, Node, precedes};
use crate::prefix::{Prefix, bits_after, common_len};
use crate::search::{guess, lower_bound_bits};

/// No boundary.
pub(super) const NONE: u8 = u8::MAX;

/// A key in its order, and the boundary after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Bits that this key and the next one share.
    shared: u8,
    /// The boundary above this one.
    parent: u8,
    /// Where the key is; whoever has values has them under the same number.
    slot: u8,
    /// Where the boundary's line is.
    line: u8,
}

/// The keys of a page and their nodes (the header of this file).
#[derive(Clone, Debug)]
pub struct LineTree {
    floor: u16,
    pub(super) entries: Vec<Entry>,
    /// The 32 bits of each key behind the floor, in order.
    leads: Vec<u32>,
    pub(super) keys: Vec<Key>,
    pub(super) lines: Vec<Line>,
    /// One bit for the line in each slot.
    pub(super) known: [u64; 4],
}

impl LineTree {
    /// Most keys of a tree.
    pub const MAX: usize = NONE as usize;

    /// The tree of these keys, all of whose lines are unknown. Key `i` is in slot `i`.
    ///
    /// # Panics
    /// When there are more than [`Self::MAX`]. Keys that are not increasing give a tree that finds nothing.
    pub fn from_keys(floor: u16, keys: &[Key]) -> Self {
        let mut tree = Self {
            floor,
            entries: Vec::new(),
            leads: Vec::new(),
            keys: keys.to_vec(),
            lines: alloc::vec![Line::default(); keys.len().saturating_sub(1)],
            known: [0; 4],
        };
        let shared = keys.windows(2).map(|pair| small(common_len(&pair[0], &pair[1])));
        let shared = shared.chain(core::iter::once(0));
        let entries = shared.zip(0..NONE).map(|(shared, at)| (shared, at, at));
        tree.set_order(entries.take(keys.len()));
        tree
    }

    /// Puts the entries in order: of each the shared bits with the next one, the slot and the line.
    pub(super) fn set_order(&mut self, entries: impl Iterator<Item = (u8, u8, u8)>) {
        self.entries.clear();
        let entry = |(shared, slot, line)| Entry { shared, parent: NONE, slot, line };
        self.entries.extend(entries.map(entry));
        assert_eq!(self.entries.len(), self.keys.len(), "at most 255 keys");
        self.leads.clear();
        let lead = |entry: &Entry| bits_after(&self.keys[usize::from(entry.slot)], self.floor);
        self.leads.extend(self.entries.iter().map(lead));
        let count = self.entries.len().saturating_sub(1);
        let entries = core::cell::Cell::from_mut(self.entries.as_mut_slice()).as_slice_of_cells();
        link(
            count,
            |at| entries[at].get().shared.into(),
            |at, parent| {
                let entry = entries[at].get();
                entries[at].set(Entry { parent: index(parent), ..entry });
            },
        );
    }

    /// Number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Are there none?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bits that all keys share: the depth of the node of the whole page.
    #[inline]
    pub fn floor(&self) -> u16 {
        self.floor
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * (size_of::<Entry>() + size_of::<u32>())
            + self.keys.capacity() * size_of::<Key>()
            + self.lines.capacity() * size_of::<Line>()
    }

    /// Key `at` in order.
    #[inline]
    pub fn key(&self, at: usize) -> &Key {
        &self.keys[self.slot(at)]
    }

    /// The slot of key `at` in order.
    #[inline]
    pub fn slot(&self, at: usize) -> usize {
        self.entries[at].slot.into()
    }

    /// Where a key is in order, or where it would be.
    ///
    /// # Errors
    /// The number of keys before it, when it is not here.
    #[inline]
    pub fn find(&self, key: &Key) -> Result<usize, usize> {
        let lead = bits_after(key, self.floor);
        let mut at = lower_bound_bits(lead, self.len(), |at| self.leads[at] < lead);
        // Few keys have the same 32 bits.
        while at < self.len() && self.leads[at] == lead {
            let own = self.key(at);
            if own == key {
                return Ok(at);
            }
            if precedes(key, own) {
                break;
            }
            at += 1;
        }
        Err(at)
    }

    /// Prefetches what [`Self::find`] reads first.
    #[inline]
    pub fn cpu_prefetch_order(&self, key: &Key) {
        let guess = guess(bits_after(key, self.floor), self.len());
        let near = guess.saturating_sub(6)..(guess + 6).min(self.len());
        cpu_prefetch(&self.leads[near.clone()]);
        cpu_prefetch(&self.entries[near]);
    }

    /// Prefetches the lines on the path of entry `at`.
    #[inline]
    pub fn cpu_prefetch_lines(&self, at: usize) {
        let mut boundary = self.above(at);
        while let Some(at) = boundary {
            cpu_prefetch(core::slice::from_ref(&self.lines[self.line_slot(at)]));
            boundary = self.parent(at);
        }
    }

    /// Takes in the nodes that a page stores for the positions `levels` below the floor, in order: they are the two halves
    /// of the boundaries one level above.
    ///
    /// # Panics
    /// When there are not `2^levels` nodes.
    pub fn set_stored(&mut self, levels: u8, nodes: &[Node]) {
        assert_eq!(nodes.len(), 1 << levels, "one node a position");
        for at in 0..self.len().saturating_sub(1) {
            if levels > 0 && self.shared(at) == self.floor + u16::from(levels) - 1 {
                // Of two neighbours the left one lies at an even position.
                let left = (self.leads[at] >> (32 - levels)) as usize;
                self.set_line(self.line_slot(at), &[nodes[left], nodes[left + 1]]);
            }
        }
    }

    /// The leaf node of key `at`, if the line above it is known.
    pub(super) fn leaf_node(&self, at: usize) -> Option<&Node> {
        let above = self.above(at)?;
        Some(&self.line(self.line_slot(above))?[usize::from(above < at)])
    }

    /// The slot of a boundary's line.
    #[inline]
    pub(super) fn line_slot(&self, boundary: usize) -> usize {
        self.entries[boundary].line.into()
    }

    /// Bits that keys `at` and `at + 1` share.
    #[inline]
    pub(super) fn shared(&self, at: usize) -> u16 {
        self.entries[at].shared.into()
    }

    #[inline]
    pub(super) fn parent(&self, boundary: usize) -> Option<usize> {
        some(self.entries[boundary].parent)
    }

    /// The boundary directly above key `at`.
    #[inline]
    pub(super) fn above(&self, at: usize) -> Option<usize> {
        let last = self.len() - 1;
        if at == 0 {
            return (last > 0).then_some(0);
        }
        let is_left = at < last && self.entries[at].shared > self.entries[at - 1].shared;
        Some(if is_left { at } else { at - 1 })
    }

    /// The line in a slot, if it is known.
    #[inline]
    pub(super) fn line(&self, slot: usize) -> Option<&[Node; 2]> {
        (self.known[slot / 64] >> (slot % 64) & 1 == 1).then(|| &self.lines[slot].0)
    }

    /// A line is known from now on.
    #[inline]
    pub fn set_line(&mut self, slot: usize, pair: &[Node; 2]) {
        self.lines[slot].0 = *pair;
        self.known[slot / 64] |= 1 << (slot % 64);
    }

    /// All nodes that are known, each with its place.
    pub fn nodes(&self) -> impl Iterator<Item = (Prefix, &Node)> {
        (0..self.len().saturating_sub(1)).flat_map(move |at| {
            let line = self.line(self.line_slot(at));
            let place = move |right: usize| Prefix::new(self.key(at + right), self.shared(at) + 1);
            (0..2).filter_map(move |right| Some((place(right), &line?[right])))
        })
    }

    /// The lines on the path of entry `at` are unknown from now on.
    pub fn forget_path(&mut self, at: usize) {
        let mut boundary = self.above(at);
        while let Some(at) = boundary {
            self.forget(self.line_slot(at));
            boundary = self.parent(at);
        }
    }

    pub(super) fn forget(&mut self, slot: usize) {
        self.known[slot / 64] &= !(1 << (slot % 64));
    }

    /// Is every line known?
    pub fn is_known(&self) -> bool {
        (0..self.lines.len()).all(|slot| self.line(slot).is_some())
    }
}

#[inline]
fn some(boundary: u8) -> Option<usize> {
    (boundary != NONE).then_some(boundary.into())
}

/// Fewer than 255 boundaries.
#[expect(clippy::cast_possible_truncation, reason = "a tree has at most 255 keys")]
#[inline]
pub(super) fn index(at: usize) -> u8 {
    debug_assert!(at <= LineTree::MAX);
    at as u8
}

/// Two different keys share fewer than 256 bits.
#[expect(clippy::cast_possible_truncation, reason = "keys that are not increasing find nothing")]
#[inline]
pub(super) fn small(shared: u16) -> u8 {
    shared as u8
}
