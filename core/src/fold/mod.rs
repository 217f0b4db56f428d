//! The flat fold: many sorted runs of leaves and subtrie nodes to one node each, with what a
//! multiproof of the touched keys needs, hashing batched across all runs.
//!
//! A *fold* is one run of items in key order below one position, its *floor*. Nothing recurses:
//! the common prefix lengths of neighbouring keys are bucketed by depth, and from the deepest
//! bucket up the groups on both sides of such a boundary merge in place. All merges of one depth,
//! of all folds at hand, are one hash batch.
//!
//! An item is *touched* when a key below it was accessed. The multiproof is made of the old
//! trie; the new nodes come from the same items, because a subtrie without an accessed key has
//! one node in both. [`Folder::emit`] gives terminals and siblings in the order that
//! `docs/proofs.md` defines: terminals in key order, siblings in post-order.
//!
//! A fold with fewer than two old keys cannot place its terminal: in the whole trie it sits at or
//! above the floor. Its result *floats* ([`Shape::Empty`], [`Shape::Leaf`]) and the fold above
//! places it.
//!
//! A fold may *capture*: the nodes that it computes a few levels below its floor are given to the
//! caller, who keeps them and passes untouched ones as subtries next time ([`Captured`]).
//!
//! Use: any number of folds with [`Folder::begin`], items, [`Folder::end`]; then
//! [`Folder::run`], once; then ask; then [`Folder::clear`]. `place` finds the terminals,
//! `merge` hashes, `emit` gives the multiproof.

mod emit;
mod merge;
mod place;
pub mod tiles;

use alloc::vec::Vec;
use core::marker::PhantomData;

use self::merge::{Batch, Values};
use crate::hasher::Hasher;
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};
use crate::prefix::{Prefix, common_len};

pub use self::merge::combine_tiles;

/// A value as the fold takes it: its bytes, or its hash where that is at hand.
#[derive(Clone, Copy, Debug)]
pub enum FoldValue<'a> {
    /// The value itself.
    Bytes(&'a [u8]),
    /// The hash of the value.
    Hash(ValueHash),
}

/// What an access leaves behind.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The key was only read.
    Keep,
    /// The key has this value afterwards.
    Put(FoldValue<'a>),
    /// The key is absent afterwards.
    Delete,
}

/// What the old trie holds below a position, as far as placing terminals needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No key.
    Empty,
    /// One key: a leaf that may sit above the position.
    Leaf {
        /// The key.
        key: Key,
        /// The hash of its value.
        value_hash: ValueHash,
    },
    /// Two keys or more: all terminals lie below the position.
    Many,
}

/// A node that a capturing fold computed.
///
/// Of each internal node within the captured levels that the fold computed, both children are
/// captured too, unless they came in with [`Folder::subtrie`]. Nothing is said of positions below
/// a leaf node or a terminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Number of the fold.
    pub fold: u32,
    /// The position: [`heap_index`] of the bits behind the floor.
    pub index: u8,
    /// Its new node.
    pub node: Node,
}

/// Most levels below its floor that a fold captures.
pub const MAX_CAPTURE: u8 = 5;

/// Number of a position `level` bits below a floor, whose bits are `bits`: 0 is the floor itself,
/// 1 and 2 are its children, and so on in order of level and key.
#[inline]
pub const fn heap_index(level: u8, bits: u8) -> u8 {
    (1 << level) - 1 + bits
}

/// The [`heap_index`] below a position of what has the index `inner` below the position `outer`.
#[inline]
pub const fn heap_below(outer: u8, inner: u8) -> u8 {
    // One more than the index is its level's first bit, then the bits of the path.
    let levels = (inner + 1).ilog2();
    ((outer + 1) << levels) + (inner + 1 - (1 << levels)) - 1
}

