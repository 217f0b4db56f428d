//! `Threads::fork_join` beside a rayon pool of as many threads.
//!
//! ```text
//! cargo bench -p pleach-io --bench fork_join
//! ```
//! Jobs: nothing; 50 us of arithmetic for each worker; a hundred pieces of 20 us that workers take from a counter, as
//! the publication of a commit does. `paused` sleeps a millisecond between two calls, as a database does between a
//! finish and a publication, so that workers fall asleep; the pause is not in the time. `busy` runs another thread that
//! never sleeps. Groups that end in `cpu` measure the processor time of the whole process without pauses and busy
//! thread, so that spinning shows.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkGroup, Criterion};
use pleach_io::{Runtime, Threads};
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::time::{ClockId, clock_gettime};

const WORKERS: usize = 2;
const PIECES: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// The work of a worker.
#[derive(Clone, Copy, Debug)]
enum Work {
    Nothing,
    /// 50 us of it.
    Arithmetic,
    /// Pieces of 20 us, from a counter.
    Pieces,
}

/// What runs the workers.
enum Pool {
    Ours(Threads),
    Broadcast(ThreadPool),
    Scope(ThreadPool),
}

impl Pool {
    fn name(&self) -> &'static str {
        match self {
            Self::Ours(_) => "fork_join",
            Self::Broadcast(_) => "rayon broadcast",
            Self::Scope(_) => "rayon scope",
        }
    }

    fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        match self {
            Self::Ours(threads) => threads.fork_join(WORKERS, job),
            Self::Broadcast(pool) => {
                pool.broadcast(|context| job(context.index()));
            }
            // Any index on any thread: not what a worker with a ring can use.
            Self::Scope(pool) => pool.scope(|scope| {
                (0..WORKERS).for_each(|index| scope.spawn(move |_| job(index)));
            }),
        }
    }
}

/// A dependent chain: as long on each processor as its clock makes it.
fn turn(rounds: u64) {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15u64);
    for _ in 0..rounds {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).rotate_left(23);
    }
    black_box(state);
}

/// Rounds of [`turn`] that take a microsecond: the best of several tries.
fn rounds_per_micro() -> u64 {
    const ROUNDS: u64 = 1_000_000;
    let tries = (0..20).map(|_| {
        let start = Instant::now();
        turn(ROUNDS);
        start.elapsed()
    });
    let best = tries.min().expect("tries").as_micros();
    ROUNDS / u64::try_from(best).expect("short").max(1)
}

fn call(pool: &Pool, work: Work, micro: u64) {
    let next = AtomicUsize::new(0);
    pool.run(&|_| match work {
        Work::Nothing => {}
        Work::Arithmetic => turn(50 * micro),
        Work::Pieces => {
            while next.fetch_add(1, Ordering::Relaxed) < PIECES {
                turn(20 * micro);
            }
        }
    });
}

/// Processor time of this process.
struct ProcessTime;

fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Measurement for ProcessTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        process_time()
    }
    fn end(&self, start: Duration) -> Duration {
        process_time().saturating_sub(start)
    }
    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// The three pools with each kind of work.
fn pools<M: Measurement<Value = Duration>>(
    group: &mut BenchmarkGroup<'_, M>,
    time: &dyn Fn(u64, &dyn Fn()) -> Duration,
) {
    let micro = rounds_per_micro();
    let rayon = || ThreadPoolBuilder::new().num_threads(WORKERS).build().expect("threads");
    for work in [Work::Nothing, Work::Arithmetic, Work::Pieces] {
        let ours = Pool::Ours(Threads::new(WORKERS).expect("threads"));
        for pool in [ours, Pool::Broadcast(rayon()), Pool::Scope(rayon())] {
            let name = format!("{work:?}/{}", pool.name()).to_lowercase();
            let job = || call(&pool, work, micro);
            group.bench_function(name, |bencher| bencher.iter_custom(|calls| time(calls, &job)));
        }
    }
}

/// Time of the calls, pauses left out.
fn wall(pause: Duration) -> impl Fn(u64, &dyn Fn()) -> Duration {
    move |calls, call| {
        let mut sum = Duration::ZERO;
        for _ in 0..calls {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            call();
            sum += start.elapsed();
        }
        sum
    }
}

/// Processor time of the calls and of what pools do in the pauses.
fn processor(calls: u64, call: &dyn Fn()) -> Duration {
    let rest = |calls| {
        let start = process_time();
        (0..calls).for_each(|_| std::thread::sleep(PAUSE));
        process_time().saturating_sub(start) / u32::try_from(calls).expect("few")
    };
    let asleep = rest(20) * u32::try_from(calls).expect("few");
    let start = process_time();
    for _ in 0..calls {
        std::thread::sleep(PAUSE);
        call();
    }
    process_time().saturating_sub(start).saturating_sub(asleep)
}

fn short<M: Measurement>(criterion: Criterion<M>) -> Criterion<M> {
    criterion
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args()
}

fn main() {
    let mut criterion = short(Criterion::default());
    let mut all = |name: &str, pause| {
        let mut group = criterion.benchmark_group(name);
        pools(&mut group, &wall(pause));
        group.finish();
    };
    all("idle", Duration::ZERO);
    all("idle, paused", PAUSE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                turn(10_000);
            }
        });
        all("busy", Duration::ZERO);
        all("busy, paused", PAUSE);
        stop.store(true, Ordering::Relaxed);
    });
    let mut criterion = short(Criterion::default().with_measurement(ProcessTime));
    let mut group = criterion.benchmark_group("idle, paused, cpu");
    pools(&mut group, &processor);
    group.finish();
    criterion.final_summary();
}
