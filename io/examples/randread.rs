//! Random reads through a queue, beside fio's rate at the same depth.
//!
//! ```text
//! cargo run --release -p pleach-io --example randread -- [--folder DIR] [--mib N] [--seconds N]
//!     [--mode auto|uring|blocking] [--depths 1,16,64,256] [--buffered] [--plain]
//! ```
//! One thread, 4 KiB, O_DIRECT unless `--buffered`, buffers registered unless `--plain`. The file is
//! written first and removed at the end. Where fio is installed, each depth runs ours, fio, ours,
//! fio, and the ratio is that of the sums, so that a drifting device affects both alike.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pleach_io::{
    Device, File, IoError, IoMode, OpenMode, OsDevice, OsOptions, PAGE, PageBuf, PagePool, Request,
    RequestKind,
};

const FILE: &str = "randread.dat";
const ROUNDS: u32 = 4;

struct Options {
    folder: PathBuf,
    mib: u64,
    seconds: u64,
    depths: Vec<usize>,
    device: OsOptions,
    plain: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = parse()?;
    let device = OsDevice::open(&options.folder, options.device.clone())?;
    println!("{:?}", device.info());
    let file = fill(&device, options.mib)?;
    let result = measure_all(&device, &file, &options);
    device.remove(FILE)?;
    result
}

fn measure_all(
    device: &OsDevice,
    file: &File,
    options: &Options,
) -> Result<(), Box<dyn std::error::Error>> {
    println!("depth  ours IOPS  CPU us/read  fio IOPS  ratio");
    for &depth in &options.depths {
        let (mut ours, mut cpu, mut fio) = (0.0, 0.0, 0.0);
        for _ in 0..ROUNDS {
            let (rate, micros) = measure(device, file, depth, options)?;
            ours += rate / f64::from(ROUNDS);
            cpu += micros / f64::from(ROUNDS);
            fio += run_fio(depth, options).unwrap_or(f64::NAN) / f64::from(ROUNDS);
        }
        println!("{depth:5}  {ours:9.0}  {cpu:11.2}  {fio:8.0}  {:5.3}", ours / fio);
    }
    Ok(())
}

/// The shape of a saturating loop: sleep for one, take all that came with it, replace each, and
/// let the next sleep submit them together.
fn measure(
    device: &OsDevice,
    file: &File,
    depth: usize,
    options: &Options,
) -> Result<(f64, f64), IoError> {
    let mut queue = device.queue(depth)?;
    let mut places = Places { state: 0x9e37_79b9_7f4a_7c15, pages: options.mib << 8 };
    let request = |buf, places: &mut Places| {
        let (file, offset) = (file.clone(), places.next());
        Request { file, kind: RequestKind::Read, offset, buf, token: 0 }
    };
    let pool = PagePool::new(1, depth);
    if !options.plain && !queue.register(&pool) {
        println!("(buffers are not registered)");
    }
    while let Some(buf) = pool.take() {
        queue.push(request(buf, &mut places));
    }
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut count = 0u32;
    while start.elapsed() < Duration::from_secs(options.seconds) {
        let mut next = queue.wait()?;
        while let Some(completion) = next {
            completion.result?;
            count += 1;
            queue.push(request(completion.buf, &mut places));
            next = queue.poll();
        }
    }
    let spent = cpu_time().saturating_sub(cpu).as_secs_f64() * 1e6 / f64::from(count);
    Ok((f64::from(count) / start.elapsed().as_secs_f64(), spent))
}

/// Page offsets from a xorshift generator: cheap enough not to be measured.
struct Places {
    state: u64,
    pages: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.pages * PAGE as u64
    }
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn fill(device: &OsDevice, mib: u64) -> Result<File, IoError> {
    let file = device.open(FILE, OpenMode::CreateNew)?;
    let mut buf = PageBuf::zeroed(256);
    for at in 0..mib {
        buf[..8].copy_from_slice(&at.to_le_bytes());
        device.write_at(&file, &buf, 256, at << 20)?;
    }
    device.sync(&file)?;
    Ok(file)
}

/// fio's rate; `None` where it is not installed.
fn run_fio(depth: usize, options: &Options) -> Option<f64> {
    let engine = if options.device.io == IoMode::Blocking { "psync" } else { "io_uring" };
    let output = Command::new("fio")
        .args(["--name=r", "--rw=randread", "--bs=4k", "--time_based", "--output-format=terse"])
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--filename={}", options.folder.join(FILE).display()))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--direct={}", u8::from(options.device.direct)))
        .arg(format!("--runtime={}", options.seconds))
        .args(["--size=100%", "--registerfiles=1", "--norandommap", "--gtod_reduce=1"])
        .arg(format!("--fixedbufs={}", u8::from(!options.plain)))
        .args(["--iodepth_batch_complete_min=1", "--iodepth_low=1"])
        .arg(format!("--iodepth_batch_complete_max={depth}"))
        .arg(format!("--iodepth_batch_submit={depth}"))
        .output()
        .ok()?;
    // Terse version 3: the eighth field is the read rate.
    String::from_utf8_lossy(&output.stdout)
        .split(';')
        .nth(7)?
        .parse()
        .ok()
        .filter(|rate| *rate > 0.0)
}

fn parse() -> Result<Options, String> {
    let mut options = Options {
        folder: std::env::temp_dir(),
        mib: 1024,
        seconds: 4,
        depths: vec![1, 16, 64, 256],
        device: OsOptions::default(),
        plain: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--folder" => options.folder = PathBuf::from(value()?),
            "--mib" => options.mib = number(&value()?)?,
            "--seconds" => options.seconds = number(&value()?)?,
            "--depths" => {
                options.depths = value()?.split(',').map(number).collect::<Result<_, _>>()?;
            }
            "--mode" => {
                options.device.io = match value()?.as_str() {
                    "auto" => IoMode::Auto,
                    "uring" => IoMode::Uring,
                    "blocking" => IoMode::Blocking,
                    other => return Err(format!("no mode {other}")),
                }
            }
            "--plain" => options.plain = true,
            "--buffered" => options.device.direct = false,
            other => return Err(format!("no option {other}")),
        }
    }
    Ok(options)
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}
