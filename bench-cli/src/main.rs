//! The binary `nomt-bench`, which measures Pleach beside its peers. `--help` lists the flags; `docs/workloads.md` in the
//! repository says what is drawn, run, checked and measured.
//!
//! ```text
//! parent   cli → run, kills, device, compare    start a child for each engine, give them turns, compare what they say
//!                │ job   a line of JSON to each child, lines of JSON back
//! child        work      one workload, from its first line to its last
//!                │ side  what it says, and asks for turns
//!                ├─ draw, measure, machine, flags
//!                └─ engine    the trait and one adapter an engine
//! parent       report    results as a table, JSON, a page, README's tables, plots
//! all          output    the two ways to print
//! ```

#![allow(unreachable_pub, reason = "a program has no public interface")]
#![allow(
    clippy::struct_excessive_bools,
    reason = "flags of a command line, and what an engine can do"
)]
#![allow(
    clippy::option_option,
    reason = "no change of a key, a delete and a new value are three things"
)]

mod cli;
mod compare;
mod device;
mod draw;
mod engine;
mod error;
mod flags;
mod job;
mod job_context;
mod kills;
mod machine;
mod measure;
mod output;
mod progress;
mod report;
mod results;
mod run;
mod signals;
mod work;

use std::process::ExitCode;

use error::Error;
use work::Workload;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(error)) => return failed(&error),
    };
    let outcome = match cli.command {
        cli::Command::Work(Workload::Recover(args)) => kills::run(&args, cli.flags),
        cli::Command::Work(work) => run::run(work, cli.flags),
        cli::Command::Device(args) => device::run(&args, &cli.flags),
        cli::Command::Compare(args) => compare::run(&args, &cli.flags),
        cli::Command::Report(args) => report::run(&args),
        cli::Command::Completions { shell } => cli::completions(shell),
        cli::Command::Man { folder } => cli::man(&folder),
        cli::Command::Job => job::main(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> ExitCode {
    output::say(&format!("nomt-bench: {}", error::one_line(&error.to_string())));
    ExitCode::from(error.code())
}
