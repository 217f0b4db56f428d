//! Adds one leaf page to the fold: its cells, its buffered changes, and the accesses.
//!
//! The page stores the nodes a few levels below its prefix, and its treelet may know more, with buffered changes
//! applied. A subtrie that is known and not accessed goes into the fold as its node. All others go in key by key, and
//! so do those of one key: a leaf node may have to become a terminal.
//!
//! A page with many buffered changes is cut by prefixes into parts of few keys ([`fold_parts`]): until a flush comes,
//! one page may have thousands. Parts without an access go in by the node that the region kept from the commit that
//! changed the page last.
//!
//! ```
//! use pleach_beatree::Stored;
//! use pleach_beatree::leaf_fold::{KeyAccess, PageState, fold_page};
//! use pleach_core::fold::Folder;
//! use pleach_core::prefix::Prefix;
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! // A prefix without a page, over which one change is buffered; one key is read and deleted.
//! let key = [7; 32];
//! let buffered = [(key, Stored::from_value(Hasher::BLAKE3, b"seven".as_slice().into()))];
//! let (at, leaf, treelet) = (&Prefix::ROOT, None, None);
//! let state = PageState { at, leaf, buffered: &buffered, treelet };
//! let delete = KeyAccess { key, reads: true, writes: Some(Stored::Absent) };
//!
//! let mut folder = Folder::new(Hasher::BLAKE3);
//! let mut results = Vec::new();
//! let page = fold_page(&mut folder, &state, false, &[delete], &mut results);
//! let fold = folder.end_fold(page.subtrie, true);
//! folder.run();
//! assert_eq!(*folder.node(fold), TERMINATOR);
//! assert_eq!(results[0].prior, buffered[0].1);
//! ```

use pleach_core::fold::{
    Columns, DifferingBits, FoldSpan, Folder, HashId, Subtrie, TREELET_LEVELS, TreeletPath,
    ValueChange, heap_index,
};
use pleach_core::node::{NodeKind, kind, precedes};
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::prefix::{Prefix, bits_after, common_len};
use pleach_core::{Key, Node};

use crate::stored::{Stored, cell_value};
use crate::treelet::{TreeletNodes, treelet_levels};

/// Keys of a part at most; one that is both accessed and buffered counts twice.
const PART: usize = 128;
/// Keys that are hashed together: their data in a fold fits a processor's own cache.
const GROUP: usize = 1024;

/// What a session does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAccess {
    /// The key.
    pub key: Key,
    /// True when the old value is read (and so part of the claim of a witness).
    pub reads: bool,
    /// The new state; `None` for a pure read.
    pub writes: Option<Stored>,
}

/// What the fold found at an accessed key, and what it wrote.
#[derive(Clone, Debug)]
pub struct AccessResult {
    /// The value before.
    pub prior: Stored,
    /// Number of the new value's hash in the folder, [`pleach_core::fold::NO_HASH`] when none.
    pub put: HashId,
}

/// A buffered change of a page: the newest state of its key in the view that is folded.
pub type KeyState = (Key, Stored);

/// A leaf page with all that was committed: its cells, its buffered changes, and its known nodes.
#[derive(Clone, Copy, Debug)]
pub struct PageState<'a> {
    /// The page's prefix.
    pub at: &'a Prefix,
    /// The page; `None` for a prefix without one.
    pub leaf: Option<&'a LeafView<'a>>,
    /// Buffered changes of the page, sorted, each key once.
    pub buffered: &'a [KeyState],
    /// Known nodes of the page with its buffered changes.
    pub treelet: Option<TreeletNodes<'a>>,
}

/// The result of folding a page.
#[derive(Debug)]
pub struct FoldedPage {
    /// The whole page.
    pub subtrie: Subtrie,
    /// The columns of the nodes that are kept; `None` when these divide at the bits behind the prefix.
    pub columns: Option<Columns>,
    /// The page's parts, if it was folded in parts.
    pub parts: Vec<(Prefix, PartNode)>,
}

