//! Transactions whose reads are not known before they run: each reads an account, whose value says which one is read
//! next. Nothing can be announced, so that reads one by one leave the device idle most of the time. The same
//! transactions are executed by threads that block and by tasks that do not (`Session::read_async`), each on a database
//! that was opened anew.
//!
//! `cargo run --release -p pleach-examples --bin parallel_reads -- 24 64` takes 2^24 accounts and a budget of 64 MiB.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Db, Options, Session, SessionOptions, Value};
use pleach_examples::{Result, account, begin};

/// Reads of a transaction, one after the other.
const READS: u32 = 4;
/// Hashes of a transaction between two reads: its computing, of about ten microseconds.
const HASHES: u32 = 100;

fn main() -> Result<()> {
    begin()?;
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let log2 = numbers.next().transpose()?.unwrap_or(12);
    let budget = numbers.next().transpose()?.unwrap_or(64);
    let accounts = 1 << log2;
    let transactions = numbers.next().transpose()?.unwrap_or((accounts / 8).min(20_000));

    let folder = tempfile::tempdir()?;
    let options = Options::new(folder.path()).create(true).cache_mib(budget);
    let db = Db::open(options.clone())?;
    let pairs = (0..accounts).map(|id| (account(id), link(id, accounts)));
    db.bulk_load(pairs, &LoadOptions::new())?;
    db.close()?;

    println!("{transactions} transactions of {READS} reads over 2^{log2} accounts, {budget} MiB:");
    let cores = std::thread::available_parallelism()?.get();
    let run = Run { accounts, transactions };
    let mut sums = Vec::new();
    for (name, way) in [
        (format!("{cores} threads that block"), Way::Threads(cores)),
        ("64 threads that block".to_owned(), Way::Threads(64)),
        (format!("tasks on {cores} threads"), Way::Tasks(cores)),
    ] {
        let (sum, time, misses) = run.cold(&options, way)?;
        let rate = u128::from(transactions) * 1_000_000 / time.as_micros().max(1);
        println!("{name:>24}: {time:8.2?}, {rate:6} transactions/s, {misses} pages read");
        sums.push(sum);
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "each way comes to the same result");
    let next = |id| follow(Some(link(id, accounts)));
    let walk = |number| (0..READS).fold(run.first(number), |at, _| next(at));
    let expected: u64 = (0..transactions).map(walk).sum();
    assert_eq!(sums[0], expected, "the sum without a database");
    Ok(())
}

/// The value of an account: the account that is read next.
fn link(id: u64, accounts: u64) -> Value {
    Value::from(&(id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) % accounts).to_le_bytes())
}

#[derive(Clone, Copy)]
enum Way {
    Threads(usize),
    Tasks(usize),
}

#[derive(Clone, Copy)]
struct Run {
    accounts: u64,
    transactions: u64,
}

impl Run {
    /// Executes all transactions on a database without cached pages. Returns their sum, the time and the pages read.
    fn cold(self, options: &Options, way: Way) -> Result<(u64, Duration, u64)> {
        let db = Db::open(options.clone())?;
        let session = Arc::new(db.session(SessionOptions::new())?);
        let since = Instant::now();
        let sum = match way {
            Way::Threads(threads) => self.by_threads(&session, threads)?,
            Way::Tasks(threads) => self.by_tasks(&session, threads)?,
        };
        let (time, metrics) = (since.elapsed(), db.metrics());
        drop(session);
        db.close()?;
        Ok((sum, time, metrics.cache_misses))
    }

    fn by_threads(self, session: &Session, threads: usize) -> Result<u64> {
        let (next, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = || -> pleach::Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.transactions {
                    return Ok(());
                }
                let mut at = self.first(number);
                for _ in 0..READS {
                    at = follow(session.read(&account(at))?);
                }
                sum.fetch_add(at, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })?;
        Ok(sum.into_inner())
    }

    fn by_tasks(self, session: &Arc<Session>, threads: usize) -> Result<u64> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build()?;
        let tasks: Vec<_> = (0..self.transactions)
            .map(|number| {
                let (session, mut at) = (Arc::clone(session), self.first(number));
                runtime.spawn(async move {
                    for _ in 0..READS {
                        at = follow(session.read_async(account(at)).await?);
                    }
                    Ok::<_, pleach::Error>(at)
                })
            })
            .collect();
        let mut sum = 0_u64;
        for task in tasks {
            sum += runtime.block_on(task)??;
        }
        Ok(sum)
    }

    /// The account that a transaction reads first.
    fn first(self, number: u64) -> u64 {
        number.wrapping_mul(0x2545_f491_4f6c_dd1d) % self.accounts
    }
}

/// The computing between two reads, and the account that a value names.
fn follow(value: Option<Value>) -> u64 {
    let value = value.expect("every account has a value");
    let mut hash = [0; 32];
    for _ in 0..HASHES {
        hash = pleach::Hasher::BLAKE3.hash(black_box(&hash));
    }
    u64::from_le_bytes(value[..8].try_into().expect("8 bytes"))
}
