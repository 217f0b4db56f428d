//! Building leaf pages: dividing sorted cells among pages, folding them, writing the bytes.
//!
//! The cells below a prefix become one page when they fit, else they are divided at the next bit, and so on. This ends:
//! three cells of the largest inline size fit in a page, whatever bits their keys share.
//!
//! ```
//! use pleach_beatree::page_plan::{CellRef, PageStamp, PageCells, fold_pages, plan_pages, write_page};
//! use pleach_core::Hasher;
//! use pleach_core::fold::Folder;
//! use pleach_core::page::leaf::LeafView;
//! use pleach_core::page::{FileKind, Identity, PAGE_SIZE};
//! use pleach_core::prefix::Prefix;
//!
//! let keys: Vec<[u8; 32]> = (0..=255).map(|byte| [byte; 32]).collect();
//! let cells: Vec<CellRef<'_>> =
//!     keys.iter().map(|key| CellRef { key: *key, bytes: &key[..8], overflow: false }).collect();
//! let planned = plan_pages(&Prefix::ROOT, &cells);
//! assert!(planned.len() > 1, "256 cells do not fit in one page");
//!
//! // All pages are hashed at once, then written one by one.
//! let unfolded: Vec<PageCells<'_>> = planned
//!     .iter()
//!     .map(|page| PageCells {
//!         prefix: page.prefix,
//!         cells: &cells[page.cells.clone()],
//!         known: None,
//!     })
//!     .collect();
//! let nodes = fold_pages(&mut Folder::new(Hasher::BLAKE3), &unfolded);
//! let (first, mut page) = (&unfolded[0], [0; PAGE_SIZE]);
//! let identity = Identity { kind: FileKind::Leaf, page_no: 0, db_id: 1 };
//! let stamp = PageStamp { identity, flush: 1, namespace: 0, last_commit: 1 };
//! write_page(&mut page, &stamp, &first.prefix, first.cells, &nodes[0].stored);
//! assert_eq!(LeafView::parse(&page, &identity).expect("whole").len(), first.cells.len());
//! ```

use std::ops::Range;

use pleach_core::fold::{Folder, combine_chunks};
use pleach_core::page::Identity;
use pleach_core::page::leaf::{self, LeafBuilder, LeafHeader, RawCell};
use pleach_core::prefix::{Prefix, bit};
use pleach_core::search::partition;
use pleach_core::{Key, Node, TERMINATOR};

use crate::leaf_fold::below;
use crate::stored::overflow_cell;

/// Levels of nodes that a written page stores, unless its prefix is too long for them.
pub const STORED_LEVELS: u8 = 4;
/// Nodes that a page stores.
const STORED: usize = 1 << STORED_LEVELS;

/// A cell on its way into a page.
#[derive(Clone, Copy, Debug)]
pub struct CellRef<'a> {
    /// The key.
    pub key: Key,
    /// Value bytes, or the raw overflow cell.
    pub bytes: &'a [u8],
    /// True when `bytes` is an overflow cell.
    pub overflow: bool,
}

/// A page to be written, or an empty prefix when it has no cells.
#[derive(Clone, Debug)]
pub struct PagePlan {
    /// The page's prefix.
    pub prefix: Prefix,
    /// The page's cells, as a range of the planned cells.
    pub cells: Range<usize>,
}

/// Bytes that cells take in a page with this prefix.
pub fn filled(prefix: &Prefix, cells: &[CellRef<'_>]) -> usize {
    cells.iter().map(|cell| leaf::cell_size(prefix.len(), cell.bytes.len())).sum()
}

/// Levels of nodes that a page with this prefix stores.
pub fn levels(prefix: &Prefix) -> u8 {
    if leaf::levels_fit(STORED_LEVELS, prefix.len()) { STORED_LEVELS } else { 0 }
}

/// Divides sorted cells below `at` among pages, whose prefixes tile `at`.
pub fn plan_pages(at: &Prefix, cells: &[CellRef<'_>]) -> Vec<PagePlan> {
    let fits = |page: &PagePlan| {
        filled(&page.prefix, &cells[page.cells.clone()]) <= leaf::capacity(levels(&page.prefix))
    };
    divide(at, cells.len(), fits, |cell, depth| !bit(&cells[cell].key, depth))
}

/// Divides the first `count` items of a sorted list, all below `at`, at the next bit, as often as it takes for each
/// part to fit. `is_left` is true when an item has a zero at a depth.
pub(crate) fn divide(
    at: &Prefix,
    count: usize,
    fits: impl Fn(&PagePlan) -> bool,
    is_left: impl Fn(usize, u16) -> bool,
) -> Vec<PagePlan> {
    let mut done = Vec::new();
    let mut todo = vec![PagePlan { prefix: *at, cells: 0..count }];
    while let Some(next) = todo.pop() {
        if fits(&next) {
            done.push(next);
            continue;
        }
        let PagePlan { prefix, cells: Range { start, end } } = next;
        let middle = partition(start, end, |thing| is_left(thing, prefix.len()));
        todo.push(PagePlan { prefix: prefix.child(true), cells: middle..end });
        todo.push(PagePlan { prefix: prefix.child(false), cells: start..middle });
    }
    done
}

/// The nodes of one planned page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageNodes {
    /// The nodes [`STORED_LEVELS`] below the prefix.
    pub stored: [Node; STORED],
    /// The node at the prefix.
    pub own: Node,
}

impl PageNodes {
    /// The nodes of a plain trie's page.
    pub const PLAIN: Self = Self { stored: [TERMINATOR; STORED], own: TERMINATOR };
}

/// A planned page with its cells, for folding.
#[derive(Clone, Debug)]
pub struct PageCells<'a> {
    /// The page's prefix.
    pub prefix: Prefix,
    /// The page's cells.
    pub cells: &'a [CellRef<'a>],
    /// Nodes [`STORED_LEVELS`] below the prefix that are known already, and a mask of the known ones.
    pub known: Option<&'a ([Node; STORED], u16)>,
}

