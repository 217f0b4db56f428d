//! Where the nodes of a region's children are, and what they fold to.

use pleach_core::fold::BatchFolder;
use pleach_core::{Hasher, Node, TERMINATOR};

use crate::children::ChildTable;
use crate::page_no::page_offset;

/// Where the nodes of a region's children are.
#[derive(Debug, PartialEq, Eq)]
pub enum Nodes {
    /// In memory, one a child.
    Resident(Vec<Node>),
    /// In a branch page on the device.
    Paged(NodePage),
    /// A plain trie's region has none: each of its nodes, and its own, counts as a terminator, which takes no
    /// memory and folds to itself.
    Plain,
}

impl Nodes {
    /// What nodes in memory fold to.
    pub(super) fn fold<H: Hasher>(&self, children: &ChildTable) -> Node {
        match self {
            Self::Resident(nodes) => region_node::<H>(children, nodes),
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
    /// Branch pages that changed since the last image and had to leave memory.
    Spill,
}

/// The node of a region from those of its children.
///
/// # Panics
/// Never for one node a child.
pub fn region_node<H: Hasher>(children: &ChildTable, nodes: &[Node]) -> Node {
    let mut folder = BatchFolder::<H>::new();
    folder.begin(children.region().len());
    for (child, node) in children.iter().zip(nodes) {
        folder.subtrie(&child.prefix, node);
    }
    let fold = folder.end().expect("no terminal is placed here");
    folder.run();
    folder.node(fold)
}
