//! The production runtime: nothing is lost, nothing hangs, panics are reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pleach_io::threads::TaskPanicked;
use pleach_io::{Runtime, Step, Threads};

fn runtime(workers: usize) -> Threads {
    Threads::new(workers).expect("threads")
}

#[test]
fn each_index_runs_once_and_always_on_its_own_thread() {
    let runtime = runtime(4);
    assert_eq!(runtime.workers(), 4);
    let mut first: Option<Vec<ThreadId>> = None;
    for _ in 0..200 {
        let seen = Mutex::new(vec![Vec::new(); 4]);
        runtime.fork_join(4, &|index| {
            seen.lock().expect("alive")[index].push(std::thread::current().id());
        });
        let seen = seen.into_inner().expect("alive");
        assert!(seen.iter().all(|ids| ids.len() == 1));
        let seen: Vec<_> = seen.into_iter().map(|ids| ids[0]).collect();
        assert!(!seen.contains(&std::thread::current().id()), "a ring has one thread");
        assert_eq!(*first.get_or_insert_with(|| seen.clone()), seen);
    }
    runtime.fork_join(0, &|_| unreachable!("no index"));
}

#[test]
fn a_panic_goes_on_at_the_caller_after_all_others_have_returned() {
    let runtime = runtime(4);
    for bad in 0..4 {
        let ended = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            runtime.fork_join(4, &|index| {
                assert!(index != bad, "index {index} is bad");
                std::thread::sleep(Duration::from_millis(5));
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }));
        let panic = result.expect_err("one panicked");
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains(&format!("index {bad} is bad")));
        assert_eq!(ended.load(Ordering::Relaxed), 3);
    }
    let sum = AtomicUsize::new(0);
    runtime.fork_join(4, &|index| {
        sum.fetch_add(index, Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 6, "the workers live on");
}

#[test]
fn a_call_inside_a_job_runs_here() {
    let runtime = runtime(2);
    let count = AtomicUsize::new(0);
    runtime.fork_join(2, &|_| {
        let this = std::thread::current().id();
        runtime.fork_join(2, &|_| {
            assert_eq!(std::thread::current().id(), this);
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.into_inner(), 4);
}

#[test]
fn calls_from_many_threads_whose_jobs_wait_for_each_other_end() {
    let runtime = runtime(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let barrier = Barrier::new(3);
                    runtime.fork_join(3, &|_| {
                        barrier.wait();
                    });
                }
            });
        }
    });
}

#[test]
fn the_last_handle_may_go_inside_a_job() {
    let runtime = runtime(2);
    let keep = Mutex::new(Some(runtime.clone()));
    let gone = Arc::new(AtomicBool::new(false));
    let (event, flag) = (runtime.event(), gone.clone());
    let task = {
        let clone = runtime.clone();
        let mut clone = Some(clone);
        Box::new(move || {
            drop(clone.take());
            flag.store(true, Ordering::Release);
            Step::Done
        })
    };
    runtime.fork_join(2, &|_| drop(keep.lock().expect("alive").take()));
    let handle = runtime.start("last", &event, task).expect("a thread");
    drop(runtime);
    assert_eq!(handle.join(), Ok(()));
    assert!(gone.load(Ordering::Acquire));
}

#[test]
fn no_notification_is_lost() {
    // Each task passes a token to the other through a counter; one lost wake-up and both sleep.
    const ROUNDS: usize = 2000;
    let runtime = runtime(1);
    let turn = Arc::new(AtomicUsize::new(0));
    let events = [runtime.event(), runtime.event()];
    let handles = [0, 1].map(|me: usize| {
        let (turn, other) = (turn.clone(), events[1 - me].clone());
        let task = move || {
            let now = turn.load(Ordering::Acquire);
            if now >= ROUNDS {
                other.notify();
                return Step::Done;
            }
            if now % 2 != me {
                return Step::Idle;
            }
            turn.store(now + 1, Ordering::Release);
            other.notify();
            Step::Continue
        };
        runtime.start("ping", &events[me], Box::new(task)).expect("a thread")
    });
    for handle in handles {
        assert_eq!(handle.join(), Ok(()));
    }
}

#[test]
fn a_panicking_task_ends_and_says_so() {
    let runtime = runtime(1);
    let event = runtime.event();
    let handle = runtime.start("bad", &event, Box::new(|| panic!("on purpose"))).expect("a thread");
    assert_eq!(handle.join(), Err(TaskPanicked));
    drop(runtime.start("bad", &event, Box::new(|| panic!("on purpose"))).expect("a thread"));
}

