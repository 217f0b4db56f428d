//! No byte of a page can change unnoticed: by accident (the checksum) or on purpose (the rules).

use crate::page_common::*;
use pleach_core::page::{
    Identity, OverflowError, PAGE_SIZE, Page, PageError, header, overflow, seal,
};
use pleach_core::{Prefix, TERMINATOR};
use rand_chacha::rand_core::RngCore;

// Spelled again on purpose, from the pictures in docs/format.md.
const VERSION: usize = 34;
const LEVEL: usize = 36;
const RESERVED: usize = 37;
const PREFIX_LEN: usize = 38;
const PREFIX: usize = 48;
const COUNT: usize = 80;
const CONTENTS: usize = 82;

fn samples() -> Vec<(&'static str, Box<Page>, Identity, Parse)> {
    vec![
        ("leaf without nodes", sample_leaf(1, 0, 0), LEAF, leaf_is_canonical),
        ("leaf with 8 nodes", sample_leaf(2, 21, 3), LEAF, leaf_is_canonical),
        ("leaf with 16 nodes", sample_leaf(3, 24, 4), LEAF, leaf_is_canonical),
        ("full branch", sample_branch(4, 14, 93), BRANCH, branch_is_canonical),
        ("small branch", sample_branch(5, 0, 3), BRANCH, branch_is_canonical),
        ("stream", sample_stream(6, 4052), STREAM, stream_is_canonical),
        ("short stream", sample_stream(7, 5), STREAM, stream_is_canonical),
    ]
}

#[test]
fn every_changed_byte_is_refused() {
    for (name, mut page, identity, parse) in samples() {
        assert_eq!(parse(&page, &identity), Ok(()), "{name}");
        for at in 0..PAGE_SIZE {
            let good = page[at];
            let random = 1 + u8::try_from(at % 255).unwrap();
            for flip in [1, 0x10, 0x80, 0xff, random] {
                page[at] = good ^ flip;
                let result = parse(&page, &identity);
                assert!(matches!(result, Err(PageError::Checksum { .. })), "{name} at {at}");
            }
            page[at] = good;
        }
    }
}

/// With the checksum made right again a changed byte is another claim or none: refused with a
/// reason, or a page that its own contents build, byte by byte. There is no third.
#[test]
fn every_resealed_byte_means_something_or_is_refused() {
    for (name, page, identity, parse) in samples() {
        let mut accepted = 0;
        for at in 8..PAGE_SIZE {
            for flip in [1, 0x80, 0xff] {
                let mut page = page.clone();
                page[at] ^= flip;
                seal(&mut page);
                match parse(&page, &identity) {
                    Ok(()) => accepted += 1,
                    Err(PageError::Checksum { .. }) => panic!("{name}: sealed pages have one"),
                    Err(_) => {}
                }
            }
        }
        assert!(accepted > 0, "{name}: payload may differ");
    }
}

#[test]
fn random_damage_under_a_right_checksum_never_panics() {
    let mut rng = rng(99);
    for (_, page, identity, parse) in samples() {
        for _ in 0..cases(3000) {
            let mut page = page.clone();
            for _ in 0..=number(&mut rng, 4) {
                // Half of it where the structure is.
                let limit = if rng.next_u32() & 1 == 0 { 700 } else { PAGE_SIZE as u64 - 8 };
                let at = 8 + usize::try_from(number(&mut rng, limit)).unwrap();
                let wide = number(&mut rng, 3) == 0;
                let end = (at + if wide { 8 } else { 1 }).min(PAGE_SIZE);
                rng.fill_bytes(&mut page[at..end]);
            }
            seal(&mut page);
            let _ = parse(&page, &identity);
        }
    }
    for _ in 0..cases(3000) {
        let mut bytes = vec![0; PAGE_SIZE];
        rng.fill_bytes(&mut bytes);
        let (page, identity) = claimed(&bytes);
        for parse in [leaf_is_canonical, branch_is_canonical, stream_is_canonical] {
            assert!(parse(&page, &identity).is_err());
        }
    }
}

/// Changes a page, makes its checksum right again, parses.
fn after(
    page: &Page,
    identity: &Identity,
    parse: Parse,
    change: impl FnOnce(&mut Page),
) -> PageError {
    let mut page = *page;
    change(&mut page);
    seal(&mut page);
    parse(&page, identity).expect_err("a page against the rules")
}

