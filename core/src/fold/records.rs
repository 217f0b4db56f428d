//! The terminals of a multiproof: those of accesses, and the places of the fragments' terminals.

use alloc::vec::Vec;
use core::ops::Range;

use super::values::Values;
use super::{HashId, NO_HASH, Occupancy};
use crate::node::Key;
use crate::prefix::Prefix;
use crate::proof::Terminal;
use crate::proof::terminal::terminal_encode;
use crate::tree::index32;

/// The terminal of an access in the multiproof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessTerminal {
    /// A terminal of its own.
    Own,
    /// The terminal of an earlier access.
    Shared,
    /// All that was emitted below a child, by its number.
    Fragment(u32),
}

/// An access to a key, or all accesses below a child, and the terminal that it ends in.
#[derive(Clone, Copy, Debug)]
struct AccessRecord {
    /// A leaf's key, or any key below a terminator.
    key: Key,
    /// The hash of a leaf's value.
    hash: HashId,
    depth: u16,
    terminal: AccessTerminal,
}

/// Accesses in key order.
#[derive(Debug, Default)]
pub(super) struct AccessRecords(Vec<AccessRecord>);

impl AccessRecords {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn shrink_to(&mut self, keys: usize) {
        self.0.shrink_to(keys);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an access whose terminal is not placed, a terminator or the leaf of this key; returns its number.
    #[inline]
    pub(super) fn push(&mut self, key: &Key, hash: HashId) -> u32 {
        self.0.push(AccessRecord { key: *key, hash, depth: 0, terminal: AccessTerminal::Own });
        index32(self.0.len() - 1)
    }

    /// Adds the accesses below a child that had two keys or more, whose terminals are in a fragment.
    pub(super) fn push_fragment(&mut self, number: u32) {
        let stands = AccessTerminal::Fragment(number);
        self.0.push(AccessRecord { key: [0; 32], hash: NO_HASH, depth: 0, terminal: stands });
    }

    /// Places the terminal of access `at` at this depth.
    #[inline]
    pub(super) fn place_terminal(&mut self, at: u32, depth: u16) {
        self.0[at as usize].depth = depth;
    }

    /// Key and value hash number of each terminal, without those of fragments.
    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = (&mut Key, HashId)> {
        let own = self.0.iter_mut().filter(|record| record.terminal == AccessTerminal::Own);
        own.map(|AccessRecord { key, hash, .. }| (key, *hash))
    }

    /// Sets the leaf of another key as the terminal of access `at`.
    pub(super) fn set_leaf(&mut self, at: u32, key: Key, hash: HashId) {
        let record = &mut self.0[at as usize];
        (record.key, record.hash) = (key, hash);
    }

    /// Access `at` shares the terminal of the earlier access `first`. The leaf, if there is one, may be that of either.
    pub(super) fn share_terminal(&mut self, first: u32, at: u32) {
        let later = &mut self.0[at as usize];
        later.terminal = AccessTerminal::Shared;
        let AccessRecord { key, hash, .. } = *later;
        if hash != NO_HASH {
            self.set_leaf(first, key, hash);
        }
    }

    /// The old occupancy below access `at`, whose terminal is not placed.
    pub(super) fn occupancy(&self, at: u32, values: &Values) -> Occupancy {
        let AccessRecord { key, hash, .. } = self.0[at as usize];
        if hash == NO_HASH {
            return Occupancy::Empty;
        }
        Occupancy::Leaf { key, value_hash: *values.hash(hash) }
    }

    /// Appends the terminals of a range of accesses, and returns their number; `fragment` is called for each fragment.
    pub(super) fn terminals(
        &self,
        range: Range<usize>,
        values: &Values,
        out: &mut Vec<u8>,
        mut fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        let mut count = 0;
        for AccessRecord { key, hash, depth, terminal: stands } in &self.0[range] {
            let (key, depth) = (*key, *depth);
            match *stands {
                AccessTerminal::Shared => continue,
                AccessTerminal::Fragment(number) => {
                    fragment(number, out);
                    continue;
                }
                AccessTerminal::Own if *hash == NO_HASH => {
                    let prefix = Prefix::new(&key, depth);
                    terminal_encode(out, &Terminal::Terminator { prefix });
                }
                AccessTerminal::Own => {
                    let value_hash = *values.hash(*hash);
                    terminal_encode(out, &Terminal::Leaf { key, value_hash, depth });
                }
            }
            count += 1;
        }
        count
    }

    /// True when access `at` is the first that ends in its terminal.
    #[inline]
    pub(super) fn is_first(&self, at: usize) -> bool {
        self.0[at].terminal != AccessTerminal::Shared
    }
}
