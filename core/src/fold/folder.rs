//! The fold: items in key order, a stack of subtries that wait for their right side, and the messages to hash.
//!
//! The bits that two neighbouring items share are a *fork*. When an item comes, the one before it climbs to the fork
//! between both, merging with the subtries that wait at deeper forks, and waits there. So the form of the trie is known
//! before anything is hashed, and so is the multiproof except for its hashes.
//!
//! Invariants: siblings are emitted in post-order; the terminal of an access is placed when the subtrie with only this
//! access meets another one that is not empty.

use alloc::vec::Vec;
use core::ops::Range;

use super::records::AccessRecords;
use super::stages::{HashStages, Source};
use super::subtrie::{OldOccupancy, PlacedSubtrie, Subtrie};
use super::values::Values;
use super::{FoldValue, HashId, NO_HASH, Occupancy};
use crate::hasher::Hasher;
use crate::node::{Key, Node, NodeKind, ValueHash, kind};
use crate::prefix::Prefix;
use crate::tree::index32;

/// An ended fold.
#[derive(Clone, Copy, Debug)]
struct EndedFold {
    old: OldOccupancy,
    node: u32,
    /// The ends of the fold's records, siblings and gaps.
    records: u32,
    siblings: u32,
    gaps: u32,
}

/// A folder; see [the module](super). Buffers are reused, so in steady state it does not allocate.
pub struct Folder {
    pub(super) values: Values,
    pub(super) stages: HashStages,
    pub(super) records: AccessRecords,
    /// Keys without an access, with the hashes of their values.
    pub(super) pairs: Vec<(Key, HashId)>,
    /// Subtries that wait for the right side of a fork at this depth.
    pub(super) waiting: Vec<(u16, Subtrie)>,
    pub(super) last: Option<PlacedSubtrie>,
    /// The places of the fragments' siblings among those emitted here.
    gaps: Vec<(u32, u32)>,
    ends: Vec<EndedFold>,
    /// Leaves given by their node alone: the placeholder for the value's hash, ascending, and a prefix above.
    pub(super) unnamed_leaves: Vec<(HashId, Prefix)>,
    /// True when such a leaf is the terminal of an access.
    pub(super) needs_names: bool,
    /// True when an item is below another one.
    pub(super) has_overlap: bool,
    /// Pairs of nodes that are not hashed: a leaf or a terminator beside a terminator.
    pub(super) unhashed: usize,
    pub(super) items: usize,
}

impl core::fmt::Debug for Folder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Folder")
            .field("folds", &self.ends.len())
            .field("items", &self.items)
            .field("hashed", &self.values.hashed)
            .finish_non_exhaustive()
    }
}

