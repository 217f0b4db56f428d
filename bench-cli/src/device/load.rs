//! Keeps a queue full of transfers for a while, and counts them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach_io::{Completion, Device, IoError, PageBuf, Queue, Request, Transfer};

use crate::device::{Case, PAGE, Pattern};
use crate::draws::Draws;
use crate::error::{BenchError, Result};
use crate::measure::{Phase, Quantiles, float};

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) mib_per_second: f64,
    /// Of each transfer, from push to completion.
    pub(crate) latency: Quantiles,
}

/// Wraps an error of the device.
pub(crate) fn failed(error: &IoError) -> BenchError {
    BenchError::Backend { backend: "device", message: error.to_string() }
}

/// A page-aligned buffer of bytes that cannot be compressed.
pub(crate) fn noise(pages: usize, draws: &mut Draws) -> PageBuf {
    let mut buf = PageBuf::zeroed(pages);
    for word in buf.as_chunks_mut::<8>().0 {
        *word = draws.bits().to_ne_bytes();
    }
    buf
}

struct Loop<'a, D: Device> {
    queue: D::Queue,
    file: &'a D::File,
    places: u64,
    case: Case,
    draws: &'a mut Draws,
    idle: Vec<(PageBuf, u64)>,
    started: Vec<Instant>,
    next: u64,
    latency: Phase,
    done: u64,
}

impl<D: Device> Loop<'_, D> {
    fn push(&mut self, buf: PageBuf, token: u64) {
        let place = match self.case.pattern {
            Pattern::ReadInOrder | Pattern::WriteInOrder => self.next % self.places,
            _ => self.draws.below(self.places),
        };
        self.next += 1;
        let reads = match self.case.pattern {
            Pattern::Read | Pattern::ReadInOrder => true,
            Pattern::Write | Pattern::WriteInOrder => false,
            Pattern::Mixed => self.draws.below(10) < 7,
        };
        let transfer = if reads { Transfer::Read } else { Transfer::Write };
        let offset = place * self.case.pages as u64 * PAGE;
        self.started[usize::try_from(token).unwrap_or(0)] = Instant::now();
        self.queue.push(Request { file: self.file.clone(), transfer, offset, buf, token });
    }

    fn take(&mut self, completion: Completion) -> Result<()> {
        completion.result.as_ref().map_err(failed)?;
        let started = self.started[usize::try_from(completion.token).unwrap_or(0)];
        self.latency.record(started.elapsed());
        self.done += 1;
        self.idle.push((completion.buf, completion.token));
        Ok(())
    }

    /// Waits for one completion, then takes all that are there.
    fn reap(&mut self) -> Result<bool> {
        let Some(first) = self.queue.wait().map_err(|error| failed(&error))? else {
            return Ok(false);
        };
        self.take(first)?;
        while let Some(more) = self.queue.poll() {
            self.take(more)?;
        }
        Ok(true)
    }
}

/// Runs one case on a file of `bytes`.
pub(crate) fn run<D: Device>(
    device: &D,
    file: &D::File,
    bytes: u64,
    case: Case,
    time: Duration,
    draws: &mut Draws,
) -> Result<Measured> {
    let stop = AtomicBool::new(false);
    paced(device, file, bytes, case, &Pace { time, per_second: 0, stop: &stop }, draws)
}

/// How long and how fast.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    pub(crate) time: Duration,
    /// Most transfers per second; 0: no limit.
    pub(crate) per_second: u64,
    /// Ends the measurement early when set.
    pub(crate) stop: &'a AtomicBool,
}

/// The same, but not faster than a pace.
pub(crate) fn paced<D: Device>(
    device: &D,
    file: &D::File,
    bytes: u64,
    case: Case,
    pace: &Pace<'_>,
    draws: &mut Draws,
) -> Result<Measured> {
    let queue = device.queue(case.depth).map_err(|error| failed(&error))?;
    let depth = case.depth as u64;
    let idle = (0..depth).map(|token| (noise(case.pages, draws), token)).collect();
    let start = Instant::now();
    let mut work: Loop<'_, D> = Loop {
        queue,
        file,
        places: (bytes / (case.pages as u64 * PAGE)).max(1),
        case,
        draws,
        idle,
        started: vec![start; case.depth],
        next: 0,
        latency: Phase::new(),
        done: 0,
    };
    while start.elapsed() < pace.time && !pace.stop.load(Ordering::Relaxed) {
        let due = due(start.elapsed(), pace.per_second);
        while work.next < due
            && let Some((buf, token)) = work.idle.pop()
        {
            work.push(buf, token);
        }
        if !work.reap()? {
            // Nothing is in flight: the next transfer is not due yet.
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let done = work.done;
    let seconds = start.elapsed().as_secs_f64();
    while work.reap()? {}
    let per_second = float(done) / seconds;
    let mib_per_second = per_second * float(case.pages as u64 * PAGE) / f64::from(1 << 20);
    Ok(Measured { per_second, mib_per_second, latency: work.latency.quantiles() })
}

/// Transfers that a pace allows after this time.
fn due(elapsed: Duration, per_second: u64) -> u64 {
    if per_second == 0 {
        return u64::MAX;
    }
    let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    micros.saturating_mul(per_second) / 1_000_000
}
