//! Folders: what making, opening and reopening databases costs, without a close, as after a kill.
//!
//! `cargo bench -p pleach --bench folders [-- FOLDER]`: nine rounds, in a temporary folder unless told otherwise; medians. 16
//! databases of 512 MiB each are made, get a commit of two keys, and are opened twice more; a database of 2^16 accounts, written
//! by 16 commits, is opened twice; a new one takes 2,000 commits of one key, each synced.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use pleach::{Access, Db, Hasher, Options, SessionOptions, Value};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 9;
const FOLDERS: usize = 16;
const ROWS: [&str; 7] = [
    "16 new folders, ms",
    "disk, a folder, MiB",
    "reopened, ms",
    "reopened again, without a commit between, ms",
    "2^16 accounts, open after 16 commits, ms",
    "opened again, ms",
    "2,000 commits of one key in a new folder, ms",
];

fn open(folder: &Path) -> Result<Db> {
    Ok(Db::open(Options::new(folder).create(true).cache_mib(512))?)
}

fn open_all(folder: &Path) -> Result<(Vec<Db>, f64)> {
    timed(|| (0..FOLDERS).map(|number| open(&folder.join(number.to_string()))).collect())
}

fn timed<T>(what: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let since = Instant::now();
    Ok((what()?, since.elapsed().as_secs_f64() * 1e3))
}

fn commit(db: &Db, keys: std::ops::Range<u64>) -> Result<()> {
    let session = db.session(SessionOptions::new())?;
    let value = Some(Value::from(&[7; 40][..]));
    let accesses =
        keys.map(|id| Access::write(Hasher::BLAKE3.hash(&id.to_be_bytes()), value.clone()));
    session.finish(accesses)?.commit()?;
    Ok(())
}

fn disk_mib(folder: &Path) -> Result<f64> {
    let mut blocks = 0;
    for database in std::fs::read_dir(folder)? {
        for file in std::fs::read_dir(database?.path())? {
            blocks += file?.metadata()?.blocks();
        }
    }
    Ok(f64::from(u32::try_from(blocks / 8)?) / 256.0)
}

fn round(folder: &Path) -> Result<[f64; ROWS.len()]> {
    let all = folder.join("all");
    std::fs::create_dir(&all)?;
    let (made, new) = open_all(&all)?;
    let disk = disk_mib(&all)? / 16.0;
    made.iter().try_for_each(|db| commit(db, 0..2))?;
    drop(made);
    let (_, reopened) = open_all(&all)?;
    let (_, again) = open_all(&all)?;
    let accounts = folder.join("accounts");
    let db = open(&accounts)?;
    (0..16).try_for_each(|batch| commit(&db, batch << 12..(batch + 1) << 12))?;
    drop(db);
    let (_, killed) = timed(|| open(&accounts))?;
    let (_, second) = timed(|| open(&accounts))?;
    let small = open(&folder.join("small"))?;
    let ((), commits) = timed(|| (0..2000).try_for_each(|id| commit(&small, id..id + 1)))?;
    Ok([new, disk, reopened, again, killed, second, commits])
}

fn main() -> Result<()> {
    let folder = std::env::args().skip(1).find(|argument| argument != "--bench");
    let parent = folder.map_or_else(std::env::temp_dir, Into::into);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(tempfile::tempdir_in(&parent)?.path())?);
    }
    for (row, name) in ROWS.iter().enumerate() {
        let mut figures: Vec<f64> = rounds.iter().map(|round| round[row]).collect();
        figures.sort_unstable_by(f64::total_cmp);
        println!("{name:48}{:10.1}", figures[ROUNDS / 2]);
    }
    Ok(())
}
