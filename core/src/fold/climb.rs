//! The way up: from an item to the fork with the next one, and over what waits there.

use super::folder::Folder;
use super::path::{Home, Path};
use super::subtrie::{Old, Subtrie};
use super::{FoldValue, HashId};
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};
use crate::prefix::{Prefix, bit};
use crate::tree::index32;

impl Folder {
    #[inline]
    pub(super) fn pair(&mut self, key: &Key, hash: HashId) -> Old {
        self.pairs.push((*key, hash));
        Old::Pair(index32(self.pairs.len() - 1))
    }

    /// The pair of a leaf of which no more is known than that it is the only one below a prefix.
    #[cold]
    pub(super) fn unnamed(&mut self, at: &Prefix) -> Old {
        let hash = self.values.add(FoldValue::Hash(ValueHash::new([0; 32])));
        self.unnamed.push((hash, *at));
        self.pair(at.first_key(), hash)
    }

    /// The same beside the way to a key.
    #[cold]
    fn unnamed_beside(&mut self, key: &Key, depth: u16) -> Old {
        self.unnamed(&Prefix::new(key, depth).child(!bit(key, depth)))
    }

    /// Takes the subtrie at this depth on the way to a key up to the fork with the next one, where it waits; or to the
    /// floor, where it is given.
    #[inline]
    pub(super) fn climb(
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
            let old = self.risen((old, true), (key, depth), other, &node);
            return Subtrie::new(NodeKind::Leaf, source, old);
        };
        // Nearly always.
        if matches!(old, Old::Many) {
            return Subtrie::new(NodeKind::Internal, source, Old::Many);
        }
        let node = *node;
        let is_empty = own == NodeKind::Terminator;
        let old = self.risen((old, is_empty), (key, depth), other, &node);
        Subtrie::new(NodeKind::Internal, source, old)
    }

    /// What the multiproof needs of a subtrie that has gone up beside a node.
    fn risen(
        &mut self,
        (old, is_empty): (Old, bool),
        (key, depth): (&Key, u16),
        other: NodeKind,
        node: &Node,
    ) -> Old {
        match old {
            old if other == NodeKind::Terminator => old,
            Old::Many => Old::Many,
            Old::Beside | Old::Pair(_) => {
                let is_lone = is_empty && other == NodeKind::Leaf;
                if is_lone { self.unnamed_beside(key, depth) } else { Old::Beside }
            }
            Old::Empty(access) if other == NodeKind::Leaf => {
                let leaf = self.unnamed_beside(key, depth);
                self.ends_in(access, leaf);
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
        one.with(old)
    }

    /// What the multiproof needs of two subtries together; emits what is placed by that.
    fn join_old(&mut self, left: Subtrie, right: Subtrie, depth: u16) -> Old {
        let is_beside = |old| matches!(old, Old::Beside | Old::Pair(_));
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
    #[inline(never)]
    fn ends_in(&mut self, access: u32, leaf: Old) {
        let Old::Pair(pair) = leaf else { unreachable!("a leaf has one key") };
        let (key, hash) = self.pairs[pair as usize];
        self.needs_names |= self.unnamed.binary_search_by_key(&hash, |(hash, _)| *hash).is_ok();
        self.records.ends_in(access, (key, hash));
    }
}
