//! The messages between parent and child: the parent sends one [`Spec`] and, to a stepped run,
//! [`Order`]s; the child sends [`Event`]s.

use serde::{Deserialize, Serialize};

use crate::args::values::Count;
use crate::backend::{EngineOptions, Kind, Place};
use crate::child::result::{CheckResult, HexRoot, InspectResult, LoadResult, RunResult};
use crate::draws::Stream;

/// One job of one backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) job: Job,
    pub(crate) backend: Kind,
    pub(crate) place: Place,
    pub(crate) log2: u32,
    pub(crate) stream: Stream,
    pub(crate) options: EngineOptions,
}

impl Spec {
    /// Accounts that are loaded.
    pub(crate) const fn initial(&self) -> u64 {
        1 << self.log2
    }
}

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Job {
    /// Loads the accounts into an empty folder.
    Load,
    /// Runs batches.
    Run(RunPlan),
    /// Compares balances with the replay.
    Check,
    /// Opens the database, reports root and number of batches, closes it; runs the offline checker
    /// before and after.
    Inspect,
}

/// How many batches, and what is verified.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunPlan {
    pub(crate) warmup: Count,
    pub(crate) batches: Count,
    pub(crate) verify_every: u64,
    /// With [`Count::Auto`]: run batches until this many seconds have passed, pauses included.
    pub(crate) seconds: Option<f64>,
    /// The measured batches are run in steps, as [`Order`]s say.
    pub(crate) stepped: bool,
    /// Sessions that are held open during the run.
    pub(crate) views: ViewPlan,
}

/// How many sessions are open, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewPlan {
    /// Sessions open at a time.
    pub(crate) sessions: u32,
    /// Batches that each stays open for.
    pub(crate) batches: u32,
}

/// What the parent tells a stepped run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Run this many batches, then wait again.
    Go(u64),
    /// Drain, close, give the result.
    End,
}

/// What a child reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// `done` of `of` parts of the job are done; `of` is 0 if the end is not known.
    Progress { done: u64, of: u64 },
    /// The commit that makes it `number` batches begins; this will be the root.
    Committing { number: u64, root: HexRoot },
    /// That commit is acknowledged.
    Committed { number: u64 },
    /// A stepped run has warmed up with this many batches and waits for an order.
    Ready { warmup: u64 },
    /// It has run a step and waits; `enough`: its plan is fulfilled.
    Stepped { enough: bool },
    /// The job's result.
    Loaded(LoadResult),
    /// The job's result.
    Ran(Box<RunResult>),
    /// The job's result.
    Checked(CheckResult),
    /// The job's result.
    Inspected(InspectResult),
    /// The job failed.
    Failed { code: u8, message: String },
}
