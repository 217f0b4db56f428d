//! Going up from the accesses of a batch, page by page: new nodes and lines, and the multiproof.
//!
//! Use: pages and children in key order. What [`Merkleizer::page`] returns goes to [`Merkleizer::child`] of the region's
//! tiling, and what the last child of a tiling returns to [`Merkleizer::end`]. After [`Merkleizer::run`] nodes, lines and the
//! parts of the proof can be read. [`Merkleizer::clear`] keeps the memory. `docs/line-tree.md` has the algorithm.
//!
//! Invariant: siblings are emitted in the order of the multiproof; a terminal is placed when the subtrie that it is alone in
//! meets another one that is not empty.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;

use super::numbers::index32;
use super::record::Records;
use super::reshape::{PageChange, page_change};
use super::shape::{Joined, PageView, Plain, Shape, Tiled, Top};
use super::stages::{Into, NO_HOME, Source, Stages};
use super::tiling::Tiling;
use super::union::{NONE, Union};
use crate::fold::{Change, FoldValue, HashId, NO_HASH, Occupancy};
use crate::hasher::Hasher;
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};
use crate::prefix::{bit, common_len};

/// What a batch does with a key of a page, or how the view that it is on differs from the page there.
#[derive(Clone, Copy, Debug)]
pub struct KeyAccess<'a> {
    /// The key.
    pub key: Key,
    /// Is it accessed? Otherwise it only differs, and `change` is [`Change::Keep`].
    pub accessed: bool,
    /// Is the value in the view another one than that of the page?
    pub differs: bool,
    /// Is the value before part of what the witness claims?
    pub reads: bool,
    /// The value before, in the view.
    pub old: Option<FoldValue<'a>>,
    /// What becomes of it.
    pub change: Change<'a>,
}

impl KeyAccess<'_> {
    /// Is there a value afterwards?
    fn is_present_after(&self) -> bool {
        match self.change {
            Change::Keep => self.old.is_some(),
            Change::Put(_) => true,
            Change::Delete => false,
        }
    }
}

/// The terminal of an accessed key is the leaf of another child of a tiling, of which only the node is known. Put that child
/// in by [`Merkleizer::unaccessed_leaf`], too, and begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HiddenLeaf {
    /// Its number in the tiling.
    pub child: usize,
}

/// The node of a subtrie after the batch.
#[derive(Clone, Copy, Debug)]
enum New {
    Empty,
    /// One key: its leaf node moves up unchanged.
    Leaf(Source),
    /// Two keys or more: the node at this depth.
    Inner(Source, u16),
    /// That of this entry or boundary as it is.
    Same(Top),
}

/// The pair of a subtrie that has one and in which nothing is accessed: it may be another key's terminal.
#[derive(Clone, Copy, Debug)]
enum Lone {
    /// There is none, or more than one.
    None,
    /// The entry of the page.
    Entry(u32),
    /// The other key with this number.
    Other(u32),
    /// The only key of this child, which is not known.
    Hidden(u32),
}

/// What the multiproof needs of a subtrie before the batch; an access is named by its number.
#[derive(Clone, Copy, Debug)]
enum Old {
    /// Nothing below is accessed.
    Beside(Lone),
    /// No key; the terminal of this access and of those after it is not placed.
    Empty(u32),
    /// One key: likewise.
    Leaf(u32),
    /// All terminals are placed, and siblings are emitted up to this depth.
    Many(u16),
}

/// A subtrie on its way up.
#[derive(Clone, Copy, Debug)]
pub struct Subtrie {
    new: New,
    old: Old,
    /// Is it after the batch what the page or tiling has?
    same: bool,
    /// The batch of hashes that comes after those of its node.
    round: u16,
    /// An entry below it whose key is there after the batch, if there is any.
    entry: u32,
}

impl Subtrie {
    /// Is it what the page or tiling has already, so that it has no new node?
    pub fn is_same(&self) -> bool {
        self.same
    }
}

/// A subtrie whose top was reached.
#[derive(Clone, Copy, Debug)]
struct End {
    old: Old,
    node: u32,
    /// Where its accesses and siblings end.
    records: u32,
    siblings: u32,
    gaps: u32,
}

/// Lines by the page or tiling that they belong to.
#[derive(Debug, Default)]
pub struct GroupedLines {
    lines: Vec<(u32, [Node; 2])>,
    ends: Vec<u32>,
}

