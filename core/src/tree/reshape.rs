//! What becomes of a page: new lines, or another order of keys.

use alloc::vec::Vec;

use super::line_tree::{self, LineTree, index};
use super::union::{NONE, Union};
use crate::node::{Key, Node};

/// What becomes of a page.
#[derive(Clone, Debug)]
pub enum PageChange {
    /// Its keys stay. Each boundary whose line is new, or was not known, with its line.
    Lines(Vec<(u16, [Node; 2])>),
    /// Keys come or go.
    Keys(Reshape),
}

/// The keys of a page after a batch, in order.
#[derive(Clone, Debug, Default)]
pub struct Reshape {
    entries: Vec<Entry>,
    /// Keys that come, each with the number of its access or differing key.
    fresh: Vec<(u32, Key)>,
    /// The slots of keys that go.
    removed: Vec<u16>,
}

/// Where a key is, or comes from.
#[derive(Clone, Copy, Debug)]
enum From {
    Slot(u16),
    /// The fresh key with this number.
    Fresh(u16),
}

#[derive(Clone, Copy, Debug)]
enum LineFrom {
    /// The line of this boundary of before, known or not.
    Boundary(u16),
    New([Node; 2]),
    Unknown,
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
        let own = |(boundary, pair): &(u32, [Node; 2])| (index(*boundary as usize), *pair);
        return PageChange::Lines(lines.iter().map(own).collect());
    };
    if !union.changes_keys() {
        let own = |(boundary, pair): &(u32, [Node; 2])| {
            let base = union.boundaries[*boundary as usize].base;
            (base != NONE).then(|| (index(base as usize), *pair))
        };
        return PageChange::Lines(lines.iter().filter_map(own).collect());
    }
    let mut new: Vec<Option<&[Node; 2]>> = alloc::vec![None; union.boundaries.len()];
    for (boundary, pair) in lines {
        new[*boundary as usize] = Some(pair);
    }
    PageChange::Keys(reshape(tree, union, |boundary| new[boundary]))
}

/// The order of keys after a batch, with the new lines of a union's boundaries.
fn reshape<'a>(
    tree: &LineTree,
    union: &Union,
    new: impl Fn(usize) -> Option<&'a [Node; 2]>,
) -> Reshape {
    let mut reshape = Reshape::default();
    let gone = union.entries.iter().filter(|entry| entry.base != NONE && !entry.present);
    reshape.removed.extend(gone.map(|entry| index(tree.slot(entry.base as usize))));
    let mut last: Option<usize> = None;
    for (at, entry) in union.entries.iter().enumerate().filter(|(_, entry)| entry.present) {
        if let Some(last) = last
            && let Some(before) = reshape.entries.last_mut()
        {
            // Between two that stay, the boundary with the fewest shared bits is the one that parts them.
            let parts = (last..at).min_by_key(|at| union.shared(*at)).unwrap_or(last);
            let boundary = &union.boundaries[parts];
            before.shared = boundary.shared;
            before.line = match (new(parts), boundary.base) {
                (Some(pair), _) => LineFrom::New(*pair),
                (None, NONE) => LineFrom::Unknown,
                (None, base) => LineFrom::Boundary(index(base as usize)),
            };
        }
        last = Some(at);
        let from = match entry.base {
            NONE => {
                reshape.fresh.push((union.access_of[at], *union.key(tree, at)));
                From::Fresh(index(reshape.fresh.len() - 1))
            }
            base => From::Slot(index(tree.slot(base as usize))),
        };
        reshape.entries.push(Entry { from, shared: 0, line: LineFrom::Unknown });
    }
    reshape
}

impl PageChange {
    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.capacity() * size_of::<(u16, [Node; 2])>(),
            Self::Keys(reshape) => reshape.heap_bytes(),
        }
    }

    /// Brings a tree to the state after the batch. `values` has the value of each slot; those of keys that stay are the caller's
    /// to change; `fresh` is as for [`Reshape::apply`].
    ///
    /// # Panics
    /// As [`Reshape::apply`].
    pub fn apply<V>(&self, tree: &mut LineTree, values: &mut Vec<V>, fresh: impl FnMut(u32) -> V) {
        match self {
            Self::Lines(lines) => {
                for (boundary, pair) in lines {
                    tree.set_line((*boundary).into(), pair);
                }
            }
            Self::Keys(reshape) => reshape.apply(tree, values, fresh),
        }
    }
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

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.fresh.capacity() * size_of::<(u32, Key)>()
            + self.removed.capacity() * size_of::<u16>()
    }

    /// Puts the new order of keys in place. `values` has the value of each slot; `fresh` gives that of an access, by its number
    /// among those of the page, which has put a new key.
    ///
    /// # Panics
    /// When there are more than [`LineTree::MAX`] keys afterwards, or the tree is not the one that the batch was on.
    pub fn apply<V>(
        &self,
        tree: &mut LineTree,
        values: &mut Vec<V>,
        mut fresh: impl FnMut(u32) -> V,
    ) {
        assert!(self.len() <= LineTree::MAX, "a tree has at most 65,535 keys");
        // Lines that are replaced make room before others come.
        let mut kept = alloc::vec![false; tree.len()];
        for entry in &self.entries {
            if let LineFrom::Boundary(boundary) = entry.line {
                kept[usize::from(boundary)] = true;
            }
        }
        for (boundary, kept) in kept.iter().enumerate() {
            if !kept {
                tree.forget(boundary);
            }
        }
        let mut free = self.removed.clone();
        let mut order: Vec<(u8, u16, u16)> = Vec::with_capacity(self.len());
        for entry in &self.entries {
            let slot = match entry.from {
                From::Slot(slot) => slot,
                From::Fresh(number) => {
                    let (access, key) = self.fresh[usize::from(number)];
                    let value = fresh(access);
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
            let line = match entry.line {
                LineFrom::Boundary(boundary) => tree.line_number(boundary.into()),
                LineFrom::New(_) | LineFrom::Unknown => line_tree::NONE,
            };
            order.push((entry.shared, slot, line));
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
        tree.set_order(order.into_iter());
        for (boundary, entry) in self.entries.iter().enumerate() {
            if let LineFrom::New(pair) = &entry.line {
                tree.set_line(boundary, pair);
            }
        }
    }
}

impl LineTree {
    /// Brings the tree to a later state of its page: keys in order, each once, with their values, or without one where the key
    /// is absent. `values` has the value of each slot. The lines above all of these keys are unknown afterwards.
    ///
    /// # Panics
    /// When there are more than [`Self::MAX`] keys afterwards.
    pub fn change<V: Clone>(&mut self, values: &mut Vec<V>, changes: &[(Key, Option<V>)]) {
        let mut union = Union::default();
        let found = changes.iter().map(|(key, value)| (key, self.find(key), value.is_some()));
        union.set(self, found);
        for entry in &union.accessed {
            let mut boundary = union.above(*entry as usize);
            while let Some(at) = boundary {
                match union.boundaries[at].base {
                    NONE => {}
                    base => self.forget(base as usize),
                }
                boundary = union.parent(at);
            }
        }
        for (entry, (_, value)) in union.accessed.iter().zip(changes) {
            let base = union.entries[*entry as usize].base;
            if let Some(value) = value.as_ref().filter(|_| base != NONE) {
                values[self.slot(base as usize)].clone_from(value);
            }
        }
        if union.changes_keys() {
            let reshape = reshape(self, &union, |_| None);
            reshape.apply(self, values, |change| {
                changes[change as usize].1.clone().expect("a key that comes has a value")
            });
        }
    }
}
