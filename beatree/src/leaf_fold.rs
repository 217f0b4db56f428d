//! One leaf page into the fold: its cells, the changes pending over it, and what is accessed.
//!
//! The page stores the nodes a few levels below its prefix, and its treelet may know more of them, as
//! of page and pending changes. A subtrie that is known and not accessed goes into the fold as its
//! node. The others go in key by key, and so do those of one key: a leaf node may have to become a
//! terminal.
//!
//! ```
//! use pleach_beatree::Stored;
//! use pleach_beatree::leaf_fold::{KeyAccess, PageState, fold_leaf};
//! use pleach_core::fold::BatchFolder;
//! use pleach_core::prefix::Prefix;
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! // A prefix without a page, over which one change is pending; one key is read and deleted.
//! let key = [7; 32];
//! let pending = [(key, Stored::put(Hasher::BLAKE3, b"seven".as_slice().into()))];
//! let (at, leaf, treelet) = (&Prefix::ROOT, None, None);
//! let page = PageState { at, leaf, pending: &pending, treelet };
//! let delete = KeyAccess { key, reads: true, writes: Some(Stored::Absent) };
//!
//! let mut folder = BatchFolder::new(Hasher::BLAKE3);
//! let mut results = Vec::new();
//! folder.begin(0);
//! fold_leaf(&mut folder, &page, 0, &[delete], &mut results);
//! let fold = folder.end().expect("every key is known");
//! folder.run();
//! assert_eq!(folder.node(fold), TERMINATOR);
//! assert_eq!(results[0].prior, pending[0].1);
//! ```

use pleach_core::fold::{
    BatchFolder, Change, Columns, Differing, HashId, Keys, TreeletFolder, each_position,
    heap_index, heap_position, way,
};
use pleach_core::node::{NodeKind, kind, precedes};
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::prefix::Prefix;
use pleach_core::{Key, Node};

use crate::stored::{Stored, cell_value};
use crate::treelet::{self, Known, capture_levels};
use pleach_core::prefix::bits_after;

/// What a session does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAccess {
    /// The key.
    pub key: Key,
    /// Is its old value read (and so part of the claim that a witness makes)?
    pub reads: bool,
    /// What is written; `None` for a pure read.
    pub writes: Option<Stored>,
}

/// What the fold found at an accessed key, and made of it.
#[derive(Clone, Debug)]
pub struct AccessResult {
    /// The value before.
    pub prior: Stored,
    /// Number of the new value's hash in the folder, [`pleach_core::fold::NO_HASH`] when none.
    pub put: HashId,
}

/// A change that is pending over a page: the newest state of its key in the view that is folded.
pub type PendingChange = (Key, Stored);

/// A leaf page with all that was committed: what it holds, what is pending over it, and what is known
/// of its nodes.
#[derive(Clone, Copy, Debug)]
pub struct PageState<'a> {
    /// Its prefix.
    pub at: &'a Prefix,
    /// The page; `None` for a prefix without one.
    pub leaf: Option<&'a LeafView<'a>>,
    /// Pending changes over the page, sorted, each key once.
    pub pending: &'a [PendingChange],
    /// Nodes of the page with its pending changes, where they are known.
    pub treelet: Option<Known<'a>>,
}

/// Puts a page into the folder as one fold with floor `at.len()`, between `begin` and `end` calls
/// of the caller; `capture` is the number of levels that it captures. `accesses` are sorted, lie below
/// the page's prefix, and have each key once. Pushes one [`AccessResult`] for each of them.
pub fn fold_leaf(
    folder: &mut BatchFolder,
    page: &PageState<'_>,
    capture: u8,
    accesses: &[KeyAccess],
    results: &mut Vec<AccessResult>,
) {
    let stored = page.leaf.map_or(0, LeafView::levels);
    let mut merge = Merge {
        at: page.at,
        columns: None,
        leaf: page.leaf,
        // Positions between columns are none of those that this goes through.
        treelet: page.treelet.filter(|known| known.columns().is_none()),
        stored,
        bottom: capture.max(stored),
        cell: 0,
        pending: page.pending,
        accesses,
    };
    merge.visit(folder, 0, 0, results);
    debug_assert!(
        merge.pending.is_empty() && merge.accesses.is_empty(),
        "all changes lie below the page"
    );
}

