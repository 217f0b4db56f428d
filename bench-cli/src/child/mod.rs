//! Jobs in processes of their own, so that memory, caches and I/O of each backend and of load
//! and run are told apart. The parent starts its own executable again, writes a [`Spec`] to its
//! standard input and reads [`Event`]s, one JSON line each, from its standard output. A stepped
//! run then waits for an [`Order`], a line of its standard input as well, before each step.

mod check;
mod load;
mod run;
mod series;
pub(crate) mod spawn;
mod views;

use std::io::Write as _;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::account::{from_hex, hex};
use crate::args::values::Count;
use crate::backend::{EngineOptions, Kind, Place, Root};
use crate::draws::Stream;
use crate::error::{BenchError, Result};
use crate::interrupt;
pub(crate) use check::{CheckResult, InspectResult};
pub(crate) use load::LoadResult;
pub(crate) use run::RunResult;
pub(crate) use series::BatchSample;
pub(crate) use views::ViewPlan;

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
    /// Opens, says root and number of batches, closes; runs the offline checker before.
    Inspect,
}

/// How many batches, and what is verified.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunPlan {
    pub(crate) warmup: Count,
    pub(crate) batches: Count,
    pub(crate) verify_every: u64,
    /// With [`Count::Auto`]: batches until so many seconds have passed, pauses included.
    pub(crate) seconds: Option<f64>,
    /// Batches under the clock are run as [`Order`]s say.
    pub(crate) stepped: bool,
    /// Sessions that stay open meanwhile.
    pub(crate) views: ViewPlan,
}

/// What the parent tells a stepped run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Run so many batches, then wait again.
    Go(u64),
    /// Drain, close, give the result.
    End,
}

/// What a child says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// So much of the job is done; 0 of 0 when the end is not known.
    Progress { done: u64, of: u64 },
    /// After batch `number - 1` the root will be this; its commit begins.
    Committing { number: u64, root: HexRoot },
    /// That commit is acknowledged.
    Committed { number: u64 },
    /// A stepped run has warmed up with so many batches and waits.
    Ready { warmup: u64 },
    /// It has run a step and waits; by its plan the batches so far are enough.
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

/// Writes one event. A parent that is gone ends the child: nobody waits for the result.
fn say(event: &Event) -> Result<()> {
    let gone = |error: std::io::Error| BenchError::Child(format!("the parent is gone: {error}"));
    let mut line = serde_json::to_string(event)
        .map_err(|error| BenchError::Child(format!("an event does not serialize: {error}")))?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).map_err(gone)?;
    out.flush().map_err(gone)
}

/// The hidden subcommand: does the job on standard input.
pub(crate) fn main() -> ExitCode {
    let spec = match interrupt::note_in_child().and_then(|()| read_spec()) {
        Ok(spec) => spec,
        Err(error) => return error.report("nomt-bench"),
    };
    let outcome = match spec.job {
        Job::Load => load::load(&spec).map(Event::Loaded),
        Job::Run(plan) => run::run(&spec, plan).map(|result| Event::Ran(Box::new(result))),
        Job::Check => check::check(&spec).map(Event::Checked),
        Job::Inspect => check::inspect(&spec).map(Event::Inspected),
    };
    let (event, code) = match outcome {
        Ok(event) => (event, ExitCode::SUCCESS),
        Err(error) => {
            let event = Event::Failed { code: error.code(), message: error.to_string() };
            (event, ExitCode::from(error.code()))
        }
    };
    match say(&event) {
        Ok(()) => code,
        Err(error) => error.report("nomt-bench child"),
    }
}

fn read_spec() -> Result<Spec> {
    let text = read_line()?.unwrap_or_default();
    serde_json::from_str(&text)
        .map_err(|error| BenchError::Usage(format!("this subcommand is internal ({error})")))
}

/// The parent's next order. A parent that is gone ends the child: nobody waits for the result.
fn next_order() -> Result<Order> {
    let gone = || BenchError::Child("the parent is gone".to_owned());
    let text = read_line()?.ok_or_else(gone)?;
    serde_json::from_str(&text)
        .map_err(|error| BenchError::Child(format!("no order: {error}: {text}")))
}

/// A line of standard input; `None` at its end.
fn read_line() -> Result<Option<String>> {
    let line = std::io::stdin().lines().next().transpose();
    line.map_err(|error| BenchError::Child(format!("no job: {error}")))
}
