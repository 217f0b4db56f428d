//! Loads generated accounts into a new database and says how long they took.
//!
//! ```text
//! cargo run --release --example bulk_load -- FOLDER [LOG2_ACCOUNTS] [MEMORY_MIB]
//! ```
//!
//! Keys are BLAKE3 hashes of account numbers, values 32 bytes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use pleach::load::LoadOptions;
use pleach::{Db, Options, Value};
use pleach_core::Hasher;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(folder) = args.next().map(PathBuf::from) else {
        eprintln!("usage: bulk_load FOLDER [LOG2_ACCOUNTS] [MEMORY_MIB]");
        return ExitCode::from(2);
    };
    let log2: u32 = args.next().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut options = LoadOptions::new();
    if let Some(mib) = args.next().and_then(|text| text.parse().ok()) {
        options = options.memory_mib(mib);
    }
    match run(folder, 1 << log2, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: PathBuf, accounts: u64, options: &LoadOptions) -> pleach::Result<()> {
    let db = Db::open(Options::new(folder).create(true))?;
    let items =
        (0..accounts).map(|id| (Hasher::BLAKE3.hash(&id.to_be_bytes()), Value::from(&[1; 32])));
    let report = db.bulk_load(items, options)?;
    println!(
        "{} accounts in {:.2} s, {:.0} ns each, {} pages, {} MiB written, {} MiB of them spilled",
        report.accounts,
        report.seconds,
        report.seconds * 1e9 / f64::from(u32::try_from(report.accounts).unwrap_or(u32::MAX)),
        report.pages,
        report.bytes_written >> 20,
        report.spilled_bytes >> 20,
    );
    let since = Instant::now();
    db.close()?;
    println!("closed in {:.2?}", since.elapsed());
    Ok(())
}
