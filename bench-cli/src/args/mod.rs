//! The command lines. Values that make no sense are refused here, before anything is created, with
//! exit code 2 and one line that says what to change.

pub(crate) mod compare;
pub(crate) mod named;
pub(crate) mod numbers;
pub(crate) mod parts;
pub(crate) mod results;
pub(crate) mod stores;
pub(crate) mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::args::compare::CompareArgs;
use crate::args::numbers::{count, kib, mib};
use crate::args::parts::{
    AuthArgs, Erc20Args, FlattenArgs, GrindArgs, HashArgs, OverlayArgs, ProofArgs, ThresholdArgs,
};
use crate::args::stores::{BankArgs, HistoryArgs, ImportArgs, LoadJob};
use crate::args::values::{Count, Durability, IoChoice, Minutes, Switch};
use crate::draws::{Distribution, Stream};
use crate::error::BenchError;
use crate::output;
use crate::text::one_line;

/// How numbers are written, and the exit codes.
const NUMBERS: &str = "\
Numbers: 25000, 25,000, 25_000, 64k (64,000), 3M, 2^20. Sizes: a number of the flag's unit, or with
its own: 512MiB, 1GiB (or 1G), 1GB (10^9 bytes).
Exit codes: 0 right, 1 a wrong result or a failure, 2 arguments that do not fit, 130 Ctrl-C, 143
SIGTERM, 129 SIGHUP: the batch at hand is finished and what was measured is printed; a second one
ends at once.";

const EXAMPLES: &str = "\
Examples:
  nomt-bench transfer                                    2^20 accounts in a temporary folder
  nomt-bench transfer --log2 24 --cache-mib 2GiB --dir /mnt/ssd/bench
  nomt-bench transfer --batch 10k --batches 100 --json result.json --report result.html
  nomt-bench init --log2 22 --dir /mnt/ssd/bench         load once, run often
  nomt-bench soak --minutes 30 --dir /mnt/ssd/bench
  nomt-bench recover --kills 50                          SIGKILL, reopen, check; 50 times
  nomt-bench compare --dir /mnt/ssd/compare              many workloads, one page; goes on if stopped
  nomt-bench device --dir /mnt/ssd                       what the device itself can do
";

