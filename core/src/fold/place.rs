//! Placing terminals: where in the old trie each touched item of a fold ends.

use super::{END, Folder, NONE, Old, index32};
use crate::hasher::Hasher;
use crate::node::Key;

impl<H: Hasher> Folder<H> {
    /// Finds, for each touched item, the terminal of the old trie that it ends in.
    pub(super) fn place_terminals(&mut self, start: usize, end: usize) -> Result<(), Key> {
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