/// Adds a page to the folder. `accesses` are sorted, are below the page's prefix, and have each key once; one
/// [`AccessResult`] is pushed for each. `keeps_nodes` is true when the nodes that the treelet did not know are kept.
pub fn fold_page(
    folder: &mut Folder,
    page: &PageState<'_>,
    keeps_nodes: bool,
    accesses: &[KeyAccess],
    results: &mut Vec<AccessResult>,
) -> FoldedPage {
    let has_levels = treelet_levels(page.at) > 0;
    let known = usable_treelet(page, accesses);
    let columns = match known {
        Some(known) => known.columns(),
        None if keeps_nodes && has_levels => columns_of(page, accesses),
        None => None,
    };
    let stored = page.leaf.filter(|_| columns.is_none()).map_or(0, LeafView::levels);
    let keeps = keeps_nodes && has_levels;
    let mut merge = PageMerge::new(folder, page, columns, known, keeps, accesses, results);
    merge.stored = stored;
    merge.bottom = if known.is_some() { TREELET_LEVELS } else { stored };
    merge.visit(0, 0);
    FoldedPage { subtrie: merge.into_subtrie(), columns, parts: Vec::new() }
}

/// The treelet of a page, if it distinguishes the accessed keys.
fn usable_treelet<'a>(page: &PageState<'a>, accesses: &[KeyAccess]) -> Option<TreeletNodes<'a>> {
    let parts = |known: &TreeletNodes| {
        known.columns().is_none_or(|own| is_divided_by_columns(page, own, accesses))
    };
    page.treelet.filter(|known| treelet_levels(page.at) > 0 && parts(known))
}

/// The prefixes below which [`fold_page`] reads pairs, ascending; other buffered changes are not needed. A treelet with
/// columns may not know of a buffered deletion: then the prefix is the whole page's.
pub fn needed_prefixes(page: &PageState<'_>, accesses: &[KeyAccess]) -> Vec<Prefix> {
    let mut needed = Vec::new();
    match usable_treelet(page, accesses).filter(|known| known.columns().is_none()) {
        Some(known) => add_needed_prefixes(page, &known, accesses, 0, 0, false, &mut needed),
        None => needed.push(*page.at),
    }
    needed
}

/// As [`PageMerge::visit`]: the prefixes at a position, which is `beside` a known one or has known ones above it all
/// the way.
fn add_needed_prefixes(
    page: &PageState<'_>,
    known: &TreeletNodes<'_>,
    accesses: &[KeyAccess],
    level: u8,
    bits: u8,
    beside: bool,
    needed: &mut Vec<Prefix>,
) {
    let at = page.at.descendant(level, bits);
    let from = accesses.partition_point(|access| access.key < *at.first_key());
    let below = accesses[from..].partition_point(|access| at.covers(&access.key));
    let accesses = &accesses[from..from + below];
    let is_expanded = match known.node(heap_index(level, bits)).map(kind) {
        Some(NodeKind::Internal | NodeKind::Terminator) if below == 0 => return,
        Some(_) if below == 0 && beside => return,
        Some(NodeKind::Internal) => level == TREELET_LEVELS,
        Some(NodeKind::Leaf | NodeKind::Terminator) => true,
        None => level == TREELET_LEVELS || page.leaf.is_some_and(|leaf| leaf.levels() == level),
    };
    if is_expanded {
        return needed.push(at);
    }
    let beside = known.node(heap_index(level, bits)).is_some() && (level == 0 || beside);
    for half in [bits << 1, bits << 1 | 1] {
        add_needed_prefixes(page, known, accesses, level + 1, half, beside, needed);
    }
}

/// True when so many changes are buffered or accessed below a page that it is cut into parts.
pub fn needs_parts(changes: usize) -> bool {
    changes > 2 * PART
}

/// True when a treelet distinguishes the buffered and accessed keys, at most a part in each accessed bucket: the page
/// is not cut then.
pub fn is_divided_by_treelet(page: &PageState<'_>, accesses: &[KeyAccess]) -> bool {
    let Some(columns) = page.treelet.map(|known| known.columns()) else { return false };
    let bucket = |key: &Key| bits_of(page.at, columns, key, TREELET_LEVELS);
    let mut groups = accesses.chunk_by(|a, b| bucket(&a.key) == bucket(&b.key));
    columns.is_none_or(|own| is_divided_by_columns(page, own, accesses))
        && groups.all(|group| {
            let accessed = bucket(&group[0].key);
            let from = page.buffered.partition_point(|buffered| bucket(&buffered.0) < accessed);
            let behind = &page.buffered[from..];
            behind.get(PART).is_none_or(|buffered| bucket(&buffered.0) > accessed)
        })
}