/// Measures the state database Pleach: loads accounts, runs transfers, kills and reopens it, checks
/// every balance, root and witness, and prints a table.
#[derive(Debug, Parser)]
#[command(name = "nomt-bench", version, after_help = format!("{EXAMPLES}\n{NUMBERS}"))]
pub(crate) struct BenchCli {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

/// One subcommand per workload.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Bulk-loads 2^N accounts of balance 1000 into --dir
    Init(InitArgs),
    /// Transfers between accounts: the headline workload
    Transfer(TransferArgs),
    /// For some minutes: transfers, new and closed accounts, open sessions; figures must stay level
    Soak(SoakArgs),
    /// Repeatedly kills a running transfer with SIGKILL, reopens the database and checks it
    Recover(RecoverArgs),
    /// Measures what a folder's device can do through our own I/O crate
    Device(DeviceArgs),
    /// Hash functions, and trie nodes hashed in batches
    Hash(HashArgs),
    /// Path proofs, multiproofs, witnesses and ranges: made and verified
    Proof(ProofArgs),
    /// An authenticated state beside plain maps and a rolling digest
    Auth(AuthArgs),
    /// Keys that a trie may suffer from, beside hashed ones
    Grind(GrindArgs),
    /// The root of a block that stays in memory
    Overlay(OverlayArgs),
    /// Executed blocks that are committed when enough are over them
    Threshold(ThresholdArgs),
    /// Overlays over each other that become one commit
    Flatten(FlattenArgs),
    /// Token transfers over accounts and contracts
    Erc20(Erc20Args),
    /// Transfers between named accounts with a log of them, on Pleach and other stores
    Bank(BankArgs),
    /// A bulk load of a stream under a limit of memory
    Import(ImportArgs),
    /// An index of the blocks at which keys have changed
    History(HistoryArgs),
    /// A load that `import` measures (internal)
    #[command(name = "__load", hide = true)]
    Load(LoadJob),
    /// A program of others that ends with the process that has started it (internal)
    #[command(name = "__become", hide = true)]
    Become {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Several workloads, all backends of this build, one page
    Compare(CompareArgs),
    /// One job of one backend, described on standard input (internal)
    #[command(name = "__child", hide = true)]
    Child,
}

/// Flags of every workload that opens a database.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Number of accounts at the start, as a power of two
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u32>(1..=32))]
    pub(crate) log2: u32,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 12345, value_parser = count::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Engines, one after the other on the same operations: pleach, model (a sorted map, for small sizes); with the
    /// features peer-NAME nomt, sp-trie and jmt
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "pleach")]
    pub(crate) backend: Vec<String>,
    /// When a commit is acknowledged: commit (synced), periodic:MS or none
    #[arg(long, value_name = "MODE", default_value = "commit")]
    pub(crate) durability: Durability,
    /// Memory budget of the database, everything included
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = mib(8..=16_777_216))]
    pub(crate) cache_mib: u64,
    /// Worker threads (default: all cores)
    #[arg(long, value_name = "N", value_parser = count::<u16>(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Page reads in flight
    #[arg(long, value_name = "W", default_value_t = 128, value_parser = count::<u32>(1..=4096))]
    pub(crate) in_flight: u32,
    /// How files are read and written: auto, uring or blocking
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) io: IoChoice,
    /// Limit on trie nodes in memory, part of the budget; 0 keeps none
    #[arg(long, value_name = "KIB", value_parser = kib(0..=16_777_216 << 10))]
    pub(crate) trie_cache_kib: Option<u64>,
    /// Memory that the load may use (default: the engine's own choice)
    #[arg(long, value_name = "MIB", value_parser = mib(16..=16_777_216))]
    pub(crate) load_mib: Option<u64>,
    /// Log size at which a checkpoint starts
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = mib(1..=8192))]
    pub(crate) log_limit_mib: u64,
    /// Past commits that can be read
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count::<u64>(0..=u64::MAX))]
    pub(crate) history: u64,
    /// Memory that undo may take (default: the engine's own choice)
    #[arg(long, value_name = "MIB", value_parser = mib(1..=16_777_216))]
    pub(crate) history_mib: Option<u64>,
    /// Setting of a peer, such as nomt.readers=16 (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) peer_arg: Vec<String>,
    /// Where the databases live, one subfolder per backend; reused if it already has them (default: a
    /// temporary folder, removed at the end)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Loads again even if --dir already has the databases
    #[arg(long, requires = "dir")]
    pub(crate) reset: bool,
    /// Keeps the temporary folder and prints its name
    #[arg(long, conflicts_with = "dir")]
    pub(crate) keep: bool,
    /// Writes the results as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// No progress bars
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// The stream of transfers.
#[derive(Clone, Debug, Args)]
pub(crate) struct StreamArgs {
    /// Transfers per batch; a batch is one commit
    #[arg(long, default_value_t = 25_000, value_parser = count::<u32>(1..=10_000_000))]
    pub(crate) batch: u32,
    /// Percent of a batch's receivers that are new accounts
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = count::<u32>(0..=100))]
    pub(crate) fresh: u32,
    /// How accounts are drawn: uniform, zipf:S or pareto
    #[arg(long, default_value = "uniform")]
    pub(crate) distribution: Distribution,
    /// Announce a batch's keys before reading them
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub(crate) prefetch: Switch,
    /// Prove every read and write of a batch
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub(crate) witness: Switch,
}

impl StreamArgs {
    /// The stream of batches that these flags describe.
    pub(crate) fn of(&self, seed: u64) -> Stream {
        let Self { batch, fresh, distribution, .. } = *self;
        Stream { seed, batch, fresh, distribution, closing: None }
    }
}