impl GroupedLines {
    /// The lines of a page or tiling, each with its boundary.
    pub fn of(&self, tree: u32) -> &[(u32, [Node; 2])] {
        let tree = tree as usize;
        let start = tree.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.lines[start as usize..self.ends[tree] as usize]
    }
}

/// Computes nodes and proofs (the header of this file).
pub struct Merkleizer<H> {
    stages: Stages,
    records: Records,
    /// Subtries that wait for what is on the other side of a boundary.
    waiting: Vec<(u32, Subtrie)>,
    /// Where siblings of fragments belong among those of this one.
    gaps: Vec<(u32, u32)>,
    /// For each page and tiling in the order in which they were begun, the union of a page whose keys change.
    trees: Vec<u32>,
    unions: Vec<Union>,
    used_unions: usize,
    ends: Vec<End>,
    /// Where each access of a page is.
    found: Vec<Result<usize, usize>>,
    hasher: PhantomData<H>,
}

impl<H> Default for Merkleizer<H> {
    fn default() -> Self {
        Self {
            stages: Stages::default(),
            records: Records::default(),
            waiting: Vec::new(),
            gaps: Vec::new(),
            trees: Vec::new(),
            unions: Vec::new(),
            used_unions: 0,
            ends: Vec::new(),
            found: Vec::new(),
            hasher: PhantomData,
        }
    }
}

impl<H> core::fmt::Debug for Merkleizer<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Merkleizer").field("hashed", &self.stages.hashed).finish_non_exhaustive()
    }
}

