//! Jobs, each in a process of its own, so that memory, caches and I/O are counted separately for each
//! backend, and for load and run.
//!
//! The parent ([`spawn`]) starts its own executable again as a child, and writes a [`Spec`] to the
//! child's standard input. The child ([`main`], [`pipe`]) does the job ([`load`], [`run`], [`check`])
//! and writes [`Event`]s, one line of JSON each, to its standard output; the last one is the job's
//! [`result`]. A stepped run waits for an [`Order`], another line on its standard input, before each
//! step.
//!
//! A process of ours that is started by another ([`tied`]) does not outlive it, however that ends.

mod check;
mod claims;
mod load;
mod message;
mod pipe;
mod result;
mod run;
mod series;
pub(crate) mod spawn;
pub(crate) mod tied;
mod views;

use std::process::ExitCode;

use crate::{interrupt, output};
pub(crate) use message::{Event, Job, Order, RunPlan, Spec, ViewPlan};
use pipe::{read_spec, say};
pub(crate) use result::{BatchSample, CheckResult, HexRoot, InspectResult, LoadResult, RunResult};

/// The hidden subcommand: does the job that standard input describes.
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
