//! A period ends when everyone who was inside at its start has left, and not before.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use pleach_beatree::grace::Grace;

#[test]
fn without_readers_a_period_is_over_at_once() {
    let grace = Grace::new();
    for _ in 0..10 {
        let period = grace.start_period();
        assert!(period.poll());
        assert!(period.poll());
    }
}

#[test]
fn a_reader_from_before_holds_a_period_and_a_later_one_does_not() {
    let grace = Grace::new();
    let early = grace.enter();
    let period = grace.start_period();
    assert!(!period.poll());
    assert!(!period.poll());
    let late = grace.enter();
    drop(early);
    // The late one entered while the phase of the period was not over, or after: at most one of the two phases can
    // contain it.
    let second = grace.start_period();
    assert!(!second.poll());
    drop(late);
    assert!(period.poll() && second.poll());
}

#[test]
fn new_readers_never_starve_a_period() {
    let grace = Grace::new();
    let mut guard = grace.enter();
    for _ in 0..1000 {
        let period = grace.start_period();
        let mut polls = 0;
        while !period.poll() {
            // Always one reader inside, never the same for long.
            let next = grace.enter();
            guard = next;
            polls += 1;
            assert!(polls < 4, "a period waits for those of its start only");
        }
    }
    drop(guard);
}

#[test]
fn a_guard_may_leave_on_another_thread() {
    let grace = Grace::new();
    let period = thread::scope(|scope| {
        let guard = grace.enter();
        let period = grace.start_period();
        assert!(!period.poll());
        scope.spawn(move || drop(guard));
        period
    });
    assert!(period.poll());
}

#[test]
fn many_periods_at_once_end_in_any_order_of_polling() {
    let grace = Grace::new();
    let guard = grace.enter();
    let periods: Vec<_> = (0..8).map(|_| grace.start_period()).collect();
    assert!(periods.iter().rev().all(|period| !period.poll()));
    drop(guard);
    assert!(periods.iter().rev().all(grace_over));
}

fn grace_over(period: &pleach_beatree::grace::GracePeriod) -> bool {
    period.poll()
}

/// Readers follow a published slot number and check that the slot is not reused while they read; the writer moves the
/// number, polls until the period is over, then reuses the old slot.
#[test]
fn freed_slots_are_not_reused_under_a_reader() {
    const SLOTS: usize = 4;
    const READERS: u64 = 3;
    let rounds: usize =
        std::env::var("PLEACH_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(4000);
    let grace = Grace::new();
    let live: [AtomicBool; SLOTS] = core::array::from_fn(|slot| AtomicBool::new(slot == 0));
    let current = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let begun = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..READERS {
            let (grace, live, current, stop, begun) = (&grace, &live, &current, &stop, &begun);
            scope.spawn(move || {
                let mut reads = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let guard = grace.enter();
                    let slot = current.load(Ordering::Acquire);
                    begun.fetch_add(u64::from(reads == 0), Ordering::Relaxed);
                    if reads.is_multiple_of(64) {
                        thread::yield_now();
                    }
                    assert!(live[slot].load(Ordering::Relaxed), "slot {slot} was freed under us");
                    drop(guard);
                    reads += 1;
                }
            });
        }
        // On a busy machine it may take more rounds until every reader runs.
        let mut round = 0;
        while round < rounds || begun.load(Ordering::Relaxed) < READERS {
            round += 1;
            let old = current.load(Ordering::Relaxed);
            let new = (old + 1 + round % (SLOTS - 1)) % SLOTS;
            live[new].store(true, Ordering::Relaxed);
            current.store(new, Ordering::Release);
            let period = grace.start_period();
            while !period.poll() {
                thread::yield_now();
            }
            live[old].store(false, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