/// Putting pages, children and regions in.
impl<H: Hasher> Merkleizer<H> {
    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.stages.clear();
        self.records.clear();
        self.waiting.clear();
        self.gaps.clear();
        self.trees.clear();
        self.used_unions = 0;
        self.ends.clear();
    }

    /// Hash calls made since creation.
    pub fn hashed(&self) -> u64 {
        self.stages.hashed
    }

    /// Puts a page in: its accesses and differing keys, in order, each key once. Gives its number and the subtrie at its floor.
    ///
    /// # Panics
    /// When there are no accesses and no differing keys.
    pub fn page(&mut self, page: PageView<'_>, accesses: &[KeyAccess<'_>]) -> (u32, Subtrie) {
        let number = index32(self.trees.len());
        let mut found = core::mem::take(&mut self.found);
        found.clear();
        found.extend(accesses.iter().map(|access| page.tree.find(&access.key)));
        let mut both = found.iter().zip(accesses);
        let floor = page.tree.floor();
        let subtrie = if both.all(|(at, access)| at.is_ok() && access.is_present_after()) {
            self.trees.push(NONE);
            let at = |access: usize| found[access].unwrap_or_default();
            self.accesses(&Plain { page, number }, floor, accesses, at)
        } else {
            let at = self.used_unions;
            self.used_unions += 1;
            if self.unions.len() == at {
                self.unions.push(Union::default());
            }
            self.trees.push(index32(at));
            let mut union = core::mem::take(&mut self.unions[at]);
            let keys = found.iter().zip(accesses);
            union.set(
                page.tree,
                keys.map(|(at, access)| (&access.key, *at, access.is_present_after())),
            );
            let entry = |access: usize| union.accessed[access] as usize;
            let subtrie =
                self.accesses(&Joined { page, union: &union, number }, floor, accesses, entry);
            self.unions[at] = union;
            subtrie
        };
        self.found = found;
        (number, subtrie)
    }

    /// Begins a tiling; gives its number.
    pub fn begin_tiling(&mut self) -> u32 {
        self.trees.push(NONE);
        index32(self.trees.len() - 1)
    }

    /// Puts a child of a tiling in; children come in order. `next` is the child that comes next, if there is one; with the
    /// last one the subtrie over the whole tiling is returned.
    ///
    /// # Errors
    /// When the terminal of an access is the leaf of another child.
    pub fn child(
        &mut self,
        (tiling, number): (&Tiling, u32),
        child: usize,
        mut subtrie: Subtrie,
        next: Option<usize>,
    ) -> Result<Option<Subtrie>, HiddenLeaf> {
        let top = Top::Entry(index32(child));
        if subtrie.same {
            (subtrie.new, subtrie.round) = (New::Same(top), 0);
        }
        subtrie.entry = index32(child);
        if let Old::Beside(Lone::Hidden(hidden)) = &mut subtrie.old {
            *hidden = index32(child);
        }
        let stop = next.and_then(|next| (child..next).map(|at| tiling.shared(at)).min());
        self.rise(&Tiled { tiling, number }, child, subtrie, stop, 0)
    }

    /// A child in which nothing is accessed and whose node, at this depth, is not that of the tiling.
    pub fn unaccessed(&mut self, node: &Node, depth: u16) -> Subtrie {
        let new = self.known(node, depth);
        let lone = if kind(node) == NodeKind::Leaf { Lone::Hidden(0) } else { Lone::None };
        Subtrie { new, old: Old::Beside(lone), same: false, round: 0, entry: 0 }
    }

    /// A child in which nothing is accessed and that has one pair, such as [`HiddenLeaf`] asks for. Is its node what the tiling
    /// has (`same`)?
    pub fn unaccessed_leaf(&mut self, key: &Key, value: FoldValue<'_>, same: bool) -> Subtrie {
        let value = self.value(value);
        let other = self.records.other(key, value);
        let new =
            if same { New::Same(Top::Entry(0)) } else { New::Leaf(self.stages.leaf(key, value)) };
        Subtrie { new, old: Old::Beside(Lone::Other(other)), same, round: 0, entry: 0 }
    }

    /// A page in which nothing is accessed, and that is not what its tiling has.
    pub fn unaccessed_page(&mut self, page: PageView<'_>) -> Subtrie {
        let number = index32(self.trees.len());
        self.trees.push(NONE);
        let shape = Plain { page, number };
        let mut subtrie = match page.tree.len() {
            0 => Subtrie {
                new: New::Empty,
                old: Old::Beside(Lone::None),
                same: false,
                round: 0,
                entry: 0,
            },
            len => {
                let (top, lone) = (shape.top_of(&(0..len)), lone_of(&shape, 0..len));
                let (new, round) = self.compute(&shape, top);
                Subtrie { new, old: Old::Beside(lone), same: false, round, entry: top.entry() }
            }
        };
        subtrie = self.settle(&shape, subtrie, page.tree.floor());
        self.name_lone(&shape, subtrie)
    }

    /// A child that was computed elsewhere: its node at this depth, what was there before with some key below it, and the
    /// number of what it has emitted.
    pub fn fragment(
        &mut self,
        (node, depth): (&Node, u16),
        (old, key): (&Occupancy, &Key),
        number: u32,
    ) -> Subtrie {
        let new = self.known(node, depth);
        let none = (false, false);
        let old = match old {
            Occupancy::Many => {
                self.records.push_fragment(number);
                self.gaps.push((index32(self.stages.siblings.len()), number));
                Old::Many(depth)
            }
            Occupancy::Empty => Old::Empty(self.records.push(key, none, (NO_HASH, NO_HASH))),
            Occupancy::Leaf { key, value_hash } => {
                let value = self.value(FoldValue::Hash(*value_hash));
                Old::Leaf(self.records.push(key, none, (value, NO_HASH)))
            }
        };
        Subtrie { new, old, same: false, round: 0, entry: 0 }
    }

    /// The top of what was put in since the last call, at depth `floor`. Its nodes and its part of the proof are asked for by
    /// the number that is returned.
    pub fn end(&mut self, subtrie: Subtrie, floor: u16) -> usize {
        let mut old = subtrie.old;
        match &mut old {
            Old::Many(emitted) => self.pad(emitted, floor),
            Old::Empty(access) | Old::Leaf(access) if floor == 0 => self.records.place(*access, 0),
            _ => {}
        }
        let node = self.watch(&subtrie);
        let (records, siblings) = (self.records.len(), self.stages.siblings.len());
        let (records, siblings) = (index32(records), index32(siblings));
        let gaps = index32(self.gaps.len());
        self.ends.push(End { old, node, records, siblings, gaps });
        self.ends.len() - 1
    }

    /// The node of a subtrie will be asked for, by the number that is returned. One that is the same has none.
    pub fn watch(&mut self, subtrie: &Subtrie) -> u32 {
        let number = index32(self.stages.watched.len());
        self.stages.watched.push(TERMINATOR);
        if let New::Leaf(source) | New::Inner(source, _) = subtrie.new {
            self.stages.send(source, Into::Watched(number));
        }
        number
    }

    /// Hashes everything.
    pub fn run(&mut self) {
        debug_assert!(self.waiting.is_empty(), "every subtrie was joined");
        self.stages.run::<H>();
    }
}