#[test]
fn dropping_a_handle_waits_for_done() {
    let runtime = runtime(1);
    let event = runtime.event();
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicBool::new(false));
    let (asked, done) = (stop.clone(), ended.clone());
    let task = move || {
        if !asked.load(Ordering::Acquire) {
            return Step::Idle;
        }
        std::thread::sleep(Duration::from_millis(20));
        done.store(true, Ordering::Release);
        Step::Done
    };
    let handle = runtime.start("slow", &event, Box::new(task)).expect("a thread");
    stop.store(true, Ordering::Release);
    event.notify();
    assert!(!handle.is_finished() || ended.load(Ordering::Acquire));
    drop(handle);
    assert!(ended.load(Ordering::Acquire));
}

#[test]
fn idle_for_steps_again_without_a_notification() {
    let runtime = runtime(1);
    let mut steps = 0;
    let task = move || {
        steps += 1;
        if steps < 4 { Step::IdleFor(Duration::from_millis(5)) } else { Step::Done }
    };
    let start = Instant::now();
    let handle = runtime.start("timer", &runtime.event(), Box::new(task)).expect("a thread");
    assert_eq!(handle.join(), Ok(()));
    assert!(start.elapsed() >= Duration::from_millis(15));
}

#[test]
fn waiting_gives_the_last_answer() {
    let runtime = runtime(1);
    let event = runtime.event();
    assert!(!runtime.wait(&event, Some(Duration::from_millis(5)), &mut || false));
    assert!(runtime.wait(&event, None, &mut || true));
    assert!(!runtime.wait(&event, Some(Duration::ZERO), &mut || false));
    let open = Arc::new(AtomicBool::new(false));
    let (gate, bell) = (open.clone(), event.clone());
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        gate.store(true, Ordering::Release);
        bell.notify();
    });
    assert!(runtime.wait(&event, Some(Duration::MAX), &mut || open.load(Ordering::Acquire)));
    opener.join().expect("no panic");
}

#[test]
fn time_goes_on_and_random_numbers_differ() {
    let runtime = runtime(1);
    let before = runtime.now();
    std::thread::sleep(Duration::from_millis(1));
    assert!(runtime.now() > before);
    let mut numbers: Vec<_> = (0..100).map(|_| runtime.random()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 100);
}

#[test]
fn what_is_not_urgent_wakes_a_task_about_once_a_millisecond_and_is_never_missed() {
    const NOTIFICATIONS: usize = 20_000;
    let runtime = runtime(1);
    let (event, answer) = (runtime.event(), runtime.event());
    let (told, seen, steps) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (told_it, seen_it, steps_it, answers) =
        (told.clone(), seen.clone(), steps.clone(), answer.clone());
    let task = move || {
        steps_it.fetch_add(1, Ordering::Relaxed);
        let told = told_it.load(Ordering::Acquire);
        seen_it.store(told, Ordering::Release);
        answers.notify();
        if told > NOTIFICATIONS { Step::Done } else { Step::Idle }
    };
    let handle = runtime.start("sleeper", &event, Box::new(task)).expect("a thread");
    let since = Instant::now();
    for _ in 0..NOTIFICATIONS {
        told.fetch_add(1, Ordering::Release);
        event.notify_soon();
    }
    let mut all_seen = || seen.load(Ordering::Acquire) == NOTIFICATIONS;
    assert!(runtime.wait(&answer, Some(Duration::from_secs(60)), &mut all_seen));
    let most = usize::try_from(since.elapsed().as_millis()).expect("short") + 3;
    let steps = steps.load(Ordering::Relaxed);
    assert!(steps <= most, "{steps} steps in {most} ms");
    // One that comes alone is seen, too, after any rest.
    told.fetch_add(1, Ordering::Release);
    event.notify_soon();
    handle.join().expect("no panic");
}

#[test]
fn what_is_urgent_ends_a_rest() {
    let runtime = runtime(1);
    let (event, answer) = (runtime.event(), runtime.event());
    let steps = Arc::new(AtomicUsize::new(0));
    let (steps_it, answers) = (steps.clone(), answer.clone());
    let task = move || {
        let done = steps_it.fetch_add(1, Ordering::Release) == 2000;
        answers.notify();
        if done { Step::Done } else { Step::Idle }
    };
    let handle = runtime.start("sleeper", &event, Box::new(task)).expect("a thread");
    let mut times: Vec<Duration> = Vec::new();
    for step in 1..=2000 {
        runtime.wait(&answer, None, &mut || steps.load(Ordering::Acquire) >= step);
        let since = Instant::now();
        event.notify();
        runtime.wait(&answer, None, &mut || steps.load(Ordering::Acquire) > step);
        times.push(since.elapsed());
    }
    handle.join().expect("no panic");
    // Of many, on a machine that has other work: a rest is a millisecond.
    times.sort_unstable();
    assert!(times[500] < Duration::from_micros(900), "{:?}", times[500]);
}
