//! The fold: items in key order, a stack of subtries that wait for their right side, and the messages to hash.
//!
//! The bits that two neighbouring items share are a *fork*. When an item comes, the one before it goes up to the fork
//! between both, merging with what waits at deeper forks, and waits there. So the form of the trie is known before
//! anything is hashed, and so is the multiproof but for its hashes.
//!
//! Invariants: siblings are emitted in post-order; the terminal of an access is placed when the subtrie that it is
//! alone in meets another one that is not empty.

use alloc::vec::Vec;
use core::ops::Range;

use super::path::{Bare, Home, Lines, Path, Siblings};
use super::records::Records;
use super::stages::{Source, Stages, index32};
use super::values::Values;
use super::{Change, FoldValue, HashId, NO_HASH, Occupancy};
use crate::hasher::Hasher;
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};
use crate::prefix::{Prefix, bit, common_len};
use crate::proof::Terminal;
use crate::proof::terminal::terminals;

/// The terminal of an access is a leaf that was given by its node alone: give its key and value, and fold again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden(pub u32);

/// What the multiproof needs of a subtrie before the batch; accesses have the number of their record.
#[derive(Clone, Copy, Debug)]
enum Old {
    /// Nothing below is accessed, and no pair in it may be another key's terminal.
    Beside,
    /// Nothing below is accessed; it has this pair.
    Pair(u32),
    /// Nothing below is accessed; it is a leaf that was given by its node, and was named so.
    Hidden(u32),
    /// No key; the terminal of this access and of those after it is not placed.
    Empty(u32),
    /// One key: likewise.
    Leaf(u32),
    /// All terminals are placed.
    Many,
}

impl Old {
    #[inline]
    const fn pack(self) -> u64 {
        let (tag, number) = match self {
            Self::Beside => (0, 0),
            Self::Pair(pair) => (1, pair),
            Self::Hidden(name) => (2, name),
            Self::Empty(access) => (3, access),
            Self::Leaf(access) => (4, access),
            Self::Many => (5, 0),
        };
        (number as u64) << 32 | tag
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the word")]
    const fn unpack(word: u64) -> Self {
        let number = (word >> 32) as u32;
        match word as u32 {
            0 => Self::Beside,
            1 => Self::Pair(number),
            2 => Self::Hidden(number),
            3 => Self::Empty(number),
            4 => Self::Leaf(number),
            _ => Self::Many,
        }
    }
}

/// A subtrie on its way up: its node after the batch, and what the multiproof needs of it.
///
/// Two words: fields would be written one by one and read together a moment later, for which a processor waits.
#[derive(Clone, Copy)]
pub struct Subtrie {
    new: u64,
    old: u64,
}

impl Subtrie {
    #[inline]
    const fn new(kind: NodeKind, source: Source, old: Old) -> Self {
        Self { new: source.pack() | (kind as u64) << 56, old: old.pack() }
    }

    /// What its node after the batch is.
    #[inline]
    fn kind(self) -> NodeKind {
        match self.new >> 56 {
            0 => NodeKind::Terminator,
            1 => NodeKind::Leaf,
            _ => NodeKind::Internal,
        }
    }

    /// Where its node comes from, if it is no terminator.
    #[inline]
    fn source(self) -> Option<Source> {
        (self.kind() != NodeKind::Terminator).then(|| Source::unpack(self.new))
    }

    /// The least height of messages that are made of its node.
    #[inline]
    fn height(self) -> u16 {
        self.source().map_or(1, Source::above)
    }

    #[inline]
    fn old(self) -> Old {
        Old::unpack(self.old)
    }
}

impl core::fmt::Debug for Subtrie {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Subtrie").field(&self.source()).field(&self.old()).finish()
    }
}

/// Nothing, without an access.
const EMPTY: Subtrie = Subtrie::new(NodeKind::Terminator, Source::NOTHING, Old::Beside);

/// A subtrie, and where it is: at this depth on the way to a key.
#[derive(Clone, Copy, Debug)]
struct Placed {
    key: Key,
    depth: u16,
    subtrie: Subtrie,
}

