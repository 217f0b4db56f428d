//! The climb: from an item to the fork with the next one, merging with the subtries that wait there.

use super::folder::Folder;
use super::path::{NodeOwner, Path};
use super::subtrie::{OldOccupancy, Subtrie};
use super::{FoldValue, HashId};
use crate::node::{Key, Node, NodeKind, TERMINATOR, ValueHash, kind};
use crate::prefix::{Prefix, bit};
use crate::tree::index32;

impl Folder {
    #[inline]
    pub(super) fn record_pair(&mut self, key: &Key, hash: HashId) -> OldOccupancy {
        self.pairs.push((*key, hash));
        OldOccupancy::UnaccessedPair(index32(self.pairs.len() - 1))
    }

    /// Records the pair of a leaf of which only its node and a prefix are known.
    #[cold]
    pub(super) fn record_unnamed(&mut self, at: &Prefix) -> OldOccupancy {
        let hash = self.values.add(FoldValue::Hash(ValueHash::new([0; 32])));
        self.unnamed_leaves.push((hash, *at));
        self.record_pair(at.first_key(), hash)
    }

    /// The same for a leaf beside the path of a key.
    #[cold]
    fn record_unnamed_sibling(&mut self, key: &Key, depth: u16) -> OldOccupancy {
        self.record_unnamed(&Prefix::new(key, depth).child(!bit(key, depth)))
    }

