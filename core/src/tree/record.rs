//! The terminals of a multiproof: those of accesses, and where those of fragments belong.

use alloc::vec::Vec;
use core::ops::Range;

use super::numbers::index32;
use crate::fold::Occupancy;
use crate::node::{Key, ValueHash};
use crate::prefix::Prefix;
use crate::proof::Terminal;
use crate::proof::terminal::terminal_encode;

/// The terminal of an access; accesses that end in one terminal have it at the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// That of an earlier access.
    Shared,
    /// A terminator.
    Empty,
    /// The leaf with this pair.
    Leaf(u32),
    /// All that was emitted below a child, by its number.
    Fragment(u32),
}

/// The accesses below a child.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// One of their keys.
    key: Key,
    end: End,
    depth: u16,
}

/// Accessed children in order.
#[derive(Debug, Default)]
pub(super) struct Records {
    all: Vec<Record>,
    pairs: Vec<(Key, ValueHash)>,
}

impl Records {
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.pairs.clear();
    }

    /// Number of accessed children.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Accesses whose terminal is not placed: a terminator, or the leaf of this key.
    pub(super) fn push(&mut self, key: &Key, value: Option<&ValueHash>) -> u32 {
        let end = value.map_or(End::Empty, |value| End::Leaf(self.pair(key, value)));
        self.all.push(Record { key: *key, end, depth: 0 });
        index32(self.all.len() - 1)
    }

    /// A child that had two keys or more, whose terminals are elsewhere.
    pub(super) fn push_fragment(&mut self, number: u32) {
        self.all.push(Record { key: [0; 32], end: End::Fragment(number), depth: 0 });
    }

    /// A pair that may be a terminal; gives its number.
    pub(super) fn pair(&mut self, key: &Key, value: &ValueHash) -> u32 {
        self.pairs.push((*key, *value));
        index32(self.pairs.len() - 1)
    }

    /// A pair of these.
    pub(super) fn pair_of(&self, pair: u32) -> &(Key, ValueHash) {
        &self.pairs[pair as usize]
    }

    /// The terminal of access `at` is at this depth.
    #[inline]
    pub(super) fn place(&mut self, at: u32, depth: u16) {
        self.all[at as usize].depth = depth;
    }

    /// Access `at` ends in the leaf of another key.
    pub(super) fn ends_in(&mut self, at: u32, pair: u32) {
        self.all[at as usize].end = End::Leaf(pair);
    }

    /// Access `at` ends in the terminal of access `first`, before it.
    pub(super) fn share(&mut self, first: u32, at: u32) {
        let end = core::mem::replace(&mut self.all[at as usize].end, End::Shared);
        // The leaf may be that of the later one.
        if let End::Leaf(_) = end {
            self.all[first as usize].end = end;
        }
    }

    /// What access `at`, whose terminal is not placed, says of the state before.
    pub(super) fn occupancy(&self, at: u32) -> Occupancy {
        match self.all[at as usize].end {
            End::Leaf(pair) => {
                let (key, value_hash) = *self.pair_of(pair);
                Occupancy::Leaf { key, value_hash }
            }
            _ => Occupancy::Empty,
        }
    }

    /// Appends the terminals of a range of accesses, and gives their number; `fragment` is called for each fragment.
    pub(super) fn terminals(
        &self,
        range: Range<usize>,
        out: &mut Vec<u8>,
        mut fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        let mut count = 0;
        for Record { key, end, depth } in &self.all[range] {
            let terminal = match end {
                End::Shared => continue,
                End::Fragment(number) => {
                    fragment(*number, out);
                    continue;
                }
                End::Empty => Terminal::Terminator { prefix: Prefix::new(key, *depth) },
                End::Leaf(pair) => {
                    let (key, value_hash) = *self.pair_of(*pair);
                    Terminal::Leaf { depth: *depth, key, value_hash }
                }
            };
            terminal_encode(out, &terminal);
            count += 1;
        }
        count
    }

    /// For each access: is it the first under its terminal?
    pub(super) fn is_first(&self, at: usize) -> bool {
        self.all[at].end != End::Shared
    }
}
