//! An index over finished pages: regions under the shallowest prefixes that a branch page serves.

use std::sync::Arc;

use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::prefix::{Prefix, bit};
use pleach_core::tree::Tiling;
use pleach_core::{Hasher, Node};

use crate::children::{ChildRef, ChildTable};
use crate::page_plan::{PagePlan, divide};
use crate::region::{Region, own_node};

/// A finished leaf page, or an empty prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltLeaf {
    /// Prefix, page number and tag.
    pub child: ChildRef,
    /// The node at the prefix.
    pub node: Node,
}

/// The regions of a namespace over pages that tile the key space in order, and the root of all pairs. Commit `changed`
/// made the pages. Regions of a plain trie keep no nodes.
///
/// # Panics
/// When the pages do not tile the key space.
pub fn regions(
    hasher: Hasher,
    namespace: u8,
    is_plain: bool,
    pages: &[BuiltLeaf],
    changed: u64,
) -> (Vec<Arc<Region>>, Node) {
    // The shallowest prefixes with at most `MAX_ENTRIES` of the pages each, which are planned as leaf pages are.
    let is_left = |page: usize, depth| !bit(pages[page].child.prefix.first_key(), depth);
    let fits = |branch: &PagePlan| branch.cells.len() <= MAX_ENTRIES;
    let branches = divide(&Prefix::ROOT, pages.len(), fits, is_left);
    let (mut regions, mut nodes) = (Vec::new(), Vec::new());
    for PagePlan { prefix, cells } in &branches {
        let pages = &pages[cells.clone()];
        let children: Vec<ChildRef> = pages.iter().map(|page| page.child).collect();
        let children = ChildTable::new(*prefix, &children);
        let own: Vec<Node> = pages.iter().map(|page| page.node).collect();
        nodes.push(own_node(hasher, &children, &own));
        let own = if is_plain { Vec::new() } else { own };
        regions.push(Arc::new(Region::new(hasher, namespace, children, own, changed)));
    }
    let root = Tiling::new(hasher, branches.iter().map(|branch| branch.prefix), &nodes);
    (regions, *root.own_node())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::RegionIndex;
    use pleach_core::{Hasher, TERMINATOR};

    #[test]
    fn regions_tile_the_key_space_and_none_is_too_large() {
        for (depth, lopsided) in [(0, false), (3, false), (7, false), (10, false), (0, true)] {
            let mut prefixes = vec![Prefix::ROOT];
            for _ in 0..depth {
                prefixes =
                    prefixes.iter().flat_map(|at| [at.child(false), at.child(true)]).collect();
            }
            while lopsided && prefixes.len() < 200 {
                let last = prefixes.pop().expect("never empty");
                prefixes.extend([last.child(false), last.child(true)]);
            }
            let pages: Vec<BuiltLeaf> = prefixes
                .iter()
                .map(|prefix| BuiltLeaf {
                    child: ChildRef { prefix: *prefix, page: None, tag: 0 },
                    node: TERMINATOR,
                })
                .collect();
            let (regions, root) = regions(Hasher::BLAKE3, 0, false, &pages, 1);
            assert_eq!(root, TERMINATOR);
            assert!(regions.iter().all(|region| region.read().children().len() <= MAX_ENTRIES));
            let children: usize = regions.iter().map(|region| region.read().children().len()).sum();
            assert_eq!(children, pages.len());
            // The constructor checks the tiling.
            drop(RegionIndex::new(regions));
        }
    }
}
