//! The cache never returns a page that was not inserted under that number and tag, never exceeds its budget, counts
//! what it does, and with enough room evicts nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_beatree::PageNo;
use pleach_beatree::cache::{Cache, CacheStats, CachedPage, NO_BATCH};
use pleach_beatree::treelet::Treelet;
use pleach_core::page::leaf::{LeafBuilder, LeafHeader, RawCell};
use pleach_core::page::{FileKind, Identity, PAGE_SIZE, Page};
use pleach_core::prefix::Prefix;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

fn cases(default: u64) -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// A page whose contents name its number, tag and age; `many` gives more cells than usual.
fn page(page_no: u32, version: u64, many: bool) -> Page {
    let mut key = [7; 32];
    let prefix_len = if many { 240 } else { 16 };
    let count: u16 = if many { 300 } else { 3 };
    let mut page = [0; PAGE_SIZE];
    let header = LeafHeader {
        identity: Identity { kind: FileKind::Leaf, page_no: page_no.into(), db_id: 1 },
        flush: version,
        namespace: 0,
        prefix: Prefix::new(&key, prefix_len),
        applied_through: version,
        levels: 0,
        count,
    };
    let mut builder = LeafBuilder::new(&mut page, &header);
    for cell in 0..count {
        key[30..].copy_from_slice(&cell.to_be_bytes());
        builder.push(&key, RawCell { bytes: &[], overflow: false });
    }
    builder.seal();
    page
}

/// A treelet that knows all nodes, as of a commit.
fn treelet(as_of: u64) -> Treelet {
    let mut treelet = Treelet::empty();
    treelet.advance(
        (0, as_of),
        None,
        &[1; 32].into(),
        (1..63).map(|index| (index, [index; 32].into())),
    );
    treelet
}

/// Drives a cache and a map by one seed.
struct Twin {
    cache: Cache,
    budget: usize,
    /// Bytes of the cache without a page.
    empty: usize,
    /// Tag and version of the newest insertion, by page number.
    model: BTreeMap<u32, (u32, u64)>,
    random: ChaCha8Rng,
    batch: u64,
    gets: u64,
    hits: u64,
}