/// The position of a key in a level below a prefix, as bits.
#[inline]
fn bits_of(at: &Prefix, columns: Option<Columns>, key: &Key, level: u8) -> u8 {
    if let Some(columns) = columns {
        return columns.bits(key, level);
    }
    let bits = u64::from(bits_after(key, at.len()));
    #[expect(clippy::cast_possible_truncation, reason = "as few bits as levels")]
    let bits = (bits >> (32 - level)) as u8;
    bits
}

/// The node of a part after the batch.
#[derive(Clone, Copy, Debug)]
pub enum PartNode {
    /// The node before the batch.
    Known(Node),
    /// The folder's watched node of this number ([`Folder::watched`]).
    Watched(u32),
}

/// Like [`fold_page`], in parts, for a page with many buffered changes; `known` are nodes of parts before the batch.
/// Returns the parts, too. The nodes that the page stores, and its treelet, are not used.
pub fn fold_parts(
    folder: &mut Folder,
    page: &PageState<'_>,
    known: Option<&[(Prefix, Node)]>,
    accesses: &[KeyAccess],
    results: &mut Vec<AccessResult>,
) -> FoldedPage {
    let mut merge = PageMerge::new(folder, page, None, None, false, accesses, results);
    let mut parts = Vec::new();
    merge.divide(*page.at, known, &mut parts);
    FoldedPage { subtrie: merge.into_subtrie(), columns: None, parts }
}

/// True when a treelet with these columns distinguishes the accessed keys of a page: these and all buffered keys agree
/// with its cells in the bits between. Buffered keys are compared, too: a commit whose parent's state was left and came
/// back knows the state that it was folded on, and not the deletions buffered since.
fn is_divided_by_columns(page: &PageState<'_>, columns: Columns, accesses: &[KeyAccess]) -> bool {
    let Some(leaf) = page.leaf.filter(|leaf| !leaf.is_empty()) else { return false };
    let like = leaf.key(0);
    let buffered = page.buffered.iter().map(|buffered| &buffered.0);
    buffered
        .chain(accesses.iter().map(|access| &access.key))
        .all(|key| columns.is_same_elsewhere(&like, key))
}

