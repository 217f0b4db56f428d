//! Jobs in processes of their own, so that memory, caches and I/O of each backend and of load
//! and run are told apart. The parent starts its own executable again, writes a [`Spec`] to its
//! standard input and reads [`Event`]s, one JSON line each, from its standard output. A stepped
//! run then waits for an [`Order`], a line of its standard input as well, before each step.

mod check;
mod load;
mod message;
mod pipe;
mod result;
mod run;
mod series;
pub(crate) mod spawn;
mod views;

use std::process::ExitCode;

use crate::{interrupt, output};
pub(crate) use message::{Event, Job, Order, RunPlan, Spec, ViewPlan};
use pipe::{read_spec, say};
pub(crate) use result::{BatchSample, CheckResult, HexRoot, InspectResult, LoadResult, RunResult};

/// The hidden subcommand: does the job on standard input.
pub(crate) fn main() -> ExitCode {
    let spec = match interrupt::note_in_child().and_then(|()| read_spec()) {
        Ok(spec) => spec,
        Err(error) => return output::report("nomt-bench", &error),
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
        Err(error) => output::report("nomt-bench child", &error),
    }
}