fn put(page: &mut Page, at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn each_rule_of_headers_has_its_own_error() {
    for (_, page, identity, parse) in samples() {
        let after = |change: fn(&mut Page)| after(&page, &identity, parse, change);
        assert_eq!(after(|page| page[VERSION] = 2), PageError::NewerVersion { found: 2 });
        assert_eq!(after(|page| page[VERSION] = 0), PageError::UnknownVersion { found: 0 });
        assert!(matches!(after(|page| page[33] = 9), PageError::WrongType { found: 9, .. }));
        assert!(matches!(after(|page| page[32] = 9), PageError::WrongKind { found: 9, .. }));
        assert_eq!(after(|page| page[RESERVED] = 1), PageError::ReservedBits { offset: RESERVED });
    }
    for (page, identity, parse) in [
        (sample_leaf(1, 21, 3), LEAF, leaf_is_canonical as Parse),
        (sample_branch(1, 21, 10), BRANCH, branch_is_canonical),
    ] {
        let after = |change: fn(&mut Page)| after(&page, &identity, parse, change);
        for len in [256u16, 257, u16::MAX] {
            let mut page = page.clone();
            put(&mut page, PREFIX_LEN, &len.to_le_bytes());
            seal(&mut page);
            assert_eq!(parse(&page, &identity), Err(PageError::Prefix { len }));
        }
        let behind = PageError::Prefix { len: 21 };
        assert_eq!(after(|page| page[PREFIX + 2] |= 0x04), behind);
        assert_eq!(after(|page| page[PREFIX + 31] |= 0x01), behind);
        assert_eq!(
            after(|page| put(page, COUNT, &[0xff, 0xff])),
            PageError::Count { count: u16::MAX }
        );
    }
}

#[test]
fn each_rule_of_leaf_pages_has_its_own_error() {
    let prefix = Prefix::new(&[0b1010_1010; 32], 12);
    let mut cells = Cells::new();
    for index in 0..4u8 {
        cells.insert(below(&prefix, &[index * 3 + 1; 32]), Value::Inline(vec![index; 1000]));
    }
    cells.pop_last();
    cells.insert(below(&prefix, &[0xff; 32]), Value::overflow(2, 1, &mut rng(1)));
    let page = build_leaf(&leaf_header(prefix, 0, 4), &cells, &[]);
    let after = |change: &dyn Fn(&mut Page)| after(&page, &LEAF, leaf_is_canonical, change);
    let slot = |index: usize| CONTENTS + 2 * index;
    let key = |index: usize| slot(4) + 31 * index;
    let values = key(4);
    let cell = values + 3000;

    assert_eq!(after(&|page| page[LEVEL] |= 8), PageError::ReservedBits { offset: LEVEL });
    for levels in [1, 2, 5, 6, 7] {
        let error = PageError::Levels { levels, prefix_len: 12 };
        assert_eq!(after(&|page| page[LEVEL] = levels), error);
    }
    // The first ends at 1000; the page has no room for the others.
    for end in [0u16, 999, 3960, 0x7fff] {
        assert_eq!(
            after(&|page| put(page, slot(1), &end.to_le_bytes())),
            PageError::Slot { cell: 1 }
        );
    }
    // Stretches the second value over the start of the third.
    assert_eq!(
        after(&|page| put(page, slot(1), &2025u16.to_le_bytes())),
        PageError::InlineLength { cell: 1, len: 1025 }
    );
    assert_eq!(after(&|page| page[key(1)] ^= 0x10), PageError::KeyOutside { cell: 1 });
    assert_eq!(
        after(&|page| page.copy_within(key(0)..key(1), key(1))),
        PageError::KeyOrder { cell: 1 }
    );
    assert_eq!(
        after(&|page| page.copy_within(key(0)..key(1), key(2))),
        PageError::KeyOrder { cell: 2 }
    );
    let end = cell + overflow::cell_len(2);
    assert_eq!(after(&|page| page[PAGE_SIZE - 1] = 1), PageError::Unused { offset: end });
    assert_eq!(after(&|page| page[end] = 1), PageError::Unused { offset: end });
    assert_eq!(after(&|page| put(page, COUNT, &[119, 0])), PageError::KeyOutside { cell: 0 });

    let overflow = |reason| PageError::Overflow { cell: 3, reason };
    assert_eq!(
        after(&|page| page[cell + 40] = 33),
        overflow(OverflowError::Extents { extents: 33 })
    );
    assert_eq!(
        after(&|page| page[cell + 40] = 1),
        overflow(OverflowError::Length { len: overflow::cell_len(2) })
    );
    assert_eq!(
        after(&|page| put(page, cell, &[0xff; 8])),
        overflow(OverflowError::Pages { pages: 2, total_len: u64::MAX })
    );
    assert_eq!(
        after(&|page| put(page, cell, &[0; 8])),
        overflow(OverflowError::Short { total_len: 0 })
    );
    assert_eq!(
        after(&|page| put(page, cell + 42 + 5, &[0; 3])),
        overflow(OverflowError::Extent { extent: 0 })
    );
    // An inline value that claims to be an overflow cell: its run count is 0x0000.
    assert_eq!(
        after(&|page| page[slot(0) + 1] |= 0x80),
        PageError::Overflow { cell: 0, reason: OverflowError::Extents { extents: 0 } }
    );
}

#[test]
fn nodes_below_the_deepest_key_are_refused() {
    let prefix = Prefix::new(&[0xff; 32], 253);
    let page = build_leaf(&leaf_header(prefix, 3, 0), &Cells::new(), &[TERMINATOR; 8]);
    assert_eq!(leaf_is_canonical(&page, &LEAF), Ok(()));
    assert_eq!(
        after(&page, &LEAF, leaf_is_canonical, |page| page[LEVEL] = 4),
        PageError::Levels { levels: 4, prefix_len: 253 }
    );
}

#[test]
fn each_rule_of_branch_pages_has_its_own_error() {
    let mut rng = rng(5);
    let prefix = Prefix::new(&[0b1010_1010; 32], 7);
    let entries = [8, 10, 10, 9].map(|depth| random_entry(depth, &mut rng));
    let page = build_branch(&branch_header(prefix), &entries);
    let after = |change: &dyn Fn(&mut Page)| after(&page, &BRANCH, branch_is_canonical, change);
    let entry = |index: usize| CONTENTS + 43 * index;
    let flags = |index: usize| entry(index) + 42;

    assert_eq!(after(&|page| page[LEVEL] = 0), PageError::Level { level: 0 });
    assert_eq!(after(&|page| put(page, COUNT, &[0, 0])), PageError::Count { count: 0 });
    assert_eq!(after(&|page| put(page, COUNT, &[94, 0])), PageError::Count { count: 94 });
    // An entry too few leaves a gap at the end, one too many has nowhere to be.
    assert_eq!(after(&|page| put(page, COUNT, &[3, 0])), PageError::Tiling { entry: 3 });
    assert_eq!(after(&|page| put(page, COUNT, &[5, 0])), PageError::Tiling { entry: 4 });
    for (index, depth, found) in [
        (0, 6, 0),   // wider than the page
        (0, 0, 0),   // everything
        (0, 7, 1),   // the whole page, then more
        (0, 9, 4),   // too narrow: the rest leaves a gap at the end
        (1, 8, 2),   // takes all that is left
        (2, 9, 2),   // does not start where such a child can
        (3, 8, 3),   // the same, at the end
        (3, 10, 4),  // ends before the page does
        (3, 255, 4), // by far
    ] {
        let error = after(&|page| page[entry(index)] = depth);
        assert_eq!(error, PageError::Tiling { entry: found }, "entry {index} depth {depth}");
    }
    assert_eq!(after(&|page| page[flags(2)] = 2), PageError::Entry { entry: 2 });
    assert_eq!(after(&|page| page[flags(2)] = 0x80), PageError::Entry { entry: 2 });
    let nowhere = |page: &mut Page| {
        page[flags(1)] = 1;
        put(page, entry(1) + 1, &[0; 9]);
    };
    for at in 1..10 {
        let error = after(&|page| {
            nowhere(page);
            page[entry(1) + at] = 1;
        });
        assert_eq!(error, PageError::Entry { entry: 1 });
    }
    let end = entry(4);
    assert_eq!(after(&|page| page[end + 1] = 1), PageError::Unused { offset: end });
}

#[test]
fn each_rule_of_stream_pages_has_its_own_error() {
    let page = sample_stream(1, 100);
    let after = |change: fn(&mut Page)| after(&page, &STREAM, stream_is_canonical, change);
    for found in [0, 7, 255] {
        let mut page = page.clone();
        page[LEVEL] = found;
        seal(&mut page);
        assert_eq!(stream_is_canonical(&page, &STREAM), Err(PageError::UnknownStream { found }));
    }
    assert_eq!(
        after(|page| put(page, 38, &4053u16.to_le_bytes())),
        PageError::PayloadLength { len: 4053 }
    );
    assert_eq!(after(|page| page[4095] = 1), PageError::Unused { offset: 144 });
    assert_eq!(after(|page| put(page, 38, &[0, 0])), PageError::Unused { offset: 44 });
}

#[test]
fn a_stale_page_has_another_tag() {
    let mut header = leaf_header(Prefix::ROOT, 0, 0);
    let old = build_leaf(&header, &Cells::new(), &[]);
    header.flush += 1;
    let new = build_leaf(&header, &Cells::new(), &[]);
    let tag = |page| header::check(page, &LEAF).unwrap();
    assert_ne!(tag(&old), tag(&new));
}
