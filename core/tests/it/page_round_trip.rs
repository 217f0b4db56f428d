//! What was put into a page comes out of it, and nothing else does.

use std::collections::BTreeMap;

use crate::page_common::*;
use pleach_core::page::{
    BranchEntry, LeafBuilder, LeafView, MAX_INLINE, MAX_PAGE_NO, OverflowCell, OverflowError,
    OverflowExtent, PAGE_SIZE, PageError, RawCell, StreamHeader, StreamId, StreamView, branch,
    header, leaf, overflow, stream,
};
use pleach_core::page::{BranchView, Identity};
use pleach_core::{Key, Prefix, TERMINATOR};
use proptest::prelude::*;

fn shape() -> impl Strategy<Value = (Prefix, u8)> {
    (any::<Key>(), prop_oneof![0u16..=255, 0u16..32, Just(252), Just(253), Just(255)], 0usize..3)
        .prop_map(|(key, len, levels)| {
            let levels = [0, 3, 4][levels];
            let levels = if leaf::levels_fit(levels, len) { levels } else { 0 };
            (Prefix::new(&key, len), levels)
        })
}

/// Keys of which half share long stretches: only their last bytes, or one in the middle, differ.
fn free_bits() -> impl Strategy<Value = Key> {
    prop_oneof![
        any::<Key>(),
        any::<u8>().prop_map(|last| {
            let mut key = [0x55; 32];
            key[31] = last;
            key
        }),
        (0usize..32, any::<u8>()).prop_map(|(at, byte)| {
            let mut key = [0xff; 32];
            key[at] = byte;
            key
        }),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 8).prop_map(Value::Inline),
        2 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Value::Inline),
        1 => prop::collection::vec(any::<u8>(), MAX_INLINE).prop_map(Value::Inline),
        1 => (1u32..=32, 1u32..2000, any::<u64>())
            .prop_map(|(runs, last, seed)| Value::overflow(runs, last, &mut rng(seed))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(400)))]

    #[test]
    fn a_leaf_page_answers_as_a_map_does(
        (prefix, levels) in shape(),
        wanted in prop::collection::vec((free_bits(), value()), 0..120),
        probes in prop::collection::vec(free_bits(), 1..40),
        seed in any::<u64>(),
    ) {
        let mut cells = Cells::new();
        let mut used = 0;
        for (free, value) in wanted {
            let size = leaf::cell_size(prefix.len(), value.bytes().len());
            let key = below(&prefix, &free);
            if used + size <= leaf::capacity(levels) && !cells.contains_key(&key) {
                used += size;
                cells.insert(key, value);
            }
        }
        let nodes = nodes(levels, &mut rng(seed));
        let header = leaf_header(prefix, levels, cells.len());
        let page = build_leaf(&header, &cells, &nodes);
        prop_assert_eq!(leaf_is_canonical(&page, &LEAF), Ok(()));

        let view = LeafView::parse(&page, &LEAF).unwrap();
        prop_assert_eq!(view.prefix(), prefix);
        prop_assert_eq!((view.applied_through(), view.flush()), (header.applied_through, header.flush));
        prop_assert_eq!((view.namespace(), view.levels()), (header.namespace, levels));
        prop_assert_eq!(view.nodes(), &nodes[..]);
        prop_assert_eq!(view.used(), used);
        prop_assert_eq!((view.len(), view.is_empty()), (cells.len(), cells.is_empty()));
        let read: BTreeMap<_, _> =
            view.iter().map(|(key, cell)| (key, Value::from_cell(&cell))).collect();
        prop_assert_eq!(&read, &cells);

        // Keys below the prefix, and keys anywhere: `lower_bound` is an order over all keys.
        let probes = probes.iter().flat_map(|free| [*free, below(&prefix, free)]);
        for probe in probes.chain(cells.keys().copied()) {
            let before = cells.range(..probe).count();
            prop_assert_eq!(view.lower_bound(&probe), before);
            let wanted = if cells.contains_key(&probe) { Ok(before) } else { Err(before) };
            prop_assert_eq!(view.find(&probe), wanted);
        }
    }

    #[test]
    fn a_branch_page_gives_its_children_back(
        free in any::<Key>(),
        len in prop_oneof![Just(0u16), 0u16..=255],
        count in 1usize..=branch::MAX_ENTRIES,
        seed in any::<u64>(),
    ) {
        let mut rng = rng(seed);
        let prefix = Prefix::new(&free, len);
        let children: Vec<(Prefix, BranchEntry)> = tiling(prefix, count, &mut rng)
            .into_iter()
            .map(|child| (child, random_entry(child.len(), &mut rng)))
            .collect();
        let entries: Vec<BranchEntry> = children.iter().map(|child| child.1).collect();
        let page = build_branch(&branch_header(prefix), &entries);
        prop_assert_eq!(branch_is_canonical(&page, &BRANCH), Ok(()));
        let view = BranchView::parse(&page, &BRANCH).unwrap();
        prop_assert_eq!(view.prefix(), prefix);
        prop_assert_eq!((view.level(), view.log_pos()), (1, 123_456_789));
        prop_assert_eq!(view.iter().collect::<Vec<_>>(), children);
    }

    #[test]
    fn a_stream_comes_back_page_by_page(len in 0usize..3 * stream::PAYLOAD, fill in any::<u8>()) {
        let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add(at.to_le_bytes()[0])).collect();
        let mut read = Vec::new();
        for (index, payload) in (0u32..).zip(bytes.chunks(stream::PAYLOAD)) {
            let mut page = [0xee; PAGE_SIZE];
            let identity = Identity { page_no: u64::from(index), ..STREAM };
            let header =
                StreamHeader { identity, flush: 1, namespace: 0, stream: StreamId::Buffered, index };
            let tag = stream::build(&mut page, &header, payload);
            prop_assert_eq!(header::check(&page, &identity), Ok(tag));
            prop_assert_eq!(stream_is_canonical(&page, &identity), Ok(()));
            let view = StreamView::parse(&page, &identity).unwrap();
            let due = stream::payload_len(len as u64, index);
            read.extend_from_slice(view.expect_payload(StreamId::Buffered, index, due).unwrap());
            prop_assert!(view.expect_payload(StreamId::Buffered, index + 1, due).is_err());
            prop_assert!(view.expect_payload(StreamId::FreeMap, index, due).is_err());
            prop_assert!(view.expect_payload(StreamId::Buffered, index, due + 1).is_err());
        }
        prop_assert_eq!(read, bytes);
    }
}

