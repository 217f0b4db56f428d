//! Flush `agree`: the nodes that a flush writes must fold to those of the index.
//!
//! The index's node of a page comes from the commits; the nodes in a new page come from a treelet in
//! memory, from the old page, or from hashing the cells. Before anything is written each page's nodes are
//! folded to one, which must be the index's: fifteen hashes a page, in one batch for all pages of the round.

use pleach_core::fold::{Folder, combine_chunks};
use pleach_core::{Hasher, Node};

use super::build::FoldedPages;
use super::cells::STORED_NODES;
use super::rewrite::Rewrite;

impl FoldedPages<'_> {
    /// Indexes of the rewrites whose nodes contradict the index, in ascending order.
    pub(super) fn contradicting(&self, hasher: Hasher, rewrites: &[Rewrite]) -> Vec<usize> {
        let Self { pages, edited, planned } = self;
        let mut bad = Vec::new();
        let mut nodes: Vec<Node> = Vec::with_capacity(edited.len() * STORED_NODES);
        nodes.extend(edited.iter().flat_map(|index| rewrites[*index].old[0].nodes.0));
        combine_chunks(hasher, &mut nodes, STORED_NODES);
        let folded = edited.iter().zip(&nodes);
        let wrong = folded.filter(|(index, node)| rewrites[**index].old[0].own != **node);
        bad.extend(wrong.map(|(index, _)| *index));
        // Few rewrites, mostly of one page each.
        let mut folder = Folder::new(hasher);
        for (index, own) in planned {
            let rewrite = &rewrites[*index];
            let agrees = match (&rewrite.old[..], &pages[own.clone()]) {
                ([old], [(page, nodes)]) if page.prefix == old.prefix => old.own == nodes.own,
                (old, pages) => {
                    let depth = rewrite.range.len();
                    folder.clear();
                    let mut span = folder.span(depth);
                    for page in old {
                        span.push_known(&page.prefix, &page.own);
                    }
                    let before = span.end_fold();
                    let mut span = folder.span(depth);
                    for (page, nodes) in pages {
                        span.push_known(&page.prefix, &nodes.own);
                    }
                    let after = span.end_fold();
                    folder.run();
                    folder.node(before) == folder.node(after)
                }
            };
            if !agrees {
                bad.push(*index);
            }
        }
        bad.sort_unstable();
        bad
    }
}