/// A fold that was ended.
#[derive(Clone, Copy, Debug)]
struct End {
    old: Old,
    is_empty: bool,
    node: u32,
    /// Where its records, siblings and gaps end.
    records: u32,
    siblings: u32,
    gaps: u32,
}

/// Folds ([the module](super)). Buffers are used again, so in steady state it does not allocate.
pub struct Folder {
    values: Values,
    stages: Stages,
    records: Records,
    /// Keys in which nothing is accessed, with the hashes of their values.
    pairs: Vec<(Key, HashId)>,
    /// Subtries that wait for the right side of a fork at this depth.
    waiting: Vec<(u16, Subtrie)>,
    last: Option<Placed>,
    /// Where siblings of fragments belong among those that are emitted here.
    gaps: Vec<(u32, u32)>,
    ends: Vec<End>,
    hidden: Option<u32>,
    /// Does an item lie below another one?
    overlap: bool,
    /// Pairs of which no hash is made: a leaf or nothing beside nothing.
    unhashed: usize,
    items: usize,
}

impl core::fmt::Debug for Folder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Folder")
            .field("folds", &self.ends.len())
            .field("items", &self.items)
            .field("hashed", &self.stages.hashed)
            .finish_non_exhaustive()
    }
}

/// What is given, and when it is hashed.
impl Folder {
    /// An empty folder.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            values: Values::new(hasher),
            stages: Stages::default(),
            records: Records::default(),
            pairs: Vec::new(),
            waiting: Vec::new(),
            last: None,
            gaps: Vec::new(),
            ends: Vec::new(),
            hidden: None,
            overlap: false,
            unhashed: 0,
            items: 0,
        }
    }

    /// Its hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.values.hasher
    }

    /// Removes all folds, one that was not ended included; the memory stays for the next use.
    pub fn clear(&mut self) {
        self.values.clear();
        self.stages.clear();
        self.records.clear();
        self.pairs.clear();
        self.waiting.clear();
        self.last = None;
        self.gaps.clear();
        self.ends.clear();
        self.hidden = None;
        self.overlap = false;
        self.unhashed = 0;
        self.items = 0;
    }

    /// Removes all folds, and what there is of lists of keys beyond so many of them.
    pub fn shrink_to(&mut self, keys: usize) {
        self.clear();
        self.values.shrink_to(keys);
        self.records.shrink_to(keys);
        self.pairs.shrink_to(keys);
    }

    /// Hash calls made since creation, values included.
    #[inline]
    pub fn hashed(&self) -> u64 {
        self.stages.hashed
    }

    /// Items given since [`Self::clear`] or [`Self::settle`].
    #[inline]
    pub fn len(&self) -> usize {
        self.items
    }

    /// Was nothing given?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Begins a fold of items below a prefix of `floor` bits, or goes on with it.
    #[inline]
    pub fn below(&mut self, floor: u16) -> Span<'_, Bare> {
        self.along(floor, Bare)
    }

    /// The same where something may lie beside the way up.
    #[inline]
    pub fn along<P: Path>(&mut self, floor: u16, path: P) -> Span<'_, P> {
        Span { folder: self, floor, path }
    }

    /// A subtrie in which nothing is accessed, by its node.
    #[inline]
    pub fn known(&mut self, node: &Node, hidden: u32) -> Subtrie {
        let kind = kind(node);
        let old = if kind == NodeKind::Leaf { Old::Hidden(hidden) } else { Old::Beside };
        Subtrie::new(kind, self.stages.known(node), old)
    }

    /// A subtrie with one pair, in which nothing is accessed; with its node.
    #[inline]
    pub fn known_leaf(&mut self, node: &Node, key: &Key, value_hash: &ValueHash) -> Subtrie {
        let hash = self.values.add(FoldValue::Hash(*value_hash), &mut self.stages.hashed);
        let old = self.pair(key, hash);
        Subtrie::new(kind(node), self.stages.known(node), old)
    }

    /// The result of a fold below, in which something is accessed: its new node, what was there before with some key below
    /// it, and the number of what it has emitted, with siblings that lead to its depth.
    pub fn fragment(
        &mut self,
        node: &Node,
        (old, key): (&Occupancy, &Key),
        number: u32,
    ) -> Subtrie {
        let old = match old {
            Occupancy::Many => {
                self.records.push_fragment(number);
                self.gaps.push((index32(self.stages.siblings.len()), number));
                Old::Many
            }
            Occupancy::Empty => Old::Empty(self.records.push(key, NO_HASH)),
            Occupancy::Leaf { key, value_hash } => {
                let hash = self.values.add(FoldValue::Hash(*value_hash), &mut self.stages.hashed);
                Old::Leaf(self.records.push(key, hash))
            }
        };
        Subtrie::new(kind(node), self.stages.known(node), old)
    }

    /// Ends a fold with the subtrie that is all of it; its results are asked for by the number that is given. Is it the
    /// root?
    ///
    /// # Errors
    /// A leaf that must be known by its key.
    pub fn end(&mut self, subtrie: Subtrie, is_root: bool) -> Result<usize, Hidden> {
        if let Some(hidden) = self.hidden {
            return Err(Hidden(hidden));
        }
        if let Old::Empty(access) | Old::Leaf(access) = subtrie.old()
            && is_root
        {
            self.records.place(access, 0);
        }
        let node = self.watch(&subtrie);
        self.ends.push(End {
            old: subtrie.old(),
            is_empty: subtrie.kind() == NodeKind::Terminator,
            node,
            records: index32(self.records.len()),
            siblings: index32(self.stages.siblings.len()),
            gaps: index32(self.gaps.len()),
        });
        Ok(self.ends.len() - 1)
    }

    /// Asks for the node of a subtrie by the number that is given ([`Self::watched`]).
    #[inline]
    pub fn watch(&mut self, subtrie: &Subtrie) -> u32 {
        self.stages.watch(subtrie.source())
    }

    /// Hashes everything.
    #[inline]
    pub fn run(&mut self) {
        debug_assert!(self.waiting.is_empty() && self.last.is_none(), "every fold was ended");
        self.stages.run(&mut self.values);
    }

    /// Hashes what can be hashed and lets go of the messages: what comes is unlimited, and a processor's cache is not.
    pub fn settle(&mut self) {
        let subtries = self.waiting.iter_mut().map(|(_, subtrie)| subtrie);
        let live = subtries.chain(self.last.as_mut().map(|last| &mut last.subtrie));
        let mut live: Vec<(&mut Subtrie, Source)> =
            live.filter_map(|subtrie| subtrie.source().map(|source| (subtrie, source))).collect();
        self.stages.settle(&mut self.values, live.iter_mut().map(|(_, source)| source));
        for (subtrie, source) in live {
            *subtrie = Subtrie::new(subtrie.kind(), source, subtrie.old());
        }
        self.items = 0;
    }

    /// [`Self::settle`], and lets go of keys and values: nothing is accessed, neither here nor in what comes.
    pub fn settle_unaccessed(&mut self) {
        debug_assert_eq!(self.records.len(), 0, "nothing is accessed");
        self.settle();
        let subtries = self.waiting.iter_mut().map(|(_, subtrie)| subtrie);
        for subtrie in subtries.chain(self.last.as_mut().map(|last| &mut last.subtrie)) {
            subtrie.old = Old::Beside.pack();
        }
        self.pairs.clear();
        self.values.clear();
    }
}

