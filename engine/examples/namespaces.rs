//! What namespaces cost: the same accounts and batches in 1, 16 and 256 of them. Medians; the sides take turns, in
//! one run, each with a database of its own.
//!
//! `cargo run --release --example namespaces [LOG2] [ACCESSES] [COMMITS]`
//!
//! 2^LOG2 accounts (20), ACCESSES a batch (50,000), spread evenly over the namespaces, and COMMITS (30) of each.
//! Then 255 empty namespaces are added to a new database: what they take of memory.

#![expect(clippy::print_stdout, reason = "an example that measures says so")]

use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Hasher, Key, Options, SessionOptions, Value};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Batches before those that count.
const WARM: u64 = 8;
const SIDES: [u16; 3] = [1, 16, 256];

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn namespace(id: u64, of: u16) -> u8 {
    u8::try_from(id % u64::from(of)).expect("256 at most")
}

/// A database with the accounts in so many namespaces.
struct Side {
    of: u16,
    db: Db,
    /// Reads, finish, commit.
    times: [Vec<Duration>; 3],
    _folder: tempfile::TempDir,
}

impl Side {
    fn new(of: u16, accounts: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let db = Db::open(Options::new(folder.path()).create(true))?;
        for number in 1..of {
            db.add_namespace(u8::try_from(number)?)?;
        }
        for number in 0..of {
            let own = (0..accounts).filter(|id| id % u64::from(of) == u64::from(number));
            let pairs = own.map(|id| (key(id), Value::from(&0_u64.to_be_bytes()[..])));
            let options = LoadOptions::new().namespace(u8::try_from(number)?);
            db.bulk_load(pairs, &options)?;
        }
        Ok(Self { of, db, times: Default::default(), _folder: folder })
    }

    fn batch(&mut self, round: u64, accounts: u64, accesses: u64) -> Result<()> {
        // An odd factor permutes the residues of a power of two.
        let factor = (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) | 1;
        let ids = (0..accesses).map(|at| at.wrapping_mul(factor).wrapping_add(round) % accounts);
        let ids: Vec<u64> = ids.collect();
        let value = Value::from(&round.to_be_bytes()[..]);
        let since = Instant::now();
        let session = self.db.session(SessionOptions::new())?;
        let mut own: Vec<Vec<Key>> = vec![Vec::new(); self.of.into()];
        for id in &ids {
            own[usize::from(namespace(*id, self.of))].push(key(*id));
        }
        for (number, keys) in own.iter().enumerate() {
            let namespace = session.namespace(u8::try_from(number)?)?;
            namespace.prefetch(keys);
            for value in namespace.read_many(keys)? {
                value.ok_or("an account is missing")?;
            }
        }
        let read = since.elapsed();
        let access = |id: &u64| {
            let write = Access::read_write(key(*id), Some(value.clone()));
            write.in_namespace(namespace(*id, self.of))
        };
        let accesses: Vec<_> = ids.iter().map(access).collect();
        let since = Instant::now();
        let block = session.finish(accesses)?;
        let finish = since.elapsed();
        let since = Instant::now();
        block.commit()?;
        let commit = since.elapsed();
        if round >= WARM {
            for (times, time) in self.times.iter_mut().zip([read, finish, commit]) {
                times.push(time);
            }
        }
        Ok(())
    }
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// Resident memory of this process, in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no figure")?.parse()?)
}

fn empty() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let db = Db::open(Options::new(folder.path()).create(true).history(128))?;
    db.add_namespace(1)?;
    let (before, index) = (resident()?, db.metrics().index_bytes);
    for number in 2..=255 {
        db.add_namespace(number)?;
    }
    let more = resident()?.saturating_sub(before);
    println!(
        "254 empty namespaces more: {more} KiB resident, {} bytes of index, {} bytes of undo",
        db.metrics().index_bytes - index,
        db.metrics().undo_bytes
    );
    Ok(db.close().map(drop)?)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let log2 = arguments.next().transpose()?.unwrap_or(20);
    let accesses = arguments.next().transpose()?.unwrap_or(50_000);
    let commits = arguments.next().transpose()?.unwrap_or(30);
    empty()?;
    let mut sides: Vec<Side> =
        SIDES.into_iter().map(|of| Side::new(of, 1 << log2)).collect::<Result<_>>()?;
    for round in 0..WARM + commits {
        let count = sides.len();
        for turn in 0..count {
            let at = if round % 2 == 0 { turn } else { count - 1 - turn };
            sides[at].batch(round, 1 << log2, accesses)?;
        }
    }
    println!("{accesses} accesses, 2^{log2} accounts, ms:");
    println!("{:>12} {:>10} {:>10} {:>10}", "namespaces", "reads", "finish", "commit");
    for Side { of, times, .. } in &sides {
        let [read, finish, commit] = times;
        let (read, finish, commit) = (median(read), median(finish), median(commit));
        println!("{of:>12} {read:>10.2} {finish:>10.2} {commit:>10.2}");
    }
    for side in sides {
        side.db.close()?;
    }
    Ok(())
}
