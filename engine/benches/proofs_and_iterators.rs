//! Proofs beside a finish of the same keys; iterations over cached pages; and a cold iteration beside the device's own
//! reads of the same pages and beside the offline dump, in turns, in one run: freshly loaded, and after changes have
//! moved pages.
//!
//! ```text
//! cargo bench -p pleach --bench proofs_and_iterators            # 2^20 accounts in a temporary folder
//! cargo bench -p pleach --bench proofs_and_iterators -- 22 /mnt/ssd
//! cargo bench -p pleach --bench proofs_and_iterators -- --cached    # iterations over cached pages alone
//! ```

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Hasher, Key, Options, SessionOptions, Value};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::{Device, OpenMode, PageBuf, Request, RequestKind};

type Failure = Box<dyn std::error::Error>;

/// Keys of a proof.
const KEYS: u64 = 4096;
/// Reads in flight.
const DEPTH: usize = 128;
const TURNS: usize = 15;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn open(folder: &Path) -> Result<Db, Failure> {
    Ok(Db::open(Options::new(folder).create(true).in_flight(DEPTH))?)
}

/// Time that passed, and processor time of all threads: where others run, too, the second says more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Took {
    cpu: Duration,
    passed: Duration,
}

impl std::fmt::Display for Took {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>10.2?}  CPU {:>10.2?}", self.passed, self.cpu)
    }
}

/// Processor time of all threads.
fn cpu() -> Result<Duration, Failure> {
    let ran = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(ran.tv_sec.try_into()?, ran.tv_nsec.try_into()?))
}

fn median(mut times: Vec<Took>) -> Took {
    times.sort_unstable();
    times[times.len() / 2]
}

fn timed<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<Took, Failure> {
    let (before, from) = (cpu()?, Instant::now());
    black_box(work()?);
    let passed = from.elapsed();
    Ok(Took { passed, cpu: cpu()?.saturating_sub(before) })
}

/// Each page of the leaf file once, in the order of the file, so many in a read, and nothing else.
fn raw(folder: &Path, run: usize) -> Result<f64, Failure> {
    let device = OsDevice::open(folder, OsOptions::default())?;
    let file = device.open("leaf", OpenMode::Read)?;
    let step = run as u64;
    let pages = device.len(&file)? / 4096 / step * step;
    // As many pages in flight as an iterator has at most.
    let depth = DEPTH.min(4 * DEPTH / run);
    let mut queue = device.queue(depth)?;
    let mut spare: Vec<PageBuf> = (0..depth).map(|_| PageBuf::zeroed(run)).collect();
    let from = Instant::now();
    let mut page = 0;
    while page < pages || queue.in_flight() > 0 {
        while page < pages
            && let Some(buf) = spare.pop()
        {
            let (file, offset) = (file.clone(), page * 4096);
            queue.push(Request { file, kind: RequestKind::Read, offset, buf, token: page });
            page += step;
        }
        let mut next = queue.wait_for(depth / 4)?;
        while let Some(done) = next {
            done.result?;
            spare.push(done.buf);
            next = queue.poll();
        }
    }
    Ok(mib(pages, from.elapsed()))
}

#[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
fn mib(pages: u64, time: Duration) -> f64 {
    pages as f64 / 256.0 / time.as_secs_f64()
}

