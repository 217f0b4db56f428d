//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use pleach::internals::hexadecimal::from_hex;
use pleach::{Hasher, Key};
use pleach_sync::http::Url;

use crate::error::{CliError, Result};
use crate::output;

/// Name of the file that makes a folder a database.
const SUPERBLOCK: &str = "super";

/// Exit codes and what they mean.
const EXIT_CODES: [(u8, &str); 8] = [
    (0, "fine"),
    (
        1,
        "findings: something was found that should not be so, or a key has no value, or a proof does not prove",
    ),
    (2, "arguments that do not fit, or what they name"),
    (3, "the database is in use"),
    (4, "it does not open"),
    (5, "damaged data was met"),
    (6, "the system refused"),
    (7, "another version has made it"),
];

const EXAMPLES: &str = "\
Examples:
  pleach stat /mnt/ssd/state                       what is there
  pleach stat /mnt/ssd/state --json                the same for programs
  pleach check /mnt/ssd/state --root 0x48c0...     reads everything
  pleach get /mnt/ssd/state KEY
  pleach dump /mnt/ssd/state | head
  pleach backup /mnt/ssd/state --to /mnt/backup    what has changed since the last time
  pleach restore /mnt/backup --to /mnt/ssd/copy
  pleach scrub /mnt/ssd/state --mib-per-second 20
  pleach repair /mnt/ssd/state --from /mnt/backup --to /mnt/ssd/mended
  pleach serve /mnt/ssd/state --listen 0.0.0.0:7070
  pleach sync /mnt/ssd/new --root 0x8f3c... --from http://a:7070 --from http://b:7070
  pleach export /mnt/ssd/state --to state.plx
  pleach import /mnt/ssd/copy --from state.plx
  pleach export /mnt/ssd/state --to state.csv --format csv
  pleach rollback /mnt/ssd/state --at 1041

`rollback`, `repair` and `sync` open the database for writing: where a process has it open, it is in use. All others
read beside that process.
Exit codes: 0 fine; 1 findings; 2 arguments that do not fit; 3 the database is in use; 4 it does not open; 5 damaged
data was met; 6 the system refused; 7 another version has made it.";

