//! The keys of a page before and after a batch, in one order.

use alloc::vec::Vec;

use super::line_tree::{LineTree, small};
use super::numbers::{above, index32, link};
use crate::node::Key;
use crate::prefix::common_len;

/// Nothing of this kind.
pub(super) const NONE: u32 = u32::MAX;

/// An entry of a union.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its number in the page before; [`NONE`] for a key that was not there.
    pub(super) base: u32,
    /// Is it there after the batch?
    pub(super) present: bool,
}

/// A boundary of a union.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boundary {
    pub(super) shared: u8,
    parent: u32,
    /// Its number in the page before; [`NONE`] for a new one.
    pub(super) base: u32,
}

/// The keys of a page and those of a batch that it does not have.
#[derive(Debug, Default)]
pub(super) struct Union {
    pub(super) entries: Vec<Entry>,
    /// Behind each entry but the last.
    pub(super) boundaries: Vec<Boundary>,
    /// The keys that the page does not have, in order.
    pub(super) fresh: Vec<Key>,
    /// For each entry, the access or differing key with its key; [`NONE`] where there is none.
    pub(super) access_of: Vec<u32>,
    /// For each entry, where its key is among the fresh ones.
    fresh_at: Vec<u32>,
    /// For each access, its entry.
    pub(super) accessed: Vec<u32>,
}

impl Union {
    /// The union of a page and keys in order, each with where the page has it or would have it, and whether it is there after
    /// the batch.
    pub(super) fn set<'a>(
        &mut self,
        tree: &LineTree,
        keys: impl Iterator<Item = (&'a Key, Result<usize, usize>, bool)>,
    ) {
        self.entries.clear();
        self.boundaries.clear();
        self.fresh.clear();
        self.access_of.clear();
        self.fresh_at.clear();
        self.accessed.clear();
        let mut next = 0;
        for (key, found, present) in keys {
            let (base, at) = match found {
                Ok(at) => (index32(at), at),
                Err(at) => (NONE, at),
            };
            for base in next..at {
                self.push(Entry { base: index32(base), present: true }, NONE);
            }
            next = at;
            if base == NONE {
                self.fresh.push(*key);
            } else {
                next += 1;
            }
            let access = index32(self.accessed.len());
            self.accessed.push(index32(self.entries.len()));
            self.push(Entry { base, present }, access);
        }
        for base in next..tree.len() {
            self.push(Entry { base: index32(base), present: true }, NONE);
        }
        self.add_boundaries(tree);
    }

    fn push(&mut self, entry: Entry, access: u32) {
        self.entries.push(entry);
        let fresh = index32(self.fresh.len()).wrapping_sub(1);
        self.fresh_at.push(if entry.base == NONE { fresh } else { NONE });
        self.access_of.push(access);
    }

    fn add_boundaries(&mut self, tree: &LineTree) {
        let count = self.entries.len().saturating_sub(1);
        for at in 0..count {
            let (left, right) = (self.entries[at], self.entries[at + 1]);
            let boundary = if left.base != NONE && right.base != NONE {
                let shared = small(tree.shared(left.base as usize));
                Boundary { shared, parent: NONE, base: left.base }
            } else {
                let shared = common_len(self.key(tree, at), self.key(tree, at + 1));
                Boundary { shared: small(shared), parent: NONE, base: NONE }
            };
            self.boundaries.push(boundary);
        }
        // Between two neighbours of before, the boundary with the fewest shared bits is the one that was there.
        let mut last: Option<usize> = None;
        for at in 0..self.entries.len() {
            let Entry { base, .. } = self.entries[at];
            if base == NONE {
                continue;
            }
            if let Some(last) = last.filter(|last| last + 1 < at) {
                let lowest = (last..at).min_by_key(|at| self.boundaries[*at].shared);
                if let Some(lowest) = lowest {
                    self.boundaries[lowest].base = base - 1;
                }
            }
            last = Some(at);
        }
        let boundaries = core::cell::Cell::from_mut(self.boundaries.as_mut_slice());
        let boundaries = boundaries.as_slice_of_cells();
        link(
            count,
            |at| boundaries[at].get().shared.into(),
            |at, parent| {
                let own = boundaries[at].get();
                boundaries[at].set(Boundary { parent: index32(parent), ..own });
            },
        );
    }

    /// Do keys come or go?
    pub(super) fn changes_keys(&self) -> bool {
        self.entries.iter().any(|entry| (entry.base != NONE) != entry.present)
    }

    /// The key of an entry.
    #[inline]
    pub(super) fn key<'a>(&'a self, tree: &'a LineTree, at: usize) -> &'a Key {
        match self.entries[at].base {
            NONE => &self.fresh[self.fresh_at[at] as usize],
            base => tree.key(base as usize),
        }
    }

    #[inline]
    pub(super) fn shared(&self, boundary: usize) -> u16 {
        self.boundaries[boundary].shared.into()
    }

    #[inline]
    pub(super) fn parent(&self, boundary: usize) -> Option<usize> {
        let parent = self.boundaries[boundary].parent;
        (parent != NONE).then_some(parent as usize)
    }

    #[inline]
    pub(super) fn above(&self, at: usize) -> Option<usize> {
        above(self.boundaries.len(), at, |at| self.shared(at))
    }
}
