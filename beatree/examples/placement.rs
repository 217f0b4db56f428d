//! Reproduces docs/decisions/0010: how long the runs are that an aged leaf file hands out.
//!
//! Uniform updates in steady state: each batch rewrites pages where the policy chooses, then the old pages
//! become holes, one batch late. Four policies fill holes; the first is the engine's.
//!
//! `cargo run --release -p pleach-beatree --example placement [live pages] [pages a batch]`

use pleach_beatree::PageNo;
use pleach_beatree::space::{FileGeometry, GrowingFile, Growth, LeafRun, LeafSpace, NeedGrowth};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// An allocation policy.
trait Policy {
    fn allocate(&mut self, count: u32, out: &mut Vec<LeafRun>);
    fn free(&mut self, numbers: &[PageNo], batch: u64);
    fn pages(&self) -> u32;
}

impl Policy for LeafSpace {
    fn allocate(&mut self, count: u32, out: &mut Vec<LeafRun>) {
        let growth = Growth::Allowed;
        while let Err(NeedGrowth { segments }) = GrowingFile::allocate(self, count, growth, out) {
            self.add_segments(segments).expect("the simulated file is small");
        }
    }

    fn free(&mut self, numbers: &[PageNo], batch: u64) {
        self.release(batch - 1);
        self.retire(numbers, batch).expect("the simulation frees what it got");
    }

    fn pages(&self) -> u32 {
        Self::pages(self)
    }
}

/// Which segment is filled next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The one with the fewest used pages.
    Emptiest,
    /// The first in the file.
    First,
    /// The one after that filled last.
    Next,
}

/// A file of fixed size that fills its holes in some order, in the plainest way.
struct Plain {
    order: Order,
    /// Used pages of each segment.
    segments: Vec<[bool; SEGMENT as usize]>,
    free: Vec<u32>,
    pending: Vec<PageNo>,
    at: usize,
}

const SEGMENT: u32 = 256;

impl Plain {
    fn new(order: Order, pages: u32) -> Self {
        let count = (pages / SEGMENT) as usize;
        let segments = vec![[false; SEGMENT as usize]; count];
        Self { order, segments, free: vec![SEGMENT; count], pending: Vec::new(), at: 0 }
    }

    fn next_segment(&mut self) -> usize {
        match self.order {
            Order::Emptiest => {
                let by_free = self.free.iter().enumerate().max_by_key(|(_, free)| **free);
                by_free.map_or(0, |(segment, _)| segment)
            }
            Order::First => self.free.iter().position(|free| *free > 0).unwrap_or(0),
            Order::Next => {
                while self.free[self.at] == 0 {
                    self.at = (self.at + 1) % self.segments.len();
                }
                self.at
            }
        }
    }
}

impl Policy for Plain {
    fn allocate(&mut self, count: u32, out: &mut Vec<LeafRun>) {
        let mut numbers = Vec::new();
        while numbers.len() < count as usize {
            let segment = self.next_segment();
            let start = u32::try_from(segment).expect("page numbers have 32 bits") * SEGMENT;
            for (number, used) in (start..).zip(&mut self.segments[segment]) {
                if !*used && numbers.len() < count as usize {
                    *used = true;
                    self.free[segment] -= 1;
                    numbers.push(PageNo::new(number));
                }
            }
        }
        numbers.sort_unstable();
        out.clear();
        for number in numbers {
            match out.last_mut() {
                Some(run) if run.end() == number.get() => run.len += 1,
                _ => out.push(LeafRun { start: number, len: 1 }),
            }
        }
    }

    fn free(&mut self, numbers: &[PageNo], _batch: u64) {
        for number in core::mem::replace(&mut self.pending, numbers.to_vec()) {
            let number = number.get();
            self.segments[(number / SEGMENT) as usize][(number % SEGMENT) as usize] = false;
            self.free[(number / SEGMENT) as usize] += 1;
        }
    }

    fn pages(&self) -> u32 {
        u32::try_from(self.segments.len()).expect("page numbers have 32 bits") * SEGMENT
    }
}

/// Figures of a steady state.
struct Outcome {
    mean_run: f64,
    file_part: f64,
}

/// `skewed`: nine of ten updates go to a tenth of the pages.
fn simulate(policy: &mut dyn Policy, live: u32, per_batch: u32, skewed: bool) -> Outcome {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut runs = Vec::new();
    policy.allocate(live, &mut runs);
    let mut numbers: Vec<PageNo> = runs.iter().flat_map(LeafRun::pages).collect();
    let batches = 12 * live / per_batch;
    let (mut pages, mut writes) = (0_u64, 0_u64);
    for batch in 1..=batches {
        let mut old = Vec::with_capacity(per_batch as usize);
        let chosen = choose(&mut random, live, per_batch, skewed);
        policy.allocate(per_batch, &mut runs);
        let mut new = runs.iter().flat_map(LeafRun::pages);
        for page in chosen {
            let number = new.next().expect("as many as asked for");
            old.push(core::mem::replace(&mut numbers[page], number));
        }
        policy.free(&old, batch.into());
        if batch > batches / 2 {
            pages += u64::from(per_batch);
            writes += runs.len() as u64;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "for printing")]
    let mean_run = pages as f64 / writes as f64;
    Outcome { mean_run, file_part: f64::from(policy.pages()) / f64::from(live) }
}

/// Distinct pages, in key order as a flush has them.
fn choose(random: &mut ChaCha8Rng, live: u32, count: u32, skewed: bool) -> Vec<usize> {
    let mut chosen = std::collections::BTreeSet::new();
    while chosen.len() < count as usize {
        let range = if skewed && !random.next_u32().is_multiple_of(10) { live / 10 } else { live };
        chosen.insert((random.next_u32() % range) as usize);
    }
    chosen.into_iter().collect()
}

fn main() {
    let mut numbers = std::env::args().skip(1).map_while(|text| text.parse::<u32>().ok());
    let live = numbers.next().unwrap_or(400_000);
    let per_batch = numbers.next().unwrap_or(1_000);
    println!("{live} live pages, {per_batch} a batch, segments of 256; mean run in pages");
    println!("updates  file/live  policy                  mean run");
    for skewed in [false, true] {
        for size_percent in [125, 150, 200] {
            let geometry = FileGeometry { segment_pages: SEGMENT, size_percent };
            let pages =
                (u64::from(live) * u64::from(size_percent) / 100).next_multiple_of(SEGMENT.into());
            let plain = |order| -> Box<dyn Policy> {
                let pages = u32::try_from(pages).expect("page numbers have 32 bits");
                Box::new(Plain::new(order, pages))
            };
            let policies: [(&str, Box<dyn Policy>); 4] = [
                ("sweep (the engine's)", Box::new(LeafSpace::new(geometry))),
                ("emptiest segment first", plain(Order::Emptiest)),
                ("first fit", plain(Order::First)),
                ("next fit", plain(Order::Next)),
            ];
            for (name, mut policy) in policies {
                let outcome = simulate(policy.as_mut(), live, per_batch, skewed);
                println!(
                    "{:8} {:9.2}  {name:22} {:9.2}",
                    if skewed { "skewed" } else { "uniform" },
                    outcome.file_part,
                    outcome.mean_run,
                );
            }
        }
    }
}
