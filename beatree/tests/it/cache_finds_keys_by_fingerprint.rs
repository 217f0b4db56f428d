//! A cached page finds exactly the keys that its view finds, at all counts around the sizes where
//! words and arrays end, whatever bytes the keys differ in.

use pleach_beatree::PageNo;
use pleach_beatree::cache::{Cache, CachedPage, NO_BATCH};
use pleach_core::Key;
use pleach_core::page::leaf::{LeafBuilder, LeafHeader, RawCell};
use pleach_core::page::{FileKind, Identity, PAGE_SIZE};
use pleach_core::prefix::Prefix;
use std::sync::Arc;

const COUNTS: [u16; 14] = [0, 1, 2, 7, 8, 9, 63, 64, 65, 90, 127, 128, 129, 700];

/// A page of `count` cells whose keys `spread` makes of numbers.
fn cached(count: u16, prefix_len: u16, spread: impl Fn(u16) -> Key) -> Arc<CachedPage> {
    let mut page = [0; PAGE_SIZE];
    let header = LeafHeader {
        identity: Identity { kind: FileKind::Leaf, page_no: 3, db_id: 1 },
        flush: 1,
        namespace: 0,
        prefix: Prefix::new(&spread(0), prefix_len),
        applied_through: 1,
        levels: 0,
        count,
    };
    let mut builder = LeafBuilder::new(&mut page, &header);
    for cell in 0..count {
        builder.push(&spread(cell * 2), RawCell { bytes: &[], overflow: false });
    }
    builder.seal();
    Cache::new(1 << 20).insert(PageNo::new(3), 4, &page, NO_BATCH)
}

fn check(count: u16, prefix_len: u16, spread: impl Fn(u16) -> Key) {
    let page = cached(count, prefix_len, &spread);
    for number in 0..=count * 2 {
        let key = spread(number);
        assert_eq!(page.find(&key), page.view().find(&key).ok());
        let present = number % 2 == 0 && number / 2 < count;
        assert_eq!(page.get(&key).is_some(), present, "{count} cells, number {number}");
        let mut outside = key;
        outside[0] ^= 0x80;
        assert_eq!(page.find(&outside), None);
    }
}

#[test]
fn keys_that_differ_at_their_end() {
    for count in COUNTS {
        check(count, 240, |number| {
            let mut key = [0xab; 32];
            key[30..].copy_from_slice(&number.to_be_bytes());
            key
        });
    }
}

#[test]
fn keys_that_differ_in_the_middle() {
    for count in COUNTS.into_iter().filter(|count| *count <= 128) {
        check(count, 120, |number| {
            let mut key = [0; 32];
            key[15..17].copy_from_slice(&number.to_be_bytes());
            key
        });
    }
}

#[test]
fn a_recycled_page_forgets_what_it_held() {
    let cache = Cache::new(2 * Cache::PAGE_COST);
    let long = cached(700, 240, |number| {
        let mut key = [0xab; 32];
        key[30..].copy_from_slice(&number.to_be_bytes());
        key
    });
    let short = cached(3, 240, |number| {
        let mut key = [0xab; 32];
        key[30..].copy_from_slice(&(number + 1).to_be_bytes());
        key
    });
    for page_no in 0..20 {
        let source = if page_no % 2 == 0 { &long } else { &short };
        let given = cache.insert(PageNo::new(page_no), 1, source.page(), NO_BATCH);
        for number in 0..1400_u16 {
            let mut key = [0xab; 32];
            key[30..].copy_from_slice(&number.to_be_bytes());
            assert_eq!(given.find(&key), source.view().find(&key).ok());
        }
    }
}
