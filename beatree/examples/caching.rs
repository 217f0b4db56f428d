//! Reproduces docs/decisions/0011 and 0012: what a cached page costs and which pages stay.
//!
//! `cargo run --release -p pleach-beatree --example caching [cached pages]`

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hint::black_box;
use std::time::{Duration, Instant};

use pleach_beatree::PageNo;
use pleach_beatree::cache::{Cache, NO_BATCH};
use pleach_core::page::leaf::{LeafBuilder, LeafHeader, RawCell};
use pleach_core::page::{FileKind, Identity, PAGE_SIZE, Page};
use pleach_core::prefix::Prefix;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A page of 90 balances under a prefix of 20 bits.
fn page(random: &mut ChaCha8Rng) -> Page {
    let mut keys: Vec<[u8; 32]> = vec![[0x42; 32]; 90];
    for key in &mut keys {
        random.fill_bytes(&mut key[3..]);
    }
    keys.sort_unstable();
    let mut page = [0; PAGE_SIZE];
    let header = LeafHeader {
        identity: Identity { kind: FileKind::Leaf, page_no: 0, db_id: 1 },
        flush: 1,
        namespace: 0,
        prefix: Prefix::new(&keys[0], 20),
        applied_through: 1,
        levels: 0,
        count: 90,
    };
    let mut builder = LeafBuilder::new(&mut page, &header);
    for key in &keys {
        builder.push(key, RawCell { bytes: &[1; 8], overflow: false });
    }
    builder.seal();
    page
}

fn each(start: Instant, count: u32) -> Duration {
    start.elapsed() / count
}

fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

fn costs(pages: u32) {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let sources: Vec<Page> = (0..64).map(|_| page(&mut random)).collect();
    let cache = Cache::new(pages as usize * (Cache::PAGE_COST + 100));
    let (before, start) = (resident(), Instant::now());
    for page_no in 0..pages {
        cache.insert(PageNo::new(page_no), 1, &sources[page_no as usize % 64], NO_BATCH);
    }
    println!("first insertion {:?}", each(start, pages));
    let stats = cache.stats();
    if let (Some(before), Some(after)) = (before, resident()) {
        let (real, counted) = ((after - before) / stats.pages, stats.bytes / stats.pages);
        println!("resident {real} bytes a page, counted {counted}");
    }
    let start = Instant::now();
    for page_no in 0..pages {
        cache.insert(PageNo::new(pages + page_no), 1, &sources[page_no as usize % 64], NO_BATCH);
    }
    println!("insertion with eviction {:?}", each(start, pages));

    let present: Vec<u32> =
        (0..2 * pages).filter(|p| cache.get(PageNo::new(*p), 1).is_some()).collect();
    for (name, among) in [("all pages", present.len()), ("1,000 pages", present.len().min(1000))] {
        let asked: Vec<u32> =
            (0..2_000_000).map(|_| present[random.next_u32() as usize % among]).collect();
        let start = Instant::now();
        for page_no in &asked {
            black_box(cache.get(PageNo::new(*page_no), 1));
        }
        println!("get, random among {name}: {:?}", each(start, 2_000_000));
    }
    find(&cache, &present);
}

/// Looks keys up in pages that are in the processor's caches, and in pages that are not.
fn find(cache: &Cache, present: &[u32]) {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for (name, among) in [("64 pages", 64.min(present.len())), ("all pages", present.len())] {
        let asked: Vec<_> = (0..1_000_000)
            .filter_map(|_| {
                let page =
                    cache.get(PageNo::new(present[random.next_u32() as usize % among]), 1)?;
                let key = page.view().key(random.next_u32() as usize % 90);
                Some((page, key))
            })
            .collect();
        let count = u32::try_from(asked.len()).unwrap_or(u32::MAX);
        let start = Instant::now();
        for (page, key) in &asked {
            black_box(page.find(key));
        }
        let by_print = each(start, count);
        let start = Instant::now();
        for (page, key) in &asked {
            let _ = black_box(page.view().find(key));
        }
        println!(
            "find in {name}: by fingerprint {by_print:?}, binary search {:?}",
            each(start, count)
        );
    }
}

