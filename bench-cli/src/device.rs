//! `device`: what a folder's device can do through the project's own I/O crate, and by fio where it is installed.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pleach_io::{Device, File, OpenMode, OsDevice, OsOptions, PAGE, PageBuf, Request, RequestKind};
use serde_json::Value;

use crate::draw::Draws;
use crate::error::{Error, Result, of_engine, usage};
use crate::flags::{Flags, Io, count, mib};
use crate::machine::{self, free_disk, gib};
use crate::measure::{Figure, Times, Unit, float, grouped, timed};
use crate::progress::ProgressReporter;
use crate::results::EngineRun;
use crate::signals;
use crate::{report, run};

/// The test file.
const DATA: &str = "data";
/// Pages of the log; after the last, writing starts again at the first.
const LOG_PAGES: usize = 4096;
/// Background writes a second beside which syncs and single reads are measured.
const BACKGROUND: [u64; 4] = [0, 10_000, 20_000, 40_000];

/// `nomt-bench device`.
#[derive(Clone, Debug, clap::Args)]
pub struct DeviceArgs {
    /// Size of the test file; larger than the device's own cache is better
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = mib(16))]
    size_mib: u64,
    /// Milliseconds of a measurement
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = count::<u64>(10..=600_000))]
    millis: u64,
    /// Leave fio out, even if it is installed
    #[arg(long)]
    no_fio: bool,
}

/// A measurement: fio's name of the pattern, pages of a transfer, transfers in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case(&'static str, usize, usize);

impl Case {
    fn name(self) -> String {
        let pattern = match self.0 {
            "randread" => "random read",
            "randwrite" => "random write",
            "randrw" => "random 70/30",
            "read" => "sequential read",
            _ => "sequential write",
        };
        format!("{pattern} {} KiB, depth {}", self.1 * 4, self.2)
    }
}

/// All measurements without background writes.
fn cases() -> impl Iterator<Item = Case> {
    let depths = [1, 4, 16, 64, 128, 256].map(|depth| Case("randread", 1, depth));
    let reads = [2, 4, 8, 16].map(|pages| Case("randread", pages, 64));
    let writes = [1, 2, 4, 8, 16].map(|pages| Case("randwrite", pages, 64));
    let last = [Case("randrw", 1, 64), Case("read", 256, 8), Case("write", 256, 8)];
    depths.into_iter().chain(reads).chain(writes).chain(last)
}

pub fn run(args: &DeviceArgs, flags: &Flags) -> Result<()> {
    run::check_files(flags)?;
    let dir = flags.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let bytes = args.size_mib << 20;
    let free = free_disk(&dir).unwrap_or(u64::MAX);
    if free < bytes + (LOG_PAGES * PAGE) as u64 {
        return usage(format!("{} has {} free: lower --size-mib", dir.display(), gib(free)));
    }
    signals::listen()?;
    let folder = tempfile::Builder::new().prefix("nomt-bench-").tempdir_in(&dir);
    let folder = folder.map_err(|error| {
        let text = format!("no folder can be made in {} ({error})", dir.display());
        Error::Usage(format!("{text}: name another with --dir"))
    })?;
    signals::remove_at_end(folder.path().to_owned());
    let mut draws = Draws::new(flags.seed, b"pleach-bench device   v1", 0);
    let time = Duration::from_millis(args.millis);
    let bench = DeviceBench::new(folder.path(), bytes, time, flags.io, &mut draws)?;
    let info = bench.device.info();
    let version = concat!("pleach-io ", env!("CARGO_PKG_VERSION")).to_owned();
    let most = machine::most(folder.path());
    let mut ours = EngineRun::new("pleach-io", version, most);
    let direct = if info.direct { "O_DIRECT" } else { "the page cache" };
    ours.settings.insert("io".to_owned(), format!("{} with {direct}", info.engine));
    let version = if args.no_fio { None } else { fio_version() };
    let mut fio = version.map(|version| EngineRun::new("fio", version, most));
    let mut progress = ProgressReporter::new(flags.quiet);
    let mut show = |text: &str| {
        progress.show(text);
        signals::caught().is_none()
    };
    for case in cases() {
        if !show(&case.name()) {
            break;
        }
        let start = Instant::now();
        let figures = bench.load(case, u64::MAX, || start.elapsed() < time, &mut draws)?;
        ours.figures.extend(figures);
        if let Some(fio) = &mut fio {
            let file = folder.path().join(DATA);
            fio.figures.extend(measure_by_fio(&file, bytes, case, time));
        }
    }
    for (name, syncs) in [("log write and sync", true), ("single read", false)] {
        for writes in BACKGROUND {
            if show(name) {
                ours.figures.extend(bench.beside(name, syncs, writes, &mut draws)?);
            }
        }
    }
    progress.clear();
    if let Some(signal) = signals::caught().filter(|_| ours.figures.is_empty()) {
        return Err(Error::Interrupted(signal));
    }
    let file =
        format!("a file of {} MiB, {} ms a measurement", grouped(args.size_mib), args.millis);
    let notes = [file, info.note].into_iter().filter(|note| !note.is_empty());
    let notes = notes.chain(machine::note(folder.path())).collect();
    let runs = core::iter::once(ours).chain(fio).collect();
    let flags = Flags { cache_mib: 0, ..flags.clone() };
    report::publish("device", folder.path(), &flags, runs, notes)?;
    signals::caught().map_or(Ok(()), |signal| Err(Error::CutShort(signal)))
}