fn proofs(folder: &Path, accounts: u64) -> Result<(), Failure> {
    let db = open(folder)?;
    let session = || db.session(SessionOptions::new());
    // All pages are cached.
    session()?.read_many(&(0..accounts).map(key).collect::<Vec<_>>())?;
    let keys: Vec<Key> = (0..KEYS).map(|at| key(at * (accounts / KEYS))).collect();
    let (mut proving, mut finishing, mut single) = (Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    for _ in 0..TURNS {
        let reader = session()?;
        proving.push(timed(|| {
            let proof = reader.prove_many(&keys)?;
            bytes = proof.len();
            Ok(proof)
        })?);
        single.push(timed(|| {
            for key in keys.iter().take(64) {
                black_box(reader.prove(key)?);
            }
            Ok(())
        })?);
        let reads: Vec<Access> = keys.iter().map(|key| Access::read(*key)).collect();
        finishing.push(timed(|| Ok(reader.finish(reads)?.take_witness()))?);
    }
    println!("{KEYS} of {accounts} keys, warm, median of {TURNS} turns");
    println!("  prove_many           {}   {bytes} bytes", median(proving));
    println!("  finish of the same   {}", median(finishing));
    println!("  64 times prove       {}", median(single));
    Ok(())
}

/// Nanoseconds of processor time that a pair takes, of all pairs and of so many from each of some random keys.
fn scan(db: &Db, accounts: u64) -> Result<(), Failure> {
    const FEW: usize = 100;
    const STARTS: u64 = 4096;
    let session = db.session(SessionOptions::new())?;
    let starts: Vec<Key> = (0..STARTS).map(|id| key(accounts + id)).collect();
    let (mut whole, mut few) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..TURNS {
        let mut counts = [0, 0];
        whole[0].push(timed(|| {
            for pair in session.iter(..) {
                black_box(pair?);
                counts[0] += 1;
            }
            Ok(())
        })?);
        whole[1].push(timed(|| {
            for pair in session.iter(..).rev() {
                black_box(pair?);
                counts[1] += 1;
            }
            Ok(())
        })?);
        assert_eq!(counts, [accounts; 2], "all pairs were given");
        let mut pairs = session.iter(..);
        few[0].push(timed(|| {
            for start in &starts {
                pairs.seek(start..);
                for pair in pairs.by_ref().take(FEW) {
                    black_box(pair?);
                }
            }
            Ok(())
        })?);
        few[1].push(timed(|| {
            for start in &starts {
                pairs.seek(..start);
                for pair in pairs.by_ref().rev().take(FEW) {
                    black_box(pair?);
                }
            }
            Ok(())
        })?);
    }
    let few_pairs = STARTS * FEW as u64;
    let ns = |took: Vec<Took>, pairs: u64| {
        let nanos = u64::try_from(median(took).cpu.as_nanos()).unwrap_or(u64::MAX);
        format!("{:>3}.{}", nanos / pairs, nanos * 10 / pairs % 10)
    };
    let [forwards, backwards] = whole.map(|took| ns(took, accounts));
    let [few_forwards, few_backwards] = few.map(|took| ns(took, few_pairs));
    println!(
        "all {forwards}   backwards {backwards}   {FEW} from a key on {few_forwards}   before it {few_backwards}"
    );
    Ok(())
}

/// Iterations over pages that are cached: as loaded, and under buffered changes.
fn cached_scans(folder: &Path, accounts: u64) -> Result<(), Failure> {
    let db = open(folder)?;
    db.session(SessionOptions::new())?.read_many(&(0..accounts).map(key).collect::<Vec<_>>())?;
    println!("ns a pair, all pages cached, median of {TURNS} turns");
    print!("  freshly loaded               ");
    scan(&db, accounts)?;
    for every in [100, 10] {
        let ids = (0..accounts).step_by(usize::try_from(every)?);
        let write = |id: u64| Access::write(key(id), Some(Value::from(&(id + 1).to_be_bytes())));
        db.session(SessionOptions::new())?.finish(ids.map(write))?.commit()?;
        print!("  changes of one in {every:<3} pend    ");
        scan(&db, accounts)?;
    }
    Ok(())
}

/// All pairs of a database that is opened for it; gives how many pages it has, and how many others were
/// read with them.
fn iterate(folder: &Path, backwards: bool) -> Result<(u64, u64, Took), Failure> {
    let db = open(folder)?;
    let pages = db.metrics().leaf_pages;
    let session = db.session(SessionOptions::new())?;
    let time = timed(|| {
        let mut pairs = session.iter(..);
        let mut count = 0_u64;
        while let Some(pair) = if backwards { pairs.next_back() } else { pairs.next() } {
            black_box(pair?);
            count += 1;
        }
        Ok(count)
    })?;
    let metrics = db.metrics();
    assert_eq!(metrics.pages_scanned + metrics.cache_misses, pages, "all was cold");
    drop(session);
    db.close()?;
    Ok((pages, metrics.pages_read_over, time))
}

fn iterators(folder: &Path) -> Result<(), Failure> {
    println!(
        "  device, 4 KiB / 64 KiB a read   iterator (with what it reads over)   backwards   dump"
    );
    for _ in 0..5 {
        let short = raw(folder, 1)?;
        let reader = Db::open(Options::new(folder).read_only(true))?;
        let session = reader.snapshot()?;
        let dump = timed(|| Ok(session.iter(..).try_for_each(|pair| pair.map(drop))?))?;
        // Beside the iterator, and twice: a virtual disk saves up what it may read while it reads less.
        raw(folder, 16)?;
        let long = raw(folder, 16)?;
        let (pages, over, forwards) = iterate(folder, false)?;
        let (_, _, backwards) = iterate(folder, true)?;
        let figure = |took: Took| {
            format!("{:>6.0} / {:<6.0}", mib(pages, took.passed), mib(pages, took.cpu))
        };
        let with_gaps = mib(pages + over, forwards.passed);
        let (forwards, backwards) = (figure(forwards), figure(backwards));
        println!(
            "           {short:>6.0} / {long:<6.0}      {forwards} ({with_gaps:.0})  {backwards}  {}",
            figure(dump)
        );
    }
    Ok(())
}

/// Changes one account of each `every`, in batches, until the pages of all of them are written elsewhere.
fn age(folder: &Path, accounts: u64, every: u64) -> Result<(), Failure> {
    let db = open(folder)?;
    let ids: Vec<u64> = (0..accounts).step_by(usize::try_from(every)?).collect();
    for batch in ids.chunks(20_000) {
        let value = |id: u64| Some(Value::from(&(id + 1).to_be_bytes()));
        let writes: Vec<_> = batch.iter().map(|id| Access::write(key(*id), value(*id))).collect();
        db.session(SessionOptions::new())?.finish(writes)?.commit()?;
    }
    db.drain(0)?;
    db.close()?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let log2: u32 = arguments.next().map_or(Ok(20), |argument| argument.parse())?;
    let folder = match arguments.next() {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let accounts = 1_u64 << log2;
    let db = open(folder.path())?;
    let pairs = (0..accounts).map(|id| (key(id), Value::from(&id.to_be_bytes())));
    db.bulk_load(pairs, &LoadOptions::new())?;
    db.close()?;
    if std::env::args().any(|argument| argument == "--cached") {
        return cached_scans(folder.path(), accounts);
    }
    proofs(folder.path(), accounts)?;
    println!("all pairs, cold; MiB of leaf pages a second of time / of processor time");
    println!(" freshly loaded");
    iterators(folder.path())?;
    // Some 70 pairs are in a page: a sixth, then half, then nearly all pages move.
    for every in [400, 100, 20] {
        age(folder.path(), accounts, every)?;
        println!(" one account of {every} changed since");
        iterators(folder.path())?;
    }
    cached_scans(folder.path(), accounts)
}
