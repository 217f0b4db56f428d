//! The flags of all workloads, and their values. An invalid value is refused here, before anything is created, with
//! exit code 2 and one line that says what to change.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;
use std::path::PathBuf;

use clap::Args;
use pleach_io::IoMode;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Memory of each engine where no flag says it, in MiB.
pub const CACHE_MIB: u64 = 1024;

/// Flags of every workload.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Flags of all workloads")]
pub struct Flags {
    /// Engines that do the same operations: pleach, pleach-plain (without the trie), model (the oracle); with the
    /// features peer-NAME nomt, sp-trie, jmt, qmdb, redb, fjall, sqlite, mdbx and rocksdb
    #[arg(
        long,
        global = true,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "pleach"
    )]
    pub backend: Vec<String>,
    /// Another build of nomt-bench, whose pleach does the same beside this one's; this one's runs twice, so that the
    /// noise is known
    #[arg(long, global = true, value_name = "FILE")]
    pub beside: Option<PathBuf>,
    /// Setting of an engine, ENGINE.NAME=VALUE (may be repeated)
    #[arg(long, global = true, value_name = "SETTING")]
    pub peer_arg: Vec<String>,
    /// Seed of everything that is drawn
    #[arg(long, global = true, default_value_t = 12345, value_parser = count::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Rounds, or batches, of an engine before the next has its turn; 0: one engine after the other
    #[arg(long, global = true, value_name = "N", value_parser = count::<u64>(0..=1_000_000))]
    pub alternate: Option<u64>,
    /// Rounds that are measured, where a workload has rounds; a figure is their median
    #[arg(long, global = true, value_name = "N", value_parser = count::<u64>(1..=1_000_000))]
    pub rounds: Option<u64>,
    /// When a commit is acknowledged: commit (synced; the default but of bank and history), periodic:MS or none
    #[arg(long = "durability", global = true, value_name = "MODE")]
    pub asked_durability: Option<Durability>,
    /// What --durability is, where it is not said: a matter of the workload
    #[arg(skip)]
    pub durability: Durability,
    /// Memory budget of each engine, everything included
    #[arg(long, global = true, value_name = "MIB", default_value_t = CACHE_MIB, value_parser = mib(8))]
    pub cache_mib: u64,
    /// Worker threads (default: all cores)
    #[arg(long, global = true, value_name = "N", value_parser = count::<u16>(1..=1024))]
    pub threads: Option<u16>,
    /// Page reads in flight
    #[arg(long, global = true, value_name = "W", default_value_t = 128, value_parser = count::<u32>(1..=4096))]
    pub in_flight: u32,
    /// How files are read and written: auto, uring or blocking
    #[arg(long, global = true, value_name = "MODE", default_value = "auto")]
    pub io: Io,
    /// Limit on trie nodes in memory, in KiB, part of the budget; 0 keeps none
    #[arg(long, global = true, value_name = "KIB", value_parser = count::<u64>(0..=1 << 34))]
    pub trie_cache_kib: Option<u64>,
    /// Memory that a load may use (default: the engine's own choice)
    #[arg(long, global = true, value_name = "MIB", value_parser = mib(1))]
    pub load_mib: Option<u64>,
    /// Log size at which a checkpoint starts
    #[arg(long, global = true, value_name = "MIB", default_value = "256", value_parser = mib(1))]
    pub log_limit_mib: u64,
    /// Past commits that can be read
    #[arg(long, global = true, value_name = "N", default_value_t = 0, value_parser = count::<u64>(0..=u64::MAX))]
    pub history: u64,
    /// Memory that undo may take (default: the engine's own choice)
    #[arg(long, global = true, value_name = "MIB", value_parser = mib(1))]
    pub undo_memory_mib: Option<u64>,
    /// Empty the system's page cache between load and run (needs root)
    #[arg(long, global = true)]
    pub drop_caches: bool,
    /// Where the databases live, a subfolder each (default: a temporary folder on a device, removed at the end).
    /// transfer, block and soak reuse what is there and fits
    #[arg(long, global = true)]
    pub dir: Option<PathBuf>,
    /// Loads again even if --dir already has the databases
    #[arg(long, global = true, requires = "dir")]
    pub reset: bool,
    /// Keeps the temporary folder and prints its name
    #[arg(long, global = true, conflicts_with = "dir")]
    pub keep: bool,
    /// Writes the results as JSON
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the results as one HTML page
    #[arg(long, global = true, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// No progress on standard error (without a terminal: a line each ten seconds)
    #[arg(long, global = true)]
    pub quiet: bool,
}

