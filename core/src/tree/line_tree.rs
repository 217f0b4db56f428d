//! The keys of a page in order, and a line for each boundary between neighbours, as far as lines are known.
//!
//! Invariants: keys are strictly increasing and share the first `floor` bits; there are at most [`LineTree::MAX`]. The slots
//! of keys are `0..len`. Each line belongs to one boundary, which names its slot; `owners` names the boundary of each. A line
//! has the nodes of the two children of its boundary. `parent` follows from `shared`.

use alloc::vec::Vec;

use super::Line;
use super::numbers::{above, link};
use crate::cpu_prefetch::cpu_prefetch;
use crate::node::{Key, Node, precedes};
use crate::prefix::{Prefix, bits_after, common_len};
use crate::search::{guess, lower_bound_bits};

/// No boundary, or no line.
pub(super) const NONE: u16 = u16::MAX;

/// A key in its order, and the boundary after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Where the key is; whoever has values has them under the same number.
    slot: u16,
    /// The boundary above this one.
    parent: u16,
    /// The slot of the boundary's line; [`NONE`] while it is not known.
    line: u16,
    /// Bits that this key and the next one share.
    shared: u8,
}

/// The keys of a page and their nodes (the header of this file).
#[derive(Clone, Debug)]
pub struct LineTree {
    floor: u16,
    pub(super) entries: Vec<Entry>,
    /// The 32 bits of each key behind the floor, in order.
    leads: Vec<u32>,
    pub(super) keys: Vec<Key>,
    lines: Vec<Line>,
    /// The boundary of each line.
    owners: Vec<u16>,
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
            lines: Vec::new(),
            owners: Vec::new(),
        };
        let shared = keys.windows(2).map(|pair| small(common_len(&pair[0], &pair[1])));
        let shared = shared.chain(core::iter::once(0));
        let entries = shared.zip(0..NONE).map(|(shared, at)| (shared, at, NONE));
        tree.set_order(entries.take(keys.len()));
        tree
    }

    /// Puts the entries in order: of each the shared bits with the next one, the slot and the line.
    pub(super) fn set_order(&mut self, entries: impl Iterator<Item = (u8, u16, u16)>) {
        self.entries.clear();
        let entry = |(shared, slot, line)| Entry { slot, parent: NONE, line, shared };
        self.entries.extend(entries.map(entry));
        assert_eq!(self.entries.len(), self.keys.len(), "one entry a key, and not too many");
        self.leads.clear();
        let lead = |entry: &Entry| bits_after(&self.keys[usize::from(entry.slot)], self.floor);
        self.leads.extend(self.entries.iter().map(lead));
        for (at, entry) in (0..).zip(&self.entries) {
            if let Some(owner) = self.owners.get_mut(usize::from(entry.line)) {
                *owner = at;
            }
        }
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
            + self.owners.capacity() * size_of::<u16>()
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
            if let Some(line) = self.lines.get(self.line_slot(at)) {
                cpu_prefetch(core::slice::from_ref(line));
            }
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
                self.set_line(at, &[nodes[left], nodes[left + 1]]);
            }
        }
    }

    /// The nodes of the `N` positions some levels below the floor, `2^levels` of them, and a bit for each that is known.
    pub fn stored<const N: usize>(&self, levels: u8) -> ([Node; N], u16) {
        let (mut nodes, mut known) = ([Node::default(); N], 0);
        if levels == 0 {
            return (nodes, 0);
        }
        let depth = self.floor + u16::from(levels);
        let mut from = 0;
        for (position, node) in nodes.iter_mut().enumerate() {
            let below = |at: &usize| self.leads[*at] >> (32 - levels) == index(position).into();
            let count = (from..self.len()).take_while(below).count();
            let own = match count {
                0 => Some(Node::default()),
                1 => self.leaf_node(from).copied(),
                _ => {
                    let top = (from..from + count - 1).min_by_key(|at| self.shared(*at));
                    let above = top.and_then(|top| Some((top, self.parent(top)?)));
                    let above = above.filter(|(_, above)| self.shared(*above) + 1 == depth);
                    above.and_then(|(top, above)| Some(self.line(above)?[usize::from(above < top)]))
                }
            };
            if let Some(own) = own {
                *node = own;
                known |= 1 << position;
            }
            from += count;
        }
        (nodes, known)
    }

    /// The leaf node of key `at`, if the line above it is known.
    pub(super) fn leaf_node(&self, at: usize) -> Option<&Node> {
        let above = self.above(at)?;
        Some(&self.line(above)?[usize::from(above < at)])
    }

    /// The slot of a boundary's line; none has the number [`NONE`].
    #[inline]
    fn line_slot(&self, boundary: usize) -> usize {
        self.entries[boundary].line.into()
    }

    /// The same as it is kept.
    pub(super) fn line_number(&self, boundary: usize) -> u16 {
        self.entries[boundary].line
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
        above(self.len() - 1, at, |at| self.shared(at))
    }

    /// The line of a boundary, if it is known.
    #[inline]
    pub(super) fn line(&self, boundary: usize) -> Option<&[Node; 2]> {
        self.lines.get(self.line_slot(boundary)).map(|line| &line.0)
    }

    /// The line of a boundary is known from now on.
    #[inline]
    pub fn set_line(&mut self, boundary: usize, pair: &[Node; 2]) {
        let slot = self.line_slot(boundary);
        if let Some(line) = self.lines.get_mut(slot) {
            line.0 = *pair;
            return;
        }
        self.entries[boundary].line = index(self.lines.len());
        self.lines.push(Line(*pair));
        self.owners.push(index(boundary));
    }

    /// All nodes that are known, each with its place.
    pub fn nodes(&self) -> impl Iterator<Item = (Prefix, &Node)> {
        (0..self.len().saturating_sub(1)).flat_map(move |at| {
            let line = self.line(at);
            let place = move |right: usize| Prefix::new(self.key(at + right), self.shared(at) + 1);
            (0..2).filter_map(move |right| Some((place(right), &line?[right])))
        })
    }

    /// The lines on the path of entry `at` are unknown from now on.
    pub fn forget_path(&mut self, at: usize) {
        let mut boundary = self.above(at);
        while let Some(at) = boundary {
            self.forget(at);
            boundary = self.parent(at);
        }
    }

    /// The line of a boundary is unknown from now on; the last line takes its slot.
    pub(super) fn forget(&mut self, boundary: usize) {
        let slot = self.line_slot(boundary);
        if slot < self.lines.len() {
            self.entries[boundary].line = NONE;
            self.lines.swap_remove(slot);
            self.owners.swap_remove(slot);
            if let Some(owner) = self.owners.get(slot) {
                self.entries[usize::from(*owner)].line = index(slot);
            }
        }
    }

    /// Is every line known?
    pub fn is_known(&self) -> bool {
        self.lines.len() == self.len().saturating_sub(1)
    }
}

#[inline]
fn some(boundary: u16) -> Option<usize> {
    (boundary != NONE).then_some(boundary.into())
}

/// Numbers of keys, boundaries and lines.
#[expect(clippy::cast_possible_truncation, reason = "a tree has at most 65,535 keys")]
#[inline]
pub(super) fn index(at: usize) -> u16 {
    debug_assert!(at <= LineTree::MAX);
    at as u16
}

/// Two different keys share fewer than 256 bits.
#[expect(clippy::cast_possible_truncation, reason = "keys that are not increasing find nothing")]
#[inline]
pub(super) fn small(shared: u16) -> u8 {
    shared as u8
}
