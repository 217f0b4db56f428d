//! The simulated executor keeps the contract of `Runtime`, explores orders, and says so when nothing can go on.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use pleach_io::sim::{SimClock, SimRuntime};
use pleach_io::{Event, Runtime, Step, TaskHandle};

fn message(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// A task that counts its steps and goes idle; `stop` at 1000 ends it.
fn counter(runtime: &SimRuntime, count: &Arc<AtomicU32>) -> (Event, TaskHandle) {
    let (event, steps) = (runtime.event(), Arc::clone(count));
    let task = move || match steps.fetch_add(1, Ordering::Relaxed) {
        1000.. => Step::Done,
        _ => Step::Idle,
    };
    let handle = runtime.spawn("counter", &event, Box::new(task)).expect("a thread");
    (event, handle)
}

#[test]
fn an_idle_task_is_stepped_once_a_notification() {
    let runtime = SimRuntime::new(1);
    let count = Arc::new(AtomicU32::new(0));
    let (event, handle) = counter(&runtime, &count);
    assert_eq!(runtime.step_some(10), 1, "a new task takes a first step");
    assert_eq!(runtime.step_some(10), 0);
    event.notify();
    event.notify();
    assert_eq!(runtime.step_some(10), 1, "notifications while it sleeps are one");
    count.store(1000, Ordering::Relaxed);
    event.notify();
    drop(handle);
    assert_eq!(count.load(Ordering::Relaxed), 1001, "dropping the handle stepped it to its end");
}

#[test]
fn a_notification_during_a_step_is_not_lost() {
    let runtime = SimRuntime::new(1);
    let event = runtime.event();
    let (own, mut left) = (event.clone(), 3);
    let task = move || {
        left -= 1;
        own.notify();
        if left == 0 { Step::Done } else { Step::Idle }
    };
    drop(runtime.spawn("selfish", &event, Box::new(task)).expect("a thread"));
}

#[test]
fn time_jumps_to_timers_and_to_the_deadline() {
    let runtime = SimRuntime::new(1);
    let (event, other) = (runtime.event(), runtime.event());
    let ticks = Arc::new(AtomicU32::new(0));
    let (seen, tell) = (Arc::clone(&ticks), other.clone());
    let task = move || {
        let tick = seen.fetch_add(1, Ordering::Relaxed);
        tell.notify();
        if tick == 5 { Step::Done } else { Step::IdleFor(Duration::from_secs(60)) }
    };
    let handle = runtime.spawn("timer", &event, Box::new(task)).expect("a thread");
    let start = runtime.now();
    assert!(runtime.wait(&other, None, &mut || ticks.load(Ordering::Relaxed) == 3));
    assert!(runtime.now().saturating_sub(start) >= Duration::from_secs(120));
    let start = runtime.now();
    assert!(!runtime.wait(&event, Some(Duration::from_secs(7)), &mut || false));
    let waited = runtime.now().saturating_sub(start);
    assert!(waited >= Duration::from_secs(7) && waited < Duration::from_secs(8), "{waited:?}");
    drop(handle);
    assert!(runtime.now().saturating_sub(start) >= Duration::from_secs(100));
}

#[test]
fn a_deadlock_panics_and_lists_the_tasks() {
    let runtime = SimRuntime::new(1);
    let count = Arc::new(AtomicU32::new(0));
    let (event, handle) = counter(&runtime, &count);
    let never = runtime.event();
    let text = message(|| {
        runtime.wait(&never, None, &mut || false);
    });
    assert!(text.contains("has not happened") && text.contains("counter"), "{text}");
    count.store(1000, Ordering::Relaxed);
    event.notify();
    drop(handle);
    let (_event, handle) = counter(&runtime, &Arc::new(AtomicU32::new(0)));
    let text = message(|| drop(handle));
    assert!(text.contains("never told to end"), "{text}");
}

#[test]
fn a_missed_notification_panics_though_the_condition_is_true() {
    let runtime = SimRuntime::new(1);
    let (event, waited) = (runtime.event(), runtime.event());
    let count = Arc::new(AtomicU32::new(0));
    let steps = Arc::clone(&count);
    let task = move || {
        // Two steps, so that no luck at the start of the wait gets past both.
        if steps.fetch_add(1, Ordering::Relaxed) < 9 { Step::Continue } else { Step::Done }
    };
    let _handle = runtime.spawn("silent", &event, Box::new(task)).expect("a thread");
    let text = message(|| {
        runtime.wait(&waited, None, &mut || count.load(Ordering::Relaxed) == 10);
    });
    assert!(text.contains("was not notified"), "{text}");
}

#[test]
fn a_wait_inside_a_step_steps_the_other_tasks() {
    let runtime = SimRuntime::new(3);
    let (event, ready) = (runtime.event(), runtime.event());
    let value = Arc::new(AtomicU32::new(0));
    let (inner, cell, signal) = (runtime.clone(), Arc::clone(&value), ready.clone());
    let outer = runtime
        .spawn(
            "outer",
            &event,
            Box::new(move || {
                assert!(inner.wait(&signal, None, &mut || cell.load(Ordering::Relaxed) == 1));
                Step::Done
            }),
        )
        .expect("a thread");
    let cell = Arc::clone(&value);
    let helper = move || {
        cell.store(1, Ordering::Relaxed);
        ready.notify();
        Step::Done
    };
    let helper = runtime.spawn("helper", &event, Box::new(helper)).expect("a thread");
    drop(outer);
    drop(helper);
    assert_eq!(value.load(Ordering::Relaxed), 1);
}

#[test]
fn seeds_explore_different_orders_of_tasks_and_jobs() {
    let mut orders = std::collections::BTreeSet::new();
    let mut jobs = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let runtime = SimRuntime::with_clock(seed, SimClock::default(), 3);
        let (event, order) = (runtime.event(), Arc::new(Mutex::new(Vec::new())));
        let handles: Vec<_> = (0..3)
            .map(|who| {
                let order = Arc::clone(&order);
                let task = move || {
                    order.lock().unwrap().push(who);
                    Step::Done
                };
                runtime.spawn("one", &event, Box::new(task)).expect("a thread")
            })
            .collect();
        drop(handles);
        orders.insert(order.lock().unwrap().clone());
        let order = Mutex::new(Vec::new());
        runtime.fork_join(3, &|index| order.lock().unwrap().push(index));
        jobs.insert(order.into_inner().unwrap());
    }
    assert_eq!((orders.len(), jobs.len()), (6, 6));
}

