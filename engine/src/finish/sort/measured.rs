//! Ways to sort a batch, beside the one that is used: `docs/decisions/0022-worker-pools.md`.
//!
//! ```text
//! cargo test --release -p pleach --lib finish::sort -- --ignored --nocapture
//! ```

use std::iter::from_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pleach_beatree::Value;
use pleach_core::{Blake3, Hasher as _, Key};
use pleach_io::{Runtime as _, Threads};
use rayon::slice::ParallelSliceMut as _;

use super::{Access, Sorter};

const ROUNDS: usize = 41;

/// Sorts once, and says how long it took.
type Way<'a> = Box<dyn FnMut() -> Duration + 'a>;

/// So many accesses in no order.
fn accesses(count: usize) -> Vec<Access> {
    let key = |index: usize| -> Key { Blake3::hash(&index.to_le_bytes()) };
    let access = |index| Access::read_write(key(index), Some(Value::from(&[7u8; 8][..])));
    (0..count).map(access).collect()
}

fn lead(access: &Access) -> u64 {
    u64::from_be_bytes(*access.key.first_chunk().expect("32 bytes"))
}

fn proxies(accesses: &[Access], order: &mut Vec<(u64, u32)>) {
    order.clear();
    order.extend((0u32..).zip(accesses).map(|(index, access)| (lead(access), index)));
}

/// Proxies in order of their keys.
fn by_key(accesses: &[Access]) -> impl Fn(&(u64, u32), &(u64, u32)) -> std::cmp::Ordering + Sync {
    move |a, b| {
        let keys = || accesses[a.1 as usize].key.cmp(&accesses[b.1 as usize].key);
        a.0.cmp(&b.0).then_with(keys)
    }
}

/// One task after the other.
fn alone(count: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(task);
}

/// Processor time of the process, in clock ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let after = stat.rsplit(')').next().expect("a name in brackets");
    after
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum()
}

#[test]
fn every_way_gives_the_same_order() {
    let accesses = accesses(3000);
    let mut sorter = Sorter::default();
    sorter.sort::<Blake3>(&accesses, &alone).expect("sorted");
    let mut order = Vec::new();
    proxies(&accesses, &mut order);
    order.par_sort_unstable_by(by_key(&accesses));
    assert_eq!(sorter.order, order);
}

#[test]
#[ignore = "a measurement"]
fn sorting_a_batch() {
    let threads = Threads::new(2).expect("threads");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads");
    for count in [25_000, 50_000, 100_000] {
        let accesses = accesses(count);
        let (mut order, mut own) = (Vec::new(), accesses.clone());
        let mut ways: [(&str, Way<'_>); 5] = [
            ("used, with copies, one thread", {
                let mut sorter = Sorter::default();
                let accesses = &accesses;
                Box::new(move || {
                    let start = Instant::now();
                    sorter.sort::<Blake3>(accesses, &alone).expect("sorted");
                    start.elapsed()
                })
            }),
            ("used, with copies, two threads", {
                let (mut sorter, accesses, threads) = (Sorter::default(), &accesses, &threads);
                Box::new(move || {
                    let start = Instant::now();
                    let run = |count: usize, task: &(dyn Fn(usize) + Sync)| {
                        let next = AtomicUsize::new(0);
                        threads.fork_join(2, &|_| {
                            let claims = || Some(next.fetch_add(1, Ordering::Relaxed));
                            from_fn(claims).take_while(|at| *at < count).for_each(task);
                        });
                    };
                    sorter.sort::<Blake3>(accesses, &run).expect("sorted");
                    start.elapsed()
                })
            }),
            ("rayon over proxies", {
                let (pool, accesses, order) = (&pool, &accesses, &mut order);
                Box::new(move || {
                    let start = Instant::now();
                    proxies(accesses, order);
                    pool.install(|| order.par_sort_unstable_by(by_key(accesses)));
                    start.elapsed()
                })
            }),
            ("std over proxies", {
                let (accesses, mut order) = (&accesses, Vec::new());
                Box::new(move || {
                    let start = Instant::now();
                    proxies(accesses, &mut order);
                    order.sort_unstable_by(by_key(accesses));
                    start.elapsed()
                })
            }),
            ("rayon over accesses", {
                let (pool, accesses, own) = (&pool, &accesses, &mut own);
                Box::new(move || {
                    own.clone_from(accesses);
                    let start = Instant::now();
                    pool.install(|| own.par_sort_unstable_by_key(|access| access.key));
                    start.elapsed()
                })
            }),
        ];
        let mut times = [(); 5].map(|()| Vec::with_capacity(ROUNDS));
        let mut spent = [0; 5];
        for _ in 0..ROUNDS {
            for (way, (_, run)) in ways.iter_mut().enumerate() {
                let before = ticks();
                times[way].push(run());
                spent[way] += ticks() - before;
            }
        }
        for ((name, _), (mut times, spent)) in ways.iter().zip(times.into_iter().zip(spent)) {
            times.sort_unstable();
            println!(
                "{count:>7} accesses  {name:30} median {:8.1} us, processor {:6} us each",
                times[ROUNDS / 2].as_secs_f64() * 1e6,
                spent * 10_000 / ROUNDS as u64,
            );
        }
    }
}