/// Input, and hashing.
impl Folder {
    /// An empty folder.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            values: Values::new(hasher),
            stages: HashStages::default(),
            records: AccessRecords::default(),
            pairs: Vec::new(),
            waiting: Vec::new(),
            last: None,
            gaps: Vec::new(),
            ends: Vec::new(),
            unnamed_leaves: Vec::new(),
            needs_names: false,
            has_overlap: false,
            unhashed: 0,
            items: 0,
        }
    }

    /// The folder's hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.values.hasher
    }

    /// Removes all folds, one that was not ended included; keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.stages.clear();
        self.records.clear();
        self.pairs.clear();
        self.waiting.clear();
        self.last = None;
        self.gaps.clear();
        self.ends.clear();
        self.unnamed_leaves.clear();
        self.needs_names = false;
        self.has_overlap = false;
        self.unhashed = 0;
        self.items = 0;
    }

    /// Removes all folds, and frees what lists have beyond room for this many keys.
    pub fn shrink_to(&mut self, keys: usize) {
        self.clear();
        self.values.shrink_to(keys);
        self.records.shrink_to(keys);
        self.pairs.shrink_to(keys);
    }

    /// Hash calls since creation, values included.
    #[inline]
    pub fn hash_count(&self) -> u64 {
        self.values.hashed
    }

    /// Items added since [`Self::clear`] or [`Self::hash_so_far`].
    #[inline]
    pub fn len(&self) -> usize {
        self.items
    }

    /// True when no item was added.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// The subtrie of a node below a prefix, without an access.
    #[inline]
    pub fn known_subtrie(&mut self, node: &Node, at: &Prefix) -> Subtrie {
        let kind = kind(node);
        let old =
            if kind == NodeKind::Leaf { self.record_unnamed(at) } else { OldOccupancy::Unaccessed };
        Subtrie::new(kind, self.stages.known(node), old)
    }

    /// The result of a fold below, with an access: its new node, its old occupancy with some key below it, and the
    /// number of what it has emitted, with siblings up to its depth.
    pub fn fragment(&mut self, node: &Node, old: &Occupancy, key: &Key, number: u32) -> Subtrie {
        let old = match old {
            Occupancy::Many => {
                self.records.push_fragment(number);
                self.gaps.push((index32(self.stages.siblings.len()), number));
                OldOccupancy::Many
            }
            Occupancy::Empty => OldOccupancy::Empty(self.records.push(key, NO_HASH)),
            Occupancy::Leaf { key, value_hash } => {
                let hash = self.values.add(FoldValue::Hash(*value_hash));
                OldOccupancy::Leaf(self.records.push(key, hash))
            }
        };
        Subtrie::new(kind(node), self.stages.known(node), old)
    }

    /// Ends a fold whose whole result is this subtrie. Returns the number by which the results are read. `is_root` is
    /// true for the root of the trie.
    pub fn end_fold(&mut self, subtrie: Subtrie, is_root: bool) -> usize {
        if let OldOccupancy::Empty(access) | OldOccupancy::Leaf(access) = subtrie.old()
            && is_root
        {
            self.records.place_terminal(access, 0);
        }
        let node = self.watch(&subtrie);
        self.ends.push(EndedFold {
            old: subtrie.old(),
            node,
            records: index32(self.records.len()),
            siblings: index32(self.stages.siblings.len()),
            gaps: index32(self.gaps.len()),
        });
        self.ends.len() - 1
    }

    /// Resolves leaves that were given by their node alone and are terminals of accesses: `pair` finds the only pair
    /// below a prefix, as it was before the batch.
    ///
    /// # Errors
    /// The first error of `pair`.
    pub fn name_leaves<E>(
        &mut self,
        mut pair: impl FnMut(&Prefix) -> Result<(Key, ValueHash), E>,
    ) -> Result<(), E> {
        if self.needs_names {
            for (key, hash) in self.records.each_mut() {
                if let Ok(at) = self.unnamed_leaves.binary_search_by_key(&hash, |(hash, _)| *hash) {
                    let (named, value_hash) = pair(&self.unnamed_leaves[at].1)?;
                    *key = named;
                    self.values.set(hash, value_hash);
                }
            }
            self.needs_names = false;
        }
        Ok(())
    }

    /// Marks the node of a subtrie to be read after hashing; returns its number for [`Self::watched`].
    #[inline]
    pub fn watch(&mut self, subtrie: &Subtrie) -> u32 {
        self.stages.watch(subtrie.source())
    }

    /// Hashes everything.
    ///
    /// # Panics
    /// When a leaf's pair is needed and was not resolved ([`Self::name_leaves`]).
    #[inline]
    pub fn run(&mut self) {
        assert!(!self.needs_names, "every terminal is known");
        assert!(self.waiting.is_empty() && self.last.is_none(), "every fold was ended");
        self.stages.run(&mut self.values);
    }

    /// Hashes what can be hashed and removes the messages, so that any number of items stays within a processor's
    /// cache.
    pub fn hash_so_far(&mut self) {
        let subtries = self.waiting.iter_mut().map(|(_, subtrie)| subtrie);
        let live = subtries.chain(self.last.as_mut().map(|last| &mut last.subtrie));
        let mut live: Vec<(&mut Subtrie, Source)> =
            live.filter_map(|subtrie| subtrie.source().map(|source| (subtrie, source))).collect();
        self.stages.hash_so_far(&mut self.values, live.iter_mut().map(|(_, source)| source));
        for (subtrie, source) in live {
            *subtrie = Subtrie::new(subtrie.kind(), source, subtrie.old());
        }
        self.items = 0;
    }

    /// Like [`Self::hash_so_far`], and removes keys and values: no item has an access, before or after.
    pub fn hash_so_far_unaccessed(&mut self) {
        assert_eq!(self.records.len(), 0, "nothing is accessed");
        self.hash_so_far();
        let subtries = self.waiting.iter_mut().map(|(_, subtrie)| subtrie);
        for subtrie in subtries.chain(self.last.as_mut().map(|last| &mut last.subtrie)) {
            *subtrie = subtrie.with(OldOccupancy::Unaccessed);
        }
        self.pairs.clear();
        self.values.clear();
        self.unnamed_leaves.clear();
    }
}

