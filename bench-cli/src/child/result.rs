//! The result of each job.

use serde::{Deserialize, Serialize};

use crate::backend::{Counters, Root, Timing};
use crate::machine::DiskUse;
use crate::measure::{Quantiles, rate};
use crate::text::{from_hex, hex};

/// A finished load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    pub(crate) accounts: u64,
    /// Time of the load, including a clean close.
    pub(crate) seconds: f64,
    pub(crate) root: HexRoot,
    pub(crate) disk: DiskUse,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) files_bytes: u64,
    pub(crate) notes: Vec<String>,
}

/// A finished run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RunResult {
    /// Number of the first measured batch.
    pub(crate) first_batch: u64,
    pub(crate) warmup: u64,
    pub(crate) batches: u64,
    /// A signal ended it before the plan was fulfilled.
    pub(crate) interrupted: bool,
    pub(crate) transfers: u64,
    pub(crate) moved: u64,
    pub(crate) empty: u64,
    /// Accounts that were deleted.
    pub(crate) closed: u64,
    /// Distinct accounts, summed over the batches.
    pub(crate) accounts: u64,
    /// Time in the engine until the last acknowledgement.
    pub(crate) seconds_acknowledged: f64,
    /// The same, including the drain.
    pub(crate) seconds_drained: f64,
    pub(crate) execute: Quantiles,
    pub(crate) finish: Quantiles,
    pub(crate) commit: Quantiles,
    pub(crate) total: Quantiles,
    pub(crate) series: Vec<BatchSample>,
    /// The phases of each measured batch, where they are recorded.
    pub(crate) timings: Vec<Vec<Timing>>,
    pub(crate) disk: DiskUse,
    pub(crate) counters: Counters,
    pub(crate) witnesses: u64,
    pub(crate) witness_bytes: u64,
    pub(crate) witnesses_verified: u64,
    /// Sessions that were held open and, until they ended, read what they had read at first.
    pub(crate) sessions_ended: u64,
    /// Values that those sessions read.
    pub(crate) session_reads: u64,
    /// Accounts among those that had changed by the end of the session.
    pub(crate) session_changes: u64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) files_bytes: u64,
    pub(crate) open_seconds: f64,
    pub(crate) close_seconds: f64,
    pub(crate) root: HexRoot,
    pub(crate) notes: Vec<String>,
}

/// One measured batch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BatchSample {
    /// When the batch ended, in seconds since the clock was first started, pauses included.
    pub(crate) wall_seconds: f64,
    /// The same without pauses.
    pub(crate) clock_seconds: f64,
    pub(crate) execute_ms: f64,
    pub(crate) finish_ms: f64,
    pub(crate) commit_ms: f64,
    pub(crate) transfers: u64,
    /// Bytes that the kernel read for the engine since the previous batch ended.
    pub(crate) read: u64,
    /// The same for writes.
    pub(crate) written: u64,
    /// Resident memory after the batch.
    pub(crate) rss: u64,
    /// Size of the database folder after it.
    pub(crate) files: u64,
    /// Leaf pages written since the clock started, and the device writes that they took.
    pub(crate) pages_written: Option<u64>,
    pub(crate) page_runs_written: Option<u64>,
}

impl BatchSample {
    /// All phases together.
    pub(crate) fn total_ms(&self) -> f64 {
        self.execute_ms + self.finish_ms + self.commit_ms
    }

    /// The batch's transfers per second.
    pub(crate) fn rate(&self) -> f64 {
        rate(self.transfers, self.total_ms() / 1000.0)
    }
}

/// A finished check; wrong balances are an error, not a result.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CheckResult {
    pub(crate) batches: u64,
    /// Account ids read back.
    pub(crate) balances: u64,
    /// Were those all accounts?
    pub(crate) all: bool,
    /// Sum of all balances: as found if all were read, else as the replay has it.
    pub(crate) sum: u64,
}

/// What a database opens with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InspectResult {
    pub(crate) root: HexRoot,
    pub(crate) batches: u64,
    pub(crate) open_seconds: f64,
    /// Findings of the offline checker before opening and after closing.
    pub(crate) findings: Vec<String>,
}

/// A root that is written in hexadecimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HexRoot(pub(crate) Root);

impl Serialize for HexRoot {
    fn serialize<S: serde::Serializer>(&self, to: S) -> core::result::Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for HexRoot {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> core::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        from_hex(&text).map(Self).ok_or_else(|| serde::de::Error::custom("not a root"))
    }
}
