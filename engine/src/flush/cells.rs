//! An old page of a round: its cells, merged with its buffered changes, and the nodes of both.
//!
//! Mostly a page keeps its prefix and its nodes are known: then the new page is made of ranges of the old one's cells
//! with single cells between ([`CellEdit`]). Pages that are split or merged, and pages whose nodes have to be hashed,
//! are merged cell by cell.
//!
//! Invariant: a known node is the node of page *and* buffered changes. It is checked against the index before it is
//! written ([`agree`](super::agree)).

use std::ops::Range;
use std::sync::Arc;

use pleach_beatree::cache::CachedPage;
use pleach_beatree::leaf_fold::below;
use pleach_beatree::page_plan::{CellRef, STORED_LEVELS, levels};
use pleach_beatree::region::BufferedChange;
use pleach_beatree::{PageNo, RegionState, Stored};
use pleach_core::fold::Folder;
use pleach_core::page::leaf::{Cell, LeafBuilder, LeafHeader, RawCell, capacity, cell_size};
use pleach_core::page::overflow::OverflowExtent;
use pleach_core::{Node, Prefix, TERMINATOR};

/// Nodes that a leaf page stores.
pub(super) const STORED_NODES: usize = 1 << STORED_LEVELS;
const ALL_KNOWN: u16 = u16::MAX >> (16 - STORED_NODES);

/// Nodes [`STORED_LEVELS`] below a prefix, and a bit for each that is known.
pub(super) type KnownNodes = ([Node; STORED_NODES], u16);

/// No node is known.
pub(super) const NO_NODES: KnownNodes = ([Node::new([0; 32]); STORED_NODES], 0);

/// The nodes of a plain trie: terminators, whatever its pages have.
pub(super) const PLAIN_NODES: KnownNodes = ([TERMINATOR; STORED_NODES], ALL_KNOWN);

/// A page that a flush replaces, with its buffered changes.
pub(super) struct OldPage {
    pub(super) prefix: Prefix,
    pub(super) page: Option<Arc<CachedPage>>,
    /// Its page number, which the flush replaces; `None` where all keys are buffered.
    pub(super) number: Option<PageNo>,
    pub(super) buffered: Vec<BufferedChange>,
    /// Cells of buffered long values, by index into `buffered`.
    pub(super) written: Vec<(usize, Arc<[u8]>)>,
    /// The nodes that the new page stores: those of the page with all buffered changes.
    pub(super) nodes: KnownNodes,
    /// Subtries with all keys of the page, from which these nodes are made, where the page's treelet has columns.
    pub(super) subtries: Vec<(Prefix, Node)>,
    /// True for a page of a plain trie, for which no nodes are made.
    pub(super) is_plain: bool,
    /// The node of the page with all buffered changes, as the index has it.
    pub(super) own: Node,
}

/// One cell of a new page that differs from the old page's.
pub(super) struct CellEdit {
    /// This cell comes after the old page's cells before `at`.
    at: usize,
    /// True when it replaces cell `at`.
    replaces: bool,
    /// Index of the buffered change.
    change: usize,
}

/// A page that keeps its prefix and whose nodes are known.
pub(super) struct PageEdits {
    /// The page's edits, in the round's list.
    edits: Range<usize>,
    count: u16,
}

impl OldPage {
    /// True when there is a page that has not been read yet.
    pub(super) fn is_missing(&self) -> bool {
        self.page.is_none() && self.number.is_some()
    }

    /// Sets the page that was read.
    pub(super) fn set_page(&mut self, page: Arc<CachedPage>) {
        assert!(self.is_missing(), "a page is read once");
        if !self.is_plain {
            self.forget_nodes();
            add_stored_nodes(&mut self.nodes, &page, &self.prefix, &self.buffered);
        }
        self.page = Some(page);
    }

    /// True when any of the page's nodes is known.
    pub(super) fn has_known_nodes(&self) -> bool {
        self.nodes.1 != 0
    }

    /// Discards nodes that may be wrong: they are hashed from the cells.
    pub(super) fn forget_nodes(&mut self) {
        self.nodes.1 = 0;
    }

