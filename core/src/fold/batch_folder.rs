//! The batch folder: what is given to it, and what can be asked of it.

use alloc::vec::Vec;

use super::hash_batch::{Batch, Values};
use super::item::{END, Item, Merge, NONE, Old, Span, Subtrie, index32};
use super::place::{Folds, Neighbours};
use super::{Captured, Change, Columns, FoldValue, HashId, Keys, MAX_CAPTURE, NO_HASH, Occupancy};
use crate::hasher::Hasher;
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};
use crate::prefix::{Prefix, common_len};

/// Works on many folds at once; the [module](super) says how it is used. Buffers are reused, so in
/// steady state it does not allocate.
pub struct BatchFolder {
    pub(super) items: Vec<Item>,
    pub(super) subtries: Vec<Subtrie>,
    /// `cpl[i]`: bits shared by items i and i+1; `END` after the last item of a fold.
    pub(super) cpl: Vec<u16>,
    pub(super) merges: Vec<Merge>,
    pub(super) spans: Vec<Span>,
    /// Leaf nodes to make: (item, value hash).
    pub(super) leaves: Vec<(u32, HashId)>,
    pub(super) values: Values,
    pub(super) batch: Batch,
    /// Nodes on their way up: (first item of the subtrie, depth to reach).
    pub(super) lifts: Vec<(u32, u16)>,
    pub(super) order: Vec<u32>,
    pub(super) stack: Vec<u32>,
    neighbours: Neighbours,
    /// Floor, captured levels and their columns of the open fold.
    pub(super) open: Option<(u16, u8, Option<Columns>)>,
    pub(super) captured: Vec<Captured>,
    pub(super) hashed: u64,
}

impl core::fmt::Debug for BatchFolder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BatchFolder")
            .field("folds", &self.spans.len())
            .field("items", &self.items.len())
            .field("hashed", &self.hashed)
            .finish_non_exhaustive()
    }
}