/// Receives a fold's part of the multiproof, in order.
pub trait Sink {
    /// A leaf terminal at `depth`.
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16);
    /// A terminator terminal: the first `depth` bits of `key`.
    fn terminator(&mut self, key: &Key, depth: u16);
    /// The next sibling.
    fn sibling(&mut self, node: &Node);
    /// All that the child fold with this number emitted goes here.
    fn fragment(&mut self, number: u32);
}

/// Number of a value hash within a [`Folder`]; [`NO_HASH`] stands for none.
pub type HashId = u32;
/// No value hash: absent or deleted.
pub const NO_HASH: HashId = u32::MAX;

const NONE: u32 = u32::MAX;
const END: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Old {
    Absent,
    Leaf,
    /// A subtrie with two keys or more, fixed at the item's depth.
    Many,
    /// A subtrie given by its node only, which is a leaf node: placing a terminal there needs
    /// the key.
    HiddenLeaf,
}

#[derive(Clone, Copy)]
struct Item {
    key: Key,
    old: Old,
    touched: bool,
    /// Was it given as accessed? (The leaf of a terminal may be touched without.)
    accessed: bool,
    /// Depth of the terminal, or of the fixed child.
    anchor: u16,
    /// First item of the terminal's group.
    group: u32,
    old_hash: HashId,
    /// Fragment number of a fixed child.
    fragment: u32,
}

/// State of a merged group, kept at its first item.
#[derive(Clone, Copy)]
struct Group {
    node: Node,
    depth: u16,
    touched: bool,
    /// Was the node computed here, and not given?
    computed: bool,
    fold: u32,
    /// Last item (valid at the first item).
    tail: u32,
    /// First item (valid at the last item).
    head: u32,
}

/// What a merge leaves for the emission.
#[derive(Clone, Copy)]
struct Merge {
    left_touched: bool,
    right_touched: bool,
    /// Node of the untouched side where exactly one is touched.
    sibling: Node,
}

#[derive(Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
    floor: u16,
    /// Levels below the floor whose nodes are captured.
    capture: u8,
    touched: bool,
    /// Old keys: 0, 1 (of a leaf item, whose index is in `only`), or 2 for more.
    old_keys: u8,
    only: u32,
}

/// Folds many runs at once. Buffers are kept from use to use: in steady state it does not
/// allocate.
pub struct Folder<H> {
    items: Vec<Item>,
    groups: Vec<Group>,
    /// `cpl[i]`: bits shared by items i and i+1; `END` behind the last item of a fold.
    cpl: Vec<u16>,
    merges: Vec<Merge>,
    spans: Vec<Span>,
    hashes: Vec<ValueHash>,
    /// Leaf nodes to make: (item, value hash).
    leaves: Vec<(u32, HashId)>,
    values: Values,
    batch: Batch,
    /// Nodes on their way up: (first item of the group, depth to reach).
    lifts: Vec<(u32, u16)>,
    order: Vec<u32>,
    stack: Vec<u32>,
    /// Bits shared with the previous / next old item, -1 for none, and that item.
    before: Vec<(i16, u32)>,
    after: Vec<(i16, u32)>,
    /// Floor and captured levels of the open fold.
    open: Option<(u16, u8)>,
    captured: Vec<Captured>,
    hashed: u64,
    hasher: PhantomData<H>,
}

impl<H: Hasher> Default for Folder<H> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            groups: Vec::new(),
            cpl: Vec::new(),
            merges: Vec::new(),
            spans: Vec::new(),
            hashes: Vec::new(),
            leaves: Vec::new(),
            values: Values::default(),
            batch: Batch::default(),
            lifts: Vec::new(),
            order: Vec::new(),
            stack: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            open: None,
            captured: Vec::new(),
            hashed: 0,
            hasher: PhantomData,
        }
    }
}

/// Items are numbered in 32 bits; a caller folds in chunks of far fewer.
#[expect(clippy::cast_possible_truncation, reason = "a chunk of 2^32 items would need 400 GB")]
fn index32(index: usize) -> u32 {
    index as u32
}

