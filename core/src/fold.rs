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

use alloc::vec::Vec;
use core::marker::PhantomData;

use crate::hasher::Hasher;
use crate::node::{
    Combined, Key, Node, NodeKind, TERMINATOR, ValueHash, combine_kind, concat, kind,
    leaf_preimage, tag_internal, tag_leaf,
};
use crate::prefix::{Prefix, bit, common_len};

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
    touched: bool,
    /// Old keys: 0, 1 (of a leaf item, whose index is in `only`), or 2 for more.
    old_keys: u8,
    only: u32,
}

/// Batch of 64-byte hashes with their destinations.
#[derive(Default)]
struct Batch {
    blocks: Vec<[u8; 64]>,
    dest: Vec<u32>,
    out: Vec<[u8; 32]>,
}

impl Batch {
    fn push(&mut self, block: [u8; 64], dest: u32) {
        self.blocks.push(block);
        self.dest.push(dest);
    }

    fn run<H: Hasher>(&mut self, mut each: impl FnMut(u32, [u8; 32])) -> u64 {
        let count = self.blocks.len();
        if count == 0 {
            return 0;
        }
        self.out.resize(count.max(self.out.len()), [0; 32]);
        H::hash64_many(&self.blocks, &mut self.out[..count]);
        for (dest, hash) in self.dest.iter().zip(&self.out) {
            each(*dest, *hash);
        }
        self.blocks.clear();
        self.dest.clear();
        count as u64
    }
}

/// Values to hash, at most one block each.
#[derive(Default)]
struct Values {
    blocks: Vec<[u8; 64]>,
    lens: Vec<u8>,
    dest: Vec<HashId>,
    out: Vec<[u8; 32]>,
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
    order: Vec<u32>,
    stack: Vec<u32>,
    /// Bits shared with the previous / next old item, -1 for none, and that item.
    before: Vec<(i16, u32)>,
    after: Vec<(i16, u32)>,
    open: Option<u16>,
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
            order: Vec::new(),
            stack: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            open: None,
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
        self.merges.clear();
        self.spans.clear();
        self.hashes.clear();
        self.leaves.clear();
        self.values.blocks.clear();
        self.values.lens.clear();
        self.values.dest.clear();
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

    /// Hash calls made since creation, values included.
    pub fn hashed(&self) -> u64 {
        self.hashed
    }

    /// Opens a fold whose result is the node at depth `floor`.
    ///
    /// # Panics
    /// When a fold is open already.
    pub fn begin(&mut self, floor: u16) {
        assert!(self.open.replace(floor).is_none(), "a fold is open already");
    }