/// What came of it, after [`Folder::run`].
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

    /// What was below a fold's prefix before, as far as placing terminals needs it. Where nothing was accessed and the only
    /// key was given by its node alone it is [`Occupancy::Many`]: its node says what it is.
    pub fn occupancy(&self, fold: usize) -> Occupancy {
        match self.ends[fold].old {
            Old::Empty(access) | Old::Leaf(access) => self.records.occupancy(access, &self.values),
            Old::Pair(pair) => {
                let (key, hash) = self.pairs[pair as usize];
                Occupancy::Leaf { key, value_hash: *self.values.hash(hash) }
            }
            Old::Beside if self.ends[fold].is_empty => Occupancy::Empty,
            Old::Beside | Old::Hidden(_) | Old::Many => Occupancy::Many,
        }
    }

    /// The hash with a number that [`Span::accessed`] gave.
    #[inline]
    pub fn value_hash(&self, id: HashId) -> &ValueHash {
        self.values.hash(id)
    }

    /// Where the accesses of a fold, and fragments, are among those of all folds, in order.
    pub fn accesses(&self, fold: usize) -> Range<usize> {
        let from = fold.checked_sub(1).map_or(0, |before| self.ends[before].records);
        from as usize..self.ends[fold].records as usize
    }

    /// Is this access the first that ends in its terminal?
    #[inline]
    pub fn is_first(&self, access: usize) -> bool {
        self.records.is_first(access)
    }

    /// Appends the terminals of a fold that had two keys or more, or is the root, and gives their number. Where a fragment
    /// belongs, `fragment` is called with its number.
    pub fn terminals(
        &self,
        fold: usize,
        out: &mut Vec<u8>,
        fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        self.records.terminals(self.accesses(fold), &self.values, out, fragment)
    }

    /// Where the siblings of a fold are among those of all ([`Self::siblings`]).
    pub fn siblings_of(&self, fold: usize) -> Range<usize> {
        let from = fold.checked_sub(1).map_or(0, |before| self.ends[before].siblings);
        from as usize..self.ends[fold].siblings as usize
    }

    /// The siblings of all folds, each in post-order.
    #[inline]
    pub fn siblings(&self) -> &[Node] {
        &self.stages.siblings
    }

    /// The fragments of a fold: before which of all siblings those of each belong, and its number.
    pub fn gaps(&self, fold: usize) -> &[(u32, u32)] {
        let from = fold.checked_sub(1).map_or(0, |before| self.ends[before].gaps);
        &self.gaps[from as usize..self.ends[fold].gaps as usize]
    }

    /// The numbers of nodes and of lines that are kept so far, before or after [`Folder::run`].
    #[inline]
    pub fn kept(&self) -> (usize, usize) {
        self.stages.kept()
    }

    /// The nodes of treelets that were not known, with their positions, in the order in which they were given.
    #[inline]
    pub fn nodes(&self) -> &[(u8, Node)] {
        &self.stages.nodes
    }

    /// The new lines of tilings, with their boundaries, in the order in which they were given.
    #[inline]
    pub fn lines(&self) -> &[(u32, [Node; 2])] {
        &self.stages.lines
    }

    /// Takes siblings, nodes and lines, and gives these lists for the next ones.
    pub fn swap(
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

/// The way up.
impl Folder {
    #[inline]
    fn pair(&mut self, key: &Key, hash: HashId) -> Old {
        self.pairs.push((*key, hash));
        Old::Pair(index32(self.pairs.len() - 1))
    }

    /// Takes the subtrie at this depth on the way to a key up to the fork with the next one, where it waits; or to the
    /// floor, where it is given.
    #[inline]
    fn climb(
        &mut self,
        (key, mut depth, mut subtrie): (&Key, u16, Subtrie),
        next: Option<u16>,
        floor: u16,
        path: &mut impl Path,
    ) -> Option<Subtrie> {
        loop {
            let left = self.waiting.last().map(|(fork, _)| *fork).filter(|fork| *fork >= floor);
            let deepest = left.max(next);
            let stop = deepest.map_or(floor, |fork| fork + 1);
            if depth < stop {
                self.overlap = true;
                return None;
            }
            let bottom = stop.max(path.bottom());
            if bottom < depth && subtrie.kind() != NodeKind::Internal {
                // Nothing is beside, and a leaf needs no hash to go up.
                if matches!(subtrie.old(), Old::Many) {
                    (bottom..depth).for_each(|_| self.stages.sibling(None));
                }
                depth = bottom;
            }
            while depth > stop {
                depth -= 1;
                subtrie = self.rise(subtrie, (key, depth), path);
            }
            match (left, next) {
                (Some(fork), _) if deepest == left => {
                    let (_, left) = self.waiting.pop().expect("just seen");
                    depth = fork;
                    let home = path.fork(key, fork);
                    subtrie = self.join(left, subtrie, fork, home);
                }
                (_, Some(fork)) => {
                    self.waiting.push((fork, subtrie));
                    return None;
                }
                _ => return Some(subtrie),
            }
        }
    }

    /// Goes up to a depth at which the other side has no item.
    #[inline]
    fn rise(
        &mut self,
        subtrie: Subtrie,
        (key, depth): (&Key, u16),
        path: &mut impl Path,
    ) -> Subtrie {
        let (line, home) = path.beside(key, depth);
        let right = bit(key, depth);
        let node = &line[usize::from(!right)];
        let (own, other) = (subtrie.kind(), kind(node));
        let old = subtrie.old();
        if matches!(old, Old::Many) {
            self.stages.siblings.push(*node);
        }
        let source = if own == NodeKind::Internal
            || other == NodeKind::Internal
            || (own == NodeKind::Leaf && other == NodeKind::Leaf)
        {
            let half = (right, subtrie.source());
            self.stages.beside(subtrie.height(), line, half, home)
        } else {
            self.unhashed += 1;
            let mut line = *line;
            line[usize::from(right)] = TERMINATOR;
            let own = subtrie.source();
            self.stages.unhashed(&line, if right { [None, own] } else { [own, None] }, home);
            if other == NodeKind::Terminator {
                return subtrie;
            }
            let node = line[usize::from(!right)];
            let source = self.stages.known(&node);
            let old = self.risen((old, true), (depth, other), &node, path);
            return Subtrie::new(NodeKind::Leaf, source, old);
        };
        // Nearly always.
        if matches!(old, Old::Many) {
            return Subtrie::new(NodeKind::Internal, source, Old::Many);
        }
        let node = *node;
        let is_empty = own == NodeKind::Terminator;
        let old = self.risen((old, is_empty), (depth, other), &node, path);
        Subtrie::new(NodeKind::Internal, source, old)
    }

    /// What the multiproof needs of a subtrie that has gone up beside a node.
    fn risen(
        &mut self,
        (old, is_empty): (Old, bool),
        (depth, other): (u16, NodeKind),
        node: &Node,
        path: &impl Path,
    ) -> Old {
        match old {
            old if other == NodeKind::Terminator => old,
            Old::Many => Old::Many,
            Old::Beside | Old::Pair(_) | Old::Hidden(_) => {
                let is_lone = is_empty && other == NodeKind::Leaf;
                if is_lone { Old::Hidden(path.hidden()) } else { Old::Beside }
            }
            Old::Empty(access) if other == NodeKind::Leaf => {
                self.ends_in(access, Old::Hidden(path.hidden()));
                Old::Leaf(access)
            }
            Old::Empty(access) | Old::Leaf(access) => {
                self.records.place(access, depth + 1);
                self.stages.siblings.push(*node);
                Old::Many
            }
        }
    }

    /// The subtrie over two.
    #[inline]
    fn join(&mut self, left: Subtrie, right: Subtrie, depth: u16, home: Home) -> Subtrie {
        let old = match (left.old(), right.old()) {
            (Old::Many, Old::Many) => Old::Many,
            _ => self.join_old(left, right, depth),
        };
        let halves = [left.source(), right.source()];
        let one = match (left.kind(), right.kind()) {
            // A leaf moves up, and nothing is nothing.
            (NodeKind::Terminator, NodeKind::Terminator | NodeKind::Leaf) => right,
            (NodeKind::Leaf, NodeKind::Terminator) => left,
            _ => {
                let height = left.height().max(right.height());
                let source = self.stages.over(height, halves, home);
                return Subtrie::new(NodeKind::Internal, source, old);
            }
        };
        self.unhashed += 1;
        self.stages.unhashed(&[TERMINATOR; 2], halves, home);
        Subtrie { old: old.pack(), ..one }
    }

    /// What the multiproof needs of two subtries together; emits what is placed by that.
    fn join_old(&mut self, left: Subtrie, right: Subtrie, depth: u16) -> Old {
        let is_beside = |old| matches!(old, Old::Beside | Old::Pair(_) | Old::Hidden(_));
        match (left.old(), right.old()) {
            (one, other) if is_beside(one) && is_beside(other) => match (left.kind(), right.kind())
            {
                (_, NodeKind::Terminator) => one,
                (NodeKind::Terminator, _) => other,
                _ => Old::Beside,
            },
            (one, two) if is_beside(one) => self.join_beside(two, left, depth),
            (one, two) if is_beside(two) => self.join_beside(one, right, depth),
            (Old::Empty(first) | Old::Leaf(first), Old::Empty(second)) => {
                self.records.share(first, second);
                left.old()
            }
            (Old::Empty(first), Old::Leaf(second)) => {
                self.records.share(first, second);
                Old::Leaf(first)
            }
            (left, right) => {
                for old in [left, right] {
                    if let Old::Empty(access) | Old::Leaf(access) = old {
                        self.records.place(access, depth + 1);
                    }
                }
                Old::Many
            }
        }
    }

    /// The same where nothing is accessed in one of the two, `other`.
    fn join_beside(&mut self, old: Old, other: Subtrie, depth: u16) -> Old {
        match (old, other.kind()) {
            (Old::Empty(_) | Old::Leaf(_), NodeKind::Terminator) => return old,
            (Old::Empty(access), NodeKind::Leaf) => {
                self.ends_in(access, other.old());
                return Old::Leaf(access);
            }
            (Old::Empty(access) | Old::Leaf(access), _) => self.records.place(access, depth + 1),
            _ => {}
        }
        self.stages.sibling(other.source());
        Old::Many
    }

    /// An access ends in the leaf of another key.
    fn ends_in(&mut self, access: u32, leaf: Old) {
        match leaf {
            Old::Pair(pair) => self.records.ends_in(access, self.pairs[pair as usize]),
            Old::Hidden(hidden) => _ = self.hidden.get_or_insert(hidden),
            _ => unreachable!("a leaf has one key"),
        }
    }
}

/// Items below a prefix, which come in key order, none below another.
pub struct Span<'a, P> {
    folder: &'a mut Folder,
    floor: u16,
    /// What lies beside the way up.
    pub path: P,
}