impl<H: Hasher> Folder<H> {
    /// An empty folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all folds and keeps the buffers.
    pub fn clear(&mut self) {
        self.items.clear();
        self.groups.clear();
        self.cpl.clear();
        self.spans.clear();
        self.hashes.clear();
        self.leaves.clear();
        self.values.blocks.clear();
        self.values.lens.clear();
        self.values.dest.clear();
        self.captured.clear();
        // Empty after a run, but not after one that a panicking hasher ended.
        self.batch.clear();
        self.lifts.clear();
        self.open = None;
    }

    /// Items at hand; a caller runs the batch when it is worth it.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Is there nothing to fold?
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.items.is_empty()
    }

    /// Closed folds.
    pub fn folds(&self) -> usize {
        self.spans.len()
    }

    /// Hash calls made since creation, values included.
    pub fn hashed(&self) -> u64 {
        self.hashed
    }

    /// Opens a fold whose result is the node at depth `floor`.
    ///
    /// # Panics
    /// When a fold is open already.
    pub fn begin(&mut self, floor: u16) {
        self.begin_capturing(floor, 0);
    }

    /// The same for a fold that captures nodes `levels` levels below its floor.
    ///
    /// # Panics
    /// When a fold is open already, or for more levels than [`MAX_CAPTURE`] or than keys have.
    pub fn begin_capturing(&mut self, floor: u16, levels: u8) {
        assert!(levels <= MAX_CAPTURE && floor + u16::from(levels) <= 256, "so many levels");
        assert!(self.open.replace((floor, levels)).is_none(), "a fold is open already");
    }

    /// What the capturing folds computed, in no particular order; a later entry of the same
    /// position says the same. Valid after [`Folder::run`].
    pub fn captured(&self) -> &[Captured] {
        &self.captured
    }

    /// Adds an untouched subtrie by its node.
    pub fn subtrie(&mut self, at: &Prefix, node: &Node) {
        let old = match kind(node) {
            NodeKind::Terminator => return,
            NodeKind::Leaf => Old::HiddenLeaf,
            NodeKind::Internal => Old::Many,
        };
        let item = self.push(at.first_key(), old, false, at.len(), *node);
        self.groups[item as usize].computed = false;
    }

    /// Adds an untouched key.
    pub fn untouched(&mut self, key: &Key, value: FoldValue<'_>) {
        let hash = self.value(value);
        let item = self.push(key, Old::Leaf, false, 256, TERMINATOR);
        self.items[item as usize].old_hash = hash;
        self.leaves.push((item, hash));
    }

    /// Adds an accessed key with its old value (`None`: absent) and what becomes of it. Gives the
    /// number of the new value's hash, [`NO_HASH`] when nothing was put.
    pub fn accessed(
        &mut self,
        key: &Key,
        old: Option<FoldValue<'_>>,
        change: Change<'_>,
    ) -> HashId {
        let old_hash = old.map_or(NO_HASH, |value| self.value(value));
        let (after, put) = match change {
            Change::Keep => (old_hash, NO_HASH),
            Change::Delete => (NO_HASH, NO_HASH),
            Change::Put(value) => {
                let hash = self.value(value);
                (hash, hash)
            }
        };
        let kind = if old.is_some() { Old::Leaf } else { Old::Absent };
        let item = self.push(key, kind, true, 256, TERMINATOR);
        self.items[item as usize].old_hash = old_hash;
        if after != NO_HASH {
            self.leaves.push((item, after));
        }
        put
    }

    /// Adds the result of a fold below: its new node, and the shape that its old keys had. What
    /// a child of shape [`Shape::Many`] emitted is asked for with `fragment`.
    pub fn child(&mut self, at: &Prefix, new_node: &Node, shape: &Shape, fragment: u32) {
        let (key, old) = match shape {
            Shape::Empty => (at.first_key(), Old::Absent),
            Shape::Leaf { key, .. } => (key, Old::Leaf),
            Shape::Many => (at.first_key(), Old::Many),
        };
        let item = self.push(key, old, true, at.len(), *new_node) as usize;
        self.items[item].fragment = fragment;
        if let Shape::Leaf { value_hash, .. } = shape {
            self.items[item].old_hash = index32(self.hashes.len());
            self.hashes.push(*value_hash);
        }
    }

    /// Closes the fold and gives its number.
    ///
    /// When the key of a subtrie that was given as a bare leaf node is needed to place a
    /// terminal, that subtrie's position is in the error: give it as a key and fold again.
    ///
    /// # Errors
    /// The first key below the subtrie whose leaf must be known.
    ///
    /// # Panics
    /// When no fold is open.
    pub fn end(&mut self) -> Result<usize, Key> {
        let (floor, capture) = self.open.take().expect("a fold is open");
        let start = self.spans.last().map_or(0, |span| span.end as usize);
        let end = self.items.len();
        if end > start {
            self.cpl[end - 1] = END;
        }
        let items = &self.items[start..end];
        let touched = items.iter().any(|item| item.touched);
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
            touched,
            old_keys,
            only,
        });
        if touched {
            self.place_terminals(start, end)?;
        }
        Ok(self.spans.len() - 1)
    }

    /// The new node of a fold, at its floor.
    pub fn node(&self, fold: usize) -> Node {
        let span = &self.spans[fold];
        if span.start == span.end { TERMINATOR } else { self.groups[span.start as usize].node }
    }

    /// The shape of a fold's old keys. Where nothing was accessed and the only key was given by
    /// its node alone, it is [`Shape::Many`]: go on with [`Folder::subtrie`].
    pub fn shape(&self, fold: usize) -> Shape {
        let span = &self.spans[fold];
        match span.old_keys {
            0 => Shape::Empty,
            1 => match &self.items[span.only as usize] {
                item if item.old == Old::Leaf => {
                    let value_hash = self.hashes[item.old_hash as usize];
                    Shape::Leaf { key: item.key, value_hash }
                }
                _ => Shape::Many,
            },
            _ => Shape::Many,
        }
    }

    /// For each accessed key or child of a fold, in order: is it the first below its terminal?
    /// (A child of shape [`Shape::Many`] has terminals of its own and counts as first.)
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

    /// The hash behind a number that [`Folder::accessed`] gave; valid after [`Folder::run`].
    pub fn value_hash(&self, id: HashId) -> &ValueHash {
        &self.hashes[id as usize]
    }

    fn value(&mut self, value: FoldValue<'_>) -> HashId {
        let id = index32(self.hashes.len());
        match value {
            FoldValue::Hash(hash) => self.hashes.push(hash),
            FoldValue::Bytes(bytes) if bytes.len() <= 64 => {
                let block = self.values.blocks.len();
                self.values.blocks.push([0; 64]);
                let to = &mut self.values.blocks[block];
                match <[u8; 8]>::try_from(bytes) {
                    // As balances are: a store, and no call.
                    Ok(word) => to[..8].copy_from_slice(&word),
                    Err(_) => to[..bytes.len()].copy_from_slice(bytes),
                }
                #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
                self.values.lens.push(bytes.len() as u8);
                self.values.dest.push(id);
                self.hashes.push([0; 32]);
            }
            FoldValue::Bytes(bytes) => {
                self.hashes.push(H::hash(bytes));
                self.hashed += 1;
            }
        }
        id
    }

    fn push(&mut self, key: &Key, old: Old, touched: bool, depth: u16, node: Node) -> u32 {
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
            touched,
            accessed: touched,
            anchor: depth,
            group: item,
            old_hash: NO_HASH,
            fragment: NONE,
        });
        let fold = index32(self.spans.len());
        self.groups.push(Group {
            node,
            depth,
            touched,
            computed: true,
            fold,
            tail: item,
            head: item,
        });
        self.cpl.push(END);
        item
    }
}