/// What came of it.
impl<H: Hasher> Merkleizer<H> {
    /// A watched node.
    pub fn node(&self, number: u32) -> &Node {
        &self.stages.watched[number as usize]
    }

    /// The node of an end.
    pub fn end_node(&self, end: usize) -> &Node {
        self.node(self.ends[end].node)
    }

    /// What was below an end before, if something in it was accessed.
    pub fn occupancy(&self, end: usize) -> Option<Occupancy> {
        match self.ends[end].old {
            Old::Beside(_) => None,
            Old::Empty(access) | Old::Leaf(access) => {
                Some(self.records.occupancy(access, &self.stages.values))
            }
            Old::Many(_) => Some(Occupancy::Many),
        }
    }

    /// The only pair below an end before, if nothing in it was accessed and it is known.
    pub fn lone(&self, end: usize) -> Option<(Key, ValueHash)> {
        match self.ends[end].old {
            Old::Beside(Lone::Other(other)) => {
                Some(self.records.other_pair(other, &self.stages.values))
            }
            _ => None,
        }
    }

    fn records_of(&self, end: usize) -> Range<usize> {
        let start = end.checked_sub(1).map_or(0, |before| self.ends[before].records);
        start as usize..self.ends[end].records as usize
    }

    /// Appends the terminals of an end that had two keys or more, or is the root, and gives their number. Where a fragment
    /// belongs, `fragment` is called with its number.
    pub fn terminals(
        &self,
        end: usize,
        out: &mut Vec<u8>,
        fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        self.records.terminals(self.records_of(end), &self.stages.values, out, fragment)
    }

    /// Appends the operations of an end.
    pub fn ops(&self, end: usize, out: &mut Vec<u8>) {
        self.records.ops(self.records_of(end), &self.stages.values, out);
    }

    /// For each access or fragment of an end: is it the first under its terminal?
    pub fn firsts(&self, end: usize) -> impl Iterator<Item = bool> {
        self.records_of(end).map(|access| self.records.is_first(access))
    }

    /// Appends the siblings of an end. Where those of a fragment belong, `fragment` is called with its number.
    pub fn siblings(
        &self,
        end: usize,
        out: &mut Vec<Node>,
        mut fragment: impl FnMut(u32, &mut Vec<Node>),
    ) {
        let before = end.checked_sub(1).map(|before| self.ends[before]);
        let (mut from, gaps) = before.map_or((0, 0), |end| (end.siblings, end.gaps));
        let End { siblings: to, gaps: gaps_end, .. } = self.ends[end];
        for (at, number) in &self.gaps[gaps as usize..gaps_end as usize] {
            out.extend_from_slice(&self.stages.siblings[from as usize..*at as usize]);
            fragment(*number, out);
            from = *at;
        }
        out.extend_from_slice(&self.stages.siblings[from as usize..to as usize]);
    }

    /// Sorts all lines by the page or tiling that they belong to.
    pub fn group(&self, grouped: &mut GroupedLines) {
        let GroupedLines { lines, ends } = grouped;
        ends.clear();
        ends.resize(self.trees.len(), 0);
        for (home, _) in self.stages.lines() {
            ends[home.tree as usize] += 1;
        }
        // First where each begins; what is put in moves that to its end.
        let mut sum = 0;
        for end in &mut *ends {
            sum += core::mem::replace(end, sum);
        }
        lines.resize(sum as usize, (0, [TERMINATOR; 2]));
        for (home, pair) in self.stages.lines() {
            let at = &mut ends[home.tree as usize];
            lines[*at as usize] = (home.line, *pair);
            *at += 1;
        }
    }

    /// What becomes of a page, of its grouped lines.
    pub fn page_change(
        &self,
        page: &PageView<'_>,
        number: u32,
        lines: &GroupedLines,
    ) -> PageChange {
        let union = match self.trees[number as usize] {
            NONE => None,
            union => Some(&self.unions[union as usize]),
        };
        page_change(page.tree, union, lines.of(number))
    }
}