impl<P: core::fmt::Debug> core::fmt::Debug for Span<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Span").field("floor", &self.floor).field("path", &self.path).finish()
    }
}

impl Span<'_, Lines<'_>> {
    /// Adds a child of the tiling, in order. `next` is the one that comes next; with the last one the subtrie over the
    /// whole tiling is given.
    pub fn child(
        &mut self,
        (child, at): (usize, &Prefix),
        subtrie: Subtrie,
        next: Option<usize>,
    ) -> Option<Subtrie> {
        let fork = self.path.stand_at(child, next);
        self.folder.climb((at.first_key(), at.len(), subtrie), fork, self.floor, &mut self.path)
    }
}

impl Span<'_, Siblings<'_>> {
    /// Adds encoded terminals, which follow in key order.
    pub fn terminals(&mut self, bytes: &[u8]) {
        for terminal in terminals(bytes) {
            let Folder { values, stages, .. } = &mut *self.folder;
            let subtrie = match &terminal {
                Terminal::Terminator { .. } => EMPTY,
                Terminal::Leaf { key, value_hash, .. } => {
                    let hash = values.add(FoldValue::Hash(*value_hash), &mut stages.hashed);
                    let source = stages.leaf(key, hash);
                    Subtrie::new(NodeKind::Leaf, source, Old::Beside)
                }
            };
            self.put(terminal.bits(), terminal.depth(), subtrie);
        }
    }