impl Flags {
    /// Rounds, or this many where none are given.
    pub fn rounds(&self, without: u64) -> u64 {
        self.rounds.unwrap_or(without)
    }
}

/// A whole number as people write it: `25_000`, `64k`, `3M`, `2^20`.
fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some((base, exponent)) = text.split_once('^') {
        return base.parse::<u64>().ok()?.checked_pow(exponent.parse().ok()?);
    }
    let letter = text.chars().next_back().filter(char::is_ascii_alphabetic);
    let times = match letter.map(|letter| letter.to_ascii_lowercase()) {
        None => 1,
        Some('k') => 1000,
        Some('m') => 1_000_000,
        Some('g') => 1_000_000_000,
        Some(_) => return None,
    };
    let digits = letter.map_or(text, |_| &text[..text.len() - 1]).replace('_', "");
    digits.parse::<u64>().ok()?.checked_mul(times)
}

/// A parser of counts in this range.
pub fn count<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> core::result::Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = whole(text).filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            // Not where they would be refused.
            let fit = range.contains(&25_000) && range.contains(&(1 << 16));
            let such = if fit { ", such as 25000, 25_000, 64k or 2^16" } else { "" };
            format!("say a number from {least} to {most}{such}")
        })
    }
}

/// A parser of sizes in MiB, from `least` on.
pub fn mib(
    least: u64,
) -> impl Fn(&str) -> core::result::Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let size = match whole(text) {
            Some(mib) => Some(mib),
            None => parse_size::parse_size(text).ok().map(|bytes| bytes >> 20),
        };
        size.filter(|size| (least..1 << 40).contains(size)).ok_or_else(|| {
            format!(
                "say a number of MiB from {least} on, or one with a unit, such as 512MiB or 1GiB"
            )
        })
    }
}

/// `on` or `off`.
pub fn switch(text: &str) -> core::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("say on or off".to_owned()),
    }
}

/// A number of batches, or `auto`.
pub fn count_or_auto(text: &str) -> core::result::Result<Count, String> {
    if text == "auto" { Ok(Count::Auto) } else { count(0..=10_000_000)(text).map(Count::Fixed) }
}

/// How many batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Count {
    /// Exactly this many.
    Fixed(u64),
    /// As many as it takes.
    Auto,
}

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When its log record is synced.
    #[default]
    Commit,
    /// At once; the log is synced every so many milliseconds.
    Periodic(u64),
    /// At once; synced only when the engine itself needs that.
    None,
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> core::result::Result<Self, String> {
        let wrong = || "say commit, none or periodic:MS with 1 to 3600000 ms".to_owned();
        match text.split_once(':') {
            None if text == "commit" => Ok(Self::Commit),
            None if text == "none" => Ok(Self::None),
            Some(("periodic", millis)) => match millis.parse() {
                Ok(millis @ 1..=3_600_000) => Ok(Self::Periodic(millis)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit => f.write_str("commit"),
            Self::Periodic(millis) => write!(f, "periodic:{millis}"),
            Self::None => f.write_str("none"),
        }
    }
}

/// How files are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// With io_uring where the kernel has it.
    Auto,
    /// With io_uring, or not at all.
    Uring,
    /// With a pool of blocking threads.
    Blocking,
}

impl Io {
    /// The same of the I/O crate.
    pub const fn mode(self) -> IoMode {
        match self {
            Self::Auto => IoMode::Auto,
            Self::Uring => IoMode::Uring,
            Self::Blocking => IoMode::Blocking,
        }
    }
}

/// Refuses an invalid value of a flag.
pub fn check(holds: bool, text: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Usage(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, number) in [
            ("25000", 25_000),
            ("25_000", 25_000),
            ("64k", 64_000),
            ("3M", 3_000_000),
            ("2^20", 1 << 20),
        ] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in ["", "k", "2^", "^2", "1.5", "-1", "1kk", "2^99", "64q", "99999999999999999999"]
        {
            assert_eq!(whole(text), None, "{text}");
        }
        for (text, size) in [("1024", 1024), ("1GiB", 1024), ("512MiB", 512), ("1GB", 953)] {
            assert_eq!(mib(1)(text), Ok(size), "{text}");
        }
        assert!(mib(8)("4").is_err() && mib(8)("lots").is_err());
        let refused = |most, text| count::<u64>(0..=most)(text).expect_err("too many");
        assert_eq!(refused(100, "101"), "say a number from 0 to 100");
        assert!(refused(100_000, "x").ends_with("100000, such as 25000, 25_000, 64k or 2^16"));
    }
}