    /// The edits of the page, if it keeps its prefix and all its nodes are known. Adds to `replaced_extents`.
    pub(super) fn plan_edits(
        &self,
        out: &mut Vec<CellEdit>,
        replaced_extents: &mut Vec<OverflowExtent>,
    ) -> Option<PageEdits> {
        let page = self.page.as_ref().filter(|_| self.nodes.1 == ALL_KNOWN)?;
        let (view, len) = (page.view(), self.prefix.len());
        if view.levels() != STORED_LEVELS {
            return None;
        }
        let (from, freed_from) = (out.len(), replaced_extents.len());
        let (mut used, mut count) = (view.used(), view.len());
        for (change, buffered) in self.buffered.iter().enumerate() {
            let found = page.find(&buffered.key);
            if let Some(cell) = found {
                let cell = view.cell(cell);
                used -= cell_size(len, cell.raw().bytes.len());
                count -= 1;
                if let Cell::Overflow(cell) = cell {
                    replaced_extents.extend(cell.extents());
                }
            }
            let present = buffered.stored.is_present();
            if present {
                used += cell_size(len, self.buffered_cell(change).0.len());
                count += 1;
            }
            if present || found.is_some() {
                let at = found.unwrap_or_else(|| view.lower_bound(&buffered.key));
                out.push(CellEdit { at, replaces: found.is_some(), change });
            }
        }
        if used > capacity(levels(&self.prefix)) {
            out.truncate(from);
            replaced_extents.truncate(freed_from);
            return None;
        }
        let count = u16::try_from(count).expect("cells that fit in a page");
        Some(PageEdits { edits: from..out.len(), count })
    }

    /// Writes the page with its edits and returns its tag.
    pub(super) fn write_edited(
        &self,
        into: &mut [u8; 4096],
        header: LeafHeader,
        edited: &PageEdits,
        edits: &[CellEdit],
    ) -> u32 {
        let view = self.page.as_ref().expect("an edited page is there").view();
        let mut builder = LeafBuilder::new(into, &LeafHeader { count: edited.count, ..header });
        let mut from = 0;
        for edit in &edits[edited.edits.clone()] {
            assert!(from <= edit.at, "edits come in key order");
            builder.push_run(&view, from..edit.at);
            from = edit.at + usize::from(edit.replaces);
            let buffered = &self.buffered[edit.change];
            if buffered.stored.is_present() {
                let (bytes, overflow) = self.buffered_cell(edit.change);
                builder.push(&buffered.key, RawCell { bytes, overflow });
            }
        }
        builder.push_run(&view, from..view.len());
        builder.set_nodes(&self.nodes.0);
        builder.seal()
    }

    /// Appends the merged cells to `out`, and the replaced overflow runs to `replaced_extents`.
    pub(super) fn push_merged_cells<'a>(
        &'a self,
        out: &mut Vec<CellRef<'a>>,
        replaced_extents: &mut Vec<OverflowExtent>,
    ) {
        let Some(page) = &self.page else {
            self.push_buffered_cells(0..self.buffered.len(), out);
            return;
        };
        let view = page.view();
        let mut taken = 0;
        for (key, cell) in view.iter() {
            let smaller =
                self.buffered[taken..].iter().take_while(|change| change.key < key).count();
            self.push_buffered_cells(taken..taken + smaller, out);
            taken += smaller;
            if self.buffered.get(taken).is_some_and(|change| change.key == key) {
                if let Cell::Overflow(cell) = cell {
                    replaced_extents.extend(cell.extents());
                }
                self.push_buffered_cells(taken..taken + 1, out);
                taken += 1;
                continue;
            }
            let RawCell { bytes, overflow } = cell.raw();
            out.push(CellRef { key, bytes, overflow });
        }
        self.push_buffered_cells(taken..self.buffered.len(), out);
    }

    /// Appends the cells of these buffered changes.
    fn push_buffered_cells<'a>(&'a self, range: Range<usize>, out: &mut Vec<CellRef<'a>>) {
        for index in range {
            let change = &self.buffered[index];
            if change.stored.is_present() {
                let (bytes, overflow) = self.buffered_cell(index);
                out.push(CellRef { key: change.key, bytes, overflow });
            }
        }
    }

    /// The cell of a buffered change, and whether it is an overflow cell.
    fn buffered_cell(&self, index: usize) -> (&[u8], bool) {
        match &self.buffered[index].stored {
            Stored::Inline(value) => (value, false),
            Stored::Overflow(raw) => (raw, true),
            Stored::Long(_) => {
                let at = self.written.binary_search_by_key(&index, |(index, _)| *index);
                (&self.written[at.expect("long values were written")].1, true)
            }
            Stored::Absent => unreachable!("deleted keys have no cell"),
        }
    }
}

