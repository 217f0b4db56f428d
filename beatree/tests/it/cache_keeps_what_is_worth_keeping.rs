//! Pages of the current batch stay up to seven eighths of the budget; a scan does not evict pages in use; a page that a
//! reader holds outlives its eviction.

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
    numbers.filter(|page_no| cache.peek(PageNo::new(*page_no), 0).is_some()).count()
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
    assert_eq!(cache.stats().held, u64::from(held));
    cache.set_batch(2);
    assert_eq!(cache.stats().held, 0);
    for page_no in 10_000..10_000 + 20 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    assert_eq!(present(&cache, 0..held), 0, "the next batch lets them go");
}

/// Inserts other pages.
fn others(cache: &Cache, from: u32) {
    for page_no in from..from + 10 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
}

#[test]
fn pages_of_the_next_batch_stay_through_it_or_until_their_last_use() {
    let cache = cache();
    cache.set_batch(5);
    for page_no in 0..100 {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), 6);
    }
    others(&cache, 10_000);
    cache.set_batch(6);
    others(&cache, 20_000);
    assert_eq!((cache.stats().held, present(&cache, 0..100)), (100, 100));
    // A last use sets the batch anew.
    for page_no in 0..50 {
        let through = if page_no < 20 { 7 } else { NO_BATCH };
        assert!(cache.get_for_last_use(PageNo::new(page_no), 0, through).is_some());
    }
    assert_eq!(cache.stats().held, 70);
    others(&cache, 30_000);
    assert_eq!((present(&cache, 0..20), present(&cache, 50..100)), (20, 50));
    let left = present(&cache, 20..50);
    assert!(left < 10, "{left} of 30 that nobody holds");
    cache.set_batch(7);
    assert_eq!(cache.stats().held, 20);
    // A batch was left out.
    cache.set_batch(9);
    assert_eq!(cache.stats().held, 0);
}

#[test]
fn pages_are_held_while_there_is_room() {
    let cache = cache();
    cache.set_batch(1);
    let mut page_no = 0;
    while cache.can_hold() {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), 2);
        page_no += 1;
        assert!(page_no < 2 * PAGES, "there is no end");
    }
    assert!(page_no > PAGES / 2, "{page_no} of {PAGES}");
    cache.set_batch(3);
    assert!(cache.can_hold());
}

#[test]
fn a_batch_holds_at_most_seven_eighths_of_the_budget() {
    let cache = cache();
    cache.set_batch(1);
    for page_no in 0..3 * PAGES {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), 1);
    }
    let held = usize::try_from(cache.stats().held).unwrap() * Cache::PAGE_COST;
    let budget = PAGES as usize * (Cache::PAGE_COST + 120);
    assert!(held <= budget * 7 / 8 && held >= budget / 2, "{held} of {budget}");
}

#[test]
fn finding_a_page_for_a_batch_holds_it_too() {
    let cache = cache();
    for page_no in 0..100 {
        cache.insert(PageNo::new(page_no), 0, &page(page_no), NO_BATCH);
    }
    cache.set_batch(7);
    for page_no in 0..100 {
        assert!(cache.get_for_batch(PageNo::new(page_no), 0, 7).is_some());
        assert!(cache.get_for_batch(PageNo::new(page_no), 0, 6).is_some());
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
