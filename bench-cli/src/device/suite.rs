//! The measurements of `nomt-bench device`, in order, on a test file that is removed at the end. Next
//! to each stands what fio measures, if it is installed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach_io::{Device, IoMode, OpenMode, OsDevice, OsOptions, PageBuf};

use crate::args::DeviceArgs;
use crate::args::values::IoChoice;
use crate::device::load::{self, Measured, Pace, failed};
use crate::device::{Case, PAGE, Pattern, cases, fio};
use crate::draws::Draws;
use crate::error::{BenchError, Result};
use crate::home::check_writable;
use crate::interrupt;
use crate::machine;
use crate::measure::Phase;

/// Name of the test file.
const NAME: &str = "nomt-bench-device.tmp";
/// Name of the file that plays the log.
const LOG: &str = "nomt-bench-device-log.tmp";
/// Pages of the log; after the last, writing starts again at the first.
const LOG_PAGES: u64 = 4096;
/// Rates of background writes, per second, during which syncs and single reads are measured.
const BACKGROUND: [u64; 4] = [0, 10_000, 20_000, 40_000];

/// One line of the result.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) ours: Measured,
    /// Operations per second that fio reached.
    pub(crate) fio: Option<f64>,
}

/// All results.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) engine: &'static str,
    pub(crate) direct: bool,
    pub(crate) note: String,
    pub(crate) fio_version: Option<String>,
    pub(crate) rows: Vec<Row>,
}

/// Removes the test files, however the run ends.
#[derive(Debug)]
struct Cleaner<'a>(&'a Path);

impl Drop for Cleaner<'_> {
    fn drop(&mut self) {
        for name in [NAME, LOG] {
            let _ = std::fs::remove_file(self.0.join(name));
        }
    }
}

/// Measures a folder's device.
pub(crate) fn run(args: &DeviceArgs, mut hear: impl FnMut(u64, u64)) -> Result<Suite> {
    let bytes = args.size_mib << 20;
    check(args, bytes)?;
    let io = match args.io {
        IoChoice::Auto => IoMode::Auto,
        IoChoice::Uring => IoMode::Uring,
        IoChoice::Blocking => IoMode::Blocking,
    };
    let options = OsOptions { io, ..OsOptions::default() };
    let device = OsDevice::open(&args.dir, options).map_err(|error| failed(&error))?;
    let _cleaner = Cleaner(&args.dir);
    for name in [NAME, LOG] {
        interrupt::remove_at_end(args.dir.join(name));
    }
    let mut draws = Draws::new(args.seed, b"pleach-bench device   v1", 0);
    let time = Duration::from_millis(args.millis);
    let file = fill(&device, bytes, &mut draws)?;
    let fio_version = if args.no_fio { None } else { fio::version() };
    let cases = cases();
    let steps = (cases.len() + 2 * BACKGROUND.len()) as u64;
    let mut rows = Vec::new();
    for case in cases {
        if stopped(&rows)? {
            break;
        }
        let ours = load::run(&device, &file, bytes, case, time, &mut draws)?;
        let path = args.dir.join(NAME);
        let fio = fio_version.as_ref().and_then(|_| fio::measure(&path, bytes, case, time));
        rows.push(Row { name: case.name(), ours, fio });
        hear(rows.len() as u64, steps);
    }
    let beside = Beside { device: &device, file: &file, bytes, time };
    for background in BACKGROUND {
        if stopped(&rows)? {
            break;
        }
        rows.push(beside.sync(background, &mut draws)?);
        hear(rows.len() as u64, steps);
    }
    for background in BACKGROUND {
        if stopped(&rows)? {
            break;
        }
        rows.push(beside.read(background, &mut draws)?);
        hear(rows.len() as u64, steps);
    }
    let info = device.info();
    Ok(Suite { engine: info.engine, direct: info.direct, note: info.note, fio_version, rows })
}

/// Was a signal caught? An error if it was and there is no row to print yet.
fn stopped(rows: &[Row]) -> Result<bool> {
    if rows.is_empty() {
        interrupt::check()?;
    }
    Ok(interrupt::caught().is_some())
}

fn check(args: &DeviceArgs, bytes: u64) -> Result<()> {
    if !args.dir.is_dir() {
        let text = format!("{} is no folder: name one with --dir", args.dir.display());
        return Err(BenchError::Usage(text));
    }
    if [NAME, LOG].iter().any(|name| args.dir.join(name).exists()) {
        let text =
            format!("{} has the files of another run: remove {NAME} and {LOG}", args.dir.display());
        return Err(BenchError::Usage(text));
    }
    check_writable(&args.dir)?;
    match machine::free_disk(&args.dir) {
        Some(free) if free < bytes + LOG_PAGES * PAGE => Err(BenchError::Usage(format!(
            "{} has {} MiB free: lower --size-mib",
            args.dir.display(),
            free >> 20
        ))),
        _ => Ok(()),
    }
}