/// Makes the nodes that pages store from the subtries that their treelets know.
pub(super) fn make_nodes<'a>(folder: &mut Folder, pages: impl Iterator<Item = &'a mut OldPage>) {
    folder.clear();
    let pages: Vec<&mut OldPage> = pages.filter(|page| !page.subtries.is_empty()).collect();
    for page in &pages {
        for index in 0..STORED_NODES {
            let at =
                below(&page.prefix, STORED_LEVELS, u16::try_from(index).expect("one of sixteen"));
            let mut span = folder.span(at.len());
            for (prefix, node) in page.subtries.iter().filter(|(prefix, _)| at.contains(prefix)) {
                span.push_known(prefix, node);
            }
            span.end_fold();
        }
    }
    folder.run();
    for (at, page) in pages.into_iter().enumerate() {
        page.subtries = Vec::new();
        page.nodes =
            (std::array::from_fn(|index| *folder.node(at * STORED_NODES + index)), ALL_KNOWN);
    }
}

/// The subtries with all keys of a child's page and its buffered changes, if its treelet has columns and knows them.
pub(super) fn known_subtries(
    state: &RegionState,
    child: usize,
    page: &CachedPage,
    prefix: &Prefix,
) -> Vec<(Prefix, Node)> {
    let (view, depth) = (page.view(), prefix.len() + u16::from(STORED_LEVELS));
    let found = page.treelet(state.version(child), |treelet| {
        let treelet = treelet.filter(|treelet| treelet.columns().is_some() && !view.is_empty())?;
        treelet.subtries(&view.key(0), depth)
    });
    found.unwrap_or_default()
}

/// The nodes that a child's new page stores, with all buffered changes: from the page's treelet, else from the page
/// where no change is buffered.
pub(super) fn known_nodes(
    state: &RegionState,
    child: usize,
    page: &CachedPage,
    prefix: &Prefix,
    buffered: &[BufferedChange],
) -> KnownNodes {
    let mut nodes = page.treelet(state.version(child), |treelet| {
        treelet.map_or(NO_NODES, |treelet| treelet.nodes_at_level(STORED_LEVELS))
    });
    add_stored_nodes(&mut nodes, page, prefix, buffered);
    nodes
}

/// Adds nodes that the page stores, where no change is buffered and no node is known.
fn add_stored_nodes(
    nodes: &mut KnownNodes,
    page: &CachedPage,
    prefix: &Prefix,
    buffered: &[BufferedChange],
) {
    let view = page.view();
    if view.levels() != STORED_LEVELS {
        return;
    }
    let (nodes, known) = nodes;
    let changed = changed_nodes(prefix, buffered);
    for (index, stored) in view.nodes().iter().enumerate() {
        if (*known | changed) >> index & 1 == 0 {
            nodes[index] = *stored;
            *known |= 1 << index;
        }
    }
}

/// Bit `i` is set when a change is buffered below the `i`th node [`STORED_LEVELS`] below the prefix.
fn changed_nodes(prefix: &Prefix, buffered: &[BufferedChange]) -> u16 {
    buffered.iter().fold(0, |changed, buffered| {
        let index = (0..STORED_LEVELS).fold(0u16, |index, level| {
            let depth = prefix.len() + u16::from(level);
            index << 1 | u16::from(pleach_core::prefix::bit(&buffered.key, depth))
        });
        changed | 1 << index
    })
}
