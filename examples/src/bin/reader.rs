//! A reader process beside the process that writes: it follows the commits and answers from a state of its own.
//!
//! `cargo run --release -p pleach-examples --bin reader`

use std::path::Path;
use std::process::{Child, Command, Stdio};

use pleach::{Access, Db, Options, SessionOptions};
use pleach_examples::{Result, account, balance_of, begin, transfers, value};

const ACCOUNTS: u64 = 1_000;
const BLOCKS: u64 = 50;

fn main() -> Result<()> {
    begin()?;
    if let [_, role, folder] = &std::env::args().collect::<Vec<_>>()[..] {
        assert_eq!(role, "write", "the first argument of the child");
        return write(folder.as_ref());
    }
    let folder = tempfile::tempdir()?;
    open(folder.path())?.close()?;
    let mut writer = spawn_writer(folder.path())?;

    // Any number of processes may open it like this; the writer does not know of them.
    let db = Db::open(Options::new(folder.path()).read_only(true).cache_mib(64))?;
    let mut seen = 0;
    while seen < BLOCKS {
        // The newest commit that the writer has made; sessions that began before stay where they are.
        let newest = db.refresh()?;
        if newest > seen {
            let session = db.session(SessionOptions::new())?;
            let total = (0..ACCOUNTS).map(|id| balance_of(&session, id)).sum::<Result<u64>>()?;
            let expected = newest * ACCOUNTS;
            assert_eq!(total, expected, "commit {newest} gives each account one token more");
            seen = newest;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("a reader has seen commit {seen}, root {}", db.root());
    let done = writer.wait()?;
    assert!(done.success(), "the writer: {done}");
    Ok(())
}

fn open(folder: &Path) -> Result<Db> {
    Ok(Db::open(Options::new(folder).create(true).history(BLOCKS).cache_mib(64))?)
}

fn spawn_writer(folder: &Path) -> Result<Child> {
    let mut writer = Command::new(std::env::current_exe()?);
    Ok(writer.arg("write").arg(folder).stdin(Stdio::null()).spawn()?)
}

/// The process that writes: each block gives each account a token, then moves some.
fn write(folder: &Path) -> Result<()> {
    let db = open(folder)?;
    for number in 1..=BLOCKS {
        let session = db.session(SessionOptions::new().witness(false))?;
        let mut balances: Vec<u64> =
            (0..ACCOUNTS).map(|id| Ok(balance_of(&session, id)? + 1)).collect::<Result<_>>()?;
        for one in transfers(number, ACCOUNTS) {
            let [from, to] = [one.from, one.to].map(|id| usize::try_from(id).expect("small"));
            let paid = balances[from].min(one.amount);
            balances[from] -= paid;
            balances[to] += paid;
        }
        let accesses = (0..)
            .zip(&balances)
            .map(|(id, balance)| Access::read_write(account(id), Some(value(*balance))));
        session.finish(accesses)?.commit()?;
    }
    db.close()?;
    Ok(())
}
