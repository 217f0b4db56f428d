//! Going up from the changed children of tilings: new nodes and lines, and the multiproof.
//!
//! Use: children in order. What the last child of a tiling returns goes to [`Merkleizer::end`]. After [`Merkleizer::run`] nodes,
//! lines and the parts of the proof can be read. [`Merkleizer::clear`] keeps the memory.
//!
//! Invariant: siblings are emitted in the order of the multiproof; a terminal is placed when the subtrie that it is alone in
//! meets another one that is not empty.

use alloc::vec::Vec;
use core::ops::Range;

use super::numbers::index32;
use super::record::Records;
use super::stages::{Home, Into, Source, Stages};
use super::tiling::Tiling;
use crate::fold::Occupancy;
use crate::hasher::Hasher;
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};

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
    Inner(Source),
}

/// The pair of a subtrie that has one and in which nothing is accessed: it may be another key's terminal.
#[derive(Clone, Copy, Debug)]
enum Lone {
    /// There is none, or more than one.
    None,
    /// The pair with this number.
    Pair(u32),
    /// The only pair of this child, which is not known.
    Hidden(u32),
}

/// What the multiproof needs of a subtrie before the batch; the accesses below a child are named by its number among the
/// fragments.
#[derive(Clone, Copy, Debug)]
enum Old {
    /// Nothing below is accessed.
    Beside(Lone),
    /// No key; the terminal of this access and of those after it is not placed.
    Empty(u32),
    /// One key: likewise.
    Leaf(u32),
    /// All terminals are placed.
    Many,
}

/// A subtrie on its way up.
#[derive(Clone, Copy, Debug)]
pub struct Subtrie {
    new: New,
    old: Old,
    /// The batch of hashes that comes after those of its node.
    round: u16,
}

/// A tiling whose top was reached.
#[derive(Clone, Copy, Debug)]
struct End {
    old: Old,
    node: u32,
    /// Where its fragments and siblings end.
    records: u32,
    siblings: u32,
    gaps: u32,
}

/// Lines by the tiling that they belong to.
#[derive(Debug, Default)]
pub struct GroupedLines {
    lines: Vec<(u32, [Node; 2])>,
    ends: Vec<u32>,
}

impl GroupedLines {
    /// The lines of a tiling, each with its boundary.
    #[inline]
    pub fn of(&self, tiling: u32) -> &[(u32, [Node; 2])] {
        let tiling = tiling as usize;
        let start = tiling.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.lines[start as usize..self.ends[tiling] as usize]
    }
}

/// Computes nodes and proofs (the header of this file).
pub struct Merkleizer {
    stages: Stages,
    records: Records,
    /// Subtries that wait for what is on the other side of a boundary.
    waiting: Vec<(u32, Subtrie)>,
    /// Where siblings of fragments belong among those of this one.
    gaps: Vec<(u32, u32)>,
    /// Tilings that were begun.
    tilings: u32,
    ends: Vec<End>,
    hasher: Hasher,
}

impl core::fmt::Debug for Merkleizer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Merkleizer").field("hashed", &self.stages.hashed).finish_non_exhaustive()
    }
}

