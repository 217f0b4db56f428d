//! Placing terminals: where in the old trie each opened item of a fold ends.

use alloc::vec::Vec;

use super::item::{END, Item, NONE, Old, Subtrie, index32};
use crate::node::Key;

/// Bits shared with a neighbouring old item, -1 for none, and the number of that item.
type Near = (i16, u32);

/// Items, as far as placing needs them; each has a number.
pub(super) trait Lists {
    fn key(&self, at: usize) -> &Key;
    fn old(&self, at: usize) -> Old;
    /// Bits that an item shares with the next one; [`END`] for the last.
    fn cpl(&self, at: usize) -> u16;
    /// Depth of an item's terminal, and the first of the items that end in it.
    fn terminal(&mut self, at: usize) -> (&mut u16, &mut u32);
    /// The proof shows this item.
    fn open(&mut self, at: usize);
}

/// A folder's lists.
pub(super) struct Folds<'a> {
    pub(super) items: &'a mut [Item],
    pub(super) subtries: &'a mut [Subtrie],
    /// Bits shared by items i and i+1.
    pub(super) cpl: &'a [u16],
}

impl Lists for Folds<'_> {
    fn key(&self, at: usize) -> &Key {
        &self.items[at].key
    }

    fn old(&self, at: usize) -> Old {
        self.items[at].old
    }

    fn cpl(&self, at: usize) -> u16 {
        self.cpl[at]
    }

    fn terminal(&mut self, at: usize) -> (&mut u16, &mut u32) {
        let item = &mut self.items[at];
        (&mut item.anchor, &mut item.group)
    }

    fn open(&mut self, at: usize) {
        self.items[at].opened = true;
        self.subtries[at].opened = true;
    }
}

/// The nearest old items on both sides of each item of a fold. Buffers are reused.
#[derive(Default)]
pub(super) struct Neighbours {
    before: Vec<Near>,
    after: Vec<Near>,
}

impl Neighbours {
    /// Finds, for each opened item of the fold `start..end`, the terminal of the old trie that it
    /// ends in.
    ///
    /// # Errors
    /// The key of an item that was given as a bare leaf node and decides where a terminal lies.
    pub(super) fn place_terminals(
        &mut self,
        lists: &mut impl Lists,
        start: usize,
        end: usize,
    ) -> Result<(), Key> {
        self.find(lists, start, end);
        for at in start..end {
            let (before, after) = (self.before[at - start], self.after[at - start]);
            match lists.old(at) {
                Old::Leaf => *lists.terminal(at).0 = leaf_depth(before.0, after.0),
                Old::Absent => self.place_absent(lists, start, at)?,
                Old::Many | Old::HiddenLeaf => {}
            }
        }
        Ok(())
    }

    /// Places the absent item `at` of the fold that begins at `start`.
    fn place_absent(&self, lists: &mut impl Lists, start: usize, at: usize) -> Result<(), Key> {
        let (shared, neighbour) = self.before[at - start].max(self.after[at - start]);
        let Ok(shared) = u16::try_from(shared) else {
            // No old key in this fold: one terminal for all, which the fold above places.
            *lists.terminal(at).1 = index32(start);
            return Ok(());
        };
        let neighbour = neighbour as usize;
        let around = (self.before[neighbour - start].0, self.after[neighbour - start].0);
        let alone = leaf_depth(around.0, around.1) <= shared;
        match lists.old(neighbour) {
            Old::HiddenLeaf if alone => return Err(*lists.key(neighbour)),
            Old::Leaf if alone => {
                lists.open(neighbour);
                *lists.terminal(at).1 = index32(neighbour);
                return Ok(());
            }
            _ => {}
        }
        *lists.terminal(at).0 = shared + 1;
        if at > start && lists.old(at - 1) == Old::Absent && lists.cpl(at - 1) > shared {
            let (anchor, group) = lists.terminal(at - 1);
            if *anchor == shared + 1 {
                let group = *group;
                *lists.terminal(at).1 = group;
            }
        }
        Ok(())
    }

    /// Finds the nearest old items on both sides.
    fn find(&mut self, lists: &impl Lists, start: usize, end: usize) {
        let count = end - start;
        self.before.clear();
        self.before.resize(count, (-1, NONE));
        self.after.clear();
        self.after.resize(count, (-1, NONE));
        let mut near = (-1i16, NONE);
        for at in start..end {
            self.before[at - start] = near;
            near = pass(near, lists.old(at), at, lists.cpl(at));
        }
        near = (-1, NONE);
        for at in (start..end).rev() {
            self.after[at - start] = near;
            let cpl = if at > start { lists.cpl(at - 1) } else { END };
            near = pass(near, lists.old(at), at, cpl);
        }
    }
}

/// Depth of a leaf in the old trie, from the bits it shares with its old neighbours.
fn leaf_depth(before: i16, after: i16) -> u16 {
    u16::try_from(before.max(after) + 1).unwrap_or(0)
}

/// The nearest old item, as seen from one item further.
#[expect(clippy::cast_possible_wrap, reason = "at most 256, or END which is not used further")]
fn pass(near: Near, old: Old, at: usize, cpl: u16) -> Near {
    let cpl = cpl.min(256) as i16;
    if old == Old::Absent { (near.0.min(cpl), near.1) } else { (cpl, index32(at)) }
}
