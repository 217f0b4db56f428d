//! What the nodes of prefixes were before the commits that changed them.
//!
//! A commit says what it replaced for the pages, or regions, of the layout that it was published in.
//! Flushes change layouts, so a prefix may not have been a page's when a commit changed a key below it:
//! then the commit has replaced the node of a finer or a coarser prefix, and that of this one is not
//! known. [`NodeVersions::then`] tells both from a prefix that nothing has changed below.
//!
//! Used by [`super::undo_maps`] alone, with one of these for pages and one for regions.

use std::sync::atomic::{AtomicU64, Ordering};

use pleach_core::{Node, Prefix};

use super::versions::VersionMap;

/// What is known of a prefix's node as of an older commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeThen {
    /// No later commit has changed a key below it.
    Unchanged,
    /// It was this.
    Recorded(Node),
    /// A later commit has changed a key below it, and no page or region had this prefix then.
    Unrecorded,
}

impl NodeThen {
    /// The node, where it was recorded.
    pub(crate) fn recorded(self) -> Option<Node> {
        match self {
            Self::Recorded(node) => Some(node),
            Self::Unchanged | Self::Unrecorded => None,
        }
    }
}

/// A node that a commit replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacedNode {
    pub(super) prefix: Prefix,
    /// The commit.
    pub(super) number: u64,
    pub(super) node: Node,
}

/// Nodes by prefix and commit.
pub(super) struct NodeVersions {
    map: VersionMap<Prefix, Node>,
    /// The newest commit that replaced a node at each depth; 0 for none.
    depths: Box<[AtomicU64]>,
}

impl NodeVersions {
    /// Nodes whose map is cut by the first `bits` bits of their prefixes.
    pub(super) fn new(bits: u32) -> Self {
        let depths = (0..=256).map(|_| AtomicU64::new(0)).collect();
        Self { map: VersionMap::new(bits), depths }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// Puts in what commit `number` has replaced, prefixes in order.
    pub(super) fn insert(&self, number: u64, nodes: &[(Prefix, Node)]) {
        for (prefix, _) in nodes {
            self.depths[usize::from(prefix.len())].fetch_max(number, Ordering::Release);
        }
        self.map.insert(number, nodes.iter().copied());
    }

    /// What commits after `base` have replaced below `prefix` and, above it, for a prefix that contains
    /// it: of each prefix the oldest.
    pub(super) fn below(&self, prefix: &Prefix, base: u64, found: &mut Vec<ReplacedNode>) {
        for depth in 0..prefix.len() {
            if self.depths[usize::from(depth)].load(Ordering::Acquire) > base {
                let above = Prefix::new(prefix.first_key(), depth);
                if let Some((number, node)) = self.map.get(&above, base) {
                    found.push(ReplacedNode { prefix: above, number, node });
                }
            }
        }
        let last = Prefix::new(&prefix.last_key(), 256);
        self.map.range(prefix, &last, base, |prefix, number, node| {
            found.push(ReplacedNode { prefix: *prefix, number, node: *node });
        });
    }

    /// Drops what the commits through `floor` have replaced.
    pub(super) fn drop_through(&self, floor: u64) {
        self.map.drop_through(floor);
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        self.map.clear();
    }
}

/// What the nodes that were replaced in and around it say of one prefix.
pub(super) fn then(prefix: &Prefix, around: &[ReplacedNode]) -> NodeThen {
    let own = around.iter().filter(|one| one.prefix == *prefix).min_by_key(|one| one.number);
    let others = around.iter().filter(|one| {
        one.prefix != *prefix && (one.prefix.contains(prefix) || prefix.contains(&one.prefix))
    });
    let other = others.map(|one| one.number).min();
    match (own, other) {
        (None, None) => NodeThen::Unchanged,
        (Some(own), None) => NodeThen::Recorded(own.node),
        // The prefix was a page's when the oldest of them came.
        (Some(own), Some(other)) if own.number < other => NodeThen::Recorded(own.node),
        _ => NodeThen::Unrecorded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> Node {
        Node::new([number; 32])
    }

    fn asked(versions: &NodeVersions, prefix: Prefix, base: u64) -> NodeThen {
        let mut around = Vec::new();
        versions.below(&prefix, base, &mut around);
        then(&prefix, &around)
    }

    #[test]
    fn a_node_is_known_only_while_its_prefix_was_a_pages() {
        use NodeThen::{Recorded, Unchanged, Unrecorded};
        let root = Prefix::ROOT;
        let (left, right) = (root.child(false), root.child(true));
        let versions = NodeVersions::new(12);
        // Commits 1 and 2 find one page, 3 and 4 two, 5 one again.
        versions.insert(1, &[(root, node(0))]);
        versions.insert(2, &[(root, node(1))]);
        versions.insert(3, &[(left, node(2))]);
        versions.insert(4, &[(left, node(3)), (right, node(3))]);
        versions.insert(5, &[(root, node(4))]);
        let as_of = |prefix| (0..=5).map(|base| asked(&versions, prefix, base)).collect::<Vec<_>>();
        let known = |number| Recorded(node(number));
        assert_eq!(as_of(root), [known(0), known(1), Unrecorded, Unrecorded, known(4), Unchanged]);
        assert_eq!(
            as_of(left),
            [Unrecorded, Unrecorded, known(2), known(3), Unrecorded, Unchanged]
        );
        assert_eq!(
            as_of(right),
            [Unrecorded, Unrecorded, known(3), known(3), Unrecorded, Unchanged]
        );
        versions.drop_through(4);
        assert_eq!((asked(&versions, root, 4), asked(&versions, root, 5)), (known(4), Unchanged));
    }
}
