//! Folds of pages: why they end, and what they have captured.

use pleach_core::Node;
use pleach_core::fold::BatchFolder;

/// Why the fold of a page ends.
pub(super) const BY_KEY: &str = "a page's buckets of one key are given by key";

/// Sorts what a folder's folds have captured fold by fold; `ends` takes where that of each fold ends.
pub(super) fn sort_captured(
    folder: &BatchFolder,
    folds: usize,
    ends: &mut Vec<usize>,
    out: &mut Vec<(u8, Node)>,
) {
    let captured = folder.captured();
    ends.clear();
    ends.resize(folds, 0);
    for one in captured {
        ends[one.fold as usize] += 1;
    }
    let mut sum = 0;
    for end in ends.iter_mut() {
        // The start now; every entry moves it on.
        (sum, *end) = (sum + *end, sum);
    }
    out.resize(captured.len(), (0, Node::default()));
    for one in captured {
        let at = &mut ends[one.fold as usize];
        out[*at] = (one.index, one.node);
        *at += 1;
    }
}