/// Looks at the folder of a Pleach state database, checks it, proves keys, exports and imports it.
#[derive(Debug, Parser)]
#[command(name = "pleach", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What is in the folder: root, counts, sizes
    Stat(FolderArgs),
    /// The namespaces of the newest commit, with their roots
    Namespaces(FolderArgs),
    /// The commits that can be read by number, with their times and roots
    History(HistoryArgs),
    /// Reads everything and lists what does not fit; exit code 1 with findings, 4 when it does not open. Beside a process that
    /// writes it is a scrub
    Check(CheckArgs),
    /// The value of a key, in hexadecimal; exit code 1 when it has none
    Get(AtArgs),
    /// Where a key lies, page by page
    Explain(ExplainArgs),
    /// All pairs of a namespace in key order, one a line, in hexadecimal, for programs; `import` reads what `export` writes
    Dump(DumpArgs),
    /// A line a second with what the process that writes does
    Top(TopArgs),
    /// What a reader knows of a database, once, as text for Prometheus
    Metrics(MetricsArgs),
    /// Proves a key, present or absent
    Prove(AtArgs),
    /// Verifies what `prove` has written, without a database
    Verify(VerifyArgs),
    /// Makes an older commit of the history the newest state, with one commit
    Rollback(RollbackArgs),
    /// Brings an archive up to the newest commit: with what has changed since the last backup, or with all pairs
    Backup(BackupArgs),
    /// Makes a database of an archived commit, or lists what an archive has
    Restore(RestoreArgs),
    /// Keeps a database up with an archive; others can read it meanwhile
    Follow(FollowArgs),
    /// Serves the states of a database over HTTP, beside the process that writes it, until SIGTERM
    Serve(ServeArgs),
    /// Fetches the state of a root from servers, verified, into a new database, or brings one to a newer root
    Sync(SyncArgs),
    /// Reads all pages, long values and log records, at a pace, beside the process that writes, and lists bad pages
    Scrub(ScrubArgs),
    /// Mends a closed database: brings a backup up to it, or cuts a damaged log, or writes what is whole
    Repair(RepairArgs),
    /// Writes an export stream, which `import` loads: all pairs of all namespaces, with roots and checksums; or a table for other
    /// programs
    Export(ExportArgs),
    /// Loads an export stream into a new database, or goes on with an import that was cut off; or a table in CSV
    Import(ImportArgs),
    /// Rewrites a database in the format that this version creates, into another folder
    Upgrade(UpgradeArgs),
    /// Prints the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes manual pages
    Man {
        /// The folder for the pages, which is made where there is none
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    #[command(flatten)]
    pub(crate) folder: FolderPath,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FolderPath {
    /// The database folder
    folder: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The newest N commits alone
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The root that namespace 0 must have, 64 hexadecimal digits, with or without 0x
    #[arg(long, value_name = "HEX", value_parser = digits)]
    pub(crate) root: Option<Key>,
    /// Checks the newest state alone: the history takes about 200 bytes of memory for each change in it
    #[arg(long)]
    pub(crate) newest: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The key, 64 hexadecimal digits, with or without 0x
    #[arg(value_name = "KEY", value_parser = digits)]
    pub(crate) key: Key,
    /// The namespace, 0 to 255
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) namespace: u8,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// What the key had before each commit of the history that changed it, too: reads the whole history
    #[arg(long)]
    pub(crate) history: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The namespace, 0 to 255
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) namespace: u8,
    /// Only keys that begin with these hexadecimal digits
    #[arg(long, value_name = "HEX", default_value = "", value_parser = prefix)]
    pub(crate) prefix: String,
    /// At most so many pairs
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct AtArgs {
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// The commit of the history whose state is meant, instead of the newest one
    #[arg(long, value_name = "COMMIT")]
    pub(crate) at: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// Seconds from one line to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Ends after so many lines
    #[arg(long, value_name = "LINES")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The folder of the new database: missing, empty, or that of an upgrade which was cut off. Without it the command says
    /// whether there is anything to do
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: Option<PathBuf>,
    /// Memory for the new database and its load, in MiB, half for each; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// What `pleach prove --json` has written, or - for standard input
    pub(crate) proof: PathBuf,
    /// The root that you trust, 64 hexadecimal digits, with or without 0x
    #[arg(long, value_name = "HEX", value_parser = digits)]
    pub(crate) root: Key,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The commit to go back to
    #[arg(long, value_name = "COMMIT")]
    pub(crate) at: u64,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The archive: a folder, which is made where there is none, or the URL of an object store
    #[arg(long, value_name = "ARCHIVE")]
    pub(crate) to: OsString,
    /// Writes all pairs, whatever the archive has
    #[arg(long)]
    pub(crate) full: bool,
    /// Goes on: a backup every so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: Option<u64>,
    /// With --every: ends after so many backups
    #[arg(long, value_name = "BACKUPS", requires = "every")]
    pub(crate) count: Option<u64>,
    /// Removes what is not needed for the newest so many fulls and what comes after them
    #[arg(long, value_name = "FULLS", value_parser = fulls)]
    pub(crate) keep: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The archive: a folder, or the URL of an object store
    pub(crate) archive: OsString,
    /// The folder of the database: missing, empty, or that of a restore which was cut off. Without it the archive is listed
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: Option<PathBuf>,
    /// Without --to: reads all objects, and says what is wrong with them
    #[arg(long, conflicts_with = "to")]
    pub(crate) check: bool,
    /// The archived commit; without it the newest
    #[arg(long, value_name = "COMMIT", requires = "to")]
    pub(crate) at: Option<u64>,
    /// Memory for the database and its load, in MiB, half for each; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// The archive: a folder, or the URL of an object store
    pub(crate) archive: OsString,
    /// The folder of the database: missing, empty, or that of a restore or a follower
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
    /// Seconds between two looks at the archive
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Ends when it is at the archive's newest commit
    #[arg(long)]
    pub(crate) once: bool,
    /// Commits of the follower's own that can be read, and for which its readers can stay at a state
    #[arg(long, value_name = "COMMITS", default_value_t = 16)]
    pub(crate) history: u64,
    /// Memory for the database and its load, in MiB, half for each; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
    /// For programs: a JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    pub(crate) folder: FolderPath,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The address and port to listen on; port 0 has the system choose one
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// Sends so many MiB a second at most; 0 for no limit
    #[arg(long, value_name = "MIB", default_value_t = 50, value_parser = clap::value_parser!(u64).range(..1 << 20))]
    pub(crate) mib_per_second: u64,
    /// Connections at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..1 << 16))]
    pub(crate) connections: u64,
    /// Connections of one address at the same time; a proxy is one address
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..1 << 16))]
    pub(crate) of_address: u64,
    /// Memory of the reader's cache and of what older states replaced, in MiB; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// The folder of the database: missing, empty, that of a sync which was cut off, or one that goes on to a newer root.
    /// Beside it FOLDER.sync keeps what was fetched, until it is loaded
    pub(crate) folder: PathBuf,
    /// The root over all namespaces that you trust, 64 hexadecimal digits, with or without 0x
    #[arg(long, value_name = "HEX", value_parser = digits)]
    pub(crate) root: Key,
    /// A server, http://HOST:PORT; several are asked together
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) from: Vec<Url>,
    /// The hasher of the database
    #[arg(long, value_name = "NAME", default_value = "blake3", value_parser = hasher)]
    pub(crate) hasher: Hasher,
    /// Then reads further roots over all from standard input, one a line, and goes on to each
    #[arg(long)]
    pub(crate) follow: bool,
    /// Ends when nothing right has come for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) give_up: u64,
    /// Commits that the database keeps readable
    #[arg(long, value_name = "COMMITS", default_value_t = 128)]
    pub(crate) history: u64,
    /// Memory for the database and its load, in MiB, half for each; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
    /// For programs: a JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ScrubArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// Reads so many MiB a second at most; 0 for no limit
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 20))]
    pub(crate) mib_per_second: u64,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// An archive of the database: its newest commit is restored, and the commits that the damaged log has after it are made
    #[arg(long, value_name = "ARCHIVE", requires = "to", conflicts_with = "salvage")]
    pub(crate) from: Option<OsString>,
    /// The folder of the new database: missing, or empty
    #[arg(long, value_name = "FOLDER", requires = "from")]
    pub(crate) to: Option<PathBuf>,
    /// Writes what is whole to this file, as an export stream, and lists what is lost
    #[arg(long, value_name = "FILE")]
    pub(crate) salvage: Option<PathBuf>,
    /// Gives up what a repair in place cannot keep: the commits behind the damage of the log, and older states. Without it
    /// nothing is changed where commits would be lost
    #[arg(long, conflicts_with_all = ["from", "salvage"])]
    pub(crate) cut: bool,
    /// Commits that the new database keeps readable
    #[arg(long, value_name = "COMMITS", default_value_t = 128)]
    pub(crate) history: u64,
    /// Memory for the new database and its load, in MiB, half for each; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// The file, which must not exist; without it, or with `-`, standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// A stream, or a table with the columns namespace, key and value: csv with hexadecimal text, parquet with bytes
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Stream)]
    pub(crate) format: Format,
}

