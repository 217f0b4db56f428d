//! `pleach`: the folder of a state database, looked at, checked, proven, exported and imported. An error is one clear line, and
//! has an exit code of its kind ([`error::ErrorKind`]).

mod archive;
mod args;
mod change;
mod database;
mod error;
mod inspect;
mod output;
mod repair;
mod signals;
mod sync;
mod table;
mod top;

use std::process::ExitCode;

use args::Command;
use error::{CliError, Result};
use serde_json::json;

fn main() -> ExitCode {
    let error = match args::parse().map(|cli| run(&cli.command)) {
        Ok(Ok(())) | Err(None) => return ExitCode::SUCCESS,
        Ok(Err(error)) | Err(Some(error)) => error,
    };
    // Which command it was may not be known.
    let json = std::env::args_os().any(|argument| argument == "--json");
    if json && !error.is_after_document {
        // If that fails, the line below is there.
        let _ = output::json(&json!({"schema": 1, "error": error.document()}));
    }
    output::report(&error)
}

fn run(command: &Command) -> Result<()> {
    // A server ends by itself.
    if !matches!(command, Command::Serve(_)) {
        signals::end_first_process().map_err(CliError::signals)?;
    }
    match command {
        Command::Stat(args) => inspect::stat(args),
        Command::Namespaces(args) => inspect::namespaces(args),
        Command::History(args) => inspect::history(args),
        Command::Check(args) => inspect::check(args),
        Command::Get(args) => inspect::get(args),
        Command::Explain(args) => inspect::explain(args),
        Command::Dump(args) => inspect::dump(args),
        Command::Prove(args) => change::prove(args),
        Command::Top(args) => top::top(args),
        Command::Metrics(args) => inspect::metrics(args),
        Command::Serve(args) => sync::serve(args),
        Command::Sync(args) => sync::sync(args),
        Command::Upgrade(args) => change::upgrade(args),
        Command::Verify(args) => change::verify(args),
        Command::Rollback(args) => change::rollback(args),
        Command::Backup(args) => archive::backup(args),
        Command::Restore(args) => archive::restore(args),
        Command::Scrub(args) => repair::scrub(args),
        Command::Repair(args) => repair::repair(args),
        Command::Follow(args) => archive::follow(args),
        Command::Export(args) => change::export(args),
        Command::Import(args) => change::import(args),
        Command::Completions { shell } => change::completions(*shell),
        Command::Man { folder } => change::man(folder),
    }
}
