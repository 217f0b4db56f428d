//! The node of a prefix as of an older commit, as far as it is known.
//!
//! A commit records replaced nodes for the pages, or regions, of the layout in which it was published. Flushes change
//! layouts, so a prefix may have been no page's when a commit changed a key below it: then that commit recorded the
//! node of a shorter or a longer prefix, and the node of this one is not known. [`past_node`] tells both cases from a
//! prefix that nothing has changed below.

use pleach_core::{Node, Prefix};

use pleach_history::NodesAround;

/// The node of a prefix as of an older commit; or in a chain of overlays, as far as they have changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PastNode {
    /// No later commit, and no overlay, has changed a key below the prefix.
    Unchanged,
    /// The prefix's node in that commit, or after the newest overlay that changed it.
    Recorded(Node),
    /// A later commit or an overlay has changed a key below the prefix, which was no page's and no region's then.
    Unrecorded,
}

impl PastNode {
    /// The overlays' node, or else that of the commit below them: a node in an overlay does not depend on later
    /// commits.
    pub(crate) fn or_else(self, then: impl FnOnce() -> Self) -> Self {
        if self == Self::Unchanged { then() } else { self }
    }
}

/// The past node of `prefix` by the nodes that were replaced in and around it, in the oldest run or commit that has
/// any: only the oldest shows whether the prefix was a page's then.
pub(in crate::state) fn past_node(prefix: &Prefix, around: Option<&NodesAround>) -> PastNode {
    let around = around.map_or(&[][..], |around| &around.nodes);
    let own = around.iter().filter(|one| one.prefix == *prefix).min_by_key(|one| one.number);
    let others = around.iter().filter(|one| {
        one.prefix != *prefix && (one.prefix.contains(prefix) || prefix.contains(&one.prefix))
    });
    let other = others.map(|one| one.number).min();
    match (own, other) {
        (None, None) => PastNode::Unchanged,
        (Some(own), None) => PastNode::Recorded(own.node),
        // The prefix was a page's when the oldest of them was replaced.
        (Some(own), Some(other)) if own.number < other => PastNode::Recorded(own.node),
        _ => PastNode::Unrecorded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_history::{AsOf, Merges, NodeScope, Runs, Tier};

    #[test]
    fn a_node_is_known_only_while_its_prefix_was_a_pages() {
        use PastNode::{Recorded, Unchanged, Unrecorded};
        let node = |number: u8| Node::new([number; 32]);
        let root = Prefix::ROOT;
        let (left, right) = (root.child(false), root.child(true));
        let (mut runs, mut merges) = (Runs::default(), Merges::default());
        // Commits 1 and 2 find one page, 3 and 4 two, 5 one again.
        let commits: [&[(Prefix, Node)]; 5] = [
            &[(root, node(0))],
            &[(root, node(1))],
            &[(left, node(2))],
            &[(left, node(3)), (right, node(3))],
            &[(root, node(4))],
        ];
        for (number, pages) in (1..).zip(commits) {
            let mut run = runs.commit_run(number, 0);
            run.begin(0, pages, &[]);
            merges.push(&mut runs, run);
        }
        let asked = |runs: &Runs, prefix: Prefix, base: u64| {
            let at = AsOf { namespace: 0, base };
            let around = runs.nodes(at, NodeScope::Pages, &prefix).expect("in memory");
            past_node(&prefix, around.as_ref())
        };
        let as_of = |prefix| (0..=5).map(|base| asked(&runs, prefix, base)).collect::<Vec<_>>();
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
    }
}