    /// Lifts the subtrie at this depth on the path of a key up to the fork with the next item, where it waits; or to
    /// the floor, where it is returned.
    #[inline]
    pub(super) fn climb(
        &mut self,
        key: &Key,
        mut depth: u16,
        mut subtrie: Subtrie,
        next: Option<u16>,
        floor: u16,
        path: &mut impl Path,
    ) -> Option<Subtrie> {
        loop {
            let left = self.waiting.last().map(|(fork, _)| *fork).filter(|fork| *fork >= floor);
            let deepest = left.max(next);
            let stop = deepest.map_or(floor, |fork| fork + 1);
            if depth < stop {
                self.has_overlap = true;
                return None;
            }
            let bottom = stop.max(path.bottom());
            if bottom < depth && subtrie.kind() != NodeKind::Internal {
                // Nothing is beside, and a leaf needs no hash to move up.
                if matches!(subtrie.old(), OldOccupancy::Many) {
                    (bottom..depth).for_each(|_| self.stages.sibling(None));
                }
                depth = bottom;
            }
            while depth > stop {
                depth -= 1;
                subtrie = self.climb_one(subtrie, key, depth, path);
            }
            match (left, next) {
                (Some(fork), _) if deepest == left => {
                    let (_, left) = self.waiting.pop().expect("just seen");
                    depth = fork;
                    let home = path.pass_fork(key, fork);
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

    /// Climbs to a depth at which the other side has no item.
    #[inline]
    fn climb_one(
        &mut self,
        subtrie: Subtrie,
        key: &Key,
        depth: u16,
        path: &mut impl Path,
    ) -> Subtrie {
        let (line, home) = path.pass_sibling(key, depth);
        let right = bit(key, depth);
        let node = &line[usize::from(!right)];
        let (own, other) = (subtrie.kind(), kind(node));
        let old = subtrie.old();
        if matches!(old, OldOccupancy::Many) {
            self.stages.siblings.push(*node);
        }
        let source = if own == NodeKind::Internal
            || other == NodeKind::Internal
            || (own == NodeKind::Leaf && other == NodeKind::Leaf)
        {
            self.stages.push_beside(subtrie.height(), line, right, subtrie.source(), home)
        } else {
            self.unhashed += 1;
            let mut line = *line;
            line[usize::from(right)] = TERMINATOR;
            let own = subtrie.source();
            self.stages.keep_unhashed(&line, if right { [None, own] } else { [own, None] }, home);
            if other == NodeKind::Terminator {
                return subtrie;
            }
            let node = line[usize::from(!right)];
            let source = self.stages.known(&node);
            let old = self.old_after_climb(old, true, key, depth, other, &node);
            return Subtrie::new(NodeKind::Leaf, source, old);
        };
        // Nearly always.
        if matches!(old, OldOccupancy::Many) {
            return Subtrie::new(NodeKind::Internal, source, OldOccupancy::Many);
        }
        let node = *node;
        let is_empty = own == NodeKind::Terminator;
        let old = self.old_after_climb(old, is_empty, key, depth, other, &node);
        Subtrie::new(NodeKind::Internal, source, old)
    }

    /// What the multiproof needs of a subtrie that has climbed past a node.
    fn old_after_climb(
        &mut self,
        old: OldOccupancy,
        is_empty: bool,
        key: &Key,
        depth: u16,
        other: NodeKind,
        node: &Node,
    ) -> OldOccupancy {
        match old {
            old if other == NodeKind::Terminator => old,
            OldOccupancy::Many => OldOccupancy::Many,
            OldOccupancy::Unaccessed | OldOccupancy::UnaccessedPair(_) => {
                let is_lone = is_empty && other == NodeKind::Leaf;
                if is_lone {
                    self.record_unnamed_sibling(key, depth)
                } else {
                    OldOccupancy::Unaccessed
                }
            }
            OldOccupancy::Empty(access) if other == NodeKind::Leaf => {
                let leaf = self.record_unnamed_sibling(key, depth);
                self.place_in_leaf(access, leaf);
                OldOccupancy::Leaf(access)
            }
            OldOccupancy::Empty(access) | OldOccupancy::Leaf(access) => {
                self.records.place_terminal(access, depth + 1);
                self.stages.siblings.push(*node);
                OldOccupancy::Many
            }
        }
    }

    /// The subtrie above two.
    #[inline]
    fn join(&mut self, left: Subtrie, right: Subtrie, depth: u16, home: NodeOwner) -> Subtrie {
        let old = match (left.old(), right.old()) {
            (OldOccupancy::Many, OldOccupancy::Many) => OldOccupancy::Many,
            _ => self.join_old(left, right, depth),
        };
        let halves = [left.source(), right.source()];
        let one = match (left.kind(), right.kind()) {
            // A leaf moves up, and two terminators are one.
            (NodeKind::Terminator, NodeKind::Terminator | NodeKind::Leaf) => right,
            (NodeKind::Leaf, NodeKind::Terminator) => left,
            _ => {
                let height = left.height().max(right.height());
                let source = self.stages.push_over(height, halves, home);
                return Subtrie::new(NodeKind::Internal, source, old);
            }
        };
        self.unhashed += 1;
        self.stages.keep_unhashed(&[TERMINATOR; 2], halves, home);
        one.with(old)
    }

    /// What the multiproof needs of two joined subtries; emits the siblings whose place this decides.
    fn join_old(&mut self, left: Subtrie, right: Subtrie, depth: u16) -> OldOccupancy {
        let is_beside =
            |old| matches!(old, OldOccupancy::Unaccessed | OldOccupancy::UnaccessedPair(_));
        match (left.old(), right.old()) {
            (one, other) if is_beside(one) && is_beside(other) => match (left.kind(), right.kind())
            {
                (_, NodeKind::Terminator) => one,
                (NodeKind::Terminator, _) => other,
                _ => OldOccupancy::Unaccessed,
            },
            (one, two) if is_beside(one) => self.join_beside(two, left, depth),
            (one, two) if is_beside(two) => self.join_beside(one, right, depth),
            (
                OldOccupancy::Empty(first) | OldOccupancy::Leaf(first),
                OldOccupancy::Empty(second),
            ) => {
                self.records.share_terminal(first, second);
                left.old()
            }
            (OldOccupancy::Empty(first), OldOccupancy::Leaf(second)) => {
                self.records.share_terminal(first, second);
                OldOccupancy::Leaf(first)
            }
            (left, right) => {
                for old in [left, right] {
                    if let OldOccupancy::Empty(access) | OldOccupancy::Leaf(access) = old {
                        self.records.place_terminal(access, depth + 1);
                    }
                }
                OldOccupancy::Many
            }
        }
    }

    /// The same where nothing is accessed in `other`.
    fn join_beside(&mut self, old: OldOccupancy, other: Subtrie, depth: u16) -> OldOccupancy {
        match (old, other.kind()) {
            (OldOccupancy::Empty(_) | OldOccupancy::Leaf(_), NodeKind::Terminator) => return old,
            (OldOccupancy::Empty(access), NodeKind::Leaf) => {
                self.place_in_leaf(access, other.old());
                return OldOccupancy::Leaf(access);
            }
            (OldOccupancy::Empty(access) | OldOccupancy::Leaf(access), _) => {
                self.records.place_terminal(access, depth + 1);
            }
            _ => {}
        }
        self.stages.sibling(other.source());
        OldOccupancy::Many
    }

    /// Sets the leaf of another key as the terminal of an access.
    #[inline(never)]
    fn place_in_leaf(&mut self, access: u32, leaf: OldOccupancy) {
        let OldOccupancy::UnaccessedPair(pair) = leaf else { unreachable!("a leaf has one key") };
        let (key, hash) = self.pairs[pair as usize];
        self.needs_names |=
            self.unnamed_leaves.binary_search_by_key(&hash, |(hash, _)| *hash).is_ok();
        self.records.set_leaf(access, key, hash);
    }
}
