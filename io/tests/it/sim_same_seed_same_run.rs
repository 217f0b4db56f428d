//! One seed gives one run: same trace, same ledger, same clock, whatever happens.

use pleach_io::sim::{Asserts, FaultRates, Rng, SimDisk, SimOptions, SimRuntime, Unpolled};
use pleach_io::{Device, OpenMode, PageBuf, Request, RequestKind, Runtime, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A foreground and two background tasks on one disk, with faults.
fn run(seed: u64) -> (u64, String, u64) {
    let asserts = Asserts { unpolled: Unpolled::Ignore, overlapping_writes: false };
    let rates = FaultRates::draw(seed);
    let disk = SimDisk::new(seed, SimOptions { rates, asserts, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 2);
    let (wake, steps) = (runtime.event(), Arc::new(AtomicU64::new(0)));
    let file = loop {
        if let Ok(file) = disk.open("f", OpenMode::CreateNew) {
            break file;
        }
    };
    let handles: Vec<_> = (0..2_u64)
        .map(|who| {
            let (disk, file, steps) = (disk.clone(), file.clone(), Arc::clone(&steps));
            let (mut rng, notify) = (Rng::new(seed ^ who), wake.clone());
            let mut queue = loop {
                if let Ok(queue) = disk.queue(4) {
                    break queue;
                }
            };
            let task = move || {
                let transfer =
                    [RequestKind::Read, RequestKind::Write, RequestKind::Sync][rng.index(3)];
                if queue.in_flight() < queue.depth() {
                    let offset = rng.below(16) * 4096;
                    let buf = PageBuf::zeroed(1);
                    queue.push(Request {
                        file: file.clone(),
                        kind: transfer,
                        offset,
                        buf,
                        token: who,
                    });
                }
                let _ = if rng.chance(1, 2) { Ok(queue.poll()) } else { queue.wait() };
                notify.notify();
                if steps.fetch_add(1, Ordering::Relaxed) > 200 {
                    Step::Done
                } else {
                    Step::Continue
                }
            };
            runtime.spawn("worker", &wake, Box::new(task)).expect("a thread")
        })
        .collect();
    for round in 0..10 {
        disk.mark(round);
        let _ = disk.sync(&file);
        let goal = steps.load(Ordering::Relaxed) + 5;
        let mut reached = || steps.load(Ordering::Relaxed) >= goal;
        assert!(runtime.wait(&wake, None, &mut reached));
    }
    drop(handles);
    let now = runtime.now().as_nanos();
    let ledger: Vec<_> = disk.ledger().iter().map(ToString::to_string).collect();
    (disk.trace().digest(), ledger.join("\n"), u64::try_from(now).unwrap())
}

#[test]
fn the_same_seed_gives_the_same_trace_ledger_and_time() {
    let mut digests = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let first = run(seed);
        assert!(first == run(seed), "seed {seed}");
        digests.insert(first.0);
    }
    assert_eq!(digests.len(), 30, "and different seeds give different runs");
}

/// Three requests end in each of their six orders, and a read beside a write sees either.
#[test]
fn seeds_explore_all_orders_of_completion_and_both_sides_of_a_race() {
    let (mut orders, mut raced) = (Vec::new(), Vec::new());
    for seed in 0..200 {
        let disk = SimDisk::new(seed, SimOptions::default());
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.write_at(&file, &PageBuf::zeroed(1), 1, 0).unwrap();
        let mut queue = disk.queue(3).unwrap();
        for transfer in [RequestKind::Write, RequestKind::Read, RequestKind::Sync] {
            let mut buf = PageBuf::zeroed(1);
            buf.fill(u8::from(transfer == RequestKind::Write));
            let token = transfer as u64;
            queue.push(Request { file: file.clone(), kind: transfer, offset: 0, buf, token });
        }
        let mut order = Vec::new();
        while let Some(done) = queue.wait().unwrap() {
            done.result.unwrap();
            if done.token == RequestKind::Read as u64 {
                raced.push((order.contains(&(RequestKind::Write as u64)), done.buf[0]));
            }
            order.push(done.token);
        }
        orders.push(order);
    }
    orders.sort();
    orders.dedup();
    assert_eq!(orders.len(), 6);
    raced.sort_unstable();
    raced.dedup();
    assert_eq!(raced, [(false, 0), (false, 1), (true, 0), (true, 1)], "(write had ended, saw it)");
}