/// The way up.
impl<H: Hasher> Merkleizer<H> {
    /// Goes up from all accesses of a page to its floor.
    fn accesses<S: Shape>(
        &mut self,
        shape: &S,
        floor: u16,
        accesses: &[KeyAccess<'_>],
        at: impl Fn(usize) -> usize,
    ) -> Subtrie {
        let (mut top, base) = (None, self.waiting.len());
        for (number, access) in accesses.iter().enumerate() {
            let entry = at(number);
            let next = accesses.get(number + 1).map(|next| common_len(&access.key, &next.key));
            let subtrie = self.access(access, entry);
            let Ok(up) = self.rise(shape, entry, subtrie, next, base) else {
                unreachable!("a page has the pairs of all its leaves")
            };
            top = up;
        }
        let mut top = top.expect("the last access reaches the top");
        if !top.same {
            top = self.settle(shape, top, floor);
        }
        self.name_lone(shape, top)
    }

    /// The only pair of a page, which the shapes above do not know.
    fn name_lone<S: Shape>(&mut self, shape: &S, mut subtrie: Subtrie) -> Subtrie {
        if let Old::Beside(Lone::Entry(entry)) = subtrie.old {
            let entry = entry as usize;
            let value = self.value(shape.value(entry).expect("a page has values"));
            let other = self.records.other(shape.key(entry).expect("and keys"), value);
            subtrie.old = Old::Beside(Lone::Other(other));
        }
        subtrie
    }

    /// The subtrie of an accessed or differing key alone.
    fn access(&mut self, access: &KeyAccess<'_>, entry: usize) -> Subtrie {
        let Stages { values, hashed, .. } = &mut self.stages;
        let changed = values.change::<H>(access.old, access.change, hashed);
        let writes = !matches!(access.change, Change::Keep);
        let same = !writes && !access.differs;
        let new = match changed.new {
            NO_HASH => New::Empty,
            _ if same => New::Same(Top::Entry(index32(entry))),
            value => New::Leaf(self.stages.leaf(&access.key, value)),
        };
        let old = if access.accessed {
            let (modes, hashes) = ((access.reads, writes), (changed.old, changed.put));
            let record = self.records.push(&access.key, modes, hashes);
            if access.old.is_some() { Old::Leaf(record) } else { Old::Empty(record) }
        } else {
            Old::Beside(match changed.new {
                NO_HASH => Lone::None,
                value => Lone::Other(self.records.other(&access.key, value)),
            })
        };
        Subtrie { new, old, same, round: 0, entry: index32(entry) }
    }

    fn value(&mut self, value: FoldValue<'_>) -> HashId {
        let Stages { values, hashed, .. } = &mut self.stages;
        values.add::<H>(value, hashed)
    }

    fn known(&mut self, node: &Node, depth: u16) -> New {
        match kind(node) {
            NodeKind::Terminator => New::Empty,
            NodeKind::Leaf => New::Leaf(self.stages.known(node)),
            NodeKind::Internal => New::Inner(self.stages.known(node), depth),
        }
    }

    /// Goes up from an entry to the top of a shape, or to the boundary where the next access, which shares `stop` bits, lies
    /// on the other side. Subtries of this shape wait from number `base` on.
    fn rise<S: Shape>(
        &mut self,
        shape: &S,
        entry: usize,
        mut subtrie: Subtrie,
        stop: Option<u16>,
        base: usize,
    ) -> Result<Option<Subtrie>, HiddenLeaf> {
        let mut boundary = shape.above(entry);
        let mut is_left = boundary == Some(entry);
        while let Some(at) = boundary {
            let shared = shape.shared(at);
            if let Old::Many(emitted) = &mut subtrie.old {
                self.pad(emitted, shared + 1);
            }
            if is_left && stop == Some(shared) {
                self.waiting.push((index32(at), subtrie));
                return Ok(None);
            }
            let waits = !is_left
                && self.waiting.len() > base
                && self.waiting.last().is_some_and(|(waiting, _)| *waiting as usize == at);
            subtrie = match self.waiting.pop_if(|_| waits) {
                Some((_, left)) => self.join(shape, at, left, subtrie)?,
                None => match shape.line(at) {
                    Some(line) => self.beside(shape, at, is_left, subtrie, line)?,
                    None => self.beside_unknown(shape, at, is_left, subtrie)?,
                },
            };
            boundary = shape.parent(at);
            is_left = boundary.is_some_and(|above| at < above);
        }
        Ok(Some(subtrie))
    }

    /// Emits terminators up to depth `to`: those of a stretch.
    #[inline]
    fn pad(&mut self, emitted: &mut u16, to: u16) {
        while *emitted > to {
            self.stages.siblings.push(TERMINATOR);
            *emitted -= 1;
        }
    }

    /// Joins a subtrie with the other half of a boundary's line, in which nothing is accessed.
    #[inline]
    fn beside<S: Shape>(
        &mut self,
        shape: &S,
        at: usize,
        is_left: bool,
        subtrie: Subtrie,
        line: &[Node; 2],
    ) -> Result<Subtrie, HiddenLeaf> {
        let (node, depth) = (&line[usize::from(is_left)], shape.shared(at) + 1);
        let other = kind(node);
        let mut up = subtrie;
        if other != NodeKind::Terminator {
            match subtrie.old {
                Old::Beside(_) => up.old = Old::Beside(Lone::None),
                Old::Empty(access) if other == NodeKind::Leaf => {
                    self.ends_in(shape, access, lone_of(shape, shape.below(at, is_left)))?;
                    up.old = Old::Leaf(access);
                }
                Old::Empty(access) | Old::Leaf(access) => {
                    self.records.place(access, depth);
                    self.stages.siblings.push(*node);
                    up.old = Old::Many(depth - 1);
                }
                Old::Many(_) => {
                    self.stages.siblings.push(*node);
                    up.old = Old::Many(depth - 1);
                }
            }
        }
        if subtrie.same {
            up.new = New::Same(Top::Boundary(index32(at)));
            return Ok(up);
        }
        let has_both = !matches!(subtrie.new, New::Empty) && other != NodeKind::Terminator;
        let mine = self.settle(shape, subtrie, depth);
        if !has_both {
            let (new, old) = (self.known(node, depth), up.old);
            let entry = index32(at + usize::from(is_left));
            let beside = Subtrie { new, old, same: false, round: 0, entry };
            let halves = if is_left { (mine, beside) } else { (beside, mine) };
            let old = match (subtrie.old, other) {
                (Old::Beside(_), NodeKind::Leaf) => {
                    Old::Beside(lone_of(shape, shape.below(at, is_left)))
                }
                _ => old,
            };
            return Ok(self.merge(shape, at, halves, old, false));
        }
        // Nearly always.
        let (New::Leaf(source) | New::Inner(source, _)) = mine.new else {
            unreachable!("it has a key")
        };
        let side = u32::from(!is_left);
        let number = self.stages.pair(mine.round, line, shape.home(at));
        self.stages.send(source, Into::Half(mine.round, 2 * number + side));
        up.new = New::Inner(Source::Pair(mine.round, number), depth - 1);
        up.round = mine.round + 1;
        Ok(up)
    }

    /// The same where the line is not known: computes the other half.
    fn beside_unknown<S: Shape>(
        &mut self,
        shape: &S,
        at: usize,
        is_left: bool,
        subtrie: Subtrie,
    ) -> Result<Subtrie, HiddenLeaf> {
        let entries = shape.below(at, is_left);
        let top = shape.top_of(&entries);
        let (new, round) = self.compute(shape, top);
        let old = Old::Beside(lone_of(shape, entries));
        let other = Subtrie { new, old, same: true, round, entry: top.entry() };
        let (left, right) = if is_left { (subtrie, other) } else { (other, subtrie) };
        let mut up = self.join(shape, at, left, right)?;
        if up.same && shape.is_new(at) {
            // What is not there stays away.
            up.new = New::Same(top);
        }
        Ok(up)
    }

    /// Joins the two subtries of a boundary.
    fn join<S: Shape>(
        &mut self,
        shape: &S,
        at: usize,
        left: Subtrie,
        right: Subtrie,
    ) -> Result<Subtrie, HiddenLeaf> {
        let depth = shape.shared(at) + 1;
        let same = left.same && right.same;
        let as_it_is = |old, new| Subtrie { new, old, same, round: 0, entry: left.entry };
        let is_beside = [left.old, right.old].map(|old| matches!(old, Old::Beside(_)));
        match (left.new, right.new) {
            (New::Same(_), New::Same(_)) if shape.line(at).is_some() && is_beside == [false; 2] => {
                let old = self.join_old(shape, at, &left, &right)?;
                return Ok(as_it_is(old, New::Same(Top::Boundary(index32(at)))));
            }
            (new @ New::Same(_), New::Empty) | (New::Empty, new @ New::Same(_)) if same => {
                let old = self.join_old(shape, at, &left, &right)?;
                return Ok(as_it_is(old, new));
            }
            _ => {}
        }
        let [left, right] = [left, right].map(|half| self.settle(shape, half, depth));
        let old = self.join_old(shape, at, &left, &right)?;
        if same && shape.line(at).is_some() {
            return Ok(as_it_is(old, New::Same(Top::Boundary(index32(at)))));
        }
        Ok(self.merge(shape, at, (left, right), old, same))
    }

    /// A subtrie whose node is computed and at this depth, unless it is a leaf or nothing.
    fn settle<S: Shape>(&mut self, shape: &S, mut subtrie: Subtrie, depth: u16) -> Subtrie {
        if let New::Same(top) = subtrie.new {
            (subtrie.new, subtrie.round) = self.compute(shape, top);
            subtrie.entry = top.entry();
        }
        let New::Inner(mut source, from) = subtrie.new else { return subtrie };
        for depth in (depth..from).rev() {
            let key = shape.key(subtrie.entry as usize).expect("a tiling has no stretches");
            let number = self.stages.pair(subtrie.round, &[TERMINATOR; 2], NO_HOME);
            let half = 2 * number + u32::from(bit(key, depth));
            self.stages.send(source, Into::Half(subtrie.round, half));
            source = Source::Pair(subtrie.round, number);
            subtrie.round += 1;
        }
        subtrie.new = New::Inner(source, depth);
        subtrie
    }

    /// What the multiproof needs of the two subtries of a boundary together; emits what is placed by that. A sibling among
    /// them is at the depth below the boundary.
    fn join_old<S: Shape>(
        &mut self,
        shape: &S,
        at: usize,
        left: &Subtrie,
        right: &Subtrie,
    ) -> Result<Old, HiddenLeaf> {
        let shared = shape.shared(at);
        Ok(match (left.old, right.old) {
            (Old::Beside(left_lone), Old::Beside(right_lone)) => {
                Old::Beside(match (subtrie_is_empty(left), subtrie_is_empty(right)) {
                    (_, true) => left_lone,
                    (true, false) => right_lone,
                    (false, false) => Lone::None,
                })
            }
            (Old::Beside(lone), old) => self.join_beside(shape, old, (left, lone), shared)?,
            (old, Old::Beside(lone)) => self.join_beside(shape, old, (right, lone), shared)?,
            (Old::Empty(first) | Old::Leaf(first), Old::Empty(second)) => {
                self.records.share(first, second);
                left.old
            }
            (Old::Empty(first), Old::Leaf(second)) => {
                self.records.share(first, second);
                Old::Leaf(first)
            }
            (left, right) => {
                for old in [left, right] {
                    if let Old::Empty(access) | Old::Leaf(access) = old {
                        self.records.place(access, shared + 1);
                    }
                }
                Old::Many(shared)
            }
        })
    }

    /// The same where nothing is accessed in one of the two, `other`.
    fn join_beside<S: Shape>(
        &mut self,
        shape: &S,
        old: Old,
        (other, lone): (&Subtrie, Lone),
        shared: u16,
    ) -> Result<Old, HiddenLeaf> {
        let source = match other.new {
            New::Empty => return Ok(old),
            New::Leaf(source) | New::Inner(source, _) => source,
            New::Same(_) => unreachable!("what is not accessed was computed"),
        };
        match (old, other.new) {
            (Old::Empty(access), New::Leaf(_)) => {
                self.ends_in(shape, access, lone)?;
                return Ok(Old::Leaf(access));
            }
            (Old::Empty(access) | Old::Leaf(access), _) => self.records.place(access, shared + 1),
            _ => {}
        }
        let sibling = index32(self.stages.siblings.len());
        self.stages.siblings.push(TERMINATOR);
        self.stages.send(source, Into::Sibling(sibling));
        Ok(Old::Many(shared))
    }

    /// An access ends in the leaf of another key.
    fn ends_in<S: Shape>(&mut self, shape: &S, access: u32, lone: Lone) -> Result<(), HiddenLeaf> {
        let other = match lone {
            Lone::Other(other) => other,
            Lone::Entry(entry) => {
                let entry = entry as usize;
                let value = self.value(shape.value(entry).expect("a page has values"));
                self.records.other(shape.key(entry).expect("and keys"), value)
            }
            Lone::Hidden(child) => return Err(HiddenLeaf { child: child as usize }),
            Lone::None => unreachable!("a leaf has one key"),
        };
        self.records.ends_in(access, other);
        Ok(())
    }

    /// The node over two subtries, whose nodes are at the depth below, and its line.
    fn merge<S: Shape>(
        &mut self,
        shape: &S,
        at: usize,
        (left, right): (Subtrie, Subtrie),
        old: Old,
        same: bool,
    ) -> Subtrie {
        let round = left.round.max(right.round);
        let entry = if subtrie_is_empty(&left) { right.entry } else { left.entry };
        let halves = [left.new, right.new].map(|new| match new {
            New::Empty => None,
            New::Leaf(source) | New::Inner(source, _) => Some(source),
            New::Same(_) => unreachable!("it was computed"),
        });
        let mut sources = (0..).zip(halves).filter_map(|(side, source)| Some((side, source?)));
        match (left.new, right.new) {
            (New::Empty, new) | (new, New::Empty) if !S::TILES => {
                return Subtrie { new, old, same, round, entry };
            }
            (New::Empty, new @ (New::Empty | New::Leaf(_))) | (new @ New::Leaf(_), New::Empty) => {
                let quiet = self.stages.quiet(shape.home(at));
                sources.for_each(|(side, source)| {
                    self.stages.send(source, Into::Quiet(2 * quiet + side));
                });
                return Subtrie { new, old, same, round, entry };
            }
            _ => {}
        }
        let number = self.stages.pair(round, &[TERMINATOR; 2], shape.home(at));
        sources.by_ref().for_each(|(side, source)| {
            self.stages.send(source, Into::Half(round, 2 * number + side));
        });
        let new = New::Inner(Source::Pair(round, number), shape.shared(at));
        Subtrie { new, old, same, round: round + 1, entry }
    }

    /// The node of an entry or boundary as it is, and the batch after it: from its line, or else from all that is below. It
    /// recurses as deep as the page's trie, which is 256 levels at most.
    fn compute<S: Shape>(&mut self, shape: &S, top: Top) -> (New, u16) {
        match top {
            Top::Entry(entry) => {
                let entry = entry as usize;
                if let Some(node) = shape.node(entry) {
                    let depth = shape.above(entry).map_or(0, |above| shape.shared(above) + 1);
                    return (self.known(node, depth), 0);
                }
                let value = self.value(shape.value(entry).expect("a tiling has nodes"));
                let key = shape.key(entry).expect("a page has keys");
                (New::Leaf(self.stages.leaf(key, value)), 0)
            }
            Top::Boundary(at) => {
                let at = at as usize;
                let shared = shape.shared(at);
                if let Some(above) = shape.parent(at)
                    && let Some(line) = shape.line(above)
                {
                    let node = &line[usize::from(above < at)];
                    return (self.known(node, shape.shared(above) + 1), 0);
                }
                if let Some(line) = shape.line(at) {
                    let number = self.stages.pair(0, line, NO_HOME);
                    return (New::Inner(Source::Pair(0, number), shared), 1);
                }
                let [left, right] = [false, true].map(|right| {
                    let entries = shape.below(at, right);
                    let (new, round) = self.compute(shape, shape.top_of(&entries));
                    let (old, entry) = (Old::Beside(Lone::None), index32(entries.start));
                    let half = Subtrie { new, old, same: true, round, entry };
                    self.settle(shape, half, shared + 1)
                });
                let up = self.merge(shape, at, (left, right), left.old, true);
                (up.new, up.round)
            }
        }
    }
}

/// Has it no key?
fn subtrie_is_empty(subtrie: &Subtrie) -> bool {
    matches!(subtrie.new, New::Empty)
}

/// The pair of entries as they are, if it is a single one.
fn lone_of<S: Shape>(shape: &S, entries: Range<usize>) -> Lone {
    if !S::TILES {
        return if entries.len() == 1 { Lone::Entry(index32(entries.start)) } else { Lone::None };
    }
    let is_leaf =
        |entry: &usize| shape.node(*entry).is_some_and(|node| kind(node) == NodeKind::Leaf);
    let mut leaves = entries.filter(is_leaf);
    match (leaves.next(), leaves.next()) {
        (Some(entry), None) => Lone::Hidden(index32(entry)),
        _ => Lone::None,
    }
}