/// A policy on page numbers alone.
trait Model {
    /// Records an access of `page`. True when the page was cached.
    fn access(&mut self, page: u32) -> bool;
}

impl Model for (Cache, Page) {
    fn access(&mut self, page: u32) -> bool {
        let hit = self.0.get(PageNo::new(page), 0).is_some();
        if !hit {
            self.0.insert(PageNo::new(page), 0, &self.1, NO_BATCH);
        }
        hit
    }
}

/// Least recently used.
struct Lru {
    size: usize,
    clock: u64,
    last: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
}

impl Model for Lru {
    fn access(&mut self, page: u32) -> bool {
        self.clock += 1;
        let before = self.last.insert(page, self.clock);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.clock, page);
        if self.last.len() > self.size
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.last.remove(&oldest);
        }
        before.is_some()
    }
}

/// CLOCK with two bits of uses.
struct Clock {
    size: usize,
    uses: HashMap<u32, u8>,
    ring: VecDeque<u32>,
}

impl Model for Clock {
    fn access(&mut self, page: u32) -> bool {
        if let Some(uses) = self.uses.get_mut(&page) {
            *uses = 3.min(*uses + 1);
            return true;
        }
        while self.ring.len() >= self.size {
            let Some(oldest) = self.ring.pop_front() else { break };
            match self.uses.get_mut(&oldest) {
                Some(uses) if *uses > 0 => {
                    *uses -= 1;
                    self.ring.push_back(oldest);
                }
                _ => drop(self.uses.remove(&oldest)),
            }
        }
        self.ring.push_back(page);
        self.uses.insert(page, 0);
        false
    }
}

/// Accesses pages as a workload does, with `scans` passes over all pages in between. The share of hits.
fn hits(model: &mut dyn Model, pages: u32, exponent: f64, scans: u32) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    // Hot pages are spread over the file: page numbers by rank, shuffled.
    let mut by_rank: Vec<u32> = (0..pages).collect();
    for last in (1..by_rank.len()).rev() {
        by_rank.swap(last, random.next_u32() as usize % (last + 1));
    }
    let (rounds, per_round) = (8, 2 * pages);
    let (mut hits, mut asked) = (0_u32, 0_u32);
    for round in 0..rounds {
        for _ in 0..per_round {
            let unit = f64::from(random.next_u32()) / f64::from(u32::MAX);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 0 to the number of pages"
            )]
            let rank = (unit.powf(exponent) * f64::from(pages - 1)) as usize;
            let hit = model.access(by_rank[rank]);
            if round >= rounds / 2 {
                hits += u32::from(hit);
                asked += 1;
            }
        }
        for page in (0..scans).flat_map(|_| 0..pages) {
            model.access(page);
        }
    }
    100.0 * f64::from(hits) / f64::from(asked)
}

fn policies(cached: u32) {
    let pages = cached * 8;
    println!("hit rate in percent, {cached} of {pages} pages cached");
    println!("pages asked for            S3-FIFO   CLOCK     LRU");
    let workloads = [
        ("uniform", 1.0, 0),
        ("skewed", 4.0, 0),
        ("very skewed", 10.0, 0),
        ("skewed, with scans", 4.0, 1),
        ("very skewed, with scans", 10.0, 1),
    ];
    let size = cached as usize;
    for (name, exponent, scans) in workloads {
        let page = page(&mut ChaCha8Rng::seed_from_u64(1));
        // As many pages as the models have: tables take about 75 bytes a page.
        let mut cache = (Cache::new(size * (Cache::PAGE_COST + 75)), page);
        let mut clock = Clock { size, uses: HashMap::new(), ring: VecDeque::new() };
        let mut lru = Lru { size, clock: 0, last: HashMap::new(), order: BTreeMap::new() };
        let models: [&mut dyn Model; 3] = [&mut cache, &mut clock, &mut lru];
        print!("{name:25}");
        for model in models {
            print!("{:9.1}", hits(model, pages, exponent, scans));
        }
        println!("   ({} pages in the cache)", cache.0.stats().pages);
    }
}

fn main() {
    let pages = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    costs(pages);
    policies(10_000);
}