fn failed(error: pleach_io::IoError) -> Error {
    of_engine("device")(error)
}

/// Pages of bytes that cannot be compressed.
fn noise(pages: usize, draws: &mut Draws) -> PageBuf {
    let mut buf = PageBuf::zeroed(pages);
    for word in buf.as_chunks_mut::<8>().0 {
        *word = draws.bits().to_ne_bytes();
    }
    buf
}

struct DeviceBench {
    device: OsDevice,
    data: File,
    log: File,
    bytes: u64,
    time: Duration,
}

impl DeviceBench {
    /// Writes all of the test file, so that no read meets a hole.
    fn new(folder: &Path, bytes: u64, time: Duration, io: Io, draws: &mut Draws) -> Result<Self> {
        let options = OsOptions { io: io.mode(), ..OsOptions::default() };
        let device = OsDevice::open(folder, options).map_err(failed)?;
        let data = device.open(DATA, OpenMode::CreateNew).map_err(failed)?;
        device.allocate(&data, 0, bytes).map_err(failed)?;
        let buf = noise(256, draws);
        for place in 0..bytes >> 20 {
            if let Some(signal) = signals::caught() {
                return Err(Error::Interrupted(signal));
            }
            device.write_at(&data, &buf, 256, place << 20).map_err(failed)?;
        }
        device.sync(&data).map_err(failed)?;
        let log = device.open("log", OpenMode::CreateNew).map_err(failed)?;
        device.write_at(&log, &PageBuf::zeroed(LOG_PAGES), LOG_PAGES, 0).map_err(failed)?;
        device.sync(&log).map_err(failed)?;
        Ok(Self { device, data, log, bytes, time })
    }

    /// Keeps a queue full of transfers for a while; not faster than so many a second.
    fn load(
        &self,
        case: Case,
        per_second: u64,
        goes_on: impl Fn() -> bool,
        draws: &mut Draws,
    ) -> Result<[Figure; 2]> {
        let Case(pattern, pages, depth) = case;
        let bytes = (pages * PAGE) as u64;
        let places = self.bytes / bytes;
        let mut queue = self.device.queue(depth).map_err(failed)?;
        let mut idle: Vec<_> = (0..depth).map(|token| (noise(pages, draws), token)).collect();
        let (mut pushed, mut times) = (0_u64, Times::default());
        let start = Instant::now();
        let mut started = vec![start; depth];
        loop {
            let goes_on = goes_on();
            let due = start.elapsed().as_secs_f64() * float(per_second);
            while goes_on && float(pushed) < due {
                let Some((buf, token)) = idle.pop() else { break };
                let in_order = matches!(pattern, "read" | "write");
                let place = if in_order { pushed % places } else { draws.below(places) };
                let transfer = match pattern {
                    "read" | "randread" => RequestKind::Read,
                    "randrw" if draws.below(10) < 7 => RequestKind::Read,
                    _ => RequestKind::Write,
                };
                let (file, offset) = (self.data.clone(), place * bytes);
                started[token] = Instant::now();
                queue.push(Request { file, kind: transfer, offset, buf, token: token as u64 });
                pushed += 1;
            }
            // Waits for one completion, then takes all that are there.
            let mut completion = queue.wait().map_err(failed)?;
            if completion.is_none() {
                if !goes_on {
                    break;
                }
                // The next transfer is not due yet.
                std::thread::sleep(Duration::from_micros(50));
            }
            while let Some(one) = completion {
                one.result.map_err(failed)?;
                let token = usize::try_from(one.token).unwrap_or(0);
                times.record(started[token].elapsed());
                idle.push((one.buf, token));
                completion = queue.poll();
            }
        }
        Ok(figures(&case.name(), start, &times))
    }