    /// All was given: ends the fold; its result is the node before the batch. `None` where siblings are missing or left
    /// over, nothing was given, or nodes are no siblings in any trie: a leaf or nothing beside nothing.
    pub fn prove(self) -> Option<usize> {
        let Self { folder, floor, mut path } = self;
        let Placed { key, depth, subtrie } = folder.last.take()?;
        let whole = folder.climb((&key, depth, subtrie), None, floor, &mut path)?;
        let is_right = !path.is_short && path.rest.is_empty() && !folder.overlap;
        if is_right && folder.unhashed == 0 { folder.end(whole, false).ok() } else { None }
    }
}

impl<P: Path> Span<'_, P> {
    /// The folder.
    #[inline]
    pub fn folder(&mut self) -> &mut Folder {
        self.folder
    }

    /// Adds a subtrie in which no key is accessed, by its node.
    #[inline]
    pub fn subtrie(&mut self, at: &Prefix, node: &Node) {
        if kind(node) == NodeKind::Terminator {
            return;
        }
        let subtrie = self.folder.known(node, 0);
        self.put(at.first_key(), at.len(), subtrie);
    }

    /// Adds a key that is not accessed.
    #[inline]
    pub fn unaccessed(&mut self, key: &Key, value: FoldValue<'_>) {
        let hash = self.folder.values.add(value, &mut self.folder.stages.hashed);
        let old = self.folder.pair(key, hash);
        let source = self.folder.stages.leaf(key, hash);
        self.put(key, 256, Subtrie::new(NodeKind::Leaf, source, old));
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
        let folder = &mut *self.folder;
        let hashes = folder.values.change(old, change, &mut folder.stages.hashed);
        let record = folder.records.push(key, hashes.old);
        let old = if hashes.old == NO_HASH { Old::Empty(record) } else { Old::Leaf(record) };
        let subtrie = match hashes.new {
            NO_HASH => Subtrie { old: old.pack(), ..EMPTY },
            new => Subtrie::new(NodeKind::Leaf, folder.stages.leaf(key, new), old),
        };
        self.put(key, 256, subtrie);
        hashes.put
    }

    /// Adds a subtrie.
    #[inline]
    pub fn put(&mut self, key: &Key, depth: u16, subtrie: Subtrie) {
        self.folder.items += 1;
        let last = self.folder.last.replace(Placed { key: *key, depth, subtrie });
        if let Some(Placed { key: last, depth, subtrie }) = last {
            debug_assert!(last < *key, "items come in key order, each key once");
            let fork = Some(common_len(&last, key));
            let waits =
                self.folder.climb((&last, depth, subtrie), fork, self.floor, &mut self.path);
            debug_assert!(waits.is_none(), "a subtrie waits at a fork");
        }
    }

    /// Takes together what the last item is below a prefix with, of this many bits, as long as the floor or longer: no other
    /// item comes below that. Gives it.
    ///
    /// # Panics
    /// When there is no item.
    pub fn gather(&mut self, floor: u16) -> Subtrie {
        let Placed { key, depth, subtrie } = self.folder.last.take().expect("an item was given");
        let whole = self.folder.climb((&key, depth, subtrie), None, floor, &mut self.path);
        let subtrie = whole.expect("items lie below the floor");
        self.folder.last = Some(Placed { key, depth: floor, subtrie });
        subtrie
    }

    /// All items were given: the subtrie that they are.
    pub fn close(mut self) -> Subtrie {
        let Some(Placed { key, depth, subtrie }) = self.folder.last.take() else { return EMPTY };
        let whole = self.folder.climb((&key, depth, subtrie), None, self.floor, &mut self.path);
        whole.unwrap_or(EMPTY)
    }

    /// All items were given: ends the fold, whose results are asked for by the number that is given.
    ///
    /// # Errors
    /// A leaf that must be known by its key.
    pub fn end(self) -> Result<usize, Hidden> {
        let Self { folder, floor, path } = self;
        let subtrie = Span { folder: &mut *folder, floor, path }.close();
        debug_assert!(!folder.overlap, "no item lies below another");
        folder.end(subtrie, floor == 0)
    }
}
