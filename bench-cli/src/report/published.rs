//! Figures that others have published for the same workloads, measured on other hardware.

use crate::report::{Grid, html};

/// Workload, what was measured, figure, whose.
const PUBLISHED: &[(&str, &str, &str, &str)] = &[
    ("overlay", "root, 1,000 accounts changed", "3.17 ms", "TrieDB"),
    ("overlay", "root, 10,000 accounts changed", "37.45 ms", "TrieDB"),
    ("overlay", "root, 1,000 accounts changed", "416.6 ms", "the MDBX way"),
    ("overlay", "root, 10,000 accounts changed", "425.6 ms", "the MDBX way"),
    ("threshold", "throughput lost from window 2 to 512", "21 %", "TrieDB"),
    ("flatten", "share of CPU that merging takes", "16 %", "engines that merge nodes"),
    ("auth", "commitment, 100", "0.167 ms", "SparseTrie"),
    ("auth", "commitment, 1,000", "0.520 ms", "SparseTrie"),
    ("auth", "commitment, 5,000", "1.24 ms", "SparseTrie"),
    ("auth", "commitment, 10,000", "1.97 ms", "SparseTrie"),
    ("auth", "commitment, 50,000", "7.36 ms", "SparseTrie"),
    ("auth", "commitment, 100,000", "14.3 ms", "SparseTrie"),
    ("auth", "sequential, 100", "0.666 ms", "SparseTrie"),
    ("auth", "sequential, 500", "1.60 ms", "SparseTrie"),
    ("auth", "sequential, 1,000", "2.41 ms", "SparseTrie"),
    ("auth", "sequential, 5,000", "7.45 ms", "SparseTrie"),
    ("auth", "sequential, 10,000", "14.6 ms", "SparseTrie"),
    ("auth", "sequential, 50,000", "67.9 ms", "SparseTrie"),
    ("auth", "sequential, 100,000", "142.8 ms", "SparseTrie"),
    ("auth", "over rolling BLAKE3, 100,000", "6.3 x", "SparseTrie"),
];

/// The figures of a workload as a table; empty if there are none.
pub(crate) fn table(workload: &str) -> String {
    let mut grid = Grid::default();
    grid.row(["published elsewhere", "figure", "by"].map(str::to_owned));
    let mut some = false;
    for (_, what, figure, whose) in PUBLISHED.iter().filter(|one| one.0 == workload) {
        grid.row([what, figure, whose].map(|text| (*text).to_owned()));
        some = true;
    }
    if !some {
        return String::new();
    }
    format!(
        "<h3>Published by others, measured on OTHER HARDWARE: no comparison</h3>\n{}",
        html::table(&grid)
    )
}
