//! What overlays cost: committing a block, and an overlay of the same batch; reads and finishes over chains
//! of 0, 1, 16 and 128 overlays. Medians; the sides take turns, in one run.
//!
//! `cargo run --release --example overlay_costs [LOG2] [ACCESSES] [CHAIN_ACCESSES]`
//!
//! 2^LOG2 accounts (19), ACCESSES a batch (50,000), and `CHAIN_ACCESSES` in each overlay of a chain (1,000).

#![expect(clippy::print_stdout, reason = "an example that measures says so")]

use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{
    Access, Db, Durability, Hasher, Key, Options, Overlay, Session, SessionOptions, Value,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Turns of each side.
const TURNS: u64 = 15;
/// Keys that are read at once.
const READS: u32 = 50_000;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// A generator like any other: `count` different accounts.
fn ids(seed: u64, accounts: u64, count: u64) -> impl Iterator<Item = u64> {
    // An odd factor permutes the residues of a power of two.
    let factor = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) | 1;
    (0..count).map(move |at| at.wrapping_mul(factor).wrapping_add(seed) % accounts)
}

fn batch(seed: u64, accounts: u64, count: u64) -> Vec<Access> {
    let value = Value::from(&seed.to_be_bytes()[..]);
    ids(seed, accounts, count).map(|id| Access::read_write(key(id), Some(value.clone()))).collect()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn session(db: &Db, over: Option<&Overlay>) -> Result<Session> {
    let options = SessionOptions::new().witness(false);
    Ok(db.session(over.map_or(options.clone(), |overlay| options.over(overlay)))?)
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let done = work();
    times.push(since.elapsed());
    done
}

fn commits(db: &Db, accounts: u64, accesses: u64) -> Result<()> {
    let mut times: [Vec<Duration>; 7] = Default::default();
    let [finish, block, into, overlay, dropped, merged, over] = &mut times;
    for turn in 0..TURNS + 2 {
        if turn == 2 {
            for times in [&mut *finish, block, into, overlay, dropped, merged, over] {
                times.clear();
            }
        }
        let batch = |at| batch(4 * turn + at, accounts, accesses);
        let made = session(db, None)?;
        let made = timed(finish, || made.finish(batch(0)))?;
        timed(block, || made.commit())?;

        let made = session(db, None)?.finish(batch(1))?;
        let made = timed(into, || made.into_overlay());
        timed(overlay, || made.commit())?;
        timed(dropped, || drop(made));

        let below = session(db, None)?.finish(batch(2))?.into_overlay();
        let above = timed(over, || session(db, Some(&below)))?.finish(batch(3))?.into_overlay();
        timed(merged, || above.commit())?;
    }
    println!("{accesses} accesses, 2^{} accounts, ms:", accounts.ilog2());
    let names = [
        "finish",
        "Block::commit",
        "Block::into_overlay",
        "Overlay::commit on the newest commit",
        "drop of that overlay",
        "Overlay::commit of two, merged",
        "the first session over an overlay",
    ];
    for (name, times) in names.into_iter().zip(times) {
        println!("  {name:40} {:8.2}", median(times));
    }
    Ok(())
}

fn chains(db: &Db, accounts: u64, accesses: u64) -> Result<()> {
    let lengths = [0, 1, 16, 128];
    let mut chain: Vec<Overlay> = Vec::new();
    for at in 0..128 {
        let made = session(db, chain.last())?.finish(batch(1000 + at, accounts, accesses))?;
        chain.push(made.into_overlay());
    }
    let overlays = |length: u64| chain[..usize::try_from(length).unwrap_or(0)].last();
    let keys = |turn| ids(7 + turn, accounts, READS.into()).map(key).collect::<Vec<Key>>();
    let mut reads: [Vec<Duration>; 4] = Default::default();
    let mut finishes: [Vec<Duration>; 4] = Default::default();
    let mut opened: [Vec<Duration>; 4] = Default::default();
    for turn in 0..TURNS {
        for (at, length) in lengths.into_iter().enumerate() {
            let session = timed(&mut opened[at], || session(db, overlays(length)))?;
            let keys = keys(turn);
            let read = timed(&mut reads[at], || {
                keys.iter().filter_map(|key| session.read(key).ok()).count()
            });
            assert_eq!(u32::try_from(read)?, READS);
            let batch = batch(5000 + turn, accounts, accesses);
            timed(&mut finishes[at], || session.finish(batch))?;
        }
    }
    println!(
        "{accesses} accesses in each overlay; {} bytes each",
        db.metrics().overlay_bytes / 128
    );
    println!("  chain   session, us   a read, ns   of chain 0   finish of {accesses}, ms");
    let first = median(reads[0].clone());
    for (at, length) in lengths.into_iter().enumerate() {
        let read = median(reads[at].clone());
        let ns = read * 1e6 / f64::from(READS);
        let (opened, finish) = (median(opened[at].clone()) * 1e3, median(finishes[at].clone()));
        println!(
            "  {length:5}   {opened:11.1}   {ns:10.0}   {:10.2}   {finish:10.2}",
            read / first
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let mut arg = |default| args.next().unwrap_or(Ok(default));
    let (log2, accesses, in_chain) = (arg(19)?, arg(50_000)?, arg(1000)?);
    let accounts = 1 << log2;
    let folder = tempfile::tempdir()?;
    let options = Options::new(folder.path()).create(true).cache_mib(1024);
    let db = Db::open(options.durability(Durability::None))?;
    let items = (0..accounts).map(|id| (key(id), Value::from(&[0; 8][..])));
    db.bulk_load(items, &LoadOptions::default())?;
    commits(&db, accounts, accesses)?;
    db.drain(0)?;
    chains(&db, accounts, in_chain)?;
    Ok(())
}
