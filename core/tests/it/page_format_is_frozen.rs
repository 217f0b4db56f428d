//! The same contents are the same bytes in every version of this crate.
//!
//! `golden/pages.txt` has a digest for each seeded page. A difference means that existing databases can no longer be
//! read: then the format version changes too, and the file is written again with `PLEACH_BLESS=1 cargo test -p
//! pleach-core --test it page_format_is_frozen`, which also writes the same pages as seeds for the fuzz targets.

use std::fmt::Write as _;
use std::path::Path;

use crate::page_common::*;
use pleach_core::{Hasher, hexadecimal::hex};

#[test]
fn seeded_pages_keep_their_digests() {
    let pages = [
        ("leaf-0-levels", sample_leaf(1, 0, 0)),
        ("leaf-3-levels", sample_leaf(2, 21, 3)),
        ("leaf-4-levels", sample_leaf(3, 24, 4)),
        ("leaf-deep", sample_leaf(4, 200, 3)),
        (
            "leaf-empty",
            build_leaf(&leaf_header(pleach_core::Prefix::ROOT, 0, 0), &Cells::new(), &[]),
        ),
        ("branch-one", sample_branch(5, 255, 1)),
        ("branch-root", sample_branch(6, 0, 20)),
        ("branch-full", sample_branch(7, 14, 93)),
        ("stream-empty", sample_stream(8, 0)),
        ("stream-full", sample_stream(9, 4052)),
    ];
    let mut found = String::new();
    for (name, page) in &pages {
        writeln!(found, "{name} {}", hex(Hasher::BLAKE3.hash(&page[..]))).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pages.txt");
    if std::env::var_os("PLEACH_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
        for (name, page) in &pages {
            let kind = name.split('-').next().unwrap();
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(format!("../fuzz/corpus/{kind}_page_parse"));
            std::fs::create_dir_all(&corpus).unwrap();
            // The targets compute the checksum themselves.
            std::fs::write(corpus.join(name), &page[8..]).unwrap();
        }
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap());
}
