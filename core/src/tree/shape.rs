//! What going up needs to know of a page, a region's children or the regions.

use core::ops::Range;

use super::line_tree::LineTree;
use super::numbers::index32;
use super::stages::Home;
use super::tiling::Tiling;
use super::union::{NONE, Union};
use crate::fold::FoldValue;
use crate::node::{Key, Node};

/// Entries in order with a boundary between any two neighbours: boundary `b` lies between entries `b` and `b + 1`.
pub(super) trait Shape {
    /// Do the entries tile a prefix? Then each half lies one level below its boundary and may be a terminator, and lines are
    /// stored whatever their halves are.
    const TILES: bool;

    /// Number of entries.
    fn len(&self) -> usize;
    /// Bits that entries `boundary` and `boundary + 1` share.
    fn shared(&self, boundary: usize) -> u16;
    /// The boundary above a boundary.
    fn parent(&self, boundary: usize) -> Option<usize>;
    /// The boundary above an entry.
    fn above(&self, entry: usize) -> Option<usize>;
    /// The nodes of a boundary's children, where they are known.
    fn line(&self, boundary: usize) -> Option<&[Node; 2]>;
    /// Is it none of the page as it is?
    fn is_new(&self, boundary: usize) -> bool;
    /// Where a new line of this boundary goes.
    fn home(&self, boundary: usize) -> Home;
    /// The key of an entry. A tiling has none.
    fn key(&self, entry: usize) -> Option<&Key>;
    /// The value of an entry that is not accessed. A tiling has none.
    fn value(&self, entry: usize) -> Option<FoldValue<'_>>;
    /// The node of an entry that is not accessed, where it is known.
    fn node(&self, entry: usize) -> Option<&Node>;

    /// The entries below the half of a boundary.
    fn below(&self, boundary: usize, right: bool) -> Range<usize> {
        let shared = self.shared(boundary);
        if right {
            let end = (boundary + 1..self.len() - 1).find(|at| self.shared(*at) < shared);
            boundary + 1..end.map_or(self.len(), |at| at + 1)
        } else {
            let start = (0..boundary).rev().find(|at| self.shared(*at) < shared);
            start.map_or(0, |at| at + 1)..boundary + 1
        }
    }

    /// The highest boundary between these entries, or the only entry.
    fn top_of(&self, entries: &Range<usize>) -> Top {
        let boundaries = entries.start..entries.end - 1;
        match boundaries.min_by_key(|at| self.shared(*at)) {
            Some(boundary) => Top::Boundary(index32(boundary)),
            None => Top::Entry(index32(entries.start)),
        }
    }
}

/// The highest boundary of a subtrie, or its only entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Top {
    Entry(u32),
    Boundary(u32),
}

impl Top {
    /// An entry of the subtrie.
    pub(super) fn entry(self) -> u32 {
        match self {
            Self::Entry(entry) => entry,
            // The one on its left.
            Self::Boundary(boundary) => boundary,
        }
    }
}

/// A page with its values.
#[derive(Clone, Copy)]
pub struct PageView<'a> {
    /// Its keys and lines.
    pub tree: &'a LineTree,
    /// The value in a slot.
    pub value: &'a dyn Fn(usize) -> FoldValue<'a>,
}

impl core::fmt::Debug for PageView<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PageView").field("tree", self.tree).finish_non_exhaustive()
    }
}

/// A page whose keys stay.
pub(super) struct Plain<'a> {
    pub(super) page: PageView<'a>,
    pub(super) number: u32,
}