    /// Adds an untouched subtrie by its node.
    pub fn subtrie(&mut self, at: &Prefix, node: &Node) {
        let old = match kind(node) {
            NodeKind::Terminator => return,
            NodeKind::Leaf => Old::HiddenLeaf,
            NodeKind::Internal => Old::Many,
        };
        self.push(at.first_key(), old, false, at.len(), *node);
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
        let floor = self.open.take().expect("a fold is open");
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
            touched,
            old_keys,
            only,
        });
        if touched {
            self.place_terminals(start, end)?;
        }
        Ok(self.spans.len() - 1)
    }

    /// Hashes everything that was added.
    pub fn run(&mut self) {
        self.hash_values();
        self.hash_leaves();
        self.merge_all();
        self.lift_to_floors();
    }

    /// The new node of a fold, at its floor.
    pub fn node(&self, fold: usize) -> Node {
        let span = &self.spans[fold];
        if span.start == span.end { TERMINATOR } else { self.groups[span.start as usize].node }
    }

    /// The shape of a fold's old keys.
    ///
    /// # Panics
    /// When the only old key was given as a bare node.
    pub fn shape(&self, fold: usize) -> Shape {
        let span = &self.spans[fold];
        match span.old_keys {
            0 => Shape::Empty,
            1 => {
                let item = &self.items[span.only as usize];
                assert!(item.old == Old::Leaf, "the only key of a touched fold is known");
                Shape::Leaf { key: item.key, value_hash: self.hashes[item.old_hash as usize] }
            }
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
                let mut block = [0; 64];
                block[..bytes.len()].copy_from_slice(bytes);
                self.values.blocks.push(block);
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
        self.groups.push(Group { node, depth, touched, tail: item, head: item });
        self.cpl.push(END);
        item
    }

    fn hash_values(&mut self) {
        let count = self.values.blocks.len();
        let out = &mut self.values.out;
        out.resize(count.max(out.len()), [0; 32]);
        H::hash_short_many(&self.values.blocks, &self.values.lens, &mut out[..count]);
        for (dest, hash) in self.values.dest.iter().zip(&*out) {
            self.hashes[*dest as usize] = *hash;
        }
        self.hashed += count as u64;
        self.values.blocks.clear();
        self.values.lens.clear();
        self.values.dest.clear();
    }

    fn hash_leaves(&mut self) {
        for (item, hash) in self.leaves.drain(..) {
            self.batch.push(
                leaf_preimage(&self.items[item as usize].key, &self.hashes[hash as usize]),
                item,
            );
        }
        let groups = &mut self.groups;
        self.hashed +=
            self.batch.run::<H>(|item, hash| groups[item as usize].node = tag_leaf(hash));
    }

    /// Merges every boundary, deepest first.
    fn merge_all(&mut self) {
        self.merges.clear();
        self.merges.resize(
            self.items.len(),
            Merge { left_touched: false, right_touched: false, sibling: TERMINATOR },
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

    fn merge_at(&mut self, depth: u16, from: usize, to: usize) {
        loop {
            for at in from..to {
                let boundary = self.order[at];
                let left = self.groups[boundary as usize].head;
                self.lift_once(left, depth + 1);
                self.lift_once(boundary + 1, depth + 1);
            }
            if self.finish_lifts() == 0 {
                break;
            }
        }
        for at in from..to {
            let boundary = self.order[at];
            let (head, right) = (self.groups[boundary as usize].head, boundary + 1);
            let (a, b) = (self.groups[head as usize], self.groups[right as usize]);
            self.merges[boundary as usize] = Merge {
                left_touched: a.touched,
                right_touched: b.touched,
                sibling: if a.touched { b.node } else { a.node },
            };
            let group = &mut self.groups[head as usize];
            group.touched |= b.touched;
            group.depth = depth;
            group.tail = b.tail;
            match combine_kind(&a.node, &b.node) {
                Combined::Known(node) => group.node = node,
                Combined::Hash => self.batch.push(concat(&a.node, &b.node), head),
            }
            self.groups[b.tail as usize].head = head;
        }
        let groups = &mut self.groups;
        self.hashed +=
            self.batch.run::<H>(|head, hash| groups[head as usize].node = tag_internal(hash));
    }

    /// Queues one step up beside a terminator when the group's node is internal and deeper than
    /// `to`; leaves and terminators need no hash to move.
    fn lift_once(&mut self, head: u32, to: u16) {
        let group = &mut self.groups[head as usize];
        if group.depth <= to {
            return;
        }
        if kind(&group.node) != NodeKind::Internal {
            group.depth = to;
            return;
        }
        group.depth -= 1;
        let right = bit(&self.items[head as usize].key, group.depth);
        let block =
            if right { concat(&TERMINATOR, &group.node) } else { concat(&group.node, &TERMINATOR) };
        self.batch.push(block, head);
    }

    fn finish_lifts(&mut self) -> u64 {
        let groups = &mut self.groups;
        let count =
            self.batch.run::<H>(|head, hash| groups[head as usize].node = tag_internal(hash));
        self.hashed += count;
        count
    }

    fn lift_to_floors(&mut self) {
        loop {
            for at in 0..self.spans.len() {
                let span = self.spans[at];
                if span.start < span.end {
                    self.lift_once(span.start, span.floor);
                }
            }
            if self.finish_lifts() == 0 {
                break;
            }
        }
    }
}

/// Placing terminals and emitting the multiproof.
impl<H: Hasher> Folder<H> {
    /// Finds, for each touched item, the terminal of the old trie that it ends in.
    fn place_terminals(&mut self, start: usize, end: usize) -> Result<(), Key> {
        self.find_neighbours(start, end);
        for at in start..end {
            let item = self.items[at];
            let (before, after) = (self.before[at - start], self.after[at - start]);
            match item.old {
                Old::Leaf => self.items[at].anchor = leaf_depth(before.0, after.0),
                Old::Absent => self.place_absent(start, at, before, after)?,
                Old::Many | Old::HiddenLeaf => {}
            }
        }
        Ok(())
    }

    fn place_absent(
        &mut self,
        start: usize,
        at: usize,
        before: (i16, u32),
        after: (i16, u32),
    ) -> Result<(), Key> {
        let (shared, neighbour) = before.max(after);
        let Ok(shared) = u16::try_from(shared) else {
            // No old key in this fold: one floating terminal for all.
            self.items[at].group = index32(start);
            return Ok(());
        };
        let neighbour = neighbour as usize;
        let around = (self.before[neighbour - start].0, self.after[neighbour - start].0);
        let alone = leaf_depth(around.0, around.1) <= shared;
        match self.items[neighbour].old {
            Old::HiddenLeaf if alone => return Err(self.items[neighbour].key),
            Old::Leaf if alone => {
                self.items[neighbour].touched = true;
                self.groups[neighbour].touched = true;
                self.items[at].group = index32(neighbour);
                return Ok(());
            }
            _ => {}
        }
        self.items[at].anchor = shared + 1;
        if at > start {
            let previous = self.items[at - 1];
            if previous.old == Old::Absent
                && previous.anchor == shared + 1
                && self.cpl[at - 1] > shared
            {
                self.items[at].group = previous.group;
            }
        }
        Ok(())
    }

    /// Bits shared with the nearest old items on both sides.
    fn find_neighbours(&mut self, start: usize, end: usize) {
        let count = end - start;
        self.before.clear();
        self.before.resize(count, (-1, NONE));
        self.after.clear();
        self.after.resize(count, (-1, NONE));
        let mut near = (-1i16, NONE);
        for at in start..end {
            self.before[at - start] = near;
            near = pass(near, self.items[at].old, at, self.cpl[at]);
        }
        near = (-1, NONE);
        for at in (start..end).rev() {
            self.after[at - start] = near;
            let cpl = if at > start { self.cpl[at - 1] } else { END };
            near = pass(near, self.items[at].old, at, cpl);
        }
    }

    /// Gives a fold's terminals and siblings to `sink`.
    ///
    /// # Panics
    /// When the fold's shape is not [`Shape::Many`] (its terminal floats) or nothing in it was
    /// touched.
    pub fn emit(&mut self, fold: usize, sink: &mut impl Sink) {
        let span = self.spans[fold];
        assert!(
            span.touched && span.old_keys == 2,
            "only a touched fold of two old keys places its terminals"
        );
        let mut stack = core::mem::take(&mut self.stack);
        stack.clear();
        let mut at = span.start as usize;
        let end = span.end as usize;
        while at < end {
            let mut last = at;
            while last + 1 < end && self.same_unit(at, last + 1) {
                last += 1;
            }
            let next = if last + 1 < end { Some(self.cpl[last]) } else { None };
            let above = self.above(&stack, next, span.floor);
            self.emit_unit(at, above, sink);
            // Everything deeper than the next boundary is complete.
            while let Some(top) = stack.last().copied() {
                if next.is_some_and(|next| self.cpl[top as usize] < next) {
                    break;
                }
                stack.pop();
                let above = self.above(&stack, next, span.floor);
                self.emit_merge(top, above, sink);
            }
            stack.push(index32(last));
            at = last + 1;
        }
        self.stack = stack;
    }

    /// Emits the only terminal of a trie with fewer than two old keys: it sits at depth 0.
    pub fn emit_root(shape: &Shape, sink: &mut impl Sink) {
        match shape {
            Shape::Empty => sink.terminator(&[0; 32], 0),
            Shape::Leaf { key, value_hash } => sink.leaf(key, value_hash, 0),
            Shape::Many => unreachable!("a trie of two keys places its terminals"),
        }
    }

    fn same_unit(&self, first: usize, other: usize) -> bool {
        let (a, b) = (&self.items[first], &self.items[other]);
        a.touched && b.touched && a.group == b.group
    }

    /// Depth to which the subtrie at hand climbs: just below the next merge, or the floor.
    fn above(&self, stack: &[u32], next: Option<u16>, floor: u16) -> u16 {
        let left = stack.last().map(|boundary| self.cpl[*boundary as usize]);
        left.max(next).map_or(floor, |cpl| cpl + 1)
    }

    fn emit_unit(&self, first: usize, above: u16, sink: &mut impl Sink) {
        let leader = &self.items[self.items[first].group as usize];
        if !self.items[first].touched {
            return;
        }
        match leader.old {
            Old::Many => sink.fragment(leader.fragment),
            Old::Leaf => {
                sink.leaf(&leader.key, &self.hashes[leader.old_hash as usize], leader.anchor)
            }
            Old::Absent => sink.terminator(&leader.key, leader.anchor),
            Old::HiddenLeaf => unreachable!("a hidden leaf is never touched"),
        }
        debug_assert!(leader.anchor >= above, "a terminal lies below the merge above it");
        for _ in above..leader.anchor {
            sink.sibling(&TERMINATOR);
        }
    }

    fn emit_merge(&self, boundary: u32, above: u16, sink: &mut impl Sink) {
        let merge = &self.merges[boundary as usize];
        if !merge.left_touched && !merge.right_touched {
            return;
        }
        if merge.left_touched != merge.right_touched {
            sink.sibling(&merge.sibling);
        }
        for _ in above..self.cpl[boundary as usize] {
            sink.sibling(&TERMINATOR);
        }
    }
}

/// Combines each run of `width` neighbouring nodes of one depth into the node above them all;
/// `nodes` shrinks to one node a run.
///
/// # Panics
/// When `width` is not a power of two or does not divide the number of nodes.
pub fn combine_tiles<H: Hasher>(nodes: &mut Vec<Node>, width: usize) {
    assert!(width.is_power_of_two() && nodes.len().is_multiple_of(width), "whole runs");
    let mut batch = Batch::default();
    let mut width = width;
    while width > 1 {
        let count = nodes.len() / 2;
        for at in 0..count {
            let (left, right) = (nodes[2 * at], nodes[2 * at + 1]);
            match combine_kind(&left, &right) {
                Combined::Known(node) => nodes[at] = node,
                Combined::Hash => batch.push(concat(&left, &right), index32(at)),
            }
        }
        nodes.truncate(count);
        batch.run::<H>(|at, hash| nodes[at as usize] = tag_internal(hash));
        width /= 2;
    }
}

/// Depth of a leaf in the old trie, from the bits it shares with its old neighbours.
fn leaf_depth(before: i16, after: i16) -> u16 {
    u16::try_from(before.max(after) + 1).unwrap_or(0)
}

/// Carries the nearest old item one item on.
#[expect(clippy::cast_possible_wrap, reason = "at most 256, or END which is not used further")]
fn pass(near: (i16, u32), old: Old, at: usize, cpl: u16) -> (i16, u32) {
    let cpl = cpl.min(256) as i16;
    if old == Old::Absent { (near.0.min(cpl), near.1) } else { (cpl, index32(at)) }
}