/// `nomt-bench init`.
#[derive(Clone, Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `nomt-bench transfer`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TransferArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// Batches to measure; auto: until three checkpoints have passed, but at least 40
    #[arg(long, value_name = "N|auto", default_value = "40")]
    pub(crate) batches: Count,
    /// Batches before the measurement; auto: until the number of pending entries is steady
    #[arg(long, value_name = "N|auto", default_value = "4")]
    pub(crate) warmup: Count,
    /// Keep the newest K batches as uncommitted overlays and commit those that are older
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = count::<u32>(0..=4096))]
    pub(crate) overlay_window: u32,
    /// Announce the next batch's keys before a batch is finished: their pages are read meanwhile. Pleach only
    #[arg(long)]
    pub(crate) ahead: bool,
    /// Verify one witness in K
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = count::<u64>(1..=u64::MAX))]
    pub(crate) verify_every: u64,
    /// Empty the system's page cache between load and run (needs root)
    #[arg(long)]
    pub(crate) drop_caches: bool,
    /// Keep all backends open and let them take turns of N batches
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=1_000_000))]
    pub(crate) alternate: Option<u32>,
    /// Records where the time of each batch goes, and computes what it would take on so many cores
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count::<u16>(1..=1024))]
    pub(crate) cores: Vec<u16>,
    /// Writes the results as one HTML page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// `nomt-bench soak`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SoakArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// How long it runs, including verification between batches
    #[arg(long, value_name = "M", default_value = "10")]
    pub(crate) minutes: Minutes,
    /// Run this many batches, however long they take
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = count::<u64>(1..=10_000_000))]
    pub(crate) batches: Option<u64>,
    /// Loaded accounts closed in each batch, as a percentage of its transfers
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = count::<u32>(0..=100))]
    pub(crate) deletes: u32,
    /// Number of batches after which new accounts are closed
    #[arg(long, value_name = "BATCHES", default_value_t = 16, value_parser = count::<u32>(1..=1_000_000))]
    pub(crate) life: u32,
    /// Sessions held open while batches run
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = count::<u32>(0..=1024))]
    pub(crate) sessions: u32,
    /// Number of batches that each session stays open for
    #[arg(long, value_name = "BATCHES", default_value_t = 16, value_parser = count::<u32>(1..=1_000_000))]
    pub(crate) session_batches: u32,
    /// Batches before the measurement; auto: until the number of pending entries is steady
    #[arg(long, value_name = "N|auto", default_value = "auto")]
    pub(crate) warmup: Count,
    /// Verify one witness in K
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = count::<u64>(1..=u64::MAX))]
    pub(crate) verify_every: u64,
    /// Seconds that one row of the table covers
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = count::<u32>(1..=86_400))]
    pub(crate) row_seconds: u32,
    /// Exit 1 when a figure does not stay level
    #[arg(long)]
    pub(crate) require_level: bool,
    /// Writes the results as one HTML page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// `nomt-bench recover`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// How often the process is killed
    #[arg(long, value_name = "K", default_value_t = 20, value_parser = count::<u32>(1..=1_000_000))]
    pub(crate) kills: u32,
}

/// `nomt-bench device`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Folder whose device is measured
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Size of the test file; larger than the device's own cache is better
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = mib(16..=1_048_576))]
    pub(crate) size_mib: u64,
    /// Milliseconds per measurement
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = count::<u64>(10..=600_000))]
    pub(crate) millis: u64,
    /// How files are read and written: auto, uring or blocking
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) io: IoChoice,
    /// Seed of the offsets that are read and written
    #[arg(long, default_value_t = 12345, value_parser = count::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Do not run fio for comparison, even if it is installed
    #[arg(long)]
    pub(crate) no_fio: bool,
    /// Writes the results as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The flags of `transfer`, as another subcommand will give them to it.
pub(crate) fn of_transfer(arguments: &[String]) -> Option<TransferArgs> {
    let words = ["nomt-bench", "transfer"].into_iter().chain(arguments.iter().map(String::as_str));
    match BenchCli::try_parse_from(words).ok()?.command {
        BenchCommand::Transfer(args) => Some(args),
        _ => None,
    }
}

/// Parses a command line. `Err(None)` means that only help or the version was asked for, and printed.
pub(crate) fn parse<C: Parser>() -> Result<C, Option<BenchError>> {
    C::try_parse().map_err(|error| {
        if !error.use_stderr() {
            return output::judge(error.print()).err();
        }
        // clap prints several paragraphs. The first is the message; a `tip:` that follows says what
        // was probably meant.
        let text = error.to_string();
        if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return output::print(&text).err();
        }
        let end = |line: &&str| {
            !["Usage:", "For more information"]
                .iter()
                .any(|start| line.trim_start().starts_with(start))
        };
        let words = text.lines().take_while(end).collect::<Vec<_>>().join(" ");
        let message = one_line(words.trim_start_matches("error:"));
        Some(BenchError::Usage(format!("{message} (--help shows all flags)")))
    })
}