#[test]
fn a_page_holds_exactly_its_capacity() {
    for (levels, expected) in [(0, 4014), (3, 3758), (4, 3502)] {
        assert_eq!(leaf::capacity(levels), expected);
        let prefix = Prefix::new(&[0x5a; 32], 12);
        // Three long values, then one that ends on the page's last byte.
        let fixed = leaf::cell_size(12, 1000);
        let last = leaf::capacity(levels) - 3 * fixed - leaf::cell_size(12, 0);
        let cells: Cells = [1000, 1000, 1000, last]
            .into_iter()
            .zip(0u8..)
            .map(|(len, index)| (below(&prefix, &[index; 32]), Value::Inline(vec![7; len])))
            .collect();
        assert_eq!(size_of(&cells, 12), leaf::capacity(levels));
        let nodes = nodes(levels, &mut rng(1));
        let page = build_leaf(&leaf_header(prefix, levels, 4), &cells, &nodes);
        assert_eq!(leaf_is_canonical(&page, &LEAF), Ok(()));
    }
}

#[test]
fn ninety_three_balances_fit_where_the_design_says_so() {
    // 2^27 accounts, about 64 a page: prefixes of 20 to 21 bits.
    assert_eq!(leaf::capacity(3) / leaf::cell_size(21, 8), 93);
    assert_eq!(leaf::capacity(3) / leaf::cell_size(8, 8), 91);
}

fn refuses(misuse: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(misuse).is_err()
}

#[test]
fn builders_refuse_misuse_before_it_is_on_disk() {
    let prefix = Prefix::new(&[0xa0; 32], 3);
    let low = below(&prefix, &[0; 32]);
    let high = below(&prefix, &[0xff; 32]);
    let value = RawCell { bytes: &[1], overflow: false };
    let with = |count, pushes: Vec<(Key, RawCell<'static>)>| {
        let mut page = [0; PAGE_SIZE];
        let mut builder = LeafBuilder::new(&mut page, &leaf_header(prefix, 0, count));
        for (key, cell) in pushes {
            builder.push(&key, cell);
        }
        builder.seal();
    };
    assert!(!refuses(|| with(2, vec![(low, value), (high, value)])));
    assert!(refuses(|| with(1, vec![(low, value), (high, value)])), "one too many");
    assert!(refuses(|| with(2, vec![(low, value)])), "one missing");
    assert!(refuses(|| with(2, vec![(high, value), (low, value)])), "out of order");
    assert!(refuses(|| with(2, vec![(low, value), (low, value)])), "twice");
    assert!(refuses(|| with(1, vec![([0; 32], value)])), "outside");
    let long = RawCell { bytes: &[0; MAX_INLINE + 1], overflow: false };
    assert!(refuses(|| with(1, vec![(low, long)])), "too long");
    let full = RawCell { bytes: &[0; MAX_INLINE], overflow: false };
    let four = (0..4).map(|index| (below(&prefix, &[index; 32]), full)).collect();
    assert!(refuses(|| with(4, four)), "full");
    assert!(refuses(|| with(1000, vec![])), "no room for so many");
    assert!(
        refuses(|| {
            let mut page = [0; PAGE_SIZE];
            LeafBuilder::new(&mut page, &leaf_header(prefix, 3, 0)).seal();
        }),
        "nodes missing"
    );
    let child = |depth| BranchEntry { depth, page_no: None, tag: 0, node: TERMINATOR };
    let tiles = |depths: &[u16]| {
        let entries: Vec<BranchEntry> = depths.iter().map(|depth| child(*depth)).collect();
        build_branch(&branch_header(prefix), &entries);
    };
    assert!(!refuses(|| tiles(&[3])));
    assert!(!refuses(|| tiles(&[4, 5, 5])));
    for wrong in [&[][..], &[2], &[4], &[4, 3], &[5, 4, 5], &[3, 3], &[256]] {
        assert!(refuses(|| tiles(wrong)), "{wrong:?}");
    }
}

