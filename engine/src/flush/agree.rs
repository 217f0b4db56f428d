//! Flush `agree`: the nodes that a flush writes must fold to those of the index.
//!
//! The index's node of a page comes from the commits; the nodes in a new page come from a treelet in
//! memory, from the old page, or from hashing the cells. Before anything is written each page's nodes are
//! folded to one, which must be the index's: fifteen hashes a page, in one batch for all pages of the round.

use pleach_core::fold::{Folder, combine_chunks};
use pleach_core::{Hasher, Node};

use super::build::FoldedPages;
use super::cells::{OldPage, STORED_NODES};
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
        let wrong = folded.filter(|(index, node)| !is_index_node(&rewrites[**index].old[0], node));
        bad.extend(wrong.map(|(index, _)| *index));
        // Few rewrites, mostly of one page each.
        let mut folder = Folder::new(hasher);
        for (index, own) in planned {
            let rewrite = &rewrites[*index];
            let agrees = match (&rewrite.old[..], &pages[own.clone()]) {
                ([old], [(page, nodes)]) if page.prefix == old.prefix => {
                    is_index_node(old, &nodes.own)
                }
                (old, pages) => {
                    let depth = rewrite.range.len();
                    folder.clear();
                    let known = old.iter().all(|page| page.own.is_some());
                    let mut span = folder.span(depth);
                    for page in old {
                        span.push_known(&page.prefix, &page.own.unwrap_or_default());
                    }
                    let before = span.end_fold();
                    let mut span = folder.span(depth);
                    for (page, nodes) in pages {
                        span.push_known(&page.prefix, &nodes.own);
                    }
                    let after = span.end_fold();
                    folder.run();
                    !known || folder.node(before) == folder.node(after)
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

/// True when this is the page's node in the index, or that node is not known.
fn is_index_node(old: &OldPage, node: &Node) -> bool {
    old.own.is_none_or(|own| own == *node)
}
