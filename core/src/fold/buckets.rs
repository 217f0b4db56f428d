//! Buckets of a treelet: their keys, merged into blocks, and their part of the multiproof.

use super::blocks::{
    Climb, Group, HASH_LEN, Half, Item, Merged, ROUNDS, Source, Stage, half, node_mut, node_of,
};
use super::item::{END, Old, index32};
use super::place::Lists;
use super::treelets::TreeletFolder;
use super::{HashId, NO_HASH};
use crate::node::{Key, TERMINATOR, ValueHash};
use crate::prefix::{Prefix, bit, common_len};
use crate::proof::Terminal;
use crate::proof::terminal::terminal_encode;

impl TreeletFolder {
    /// Adds a key to the open bucket.
    #[inline]
    pub(super) fn push_item(&mut self, key: &Key, (old, new): (HashId, HashId), accessed: bool) {
        if let Some(before) = self.items.last_mut() {
            debug_assert!(before.key < *key, "keys come in order, each once");
            before.cpl = common_len(&before.key, key);
        }
        let group = index32(self.items.len());
        let (cpl, opened, anchor) = (END, accessed, 256);
        self.items.push(Item { key: *key, old, new, accessed, opened, cpl, anchor, group });
    }

    /// Merges the keys of a bucket at depth `floor` into blocks; the node goes `into` a half.
    pub(super) fn merge(&mut self, items: &mut [Item], floor: u16, into: Half) {
        if items.iter().all(|item| item.old != NO_HASH) {
            place_old(items);
        } else {
            let end = items.len();
            let placed = self.neighbours.place_terminals(&mut Placed(items), 0, end);
            placed.expect("all leaves are given by key");
        }
        let mut groups = core::mem::take(&mut self.groups);
        groups.clear();
        self.merged.clear();
        self.merged.resize(
            items.len(),
            Merged { left: Half::default(), leaf: None, left_opened: false, right_opened: false },
        );
        for (at, item) in items.iter().enumerate() {
            let mut right = Group {
                source: self.leaf(item),
                depth: 256,
                opened: item.opened,
                first: index32(at),
            };
            // Everything deeper than the next boundary is complete.
            while let Some(left) = groups.last().copied() {
                let boundary = right.first as usize - 1;
                let depth = items[boundary].cpl;
                if item.cpl != END && depth < item.cpl {
                    break;
                }
                groups.pop();
                right = self.merge_two(items, boundary, left, right, depth);
            }
            groups.push(right);
        }
        match groups.first_mut() {
            Some(whole) => {
                self.lift(whole, floor, items);
                self.put(whole.source, into);
            }
            None => *node_mut(&mut self.stages, into) = TERMINATOR,
        }
        self.groups = groups;
    }

    /// The leaf node of a key.
    #[inline]
    fn leaf(&mut self, item: &Item) -> Source {
        if item.new == NO_HASH {
            return Source::Empty;
        }
        let at = self.leaves.blocks.len();
        self.leaves.blocks.push([0; 64]);
        self.leaves.blocks[at][..32].copy_from_slice(&item.key);
        self.leaves.ends.push((item.new, Half::default()));
        Source::Leaf(index32(at))
    }

    /// Merges the groups on both sides of a boundary at `depth`.
    fn merge_two(
        &mut self,
        items: &[Item],
        boundary: usize,
        mut left: Group,
        mut right: Group,
        depth: u16,
    ) -> Group {
        let (first, opened) = (left.first, left.opened || right.opened);
        let (left_opened, right_opened) = (left.opened, right.opened);
        // What is empty was accessed, and shown. So only the leaf can be a sibling; it needs no hash to move up.
        let unmerged = match (left.source, right.source) {
            (Source::Empty, Source::Empty) => Some((Source::Empty, None)),
            (Source::Leaf(leaf), Source::Empty) | (Source::Empty, Source::Leaf(leaf)) => {
                Some((Source::Leaf(leaf), Some(leaf)))
            }
            _ => None,
        };
        if let Some((source, leaf)) = unmerged {
            let left = Half::default();
            self.merged[boundary] = Merged { left, leaf, left_opened, right_opened };
            return Group { source, depth, opened, first };
        }
        self.lift(&mut left, depth + 1, items);
        self.lift(&mut right, depth + 1, items);
        let round = left.source.rounds().max(right.source.rounds());
        let at = self.block(round, depth, &items[first as usize].key);
        let half = half(round, at, false);
        self.put(left.source, half);
        self.put(right.source, Half { at: half.at | 1, ..half });
        self.merged[boundary] = Merged { left: half, leaf: None, left_opened, right_opened };
        Group { source: Source::Block { round, at }, depth, opened, first }
    }

    /// Takes a group's node up to depth `to`, beside terminators: what is below fewer than two keys needs no
    /// hash to move. Between positions of the treelet it climbs in one place, however far: two keys may part 200 bits down.
    #[inline]
    fn lift(&mut self, group: &mut Group, to: u16, items: &[Item]) {
        while let Source::Block { round, .. } = group.source
            && group.depth > to
        {
            group.depth -= 1;
            let key = &items[group.first as usize].key;
            let at = self.block(round + 1, group.depth, key);
            self.put(group.source, half(round + 1, at, bit(key, group.depth)));
            group.source = Source::Block { round: round + 1, at };
            let lowest = to.max(self.open.end_above(group.depth));
            if group.depth > lowest {
                let climb = Climb { at, from: group.depth, to: lowest, key: *key };
                self.stages[ROUNDS + round as usize + 1].climbs.push(climb);
                group.depth = lowest;
            }
        }
        group.depth = to;
    }