/// What `export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Stream,
    Csv,
    Parquet,
}

/// What `import` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    Stream,
    Csv,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The folder of the new database: missing, empty, or that of an import which was cut off
    pub(crate) folder: PathBuf,
    /// The export stream, or the table; without it standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// A stream, or a table in CSV as `export` writes it, into a missing or an empty folder
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Source::Stream)]
    pub(crate) format: Source,
    /// With csv: the hasher of the database
    #[arg(long, value_name = "NAME", default_value = "blake3", value_parser = hasher)]
    pub(crate) hasher: Hasher,
    /// With csv: a namespace that is plain (may be repeated)
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) plain: Vec<u8>,
    /// The root that namespace 0 must have, 64 hexadecimal digits, with or without 0x; with another one nothing is imported
    #[arg(long, value_name = "HEX", value_parser = digits)]
    pub(crate) root: Option<Key>,
    /// Memory for the database and the load, in MiB, half for each; a tenth and 48 MiB come on top
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory_mib: u64,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a manual page has behind the options of a command: exit status and examples.
pub(crate) fn man_sections(command: &str) -> String {
    let codes = EXIT_CODES.iter().map(|(code, meaning)| format!(".TP\n{code}\n{meaning}\n"));
    let begin = format!("pleach {command} ");
    let examples = EXAMPLES.lines().map(str::trim).filter(|line| line.starts_with(&begin));
    let examples = examples.map(|line| format!(".nf\n{}\n.fi\n", line.replace('-', "\\-")));
    let (codes, examples): (String, String) = (codes.collect(), examples.collect());
    let head = if examples.is_empty() { "" } else { ".SH EXAMPLES\n" };
    format!(".SH \"EXIT STATUS\"\n{codes}{head}{examples}")
}

fn digits(text: &str) -> core::result::Result<Key, String> {
    let parsed = text.parse::<pleach::Node>().map(pleach::Node::to_bytes);
    parsed.map_err(|error| error.to_string())
}