/// Folds many pages at once.
pub fn fold_pages(folder: &mut Folder, pages: &[PageCells<'_>]) -> Vec<PageNodes> {
    folder.clear();
    let mut stored = Vec::with_capacity(pages.len() * STORED);
    for page in pages {
        push_stored(folder, page, &mut stored);
    }
    folder.run();
    let stored: Vec<Node> = stored
        .iter()
        .map(|node| match node {
            StoredNode::Known(node) => *node,
            StoredNode::Folded(fold) => *folder.node(*fold),
        })
        .collect();
    let mut own = stored.clone();
    combine_chunks(folder.hasher(), &mut own, STORED);
    let (stored, _) = stored.as_chunks::<STORED>();
    let nodes = stored.iter().zip(own).zip(pages).map(|((stored, own), page)| {
        // A page whose prefix is too long for stored nodes has its own node in the first slot.
        let own = if levels(&page.prefix) == 0 { stored[0] } else { own };
        PageNodes { stored: *stored, own }
    });
    nodes.collect()
}

fn push_stored(folder: &mut Folder, page: &PageCells<'_>, stored: &mut Vec<StoredNode>) {
    let levels = levels(&page.prefix);
    let mut from = 0;
    for bucket in 0..1u16 << levels {
        let at = below(&page.prefix, levels, bucket);
        let count = page.cells[from..].partition_point(|cell| at.covers(&cell.key));
        let cells = &page.cells[from..from + count];
        from += count;
        let known = page.known.filter(|(_, known)| levels > 0 && known >> bucket & 1 == 1);
        if let Some((nodes, _)) = known {
            stored.push(StoredNode::Known(nodes[usize::from(bucket)]));
            continue;
        }
        let mut span = folder.span(at.len());
        for cell in cells {
            span.push_unaccessed(&cell.key, cell_fold_value(cell));
        }
        stored.push(StoredNode::Folded(span.end_fold()));
    }
    stored.resize_with(stored.len().next_multiple_of(STORED), || StoredNode::Known(TERMINATOR));
}

enum StoredNode {
    Known(Node),
    Folded(usize),
}

fn cell_fold_value<'a>(cell: &CellRef<'a>) -> pleach_core::fold::FoldValue<'a> {
    if cell.overflow {
        pleach_core::fold::FoldValue::Hash(overflow_cell(cell.bytes).value_hash())
    } else {
        pleach_core::fold::FoldValue::Bytes(cell.bytes)
    }
}

/// What a page's header has beside prefix and cells.
#[derive(Clone, Copy, Debug)]
pub struct PageStamp {
    /// File, page number and database.
    pub identity: Identity,
    /// Number of the flush that writes it.
    pub flush: u64,
    /// Namespace.
    pub namespace: u8,
    /// The last commit whose changes it contains.
    pub last_commit: u64,
}

impl PageStamp {
    /// The header of a page with this prefix. The count is filled in later.
    pub fn header(&self, prefix: &Prefix) -> LeafHeader {
        LeafHeader {
            identity: self.identity,
            flush: self.flush,
            namespace: self.namespace,
            prefix: *prefix,
            applied_through: self.last_commit,
            levels: levels(prefix),
            count: 0,
        }
    }
}

/// Writes a leaf page and returns its tag.
///
/// # Panics
/// When the cells were not planned for this prefix.
pub fn write_page(
    page: &mut [u8; 4096],
    stamp: &PageStamp,
    prefix: &Prefix,
    cells: &[CellRef<'_>],
    nodes: &[Node; STORED],
) -> u32 {
    let count = u16::try_from(cells.len()).expect("a page's cells were planned to fit");
    let header = LeafHeader { count, ..stamp.header(prefix) };
    let mut builder = LeafBuilder::new(page, &header);
    for cell in cells {
        builder.push(&cell.key, RawCell { bytes: cell.bytes, overflow: cell.overflow });
    }
    if header.levels > 0 {
        builder.set_nodes(nodes);
    }
    builder.seal()
}