#[test]
fn a_panic_in_a_job_comes_out_after_the_others_have_run() {
    let runtime = SimRuntime::with_clock(1, SimClock::default(), 4);
    let ran = AtomicU32::new(0);
    let text = message(|| {
        runtime.fork_join(4, &|index| {
            ran.fetch_add(1, Ordering::Relaxed);
            assert!(index != 2, "job {index}");
        });
    });
    assert_eq!((text.as_str(), ran.load(Ordering::Relaxed)), ("job 2", 4));
}

#[test]
fn a_task_that_panics_ends_and_its_handle_drops() {
    let runtime = SimRuntime::new(1);
    let event = runtime.event();
    let handle =
        runtime.spawn("broken", &event, Box::new(|| panic!("task {}", 1))).expect("a thread");
    assert_eq!(message(|| drop(handle)), "task 1");
    assert_eq!(runtime.step_some(5), 0);
}

#[test]
fn random_numbers_come_from_the_seed_and_not_from_the_schedule() {
    let (one, two) = (SimRuntime::new(5), SimRuntime::new(5));
    let count = Arc::new(AtomicU32::new(0));
    let (event, handle) = counter(&two, &count);
    two.step_some(3);
    assert_eq!(one.random(), two.random());
    assert_ne!(one.random(), SimRuntime::new(6).random());
    count.store(1000, Ordering::Relaxed);
    event.notify();
    drop(handle);
}

#[test]
fn a_notification_wakes_a_task_before_its_timer() {
    let runtime = SimRuntime::new(1);
    let (event, mut steps) = (runtime.event(), 0);
    let task = move || {
        steps += 1;
        if steps == 2 { Step::Done } else { Step::IdleFor(Duration::from_secs(3600)) }
    };
    let handle = runtime.spawn("sleeper", &event, Box::new(task)).expect("a thread");
    assert_eq!(runtime.step_some(5), 1);
    event.notify();
    assert_eq!(runtime.step_some(5), 1);
    drop(handle);
    assert!(runtime.now() < Duration::from_secs(1));
}
