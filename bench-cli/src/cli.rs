//! The command line: its subcommands, and what they print where it is wrong.

use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::error::{Error, Result, one_line};
use crate::flags::Flags;
use crate::work::Workload;
use crate::{compare, device, report};

const NOTES: &str = "\
Examples:
  nomt-bench transfer                                    2^20 accounts in a temporary folder
  nomt-bench transfer --log2 24 --cache-mib 2GiB --dir /mnt/ssd/bench
  nomt-bench transfer --backend pleach,nomt --alternate 5 --json result.json --report result.html
  nomt-bench block --rate 5 --minutes 60                 mainnet blocks at a fixed rate
  nomt-bench bank --backend pleach,pleach-plain,redb     plain stores beside each other
  nomt-bench transfer --beside ../other/nomt-bench       two builds beside each other
  nomt-bench recover --kills 50                          SIGKILL, reopen, check; 50 times
  nomt-bench compare --dir /mnt/ssd/compare              all workloads, one page; goes on if stopped
  nomt-bench device --dir /mnt/ssd                       what the device itself can do

Numbers: 25000, 25_000, 64k (64,000), 3M, 2^20. Sizes: MiB, or with a unit: 512MiB, 1GiB.
Exit codes: 0 right, 1 a wrong result or a failure, 2 arguments that do not fit, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP:
what was measured until then is printed; a second signal ends at once.";

/// Measures the state database Pleach beside its peers: the same operations, every result checked.
#[derive(Debug, Parser)]
#[command(name = "nomt-bench", version, after_help = NOTES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub flags: Flags,
}

/// One subcommand a workload, and what is done with results.
#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Work(Workload),
    /// Measures what a folder's device can do, through our own I/O crate
    Device(device::DeviceArgs),
    /// Many workloads, all engines of this build, one page; goes on where it stopped
    Compare(compare::CompareArgs),
    /// Makes the page, README's tables and the plots of results
    Report(report::ReportArgs),
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
    /// One job of one engine, described on standard input (internal)
    #[command(name = "__job", hide = true)]
    Job,
}

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nomt-bench", &mut text);
    crate::output::print(&String::from_utf8_lossy(&text))
}

/// Writes manual pages into a folder.
pub fn man(folder: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(folder);
    made.and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(Error::file(folder))
}

/// Parses the command line. `Err(None)`: only help or the version was asked for, and printed.
pub fn parse() -> core::result::Result<Cli, Option<Error>> {
    Cli::try_parse().map_err(|error| {
        use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand as Bare;
        if !error.use_stderr() || error.kind() == Bare {
            // A reader that has gone wants no more of it.
            let _ = crate::output::print(&error.to_string());
            return None;
        }
        // clap prints several paragraphs: the message, then perhaps a tip, then the usage.
        let text = error.to_string();
        let is_message = |line: &&str| {
            !["Usage:", "For more information"].iter().any(|end| line.trim_start().starts_with(end))
        };
        let words = text.lines().take_while(is_message).collect::<Vec<_>>().join(" ");
        let message = one_line(words.trim_start_matches("error:"));
        Some(Error::Usage(format!("{message} (--help shows all flags)")))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_fits_itself() {
        Cli::command().debug_assert();
    }
}
