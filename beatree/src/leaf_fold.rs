//! One leaf page into the fold: its cells, the changes that hang over it, and what is accessed.
//!
//! The page stores the nodes a few levels below its prefix. A group without a change or an
//! access goes into the fold as that node; the others, and groups of one key (a leaf node may
//! have to become a terminal), go in key by key.

use pleach_core::fold::{Change, Folder, HashId};
use pleach_core::node::{NodeKind, kind};
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::prefix::Prefix;
use pleach_core::{Hasher, Key};

use crate::stored::{Stored, cell_value};

/// What a session does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The key.
    pub key: Key,
    /// Is its old value read (and so part of the claim that a witness makes)?
    pub reads: bool,
    /// What is written; `None` for a pure read.
    pub writes: Option<Stored>,
}

/// What the fold saw at a touch.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The value before.
    pub prior: Stored,
    /// Number of the new value's hash in the folder, [`pleach_core::fold::NO_HASH`] when none.
    pub put: HashId,
}

/// A change that hangs over a page: newest state of its key in the view that is folded.
pub type Patch = (Key, Stored);

/// Puts the page at `at` into the folder as one fold with floor `at.len()`, between `begin` and
/// `end` calls of the caller. `patches` and `touches` are sorted, lie below `at`, and each key is
/// there once. Pushes one [`Seen`] for each touch.
pub fn fold_leaf<H: Hasher>(
    folder: &mut Folder<H>,
    leaf: Option<&LeafView<'_>>,
    at: &Prefix,
    patches: &[Patch],
    touches: &[Touch],
    seen: &mut Vec<Seen>,
) {
    let levels = leaf.map_or(0, LeafView::levels);
    let mut merge = Merge { leaf, cell: 0, patches, touches };
    for group in 0..1u16 << levels {
        let position = below(at, levels, group);
        let node = leaf.filter(|_| levels > 0).map(|leaf| &leaf.nodes()[usize::from(group)]);
        match node {
            Some(node) if !merge.changes(&position) => match kind(node) {
                NodeKind::Terminator => {}
                NodeKind::Internal => folder.subtrie(&position, node),
                NodeKind::Leaf => merge.expand(folder, &position, seen),
            },
            _ => merge.expand(folder, &position, seen),
        }
    }
    debug_assert!(
        merge.patches.is_empty() && merge.touches.is_empty(),
        "all changes lie below the page"
    );
}

/// Position number `index` of those `levels` below `at`.
pub fn below(at: &Prefix, levels: u8, index: u16) -> Prefix {
    (0..levels).rev().fold(*at, |position, level| position.child(index >> level & 1 == 1))
}

struct Merge<'a> {
    leaf: Option<&'a LeafView<'a>>,
    cell: usize,
    patches: &'a [Patch],
    touches: &'a [Touch],
}

impl Merge<'_> {
    /// Does a patch or a touch lie below `position`? (Those before it are used up.)
    fn changes(&self, position: &Prefix) -> bool {
        self.patches.first().is_some_and(|patch| position.covers(&patch.0))
            || self.touches.first().is_some_and(|touch| position.covers(&touch.key))
    }

    /// Puts every key below `position` into the folder.
    fn expand<H: Hasher>(
        &mut self,
        folder: &mut Folder<H>,
        position: &Prefix,
        seen: &mut Vec<Seen>,
    ) {
        if let Some(leaf) = self.leaf {
            self.cell = leaf.lower_bound(position.first_key());
        }
        let mut change = self.next_change(position);
        while let Some(key) = self.cell_key(position) {
            // Most cells have neither patch nor touch: they go in at the price of one comparison.
            while let Some(at) = change.filter(|at| *at < key) {
                self.changed(folder, &at, None, seen);
                change = self.next_change(position);
            }
            let cell = self.leaf.expect("a cell of this page").cell(self.cell);
            self.cell += 1;
            if change == Some(key) {
                self.changed(folder, &key, Some(cell), seen);
                change = self.next_change(position);
            } else {
                folder.untouched(&key, cell_value(&cell));
            }
        }
        while let Some(at) = change {
            self.changed(folder, &at, None, seen);
            change = self.next_change(position);
        }
    }

    /// The next key below `position` that has a patch or a touch.
    fn next_change(&self, position: &Prefix) -> Option<Key> {
        let patch = self.patches.first().map(|patch| patch.0);
        let touch = self.touches.first().map(|touch| touch.key);
        let next = match (patch, touch) {
            (Some(patch), Some(touch)) => patch.min(touch),
            (one, other) => one.or(other)?,
        };
        position.covers(&next).then_some(next)
    }

    /// One key with a patch or a touch.
    fn changed<H: Hasher>(
        &mut self,
        folder: &mut Folder<H>,
        key: &Key,
        cell: Option<Cell<'_>>,
        seen: &mut Vec<Seen>,
    ) {
        let patch = self.patches.first().filter(|patch| patch.0 == *key);
        let touch = self.touches.first().filter(|touch| touch.key == *key);
        if patch.is_some() {
            self.patches = &self.patches[1..];
        }
        let old = match (patch, &cell) {
            (Some(patch), _) => patch.1.fold_value(),
            (None, Some(cell)) => Some(cell_value(cell)),
            (None, None) => None,
        };
        let Some(touch) = touch else {
            if let Some(value) = old {
                folder.untouched(key, value);
            }
            return;
        };
        self.touches = &self.touches[1..];
        let change = match &touch.writes {
            None => Change::Keep,
            Some(stored) => stored.fold_value().map_or(Change::Delete, Change::Put),
        };
        let put = folder.accessed(key, old, change);
        let prior = match (patch, cell) {
            (Some(patch), _) => patch.1.clone(),
            (None, Some(cell)) => Stored::from_cell(cell),
            (None, None) => Stored::Absent,
        };
        seen.push(Seen { prior, put });
    }

    fn cell_key(&self, position: &Prefix) -> Option<Key> {
        let leaf = self.leaf?;
        let key = (self.cell < leaf.len()).then(|| leaf.key(self.cell))?;
        position.covers(&key).then_some(key)
    }
}
