//! Pages of the current batch stay up to three quarters of the budget; a scan does not drive out pages in use;
//! a page that a reader holds outlives its eviction.

use pleach_beatree::PageNo;
use pleach_beatree::cache::{Cache, NO_BATCH};
use pleach_core::page::leaf::{LeafBuilder, LeafHeader};
use pleach_core::page::{FileKind, Identity, PAGE_SIZE, Page};
use pleach_core::prefix::Prefix;

const PAGES: u32 = 400;

fn page(page_no: u32) -> Page {
    let mut page = [0; PAGE_SIZE];
    let header = LeafHeader {
        identity: Identity { kind: FileKind::Leaf, page_no: page_no.into(), db_id: 1 },
        flush: 1,
        namespace: 0,
        prefix: Prefix::ROOT,
        applied_through: page_no.into(),
        levels: 0,
        count: 0,
    };
    LeafBuilder::new(&mut page, &header).seal();
    page
}

fn cache() -> Cache {
    Cache::new(PAGES as usize * (Cache::PAGE_COST + 120))
}

fn present(cache: &Cache, numbers: core::ops::Range<u32>) -> usize {
    numbers.filter(|page_no| cache.get(PageNo::new(*page_no), 0).is_some()).count()
}

#[test]
fn pages_of_the_current_batch_outlast_any_number_of_others() {
    let cache = cache();
    cache.set_batch(1);
    let held = PAGES / 3;
    for page_no in 0..held {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), 1);
    }
    for page_no in 1000..1000 + 10 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    assert_eq!(cache.stats().pinned, u64::from(held));
    cache.set_batch(2);
    assert_eq!(cache.stats().pinned, 0);
    for page_no in 10_000..10_000 + 20 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    assert_eq!(present(&cache, 0..held), 0, "the next batch lets them go");
}

#[test]
fn a_batch_holds_at_most_three_quarters_of_the_budget() {
    let cache = cache();
    cache.set_batch(1);
    for page_no in 0..3 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), 1);
    }
    let pinned = usize::try_from(cache.stats().pinned).unwrap() * Cache::PAGE_COST;
    let budget = PAGES as usize * (Cache::PAGE_COST + 120);
    assert!(pinned <= budget * 3 / 4 && pinned >= budget / 2, "{pinned} of {budget}");
}

#[test]
fn finding_a_page_for_a_batch_holds_it_too() {
    let cache = cache();
    for page_no in 0..100 {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    cache.set_batch(7);
    for page_no in 0..100 {
        assert!(cache.get_in(PageNo::new(page_no), 0, 7).is_some());
        assert!(cache.get_in(PageNo::new(page_no), 0, 6).is_some());
    }
    for page_no in 1000..1000 + 5 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    assert_eq!(present(&cache, 0..100), 100);
}

#[test]
fn a_scan_leaves_pages_in_use() {
    let cache = cache();
    let hot = PAGES / 2;
    for round in 0..4 {
        for page_no in 0..hot {
            if cache.get(PageNo::new(page_no), 0).is_none() {
                cache.insert(PageNo::new(page_no), 0, &page(page_no), round);
            }
        }
    }
    for page_no in 1000..1000 + 20 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    let left = present(&cache, 0..hot);
    assert!(left * 10 >= hot as usize * 9, "{left} of {hot} survived");
}

#[test]
fn a_reader_keeps_its_page() {
    let cache = cache();
    let held = cache.insert(PageNo::new(1), 0, &page(1), NO_BATCH);
    for page_no in 1000..1000 + 5 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    cache.remove(PageNo::new(1));
    assert!(cache.get(PageNo::new(1), 0).is_none());
    assert_eq!(held.page(), &page(1));
}

#[test]
fn a_number_used_again_shows_only_its_new_page() {
    let cache = cache();
    cache.insert(PageNo::new(5), 1, &page(5), NO_BATCH);
    cache.insert(PageNo::new(5), 2, &page(6), NO_BATCH);
    assert!(cache.get(PageNo::new(5), 1).is_none());
    assert_eq!(cache.get(PageNo::new(5), 2).unwrap().page(), &page(6));
    assert_eq!(cache.stats().pages, 1);
}