/// Creates the test file and writes all of it, so that no read hits a hole.
fn fill<D: Device>(device: &D, bytes: u64, draws: &mut Draws) -> Result<D::File> {
    let file = device.open(NAME, OpenMode::CreateNew).map_err(|error| failed(&error))?;
    device.allocate(&file, 0, bytes).map_err(|error| failed(&error))?;
    let pages = 256;
    let buf = load::noise(pages, draws);
    let step = pages as u64 * PAGE;
    for place in 0..bytes / step {
        interrupt::check()?;
        device.write_at(&file, &buf, pages, place * step).map_err(|error| failed(&error))?;
    }
    device.sync(&file).map_err(|error| failed(&error))?;
    Ok(file)
}

struct Beside<'a, D: Device> {
    device: &'a D,
    file: &'a D::File,
    bytes: u64,
    time: Duration,
}

impl<D: Device> Beside<'_, D> {
    /// Measures appending a page to the log and syncing it.
    fn sync(&self, background: u64, draws: &mut Draws) -> Result<Row> {
        let log = match self.device.open(LOG, OpenMode::Write) {
            Err(error) if error.is_not_found() => self.new_log()?,
            other => other.map_err(|error| failed(&error))?,
        };
        let buf = load::noise(1, draws);
        let ours = self.with_background(background, draws, |_| {
            let mut latency = Phase::new();
            let start = Instant::now();
            let mut count = 0u64;
            while start.elapsed() < self.time {
                let begin = Instant::now();
                let offset = count % LOG_PAGES * PAGE;
                self.device.write_at(&log, &buf, 1, offset).map_err(|error| failed(&error))?;
                self.device.sync(&log).map_err(|error| failed(&error))?;
                latency.record(begin.elapsed());
                count += 1;
            }
            Ok(measured(count, start.elapsed(), &latency))
        })?;
        Ok(Row { name: format!("log write + sync beside {background} writes/s"), ours, fio: None })
    }

    fn new_log(&self) -> Result<D::File> {
        let log = self.device.open(LOG, OpenMode::CreateNew).map_err(|error| failed(&error))?;
        let pages = usize::try_from(LOG_PAGES).unwrap_or(1);
        let zeros = PageBuf::zeroed(pages);
        self.device.write_at(&log, &zeros, pages, 0).map_err(|error| failed(&error))?;
        self.device.sync(&log).map_err(|error| failed(&error))?;
        Ok(log)
    }

    /// Measures single reads on the calling thread.
    fn read(&self, background: u64, draws: &mut Draws) -> Result<Row> {
        let places = self.bytes / PAGE;
        let ours = self.with_background(background, draws, |draws| {
            let mut buf = PageBuf::zeroed(1);
            let mut latency = Phase::new();
            let start = Instant::now();
            let mut count = 0;
            while start.elapsed() < self.time {
                let begin = Instant::now();
                let offset = draws.below(places) * PAGE;
                self.device.read_at(self.file, &mut buf, offset).map_err(|error| failed(&error))?;
                latency.record(begin.elapsed());
                count += 1;
            }
            Ok(measured(count, start.elapsed(), &latency))
        })?;
        Ok(Row { name: format!("single read beside {background} writes/s"), ours, fio: None })
    }

    /// Runs a measurement while another thread writes at a pace.
    fn with_background(
        &self,
        per_second: u64,
        draws: &mut Draws,
        measure: impl FnOnce(&mut Draws) -> Result<Measured>,
    ) -> Result<Measured> {
        if per_second == 0 {
            return measure(draws);
        }
        let stop = AtomicBool::new(false);
        let mut own = Draws::new(draws.bits(), b"pleach-bench backgrnd v1", per_second);
        std::thread::scope(|scope| {
            let case = Case { pattern: Pattern::Write, pages: 1, depth: 64 };
            // Its time is much longer than the measurement, which stops it.
            let pace = Pace { time: self.time * 100, per_second, stop: &stop };
            let writer = scope.spawn(move || {
                load::paced(self.device, self.file, self.bytes, case, &pace, &mut own)
            });
            let outcome = measure(draws);
            stop.store(true, Ordering::Relaxed);
            match writer.join() {
                Ok(written) => written.and(outcome),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

fn measured(count: u64, time: Duration, latency: &Phase) -> Measured {
    let per_second = crate::measure::rate(count, time.as_secs_f64());
    let mib_per_second = per_second * 4096.0 / f64::from(1 << 20);
    Measured { per_second, mib_per_second, latency: latency.quantiles() }
}