/// The columns for the nodes that a fold of a page keeps, without a treelet: those that divide its keys best. `None`
/// for the bits behind its prefix.
fn columns_of(page: &PageState<'_>, accesses: &[KeyAccess]) -> Option<Columns> {
    let floor = page.at.len();
    let leaf = page.leaf.filter(|leaf| !leaf.is_empty())?;
    let mut differing = DifferingBits::from(&leaf.key(0));
    // Hashed keys are distinguished after the first one or two.
    let cells = (1..leaf.len()).rev().map(|cell| leaf.key(cell));
    let changes = page.buffered.iter().map(|buffered| buffered.0);
    for key in cells.chain(changes).chain(accesses.iter().map(|access| access.key)) {
        differing.add(&key);
        if differing.is_spread_at(floor) {
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

struct PageMerge<'a, 's> {
    span: FoldSpan<'s, TreeletPath<'a>>,
    at: &'a Prefix,
    /// The bits that distinguish positions, where these are not those behind the prefix, and a key of the page.
    columns: Option<(Columns, Key)>,
    leaf: Option<&'a LeafView<'a>>,
    treelet: Option<TreeletNodes<'a>>,
    /// Level of the nodes that the page stores; 0 when it stores none.
    stored: u8,
    /// Subtries of this level are expanded whole.
    bottom: u8,
    cell: usize,
    buffered: &'a [KeyState],
    accesses: &'a [KeyAccess],
    results: &'s mut Vec<AccessResult>,
}

impl<'a, 's> PageMerge<'a, 's> {
    fn new(
        folder: &'s mut Folder,
        page: &PageState<'a>,
        columns: Option<Columns>,
        treelet: Option<TreeletNodes<'a>>,
        keeps: bool,
        accesses: &'a [KeyAccess],
        results: &'s mut Vec<AccessResult>,
    ) -> Self {
        let positions = treelet.map_or(0, |known| known.positions());
        let nodes = treelet.map_or(&[][..], |known| known.nodes());
        let levels = TreeletPath::new(page.at.len(), columns, keeps, positions, nodes);
        let like = columns.zip(page.leaf).map(|(columns, leaf)| (columns, leaf.key(0)));
        Self {
            span: folder.span_along(page.at.len(), levels),
            at: page.at,
            columns: like,
            leaf: page.leaf,
            treelet,
            stored: 0,
            bottom: 0,
            cell: 0,
            buffered: page.buffered,
            accesses,
            results,
        }
    }

    /// The subtrie of all that was pushed.
    fn into_subtrie(self) -> Subtrie {
        debug_assert!(
            self.buffered.is_empty() && self.accesses.is_empty(),
            "all changes lie below the page"
        );
        self.span.into_subtrie()
    }

    /// Adds the subtrie `level` bits below the page's prefix, with these bits, to the folder: as one node where it is
    /// known and not accessed, key by key where it cannot be divided.
    fn visit(&mut self, level: u8, bits: u8) {
        let accessed =
            self.accesses.first().is_some_and(|access| self.bits_of(&access.key, level) == bits);
        let position = heap_index(level, bits);
        let treelet = self.treelet.and_then(|known| known.node(position));
        let is_beside = position > 0 && self.span.path.is_entered((position - 1) / 2);
        let node = treelet.or_else(|| self.stored_node(level, bits));
        match node.map(|node| (node, kind(node))) {
            // The climb from the other side finds the node in the treelet.
            Some(_) if !accessed && is_beside && treelet.is_some() => {
                return self.skip_buffered(level, bits);
            }
            Some((node, NodeKind::Internal)) if !accessed => {
                self.span.push_known(&self.position(level, bits), node);
                return self.skip_buffered(level, bits);
            }
            Some((_, NodeKind::Terminator)) if !accessed => return self.skip_buffered(level, bits),
            // A leaf node may have to become a terminal: it is added as a key.
            Some((_, NodeKind::Leaf | NodeKind::Terminator)) => {
                return self.expand(&self.position(level, bits));
            }
            _ if level == self.bottom => return self.expand(&self.position(level, bits)),
            Some(_) if treelet.is_some() && (level == 0 || is_beside) => {
                self.span.path.enter(position);
            }
            _ => {}
        }
        self.visit(level + 1, bits << 1);
        self.visit(level + 1, bits << 1 | 1);
    }

    /// Cuts the keys below a prefix into parts and adds these.
    fn divide(
        &mut self,
        at: Prefix,
        known: Option<&[(Prefix, Node)]>,
        parts: &mut Vec<(Prefix, PartNode)>,
    ) {
        let below = |key: &Key| at.covers(key);
        let buffered = self.buffered.partition_point(|buffered| below(&buffered.0));
        let accesses = self.accesses.partition_point(|access| below(&access.key));
        let cells = self.leaf.map_or(0..0, |leaf| {
            let end = at.next().map_or(leaf.len(), |next| leaf.lower_bound(next.first_key()));
            leaf.lower_bound(at.first_key())..end
        });
        let keys = buffered + accesses + cells.len();
        if keys == 0 {
            return;
        }
        if keys <= PART {
            let known = known.filter(|_| accesses == 0).and_then(|known| {
                Some(known[known.binary_search_by(|(part, _)| part.cmp(&at)).ok()?].1)
            });
            if let Some(node) = known {
                self.buffered = &self.buffered[buffered..];
                self.span.push_known(&at, &node);
                return parts.push((at, PartNode::Known(node)));
            }
            let before = self.span.folder().len();
            self.expand(&at);
            // All buffered changes may be deletions.
            if self.span.folder().len() > before {
                let subtrie = self.span.lift_last(at.len());
                let folder = self.span.folder();
                parts.push((at, PartNode::Watched(folder.watch(&subtrie))));
                if folder.len() >= GROUP {
                    folder.hash_so_far();
                }
            }
            return;
        }
        let lists = (&self.buffered[..buffered], &self.accesses[..accesses]);
        let cell = |at: usize| self.leaf.filter(|_| !cells.is_empty()).map(|leaf| leaf.key(at));
        let firsts = [
            lists.0.first().map(|buffered| buffered.0),
            lists.1.first().map(|access| access.key),
            cell(cells.start),
        ];
        let lasts = [
            lists.0.last().map(|buffered| buffered.0),
            lists.1.last().map(|access| access.key),
            cell(cells.end.saturating_sub(1)),
        ];
        let first: Key = firsts.into_iter().flatten().min().expect("more than a part");
        let last: Key = lasts.into_iter().flatten().max().expect("more than a part");
        // More than three entries are more than one key.
        let depth = common_len(&first, &last);
        self.divide(Prefix::new(&first, depth + 1), known, parts);
        self.divide(Prefix::new(&last, depth + 1), known, parts);
    }

    /// The prefix of a position.
    fn position(&self, level: u8, bits: u8) -> Prefix {
        match &self.columns {
            Some((columns, like)) if level > 0 => columns.position(like, level, bits),
            _ => self.at.descendant(level, bits),
        }
    }

    #[inline]
    fn bits_of(&self, key: &Key, level: u8) -> u8 {
        bits_of(self.at, self.columns.map(|(columns, _)| columns), key, level)
    }

    /// The node that the page stores for a position, if no change is buffered below it. Buffered changes before the
    /// position have been skipped.
    fn stored_node(&self, level: u8, bits: u8) -> Option<&'a Node> {
        let leaf = self.leaf.filter(|_| level == self.stored && level > 0)?;
        let is_pending =
            self.buffered.first().is_some_and(|buffered| self.bits_of(&buffered.0, level) == bits);
        (!is_pending).then(|| &leaf.nodes()[usize::from(bits)])
    }

    /// Skips the buffered changes below a position: its node includes them.
    fn skip_buffered(&mut self, level: u8, bits: u8) {
        let below = |buffered: &&KeyState| self.bits_of(&buffered.0, level) == bits;
        let count = self.buffered.iter().take_while(below).count();
        self.buffered = &self.buffered[count..];
    }

    /// Adds every key below a prefix to the folder.
    fn expand(&mut self, at: &Prefix) {
        if let Some(leaf) = self.leaf {
            self.cell = leaf.lower_bound(at.first_key());
        }
        let mut change = self.next_change(at);
        while let Some(key) = self.cell_key(at) {
            // Most cells are neither changed nor accessed: they cost one comparison.
            while let Some(before) = change.filter(|change| precedes(change, &key)) {
                self.push_changed(&before, None);
                change = self.next_change(at);
            }
            let cell = self.leaf.expect("a cell of this page").cell(self.cell);
            self.cell += 1;
            if change == Some(key) {
                self.push_changed(&key, Some(cell));
                change = self.next_change(at);
            } else {
                self.span.push_unaccessed(&key, cell_value(&cell));
            }
        }
        while let Some(key) = change {
            self.push_changed(&key, None);
            change = self.next_change(at);
        }
    }

    /// The next key below a prefix that has a buffered change or an access.
    #[inline]
    fn next_change(&self, at: &Prefix) -> Option<Key> {
        let buffered = self.buffered.first().map(|buffered| buffered.0);
        let access = self.accesses.first().map(|access| access.key);
        let next = match (buffered, access) {
            (Some(buffered), Some(access)) => {
                if precedes(&access, &buffered) {
                    access
                } else {
                    buffered
                }
            }
            (one, other) => one.or(other)?,
        };
        at.covers(&next).then_some(next)
    }

    /// Adds one key that has a buffered change or an access.
    fn push_changed(&mut self, key: &Key, cell: Option<Cell<'_>>) {
        let buffered = self.buffered.first().filter(|buffered| buffered.0 == *key);
        let access = self.accesses.first().filter(|access| access.key == *key);
        if buffered.is_some() {
            self.buffered = &self.buffered[1..];
        }
        let old = match (buffered, &cell) {
            (Some(buffered), _) => buffered.1.fold_value(),
            (None, Some(cell)) => Some(cell_value(cell)),
            (None, None) => None,
        };
        let Some(access) = access else {
            if let Some(value) = old {
                self.span.push_unaccessed(key, value);
            }
            return;
        };
        self.accesses = &self.accesses[1..];
        let change = match &access.writes {
            None => ValueChange::Keep,
            Some(stored) => stored.fold_value().map_or(ValueChange::Delete, ValueChange::Put),
        };
        let put = self.span.push_accessed(key, old, change);
        let prior = match (buffered, cell) {
            (Some(buffered), _) => buffered.1.clone(),
            (None, Some(cell)) => Stored::from_cell(cell),
            (None, None) => Stored::Absent,
        };
        self.results.push(AccessResult { prior, put });
    }

    #[inline]
    fn cell_key(&self, at: &Prefix) -> Option<Key> {
        let leaf = self.leaf?;
        let key = (self.cell < leaf.len()).then(|| leaf.key(self.cell))?;
        at.covers(&key).then_some(key)
    }
}