    /// Appends a page to the log and syncs it, or reads one page, again and again, while another thread writes so many
    /// pages a second.
    fn beside(
        &self,
        name: &str,
        syncs: bool,
        writes: u64,
        draws: &mut Draws,
    ) -> Result<Vec<Figure>> {
        let case = format!("{name} beside {} writes a second", grouped(writes));
        let mut own = Draws::new(draws.bits(), b"pleach-bench backgrnd v1", writes);
        let mut buf = noise(1, draws);
        let mut once = |place: u64| {
            if !syncs {
                let page = draws.below(self.bytes / PAGE as u64);
                return self.device.read_at(&self.data, &mut buf, page * PAGE as u64);
            }
            let page = place % LOG_PAGES as u64;
            self.device.write_at(&self.log, &buf, 1, page * PAGE as u64)?;
            self.device.sync(&self.log)
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let write = || {
                let goes_on = || !stop.load(Ordering::Relaxed);
                self.load(Case("randwrite", 1, 64), writes, goes_on, &mut own)
            };
            let writer = (writes > 0).then(|| scope.spawn(write));
            let (mut times, mut outcome, start) = (Times::default(), Ok(()), Instant::now());
            while outcome.is_ok() && start.elapsed() < self.time {
                let (took, done) = timed(|| once(times.count()));
                times.record(took);
                outcome = done;
            }
            let mut figures = figures(&case, start, &times).to_vec();
            stop.store(true, Ordering::Relaxed);
            if let Some(writer) = writer {
                let written =
                    writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let [rate, _] = written?;
                figures.push(Figure { case, name: "background writes".to_owned(), ..rate });
            }
            outcome.map_err(failed).map(|()| figures)
        })
    }
}

fn figures(case: &str, start: Instant, times: &Times) -> [Figure; 2] {
    let rate = float(times.count()) / start.elapsed().as_secs_f64();
    [Figure::one(case, "operations", Unit::PerSecond, rate), times.latencies(case, "an operation")]
}

/// The version of fio, if it is installed.
fn fio_version() -> Option<String> {
    let output = Command::new("fio").arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The same case by fio, on the same file.
fn measure_by_fio(path: &Path, bytes: u64, case: Case, time: Duration) -> Option<Figure> {
    let Case(pattern, pages, depth) = case;
    let mut command = Command::new("fio");
    // A thread, not a process of its own that would go on without fio.
    command.args(["--name=device", "--ioengine=io_uring", "--direct=1", "--thread"]);
    command.args(["--rwmixread=70", "--time_based", "--randrepeat=1", "--norandommap"]);
    command.arg("--output-format=json");
    command.arg(format!("--filename={}", path.display())).arg(format!("--size={bytes}"));
    command.arg(format!("--rw={pattern}")).arg(format!("--bs={}k", pages * 4));
    command.arg(format!("--iodepth={depth}")).arg(format!("--runtime={}ms", time.as_millis()));
    let output = command.output().ok()?;
    // It may print notes before the document.
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = &document["jobs"][0];
    let rate = job["read"]["iops"].as_f64()? + job["write"]["iops"].as_f64()?;
    Some(Figure::one(&case.name(), "operations", Unit::PerSecond, rate))
}