    /// A block at `depth` on the way to `key`, with two terminators.
    fn block(&mut self, round: u32, depth: u16, key: &Key) -> u32 {
        let stage = ROUNDS + round as usize;
        if stage == self.stages.len() {
            self.stages.push(Stage::default());
        }
        let at = self.push_block(stage, Half::default(), [TERMINATOR; 2]);
        if let Some(position) = self.open.parting_at(key, depth) {
            let children = 2 * position + 1;
            self.deep.push((children, half(round, at, false)));
            self.deep.push((children + 1, half(round, at, true)));
        }
        at
    }

    /// A group's node goes into this half.
    #[inline]
    fn put(&mut self, source: Source, into: Half) {
        match source {
            Source::Empty => *node_mut(&mut self.stages, into) = TERMINATOR,
            Source::Leaf(at) => self.leaves.ends[at as usize].1 = into,
            Source::Block { round, at } => {
                self.stages[ROUNDS + round as usize].into[at as usize] = into;
            }
        }
    }

    /// Emits a bucket at depth `floor`, in which a key was accessed, and that has been merged.
    pub(super) fn emit(&mut self, items: &[Item], floor: u16) {
        let mut old = items.iter().filter(|item| item.old != NO_HASH);
        let (first, second) = (old.next(), old.next());
        if second.is_none() {
            let count = items.iter().filter(|item| item.accessed).count();
            self.firsts.extend((0..count).map(|at| at == 0));
            let (key, old) = first.map_or((&items[0].key, NO_HASH), |item| (&item.key, item.old));
            return self.terminal(key, old, floor);
        }
        let mut before = u32::MAX;
        for item in items.iter().filter(|item| item.accessed) {
            self.firsts.push(item.group != before);
            before = item.group;
        }
        self.emit_all(items, floor);
    }

    /// Emits a bucket of two old keys or more.
    fn emit_all(&mut self, items: &[Item], floor: u16) {
        let mut open = core::mem::take(&mut self.boundaries);
        open.clear();
        let mut at = 0;
        while at < items.len() {
            let same =
                |other: &&Item| items[at].opened && other.opened && other.group == items[at].group;
            let last = at + items[at + 1..].iter().take_while(same).count();
            let next = Some(items[last].cpl).filter(|cpl| *cpl != END);
            // Depth to which a subtrie climbs: just below the next merge, or the floor.
            let above = |open: &[u32]| {
                let left = open.last().map(|boundary| items[*boundary as usize].cpl);
                left.max(next).map_or(floor, |cpl| cpl + 1)
            };
            if items[at].opened {
                let leader = &items[items[at].group as usize];
                self.terminal(&leader.key, leader.old, leader.anchor);
                self.empty_siblings(above(&open)..leader.anchor);
            }
            // Everything deeper than the next boundary is complete.
            while let Some(boundary) = open.last().map(|at| *at as usize) {
                let cpl = items[boundary].cpl;
                if next.is_some_and(|next| cpl < next) {
                    break;
                }
                open.pop();
                let Merged { left, leaf, left_opened, right_opened } = self.merged[boundary];
                if left_opened != right_opened {
                    let hole = index32(self.proof.siblings.len());
                    if let Some(leaf) = leaf {
                        self.leaf_holes.push((hole, leaf));
                        self.proof.siblings.push(TERMINATOR);
                    } else {
                        let half = Half { at: left.at | u32::from(left_opened), ..left };
                        self.sibling_holes.push((hole, half));
                        self.proof.siblings.push(*node_of(&self.stages, half));
                    }
                }
                if left_opened || right_opened {
                    self.empty_siblings(above(&open)..cpl);
                }
            }
            open.push(index32(last));
            at = last + 1;
        }
        self.boundaries = open;
    }

    fn empty_siblings(&mut self, depths: core::ops::Range<u16>) {
        self.proof.siblings.extend(depths.map(|_| TERMINATOR));
    }

    /// Emits a terminal: the leaf of `key`, with the hash of the value `old`, or nothing.
    fn terminal(&mut self, key: &Key, old: HashId, depth: u16) {
        self.terminal_count += 1;
        let to = &mut self.proof.terminals;
        if old == NO_HASH {
            return terminal_encode(to, &Terminal::Terminator { prefix: Prefix::new(key, depth) });
        }
        let value_hash = ValueHash::new([0; HASH_LEN]);
        terminal_encode(to, &Terminal::Leaf { key: *key, value_hash, depth });
        self.hash_holes.push((index32(to.len() - HASH_LEN), old));
    }
}

/// A bucket's keys, to be placed.
struct Placed<'a>(&'a mut [Item]);

impl Lists for Placed<'_> {
    fn key(&self, at: usize) -> &Key {
        &self.0[at].key
    }

    fn old(&self, at: usize) -> Old {
        if self.0[at].old == NO_HASH { Old::Absent } else { Old::Leaf }
    }

    fn cpl(&self, at: usize) -> u16 {
        self.0[at].cpl
    }

    fn terminal(&mut self, at: usize) -> (&mut u16, &mut u32) {
        let item = &mut self.0[at];
        (&mut item.anchor, &mut item.group)
    }

    fn open(&mut self, at: usize) {
        self.0[at].opened = true;
    }
}

/// Depths of the terminals of keys that have all been there.
fn place_old(items: &mut [Item]) {
    let mut before = None;
    for item in items {
        let after = Some(item.cpl).filter(|cpl| *cpl != END);
        item.anchor = before.max(after).map_or(0, |shared| shared + 1);
        before = after;
    }
}
