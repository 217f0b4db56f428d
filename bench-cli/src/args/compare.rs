//! Flags of `nomt-bench compare`.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use clap::Args;

use crate::args::numbers::mib;
use crate::args::results::ResultArgs;
use crate::text::as_text;

/// How large the workloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Seconds for all of them: does it run?
    Smallest,
    /// Minutes: a first look.
    Quick,
    /// As the papers have them.
    Full,
}

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "smallest" => Ok(Self::Smallest),
            "quick" => Ok(Self::Quick),
            "full" => Ok(Self::Full),
            _ => Err("say smallest, quick or full".to_owned()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Smallest => "smallest",
            Self::Quick => "quick",
            Self::Full => "full",
        })
    }
}

as_text!(Size);

/// `nomt-bench compare`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    /// How large the workloads are: smallest (seconds), quick (minutes) or full (as the papers have them)
    #[arg(long, default_value = "quick")]
    pub(crate) size: Size,
    /// Workloads, in this order (default: all)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Backends, where a workload has a choice (default: all of this build)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) backend: Vec<String>,
    /// Memory budget of each database (default: that of each workload)
    #[arg(long, value_name = "MIB", value_parser = mib(64..=16_777_216))]
    pub(crate) cache_mib: Option<u64>,
    /// Folder of the results and, while a step runs, its databases. The same command goes on where it
    /// stopped
    #[arg(long, default_value = "nomt-bench-compare")]
    pub(crate) dir: PathBuf,
    /// Measures again what --dir has already
    #[arg(long)]
    pub(crate) reset: bool,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}