/// Results, after [`Folder::run`].
impl Folder {
    /// The new node of a fold.
    #[inline]
    pub fn node(&self, fold: usize) -> &Node {
        self.watched(self.ends[fold].node)
    }

    /// A node that was watched.
    #[inline]
    pub fn watched(&self, number: u32) -> &Node {
        self.stages.watched(number)
    }

    /// The old occupancy below a fold's prefix, as far as placing terminals needs it: [`Occupancy::Many`] where nothing
    /// was accessed.
    pub fn occupancy(&self, fold: usize) -> Occupancy {
        match self.ends[fold].old {
            OldOccupancy::Empty(access) | OldOccupancy::Leaf(access) => {
                self.records.occupancy(access, &self.values)
            }
            OldOccupancy::Unaccessed | OldOccupancy::UnaccessedPair(_) | OldOccupancy::Many => {
                Occupancy::Many
            }
        }
    }

    /// The value hash with a number that [`FoldSpan::push_accessed`] returned.
    #[inline]
    pub fn value_hash(&self, id: HashId) -> &ValueHash {
        self.values.hash(id)
    }

    /// The range of a fold's accesses, and of fragments, among those of all folds, in order.
    pub fn accesses(&self, fold: usize) -> Range<usize> {
        let from = fold.checked_sub(1).map_or(0, |before| self.ends[before].records);
        from as usize..self.ends[fold].records as usize
    }

    /// True when this access is the first that ends in its terminal.
    #[inline]
    pub fn is_first(&self, access: usize) -> bool {
        self.records.is_first(access)
    }

    /// Appends the terminals of a fold that had two keys or more, or is the root, and returns their number. In the
    /// place of a fragment, `fragment` is called with its number.
    pub fn terminals(
        &self,
        fold: usize,
        out: &mut Vec<u8>,
        fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        self.records.terminals(self.accesses(fold), &self.values, out, fragment)
    }

    /// The range of a fold's siblings among those of all folds ([`Self::siblings`]).
    pub fn siblings_of(&self, fold: usize) -> Range<usize> {
        let from = fold.checked_sub(1).map_or(0, |before| self.ends[before].siblings);
        from as usize..self.ends[fold].siblings as usize
    }

    /// The siblings of all folds, each in post-order.
    #[inline]
    pub fn siblings(&self) -> &[Node] {
        &self.stages.siblings
    }

    /// The fragments of a fold: the index of the sibling before which its siblings belong, and its number.
    pub fn gaps(&self, fold: usize) -> &[(u32, u32)] {
        let from = fold.checked_sub(1).map_or(0, |before| self.ends[before].gaps);
        &self.gaps[from as usize..self.ends[fold].gaps as usize]
    }

    /// Numbers of nodes and of lines that are kept so far, before or after [`Folder::run`].
    #[inline]
    pub fn kept_counts(&self) -> (usize, usize) {
        self.stages.kept()
    }

    /// The treelets' nodes that were not known, with their positions, in input order.
    #[inline]
    pub fn nodes(&self) -> &[(u8, Node)] {
        &self.stages.nodes
    }

    /// The new lines of tilings, with their boundaries, in input order.
    #[inline]
    pub fn lines(&self) -> &[(u32, [Node; 2])] {
        &self.stages.lines
    }

    /// Swaps out siblings, nodes and lines against lists to be reused.
    pub fn swap_results(
        &mut self,
        siblings: &mut Vec<Node>,
        nodes: &mut Vec<(u8, Node)>,
        lines: &mut Vec<(u32, [Node; 2])>,
    ) {
        core::mem::swap(&mut self.stages.siblings, siblings);
        core::mem::swap(&mut self.stages.nodes, nodes);
        core::mem::swap(&mut self.stages.lines, lines);
    }
}