impl Shape for Plain<'_> {
    const TILES: bool = false;

    fn len(&self) -> usize {
        self.page.tree.len()
    }

    #[inline]
    fn shared(&self, boundary: usize) -> u16 {
        self.page.tree.shared(boundary)
    }

    #[inline]
    fn parent(&self, boundary: usize) -> Option<usize> {
        self.page.tree.parent(boundary)
    }

    #[inline]
    fn above(&self, entry: usize) -> Option<usize> {
        self.page.tree.above(entry)
    }

    #[inline]
    fn line(&self, boundary: usize) -> Option<&[Node; 2]> {
        self.page.tree.line(boundary)
    }

    fn is_new(&self, _: usize) -> bool {
        false
    }

    #[inline]
    fn home(&self, boundary: usize) -> Home {
        Home { tree: self.number, line: index32(boundary) }
    }

    fn key(&self, entry: usize) -> Option<&Key> {
        Some(self.page.tree.key(entry))
    }

    fn value(&self, entry: usize) -> Option<FoldValue<'_>> {
        Some((self.page.value)(self.page.tree.slot(entry)))
    }

    fn node(&self, entry: usize) -> Option<&Node> {
        self.page.tree.leaf_node(entry)
    }
}

/// A page whose keys come or go.
pub(super) struct Joined<'a, 'b> {
    pub(super) page: PageView<'a>,
    pub(super) union: &'b Union,
    pub(super) number: u32,
}

impl Joined<'_, '_> {
    fn base(&self, entry: usize) -> Option<usize> {
        let base = self.union.entries[entry].base;
        (base != NONE).then_some(base as usize)
    }
}

impl Shape for Joined<'_, '_> {
    const TILES: bool = false;

    fn len(&self) -> usize {
        self.union.entries.len()
    }

    #[inline]
    fn shared(&self, boundary: usize) -> u16 {
        self.union.shared(boundary)
    }

    #[inline]
    fn parent(&self, boundary: usize) -> Option<usize> {
        self.union.parent(boundary)
    }

    #[inline]
    fn above(&self, entry: usize) -> Option<usize> {
        self.union.above(entry)
    }

    #[inline]
    fn line(&self, boundary: usize) -> Option<&[Node; 2]> {
        match self.union.boundaries[boundary].base {
            NONE => None,
            base => self.page.tree.line(base as usize),
        }
    }

    fn is_new(&self, boundary: usize) -> bool {
        self.union.boundaries[boundary].base == NONE
    }

    fn home(&self, boundary: usize) -> Home {
        Home { tree: self.number, line: index32(boundary) }
    }

    fn key(&self, entry: usize) -> Option<&Key> {
        Some(self.union.key(self.page.tree, entry))
    }

    fn value(&self, entry: usize) -> Option<FoldValue<'_>> {
        Some((self.page.value)(self.page.tree.slot(self.base(entry)?)))
    }

    fn node(&self, entry: usize) -> Option<&Node> {
        self.page.tree.leaf_node(self.base(entry)?)
    }
}

/// Children of a region, or regions.
pub(super) struct Tiled<'a> {
    pub(super) tiling: &'a Tiling,
    pub(super) number: u32,
}

impl Shape for Tiled<'_> {
    const TILES: bool = true;

    fn len(&self) -> usize {
        self.tiling.len()
    }

    #[inline]
    fn shared(&self, boundary: usize) -> u16 {
        self.tiling.shared(boundary)
    }

    #[inline]
    fn parent(&self, boundary: usize) -> Option<usize> {
        self.tiling.parent(boundary)
    }

    #[inline]
    fn above(&self, entry: usize) -> Option<usize> {
        self.tiling.above(entry)
    }

    #[inline]
    fn line(&self, boundary: usize) -> Option<&[Node; 2]> {
        Some(self.tiling.line(boundary))
    }

    fn is_new(&self, _: usize) -> bool {
        false
    }

    #[inline]
    fn home(&self, boundary: usize) -> Home {
        Home { tree: self.number, line: index32(boundary) }
    }

    fn key(&self, _: usize) -> Option<&Key> {
        None
    }

    fn value(&self, _: usize) -> Option<FoldValue<'_>> {
        None
    }

    fn node(&self, entry: usize) -> Option<&Node> {
        Some(self.tiling.node(entry))
    }
}