fn hasher(name: &str) -> core::result::Result<Hasher, String> {
    let known = [Hasher::BLAKE3, Hasher::SHA2_256].map(Hasher::name).join(" or ");
    Hasher::of_name(name).ok_or_else(|| format!("say {known}"))
}

/// Zero would remove the last full, too.
fn fulls(text: &str) -> core::result::Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "say how many fulls are kept, 1 or more".to_owned())
}

fn prefix(text: &str) -> core::result::Result<String, String> {
    let digits = without_0x(text);
    if digits.len() > 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err("say at most 64 hexadecimal digits, with or without 0x".to_owned());
    }
    Ok(digits.to_ascii_lowercase())
}

fn without_0x(text: &str) -> &str {
    let digits = text.trim();
    digits.strip_prefix("0x").or(digits.strip_prefix("0X")).unwrap_or(digits)
}

/// Parses the command line. `Err(None)` means that only help or the version was asked for, and printed.
pub(crate) fn parse() -> core::result::Result<Cli, Option<CliError>> {
    Cli::try_parse().map_err(|error| {
        if !error.use_stderr() {
            return output::judge(error.print()).err();
        }
        // clap prints several paragraphs. The first is the message; a `tip:` that follows says what was probably meant.
        // What the standard library says of text that is no number is no help.
        let text = error.to_string().replace("invalid digit found in string", "say a number");
        let is_end = |line: &&str| {
            ["Usage:", "For more information"]
                .iter()
                .any(|start| line.trim_start().starts_with(start))
        };
        // Nobody means a value that looks like a flag.
        let is_of_use = |line: &&str| !line.trim_start().starts_with("tip: to pass '");
        let lines = text.lines().take_while(|line| !is_end(line)).filter(is_of_use);
        let mut words = lines.collect::<Vec<_>>().join(" ").trim_end().to_owned();
        if error.kind() == clap::error::ErrorKind::UnknownArgument {
            words.push_str(&flags_of(std::env::args()));
        }
        if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            "a subcommand is missing".clone_into(&mut words);
        }
        let message = words.trim_start_matches("error:");
        Some(CliError::usage(format!("{message} (--help shows all flags)")))
    })
}

/// The flags of the subcommand among the arguments.
fn flags_of(mut arguments: impl Iterator<Item = String>) -> String {
    let command = command();
    let Some(subcommand) = arguments.find_map(|name| command.find_subcommand(name)) else {
        return String::new();
    };
    let flags = subcommand.get_arguments().filter_map(|argument| argument.get_long());
    let flags: Vec<String> = flags.map(|flag| format!("--{flag}")).collect();
    format!("; {} has {}", subcommand.get_name(), flags.join(", "))
}

/// The command line's own description.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

impl DumpArgs {
    /// First and last key of those that begin with the prefix.
    pub(crate) fn range(&self) -> (Key, Key) {
        let filled = |with: &str| {
            let digits = format!("{}{}", self.prefix, with.repeat(64 - self.prefix.len()));
            from_hex(&digits).and_then(|bytes| bytes.try_into().ok())
        };
        // The prefix has at most 64 hexadecimal digits.
        (filled("0").unwrap_or_default(), filled("f").unwrap_or([0xff; 32]))
    }
}

impl FolderPath {
    /// The folder, if it can be that of a database: a mistyped name is the caller's mistake, not damage.
    pub(crate) fn path(&self) -> Result<&Path> {
        let folder = &self.folder;
        let at = folder.display();
        let wrong = if folder.is_dir() {
            let inside = databases_in(folder);
            if inside.is_empty() {
                return Ok(folder);
            }
            format!("{at} is no database itself: give {}, which it holds", inside.join(" or "))
        } else if folder.exists() {
            format!("{at} is a file: give the folder of the database, with all its files")
        } else {
            format!(
                "there is no folder {at}: give that of a database (nomt-bench keeps its own in DIR/pleach)"
            )
        };
        Err(CliError::usage(wrong))
    }
}

/// Subfolders that hold a database, of a folder that does not.
fn databases_in(folder: &Path) -> Vec<String> {
    let has = |folder: &Path, name: &str| folder.join(name).is_file();
    if has(folder, SUPERBLOCK) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inside = entries.map(|entry| entry.path()).filter(|path| has(path, SUPERBLOCK));
    let mut names: Vec<_> = inside.map(|path| path.display().to_string()).collect();
    names.sort();
    names
}