#[test]
fn overflow_cells_are_checked_rule_by_rule() {
    let payload = stream::PAYLOAD as u64;
    let encode = |total_len, runs: &[(u64, u32)]| {
        let runs: Vec<OverflowExtent> =
            runs.iter().map(|&(start, pages)| OverflowExtent { start, pages }).collect();
        let mut bytes = vec![9];
        let result = OverflowCell::encode(total_len, &[3; 32].into(), &runs, &mut bytes);
        assert_eq!(bytes.len() == 1, result.is_err(), "an error appends nothing");
        result.map(|()| bytes.split_off(1))
    };
    let long = overflow::MAX_EXTENT_PAGES;
    assert!(encode(payload, &[(MAX_PAGE_NO, 1)]).is_ok());
    assert!(encode(payload * u64::from(long), &[(0, long)]).is_ok());
    assert!(encode(1025, &[(0, 1)]).is_ok());
    assert_eq!(encode(1024, &[(0, 1)]), Err(OverflowError::Short { total_len: 1024 }));
    assert_eq!(encode(2000, &[]), Err(OverflowError::Extents { extents: 0 }));
    assert_eq!(encode(2000, &[(0, 1); 33]), Err(OverflowError::Extents { extents: 33 }));
    assert_eq!(encode(2000, &[(0, 0)]), Err(OverflowError::Extent { extent: 0 }));
    assert_eq!(encode(2000, &[(MAX_PAGE_NO + 1, 1)]), Err(OverflowError::Extent { extent: 0 }));
    assert_eq!(encode(2000, &[(0, 1), (MAX_PAGE_NO, 2)]), Err(OverflowError::Extent { extent: 1 }));
    assert_eq!(encode(2000, &[(u64::MAX, 2)]), Err(OverflowError::Extent { extent: 0 }));
    assert_eq!(encode(payload, &[(0, long + 1)]), Err(OverflowError::Extent { extent: 0 }));
    let shared = [(10, 2), (20, 2), (11, 2)];
    assert_eq!(encode(6 * payload, &shared), Err(OverflowError::Shared { extent: 2 }));
    let pages = |pages, total_len| Err(OverflowError::Pages { pages, total_len });
    assert_eq!(encode(payload + 1, &[(0, 1)]), pages(1, payload + 1));
    assert_eq!(encode(payload, &[(0, 1), (5, 1)]), pages(2, payload));
    assert_eq!(encode(u64::MAX, &[(0, long)]), pages(u64::from(long), u64::MAX));

    let good = encode(3 * payload, &[(5, 2), (9, 1)]).unwrap();
    let cell = OverflowCell::parse(&good).unwrap();
    assert_eq!((cell.total_len(), cell.value_hash()), (3 * payload, [3; 32].into()));
    assert_eq!(
        cell.extents().collect::<Vec<_>>(),
        [OverflowExtent { start: 5, pages: 2 }, OverflowExtent { start: 9, pages: 1 }]
    );
    for len in 0..good.len() {
        assert!(OverflowCell::parse(&good[..len]).is_err(), "cut at {len}");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(OverflowCell::parse(&longer), Err(OverflowError::Length { len: longer.len() }));
}

#[test]
fn a_page_is_found_out_wherever_it_does_not_belong() {
    let samples: [(Box<_>, Identity, Parse); 3] = [
        (sample_leaf(1, 21, 3), LEAF, leaf_is_canonical),
        (sample_branch(2, 14, 93), BRANCH, branch_is_canonical),
        (sample_stream(3, 4000), STREAM, stream_is_canonical),
    ];
    for (page, identity, parse) in &samples {
        assert_eq!(parse(page, identity), Ok(()));
        let elsewhere = Identity { page_no: identity.page_no ^ 1, ..*identity };
        assert!(matches!(parse(page, &elsewhere), Err(PageError::WrongPageNo { .. })));
        let foreign = Identity { db_id: 1, ..*identity };
        assert!(matches!(parse(page, &foreign), Err(PageError::WrongDatabase { .. })));
        let other_kind = match identity.kind {
            pleach_core::page::FileKind::Leaf => pleach_core::page::FileKind::Image,
            _ => pleach_core::page::FileKind::Leaf,
        };
        let file = Identity { kind: other_kind, ..*identity };
        assert!(matches!(parse(page, &file), Err(PageError::WrongKind { .. })));
        assert_eq!(header::check(page, identity), Ok(header::tag(page)));
        for (_, other_identity, other) in &samples {
            let result = other(page, identity);
            assert_eq!(result.is_ok(), identity == other_identity);
            assert!(matches!(result, Ok(()) | Err(PageError::WrongType { .. })));
        }
        for fill in [0, 0xff] {
            let blank = parse(&[fill; PAGE_SIZE], identity);
            assert!(matches!(blank, Err(PageError::Checksum { .. })));
        }
    }
}
