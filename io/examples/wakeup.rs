//! The cost of waking workers: `fork_join` of empty jobs, back to back and after a pause.
//!
//! ```text
//! cargo run --release -p pleach-io --example wakeup
//! ```
//! Prints medians and 99th percentiles in microseconds, beside calling the closure here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pleach_io::{IoError, Runtime, Threads};

const CALLS: usize = 2000;

fn main() -> Result<(), IoError> {
    let runtime = Threads::new(8)?;
    let sum = AtomicUsize::new(0);
    let job = |index: usize| {
        sum.fetch_add(index, Ordering::Relaxed);
    };
    println!("workers  pause us  median us  p99 us");
    for pause in [0, 200] {
        report("here", pause, &measure(pause, || job(0)));
        for count in [1, 2, 4, 8] {
            let times = measure(pause, || runtime.fork_join(count, &job));
            report(&count.to_string(), pause, &times);
        }
    }
    Ok(())
}

fn measure(pause: u64, call: impl Fn()) -> Vec<Duration> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
        let start = Instant::now();
        call();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times
}

fn report(workers: &str, pause: u64, times: &[Duration]) {
    let micros = |index: usize| times[index].as_secs_f64() * 1e6;
    let (median, high) = (micros(CALLS / 2), micros(CALLS * 99 / 100));
    println!("{workers:>7}  {pause:8}  {median:9.2}  {high:6.2}");
}
