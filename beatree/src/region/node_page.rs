//! Where the nodes of a region's children are.

use pleach_core::tree::Tiling;
use pleach_core::{Hasher, Node, TERMINATOR};

use crate::children::ChildTable;
use crate::page_no::page_offset;

/// Where the nodes of a region's children are.
#[derive(Debug)]
pub enum Nodes {
    /// In memory, with those between the region and its children.
    Resident(Tiling),
    /// In a branch page on the device.
    Paged(NodePage),
    /// A plain trie's region has none: each of its nodes, and its own, counts as a terminator.
    Plain,
}

impl Nodes {
    /// The node of the whole region, of nodes in memory; a terminator of a plain trie.
    pub(super) fn own_node(&self) -> Node {
        match self {
            Self::Resident(nodes) => *nodes.own_node(),
            Self::Paged(_) => panic!("a changed region's nodes are in memory"),
            Self::Plain => TERMINATOR,
        }
    }
}

/// A branch page that holds a region's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodePage {
    /// The file.
    pub file: NodeFile,
    /// Page number in it.
    pub page: u64,
    /// Tag of the page.
    pub tag: u32,
}

impl NodePage {
    /// Where the page begins, in bytes from the start of its file.
    #[inline]
    pub const fn offset(&self) -> u64 {
        page_offset(self.page)
    }
}

/// Files that hold branch pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeFile {
    /// Checkpoint image A.
    ImageA,
    /// Checkpoint image B.
    ImageB,
    /// The spill file, for branch pages that changed since the last image and were evicted.
    Spill,
}

/// The nodes of a region from those of its children.
///
/// # Panics
/// When there is not one node a child.
pub fn tiling(hasher: Hasher, children: &ChildTable, nodes: &[Node]) -> Tiling {
    Tiling::new(hasher, children.iter().map(|child| child.prefix), nodes)
}