/// The same for a page whose treelet knows its node as an internal one: only the buckets that are accessed are
/// expanded. Gives the number of the treelet in the folder; `None`, with nothing done, for other pages, and for
/// accesses to keys that do not agree with those of the page between the treelet's columns.
///
/// # Panics
/// When accesses, or what pends, are not in order.
pub fn fold_known(
    folder: &mut TreeletFolder,
    page: &PageState<'_>,
    accesses: &[KeyAccess],
    results: &mut Vec<AccessResult>,
) -> Option<usize> {
    let known = page.treelet.filter(|known| known.internal() & 1 == 1)?;
    if accesses.is_empty() || capture_levels(page.at) == 0 {
        return None;
    }
    let mut columns = None;
    if let Some(own) = known.columns() {
        if !is_parted_by(page, own, accesses) {
            return None;
        }
        columns = page.leaf.map(|leaf| (own, leaf.key(0)));
    }
    let mut merge = Merge {
        at: page.at,
        columns,
        leaf: page.leaf,
        treelet: page.treelet,
        stored: page.leaf.filter(|_| columns.is_none()).map_or(0, LeafView::levels),
        bottom: treelet::LEVELS,
        cell: 0,
        pending: page.pending,
        accesses,
    };
    let bucket = |access: &KeyAccess| merge.bits_of(&access.key, treelet::LEVELS);
    let ways = accesses.iter().fold(0, |ways, access| ways | way(bucket(access)));
    let floor = (page.at.len(), columns);
    folder.begin(floor, ways, known.internal(), |left| known.pair(left));
    each_position(folder.beside() & !known.positions(), |at| merge.beside(folder, at));
    while let Some(access) = merge.accesses.first() {
        let left = merge.accesses.len();
        let at = folder.bucket_of(merge.bits_of(&access.key, treelet::LEVELS));
        let (level, bits) = heap_position(at);
        merge.skip_pending(level, bits);
        merge.expand(folder, level, bits, results);
        folder.bucket(at, true);
        assert!(merge.accesses.len() < left, "a bucket has the accesses that lead to it");
    }
    Some(folder.end())
}

/// Does a treelet with these columns tell the accessed keys of a page apart? They, and all that pends, agree with its
/// cells in the bits between. What pends is asked, too: a commit whose parent's state came back knows the state that it
/// was folded over, and not the deletions that pend since.
pub fn is_parted_by(page: &PageState<'_>, columns: Columns, accesses: &[KeyAccess]) -> bool {
    let Some(leaf) = page.leaf.filter(|leaf| !leaf.is_empty()) else { return false };
    let like = leaf.key(0);
    let pending = page.pending.iter().map(|pending| &pending.0);
    pending.chain(accesses.iter().map(|access| &access.key)).all(|key| columns.agree(&like, key))
}

/// The columns of what a fold of a page captures: those of its treelet, if that tells these accesses apart, too;
/// else what parts its keys best. `None` for the bits behind its prefix.
pub fn columns_of(page: &PageState<'_>, accesses: &[KeyAccess]) -> Option<Columns> {
    let floor = page.at.len();
    let leaf = page.leaf.filter(|leaf| !leaf.is_empty() && capture_levels(page.at) > 0)?;
    if let Some(known) = page.treelet {
        let own = known.columns()?;
        if is_parted_by(page, own, accesses) {
            return Some(own);
        }
    }
    let mut differing = Differing::from(&leaf.key(0));
    // Hashed keys have been told apart after the first one or two.
    let cells = (1..leaf.len()).rev().map(|cell| leaf.key(cell));
    let changes = page.pending.iter().map(|pending| pending.0);
    for key in cells.chain(changes).chain(accesses.iter().map(|access| access.key)) {
        differing.add(&key);
        if differing.is_plain(floor) {
            return None;
        }
    }
    differing.columns(floor)
}

