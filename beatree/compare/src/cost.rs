//! What a cached page costs beside itself, and what a hit and a miss take.

use std::hint::black_box;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::caches::{Contender, OWN_BESIDE, page};

/// Nanoseconds each.
pub(crate) struct Nanos {
    pub(crate) hit: f64,
    /// A hit among 32 that are looked up together.
    pub(crate) group: f64,
    /// A lookup that misses, and the insertion of a page of its own, filled and with its
    /// fingerprints, while another leaves.
    pub(crate) insert: f64,
}

fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    4096.0 * pages.expect("a number")
}

/// Bytes a page that a full cache takes beside its pages: in the others all pages are one.
pub(crate) fn overhead(contender: Contender, pages: usize) -> f64 {
    if contender == Contender::Own {
        // Counted by itself, allocations and all; docs/decisions/0011 has it against the system's
        // figure.
        return OWN_BESIDE as f64;
    }
    let before = resident();
    let mut cache = contender.build(pages, true);
    // Three times over, so that all that is remembered of pages that left is there.
    for page_no in 0..3 * u32::try_from(pages).expect("fewer than 2^32") {
        cache.insert(page_no, 0);
    }
    (resident() - before) / cache.pages() as f64
}

pub(crate) fn nanos(contender: Contender, pages: usize) -> Nanos {
    const HITS: u32 = 2_000_000;
    let sources: Vec<_> = (0..64).map(page).collect();
    let cache = contender.build(pages, false);
    let count = u32::try_from(pages).expect("fewer than 2^32");
    let source = |page_no: u32| &sources[page_no as usize % 64];
    for page_no in 0..count {
        cache.miss(page_no, source(page_no));
    }
    // Beyond what is allocated for the first time.
    let start = Instant::now();
    for page_no in count..3 * count {
        cache.miss(page_no, source(page_no));
    }
    let insert = start.elapsed().as_nanos() as f64 / f64::from(2 * count);
    let present: Vec<u32> = (0..3 * count).filter(|page_no| cache.get(*page_no)).collect();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let asked: Vec<u32> =
        (0..HITS).map(|_| present[random.next_u32() as usize % present.len()]).collect();
    let start = Instant::now();
    let mut hits = 0;
    for page_no in &asked {
        hits += u32::from(black_box(cache.get(*page_no)));
    }
    let hit = start.elapsed().as_nanos() as f64 / f64::from(HITS);
    assert_eq!(hits, HITS, "what is here is found");
    let start = Instant::now();
    let found: usize = asked.chunks(32).map(|group| black_box(cache.get_group(group))).sum();
    let group = start.elapsed().as_nanos() as f64 / f64::from(HITS);
    assert_eq!(found, asked.len(), "what is here is found");
    Nanos { hit, group, insert }
}
