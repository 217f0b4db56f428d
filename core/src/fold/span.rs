//! Input of a fold: keys, subtries, the children of a tiling, and the terminals of a proof that is checked.

use super::folder::Folder;
use super::path::{EmptyPath, Path, SiblingPath, TilingPath};
use super::subtrie::{EMPTY, OldOccupancy, PlacedSubtrie, Subtrie};
use super::{FoldValue, HashId, NO_HASH, ValueChange};
use crate::node::{Key, Node, NodeKind, kind};
use crate::prefix::{Prefix, common_len};
use crate::proof::Terminal;
use crate::proof::terminal::terminals;

/// Items below a prefix, which come in key order, none below another.
#[derive(Debug)]
pub struct FoldSpan<'a, P> {
    pub(super) folder: &'a mut Folder,
    pub(super) floor: u16,
    /// The nodes beside the path up.
    pub path: P,
}

impl Folder {
    /// Begins a fold of items below a prefix of `floor` bits, or continues it.
    #[inline]
    pub fn span(&mut self, floor: u16) -> FoldSpan<'_, EmptyPath> {
        self.span_along(floor, EmptyPath)
    }

    /// The same with nodes beside the path up.
    #[inline]
    pub fn span_along<P: Path>(&mut self, floor: u16, path: P) -> FoldSpan<'_, P> {
        FoldSpan { folder: self, floor, path }
    }
}

impl FoldSpan<'_, TilingPath<'_>> {
    /// Adds a child of the tiling, in order. `next` is the child after it; with the last child the subtrie over the
    /// whole tiling is returned.
    pub fn push_child(
        &mut self,
        child: usize,
        at: &Prefix,
        subtrie: Subtrie,
        next: Option<usize>,
    ) -> Option<Subtrie> {
        let fork = self.path.start_at(child, next);
        self.folder.climb(at.first_key(), at.len(), subtrie, fork, self.floor, &mut self.path)
    }
}

impl FoldSpan<'_, SiblingPath<'_>> {
    /// Adds encoded terminals, which follow in key order.
    pub fn push_terminals(&mut self, bytes: &[u8]) {
        for terminal in terminals(bytes) {
            let subtrie = match &terminal {
                Terminal::Terminator { .. } => EMPTY,
                Terminal::Leaf { key, value_hash, .. } => {
                    let hash = self.folder.values.add(FoldValue::Hash(*value_hash));
                    let source = self.folder.stages.leaf(key, hash);
                    Subtrie::new(NodeKind::Leaf, source, OldOccupancy::Unaccessed)
                }
            };
            self.push(terminal.bits(), terminal.depth(), subtrie);
        }
    }

    /// Ends the fold of a proof's terminals, whose result is the node before the batch. `None` where siblings are
    /// missing or left over, no terminal was added, or nodes are no siblings in any trie: a leaf or a terminator beside
    /// a terminator.
    pub fn end_proof(self) -> Option<usize> {
        let Self { folder, floor, mut path } = self;
        let PlacedSubtrie { key, depth, subtrie } = folder.last.take()?;
        let whole = folder.climb(&key, depth, subtrie, None, floor, &mut path)?;
        let is_right = !path.is_short && path.rest.is_empty() && !folder.has_overlap;
        (is_right && folder.unhashed == 0).then(|| folder.end_fold(whole, false))
    }
}

impl<P: Path> FoldSpan<'_, P> {
    /// The folder.
    #[inline]
    pub fn folder(&mut self) -> &mut Folder {
        self.folder
    }

    /// Adds a subtrie without an access, by its node.
    #[inline]
    pub fn push_known(&mut self, at: &Prefix, node: &Node) {
        if kind(node) == NodeKind::Terminator {
            return;
        }
        let subtrie = self.folder.known_subtrie(node, at);
        self.push(at.first_key(), at.len(), subtrie);
    }

    /// Adds a key that is not accessed.
    #[inline]
    pub fn push_unaccessed(&mut self, key: &Key, value: FoldValue<'_>) {
        let hash = self.folder.values.add(value);
        let old = self.folder.record_pair(key, hash);
        let source = self.folder.stages.leaf(key, hash);
        self.push(key, 256, Subtrie::new(NodeKind::Leaf, source, old));
    }

    /// Adds an accessed key with its old value (`None`: absent) and its change. Returns the number of the new value's
    /// hash, [`NO_HASH`] when nothing was put.
    #[inline]
    pub fn push_accessed(
        &mut self,
        key: &Key,
        old: Option<FoldValue<'_>>,
        change: ValueChange<'_>,
    ) -> HashId {
        let folder = &mut *self.folder;
        let before = old.map_or(NO_HASH, |value| folder.values.add(value));
        let (after, put) = match change {
            ValueChange::Keep => (before, NO_HASH),
            ValueChange::Delete => (NO_HASH, NO_HASH),
            ValueChange::Put(value) => {
                let new = folder.values.add(value);
                (new, new)
            }
        };
        let record = folder.records.push(key, before);
        let old = if before == NO_HASH {
            OldOccupancy::Empty(record)
        } else {
            OldOccupancy::Leaf(record)
        };
        let subtrie = match after {
            NO_HASH => EMPTY.with(old),
            new => Subtrie::new(NodeKind::Leaf, folder.stages.leaf(key, new), old),
        };
        self.push(key, 256, subtrie);
        put
    }

    /// Adds a subtrie.
    #[inline]
    pub fn push(&mut self, key: &Key, depth: u16, subtrie: Subtrie) {
        self.folder.items += 1;
        let last = self.folder.last.replace(PlacedSubtrie { key: *key, depth, subtrie });
        if let Some(PlacedSubtrie { key: last, depth, subtrie }) = last {
            debug_assert!(last < *key, "items come in key order, each key once");
            let fork = Some(common_len(&last, key));
            let waits = self.folder.climb(&last, depth, subtrie, fork, self.floor, &mut self.path);
            debug_assert!(waits.is_none(), "a subtrie waits at a fork");
        }
    }

    /// Joins the last item with all that it is below a prefix of this many bits with, at least as long as the floor,
    /// and returns the result: no later item is below that prefix.
    ///
    /// # Panics
    /// When there is no item.
    pub fn lift_last(&mut self, floor: u16) -> Subtrie {
        let PlacedSubtrie { key, depth, subtrie } =
            self.folder.last.take().expect("an item was given");
        let whole = self.folder.climb(&key, depth, subtrie, None, floor, &mut self.path);
        let subtrie = whole.expect("items lie below the floor");
        self.folder.last = Some(PlacedSubtrie { key, depth: floor, subtrie });
        subtrie
    }

    /// Ends the input: returns the subtrie over all items.
    pub fn into_subtrie(mut self) -> Subtrie {
        let Some(PlacedSubtrie { key, depth, subtrie }) = self.folder.last.take() else {
            return EMPTY;
        };
        let whole = self.folder.climb(&key, depth, subtrie, None, self.floor, &mut self.path);
        whole.unwrap_or(EMPTY)
    }

    /// Ends the input and the fold; returns the number by which the results are read.
    pub fn end_fold(self) -> usize {
        let Self { folder, floor, path } = self;
        let subtrie = FoldSpan { folder: &mut *folder, floor, path }.into_subtrie();
        debug_assert!(!folder.has_overlap, "no item lies below another");
        folder.end_fold(subtrie, floor == 0)
    }
}
