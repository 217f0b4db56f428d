//! What a batch does to a page: new lines, or another order of keys.

use alloc::vec::Vec;

use super::Line;
use super::line_tree::{LineTree, index, small};
use super::union::{NONE, Union};
use crate::node::{Key, Node};

/// What becomes of a page.
#[derive(Clone, Debug)]
pub enum PageChange {
    /// Its keys stay. Of each boundary whose line is new, or was not known, its slot and its line.
    Lines(Vec<(u8, [Node; 2])>),
    /// Keys come or go.
    Keys(Reshape),
}

/// The keys of a page after a batch, in order.
#[derive(Clone, Debug, Default)]
pub struct Reshape {
    entries: Vec<Entry>,
    /// The slots of keys that go.
    removed: Vec<u8>,
}

/// Where a key is, or comes from.
#[derive(Clone, Copy, Debug)]
enum From {
    Slot(u8),
    /// That of the access, or differing key, with this number.
    Access(u32),
}

#[derive(Clone, Copy, Debug)]
enum LineFrom {
    /// As it is, known or not.
    Slot(u8),
    New([Node; 2]),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    from: From,
    /// Bits shared with the next key, and the line of the boundary between; of the last key nothing.
    shared: u8,
    line: LineFrom,
}

/// What becomes of a page with this union and these new lines.
pub(super) fn page_change(
    tree: &LineTree,
    union: Option<&Union>,
    lines: &[(u32, [Node; 2])],
) -> PageChange {
    let Some(union) = union else {
        let slot = |line: &(u32, [Node; 2])| (index(line.0 as usize), line.1);
        return PageChange::Lines(lines.iter().map(slot).collect());
    };
    let changes = union.entries.iter().any(|entry| (entry.base != NONE) != entry.present);
    if !changes {
        let slot = |(boundary, pair): &(u32, [Node; 2])| {
            let base = union.boundaries[*boundary as usize].base;
            (base != NONE).then(|| (index(tree.line_slot(base as usize)), *pair))
        };
        return PageChange::Lines(lines.iter().filter_map(slot).collect());
    }
    let mut reshape = Reshape::default();
    let gone = union.entries.iter().filter(|entry| entry.base != NONE && !entry.present);
    reshape.removed.extend(gone.map(|entry| index(tree.slot(entry.base as usize))));
    let mut new: Vec<Option<&[Node; 2]>> = alloc::vec![None; union.boundaries.len()];
    for (boundary, pair) in lines {
        new[*boundary as usize] = Some(pair);
    }
    let mut last: Option<usize> = None;
    for (at, entry) in union.entries.iter().enumerate().filter(|(_, entry)| entry.present) {
        if let Some(last) = last
            && let Some(before) = reshape.entries.last_mut()
        {
            // Between two that stay, the boundary with the fewest shared bits is the one that parts them.
            let parts = (last..at).min_by_key(|at| union.shared(*at)).unwrap_or(last);
            let boundary = &union.boundaries[parts];
            before.shared = boundary.shared;
            before.line = match new[parts] {
                Some(pair) => LineFrom::New(*pair),
                None => LineFrom::Slot(index(tree.line_slot(boundary.base as usize))),
            };
        }
        last = Some(at);
        let from = match entry.base {
            NONE => From::Access(union.access_of[at]),
            base => From::Slot(index(tree.slot(base as usize))),
        };
        let line = LineFrom::New([Node::default(); 2]);
        reshape.entries.push(Entry { from, shared: 0, line });
    }
    PageChange::Keys(reshape)
}

impl Reshape {
    /// Number of keys afterwards.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts the new order of keys in place. `values` has the value of each slot; `fresh` gives key and value of
    /// an access that has put a new key.
    ///
    /// # Panics
    /// When there are more than [`LineTree::MAX`] keys afterwards, or the tree is not the one that the batch was on.
    pub fn apply<V>(
        &self,
        tree: &mut LineTree,
        values: &mut Vec<V>,
        mut fresh: impl FnMut(u32) -> (Key, V),
    ) {
        assert!(self.len() <= LineTree::MAX, "a page of more keys is divided");
        let mut free = self.removed.clone();
        let mut order: Vec<(u8, u8, u8)> = Vec::with_capacity(self.len());
        for entry in &self.entries {
            let slot = match entry.from {
                From::Slot(slot) => slot,
                From::Access(access) => {
                    let (key, value) = fresh(access);
                    if let Some(slot) = free.pop() {
                        tree.keys[usize::from(slot)] = key;
                        values[usize::from(slot)] = value;
                        slot
                    } else {
                        tree.keys.push(key);
                        values.push(value);
                        index(tree.keys.len() - 1)
                    }
                }
            };
            order.push((entry.shared, slot, 0));
        }
        // Slots without gaps: the last key takes the place of one that goes.
        free.sort_unstable();
        for slot in free.into_iter().rev() {
            let last = index(tree.keys.len() - 1);
            tree.keys.swap_remove(slot.into());
            values.swap_remove(slot.into());
            if let Some(moved) = order.iter_mut().find(|(_, own, _)| *own == last && last != slot) {
                moved.1 = slot;
            }
        }
        self.put_lines(tree, &mut order);
        tree.set_order(order.into_iter());
    }

    /// Puts the lines in place, and says which slot each boundary's has.
    fn put_lines(&self, tree: &mut LineTree, order: &mut [(u8, u8, u8)]) {
        let count = self.len().saturating_sub(1);
        let mut used = [false; 256];
        for entry in &self.entries[..count] {
            if let LineFrom::Slot(slot) = entry.line {
                used[usize::from(slot)] = true;
            }
        }
        tree.lines.resize(tree.lines.len().max(count), Line::default());
        let unused = |used: &[bool; 256], from: usize, to: usize| (from..to).find(|at| !used[*at]);
        let (mut from, mut low) = (0, 0);
        for (entry, (.., line)) in self.entries[..count].iter().zip(order.iter_mut()) {
            match &entry.line {
                LineFrom::New(pair) => {
                    let slot = unused(&used, from, tree.lines.len()).unwrap_or(tree.lines.len());
                    if slot == tree.lines.len() {
                        tree.lines.push(Line::default());
                    }
                    used[slot] = true;
                    from = slot + 1;
                    tree.set_line(slot, pair);
                    *line = index(slot);
                }
                LineFrom::Slot(slot) => *line = *slot,
            }
        }
        // Those beyond the last slot go to where none is.
        for (.., line) in
            order.iter_mut().take(count).filter(|(.., line)| usize::from(*line) >= count)
        {
            let slot = usize::from(*line);
            let to = unused(&used, low, count).expect("as many slots as lines");
            (used[slot], used[to], low) = (false, true, to + 1);
            tree.lines[to] = tree.lines[slot];
            if tree.line(slot).is_some() {
                tree.known[to / 64] |= 1 << (to % 64);
            } else {
                tree.forget(to);
            }
            *line = small(u16::try_from(to).unwrap_or_default());
        }
        tree.lines.truncate(count);
        for slot in count..LineTree::MAX {
            tree.forget(slot);
        }
    }
}
