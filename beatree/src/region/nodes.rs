//! The nodes of a region's children: in memory, or in a branch page on the device.
//!
//! Nodes are evicted only to a page that holds exactly them ([`RegionState::evict_nodes`]), and are installed again
//! from that page ([`RegionState::install_nodes`]) or, where the page cannot be used, from the leaf pages
//! ([`RegionState::install_folded_nodes`]).

use pleach_core::tree::Tiling;
use pleach_core::{Hasher, Node, TERMINATOR};

use super::RegionState;
use super::node_page::{NodePage, Nodes};

impl RegionState {
    /// Where the nodes are.
    #[inline]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The nodes of the children and above them, when they are in memory.
    #[inline]
    pub fn resident_nodes(&self) -> Option<&Tiling> {
        match &self.nodes {
            Nodes::Resident(nodes) => Some(nodes),
            Nodes::Paged(_) | Nodes::Plain => None,
        }
    }

    /// True for a plain trie's region, which has no nodes.
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self.nodes, Nodes::Plain)
    }

    /// True when the region can be changed: its nodes are in memory, or it is a plain trie's.
    #[inline]
    pub fn has_nodes(&self) -> bool {
        self.paged_nodes().is_none()
    }

    /// The branch page with the nodes when they are not in memory.
    #[inline]
    pub fn paged_nodes(&self) -> Option<NodePage> {
        match &self.nodes {
            Nodes::Resident(_) | Nodes::Plain => None,
            Nodes::Paged(page) => Some(*page),
        }
    }

    /// The node of a child, when nodes are in memory; a terminator in a plain trie.
    #[inline]
    pub fn node(&self, child: usize) -> Option<&Node> {
        match &self.nodes {
            Nodes::Resident(nodes) => Some(nodes.node(child)),
            Nodes::Paged(_) => None,
            Nodes::Plain => Some(&TERMINATOR),
        }
    }

    /// A page on the device that holds exactly the present nodes, whether they are in memory or not.
    #[inline]
    pub fn saved_page(&self) -> Option<NodePage> {
        self.saved_page
    }

    /// The page of the spill file for this region, once its nodes were spilled.
    #[inline]
    pub fn spill_page(&self) -> Option<u64> {
        self.spill_page
    }

    /// Computes the nodes above the children, up to the region's own, if those of the children are in memory.
    pub fn recompute_own_node(&mut self, hasher: Hasher) {
        if let Nodes::Resident(nodes) = &mut self.nodes {
            nodes.recompute(hasher);
            self.own_node = *nodes.own_node();
        }
    }

    /// Sets the page of the spill file for this region, whether its nodes are evicted to it or not.
    pub fn set_spill_page(&mut self, page: u64) {
        self.spill_page = Some(page);
    }

    /// Evicts the nodes: `page` holds exactly those of the children.
    ///
    /// # Panics
    /// When it is a plain trie's.
    pub fn evict_nodes(&mut self, page: NodePage) {
        assert!(!self.is_plain(), "there are nodes that leave");
        self.saved_page = Some(page);
        self.nodes = Nodes::Paged(page);
    }

    /// Puts the nodes into memory again, read from their page.
    ///
    /// # Panics
    /// When they were in memory already, or there is not one node a child.
    pub fn install_nodes(&mut self, nodes: Tiling) {
        let page = self.paged_nodes().expect("nodes that are away come back");
        self.replace_nodes(nodes);
        self.saved_page = Some(page);
    }

    /// The same for nodes that were folded from the leaf pages, because their own page cannot be used: no page has
    /// them.
    ///
    /// # Panics
    /// As [`RegionState::install_nodes`].
    pub fn install_folded_nodes(&mut self, nodes: Tiling) {
        assert!(self.paged_nodes().is_some(), "nodes that are away come back");
        self.replace_nodes(nodes);
    }

    /// Replaces the nodes in memory, which were wrong: no page has the new ones.
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn replace_nodes(&mut self, nodes: Tiling) {
        assert_eq!(self.children.len(), nodes.len(), "one node a child");
        self.nodes = Nodes::Resident(nodes);
        self.saved_page = None;
    }

    /// A checkpoint has written the present nodes to `page` of its image: they are evicted to it from now on, or are in
    /// it if they are evicted. Returns the page of the spill file that is free now.
    #[must_use = "a page of the spill file is free"]
    pub fn note_checkpoint(&mut self, page: NodePage) -> Option<u64> {
        self.saved_page = Some(page);
        if let Nodes::Paged(at) = &mut self.nodes {
            *at = page;
        }
        self.spill_page.take()
    }
}
