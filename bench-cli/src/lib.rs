//! The binaries `nomt-bench` (workloads on Pleach and its peers) and `pleach` (look into a
//! database). `docs/workloads.md` says what is drawn, run, checked and measured.
//!
//! ```text
//! args      command lines                 command   subcommands, in the parent process
//! draws     what a batch has              child     jobs, in a process of their own
//! workload  what a batch computes         backend   engines under test
//! report    tables and JSON               machine   what the operating system counts
//! home      the folder of a run           device    the device through our own I/O crate
//! interrupt Ctrl-C and its like           output    printing that may fail
//! ```

mod account;
mod args;
mod backend;
mod child;
mod command;
mod device;
mod draws;
mod error;
mod home;
mod interrupt;
mod machine;
mod measure;
mod outcome;
mod output;
mod progress;
mod report;
mod setting;
mod text;
mod tools;
mod workload;

use std::process::ExitCode;

use args::{BenchCli, BenchCommand};
use error::BenchError;

/// The whole of `nomt-bench`.
pub fn nomt_bench() -> ExitCode {
    let cli = match args::parse::<BenchCli>() {
        Ok(cli) => cli,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(error)) => return output::report("nomt-bench", &error),
    };
    if matches!(cli.command, BenchCommand::Child) {
        return child::main();
    }
    let outcome = interrupt::listen().and_then(|()| match cli.command {
        BenchCommand::Init(args) => command::init::init(args),
        BenchCommand::Transfer(args) => command::transfer::transfer(args),
        BenchCommand::Soak(args) => command::soak::soak(args),
        BenchCommand::Recover(args) => command::recover::recover(args),
        BenchCommand::Device(args) => command::device::device(&args),
        BenchCommand::Child => Err(BenchError::Usage("this subcommand is internal".to_owned())),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report("nomt-bench", &error),
    }
}

/// The whole of `pleach`.
pub fn pleach() -> ExitCode {
    tools::main()
}