impl BatchFolder {
    /// An empty folder.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            items: Vec::new(),
            subtries: Vec::new(),
            cpl: Vec::new(),
            merges: Vec::new(),
            spans: Vec::new(),
            leaves: Vec::new(),
            values: Values::new(hasher),
            batch: Batch::default(),
            lifts: Vec::new(),
            order: Vec::new(),
            stack: Vec::new(),
            neighbours: Neighbours::default(),
            open: None,
            captured: Vec::new(),
            hashed: 0,
        }
    }

    /// Its hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.values.hasher
    }

    /// Removes all folds; the memory stays for the next use.
    pub fn clear(&mut self) {
        self.items.clear();
        self.subtries.clear();
        self.cpl.clear();
        self.spans.clear();
        self.leaves.clear();
        self.values.clear();
        self.captured.clear();
        // Empty after a run, but not after one that a panicking hasher ended.
        self.batch.clear();
        self.lifts.clear();
        self.open = None;
    }

    /// Items given since [`Self::clear`]; with enough of them a run is worth it.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Is there nothing to fold?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.items.is_empty()
    }

    /// Closed folds.
    #[inline]
    pub fn folds(&self) -> usize {
        self.spans.len()
    }

    /// Hash calls made since creation, values included.
    #[inline]
    pub fn hashed(&self) -> u64 {
        self.hashed
    }

    /// Opens a fold whose result is the node at depth `floor`.
    ///
    /// # Panics
    /// When a fold is open already.
    #[inline]
    pub fn begin(&mut self, floor: u16) {
        self.begin_capturing(floor, 0);
    }

    /// The same for a fold that captures nodes down to `levels` levels below its floor.
    ///
    /// # Panics
    /// When a fold is open already, or for more levels than [`MAX_CAPTURE`] or than keys have.
    #[inline]
    pub fn begin_capturing(&mut self, floor: u16, levels: u8) {
        self.begin_with_columns(floor, levels, None);
    }

    /// The same where the captured levels part at these bits, not at those behind the floor: all keys that are given
    /// agree in the bits between ([`Columns::agree`]).
    ///
    /// # Panics
    /// As [`Self::begin_capturing`].
    #[inline]
    pub fn begin_with_columns(&mut self, floor: u16, levels: u8, columns: Option<Columns>) {
        assert!(
            levels <= MAX_CAPTURE && floor + u16::from(levels) <= 256,
            "no capture at this depth"
        );
        assert!(self.open.replace((floor, levels, columns)).is_none(), "a fold is open already");
    }

    /// The bits at which the captured levels of a fold part, where they are not those behind its floor.
    #[inline]
    pub fn columns(&self, fold: usize) -> Option<Columns> {
        self.spans[fold].columns
    }

    /// What the capturing folds computed, in no particular order; two entries for the same prefix
    /// say the same. Valid after [`BatchFolder::run`].
    #[inline]
    pub fn captured(&self) -> &[Captured] {
        &self.captured
    }

    /// Adds a subtrie in which no key is accessed, by its node.
    #[inline]
    pub fn subtrie(&mut self, at: &Prefix, node: &Node) {
        let old = match kind(node) {
            NodeKind::Terminator => return,
            NodeKind::Leaf => Old::HiddenLeaf,
            NodeKind::Internal => Old::Many,
        };
        let item = self.push(at.first_key(), old, false, at.len(), *node);
        self.subtries[item as usize].computed = false;
    }

    /// Adds a key that is not accessed.
    #[inline]
    pub fn unaccessed(&mut self, key: &Key, value: FoldValue<'_>) {
        let hash = self.value(value);
        let item = self.push(key, Old::Leaf, false, 256, TERMINATOR);
        self.items[item as usize].old_hash = hash;
        self.leaves.push((item, hash));
    }

    /// Adds an accessed key with its old value (`None`: absent) and what becomes of it. Gives the
    /// number of the new value's hash, [`NO_HASH`] when nothing was put.
    #[inline]
    pub fn accessed(
        &mut self,
        key: &Key,
        old: Option<FoldValue<'_>>,
        change: Change<'_>,
    ) -> HashId {
        let kind = if old.is_some() { Old::Leaf } else { Old::Absent };
        let hashes = self.values.change(old, change, &mut self.hashed);
        let item = self.push(key, kind, true, 256, TERMINATOR);
        self.items[item as usize].old_hash = hashes.old;
        if hashes.new != NO_HASH {
            self.leaves.push((item, hashes.new));
        }
        hashes.put
    }

    /// Adds the result of a fold below: its new node, and the occupancy by its old keys. When that
    /// is [`Occupancy::Many`], the sink is later told `fragment` where the child's own emission
    /// belongs.
    #[inline]
    pub fn child(&mut self, at: &Prefix, new_node: &Node, occupancy: &Occupancy, fragment: u32) {
        let (key, old) = match occupancy {
            Occupancy::Empty => (at.first_key(), Old::Absent),
            Occupancy::Leaf { key, .. } => (key, Old::Leaf),
            Occupancy::Many => (at.first_key(), Old::Many),
        };
        let item = self.push(key, old, true, at.len(), *new_node) as usize;
        self.items[item].fragment = fragment;
        if let Occupancy::Leaf { value_hash, .. } = occupancy {
            self.items[item].old_hash = self.value(FoldValue::Hash(*value_hash));
        }
    }

    /// Closes the fold and gives its number.
    ///
    /// A subtrie that was given by its node alone may turn out to be a leaf whose key decides where
    /// a terminal is. Then its prefix is in the error: give the key, and fold again.
    ///
    /// # Errors
    /// The first key below the subtrie whose leaf must be known.
    ///
    /// # Panics
    /// When no fold is open.
    pub fn end(&mut self) -> Result<usize, Key> {
        let (floor, capture, columns) = self.open.take().expect("a fold is open");
        let start = self.spans.last().map_or(0, |span| span.end as usize);
        let end = self.items.len();
        if end > start {
            self.cpl[end - 1] = END;
        }
        let items = &self.items[start..end];
        let opened = items.iter().any(|item| item.opened);
        let mut old_items = items.iter().enumerate().filter(|(_, item)| item.old != Old::Absent);
        let first = old_items.next();
        let (old_keys, only) = match (first, old_items.next()) {
            (None, _) => (0, NONE),
            (Some((at, item)), None) if item.old != Old::Many => (1, index32(start + at)),
            _ => (2, NONE),
        };
        self.spans.push(Span {
            start: index32(start),
            end: index32(end),
            floor,
            capture,
            columns,
            opened,
            old_keys,
            only,
        });
        if opened {
            let mut lists =
                Folds { items: &mut self.items, subtries: &mut self.subtries, cpl: &self.cpl };
            self.neighbours.place_terminals(&mut lists, start, end)?;
        }
        Ok(self.spans.len() - 1)
    }

    /// The new node of a fold, at its floor.
    #[inline]
    pub fn node(&self, fold: usize) -> Node {
        let span = &self.spans[fold];
        if span.start == span.end { TERMINATOR } else { self.subtries[span.start as usize].node }
    }

    /// The occupancy by a fold's old keys. When nothing was accessed and the only key was given by
    /// its node alone, it is [`Occupancy::Many`]: give the result to [`BatchFolder::subtrie`].
    #[inline]
    pub fn occupancy(&self, fold: usize) -> Occupancy {
        let span = &self.spans[fold];
        match span.old_keys {
            0 => Occupancy::Empty,
            1 => match &self.items[span.only as usize] {
                item if item.old == Old::Leaf => {
                    let value_hash = *self.values.hash(item.old_hash);
                    Occupancy::Leaf { key: item.key, value_hash }
                }
                _ => Occupancy::Many,
            },
            _ => Occupancy::Many,
        }
    }

    /// For each accessed key or child of a fold, in order: is it the first below its terminal?
    /// (A child of occupancy [`Occupancy::Many`] has terminals of its own and counts as first.)
    #[inline]
    pub fn first_of_terminal(&self, fold: usize) -> impl Iterator<Item = bool> + '_ {
        let span = &self.spans[fold];
        let mut before = NONE;
        self.items[span.start as usize..span.end as usize].iter().filter(|item| item.accessed).map(
            move |item| {
                let first = item.group != before;
                before = item.group;
                first
            },
        )
    }

    /// The hash with a number that [`BatchFolder::accessed`] gave; valid after [`BatchFolder::run`].
    #[inline]
    pub fn value_hash(&self, id: HashId) -> &ValueHash {
        self.values.hash(id)
    }

    fn value(&mut self, value: FoldValue<'_>) -> HashId {
        self.values.add(value, &mut self.hashed)
    }

    fn push(&mut self, key: &Key, old: Old, opened: bool, depth: u16, node: Node) -> u32 {
        let item = index32(self.items.len());
        let start = self.spans.last().map_or(0, |span| span.end);
        if item > start {
            let previous = &self.items[item as usize - 1].key;
            debug_assert!(previous < key, "items come in key order, each key once");
            self.cpl[item as usize - 1] = common_len(previous, key);
        }
        self.items.push(Item {
            key: *key,
            old,
            opened,
            accessed: opened,
            anchor: depth,
            group: item,
            old_hash: NO_HASH,
            fragment: NONE,
        });
        let fold = index32(self.spans.len());
        self.subtries.push(Subtrie {
            node,
            depth,
            opened,
            computed: true,
            fold,
            tail: item,
            head: item,
        });
        self.cpl.push(END);
        item
    }
}

impl Keys for BatchFolder {
    fn unaccessed(&mut self, key: &Key, value: FoldValue<'_>) {
        self.unaccessed(key, value);
    }

    fn accessed(&mut self, key: &Key, old: Option<FoldValue<'_>>, change: Change<'_>) -> HashId {
        self.accessed(key, old, change)
    }
}
