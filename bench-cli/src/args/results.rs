//! Flags that many subcommands have.

use std::path::PathBuf;

use clap::Args;

use crate::args::numbers::count;

/// The seed, and where results go.
#[derive(Clone, Debug, Args)]
pub(crate) struct ResultArgs {
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 12345, value_parser = count::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Writes the results as JSON (compare's default: compare.json in --dir)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes the results as one HTML page with plots (compare's default: compare.html in --dir)
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// No progress bars
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Settings of backends.
#[derive(Clone, Debug, Args)]
pub(crate) struct PeerArgs {
    /// Setting of a backend, BACKEND.NAME=VALUE (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) peer_arg: Vec<String>,
}