/// Position number `index` of those `levels` below `at`.
///
/// # Panics
/// When there is no such position.
pub fn below(at: &Prefix, levels: u8, index: u16) -> Prefix {
    at.descendant(levels, u8::try_from(index).expect("at most 8 levels"))
}

#[derive(Clone, Copy)]
struct Merge<'a> {
    at: &'a Prefix,
    /// The bits by which positions are told apart, where these are not those behind the prefix, and a key of the page.
    columns: Option<(Columns, Key)>,
    leaf: Option<&'a LeafView<'a>>,
    treelet: Option<Known<'a>>,
    /// Level of the nodes that the page stores; 0 when it stores none.
    stored: u8,
    /// Subtries of this level (buckets) are expanded whole.
    bottom: u8,
    cell: usize,
    pending: &'a [PendingChange],
    accesses: &'a [KeyAccess],
}

impl<'a> Merge<'a> {
    /// Puts the subtrie `level` bits below the page's prefix, with these bits, into the folder: as
    /// one node where it is known and nothing is accessed, key by key where it cannot be divided.
    fn visit(
        &mut self,
        folder: &mut BatchFolder,
        level: u8,
        bits: u8,
        results: &mut Vec<AccessResult>,
    ) {
        let accessed =
            self.accesses.first().is_some_and(|access| self.bits_of(&access.key, level) == bits);
        match self.node(level, bits).map(|node| (node, kind(node))) {
            // A leaf node may have to become a terminal: it goes in as a key.
            Some((_, NodeKind::Leaf)) => return self.expand(folder, level, bits, results),
            Some((_, NodeKind::Terminator)) if accessed => {
                return self.expand(folder, level, bits, results);
            }
            Some((node, _)) if !accessed => {
                folder.subtrie(&self.at.descendant(level, bits), node);
                return self.pass(level, bits);
            }
            _ => {}
        }
        if level == self.bottom {
            return self.expand(folder, level, bits, results);
        }
        self.visit(folder, level + 1, bits << 1, results);
        self.visit(folder, level + 1, bits << 1 | 1, results);
    }

    /// Gives a treelet the node of a position without accesses, which it does not know: from the page, or by
    /// its keys.
    fn beside(mut self, folder: &mut TreeletFolder, at: u8) {
        let (level, bits) = heap_position(at);
        self.accesses = &[];
        self.skip_pending(level, bits);
        if let Some(node) = self.stored_node(level, bits) {
            return folder.known(at, node);
        }
        self.expand(folder, level, bits, &mut Vec::new());
        folder.bucket(at, false);
    }

    /// Passes over the pending changes before a position.
    fn skip_pending(&mut self, level: u8, bits: u8) {
        let before = |pending: &&PendingChange| self.bits_of(&pending.0, level) < bits;
        let count = self.pending.iter().take_while(before).count();
        self.pending = &self.pending[count..];
    }

    /// The bits of a key that say in which position of a level it is.
    #[inline]
    fn bits_of(&self, key: &Key, level: u8) -> u8 {
        if let Some((columns, _)) = &self.columns {
            return columns.bits(key, level);
        }
        let bits = u64::from(bits_after(key, self.at.len()));
        #[expect(clippy::cast_possible_truncation, reason = "as few bits as levels")]
        let bits = (bits >> (32 - level)) as u8;
        bits
    }

