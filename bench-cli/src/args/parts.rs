//! Flags of the workloads of single parts.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use clap::Args;

use crate::args::numbers::{count, mib};
use crate::args::results::{PeerArgs, ResultArgs};
use crate::draws::Distribution;

/// Flags of all that have rounds.
#[derive(Clone, Debug, Args)]
pub(crate) struct PartsArgs<const ROUNDS: u64 = 15> {
    /// Rounds that are measured; a figure is their median (default: 15; 1 for bank and import)
    #[arg(long, value_parser = count::<u64>(1..=1_000_000))]
    rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

impl<const ROUNDS: u64> PartsArgs<ROUNDS> {
    /// Rounds that are measured.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.unwrap_or(ROUNDS)
    }
}

/// Flags of those that open databases.
#[derive(Clone, Debug, Args)]
pub(crate) struct StorageArgs<const MIB: u64 = 1024> {
    /// Memory budget of each database (default: 1024; 256 for auth, grind and history, 64 for import)
    #[arg(long, value_name = "MIB", value_parser = mib(8..=16_777_216))]
    cache_mib: Option<u64>,
    /// Folder for the databases, in a subfolder that is removed at the end (default: a temporary one)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

impl<const MIB: u64> StorageArgs<MIB> {
    /// Memory budget of each database, in MiB.
    pub(crate) fn cache_mib(&self) -> u64 {
        self.cache_mib.unwrap_or(MIB)
    }
}

/// Flags of those that run on several states.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatesArgs {
    /// States that do the same beside each other: pleach; with the features peer-NAME nomt, sp-trie and jmt; without a
    /// root, for auth, erc20 and import, btreemap and with peer-NAME redb, fjall, sqlite, mdbx and rocksdb
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "pleach")]
    pub(crate) backend: Vec<String>,
    #[command(flatten)]
    pub(crate) settings: PeerArgs,
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
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
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
    #[command(flatten)]
    pub(crate) states: StatesArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs<256>,
}

/// `nomt-bench grind`.
#[derive(Clone, Debug, Args)]
pub(crate) struct GrindArgs {
    #[command(flatten)]
    pub(crate) results: ResultArgs,
    /// Keys of each shape
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count::<u64>(20..=10_000_000))]
    pub(crate) keys: u64,
    #[command(flatten)]
    pub(crate) storage: StorageArgs<256>,
}

/// `nomt-bench overlay`.
#[derive(Clone, Debug, Args)]
pub(crate) struct OverlayArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Contracts that are loaded
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count::<u64>(1..=100_000_000))]
    pub(crate) accounts: u64,
    /// Slots of each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count::<u64>(0..=1000))]
    pub(crate) slots: u64,
    /// Accounts that a block changes
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1000,10000",
        value_parser = count::<u64>(1..=10_000_000)
    )]
    pub(crate) updates: Vec<u64>,
    #[command(flatten)]
    pub(crate) states: StatesArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// `nomt-bench threshold`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ThresholdArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Blocks that stay in memory
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "2,8,32,128,512",
        value_parser = count::<u64>(1..=4096)
    )]
    pub(crate) window: Vec<u64>,
    /// Blocks of a round
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = count::<u64>(1..=1_000_000))]
    pub(crate) blocks: u64,
    #[command(flatten)]
    pub(crate) states: StatesArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// `nomt-bench flatten`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FlattenArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Overlays over each other
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "4,16,64,128",
        value_parser = count::<u64>(1..=4096)
    )]
    pub(crate) layers: Vec<u64>,
    /// Changes of an overlay
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = count::<u64>(1..=1_000_000))]
    pub(crate) keys_per_layer: u64,
    /// How keys are drawn: hot (nine of ten changes go to a hundred keys), uniform, zipf:S or pareto
    #[arg(long, default_value = "hot")]
    pub(crate) distribution: Layering,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// `nomt-bench erc20`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Erc20Args {
    #[command(flatten)]
    pub(crate) results: ResultArgs,
    /// Accounts that are no contracts
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = count::<u64>(1..=1_000_000_000))]
    pub(crate) eoa: u64,
    /// Contracts
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = count::<u64>(1..=1_000_000_000))]
    pub(crate) contracts: u64,
    /// Slots of each contract
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count::<u64>(1..=1000))]
    pub(crate) slots: u64,
    /// Blocks
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u64>(1..=1_000_000))]
    pub(crate) blocks: u64,
    /// Transfers of a block
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count::<u64>(1..=10_000_000))]
    pub(crate) transfers: u64,
    #[command(flatten)]
    pub(crate) states: StatesArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// How `flatten` draws keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layering {
    /// Most changes go to few keys.
    Hot,
    /// Over all keys.
    Spread(Distribution),
}

impl FromStr for Layering {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "hot" {
            return Ok(Self::Hot);
        }
        text.parse().map(Self::Spread).map_err(|error: String| format!("{error}, or hot"))
    }
}

impl fmt::Display for Layering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hot => f.write_str("hot"),
            Self::Spread(distribution) => distribution.fmt(f),
        }
    }
}