/// Putting children in.
impl Merkleizer {
    /// A merkleizer that has no tiling.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            stages: Stages::default(),
            records: Records::default(),
            waiting: Vec::new(),
            gaps: Vec::new(),
            tilings: 0,
            ends: Vec::new(),
            hasher,
        }
    }

    /// Its hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.stages.clear();
        self.records.clear();
        self.waiting.clear();
        self.gaps.clear();
        self.tilings = 0;
        self.ends.clear();
    }

    /// Hash calls made since creation.
    #[inline]
    pub fn hashed(&self) -> u64 {
        self.stages.hashed
    }

    /// Begins a tiling; gives its number.
    #[inline]
    pub fn begin_tiling(&mut self) -> u32 {
        self.tilings += 1;
        self.tilings - 1
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
        if let Old::Beside(Lone::Hidden(hidden)) = &mut subtrie.old {
            *hidden = index32(child);
        }
        let stop = next.and_then(|next| (child..next).map(|at| tiling.shared(at)).min());
        let mut boundary = tiling.above(child);
        let mut is_left = boundary == Some(child);
        while let Some(at) = boundary {
            if is_left && stop == Some(tiling.shared(at)) {
                // The next child lies on the other side.
                self.waiting.push((index32(at), subtrie));
                return Ok(None);
            }
            let home = Home { tiling: number, boundary: index32(at) };
            let waits = |waiting: &mut (u32, Subtrie)| !is_left && waiting.0 as usize == at;
            subtrie = match self.waiting.pop_if(waits) {
                Some((_, left)) => {
                    let old = self.join_old((&left, &subtrie), tiling.shared(at))?;
                    self.merge(home, (left, subtrie), old)
                }
                None => self.beside(tiling, home, is_left, subtrie)?,
            };
            boundary = tiling.parent(at);
            is_left = boundary.is_some_and(|above| at < above);
        }
        Ok(Some(subtrie))
    }

    /// A child in which nothing is accessed and whose node is not that of the tiling.
    #[inline]
    pub fn unaccessed(&mut self, node: &Node) -> Subtrie {
        let lone = if kind(node) == NodeKind::Leaf { Lone::Hidden(0) } else { Lone::None };
        Subtrie { new: self.known(node), old: Old::Beside(lone), round: 0 }
    }

    /// A child in which nothing is accessed and that has one pair, such as [`HiddenLeaf`] asks for; with its node.
    #[inline]
    pub fn unaccessed_leaf(&mut self, node: &Node, key: &Key, value_hash: &ValueHash) -> Subtrie {
        let pair = self.records.pair(key, value_hash);
        Subtrie { new: self.known(node), old: Old::Beside(Lone::Pair(pair)), round: 0 }
    }

    /// An accessed child: its node, what was there before with some key below it, and the number of what it has emitted. Its
    /// siblings lead to the child's depth.
    pub fn fragment(
        &mut self,
        node: &Node,
        (old, key): (&Occupancy, &Key),
        number: u32,
    ) -> Subtrie {
        let new = self.known(node);
        let old = match old {
            Occupancy::Many => {
                self.records.push_fragment(number);
                self.gaps.push((index32(self.stages.siblings.len()), number));
                Old::Many
            }
            Occupancy::Empty => Old::Empty(self.records.push(key, None)),
            Occupancy::Leaf { key, value_hash } => {
                Old::Leaf(self.records.push(key, Some(value_hash)))
            }
        };
        Subtrie { new, old, round: 0 }
    }

    /// The top of what was put in since the last call. Its node and its part of the proof are asked for by the number that is
    /// returned. Is it the root?
    pub fn end(&mut self, subtrie: Subtrie, is_root: bool) -> usize {
        if let Old::Empty(access) | Old::Leaf(access) = subtrie.old
            && is_root
        {
            self.records.place(access, 0);
        }
        let node = index32(self.stages.watched.len());
        self.stages.watched.push(TERMINATOR);
        if let New::Leaf(source) | New::Inner(source) = subtrie.new {
            self.stages.send(source, Into::Watched(node));
        }
        self.ends.push(End {
            old: subtrie.old,
            node,
            records: index32(self.records.len()),
            siblings: index32(self.stages.siblings.len()),
            gaps: index32(self.gaps.len()),
        });
        self.ends.len() - 1
    }

    /// Hashes everything.
    #[inline]
    pub fn run(&mut self) {
        debug_assert!(self.waiting.is_empty(), "every subtrie was joined");
        self.stages.run(self.hasher);
    }
}

/// What came of it.
impl Merkleizer {
    /// The node of an end.
    #[inline]
    pub fn end_node(&self, end: usize) -> &Node {
        &self.stages.watched[self.ends[end].node as usize]
    }

    /// What was below an end before, if something in it was accessed.
    #[inline]
    pub fn occupancy(&self, end: usize) -> Option<Occupancy> {
        match self.ends[end].old {
            Old::Beside(_) => None,
            Old::Empty(access) | Old::Leaf(access) => Some(self.records.occupancy(access)),
            Old::Many => Some(Occupancy::Many),
        }
    }

