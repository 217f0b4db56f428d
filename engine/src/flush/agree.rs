//! Do the nodes that a flush writes fold to those of the index?
//!
//! The index's node of a page comes from the commits; the nodes in a new page come from a treelet in
//! memory, from the old page, or from hashing the cells. Before anything is written each page's nodes are
//! folded to one, which must be the index's: seven hashes a page, in one batch for all pages of the round.

use pleach_beatree::build::{LEVELS, PageNodes, Unfolded};
use pleach_core::fold::{BatchFolder, combine_chunks};
use pleach_core::{Hasher, Node};

use super::cells::{Source, TILES};
use super::piece::Piece;

/// Indexes of the pieces whose nodes contradict the index. `edited` are those that keep their nodes,
/// `planned` those that were folded, with their pages.
pub(super) fn contradicting<H: Hasher>(
    pieces: &[Piece],
    edited: &[usize],
    planned: &[(usize, &[(Unfolded<'_>, PageNodes)])],
) -> Vec<usize> {
    let mut bad = Vec::new();
    let mut nodes: Vec<Node> = Vec::with_capacity(edited.len() * TILES);
    nodes.extend(edited.iter().flat_map(|index| pieces[*index].sources[0].tiles.0));
    combine_chunks::<H>(&mut nodes, TILES);
    debug_assert_eq!(1 << LEVELS, TILES);
    let folded = edited.iter().zip(&nodes);
    bad.extend(folded.filter(|(index, node)| !is(&pieces[**index].sources[0], node)).map(first));
    // Few, and mostly of one page each.
    let mut folder = BatchFolder::<H>::new();
    for (index, pages) in planned {
        let piece = &pieces[*index];
        let agrees = match (&piece.sources[..], *pages) {
            ([source], [(page, nodes)]) if page.prefix == source.prefix => is(source, &nodes.own),
            (sources, pages) => {
                let depth = piece.range.len();
                folder.clear();
                folder.begin(depth);
                let old: Option<Vec<Node>> = sources.iter().map(|source| source.own).collect();
                for source in sources {
                    folder.subtrie(&source.prefix, &source.own.unwrap_or_default());
                }
                let before = folder.end().expect("no terminal is placed here");
                folder.begin(depth);
                for (page, nodes) in pages {
                    folder.subtrie(&page.prefix, &nodes.own);
                }
                let after = folder.end().expect("no terminal is placed here");
                folder.run();
                old.is_none() || folder.node(before) == folder.node(after)
            }
        };
        if !agrees {
            bad.push(*index);
        }
    }
    bad.sort_unstable();
    bad
}

fn is(source: &Source, node: &Node) -> bool {
    source.own.is_none_or(|own| own == *node)
}

fn first<T>((index, _): (&usize, T)) -> usize {
    *index
}