    /// The node at a position, pending changes included, where it is known.
    #[inline]
    fn node(&self, level: u8, bits: u8) -> Option<&'a Node> {
        let treelet = self.treelet.filter(|_| level <= treelet::LEVELS);
        let known = treelet.and_then(|known| known.node(heap_index(level, bits)));
        known.or_else(|| self.stored_node(level, bits))
    }

    /// The node that the page stores for a position, if no change is pending below it; those before it have been
    /// passed over.
    fn stored_node(&self, level: u8, bits: u8) -> Option<&'a Node> {
        let leaf = self.leaf.filter(|_| level == self.stored && level > 0)?;
        let is_pending =
            self.pending.first().is_some_and(|pending| self.bits_of(&pending.0, level) == bits);
        (!is_pending).then(|| &leaf.nodes()[usize::from(bits)])
    }

    /// Passes over the pending changes below a position: its node includes them.
    fn pass(&mut self, level: u8, bits: u8) {
        let below = |pending: &&PendingChange| self.bits_of(&pending.0, level) == bits;
        let count = self.pending.iter().take_while(below).count();
        self.pending = &self.pending[count..];
    }

    /// Puts every key below a position into the folder.
    fn expand(
        &mut self,
        folder: &mut impl Keys,
        level: u8,
        bits: u8,
        results: &mut Vec<AccessResult>,
    ) {
        if let Some(leaf) = self.leaf {
            let position = match &self.columns {
                None => self.at.descendant(level, bits),
                Some((columns, like)) => columns.position(like, level, bits),
            };
            self.cell = leaf.lower_bound(position.first_key());
        }
        let mut change = self.next_change(level, bits);
        while let Some(key) = self.cell_key(level, bits) {
            // Most cells are neither changed nor accessed: they go in at the price of one comparison.
            while let Some(at) = change.filter(|at| precedes(at, &key)) {
                self.changed(folder, &at, None, results);
                change = self.next_change(level, bits);
            }
            let cell = self.leaf.expect("a cell of this page").cell(self.cell);
            self.cell += 1;
            if change == Some(key) {
                self.changed(folder, &key, Some(cell), results);
                change = self.next_change(level, bits);
            } else {
                folder.unaccessed(&key, cell_value(&cell));
            }
        }
        while let Some(at) = change {
            self.changed(folder, &at, None, results);
            change = self.next_change(level, bits);
        }
    }

    /// The next key below a position that has a pending change or an access.
    #[inline]
    fn next_change(&self, level: u8, bits: u8) -> Option<Key> {
        let pending = self.pending.first().map(|pending| pending.0);
        let access = self.accesses.first().map(|access| access.key);
        let next = match (pending, access) {
            (Some(pending), Some(access)) => {
                if precedes(&access, &pending) {
                    access
                } else {
                    pending
                }
            }
            (one, other) => one.or(other)?,
        };
        (self.bits_of(&next, level) == bits).then_some(next)
    }

    /// One key that has a pending change or an access.
    fn changed(
        &mut self,
        folder: &mut impl Keys,
        key: &Key,
        cell: Option<Cell<'_>>,
        results: &mut Vec<AccessResult>,
    ) {
        let pending = self.pending.first().filter(|pending| pending.0 == *key);
        let access = self.accesses.first().filter(|access| access.key == *key);
        if pending.is_some() {
            self.pending = &self.pending[1..];
        }
        let old = match (pending, &cell) {
            (Some(pending), _) => pending.1.fold_value(),
            (None, Some(cell)) => Some(cell_value(cell)),
            (None, None) => None,
        };
        let Some(access) = access else {
            if let Some(value) = old {
                folder.unaccessed(key, value);
            }
            return;
        };
        self.accesses = &self.accesses[1..];
        let change = match &access.writes {
            None => Change::Keep,
            Some(stored) => stored.fold_value().map_or(Change::Delete, Change::Put),
        };
        let put = folder.accessed(key, old, change);
        let prior = match (pending, cell) {
            (Some(pending), _) => pending.1.clone(),
            (None, Some(cell)) => Stored::from_cell(cell),
            (None, None) => Stored::Absent,
        };
        results.push(AccessResult { prior, put });
    }

    #[inline]
    fn cell_key(&self, level: u8, bits: u8) -> Option<Key> {
        let leaf = self.leaf?;
        let key = (self.cell < leaf.len()).then(|| leaf.key(self.cell))?;
        (self.bits_of(&key, level) == bits).then_some(key)
    }
}
