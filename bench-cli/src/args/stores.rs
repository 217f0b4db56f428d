//! Flags of the workloads over plain stores, loads and indexes.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::numbers::{self, count, mib};
use crate::args::parts::{PartsArgs, StatesArgs, StorageArgs};
use crate::args::results::PeerArgs;
use crate::args::values::Switch;

/// `nomt-bench bank`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BankArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs<1>,
    /// Accounts that are loaded (1,000,000 in the published benchmark)
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count::<u64>(2..=1 << 30))]
    pub(crate) accounts: u64,
    /// Transfers of each phase (10,000,000 in the published benchmark)
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = count::<u64>(1..=1 << 40))]
    pub(crate) transfers: u64,
    /// Transfers of a commit
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,100,10000",
        value_parser = count::<u64>(1..=100_000_000)
    )]
    pub(crate) batch: Vec<u64>,
    /// Commits from one sync to the next; 0 for none before the end of a phase
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = count::<u64>(0..=u64::MAX))]
    pub(crate) sync_every: u64,
    /// Threads that read beside the transfers of the second phase; 0 leaves it out
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = count::<u64>(0..=256))]
    pub(crate) readers: u64,
    /// Announce a batch's accounts before reading them, to stores that take that
    #[arg(long, value_name = "on|off", default_value = "off")]
    pub(crate) prefetch: Switch,
    #[command(flatten)]
    pub(crate) stores: StoresArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

/// Flags of workloads that run on several stores.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoresArgs {
    /// Stores that do the same beside each other: pleach, pleach-plain (without the trie), btreemap; with the features
    /// peer-NAME redb, fjall, sqlite, mdbx and rocksdb
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "pleach,btreemap")]
    pub(crate) backend: Vec<String>,
    #[command(flatten)]
    pub(crate) settings: PeerArgs,
}

/// In which order pairs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Keys are hashes.
    Random,
    /// Keys ascend.
    Sorted,
}

impl Order {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sorted => "sorted",
        }
    }
}

/// `nomt-bench import`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs<1>,
    /// Pairs that are made and loaded
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = count::<u64>(1..=1 << 34))]
    pub(crate) leaves: u64,
    /// In which order they come
    #[arg(long, value_delimiter = ',', default_value = "random,sorted")]
    pub(crate) order: Vec<Order>,
    /// Pairs are read from a file, as `pleach dump` prints them, or with - from standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["leaves", "order", "kill"])]
    pub(crate) from: Option<PathBuf>,
    /// Memory of a load of pleach beside --cache-mib, beyond which pairs wait in a file; others get both as one
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = mib(1..=16_777_216))]
    pub(crate) load_mib: u64,
    /// Kills a load half way, too, and loads again
    #[arg(long)]
    pub(crate) kill: bool,
    #[command(flatten)]
    pub(crate) states: StatesArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs<64>,
}

impl ImportArgs {
    /// Memory of each backend, in MiB: its budget, and what a load of ours has beside that.
    pub(crate) fn whole_mib(&self) -> u64 {
        self.storage.cache_mib() + self.load_mib
    }
}

/// What a child of `import` loads.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadJob {
    #[arg(long)]
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) leaves: u64,
    #[arg(long)]
    pub(crate) order: Order,
    #[arg(long)]
    pub(crate) from: Option<PathBuf>,
    #[arg(long)]
    pub(crate) load_mib: u64,
    #[arg(long)]
    pub(crate) cache_mib: u64,
    #[arg(long)]
    pub(crate) backend: String,
    #[arg(long)]
    pub(crate) peer_arg: Vec<String>,
}

/// Numbers of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shards(pub(crate) u32);

impl FromStr for Shards {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(u32::MAX));
        }
        let number = numbers::whole(text).filter(|number| (2..=10_000_000).contains(number));
        let number = number.and_then(|number| u32::try_from(number).ok());
        number.map(Self).ok_or_else(|| "say none, or a number from 2 to 10,000,000".to_owned())
    }
}

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u32::MAX => f.write_str("no shards"),
            number => write!(f, "shards of {}", crate::text::grouped(u64::from(number))),
        }
    }
}

/// `nomt-bench history`.
#[derive(Clone, Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    /// Changes of a shard, or none for one value a key
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "none,100,500,2000,10000"
    )]
    pub(crate) shards: Vec<Shards>,
    /// Changes of the key that is looked at
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "10000,100000",
        value_parser = count::<u64>(200..=100_000_000)
    )]
    pub(crate) len: Vec<u64>,
    /// Other keys of the index, with one change each
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count::<u64>(0..=100_000_000))]
    pub(crate) keys: u64,
    #[command(flatten)]
    pub(crate) stores: StoresArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs<256>,
}
