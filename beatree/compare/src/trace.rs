//! The page accesses of `nomt-bench transfer`, from its definition.
//!
//! A batch is 25,000 transfers; a quarter of the receivers are fresh accounts. Keys are hashes, so
//! an account's page is drawn evenly from all of them, and pages of about 66 accounts make 2^18 of
//! 2^24 accounts and 2^21 of 2^27. Per batch each page is asked for three times: by prefetch in the
//! order of the accounts, by reads in the same order, by the finish in the order of pages. The commit changes
//! each page; on its eighth change a flush writes it under another number, with another tag.
//! The flush of a batch runs beside the next one: here between its prefetch and its reads, where it
//! costs held pages most. What it will write is held for the new batch, as the engine does it.

use std::collections::VecDeque;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::caches::Pages;

const TRANSFERS: u32 = 25_000;
/// Changes until a page is rewritten.
const FLUSH_AT: u8 = 8;
/// One page has this many accounts, as a power of two: 64 of the 66.
const ACCOUNTS_LOG2: u32 = 6;

/// How senders and receivers are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accounts {
    Uniform,
    /// Rank `r` in proportion to `1/r`, by inverting the integral of `1/x`.
    Zipf,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// Accounts, as a power of two.
    pub(crate) log2: u32,
    pub(crate) accounts: Accounts,
}

/// What the counted batches came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Pages of batches.
    pub(crate) uses: u64,
    /// Of these, not there when the batch asked first.
    pub(crate) misses: u64,
    /// Gone again when the same batch read or finished.
    pub(crate) rereads: u64,
    /// Gone when the flush wanted to rewrite them.
    pub(crate) flush_reads: u64,
    pub(crate) batches: u32,
    /// What the caches took, with the filling of pages that were read.
    pub(crate) nanos: u64,
    /// Most pages that were there at the end of a batch.
    pub(crate) most: usize,
}

#[derive(Clone, Copy)]
struct At {
    page_no: u32,
    tag: u32,
    touches: u8,
    /// Batch that asked for it last.
    asked: u32,
}

/// Pages, where they are, and what is free.
struct World {
    pages: Vec<At>,
    free: VecDeque<u32>,
    tag: u32,
}

impl World {
    fn new(count: u32, random: &mut ChaCha8Rng) -> Self {
        // Touched as often as in the middle of a long run.
        let touches = |random: &mut ChaCha8Rng| (random.next_u32() % u32::from(FLUSH_AT)) as u8;
        let pages = (0..count)
            .map(|page_no| At { page_no, tag: 0, touches: touches(random), asked: 0 })
            .collect();
        Self { pages, free: (count..count + count / 4).collect(), tag: 0 }
    }

    /// Gives a page a new number and tag; returns the old ones.
    fn rewrite(&mut self, page: usize) -> (u32, u32) {
        self.tag += 1;
        let at = &mut self.pages[page];
        let old = (at.page_no, at.tag);
        at.page_no = self.free.pop_front().expect("a quarter is free");
        (at.tag, at.touches) = (self.tag, 0);
        self.free.push_back(old.0);
        old
    }
}

fn mix(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn account(spec: Spec, random: &mut ChaCha8Rng) -> u64 {
    let count = 1_u64 << spec.log2;
    match spec.accounts {
        Accounts::Uniform => random.next_u64() % count,
        Accounts::Zipf => {
            let unit = random.next_u32() as f64 / (f64::from(u32::MAX) + 1.0);
            let rank = ((count as f64 + 1.0).ln() * unit).exp() as u64;
            rank.clamp(1, count) - 1
        }
    }
}

/// Runs batches through a cache.
pub(crate) fn run(cache: &mut dyn Pages, spec: Spec, warm: u32, counted: u32) -> Outcome {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let bits = spec.log2 - ACCOUNTS_LOG2;
    let mut world = World::new(1 << bits, &mut random);
    let mut fresh = 1_u64 << 40;
    let mut ripe: Vec<usize> = Vec::new();
    let mut outcome = Outcome::default();
    for batch in 1..=warm + counted {
        let mut now = Outcome::default();
        let mut asked = Vec::with_capacity(2 * TRANSFERS as usize);
        for transfer in 0..TRANSFERS {
            let sender = account(spec, &mut random);
            let receiver = if transfer % 4 == 0 {
                fresh += 1;
                fresh
            } else {
                account(spec, &mut random)
            };
            for id in [sender, receiver] {
                let page = usize::try_from(mix(id) >> (64 - bits)).expect("few bits");
                if world.pages[page].asked != batch {
                    world.pages[page].asked = batch;
                    asked.push(page);
                }
            }
        }
        let start = Instant::now();
        cache.begin(u64::from(batch));
        for page in &ripe {
            cache.hold(world.pages[*page].page_no, world.pages[*page].tag);
        }
        for page in &asked {
            let At { page_no, tag, .. } = world.pages[*page];
            now.uses += 1;
            if !cache.ask(page_no, tag) {
                now.misses += 1;
                cache.insert(page_no, tag);
            }
        }
        // The flush of the batch before. What the running batch has asked for is held for both.
        for page in ripe.drain(..) {
            let At { page_no, tag, .. } = world.pages[page];
            if !cache.find(page_no, tag) {
                now.flush_reads += 1;
            }
            world.rewrite(page);
            cache.replace((page_no, tag), (world.pages[page].page_no, world.pages[page].tag));
        }
        let mut sorted = asked.clone();
        sorted.sort_unstable();
        for page in asked.iter().chain(&sorted) {
            let At { page_no, tag, .. } = world.pages[*page];
            if !cache.use_again(page_no, tag) {
                now.rereads += 1;
                cache.insert(page_no, tag);
            }
        }
        now.nanos = u64::try_from(start.elapsed().as_nanos()).expect("short");
        for page in &sorted {
            let at = &mut world.pages[*page];
            at.touches += 1;
            if at.touches == FLUSH_AT {
                ripe.push(*page);
            }
        }
        if batch > warm {
            outcome.uses += now.uses;
            outcome.misses += now.misses;
            outcome.rereads += now.rereads;
            outcome.flush_reads += now.flush_reads;
            outcome.batches += 1;
            outcome.nanos += now.nanos;
            outcome.most = outcome.most.max(cache.pages());
        }
    }
    outcome
}