    /// The only pair below an end before, if nothing in it was accessed and it is known.
    #[inline]
    pub fn lone(&self, end: usize) -> Option<(Key, ValueHash)> {
        match self.ends[end].old {
            Old::Beside(Lone::Pair(pair)) => Some(*self.records.pair_of(pair)),
            _ => None,
        }
    }

    fn records_of(&self, end: usize) -> Range<usize> {
        let start = end.checked_sub(1).map_or(0, |before| self.ends[before].records);
        start as usize..self.ends[end].records as usize
    }

    /// Appends the terminals of an end that had two keys or more, or is the root, and gives their number. Where a fragment
    /// belongs, `fragment` is called with its number.
    #[inline]
    pub fn terminals(
        &self,
        end: usize,
        out: &mut Vec<u8>,
        fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        self.records.terminals(self.records_of(end), out, fragment)
    }

    /// For each fragment of an end: is its first access the first under its terminal?
    #[inline]
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

    /// Sorts all lines by the tiling that they belong to.
    pub fn group(&self, grouped: &mut GroupedLines) {
        let GroupedLines { lines, ends } = grouped;
        ends.clear();
        ends.resize(self.tilings as usize, 0);
        for (home, _) in self.stages.lines() {
            ends[home.tiling as usize] += 1;
        }
        // First where each begins; what is put in moves that to its end.
        let mut sum = 0;
        for end in &mut *ends {
            sum += core::mem::replace(end, sum);
        }
        lines.resize(sum as usize, (0, [TERMINATOR; 2]));
        for (home, pair) in self.stages.lines() {
            let at = &mut ends[home.tiling as usize];
            lines[*at as usize] = (home.boundary, *pair);
            *at += 1;
        }
    }
}

/// The way up.
impl Merkleizer {
    fn known(&mut self, node: &Node) -> New {
        match kind(node) {
            NodeKind::Terminator => New::Empty,
            NodeKind::Leaf => New::Leaf(self.stages.known(node)),
            NodeKind::Internal => New::Inner(self.stages.known(node)),
        }
    }

    /// Joins a subtrie with the other half of a boundary's line, in which nothing is accessed.
    #[inline]
    fn beside(
        &mut self,
        tiling: &Tiling,
        home: Home,
        is_left: bool,
        subtrie: Subtrie,
    ) -> Result<Subtrie, HiddenLeaf> {
        let at = home.boundary as usize;
        let (line, shared) = (tiling.line(at), tiling.shared(at));
        let node = &line[usize::from(is_left)];
        let other = kind(node);
        let lone = || Lone::Hidden(index32(leaf_below(tiling, at, is_left)));
        let is_empty = matches!(subtrie.new, New::Empty);
        let old = match subtrie.old {
            Old::Many => {
                self.stages.siblings.push(*node);
                Old::Many
            }
            old if other == NodeKind::Terminator => old,
            Old::Beside(_) if is_empty && other == NodeKind::Leaf => Old::Beside(lone()),
            Old::Beside(_) => Old::Beside(Lone::None),
            Old::Empty(access) if other == NodeKind::Leaf => {
                self.ends_in(access, lone())?;
                Old::Leaf(access)
            }
            Old::Empty(access) | Old::Leaf(access) => {
                self.records.place(access, shared + 1);
                self.stages.siblings.push(*node);
                Old::Many
            }
        };
        if is_empty || other == NodeKind::Terminator {
            let beside = Subtrie { new: self.known(node), old, round: 0 };
            let halves = if is_left { (subtrie, beside) } else { (beside, subtrie) };
            return Ok(self.merge(home, halves, old));
        }
        // Nearly always.
        let (New::Leaf(source) | New::Inner(source)) = subtrie.new else {
            unreachable!("it has a key")
        };
        let number = self.stages.pair(subtrie.round, line, home);
        self.stages.send(source, Into::Half(subtrie.round, 2 * number + u32::from(!is_left)));
        let new = New::Inner(Source::Pair(subtrie.round, number));
        Ok(Subtrie { new, old, round: subtrie.round + 1 })
    }

