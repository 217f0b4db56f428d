//! Flags of the workloads of single parts.

use std::path::PathBuf;

use clap::Args;

use crate::args::numbers::{count, mib};

/// Flags of all of them.
#[derive(Clone, Debug, Args)]
pub(crate) struct PartsArgs {
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 12345, value_parser = count::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Rounds that are measured; a figure is their median
    #[arg(long, default_value_t = 15, value_parser = count::<u64>(1..=1_000_000))]
    pub(crate) rounds: u64,
    /// Writes the results as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// No progress bars
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// `nomt-bench hash`.
#[derive(Clone, Debug, Args)]
pub(crate) struct HashArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
}

/// `nomt-bench proof`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProofArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Number of accounts, as a power of two
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u32>(1..=28))]
    pub(crate) log2: u32,
    /// Numbers of accounts that are proven together
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,16,256,4096,25000",
        value_parser = count::<u64>(1..=10_000_000)
    )]
    pub(crate) count: Vec<u64>,
    /// Memory budget of the database
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = mib(8..=16_777_216))]
    pub(crate) cache_mib: u64,
    /// Folder for the database, in a subfolder that is removed at the end (default: a temporary one)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

/// `nomt-bench auth`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AuthArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Numbers of pairs
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "100,500,1000,5000,10000,50000,100000",
        value_parser = count::<u64>(2..=10_000_000)
    )]
    pub(crate) sizes: Vec<u64>,
    /// Memory budget of each database
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = mib(8..=16_777_216))]
    pub(crate) cache_mib: u64,
    /// Folder for the databases, in a subfolder that is removed at the end (default: a temporary one)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

/// `nomt-bench grind`.
#[derive(Clone, Debug, Args)]
pub(crate) struct GrindArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Keys of each shape
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count::<u64>(20..=10_000_000))]
    pub(crate) keys: u64,
    /// Memory budget of each database
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = mib(8..=16_777_216))]
    pub(crate) cache_mib: u64,
    /// Folder for the databases, in a subfolder that is removed at the end (default: a temporary one)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}