impl Twin {
    fn new(seed: u64, budget: usize) -> Self {
        let cache = Cache::new(budget);
        Self {
            empty: cache.bytes(),
            cache,
            budget,
            model: BTreeMap::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            batch: NO_BATCH,
            gets: 0,
            hits: 0,
        }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    fn step(&mut self, numbers: u32, version: u64) {
        let page_no = self.below(numbers);
        let batch = if self.below(2) == 0 { self.batch } else { NO_BATCH };
        match self.below(19) {
            0..=6 => {
                let tag = self.below(3);
                let wanted = self.model.get(&page_no).filter(|(newest, _)| *newest == tag);
                let found = self.cache.get_for_batch(PageNo::new(page_no), tag, batch);
                self.gets += 1;
                self.hits += u64::from(found.is_some());
                if let Some(found) = found {
                    let (_, version) = wanted.expect("never inserted, or removed since");
                    assert_eq!(found.view().applied_through(), *version, "page {page_no}");
                }
            }
            7..=13 => {
                let tag = self.below(3);
                let bytes = page(page_no, version, self.below(8) == 0);
                let given = self.cache.insert(PageNo::new(page_no), tag, &bytes, batch);
                // The same number and tag mean the same page: the cached one stays.
                let present = given.view().applied_through();
                assert!(
                    present == version || self.model.get(&page_no) == Some(&(tag, present)),
                    "insert gives the page that was inserted under this number and tag"
                );
                self.model.insert(page_no, (tag, present));
            }
            14 | 15 => {
                // Each page has a treelet that says when it was attached.
                let Some((tag, _)) = self.model.get(&page_no) else { return };
                self.gets += 1;
                let Some(page) = self.cache.get(PageNo::new(page_no), *tag) else { return };
                self.hits += 1;
                let soon = self.below(2) == 0;
                self.cache.attach_treelet(PageNo::new(page_no), &page, soon, |given| {
                    *given = treelet(version);
                });
            }
            16 => {
                // A page that the cache no longer has gets no treelet.
                let page = Cache::new(1 << 20).insert(
                    PageNo::new(page_no),
                    0,
                    &page(page_no, 0, false),
                    NO_BATCH,
                );
                self.cache.attach_treelet(PageNo::new(page_no), &page, true, |_| {
                    panic!("the page is another cache's");
                });
            }
            17 => {
                self.cache.remove(PageNo::new(page_no));
                self.model.remove(&page_no);
            }
            _ => {
                self.batch += 1;
                self.cache.set_batch(self.batch);
            }
        }
        self.check();
    }

    fn check(&self) {
        let CacheStats { hits, misses, bytes, pages, held, .. } = self.cache.stats();
        assert_eq!((hits, hits + misses), (self.hits, self.gets));
        assert_eq!(usize::try_from(bytes).unwrap(), self.cache.bytes());
        assert!(self.cache.bytes() <= self.budget.max(self.empty));
        assert!(usize::try_from(held).unwrap() * Cache::PAGE_COST <= self.budget);
        assert!(held <= pages && pages <= self.model.len() as u64);
    }
}

#[test]
fn random_operations_at_every_kind_of_budget() {
    for seed in 0..cases(4) {
        for pages in [0, 1, 2, 7, 33, 200] {
            let mut twin = Twin::new(seed, pages * (Cache::PAGE_COST + 300));
            for version in 1..1500 {
                twin.step(120, version);
            }
        }
    }
}

#[test]
fn a_changing_budget_is_kept_at_once() {
    for seed in 0..cases(4) {
        let mut twin = Twin::new(seed, 100 * Cache::PAGE_COST);
        for version in 1..3000 {
            if version % 50 == 0 {
                let pages = usize::try_from(twin.below(150)).unwrap();
                twin.budget = pages * Cache::PAGE_COST;
                twin.cache.set_budget(twin.budget);
                // Not below the bytes of the shards.
                assert!(twin.cache.bytes() <= twin.budget.max(twin.empty));
            }
            let page_no = twin.below(120);
            let bytes = page(page_no, version, twin.below(8) == 0);
            let batch = twin.batch;
            twin.cache.insert(PageNo::new(page_no), u32::try_from(version).unwrap(), &bytes, batch);
            assert!(twin.cache.bytes() <= twin.budget.max(twin.empty));
            if twin.below(30) == 0 {
                twin.batch += 1;
                twin.cache.set_batch(twin.batch);
            }
        }
    }
}

#[test]
fn with_room_for_all_nothing_is_forgotten() {
    let cache = Cache::new(4000 * Cache::PAGE_COST);
    let mut model = BTreeMap::new();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for version in 1..3000_u64 {
        let page_no = random.next_u32() % 1000;
        let tag = u32::try_from(version).unwrap();
        cache.insert(PageNo::new(page_no), tag, &page(page_no, version, false), NO_BATCH);
        model.insert(page_no, tag);
        let gone = random.next_u32() % 1000;
        if version % 5 == 0 {
            cache.remove(PageNo::new(gone));
            model.remove(&gone);
        }
        if version % 500 == 0 {
            // Pages are then as they were.
            cache.move_into_huge_page();
        }
    }
    for page_no in 0..1000 {
        let found = model.get(&page_no).and_then(|tag| cache.get(PageNo::new(page_no), *tag));
        assert_eq!(found.is_some(), model.contains_key(&page_no));
        let tag = model.get(&page_no).copied().unwrap_or_default();
        let as_inserted =
            |found: &Arc<CachedPage>| *found.page() == page(page_no, tag.into(), false);
        assert!(found.as_ref().is_none_or(as_inserted), "page {page_no}");
    }
    let stats = cache.stats();
    assert_eq!((stats.pages, stats.evictions), (model.len() as u64, 0));
}

#[test]
fn threads_see_whole_pages_of_the_right_number() {
    let cache = Cache::new(300 * Cache::PAGE_COST);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = ChaCha8Rng::seed_from_u64(thread);
                for round in 0..cases(3000) {
                    let page_no = random.next_u32() % 500;
                    let tag = page_no ^ 9;
                    let found = cache
                        .get_for_batch(PageNo::new(page_no), tag, round / 100)
                        .unwrap_or_else(|| {
                            let bytes = page(page_no, u64::from(page_no) + 1, false);
                            cache.insert(PageNo::new(page_no), tag, &bytes, round / 100)
                        });
                    assert_eq!(found.view().applied_through(), u64::from(page_no) + 1);
                    match random.next_u32() % 64 {
                        0 => cache.remove(PageNo::new(page_no)),
                        1 => cache.set_batch(round / 100),
                        2 => assert!(cache.bytes() <= 300 * Cache::PAGE_COST),
                        _ => {}
                    }
                }
            });
        }
    });
    assert!(cache.stats().hits > 0);
}
