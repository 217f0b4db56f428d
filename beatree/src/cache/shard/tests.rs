//! An eviction ends, whichever pages are held in whichever queue, and evicts held pages last.
//!
//! The bug: a flush looked for a page to evict and never returned, in an ordinary benchmark. All of main was held for
//! the batch, and the pages that could be evicted were in small, which was below its tenth. Main was always looked at,
//! and each of its pages moved to its other end, without end.

use pleach_core::page::leaf::{LeafBuilder, LeafHeader};
use pleach_core::page::{FileKind, Identity, PAGE_SIZE};
use pleach_core::prefix::Prefix;

use super::*;

const BATCH: u64 = 9;

fn cached(page_no: u32) -> Arc<CachedPage> {
    let mut page = [0; PAGE_SIZE];
    let header = LeafHeader {
        identity: Identity { kind: FileKind::Leaf, page_no: page_no.into(), db_id: 1 },
        flush: 1,
        namespace: 0,
        prefix: Prefix::ROOT,
        applied_through: 1,
        levels: 0,
        count: 0,
    };
    LeafBuilder::new(&mut page, &header).seal();
    CachedPage::fill(None, &page)
}

/// How many pages a queue has, how many of them are held, and the uses of each.
#[derive(Clone, Copy, Debug)]
struct Fill {
    pages: u32,
    held: u32,
    uses: u8,
}

/// A shard that is full, with its queues filled as told: small, main, held from small, held from main.
fn shard(fills: [Fill; 4]) -> Shard {
    let mut shard = Shard::new(usize::MAX / 8);
    shard.begin(BATCH);
    let mut page_no = 0;
    for (fill, (queue, from_main)) in fills.into_iter().zip([
        (Queue::Small, false),
        (Queue::Main, false),
        (Queue::Held, false),
        (Queue::Held, true),
    ]) {
        for index in 0..fill.pages {
            shard.reserved += 1;
            let (entries, slots) = shard.wanted();
            shard.grow(entries, slots);
            shard.reserved -= 1;
            let page = cached(page_no);
            shard.page_bytes += page.bytes();
            let mut entry = CacheEntry::new(PageNo::new(page_no), 0, Some(page), queue);
            (entry.uses, entry.from_main) = (fill.uses, from_main);
            shard.parked += usize::from(from_main);
            shard.put(entry, if index < fill.held { BATCH } else { NO_BATCH });
            page_no += 1;
        }
    }
    // From here on each insertion evicts, and nearly all pages can be held.
    shard.budget = shard.bytes().max(usize::try_from(page_no).unwrap() * page::COST * 4 / 3);
    shard
}

/// Evicts all pages; each step checks that held pages go last.
fn drain(fills: [Fill; 4]) {
    let mut shard = shard(fills);
    let pages = shard.pages();
    shard.recount();
    for left in (0..pages).rev() {
        let (held, before) = (shard.held_now, shard.pages());
        // Too many looks fail an assertion.
        assert!(shard.evict().is_some(), "{fills:?}: {before} pages, none leaves");
        assert_eq!(shard.pages(), left, "{fills:?}");
        assert!(shard.held_now == held || held == before, "{fills:?}: a held page left");
    }
    assert!(shard.evict().is_none());
    shard.recount();
    assert_eq!((shard.held_now, shard.parked, shard.page_bytes), (0, 0, 0));
}

#[test]
fn an_eviction_ends_with_held_pages_in_every_queue_and_every_proportion() {
    const SIZES: [u32; 4] = [0, 1, 3, 24];
    let mut cases = 0;
    let mut each = |fills| {
        drain(fills);
        cases += 1;
    };
    for uses in [0, MAX_USES] {
        for shape in 0..SIZES.len().pow(4) {
            let size = |queue: u32| SIZES[shape / SIZES.len().pow(queue) % SIZES.len()];
            for holds in 0..3_usize.pow(4) {
                let fill = |queue: u32| {
                    let pages = size(queue);
                    let held = [0, pages / 2, pages][holds / 3_usize.pow(queue) % 3];
                    Fill { pages, held, uses }
                };
                each([fill(0), fill(1), fill(2), fill(3)]);
            }
        }
    }
    assert_eq!(cases, 2 * 256 * 81);
}

#[test]
fn evictions_take_few_looks_while_all_of_main_is_held() {
    let fills = [(2, 0), (200, 200), (0, 0), (0, 0)];
    let mut shard = shard(fills.map(|(pages, held)| Fill { pages, held, uses: 1 }));
    // Treelets fill the rest, so that small is below its tenth.
    while shard.bytes() + page::TREELET_COST <= shard.budget {
        let page = shard.entries[2 + shard.treelets].page.as_ref().expect("of main");
        assert!(page.replace_treelet(Some(Box::new(Treelet::empty()))).is_none());
        shard.treelets += 1;
        shard.page_bytes += page::TREELET_COST;
    }
    let mut page_no = 1000;
    for _ in 0..200 {
        let room = shard.make_room();
        assert!(room.reserved);
        shard.insert(PageNo::new(page_no), 0, cached(page_no), NO_BATCH);
        page_no += 1;
        // Main's pages moved to the held queue when they came up; none is evicted.
        assert_eq!((shard.main.len() + shard.held.len(), shard.held_now), (200, 200));
    }
    // The next batch finds them where they were; it begins with a recount.
    shard.begin(BATCH + 1);
    for _ in 0..50 {
        assert!(shard.make_room().reserved);
        shard.insert(PageNo::new(page_no), 0, cached(page_no), NO_BATCH);
        page_no += 1;
    }
    assert_eq!(shard.held.len(), 0);
    assert!(shard.main.len() > 150, "{}", shard.main.len());
}

#[test]
fn counters_are_of_what_is_there_after_a_treelet_has_come_and_gone() {
    let mut shard = shard([Fill { pages: 4, held: 2, uses: 1 }; 4]);
    shard.budget *= 4;
    for page_no in [1, 5, 9].map(PageNo::new) {
        let page = shard.peek(page_no, 0).expect("cached");
        shard.attach(page_no, &page, None, false, |_| {});
        shard.recount();
        assert_eq!(shard.treelets, 1);
        assert!(shard.detach(page_no).1.is_some());
        shard.recount();
        assert_eq!(shard.treelets, 0);
    }
}