    /// What the multiproof needs of the two subtries of a boundary together; emits what is placed by that.
    fn join_old(
        &mut self,
        (left, right): (&Subtrie, &Subtrie),
        shared: u16,
    ) -> Result<Old, HiddenLeaf> {
        Ok(match (left.old, right.old) {
            (Old::Beside(left_lone), Old::Beside(right_lone)) => {
                Old::Beside(match (left.new, right.new) {
                    (_, New::Empty) => left_lone,
                    (New::Empty, _) => right_lone,
                    _ => Lone::None,
                })
            }
            (Old::Beside(lone), old) => self.join_beside(old, (left, lone), shared)?,
            (old, Old::Beside(lone)) => self.join_beside(old, (right, lone), shared)?,
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
                Old::Many
            }
        })
    }

    /// The same where nothing is accessed in one of the two, `other`.
    fn join_beside(
        &mut self,
        old: Old,
        (other, lone): (&Subtrie, Lone),
        shared: u16,
    ) -> Result<Old, HiddenLeaf> {
        match (old, other.new) {
            (Old::Empty(_) | Old::Leaf(_), New::Empty) => return Ok(old),
            (Old::Empty(access), New::Leaf(_)) => {
                self.ends_in(access, lone)?;
                return Ok(Old::Leaf(access));
            }
            (Old::Empty(access) | Old::Leaf(access), _) => self.records.place(access, shared + 1),
            _ => {}
        }
        let sibling = index32(self.stages.siblings.len());
        self.stages.siblings.push(TERMINATOR);
        if let New::Leaf(source) | New::Inner(source) = other.new {
            self.stages.send(source, Into::Sibling(sibling));
        }
        Ok(Old::Many)
    }

    /// An access ends in the leaf of another key.
    fn ends_in(&mut self, access: u32, lone: Lone) -> Result<(), HiddenLeaf> {
        match lone {
            Lone::Pair(pair) => self.records.ends_in(access, pair),
            Lone::Hidden(child) => return Err(HiddenLeaf { child: child as usize }),
            Lone::None => unreachable!("a leaf has one key"),
        }
        Ok(())
    }

    /// The node over two subtries, and its line.
    fn merge(&mut self, home: Home, (left, right): (Subtrie, Subtrie), old: Old) -> Subtrie {
        let round = left.round.max(right.round);
        let halves = [left.new, right.new].map(|new| match new {
            New::Empty => None,
            New::Leaf(source) | New::Inner(source) => Some(source),
        });
        let sources = (0..).zip(halves).filter_map(|(side, source)| Some((side, source?)));
        match (left.new, right.new) {
            // A leaf moves up, and nothing is nothing.
            (New::Empty, new @ (New::Empty | New::Leaf(_))) | (new @ New::Leaf(_), New::Empty) => {
                let quiet = self.stages.quiet(home);
                for (side, source) in sources {
                    self.stages.send(source, Into::Quiet(2 * quiet + side));
                }
                Subtrie { new, old, round }
            }
            _ => {
                let number = self.stages.pair(round, &[TERMINATOR; 2], home);
                for (side, source) in sources {
                    self.stages.send(source, Into::Half(round, 2 * number + side));
                }
                let new = New::Inner(Source::Pair(round, number));
                Subtrie { new, old, round: round + 1 }
            }
        }
    }
}

/// The child below the half of a boundary that has a leaf: all others there are empty.
fn leaf_below(tiling: &Tiling, boundary: usize, right: bool) -> usize {
    let shared = tiling.shared(boundary);
    let is_leaf = |child: &usize| kind(tiling.node(*child)) == NodeKind::Leaf;
    let found = if right {
        let inside = |child: &usize| *child == boundary + 1 || tiling.shared(child - 1) > shared;
        (boundary + 1..tiling.len()).take_while(inside).find(is_leaf)
    } else {
        let inside = |child: &usize| *child == boundary || tiling.shared(*child) > shared;
        (0..=boundary).rev().take_while(inside).find(is_leaf)
    };
    found.expect("the half is that child's leaf")
}
